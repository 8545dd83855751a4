"""The whole life of one page, gathered from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.errors import TraceError
from bandscope.inspect import format as form
from bandscope.inspect.decode import Event
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.selection import band_index, first_timeline, gaps, operation_at, scan
from bandscope.inspect.spelling import who

_PAGE_KINDS = (
    Kind.LEASE_BEGIN, Kind.LEASE_END, Kind.PAGE_MOVE, Kind.PENDING, Kind.RECLAIM, Kind.PUBLISH,
    Kind.GRAFT,
)  # fmt: skip


@dataclass(frozen=True)
class LifeEvent:
    """One thing that happened to a page. `what`: `held` (when the trace begins), `leased`, `moved`,
    `pinned`, `unpinned`, `published`, `shared` (the prefix cache owns it), `grafted` (a page of the
    cache took over the place of a request's), `copied` and `written` (states), `freed`, `pending`,
    `reusable` or `unknown` (damage). `operation`: what did it, in words; `detail`: whatever else is
    known."""

    sequence: int
    time_ns: int
    generation: int
    what: str
    physical: int | None
    operation: str
    detail: str = ""


@dataclass
class PageLife:
    """Everything a trace tells about virtual page `virtual` of a band, in order."""

    band: str
    virtual: int
    generation: int | None
    events: list[LifeEvent] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**self.__dict__, "events": [event.__dict__ for event in self.events]}


def page_life(
    trace: Trace, band: str, virtual: int, generation: int | None = None
) -> PageLife:
    """The life of a page from the trace's first keyframe on; of all generations, or of one.

    `TraceError` for a band or a page that the arena does not have.
    """
    index = band_index(trace, band)
    about = trace.header["bands"][index]
    if not 0 <= virtual < about["virtual_capacity"]:
        raise TraceError(
            f"page {virtual:,} of band {band} was asked for, but its pages are 0 to "
            f"{about['virtual_capacity'] - 1:,}"
        )
    life = PageLife(band, virtual, generation, gaps=gaps(trace))
    found = _Follower(trace, index, virtual).follow()
    life.events = [one for one in found if generation is None or one.generation == generation]
    return life


class _Follower:
    """Follows one virtual page along a trace: where it lies, its generation, what it left behind."""

    def __init__(self, trace: Trace, band: int, virtual: int) -> None:
        self.trace = trace
        self.band = band
        self.virtual = virtual
        timeline = first_timeline(trace)
        self.timeline = timeline
        state = timeline.state
        self.name = state.bands[band].name
        self.is_state = band == state.state_band
        # Window pages share their names with those of the band of full attention.
        self.naming = band if band == state.state_band else state.full
        self.physical = -1
        self.generation = 0
        self.left: dict[int, int] = {}  # physical pages left, waiting to be reusable: generation
        self.freed: LifeEvent | None = None  # and nothing was said about its page yet
        self.freed_by = -1
        self.unpublished = False
        self.leases: dict[int, tuple[int, int]] = {}  # physical page and generation it pins

    def follow(self) -> Iterator[LifeEvent]:
        yield from self._place(self.timeline.state.sequence, "held")
        start = self.timeline.state.sequence
        for first, stop in [*gaps(self.trace, start), (self.trace.stop, self.trace.stop)]:
            for event in scan(self.trace, self._sieve, start, first):
                yield from self._step(event)
            yield from self._settle(None)
            if first == self.trace.stop:
                return
            start = yield from self._resume(first, stop)

    def _resume(self, first: int, stop: int) -> Any:
        """After a damaged stretch: the state of the next sound keyframe."""
        for segment in self.trace.segments(stop):
            for index in segment.find(Kind.KEYFRAME).tolist():
                after = segment.first_sequence + index + 1
                if after <= stop:
                    continue
                try:
                    self.timeline.seek(after)
                except TraceError:
                    continue
                yield LifeEvent(
                    first, self.timeline.state.time_ns, self.generation, "unknown", None, "",
                    f"events {first:,} to {after - 1:,} cannot be followed",
                )  # fmt: skip
                yield from self._place(after, "held")
                return after
        yield LifeEvent(
            first, 0, self.generation, "unknown", None, "",
            f"events {first:,} to {self.trace.stop - 1:,} cannot be followed",
        )  # fmt: skip
        return self.trace.stop

    def _place(self, sequence: int, what: str) -> Iterator[LifeEvent]:
        state = self.timeline.state
        band = state.bands[self.band]
        self.physical = int(band.page_of[self.virtual])
        self.generation = int(state.ids_of(self.band).generation[self.virtual])
        self.left.clear()
        self.freed = None
        self.leases = {}
        for number, pin in state.pins.items():
            if pin.band == self.band and self._has(pin.virtual):
                page = int(pin.physical[np.flatnonzero(pin.virtual == self.virtual)[0]])
                self.leases[number] = (page, self.generation - (page != self.physical))
        if self.physical >= 0:
            owner = int(band.owner[self.physical - band.base])
            pins = self._pins(self.physical)
            yield LifeEvent(
                sequence, state.time_ns, self.generation, what, self.physical, "",
                f"by {who(owner)} since before event {sequence:,}{pins and ', pinned by ' + pins}",
            )  # fmt: skip

    def _sieve(self, segment: SegmentReader) -> np.ndarray:
        records = segment.records
        kinds, a = records["kind"], records["a"]
        inline = records["flags"] & form.INLINE != 0
        ours = records["band"] == self.band
        begin, end = kinds == Kind.LEASE_BEGIN, kinds == Kind.LEASE_END
        graft = kinds == Kind.GRAFT
        mask: np.ndarray = np.isin(kinds, _PAGE_KINDS) & ours
        mask &= ~(begin & inline & (a >> 32 != self.virtual))
        mask &= ~(end & inline & (a != self.virtual))
        names = (a >> 32 == self.virtual) | (a & 0xFFFFFFFF == self.virtual)
        mask &= ~(graft & inline & ~names)
        # Whoever frees the page of the naming band ends the generation.
        mask |= end & (records["band"] == self.naming) & (~inline | (a == self.virtual))
        if self.is_state:
            mask |= (kinds == Kind.STATE_COPY) & ours
        else:
            mask |= kinds == Kind.SHARE
        return mask

    def _step(self, event: Event) -> Iterator[LifeEvent]:
        yield from self._settle(event)
        body = event.body
        if isinstance(body, events.LeaseEnd) and self._has(body.virtual):
            if body.band == self.name:
                yield from self._end(event, body)
            if body.owns and body.band == self.timeline.state.bands[self.naming].name:
                self.generation += 1
        elif isinstance(body, events.Share):
            if self.physical >= 0 and self._has(body.virtual):
                yield self._told(event, "shared", f"by request {body.request}; it is the cache's")
        elif getattr(body, "band", None) != self.name:
            return
        elif isinstance(body, events.StateCopy):
            if body.source == self.virtual:
                yield self._told(event, "copied", f"to slot {body.destination} ({body.why})")
            elif body.destination == self.virtual:
                yield self._told(event, "written", f"a copy of slot {body.source} ({body.why})")
        elif isinstance(body, events.LeaseBegin) and self._has(body.virtual):
            yield from self._begin(event, body)
        elif isinstance(body, events.Graft):
            yield from self._graft(event, body)
        elif isinstance(body, events.PageMove) and self._has(body.virtual):
            place = int(np.flatnonzero(body.virtual == self.virtual)[0])
            old, self.physical = int(body.sources[place]), int(body.destinations[place])
            self.left[old] = self.generation
            self.unpublished = True
            urgent = ", urgent" if body.urgent else ""
            yield self._told(event, "moved", f"from {old} to {self.physical}{urgent}")
        elif isinstance(body, events.Pending):
            for page in self._left(body.pages):
                wait = f"for ticket {body.ticket}"
                yield self._told(event, "pending", wait, page, self.left[page])
        elif isinstance(body, events.Reclaim):
            for page in self._left(body.pages):
                generation = self.left.pop(page)
                yield self._told(event, "reusable", "a hole now", page, generation)
        elif isinstance(body, events.Publish) and self.unpublished:
            self.unpublished = False
            yield self._told(event, "published", "row sent to the device")

    def _begin(self, event: Event, body: events.LeaseBegin) -> Iterator[LifeEvent]:
        place = int(np.flatnonzero(body.virtual == self.virtual)[0])
        page = int(body.physical[place])
        if body.lease:
            self.leases[body.lease] = (page, self.generation)
            yield self._told(event, "pinned", f"by {body.holder}, lease {body.lease}", page)
            return
        self.left.pop(page, None)
        self.physical, self.unpublished = page, True
        yield self._told(event, "leased", f"by {_who(body.holder, place)}", page)

    def _graft(self, event: Event, body: events.Graft) -> Iterator[LifeEvent]:
        """The place of a request's page becomes that of a page of the cache."""
        if self._has(body.virtual):
            into = int(body.into[np.flatnonzero(body.virtual == self.virtual)[0]])
            page, self.physical, self.unpublished = self.physical, -1, False
            yield self._told(event, "grafted", f"became the cache's page {into}", page)
        elif self._has(body.into):
            was = int(body.virtual[np.flatnonzero(body.into == self.virtual)[0]])
            # Only the page itself is followed, so where the other one lay is looked up.
            state = self.timeline.seek(event.sequence)
            page = int(state.bands[self.band].page_of[was])
            self.physical, self.unpublished = page, True
            yield self._told(event, "grafted", f"where page {was} of request {body.request} lay")

    def _end(self, event: Event, body: events.LeaseEnd) -> Iterator[LifeEvent]:
        if body.lease:
            page, generation = self.leases.pop(body.lease, (self.physical, self.generation))
            said = f"by {body.holder}, lease {body.lease}"
            yield self._told(event, "unpinned", said, page, generation)
            return
        place = int(np.flatnonzero(body.virtual == self.virtual)[0])
        page, self.physical = self.physical, -1
        self.unpublished = False
        self.left[page] = self.generation
        pins = self._pins(page)
        who = _who(body.holder, place) + (f"; {pins} still pins it" if pins else "")
        told = self._told(event, "freed", f"by {who}", page)
        if not pins:
            self.freed, self.freed_by = told, event.operation
        yield told

    def _pins(self, page: int) -> str:
        return ", ".join(f"lease {number}" for number, (of, _) in self.leases.items() if of == page)

    def _settle(self, event: Event | None) -> Iterator[LifeEvent]:
        """A freed page for which nothing else was said in its operation is reusable at once."""
        freed = self.freed
        if freed is None or freed.physical is None:
            return
        body = None if event is None else event.body
        page = freed.physical
        said = isinstance(body, events.Pending | events.Reclaim) and bool((body.pages == page).any())
        if event is not None and event.operation == self.freed_by and not said:
            return
        self.freed = None
        if event is not None and not said and self.left.pop(page, None) is not None:
            yield replace(freed, what="reusable", detail="at once: nothing is in flight")

    def _told(
        self, event: Event, what: str, detail: str, page: int | None = None,
        generation: int | None = None,
    ) -> LifeEvent:  # fmt: skip
        if page is None and self.physical >= 0:
            page = self.physical
        return LifeEvent(
            event.sequence, event.time_ns, self.generation if generation is None else generation,
            what, page, operation_in_words(self.trace, event.operation), detail,
        )  # fmt: skip

    def _has(self, virtual: np.ndarray) -> bool:
        return bool((virtual == self.virtual).any())

    def _left(self, pages: np.ndarray) -> list[int]:
        return [page for page in self.left if bool((pages == page).any())]


def _who(holder: events.Holder, place: int) -> str:
    return who(holder if isinstance(holder, int | str) else int(holder[place]))


def operation_in_words(trace: Trace, sequence: int) -> str:
    """The operation that is event `sequence`: its kind, and its request where it has one."""
    operation = operation_at(trace, sequence)
    if operation is None:
        return f"event {sequence:,}" if sequence >= 0 else ""
    request = getattr(operation, "request", None)
    return operation.kind if request is None else f"{operation.kind} {request}"
