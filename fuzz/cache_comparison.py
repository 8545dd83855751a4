"""The prefix cache of an arena against the model's: page by page, not by the numbers that it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from bandscope.allocator.books import Books
from bandscope.allocator.cache import PrefixCache
from bandscope.allocator.checks import Violation
from bandscope.allocator.prefix_nodes import Node
from bandscope.fuzz.model import CachedModel, Model
from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cache import CachedPage

# What one lease of the tree holds: the last page of the prefix (0: none), from where on in each window,
# and the slots.
Held = tuple[int, tuple[int, ...], tuple[int, ...]]


def counts_agree(model: CachedModel, books: Books) -> bool:
    """The numbers of the cache: pages of each band, time, who shares how much."""
    cache = books.cache
    if cache is None:
        return False
    tree, ours = cache.tree, model.cache
    return (
        tree.clock == ours.clock
        and tree.cached == ours.cached
        and tree.evictable == ours.evictable
        and len(tree.checkpoints) == len(ours.by_slot)
        and cache.sharing.keys() == model.requests.keys()
        and cache.pin_requests.keys() == {n for n, p in model.pinned.items() if p.request is not None}
    )


def compare_cache(model: Model, books: Books) -> Iterator[Violation]:
    """Everything that the cache keeps, and all that requests and pins hold of it."""
    cache = books.cache
    if cache is None or not isinstance(model, CachedModel):
        if (cache is None) == isinstance(model, CachedModel):
            yield Violation("ownership", "an arena has a prefix cache that was not asked for, or none")
        return
    tree, ours = cache.tree, model.cache
    told = (tree.clock, tree.cached, tree.evictable, len(tree.checkpoints))
    right = (ours.clock, ours.cached, ours.evictable, len(ours.by_slot))
    if told != right:
        yield Violation(
            "conservation",
            f"the cache counts clock, pages, those that may go and states {told}, {right} is right",
        )
    runs = [page for page in ours.everything() if page.begins]
    if len(tree.nodes) != 1 + len(runs):
        yield Violation("ownership", f"the cache has {len(tree.nodes) - 1} nodes, not {len(runs)}")
    yield from _below(cache, tree.root, ours.root)
    yield from _sharing(model, cache)


def _below(cache: PrefixCache, node: Node, end: CachedPage) -> Iterator[Violation]:
    """The nodes behind one that ends with the page `end`."""
    unit = cache.tree.shape.unit
    left = [(node, end)]
    while left:
        node, end = left.pop()
        firsts = {tuple(child.key[:unit].tolist()): child for child in node.children.values()}
        if firsts.keys() != end.children.keys():
            yield Violation("ownership", f"behind page {end.page} the cache has other pages")
            continue
        for key, child in firsts.items():
            run: list[CachedPage] = []
            for index, at in enumerate(range(0, child.key.size, unit)):
                page = (run[-1] if run else end).children.get(tuple(child.key[at : at + unit].tolist()))
                if page is None or page.begins != (not index):
                    yield Violation("ownership", f"a node behind page {end.page} has other pages")
                    return
                run.append(page)
            yield from _node(cache, child, run)
            if end.children[key] is run[0]:
                left.append((child, run[-1]))


def _node(cache: PrefixCache, node: Node, run: list[CachedPage]) -> Iterator[Violation]:
    told: list[object] = [node.pages.tolist(), node.start, node.clock, node.window_clock]
    right: list[object] = [
        [page.page for page in run], run[0].depth - 1, run[0].clock, run[0].window_clock
    ]  # fmt: skip
    # What a window keeps of a node is its tail.
    told.append(node.first)
    right.append([sum(not page.kept[w] for page in run) for w in range(len(node.first))])
    if told != right or any(
        (page.clock, page.window_clock) != (run[0].clock, run[0].window_clock) for page in run
    ):
        yield Violation("ownership", f"a node of the cache keeps {told}, {right} is right")
    locks = [[0 if one is None else int(one[i]) for one in node.window_locks] for i in range(len(run))]
    if {page.holders for page in run} != {node.locks} or locks != [p.window_holders for p in run]:
        yield Violation(
            "ownership",
            f"node {node.number} of the cache is held by {node.locks}, its window pages by {locks}; "
            f"{[(page.holders, page.window_holders) for page in run]} is right",
        )
    states = {d: (one.slot, one.clock, one.locks) for d, one in node.checkpoints.items()}
    known = {
        page.depth: (page.slot, page.slot_clock, page.slot_holders)
        for page in run
        if page.slot != NOTHING
    }
    if states != known:
        yield Violation("ownership", f"the cache keeps states {states}, {known} is right")


def _sharing(model: CachedModel, cache: PrefixCache) -> Iterator[Violation]:
    if cache.sharing.keys() != model.requests.keys():
        yield Violation("ownership", "other requests share prefixes than run")
        return
    for number, request in model.requests.items():
        sharing = cache.sharing[number]
        told = sharing.pages, tuple(sharing.key.tolist()), _held(cache, sharing.lease)
        path, first = request.path, [request.first_kept[n] for n in model.stated]
        last = path[-1].page if path else NOTHING
        held: Held = last, tuple(min(start, len(path)) for start in first), ()
        if told != (len(path), request.key, held):
            yield Violation(
                "ownership", f"request {number} shares {told}, {(len(path), request.key, held)} is right"
            )
    owners = {n: p.request.number for n, p in model.pinned.items() if p.request is not None}
    if cache.pin_requests != owners:
        yield Violation("pins", f"pins follow requests {cache.pin_requests}, {owners} is right")
    for number, pinned in model.pinned.items():
        lease = cache.pin_leases.get(number)
        nothing = tuple([0] * len(model.stated))
        told_pin = (NOTHING, nothing, ()) if lease is None else _held(cache, lease)
        slots = tuple(sorted(page.slot for page in pinned.after))
        last = pinned.path[-1].page if pinned.path else NOTHING
        if told_pin != (last, nothing, slots):
            yield Violation("pins", f"lease {number} keeps {told_pin} of the cache, {slots} and {last}")
    if not cache.pin_leases.keys() <= model.pinned.keys():
        yield Violation("pins", "pins that have ended hold pages of the cache")


def _held(cache: PrefixCache, number: int) -> Held:
    lease = cache.tree.leases[number]
    last = int(lease.node.pages[-1]) if lease.node.pages.size else NOTHING
    slots = tuple(sorted(one.slot for one in lease.held))
    return last, tuple(lease.window_from), slots
