"""`events`: what happened, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from bandscope.tui.commands.inspect.options import (
    AsJson,
    Bands,
    From,
    Kinds,
    Limit,
    Pages,
    Request,
    To,
    TracePath,
    reading,
    selection_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.decode import Event
    from bandscope.inspect.notes import Annotation

_EVENTS_SHOWN = 100


def events(
    trace: TracePath,
    band: Bands = None,
    request: Request = None,
    kind: Kinds = None,
    pages: Pages = None,
    start: From = None,
    stop: To = None,
    limit: Limit = _EVENTS_SHOWN,
    as_json: AsJson = False,
) -> None:
    """Operations, their outcomes and effects, and notes, in order.

    --pages are virtual pages (physical ones for Pending and Reclaim). --request shows what names the
    request, and the outcomes of its operations.
    """
    from bandscope.inspect.notes import read_notes
    from bandscope.inspect.selection import gaps, select
    from bandscope.inspect.spelling import event_to_json
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        wanted = selection_of(opened, band, request, kind, pages, start, stop)
        first, last = wanted.start, wanted.stop
        assert first is not None and last is not None
        found = select(opened, wanted)
        plain = band is None and request is None and kind is None and pages is None
        notes = [n for n in read_notes(opened) if first <= n.sequence <= last] if plain else []
        shown: Iterable[Event] = islice(found, limit) if limit else found
        if as_json:
            told = [event_to_json(event) for event in shown]
            tables.print_json(
                {
                    "events": told,
                    "notes": [note.to_json() for note in notes],
                    "gaps": gaps(opened, first, last),
                    "more": next(found, None) is not None,
                }
            )
            return
        console = tables.screen()
        following = _print_events(console, shown, notes, len(f"{last:,}"))
        if following is None:
            console.print("no event is like that")
        more = next(found, None)
        if more is not None:
            here = more.sequence
            console.print(f"… and more from event {here:,} on (--from {here}, --limit 0)", style="dim")
        else:
            for note in notes:
                _print_note(console, len(f"{last:,}"), note)
        tables.warn_gaps(console, gaps(opened, first, last if more is None else more.sequence))


def _print_events(
    console: Console, shown: Iterable[Event], notes: list[Annotation], width: int
) -> int | None:
    """Print events, and the notes before them, which are taken out of `notes`; the last sequence."""
    from bandscope.allocator.operations import Operation
    from bandscope.inspect.spelling import spell_event
    from bandscope.tui.commands.inspect import tables

    last = None
    for event in shown:
        while notes and notes[0].sequence <= event.sequence:
            _print_note(console, width, notes.pop(0))
        style = "bold" if isinstance(event.body, Operation) else ""
        if event.kind == "Violation" or getattr(event.body, "ok", True) is False:
            style = "bold red"
        head = f"{event.sequence:>{width},} {tables.spell_time(event.time_ns):>10} {event.kind:<10} "
        tables.hanging(console, head, spell_event(event.body), style)
        last = event.sequence
    return last


def _print_note(console: Console, width: int, note: Annotation) -> None:
    from bandscope.tui.commands.inspect import tables

    tables.hanging(console, f"{note.sequence:>{width},} {note.when} noted: ", note.text, "green")
