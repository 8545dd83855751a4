"""How the commands of `bandscope inspect` draw: tables that stay readable at 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bandscope.inspect.reader import as_json


def screen() -> Console:
    """Standard output; nothing in it is taken for markup."""
    return Console(highlight=False, markup=False, emoji=False)


def print_json(data: Any) -> None:
    """One JSON object on one line."""
    print(as_json(data))


def table(title: str, *columns: str) -> Table:
    """An empty table. Columns whose name begins with `>` are figures, to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in columns:
        figure = name.startswith(">")
        made.add_column(
            Text(name.removeprefix(">")),
            justify="right" if figure else "left",
            overflow="fold",
        )
    return made


def row(made: Table, *cells: Any, style: str | None = None) -> None:
    """A row; what comes from a trace is shown as it is."""
    made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells), style=style)


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Names and what there is to say, without lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), Text(value))
    return grid


def hanging(console: Console, head: str, text: str, style: str = "") -> None:
    """`head` and `text` on one line, going on below `text` where it is too long."""
    width = console.width
    if width - len(head) < 20:
        console.print(Text(f"{head}{text}"))
        return
    lines = textwrap.wrap(text, width - len(head), break_on_hyphens=False) or [""]
    console.print(Text.assemble((head, style), lines[0]), no_wrap=True, overflow="crop")
    for line in lines[1:]:
        console.print(Text(" " * len(head) + line), no_wrap=True, overflow="crop")


def spell_time(time_ns: int) -> str:
    """A time of a trace's clock, in seconds to the microsecond."""
    return f"{time_ns / 1e9:.6f}"


def spell_gaps(gaps: Iterable[tuple[int, int]], most: int = 5) -> str:
    """Stretches of events in words."""
    told = [f"{first:,} to {stop - 1:,}" if stop > first + 1 else f"{first:,}" for first, stop in gaps]
    more = f" and {len(told) - most} more stretches" if len(told) > most else ""
    return ", ".join(told[:most]) + more


def warn_gaps(console: Console, gaps: Iterable[tuple[int, int]]) -> None:
    """Say which events are missing, where any are."""
    gaps = list(gaps)
    if gaps:
        console.print(
            Text(f"damaged or missing, and not taken into account: events {spell_gaps(gaps)}"),
            style="yellow",
        )
