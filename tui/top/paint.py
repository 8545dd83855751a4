"""The screen as lines: a function of the latest snapshot, the person's choices, and the size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from bandscope.tui.top.keys import GROUPS, Groups
from bandscope.tui.top.look import PLAIN, UNICODE, Glyphs, Line, Piece, fit
from bandscope.tui.top.paint_lists import list_lines, tab_line
from bandscope.tui.top.paint_map import (
    letters_line,
    marks_line,
    page_line,
    states_line,
    waterfall_lines,
    zoom_line,
)
from bandscope.tui.top.paint_words import footer_line, header_line, second_line
from bandscope.tui.top.snapshot import Snapshot, View
from bandscope.tui.top.table import table_lines

WIDTH_MIN, HEIGHT_MIN = 30, 8
GUTTER = 9
_SMALL_WIDTH, _SMALL_HEIGHT = 60, 17
_WATERFALL_MAX = 16


@dataclass(frozen=True)
class Ui:
    """What the person has chosen, beside what the source is asked for. `selected`: the chosen row
    of a list; `trouble`: what went wrong while reading, in words; `groups`: the keys in force."""

    tab: str = "events"
    selected: int = 0
    trouble: str = ""
    glyphs: Glyphs = field(default=UNICODE)
    groups: Groups = GROUPS


@dataclass(frozen=True)
class Layout:
    """How many lines each part has, from top to bottom; `gutter`: characters left of the maps."""

    width: int
    height: int
    gutter: int
    second: int
    zoom: int
    page: int
    waterfall: int
    table: int
    tabs: int
    rows: int

    @property
    def columns(self) -> int:
        """Characters of a map."""
        return self.width - self.gutter

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The parts and their heights, in order; they fill the screen."""
        return [
            ("header", 1), ("second", self.second), ("map", 3), ("zoom", self.zoom),
            ("page", self.page), ("waterfall", self.waterfall), ("table", self.table),
            ("tabs", self.tabs), ("list", self.rows), ("footer", 1),
        ]  # fmt: skip

    def part_at(self, y: int) -> tuple[str, int]:
        """The part at a line, and the line within it."""
        for name, height in self.parts:
            if y < height:
                return name, y
            y -= height
        return "footer", 0


def layout(width: int, height: int, bands: int) -> Layout:
    """Room for everything when there is some; header, map and table when there is not."""
    small = width < _SMALL_WIDTH or height < _SMALL_HEIGHT
    left = height - 5  # header, map and footer are always there
    table = min(bands + 1, left) if left > 1 else 0
    left -= table
    second = min(1, left)
    left -= second
    if small:
        rows = left - 1 if left >= 3 else 0
        return Layout(
            width, height, 0, second, 0, 0, 0, table + (left if not rows else 0),
            1 if rows else 0, rows,
        )  # fmt: skip
    zoom = min(1, left - 3) if left > 3 else 0
    page = zoom
    left -= zoom + page + 1
    waterfall = min(_WATERFALL_MAX, left // 3) if left >= 6 else 0
    return Layout(
        width, height, GUTTER, second, zoom, page, waterfall, table, 1, left - waterfall
    )


def view_of(room: Layout, tab: str, skip: int, window_ns: int) -> View:
    """What to ask the source for, to fill this room."""
    return View(
        columns=room.columns, rows=max(1, room.rows), waterfall=room.waterfall, tab=tab, skip=skip,
        window_ns=window_ns,
    )  # fmt: skip


def paint(snapshot: Snapshot | None, ui: Ui, width: int, height: int) -> list[Line]:
    """Exactly `height` lines of exactly `width` characters."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        lines: list[Line] = [[(f"{width}×{height} is too small", "warn")]]
        lines.append([(f"please make it {WIDTH_MIN}×{HEIGHT_MIN} or more", "")])
        return _exactly(lines, width, height, ui.glyphs)
    if snapshot is None:
        return _exactly([[(ui.trouble or "reading the trace …", "dim")]], width, height, ui.glyphs)
    room = layout(width, height, len(snapshot.bands))
    glyphs = ui.glyphs
    lines = []
    for name, count in room.parts:
        lines += _part(name, count, snapshot, ui, room, glyphs)
    return _exactly(lines, width, height, glyphs)


def _part(
    name: str, count: int, snapshot: Snapshot, ui: Ui, room: Layout, glyphs: Glyphs
) -> list[Line]:
    if not count:
        return []
    lines: Sequence[Line]
    match name:
        case "header":
            lines = [header_line(snapshot, room.width, glyphs)]
        case "second":
            lines = [second_line(snapshot, room.width)]
        case "map":
            lines = [
                letters_line(snapshot, room.gutter, room.columns),
                states_line(snapshot, room.gutter, glyphs),
                marks_line(snapshot, room.gutter, room.columns, glyphs),
            ]
        case "zoom":
            lines = [zoom_line(snapshot, room.gutter, room.columns, glyphs)]
        case "page":
            lines = [page_line(snapshot, room.gutter, room.columns)]
        case "waterfall":
            lines = waterfall_lines(snapshot, room.gutter, room.columns)
        case "table":
            lines = table_lines(snapshot, room.width, count, glyphs)
        case "tabs":
            lines = [tab_line(snapshot, ui.tab, room.width)]
        case "list":
            lines = list_lines(snapshot, ui.tab, ui.selected, room.width, count)
        case _:
            lines = [footer_line(snapshot, ui.trouble, room.width, ui.groups)]
    return (list(lines) + [[] for _ in range(count)])[:count]


def _exactly(lines: list[Line], width: int, height: int, glyphs: Glyphs) -> list[Line]:
    lines = (lines + [[] for _ in range(height)])[:height]
    plain = bool(glyphs.translate)
    return [_fitted(tuple(line), width, plain) for line in lines]


@lru_cache(maxsize=512)
def _fitted(line: tuple[Piece, ...], width: int, plain: bool) -> Line:
    """Most lines of a picture are those of the one before. Nobody changes what this returns."""
    fill = "bar" if line and "bar" in line[-1][1].split() else ""
    return fit(list(line), width, PLAIN if plain else UNICODE, fill)
