"""`export`, `seal` and `annotate`: what is written beside a trace, or in place of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bandscope.tui.commands.inspect.options import AsJson, From, To, TracePath, reading, stretch
from bandscope.tui.units import spell_bytes, spell_share


def export(
    trace: TracePath,
    form: Annotated[
        str, typer.Argument(metavar="FORM", help="perfetto, parquet, csv, html or slice.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file, or new folder, to write.")],
    start: From = None,
    stop: To = None,
    as_json: AsJson = False,
) -> None:
    """Write the trace, or a stretch of it, for other programs.

    perfetto: for ui.perfetto.dev. parquet and slice are folders. html: a report that needs no network.
    slice: a smaller trace of the same kind.
    """
    from bandscope.inspect.exports import export as write
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        first, last = stretch(opened, start, stop)
        bounds = {} if start is None else {"start": first}
        bounds |= {} if stop is None else {"stop": last}
        report = write(opened, form, out, **bounds)
    if as_json:
        tables.print_json(report.to_json())
        return
    console = tables.screen()
    console.print(
        f"{report.out}: {report.events:,} events of {report.start:,} to {report.stop - 1:,} as "
        f"{report.form}, {spell_bytes(report.bytes)}",
        soft_wrap=True,
    )
    if len(report.files) > 1:
        console.print(", ".join(report.files))


def seal(trace: TracePath, as_json: AsJson = False) -> None:
    """Compress the finished segments of a trace in place; it reads as before.

    Of a trace that is still written the last two segments stay as they are.
    """
    from bandscope.inspect.seals import seal_trace
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        report = seal_trace(opened)
    if as_json:
        tables.print_json(report.to_json())
        return
    console = tables.screen()
    if not report.files:
        console.print(f"{report.path}: every finished segment is sealed already")
        return
    console.print(
        f"{report.path}: {report.files} files sealed, {spell_bytes(report.before_bytes)} → "
        f"{spell_bytes(report.after_bytes)} "
        f"({spell_share(report.after_bytes, report.before_bytes)}), "
        f"{report.before_bytes_per_event:.1f} → {report.after_bytes_per_event:.1f} bytes per event"
    )
    if report.left:
        console.print(f"{report.left} segments are still written, or may be, and stay as they are")


def annotate(
    trace: TracePath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be remembered.")],
    place: Annotated[
        str | None, typer.Option("--at", metavar="PLACE", help="An event or a time. [the end]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Leave a note beside the trace (`notes.jsonl`); `events` and `summary` show it."""
    from bandscope.inspect.notes import add_note
    from bandscope.inspect.selection import parse_position
    from bandscope.tui.commands.inspect import tables

    with reading(trace, only_whole=False) as opened:
        sequence = opened.stop if place is None else parse_position(opened, place)
        note = add_note(opened, sequence, text)
    if as_json:
        tables.print_json(note.to_json())
    else:
        tables.screen().print(f"noted at event {note.sequence:,} of {opened.path}")
