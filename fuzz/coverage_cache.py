"""What an operation did with the prefix cache, as bits of a moment. It looks; nothing counts as used."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.cache import PrefixCache
from bandscope.allocator.errors import BandscopeError
from bandscope.allocator.events import CACHE
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages

(
    MATCHED, PARTIAL, LIMITED, UNMATCHED, WITH_STATE, LACKS_WINDOW, LACKS_STATE, SPLIT, DUPLICATE,
    GRAFTED, GRAFTED_SHARED, GRAFTED_IN_FLIGHT, GRAFTED_PINNED, SHARED_TRIM, STALL, CHECKPOINT,
    CHECKPOINT_THERE, PIN_KEEPS, EMPTIED, SHARERS, FOUND_AGAIN, OUTLIVES,
) = (1 << bit for bit in range(22))  # fmt: skip

RETRACTED_MAX = 8


class CacheWatch:
    """Follows the effects of one operation after another; `take` says what they came to."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[int, ...]] = {}
        self._retracted: deque[tuple[int, ...]] = deque(maxlen=RETRACTED_MAX)
        self._next_node = 1
        self.clear()

    def clear(self) -> None:
        """The next operation begins."""
        self._freed = 0  # pages that were given up
        self._grafts: list[tuple[int, str, Pages]] = []  # request, band, pages of the cache
        self.counts: tuple[int, ...] = ()
        self._slots = 0

    # --- effects -------------------------------------------------------------------------------------

    def evict(self, counts: tuple[int, ...]) -> None:
        self.counts = counts

    def graft(self, request: int, band: str, into: Pages) -> None:
        self._grafts.append((request, band, into.copy()))

    def lease_begin(self, holder: Any, virtual: Pages, is_state: bool) -> None:
        if type(holder) is int and holder == CACHE and is_state:
            self._slots += virtual.size

    def lease_end(self, holder: Any, virtual: Pages) -> None:
        if type(holder) is not int or holder != CACHE:
            self._freed += virtual.size

    # --- after the operation ---------------------------------------------------------------------------

    def take(self, operation: Operation, outcome: Outcome, arena: Arena, cache: PrefixCache) -> int:
        """The bits of the operation that has just ended; none where the cache is beyond reading."""
        try:
            return self._look(operation, outcome, arena, cache)
        except (LookupError, ValueError, StopIteration, BandscopeError):  # a broken arena
            return 0

    def _look(self, operation: Operation, outcome: Outcome, arena: Arena, cache: PrefixCache) -> int:
        bits = 0
        if outcome.ok:
            match operation:
                case ops.Admit():
                    bits = self._admitted(operation, outcome, arena, cache)
                case ops.Publish() | ops.Checkpoint():
                    bits = self._published(operation, outcome, cache)
                case ops.TrimWindow(requests=requests):
                    bits = self._trimmed(requests, arena)
                case ops.Release():
                    bits = self._released(operation, cache)
            for graft in self._grafts:
                bits |= self._grafted(*graft, arena, cache)
        if self.counts and not any(cache.tree.cached):
            bits |= EMPTIED
        self._next_node = cache.tree.next_node
        return bits

    def _admitted(
        self, operation: ops.Admit, outcome: Outcome, arena: Arena, cache: PrefixCache
    ) -> int:
        self._keys[operation.request] = operation.key
        tree = cache.tree
        if not operation.key or not any(tree.cached):
            return 0
        shape = tree.shape
        tokens = outcome.value or 0
        if not tokens:
            bits = UNMATCHED
        else:
            bits = MATCHED
            if tokens < len(operation.key) // shape.unit * shape.page_size:
                bits |= PARTIAL
            if shape.state is not None:
                bits |= WITH_STATE
            if tree.next_node > self._next_node:
                bits |= SPLIT
            first = next(iter(tree.path(tree.held(cache.sharing[operation.request].lease).node)))
            if first.locks > 1:
                bits |= SHARERS
            named = tokens // shape.page_size * shape.unit
            if any(key[:named] == operation.key[:named] for key in self._retracted):
                bits |= FOUND_AGAIN
        found = tree.peek(operation.key)
        if found.tokens > tokens and operation.limit_tokens is not None:
            bits |= LIMITED
        elif found.matched_tokens > found.tokens:
            key = tree.key_array(operation.key)
            deeper = range(found.depth + 1, found.matched_tokens // shape.page_size + 1)
            if shape.state is None or any(tree.checkpoint_at(key, depth) for depth in deeper):
                bits |= LACKS_WINDOW
            else:
                bits |= LACKS_STATE
        return bits

    def _published(self, operation: Any, outcome: Outcome, cache: PrefixCache) -> int:
        sharing = cache.sharing[operation.request]
        self._keys[operation.request] = tuple(sharing.key.tolist())
        bits = 0
        is_checkpoint = isinstance(operation, ops.Checkpoint)
        if is_checkpoint and not outcome.value:
            bits |= STALL
        elif is_checkpoint:
            bits |= CHECKPOINT if self._slots else CHECKPOINT_THERE
        return bits | DUPLICATE if self._freed else bits

    def _grafted(
        self, request: int, band: str, into: Pages, arena: Arena, cache: PrefixCache
    ) -> int:
        books = arena.books
        book = next(one for one in books.bands if one.name == band)
        bits = GRAFTED
        for other, sharing in cache.sharing.items():
            shared = books.ledger.pages[books.ledger.row(other), : sharing.pages]
            if other != request and np.isin(into, shared).any():
                bits |= GRAFTED_SHARED
        if np.isin(into, books.tickets.unsettled_writes(book.index)).any():
            bits |= GRAFTED_IN_FLIGHT
        if book.pin_count[book.table.place_of[into]].any():
            bits |= GRAFTED_PINNED
        return bits

    def _trimmed(self, requests: tuple[int, ...], arena: Arena) -> int:
        ledger = arena.books.ledger
        rows = ledger.rows(requests)
        shared = np.minimum(ledger.first_kept[rows].max(axis=1, initial=0), ledger.cached[rows])
        return SHARED_TRIM if shared.any() else 0

    def _released(self, operation: ops.Release, cache: PrefixCache) -> int:
        key = self._keys.pop(operation.request, ())
        if operation.why == "retracted" and key:
            self._retracted.append(key)
        bits = OUTLIVES if any(cache.tree.evictable) else 0
        if any(pin not in cache.pin_requests for pin in cache.pin_leases):
            bits |= PIN_KEEPS
        return bits
