"""Counters say what the arena itself says, at every step."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.events import Observers
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig
from bandscope.inspect.counters import Counters

LAYOUTS = {
    "window": [("window_8", 256), ("full", 256)],
    "state": [("mamba", 768), ("full", 256)],
    "both": [("mamba", 768), ("window_8", 256), ("full", 512)],
    "several": [("mamba", 768), ("window_32", 512), ("window_8", 256), ("full", 256)],
}


class Events(events.EffectObserver):
    """An observer that keeps every event, to count them again another way."""

    def __init__(self) -> None:
        self.operations: list[tuple[ops.Operation, ops.Outcome]] = []
        self.effects: list[events.Effect] = []

    def effect(self, event: events.Effect) -> None:
        """Keep it."""
        self.effects.append(event)

    def after(self, operation: ops.Operation, outcome: ops.Outcome) -> None:
        """Keep it."""
        self.operations.append((operation, outcome))


@pytest.mark.parametrize("name", LAYOUTS)
def test_counters_agree_with_the_arena_at_every_step(name: str) -> None:
    """Held pages are the live ones, peaks are real, and moved bytes are moved pages' bytes."""
    plan = plan_from_sizes(LAYOUTS[name])
    counters, seen = Counters(), Events()
    arena = Arena(
        plan,
        plan.sink_bytes + 130 * 256,
        device="none",
        config=ArenaConfig(compact_hole_share=0.0),
        observer=Observers(counters, seen),
    )
    peaks = {band.name: 0 for band in plan.bands}

    def look(scheduler: Scheduler) -> None:
        for band in arena.books.bands:
            counted = counters.band(band.name)
            assert counted.held == band.live == counted.allocated - counted.freed
            peaks[band.name] = max(peaks[band.name], band.live)
            assert counted.held_peak >= peaks[band.name]

    rng = random.Random(name)
    requests = [
        Request(i, i * 0.02, rng.randint(1, 30), rng.randint(1, 30)) for i in range(12)
    ]
    scheduler = Scheduler(
        ArenaMemory(arena), SchedulerConfig(chunk_tokens=8, output_reserve=0.2), after_step=look
    )
    scheduler.run(requests)

    for band in plan.bands:
        counted = counters.band(band.name)
        moves = [e for e in seen.effects if type(e) is events.PageMove and e.band == band.name]
        assert counted.held == 0
        assert counted.allocated == counted.freed > 0
        assert peaks[band.name] <= counted.held_peak <= counted.allocated
        assert counted.move_batches == len(moves)
        assert counted.moves_urgent == sum(e.sources.size for e in moves if e.urgent)
        assert counted.moves_opportunistic == sum(e.sources.size for e in moves if not e.urgent)
        assert counted.bytes_moved == band.page_bytes * (
            counted.moves_urgent + counted.moves_opportunistic
        )
        assert counted.band_moves == Counter(
            e.why for e in seen.effects if type(e) is events.BandMove and e.band == band.name
        )
    barriers = [e for e in seen.effects if type(e) is events.Barrier]
    assert sum(counters.barriers.values()) == len(barriers) > 0
    refusals = [e for e in seen.effects if type(e) is events.Refusal]
    assert counters.refusals == Counter(e.reason for e in refusals)
    assert counters.last_refusal == (refusals[-1] if refusals else None)
    done = Counter(
        op.kind if outcome else f"{op.kind} refused: {outcome.reason}"
        for op, outcome in seen.operations
    )
    assert counters.operations == done
    assert counters.operations["Launch"] == counters.operations["Complete"]
    assert counters.operations["Launch"] == scheduler.results.steps
    assert sum(counters.band(band.name).move_batches for band in plan.bands) > 0


def test_the_peak_is_within_an_operation() -> None:
    """A chunk of 20 tokens makes the window hold 20 pages before it is trimmed to 7."""
    plan = plan_from_sizes(LAYOUTS["window"])
    counters = Counters()
    arena = Arena(plan, 1 << 20, device="none", observer=counters)
    arena.admit(0)
    arena.extend(0, 20)
    arena.trim_window([0])
    window = counters.band("window_8")
    assert (window.held, window.held_peak, window.allocated, window.freed) == (7, 20, 20, 13)
    arena.release(0)
    assert (window.held, window.held_peak, window.freed) == (0, 20, 20)


def test_a_pin_holds_nothing() -> None:
    """A host copy pins pages that the request owns; they are not counted twice."""
    plan = plan_from_sizes(LAYOUTS["state"])
    counters = Counters()
    arena = Arena(plan, 1 << 20, device="none", observer=counters)
    arena.admit(0)
    arena.extend(0, 10)
    lease = arena.lease(0, "full", 2, 8)
    assert counters.band("full").held == 10
    arena.end_lease(lease)
    assert counters.band("full").to_json() == {
        "held": 10, "held_peak": 10, "allocated": 10, "freed": 0, "moves_urgent": 0,
        "moves_opportunistic": 0, "move_batches": 0, "bytes_moved": 0,
        "band_moves": {"extend": 1},
    }  # fmt: skip


def test_refused_operations_are_counted_by_reason() -> None:
    """Want of memory and misuse each have their own count, and hold nothing."""
    plan = plan_from_sizes(LAYOUTS["state"])
    counters = Counters()
    arena = Arena(plan, plan.sink_bytes + 10 * 256, device="none", observer=counters)
    arena.apply(ops.Admit(0))
    arena.apply(ops.Extend(0, 100))
    arena.apply(ops.Admit(0))
    arena.apply(ops.Extend(5, 1))
    assert counters.operations == Counter(
        {
            "Admit": 1,
            "Extend refused: memory": 1,
            "Admit refused: misuse": 1,
            "Extend refused: misuse": 1,
        }
    )
    assert counters.refusals == Counter({"memory": 1})
    assert counters.last_refusal is not None
    assert counters.last_refusal.demand == (0, 100)
    assert counters.band("full").held == 0


def test_moves_are_counted_by_kind_and_bytes() -> None:
    """Made by hand: one urgent batch of two pages and one opportunistic of three."""
    counters = Counters()
    for size, urgent in ((2, True), (3, False)):
        pages = np.arange(size)
        counters.page_move("full", pages, pages, pages + 10, 1000, urgent)
    counters.band_move("full", (0, 10), (0, 20), "extend")
    counters.barrier("settle", 3, "page moves")
    counters.publish("full", 4)
    band = counters.band("full")
    assert (band.moves_urgent, band.moves_opportunistic) == (2, 3)
    assert (band.move_batches, band.bytes_moved) == (2, 5000)
    assert counters.to_json() == {
        "bands": {"full": band.to_json()},
        "operations": {},
        "barriers": {"settle: page moves": 1},
        "refusals": {},
    }
    json.dumps(counters.to_json())
