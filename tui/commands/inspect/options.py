"""Arguments and options that the commands of `bandscope inspect` share, and what they mean."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import TraceError

if TYPE_CHECKING:
    from bandscope.inspect.reader import Trace
    from bandscope.inspect.selection import Selection

TracePath = Annotated[
    Path, typer.Argument(metavar="TRACE", help="The folder of the trace; .trace may be left out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Bands = Annotated[
    list[str] | None, typer.Option("--band", help="Only this band; may be repeated.")
]
Request = Annotated[int | None, typer.Option("--request", help="Only what names this request.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        help="Only these events: operation, effect, or a name like LeaseBegin; may be repeated or "
        "separated by commas.",
    ),
]
Pages = Annotated[
    str | None,
    typer.Option("--pages", metavar="A..B", help="Only events about these virtual pages."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="PLACE", help="First event, or a time like 1.5s."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="PLACE", help="The event (or time) to stop before."),
]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Most rows to show; 0: all.")]

# What a reader may stumble over where a file is damaged in a way that no checksum covers.
_STUMBLES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error,
)  # fmt: skip


@contextmanager
def reading(path: Path, *, only_whole: bool = True) -> Iterator[Trace]:
    """Open a trace for a report. Without any operation there is nothing to report, which is an error
    with advice; `only_whole` False lets through what is damaged from end to end. A damaged trace ends
    a command with a sentence, never with an error of Python's."""
    from bandscope.inspect.reader import open_trace
    from bandscope.inspect.selection import has_operations

    trace = open_trace(path)
    if not has_operations(trace):
        damages = trace.damages
        if damages and only_whole:
            raise TraceError(
                f"no operation can be read of trace {trace.path}: {damages[0]}; see `bandscope inspect "
                f"summary {trace.path}`"
            )
        if not damages:
            raise TraceError(
                f"nothing was recorded: trace {trace.path} holds no operation; attach the recorder "
                "before the arena is used, as `bandscope run --record NAME` does"
            )
    try:
        yield trace
    except _STUMBLES as error:
        damages = trace.damages
        if not damages:
            raise
        raise TraceError(
            f"trace {trace.path} is damaged so that this cannot be answered ({error}); {damages[0]}"
        ) from error


def stretch(trace: Trace, start: str | None, stop: str | None) -> tuple[int, int]:
    """`--from` and `--to` as `[first, stop)`; everything by default."""
    from bandscope.inspect.selection import parse_position

    first = trace.start if start is None else parse_position(trace, start)
    last = trace.stop if stop is None else parse_position(trace, stop)
    if first >= last:
        raise TraceError(
            f"events from {first:,} up to {last:,} were asked for, which are none; trace {trace.path} "
            f"holds events {trace.start:,} to {trace.stop - 1:,}"
        )
    return first, last


def selection_of(
    trace: Trace,
    bands: list[str] | None,
    request: int | None,
    kinds: list[str] | None,
    pages: str | None,
    start: str | None,
    stop: str | None,
) -> Selection:
    """The filters of a command line."""
    from bandscope.inspect.selection import Selection, band_index, parse_pages

    first, last = stretch(trace, start, stop)
    return Selection(
        bands=tuple(band_index(trace, name) for name in bands) if bands else None,
        request=request,
        kinds=tuple(one.strip() for kind in kinds for one in kind.split(",")) if kinds else None,
        pages=None if pages is None else parse_pages(pages),
        start=first,
        stop=last,
    )
