"""The planned layout moves the fewest bytes, and exists exactly when any layout does.

The oracle enumerates every layout of a small arena, band by band, with no code of the planner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from bandscope.allocator.band import LIVE
from bandscope.allocator.books import Books
from bandscope.allocator.chain import Held
from bandscope.allocator.relocation import plan_layout
from tests.allocator.arenas import LAYOUTS, scatter, small_arena


def brute_force_cost(books: Books, held: list[Held]) -> int | None:
    """Fewest bytes moved over all layouts, None when no layout serves."""

    def extents(index: int, start: int) -> Iterator[tuple[int, int, int]]:
        """(first page, stop page, cost) of every extent of a band at or above byte `start`."""
        band, want = books.bands[index], held[index]
        size = band.page_bytes
        lowest = -(-books.plan.sink_bytes // size)
        limit = books.chain.total_bytes // size
        live = {int(page) for page in band.physical(np.flatnonzero(band.state == LIVE))}
        fixed = None
        if want.fixed is not None:
            low, high = band.byte_range(*want.fixed)
            fixed = (low // size, high // size)
        if want.pages == 0 and fixed is None:
            yield start // size, start // size, 0
            return
        for first in range(max(lowest, -(-start // size)), limit + 1):
            for stop in range(first, limit + 1):
                if stop - first < want.pages:
                    continue
                if fixed and not (first <= fixed[0] and fixed[1] <= stop):
                    continue
                outside = sum(1 for page in live if not first <= page < stop)
                yield first, stop, outside * size

    best: dict[tuple[int, int], int | None] = {}

    def cheapest(index: int, start: int) -> int | None:
        if index == len(books.bands):
            return 0
        if (index, start) not in best:
            found = None
            size = books.bands[index].page_bytes
            for first, stop, cost in extents(index, start):
                top = stop * size if stop > first else start
                rest = cheapest(index + 1, max(start, top))
                if rest is not None and (found is None or cost + rest < found):
                    found = cost + rest
            best[index, start] = found
        return best[index, start]

    return cheapest(0, books.plan.sink_bytes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_planned_layout_moves_the_fewest_bytes(name: str) -> None:
    """On random states and demands of every layout, with and without pins and a closed gate."""
    compared = moved = refused = 0
    for seed in range(40 if len(LAYOUTS[name][0]) < 5 else 12):
        rng = random.Random(f"{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=rng.choice([1, 4]))
        books = arena.books
        running = scatter(arena, rng, requests=10)
        if running and rng.random() < 0.4:
            request, band = rng.choice(running), rng.choice(books.bands).name
            pages, first = arena.pages_of(request, band)
            if pages.size:
                arena.lease(request, band, first, first + 1)
        for _ in range(6):
            demand = [rng.choice([0, 0, 1, 2, 3, 5]) for _ in books.bands]
            held = books.held(demand)
            expected = brute_force_cost(books, held)
            layout = plan_layout(books.chain, held)

            assert books.serves(demand) == (expected is not None)
            assert (layout is None) == (expected is None)
            if layout is None or expected is None:
                refused += 1
                continue
            assert layout.moved_bytes == expected
            moved += layout.moved_bytes > 0
            compared += 1
    assert compared > 10 and refused > 3, "the states were too tame to prove anything"
    assert moved > 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_serving_a_demand_is_what_reserve_then_does(name: str) -> None:
    """`serves` is true exactly when the operation succeeds; the regions then hold the demand."""
    outcomes = set()
    for seed in range(60):
        rng = random.Random(f"serve/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=rng.choice([1, 2]), device="cpu")
        scatter(arena, rng, requests=10)
        if rng.random() < 0.2:
            arena.set_gate(closed=True)
        demand = [rng.choice([0, 1, 2, 4]) for _ in arena.books.bands]
        served = arena.serves(demand)
        before = arena.digest()
        regions = arena.books.make_room(demand)

        assert isinstance(regions, list) == served
        outcomes.add(served)
        assert arena.check() == []
        if not served:
            assert arena.digest() == before
            continue
        for band, pages, region in zip(arena.books.bands, demand, regions, strict=True):
            band.take(pages, *region)
        problems = [found for found in arena.check() if found.invariant == "order"]
        assert problems == []
    assert outcomes == {True, False}
