"""What would have changed on another arena, for traces of arenas with a prefix cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz import replay_whatif
from bandscope.fuzz.replay_whatif import Change, what_if
from bandscope.fuzz.replay_whatif_memory import OtherArena, WhatIf
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.inspect_.cached import LAYOUTS, record_cached

PAGE = 1024
KEY = tuple(range(16))


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """Request 0 publishes ten pages; request 1 needs all sixteen that there are; request 2, which begins
    like request 0, finds nothing any more and computes its 48 tokens itself."""
    plan = plan_from_sizes([("window_64", PAGE), ("full", PAGE)], page_size=4)
    arena = Arena(
        plan, plan.sink_bytes + 32 * PAGE, device="none",
        config=ArenaConfig(headroom_share=0.0, prefix_cache=True),
    )  # fmt: skip
    with Recorder(tmp_path / "lost", arena):
        arena.apply(ops.Admit(0, 0, KEY[:10]))
        assert arena.extend(0, 40)
        arena.complete(arena.launch([0]))
        arena.apply(ops.Release(0, publish=True))
        arena.apply(ops.Admit(1, 0, (99,)))
        assert arena.extend(1, 64)
        arena.apply(ops.Release(1))
        assert arena.apply(ops.Admit(2, 0, KEY, 47)).value == 0
        assert arena.extend(2, 48)
        arena.complete(arena.launch([2]))
        arena.apply(ops.Publish(2))
        assert arena.decode([2])
    return tmp_path / "lost.trace"


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch) -> list[Arena]:
    """The arenas that are asked, the recorded one first."""
    made: list[Arena] = []

    class Kept(OtherArena):
        def count(self, row: WhatIf) -> None:
            super().count(row)
            made.append(self.arena)

    monkeypatch.setattr(replay_whatif, "OtherArena", Kept)
    return made


def test_what_is_matched_now_is_not_computed_again(lost: Path, arenas: list[Arena]) -> None:
    recorded, larger = what_if(Trace(lost), [Change(arena_bytes=1 << 20)])
    assert (recorded.hit_tokens, larger.hit_tokens) == (0, 40)
    assert recorded.evicted_pages == 20 and larger.evicted_pages == 0
    lengths = [int(arena.books.ledger.length[arena.books.ledger.row(2)]) for arena in arenas]
    assert lengths == [49, 49]
    assert (larger.refusals, larger.retractions) == (0, 0)


def test_what_is_not_matched_now_is_computed(tmp_path: Path) -> None:
    plan = plan_from_sizes([("window_64", PAGE), ("full", PAGE)], page_size=4)
    arena = Arena(plan, 1 << 18, device="none", config=ArenaConfig(prefix_cache=True))
    with Recorder(tmp_path / "found", arena):
        arena.apply(ops.Admit(0, 0, KEY[:10]))
        assert arena.extend(0, 40)
        arena.complete(arena.launch([0]))
        arena.apply(ops.Release(0, publish=True))
        assert arena.apply(ops.Admit(2, 0, KEY, 47)).value == 40
        assert arena.extend(2, 8)
    _, pools = what_if(Trace(tmp_path / "found.trace"), [Change(pools=True)])
    assert pools.hit_tokens is None
    assert pools.held_bytes == 2 * 12 * PAGE  # request 2 alone has twelve pages of each band


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_other_order_of_eviction(tmp_path: Path, name: str) -> None:
    path = record_cached(tmp_path / "run", name, seed=2, operations=600).path
    recorded, other, smaller = what_if(
        Trace(path), [Change(evict="joint_lru"), Change(arena_bytes=8192, evict="lru")]
    )
    assert recorded.operations == other.operations == 600
    for row in (recorded, other, smaller):
        assert not row.problem and row.hit_tokens is not None
        assert {"hit_tokens", "evicted_pages", "stalls"} <= row.to_json().keys()
    assert smaller.hit_tokens <= recorded.hit_tokens
    if name != "P2w":  # with states both orders are one
        assert other.hit_tokens == recorded.hit_tokens


def test_changes_that_mean_nothing(lost: Path) -> None:
    with pytest.raises(ConfigError, match="keys of the trace name pages of 4"):
        what_if(Trace(lost), [Change(page_size=8)])
    with pytest.raises(ConfigError, match="evict is 'fifo'"):
        what_if(Trace(lost), [Change(evict="fifo")])
