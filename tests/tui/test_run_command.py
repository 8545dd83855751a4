"""`bandscope run` from the command line: reports, exit statuses, files and signals."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bandscope.allocator.errors import BandscopeError, ConfigError, SizingError
from bandscope.fuzz.workload import run as run_module
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.tui.commands.run import run as run_command
from bandscope.tui.run_report import print_report

SMALL = [
    "--device", "none", "--arena-bytes", "1GiB",
    "--workload", "synthetic:requests=12,rate=50,max_prompt_tokens=300,max_output_tokens=20",
]  # fmt: skip
ESCAPE = "\x1b"

app = typer.Typer()
app.command("run")(run_command)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour or width of the surroundings leaks into a test."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")


def call(*arguments: str):
    """Run the command in this process."""
    return CliRunner().invoke(app, list(arguments))


def test_a_healthy_run_reports_and_ends_with_zero() -> None:
    """The report says what was served, how the bands did, and that nothing was wrong."""
    result = call(*SMALL)
    assert result.exit_code == 0, result.output
    for part in (
        "gpt-oss-20b", "arena 1.0 GiB on none", "12 finished of 12 arrived",
        "A window_128", "F full", "healthy", "0 violations", "content: not verified", "digest ",
    ):  # fmt: skip
        assert part in " ".join(result.output.split())
    assert "stopped early" not in result.output
    assert result.stderr == ""


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b-a3b", "inkling-small"])
def test_all_kinds_of_models_report(name: str) -> None:
    """Each band of the plan heads a column of the table."""
    result = call(*SMALL, "--model", name, "--arena-bytes", "4GiB", "--baseline")
    assert result.exit_code == 0, result.output
    assert "One arena against separate pools of the same bytes" in result.output
    for part in ("one arena", "bad split", "default split", "best split"):
        assert part in result.output


def test_output_that_is_no_terminal_has_no_escape_codes() -> None:
    """Piped output is plain text, on both streams."""
    result = call(*SMALL, "--baseline")
    assert ESCAPE not in result.output
    assert ESCAPE not in result.stderr


@pytest.mark.parametrize("no_color", [False, True])
def test_no_color_is_honoured_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    """A terminal shows colours, and with NO_COLOR it shows the same text without them."""
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    job = Run(RunConfig(device="none", arena_bytes=1 << 30, workload=SMALL[-1]))
    job.serve()
    screen = io.StringIO()
    print_report(Console(file=screen, force_terminal=True, width=100), job)
    assert ("[38;2;" in screen.getvalue() or "38;5;" in screen.getvalue()) == (not no_color)
    assert "A window_128" in screen.getvalue()


@pytest.mark.parametrize("columns", ["1", "20", "40", "80", "300"])
def test_any_width_is_served(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """Narrow and wide terminals get a report, never an error."""
    monkeypatch.setenv("COLUMNS", columns)
    result = call(*SMALL, "--baseline")
    assert result.exit_code == 0, result.exception
    assert max(map(len, result.output.splitlines())) <= int(columns)


def test_brackets_in_a_trace_are_shown_as_they_are(tmp_path: Path) -> None:
    """A garbled row and a path with markup are quoted, not interpreted."""
    trace = tmp_path / "[red]trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:00.0000000,100,5\n"
        "2023-11-16 18:15:01.0000000,[/bold],5\n"
    )
    result = call("--device", "none", "--workload", f"azure:{trace}")
    assert result.exit_code == 0, result.exception
    assert "[/bold]" in result.output
    assert "[red]trace.csv" in result.output.replace("\n", "")
    assert "1 malformed" in result.output


def test_every_reason_of_refusal_is_reported(tmp_path: Path) -> None:
    """Six prompts over the context and two over the memory: both kinds with their first request."""
    trace = tmp_path / "trace.csv"
    prompts = [140_000] * 6 + [100_000] * 2 + [100]
    rows = [f"2023-11-16 18:15:{i:02}.0000000,{n},5\n" for i, n in enumerate(prompts)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    result = call(
        "--device", "none", "--arena-bytes", "256MiB", "--workload", f"azure:{trace}"
    )
    assert result.exit_code == 0, result.exception
    text = " ".join(result.output.split())
    assert "8 refused" in text
    assert "6 × prompt exceeds the context length (request 0: prompt of 140,000 tokens" in text
    assert "2 × Request prompt exceeds the KV memory budget (request 6: " in text


# --- exit statuses ------------------------------------------------------------------------------


def test_a_violation_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are never released are a violation: named in the report, and status 1."""
    monkeypatch.setattr(run_module.ArenaMemory, "release", keep_request_zero)
    result = call(*SMALL)
    assert result.exit_code == 1
    assert "VIOLATIONS" in result.output
    assert "(leak)" in result.output
    assert "healthy" not in result.output


def keep_request_zero(
    memory: run_module.ArenaMemory, request: int, why: str, *, publish: bool = False
) -> None:
    """A release that forgets the first request."""
    if request:
        memory.arena.release(request, why)


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        (["--arena-bytes", "lots"], SizingError, "'lots'"),
        (["--arena-bytes", "0"], SizingError, "'0'"),
        (["--arena-bytes", "1MiB"], SizingError, "one request needs"),
        (["--model", "gpt-oss-21b"], ConfigError, "did you mean"),
        (["--verify", "all"], ConfigError, "only keeps books"),
        (["--page-size", "0"], ConfigError, "pages of 0 tokens"),
        (["--json", "/no/such/folder/report.json"], ConfigError, "/no/such/folder"),
    ],
)
def test_bad_input_raises_an_error_of_status_two(
    arguments: list[str], error: type[BandscopeError], part: str
) -> None:
    """The command raises what the program turns into one line; nothing was printed before."""
    result = call(*SMALL, *arguments)
    assert isinstance(result.exception, error)
    assert result.exception.exit_status == 2
    assert part in str(result.exception)
    assert result.output == ""


def program(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess:
    """Run the real program in a process of its own, after `code`."""
    path = os.pathsep.join(filter(None, sys.path))
    script = f"import sys\n{code}\nfrom bandscope.tui.main import main\nmain(sys.argv[1:])\n"
    return subprocess.run(
        [sys.executable, "-c", script, "run", *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_program_ends_with_its_status(tmp_path: Path) -> None:
    """In a process of its own: 0 with a report and a file, 2 with one line on stderr."""
    file = tmp_path / "report.json"
    done = program(*SMALL, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "healthy" in done.stdout
    assert ESCAPE not in done.stdout + done.stderr
    assert json.loads(file.read_text())["results"]["finished"] == 12
    refused = program(*SMALL, "--verify", "some")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("bandscope: --verify some was asked for")
    assert refused.stderr.count("\n") == 1


# --- the report as a file -----------------------------------------------------------------------


def test_the_file_holds_the_whole_report(tmp_path: Path) -> None:
    """The JSON file has every section; no temporary file stays behind."""
    file = tmp_path / "report.json"
    result = call(*SMALL, "--json", str(file))
    assert result.exit_code == 0
    data = json.loads(file.read_text())
    assert data["schema"] == "bandscope-run/1"
    assert data["results"]["finished"] == 12
    assert data["digest"] in result.output
    assert list(tmp_path.iterdir()) == [file]


def test_the_file_is_written_also_when_something_was_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run with violations still leaves its report."""
    monkeypatch.setattr(run_module.ArenaMemory, "release", keep_request_zero)
    file = tmp_path / "report.json"
    assert call(*SMALL, "--json", str(file)).exit_code == 1
    assert json.loads(file.read_text())["checks"]["violations"] == 1


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning to work fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(Run, "__init__", refuse)


@pytest.mark.parametrize("kind", ["missing folder", "folder", "device", "file as folder"])
def test_a_path_that_cannot_be_written_is_refused_before_the_work(
    no_run: None, tmp_path: Path, kind: str
) -> None:
    """A missing folder, a folder, a device file, and a file in place of the folder."""
    (tmp_path / "file").write_text("kept")
    paths = {
        "missing folder": tmp_path / "missing" / "report.json",
        "folder": tmp_path,
        "device": Path("/dev/null"),
        "file as folder": tmp_path / "file" / "report.json",
    }
    result = call(*SMALL, "--json", str(paths[kind]))
    assert isinstance(result.exception, ConfigError)
    assert "give another path with --json" in str(result.exception)
    assert (tmp_path / "file").read_text() == "kept"
    assert not Path("/dev/null").is_file()


def test_a_folder_without_permission_is_refused_before_the_work(
    no_run: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the system says about permission is asked first (root may write anywhere)."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = call(*SMALL, "--json", str(tmp_path / "report.json"))
    assert isinstance(result.exception, ConfigError)


def test_a_failed_write_leaves_the_old_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk that is full in the middle: the old report stays whole, nothing half-written stays."""
    file = tmp_path / "report.json"
    file.write_text("old")
    write = Path.write_text

    def full(path: Path, text: str, encoding: str) -> int:
        write(path, text[:100], encoding=encoding)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = call(*SMALL, "--json", str(file))
    assert isinstance(result.exception, ConfigError)
    assert "No space left on device" in str(result.exception)
    assert "healthy" in result.output  # the report on screen is not lost
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# --- interrupts ---------------------------------------------------------------------------------


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ctrl-C is sent from within, after each of the listed steps."""
    steps: list[int] = []
    after_step = Run._after_step

    def step(self: Run, scheduler) -> None:
        after_step(self, scheduler)
        if scheduler.results.steps in steps:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_after_step", step)
    yield steps


def test_an_interrupt_ends_with_a_report(interrupt_after: list[int], tmp_path: Path) -> None:
    """The first Ctrl-C: everything is released, the report and the file are whole, status 130."""
    interrupt_after.append(5)
    before = signal.getsignal(signal.SIGINT)
    file = tmp_path / "report.json"
    result = call(*SMALL, "--json", str(file), "--baseline")
    assert result.exit_code == 130
    assert "[stopped early]" in result.output
    assert "healthy" in result.output
    data = json.loads(file.read_text())
    assert data["results"]["steps"] == 5
    assert data["results"]["stopped_early"] is True
    assert data["baselines"] == {}
    assert [band["live"] for band in data["bands"]] == [0, 0]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_at_once(
    interrupt_after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first is being honoured, another one does not wait for a report."""
    interrupt_after.append(5)
    release = run_module.ArenaMemory.release

    def again(
        memory: run_module.ArenaMemory, request: int, why: str, *, publish: bool = False
    ) -> None:
        if why == "stopped":
            signal.raise_signal(signal.SIGINT)
        release(memory, request, why, publish=publish)

    monkeypatch.setattr(run_module.ArenaMemory, "release", again)
    before = signal.getsignal(signal.SIGINT)
    result = call(*SMALL)
    assert result.exit_code == 130
    assert "healthy" not in result.output
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_during_the_comparison(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was compared so far is reported, what was cut short is not."""
    served: list[str] = []
    compare = Run.compare

    def interrupted(self: Run, progress, should_stop) -> None:
        def tell(what: str) -> None:
            served.append(what)
            if what == "default split":
                signal.raise_signal(signal.SIGINT)

        compare(self, tell, should_stop)

    monkeypatch.setattr(Run, "compare", interrupted)
    file = tmp_path / "report.json"
    result = call(*SMALL, "--baseline", "--json", str(file))
    assert result.exit_code == 130
    assert served == ["bad split", "default split"]
    assert list(json.loads(file.read_text())["baselines"]) == ["bad split"]


_INTERRUPT = """
import os, signal
from bandscope.fuzz.workload.run import Run
after_step = Run._after_step
def step(self, scheduler):
    after_step(self, scheduler)
    if scheduler.results.steps == 50:
        os.kill(os.getpid(), signal.SIGINT)
Run._after_step = step
"""


def test_an_interrupted_program_ends_with_130() -> None:
    """The same in a process of its own, with a workload that would take hours."""
    done = program(
        "--device", "none", "--workload", "synthetic:requests=1000000", code=_INTERRUPT
    )
    assert done.returncode == 130, done.stderr
    assert "[stopped early]" in done.stdout
    assert "healthy" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_barrier_that_is_off_is_said_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the report of an experiment sees that tables raced on purpose."""
    from rich.console import Console

    from bandscope.fuzz.workload.run import Run
    from bandscope.fuzz.workload.run_config import RunConfig
    from bandscope.tui.run_report import print_report

    for barrier, said in (("off", True), ("fine", False)):
        job = Run(
            RunConfig(
                workload="synthetic:requests=3", device="none", arena_bytes=1 << 30, barrier=barrier
            )
        )
        job.serve()
        print_report(Console(width=100), job)

        assert ("barrier OFF" in capsys.readouterr().out) == said
