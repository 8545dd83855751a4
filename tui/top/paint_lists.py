"""The tabs: their names, and the rows of the one that is open."""

from __future__ import annotations

from bandscope.tui.top.look import Line
from bandscope.tui.top.snapshot import Row, Snapshot

TABS = ("events", "leases", "tickets", "checks", "refusals")
_NOTHING = {
    "events": "no event here",
    "leases": "nobody holds a page",
    "tickets": "no launch, completion or barrier here",
    "checks": "nothing found",
    "refusals": "nothing was refused here",
}


def tab_title(number: int, tab: str, narrow: bool) -> str:
    """What a tab is called in the line of tabs."""
    return f" {number} {tab[:4] if narrow else tab.title()} "


def tab_at(column: int, width: int) -> str | None:
    """The tab whose title is at a character."""
    at = 0
    for number, tab in enumerate(TABS, 1):
        at += len(tab_title(number, tab, width < 60))
        if column < at:
            return tab
    return None


def tab_line(snapshot: Snapshot, open_tab: str, width: int) -> Line:
    """The names of all tabs, and what the rows of the open one are out of."""
    line: Line = []
    for number, tab in enumerate(TABS, 1):
        style = "accent bold reverse" if tab == open_tab else "bar"
        line.append((tab_title(number, tab, width < 60), style))
    line.append((f"  {snapshot.lists.about}", "dim bar"))
    return line


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
    for index, row in enumerate(shown.rows[:count]):
        later = tab == "events" and index > shown.current
        lines.append(_row(row, index == marked, later, width))
    return lines


def _row(row: Row, marked: bool, later: bool, width: int) -> Line:
    when = f"{row.time_ns / 1e9:.6f}" if row.time_ns >= 0 else ""
    sequence = f"{row.sequence:,}" if row.sequence >= 0 else ""
    end = " bar" if marked else ""
    faint = ("faint" if later else "dim") + end
    style = "faint" if later else f"band{row.band}" if row.band >= 0 else ""
    if row.kind in ("VIOLATION", "Refusal") or row.text.startswith("refused"):
        style = "faint" if later else "bad"
    line: Line = [("> " if marked else "  ", "accent bold" + end)]
    line.append((f"{sequence:>11} ", faint))
    if width >= 76:
        line.append((f"{when:>12} ", faint))
    if row.lane:
        line.append((f"{row.lane} ", "accent" + end))
    line.append((f"{row.kind:<12.12} " if width >= 50 else f"{row.kind:<9.9} ", "bold" + end))
    line.append((row.text, style + end))
    return line
