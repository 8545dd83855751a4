"""Metrics for Prometheus: what each band holds, and what has happened to it.

What is held is exact. What could still be taken is not, since bands share bytes; such figures end in
`_estimate`. Needs `prometheus-client` (`pip install bandscope[metrics]`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.allocator.errors import TraceError
from bandscope.allocator.facts import BandFacts
from bandscope.inspect.counters import CacheCounters, Counters
from bandscope.inspect.state import ArenaState

Source = Arena | ArenaState | Sequence[BandFacts]

_BAND_GAUGES = (
    ("held", "with an owner: a request or the prefix cache"),
    ("cached", "that the prefix cache owns; they are held as well"),
    ("evictable", "that the prefix cache owns and nobody uses, so that they go when memory is short"),
    ("pinned", "that a lease pins, so that they neither move nor get reused"),
    ("pending", "that hold nothing and wait for launched work"),
    ("holes", "of the extent that hold nothing and are ready for reuse"),
    ("gap", "free next to the band; two neighbours count the gap between them twice"),
)


def render(source: Source, counters: Counters | None = None) -> str:
    """The metrics of an arena, of its state in a trace, or of its facts, as Prometheus text."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(Metrics(source, counters))
    text: bytes = client.generate_latest(registry)
    return text.decode()


class Metrics:
    """A collector for a registry of `prometheus_client`; every scrape asks `source` again.

    A scrape reads the arena's books, so it belongs between two operations: scrape from the thread that
    drives the arena, or hold whatever keeps that thread out. `ArenaState` may be moved along its
    timeline between scrapes.
    """

    def __init__(self, source: Source, counters: Counters | None = None) -> None:
        self.source = source
        self.counters = counters
        self._core = _client().core

    def describe(self) -> list[Any]:
        """Nothing: a registry need not ask the arena when the collector is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        yield from self._bands()
        if self.counters is not None:
            yield from self._counted(self.counters)

    # --- what is held -----------------------------------------------------------------------------

    def _bands(self) -> Iterator[Any]:
        bands = _figures(self.source)
        for name, what in _BAND_GAUGES:
            told: list[tuple[_Figures, _Amount | None]] = [
                (band, getattr(band, name)) for band in bands
            ]
            texts = f"Pages {what}.", f"Bytes of pages {what}."
            yield from self._pages_and_bytes(name, *texts, told)
        estimates = [(band, band.available) for band in bands]
        yield from self._pages_and_bytes(
            "available",
            "Pages that the band alone could still take (an estimate: bands share bytes).",
            "Bytes that the band alone could still take (an estimate: bands share bytes).",
            estimates,
            "_estimate",
        )
        yield self._gauge(
            "band_extent_bytes",
            "Bytes between the frontiers of the band.",
            ((band.name, band.stop_byte - band.start_byte) for band in bands),
        )
        if not isinstance(self.source, Arena | ArenaState):
            return
        total, sink = _size(self.source)
        extents = sum(band.stop_byte - band.start_byte for band in bands)
        for name, text, value in (
            ("arena_bytes", "Bytes of the arena, its sink included.", total),
            ("arena_gap_bytes", "Bytes of the arena outside of sink and extents.",
             total - sink - extents),
        ):  # fmt: skip
            yield self._core.GaugeMetricFamily(f"bandscope_{name}", text, value=value)

    def _pages_and_bytes(
        self,
        name: str,
        pages_text: str,
        bytes_text: str,
        told: list[tuple[_Figures, _Amount | None]],
        suffix: str = "",
    ) -> Iterator[Any]:
        known = [(band, amount) for band, amount in told if amount is not None]
        if known:
            yield self._gauge(
                f"band_{name}_pages{suffix}", pages_text, ((b.name, a.pages) for b, a in known)
            )
            yield self._gauge(
                f"band_{name}_bytes{suffix}", bytes_text, ((b.name, a.bytes) for b, a in known)
            )

    def _gauge(self, name: str, text: str, values: Iterator[tuple[str, int]]) -> Any:
        family = self._core.GaugeMetricFamily(f"bandscope_{name}", text, labels=["band"])
        for band, value in values:
            family.add_metric([band], value)
        return family

    # --- what has happened ------------------------------------------------------------------------

    def _counted(self, counters: Counters) -> Iterator[Any]:
        bands = counters.bands
        yield self._counter(
            "allocated_pages", "Pages that got an owner.", ["band"],
            [([name], band.allocated) for name, band in bands.items()],
        )  # fmt: skip
        yield self._counter(
            "freed_pages", "Pages that lost their owner.", ["band"],
            [([name], band.freed) for name, band in bands.items()],
        )  # fmt: skip
        yield self._counter(
            "moved_pages", "Pages that were moved.", ["band", "urgency"],
            [([name, urgency], getattr(band, f"moves_{urgency}"))
             for name, band in bands.items() for urgency in ("urgent", "opportunistic")],
        )  # fmt: skip
        yield self._counter(
            "moved_bytes", "Bytes of pages that were moved.", ["band"],
            [([name], band.bytes_moved) for name, band in bands.items()],
        )  # fmt: skip
        yield self._counter(
            "move_batches", "Batches of page moves.", ["band"],
            [([name], band.move_batches) for name, band in bands.items()],
        )  # fmt: skip
        yield self._counter(
            "band_moves", "Changes of a band's extent.", ["band", "why"],
            [([name, why], times)
             for name, band in bands.items() for why, times in band.band_moves.items()],
        )  # fmt: skip
        yield self._counter(
            "barriers", "Barriers that were placed.", ["kind", "why"],
            [(list(key.partition(": ")[::2]), times) for key, times in counters.barriers.items()],
        )  # fmt: skip
        if counters.cache.happened:
            yield from self._of_cache(counters.cache)
        yield self._counter(
            "refusals", "Demands that no layout served.", ["reason"],
            [([reason], times) for reason, times in counters.refusals.items()],
        )  # fmt: skip
        yield self._counter(
            "operations", "Operations, by what became of them: `ok` or the reason of the refusal.",
            ["operation", "outcome"],
            [([*_operation(key)], times) for key, times in counters.operations.items()],
        )  # fmt: skip

    def _of_cache(self, cache: CacheCounters) -> Iterator[Any]:
        for name, text, value in (
            ("cache_admissions", "Requests admitted beside a prefix cache.", cache.admissions),
            ("cache_matches", "Requests whose prefix the cache had.", cache.matches),
            ("cache_hit_tokens", "Tokens that requests began with.", cache.hit_tokens),
            ("cache_shared_pages", "Pages that requests came to share.", cache.shared),
            ("cache_grafted_pages", "Window pages that the cache got back.", cache.grafted),
            ("cache_checkpoints", "States that were kept.", cache.checkpoints),
            ("cache_checkpoint_stalls", "States that there was no slot for.", cache.stalls),
            ("cache_evictions", "Demands that cached pages went for.", cache.evictions),
        ):
            yield self._counter(name, text, [], [([], value)])
        yield self._counter(
            "cache_evicted_pages", "Cached pages that went for a demand.", ["band"],
            [([name], pages) for name, pages in cache.evicted.items()],
        )  # fmt: skip

    def _counter(
        self, name: str, text: str, labels: list[str], values: list[tuple[list[str], int]]
    ) -> Any:
        family = self._core.CounterMetricFamily(f"bandscope_{name}", text, labels=labels)
        for label_values, value in values:
            family.add_metric(label_values, value)
        return family


def _operation(key: str) -> tuple[str, str]:
    name, _, reason = key.partition(" refused: ")
    return name, reason or "ok"


# --- figures of the three sources -----------------------------------------------------------------


@dataclass(frozen=True)
class _Amount:
    pages: int
    bytes: int


@dataclass(frozen=True)
class _Figures:
    """A band's figures; None where the source does not know."""

    name: str
    start_byte: int
    stop_byte: int
    held: _Amount
    cached: _Amount
    evictable: _Amount | None
    pinned: _Amount
    pending: _Amount
    holes: _Amount
    gap: _Amount | None
    available: _Amount | None


def _figures(source: Source) -> list[_Figures]:
    """The figures of every band, in chain order."""
    if isinstance(source, ArenaState):
        facts = [
            BandFacts(
                band.name,
                band.page_bytes,
                *band.byte_range(),
                band.count(LIVE),
                band.count(HOLE),
                band.count(PENDING),
                int(np.count_nonzero(band.pins[band.slice])),
                -1,
                band.cached() if source.has_cache else 0,
            )
            for band in source.bands
        ]
    else:
        facts = source.facts() if isinstance(source, Arena) else list(source)
    gaps: list[_Amount] | list[None] = [None] * len(facts)
    if isinstance(source, Arena | ArenaState):
        gaps = _gaps(facts, *_size(source))
    # A trace does not tell what of a window is held.
    told = source.books.cache is not None if isinstance(source, Arena) else (
        not isinstance(source, ArenaState) and any(band.cached for band in facts)
    )
    return [_of_band(band, gap, told) for band, gap in zip(facts, gaps, strict=True)]


def _of_band(band: BandFacts, gap: _Amount | None, told: bool) -> _Figures:
    def amount(pages: int) -> _Amount:
        return _Amount(pages, pages * band.page_bytes)

    available = band.available_estimate
    return _Figures(
        band.name,
        band.start_byte,
        band.stop_byte,
        held=amount(band.live),
        cached=amount(band.cached),
        evictable=amount(band.evictable) if told else None,
        pinned=amount(band.pinned),
        pending=amount(band.pending),
        holes=amount(band.holes),
        gap=gap,
        available=None if available < 0 else amount(available),
    )


def _gaps(facts: list[BandFacts], total_bytes: int, sink_bytes: int) -> list[_Amount]:
    """Per band what is free on either side of it: bytes, and whole pages of its own grid."""
    amounts = []
    for index, band in enumerate(facts):
        below = [other.stop_byte for other in facts[:index] if other.stop_byte > other.start_byte]
        above = [o.start_byte for o in facts[index + 1 :] if o.stop_byte > o.start_byte]
        start, stop = max([sink_bytes, *below]), min([total_bytes, *above])
        sides = [(start, stop)]
        if band.stop_byte > band.start_byte:
            sides = [(start, band.start_byte), (band.stop_byte, stop)]
        size = band.page_bytes
        pages = sum(max(0, high // size - -(-low // size)) for low, high in sides)
        amounts.append(_Amount(pages, sum(high - low for low, high in sides)))
    return amounts


def _size(source: Arena | ArenaState) -> tuple[int, int]:
    """Bytes of the arena and of its sink."""
    if isinstance(source, ArenaState):
        return source.total_bytes, source.sink_bytes
    return source.total_bytes, source.plan.sink_bytes


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise TraceError(
            "metrics need prometheus-client; install bandscope[metrics]"
        ) from error
    return prometheus_client
