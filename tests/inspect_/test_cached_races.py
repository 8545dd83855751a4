"""Happens-before where requests share pages of a prefix cache and states are copied."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect.checks.races import find_races
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import P2M, P2W, small_arena
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.rewrite import of_kind, rewrite, without
from tests.inspect_.test_races import ONE_KEYFRAME, _altered, agrees, naive_races


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_with_its_barriers_is_clean(tmp_path: Path, name: str) -> None:
    for seed in range(3):
        recorded = record_cached(
            tmp_path / f"run{seed}", name, seed=seed, operations=400,
            keyframe_every=(10**9, 60, 200)[seed],
        )  # fmt: skip
        trace = Trace(recorded.path)
        report = find_races(trace)
        assert report.races == [] and report.gaps == [] and report.notes == []
        assert naive_races(trace) == set()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_edge_that_is_taken_away_is_missed_where_it_was_needed(
    tmp_path: Path, name: str
) -> None:
    needed: Counter[Kind] = Counter()
    for seed in range(2):
        recorded = record_cached(
            tmp_path / f"run{seed}", name, seed=seed, operations=250, **ONE_KEYFRAME
        )
        place = tmp_path / f"altered{seed}"
        place.mkdir()
        for kind, _, trace in _altered(recorded.path, place):
            needed[kind] += bool(agrees(trace, find_races(trace)))
    assert needed[Kind.BARRIER]


def test_a_state_that_is_copied_before_it_is_computed_is_a_race(tmp_path: Path) -> None:
    arena = small_arena(P2M, prefix_cache=True, checkpoint_grid_tokens=4)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.apply(ops.Admit(0, 1, (7,)))
        arena.extend(0, 4)
        arena.apply(ops.Launch((0,)))
        assert arena.apply(ops.Checkpoint(0)).value == 4
    assert find_races(Trace(recorder.directory)).races == []
    (settle,) = [row for row in of_kind(recorder.directory, Kind.BARRIER)][-1:]
    rewrite(recorder.directory, tmp_path / "racy.trace", without(settle.sequence))
    (race,) = find_races(Trace(tmp_path / "racy.trace")).races
    assert (race.kind, race.band, race.edge) == ("RAW", "mamba", "settle")
    assert race.second.operation == "Checkpoint" and race.second.stream == "schedule"


def test_the_state_that_a_lease_pins_may_be_copied(tmp_path: Path) -> None:
    """A checkpoint reads the slot beside its holder, as a forward would."""
    arena = small_arena(P2M, prefix_cache=True, checkpoint_grid_tokens=4)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.apply(ops.Admit(0, 1, (7,)))
        arena.extend(0, 4)
        arena.complete(arena.launch([0]))
        arena.lease(0, "mamba", 0, 1)
        assert arena.checkpoint(0).value == 4
    assert find_races(Trace(recorder.directory)).races == []


def test_a_cached_page_is_read_by_the_forwards_of_all_who_share_it(tmp_path: Path) -> None:
    """Its row goes while the forward of a later request, which only shared it, still reads it."""
    arena = small_arena(P2W, prefix_cache=True, hand_out="zero")
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.apply(ops.Admit(0, 0, (7, 8)))
        arena.extend(0, 8)
        first = arena.apply(ops.Launch((0,))).value
        arena.apply(ops.Release(0, publish=True))
        arena.apply(ops.Complete(first))
        assert arena.apply(ops.Admit(1, 0, (7, 8, 9))).value == 8
        second = arena.apply(ops.Launch((1,))).value
        arena.apply(ops.Release(1))
        assert arena.apply(ops.Evict((0, 2))).value >= 2
        arena.apply(ops.Admit(2, 0, ()))
        assert arena.extend(2, 4 * 10)  # every page there is
        arena.apply(ops.Launch((2,)))
    trace = Trace(recorder.directory)
    assert find_races(trace).races == []
    settles = [row.sequence for row in of_kind(recorder.directory, Kind.BARRIER)]
    rewrite(recorder.directory, tmp_path / "racy.trace", without(*settles))
    races = find_races(Trace(tmp_path / "racy.trace")).races
    assert {(race.ticket, race.kind) for race in races if race.edge == "settle"} == {(second, "WAR")}


# --- from a keyframe on -----------------------------------------------------------------------------


def test_who_shared_before_the_data_begins_is_known(tmp_path: Path) -> None:
    arena = small_arena(P2W, prefix_cache=True)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.apply(ops.Admit(0, 0, (7, 8)))
        arena.extend(0, 8)
        arena.complete(arena.launch([0]))
        arena.apply(ops.Release(0, publish=True))
        assert arena.apply(ops.Admit(1, 0, (7, 8, 9))).value == 8
        recorder._write_keyframe()
        begin = recorder.sequence
        second = arena.apply(ops.Launch((1,))).value
        arena.apply(ops.Release(1))
        assert arena.apply(ops.Evict((0, 2))).value >= 2
        arena.apply(ops.Admit(2, 0, ()))
        assert arena.extend(2, 4 * 10)
        arena.apply(ops.Launch((2,)))
    assert find_races(Trace(recorder.directory), begin).races == []
    settles = [row.sequence for row in of_kind(recorder.directory, Kind.BARRIER)]
    moved = rewrite(recorder.directory, tmp_path / "racy.trace", without(*settles))
    racy = find_races(Trace(tmp_path / "racy.trace"), moved[begin])
    assert {(r.ticket, r.kind) for r in racy.races if r.edge == "settle"} == {(second, "WAR")}


def test_cached_pages_from_before_the_data_are_written_by_nobody(tmp_path: Path) -> None:
    """They are moved beside a forward in flight, without a barrier."""
    arena = small_arena(P2W, prefix_cache=True, compact_hole_share=0.0)
    with Recorder(tmp_path / "run", arena) as recorder:
        for request in (7, 5, 0):
            arena.apply(ops.Admit(request, 0, (request, request)))
            assert arena.extend(request, 8)
        arena.complete(arena.launch([0]))
        arena.apply(ops.Release(0, publish=True))
        arena.release(7)
        recorder._write_keyframe()
        begin = recorder.sequence
        arena.launch([5])
        assert arena.compact() >= 2
    trace = Trace(recorder.directory)
    assert of_kind(recorder.directory, Kind.PAGE_MOVE)
    assert not any(row.sequence > begin for row in of_kind(recorder.directory, Kind.BARRIER))
    assert find_races(trace, begin).races == []
