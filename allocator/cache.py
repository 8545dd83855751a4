"""The prefix cache of an arena: the tree, who shares it, and what pins keep in it.

`prefix.py` knows prefixes and nothing of an arena; here are the few facts that join the two. Every
admitted request shares a prefix (of no pages at first), under a lease of the tree. The pages at the
front of its row, `ledger.cached` of them, are the cache's; those behind are its own.

A pinned page must not be evicted, since it would free no room. So a pin of a request's pages holds
the request's whole cached prefix, in every band, for as long as it lasts: also what the request
publishes later, also when the request has gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator.chain import Chain, Held
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.prefix import Match, PrefixTree
from bandscope.allocator.prefix_insert import Inserted
from bandscope.allocator.prefix_nodes import CacheShape
from bandscope.allocator.requests import RequestLedger
from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    from bandscope.allocator.policies import ArenaConfig

#: Keys are kept as int64.
KEY_MIN, KEY_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class Sharing:
    """What a request shares: `lease` of the tree, `key` of its sequence as far as it is known, and
    `pages` at the front of its row that the cache owns."""

    lease: int
    key: np.ndarray
    pages: int


class PrefixCache:
    """The cache of one arena. `sharing`: by running request; `pin_leases`: by pin, the lease of the
    tree that it keeps; `pin_requests`: by pin, the request that it was begun for while that runs."""

    def __init__(self, plan: StoragePlan, config: ArenaConfig, ledger: RequestLedger) -> None:
        shape = CacheShape.of_plan(
            plan,
            grid_tokens=config.checkpoint_grid_tokens,
            keys=config.prefix_keys,
            evict=config.evict,
        )
        self.tree = PrefixTree(shape)
        self.sharing: dict[int, Sharing] = {}
        self.pin_leases: dict[int, int] = {}
        self.pin_requests: dict[int, int] = {}
        self._ledger = ledger

    @property
    def next_clock(self) -> int:
        """The clock of the next operation that uses the tree."""
        return self.tree.clock + 1

    # --- who shares what -------------------------------------------------------------------------

    def enter(self, request: int, key: np.ndarray, match: Match, lease: int) -> None:
        """A request was admitted with what it matched."""
        self.sharing[request] = Sharing(lease, key, 0)
        self._shares(request, match.depth)

    def publish(self, request: int, pages: int) -> None:
        """The first `pages` of a request's row are the cache's now; its pins follow."""
        self._shares(request, pages)
        for pin in [pin for pin, owner in self.pin_requests.items() if owner == request]:
            self._let_go(pin)
            self.pin_leases[pin] = self.tree.lock_all(self.sharing[request].lease)

    def leave(self, request: int, published: Inserted | None) -> None:
        """A request goes; its pins keep what they hold, and what it has just published."""
        for pin in [pin for pin, owner in self.pin_requests.items() if owner == request]:
            if published is not None:
                self._let_go(pin)
                self.pin_leases[pin] = self.tree.lock(published, committing=True)
            del self.pin_requests[pin]
        self.tree.unlock(self.sharing.pop(request).lease)

    def _shares(self, request: int, pages: int) -> None:
        self.sharing[request].pages = pages
        self._ledger.cached[self._ledger.row(request)] = pages

    def trim(self, requests: Sequence[int], lengths: Sequence[int]) -> None:
        """Windows of these requests, which have so many tokens, have left shared pages behind."""
        for request, length in zip(requests, lengths, strict=True):
            self.tree.trim(self.sharing[request].lease, length)

    # --- pins --------------------------------------------------------------------------------------

    def pin(self, pin: int, request: int) -> None:
        """A pin of pages of a request began."""
        self.pin_requests[pin] = request
        sharing = self.sharing[request]
        if sharing.pages:
            self.pin_leases[pin] = self.tree.lock_all(sharing.lease)

    def unpin(self, pin: int) -> None:
        """It ended."""
        self.pin_requests.pop(pin, None)
        self._let_go(pin)

    def _let_go(self, pin: int) -> None:
        lease = self.pin_leases.pop(pin, None)
        if lease is not None:
            self.tree.unlock(lease)

    # --- room --------------------------------------------------------------------------------------

    def evictable(self, beside: Match | None = None) -> list[int]:
        """Pages per band that may go."""
        return self.tree.evictable if beside is None else self.tree.evictable_beside(beside)

    def serves(self, chain: Chain, held: Sequence[Held], beside: Match | None = None) -> bool:
        """Does some layout hold this, once everything that may go has gone? `beside`: a prefix that
        is about to be held."""
        freed = self.evictable(beside)
        return any(freed) and chain.pack(without(held, freed)) is not None

    def make_way(
        self, chain: Chain, held: Sequence[Held], demand: Sequence[int]
    ) -> tuple[Pages, ...] | None:
        """Evict the least after which a layout holds this: pages per band; None when nothing helps.

        What cannot move is taken as it was before the eviction, so pages that go while the gate is
        closed leave room only inside the extent that their band has.
        """
        gone = self.tree.evict(demand, lambda freed: chain.pack(without(held, freed)) is not None)
        return gone.pages if gone.served else None

    # --- keys --------------------------------------------------------------------------------------

    def key(self, known: np.ndarray | None, more: Sequence[int]) -> np.ndarray:
        """A key continued; `MisuseError` when a number does not fit."""
        if not len(more):
            return np.empty(0, np.int64) if known is None else known
        try:
            fresh = np.array(more, np.int64)
        except (OverflowError, TypeError, ValueError):
            raise MisuseError(
                f"a key of {len(more)} elements was given, but not all of them are integers from "
                f"{KEY_MIN} to {KEY_MAX}; name each page by one"
            ) from None
        return fresh if known is None else np.concatenate([known, fresh])

    # --- state as data -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what the cache does next."""
        return {
            "tree": self.tree.snapshot(),
            "sharing": [
                (request, one.lease, one.pages, one.key)
                for request, one in sorted(self.sharing.items())
            ],
            "pin_leases": sorted(self.pin_leases.items()),
            "pin_requests": sorted(self.pin_requests.items()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw; after the ledger has."""
        self.tree.restore(state["tree"])
        self.sharing = {}
        for request, lease, pages, key in state["sharing"]:
            self.sharing[request] = Sharing(lease, np.asarray(key, np.int64), pages)
            self._shares(request, pages)
        self.pin_leases = dict(state["pin_leases"])
        self.pin_requests = dict(state["pin_requests"])


def without(held: Sequence[Held], freed: Sequence[int]) -> list[Held]:
    """What bands must hold once so many pages of each have gone."""
    return [
        Held(want.pages - pages, want.fixed) for want, pages in zip(held, freed, strict=True)
    ]
