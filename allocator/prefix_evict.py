"""Which cached pages go when memory is short.

Within a band the one used longest ago goes first: leaves of the tree from their ends (`full`, with
everything on those pages), the front of what a node keeps (windows), single checkpoints (state). The
rule between bands is the policy's:

- `joint_lru`: one order over full and window pages: whichever was used longest ago goes next, until
  the demand is served. (With several windows or state it is `lru`.)
- `lru`: the bands that the demand asks for pay, no band more than is asked of it. Where that does not
  serve, one band more pays: the one that does with the fewest bytes. Where no single one does, all may.
  Of these bands the one whose next victim was used longest ago gives next.

Then what turned out not to be needed is given back, so no page that went could have stayed.

What a lease holds never goes. A demand that cannot be served costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from bandscope.allocator.prefix_books import NONE
from bandscope.allocator.prefix_nodes import Node, StateCheckpoint
from bandscope.allocator.prefix_order import Key
from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    from bandscope.allocator.prefix import PrefixTree

#: Whether memory serves the demand once so many pages per band are free.
Serves = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, eq=False)
class Evicted:
    """`served`: the demand is served now. `pages`: what to free, per band in chain order: virtual
    pages (those of `full` are released too), slots of the state band."""

    served: bool
    pages: tuple[Pages, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(int(ids.size) for ids in self.pages)


def evict(tree: PrefixTree, wanted: Sequence[int], serves: Serves) -> Evicted:
    """See `PrefixTree.evict`."""
    nothing = tuple(NONE for _ in tree.evictable)
    if serves((0,) * tree.shape.bands):
        return Evicted(True, nothing)
    if not serves(tuple(tree.evictable)):
        return Evicted(False, nothing)
    run = _Eviction(tree, serves)
    try:
        run.plan(run.payments(wanted))
        run.reduce()
        return Evicted(True, run.carry_out())
    finally:
        run.close()


class _Victims:
    """The victims of one band in the order of their last use, taken one by one and not yet evicted."""

    def __init__(self, tree: PrefixTree, band: int) -> None:
        self._tree = tree
        shape = tree.shape
        self._full, self._state = band == shape.full, band == shape.state
        self._window = shape.windows.index(band) if band in shape.windows else 0
        if self._full:
            self._order = tree.full_order
        else:
            self._order = tree.state_order if self._state else tree.window_orders[self._window]
        self._taken: list[int] = []
        self._bare: list[Key] = []  # nodes that are leaves once all taken ones are gone
        self._children: dict[int, int] = {}
        self.next: Key | None = self._draw()

    def _draw(self) -> Key | None:
        if self._bare:
            head = self._order.head()
            if head is None or self._bare[0] < head:
                return heappop(self._bare)
        key = self._order.pop()
        if key is not None:
            self._taken.append(key[2])
        return key

    def victim(self) -> tuple[Node | StateCheckpoint, int]:
        """The next victim and how many pages (slots) it can give."""
        assert self.next is not None
        number = self.next[2]
        if self._state:
            return self._tree.checkpoints[number], 1
        node = self._tree.nodes[number]
        return node, len(node) if self._full else node.evictable_window(self._window)

    def advance(self) -> None:
        """The next victim is to go as a whole."""
        assert self.next is not None
        if self._full:
            parent = self._tree.nodes[self.next[2]].parent
            assert parent is not None
            left = self._children.get(parent.number, len(parent.children)) - 1
            self._children[parent.number] = left
            if not left and not parent.locks and parent.parent is not None:
                heappush(self._bare, (parent.clock, parent.start, parent.number))
        self.next = self._draw()

    def put_back(self) -> None:
        """What was taken out of the order and is still there goes back."""
        for number in self._taken:
            self._order.offer(number)


class _Plan:
    """What is to go of one node: its last `tail` pages, the first `front[w]` that window `w` keeps of
    it, and checkpoints by depth."""

    __slots__ = ("depths", "front", "node", "tail")

    def __init__(self, node: Node, windows: int) -> None:
        self.node = node
        self.tail = 0
        self.front = [0] * windows
        self.depths: set[int] = set()


class _Eviction:
    """One call: a plan is made, made smaller, and carried out."""

    def __init__(self, tree: PrefixTree, serves: Serves) -> None:
        self.tree = tree
        self.serves = serves
        shape = tree.shape
        self.bands = [shape.full, *shape.windows]
        if shape.state is not None:
            self.bands.append(shape.state)
        self.victims: dict[int, _Victims] = {}
        self.counts = [0] * shape.bands
        self.plans: dict[int, _Plan] = {}
        self.steps: dict[int, list[tuple[Node | StateCheckpoint, int]]] = {b: [] for b in self.bands}

    def enough(self) -> bool:
        """Whether memory serves with what the plan gives up."""
        return self.serves(tuple(self.counts))

    # --- who may be asked for how much -----------------------------------------------------------

    def payments(self, wanted: Sequence[int]) -> list[int]:
        """The most pages that each band may be asked for, by the policy's rule."""
        evictable, shape = self.tree.evictable, self.tree.shape
        if shape.shared_order:
            return list(evictable)
        most = [0] * shape.bands
        for band in self.bands:
            most[band] = min(wanted[band], evictable[band])
        if self.serves(self._with_companions(most)):
            return most
        offers = []
        for rank, band in enumerate(self.bands):

            def enough(count: int, band: int = band) -> bool:
                more = [count if b == band else pages for b, pages in enumerate(most)]
                return self.serves(self._with_companions(more))

            if evictable[band] > most[band] and enough(evictable[band]):
                pages = _least(evictable[band], enough)
                cost = (pages - most[band]) * shape.page_bytes[band]
                offers.append((cost, rank, band, pages))
        if not offers:
            return list(evictable)
        *_, band, pages = min(offers)
        most[band] = pages
        return most

    def _with_companions(self, most: Sequence[int]) -> tuple[int, ...]:
        more = list(most)
        for band in self.tree.shape.companions:
            more[band] = more[self.tree.shape.full]
        return tuple(more)

    # --- the plan --------------------------------------------------------------------------------

    def plan(self, most: Sequence[int]) -> None:
        """The victim used longest ago goes next, of the bands that have not given their most, until
        the demand is served. Of the last one no more pages go than serve."""
        left = list(most)
        self.victims = {band: _Victims(self.tree, band) for band in self.bands if left[band]}
        while not self.enough():
            heads = [
                (victims.next[0], rank)
                for rank, band in enumerate(self.bands)
                if left[band] and (victims := self.victims[band]).next is not None
            ]
            assert heads, "what may be asked for serves"
            band = self.bands[min(heads)[1]]
            victim, pages = self.victims[band].victim()
            pages = min(pages, left[band])
            self.change(band, victim, pages)
            if self.enough() and pages > 1:
                self.change(band, victim, -pages)
                pages = _least(pages, lambda n, b=band, v=victim: self.enough_with(b, v, n))  # type: ignore[misc]
                self.change(band, victim, pages)
            self.steps[band].append((victim, pages))
            left[band] -= pages
            if left[band]:
                self.victims[band].advance()

    def reduce(self) -> None:
        """Give back what turned out not to be needed: of each band what would have gone last, where
        victims of another band that came later are enough."""
        for band in sorted(self.bands, key=lambda b: (-self.tree.shape.page_bytes[b], b)):
            steps = self.steps[band]
            while steps:
                victim, pages = steps[-1]
                if not self.enough_with(band, victim, -1):
                    break
                self.change(band, victim, -pages)
                if self.enough():
                    steps.pop()
                    continue
                kept = _least(pages, lambda n, b=band, v=victim: self.enough_with(b, v, n))  # type: ignore[misc]
                self.change(band, victim, kept)
                steps[-1] = (victim, kept)
                break

    def enough_with(self, band: int, victim: Node | StateCheckpoint, pages: int) -> bool:
        """`enough`, were so many pages more (less) of this victim to go."""
        self.change(band, victim, pages)
        answer = self.enough()
        self.change(band, victim, -pages)
        return answer

    def change(self, band: int, victim: Node | StateCheckpoint, pages: int) -> None:
        """So many pages more (less) of a victim are to go."""
        shape = self.tree.shape
        node = victim.node if isinstance(victim, StateCheckpoint) else victim
        plan = self.plans.get(node.number)
        if plan is None:
            plan = self.plans[node.number] = _Plan(node, len(shape.windows))
        self._count(plan, -1)
        if isinstance(victim, StateCheckpoint):
            plan.depths ^= {victim.depth}
        elif band == shape.full:
            plan.tail += pages
        else:
            plan.front[shape.windows.index(band)] += pages
        self._count(plan, 1)

    def _count(self, plan: _Plan, sign: int) -> None:
        shape, node, counts = self.tree.shape, plan.node, self.counts
        size = len(node)
        left = size - plan.tail
        for band in (shape.full, *shape.companions):
            counts[band] += sign * plan.tail
        for window, band in enumerate(shape.windows):
            first = node.first[window]
            with_tail = size - max(first, left)  # pages that go along with those of `full`
            counts[band] += sign * min(size - first, plan.front[window] + with_tail)
        if shape.state is not None:
            stop = node.start + left
            with_tail = len(node.depths) - bisect_right(node.depths, stop)
            alone = sum(depth <= stop for depth in plan.depths)
            counts[shape.state] += sign * (with_tail + alone)

    # --- carrying it out -------------------------------------------------------------------------

    def carry_out(self) -> tuple[Pages, ...]:
        """Evict what the plan says; returns the pages per band."""
        tree, shape = self.tree, self.tree.shape
        parts: list[list[Pages]] = [[] for _ in range(shape.bands)]
        # Pages of `full` go last: they take along what is left on them.
        for band in (*shape.windows, *([] if shape.state is None else [shape.state]), shape.full):
            for victim, pages in self.steps[band]:
                if isinstance(victim, StateCheckpoint):
                    parts[band].append(np.array([tree.drop_checkpoint(victim)], np.int64))
                elif band == shape.full:
                    for index, ids in enumerate(tree.drop_tail(victim, pages)):
                        parts[index].append(ids)
                else:
                    window = shape.windows.index(band)
                    parts[band].append(tree.drop_window(victim, window, pages))
        return tuple(np.concatenate(ids) if ids else NONE for ids in parts)

    def close(self) -> None:
        for victims in self.victims.values():
            victims.put_back()


def _least(most: int, enough: Callable[[int], bool]) -> int:
    """The fewest of 1 … `most` that are enough; `most` when none is."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high
