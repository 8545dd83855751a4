"""The rows of the tabs: events around the position, leases, tickets, checks, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np

from bandscope.inspect.decode import Event, Violation
from bandscope.inspect.reader import Trace
from bandscope.inspect.spelling import spell_event, spell_runs
from bandscope.inspect.state import ArenaState
from bandscope.tui.top.snapshot import Row
from bandscope.tui.top.travel import SEARCH_EVENTS, Query

_FAR = 20_000
_KEPT = 4_000
_REACH = 8_192  # events looked at per call; the rest is looked at by the calls that follow


class EventList:
    """Events that fit a filter around a position. What was found stays known, so that following a
    trace looks at each event once."""

    def __init__(self, trace: Trace, query: Query) -> None:
        self.trace = trace
        self.query = query
        self.hungry = False  # whether another call would look further
        self._low = self._high = -1  # events [low, high) were looked at
        self._events: list[Event] = []

    def around(
        self, position: int, before: int, after: int
    ) -> tuple[list[Event], list[Event], int]:
        """Up to `before` events before the position and `after` from it on, in order; and the first
        event that was looked at."""
        # Without a filter the last rows are as quickly found backwards as everything is followed.
        reach_on = 4 * before if self.query.everything else _REACH
        if self._low < 0 or not self._low <= position <= self._high + reach_on:
            self._low = self._high = position
            self._events = []
        self.hungry = False
        if position > self._high:
            self._events += self.query.events(self.trace, self._high, position)
            self._high = position
        at = self._count_below(position)
        if at < before and self._low > self.trace.start:
            reach = min(_REACH, SEARCH_EVENTS - (position - self._low))
            found, looked = self.query.find(
                self.trace, self._low, False, before - at, max(0, reach)
            )
            self.hungry = reach == _REACH and len(found) < before - at and looked > self.trace.start
            self._events[:0] = found[::-1]
            # A piece may hold more before its last find: look from there on the next time.
            full = len(found) == before - at
            self._low = found[-1].sequence if full and found else looked
            at += len(found)
        if len(self._events) - at < after and self._high < self.trace.stop:
            wanted = after - (len(self._events) - at)
            reach = min(_REACH, _FAR - (self._high - position))
            found, looked = self.query.find(self.trace, self._high, True, wanted, max(0, reach))
            if reach == _REACH and len(found) < wanted and looked < self.trace.stop:
                self.hungry = True
            self._events += found
            full = len(found) == wanted
            self._high = found[-1].sequence + 1 if full and found else looked
        if len(self._events) > _KEPT:
            low, high = max(0, at - _KEPT // 4), at + _KEPT // 4
            if high < len(self._events):
                self._high = self._events[high].sequence
            if low:
                self._low = self._events[low].sequence
            self._events = self._events[low:high]
            at -= low
        return self._events[max(0, at - before) : at], self._events[at : at + after], self._low

    def _count_below(self, position: int) -> int:
        low, high = 0, len(self._events)
        while low < high:
            middle = (low + high) // 2
            if self._events[middle].sequence < position:
                low = middle + 1
            else:
                high = middle
        return low


def event_row(trace: Trace, event: Event) -> Row:
    """An event as a line."""
    band = getattr(event.body, "band", "")
    names = [about["name"] for about in trace.header["bands"]]
    index = names.index(band) if band in names else -1
    kind = "VIOLATION" if isinstance(event.body, Violation) else event.kind
    return Row(event.sequence, event.time_ns, kind, spell_event(event.body), band=index)


def place_of(trace: Trace, state: ArenaState, body: Any) -> tuple[int, int] | None:
    """(band, physical page) where an event happened, by the state after it; None: nowhere."""
    names = [about["name"] for about in trace.header["bands"]]
    band = getattr(body, "band", None)
    if band not in names:
        return None
    index = names.index(band)
    for name in ("destinations", "physical", "pages"):
        pages = getattr(body, name, None)
        if pages is not None and len(pages):
            return index, int(pages[0])
    # The pages of a graft lie there under their new names.
    virtual = getattr(body, "into", getattr(body, "virtual", None))
    if virtual is not None and len(virtual):
        page = int(state.bands[index].page_of[int(virtual[0])])
        return (index, page) if page >= 0 else None
    return None


def lease_rows(state: ArenaState) -> list[Row]:
    """Who holds pages, the oldest first: leases that pin, then requests, which own."""
    rows = []
    for pin in sorted(state.pins.values(), key=lambda pin: (pin.ticket, pin.number)):
        age = state.issued - pin.ticket
        since = f"since event {pin.sequence:,}" if pin.sequence >= 0 else "since before a keyframe"
        text = (
            f"lease {pin.number} of {pin.holder}, {age:,} tickets ago: pins {pin.virtual.size:,} pages "
            f"of {state.bands[pin.band].name} ({spell_runs(pin.virtual, 3)}), {since}"
        )
        band = state.bands[pin.band]
        first = pin.physical[:1] - band.base
        owner = int(band.owner[first][0]) if first.size else -1  # of its first page, if any
        owner = max(owner, -1)  # the prefix cache is no request
        rows.append(Row(pin.sequence, -1, "Lease", text, band=pin.band, request=owner))
    return rows + _cache_rows(state) + _request_rows(state)


def _cache_rows(state: ArenaState) -> list[Row]:
    """What the prefix cache owns, in one line."""
    held = [(band.name, band.cached()) for band in state.bands if state.has_cache]
    owned = ", ".join(f"{count:,} {name}" for name, count in held if count)
    if not owned:
        return []
    sharers = sum(bool(pages.size) for pages in state.shared.values())
    used = f"{sharers:,} requests share some" if sharers else "no request uses them"
    used = "1 request shares some" if sharers == 1 else used
    return [Row(-1, -1, "Cache", f"prefix cache: owns {owned} pages; {used}")]


def _request_rows(state: ArenaState) -> list[Row]:
    held: dict[int, list[str]] = {}
    since: dict[int, int] = {}
    for band in state.bands:
        owners = band.owner[band.slice]
        places = np.flatnonzero(owners >= 0)
        if not places.size:
            continue
        numbers, inverse, counts = np.unique(
            owners[places], return_inverse=True, return_counts=True
        )
        begun = np.full(numbers.size, np.iinfo(np.int64).max)
        np.minimum.at(begun, inverse, band.leased_at[band.virtual[band.slice][places]])
        for number, count, first in zip(
            numbers.tolist(), counts.tolist(), begun.tolist(), strict=True
        ):
            held.setdefault(number, []).append(f"{count:,} {band.name}")
            since[number] = min(since.get(number, first), first)
    rows = []
    for number in sorted(held, key=lambda known: (since[known], known)):
        request = state.requests.get(number)
        tokens = f", {request.length:,} tokens" if request is not None else ""
        when = f"since event {since[number]:,}" if since[number] >= 0 else "since before a keyframe"
        shared = len(state.shared.get(number, ()))
        shares = f", shares {shared:,} with the cache" if shared else ""
        noun = "page" if held[number][-1].startswith("1 ") else "pages"
        text = f"request {number}{tokens}: owns {', '.join(held[number])} {noun}{shares}, {when}"
        rows.append(Row(since[number], -1, "Request", text, request=number))
    return rows
