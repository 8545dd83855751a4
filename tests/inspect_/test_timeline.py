"""The state at event n, rebuilt from a trace, is the arena's own at every n."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import keyframe
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from tests.inspect_.cached import RUNS, record_any


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RUNS)
def test_the_state_at_every_operation_is_the_arenas_own(
    tmp_path: Path, name: str, seed: int
) -> None:
    """From one keyframe at the start, by events alone: owners, what is shared, lengths."""
    recorded = record_any(
        tmp_path / "run", name, seed=seed, operations=300, snapshots=True,
        keyframe_every=10**9,
    )  # fmt: skip
    trace = Trace(recorded.path)
    timeline = Timeline(trace)
    assert len(recorded.snapshots) == 300
    for sequence, snapshot in recorded.snapshots.items():
        state = timeline.advance(sequence)
        told = keyframe.decode(keyframe.encode(snapshot))
        assert state.differences(told) == [], f"before event {sequence}"


@pytest.mark.parametrize("name", RUNS)
def test_seeking_is_the_same_in_any_order(tmp_path: Path, name: str) -> None:
    recorded = record_any(
        tmp_path / "run", name, seed=5, operations=300, snapshots=True, keyframe_every=100,
        segment_records=600,
    )  # fmt: skip
    trace = Trace(recorded.path)
    timeline = Timeline(trace)
    for sequence, snapshot in list(reversed(recorded.snapshots.items()))[::3]:
        told = keyframe.decode(keyframe.encode(snapshot))
        assert timeline.seek(sequence).differences(told) == []
    assert timeline.gaps == [] and timeline.damages == []


@pytest.mark.parametrize("name", RUNS)
def test_operations_and_outcomes_come_back_as_they_were_told(tmp_path: Path, name: str) -> None:
    recorded = record_any(tmp_path / "run", name, seed=2, operations=300, keyframe_every=50)
    told = [
        ("asked" if isinstance(event.body, Operation) else "outcome", event.body)
        for event in read_events(Trace(recorded.path))
        if isinstance(event.body, Operation | Outcome)
    ]
    assert len(told) == len(recorded.told)
    for (kind, body), (kind_told, expected) in zip(told, recorded.told, strict=True):
        assert kind == kind_told
        if isinstance(expected, Outcome):
            assert isinstance(body, Outcome)
            assert (body.ok, body.value, body.reason) == (expected.ok, expected.value, expected.reason)
            # What a stalled checkpoint says beside its value is not recorded.
            assert body.message == ("" if expected.ok else expected.message)
        else:
            assert body == expected
