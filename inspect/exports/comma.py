"""CSV: the table of events, one row per event; an empty field is no value."""

from __future__ import annotations

import csv
from pathlib import Path

from bandscope.inspect.exports.rows import EVENTS, EventRows
from bandscope.inspect.exports.window import Window


def write(window: Window, draft: Path) -> int:
    """Write the file `draft`; returns how many events."""
    rows = EventRows(window.bands)
    count = 0
    with open(draft, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name for name, _ in EVENTS])
        for event in window.events():
            writer.writerow(_plain(value) for value in rows.row(event))
            count += 1
    return count


def _plain(value: object) -> object:
    """`true` and `false`, as every reader of CSV takes them."""
    return str(value).lower() if isinstance(value, bool) else value
