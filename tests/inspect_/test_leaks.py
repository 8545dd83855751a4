"""Who holds what at any instant, and what was never given back."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect.checks.leaks import find_leaks
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import LAYOUTS, P3, RandomEngine, small_arena
from tests.inspect_.rewrite import of_kind, rewrite
from tests.inspect_.traces import record


@pytest.mark.parametrize("name", LAYOUTS)
def test_holdings_are_the_arenas_own(tmp_path: Path, name: str) -> None:
    """Sets of pages by owner and band, those of the arena at the end; and every lease of a holder."""
    recorded = record(tmp_path / "run", LAYOUTS[name], seed=4, operations=300, keyframe_every=10**9)
    report = find_leaks(Trace(recorded.path))
    arena = recorded.arena
    expected = {}
    for request in arena.books.ledger.row_of:
        for band in arena.books.bands:
            pages, _ = arena.pages_of(request, band.name)
            if pages.size:
                expected[request, band.name] = set(pages.tolist())
    told = {(one.owner, one.band): set(one.physical.tolist()) for one in report.holdings}
    assert told == expected
    assert {one.lease for one in report.unended} == set(arena.books.pins.pins)
    assert report.verdict == ("leak" if told or report.unended else "clean")
    assert report.double_owners == []
    for one in report.holdings:
        assert one.operation in ("Admit", "Extend", "Decode")
        assert one.sequence < int(one.leased_at.min()) and one.age_events > 0 and one.age_ns >= 0
    json.dumps(report.to_json())


def test_a_drained_run_is_clean(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena) as recorder:
        engine = RandomEngine(random.Random(2))
        for _ in range(300):
            engine.step(arena)
        engine.drain(arena)
    report = find_leaks(Trace(recorder.directory))
    assert report.verdict == "clean" and report.holdings == [] and report.unended == []


def test_a_run_that_has_not_ended_is_live_not_leaking(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, seed=4, operations=200, close=False)
    trace = Trace(recorded.path)
    report = find_leaks(trace)
    assert report.holdings and report.ending == "running"
    assert report.verdict == "live at end of data"
    recorded.recorder.close()
    trace = Trace(recorded.path)
    assert find_leaks(trace).verdict == "leak"
    assert find_leaks(trace, trace.stop // 2).verdict == "live at this event"


def test_growth_names_the_operation_that_leaks(tmp_path: Path) -> None:
    """Requests come and go, but one is extended for ever."""
    arena = small_arena(P3, page_size=1, units=4000)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(0, state_slots=0)
        for number in range(1, 200):
            arena.admit(number)
            arena.extend(0, 2)
            arena.release(number)
    report = find_leaks(Trace(recorder.directory))
    assert report.verdict == "leak"
    assert {one.operation for one in report.growth[:2]} == {"Extend"}
    assert report.growth[0].pages[-1] == 2 * 199
    assert report.growth[0].pages_per_kevent > 100
    (full,) = [one for one in report.holdings if one.band == "full"]
    assert full.owner == 0 and full.virtual.size == 398 and full.bytes == 398 * 4 * 256


def test_two_owners_of_one_page_are_named(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        for request in range(2):
            arena.admit(request, state_slots=0)
            arena.extend(request, 1)
    first, second = [
        row for row in of_kind(recorder.directory, Kind.LEASE_BEGIN) if row.band == 2
    ]
    rewrite(
        recorder.directory, tmp_path / "altered",
        lambda row: [replace(row, a=first.a) if row == second else row],
    )  # fmt: skip
    ((band, virtual, one, other, sequence),) = find_leaks(Trace(tmp_path / "altered")).double_owners
    assert (band, virtual, one, other) == ("full", first.a >> 32, 0, 1)
    assert abs(sequence - second.sequence) <= 1


def test_a_lease_without_end_is_named(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(0)
        arena.extend(0, 4)
        number = arena.apply(ops.Lease(0, "full", 1, 3, holder="backup")).value
        arena.release(0)
    report = find_leaks(Trace(recorder.directory))
    (lease,) = report.unended
    assert (lease.owner, lease.lease, lease.operation) == ("backup", number, "Lease")
    assert np.array_equal(lease.virtual, [1, 2]) or lease.virtual.size == 2
    assert report.verdict == "leak"
