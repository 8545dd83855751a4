"""What `bandscope inspect` finds: judges and their status, lives of pages and leases, instants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect.checks import races
from bandscope.inspect.checks.races import Access, Race, RaceReport
from bandscope.inspect.differences import compare
from bandscope.inspect.lifetimes import page_life
from bandscope.inspect.reader import open_trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.selection import timeline_at
from bandscope.inspect.spelling import spell_runs
from tests.allocator.arenas import P5, small_arena
from tests.inspect_.traces import record
from tests.tui.inspecting import Inspect, record_p5

# --- judges ---------------------------------------------------------------------------------------


def test_races_end_with_one(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race: its sentence, the missing edge, the stacks, status 1; another band has none."""
    first = Access("forward", "reads", "full 1.0", 3, 0, "Launch", 100, "engine.py:1 step")
    second = Access("schedule", "writes", "full 1.0", 0, 0, "Compact", 120)
    race = Race("WAR", "full", "settle", 3, 120, first, second)
    monkeypatch.setattr(races, "find_races", lambda *_: RaceReport([race], 500, [], ["a note"]))
    path = record_p5(tmp_path)
    ended = inspect("races", path)
    assert ended.status == 1
    for part in ("WAR in full", "Missing: a settle barrier", "engine.py:1", "a note", "1 race in 500"):
        assert part in ended.flat
    told = inspect("races", path, "--json")
    assert (told.status, len(told.data["races"])) == (1, 1)
    assert inspect("races", path, "--band", "mamba").status == 0


def test_a_violation_that_was_recorded_ends_check_with_one(
    inspect: Inspect, tmp_path: Path
) -> None:
    arena = small_arena(P5)
    with Recorder(tmp_path / "told", arena) as recorder:
        arena.apply(ops.Admit(1))
        arena.apply(ops.Release(1))
        recorder.violation("ownership", "two owners [of one page]")
    ended = inspect("check", recorder.directory)
    assert ended.status == 1
    assert "found while it ran: ownership: two owners [of one page]" in ended.flat
    told = inspect("check", recorder.directory, "--json").data
    assert [one["name"] for one in told["recorded_violations"]] == ["ownership"]
    assert told["findings"] == []


def test_what_was_not_given_back_is_a_leak(inspect: Inspect, tmp_path: Path) -> None:
    """Status 1 for a request that never left, 0 once it did; an instant in between is no leak."""
    for released in (False, True):
        arena = small_arena(P5)
        with Recorder(tmp_path / f"leak{released}", arena) as recorder:
            arena.admit(7, state_slots=1)
            arena.extend(7, 9)
            if released:
                arena.release(7)
        ended = inspect("leaks", recorder.directory)
        assert ended.status == (0 if released else 1)
        assert ("request 7" in ended.flat) == (not released)
        assert inspect("leaks", recorder.directory, "--at", "10").status == 0


def test_refusals_are_explained(inspect: Inspect, tmp_path: Path) -> None:
    """Each refusal of the trace with its layout and its cure; a stretch without any says so."""
    path = record_p5(tmp_path)
    refused = inspect("events", path, "--kind", "Refusal", "--json", "--limit", "0").data["events"]
    told = inspect("refusals", path, "--json").data["refusals"]
    assert [one["sequence"] for one in told] == [event["sequence"] for event in refused]
    assert all(one["options"] and list(one["demand"]) == list(one["live"]) for one in told)
    ended = inspect("refusals", path, "--limit", "2")
    assert ended.status == 0
    for part in (told[0]["text"], "cannot move", f"and {len(told) - 2} more", "refused demands"):
        assert part in ended.flat
    none = inspect("refusals", path, "--from", "2", "--to", refused[0]["sequence"])
    assert none.flat == "0 refused demands"


# --- lives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 4])
def test_every_life_ends_as_the_timeline_says(tmp_path: Path, seed: int) -> None:
    """For each page of each band: where it lies, its generation, and how often it was leased."""
    path = record(tmp_path / "p5", P5, seed=seed, operations=300).path
    trace = open_trace(path)
    state = timeline_at(trace, trace.stop).state
    for band in state.bands:
        generation = state.ids_of(band.index).generation
        for virtual in range(len(band.page_of)):
            life = page_life(trace, band.name, virtual)
            held = [e for e in life.events if e.what in ("leased", "moved", "freed")]
            page = -1 if not held or held[-1].what == "freed" else held[-1].physical
            assert page == band.page_of[virtual], (band.name, virtual)
            leases = [e for e in life.events if e.what == "leased"]
            assert [e.generation for e in leases] == sorted({e.generation for e in leases})
            if page != -1:
                assert held[-1].generation == generation[virtual]
            freed = sum(e.what == "freed" for e in life.events)
            assert freed == len(leases) - (page != -1)


def test_a_life_from_birth_to_reuse(inspect: Inspect, tmp_path: Path) -> None:
    """Leased, published, pinned, freed under the pin, reusable when the lease and the ticket end."""
    arena = small_arena(P5)
    with Recorder(tmp_path / "life", arena) as recorder:
        arena.admit(1, state_slots=1)
        arena.extend(1, 4)
        ticket = arena.apply(ops.Launch((1,))).value
        lease = arena.apply(ops.Lease(1, "full", 0, 1, "copier", "host copy", ticket)).value
        arena.release(1)
        arena.apply(ops.Complete(ticket))
        arena.apply(ops.EndLease(lease))
        arena.admit(2)
        arena.extend(2, 4)
    told = inspect("page", recorder.directory, "full", "0", "--json").data["events"]
    whats = [(event["what"], event["generation"]) for event in told]
    assert whats[:4] == [("leased", 0), ("published", 0), ("pinned", 0), ("freed", 0)]
    assert whats[4] == ("unpinned", 0)
    assert ("reusable", 0) in whats[5:-1]
    assert whats[-1] == ("leased", 1)
    assert told[0]["operation"] == "Extend 1" and "request 1" in told[0]["detail"]
    text = inspect("page", recorder.directory, "full", "0.0")
    assert "lease 1 still pins it" in text.flat and "request 2" not in text.flat
    life = inspect("lease", recorder.directory, lease, "--json").data
    assert (life["holder"], life["band"], life["virtual"]) == ("copier", "full", [0])
    assert [wait["what"] for wait in life["waited"]] == ["freed"]
    text = inspect("lease", recorder.directory, lease)
    for part in ("holder copier", "purpose host copy", "deadline ticket 1", "by EndLease"):
        assert part in text.flat


# --- instants -------------------------------------------------------------------------------------


def test_at_draws_what_is_held(inspect: Inspect, tmp_path: Path) -> None:
    """Counts of the JSON agree with the arena's own snapshot; text draws every band that exists."""
    recorded = record(tmp_path / "p5", P5, seed=3, operations=150, snapshots=True)
    for sequence in list(recorded.snapshots)[20::30]:
        told = inspect("at", recorded.path, sequence, "--json").data
        state = timeline_at(open_trace(recorded.path), sequence).state
        assert [r["request"] for r in told["requests"]] == sorted(state.requests)
        for band, found in zip(state.bands, told["bands"], strict=True):
            assert found["live"] == int((band.page_of >= 0).sum())
            held = sum(request["pages"].get(band.name, 0) for request in told["requests"])
            assert held == found["live"]
            extent = found["extent_pages"]
            total = found["live"] + found["hole"] + found["pending"]
            assert extent[1] - extent[0] == total
        text = inspect("at", recorded.path, sequence)
        for found in told["bands"]:
            assert (f"{found['name']}: pages" in text.out) == (found["extent_pages"][1] > 0)
        assert sum(request["length"] for request in told["requests"]) >= 0


def test_at_takes_a_time(inspect: Inspect, tmp_path: Path) -> None:
    """The first event at or after it, as an argument and as an option."""
    path = record_p5(tmp_path)
    last = inspect("events", path, "--json", "--limit", "0").data["events"][-5]
    place = f"{last['time_ns']}ns"
    found = inspect("at", path, place, "--json").data
    assert found == inspect("at", path, "--time", place, "--json").data
    assert found["sequence"] <= last["sequence"]
    assert inspect("at", path, "0", "--json").status == 0


def test_diff_of_an_instant_with_itself_is_nothing(
    inspect: Inspect, tmp_path: Path
) -> None:
    path = record_p5(tmp_path)
    assert "nothing differs" in inspect("diff", path, "300", "300").out
    assert inspect("diff", path, "300", "300", "--other", path, "--json").data["same"] is True


def test_diff_agrees_with_the_states(tmp_path: Path) -> None:
    """What came, is gone and moved, page by page, and the other way round."""
    path = record_p5(tmp_path)
    trace = open_trace(path)
    one, two = (timeline_at(trace, at).state for at in (300, 700))
    found, back = compare(one, two), compare(two, one)
    for index, band in enumerate(found.bands):
        old, new = one.bands[index].page_of, two.bands[index].page_of
        assert set(band.came) == set(np.flatnonzero((old < 0) & (new >= 0)))
        assert set(band.gone) == set(back.bands[index].came)
        both = set(np.flatnonzero((old >= 0) & (new >= 0)))
        assert set(band.moved) | set(band.reused) <= both
        assert not set(band.moved) & set(band.reused)
        assert not band.changed_owner.size
    assert found.requests_came == back.requests_gone


def test_diff_of_two_traces(inspect: Inspect, tmp_path: Path) -> None:
    """The same operations differ in nothing; arenas of other bands cannot be compared."""
    from tests.allocator.arenas import P3

    one = record(tmp_path / "one", P5, seed=3, operations=80).path
    two = record(tmp_path / "two", P5, seed=3, operations=80).path
    other = record(tmp_path / "other", P3, seed=3, operations=80).path
    assert "nothing differs" in inspect("diff", one, "end", "end", "--other", two).out
    assert "other bands" in inspect.refused("diff", one, "end", "end", "--other", other)
    ended = inspect("diff", one, "start", "end", "--other", two)
    assert "requests that came" in ended.out


@pytest.mark.parametrize(
    ("pages", "spelled"),
    [
        ([], "none"), ([3], "3"), ([3, 4, 5], "3..5"), ([9, 8, 7, 1], "9..7, 1"),
        ([1, 3, 5, 7, 9, 11, 13, 15], "1, 3, 5, 7, 9, 11 and 2 more"), ([5, 6, 5], "5..6, 5"),
    ],
)  # fmt: skip
def test_runs_of_pages_in_words(pages: list[Any], spelled: str) -> None:
    assert spell_runs(pages) == spelled
