"""The prefix cache inside an arena: shared pages, checkpoints, eviction, and what must never happen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import ConfigError, MisuseError
from bandscope.allocator.events import CACHE
from tests.allocator.arenas import LAYOUTS, P2M, P2W, EventLog, small_arena
from tests.allocator.cached_engine import CachedEngine
from tests.allocator.devices import HazardDevice, access

PAGE = 4


def cached_arena(
    layout: tuple[list[tuple[str, int]], int] = P2W, *, page_size: int = PAGE, **options: Any
) -> Arena:
    settings: dict[str, Any] = {"prefix_cache": True, **options}
    if any(name == "mamba" for name, _ in layout[0]):
        settings.setdefault("checkpoint_grid_tokens", 2 * page_size)
    return small_arena(layout, page_size=page_size, **settings)


def compute(arena: Arena, request: int, tokens: int) -> None:
    assert arena.extend(request, tokens)
    arena.complete(arena.launch([request]))


def healthy(arena: Arena) -> None:
    assert arena.check() == []


def tree(arena: Arena) -> Any:
    assert arena.books.cache is not None
    return arena.books.cache.tree


# --- sharing --------------------------------------------------------------------------------------


def test_a_later_request_starts_with_what_an_earlier_one_computed() -> None:
    arena = cached_arena(device="cpu")
    arena.admit(1, key=(5, 6, 7))
    compute(arena, 1, 3 * PAGE)
    assert arena.publish(1).value == 3 * PAGE
    assert arena.admit(2, key=(5, 6, 9), limit_tokens=2 * PAGE).value == 2 * PAGE
    healthy(arena)
    for band in ("full", "window_8"):
        mine, first = arena.pages_of(1, band)
        other, other_first = arena.pages_of(2, band)
        assert other.tolist() == mine[other_first - first : 2 - first].tolist()
    assert arena.books.bands[arena.books.full].live == 3


def test_a_prefix_is_not_shared_when_its_last_token_must_be_computed() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    assert arena.admit(2, key=(5, 6), limit_tokens=2 * PAGE - 1).value == PAGE


def test_two_copies_become_one() -> None:
    arena = cached_arena()
    for request in (1, 2):
        arena.admit(request, key=(5, 6))
        compute(arena, request, 2 * PAGE)
    assert arena.books.bands[arena.books.full].live == 4
    arena.publish(1)
    arena.publish(2)
    assert arena.books.bands[arena.books.full].live == 2
    assert arena.pages_of(1, "full")[0].tolist() == arena.pages_of(2, "full")[0].tolist()
    healthy(arena)


def test_what_a_request_shares_outlives_it() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE + 1)
    assert arena.release(1, publish=True)
    facts = {fact.name: fact for fact in arena.facts()}
    assert facts["full"].live == facts["full"].cached == facts["full"].evictable == 2
    assert arena.admit(2, key=(5, 6)).value == 2 * PAGE
    facts = {fact.name: fact for fact in arena.facts()}
    assert facts["full"].evictable == 0
    healthy(arena)


def test_a_retracted_request_finds_again_what_it_published_and_nothing_else() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5, 6, 7))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    compute(arena, 1, PAGE)
    arena.release(1, "retracted")
    assert arena.admit(1, key=(5, 6, 7)).value == 2 * PAGE
    healthy(arena)


def test_pages_beyond_the_key_stay_the_requests_own() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5,))
    compute(arena, 1, 3 * PAGE)
    assert arena.publish(1).value == PAGE
    assert arena.publish(1, key=(6, 7, 8)).value == 3 * PAGE
    healthy(arena)


def test_pages_that_no_forward_computes_are_not_published() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5, 6))
    arena.extend(1, 2 * PAGE)
    assert arena.publish(1).value == 0
    arena.launch([1])
    assert arena.publish(1).value == 2 * PAGE
    healthy(arena)


def test_a_shared_page_is_never_written() -> None:
    arena = cached_arena()
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    arena.admit(2, key=(5, 6))
    shared = set(tree(arena).nodes[1].pages.tolist())
    arena.extend(2, 3)
    ticket = arena.launch([2])
    written = arena.books.tickets.in_flight[ticket][arena.books.full]
    assert not shared & set(written.tolist())


def test_trimming_a_shared_window_gives_it_back_to_the_cache() -> None:
    arena = cached_arena()
    arena.admit(1, key=tuple(range(6)))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    window = arena.plan.bands.index(next(b for b in arena.plan.bands if b.kind == "window"))
    assert tree(arena).evictable[window] == 0
    compute(arena, 1, 4 * PAGE)
    arena.trim_window([1])
    assert arena.books.bands[window].live == 4
    assert tree(arena).evictable[window] == 2
    healthy(arena)


def lost_window(arena: Arena) -> None:
    """Request 1 goes on and holds two pages, whose window rows are evicted; request 2 has computed
    them again, with its forward in flight."""
    arena.admit(1, key=tuple(range(4)))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    compute(arena, 1, 2 * PAGE)
    arena.trim_window([1])
    arena.evict((2, 0))
    assert arena.admit(2, key=(0, 1)).value == 0, "nothing to start with"
    arena.extend(2, 2 * PAGE)
    arena.launch([2])


def test_window_rows_come_back_by_a_graft_while_others_hold_the_page() -> None:
    log = EventLog()
    arena = cached_arena(observer=log)
    lost_window(arena)
    mine, _ = arena.pages_of(2, "window_8")
    log.clear()
    assert arena.publish(2).value == 2 * PAGE
    assert arena.pages_of(2, "window_8")[0].tolist() == mine.tolist(), "no page has moved"
    assert not log.of(events.PageMove)
    (graft,) = log.of(events.Graft)
    shared = arena.books.ledger.token_pages(arena.books.ledger.row(2))
    assert graft.into.tolist() == shared.tolist() != graft.virtual.tolist()
    assert arena.admit(3, key=(0, 1)).value == 2 * PAGE
    healthy(arena)


def test_a_grafted_page_is_still_what_the_forward_in_flight_writes() -> None:
    """Compaction at leisure leaves it where it is until that forward is settled."""
    arena = cached_arena(compact_hole_share=0.0)
    lost_window(arena)
    arena.publish(2)
    shared = arena.books.ledger.token_pages(arena.books.ledger.row(2))
    window = arena.plan.bands.index(next(b for b in arena.plan.bands if b.kind == "window"))
    assert set(shared.tolist()) <= set(arena.books.tickets.unsettled_writes(window).tolist())
    before = arena.pages_of(2, "window_8")[0].tolist()
    arena.release(1)
    arena.compact()
    assert arena.pages_of(2, "window_8")[0].tolist() == before
    healthy(arena)


def test_the_device_learns_both_names_of_a_grafted_page() -> None:
    arena = cached_arena(device="cpu")
    lost_window(arena)
    arena.publish(2)
    window = arena.plan.bands.index(next(b for b in arena.plan.bands if b.kind == "window"))
    arena.launch([2])
    mirror = arena.device.mirror(window)
    assert mirror is not None
    band = arena.books.bands[window]
    places = band.table.place_of
    assert mirror.tolist() == [-1 if p < 0 else int(band.physical(p)) for p in places]


def test_a_pinned_copy_that_is_grafted_is_held_under_its_new_name() -> None:
    arena = cached_arena(units=9 * 6)
    lost_window(arena)
    pin = arena.lease(2, "window_8", 0, 2)
    place = arena.pages_of(2, "window_8")[0].tolist()
    arena.publish(2)
    arena.release(2)
    arena.release(1)
    assert arena.evict((9, 9)).value == 0
    healthy(arena)
    arena.end_lease(pin)
    healthy(arena)
    assert arena.admit(3, key=(0, 1)).value == 2 * PAGE
    assert arena.pages_of(3, "window_8")[0].tolist() == place


# --- states ---------------------------------------------------------------------------------------


def test_a_state_is_copied_to_a_checkpoint_and_from_it() -> None:
    log = EventLog()
    arena = cached_arena(P2M, device="cpu", observer=log)
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    working = arena.pages_of(1, "mamba")[0][0]
    size = arena.plan.bands[0].page_bytes
    arena.buffer[working * size : (working + 1) * size] = 9
    assert arena.checkpoint(1).value == 2 * PAGE
    assert arena.admit(2, key=(5, 6)).value == 2 * PAGE
    copied = arena.pages_of(2, "mamba")[0][0]
    assert copied != working
    assert (arena.buffer[copied * size : (copied + 1) * size] == 9).all()
    assert [event.why for event in log.of(events.StateCopy)] == ["checkpoint", "match"]
    slots = [event.holder for event in log.of(events.LeaseBegin) if event.band == "mamba"]
    assert slots == [1, CACHE, 2]
    healthy(arena)


def test_without_a_checkpoint_a_model_with_state_matches_nothing() -> None:
    arena = cached_arena(P2M)
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    arena.publish(1)
    assert arena.admit(2, key=(5, 6)).value == 0


def test_a_request_without_a_slot_has_nowhere_to_copy_a_state_to() -> None:
    arena = cached_arena(P2M)
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    arena.checkpoint(1)
    assert arena.admit(2, state_slots=0, key=(5, 6)).value == 0
    assert tree(arena).evictable == [1, 0]


def test_a_checkpoint_is_copied_behind_the_forward_that_computes_it() -> None:
    log = EventLog()
    arena = cached_arena(P2M, observer=log)
    arena.admit(1, key=(5, 6))
    arena.extend(1, 2 * PAGE)
    arena.launch([1])
    assert not log.of(events.Barrier)
    arena.checkpoint(1)
    assert [event.why for event in log.of(events.Barrier)] == ["state checkpoint"]


def test_a_checkpoint_without_room_stalls_and_changes_nothing() -> None:
    arena = cached_arena(P2M, units=8 + 2 * 4)
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    before = arena.digest()
    outcome = arena.checkpoint(1)
    assert outcome and outcome.value == 0
    assert arena.digest() == before
    assert arena.release(1)


def test_a_second_checkpoint_at_the_same_place_takes_no_slot() -> None:
    arena = cached_arena(P2M)
    for request in (1, 2):
        arena.admit(request, key=(5, 6))
        compute(arena, request, 2 * PAGE)
    assert arena.checkpoint(1).value == 2 * PAGE
    live = arena.books.bands[0].live
    assert arena.checkpoint(2).value == 2 * PAGE
    assert arena.books.bands[0].live == live
    healthy(arena)


@pytest.mark.parametrize(
    ("tokens", "launched", "key", "why"),
    [
        (PAGE, True, (5, 6), "on the grid"),
        (2 * PAGE, False, (5, 6), "after the launch"),
        (2 * PAGE, True, (5,), "continue the key"),
        (0, True, (5, 6), "on the grid"),
    ],
)
def test_a_checkpoint_in_the_wrong_place_is_refused(
    tokens: int, launched: bool, key: tuple[int, ...], why: str
) -> None:
    arena = cached_arena(P2M)
    arena.admit(1, key=key)
    arena.extend(1, tokens)
    if launched:
        arena.launch([1])
    before = arena.digest()
    with pytest.raises(MisuseError, match=why):
        arena.checkpoint(1)
    assert arena.digest() == before


# --- room -----------------------------------------------------------------------------------------


def fill_cache(arena: Arena, request: int, keys: tuple[int, ...]) -> None:
    arena.admit(request, key=keys)
    compute(arena, request, len(keys) * PAGE)
    arena.trim_window([request])
    arena.release(request, publish=True)


def test_a_demand_evicts_the_least_recently_used_and_no_more_than_it_needs() -> None:
    log = EventLog()
    arena = cached_arena(P2W, units=6 * 6, observer=log)
    fill_cache(arena, 1, (1, 2, 3))
    fill_cache(arena, 2, (4, 5, 6))
    arena.admit(3, key=(1, 2, 3), limit_tokens=0)
    assert arena.serves([2, 2])
    assert arena.extend(3, 2 * PAGE)
    (eviction,) = log.of(events.Eviction)
    assert eviction.demand == (2, 2)
    assert sum(eviction.counts) > 0
    ended = [event for event in log.of(events.LeaseEnd) if event.holder == CACHE]
    assert sum(event.virtual.size for event in ended) == sum(eviction.counts)
    assert arena.admit(4, key=(4, 5, 6)).value == 3 * PAGE, "the one used last is still there"
    healthy(arena)


def test_what_is_held_is_never_evicted() -> None:
    arena = cached_arena(P2W, units=6 * 6)
    fill_cache(arena, 1, (1, 2, 3))
    arena.admit(2, key=(1, 2, 3))
    before = arena.digest()
    assert not arena.serves([7, 7])
    arena.admit(3)
    before = arena.digest()
    refused = arena.extend(3, 7 * PAGE)
    assert refused.reason == "memory"
    assert arena.digest() == before
    assert arena.extend(3, 3 * PAGE)
    assert arena.pages_of(2, "full")[0].size == 3
    healthy(arena)


def test_a_match_is_not_evicted_for_its_own_slot() -> None:
    """Room for a slot can only come from the prefix that the request is about to use."""
    arena = cached_arena(P2M, units=2 * 8 + 2 * 4)
    arena.admit(1, key=(5, 6))
    compute(arena, 1, 2 * PAGE)
    assert arena.checkpoint(1).value == 2 * PAGE
    arena.release(1)
    assert arena.serves([1, 0])
    arena.admit(2)  # takes the room that was left
    before = arena.digest()
    refused = arena.admit(3, key=(5, 6))
    assert not refused and refused.reason == "memory"
    assert arena.digest() == before
    assert arena.admit(3, key=(7,)), "without the prefix, the prefix may go"
    healthy(arena)


def test_a_pinned_page_is_never_evicted_also_when_its_request_has_gone() -> None:
    arena = cached_arena(P2W, units=6 * 6)
    arena.admit(1, key=(1, 2, 3))
    compute(arena, 1, 3 * PAGE)
    pin = arena.lease(1, "full", 1, 2)
    arena.release(1, publish=True)
    healthy(arena)
    assert tree(arena).evictable == [0, 0]
    arena.admit(2)
    assert not arena.extend(2, 4 * PAGE)
    arena.end_lease(pin)
    healthy(arena)
    assert arena.extend(2, 4 * PAGE)
    healthy(arena)


def test_eviction_on_request() -> None:
    arena = cached_arena(P2W)
    fill_cache(arena, 1, (1, 2, 3, 4))
    window = tree(arena).cached[0]
    assert arena.evict((1, 0)).value == 1
    assert tree(arena).cached == [window - 1, 4]
    assert arena.evict((99, 99)).value > 0
    assert tree(arena).cached == [0, 0]
    assert all(fact.live == 0 for fact in arena.facts())
    healthy(arena)


# --- what is refused ------------------------------------------------------------------------------


def test_operations_of_the_cache_on_an_arena_without_one() -> None:
    arena = small_arena(P2W, page_size=PAGE)
    arena.admit(1)
    before = arena.digest()
    for operation in (
        ops.Admit(2, key=(1,)),
        ops.Admit(2, limit_tokens=3),
        ops.Publish(1),
        ops.Checkpoint(1),
        ops.Evict((0, 0)),
        ops.Release(1, publish=True),
    ):
        outcome = arena.apply(operation)
        assert outcome.reason == "misuse" and "without a prefix cache" in outcome.message, operation
    assert arena.digest() == before


def test_misuse_of_a_cache_changes_nothing() -> None:
    arena = cached_arena(P2W)
    arena.admit(1, key=(1,))
    before = arena.digest()
    for operation in (
        ops.Publish(2),
        ops.Publish(1, key=(1 << 64,)),
        ops.Admit(2, limit_tokens=-1),
        ops.Evict((1,)),
        ops.Evict((0, -1)),
        ops.Release(1, key=(1,)),
        ops.Checkpoint(1),
    ):
        assert arena.apply(operation).reason == "misuse", operation
        assert arena.digest() == before, operation


def test_a_grid_must_be_given_for_state_and_lie_on_pages() -> None:
    for grid in (0, 3):
        with pytest.raises(ConfigError, match="multiple of the page size"):
            cached_arena(P2M, checkpoint_grid_tokens=grid)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="evict is 'fifo'"):
        cached_arena(P2W, evict="fifo")


# --- at random ------------------------------------------------------------------------------------


def random_arena(name: str, rng: random.Random, device: str | Device) -> Arena:
    bands, units = LAYOUTS[name]
    return cached_arena(
        (bands, units),
        page_size=rng.choice([1, 2, 4]),
        device=device,
        units=units - rng.choice([0, 8, 16]),
        headroom_share=rng.choice([0.0, 0.05]),
        evict=rng.choice(["lru", "joint_lru"]),
    )


def walk(name: str, seed: int, steps: int) -> dict[str, int]:
    """One random life of an arena, everything looked at after every step."""
    rng = random.Random(f"cache/{name}/{seed}")
    arena = random_arena(name, rng, "cpu")
    engine = CachedEngine(rng)
    bands = range(len(arena.books.bands))
    for step in range(steps):
        demand = [rng.randint(0, 3) for _ in bands]
        served, before = arena.serves(demand), arena.digest()
        if step % 8 == 0:
            twin = random_arena(name, random.Random(f"cache/{name}/{seed}"), "none")
            twin.restore(arena.snapshot())
            assert twin.digest() == before
            assert bool(twin.apply(ops.Reserve(tuple(demand)))) == served
            assert twin.check() == []
        operation, outcome = engine.step(arena)
        assert arena.check() == [], (seed, step, operation)
        engine.verify(arena)
        if not outcome:
            assert arena.digest() == before, (seed, step, operation)
    return engine.seen


@pytest.mark.parametrize("name", LAYOUTS)
def test_at_random_nothing_is_lost_and_nothing_is_wrong(name: str) -> None:
    seen: dict[str, int] = {}
    for seed in range(8):
        for what, times in walk(name, seed, 150).items():
            seen[what] = seen.get(what, 0) + times
    assert {"Admit", "Publish", "Evict", "Release", "matched", "memory"} <= {w for w in seen if seen[w]}


@pytest.mark.parametrize("name", ["P2w", "P2m", "P3", "P4"])
def test_no_copy_and_no_reuse_overtakes_a_forward(name: str) -> None:
    """A device that knows what forwards in flight touch refuses whatever no barrier orders."""
    copies = 0
    for seed in range(6):
        rng = random.Random(f"hazard/{name}/{seed}")
        device = HazardDevice()
        device.arena = arena = random_arena(name, rng, device)
        engine = CachedEngine(rng)
        for _ in range(150):
            operation = engine.choose(arena)
            if isinstance(operation, ops.Launch):
                device.next_access = access(arena, operation.requests)
            if isinstance(operation, ops.Complete):
                device.completed(operation.ticket)
            engine.step(arena, operation)
        copies += sum(call[0] == "copy" for call in device.calls)
    assert copies > 10 or arena.books.state is None


@pytest.mark.parametrize("name", ["P2w", "P2m", "P3", "P4"])
def test_serves_with_a_prefix_held_is_what_holding_it_leaves(name: str) -> None:
    rng = random.Random(f"beside/{name}")
    arena, twin = random_arena(name, rng, "none"), None
    engine, differed = CachedEngine(rng), 0
    for _ in range(300):
        engine.step(arena)
        twin = twin or random_arena(name, random.Random(f"beside/{name}"), "none")
        for keys in engine.pool[-6:]:
            found = tree(arena).peek(keys)
            expected = tree(arena).evictable_beside(found)
            twin.restore(arena.snapshot())
            match = tree(twin).match(keys, tree(twin).clock + 1)
            tree(twin).lock(match, state=match.state_slot is not None)
            assert tree(twin).evictable == expected
            differed += expected != tree(arena).evictable
    assert differed > 8
