"""The facts of one snapshot as text, for logs and scripts."""

from __future__ import annotations

from bandscope.tui.top.look import PLAIN, UNICODE, Line, clean, fit
from bandscope.tui.top.paint_map import letters_line, states_line
from bandscope.tui.top.paint_words import facts_of, place_of_position, status_of, warnings_of
from bandscope.tui.top.snapshot import Snapshot
from bandscope.tui.top.table import table_lines
from bandscope.tui.units import spell_bytes

WIDTH = 132


def once_text(snapshot: Snapshot, plain: bool) -> str:
    """Where the trace stands, its bands, warnings, and the newest events."""
    glyphs = PLAIN if plain else UNICODE
    lines: list[Line] = [
        [(f"{snapshot.path}: {snapshot.model}", "")],
        [(f"{place_of_position(snapshot)} · {status_of(snapshot)}", "")],
        [(" · ".join(facts_of(snapshot)), "")],
        *([(f"! {warning}", "")] for warning in warnings_of(snapshot)),
        [],
        letters_line(snapshot, 0, snapshot.view.columns),
        states_line(snapshot, 0, glyphs),
        [(f"0 to {spell_bytes(snapshot.total_bytes)}", "")],
        [],
        *table_lines(snapshot, WIDTH - 3, 100, glyphs),
        [],
    ]
    for row in snapshot.lists.rows:
        lines.append([(f"{row.sequence:>11,} {row.time_ns / 1e9:>12.6f} {row.kind:<12} ", ""),
                      (clean(row.text), "")])  # fmt: skip
    fitted = (fit(line, WIDTH, glyphs) for line in lines)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in fitted)
