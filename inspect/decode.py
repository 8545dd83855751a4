"""Records as objects: operations, outcomes, effects and notes, as reports and screens want them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.operations import Operation, Outcome, Publish
from bandscope.inspect import format as form
from bandscope.inspect.format import Kind, unpack_lists
from bandscope.inspect.operation_codec import decode_operation
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader

_FIELDS = list(form.RECORD_DTYPE.fields or ())
_KIND, _FLAGS, _A, _C = (_FIELDS.index(name) for name in ("kind", "flags", "a", "c"))


@dataclass(frozen=True)
class Note:
    """An annotation of the user's."""

    text: str


@dataclass(frozen=True)
class Violation:
    """An invariant that somebody found broken while it ran."""

    name: str
    detail: str


@dataclass(frozen=True)
class Lost:
    """Events that are not in the trace, `count` so far."""

    count: int


@dataclass(frozen=True)
class Stack:
    """The Python stack of the operation that follows, innermost frame first."""

    frames: tuple[str, ...]


@dataclass(frozen=True)
class Mark:
    """A record of the trace's own: header, keyframe, trailer."""

    what: str


Body = Operation | Outcome | events.Effect | Note | Violation | Lost | Stack | Mark


@dataclass(frozen=True)
class Event:
    """One event. `time_ns`: of the operation it belongs to, since recording began; `operation`: the
    sequence of that operation, −1 outside of one."""

    sequence: int
    time_ns: int
    operation: int
    body: Body

    @property
    def kind(self) -> str:
        return name_of(self.body)


def name_of(body: Body) -> str:
    """What an event is called. Publishing a prefix has a name of its own beside the publishing of
    table rows."""
    return "PublishPrefix" if isinstance(body, Publish) else type(body).__name__


class Decoder:
    """Decodes the records of one segment."""

    def __init__(self, segment: SegmentReader, band_names: list[str], page_bytes: list[int]) -> None:
        self.segment = segment
        self.band_names = band_names
        self.page_bytes = page_bytes
        self._stacks: dict[int, str] | None = None
        self._batch_index = -1  # of the batch that was read last
        self._batch: tuple[int, ...] = ()

    def body(self, index: int) -> Body | None:
        """The object of record `index`; None for what only the format needs (texts, checksums) and
        for records that do not decode (damage that no checksum covers)."""
        kind, flags, band, _, a, b, c, _ = self.segment.records[index].tolist()
        try:
            return self._decode(index, kind, flags, band, a, b, c)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            return None

    def batch(self, index: int) -> tuple[int, ...]:
        """The requests of a DECODE, TRIM_WINDOW or LAUNCH record."""
        record = self.segment.records[index].item()
        if record[_FLAGS] & form.SAME_BATCH:
            index = record[_C] - 1
            if index == self._batch_index:
                return self._batch
            if not self.segment.good[index]:
                raise ValueError("the batch lies in a damaged part")
        self._batch = form.unpack_numbers(self.segment.payload(index))
        self._batch_index = index
        return self._batch

    def pages(self, index: int) -> list[np.ndarray]:
        """The page lists of a record; of an inline one as lists of one page."""
        record = self.segment.records[index].item()
        if not record[_FLAGS] & form.INLINE:
            return unpack_lists(self.segment.payload(index))
        a = record[_A]
        if record[_KIND] in (Kind.LEASE_BEGIN, Kind.GRAFT):
            return [np.array([a >> 32]), np.array([a & 0xFFFFFFFF])]
        return [np.array([a])]

    def _decode(
        self, index: int, kind: int, flags: int, band: int, a: int, b: int, c: int
    ) -> Body | None:
        segment = self.segment
        if form.FIRST_OPERATION <= kind <= form.LAST_OPERATION:
            batch = self.batch(index) if Kind.DECODE <= kind <= Kind.LAUNCH and (
                kind != Kind.RELEASE
            ) else ()
            text = segment.text(c) if kind in (Kind.RELEASE, Kind.RELEASE_PREFIX) else ""
            return decode_operation(kind, flags, b, c, batch, text, segment.payload(index))
        if kind == Kind.OUTCOME:
            value = None if b == form.NO_VALUE else b
            return Outcome(bool(flags & form.OK), value, form.REASONS[band], segment.text(c))
        if kind >= form.FIRST_EFFECT:
            return self._effect(index, kind, flags, band, a, b, c)
        payload = segment.payload(index)
        match kind:
            case Kind.NOTE:
                return Note(payload.decode(errors="replace"))
            case Kind.VIOLATION:
                return Violation(**json.loads(payload))
            case Kind.LOST:
                return Lost(a)
            case Kind.STACK:
                if self._stacks is None:
                    self._stacks = segment.stacks()
                return Stack(tuple(self._stacks.get(c, "").split("\n")))
            case Kind.HEADER | Kind.KEYFRAME | Kind.TRAILER:
                return Mark(Kind(kind).name.lower())
        return None

    def _effect(
        self, index: int, kind: int, flags: int, band: int, a: int, b: int, c: int
    ) -> events.Effect | None:
        segment = self.segment
        match kind:
            case Kind.LAUNCHED:
                return events.Launched(a, ())
            case Kind.DONE:
                return events.Done(a)
            case Kind.BARRIER:
                return events.Barrier(segment.text(b), a, segment.text(c))
            case Kind.REFUSAL:
                told = json.loads(segment.payload(index))
                fixed = tuple(None if hull is None else tuple(hull) for hull in told["fixed"])
                return events.Refusal(
                    told["reason"], tuple(told["demand"]), tuple(told["live"]), fixed
                )
            case Kind.SHARE:
                return events.Share(b, c, self.pages(index)[0])
            case Kind.EVICTION:
                demand, counts = unpack_lists(segment.payload(index))
                return events.Eviction(tuple(demand.tolist()), tuple(counts.tolist()))
        name = self.band_names[band]
        match kind:
            case Kind.BAND_MOVE:
                size = self.page_bytes[band]
                before = ((a >> 32) * size, (a & 0xFFFFFFFF) * size)
                after = ((b >> 32) * size, (b & 0xFFFFFFFF) * size)
                return events.BandMove(name, before, after, segment.text(c))
            case Kind.PUBLISH:
                return events.Publish(name, a)
            case Kind.PAGE_MOVE:
                virtual, sources, destinations = self.pages(index)
                urgent = bool(flags & form.URGENT)
                size = self.page_bytes[band]
                return events.PageMove(name, virtual, sources, destinations, size, urgent)
            case Kind.LEASE_BEGIN:
                virtual, physical, *each = self.pages(index)
                return events.LeaseBegin(
                    self._holder(flags, b, each), name, virtual, physical, self._lease(flags, c)
                )
            case Kind.LEASE_END:
                virtual, *each = self.pages(index)
                return events.LeaseEnd(
                    self._holder(flags, b, each), name, virtual, self._lease(flags, c)
                )
            case Kind.PENDING:
                return events.Pending(name, self.pages(index)[0], b)
            case Kind.RECLAIM:
                return events.Reclaim(name, self.pages(index)[0])
            case Kind.GRAFT:
                virtual, into = self.pages(index)
                return events.Graft(b, name, virtual, into)
            case Kind.STATE_COPY:
                source, destination, low = a >> 32, b >> 32, 0xFFFFFFFF
                why = segment.text(c)
                return events.StateCopy(name, source, destination, a & low, b & low, why)
        return None

    def _holder(self, flags: int, b: int, each: list[np.ndarray]) -> events.Holder:
        if flags & form.HOLDER_EACH:
            return each[0]
        return self.segment.text(b) if flags & form.HOLDER_TEXT else b

    @staticmethod
    def _lease(flags: int, c: int) -> int:
        return c if flags & form.PIN else 0


def decoder_for(trace: Trace, segment: SegmentReader) -> Decoder:
    """A decoder that knows the bands of the trace."""
    bands: list[dict[str, Any]] = trace.header["bands"]
    return Decoder(segment, [b["name"] for b in bands], [b["page_bytes"] for b in bands])


def read_events(
    trace: Trace, start: int | None = None, stop: int | None = None, kinds: set[int] | None = None
) -> Iterator[Event]:
    """The events `[start, stop)` in order (only of these record kinds, when given). Operations and
    times are followed from the last operation before `start` in its segment."""
    start = trace.start if start is None else max(start, trace.start)
    stop = trace.stop if stop is None else min(stop, trace.stop)
    for segment in trace.segments(start, stop):
        decoder = decoder_for(trace, segment)
        first = max(0, start - segment.first_sequence)
        last = min(len(segment), stop - segment.first_sequence)
        kind_of = segment.records["kind"]
        asked = (kind_of >= form.FIRST_OPERATION) & (kind_of <= form.LAST_OPERATION) & segment.good
        opened = np.flatnonzero(asked)
        # An event belongs to the last operation before it.
        at = np.searchsorted(opened, np.arange(first, last), side="right") - 1
        wanted = segment.good[first:last]
        if kinds is not None:
            wanted = wanted & np.isin(kind_of[first:last], list(kinds))
        times = segment.records["a"]
        for offset in np.flatnonzero(wanted).tolist():
            index = first + offset
            body = decoder.body(index)
            if body is None:
                continue
            owner = int(opened[at[offset]]) if at[offset] >= 0 else -1
            time_ns = int(times[owner]) if owner >= 0 else segment.clock_ns
            operation = segment.first_sequence + owner if owner >= 0 else -1
            if isinstance(body, Outcome):
                time_ns = int(times[index])
            yield Event(segment.first_sequence + index, time_ns, operation, body)
