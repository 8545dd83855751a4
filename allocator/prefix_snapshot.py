"""A prefix tree as plain data, and back. Orders, counts and locks follow from the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator.prefix_nodes import Node, PrefixLease, StateCheckpoint

if TYPE_CHECKING:
    from bandscope.allocator.prefix import PrefixTree


def snapshot(tree: PrefixTree) -> dict[str, Any]:
    """See `PrefixTree.snapshot`."""
    nodes = [tree.nodes[number] for number in sorted(tree.nodes)]
    return {
        "clock": tree.clock,
        "next": (tree.next_node, tree.next_checkpoint, tree.next_lease),
        "nodes": [
            (
                node.number,
                -1 if node.parent is None else node.parent.number,
                node.start,
                node.clock,
                tuple(node.first),
                tuple(node.window_clock),
            )
            for node in nodes
        ],
        # Never written in place, so they need no copy.
        "keys": [node.key for node in nodes],
        "pages": [node.pages for node in nodes],
        "checkpoints": [
            (check.number, check.depth, check.slot, check.clock, check.node.number)
            for _, check in sorted(tree.checkpoints.items())
        ],
        "leases": [
            (
                lease.number,
                lease.node.number,
                tuple(lease.window_from),
                tuple(check.number for check in lease.held),
            )
            for _, lease in sorted(tree.leases.items())
        ],
    }


def restore(tree: PrefixTree, state: dict[str, Any]) -> None:
    """Fill an empty tree with what `snapshot` gave."""
    tree.clock = state["clock"]
    tree.next_node, tree.next_checkpoint, tree.next_lease = state["next"]
    rows: list[tuple[Any, ...]] = state["nodes"]
    keys: list[np.ndarray] = state["keys"]
    pages: list[np.ndarray] = state["pages"]
    for (number, _, start, clock, first, window_clock), key, ids in zip(rows, keys, pages, strict=True):
        if number == 0:
            tree.root.clock, tree.root.window_clock = clock, list(window_clock)
            continue
        node = Node(number, None, start, key, ids, clock, list(first), list(window_clock))
        node.window_locks = [None] * len(first)
        tree.nodes[number] = node
        tree.owned.set(ids, True)
    for number, parent, *_ in rows:
        if number:
            node = tree.nodes[number]
            node.parent = tree.nodes[parent]
            node.parent.children[tree.first_page(node.key)] = node
            tree._count(node, 1)
    for number, depth, slot, clock, at in state["checkpoints"]:
        node = tree.nodes[at]
        tree._count(node, -1)
        checkpoint = StateCheckpoint(number, depth, slot, clock, node)
        node.add_checkpoint(checkpoint)
        tree._count(node, 1)
        tree.checkpoints[number] = checkpoint
        tree.owned_slots.set(np.array([slot], np.int64), True)
    for number, at, window_from, held in state["leases"]:
        lease = PrefixLease(
            number, tree.nodes[at], list(window_from), [tree.checkpoints[check] for check in held]
        )
        tree.leases[number] = lease
        tree._hold_lease(lease, 1)
    for number in sorted(tree.nodes):
        tree._offer(tree.nodes[number])
    for number in sorted(tree.checkpoints):
        tree.state_order.offer(number)
