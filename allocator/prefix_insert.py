"""Publishing a request's pages: what the tree takes, what it has already, what it swaps.

Walks the key through the tree. Pages the tree lacks become its own. For a page it has under another
id there are two copies, and one must go: the request's, unless the tree's has lost window rows that
the request's still has. Then the tree takes the request's copy and gives up its own, if nobody holds
it. A page that somebody holds stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bandscope.allocator.errors import MisuseError
from bandscope.allocator.prefix_books import NONE
from bandscope.allocator.prefix_nodes import Node
from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    from bandscope.allocator.prefix import PrefixTree


@dataclass(frozen=True, eq=False)
class Inserted:
    """What became of published pages.

    The first `depth` pages of the sequence are in the tree, as `pages`, ending with `node`. `taken`:
    the ids of the caller that the tree owns from now on. Per band, in chain order: `duplicates`, what
    the caller owned and must free (`full` ids are then released), and `replaced`, what the tree
    owned and must be freed likewise. `cached_tokens`: how much of it the tree had before.
    """

    node: int
    depth: int
    cached_tokens: int
    pages: Pages
    taken: Pages
    duplicates: tuple[Pages, ...]
    replaced: tuple[Pages, ...]


class _PerBand:
    """Ids per band, gathered."""

    def __init__(self, tree: PrefixTree) -> None:
        self._shape = tree.shape
        self._parts: list[list[Pages]] = [[] for _ in range(tree.shape.bands)]

    def add(self, band: int, ids: Pages) -> None:
        if ids.size:
            self._parts[band].append(ids)

    def add_pages(self, ids: Pages, present: Sequence[np.ndarray]) -> None:
        """Whole pages; `present[w]` says which of them window number `w` keeps."""
        for band in (self._shape.full, *self._shape.companions):
            self.add(band, ids)
        for band, kept in zip(self._shape.windows, present, strict=True):
            self.add(band, ids[kept])

    def arrays(self) -> tuple[Pages, ...]:
        return tuple(np.concatenate(parts) if parts else NONE for parts in self._parts)


def insert(
    tree: PrefixTree,
    key: Sequence[int] | np.ndarray,
    pages: Pages,
    clock: int,
    kept_from: Sequence[int],
    checkpoints: Sequence[tuple[int, int]],
    lease: int | None,
) -> Inserted:
    """See `PrefixTree.insert`."""
    shape, unit = tree.shape, tree.shape.unit
    pages = np.ascontiguousarray(pages, np.int64)
    count = int(pages.size)
    key = tree.key_array(key)
    kept = list(kept_from) if len(kept_from) else [0] * len(shape.windows)
    _check_arguments(tree, key, pages, kept, checkpoints)
    path = tree.walk(key, count)
    _check_owners(tree, path, pages)
    if lease is not None:
        _check_lease(tree, lease, path, pages, kept)

    tree.clock = clock
    duplicates, replaced = _PerBand(tree), _PerBand(tree)
    taken: list[Pages] = []
    end, depth, cut = tree.root, 0, False
    for node, common in path:
        if common < len(node):
            node = tree.split(node, common)
        mine = pages[depth : depth + common]
        other = mine != node.pages
        if other.any():
            starts = _own_starts(node, kept, other)
            swap = _swappable(node, starts, other)
            if swap is not None:
                taken.append(_swap(tree, node, mine, starts, swap, replaced))
                other[slice(*swap)] = False
            elif lease is not None:
                lost = _first_lost(node, starts, other)
                if lost is not None:
                    cut = True
                    if not lost:
                        break
                    node = tree.split(node, lost)
                    mine, other = mine[:lost], other[:lost]
            duplicates.add_pages(
                mine[other], [np.flatnonzero(other) >= start for start in starts]
            )
        end, depth = node, depth + mine.size
        if cut:
            break
    cached_tokens = depth * shape.page_size
    if depth < count and not cut:
        fresh = pages[depth:].copy()
        first = [min(max(0, start - depth), count - depth) for start in kept]
        end = tree._new_node(end, key[depth * unit : count * unit].copy(), fresh, clock, first)
        tree._count(end, 1)
        tree._offer(end)
        tree.owned.set(fresh, True)
        taken.append(fresh)
        depth = count
    spare = _add_checkpoints(tree, end, clock, checkpoints)
    if shape.state is not None:
        duplicates.add(shape.state, spare)
    tree._touch(end, [max(0, depth - reach) for reach in shape.reaches], clock)
    if lease is not None:
        held = tree.held(lease)
        window_from = [min(start, end.stop) for start in kept]
        tree.hold(end, window_from, 1)
        tree.hold(held.node, held.window_from, -1)
        held.node, held.window_from = end, window_from
    found = [part.pages for part in tree.path(end)]
    return Inserted(
        end.number,
        depth,
        cached_tokens,
        np.concatenate(found[::-1]) if found else NONE,
        np.concatenate(taken) if taken else NONE,
        duplicates.arrays(),
        replaced.arrays(),
    )


# --- two copies of a page ---------------------------------------------------------------------


def _own_starts(node: Node, kept: Sequence[int], other: np.ndarray) -> list[int]:
    """From which page of a node on the caller has its own copy with window rows, per window."""
    first_own = int(other.argmax())
    return [min(max(first_own, start - node.start), len(node)) for start in kept]


def _swappable(node: Node, starts: Sequence[int], other: np.ndarray) -> tuple[int, int] | None:
    """The pages of a node to take from the caller, because they have window rows that the tree's lack
    and lack none that the tree's have; None when there are none, or somebody holds them."""
    gains = [(s, f) for s, f in zip(starts, node.first, strict=True) if s < f]
    if node.locks or not gains:
        return None
    low, high = min(s for s, _ in gains), max(f for _, f in gains)
    if not other[low:high].all():
        return None
    for start, first in zip(starts, node.first, strict=True):
        if max(low, first) < min(high, start):
            return None
    return low, high


def _swap(
    tree: PrefixTree,
    node: Node,
    mine: Pages,
    starts: Sequence[int],
    swap: tuple[int, int],
    replaced: _PerBand,
) -> Pages:
    low, high = swap
    old, new = node.pages[low:high], mine[low:high].copy()
    places = np.arange(low, high)
    replaced.add_pages(old, [places >= first for first in node.first])
    tree._count(node, -1)
    tree.owned.set(old, False)
    tree.owned.set(new, True)
    node.pages = np.concatenate([node.pages[:low], new, node.pages[high:]])
    node.first = [min(pair) for pair in zip(starts, node.first, strict=True)]
    tree._count(node, 1)
    tree._offer(node)
    return new


def _first_lost(node: Node, starts: Sequence[int], other: np.ndarray) -> int | None:
    """The first page of which the caller has window rows that the tree lacks."""
    lost = [
        start + int(other[start:first].argmax())
        for start, first in zip(starts, node.first, strict=True)
        if other[start:first].any()
    ]
    return min(lost, default=None)


def _add_checkpoints(
    tree: PrefixTree, end: Node, clock: int, checkpoints: Sequence[tuple[int, int]]
) -> Pages:
    """Put checkpoints on the path that ends with `end`; returns the slots that are not needed."""
    spare = []
    for tokens, slot in checkpoints:
        depth = tokens // tree.shape.page_size
        node = next((part for part in tree.path(end) if part.start < depth <= part.stop), None)
        there = None if node is None else node.checkpoints.get(depth)
        if there is not None:
            there.clock = clock
        if node is None or there is not None:
            spare.append(slot)
        else:
            tree._add_checkpoint(node, depth, slot, clock)
    return np.array(spare, np.int64)


# --- what is refused --------------------------------------------------------------------------


def _check_arguments(
    tree: PrefixTree,
    key: np.ndarray,
    pages: Pages,
    kept: Sequence[int],
    checkpoints: Sequence[tuple[int, int]],
) -> None:
    shape, count = tree.shape, int(pages.size)
    if pages.ndim != 1 or key.size < count * shape.unit:
        raise MisuseError(
            f"{count} pages were published under a key for {key.size // shape.unit}; give the whole key"
        )
    if len(kept) != len(shape.windows) or min(kept, default=0) < 0:
        raise MisuseError(
            f"pages were published with windows from {kept}; give a page ≥ 0 for each of "
            f"{len(shape.windows)} windows"
        )
    if count and (int(pages.min()) < 0 or np.unique(pages).size != count):
        raise MisuseError("pages were published with an id twice, or below 0; give each page once")
    slots = [slot for _, slot in checkpoints]
    depths = [tokens for tokens, _ in checkpoints]
    if checkpoints and shape.state is None:
        raise MisuseError("a checkpoint was published on a model without state; leave it out")
    for tokens in depths:
        if tokens % shape.grid_tokens or not 0 < tokens <= count * shape.page_size:
            raise MisuseError(
                f"a checkpoint after {tokens} tokens was published with {count} pages; give one on the "
                f"grid of {shape.grid_tokens} tokens, inside the pages"
            )
    if len(set(slots)) < len(slots) or len(set(depths)) < len(depths) or min(slots, default=0) < 0:
        raise MisuseError(f"the checkpoints {list(checkpoints)} name a slot or a place twice")
    if tree.owned_slots.any(np.array(slots, np.int64)):
        raise MisuseError(f"a slot of {slots} is the prefix cache's already; copy it into a new one")


def _check_owners(tree: PrefixTree, path: Sequence[tuple[Node, int]], pages: Pages) -> None:
    depth, own = 0, []
    for node, common in path:
        mine = pages[depth : depth + common]
        own.append(mine[mine != node.pages[:common]])
        depth += common
    own.append(pages[depth:])
    if any(tree.owned.any(ids) for ids in own):
        raise MisuseError(
            "pages were published that the prefix cache owns at another place; publish a request's "
            "own pages after those that its match gave it"
        )


def _check_lease(
    tree: PrefixTree,
    lease: int,
    path: Sequence[tuple[Node, int]],
    pages: Pages,
    kept: Sequence[int],
) -> None:
    held = tree.held(lease)
    follows = held.node is tree.root
    for node, common in path:
        if common < len(node) or (pages[node.start : node.stop] != node.pages).any():
            break
        follows = follows or node is held.node
    if not follows:
        raise MisuseError(
            f"lease {lease} was to follow a sequence that does not begin with the prefix it holds; "
            "publish under the lease of the same request"
        )
    if any(start < old for start, old in zip(kept, held.window_from, strict=True)):
        raise MisuseError(
            f"pages were published with windows from {list(kept)}, but lease {lease} holds windows "
            f"from {held.window_from}; trim the request and its lease alike"
        )
