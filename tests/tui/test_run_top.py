"""`bandscope run … --top`: the run beside the screen, without a terminal and without waiting."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bandscope.inspect.reader import Trace
from bandscope.tui import main as program
from bandscope.tui.commands import run as run_module
from bandscope.tui.top import beside as module
from bandscope.tui.top.beside import Beside, arguments_of, make_screen, run_beside
from tests.allocator.arenas import P3
from tests.inspect_.traces import record
from tests.tui.test_run_recording import SMALL

pytestmark = pytest.mark.usefixtures("plain_surroundings")

ENDLESS = "synthetic:requests=1000000,rate=50,max_prompt_tokens=300,max_output_tokens=20"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, show: Callable[[Path, Beside], None]) -> None:
    """The program believes that it has a terminal, and shows the screen by this function."""
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(module, "show_screen", show)


def test_the_whole_run_is_shown_and_then_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    temporary: Path,
) -> None:
    """The trace is the run's; the report follows when the screen is closed; the status is the run's."""
    shown = []

    def show(trace: Path, beside: Beside) -> None:
        beside._process.wait()  # type: ignore[union-attr]
        shown.append((Trace(trace).header["pid"], Trace(trace).ending, capsys.readouterr().out))

    at_a_terminal(monkeypatch, show)
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as exited:
        program.main([*SMALL, "--top", "--record", str(tmp_path / "kept"), "--json", str(report)])
    assert exited.value.code == 0
    ((pid, ending, before),) = shown
    trace = Trace(tmp_path / "kept.trace")
    assert (trace.header["pid"], trace.ending) == (pid, "clean") and ending == "clean"
    assert before == ""
    out = capsys.readouterr().out
    assert "requests       12 finished" in out and "healthy" in out
    assert json.loads(report.read_text())["recording"]["events"] == trace.stop
    assert json.loads(report.read_text())["config"]["arena_bytes"] == 1 << 30
    assert list(temporary.iterdir()) == []


def test_closing_the_screen_ends_the_run_at_its_next_step(
    capsys: pytest.CaptureFixture[str], temporary: Path
) -> None:
    """The report is whole, the status says interrupted, and what was temporary is gone."""
    seen = []

    def show(trace: Path, beside: Beside) -> None:
        assert beside.running and Trace(trace).stop > 0
        seen.append((trace, Trace(trace).header["recorder"]["ring_bytes"]))

    arguments = ["--device", "none", "--arena-bytes", "1GiB", "--workload", ENDLESS]
    assert run_beside(arguments, None, show) == 130
    ((trace, ring),) = seen
    assert ring == 512 << 20
    out = capsys.readouterr().out
    assert "every invariant checked" in out and "temporary and is removed" in out
    assert not trace.exists() and list(temporary.iterdir()) == []


def test_a_run_that_is_refused_is_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, temporary: Path
) -> None:
    def show(trace: Path, beside: Beside) -> None:
        raise AssertionError("there is nothing to show")

    Trace(record(tmp_path / "there", P3, operations=3).path)
    assert run_beside(SMALL[1:], str(tmp_path / "there"), show) == 2
    assert "there.trace" in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


def test_a_screen_that_fails_leaves_no_run_behind(temporary: Path) -> None:
    runs = []

    def show(trace: Path, beside: Beside) -> None:
        runs.append(beside)
        raise RuntimeError("the screen broke")

    arguments = ["--device", "none", "--arena-bytes", "1GiB", "--workload", ENDLESS]
    with pytest.raises(RuntimeError, match="broke"):
        run_beside(arguments, None, show)
    assert not runs[0].running and list(temporary.iterdir()) == []


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_q_and_ctrl_c_close_the_screen(tmp_path: Path, key: str) -> None:
    screen = make_screen(record(tmp_path / "run", P3, operations=30).path)

    async def script() -> None:
        async with screen.run_test(size=(80, 24)) as pilot:
            await pilot.press(key)

    asyncio.run(asyncio.wait_for(script(), 60))
    assert screen._exit


def test_without_a_terminal_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        program.main([*SMALL, "--top"])
    assert exited.value.code == 2
    assert "--top needs a terminal" in capsys.readouterr().err


def test_every_option_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever option `run` has, the command line of the process beside says the same."""
    given: dict[str, Any] = {
        "--model": "inkling", "--workload": "synthetic:requests=3", "--arena-bytes": "3GiB",
        "--page-size": "32", "--device": "cpu", "--requests": "7", "--speedup": "2.5",
        "--seed": "4", "--verify": "off", "--baseline": True, "--strict": True,
        "--tensor-parallel": "2", "--chunk-tokens": "512", "--max-running": "9",
        "--output-reserve": "0.5", "--max-moves": "11", "--barrier": "coarse",
        "--slow-forward": "3", "--compact-pressure": "0.25", "--check-every": "5",
        "--stacks": "2", "--json": "out.json", "--prefix-cache": True, "--evict": "joint_lru",
        "--checkpoint-grid": "64", "--priority": "random:0.5", "--mem-fraction-static": "0.8",
        "--max-total-tokens": "1000", "--max-running-requests": "6",
        "--swa-full-tokens-ratio": "0.7", "--mamba-full-memory-ratio": "0.6",
        "--max-mamba-cache-size": "12",
    }  # fmt: skip
    options = set(inspect.signature(run_module.run).parameters) - {"context", "record", "top"}
    assert len(given) == len(options)
    asked: list[tuple[list[str], str | None]] = []

    def beside(arguments: list[str], record: str | None, show: Any) -> int:
        asked.append((arguments, record))
        return 5

    at_a_terminal(monkeypatch, lambda trace, beside: None)
    monkeypatch.setattr(module, "run_beside", beside)
    line = ["run", "--top", "--record", "there"]
    for name, value in given.items():
        line += [name] if value is True else [name, value]
    with pytest.raises(SystemExit) as exited:
        program.main(line)
    assert exited.value.code == 5
    ((arguments, record),) = asked
    assert record == "there"
    said: dict[str, Any] = {}
    while arguments:
        name = arguments.pop(0)
        said[name] = True if given.get(name) is True else arguments.pop(0)
    assert said == given


def test_what_is_at_its_default_is_not_said() -> None:
    spelled = {"a": "--a", "b": "--b", "c": "--c"}
    defaults = {"a": 1, "b": None, "c": False}
    assert arguments_of({"a": 1, "b": None, "c": False}, spelled, defaults) == []
    assert arguments_of({"a": 2, "b": "x", "c": True}, spelled, defaults) == [
        "--a", "2", "--b", "x", "--c",
    ]  # fmt: skip
