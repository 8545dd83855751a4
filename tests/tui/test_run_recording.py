"""`bandscope run --record`: the trace it leaves, what the report says of it, and what is refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.errors import TraceError
from bandscope.fuzz.workload import run as run_module
from bandscope.fuzz.workload.recording import parse_record
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.inspect import registry
from bandscope.inspect.decode import Stack, read_events
from bandscope.inspect.decode import Violation as Recorded
from bandscope.inspect.reader import open_trace
from bandscope.inspect.recorder import Recorder
from bandscope.tui import main as program
from tests.tui.inspecting import Inspect

pytestmark = pytest.mark.usefixtures("plain_surroundings")

SMALL = [
    "run", "--device", "none", "--arena-bytes", "1GiB",
    "--workload", "synthetic:requests=12,rate=50,max_prompt_tokens=300,max_output_tokens=20",
]  # fmt: skip


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Status and streams of the program."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exited:
        program.main([*SMALL, *map(str, arguments)])
    streams = capsys.readouterr()
    assert isinstance(exited.value.code, int)
    return exited.value.code, streams.out, streams.err


def test_a_recorded_run_says_where_its_trace_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, inspect: Inspect
) -> None:
    """The trace ends cleanly, tells the run's own counts, and is free of findings."""
    report = tmp_path / "report.json"
    status, out, err = call(capsys, "--record", tmp_path / "t", "--json", report)
    path = tmp_path / "t.trace"
    assert (status, err) == (0, "")
    told = json.loads(report.read_text())
    assert told["recording"]["trace"] == str(path) and told["recording"]["error"] is None
    assert f"{told['recording']['events']:,} events" in " ".join(out.split())
    assert "bandscope inspect summary" in " ".join(out.split())
    found = inspect("summary", path, "--json").data
    assert found["ending"] == "clean"
    assert found["stop"] == told["recording"]["events"]
    assert told["recording"]["bytes"] == sum(file.stat().st_size for file in path.iterdir())
    stats = inspect("stats", path, "--json").data
    asked = {one["kind"]: one["count"] for one in stats["operations"]}
    assert asked["Admit"] == told["counters"]["operations"]["Admit"]
    for command in ("races", "leaks", "check"):
        ended = inspect(command, path)
        assert ended.status == 0, ended
    assert registry.running() == []


def test_without_record_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert call(capsys, "--json", report)[0] == 0
    assert json.loads(report.read_text())["recording"] is None


def test_stacks_and_a_ring(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Stacks as deep as asked, from the caller outwards; the ring's size is in the header."""
    assert call(capsys, "--record", f"{tmp_path}/r:ring=2MiB", "--stacks", "3")[0] == 0
    trace = open_trace(tmp_path / "r")
    assert trace.header["recorder"]["ring_bytes"] == 2 << 20
    stacks = [event.body for event in read_events(trace) if isinstance(event.body, Stack)]
    assert stacks and all(0 < len(stack.frames) <= 3 for stack in stacks)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--record", "{}/t:ring=5KB"], "a ring takes 1 MiB or more"),
        (["--record", "{}/t:ring=much"], "'much' was given as a size"),
        (["--record", "{}/t:rung=5MB"], "'rung' is no option"),
        (["--record", ""], "without a folder"),
        (["--record", ":ring=5MB"], "without a folder"),
        (["--record", "{}/full"], "is not empty"),
        (["--record", "{}/file/t"], "could not be made"),
        (["--stacks", "3"], "name a folder with --record"),
        (["--record", "{}/t", "--stacks", "-1"], "--stacks -1"),
        (["--record", "{}/t", "--stacks", "1000"], "at most 64"),
    ],
)
def test_a_bad_recording_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], part: str
) -> None:
    """One sentence, status 2, and nothing is served or registered."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "full.trace").mkdir()
    (tmp_path / "full.trace" / "something").write_text("kept")
    status, out, err = call(capsys, *(option.format(tmp_path) for option in options))
    assert (status, out) == (2, "")
    assert part in err and err.count("\n") == 1
    assert registry.running() == []
    assert (tmp_path / "full.trace" / "something").read_text() == "kept"


def test_a_colon_in_a_path_is_no_option(tmp_path: Path) -> None:
    for text in ("a:b", "a=b", "a:ring=5/b", "x:y=z/w"):
        assert str(parse_record(text).path) == text
    spec = parse_record("a:b:ring=1.5MiB")
    assert (str(spec.path), spec.ring_bytes) == ("a:b", 3 << 19)


def test_violations_of_the_run_are_in_its_trace(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    inspect: Inspect,
) -> None:
    """What the run's checks found is recorded where it was found; `check` repeats it."""
    monkeypatch.setattr(Arena, "check", lambda arena: [Violation("tables", "planted")])
    status, out, _ = call(capsys, "--record", tmp_path / "t")
    assert status == 1 and "VIOLATIONS" in out
    found = [e.body for e in read_events(open_trace(tmp_path / "t")) if isinstance(e.body, Recorded)]
    assert found == [Recorded("tables", "planted")]
    assert inspect("check", tmp_path / "t").status == 1


def test_an_interrupted_run_leaves_a_clean_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first Ctrl-C ends in order; a second one ends at once, and closes the trace as well."""
    after_step = Run._after_step

    def step(self: Run, scheduler) -> None:
        after_step(self, scheduler)
        if scheduler.results.steps == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_after_step", step)
    assert call(capsys, "--record", tmp_path / "one")[0] == 130
    assert open_trace(tmp_path / "one").ending == "clean"

    release = run_module.ArenaMemory.release

    def again(
        memory: run_module.ArenaMemory, request: int, why: str, *, publish: bool = False
    ) -> None:
        if why == "stopped":
            signal.raise_signal(signal.SIGINT)
        release(memory, request, why, publish=publish)

    monkeypatch.setattr(run_module.ArenaMemory, "release", again)
    assert call(capsys, "--record", tmp_path / "two")[0] == 130
    assert open_trace(tmp_path / "two").ending == "clean"
    assert registry.running() == []


def test_an_error_while_serving_closes_the_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = Run(
        RunConfig(device="none", arena_bytes=1 << 30, workload=SMALL[-1], record=f"{tmp_path}/t")
    )

    def fail(*_: object) -> None:
        raise RuntimeError("the driver broke")

    monkeypatch.setattr(job.scheduler, "run", fail)
    with pytest.raises(RuntimeError):
        job.serve()
    assert open_trace(tmp_path / "t").ending == "clean"


def test_a_trace_that_is_not_whole_is_said_to_be_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that fills up stops the recording, not the run; the report warns."""
    start = Recorder._start

    def full(recorder: Recorder) -> None:
        start(recorder)
        recorder._give_up(TraceError("the disk is full"))

    monkeypatch.setattr(Recorder, "_start", full)
    status, out, err = call(capsys, "--record", tmp_path / "t")
    assert status == 0 and "healthy" in out
    assert "the trace is not whole: the disk is full" in " ".join(out.split())
    assert "the disk is full" in err
