"""The books of a prefix tree: nodes, who owns what, counts, orders, and the few steps that change them.

Every change of a node goes through one of the steps here, which keeps the counts per band and the
orders of eviction true. What the steps are for is in `prefix.py` and `prefix_evict.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from bandscope.allocator.prefix_nodes import CacheShape, Node, PrefixLease, StateCheckpoint
from bandscope.allocator.prefix_order import Key, LeastRecent
from bandscope.allocator.tables import Pages

NONE: Pages = np.empty(0, np.int64)


class Owned:
    """Which ids the tree owns; grows with the largest id."""

    def __init__(self) -> None:
        self.mark = np.zeros(64, bool)

    def any(self, ids: Pages) -> bool:
        known = ids[ids < self.mark.size]
        return bool(self.mark[known].any())

    def set(self, ids: Pages, value: bool) -> None:
        if ids.size and int(ids.max()) >= self.mark.size:
            grown = np.zeros(max(2 * self.mark.size, int(ids.max()) + 1), bool)
            grown[: self.mark.size] = self.mark
            self.mark = grown
        self.mark[ids] = value


class PrefixBooks:
    """Nodes by number (0: the root, which holds nothing), checkpoints and leases by number.

    Per band, in chain order: `cached` pages (slots) that the tree owns, and `evictable`, those that
    no lease holds. `steps` counts nodes and order entries touched since the beginning.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._clear()

    def _clear(self) -> None:
        shape = self.shape
        windows = len(shape.windows)
        self.root = Node(0, None, 0, NONE, NONE, 0, [0] * windows, [0] * windows)
        self.root.window_locks = [None] * windows
        self.nodes: dict[int, Node] = {0: self.root}
        self.checkpoints: dict[int, StateCheckpoint] = {}
        self.leases: dict[int, PrefixLease] = {}
        self.next_node = self.next_checkpoint = self.next_lease = 1
        self.clock = 0
        self.cached = [0] * shape.bands
        self.evictable = [0] * shape.bands
        self.owned = Owned()
        self.owned_slots = Owned()
        self.full_order = LeastRecent(self._full_key)
        self.window_orders = [LeastRecent(partial(self._window_key, w)) for w in range(windows)]
        self.state_order = LeastRecent(self._state_key)
        self._touched = 0

    def owned_of(self, ids: Pages) -> np.ndarray:
        """Which of these pages the tree owns."""
        known: np.ndarray = np.isin(ids, np.flatnonzero(self.owned.mark))
        return known

    @property
    def steps(self) -> int:
        orders = [self.full_order, *self.window_orders, self.state_order]
        return self._touched + sum(order.steps for order in orders)

    # --- who may go, and in which order --------------------------------------------------------

    def _full_key(self, number: int) -> Key | None:
        node = self.nodes.get(number)
        if node is None or node is self.root or node.locks or node.children:
            return None
        return node.clock, node.start, number

    def _window_key(self, window: int, number: int) -> Key | None:
        node = self.nodes.get(number)
        if node is None or not node.evictable_window(window):
            return None
        return node.window_clock[window], node.start, number

    def _state_key(self, number: int) -> Key | None:
        checkpoint = self.checkpoints.get(number)
        if checkpoint is None or checkpoint.locks:
            return None
        return checkpoint.clock, checkpoint.depth, number

    def _offer(self, node: Node) -> None:
        self.full_order.offer(node.number)
        for window, order in enumerate(self.window_orders):
            if node.evictable_window(window):
                order.offer(node.number)

    def _count(self, node: Node, sign: int) -> None:
        """Take a node out of the counts (−1) before it changes, or put it back (+1)."""
        self._touched += 1
        shape, pages = self.shape, sign * len(node)
        for band in (shape.full, *shape.companions):
            self.cached[band] += pages
            if not node.locks:
                self.evictable[band] += pages
        for window, band in enumerate(shape.windows):
            self.cached[band] += pages - sign * node.first[window]
            self.evictable[band] += sign * node.evictable_window(window)
        if shape.state is not None:
            slots = len(node.depths)
            self.cached[shape.state] += sign * slots
            self.evictable[shape.state] += sign * (slots - node.locked_checkpoints)

    # --- making nodes --------------------------------------------------------------------------

    def first_page(self, key: np.ndarray) -> bytes:
        """The name of a child under its parent: the key of its first page."""
        return key[: self.shape.unit].tobytes()

    def _new_node(
        self, parent: Node, key: np.ndarray, pages: Pages, clock: int, first: list[int]
    ) -> Node:
        node = Node(
            self.next_node, parent, parent.stop, key, pages, clock, first, [clock] * len(first)
        )
        node.window_locks = [None] * len(first)
        self.next_node += 1
        self.nodes[node.number] = node
        parent.children[self.first_page(key)] = node
        return node

    def split(self, node: Node, pages: int) -> Node:
        """Cut a node after so many of its pages; returns the new upper part. The lower part keeps its
        number, so that leases and whoever remembers the end of a prefix need no change."""
        assert 0 < pages < len(node) and node.parent is not None
        self._count(node, -1)
        at = pages * self.shape.unit
        upper = self._new_node(
            node.parent,
            node.key[:at],
            node.pages[:pages],
            node.clock,
            [min(first, pages) for first in node.first],
        )
        upper.window_clock = list(node.window_clock)
        upper.locks = node.locks
        node.parent = upper
        node.start = upper.stop
        node.key, node.pages = node.key[at:], node.pages[pages:]
        node.first = [max(0, first - pages) for first in node.first]
        upper.children[self.first_page(node.key)] = node
        for window, locks in enumerate(node.window_locks):
            if locks is not None:
                upper.window_locks[window] = locks[:pages].copy()
                node.window_locks[window] = locks[pages:].copy()
        for depth in node.depths[: bisect_right(node.depths, upper.stop)]:
            upper.add_checkpoint(node.take_checkpoint(depth))
        for part in (upper, node):
            self._count(part, 1)
            self._offer(part)
        return upper

    def _add_checkpoint(self, node: Node, depth: int, slot: int, clock: int) -> StateCheckpoint:
        checkpoint = StateCheckpoint(self.next_checkpoint, depth, slot, clock, node)
        self.next_checkpoint += 1
        self._count(node, -1)
        node.add_checkpoint(checkpoint)
        self._count(node, 1)
        self.checkpoints[checkpoint.number] = checkpoint
        self.owned_slots.set(np.array([slot]), True)
        self.state_order.offer(checkpoint.number)
        return checkpoint

    # --- giving up pages -----------------------------------------------------------------------

    def tail_counts(self, node: Node, pages: int) -> list[int]:
        """Pages per band that go when the last `pages` of a node go."""
        shape, left = self.shape, len(node) - pages
        counts = [0] * shape.bands
        for band in (shape.full, *shape.companions):
            counts[band] = pages
        for window, band in enumerate(shape.windows):
            counts[band] = len(node) - max(node.first[window], left)
        if shape.state is not None:
            counts[shape.state] = len(node.depths) - bisect_right(node.depths, node.start + left)
        return counts

    def drop_tail(self, node: Node, pages: int) -> list[Pages]:
        """The last pages of an unlocked leaf leave the tree, with everything on them; per band."""
        assert not node.locks and not node.children and 0 < pages <= len(node)
        shape, left = self.shape, len(node) - pages
        self._count(node, -1)
        freed = [NONE] * shape.bands
        for band in (shape.full, *shape.companions):
            freed[band] = node.pages[left:]
        for window, band in enumerate(shape.windows):
            freed[band] = node.pages[max(node.first[window], left) :]
            node.first[window] = min(node.first[window], left)
        if shape.state is not None:
            gone = node.depths[bisect_right(node.depths, node.start + left) :]
            freed[shape.state] = np.array([self._forget(node, depth) for depth in gone], np.int64)
        self.owned.set(node.pages[left:], False)
        if left:
            node.pages, node.key = node.pages[:left], node.key[: left * shape.unit]
            self._count(node, 1)
            return freed
        assert node.parent is not None
        del node.parent.children[self.first_page(node.key)]
        del self.nodes[node.number]
        self._offer(node.parent)
        return freed

    def drop_window(self, node: Node, window: int, pages: int) -> Pages:
        """A window band forgets the first pages that it keeps of a node (a tombstone stays)."""
        assert 0 < pages <= node.evictable_window(window)
        self._count(node, -1)
        first = node.first[window]
        node.first[window] = first + pages
        self._count(node, 1)
        return node.pages[first : first + pages]

    def drop_checkpoint(self, checkpoint: StateCheckpoint) -> int:
        """A checkpoint goes, its pages stay; returns its slot."""
        assert not checkpoint.locks
        node = checkpoint.node
        self._count(node, -1)
        slot = self._forget(node, checkpoint.depth)
        self._count(node, 1)
        return slot

    def _forget(self, node: Node, depth: int) -> int:
        checkpoint = node.take_checkpoint(depth)
        del self.checkpoints[checkpoint.number]
        self.owned_slots.set(np.array([checkpoint.slot]), False)
        return checkpoint.slot

    # --- leases --------------------------------------------------------------------------------

    def path(self, node: Node) -> Iterator[Node]:
        """From a node up to the root, the root left out."""
        while node.parent is not None:
            yield node
            node = node.parent

    def hold(self, node: Node, window_from: Sequence[int], sign: int) -> None:
        """Count a lease in (+1) or out (−1) along the path of `node`."""
        for part in self.path(node):
            self._count(part, -1)
            part.locks += sign
            for window, start in enumerate(window_from):
                if start < part.stop:
                    locks = part.window_locks[window]
                    if locks is None:
                        locks = part.window_locks[window] = np.zeros(len(part), np.int32)
                    locks[max(0, start - part.start) :] += sign
            if not part.locks:
                part.window_locks = [None] * len(part.window_locks)
            self._count(part, 1)
            if sign < 0:
                self._offer(part)

    def hold_state(self, checkpoint: StateCheckpoint, sign: int) -> None:
        """Count a lease on a checkpoint in or out."""
        node = checkpoint.node
        self._count(node, -1)
        node.locked_checkpoints -= checkpoint.locks > 0
        checkpoint.locks += sign
        node.locked_checkpoints += checkpoint.locks > 0
        self._count(node, 1)
        self.state_order.offer(checkpoint.number)

    def loosen(self, node: Node, window: int, start: int, stop: int) -> None:
        """A lease that ends with `node` lets go of the pages `[start, stop)` of a window."""
        for part in self.path(node):
            if part.stop <= start:
                break
            locks = part.window_locks[window]
            assert locks is not None, "a window lock is counted on every page it holds"
            self._count(part, -1)
            locks[max(0, start - part.start) : max(0, stop - part.start)] -= 1
            self._count(part, 1)
            self._offer(part)
