"""The maps: bands across the arena's bytes, single pages, and the bands over time."""

from __future__ import annotations

from bandscope.allocator.events import CACHE
from bandscope.inspect.spelling import who
from bandscope.tui.top.look import Glyphs, Line, fitting
from bandscope.tui.top.placing import place, sink_columns
from bandscope.tui.top.snapshot import Cell, Run, Snapshot
from bandscope.tui.units import spell_bytes, spell_seconds

_STATE_STYLES = {
    Cell.GAP: "faint", Cell.SINK: "dim", Cell.HOLE: "dim", Cell.PENDING: "warn",
    Cell.PINNED: "bad bold",
}  # fmt: skip
# These hide or keep what they are in reverse, so the cursor has a colour of its own on them.
_FILLED = frozenset("█▓▒░")
_USERS_SHOWN = 4


def _gutter(text: str, gutter: int) -> Line:
    return [(f"{text[: gutter - 1]:>{gutter - 1}} ", "dim")] if gutter else []


def letters_line(snapshot: Snapshot, gutter: int, columns: int) -> Line:
    """Which band each character belongs to."""
    extents = tuple(band.extent_bytes for band in snapshot.bands)
    return _gutter("bands", gutter) + _bands(snapshot, extents, columns)


def _bands(snapshot: Snapshot, extents: tuple[tuple[int, int], ...], columns: int) -> Line:
    shown = snapshot.map
    taken = sink_columns(snapshot.sink_bytes, shown.low, shown.high, columns)
    line: Line = [("#" * taken, "dim")]
    at = taken
    for index, first, stop in place(extents, shown.low, shown.high, columns, taken):
        if first > at:
            line.append(("·" * (first - at), "faint"))
        line.append((snapshot.bands[index].letter * (stop - max(first, at)), f"band{index} bold"))
        at = stop
    line.append(("·" * (columns - at), "faint"))
    return line


def _runs(runs: tuple[Run, ...], glyphs: Glyphs, cursor: int = -1) -> Line:
    line: Line = []
    at = 0
    for run in runs:
        glyph = glyphs.cells[run.cell]
        style = _STATE_STYLES.get(run.cell, f"band{run.band}")
        if at <= cursor < at + run.length:
            before = cursor - at
            line.append((glyph * before, style))
            line.append((glyph, "under" if glyph in _FILLED else f"{style} reverse"))
            line.append((glyph * (run.length - before - 1), style))
        else:
            line.append((glyph * run.length, style))
        at += run.length
    return line


def states_line(snapshot: Snapshot, gutter: int, glyphs: Glyphs) -> Line:
    """What the pages of each character are."""
    return _gutter("pages", gutter) + _runs(snapshot.map.runs, glyphs, snapshot.map.cursor)


def marks_line(snapshot: Snapshot, gutter: int, columns: int, glyphs: Glyphs) -> Line:
    """Where the cursor is, where pages moved from and to, and which bytes the edges are."""
    shown = snapshot.map
    low, high = spell_bytes(shown.low), spell_bytes(shown.high)
    marked = {*shown.moved_from, *shown.moved_to, *shown.differing, shown.cursor}
    if marked & set(range(len(low))):  # a mark says more than the number it would tear apart
        low = ""
    if marked & set(range(columns - len(high), columns)):
        high = ""
    text = list(low + " " * max(0, columns - len(low) - len(high)) + high)[:columns]
    styles = ["dim"] * len(text)
    marks = [
        (shown.differing, glyphs.differs, "accent"),
        (shown.moved_from, glyphs.left, "warn"),
        (shown.moved_to, glyphs.came, "good bold"),
    ]
    if shown.cursor >= 0:
        marks.append(((shown.cursor,), glyphs.cursor, "accent bold"))
    for places, glyph, style in marks:
        for at in places:
            if at < len(text):
                text[at], styles[at] = glyph, style
    line = _gutter("moves", gutter)
    for character, style in zip(text, styles, strict=True):
        if line and line[-1][1] == style and len(line) > 1:
            line[-1] = (line[-1][0] + character, style)
        else:
            line.append((character, style))
    return line


def zoom_line(snapshot: Snapshot, gutter: int, columns: int, glyphs: Glyphs) -> Line:
    """Single pages of the band under the cursor."""
    zoom = snapshot.zoom
    if zoom is None:
        return [*_gutter("zoom", gutter), ("the arena is empty", "dim")]
    shown = sum(run.length for run in zoom.runs)
    pages = _runs(zoom.runs, glyphs, zoom.cursor)
    if zoom.differing:
        pages = _lettered(pages, dict(zoom.differing))
    number = f"{zoom.page_first:,}"
    line = _gutter(number if len(number) < gutter else str(zoom.page_first), gutter) + pages
    about = f"  pages {zoom.page_first:,} to {zoom.page_first + shown - 1:,} of "
    about += f"{snapshot.bands[zoom.band].name}, one to a character"
    if shown + len(about) <= columns:
        line.append((about, "dim"))
    return line


def _lettered(line: Line, letters: dict[int, str]) -> Line:
    """The line with letters in the place of some of its characters."""
    result: Line = []
    at = 0
    for text, style in line:
        for offset, character in enumerate(text, at):
            here = style == "under" or "reverse" in style
            mark = f"accent bold{' reverse' if here else ''}"
            piece = (letters[offset], mark) if offset in letters else (character, style)
            if result and result[-1][1] == piece[1]:
                result[-1] = result[-1][0] + piece[0], piece[1]
            else:
                result.append(piece)
        at += len(text)
    return result


def page_line(snapshot: Snapshot, gutter: int, columns: int) -> Line:
    """What is known of the page under the cursor, as far as there is room for it."""
    page = snapshot.page
    if page is None:
        return []
    band = snapshot.bands[page.band]
    said = [f"{band.name} page {page.page:,}, {page.state}"]
    if page.name:
        owner = f" of {who(page.owner)}" if page.owner >= 0 or page.owner == CACHE else ""
        said[0] += f": holds {page.name.rpartition(' ')[2]}{owner}"
    if page.users:
        told = ", ".join(f"r{user}" for user in page.users[:_USERS_SHOWN])
        more = f" and {len(page.users) - _USERS_SHOWN:,} more" if page.users[_USERS_SHOWN:] else ""
        said.append(f"used by {told}{more}")
    if page.held_since >= 0:
        said.append(f"since event {page.held_since:,}")
    if page.leases:
        said.append("pinned by lease " + ", ".join(map(str, page.leases)))
    if page.ticket:
        said.append(f"waits for ticket {page.ticket:,}")
    return [*_gutter("page", gutter), (fitting(said, ", ", columns) or said[0], f"band{page.band}")]


def waterfall_lines(snapshot: Snapshot, gutter: int, columns: int) -> list[Line]:
    """The bands over time, the newest at the bottom."""
    lines = []
    slices = snapshot.waterfall
    newest = slices[-1].time_ns if slices else 0
    step = max(1, slices[1].time_ns - slices[0].time_ns) if len(slices) > 2 else 1
    for piece in slices:
        # To the next step, so that a line is the same until a step has gone by.
        age = -((piece.time_ns - newest) // step) * step / 1e9
        label = "now" if not age else "-" + spell_seconds(age).replace(" ", "")
        line = _gutter(label, gutter)
        if piece.extents is None:
            line.append((" " * columns, "faint"))
        else:
            line += _bands(snapshot, piece.extents, columns)
        lines.append(line)
    return lines
