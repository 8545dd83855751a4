"""Scenarios that need a prefix cache: what is matched, locked, published or evicted at a bad moment."""

from __future__ import annotations

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from tests.allocator.arenas import P2M, EventLog, held_pages, small_arena
from tests.scenarios.closing import close, refused

PAGE = 4
GRID = 2 * PAGE


def cached_arena(**options: object) -> Arena:
    return small_arena(
        P2M, page_size=PAGE, prefix_cache=True, checkpoint_grid_tokens=GRID, **options  # type: ignore[arg-type]
    )


def run(arena: Arena, request: int, key: tuple[int, ...], tokens: int, slots: int = 1) -> None:
    """Admit, compute and launch so many tokens."""
    assert arena.admit(request, state_slots=slots, key=key)
    assert arena.extend(request, tokens)
    arena.complete(arena.launch([request]))


def kept_with_state(arena: Arena, request: int, key: tuple[int, ...]) -> None:
    """A prefix of one grid in the cache with its state, nobody holding it."""
    run(arena, request, key, GRID)
    assert arena.checkpoint(request).value == GRID
    assert arena.release(request)


# A5. sgl-project/sglang#12693, #21404
@pytest.mark.parametrize("path", ["abort", "no memory", "again", "no slot"])
def test_a_slot_that_a_match_copied_to_comes_back_once(path: str) -> None:
    """A request matches a prefix with its state and ends before it runs, in four ways, a hundred times
    each: match and admission are one operation, so no slot is ever without an owner."""
    arena = cached_arena()
    kept_with_state(arena, 0, (1, 2))
    before, ids = held_pages(arena), arena.books.state_ids.free_count
    for request in range(100, 200):
        if path == "no slot":
            refused(arena, ops.Admit(request, 9, key=(1, 2)), "memory")
        else:
            assert arena.admit(request, key=(1, 2)).value == GRID
            assert arena.books.bands[0].live == 2
            if path == "no memory":
                refused(arena, ops.Extend(request, 64), "memory")
            if path == "again":
                refused(arena, ops.Admit(request, key=(1, 2)), "misuse")
            assert arena.release(request, "aborted")
        assert held_pages(arena) == before
        assert arena.books.state_ids.free_count == ids
        assert not arena.books.cache.tree.leases  # type: ignore[union-attr]
    assert arena.admit(7, key=(1, 2)).value == GRID, "the checkpoint is still there"
    close(arena)


# C1. sgl-project/sglang#34441
@pytest.mark.parametrize("inner", [False, True])
def test_a_slot_that_lacks_bytes_costs_one_cached_page_of_the_other_band(inner: bool) -> None:
    """15 cached pages of `full`, no slot, a gap of 4 u: one page goes, and where it is not at the
    frontier one move follows."""
    log = EventLog()
    arena = cached_arena(observer=log)
    for request in range(15):
        run(arena, request, (request,), PAGE, slots=0)
        assert arena.release(request, publish=True)
    assert [fact.live for fact in arena.facts()] == [0, 15]
    if not inner:  # then the newest page, at the frontier, is the one used longest ago
        for request in range(14):
            assert arena.admit(100 + request, state_slots=0, key=(request,))
            assert arena.release(100 + request, publish=True)
        for number in range(14):
            assert arena.admit(200, state_slots=0, key=(number,)).value == 0, "no state, no match"
            assert arena.release(200)
    log.clear()
    assert arena.admit(99)
    (eviction,) = log.of(events.Eviction)
    assert eviction == events.Eviction((1, 0), (0, 1))
    assert sum(event.sources.size for event in log.of(events.PageMove)) == 1
    close(arena)


def test_a_page_of_full_costs_one_cached_slot() -> None:
    """The mirror: `mamba` full of checkpoints that nobody holds, and no page of `full` may go."""
    log = EventLog()
    arena = cached_arena(observer=log, units=8 * 5 + 4 * 6)
    for request in range(2):
        run(arena, request, (request, 9), GRID)
        assert arena.checkpoint(request).value == GRID
    for request in (2, 3):  # they hold the pages, and copied the states
        assert arena.admit(request, state_slots=1, key=(request - 2, 9)).value == GRID
        assert arena.release(request - 2)
    assert arena.extend(2, 3 * PAGE)
    log.clear()
    cached = arena.books.cache.tree.cached  # type: ignore[union-attr]
    slots = cached[0]
    assert arena.extend(3, 2 * PAGE)
    gone = [event.counts for event in log.of(events.Eviction)]
    assert gone and all(counts[1] == 0 for counts in gone) and cached[0] < slots
    close(arena)


def test_when_nothing_may_go_the_refusal_shows_the_bytes() -> None:
    log = EventLog()
    arena = cached_arena(observer=log)
    run(arena, 1, tuple(range(14)), 14 * PAGE)
    assert arena.publish(1).value == 14 * PAGE
    outcome = refused(arena, ops.Admit(2), "memory")
    assert "bytes would be held of" in outcome.message
    (refusal,) = log.of(events.Refusal)
    assert refusal.live == (1, 14) and not log.of(events.Eviction)
    close(arena)


# C4. sgl-project/sglang#36770, #33773
def test_a_checkpoint_without_a_slot_is_skipped_and_the_request_goes_on() -> None:
    """Two slots run, two are in write-back after their owners left; a checkpoint finds no slot."""
    arena = cached_arena()
    run(arena, 0, (1, 2, 3, 4), GRID)
    arena.admit(1)
    for request in (2, 3):
        arena.admit(request)
    leases = [arena.lease(request, "mamba", 0, 1, holder="write back") for request in (2, 3)]
    for request in (2, 3):
        arena.release(request)
    assert arena.extend(1, 6 * PAGE)  # all that is left
    before = arena.digest()
    stalled = arena.checkpoint(0)
    assert (stalled.ok, stalled.value) == (True, 0)
    assert stalled.message == "no slot for a checkpoint: 2 running, 0 locked, 2 leased"
    assert arena.digest() == before, "nothing is half published"
    assert arena.complete(arena.launch([0, 1]))  # goes on
    arena.end_lease(leases[0])
    assert arena.checkpoint(0).value == GRID
    arena.end_lease(leases[1])
    close(arena)


# C5. sgl-project/sglang#16067, #12432
def test_cached_and_matched_pages_are_no_leak_at_any_step() -> None:
    """Every step of a shared life is clean; a page that the cache forgets is reported."""
    arena = cached_arena()
    kept_with_state(arena, 0, (1, 2))
    steps: list[ops.Operation] = [
        ops.Admit(1, key=(1, 2, 3)),
        ops.Extend(1, 5),
        ops.Launch((1,)),
        ops.Publish(1),
        ops.Lease(1, "full", 0, 3),
        ops.Release(1, "retracted"),
        ops.Admit(1, key=(1, 2, 3)),
        ops.EndLease(1),
        ops.Release(1, publish=True),
        ops.Evict((1, 0)),
    ]
    for step in steps:
        assert arena.apply(step), step
        assert arena.check() == [], step
    tree = arena.books.cache.tree  # type: ignore[union-attr]
    leaf = max(tree.nodes.values(), key=lambda node: node.stop)
    tree.drop_tail(leaf, 1)
    assert "leak" in " ".join(map(str, arena.check()))
