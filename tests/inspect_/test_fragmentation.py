"""Where bytes go, and whether the cures of refusals cure."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect.checks.fragmentation import explain_refusals, fragmentation
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS, P3, RandomEngine, small_arena
from tests.inspect_.traces import record


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_byte_is_accounted_for(tmp_path: Path, name: str) -> None:
    """Floor, waste and usable gaps are the arena; counts are the arena's own."""
    recorded = record(tmp_path / "run", LAYOUTS[name], seed=3, operations=300, keyframe_every=100)
    trace = Trace(recorded.path)
    timeline = Timeline(trace)
    for sequence in range(10, trace.stop, 40):
        state = timeline.advance(sequence)
        bands = fragmentation(state)
        for one in bands:
            assert one.held_bytes == one.floor_bytes + one.wasted["holes"] + one.wasted["pending"]
            assert all(bytes_ >= 0 for bytes_ in one.wasted.values())
        held = state.sink_bytes + sum(one.held_bytes for one in bands)
        lost = sum(one.wasted["rounding"] + one.wasted["gap"] for one in bands)
        assert held + lost <= state.total_bytes
    bands = fragmentation(timeline.advance(trace.stop))
    arena_bands = recorded.arena.books.bands
    assert [(b.live_pages, b.hole_pages, b.pending_pages) for b in bands] == [
        (band.live, band.holes, band.pending) for band in arena_bands
    ]
    json.dumps([one.to_json() for one in bands])


def _replayed(layout: Any, seed: int, stop: int) -> tuple[Any, Any]:
    """An arena after `stop` random operations, and the next operation."""
    arena = small_arena(layout)
    engine = RandomEngine(random.Random(seed), illegal=False)
    for _ in range(stop):
        engine.step(arena)
    return arena, engine.choose(arena)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cure_of_a_refusal_lets_the_demand_in(tmp_path: Path, name: str) -> None:
    """Each option, tried on the arena itself as it was, makes the very demand succeed."""
    tried: dict[str, int] = {}
    for seed in range(3):
        arena = small_arena(LAYOUTS[name])
        engine = RandomEngine(random.Random(seed), illegal=False)
        refused = []
        with Recorder(tmp_path / f"run{seed}", arena) as recorder:
            for number in range(250):
                operation, outcome = engine.step(arena)
                if not outcome and outcome.reason in ("memory", "gate", "pins"):
                    refused.append(number)
        explained = explain_refusals(Trace(recorder.directory))
        assert len(explained) == len(refused)
        for number, one in list(zip(refused, explained, strict=True))[:12]:
            assert one.options == sorted(one.options, key=lambda cure: cure.bytes)
            assert one.text.startswith(f"Event {one.sequence:,}: ")
            json.dumps(one.to_json())
            for cure in one.options:
                before, operation = _replayed(LAYOUTS[name], seed, number)
                assert operation.kind == one.operation
                if cure.kind == "gate":
                    before.set_gate(closed=False)
                elif cure.kind == "lease end":
                    for lease in cure.names:
                        before.apply(ops.EndLease(lease))
                elif cure.kind == "release":
                    for request in cure.names:
                        before.release(request)
                else:
                    assert one.short_bytes == cure.bytes > 0
                    tried[cure.kind] = tried.get(cure.kind, 0) + 1
                    continue
                assert before.books.serves(list(one.demand.values())), (one.text, cure)
                tried[cure.kind] = tried.get(cure.kind, 0) + 1
    assert {"release", "arena"} <= set(tried)


def test_a_closed_gate_is_named(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        for request in range(4):
            arena.admit(request)
            arena.extend(request, 2)
        arena.release(0)
        arena.release(2)
        arena.set_gate(closed=True)
        assert arena.extend(3, 8).reason == "gate"
    (one,) = explain_refusals(Trace(recorder.directory))
    assert (one.cure, one.cure_bytes, one.short_bytes) == ("gate", 0, 0)
    assert one.operation == "Extend" and one.demand == {"mamba": 0, "window_8": 8, "full": 8}
    assert "opening the gate" in str(one) and "in the way" in str(one)
    assert one.fixed["full"] is not None


def test_a_full_arena_names_the_request_to_release(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(0, state_slots=0)
        arena.extend(0, 10)
        arena.admit(1, state_slots=0)
        arena.extend(1, 4)
        assert not arena.extend(0, 4)
    (one,) = explain_refusals(Trace(recorder.directory))
    assert one.reason == "memory" and one.short_bytes == 12 * 256
    assert [(cure.kind, cure.bytes, cure.names) for cure in one.options] == [
        ("arena", 12 * 256, []), ("release", 24 * 256, [1]),
    ]  # fmt: skip
