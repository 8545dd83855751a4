"""Choosing events of a trace: by band, request, kind, pages and place; and places written by people.

Records are sifted by arrays before any of them is decoded, so that a narrow question about a long
trace costs little more than reading it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import format as form
from bandscope.inspect.decode import Event, decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.timeline import Timeline

_TIME_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_OPERATIONS = [
    "PublishPrefix" if kind is ops.Publish else kind.__name__ for kind in Operation.__subclasses__()
]
# The names of events, and the records that they are in.
KINDS: dict[str, frozenset[int]] = {name: frozenset() for name in _OPERATIONS}
for _kind_of_record in Kind:
    if _kind_of_record not in (Kind.OPERATION, Kind.CHECK, Kind.TEXT):
        _called = form.kind_name(_kind_of_record)
        KINDS[_called] = KINDS.get(_called, frozenset()) | {int(_kind_of_record)}
for _operation in _OPERATIONS:
    KINDS[_operation] |= {Kind.OPERATION}  # what fits no record of its own kind
_MARKS = ("Header", "Keyframe", "Trailer")
GROUPS = {
    "operation": frozenset(range(form.FIRST_OPERATION, form.LAST_OPERATION + 1)),
    "effect": frozenset(range(form.FIRST_EFFECT, form.LAST_EFFECT + 1)),
}
_SEVERAL = frozenset(range(form.FIRST_OPERATION, form.LAST_OPERATION + 1)) | {Kind.OUTCOME}


# Records that name their one request by themselves.
_NAMING = (
    Kind.ADMIT, Kind.EXTEND, Kind.RELEASE, Kind.ADMIT_PREFIX, Kind.RELEASE_PREFIX,
    Kind.PUBLISH_PREFIX, Kind.CHECKPOINT, Kind.SHARE, Kind.GRAFT,
)  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """Which events are wanted; None: all of them.

    `pages`: virtual pages `[first, last]` (physical ones for `Pending` and `Reclaim`). `start`,
    `stop`: sequence numbers. `request`: events that name it, and the outcomes of its operations.
    """

    bands: tuple[int, ...] | None = None
    request: int | None = None
    kinds: tuple[str, ...] | None = None
    pages: tuple[int, int] | None = None
    start: int | None = None
    stop: int | None = None
    names: frozenset[str] = field(init=False, default=frozenset())
    records: frozenset[int] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.kinds is None:
            return
        names: set[str] = set()
        records: set[int] = set()
        for wanted in self.kinds:
            name, found = _kind(wanted)
            records |= found
            names |= {name} if name in KINDS else {n for n, ids in KINDS.items() if ids <= found}
        object.__setattr__(self, "names", frozenset(names))
        object.__setattr__(self, "records", frozenset(records))


def _kind(wanted: str) -> tuple[str, frozenset[int]]:
    plain = wanted.lower().replace("_", "").replace("-", "").replace(" ", "")
    for name, records in (*KINDS.items(), *GROUPS.items()):
        if name.lower() in (plain, plain.removesuffix("s")):
            return name, records
    raise TraceError(
        f"events of kind {wanted!r} were asked for; the kinds are {', '.join(GROUPS)}, "
        f"{', '.join(KINDS)}"
    )


def band_index(trace: Trace, name: str) -> int:
    """The number of a band by its name; `TraceError` with the names there are."""
    names = [band["name"] for band in trace.header["bands"]]
    if name not in names:
        raise TraceError(
            f"band {name!r} was asked for, but the bands of {trace.path} are {', '.join(names)}"
        )
    return names.index(name)


def parse_pages(text: str) -> tuple[int, int]:
    """`3..9` or `7` → first and last page."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise TraceError(f"pages {text!r} were asked for; write A..B, like 10..25, or one number")
    return first, last


def parse_position(trace: Trace, text: str) -> int:
    """A place in a trace as a sequence number: `1,234`, `end`, or a time since the recording began,
    like `1.5s`, `20ms`, `3us`, `2min`. Numbers and times outside of the trace are a `TraceError`."""
    plain = text.strip().lower()
    if plain == "end":
        return trace.stop
    if plain == "start":
        return trace.start
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)", plain)
    if match is not None:
        return _position_of_time(trace, round(float(match[1]) * _TIME_NS[match[2]]), text)
    number = plain.replace(",", "").replace("_", "")
    if not (number.isascii() and number.isdigit()):
        raise TraceError(
            f"{text!r} was given as a place in a trace; write a sequence number like 1200, a time like "
            "1.5s, or end"
        )
    if not trace.start <= int(number) <= trace.stop:
        raise TraceError(
            f"event {int(number):,} was asked for, but trace {trace.path} holds events "
            f"{trace.start:,} to {trace.stop - 1:,}"
        )
    return int(number)


def _position_of_time(trace: Trace, time_ns: int, text: str) -> int:
    last = last_time_ns(trace)
    if time_ns > last:
        raise TraceError(
            f"time {text} was asked for, but trace {trace.path} ends at {last / 1e9:.6f} s"
        )
    return min(trace.sequence_at(time_ns), trace.stop)


def last_time_ns(trace: Trace) -> int:
    """When the last operation or outcome that can be read was, since the recording began."""
    for segment in reversed(list(_numbers(trace))):
        reader = trace.segment(segment)
        timed = _timed(reader)
        if timed.size:
            return int(reader.records["a"][timed[-1]])
    return 0


def _timed(segment: SegmentReader) -> np.ndarray:
    """The records that say when they were written: operations and outcomes."""
    kinds = segment.records["kind"]
    return np.flatnonzero((kinds >= form.FIRST_OPERATION) & (kinds <= Kind.OUTCOME) & segment.good)


def _numbers(trace: Trace) -> Iterator[int]:
    for reader in trace.segments():
        yield reader.segment


def has_operations(trace: Trace) -> bool:
    """Whether any operation can be read."""
    low, high = form.FIRST_OPERATION, form.LAST_OPERATION
    for reader in trace.segments():
        kinds = reader.records["kind"]
        if bool(((kinds >= low) & (kinds <= high) & reader.good).any()):
            return True
    return False


def gaps(trace: Trace, start: int | None = None, stop: int | None = None) -> list[tuple[int, int]]:
    """Stretches `[first, stop)` of events that are missing or cannot be trusted."""
    start = trace.start if start is None else max(start, trace.start)
    stop = trace.stop if stop is None else min(stop, trace.stop)
    found: list[tuple[int, int]] = []

    def add(first: int, last: int) -> None:
        first, last = max(first, start), min(last, stop)
        if last <= first:
            return
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))

    at = None
    for reader in trace.segments(start, stop):
        if at is not None:
            add(at, reader.first_sequence)
        edges = np.flatnonzero(np.diff(np.concatenate(([True], reader.good, [True])).astype(np.int8)))
        for first, last in edges.reshape(-1, 2).tolist():
            add(reader.first_sequence + first, reader.first_sequence + last)
        at = reader.stop_sequence
    return found


_Line = TypeVar("_Line", bound=Timeline)


def first_timeline(trace: Trace) -> Timeline:
    """A timeline that stands after the first sound keyframe."""
    return stand_first(Timeline(trace))


def stand_first(timeline: _Line) -> _Line:
    """The timeline, standing after the first sound keyframe of its trace."""
    trace = timeline.trace
    for reader in trace.segments():
        for index in reader.find(Kind.KEYFRAME).tolist():
            try:
                timeline.seek(reader.first_sequence + index + 1)
            except TraceError:
                continue
            return timeline
    raise TraceError(
        f"trace {trace.path} holds no sound keyframe, so no state can be rebuilt; `bandscope inspect "
        "summary` names the damaged parts"
    )


def timeline_at(trace: Trace, sequence: int) -> Timeline:
    """A timeline that stands before event `sequence`. What comes before a trace's first keyframe is
    its header, so that its first events have the state of that keyframe."""
    timeline = Timeline(trace)
    if sequence < trace.stop:
        segment = trace.segment_of(sequence)
        index = sequence - segment.first_sequence
        heads = (Kind.HEADER, Kind.LOST, Kind.KEYFRAME)
        kinds = segment.records["kind"][: index + 1]
        if sequence - index == trace.start and np.isin(kinds, heads).all():
            found = segment.find(Kind.KEYFRAME)
            if found.size:
                sequence = max(sequence, segment.first_sequence + int(found[0]) + 1)
    state = timeline.seek(sequence)
    if not state.time_ns and sequence > trace.start:  # right after a keyframe
        segment = trace.segment_of(sequence - 1)
        last = sequence - segment.first_sequence
        timed = _timed(segment)
        timed = timed[timed < last]
        state.time_ns = int(segment.records["a"][timed[-1]]) if timed.size else segment.clock_ns
    return timeline


Sieve = Callable[[SegmentReader], np.ndarray]


def scan(
    trace: Trace, sieve: Sieve, start: int | None = None, stop: int | None = None
) -> Iterator[Event]:
    """The events `[start, stop)` whose records a sieve lets through: it returns a mask, shape
    (records,), for a segment. Only these are decoded."""
    start = trace.start if start is None else max(start, trace.start)
    stop = trace.stop if stop is None else min(stop, trace.stop)
    low, high = form.FIRST_OPERATION, form.LAST_OPERATION
    for segment in trace.segments(start, stop):
        decoder = decoder_for(trace, segment)
        kinds, times = segment.records["kind"], segment.records["a"]
        wanted = sieve(segment) & segment.good
        wanted[: max(0, start - segment.first_sequence)] = False
        wanted[max(0, stop - segment.first_sequence) :] = False
        opened = np.flatnonzero((kinds >= low) & (kinds <= high) & segment.good)
        chosen = np.flatnonzero(wanted)
        owners = np.searchsorted(opened, chosen, side="right") - 1
        for index, owner in zip(chosen.tolist(), owners.tolist(), strict=True):
            body = decoder.body(index)
            if body is None:
                continue
            place = int(opened[owner]) if owner >= 0 else -1
            time_ns = int(times[place]) if place >= 0 else segment.clock_ns
            if isinstance(body, Outcome):
                time_ns = int(times[index])
            operation = segment.first_sequence + place if place >= 0 else -1
            yield Event(segment.first_sequence + index, time_ns, operation, body)


def select(trace: Trace, selection: Selection) -> Iterator[Event]:
    """The events of a trace that a selection wants, in order."""
    names = [band["name"] for band in trace.header["bands"]]
    bands = None if selection.bands is None else {names[index] for index in selection.bands}
    ours = -1  # the last operation that named the request
    for event in scan(trace, _sieve(selection), selection.start, selection.stop):
        body = event.body
        if selection.request is not None:
            if isinstance(body, Outcome):
                if event.operation != ours:
                    continue
            elif not names_request(body, selection.request):
                continue
            elif isinstance(body, Operation):
                ours = event.sequence
        if selection.kinds is not None and _name(event) not in selection.names:
            continue
        if bands is not None and getattr(body, "band", None) not in bands:
            continue
        if selection.pages is not None and not _touches(body, *selection.pages):
            continue
        yield event


def _name(event: Event) -> str:
    what = getattr(event.body, "what", None)
    return what.title() if isinstance(what, str) and what.title() in _MARKS else event.kind


def _sieve(selection: Selection) -> Sieve:
    records = selection.records
    if records is not None and selection.request is not None:
        records = records | _SEVERAL  # outcomes belong to the operation that named the request

    def wanted(segment: SegmentReader) -> np.ndarray:
        kinds = segment.records["kind"]
        mask = np.ones(len(segment), bool)
        if records is not None:
            mask &= np.isin(kinds, list(records))
        if selection.bands is not None:
            effects = (kinds >= form.FIRST_EFFECT) & np.isin(segment.records["band"], selection.bands)
            mask &= effects | (kinds == Kind.OPERATION)
        if selection.request is not None:
            mask &= _may_name(segment, selection.request)
        return mask

    return wanted


def _may_name(segment: SegmentReader, request: int) -> np.ndarray:
    """Records that may name a request, by what is in the record itself; outcomes stay."""
    records = segment.records
    kinds = records["kind"]
    inline = records["flags"] & form.INLINE != 0
    leases = np.isin(kinds, (Kind.LEASE_BEGIN, Kind.LEASE_END))
    in_record = np.isin(kinds, _NAMING) | (leases & inline)
    mask: np.ndarray = np.isin(kinds, list(_SEVERAL)) | leases
    mask |= (kinds == Kind.SHARE) | (kinds == Kind.GRAFT)
    mask &= ~in_record | (records["b"] == request)
    return mask


def names_request(body: Any, request: int) -> bool:
    """Whether an operation or an effect names a request."""
    if getattr(body, "request", None) == request:
        return True
    if request in getattr(body, "requests", ()):
        return True
    holder = getattr(body, "holder", None)
    if isinstance(holder, np.ndarray):
        return bool((holder == request).any())
    return isinstance(holder, int) and holder == request


def _touches(body: Any, first: int, last: int) -> bool:
    if isinstance(body, ops.Lease | ops.Evict):
        return False
    pages = getattr(body, "virtual", None)
    if pages is None:
        pages = getattr(body, "pages", None)
    if pages is None:
        return False
    if isinstance(body, events.Graft):
        pages = np.concatenate((pages, body.into))
    return bool(((pages >= first) & (pages <= last)).any())


def operation_at(trace: Trace, sequence: int) -> Operation | None:
    """The operation that is event `sequence`; None when there is none, or none that can be read."""
    if not trace.start <= sequence < trace.stop:
        return None
    segment = trace.segment_of(sequence)
    index = sequence - segment.first_sequence
    if not 0 <= index < len(segment) or not segment.good[index]:
        return None
    body = decoder_for(trace, segment).body(index)
    return body if isinstance(body, Operation) else None
