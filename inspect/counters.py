"""An observer that counts: operations, moves, barriers and refusals, and what each band holds.

It keeps no events, so it can stay on for runs of any length.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bandscope.allocator import events
from bandscope.allocator.operations import Admit, Checkpoint, Operation, Outcome
from bandscope.allocator.tables import Pages


@dataclass
class BandCounters:
    """What happened to one band; pages unless the name says otherwise."""

    held: int = 0
    held_peak: int = 0
    allocated: int = 0
    freed: int = 0
    moves_urgent: int = 0
    moves_opportunistic: int = 0
    move_batches: int = 0
    bytes_moved: int = 0
    band_moves: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "band_moves": dict(self.band_moves)}


@dataclass
class CacheCounters:
    """What the prefix cache did. `admissions`: with a cache; `matches` of them found something,
    `hit_tokens` in all. `shared`: pages that requests came to share; `grafted`: window pages that
    the cache got back from requests that computed them again. `checkpoints`: states kept;
    `stalls`: states that there was no slot for. `evictions`: demands that cached pages went for;
    `evicted`: these pages, by band."""

    admissions: int = 0
    matches: int = 0
    hit_tokens: int = 0
    shared: int = 0
    grafted: int = 0
    checkpoints: int = 0
    stalls: int = 0
    evictions: int = 0
    evicted: Counter[str] = field(default_factory=Counter)

    @property
    def happened(self) -> bool:
        """Whether there was a cache to count of."""
        return self != CacheCounters()

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "evicted": dict(self.evicted)}


class Counters(events.NullObserver):
    """Counts by band, operation, barrier and refusal, and of the prefix cache."""

    def __init__(self) -> None:
        self.bands: dict[str, BandCounters] = {}
        self.operations: Counter[str] = Counter()
        self.barriers: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.last_refusal: events.Refusal | None = None
        self.cache = CacheCounters()
        self._going = 0  # pages whose eviction was told and that are still there

    def band(self, name: str) -> BandCounters:
        """The counters of a band, zero before its first event."""
        if name not in self.bands:
            self.bands[name] = BandCounters()
        return self.bands[name]

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Count the operation, under its name when done, with its reason when refused."""
        name = operation.kind
        self.operations[name if outcome.ok else f"{name} refused: {outcome.reason}"] += 1
        if outcome.ok and outcome.value is not None:
            if isinstance(operation, Admit):
                self.cache.admissions += 1
                self.cache.matches += outcome.value > 0
                self.cache.hit_tokens += outcome.value
            elif isinstance(operation, Checkpoint):
                self.cache.checkpoints += outcome.value > 0
                self.cache.stalls += not outcome.value

    def lease_begin(
        self, holder: events.Holder, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        """Count pages that were allocated; pins hold no memory."""
        if not lease:
            counters = self.band(band)
            counters.allocated += virtual.size
            counters.held += virtual.size
            counters.held_peak = max(counters.held_peak, counters.held)

    def lease_end(self, holder: events.Holder, band: str, virtual: Pages, lease: int) -> None:
        """Count pages that were freed."""
        if not lease:
            counters = self.band(band)
            counters.freed += virtual.size
            counters.held -= virtual.size
            # A slot that was taken for a state and is not needed goes as well, but for no demand.
            if self._going and type(holder) is int and holder == events.CACHE:
                self.cache.evicted[band] += virtual.size
                self._going -= virtual.size

    def share(self, request: int, first_page: int, virtual: Pages) -> None:
        """Count pages that a request came to share."""
        self.cache.shared += virtual.size

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None:
        """Count window pages that the cache got back; the band holds as many as before."""
        self.cache.grafted += into.size

    def evict(self, demand: tuple[int, ...], counts: tuple[int, ...]) -> None:
        """Count an eviction; its pages follow."""
        self.cache.evictions += 1
        self._going = sum(counts)

    def page_move(
        self,
        band: str,
        virtual: Pages,
        sources: Pages,
        destinations: Pages,
        page_bytes: int,
        urgent: bool,
    ) -> None:
        """Count a batch of moves."""
        counters = self.band(band)
        counters.move_batches += 1
        counters.bytes_moved += sources.size * page_bytes
        if urgent:
            counters.moves_urgent += sources.size
        else:
            counters.moves_opportunistic += sources.size

    def band_move(self, band: str, before: events.Extent, after: events.Extent, why: str) -> None:
        """Count a changed extent by its cause."""
        self.band(band).band_moves[why] += 1

    def barrier(self, kind: str, ticket: int, why: str) -> None:
        """Count a barrier by kind and cause."""
        self.barriers[f"{kind}: {why}"] += 1

    def refusal(
        self,
        reason: str,
        demand: tuple[int, ...],
        live: tuple[int, ...],
        fixed: tuple[events.Extent | None, ...],
    ) -> None:
        """Count a refusal, and keep it as the last one."""
        self.refusals[reason] += 1
        self.last_refusal = events.Refusal(reason, demand, live, fixed)

    def to_json(self) -> dict[str, Any]:
        """Every count as plain data."""
        return {
            "bands": {name: band.to_json() for name, band in self.bands.items()},
            "operations": dict(self.operations),
            "barriers": dict(self.barriers),
            "refusals": dict(self.refusals),
            **({"prefix_cache": self.cache.to_json()} if self.cache.happened else {}),
        }
