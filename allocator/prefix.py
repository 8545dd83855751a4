"""The prefix cache: which pages hold which prefixes, who may use them, and which go first.

A radix tree over token sequences (or chained hashes, one a page), cut at page boundaries. It owns
virtual pages and state slots, and never looks at an arena: callers bind, copy and free what its
answers name. A match is usable to the deepest point at which every window band still keeps the pages
that the next token attends to and, on a model with state, a checkpoint holds the state.

The clock is an integer that the caller gives and that never goes back; nothing here knows the time.
Calls that cannot be obeyed raise `MisuseError` before anything changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.errors import MisuseError
from bandscope.allocator.prefix_books import NONE, PrefixBooks
from bandscope.allocator.prefix_evict import Evicted, Serves, evict
from bandscope.allocator.prefix_insert import Inserted, insert
from bandscope.allocator.prefix_nodes import CacheShape, Node, PrefixLease, StateCheckpoint
from bandscope.allocator.prefix_snapshot import restore, snapshot
from bandscope.allocator.tables import Pages


@dataclass(frozen=True, eq=False)
class Match:
    """The usable part of a cached prefix.

    `depth` pages (`tokens` tokens) can be used, of `matched_tokens` that are cached at all: the rest
    lacks window pages or a checkpoint, or lies beyond the asked limit. `pages` are their virtual ids;
    of window number `w` those from page `window_from[w]` on are there, which is all that the next
    token needs. `state_slot`: the slot that holds the state here; it is to be copied into a slot of
    the caller's own (copy on write), never written. `node` is where the prefix ends.
    """

    node: int
    depth: int
    tokens: int
    matched_tokens: int
    pages: Pages
    window_from: tuple[int, ...]
    state_slot: int | None


def repeat_blocks(hashes: np.ndarray, block_tokens: int, page_size: int) -> np.ndarray:
    """Keys per page from chained hashes per block of tokens, each block a whole number of pages."""
    if block_tokens % page_size:
        raise MisuseError(
            f"blocks of {block_tokens} tokens were given for pages of {page_size}; give a page size "
            "that divides the block"
        )
    # A block's pages share its hash: where they stand in the block follows from their depth.
    return np.repeat(np.asarray(hashes, np.int64), block_tokens // page_size)


class PrefixTree(PrefixBooks):
    """A prefix cache of the given shape; see the module."""

    def __init__(self, shape: CacheShape) -> None:
        super().__init__(shape)
        self._busy = ""

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        # A question asked of the caller in the middle of a change must not change the tree.
        if self._busy:
            raise MisuseError(
                f"{what} was called inside {self._busy} of the same prefix cache; finish that first"
            )
        self._busy = what
        try:
            yield
        finally:
            self._busy = ""

    def _check_clock(self, clock: int) -> None:
        if clock < self.clock:
            raise MisuseError(f"the clock {clock} was given after {self.clock}; it never goes back")

    @property
    def cached_bytes(self) -> int:
        """Bytes of everything that the tree owns."""
        return sum(n * size for n, size in zip(self.cached, self.shape.page_bytes, strict=True))

    # --- looking up ----------------------------------------------------------------------------

    def match(
        self, key: Sequence[int] | np.ndarray, clock: int, limit_tokens: int | None = None
    ) -> Match:
        """The usable prefix of a sequence, of at most `limit_tokens` (a prompt's last token must be
        computed, so its length − 1). What is used counts as used at `clock`; what is cached but of
        no use here does not."""
        with self._changing("match"):
            self._check_clock(clock)
            node, found, checkpoint = self._find(key, limit_tokens)
            self.clock = clock
            node = self._cut(node, found.depth)
            self._touch(node, found.window_from, clock)
            if checkpoint is not None:
                checkpoint.clock = clock
        return Match(
            node.number,
            found.depth,
            found.tokens,
            found.matched_tokens,
            found.pages,
            found.window_from,
            found.state_slot,
        )

    def peek(self, key: Sequence[int] | np.ndarray, limit_tokens: int | None = None) -> Match:
        """`match` without a trace: nothing is cut, nothing counts as used."""
        return self._find(key, limit_tokens)[1]

    def walk(self, key: np.ndarray, pages: int) -> list[tuple[Node, int]]:
        """The nodes along the first `pages` pages of a key, and how many pages of each agree."""
        unit, node, depth = self.shape.unit, self.root, 0
        path = []
        while depth < pages:
            child = node.children.get(self.first_page(key[depth * unit :]))
            if child is None:
                break
            common = child.common(key[depth * unit : pages * unit], unit)
            path.append((child, common))
            self._touched += 1
            depth += common
            node = child
            if common < len(child):
                break
        return path

    def key_array(self, key: Sequence[int] | np.ndarray) -> np.ndarray:
        """A key as this tree keeps it."""
        array = np.ascontiguousarray(key, np.int64)
        if array.ndim != 1:
            raise MisuseError(f"a key of {array.ndim} dimensions was given; give one row of integers")
        return array

    def _find(
        self, key: Sequence[int] | np.ndarray, limit_tokens: int | None
    ) -> tuple[Node, Match, StateCheckpoint | None]:
        array = self.key_array(key)
        shape = self.shape
        path = self.walk(array, array.size // shape.unit)
        matched = path[-1][0].start + path[-1][1] if path else 0
        limit = matched
        if limit_tokens is not None:
            limit = min(matched, max(0, limit_tokens) // shape.page_size)
        best, depth, state = self.root, 0, None
        run = [0] * len(shape.windows)  # from where on each window keeps every page up to here
        for node, common in path:
            end = min(node.start + common, limit)
            lowest = node.start + 1
            for window, reach in enumerate(shape.reaches):
                if node.first[window]:
                    run[window] = node.start + node.first[window]
                if reach and run[window]:
                    lowest = max(lowest, run[window] + reach)
            if lowest > end:
                continue
            if shape.state is None:
                best, depth = node, end
            elif at := bisect_right(node.depths, end):
                if node.depths[at - 1] >= lowest:
                    best, depth = node, node.depths[at - 1]
                    state = node.checkpoints[depth]
        parts = [node.pages for node, _ in path if node.start < depth]
        pages = np.concatenate(parts)[:depth] if parts else NONE
        match = Match(
            best.number,
            depth,
            depth * shape.page_size,
            matched * shape.page_size,
            pages,
            tuple(max(0, depth - reach) for reach in shape.reaches),
            None if state is None else state.slot,
        )
        return best, match, state

    def _cut(self, node: Node, depth: int) -> Node:
        """The node that ends at `depth`, cut out of `node` when that reaches further."""
        return node if node.stop == depth else self.split(node, depth - node.start)

    def _touch(self, node: Node, window_from: Sequence[int], clock: int) -> None:
        for part in self.path(node):
            self._touched += 1
            part.clock = clock
            for window, start in enumerate(window_from):
                if start < part.stop:
                    part.window_clock[window] = clock

    def checkpoint_at(self, key: Sequence[int] | np.ndarray, depth: int) -> StateCheckpoint | None:
        """The checkpoint after exactly `depth` pages of a sequence."""
        path = self.walk(self.key_array(key), depth)
        if not path or path[-1][0].start + path[-1][1] < depth:
            return None
        return path[-1][0].checkpoints.get(depth)

    # --- inserting -----------------------------------------------------------------------------

    def insert(
        self,
        key: Sequence[int] | np.ndarray,
        pages: Pages,
        clock: int,
        *,
        kept_from: Sequence[int] = (),
        checkpoints: Sequence[tuple[int, int]] = (),
        lease: int | None = None,
    ) -> Inserted:
        """Publish the whole pages of a request: the tree becomes their owner, or says what to free.

        `pages[i]` are the virtual pages of tokens `[i · page, (i + 1) · page)`, those that it got from
        a match first; the key covers them. Window number `w` keeps those from `kept_from[w]` on.
        `checkpoints`: (tokens, slot) pairs to give away, tokens on the grid and inside the pages.

        `lease`: the request goes on, and its lease is moved to the end of what it published; it uses
        `Inserted.pages` from then on. Without a lease it is done with them.
        """
        with self._changing("insert"):
            self._check_clock(clock)
            return insert(self, key, pages, clock, kept_from, checkpoints, lease)

    # --- leases --------------------------------------------------------------------------------

    def lock(self, place: Match | Inserted, *, state: bool = False, committing: bool = False) -> int:
        """Hold a prefix: its pages up to its end, the window pages that its next token needs, and with
        `state` the checkpoint it copies from. Nothing held is evicted. Returns the lease's number.

        `committing`: hold every window page and checkpoint along the path too, while an operation
        publishes them and may evict for more.
        """
        with self._changing("lock"):
            node = self.nodes.get(place.node)
            if node is None or not node.start <= place.depth <= node.stop or (
                place.depth == node.start and node is not self.root
            ):
                raise MisuseError(
                    f"a prefix of {place.depth} pages was to be held, but it has been evicted or cut "
                    "since; match again"
                )
            checkpoint = node.checkpoints.get(place.depth)
            slot = checkpoint.slot if checkpoint is not None else None
            if state and (slot is None or slot != getattr(place, "state_slot", slot)):
                raise MisuseError(
                    f"the state after {place.depth} pages was to be held, but there is none; match "
                    "again"
                )
            window_from = [max(0, place.depth - reach) for reach in self.shape.reaches]
            if not committing and not self._keeps(node, place.depth, window_from):
                raise MisuseError(
                    f"a prefix of {place.depth} pages was to be held, but window pages that its next "
                    "token needs have been evicted since; match again"
                )
            node = self._cut(node, place.depth)
            held = [checkpoint] if state and checkpoint is not None else []
            if committing:
                window_from = [0] * len(window_from)
                held = [part.checkpoints[d] for part in self.path(node) for d in part.depths]
            return self._lease(node, window_from, held)

    def lock_all(self, lease: int) -> int:
        """Hold the prefix of another lease, and every window page and checkpoint along it."""
        with self._changing("lock_all"):
            node = self.held(lease).node
            held = [part.checkpoints[depth] for part in self.path(node) for depth in part.depths]
            return self._lease(node, [0] * len(self.shape.windows), held)

    def _lease(self, node: Node, window_from: list[int], held: list[StateCheckpoint]) -> int:
        lease = PrefixLease(self.next_lease, node, window_from, held)
        self.next_lease += 1
        self.leases[lease.number] = lease
        self._hold_lease(lease, 1)
        return lease.number

    def _keeps(self, node: Node, depth: int, window_from: Sequence[int]) -> bool:
        """Whether every window keeps its pages from `window_from[w]` to `depth`."""
        for part in self.path(node):
            for window, start in enumerate(window_from):
                first = max(start, part.start)
                if first < min(depth, part.stop) and part.start + part.first[window] > first:
                    return False
        return True

    def unlock(self, lease: int) -> None:
        """End a lease."""
        with self._changing("unlock"):
            self._hold_lease(self.held(lease), -1)
            del self.leases[lease]

    def trim(self, lease: int, tokens: int) -> None:
        """The request has `tokens` tokens now: its lease lets go of window pages that no token to come
        attends to."""
        with self._changing("trim"):
            held = self.held(lease)
            for window, old in enumerate(held.window_from):
                new = min(self.shape.kept_from(window, tokens), held.node.stop)
                if new > old:
                    held.window_from[window] = new
                    self.loosen(held.node, window, old, new)

    def let_go_of_state(self, lease: int) -> None:
        """The copies from the checkpoints that a lease holds are issued: they may go."""
        with self._changing("let_go_of_state"):
            held = self.held(lease)
            for checkpoint in held.held:
                self.hold_state(checkpoint, -1)
            held.held = []

    def held(self, lease: int) -> PrefixLease:
        """The lease of that number; `MisuseError` when it has ended or never began."""
        try:
            return self.leases[lease]
        except KeyError:
            raise MisuseError(
                f"lease {lease} of the prefix cache was named, but it is not held; use and end each "
                "lease once"
            ) from None

    def _hold_lease(self, lease: PrefixLease, sign: int) -> None:
        self.hold(lease.node, lease.window_from, sign)
        for checkpoint in lease.held:
            self.hold_state(checkpoint, sign)

    # --- evicting ------------------------------------------------------------------------------

    def evict(self, wanted: Sequence[int], serves: Serves) -> Evicted:
        """Give up pages until a demand is served; `prefix_evict` has the rules.

        `wanted`: pages per band that are to be served. `serves(freed)`: whether memory serves them
        once so many pages per band are free; true for more when true for less. When giving up all
        that no lease holds would not serve, nothing is given up.
        """
        if len(wanted) != self.shape.bands or min(wanted) < 0:
            raise MisuseError(
                f"an eviction for {tuple(wanted)} was asked for; give pages ≥ 0 for each of the "
                f"{self.shape.bands} bands"
            )
        with self._changing("evict"):
            return evict(self, wanted, serves)

    def evictable_beside(self, match: Match) -> list[int]:
        """Pages per band that could go were a prefix held that `peek` has just found, its state too."""
        shape, left = self.shape, list(self.evictable)
        node = self.nodes[match.node]
        for part in self.path(node):
            stop = min(part.stop, match.depth) - part.start
            if not part.locks:
                for band in (shape.full, *shape.companions):
                    left[band] -= stop
            for window, band in enumerate(shape.windows):
                first = max(match.window_from[window] - part.start, part.first[window])
                left[band] -= max(0, min(stop, part.window_stop(window)) - first)
        if match.state_slot is not None and not node.checkpoints[match.depth].locks:
            assert shape.state is not None
            left[shape.state] -= 1
        return left

    def evict_counts(self, counts: Sequence[int]) -> Evicted:
        """Give up at least so many pages of each band (all that can go, where there are fewer)."""
        goal = [min(most, count) for most, count in zip(self.evictable, counts, strict=True)]

        def enough(freed: Sequence[int]) -> bool:
            return all(have >= want for have, want in zip(freed, goal, strict=True))

        return self.evict(goal, enough)

    # --- state as data -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what the tree does next, as plain data; cost follows its size."""
        return snapshot(self)

    def restore(self, state: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw."""
        with self._changing("restore"):
            self._clear()
            restore(self, state)


