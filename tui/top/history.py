"""What the records before a position say: bands over time, rates, refusals, tickets, violations.

Only the records that matter here are kept, in small arrays per segment. At most `SCAN_EVENTS`
events back are looked at, whatever the length of the trace.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.decode import decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.spelling import spell_event
from bandscope.inspect.state import ArenaState, BandState
from bandscope.tui.top.snapshot import Row, Slice

SCAN_EVENTS = 400_000
RATE_NS = 1_000_000_000
SPARK_COLUMNS = 16
# Segments of large arenas are short, since each begins with a keyframe.
SCAN_SEGMENTS = 48
_SPARE = 4  # digests
_REMEMBERED = 4096
_U32 = 0xFFFFFFFF
_INTERESTING = np.zeros(256, bool)
_KINDS = (
    Kind.BAND_MOVE, Kind.PAGE_MOVE, Kind.BARRIER, Kind.LAUNCHED, Kind.DONE, Kind.REFUSAL,
    Kind.VIOLATION, Kind.LOST, Kind.OUTCOME,
)  # fmt: skip
_INTERESTING[list(_KINDS)] = True
TIMED = np.zeros(256, bool)
TIMED[form.FIRST_OPERATION : Kind.OUTCOME + 1] = True


@dataclass(frozen=True)
class Part:
    """Records in order, arrays alike: sequence, time of the operation in ns, the record."""

    sequences: np.ndarray
    times: np.ndarray
    records: np.ndarray

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return NOTHING
        return Part(
            np.concatenate([part.sequences for part in parts]),
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.records for part in parts]),
        )

    def between(self, start: int, stop: int) -> Part:
        """Those of the events `[start, stop)`."""
        low, high = np.searchsorted(self.sequences, (start, stop))
        if low == 0 and high == self.sequences.size:
            return self
        return Part(self.sequences[low:high], self.times[low:high], self.records[low:high])


NOTHING = Part(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, form.RECORD_DTYPE))


class Digest:
    """The records of a segment that matter, by kind (of outcomes, the refused ones)."""

    def __init__(self, segment: SegmentReader) -> None:
        self.segment = weakref.ref(segment)
        self.length = 0
        self._time_ns = segment.clock_ns
        self._parts: dict[int, list[Part]] = {int(kind): [] for kind in _KINDS}
        self.extend(segment)

    def extend(self, segment: SegmentReader) -> None:
        """Take in the records that came."""
        first, self.length = self.length, len(segment)
        if first == self.length:
            return
        records, good = segment.records[first:], segment.good[first:]
        kinds = records["kind"].copy()
        interesting = _INTERESTING[kinds] & good
        refused = kinds == Kind.OUTCOME
        interesting &= ~(refused & ((records["flags"] & form.OK) > 0))
        index = np.flatnonzero(interesting)
        timed = np.flatnonzero(TIMED[kinds] & good)
        times = np.full(index.size, self._time_ns, np.int64)
        if timed.size:
            clock = records["a"][timed]
            owner = np.searchsorted(timed, index, side="right") - 1
            times = np.where(owner >= 0, clock[np.maximum(owner, 0)], self._time_ns)
            self._time_ns = int(clock[-1])
        found, of = records[index], kinds[index]
        for kind in np.flatnonzero(np.bincount(of, minlength=1)).tolist():
            mine = np.flatnonzero(of == kind)
            sequences = index[mine] + (segment.first_sequence + first)
            self._parts[kind].append(Part(sequences, times[mine], found[mine]))

    def of(self, kind: int) -> Part:
        """Those of a kind."""
        parts = self._parts[kind]
        if len(parts) > 1:
            parts[:] = [Part.joined(parts)]
        return parts[0] if parts else NOTHING


class Past:
    """The records that matter in `[start, position)`; `start_ns`: its time."""

    def __init__(
        self, history: History, numbers: list[int], start: int, position: int, start_ns: int
    ) -> None:
        self.start, self.position, self.start_ns = start, position, start_ns
        self._history = history
        self._numbers = numbers
        self._known: dict[int, Part] = {}
        self.memory = history.memory

    def of(self, kind: int) -> Part:
        """The records of a kind."""
        kind = int(kind)
        if kind not in self._known:
            found = self._history.joined(kind, self._numbers)
            self._known[kind] = found.between(self.start, self.position)
        return self._known[kind]

    def newest(self, kinds: Sequence[int], most: int) -> Part:
        """The last of the records of several kinds, in order; looks no further back than needed."""
        found: list[Part] = []
        count = 0
        for number in self._numbers[::-1]:
            digest = self._history.digest(number)
            mixed = Part.joined([digest.of(int(kind)) for kind in kinds])
            order = np.argsort(mixed.sequences, kind="stable")
            part = Part(mixed.sequences[order], mixed.times[order], mixed.records[order])
            part = part.between(self.start, self.position)
            found.insert(0, part)
            count += part.sequences.size
            if count >= most:
                break
        joined = Part.joined(found)
        keep = slice(max(0, joined.sequences.size - most), None)
        return Part(joined.sequences[keep], joined.times[keep], joined.records[keep])


class History:
    """Digests of the segments that were looked at last. `memory`: rows that were made, by event."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.memory: dict[tuple[str, int], Any] = {}
        self._digests: OrderedDict[int, Digest] = OrderedDict()
        self._growing: set[int] = set()  # segments that were last when they were looked at
        self._joined: dict[int, tuple[list[int], Part]] = {}

    def digest(self, number: int) -> Digest:
        """The digest of a segment. Only the last segment still grows, so that the others are opened
        once."""
        known = self._digests.get(number)
        last = number == self.trace.heads[-1][0]
        if known is None or last or number in self._growing:
            segment = self.trace.segment(number)
            if known is None or known.segment() is not segment:
                known = self._digests[number] = Digest(segment)
            else:
                known.extend(segment)
            (self._growing.add if last else self._growing.discard)(number)
        self._digests.move_to_end(number)
        return known

    def joined(self, kind: int, numbers: list[int]) -> Part:
        """The records of a kind in these segments; those that do not grow are joined once."""
        settled = [number for number in numbers[:-1] if number not in self._growing]
        known = self._joined.get(kind)
        if known is None or known[0] != settled:
            parts = [self.digest(number).of(kind) for number in settled]
            parts = [part for part in parts if part.sequences.size]
            known = self._joined[kind] = settled, Part.joined(parts)
        rest = [self.digest(number).of(kind) for number in numbers[len(settled) :]]
        return Part.joined([part for part in (known[1], *rest) if part.sequences.size])

    def before(self, position: int) -> Past:
        """The records that matter before a position."""
        if len(self.memory) > _REMEMBERED:
            self.memory.clear()
        trace = self.trace
        start = max(trace.start, position - SCAN_EVENTS)
        numbers, starts, clocks = (list(part) for part in zip(*trace.heads, strict=True))
        first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
        stop = int(np.searchsorted(starts, position))
        first = max(first, stop - SCAN_SEGMENTS, 0)
        start = max(start, starts[first])
        start_ns = clocks[first]
        if start > starts[first]:  # within a segment: only what follows it is known for sure
            start_ns = clocks[first + 1] if first + 1 < stop else time_before(trace, start)
        for number in numbers[first:stop]:
            self.digest(number)
        spare = len(self._digests) - (stop - first)
        for _ in range(spare - _SPARE):  # those that were looked at last stay a little longer
            self._digests.popitem(last=False)
        return Past(self, numbers[first:stop], start, position, start_ns)


def time_before(trace: Trace, position: int) -> int:
    """When the last operation or outcome before a position was."""
    for segment in trace.segments_before(position):
        stop = min(len(segment), position - segment.first_sequence)
        for high in range(stop, 0, -4096):
            low = max(0, high - 4096)
            part = segment.records[low:high]
            timed = np.flatnonzero(TIMED[part["kind"]] & segment.good[low:high])
            if timed.size:
                return int(part["a"][timed[-1]])
        return segment.clock_ns
    return 0


# --- bands over time ------------------------------------------------------------------------------


def waterfall(
    past: Past, state: ArenaState, now_ns: int, window_ns: int, rows: int
) -> tuple[Slice, ...]:
    """The extents at `rows` times, the last one now; what was not read stays empty."""
    if rows <= 0:
        return ()
    # Times that are multiples of a step: a line stays what it is until a step has gone by.
    step = max(1, window_ns // rows)
    last = now_ns // step
    instants = [(last - (rows - 2 - row)) * step for row in range(rows - 1)] + [now_ns]
    extents: dict[int, tuple[tuple[int, int], ...]] = {}
    for instant in instants[:-1]:
        known = past.memory.get(("extents", instant))
        if known is not None:
            extents[instant] = known
    asked = [instant for instant in instants[:-1] if instant not in extents]
    if asked:
        columns = [_extents_at(past, band, asked) for band in state.bands]
        for instant, told in zip(asked, zip(*columns, strict=True), strict=True):
            extents[instant] = told
            if past.start_ns <= instant < state.time_ns:  # what was before does not change any more
                past.memory["extents", instant] = told
    lines = [
        Slice(instant, extents[instant] if instant >= past.start_ns else None)
        for instant in instants[:-1]
    ]
    return (*lines, Slice(now_ns, tuple(band.byte_range() for band in state.bands)))


def _extents_at(past: Past, band: BandState, instants: list[int]) -> list[tuple[int, int]]:
    """The extent of a band in bytes at some times."""
    moved = past.of(Kind.BAND_MOVE)
    mine = np.flatnonzero(moved.records["band"] == band.index)
    before, after = moved.records["a"][mine], moved.records["b"][mine]
    at = np.searchsorted(moved.times[mine], instants, side="right") - 1
    size = band.page_bytes
    first = int(before[0]) if mine.size else band.extent[0] << 32 | band.extent[1]
    extents = []
    for place in at.tolist():
        packed = int(after[place]) if place >= 0 else first
        low, high = packed >> 32, packed & _U32
        extents.append((low * size, high * size) if high > low else (0, 0))
    return extents


@dataclass(frozen=True)
class Rates:
    """Of one band: pages moved a second, refusals that asked for its pages, moves over time."""

    moves_per_second: float
    refusals: int
    spark: tuple[int, ...]


def rates(
    past: Past, trace: Trace, bands: int, now_ns: int, window_ns: int
) -> list[Rates]:
    """Per band; the rate is over the last second, or since the recording began if that is less."""
    moved = past.of(Kind.PAGE_MOVE)
    pages = np.where((moved.records["flags"] & form.INLINE) > 0, 1, moved.records["a"])
    seconds = min(RATE_NS, max(1, now_ns)) / 1e9
    edges = now_ns - window_ns + np.arange(SPARK_COLUMNS + 1) * (window_ns / SPARK_COLUMNS)
    asked = _refused_bands(past, trace, bands)
    result = []
    for band in range(bands):
        mine = np.flatnonzero(moved.records["band"] == band)
        spark = [0] * SPARK_COLUMNS
        recent = 0
        if mine.size:
            times = moved.times[mine]
            recent = int(pages[mine[times > now_ns - RATE_NS]].sum())
            spark = np.histogram(times, edges, weights=pages[mine])[0].astype(int).tolist()
        result.append(Rates(recent / seconds, asked[band], tuple(spark)))
    return result


def _refused_bands(past: Past, trace: Trace, bands: int) -> list[int]:
    counts = [0] * bands
    for sequence in past.of(Kind.REFUSAL).sequences[-500:].tolist():
        demand = past.memory.get(("demand", sequence))
        if demand is None:
            demand = tuple(getattr(body_at(trace, sequence), "demand", ()))
            past.memory["demand", sequence] = demand
        for band, wanted in enumerate(demand[:bands]):
            counts[band] += wanted > 0
    return counts


def body_at(trace: Trace, sequence: int) -> object:
    """The object of an event; None for what only the format needs."""
    segment = trace.segment_of(sequence)
    index = sequence - segment.first_sequence
    if index >= len(segment) or not segment.good[index]:
        return None
    return decoder_for(trace, segment).body(index)


# --- lists ----------------------------------------------------------------------------------------


def _rows(past: Past, trace: Trace, chosen: Part) -> list[Row]:
    """Records as rows, newest first."""
    rows = []
    for sequence, time_ns in zip(
        chosen.sequences[::-1].tolist(), chosen.times[::-1].tolist(), strict=True
    ):
        row = past.memory.get(("row", sequence))
        if row is None:
            body = body_at(trace, sequence)
            if body is None:
                continue
            row = Row(sequence, time_ns, type(body).__name__, spell_event(body))
            past.memory["row", sequence] = row
        rows.append(row)
    return rows


def refusals(past: Past, trace: Trace, most: int) -> list[Row]:
    """Refused operations with their reason, and the layouts they were refused for; newest first."""
    return _rows(past, trace, past.newest((Kind.OUTCOME, Kind.REFUSAL), most))


def violations(past: Past, trace: Trace, most: int) -> list[Row]:
    """Invariants that were found broken while the trace was recorded; newest first."""
    chosen = past.of(Kind.VIOLATION)
    return _rows(past, trace, chosen) if chosen.sequences.size <= most else _rows(
        past, trace, past.newest((Kind.VIOLATION,), most)
    )


_LANES = 10


def tickets(past: Past, trace: Trace, in_flight: set[int], most: int, plain: bool) -> list[Row]:
    """Launches, completions and barriers, newest first, with the forwards in flight as lanes: an
    arrow points from the forward that is waited for. `plain`: letters instead of lines."""
    chosen = past.newest((Kind.LAUNCHED, Kind.DONE, Kind.BARRIER), most)
    flying = set(in_flight)  # after the event that is looked at
    rows = []
    through, begin, end, wait, other = "|+x<." if plain else "│┬┴◄·"
    records = {
        sequence: (kind, ticket)
        for sequence, kind, ticket in zip(
            chosen.sequences.tolist(), chosen.records["kind"].tolist(),
            chosen.records["a"].tolist(), strict=True,
        )
    }  # fmt: skip
    for row in _rows(past, trace, chosen):
        kind, ticket = records[row.sequence]
        flying_before = flying ^ {ticket} if kind != Kind.BARRIER else flying
        lanes = {}
        for known in flying | flying_before:
            lanes[known % _LANES] = through
        if kind == Kind.BARRIER:
            lanes[ticket % _LANES] = wait
        else:
            lanes[ticket % _LANES] = begin if kind == Kind.LAUNCHED else end
        drawn = "".join(lanes.get(lane, other) for lane in range(_LANES))
        rows.append(Row(row.sequence, row.time_ns, row.kind, row.text, drawn))
        flying = flying_before
    return rows
