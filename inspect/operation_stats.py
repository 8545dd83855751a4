"""How often each operation was asked, how long it took, and what it moved."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.inspect import format as form
from bandscope.inspect.decode import decoder_for, name_of
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader

_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class OperationStats:
    """One kind of operation; latencies in µs from asking to the outcome, None without an outcome."""

    kind: str
    count: int
    refused: dict[str, int]
    latency_us: dict[str, float] | None


@dataclass
class MoveStats:
    """Page moves of one band."""

    band: str
    batches: int = 0
    pages: int = 0
    pages_urgent: int = 0
    bytes: int = 0
    leased: int = 0
    dropped: int = 0
    rows_published: int = 0
    extent_changes: int = 0


@dataclass
class CacheStats:
    """The prefix cache: requests that were admitted with a key and how many of them found something
    there (`matches`), with `hit_tokens` in all; pages that requests came to share (`shared`) and window
    pages that it got back from them (`grafted`); states
    that were kept (`checkpoints`) and those that there was no slot for (`stalls`); demands that cached
    pages went for (`evictions`), and these pages by band (`evicted`)."""

    asked: int = 0
    matches: int = 0
    hit_tokens: int = 0
    shared: int = 0
    grafted: int = 0
    checkpoints: int = 0
    stalls: int = 0
    evictions: int = 0
    evicted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceStats:
    """Figures over events `[start, stop)`; `unanswered`: operations without an outcome; `cache`: None
    for an arena without one."""

    start: int
    stop: int
    events: int
    seconds: float
    operations: list[OperationStats]
    bands: list[MoveStats]
    barriers: dict[str, int]
    unanswered: int
    cache: CacheStats | None = None

    @property
    def events_per_second(self) -> float | None:
        return self.events / self.seconds if self.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.__dict__,
            "events_per_second": self.events_per_second,
            "operations": [operation.__dict__ for operation in self.operations],
            "bands": [band.__dict__ for band in self.bands],
            "cache": None if self.cache is None else self.cache.__dict__,
        }


@dataclass
class _Counts:
    latencies: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    asked: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    barriers: Counter[str] = field(default_factory=Counter)
    events: int = 0
    unanswered: int = 0
    first_ns: int | None = None
    last_ns: int = 0


def operation_stats(trace: Trace, start: int | None = None, stop: int | None = None) -> TraceStats:
    """Count events `[start, stop)`, all by default."""
    start = trace.start if start is None else max(start, trace.start)
    stop = trace.stop if stop is None else min(stop, trace.stop)
    counts = _Counts()
    bands = [MoveStats(band["name"]) for band in trace.header["bands"]]
    has_cache = trace.header["arena"]["config"].get("prefix_cache")
    cache = CacheStats(evicted={band.band: 0 for band in bands}) if has_cache else None
    for segment in trace.segments(start, stop):
        first = max(0, start - segment.first_sequence)
        last = max(first, min(len(segment), stop - segment.first_sequence))
        _count_operations(trace, segment, first, last, counts)
        _count_effects(trace, segment, first, last, counts, bands)
        if cache is not None:
            _count_cache(trace, segment, first, last, cache)
    operations = [
        OperationStats(kind, count, dict(counts.refused[kind]), _spread(counts.latencies[kind]))
        for kind, count in counts.asked.most_common()
    ]
    seconds = (counts.last_ns - (counts.first_ns or 0)) / 1e9
    return TraceStats(
        start, stop, counts.events, seconds, operations, bands, dict(counts.barriers),
        counts.unanswered, cache,
    )  # fmt: skip


def _spread(parts: list[np.ndarray]) -> dict[str, float] | None:
    values = np.concatenate(parts) / 1e3 if parts else np.zeros(0)
    if not values.size:
        return None
    spread = np.percentile(values, _PERCENTILES)
    named = {f"p{p}": float(v) for p, v in zip(_PERCENTILES, spread, strict=True)}
    return {**named, "max": float(values.max()), "total": float(values.sum())}


def _count_operations(
    trace: Trace, segment: SegmentReader, first: int, last: int, counts: _Counts
) -> None:
    records, good = segment.records[first:last], segment.good[first:last]
    kinds = records["kind"]
    timed = np.flatnonzero((kinds >= form.FIRST_OPERATION) & (kinds <= Kind.OUTCOME) & good)
    if not timed.size:
        return
    times = records["a"][timed]
    counts.first_ns = int(times[0]) if counts.first_ns is None else counts.first_ns
    counts.last_ns = int(times[-1])
    is_outcome = kinds[timed] == Kind.OUTCOME
    asked = np.flatnonzero(~is_outcome)
    # An operation and its outcome are neighbours here, unless a damaged stretch lies between.
    answered = np.append(is_outcome, False)[asked + 1]
    sound = np.cumsum(~good)
    after = np.minimum(asked + 1, timed.size - 1)
    answered &= sound[timed[after]] == sound[timed[asked]]
    counts.unanswered += int(np.count_nonzero(~answered))
    names = _names(trace, segment, first + timed[asked])
    flags, reasons = records["flags"][timed[after]], records["band"][timed[after]]
    latency = times[after] - times[asked]
    for name in np.unique(names).tolist():
        mine = names == name
        counts.asked[name] += int(np.count_nonzero(mine))
        counts.latencies[name].append(latency[mine & answered])
        refused = mine & answered & (flags & form.OK == 0)
        for reason, count in zip(*np.unique(reasons[refused], return_counts=True), strict=True):
            spelled = form.REASONS[reason] if reason < len(form.REASONS) else "unknown"
            counts.refused[name][spelled or "unknown"] += int(count)


def _names(trace: Trace, segment: SegmentReader, indexes: np.ndarray) -> np.ndarray:
    """The kind of each operation by name."""
    table = np.full(form.LAST_OPERATION + 1, "unknown", object)
    for kind in Kind:
        if kind <= form.LAST_OPERATION:
            table[kind] = form.kind_name(kind)
    kinds = segment.records["kind"][indexes]
    names: np.ndarray = table[kinds]
    decoder = decoder_for(trace, segment)
    for place in np.flatnonzero(kinds == Kind.OPERATION).tolist():
        body = decoder.body(int(indexes[place]))
        names[place] = "unknown" if body is None else name_of(body)
    return names.astype(str)


def _count_effects(
    trace: Trace, segment: SegmentReader, first: int, last: int, counts: _Counts,
    bands: list[MoveStats],
) -> None:  # fmt: skip
    good = segment.good[first:last]
    records = segment.records[first:last][good]
    kinds, flags = records["kind"], records["flags"]
    counts.events += len(records)
    for kind in np.unique(records["b"][kinds == Kind.BARRIER]).tolist():
        count = np.count_nonzero((kinds == Kind.BARRIER) & (records["b"] == kind))
        counts.barriers[segment.text(kind)] += int(count)
    inline = flags & form.INLINE != 0
    pins = flags & form.PIN != 0
    for index, band in enumerate(bands):
        mine = records["band"] == index
        moves = mine & (kinds == Kind.PAGE_MOVE)
        pages = records["a"][moves]
        band.batches += int(np.count_nonzero(moves))
        band.pages += int(pages.sum())
        band.pages_urgent += int(pages[flags[moves] & form.URGENT != 0].sum())
        band.bytes = band.pages * trace.header["bands"][index]["page_bytes"]
        for kind, name in ((Kind.LEASE_BEGIN, "leased"), (Kind.LEASE_END, "dropped")):
            found = mine & (kinds == kind) & ~pins
            more = int(np.where(inline[found], 1, records["a"][found]).sum())
            setattr(band, name, getattr(band, name) + more)
        band.rows_published += int(records["a"][mine & (kinds == Kind.PUBLISH)].sum())
        band.extent_changes += int(np.count_nonzero(mine & (kinds == Kind.BAND_MOVE)))


def _count_cache(
    trace: Trace, segment: SegmentReader, first: int, last: int, cache: CacheStats
) -> None:
    records, good = segment.records[first:last], segment.good[first:last]
    kinds = records["kind"]
    timed = np.flatnonzero((kinds >= form.FIRST_OPERATION) & (kinds <= Kind.OUTCOME) & good)
    asked = timed[:-1][kinds[timed[1:]] == Kind.OUTCOME]
    outcome = timed[1:][kinds[timed[1:]] == Kind.OUTCOME]
    done = records["flags"][outcome] & form.OK != 0
    values = records["b"][outcome]
    admitted = done & (kinds[asked] == Kind.ADMIT_PREFIX)
    kept = done & (kinds[asked] == Kind.CHECKPOINT)
    cache.asked += int(np.count_nonzero(admitted))
    cache.matches += int(np.count_nonzero(values[admitted] > 0))
    cache.hit_tokens += int(values[admitted].sum())
    cache.checkpoints += int(np.count_nonzero(values[kept] > 0))
    cache.stalls += int(np.count_nonzero(values[kept] == 0))
    counts = np.where(records["flags"] & form.INLINE != 0, 1, records["a"])
    cache.shared += int(counts[(kinds == Kind.SHARE) & good].sum())
    cache.grafted += int(counts[(kinds == Kind.GRAFT) & good].sum())
    decoder = decoder_for(trace, segment)
    for index in np.flatnonzero((kinds == Kind.EVICTION) & good).tolist():
        body = decoder.body(first + index)
        if isinstance(body, events.Eviction):
            cache.evictions += 1
            for name, pages in zip(cache.evicted, body.counts, strict=True):
                cache.evicted[name] += pages
