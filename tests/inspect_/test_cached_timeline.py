"""Traces of arenas with a prefix cache: records, states rebuilt from them, in bulk too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bandscope.allocator import events
from bandscope.inspect import keyframe
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from tests.inspect_.cached import LAYOUTS, record_cached


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_runs_match_publish_keep_states_and_evict(tmp_path: Path, name: str) -> None:
    """Or the other tests here would say nothing."""
    recorded = record_cached(tmp_path / "run", name, seed=3, operations=1500)
    kinds: Counter[str] = Counter()
    for event in read_events(Trace(recorded.path)):
        kinds[event.kind] += 1
        if isinstance(event.body, events.StateCopy):
            kinds[event.body.why] += 1
    assert kinds["Share"] > 50 and kinds["Eviction"] > 5, kinds
    if name != "P2m":
        assert kinds["Graft"] > 5, kinds
    if name != "P2w":
        assert kinds["match"] > 5 and kinds["checkpoint"] > 5, kinds


def test_what_is_shared_is_compared(tmp_path: Path) -> None:
    recorded = record_cached(tmp_path / "run", "P2w", seed=1, operations=200)
    state = Timeline(Trace(recorded.path)).seek(Trace(recorded.path).stop)
    snapshot = keyframe.decode(keyframe.encode(recorded.arena.snapshot()))
    assert state.differences(snapshot) == []
    request = next(request for request, pages in state.shared.items() if pages.size)
    state.shared[request] = state.shared[request][:-1]
    assert state.differences(snapshot) == ["shared pages"]
