"""The live screen at every size of a terminal: nothing overlaps, nothing is outside, nothing breaks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from bandscope.tui.top.app import TopApp
from bandscope.tui.top.conductor import DirectConductor
from bandscope.tui.top.look import PLAIN, UNICODE
from bandscope.tui.top.paint import HEIGHT_MIN, WIDTH_MIN, Ui, layout, paint, view_of
from bandscope.tui.top.paint_lists import TABS
from bandscope.tui.top.snapshot import Snapshot
from bandscope.tui.top.source import TraceSource
from tests.tui.screens import cells_of, resting_source, steady_run

WIDTHS, HEIGHTS = range(40, 241), range(10, 71)
SOME_WIDTHS = (40, 41, 50, 59, 60, 61, 79, 80, 111, 120, 160, 200, 240)
SOME_HEIGHTS = (10, 11, 13, 16, 17, 18, 24, 50, 70)
WINDOW_NS = 10_000_000_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    return resting_source(steady_run(tmp_path_factory.mktemp("sweep"), operations=250))


def snapshot_for(source: TraceSource, width: int, height: int, tab: str) -> Snapshot:
    """What the source says when it is asked for what fits."""
    room = layout(width, height, 5)
    source.ask("view", view_of(room, tab, 0, WINDOW_NS))
    made = source.tick()
    assert made is not None
    return made


def sound(snapshot: Snapshot, width: int, height: int, ui: Ui) -> None:
    """The picture fills its terminal exactly, and every part is where the layout says."""
    lines = paint(snapshot, ui, width, height)
    assert len(lines) == height
    for line in lines:
        assert sum(cell_len(text) for text, _ in line) == width, (width, height)
    text = ["".join(part for part, _ in line) for line in lines]
    room = layout(width, height, len(snapshot.bands))
    parts = room.parts
    assert sum(count for _, count in parts) == height and min(count for _, count in parts) >= 0
    y = 0
    for name, count in parts:
        part = text[y : y + count]
        match name:
            case "header":
                assert "live" in part[0] or "paused" in part[0]
            case "map":
                cells = part[1][room.gutter :]
                glyphs = ui.glyphs.cells.values()
                assert set(cells) <= set(glyphs), (width, height, cells)
            case "table" if count > len(snapshot.bands):
                for band, row in zip(snapshot.bands, part[1:], strict=False):
                    assert f"{band.letter} " in row[:4] and f"{band.held:,}" in row
            case "tabs" if count:
                assert any(tab[:4] in part[0].lower() for tab in TABS)
        for row in range(y, y + count):
            assert room.part_at(row) == (name, row - y)
        y += count


@pytest.mark.parametrize("height", SOME_HEIGHTS)
@pytest.mark.parametrize("tab", ["events", "leases", "tickets"])
def test_sizes_that_change_the_layout(source: TraceSource, height: int, tab: str) -> None:
    for width in SOME_WIDTHS:
        glyphs = PLAIN if width % 2 else UNICODE
        sound(snapshot_for(source, width, height, tab), width, height, Ui(tab=tab, glyphs=glyphs))


@pytest.mark.slow
@pytest.mark.parametrize("tab", TABS)
def test_every_size(source: TraceSource, tab: str) -> None:
    """Of the events, every one; of the other lists, whose lines differ only in their text, some."""
    every = tab == "events"
    for height in HEIGHTS if every else HEIGHTS[::7]:
        for width in WIDTHS if every else WIDTHS[::5]:
            snapshot = snapshot_for(source, width, height, tab)
            sound(snapshot, width, height, Ui(tab=tab))


def test_a_snapshot_of_another_size_is_painted_all_the_same(source: TraceSource) -> None:
    """Between a resize and the next snapshot the old one fills the new terminal as far as it goes."""
    snapshot = snapshot_for(source, 120, 40, "events")
    for width in SOME_WIDTHS:
        for height in SOME_HEIGHTS:
            lines = paint(snapshot, Ui(), width, height)
            assert [sum(cell_len(text) for text, _ in line) for line in lines] == [width] * height


@pytest.mark.parametrize(("width", "height"), [
    (1, 1), (WIDTH_MIN - 1, 40), (120, HEIGHT_MIN - 1), (WIDTH_MIN, HEIGHT_MIN), (2, 70), (240, 1),
])  # fmt: skip
def test_a_terminal_that_is_too_small_is_told_so(
    source: TraceSource, width: int, height: int
) -> None:
    lines = paint(snapshot_for(source, 80, 24, "events"), Ui(), width, height)
    assert [sum(cell_len(text) for text, _ in line) for line in lines] == [width] * height
    small = width < WIDTH_MIN or height < HEIGHT_MIN
    assert ("too small" in lines[0][0][0]) == (small and width > 20)


def test_bursts_of_resizes_end_in_the_picture_of_the_last_size(source: TraceSource) -> None:
    """However many come between two pictures, and whatever their order."""
    draw = random.Random(5)
    sizes = [(draw.choice(WIDTHS), draw.choice(HEIGHTS)) for _ in range(24)]
    app = TopApp(
        lambda path: DirectConductor(source), Path("golden.trace"), threaded=False, find=lambda: []
    )
    pictures: list[list[str]] = []

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            for number, (width, height) in enumerate(sizes, 1):
                await pilot.resize_terminal(width, height)
                if number % 8 == 0:
                    await pilot.pause()
                    await pilot.pause()
                    strips = app.screen._compositor.render_strips()
                    pictures.append(["".join(part.text for part in strip) for strip in strips])

    asyncio.run(run())
    for picture, size in zip(pictures, sizes[7::8], strict=True):
        assert (len(picture[0]), len(picture)) == size
        assert picture == [
            "".join(text for text, _ in line) for line in cells_of(source, _nothing, size)
        ]


async def _nothing(app: TopApp, pilot: Any) -> None:
    """No key."""
