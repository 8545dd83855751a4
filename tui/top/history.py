"""What the records before a position say: bands over time, rates, refusals, tickets, violations.

Only the records that matter here are kept, in small arrays per segment. At most `SCAN_EVENTS`
events back are looked at, whatever the length of the trace.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.decode import decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.spelling import spell_event
from bandscope.inspect.state import ArenaState
from bandscope.tui.top.snapshot import Row, Slice

SCAN_EVENTS = 400_000
RATE_NS = 1_000_000_000
SPARK_COLUMNS = 16
# Segments of large arenas are short, since each begins with a keyframe.
SCAN_SEGMENTS = 48
_KEPT = 64
_U32 = 0xFFFFFFFF
_INTERESTING = np.zeros(256, bool)
_INTERESTING[
    [Kind.BAND_MOVE, Kind.PAGE_MOVE, Kind.BARRIER, Kind.LAUNCHED, Kind.DONE, Kind.REFUSAL]
] = True
_INTERESTING[[Kind.VIOLATION, Kind.LOST]] = True
TIMED = np.zeros(256, bool)
TIMED[form.FIRST_OPERATION : Kind.OUTCOME + 1] = True


@dataclass(frozen=True)
class Digest:
    """The records of a segment that matter; `index`: of each in the segment, `times`: in ns."""

    length: int
    index: np.ndarray
    times: np.ndarray
    records: np.ndarray


def digest(segment: SegmentReader) -> Digest:
    """Pick them out, each with the time of the operation it belongs to."""
    kinds = segment.records["kind"]
    wanted = _INTERESTING[kinds]
    refused = kinds == Kind.OUTCOME
    refused &= (segment.records["flags"] & form.OK) == 0
    index = np.flatnonzero((wanted | refused) & segment.good)
    timed = np.flatnonzero(TIMED[kinds] & segment.good)
    if timed.size:
        owner = np.searchsorted(timed, index, side="right") - 1
        times = segment.records["a"][timed[np.maximum(owner, 0)]]
        times = np.where(owner >= 0, times, segment.clock_ns)
    else:
        times = np.full(index.size, segment.clock_ns, np.int64)
    return Digest(len(segment), index, times, segment.records[index])


@dataclass(frozen=True)
class Past:
    """The records that matter in `[start, position)`, arrays alike; `start_ns`: its time."""

    start: int
    start_ns: int
    sequences: np.ndarray
    times: np.ndarray
    records: np.ndarray

    def of(self, kind: int) -> np.ndarray:
        """Where the records of a kind lie."""
        return np.flatnonzero(self.records["kind"] == kind)


class History:
    """Digests of the segments that were looked at last."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._digests: OrderedDict[int, tuple[int, Digest]] = OrderedDict()
        self._growing: set[int] = set()  # segments that were last when they were looked at

    def _digest(self, number: int, last: bool) -> tuple[int, Digest]:
        """The digest of a segment and its first sequence. Only the last segment still grows, so
        that the others are opened once."""
        known = self._digests.get(number)
        if known is None or last or number in self._growing:
            segment = self.trace.segment(number)
            if known is None or known[1].length != len(segment):
                known = segment.first_sequence, digest(segment)
            self._digests[number] = known
            (self._growing.add if last else self._growing.discard)(number)
        self._digests.move_to_end(number)
        while len(self._digests) > _KEPT:
            self._digests.popitem(last=False)
        return known

    def before(self, position: int) -> Past:
        """The records that matter before a position."""
        trace = self.trace
        start = max(trace.start, position - SCAN_EVENTS)
        sequences, times, records = [], [], []
        numbers, starts, clocks = (list(part) for part in zip(*trace.heads, strict=True))
        first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
        first = max(first, int(np.searchsorted(starts, position)) - SCAN_SEGMENTS, 0)
        start = max(start, starts[first])
        for number, begin in zip(numbers[first:], starts[first:], strict=True):
            if begin >= position:
                break
            base, found = self._digest(number, number == numbers[-1])
            own = found.index + base
            low, high = np.searchsorted(own, (start, position))
            sequences.append(own[low:high])
            times.append(found.times[low:high])
            records.append(found.records[low:high])
        if not sequences:
            empty = np.zeros(0, np.int64)
            return Past(start, 0, empty, empty, np.zeros(0, form.RECORD_DTYPE))
        times_all = np.concatenate(times)
        start_ns = clocks[first]
        if start > starts[first]:  # within a segment
            start_ns = int(times_all[0]) if times_all.size else start_ns
        return Past(
            start, start_ns, np.concatenate(sequences), times_all, np.concatenate(records)
        )


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
    step = window_ns // rows
    instants = [now_ns - step * (rows - 1 - row) for row in range(rows)]
    columns = []
    moved = past.of(Kind.BAND_MOVE)
    of_band = past.records["band"][moved]
    for band in state.bands:
        mine = moved[of_band == band.index]
        before, after = past.records["a"][mine], past.records["b"][mine]
        at = np.searchsorted(past.times[mine], instants, side="right") - 1
        size = band.page_bytes
        first = int(before[0]) if mine.size else band.extent[0] << 32 | band.extent[1]
        extents = []
        for place in at.tolist():
            packed = int(after[place]) if place >= 0 else first
            low, high = packed >> 32, packed & _U32
            extents.append((low * size, high * size) if high > low else (0, 0))
        extents[-1] = band.byte_range()
        columns.append(extents)
    lines = []
    for row, instant in enumerate(instants):
        known = instant >= past.start_ns
        lines.append(Slice(instant, tuple(part[row] for part in columns) if known else None))
    return tuple(lines)


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
    times, of_band = past.times[moved], past.records["band"][moved]
    pages = past.records["a"][moved]
    inline = (past.records["flags"][moved] & form.INLINE) > 0
    pages = np.where(inline, 1, pages)
    seconds = min(RATE_NS, max(1, now_ns)) / 1e9
    edges = now_ns - window_ns + np.arange(SPARK_COLUMNS + 1) * (window_ns / SPARK_COLUMNS)
    asked = _refused_bands(past, trace, bands)
    result = []
    for band in range(bands):
        mine = of_band == band
        recent = int(pages[mine & (times > now_ns - RATE_NS)].sum())
        spark, _ = np.histogram(times[mine], edges, weights=pages[mine])
        result.append(Rates(recent / seconds, asked[band], tuple(spark.astype(int).tolist())))
    return result


def _refused_bands(past: Past, trace: Trace, bands: int) -> list[int]:
    counts = [0] * bands
    for sequence in past.sequences[past.of(Kind.REFUSAL)][-500:].tolist():
        body = body_at(trace, sequence)
        for band, wanted in enumerate(getattr(body, "demand", ())[:bands]):
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


def _rows(past: Past, trace: Trace, chosen: np.ndarray, most: int) -> list[Row]:
    """The newest of the chosen records as rows, newest first."""
    rows = []
    for place in chosen[-most:][::-1].tolist():
        sequence = int(past.sequences[place])
        body = body_at(trace, sequence)
        if body is not None:
            kind = type(body).__name__
            rows.append(Row(sequence, int(past.times[place]), kind, spell_event(body)))
    return rows


def refusals(past: Past, trace: Trace, most: int) -> list[Row]:
    """Refused operations with their reason, and the layouts they were refused for; newest first."""
    kinds = past.records["kind"]
    chosen = np.flatnonzero((kinds == Kind.OUTCOME) | (kinds == Kind.REFUSAL))
    return _rows(past, trace, chosen, most)


def violations(past: Past, trace: Trace, most: int) -> list[Row]:
    """Invariants that were found broken while the trace was recorded; newest first."""
    return _rows(past, trace, past.of(Kind.VIOLATION), most)


_LANES = 10


def tickets(past: Past, trace: Trace, in_flight: set[int], most: int, plain: bool) -> list[Row]:
    """Launches, completions and barriers, newest first, with the forwards in flight as lanes: an
    arrow points from the forward that is waited for. `plain`: letters instead of lines."""
    kinds = past.records["kind"]
    chosen = np.flatnonzero(
        (kinds == Kind.LAUNCHED) | (kinds == Kind.DONE) | (kinds == Kind.BARRIER)
    )
    flying = set(in_flight)  # after the event that is looked at
    rows = []
    through, begin, end, wait, other = "|+x<." if plain else "│┬┴◄·"
    for row in _rows(past, trace, chosen, most):
        place = np.searchsorted(past.sequences, row.sequence)
        record = past.records[place]
        kind, ticket = int(record["kind"]), int(record["a"])
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
