"""Which kinds of moments a campaign has seen: operation × outcome × bands × what was going on.

An allocator of this kind breaks where features meet (a pin and an urgent compaction, a float and two
forwards), so what counts as new is a combination of features, not a line of code. A `Moment` is one
such combination; programs that reach new moments are kept and varied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.events import Extent, NullObserver
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.coverage_cache import CacheWatch
from bandscope.fuzz.program import Layout

# Bits of a mask of bands, by role.
STATE, WINDOW, INNER_WINDOW, FULL = 1, 2, 4, 8

# Sizes of an operation, by the edge they sit on.
ZERO, ONE, PAGE_LESS_ONE, PAGE, PAGE_MORE_ONE, MANY = range(6)

TABLE_BARRIER, SETTLE_BARRIER = 1, 2

SHIFTED, LEAPFROGGED = 1, 2


class Moment(NamedTuple):
    """One operation and what was going on. Masks are of band roles; counts stop at 2.

    `floated`: a float changed place, `LEAPFROGGED` past its whole former extent. `barriers`: which
    kinds were placed. `deferred`: pages freed under a pin are waiting. `full`: afterwards no gap holds
    a page of any band. `stale`: completions came out of order. `size`: of tokens, moves or a batch.
    `cache`: what became of prefixes, bits of `coverage_cache`; `evicted`: bands that gave up cached
    pages.
    """

    bands: int
    kind: str
    reason: str
    gate: bool
    pins: int
    flight: int
    size: int
    taken: int
    dropped: int
    moved: int
    urgent: bool
    floated: int
    barriers: int
    pending: int
    reclaimed: int
    deferred: bool
    full: bool
    stale: bool
    cache: int = 0
    evicted: int = 0


class Coverage(NullObserver):
    """Follows one execution after another and keeps every moment seen, in the order of first sight.

    `fresh`: how many moments the present execution was the first to see.
    """

    def __init__(self) -> None:
        self.moments: dict[Moment, int] = {}
        self.pairs: dict[tuple[str, str, str], int] = {}
        self.fresh = 0
        self._roles: dict[str, int] = {}
        self._floats: frozenset[str] = frozenset()
        self._bands = self._page_size = 0
        self._watch: CacheWatch | None = None
        self._clear()

    def begin(self, layout: Layout) -> None:
        """An execution over this layout starts."""
        plan = layout.plan()
        self._roles = {band.name: INNER_WINDOW for band in plan.bands}
        self._roles |= {window.name: WINDOW for window in plan.windows[:1]}
        self._roles |= {band.name: STATE for band in plan.bands if band.kind == "state"}
        self._roles |= {band.name: FULL for band in plan.bands if band.kind == "full"}
        self._order = [self._roles[band.name] for band in plan.bands]
        self._watch = CacheWatch() if layout.config.prefix_cache else None
        self._floats = frozenset(band.name for band in plan.bands if band.end == "float")
        self._bands, self._page_size = len(plan.bands), plan.page_size
        self._smallest = min(band.page_bytes for band in plan.bands)
        self._gate, self._pins, self._previous = False, 0, ("", "")
        self._flight: list[int] = []
        self.fresh = 0
        self._clear()

    def _clear(self) -> None:
        self._taken = self._dropped = self._moved = self._floated = 0
        self._barriers = self._pending = self._reclaimed = 0
        self._urgent = False

    # --- effects, as the arena tells them ---------------------------------------------------------

    def band_move(self, band: str, before: Extent, after: Extent, why: str) -> None:
        if band in self._floats and before[1] > before[0] and after[1] > after[0]:
            if after[0] >= before[1] or after[1] <= before[0]:
                self._floated |= LEAPFROGGED
            elif after[0] != before[0] and after[1] != before[1]:
                self._floated |= SHIFTED

    def page_move(
        self, band: str, virtual: Pages, sources: Pages, destinations: Pages, size: int, urgent: bool
    ) -> None:
        self._moved |= self._roles[band]
        self._urgent |= urgent

    def lease_begin(
        self, holder: Any, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        if not lease:
            self._taken |= self._roles[band]
            if self._watch is not None:
                self._watch.lease_begin(holder, virtual, self._roles[band] == STATE)

    def lease_end(self, holder: Any, band: str, virtual: Pages, lease: int) -> None:
        if not lease:
            self._dropped |= self._roles[band]
            if self._watch is not None:
                self._watch.lease_end(holder, virtual)

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None:
        if self._watch is not None:
            self._watch.graft(request, band, into)

    def evict(self, demand: tuple[int, ...], counts: tuple[int, ...]) -> None:
        if self._watch is not None:
            self._watch.evict(counts)

    def barrier(self, kind: str, ticket: int, why: str) -> None:
        self._barriers |= SETTLE_BARRIER if kind == "settle" else TABLE_BARRIER

    def pending(self, band: str, pages: Pages, ticket: int) -> None:
        self._pending |= self._roles[band]

    def reclaim(self, band: str, pages: Pages) -> None:
        self._reclaimed |= self._roles[band]

    # --- after each operation ----------------------------------------------------------------------

    def note(self, operation: Operation, outcome: Outcome, arena: Arena) -> None:
        """The operation is over; count the moment and what follows on what."""
        kind = operation.kind
        flight = self._flight
        books = arena.books
        full = False
        if self._taken and self._moved:
            full = all(stop - start < self._smallest for start, stop in books.chain.gaps())
        stale = (
            kind == "Complete" and outcome.ok and operation.ticket not in flight[:1]  # type: ignore[attr-defined]
        )
        cache = evicted = 0
        if self._watch is not None and books.cache is not None:
            cache = self._watch.take(operation, outcome, arena, books.cache)
            for role, count in zip(self._order, self._watch.counts, strict=False):
                evicted |= role if count else 0
            self._watch.clear()
        moment = Moment(
            self._bands,
            kind,
            outcome.reason,
            self._gate,
            min(self._pins, 2),
            min(len(flight), 2),
            self._size(operation),
            self._taken,
            self._dropped,
            self._moved,
            self._urgent,
            self._floated,
            self._barriers,
            self._pending,
            self._reclaimed,
            any(books.pins.deferred),
            full,
            stale,
            cache,
            evicted,
        )
        seen = self.moments.get(moment, 0)
        self.moments[moment] = seen + 1
        last = (kind, outcome.reason)
        pair = (self._previous[0], kind, f"{self._previous[1]}>{outcome.reason}")
        paired = self.pairs.get(pair, 0)
        self.pairs[pair] = paired + 1
        self.fresh += (not seen) + (not paired)
        self._previous = last
        if outcome.ok:
            self._follow(operation, outcome)
        if self._taken or self._dropped or self._moved or self._barriers or self._reclaimed:
            self._clear()
        self._pending = 0

    def _follow(self, operation: Operation, outcome: Outcome) -> None:
        match operation:
            case ops.Launch():
                self._flight.append(outcome.value)
            case ops.Complete(ticket=ticket):
                if ticket in self._flight:  # a broken arena may complete one twice
                    self._flight.remove(ticket)
            case ops.Lease():
                self._pins += 1
            case ops.EndLease():
                self._pins -= 1
            case ops.SetGate(closed=closed):
                self._gate = closed

    def _size(self, operation: Operation) -> int:
        match operation:
            case ops.Extend(tokens=count):
                return self._edge(count)
            case ops.Decode(requests=some) | ops.Launch(requests=some) | ops.TrimWindow(
                requests=some
            ):
                return MANY if len(some) > 1 else len(some)
            case ops.Admit(state_slots=count):
                return MANY if count > 1 else max(0, count)
            case ops.Evict(pages=pages):
                return MANY if sum(pages) > 1 else max(0, sum(pages))
            case ops.Compact(urgent=urgent, max_moves=cap):
                return MANY if urgent or cap is None or cap > 1 else max(0, cap)
            case ops.Lease(first_page=first, stop_page=stop):
                return MANY if stop - first > 1 else max(0, stop - first)
            case ops.Reserve(demand=demand):
                return MANY if sum(demand) > 1 else max(0, sum(demand))
        return ZERO

    def _edge(self, tokens: int) -> int:
        page = self._page_size
        if tokens <= 0:
            return ZERO
        if tokens == page:
            return PAGE
        if tokens == page + 1:
            return PAGE_MORE_ONE
        if tokens == page - 1:
            return PAGE_LESS_ONE
        return ONE if tokens == 1 else MANY

    # --- several campaigns --------------------------------------------------------------------------

    def merge(self, other: Coverage) -> int:
        """Add what another one saw; returns how much of it was new."""
        fresh = 0
        for moment, count in other.moments.items():
            fresh += moment not in self.moments
            self.moments[moment] = self.moments.get(moment, 0) + count
        for pair, count in other.pairs.items():
            fresh += pair not in self.pairs
            self.pairs[pair] = self.pairs.get(pair, 0) + count
        return fresh
