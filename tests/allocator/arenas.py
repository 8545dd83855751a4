"""Small arenas for tests: reference layouts in abstract units, and random states of them."""

from __future__ import annotations

import random

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.events import Observer
from bandscope.allocator.plan import plan_from_sizes

# Bytes of one unit `u`. A multiple of the rounding unit, so that sizes in units are exact.
UNIT = 256

P2M = ([("mamba", 8), ("full", 4)], 64)
P2W = ([("window_8", 2), ("full", 4)], 64)
P3 = ([("mamba", 8), ("window_8", 2), ("full", 4)], 96)
# Off-grid on purpose: no page size divides a neighbour's.
P3_ODD = ([("mamba", 7), ("window_8", 3), ("full", 5)], 71)
P4 = ([("mamba", 7), ("window_16", 3), ("window_8", 2), ("full", 5)], 100)
P5 = ([("mamba", 8), ("window_32", 3), ("window_16", 2), ("window_8", 3), ("full", 4)], 150)
LAYOUTS = {"P2m": P2M, "P2w": P2W, "P3": P3, "P3_odd": P3_ODD, "P4": P4, "P5": P5}


def small_arena(
    layout: tuple[list[tuple[str, int]], int],
    *,
    page_size: int = 4,
    device: str = "none",
    units: int | None = None,
    observer: Observer | None = None,
    **config: object,
) -> Arena:
    """An arena of `units` (the layout's own size by default) beside the sink; no headroom, so that
    moves are exactly what a demand needs."""
    bands, size = layout
    plan = plan_from_sizes([(name, units * UNIT) for name, units in bands], page_size=page_size)
    total = plan.sink_bytes + (size if units is None else units) * UNIT
    settings = {"headroom_share": 0.0, "compact_gap_share": 1.0, **config}
    return Arena(
        plan, total, device=device, config=ArenaConfig(**settings), observer=observer  # type: ignore[arg-type]
    )


def scatter(arena: Arena, rng: random.Random, requests: int = 8) -> list[int]:
    """Fill `arena` with random requests and release some of them, so that holes lie everywhere.
    Returns the requests that still run."""
    page = arena.plan.page_size
    running: list[int] = []
    for request in range(requests):
        if not arena.admit(request, state_slots=rng.choice([0, 1, 1])):
            continue
        running.append(request)
        arena.extend(request, rng.randint(0, 4 * page))
        if rng.random() < 0.5:
            arena.trim_window([request])
        if running and rng.random() < 0.45:
            gone = running.pop(rng.randrange(len(running)))
            arena.release(gone)
    return running
