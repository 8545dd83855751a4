"""The user page's rows on the radix cache, eviction policies and checkpoints, one test each."""

from __future__ import annotations

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import PENDING
from tests.allocator.arenas import P2M, P2W, P3, P4, EventLog
from tests.allocator.test_cache import PAGE, cached_arena, compute, fill_cache, healthy, tree

P3W = ([("window_8", 2), ("window_16", 3), ("full", 4)], 120)


def evicted(arena: Arena, log: EventLog, request: int, tokens: int) -> tuple[int, ...]:
    """Pages per band that went for this extension."""
    log.effects.clear()
    assert arena.extend(request, tokens)
    (eviction,) = log.of(events.Eviction)
    return eviction.counts


def test_radix_cache_has_one_slot_per_sub_pool() -> None:
    """A prefix is kept in every band by itself: one can lose it while the others still have it."""
    arena = cached_arena(P3, units=200)
    arena.admit(1, key=(1, 2, 3, 4))
    compute(arena, 1, 4 * PAGE)
    arena.trim_window([1])
    assert arena.checkpoint(1).value == 4 * PAGE
    arena.release(1, publish=True)
    assert tree(arena).cached == [1, 2, 4]
    assert arena.evict((1, 0, 0)).value == 1
    assert tree(arena).cached == [0, 2, 4]
    assert arena.evict((0, 2, 0)).value == 2
    assert tree(arena).cached == [0, 0, 4]
    healthy(arena)


def test_radix_cache_keeps_window_pages_only_where_a_match_can_use_them() -> None:
    arena = cached_arena(P2W)
    arena.admit(1, key=(1, 2, 3, 4))
    compute(arena, 1, 4 * PAGE)
    arena.trim_window([1])
    arena.release(1, publish=True)
    assert tree(arena).cached == [2, 4]
    # The next token of a match of three pages attends to a page that the window has trimmed.
    assert arena.admit(2, key=(1, 2, 3, 9)).value == 0
    assert arena.admit(3, key=(1, 2, 3, 4)).value == 4 * PAGE


@pytest.mark.parametrize(("policy", "window", "full"), [("joint_lru", 2, 0), ("lru", 1, 1)])
def test_joint_lru_evicts_full_and_window_in_one_order(policy: str, window: int, full: int) -> None:
    """A page of full attention is wanted. The window pages at the front of a long prefix were used
    longest ago: in one shared order they go; in orders of their own the band that is asked pays."""
    log = EventLog()
    arena = cached_arena(P2W, units=36, evict=policy, observer=log)
    for request, keys in enumerate([(1, 2), (1, 2, 3, 4), (7, 8)]):
        shared = arena.admit(request, key=keys).value
        compute(arena, request, len(keys) * PAGE - shared)
        arena.release(request, publish=True)
    arena.admit(5, key=(1, 2, 3, 4))  # uses the last two window pages, and all of full
    arena.release(5)
    log.effects.clear()
    assert arena.apply(ops.Reserve((0, 1)))
    (eviction,) = log.of(events.Eviction)
    assert eviction.counts == (window, full)


@pytest.mark.parametrize("layout", [P3, P3W, P4, P2M])
def test_joint_lru_elsewhere_is_each_band_in_its_own_order(layout: object) -> None:
    """With a state band, or several windows: `joint_lru` and `lru` make the same choices."""
    digests = []
    for policy in ("joint_lru", "lru"):
        arena = cached_arena(layout, evict=policy)  # type: ignore[arg-type]
        assert not tree(arena).shape.shared_order
        for request, keys in enumerate([(1, 2, 3), (4, 5, 6), (1, 2, 7), (8, 9), (4, 5, 1)]):
            if arena.admit(request, key=keys):
                shared = int(arena.books.ledger.cached[arena.books.ledger.row(request)])
                if arena.extend(request, (len(keys) - shared) * PAGE):
                    arena.launch([request])
                    arena.trim_window([request])
                arena.release(request, publish=True)
        digests.append(arena.digest())
    assert digests[0] == digests[1]


def test_eviction_stops_as_soon_as_the_demand_is_served_compaction_included() -> None:
    """Holes of a neighbour serve before anything goes."""
    log = EventLog()
    arena = cached_arena(P2W, units=48, observer=log)
    fill_cache(arena, 1, (1, 2))
    for request in (2, 3, 4, 5):
        arena.admit(request)
        compute(arena, request, PAGE)
    arena.release(2)
    arena.release(4)
    arena.admit(6)
    assert arena.extend(6, 4 * PAGE)
    assert not log.of(events.Eviction)
    healthy(arena)


def test_overlap_scheduler_evicted_pages_wait_for_the_forwards_that_may_read_them() -> None:
    arena = cached_arena(P2W)
    arena.admit(1, key=(1, 2))
    arena.extend(1, 2 * PAGE)
    ticket = arena.launch([1])
    arena.release(1, publish=True)
    arena.evict((9, 9))
    full = arena.books.bands[arena.books.full]
    assert full.pending == 2 and (full.state[full.low : full.high] == PENDING).all()
    arena.complete(ticket)
    assert not full.pending
    healthy(arena)


def test_state_checkpoints_are_copied_on_write() -> None:
    """A request goes on from a checkpoint in a slot of its own; the checkpoint stays what it is."""
    arena = cached_arena(P2M, units=100)
    arena.admit(1, key=(1, 2, 3, 4))
    compute(arena, 1, 2 * PAGE)
    arena.checkpoint(1)
    kept = [one.slot for one in tree(arena).checkpoints.values()]
    compute(arena, 1, 2 * PAGE)
    ticket = arena.launch([1])
    assert not set(arena.books.tickets.in_flight[ticket][0].tolist()) & set(kept)
    assert arena.admit(2, key=(1, 2, 9)).value == 2 * PAGE


def test_a_stalled_checkpoint_costs_a_request_no_window_rows() -> None:
    """Unlike the described system: windows are trimmed by length, whatever became of checkpoints."""
    arena = cached_arena(P3, units=3 * 8)
    arena.admit(1, key=tuple(range(8)))
    most = 0
    for _ in range(2):
        compute(arena, 1, PAGE)
        arena.trim_window([1])
        if int(arena.books.ledger.length[arena.books.ledger.row(1)]) == 2 * PAGE:
            assert arena.checkpoint(1).value == 0
        most = max(most, arena.pages_of(1, "window_8")[0].size)
    assert most <= -(-(8 - 1) // PAGE) + 1
    healthy(arena)
