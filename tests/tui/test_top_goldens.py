"""Pictures of the live screen, character by character and style by style.

A golden file in `goldens/` holds a picture as text and its styles, or as an SVG to look at. When the
screen is meant to look otherwise, look at the new pictures and write them:

    UPDATE_GOLDENS=1 python -m pytest tests/tui/test_top_goldens.py
    git diff tests/tui/goldens
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from bandscope.tui.top.app import TopApp
from bandscope.tui.top.look import UNICODE
from bandscope.tui.top.paint_lists import TABS
from tests.inspect_.traces import Recorded
from tests.tui.screens import (
    Script,
    cells_of,
    resting_source,
    spelled,
    steady_cached_run,
    steady_run,
)

GOLDENS = Path(__file__).with_name("goldens")
SIZES = [(width, height) for width in (50, 80, 120, 200) for height in (24, 50)]
LOOKS = ("dark", "light", "no-colour")
CACHED_SIZES = [(50, 24), (80, 24), (120, 50)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return steady_run(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return steady_cached_run(tmp_path_factory.mktemp("cached"))


def compare(name: str, picture: str, suffix: str = "txt") -> None:
    """The picture is the golden one; with UPDATE_GOLDENS it becomes that."""
    path = GOLDENS / f"{name}.{suffix}"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(picture, encoding="utf-8")
        return
    assert path.exists(), f"{path.name} is missing: UPDATE_GOLDENS=1 writes it"
    wanted = path.read_text(encoding="utf-8")
    for number, (old, new) in enumerate(
        zip(wanted.split("\n"), picture.split("\n"), strict=False), 1
    ):
        assert new == old, f"{path.name}, line {number}: the screen looks otherwise"
    assert picture == wanted


def drawn(cells: list[list[tuple[str, Any]]]) -> str:
    """The cells as an SVG screenshot."""
    width = sum(len(text) for text, _ in cells[0])
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        legacy_windows=False, _environ={},
    )  # fmt: skip
    for line in cells:
        console.print(Text.assemble(*line), overflow="crop", no_wrap=True, crop=True)
    return console.export_svg(title="bandscope top", unique_id="top")


async def nothing(app: TopApp, pilot: Any) -> None:
    """No key."""


def keys(*names: str) -> Script:
    """Press these."""

    async def script(app: TopApp, pilot: Any) -> None:
        for name in names:
            await pilot.press(name)
            await pilot.pause()

    return script


def text_of(line: list[tuple[str, Any]]) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line)


CACHED_SCRIPTS = {
    "cached-legend": (keys("question_mark", *["pagedown"] * 9), (80, 24)),
    "cached-tab-leases": (keys("space", "2"), (120, 40)),
    "cached-tab-page": (keys("space", *"oooo", *")" * 27, "6"), (120, 40)),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_screen(
    monkeypatch: pytest.MonkeyPatch, run: Recorded, size: tuple[int, int], look: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    theme = "light" if look == "light" else "dark"
    cells = cells_of(resting_source(run), nothing, size, theme=theme)
    assert len(cells) == size[1]
    name = f"screen-{size[0]}x{size[1]}-{look}"
    compare(name, spelled(cells))
    compare(name, drawn(cells), "svg")


@pytest.mark.parametrize("size", CACHED_SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_screen_of_an_arena_with_a_prefix_cache(
    monkeypatch: pytest.MonkeyPatch, cached: Recorded, size: tuple[int, int]
) -> None:
    """Its own characters on the map, its column, and what its pages are."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    cells = cells_of(resting_source(cached), nothing, size)
    states, *_ = [text for text in map(text_of, cells) if "▒" in text]
    missing = {cell.name for cell, glyph in UNICODE.cells.items() if glyph not in states}
    assert not missing or size[0] < 80
    assert any("cached" in text and "holes" in text for text in map(text_of, cells))
    name = f"cached-{size[0]}x{size[1]}"
    compare(name, spelled(cells))
    compare(name, drawn(cells), "svg")


@pytest.mark.parametrize("name", sorted(CACHED_SCRIPTS))
def test_what_keys_show_of_a_prefix_cache(
    monkeypatch: pytest.MonkeyPatch, cached: Recorded, name: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    script, size = CACHED_SCRIPTS[name]
    compare(name, spelled(cells_of(resting_source(cached), script, size)))


SCRIPTS = {
    **{f"tab-{tab}": keys("space", str(number)) for number, tab in enumerate(TABS, 1)
       if tab not in ("events", "ranks")},
    "help": keys("question_mark"),
    "paused-and-zoomed": keys("space", "comma", "comma", "plus", "plus", "o"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_keys_show(monkeypatch: pytest.MonkeyPatch, run: Recorded, name: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    compare(name, spelled(cells_of(resting_source(run), SCRIPTS[name], (120, 40))))


def test_a_picture_is_the_same_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Recorded
) -> None:
    """Nothing in it depends on when, where or in which process the run was recorded."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    other = resting_source(steady_run(tmp_path))
    first = spelled(cells_of(resting_source(run), nothing, (120, 40)))
    assert spelled(cells_of(other, nothing, (120, 40))) == first


def test_without_colour_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, run: Recorded) -> None:
    """The characters are those of the coloured screen, and no style has a colour."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = cells_of(resting_source(run), nothing, (120, 40))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = cells_of(resting_source(run), nothing, (120, 40))
    text = ["".join(part for part, _ in line) for line in coloured]
    assert ["".join(part for part, _ in line) for line in plain] == text
    assert all(style.color is None and style.bgcolor is None for line in plain for _, style in line)


def test_what_is_golden_is_small_and_in_use() -> None:
    """Every file is a picture of some test."""
    names = {f"screen-{width}x{height}-{look}" for width, height in SIZES for look in LOOKS}
    names |= {f"cached-{width}x{height}" for width, height in CACHED_SIZES} | CACHED_SCRIPTS.keys()
    files = list(GOLDENS.iterdir())
    assert {file.stem for file in files} == names | SCRIPTS.keys()
    assert sum(file.stat().st_size for file in files) < 2_000_000


