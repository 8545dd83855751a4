"""Every invariant of a prefix tree, recomputed from its nodes and leases, never from its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_nodes import Node


class PrefixViolation(NamedTuple):
    """An invariant that does not hold, and where."""

    invariant: str
    message: str


def check(tree: PrefixTree) -> list[PrefixViolation]:
    """All violations, empty when healthy. Cost follows what the tree holds."""
    rules = (_structure, _ownership, _locks, _checkpoints, _counts, _orders, _clocks)
    return [PrefixViolation(rule.__name__[1:], text) for rule in rules for text in rule(tree)]


def _nodes(tree: PrefixTree) -> list[Node]:
    return [node for number, node in sorted(tree.nodes.items()) if number]


def _structure(tree: PrefixTree) -> Iterator[str]:
    """Whole pages, parents and children agree, children differ in their first page."""
    unit = tree.shape.unit
    children = {0: 0} | {number: 0 for number in tree.nodes}
    for node in _nodes(tree):
        name = f"node {node.number}"
        if not len(node):
            yield f"{name} holds no page"
        if node.key.size != len(node) * unit:
            yield f"{name} has {len(node)} pages and a key of {node.key.size}, {unit} a page"
        parent = node.parent
        if parent is None or tree.nodes.get(parent.number) is not parent:
            yield f"{name} has no parent in the tree"
            continue
        children[parent.number] += 1
        if node.start != parent.stop:
            yield f"{name} starts at page {node.start}, its parent ends at {parent.stop}"
        if parent.children.get(tree.first_page(node.key)) is not node:
            yield f"{name} is not under its parent by the key of its first page"
        for window, first in enumerate(node.first):
            if not 0 <= first <= len(node):
                yield f"{name} keeps window {window} from page {first} of {len(node)}"
    for number, node in tree.nodes.items():
        if children[number] != len(node.children):
            yield f"node {number} lists {len(node.children)} children and has {children[number]}"


def _ownership(tree: PrefixTree) -> Iterator[str]:
    """A page (a slot) is owned at one place, and the marks say so."""
    pages = [node.pages for node in _nodes(tree)]
    slots = [np.array([check.slot], np.int64) for check in tree.checkpoints.values()]
    for what, parts, owned in (("page", pages, tree.owned), ("slot", slots, tree.owned_slots)):
        ids = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        marked = np.flatnonzero(owned.mark)
        if np.array_equal(ids, marked):  # sorted, each once
            continue
        twice = np.unique(ids[1:][ids[1:] == ids[:-1]])
        if twice.size:
            yield f"{what}s {twice.tolist()} are owned twice"
        differ = np.setxor1d(ids, marked)
        if differ.size:
            yield f"{what}s {differ.tolist()} are marked and not in the tree, or the reverse"


def _locks(tree: PrefixTree) -> Iterator[str]:
    """Counts equal sharers: of nodes, of window pages, of checkpoints. What is held is there."""
    shape = tree.shape
    sharers: Counter[int] = Counter()
    windows = {n.number: np.zeros((len(shape.windows), len(n)), np.int64) for n in _nodes(tree)}
    states: Counter[int] = Counter()
    for lease in tree.leases.values():
        if tree.nodes.get(lease.node.number) is not lease.node:
            yield f"lease {lease.number} holds node {lease.node.number}, which is gone"
            continue
        for node in tree.path(lease.node):
            sharers[node.number] += 1
            for window, start in enumerate(lease.window_from):
                windows[node.number][window, max(0, start - node.start) :] += 1
        states.update(checkpoint.number for checkpoint in lease.held)
    for node in _nodes(tree):
        if node.locks != sharers[node.number]:
            yield f"node {node.number} counts {node.locks} leases and has {sharers[node.number]}"
        for window, expected in enumerate(windows[node.number]):
            locks = node.window_locks[window]
            have = np.zeros(len(node), np.int64) if locks is None else locks
            if not np.array_equal(have, expected):
                yield f"node {node.number} counts {have} leases in window {window}, not {expected}"
    for number, checkpoint in tree.checkpoints.items():
        if checkpoint.locks != states[number]:
            yield f"checkpoint {number} counts {checkpoint.locks} leases and has {states[number]}"
    if set(states) - set(tree.checkpoints):
        yield f"checkpoints {sorted(set(states) - set(tree.checkpoints))} are held and gone"


def _checkpoints(tree: PrefixTree) -> Iterator[str]:
    """Checkpoints lie on the grid, inside their node, and the node knows them."""
    shape, listed = tree.shape, 0
    for node in _nodes(tree):
        listed += len(node.depths)
        if node.depths != sorted(node.checkpoints):
            yield f"node {node.number} lists depths {node.depths}, not {sorted(node.checkpoints)}"
        locked = sum(check.locks > 0 for check in node.checkpoints.values())
        if locked != node.locked_checkpoints:
            yield f"node {node.number} counts {node.locked_checkpoints} held checkpoints, not {locked}"
        for depth, checkpoint in node.checkpoints.items():
            name = f"checkpoint {checkpoint.number} after {depth} pages"
            if checkpoint.depth != depth or checkpoint.node is not node:
                yield f"{name} says it is after {checkpoint.depth} in node {checkpoint.node.number}"
            if not node.start < depth <= node.stop:
                yield f"{name} lies outside node {node.number}, {node.start} to {node.stop}"
            if shape.state is None or depth * shape.page_size % shape.grid_tokens:
                yield f"{name} is off the grid of {shape.grid_tokens} tokens"
            if tree.checkpoints.get(checkpoint.number) is not checkpoint:
                yield f"{name} is not in the list of all"
    if listed != len(tree.checkpoints):
        yield f"{len(tree.checkpoints)} checkpoints are listed, {listed} are on nodes"


def _counts(tree: PrefixTree) -> Iterator[str]:
    """Cached and evictable pages per band, and bytes."""
    shape = tree.shape
    cached, evictable = [0] * shape.bands, [0] * shape.bands
    for node in _nodes(tree):
        for band in (shape.full, *shape.companions):
            cached[band] += len(node)
            evictable[band] += 0 if node.locks else len(node)
        for window, band in enumerate(shape.windows):
            cached[band] += len(node) - node.first[window]
            locks = node.window_locks[window]
            free = np.ones(len(node), bool) if locks is None else locks == 0
            evictable[band] += int(free[node.first[window] :].sum())
        if shape.state is not None:
            cached[shape.state] += len(node.checkpoints)
            evictable[shape.state] += sum(not c.locks for c in node.checkpoints.values())
    for what, counted, found in (
        ("cached", tree.cached, cached),
        ("evictable", tree.evictable, evictable),
    ):
        if counted != found:
            yield f"{counted} {what} pages are counted per band, {found} are in the tree"
    total = sum(n * size for n, size in zip(cached, shape.page_bytes, strict=True))
    if tree.cached_bytes != total:
        yield f"{tree.cached_bytes} bytes are counted, {total} are in the tree"


def _orders(tree: PrefixTree) -> Iterator[str]:
    """The orders of eviction hold exactly what may go."""
    shape = tree.shape
    leaves = {n.number for n in _nodes(tree) if not n.locks and not n.children}
    if tree.full_order.candidates() != leaves:
        yield f"full may evict {tree.full_order.candidates()}; the free leaves are {leaves}"
    for window, order in enumerate(tree.window_orders):
        may = set()
        for node in _nodes(tree):
            locks = node.window_locks[window]
            kept = slice(node.first[window], None)
            if len(node.pages[kept]) and (locks is None or not locks[kept].all()):
                may.add(node.number)
        if order.candidates() != may:
            yield f"{shape.windows[window]} may evict {order.candidates()}; free pages are in {may}"
    free = {number for number, check in tree.checkpoints.items() if not check.locks}
    if tree.state_order.candidates() != free:
        yield f"state may evict {tree.state_order.candidates()}; the free checkpoints are {free}"


def _clocks(tree: PrefixTree) -> Iterator[str]:
    """A prefix was used no earlier than what continues it, window pages no later than their node."""
    for node in _nodes(tree):
        parent = node.parent
        if parent is not None and parent is not tree.root and parent.clock < node.clock:
            yield f"node {node.number} was used at {node.clock}, its parent at {parent.clock}"
        if max([*node.window_clock, node.clock]) > min(node.clock, tree.clock):
            yield f"node {node.number} was used at {node.clock}, its windows at {node.window_clock}"
