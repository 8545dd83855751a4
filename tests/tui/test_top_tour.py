"""The tour of `docs/top.md`: its commands work, and what it says is seen is seen."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from bandscope.inspect.reader import Trace
from bandscope.tui.main import main
from bandscope.tui.top.app import TopApp
from bandscope.tui.top.source import TraceSource
from tests.tui.test_top_app import play, text_of

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "top.md").read_text(encoding="utf-8").partition("## A tour")[2]


def commands() -> list[list[str]]:
    """The command lines of the tour."""
    blocks = re.findall(r"```sh\n(.*?)```", TOUR, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where every command of the tour that makes a trace was run."""
    here = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for words in commands():
            if words[:2] == ["python", "docs/tour.py"]:
                patch.setattr(sys, "argv", words[1:])
                tour: dict[str, Any] = {"__name__": "tour"}
                path = ROOT / "docs" / "tour.py"
                exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), tour)
                tour["main"]()
            elif words[:2] == ["bandscope", "run"]:
                with pytest.raises(SystemExit) as ended:
                    main(words[1:])
                assert ended.value.code in (0, None)
    return here


def test_every_command_makes_or_shows_a_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    shown = [words for words in commands() if words[:2] == ["bandscope", "top"]]
    assert len(shown) == 3 and len(commands()) == 5
    for words in shown:
        with pytest.raises(SystemExit) as ended:
            main([*words[1:], "--once"])
        assert ended.value.code in (0, None)
        assert "ended cleanly" in capsys.readouterr().out


def tour(trace: Path, script: Any, size: tuple[int, int] = (120, 40)) -> None:
    """Drive the screen on a trace of the tour."""
    source = TraceSource(trace)

    async def run(app: TopApp, pilot: Any) -> None:
        await script(app, pilot, source)

    play(source, run, size=size)


def test_a_stuck_lease(folder: Path) -> None:
    async def script(app: TopApp, pilot: Any, source: TraceSource) -> None:
        await pilot.press("2")
        assert app.snapshot is not None
        (row,) = app.snapshot.lists.rows
        assert "lease 3 of backup, 40 tickets ago: pins 4 pages of window_256" in row.text
        await pilot.press("enter")
        await pilot.pause()
        assert app.snapshot.page is not None and app.snapshot.page.leases == (3,)
        await pilot.press("6")
        await pilot.pause()
        assert "lease 3 of backup pins it" in text_of(app) and "docs/tour.py" in text_of(app)
        await pilot.press("3", "end", "2", "d")
        assert app.snapshot.lists.rows == ()  # its request has gone, and the pages wait for it

    tour(folder / "stuck-lease.trace", script)


def test_a_missing_barrier(folder: Path) -> None:
    async def script(app: TopApp, pilot: Any, source: TraceSource) -> None:
        await pilot.press("c", "4")
        while source.busy:
            app.conductor.tick()  # type: ignore[attr-defined, union-attr]
        await pilot.pause()
        assert app.snapshot is not None
        rows = app.snapshot.lists.rows
        assert rows and all(row.kind == "Race WAR" for row in rows)
        text = " ".join(text_of(app).split())
        assert "Missing: a write-after-read barrier (fine) behind ticket" in text
        assert "memory.py" in text  # the stacks of both accesses
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("3")
        assert app.snapshot.position == rows[0].sequence + 1
        assert "write-after-read (off)" in text_of(app)

    tour(folder / "no-barrier.trace", script)


def test_a_fragmentation_refusal(folder: Path) -> None:
    async def script(app: TopApp, pilot: Any, source: TraceSource) -> None:
        await pilot.press("5", "down")
        while source.busy:
            app.conductor.tick()  # type: ignore[attr-defined, union-attr]
        await pilot.pause()
        text = text_of(app)
        assert "pages that cannot move are in the way" in " ".join(text.split())
        assert "Cure: ending lease 1" in text and "cannot move" in text
        await pilot.press("enter")
        await pilot.pause()
        assert app.snapshot is not None
        window = app.snapshot.bands[1]
        total = app.snapshot.total_bytes
        assert total // 3 < window.extent_bytes[0] < window.extent_bytes[1] < 2 * total // 3
        assert min(app.snapshot.gaps) > total // 3  # room enough, on both sides of it

    tour(folder / "refused.trace", script)
    assert Trace(folder / "refused.trace").ending == "clean"
