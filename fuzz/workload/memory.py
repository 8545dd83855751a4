"""What a scheduler asks of memory, and the two kinds that answer: one arena, or separate pools.

Both speak in requests and tokens, so the same scheduler runs the same trace against either, and the
comparison is about memory alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bandscope.allocator import demand_fit
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import DONE, Outcome
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.requests import RequestLedger


class ServingMemory(Protocol):
    """Memory of a serving engine. Demands are pages per band in chain order."""

    plan: StoragePlan
    total_bytes: int

    def serves(self, demand: Sequence[int]) -> bool:
        """Does `demand` fit on top of what is held?"""

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        """Would `demand` fit if nothing were held?"""

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        """Bytes that are missing for each of these demands on top of what is held; ≤ 0: it fits.
        Negative pages will have been freed by then."""

    def shortage_when_empty(self, demands: np.ndarray) -> np.ndarray:
        """Bytes that would be missing for each of these demands if nothing were held."""

    def admit(self, request: int) -> Outcome: ...

    def extend(self, request: int, tokens: int) -> Outcome: ...

    def decode(self, requests: Sequence[int]) -> Outcome: ...

    def trim_window(self, requests: Sequence[int]) -> None: ...

    def release(self, request: int, why: str) -> None: ...

    def launch(self, requests: Sequence[int]) -> int: ...

    def complete(self, ticket: int) -> None: ...

    def compact(self, *, urgent: bool = False) -> None:
        """Close holes: some of them at leisure, or all of them now."""

    def held(self, requests: Sequence[int]) -> np.ndarray:
        """Pages that each request holds, shape (requests, bands)."""

    def used_bytes(self) -> int:
        """Bytes of pages that hold something."""


class ArenaMemory:
    """An arena behind the scheduler's questions."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.plan = arena.plan
        self.total_bytes = arena.total_bytes

    def serves(self, demand: Sequence[int]) -> bool:
        return self.arena.serves(demand)

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        return self.arena.serves_when_empty(demand)

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        return demand_fit.shortage(self.arena.books, demands)

    def shortage_when_empty(self, demands: np.ndarray) -> np.ndarray:
        return demand_fit.shortage_when_empty(self.plan, self.total_bytes, demands)

    def admit(self, request: int) -> Outcome:
        return self.arena.apply(ops.Admit(request))

    def extend(self, request: int, tokens: int) -> Outcome:
        return self.arena.apply(ops.Extend(request, tokens))

    def decode(self, requests: Sequence[int]) -> Outcome:
        return self.arena.apply(ops.Decode(tuple(requests)))

    def trim_window(self, requests: Sequence[int]) -> None:
        if self.arena.books.windows:
            self.arena.trim_window(requests)

    def release(self, request: int, why: str) -> None:
        self.arena.release(request, why)

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

    def used_bytes(self) -> int:
        return sum(band.live * band.page_bytes for band in self.arena.books.bands)


class PoolMemory:
    """One fixed pool per kind, split at the start: what an engine without an arena has.

    Pages of a pool are interchangeable and never move, so counting them is exact. `shares` gives
    each band's part of the bytes left beside the sink, in chain order.
    """

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

    def admit(self, request: int) -> Outcome:
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

    def release(self, request: int, why: str) -> None:
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

    def used_bytes(self) -> int:
        return int((self.used * self.page_bytes).sum())
