"""Traces of arenas with a prefix cache: records, states rebuilt from them, in bulk too."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from bandscope.allocator import events
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import keyframe
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.test_bulk import same


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_state_at_every_operation_is_the_arenas_own(
    tmp_path: Path, name: str, seed: int
) -> None:
    """From one keyframe at the start, by events alone: owners, what is shared, lengths."""
    recorded = record_cached(
        tmp_path / "run", name, seed=seed, operations=400, snapshots=True, keyframe_every=10**9
    )
    timeline = Timeline(Trace(recorded.path))
    for sequence, snapshot in recorded.snapshots.items():
        state = timeline.advance(sequence)
        told = keyframe.decode(keyframe.encode(snapshot))
        assert state.differences(told) == [], f"before event {sequence}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_runs_match_publish_keep_states_and_evict(tmp_path: Path, name: str) -> None:
    """Or the other tests here would say nothing."""
    recorded = record_cached(tmp_path / "run", name, seed=1, operations=1500)
    kinds: Counter[str] = Counter()
    for event in read_events(Trace(recorded.path)):
        kinds[event.kind] += 1
        if isinstance(event.body, events.StateCopy):
            kinds[event.body.why] += 1
    assert kinds["Share"] > 50 and kinds["Eviction"] > 5, kinds
    if "P2w" not in name:
        assert kinds["match"] > 5 and kinds["checkpoint"] > 5, kinds


@pytest.mark.parametrize("name", LAYOUTS)
def test_operations_come_back_as_they_were_told(tmp_path: Path, name: str) -> None:
    recorded = record_cached(tmp_path / "run", name, seed=2, operations=400, keyframe_every=50)
    told = [
        event.body
        for event in read_events(Trace(recorded.path))
        if isinstance(event.body, Operation | Outcome)
    ]
    assert len(told) == len(recorded.told)
    for body, (_, expected) in zip(told, recorded.told, strict=True):
        if isinstance(expected, Outcome):
            assert isinstance(body, Outcome)
            assert (body.ok, body.value, body.reason) == (
                expected.ok, expected.value, expected.reason,
            )  # fmt: skip
        else:
            assert body == expected


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
def test_any_pieces_lead_to_the_same_state(tmp_path: Path, name: str, seed: int) -> None:
    run = record_cached(
        tmp_path / "run", name, seed=seed, operations=800,
        keyframe_every=300 + 4000 * (seed % 2),
    )  # fmt: skip
    trace = Trace(run.path)
    many, each = BulkTimeline(trace), Timeline(trace)
    draw = random.Random(seed)
    at = 1
    while at < trace.stop:
        at = min(trace.stop, at + draw.choice((1, 2, 7, 40, 300, 2000)))
        same(many.advance(at), each.advance(at))


def test_what_is_shared_is_compared(tmp_path: Path) -> None:
    recorded = record_cached(tmp_path / "run", "P2w", seed=1, operations=200)
    state = Timeline(Trace(recorded.path)).seek(Trace(recorded.path).stop)
    snapshot = keyframe.decode(keyframe.encode(recorded.arena.snapshot()))
    assert state.differences(snapshot) == []
    request = next(request for request, pages in state.shared.items() if pages.size)
    state.shared[request] = state.shared[request][:-1]
    assert state.differences(snapshot) == ["shared pages"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_seeking_is_the_same_in_any_order(tmp_path: Path, name: str) -> None:
    recorded = record_cached(
        tmp_path / "run", name, seed=5, operations=300, snapshots=True, keyframe_every=100,
        segment_records=600,
    )  # fmt: skip
    timeline = Timeline(Trace(recorded.path))
    for sequence, snapshot in list(reversed(recorded.snapshots.items()))[::3]:
        told = keyframe.decode(keyframe.encode(snapshot))
        assert timeline.seek(sequence).differences(told) == []
