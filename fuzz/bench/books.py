"""The books alone, on the device `none`: ratios that hold on any machine.

Whole calls are clocked, the plan included; figures are medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import numpy as np

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.relocation import plan_layout
from bandscope.fuzz.bench.rows import Row, median_seconds

RUNNING = 256
EXTRA = 64  # requests that leave before the measurement, so that holes lie everywhere
PAGE_BYTES = 1024
WINDOW = 3
SMALL_POOL, LARGE_POOL = 4_000, 1_000_000


def rows() -> Iterator[Row]:
    """Every row, as it is measured."""
    for page_size in (1, 16):
        small, large = _alternated(
            lambda pages: decode_step_seconds(pages, page_size)  # noqa: B023
        )
        name = f"decode step of {RUNNING} requests, page size {page_size}"
        yield Row(f"{name}, pool of {SMALL_POOL:,} pages", small * 1e3, "ms")
        yield Row(f"{name}, pool of {LARGE_POOL:,} pages", large * 1e3, "ms", 1.0)
        yield Row(f"{name}, large pool against small", large / small, "×", 2.0)
    for count in (1, 256):
        small, large = _alternated(lambda pages: free_seconds(pages, count))  # noqa: B023
        yield Row(f"free {count} pages, large pool against small", large / small, "×", 2.0)
    planning, moved = relocation_planning_seconds()
    yield Row(
        f"plan the relocation of a float of 98,304 live pages ({moved:,} move)",
        planning * 1e3,
        "ms",
        1.0,
    )


def _alternated(measure: Callable[[int], float], rounds: int = 3) -> tuple[float, float]:
    """The small and the large pool in turns; the least disturbed round of each counts."""
    pairs = [(measure(SMALL_POOL), measure(LARGE_POOL)) for _ in range(rounds)]
    return min(small for small, _ in pairs), min(large for _, large in pairs)


def pool(pages: int, page_size: int = 1) -> Arena:
    """A window and a full band over `pages` pages of equal size."""
    size = PAGE_BYTES * page_size
    plan = plan_from_sizes([(f"window_{WINDOW}", size), ("full", size)], page_size=page_size)
    return Arena(plan, (pages + 1) * size, device="none")


def decode_step_seconds(pages: int, page_size: int) -> float:
    """One decode step of 256 requests: room, publish and launch, trim, complete.

    The requests' pages are scattered, with holes between them and lengths staggered. At page size 1
    every request takes and frees a page in every step: the dearest case.
    """
    arena = pool(pages, page_size)
    generator = np.random.default_rng(0)
    fill = max(1, pages // 2 // (RUNNING + EXTRA) // 3)
    for request in range(RUNNING + EXTRA):
        arena.admit(request)
    for _ in range(3):
        for request in generator.permutation(RUNNING + EXTRA).tolist():
            assert arena.extend(request, fill * page_size + request % page_size)
            arena.trim_window([request])
    for request in range(RUNNING, RUNNING + EXTRA):
        arena.release(request)
    requests = list(range(RUNNING))

    def step() -> None:
        assert arena.decode(requests)
        ticket = arena.launch(requests)
        arena.trim_window(requests)
        arena.complete(ticket)

    # A small pool soon is full, so it is put back between short rounds; a large one just runs on.
    rounds, steps = (1, 200) if pages > 10_000 else (40, 2)
    samples = []
    for _ in range(rounds):
        before = arena.snapshot()
        samples.append(median_seconds(step, steps))
        if rounds > 1:
            arena.restore(before)
            arena.complete(arena.launch(requests))
    arena.assert_healthy()
    return statistics.median(samples)


def free_seconds(pages: int, count: int) -> float:
    """Releasing a request of `count` pages in a pool of `pages`, with others around it."""
    arena = pool(pages)
    for request in range(64):
        arena.admit(request)
        assert arena.extend(request, 5)
    numbers = iter(range(1000, 10_000))
    running: list[int] = []

    def arrive() -> None:
        running.append(next(numbers))
        arena.admit(running[-1])
        assert arena.extend(running[-1], count)

    return median_seconds(lambda: arena.release(running.pop()), 100, before=arrive)


def relocation_planning_seconds() -> tuple[float, int]:
    """Planning the move of a float of 98,304 live pages with 25 % random holes, pushed half-way by
    the low end; and the pages that move."""
    arena, demand = pushed_float("none")
    books = arena.books
    seconds = median_seconds(lambda: plan_layout(books.chain, books.held(demand)), 50)
    layout = plan_layout(books.chain, books.held(demand))
    assert layout is not None
    return seconds, layout.moved_bytes // PAGE_BYTES


def pushed_float(device: str) -> tuple[Arena, list[int]]:
    """An arena whose float must move half-way for the demand that is returned with it."""
    live, holes, origin = 98_304, 32_768, 100_000
    plan = plan_from_sizes(
        [("mamba", 1 << 20), ("window_128", PAGE_BYTES), ("full", PAGE_BYTES)]
    )
    config = ArenaConfig(headroom_share=0.0, hand_out="none", hand_out_state="none")
    arena = Arena(plan, 700_000 * PAGE_BYTES, device=device, config=config)
    books = arena.books
    band = books.bands[1]
    extent = live + holes
    virtual = books.ids.mint(extent)
    band.low = band.high = origin
    places = band.take(extent, origin, origin + extent)
    band.table.bind(virtual, places)
    gone = np.random.default_rng(1).permutation(extent)[:holes]
    band.table.unbind(virtual[gone])
    band.drop(places[gone], pending=False)
    slots = (origin + extent // 2) * PAGE_BYTES // (1 << 20) + 1
    return arena, [slots, 0, 0]
