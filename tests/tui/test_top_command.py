"""`bandscope top` as a person types it, and the thread that reads."""

from __future__ import annotations

import json
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.errors import TraceError
from bandscope.inspect import registry
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from bandscope.tui.main import main
from bandscope.tui.probes import Probes
from bandscope.tui.top.conductor import ThreadConductor
from bandscope.tui.top.device import DeviceFigures
from tests.allocator.arenas import P3
from tests.inspect_.traces import record


def run(*arguments: str) -> int:
    """The exit status of the program."""
    with pytest.raises(SystemExit) as ended:
        main(["top", *arguments])
    return int(ended.value.code or 0)


def test_the_facts_of_once_are_wrapped_not_cut() -> None:
    """Whatever there is to tell, every fact is there, in lines of at most the width."""
    from bandscope.tui.top.once import WIDTH, _wrapped

    facts = [f"fact {index} of many words" for index in range(20)]
    lines = _wrapped(facts)
    assert len(lines) > 1 and max(map(len, lines)) <= WIDTH
    assert " · ".join(lines) == " · ".join(facts)


def test_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run", P3, operations=100).path
    assert run(str(path), "--once") == 0

    told = capsys.readouterr().out
    assert "ended cleanly" in told and "window_8" in told and "Outcome" in told
    assert run(str(path), "--once", "--ascii") == 0
    assert capsys.readouterr().out.isascii()


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run", P3, operations=100).path
    assert run(str(path), "--json") == 0

    told = json.loads(capsys.readouterr().out)
    state = Timeline(Trace(path)).seek(Trace(path).stop)
    assert told["schema"] == "bandscope-top/1" and told["ending"] == "clean"
    assert told["position"] == told["stop"] == Trace(path).stop
    for band, about in zip(state.bands, told["bands"], strict=True):
        assert tuple(about["extent_bytes"]) == band.byte_range()
        assert about["held"] == band.count(2) or about["held"] == int((band.virtual >= 0).sum())
    assert told["device"]["power_watts"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.trace"], "is no trace"),
        (["missing.trace", "--once"], "is no trace"),
        (["x", "--refresh", "0.05"], "0.1 to 10"),
        (["x", "--refresh", "11"], "0.1 to 10"),
        (["x", "--refresh", "nan"], "0.1 to 10"),
        (["x", "--theme", "pink"], "the themes are"),
        (["--bogus"], "no such option"),
    ],
)
def test_bad_usage(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert sentence in capsys.readouterr().err.lower()


def test_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run", P3, operations=20).path
    assert run(str(path)) == 2
    assert "--once" in capsys.readouterr().err


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No recorder runs."""
    (tmp_path / "runtime").mkdir()
    folder = tmp_path / "runtime" / "bandscope"
    monkeypatch.setattr(registry, "runtime_directories", lambda: [folder])


def test_nobody_runs(nobody: None, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--once"], ["--json"]):
        assert run(*arguments) == 2
        assert "no recorder of yours runs" in capsys.readouterr().err


def test_the_only_one_that_runs(
    nobody: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = record(tmp_path / "one", P3, operations=30, close=False)
    assert run("--once") == 0
    assert "one.trace" in capsys.readouterr().out
    two = record(tmp_path / "two", P3, operations=30, close=False)
    assert run("--once") == 2
    assert "two.trace" in capsys.readouterr().err
    one.recorder.close()
    two.recorder.close()


# --- the reading thread ---------------------------------------------------------------------------


def test_the_thread_answers_and_ends(tmp_path: Path) -> None:
    from bandscope.tui.top.source import TraceSource

    path = record(tmp_path / "run", P3, operations=100).path
    conductor = ThreadConductor(lambda: TraceSource(path), 10)
    posted: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=conductor.run, args=(posted.put,))
    thread.start()
    first = posted.get(timeout=20)
    conductor.ask("go", 50)
    while (answer := posted.get(timeout=20)).live:
        pass
    conductor.stop()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert first.live and answer.position == 50


def test_the_thread_tells_what_goes_wrong() -> None:
    def broken() -> Any:
        raise TraceError("nothing there")

    posted: list[Any] = []
    ThreadConductor(broken, 1).run(posted.append)
    assert posted == ["nothing there"]

    class Failing:
        """Fails at every tick."""

        def ask(self, what: str, value: Any = None) -> None:
            """Fail too."""
            raise ValueError("bad question")

        def tick(self) -> None:
            """Fail."""
            raise KeyError("bad record")

    conductor = ThreadConductor(Failing, 1)
    conductor.ask("go", 1)
    conductor.stop()
    conductor.run(posted.append)
    assert "bad record" in posted[1] and "bad question" in posted[2]


# --- the device -----------------------------------------------------------------------------------

HEADER: dict[str, Any] = {"gpu": {"uuid": "GPU-1", "name": "H200"}, "host": "elsewhere"}


def missing(name: str) -> Any:
    """No pynvml."""
    raise ModuleNotFoundError(name)


def test_a_device_of_another_machine_is_not_asked() -> None:
    figures = DeviceFigures(HEADER)
    assert figures.uuid == "" and figures().problem == "another machine"
    assert DeviceFigures({"gpu": None, "host": "here"})().name == ""


def test_nvml_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    figures = DeviceFigures(HEADER, Probes(import_module=missing))
    figures.ask()
    told = figures()
    assert told.name == "H200" and "ModuleNotFoundError" in told.problem
    assert told.memory_used_bytes is told.power_watts is told.utilization_percent is None


def test_nvml_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    never = threading.Event()
    figures = DeviceFigures(
        HEADER, Probes(import_module=lambda name: never.wait(60), nvml_seconds=0.01)
    )
    figures.ask()
    never.set()
    assert "no answer" in figures().problem


# --- processes, and where to begin ----------------------------------------------------------------


def test_a_process_by_its_number(
    nobody: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = str(os.getpid())
    assert run(pid, "--once") == 2
    assert "no recorder of yours runs in it" in capsys.readouterr().err
    one = record(tmp_path / "one", P3, operations=30, close=False)
    assert run(pid, "--once") == 0
    assert "one.trace" in capsys.readouterr().out
    assert run("1", "--once") == 2
    capsys.readouterr()
    two = record(tmp_path / "two", P3, operations=30, close=False)
    assert run(pid, "--json") == 2
    told = capsys.readouterr().err
    assert "records 2 arenas" in told and "one.trace" in told and "two.trace" in told
    one.recorder.close()
    two.recorder.close()
    # A trace that has a number for its name is a trace.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.trace").rename(tmp_path / "77")
    assert run("77", "--once") == 0
    assert "ended cleanly" in capsys.readouterr().out


def test_where_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "run", P3, seed=4, operations=200).path
    trace = Trace(path)
    position = trace.stop // 2
    state = Timeline(trace).seek(position)
    band = state.bands[state.full]
    virtual = int(band.virtual[band.virtual >= 0][0])
    page = f"full:{virtual}"
    assert run(str(path), "--at", str(position), "--page", page, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["position"] == position and told["details"]["virtual"] == virtual
    assert told["details"]["owner"] == int(band.owner[int(band.page_of[virtual]) - band.base])
    assert told["details"]["leased"]["sequence"] < position and told["details"]["complete"]
    assert run(str(path), "--at", str(position), "--page", page, "--once") == 0
    text = capsys.readouterr().out
    assert f"full {virtual}." in text and "Last write" in text

    assert run(str(path), "--compare", str(position), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["compared"]["base"] == position and len(told["compared"]["bands"]) == 3
    assert run(str(path), "--compare", str(position), "--once") == 0
    assert f"compared with event {position:,}" in capsys.readouterr().out
    assert run(str(path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["compared"] is told["details"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--at", "99999999"], "event 99,999,999 was asked for"),
        (["--at", "soon"], "write a sequence number"),
        (["--page", "full"], "like full:12"),
        (["--page", "full:x"], "like full:12"),
        (["--page", "attic:3"], "the bands of"),
        (["--page", "full:99999"], "nobody holds it"),
        (["--compare", "elsewhere.trace"], "is no trace"),
    ],
)
def test_bad_places(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "run", P3, operations=40).path
    assert run(str(path), "--once", *arguments) == 2
    told = capsys.readouterr()
    assert sentence in told.err and told.out == "" and told.err.count("\n") == 1
