"""Where bands lie on a line of characters: disjoint, in order, and never without a character."""

from __future__ import annotations

from collections.abc import Sequence


def sink_columns(sink_bytes: int, low: int, high: int, columns: int) -> int:
    """Characters of the sink at the left edge."""
    if low >= sink_bytes:
        return 0
    return max(1, (min(sink_bytes, high) - low) * columns // (high - low))


def place(
    extents: Sequence[tuple[int, int]], low: int, high: int, columns: int, taken: int = 0
) -> list[tuple[int, int, int]]:
    """(index, first character, stop) of every extent that has bytes in `[low, high)`; the first
    `taken` characters are used already. What is too small for a character pushes its neighbours."""
    width = high - low
    found: list[list[int]] = []
    for index, (start, stop) in enumerate(extents):
        start, stop = max(start, low), min(stop, high)
        if stop > start:
            first = max(taken, (start - low) * columns // width)
            taken = max(first + 1, round((stop - low) * columns / width))
            found.append([index, first, taken])
    limit = columns
    for spot in reversed(found):  # what was pushed over the right edge comes back
        spot[2] = min(spot[2], limit)
        limit = spot[1] = min(spot[1], spot[2] - 1)
    return [(spot[0], spot[1], spot[2]) for spot in found if spot[1] >= 0]
