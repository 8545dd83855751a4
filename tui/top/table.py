"""The table of bands. Columns are left out from the least needed on, where there is no room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bandscope.tui.top.look import Glyphs, Line
from bandscope.tui.top.snapshot import BandFigures, Snapshot
from bandscope.tui.units import spell_bytes


@dataclass(frozen=True)
class Column:
    """`rank`: the lower, the longer it stays."""

    title: str
    width: int
    rank: int
    value: Callable[[BandFigures], str]


def spell_short(value: float) -> str:
    """A count in at most seven characters."""
    for limit, divisor, unit in ((1e6, 1, ""), (1e9, 1e6, "M"), (1e15, 1e9, "G")):
        if abs(value) < limit:
            return f"{value / divisor:,.0f}" if divisor == 1 else f"{value / divisor:.1f}{unit}"
    return f"{value:.0e}"


COLUMNS = (
    Column("held", 9, 0, lambda band: spell_short(band.held)),
    Column("pinned", 8, 3, lambda band: spell_short(band.pinned)),
    Column("pending", 8, 2, lambda band: spell_short(band.pending)),
    Column("holes", 9, 1, lambda band: spell_short(band.holes)),
    Column("floor", 11, 9, lambda band: spell_bytes(band.held * band.page_bytes)),
    Column(
        "extent", 11, 4, lambda band: spell_bytes(band.extent_bytes[1] - band.extent_bytes[0])
    ),
    Column("gap", 11, 5, lambda band: spell_bytes(band.gap_bytes)),
    Column("~could take", 12, 10, lambda band: f"~{spell_short(band.available_estimate)}"),
    Column("moves/s", 9, 6, lambda band: spell_short(band.moves_per_second)),
    Column("bytes/s", 11, 8, lambda band: spell_bytes(band.bytes_per_second)),
    Column("refused", 8, 7, lambda band: spell_short(band.refusals)),
)
# Where the arena has a prefix cache.
CACHED = Column("cached", 9, 1, lambda band: spell_short(band.cached or 0))
_MOVED = "moved over time"


def chosen_columns(width: int, has_cache: bool = False) -> list[Column]:
    """The columns that fit beside a name of a sixth of the width."""
    left = width - name_width(width)
    kept = []
    known_columns = (COLUMNS[0], CACHED, *COLUMNS[1:]) if has_cache else COLUMNS
    for column in sorted(known_columns, key=lambda known: known.rank):
        if column.width > left:
            break
        kept.append(column)
        left -= column.width
    return [column for column in known_columns if column in kept]


def name_width(width: int) -> int:
    """Characters for a band's letter and name."""
    return 13 if width < 60 else 17


def sparkline(values: tuple[int, ...], glyphs: Glyphs) -> str:
    """Values as columns of eight heights; what is above zero is seen."""
    most = max(values, default=0)
    steps = len(glyphs.spark) - 1
    return "".join(
        glyphs.spark[0 if not value else max(1, round(value * steps / most))] for value in values
    )


def table_lines(snapshot: Snapshot, width: int, count: int, glyphs: Glyphs) -> list[Line]:
    """A line of titles and one line per band, at most `count` in all."""
    columns = chosen_columns(width, snapshot.has_cache)
    first = name_width(width)
    title = f"{' pages' if width >= 60 else ' band':<{first}}"
    title += "".join(f"{column.title:>{column.width}}" for column in columns)
    room = width - len(title) - 2
    spark = room >= len(_MOVED)
    if spark:
        title += f"  {_MOVED}"
    lines: list[Line] = [[(title, "dim bar")]]
    cursor = snapshot.view.cursor
    for index, band in enumerate(snapshot.bands):
        style = f"band{index}"
        here = cursor is not None and cursor[0] == index
        line: Line = [(">" if here else " ", "accent bold"), (f"{band.letter} ", f"{style} bold")]
        line.append((f"{band.name:<{first - 3}.{first - 3}}", style))
        line.append(("".join(f"{column.value(band):>{column.width}}" for column in columns), ""))
        if spark:
            line.append(("  " + sparkline(band.spark[-room:], glyphs), style))
        lines.append(line)
    if len(lines) > count and count > 1:
        hidden = len(lines) - count + 1
        lines = [*lines[: count - 1], [(f" and {hidden} more bands", "dim")]]
    return lines[:count]
