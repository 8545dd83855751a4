"""What would have changed on another arena."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import ConfigError, SizingError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.replay_whatif import Change, WhatIf, parse_sweep, what_if
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import P3
from tests.inspect_.traces import record

GIB = 1 << 30


def test_sweeps() -> None:
    assert parse_sweep("8GiB") == [8 * GIB]
    assert parse_sweep("1.5GiB") == [3 * GIB // 2]
    assert parse_sweep("8GiB..16GiB:5") == [size * GIB for size in (8, 10, 12, 14, 16)]
    assert parse_sweep("1.5GiB..2.5GiB:3") == [3 * GIB // 2, 2 * GIB, 5 * GIB // 2]
    for wrong in ("8GiB..16GiB", "16GiB..8GiB:3", "8GiB..16GiB:1", "1GiB..2GiB:1000", "8GiB:3"):
        with pytest.raises(SizingError, match="arena sizes"):
            parse_sweep(wrong)


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six requests of ten pages each on an arena of 64 pages and a bit, one after the other leaving; the
    seventh is refused and asks again when there is room."""
    plan = plan_from_sizes([("window_64", 1024), ("full", 1024)], page_size=4)
    arena = Arena(
        plan, plan.sink_bytes + 128 * 1024, device="none", config=ArenaConfig(headroom_share=0.0)
    )
    path = tmp_path_factory.mktemp("pressed") / "run"
    with Recorder(path, arena):
        for request in range(6):
            arena.admit(request)
            assert arena.extend(request, 40)
        assert not arena.apply(ops.Extend(0, 40))  # 10 more pages of each: 140 of 128
        ticket = arena.launch(range(6))
        arena.complete(ticket)
        arena.release(5)
        assert arena.extend(0, 40)
        assert arena.decode([0])
        arena.compact(urgent=True)
        for request in range(5):
            arena.release(request)
    return path.with_name("run.trace")


def rows_of(path: Path, *changes: Change) -> list[WhatIf]:
    return what_if(Trace(path), changes)


def test_the_first_row_is_what_was_recorded(pressed: Path) -> None:
    (recorded,) = rows_of(pressed)
    assert recorded.change.is_none
    assert recorded.operations == 24
    assert (recorded.refusals, recorded.retractions, recorded.left_out) == (1, 0, 0)
    assert recorded.held_bytes == 2 * 61 * 1024


def test_a_larger_arena_fits_what_was_refused(pressed: Path) -> None:
    recorded, larger = rows_of(pressed, Change(arena_bytes=1 << 20))
    assert recorded.refusals == 1
    assert (larger.refusals, larger.served, larger.retractions) == (0, 1, 0)
    assert larger.held_bytes == recorded.held_bytes


def test_a_smaller_arena_retracts_the_youngest(pressed: Path) -> None:
    """110 pages hold the first five requests: the sixth has to leave, and when the first one grows, the
    fifth. Their releases are left out, other operations go on without them."""
    _, smaller = rows_of(pressed, Change(arena_bytes=1024 + 110 * 1024))
    assert (smaller.refusals, smaller.retractions, smaller.left_out) == (2, 2, 2)
    assert smaller.held_bytes == (80 + 20 + 2) * 1024


def test_what_makes_the_state_to_begin_with_is_not_counted(tmp_path: Path) -> None:
    plan = plan_from_sizes([("window_64", 1024), ("full", 1024)], page_size=4)
    arena = Arena(plan, plan.sink_bytes + 128 * 1024, device="none")
    for request in range(6):
        arena.admit(request)
        arena.extend(request, 40)
    with Recorder(tmp_path / "run", arena):
        for request in range(6):
            arena.release(request)
    recorded, smaller = rows_of(
        tmp_path / "run.trace", Change(arena_bytes=1024 + 50 * 1024)
    )
    assert recorded.operations == smaller.operations == 6
    assert recorded.held_bytes == 100 * 1024  # after the first release
    assert (smaller.refusals, smaller.retractions) == (0, 0)
    assert smaller.left_out == 4  # the releases of those that never fitted


def test_the_smaller_the_arena_the_more_pressure(pressed: Path) -> None:
    sizes = [1024 + pages * 1024 for pages in (30, 60, 90, 130)]
    rows = rows_of(pressed, *(Change(arena_bytes=size) for size in sizes))[1:]
    retractions = [row.retractions for row in rows]
    assert retractions == sorted(retractions, reverse=True)
    assert retractions[0] > retractions[-1] == 0


def test_pages_of_another_size(pressed: Path) -> None:
    """Pages of 16 tokens of the same bytes per token: 41 tokens take three pages, not eleven."""
    _, other = rows_of(pressed, Change(page_size=16))
    assert other.page_size == 16
    assert other.refusals > 0  # 48 tokens' room for 40, six times over, is more than there is
    _, one = rows_of(pressed, Change(page_size=1))
    assert one.refusals == 0 and one.held_bytes < 130 * 1024


def test_separate_pools_of_the_same_bytes(pressed: Path) -> None:
    _, pools = rows_of(pressed, Change(pools=True))
    assert pools.pages_moved == 0
    assert pools.operations == 24


def test_a_move_cap_and_a_barrier_policy(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, seed=3, operations=600)
    plain, capped, coarse, off = what_if(
        Trace(recorded.path),
        [Change(max_moves=0), Change(barrier="coarse"), Change(barrier="off")],
    )
    opportunistic = [row.pages_moved - row.pages_moved_urgent for row in (plain, capped)]
    assert opportunistic[0] > 0 == opportunistic[1]
    assert coarse.barriers > 0
    assert plain.operations == capped.operations == off.operations == 600


def test_from_the_middle_of_a_run(tmp_path: Path) -> None:
    """What only makes the state to begin with does not count."""
    from bandscope.inspect.exports import export

    recorded = record(
        tmp_path / "run", P3, operations=400, keyframe_every=60, segment_records=600
    )
    trace = Trace(recorded.path)
    middle = trace.start + (trace.stop - trace.start) // 2
    export(trace, "slice", tmp_path / "part.trace", start=middle, stop=trace.stop)
    rows = what_if(Trace(tmp_path / "part.trace"), [Change(arena_bytes=1 << 20)])
    assert 50 < rows[0].operations < 300
    assert rows[1].operations == rows[0].operations
    assert rows[1].refusals == 0


def test_an_admission_that_does_not_fit_is_left_out_with_all_it_asks_later(tmp_path: Path) -> None:
    """Its state slot is refused; the others are older and stay."""
    plan = plan_from_sizes([("mamba", 4096), ("full", 1024)], page_size=4)
    arena = Arena(plan, plan.sink_bytes + 64 * 1024, device="none")
    with Recorder(tmp_path / "run", arena):
        for request in range(8):
            arena.admit(request)
            arena.extend(request, 4)
        for request in range(8):
            arena.release(request)
    _, smaller = rows_of(
        tmp_path / "run.trace", Change(arena_bytes=plan.sink_bytes + 26 * 1024)
    )
    assert smaller.operations == 24
    assert (smaller.refusals, smaller.retractions, smaller.left_out) == (3, 3, 6)


def test_changes_that_mean_nothing(pressed: Path) -> None:
    for change in (Change(page_size=0), Change(barrier="thick"), Change(max_moves=-1)):
        with pytest.raises(ConfigError):
            rows_of(pressed, change)
    _, row = rows_of(pressed, Change(arena_bytes=1500))
    assert "bytes" in row.problem and row.operations == 0
