"""How far running requests share pages: what admission subtracts for pages that are counted twice.

Pages that requests share are prefixes in one tree, so two rows of virtual pages agree on a leading run
and nowhere behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.requests import RequestLedger
from bandscope.allocator.tables import Pages


def common_pages(ledger: RequestLedger, requests: Sequence[int], pages: Pages) -> np.ndarray:
    """Leading pages that running requests have in common with `pages`: (requests,). A binary search
    in the cached parts of all rows at once."""
    # Asked for each decision about all that run: without the checks of `ledger.rows`.
    rows = np.fromiter(map(ledger.row_of.__getitem__, requests), np.int64, count=len(requests))
    low = np.zeros(rows.size, np.int64)
    high = np.minimum(ledger.cached[rows], pages.size)
    searching = np.flatnonzero(high)
    middle = np.ones(searching.size, np.int64)  # most rows differ in their first page
    first = True
    while searching.size:
        same = ledger.pages[rows[searching], middle - 1] == pages[middle - 1]
        low[searching] = np.where(same, middle, low[searching])
        high[searching] = np.where(same, high[searching], middle - 1)
        searching = searching[low[searching] < high[searching]]
        # And most of the others agree to the end.
        middle = high[searching] if first else (low[searching] + high[searching] + 1) >> 1
        first = False
    return low


def later_held_pages(tree: PrefixTree, leases: Sequence[int]) -> np.ndarray:
    """Leading pages that each lease shares with one before it in the list: (leases,).

    The prefix of a lease ends where a node ends, and so does what two of them share. So it is the
    depth of the first node on the way up that another has passed: each node is passed once.
    """
    passed: set[int] = set()
    shared = np.zeros(len(leases), np.int64)
    for index, lease in enumerate(leases):
        node = tree.held(lease).node
        while node.number not in passed and node.parent is not None:
            passed.add(node.number)
            node = node.parent
        shared[index] = node.stop
    return shared


def pages_of_lease(tree: PrefixTree, lease: int) -> np.ndarray:
    """Pages per band that a lease of the prefix cache holds, shared ones included: (bands,)."""
    shape, held = tree.shape, tree.held(lease)
    pages = np.zeros(shape.bands, np.int64)
    for band in (shape.full, *shape.companions):
        pages[band] = held.node.stop
    for window, band in enumerate(shape.windows):
        pages[band] = max(0, held.node.stop - held.window_from[window])
    if shape.state is not None:
        pages[shape.state] = len(held.held)
    return pages
