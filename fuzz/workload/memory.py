"""What a scheduler asks of memory, and the two kinds that answer: one arena, or separate pools.

Both speak in requests and tokens, so the same scheduler runs the same trace against either, and the
comparison is about memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bandscope.allocator import demand_fit
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import DONE, Outcome
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.prefix import Match
from bandscope.allocator.requests import RequestLedger
from bandscope.allocator.tables import Pages
from bandscope.fuzz.workload.sharing import common_pages, later_held_pages, pages_of_lease


@dataclass(frozen=True, eq=False)
class Found:
    """What a prefix cache has of a sequence: usable tokens, and the virtual ids of their pages.

    `fork_tokens`: how far the cache has its pages although windows or the state are missing there (on
    the grid; 0: no further). Two requests part there, so a third may: it is worth a chunk's end.
    """

    tokens: int
    pages: Pages
    fork_tokens: int = 0

    @classmethod
    def of(cls, match: Match, limit_tokens: int, unit_tokens: int) -> Found:
        """What a match says, chunks ending on multiples of `unit_tokens`."""
        fork = min(match.matched_tokens, limit_tokens)
        fork -= fork % unit_tokens
        return cls(match.tokens, match.pages, fork if fork > match.tokens else 0)


NOTHING_FOUND = Found(0, np.empty(0, np.int64))


class ServingMemory(Protocol):
    """Memory of a serving engine. Demands are pages per band in chain order."""

    plan: StoragePlan
    total_bytes: int
    #: Is there a prefix cache?
    cached: bool
    #: Prefill chunks but a prompt's last end on multiples of this, where state can be kept; 0: anywhere.
    grid_tokens: int

    def serves(self, demand: Sequence[int]) -> bool:
        """Does `demand` fit on top of what is held?"""

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        """Would `demand` fit if nothing were held?"""

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        """Bytes that are missing for each of these demands on top of what is held, which cached pages
        that nobody uses are not; ≤ 0: it fits. Negative pages will have been freed by then."""

    def shortage_when_empty(self, demands: np.ndarray) -> np.ndarray:
        """Bytes that would be missing for each of these demands if nothing were held."""

    def look_up(self, key: np.ndarray, limit_tokens: int) -> Found:
        """What `admit` would find for this key now; leaves no trace."""

    def admit(
        self, request: int, key: np.ndarray | None = None, limit_tokens: int | None = None
    ) -> Outcome:
        """A request enters, with up to `limit_tokens` that the cache has of `key`. The value is the
        tokens it has from there (None without a cache)."""

    def extend(self, request: int, tokens: int) -> Outcome: ...

    def decode(self, requests: Sequence[int]) -> Outcome: ...

    def trim_window(self, requests: Sequence[int]) -> None: ...

    def publish(self, request: int) -> None:
        """The whole pages of a request that its key names go to the cache."""

    def checkpoint(self, request: int) -> bool:
        """The same, with a copy of its state; False: there was no room for one, nothing happened."""

    def release(self, request: int, why: str, *, publish: bool = False) -> None: ...

    def launch(self, requests: Sequence[int]) -> int: ...

    def complete(self, ticket: int) -> None: ...

    def compact(self, *, urgent: bool = False) -> None:
        """Close holes: some of them at leisure, or all of them now."""

    def held(self, requests: Sequence[int]) -> np.ndarray:
        """Pages that each request holds, shape (requests, bands)."""

    def claimed(self) -> np.ndarray:
        """Pages per band that running requests hold, each counted once (at most so many, where pins
        keep more)."""

    def common(self, found: Found, requests: Sequence[int]) -> np.ndarray:
        """Leading pages that each request shares with what was found: (requests,)."""

    def later_held(self, requests: Sequence[int]) -> np.ndarray:
        """Leading pages that each of these shares with one before it in the list: (requests,)."""

    def used_bytes(self) -> int:
        """Bytes of pages that hold something."""


class ArenaMemory:
    """An arena behind the scheduler's questions."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.plan = arena.plan
        self.total_bytes = arena.total_bytes
        self.cached = arena.books.cache is not None
        self.grid_tokens = 0
        if self.cached and self.plan.has_state:
            self.grid_tokens = arena.books.config.checkpoint_grid_tokens

    def serves(self, demand: Sequence[int]) -> bool:
        return self.arena.serves(demand)

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        return self.arena.serves_when_empty(demand)

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        return demand_fit.shortage(self.arena.books, demands)

    def shortage_when_empty(self, demands: np.ndarray) -> np.ndarray:
        return demand_fit.shortage_when_empty(self.plan, self.total_bytes, demands)

    def look_up(self, key: np.ndarray, limit_tokens: int) -> Found:
        cache = self.arena.books.cache
        if cache is None:
            return NOTHING_FOUND
        match = cache.tree.peek(key, limit_tokens)
        return Found.of(match, limit_tokens, self.grid_tokens or self.plan.page_size)

    def admit(
        self, request: int, key: np.ndarray | None = None, limit_tokens: int | None = None
    ) -> Outcome:
        if key is None:
            return self.arena.apply(ops.Admit(request))
        whole = tuple(key.tolist())
        return self.arena.apply(ops.Admit(request, key=whole, limit_tokens=limit_tokens))

    def extend(self, request: int, tokens: int) -> Outcome:
        return self.arena.apply(ops.Extend(request, tokens))

    def decode(self, requests: Sequence[int]) -> Outcome:
        return self.arena.apply(ops.Decode(tuple(requests)))

    def trim_window(self, requests: Sequence[int]) -> None:
        if self.arena.books.windows:
            self.arena.trim_window(requests)

    def publish(self, request: int) -> None:
        self.arena.publish(request)

    def checkpoint(self, request: int) -> bool:
        return bool(self.arena.checkpoint(request).value)

    def release(self, request: int, why: str, *, publish: bool = False) -> None:
        self.arena.release(request, why, publish=publish)

    def launch(self, requests: Sequence[int]) -> int:
        return self.arena.launch(requests)

    def complete(self, ticket: int) -> None:
        # An engine needs the step's tokens here anyway, so it is the engine that waits, not the arena.
        self.arena.device.wait(ticket)
        self.arena.complete(ticket)

    def compact(self, *, urgent: bool = False) -> None:
        self.arena.compact(urgent=urgent)

    def held(self, requests: Sequence[int]) -> np.ndarray:
        books = self.arena.books
        ledger = books.ledger
        rows = ledger.rows(requests)
        held = np.empty((rows.size, len(books.bands)), np.int64)
        held[:, books.full] = ledger.page_count[rows]
        for number, index in enumerate(books.windows):
            held[:, index] = ledger.page_count[rows] - ledger.first_kept[rows, number]
        if books.state is not None:
            held[:, books.state] = ledger.state_count[rows]
        return held

    def claimed(self) -> np.ndarray:
        books = self.arena.books
        claimed = np.array([band.live for band in books.bands], np.int64)
        cache = books.cache
        if cache is None:
            return claimed
        claimed -= cache.tree.evictable
        # What pins hold may be theirs alone: none of it is counted as the requests'.
        for lease in set(cache.pin_leases.values()):
            claimed -= pages_of_lease(cache.tree, lease)
        return np.maximum(0, claimed)

    def common(self, found: Found, requests: Sequence[int]) -> np.ndarray:
        ledger = self.arena.books.ledger
        return common_pages(ledger, requests, found.pages)

    def later_held(self, requests: Sequence[int]) -> np.ndarray:
        cache = self.arena.books.cache
        if cache is None:
            return np.zeros(len(requests), np.int64)
        leases = [cache.sharing[request].lease for request in requests]
        return later_held_pages(cache.tree, leases)

    def used_bytes(self) -> int:
        return sum(band.live * band.page_bytes for band in self.arena.books.bands)


class PoolMemory:
    """One fixed pool per kind, split at the start: what an engine without an arena has.

    Pages of a pool are interchangeable and never move, so counting them is exact. `shares` gives
    each band's part of the bytes left beside the sink, in chain order. It has no prefix cache;
    `pool_cache` adds one.
    """

    cached = False
    grid_tokens = 0

    def __init__(self, plan: StoragePlan, total_bytes: int, shares: Sequence[float]) -> None:
        self.plan = plan
        self.total_bytes = total_bytes
        usable = total_bytes - plan.sink_bytes
        self.page_bytes = np.array([band.page_bytes for band in plan.bands], np.int64)
        self.capacity = (usable * np.asarray(shares)).astype(np.int64) // self.page_bytes
        self.used = np.zeros(len(plan.bands), np.int64)
        self._windows = [
            (index, band.window_length)
            for index, band in enumerate(plan.bands)
            if band.kind == "window"
        ]
        self._token = np.array([int(band.kind != "state") for band in plan.bands])
        self._ledger = RequestLedger(len(self._windows))
        self._ticket = 0

    def serves(self, demand: Sequence[int]) -> bool:
        return bool((self.used + demand <= self.capacity).all())

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        return bool((np.asarray(demand) <= self.capacity).all())

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        return self.shortage_when_empty(demands + self.used)

    def shortage_when_empty(self, demands: np.ndarray) -> np.ndarray:
        missing: np.ndarray = ((demands - self.capacity) * self.page_bytes).max(axis=1)
        return missing

    def _take(self, demand: np.ndarray) -> Outcome:
        if not (self.used + demand <= self.capacity).all():
            full = self.plan.bands[int(np.argmax(self.used + demand > self.capacity))].name
            return Outcome(False, reason="memory", message=f"the pool of {full} is full")
        self.used += demand
        return DONE

    def look_up(self, key: np.ndarray, limit_tokens: int) -> Found:
        return NOTHING_FOUND

    def admit(
        self, request: int, key: np.ndarray | None = None, limit_tokens: int | None = None
    ) -> Outcome:
        outcome = self._take(1 - self._token)
        if outcome:
            row = self._ledger.add(request)
            self._ledger.state_count[row] = int((1 - self._token).sum())
        return outcome

    def extend(self, request: int, tokens: int) -> Outcome:
        row = self._ledger.row(request)
        length = int(self._ledger.length[row]) + tokens
        pages = -(-length // self.plan.page_size) - int(self._ledger.page_count[row])
        outcome = self._take(pages * self._token)
        if outcome:
            self._ledger.length[row] = length
            self._ledger.page_count[row] += pages
        return outcome

    def decode(self, requests: Sequence[int]) -> Outcome:
        ledger = self._ledger
        rows = ledger.rows(requests)
        growing = rows[ledger.length[rows] == ledger.page_count[rows] * self.plan.page_size]
        outcome = self._take(growing.size * self._token)
        if outcome:
            ledger.page_count[growing] += 1
            ledger.length[rows] += 1
        return outcome

    def trim_window(self, requests: Sequence[int]) -> None:
        ledger = self._ledger
        rows = ledger.rows(requests)
        for number, (index, length) in enumerate(self._windows):
            if length is None:
                continue
            keep = np.maximum(0, ledger.length[rows] - length + 1) // self.plan.page_size
            first = ledger.first_kept[rows, number]
            stop = np.maximum(keep, first)
            self.used[index] -= int((stop - first).sum())
            ledger.first_kept[rows, number] = stop

    def publish(self, request: int) -> None:
        pass

    def checkpoint(self, request: int) -> bool:
        return False

    def release(self, request: int, why: str, *, publish: bool = False) -> None:
        self.used -= self.held([request])[0]
        self._ledger.remove(request)

    def launch(self, requests: Sequence[int]) -> int:
        self._ticket += 1
        return self._ticket

    def complete(self, ticket: int) -> None:
        pass

    def compact(self, *, urgent: bool = False) -> None:
        pass

    def held(self, requests: Sequence[int]) -> np.ndarray:
        ledger = self._ledger
        rows = ledger.rows(requests)
        held = np.outer(ledger.page_count[rows], self._token)
        for number, (index, _) in enumerate(self._windows):
            held[:, index] -= ledger.first_kept[rows, number]
        held += np.outer(ledger.state_count[rows], 1 - self._token)
        return held

    def claimed(self) -> np.ndarray:
        return self.used.copy()

    def common(self, found: Found, requests: Sequence[int]) -> np.ndarray:
        return np.zeros(len(requests), np.int64)

    def later_held(self, requests: Sequence[int]) -> np.ndarray:
        return np.zeros(len(requests), np.int64)

    def used_bytes(self) -> int:
        return int((self.used * self.page_bytes).sum())
