"""Separate pools with a prefix cache: the same tree and rules as in an arena, over fixed pools.

So a comparison of an arena with a split is about memory alone. Pages have virtual ids here too, since
the tree names them; ids are counted up and never used again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator.operations import DONE, Outcome
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_insert import Inserted
from bandscope.allocator.prefix_nodes import CacheShape
from bandscope.fuzz.workload.memory import Found, PoolMemory
from bandscope.fuzz.workload.sharing import common_pages, later_held_pages


class CachedPoolMemory(PoolMemory):
    """Fixed pools whose free pages keep prefixes. `used` counts cached pages too."""

    cached = True

    def __init__(
        self,
        plan: StoragePlan,
        total_bytes: int,
        shares: Sequence[float],
        *,
        evict: str = "lru",
        grid_tokens: int = 0,
    ) -> None:
        super().__init__(plan, total_bytes, shares)
        self.grid_tokens = grid_tokens if plan.has_state else 0
        self.tree = PrefixTree(
            CacheShape.of_plan(plan, grid_tokens=self.grid_tokens, keys="hashes", evict=evict)
        )
        # The ledger counts every window; the tree only those of a stated length.
        self._stated = [
            number for number, (_, length) in enumerate(self._windows) if length is not None
        ]
        self._leases: dict[int, int] = {}
        self._keys: dict[int, np.ndarray] = {}
        self._next_id = 0

    # --- questions ------------------------------------------------------------------------------

    def serves(self, demand: Sequence[int]) -> bool:
        return bool((self.claimed() + demand <= self.capacity).all())

    def shortage(self, demands: np.ndarray) -> np.ndarray:
        return self.shortage_when_empty(demands + self.claimed())

    def claimed(self) -> np.ndarray:
        claimed: np.ndarray = self.used - self.tree.evictable
        return claimed

    def look_up(self, key: np.ndarray, limit_tokens: int) -> Found:
        match = self.tree.peek(key, limit_tokens)
        return Found.of(match, limit_tokens, self.grid_tokens or self.plan.page_size)

    def common(self, found: Found, requests: Sequence[int]) -> np.ndarray:
        return common_pages(self._ledger, requests, found.pages)

    def later_held(self, requests: Sequence[int]) -> np.ndarray:
        return later_held_pages(self.tree, [self._leases[request] for request in requests])

    # --- entering and leaving -------------------------------------------------------------------

    def admit(
        self, request: int, key: np.ndarray | None = None, limit_tokens: int | None = None
    ) -> Outcome:
        tree, ledger = self.tree, self._ledger
        key = np.empty(0, np.int64) if key is None else key
        match = tree.match(key, tree.clock + 1, limit_tokens)
        lease = tree.lock(match, state=match.state_slot is not None)
        outcome = self._take(1 - self._token)
        if not outcome:
            tree.unlock(lease)
            return outcome
        tree.let_go_of_state(lease)
        row = ledger.add(request)
        ledger.state_count[row] = int((1 - self._token).sum())
        ledger.append_pages(row, match.pages)
        ledger.length[row], ledger.cached[row] = match.tokens, match.depth
        ledger.first_kept[row, self._stated] = match.window_from
        self._leases[request], self._keys[request] = lease, key
        return Outcome(True, match.tokens)

    def release(self, request: int, why: str, *, publish: bool = False) -> None:
        ledger, row = self._ledger, self._ledger.row(request)
        if publish:
            self._insert(request, None)
        own = self.held([request])[0]
        cached = int(ledger.cached[row])
        for number, (index, _) in enumerate(self._windows):
            own[index] -= max(0, cached - int(ledger.first_kept[row, number]))
        own[self.tree.shape.full] -= cached
        self.used -= own
        self.tree.unlock(self._leases.pop(request))
        del self._keys[request]
        ledger.remove(request)

    # --- growing and shrinking ------------------------------------------------------------------

    def extend(self, request: int, tokens: int) -> Outcome:
        ledger, row = self._ledger, self._ledger.row(request)
        before = int(ledger.page_count[row])
        outcome = super().extend(request, tokens)
        pages = int(ledger.page_count[row]) - before
        ledger.page_count[row] = before
        ledger.append_pages(row, self._mint(pages))
        return outcome

    def decode(self, requests: Sequence[int]) -> Outcome:
        ledger = self._ledger
        rows = ledger.rows(requests)
        before = ledger.page_count[rows]
        outcome = super().decode(requests)
        grown = np.flatnonzero(ledger.page_count[rows] > before)
        ledger.reach(int(before.max(initial=0)) + 1)
        ledger.pages[rows[grown], before[grown]] = self._mint(grown.size)
        return outcome

    def trim_window(self, requests: Sequence[int]) -> None:
        ledger = self._ledger
        rows = ledger.rows(requests)
        cached = ledger.cached[rows]
        before = ledger.first_kept[rows]
        super().trim_window(requests)
        after = ledger.first_kept[rows]
        for number, (index, _) in enumerate(self._windows):
            # The cache's pages were not the request's to free: its lease lets go of them.
            kept = np.minimum(after[:, number], cached) - np.minimum(before[:, number], cached)
            self.used[index] += int(kept.sum())
        for place in np.flatnonzero((before < cached[:, None]).any(axis=1)).tolist():
            self.tree.trim(self._leases[requests[place]], int(ledger.length[rows[place]]))

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, request: int) -> None:
        self._insert(request, self._leases[request])

    def checkpoint(self, request: int) -> bool:
        tree, tokens = self.tree, int(self._ledger.length[self._ledger.row(request)])
        depth, key = tokens // self.plan.page_size, self._keys[request]
        given = []
        if tree.checkpoint_at(key, depth) is None:
            if not self._take(1 - self._token):
                return False
            given = [(tokens, self._next_id)]
            self._next_id += 1
        self._insert(request, self._leases[request], given)
        return tree.checkpoint_at(key, depth) is not None

    def _insert(
        self, request: int, lease: int | None, checkpoints: Sequence[tuple[int, int]] = ()
    ) -> Inserted:
        ledger, row, key = self._ledger, self._ledger.row(request), self._keys[request]
        pages = min(int(ledger.length[row]) // self.plan.page_size, key.size)
        published = self.tree.insert(
            key[:pages],
            ledger.pages[row, :pages].astype(np.int64),
            self.tree.clock + 1,
            kept_from=ledger.first_kept[row, self._stated].tolist(),
            checkpoints=checkpoints,
            lease=lease,
        )
        ledger.pages[row, : published.depth] = published.pages
        ledger.cached[row] = published.depth
        self.used -= [ids.size for ids in published.duplicates]
        return published

    # --- counting -------------------------------------------------------------------------------

    def _take(self, demand: np.ndarray) -> Outcome:
        if not (self.used + demand <= self.capacity).all():
            gone = self.tree.evict(
                demand.tolist(),
                lambda freed: bool((self.used + demand - freed <= self.capacity).all()),
            )
            if not gone.served:
                return super()._take(demand)  # which refuses it
            self.used -= [ids.size for ids in gone.pages]
        self.used += demand
        return DONE

    def _mint(self, count: int) -> np.ndarray:
        self._next_id += count
        return np.arange(self._next_id - count, self._next_id)
