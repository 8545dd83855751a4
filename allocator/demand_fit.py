"""Does memory hold a demand? Many rows of pages at once, by the chain's own rule.

`Chain.pack` packs the bands as low as they go and decides exactly whether one demand fits. This is
the same walk for many demands together: one pass of array operations over the bands, whatever the
number of rows. Rows are pages per band in chain order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bandscope.allocator.plan import StoragePlan

if TYPE_CHECKING:
    from bandscope.allocator.books import Books

#: Shortage of a row that no arena of any size holds: a page that cannot move is in the way.
BLOCKED_BYTES = 1 << 62


def packed_tops(page_bytes: Sequence[int], sink_bytes: int, rows: np.ndarray) -> np.ndarray:
    """First free byte above the bands when `rows` pages are packed as low as they go: (rows,)."""
    top = np.full(rows.shape[0], sink_bytes, np.int64)
    for index, size in enumerate(page_bytes):
        pages = rows[:, index]
        top = np.where(pages > 0, (-(-top // size) + pages) * size, top)
    return top


def shortage_when_empty(plan: StoragePlan, total_bytes: int, rows: np.ndarray) -> np.ndarray:
    """Bytes that an otherwise empty arena is short of, by row; ≤ 0 where the row fits."""
    sizes = [band.page_bytes for band in plan.bands]
    short: np.ndarray = packed_tops(sizes, plan.sink_bytes, rows) - total_bytes
    return short


def shortage(books: Books, rows: np.ndarray) -> np.ndarray:
    """Bytes that an arena is short of for `rows` on top of what it holds now, pins and the gate
    included; ≤ 0 where the row fits. Cached pages that no lease holds are not in the way, as in
    `Books.serves`. A row may be negative where pages will have been freed by then, down to minus what
    is live and held."""
    chain = books.chain
    may_go = [0] * len(chain.bands) if books.cache is None else books.cache.tree.evictable
    top = np.full(rows.shape[0], chain.sink_bytes, np.int64)
    blocked = np.zeros(rows.shape[0], bool)
    for index, (band, want) in enumerate(
        zip(chain.bands, books.held([0] * len(chain.bands)), strict=True)
    ):
        size = band.page_bytes
        pages = rows[:, index] + (want.pages - may_go[index])
        first = -(-top // size)
        stop = first + pages
        if want.fixed is None:
            top = np.where(pages > 0, stop * size, top)
            continue
        low, high = band.byte_range(*want.fixed)
        blocked |= low // size < first
        top = np.maximum(stop, high // size) * size
    return np.where(blocked, BLOCKED_BYTES, top - chain.total_bytes)
