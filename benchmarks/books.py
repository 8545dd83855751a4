"""What the arena's bookkeeping costs on this machine, as ratios and against the targets.

    python benchmarks/books.py

Device `none`: only the books are timed, whole calls including the plan. Figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.relocation import plan_layout

RUNNING = 256
PAGE_BYTES = 1024
WINDOW = 3
EXTRA = 64  # requests that leave before the measurement, so that holes lie everywhere


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of `call` over `repeats`, after two calls that do not count."""
    samples = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[2:])


def arena_of(pages: int, page_size: int = 1, **config: object) -> Arena:
    """A window and a full band over `pages` pages of equal size."""
    plan = plan_from_sizes(
        [(f"window_{WINDOW}", PAGE_BYTES * page_size), ("full", PAGE_BYTES * page_size)],
        page_size=page_size,
    )
    total = (pages + 1) * PAGE_BYTES * page_size
    return Arena(plan, total, device="none", config=ArenaConfig(**config))  # type: ignore[arg-type]


def decode_step_seconds(pages: int, page_size: int) -> float:
    """One decode step of 256 requests: room, publish and launch, trim, complete.

    The requests' pages are scattered over three quarters of the pool, with holes between them. At
    page size 1 every request takes and frees a page in every step: the dearest case.
    """
    arena = arena_of(pages, page_size)
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

    steps = 200 if pages > 10_000 else 2
    rounds = []
    # A small pool is refilled between short rounds; a large one just runs on.
    for _ in range(1 if steps == 200 else 40):
        before = arena.snapshot()
        rounds.append(median_seconds(step, steps))
        arena.restore(before)
        arena.launch(requests)
        arena.complete(arena.books.tickets.issued)
    assert arena.check() == []
    return statistics.median(rounds)


def free_seconds(pages: int, freed: int) -> float:
    """Freeing `freed` pages of one request in a pool of `pages`."""
    arena = arena_of(pages)
    arena.admit(0)
    arena.extend(0, freed)
    keep = 1
    while arena.extend(keep, 1) if arena.admit(keep) else False:
        keep += 1
        if keep > 512:
            break
    samples = []
    for number in range(10_000, 10_060):
        arena.admit(number)
        assert arena.extend(number, freed)
        started = time.perf_counter()
        arena.release(number)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def relocation_seconds() -> tuple[float, float, int]:
    """A float of 98,304 live pages and 25 % random holes, pushed half-way by the low end: planning,
    and the whole call without the copies; and the pages that move."""
    live, holes, origin = 98_304, 32_768, 100_000
    plan = plan_from_sizes([("mamba", 1 << 20), ("window_128", 1024), ("full", 1024)])
    arena = Arena(
        plan, 700_000 * 1024, device="none", config=ArenaConfig(headroom_share=0.0)
    )
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
    slots = (origin + extent // 2) * 1024 // (1 << 20) + 1
    demand = [slots, 0, 0]
    planning = median_seconds(lambda: plan_layout(books.chain, books.held(demand)), 50)
    layout = plan_layout(books.chain, books.held(demand))
    assert layout is not None
    started = time.perf_counter()
    books.make_room(demand)
    return planning, time.perf_counter() - started, layout.moved_bytes // 1024


def main() -> None:
    """Print the table; `--json` prints the rows as plain data instead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[tuple[str, str, str, bool | None]] = []
    for page_size in (1, 16):
        small = decode_step_seconds(4_000, page_size)
        large = decode_step_seconds(1_000_000, page_size)
        name = f"decode step, 256 requests, page size {page_size}"
        rows.append((f"{name}, pool of 4,000", f"{small * 1e3:.3f} ms", "", None))
        rows.append(
            (f"{name}, pool of 1,000,000", f"{large * 1e3:.3f} ms", "< 1 ms", large < 1e-3)
        )
        rows.append((f"{name}, ratio", f"{large / small:.2f}", "≤ 2", large <= 2 * small))
    for freed in (1, 256):
        small, large = free_seconds(4_000, freed), free_seconds(1_000_000, freed)
        rows.append(
            (
                f"free {freed} pages, pool of 1,000,000 against 4,000",
                f"{large * 1e6:.0f} / {small * 1e6:.0f} µs = {large / small:.2f}",
                "≤ 2",
                large <= 2 * small,
            )
        )
    planning, whole, moved = relocation_seconds()
    rows.append(
        (
            f"plan the relocation of 98,304 live pages ({moved:,} move)",
            f"{planning * 1e3:.3f} ms",
            "< 1 ms",
            planning < 1e-3,
        )
    )
    rows.append(("the same, whole call without the copies", f"{whole * 1e3:.3f} ms", "", None))
    if arguments.json:
        print(json.dumps([{"what": r[0], "measured": r[1], "target": r[2]} for r in rows]))
        return
    table = Table("what", "measured", "target", "")
    for what, measured, target, reached in rows:
        table.add_row(what, measured, target, {True: "ok", False: "MISSED", None: ""}[reached])
    Console().print(table)


if __name__ == "__main__":
    main()
