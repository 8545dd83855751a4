"""Who holds pages, since when and by which operation; what was never given back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.allocator.events import CACHE
from bandscope.inspect.checks.checked_timeline import CheckedTimeline
from bandscope.inspect.decode import decoder_for, name_of
from bandscope.inspect.format import (
    CLEAN,
    ENDINGS,
    FIRST_OPERATION,
    LAST_OPERATION,
    Kind,
    kind_name,
)
from bandscope.inspect.reader import Trace, as_json
from bandscope.inspect.state import ArenaState, BandState

SAMPLES = 16  # instants at which growth is looked at
CACHE_NAME = "cache"  # the owner of what the prefix cache owns
UNKNOWN = "before the data"  # who leased what was held at the first keyframe


@dataclass
class Holding:
    """Pages that one owner holds in one band.

    `owner`: a request, `cache`, or the holder's name of a lease that pins (`lease` is its number, else
    0).
    `virtual`, `physical`: the pages, shape (pages,). `leased_at`: the event that leased each (−1:
    before what the trace can tell). `operation` and `sequence`: the kind of the operation that leased
    the oldest page, and its event. `age_events`, `age_ns`: of the oldest page (−1: unknown).
    """

    owner: int | str
    lease: int
    band: str
    virtual: np.ndarray
    physical: np.ndarray
    leased_at: np.ndarray
    operation: str
    sequence: int
    age_events: int
    age_ns: int
    bytes: int


@dataclass
class Growth:
    """Pages held at several instants, of those that operations of one kind leased in one band.

    `sequences` and `pages`: shape (samples,). `pages_per_kevent`: the slope, fitted.
    """

    band: str
    operation: str
    sequences: list[int]
    pages: list[int]
    pages_per_kevent: float


@dataclass
class LeakReport:
    """What is held at event `at`, and what of it nobody will give back.

    `verdict`: `clean` (nothing is held), `leak` (the trace ended cleanly and pages are held), `live at
    end of data` (running, killed, cut or damaged at the end: nothing can be said) or `live at this
    event` (an instant in the middle). `holdings`: by band and owner. `cached`: what the prefix cache
    keeps for requests to come, which is no leak. `double_owners`: (band, virtual page, first owner,
    second owner, event). `unended`: leases that pin and have not ended. `growth`:
    fastest first. `gaps`: stretches of events that could not be used.
    """

    at: int
    ending: str
    verdict: str
    holdings: list[Holding] = field(default_factory=list)
    cached: list[Holding] = field(default_factory=list)
    unended: list[Holding] = field(default_factory=list)
    double_owners: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data; pages as lists."""
        told: dict[str, Any] = json.loads(as_json(asdict(self)))
        return told


def find_leaks(trace: Trace, at: int | None = None) -> LeakReport:
    """Who holds what before event `at` (the end of the trace when None).

    Reads the trace from its first keyframe on. `TraceError` when it holds no sound keyframe, or no
    event `at`.
    """
    stop = trace.stop if at is None else at
    if not trace.start < stop <= trace.stop:
        raise TraceError(
            f"what is held before event {stop:,} was asked for, but trace {trace.path} holds events "
            f"{trace.start:,} to {trace.stop:,}"
        )
    operations = _Operations(trace, stop)
    timeline = CheckedTimeline(trace)
    samples = np.linspace(trace.start, stop, SAMPLES + 1).astype(np.int64)[1:].tolist()
    counts: list[dict[tuple[str, str], int]] = []
    for sample in samples:
        state = timeline.advance(sample)
        counts.append(_by_operation(state, operations))
    state = timeline.state
    report = LeakReport(stop, trace.ending, "", gaps=list(timeline.gaps))
    report.double_owners = timeline.double_owners
    for band in state.bands:
        found = _holdings(state, band, operations)
        report.holdings += [one for one in found if one.owner != CACHE_NAME]
        report.cached += [one for one in found if one.owner == CACHE_NAME]
    for pin in state.pins.values():
        band = state.bands[pin.band]
        since = np.full(pin.virtual.size, pin.sequence, np.int64)
        report.unended.append(
            _holding(state, band, pin.holder, pin.number, pin.virtual, pin.physical, since, operations)
        )
    report.growth = _growth(samples, counts)
    report.verdict = _verdict(report, trace)
    return report


def _verdict(report: LeakReport, trace: Trace) -> str:
    if not report.holdings and not report.unended:
        return "clean"
    if report.at < trace.stop:
        return "live at this event"
    known = all(stop < trace.stop for _, stop in report.gaps)
    known = known and "slice_of" not in trace.header  # a slice ends in the middle of a run
    return "leak" if known and report.ending == ENDINGS[CLEAN] else "live at end of data"


class _Operations:
    """Every operation before event `stop`: `sequences`, `kinds` and `times_ns`, shape (operations,)."""

    def __init__(self, trace: Trace, stop: int) -> None:
        self.trace = trace
        sequences, kinds, times = [], [], []
        for segment in trace.segments(trace.start, stop):
            kind = segment.records["kind"]
            asked = (kind >= FIRST_OPERATION) & (kind <= LAST_OPERATION) & segment.good
            at = np.flatnonzero(asked)
            sequences.append(at + segment.first_sequence)
            kinds.append(kind[at])
            times.append(segment.records["a"][at])
        self.sequences = np.concatenate(sequences)
        self.kinds = np.concatenate(kinds)
        self.times_ns = np.concatenate(times)

    def of(self, events: np.ndarray) -> np.ndarray:
        """The operation that each event belongs to, as an index; −1 where it is not known."""
        found: np.ndarray = np.searchsorted(self.sequences, events, side="right") - 1
        return np.where(events < 0, -1, found)

    def name(self, index: int) -> str:
        """The kind of an operation."""
        if index < 0:
            return UNKNOWN
        kind = Kind(int(self.kinds[index]))
        if kind != Kind.OPERATION:
            return kind_name(kind)
        sequence = int(self.sequences[index])
        segment = self.trace.segment_of(sequence)
        body = decoder_for(self.trace, segment).body(sequence - segment.first_sequence)
        return "Operation" if body is None else name_of(body)


def _holdings(state: ArenaState, band: BandState, operations: _Operations) -> list[Holding]:
    virtual = np.flatnonzero(band.page_of >= 0)
    physical = band.page_of[virtual].astype(np.int64)
    owner = band.owner[physical - band.base]
    order = np.argsort(owner, kind="stable")
    found = []
    for part in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
        if part.size:
            number = int(owner[part[0]])
            who: int | str = CACHE_NAME if number == CACHE else number
            since = band.leased_at[virtual[part]]
            found.append(
                _holding(state, band, who, 0, virtual[part], physical[part], since, operations)
            )
    return found


def _holding(
    state: ArenaState, band: BandState, owner: int | str, lease: int, virtual: np.ndarray,
    physical: np.ndarray, since: np.ndarray, operations: _Operations,
) -> Holding:  # fmt: skip
    oldest = int(since.min(initial=np.iinfo(np.int64).max)) if since.size else -1
    index = int(operations.of(np.array([oldest]))[0])
    return Holding(
        owner, lease, band.name, virtual, physical, since, operations.name(index),
        int(operations.sequences[index]) if index >= 0 else -1,
        state.sequence - oldest if oldest >= 0 else -1,
        state.time_ns - int(operations.times_ns[index]) if index >= 0 else -1,
        virtual.size * band.page_bytes,
    )  # fmt: skip


def _by_operation(state: ArenaState, operations: _Operations) -> dict[tuple[str, str], int]:
    """Pages held by (band, kind of the operation that leased them)."""
    counts: dict[tuple[str, str], int] = {}
    for band in state.bands:
        held = np.flatnonzero(band.page_of >= 0)
        if state.has_cache:  # it grows to what memory gives, on purpose
            held = held[band.owner[band.page_of[held] - band.base] != CACHE]
        index = operations.of(band.leased_at[held])
        kinds = np.where(index < 0, 0, operations.kinds[np.maximum(index, 0)]) if index.size else index
        for kind in np.unique(kinds).tolist():
            pages = int(np.count_nonzero(kinds == kind))
            one = int(index[kinds == kind][0])
            key = band.name, operations.name(one) if kind else UNKNOWN
            counts[key] = counts.get(key, 0) + pages
    return counts


def _growth(samples: list[int], counts: list[dict[tuple[str, str], int]]) -> list[Growth]:
    found = []
    for band, operation in sorted({key for one in counts for key in one}):
        pages = [one.get((band, operation), 0) for one in counts]
        slope = 0.0
        if len(set(samples)) > 1:
            slope = float(np.polyfit(np.asarray(samples, float) / 1000, pages, 1)[0])
        found.append(Growth(band, operation, samples, pages, slope))
    return sorted(found, key=lambda growth: -growth.pages_per_kevent)
