"""Invariants and leaks of traces with a prefix cache: clean runs are, and each broken rule is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.inspect import keyframe
from bandscope.inspect.checks.checked_timeline import CheckedTimeline
from bandscope.inspect.checks.fragmentation import RefusalExplained, explain_refusals
from bandscope.inspect.checks.invariants import check_trace
from bandscope.inspect.checks.leaks import CACHE_NAME, find_leaks
from bandscope.inspect.checks.whole_state import state_findings
from bandscope.inspect.format import INLINE, Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.replay import operations_of, restored_arena
from tests.allocator.arenas import P2W, P3, small_arena
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.rewrite import Change, Row, of_kind, rewrite, without


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_breaks_nothing_and_what_is_cached_is_no_leak(tmp_path: Path, name: str) -> None:
    recorded = record_cached(
        tmp_path / "run", name, seed=3, operations=600, keyframe_every=150, drain=True
    )
    trace = Trace(recorded.path)
    assert check_trace(trace) == []
    report = find_leaks(trace)
    assert report.verdict == "clean" and not report.holdings and not report.double_owners
    tree = recorded.arena.books.cache.tree  # type: ignore[union-attr]
    cached = {band.name: n for band, n in zip(recorded.arena.books.bands, tree.cached, strict=True)}
    assert {one.band: one.virtual.size for one in report.cached} == {
        band: pages for band, pages in cached.items() if pages
    }
    assert all(one.owner == CACHE_NAME for one in report.cached) and report.cached
    assert report.growth and all(one.pages[-1] == 0 for one in report.growth)


def test_what_a_request_still_holds_beside_the_cache_is_a_leak(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Recorder(path, small_arena(P3, prefix_cache=True, checkpoint_grid_tokens=4)) as recorder:
        _publish(recorder)
        recorder.arena.apply(ops.Admit(1, 1, (7, 8)))
    trace = Trace(recorder.directory)
    report = find_leaks(trace)
    assert report.verdict == "leak"
    assert {(one.band, one.owner) for one in report.holdings} == {("mamba", 1)}
    assert {(one.band, one.owner) for one in report.cached} == {
        (band, CACHE_NAME) for band in ("mamba", "window_8", "full")
    }
    assert [finding.name for finding in check_trace(trace)] == ["ownership"]


# --- rules broken on purpose ----------------------------------------------------------------------


def _publish(recorder: Recorder) -> None:
    """Request 0 publishes two pages with a state after them, and leaves."""
    arena = recorder.arena
    arena.apply(ops.Admit(0, 1, (7, 8)))
    assert arena.extend(0, 8)
    arena.complete(arena.launch([0]))
    assert arena.apply(ops.Checkpoint(0)).value == 8
    arena.apply(ops.Release(0))


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """What request 0 published is used by request 1, which pins a page of it."""
    arena = small_arena(P3, prefix_cache=True, checkpoint_grid_tokens=4)
    with Recorder(tmp_path / "used", arena) as recorder:
        _publish(recorder)
        assert arena.apply(ops.Admit(1, 1, (7, 8, 9))).value == 8
        assert arena.apply(ops.Lease(1, "window_8", 1, 2))
        assert arena.extend(1, 4)
    return tmp_path / "used.trace"


def _findings(path: Path, change: Change) -> list[str]:
    target = path.with_name("broken.trace")
    rewrite(path, target, change)
    timeline = CheckedTimeline(Trace(target))
    timeline.advance(timeline.trace.stop)
    timeline.check_state()
    return [f"{finding.name}: {finding.detail}" for finding in timeline.findings]


def _altered(row: Row, **change: int) -> Change:
    return lambda one: [replace(one, **change)] if one.sequence == row.sequence else [one]


def _before_the_last_extend(path: Path, *added: Row) -> Change:
    (extend,) = of_kind(path, Kind.EXTEND)[-1:]
    return lambda row: [*added, row] if row.sequence == extend.sequence else [row]


def _given_up(band: int, virtual: int) -> Row:
    return Row(-1, Kind.LEASE_END, INLINE, band, virtual, events.CACHE, 0)


def test_nothing_is_wrong_with_it(used: Path) -> None:
    assert _findings(used, lambda row: [row]) == []


def test_a_page_that_a_request_uses_is_given_up(used: Path) -> None:
    found = _findings(used, _before_the_last_extend(used, _given_up(2, 0)))
    assert "ownership: the cache gave up page full 0.0, which request 1 uses" in found
    # A page of a window may go: the window may have moved on.
    (used.with_name("broken.trace")).rename(used.with_name("first.trace"))
    found = _findings(used, _before_the_last_extend(used, _given_up(1, 0)))
    assert found == []


def test_a_page_that_is_pinned_is_given_up(used: Path) -> None:
    found = _findings(used, _before_the_last_extend(used, _given_up(1, 1)))
    assert any("pins: the cache gave up page window_8 1.0, which is pinned" in one for one in found)


def test_the_cache_takes_a_page_of_another_request(used: Path) -> None:
    shares = of_kind(used, Kind.SHARE)
    found = _findings(used, _altered(shares[0], b=5))
    assert "ownership: the cache took page full 0.0 from request 5, but request 0 holds it" in found


def test_shared_pages_follow_on_each_other(used: Path) -> None:
    shares = of_kind(used, Kind.SHARE)
    found = _findings(used, _altered(shares[-1], c=1))
    assert "ownership: request 1 shares pages from its page 1 on, but it shared 0 before" in found


def test_pages_are_told_to_become_the_caches(used: Path) -> None:
    shares = of_kind(used, Kind.SHARE)
    found = _findings(used, without(shares[0].sequence))
    assert found == [
        "ownership: the cache took page full 0.0 from request 1, but request 0 holds it"
    ]


def test_a_copy_is_of_where_the_slots_lie(used: Path) -> None:
    copies = of_kind(used, Kind.STATE_COPY)
    assert [Trace(used).segment_of(0).text(row.c) for row in copies] == ["checkpoint", "match"]
    for copy, change in ((copies[0], {"a": copies[0].a + 1}), (copies[1], {"b": copies[1].b + 1})):
        found = _findings(used, _altered(copy, **change))
        assert any("lies elsewhere" in one for one in found), found
        used.with_name("broken.trace").rename(used.with_name(f"broken{copy.sequence}.trace"))


def test_what_is_shared_is_the_caches_own(used: Path) -> None:
    timeline = CheckedTimeline(Trace(used))
    state = timeline.advance(timeline.trace.stop)
    assert list(state_findings(state)) == []
    full = state.bands[state.full]
    full.owner[full.page_of[1] - full.base] = 1
    (found,) = state_findings(state)
    assert found[2] == "request 1 shares page full 1.0, which is not the cache's"


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_would_have_let_a_demand_in_does(tmp_path: Path, name: str) -> None:
    """Cures are rather too much than too little; the cache is no request that could be released."""
    tried: Counter[str] = Counter()
    for seed in range(4):
        path = record_cached(tmp_path / f"run{seed}", name, seed=seed, operations=400).path
        trace = Trace(path)
        explained = {one.sequence: one for one in explain_refusals(trace)}
        before = restored_arena(trace)
        for step in operations_of(trace, trace.start, trace.stop):
            found = explained.keys() & set(step.sequences)
            if found:
                _try_cures(before.snapshot(), trace, explained[found.pop()], tried)
            before.apply(step.operation)
    assert tried["release"] > 3 and tried["arena"] > 3, tried


def _try_cures(
    snapshot: dict[str, Any], trace: Trace, one: RefusalExplained, tried: Counter[str]
) -> None:
    for cure in one.options:
        tried[cure.kind] += 1
        if cure.kind == "arena":
            assert one.short_bytes == cure.bytes > 0
            continue
        arena = restored_arena(trace, keyframe.decode(keyframe.encode(snapshot)))
        if cure.kind == "gate":
            arena.set_gate(closed=False)
        for number in cure.names:
            if cure.kind == "release":
                assert arena.apply(ops.Release(int(number)))
            else:
                arena.apply(ops.EndLease(int(number)))
        assert arena.serves(list(one.demand.values())), (one.text, cure)


def test_what_the_cache_can_give_up_is_counted_as_free(tmp_path: Path) -> None:
    """Ten pages: four cached, which request 2 alone uses at first; request 1 has five."""
    arena = small_arena(P2W, prefix_cache=True)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.apply(ops.Admit(0, 0, (1, 2, 3, 4)))
        assert arena.extend(0, 16)
        arena.complete(arena.launch([0]))
        arena.apply(ops.Release(0, publish=True))
        assert arena.apply(ops.Admit(2, 0, (1, 2, 3, 4, 5))).value == 16
        assert arena.extend(2, 4)
        arena.apply(ops.Admit(1, 0))
        assert arena.extend(1, 20)
        assert arena.extend(1, 16).reason == "memory"
        arena.release(2)
        assert arena.extend(1, 4 * 8).reason == "memory"
    one, other = explain_refusals(Trace(recorder.directory))
    assert [cure.names for cure in one.options if cure.kind == "release"] == [[2]]
    # 13 pages of 6 units each are wanted of 64, but for what the grids take.
    assert (13 * 6 - 64) * 256 <= other.short_bytes < (13 * 6 - 64) * 256 + 1024
    assert [cure.kind for cure in other.options] == ["arena"]
