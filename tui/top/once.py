"""The facts of one snapshot as text, for logs and scripts."""

from __future__ import annotations

from bandscope.tui.top.look import PLAIN, UNICODE, Line, clean, fit
from bandscope.tui.top.paint_map import letters_line, states_line
from bandscope.tui.top.paint_words import (
    compared_words,
    facts_of,
    place_of_position,
    status_of,
    warnings_of,
)
from bandscope.tui.top.snapshot import Snapshot
from bandscope.tui.top.table import table_lines
from bandscope.tui.units import spell_bytes

WIDTH = 132


def once_text(snapshot: Snapshot, plain: bool) -> str:
    """Where the trace stands, its bands, warnings, and the open list: events, a page, or differences."""
    glyphs = PLAIN if plain else UNICODE
    lines: list[Line] = [
        [(f"{snapshot.path}: {snapshot.model}", "")],
        [(f"{place_of_position(snapshot)} · {status_of(snapshot)}", "")],
        *([(text, "")] for text in _wrapped(facts_of(snapshot))),
        *([(text, "")] for text in (compared_words(snapshot),) if text),
        *([(f"! {warning}", "")] for warning in warnings_of(snapshot)),
        [],
        letters_line(snapshot, 0, snapshot.view.columns),
        states_line(snapshot, 0, glyphs),
        [(f"0 to {spell_bytes(snapshot.total_bytes)}", "")],
        [],
        *table_lines(snapshot, WIDTH - 3, 100, glyphs),
        [],
    ]
    if snapshot.lists.tab != "events":
        lines.append([(f"{snapshot.lists.tab}: {snapshot.lists.about}", "")])
    for row in snapshot.lists.rows:
        sequence = f"{row.sequence:,}" if row.sequence >= 0 else ""
        when = f"{row.time_ns / 1e9:.6f}" if row.time_ns >= 0 else ""
        if snapshot.lists.tab == "events":
            sequence = f"{sequence:>11} {when:>12}"
        lines.append([(f"{sequence:>11} {row.kind:<13} ", ""), (clean(row.text), "")])
    fitted = (fit(line, WIDTH, glyphs) for line in lines)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in fitted)


def _wrapped(facts: list[str]) -> list[str]:
    """Facts between dots, over as many lines as they need: nothing is cut off."""
    lines = [facts[0]]
    for fact in facts[1:]:
        longer = f"{lines[-1]} · {fact}"
        if len(longer) <= WIDTH:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines
