"""The tabs: their names, and the rows of the one that is open."""

from __future__ import annotations

import textwrap

from rich.cells import cell_len

from bandscope.tui.top.look import Line, fitting, shortened
from bandscope.tui.top.snapshot import Row, Snapshot

TABS = (
    "events", "leases", "tickets", "checks", "refusals", "page", "request", "compare", "ranks",
)  # fmt: skip
_NOTHING = {
    "events": "no event here",
    "leases": "nobody holds a page",
    "tickets": "no launch, completion or barrier here",
    "checks": "nothing found",
    "refusals": "nothing was refused here",
    "page": "the arena is empty",
    "request": "no request holds the page under the cursor",
    "compare": "m compares with this instant from now on; x with an event, a time, or another trace",
    "ranks": "no rank can be read",
}
_PLAIN = ("page", "request", "compare")  # their rows are no events
_WIDE, _MIDDLE = 110, 64
# Lists with lines about the chosen row have that many below their rows, a title included.
_DETAILS = {"refusals": 10, "checks": 8, "leases": 4, "tickets": 3}
_FITTING = {"leases": 160, "tickets": 120}  # characters: from here on, rows of these fit


def tab_title(number: int, tab: str, is_open: bool, width: int) -> str:
    """What a tab is called in the line of tabs: by its number, and a word as there is room."""
    if width >= _WIDE or is_open:
        return f" {number} {tab.title()} "
    return f" {number} {tab[:4]} " if width >= _MIDDLE else f" {number}"


def tab_at(column: int, width: int, open_tab: str) -> str | None:
    """The tab whose title is at a character."""
    at = 0
    for number, tab in enumerate(TABS, 1):
        at += len(tab_title(number, tab, tab == open_tab, width))
        if column < at:
            return tab
    return None


def tab_line(snapshot: Snapshot, open_tab: str, width: int) -> Line:
    """The names of all tabs, and what the rows of the open one are out of."""
    line: Line = []
    for number, tab in enumerate(TABS, 1):
        style = "accent bold reverse" if tab == open_tab else "bar"
        line.append((tab_title(number, tab, tab == open_tab, width), style))
    room = width - sum(len(title) for title, _ in line) - 2
    about = snapshot.lists.about
    if cell_len(about) > room:
        words = fitting(about.split(" "), " ", room - 2)
        about = f"{words} …" if words else ""
    line.append((f"  {about}", "dim bar"))
    return line


def rows_of(tab: str, count: int, width: int) -> int:
    """How many rows a list has in `count` lines: the rest is about the chosen one."""
    about = _DETAILS.get(tab, 0)
    if width >= _FITTING.get(tab, width + 1):
        about = 0
    return count if count < 6 else max(2, count - about)


def list_lines(
    snapshot: Snapshot, tab: str, selected: int, width: int, count: int
) -> list[Line]:
    """The rows; the one of the position (events) or the chosen one is marked."""
    shown = snapshot.lists
    if shown.tab != tab:
        return []
    if not shown.rows:
        return [[(f" {_NOTHING[tab]}", "dim")]]
    marked = shown.current if tab == "events" else selected - snapshot.view.skip
    lines = []
    rows = rows_of(tab, count, width)
    timed = width >= 76 and any(row.time_ns >= 0 for row in shown.rows)
    for index, row in enumerate(shown.rows[:rows]):
        later = tab == "events" and index > shown.current
        lines.append(_row(row, index == marked, later, width, timed, tab in _PLAIN))
    if shown.details and rows < count:
        lines += [[] for _ in range(rows - len(lines))]
        lines += _details(shown.details, width)[: count - rows]
    return lines


def _details(details: tuple[str, ...], width: int) -> list[Line]:
    lines: list[Line] = [[("  the chosen one", "dim bar")]]
    for text in details:
        table = "   " in text
        parts = [text] if table else textwrap.wrap(text, max(20, width - 4), break_on_hyphens=False)
        lines += [[(f"  {part}", "" if table else "bold")] for part in parts]
    return lines


def _row(row: Row, marked: bool, later: bool, width: int, timed: bool, plain: bool) -> Line:
    when = f"{row.time_ns / 1e9:.6f}" if row.time_ns >= 0 else ""
    sequence = f"{row.sequence:,}" if row.sequence >= 0 else ""
    end = " bar" if marked else ""
    faint = ("faint" if later else "dim") + end
    style = "faint" if later else f"band{row.band}" if row.band >= 0 else ""
    if row.kind in ("VIOLATION", "Refusal") or row.text.startswith("refused"):
        style = "faint" if later else "bad"
    line: Line = [("> " if marked else "  ", "accent bold" + end)]
    if row.pieces:  # a picture that needs all the room there is
        line.append((f"{row.kind:<7.7} ", "bold" + end))
        return line + [(text, style + end) for text, style in row.pieces]
    if plain:
        line.append((f"{row.kind:<13.13} ", "bold" + end))
        return _told(line, row.text, (f"band{row.band}" if row.band >= 0 else "") + end, width)
    line.append((f"{sequence:>11} ", faint))
    if timed:
        line.append((f"{when:>12} ", faint))
    if row.lane:
        line.append((f"{row.lane} ", "accent" + end))
    line.append((f"{row.kind:<12.12} " if width >= 50 else f"{row.kind:<9.9} ", "bold" + end))
    return _told(line, row.text, style + end, width)


def _told(line: Line, text: str, style: str, width: int) -> Line:
    room = width - sum(len(piece) for piece, _ in line)
    return [*line, (shortened(text, room), style)]
