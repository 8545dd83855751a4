"""Publishing a request's pages: what the tree takes, what it has already, what it grafts.

Walks the key through the tree. Pages the tree lacks become its own. For a page it has under another
id there are two copies, and the request's goes. But where the tree's page has lost window rows that
the request's copy still has, it takes over the place of the copy in that band first (a graft): ids are
virtual, so that moves no byte, and it works whoever holds the page. So a prefix that is always in
use gets its window rows back from the first request that computes them again.
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
    the ids of the caller that the tree owns from now on. `grafts`: per window, ids of the caller and
    ids of the tree: `into[i]` is to be bound in that band where `virtual[i]` was. `duplicates`, per
    band in chain order: what the caller then still owns and must free (`full` ids are released).
    `depth` is all that was published; `cached_tokens`: how much of it the tree had before.
    """

    node: int
    depth: int
    cached_tokens: int
    pages: Pages
    taken: Pages
    grafts: tuple[tuple[Pages, Pages], ...]
    duplicates: tuple[Pages, ...]


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
    duplicates = _PerBand(tree)
    grafts: list[list[tuple[Pages, Pages]]] = [[] for _ in shape.windows]
    taken, end, depth = NONE, tree.root, 0
    for node, common in path:
        if common < len(node):
            node = tree.split(node, common)
        mine = pages[depth : depth + common]
        other = np.flatnonzero(mine != node.pages)
        if other.size:
            assert int(other[0]) + other.size == common, "a request's own pages are a tail"
            starts = _own_starts(node, kept, int(other[0]))
            present = []
            for window, (start, first) in enumerate(zip(starts, node.first, strict=True)):
                if start < first:
                    grafts[window].append((mine[start:first], node.pages[start:first]))
                present.append(other >= max(start, first))
            duplicates.add_pages(mine[other], present)
            _graft(tree, node, starts, clock)
        end, depth = node, depth + common
    cached_tokens = depth * shape.page_size
    if depth < count:
        taken = pages[depth:].copy()
        lost = [min(max(0, start - depth), count - depth) for start in kept]
        end = tree._new_node(end, key[depth * unit : count * unit].copy(), taken, clock, lost)
        tree._count(end, 1)
        tree._offer(end)
        tree.owned.set(taken, True)
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
        taken,
        tuple(_joined(pairs) for pairs in grafts),
        duplicates.arrays(),
    )


# --- two copies of a page ---------------------------------------------------------------------


def _own_starts(node: Node, kept: Sequence[int], first_own: int) -> list[int]:
    """From which page of a node on the caller has its own copy with window rows, per window. Its own
    copies are a tail: what it got from a match comes first."""
    return [min(max(first_own, start - node.start), len(node)) for start in kept]


def _graft(tree: PrefixTree, node: Node, starts: Sequence[int], clock: int) -> None:
    """Windows of a node have their rows back from `starts` on, and are used."""
    tree._count(node, -1)
    for window, start in enumerate(starts):
        if start < node.first[window]:
            node.first[window] = start
            node.window_clock[window] = clock
    tree._count(node, 1)
    tree._offer(node)


def _joined(pairs: Sequence[tuple[Pages, Pages]]) -> tuple[Pages, Pages]:
    if not pairs:
        return NONE, NONE
    virtual, into = zip(*pairs, strict=True)
    return np.concatenate(virtual), np.concatenate(into)


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
    if count and (int(pages.min()) < 0 or _has_repeats(pages)):
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


def _has_repeats(ids: Pages) -> bool:
    # Several times faster than np.unique on integers.
    ordered = np.sort(ids)
    return bool((ordered[1:] == ordered[:-1]).any())


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
