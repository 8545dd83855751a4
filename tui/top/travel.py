"""Finding places in a trace: the next event, operation, ticket, or match, in either direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect import format as form
from bandscope.inspect.decode import Event, read_events
from bandscope.inspect.format import BOOKKEEPING, Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.selection import Selection, band_index, parse_pages, select
from bandscope.inspect.spelling import spell_event

# A filtered list looks this far back, in pieces of growing size.
SEARCH_EVENTS = 200_000
_PIECE = 2_000

EVENT, OPERATION, TICKET = "event", "operation", "ticket"
_LANDS: dict[str, np.ndarray] = {name: np.zeros(256, bool) for name in (EVENT, OPERATION, TICKET)}
_LANDS[EVENT][:] = True
_LANDS[EVENT][[int(kind) for kind in BOOKKEEPING]] = False
_LANDS[OPERATION][form.FIRST_OPERATION : form.LAST_OPERATION + 1] = True
_LANDS[TICKET][Kind.LAUNCHED] = True


def step(trace: Trace, position: int, what: str, forwards: bool, first: int) -> int | None:
    """Where a step from `position` leads; None where there is nothing further.

    By event: after the next event (forwards), or before the last. By operation: where the next
    operation begins, so that everything of the one before is in. By ticket: right after a launch.
    `first`: the earliest position that has a state.
    """
    lands = _LANDS[what]
    if what == EVENT:
        found = _next(trace, position, lands) if forwards else _last(trace, position - 1, lands)
        if found is not None and forwards:
            found += 1
    elif what == OPERATION:
        found = _next(trace, position + 1, lands) if forwards else _last(trace, position - 1, lands)
        if found is None and forwards and position < trace.stop:
            found = trace.stop
    else:
        found = _next(trace, position, lands) if forwards else _last(trace, position - 2, lands)
        found = None if found is None else found + 1
    if found is not None and forwards:
        return max(found, first)
    return None if found is None or found < first else found


def _mask(segment: SegmentReader, lands: np.ndarray, low: int, high: int) -> np.ndarray:
    part = segment.records["kind"][low:high]
    hits: np.ndarray = np.flatnonzero(lands[part] & segment.good[low:high])
    return hits


def _next(trace: Trace, position: int, lands: np.ndarray) -> int | None:
    for segment in trace.segments(position):
        low = max(0, position - segment.first_sequence)
        hits = _mask(segment, lands, low, len(segment))
        if hits.size:
            return segment.first_sequence + low + int(hits[0])
    return None


def _last(trace: Trace, position: int, lands: np.ndarray) -> int | None:
    """The last hit at or before a position."""
    for segment in trace.segments_before(position + 1):
        high = min(len(segment), position + 1 - segment.first_sequence)
        hits = _mask(segment, lands, 0, high)
        if hits.size:
            return segment.first_sequence + int(hits[-1])
    return None


@dataclass(frozen=True)
class Query:
    """A filter or a search: `band=full kind=LeaseBegin request=3 pages=3..9`, and words that the
    event's line must hold, in any case."""

    selection: Selection
    words: tuple[str, ...]

    @staticmethod
    def parse(trace: Trace, text: str) -> Query:
        """`TraceError` says what is wrong with a query."""
        bands: list[int] = []
        kinds: list[str] = []
        words: list[str] = []
        request = pages = None
        for part in text.split():
            name, equals, value = part.partition("=")
            match name.lower() if equals else "":
                case "band":
                    bands.append(band_index(trace, value))
                case "kind":
                    kinds += value.split(",")
                case "request":
                    if not (value.isascii() and value.isdigit()):
                        raise TraceError(f"request={value!r} was given; write a number")
                    request = int(value)
                case "pages" | "page":
                    pages = parse_pages(value)
                case "":
                    words.append(part.lower())
                case _:
                    raise TraceError(
                        f"{part!r} was asked for; write band=, kind=, request=, pages= or words"
                    )
        selection = Selection(tuple(bands) or None, request, tuple(kinds) or None, pages)
        return Query(selection, tuple(words))

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        chosen = self.selection
        named = (chosen.bands, chosen.request, chosen.kinds, chosen.pages)
        return not self.words and all(value is None for value in named)

    def events(self, trace: Trace, start: int, stop: int) -> Iterator[Event]:
        """The events `[start, stop)` that fit, in order."""
        if self.everything:
            yield from read_events(trace, start, stop)
            return
        chosen = self.selection
        wanted = Selection(chosen.bands, chosen.request, chosen.kinds, chosen.pages, start, stop)
        for event in select(trace, wanted):
            if self.words:
                line = f"{event.kind} {spell_event(event.body)}".lower()
                if not all(word in line for word in self.words):
                    continue
            yield event

    def find(
        self, trace: Trace, position: int, forwards: bool, most: int = 1,
        reach: int = SEARCH_EVENTS,
    ) -> tuple[list[Event], int]:
        """Up to `most` events from `position` on (before it, when backwards), the nearest first;
        and up to where was looked."""
        found: list[Event] = []
        piece, at = 2 * most + 8 if self.everything else _PIECE, position
        end = min(trace.stop, position + reach) if forwards else max(trace.start, position - reach)
        while len(found) < most and (at < end if forwards else at > end):
            if forwards:
                low, high = at, min(end, at + piece)
                part = self.events(trace, low, high)
            else:
                low, high = max(end, at - piece), at
                part = iter(list(self.events(trace, low, high))[::-1])
            for event in part:
                found.append(event)
                if len(found) == most:
                    break
            at = high if forwards else low
            piece *= 2
        return found, at
