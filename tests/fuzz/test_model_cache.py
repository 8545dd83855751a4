"""The model of a prefix cache: healthy arenas break no rule in random walks and in sequences made by
hand, and each rule is broken by an effect that is not so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.events import CACHE
from bandscope.allocator.operations import Operation
from bandscope.fuzz.model import CachedModel, Expectation
from bandscope.fuzz.program import Layout
from tests.fuzz.caching import PAGE, SHAPES, CachedRun, cached_layout
from tests.fuzz.modelling import Watched, altered_run

# --- random walks ---------------------------------------------------------------------------------

SCHEDULES = ("eager", "latest", "random:5", "pct:3:d=3:k=200")


def walk(name: str, seed: int, steps: int) -> CachedRun:
    """A seed chooses a size too: the shape's own, half, as much, and four times that."""
    units = SHAPES[name][1] * (2, 1, 2, 8)[seed % 4] // 2
    schedule = SCHEDULES[seed // 4 % 4]
    run = CachedRun(cached_layout(name, units=units), seed, schedule, gate=seed % 2 == 0)
    run.run(steps)
    return run


@pytest.mark.parametrize("name", SHAPES)
def test_healthy_caches_break_no_rule(name: str) -> None:
    done: set[str] = set()
    for seed in (1, 4, 10):
        run = walk(name, seed, 250)
        assert run.execution.find is None
        done |= run.done.keys()
    assert done >= {"Admit finds", "Publish", "Release", "Evict", "Extend evicts", "Extend memory"}
    if name in ("state", "both", "all"):
        assert "Checkpoint finds" in done


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_healthy_caches_break_no_rule_for_long(name: str) -> None:
    for seed in range(40):
        assert walk(name, 1000 + seed, 1200).execution.find is None


def test_a_walk_is_a_function_of_its_seed() -> None:
    assert walk("both", 3, 120).execution.digest() == walk("both", 3, 120).execution.digest()


# --- by hand --------------------------------------------------------------------------------------


class Hand(Watched):
    """A watched arena with a cache, and short names for what an engine does."""

    model: CachedModel

    def __init__(self, name: str, units: int | None = None, **config: Any) -> None:
        super().__init__(cached_layout(name, units=units, **config))

    def do(self, operation: Operation) -> Any:
        """One operation with which nothing is wrong; its value, or why it was refused."""
        outcome, violations = self.apply(operation)
        violations += self.checker.full(self.arena)
        assert not violations, f"{operation}: {violations[0]}"
        return outcome.value if outcome.ok else outcome.reason

    def compute(self, request: int, pages: int, key: tuple[int, ...] = (), **options: Any) -> Any:
        """Admit a request and compute so many pages; what it matched."""
        matched = self.do(ops.Admit(request, key=key, **options))
        self.do(ops.Extend(request, pages * PAGE - matched))
        self.do(ops.Complete(self.do(ops.Launch((request,)))))
        return matched

    def pages(self, request: int) -> list[int]:
        return self.model.requests[request].pages.tolist()


KEY = (11, 12, 13, 14, 15, 16)


def test_a_match_shares_pages_that_are_never_written() -> None:
    hand = Hand("full")
    assert hand.compute(0, 4, KEY) == 0
    assert hand.do(ops.Publish(0)) == 4 * PAGE
    assert hand.compute(1, 5, KEY, limit_tokens=3 * PAGE) == 3 * PAGE
    assert hand.pages(1)[:3] == hand.pages(0)[:3]
    reads, writes = hand.model.accesses((1,))[hand.model.full.index]
    assert reads.tolist() == hand.pages(1)
    assert not set(hand.pages(0)) & set(writes.tolist())
    hand.do(ops.Release(0))
    assert hand.model.cache.evictable[hand.model.full.index] == 1  # three pages are held by 1
    hand.do(ops.Release(1))
    assert hand.do(ops.Evict((0, 9))) == 4 + 4  # as many of the window without a length
    assert not hand.model.cache.by_page


def test_copies_are_freed_and_the_row_names_the_cache() -> None:
    hand = Hand("full")
    hand.compute(0, 3, KEY)
    hand.compute(1, 3, KEY)
    flying = hand.do(ops.Launch((1,)))
    hand.do(ops.Publish(0))
    before = hand.pages(1)
    assert hand.do(ops.Publish(1)) == 3 * PAGE
    assert hand.pages(1) == hand.pages(0) != before
    hand.do(ops.Complete(flying))
    assert hand.model.full.live == 3


def places(hand: Hand, band: str, pages: list[int]) -> list[int]:
    """Where these pages lie in a band (−1: nowhere)."""
    return [hand.model.by_name[band].place_of[page] for page in pages]


def test_lost_window_rows_come_back_to_a_prefix_that_others_hold() -> None:
    hand = Hand("window")
    for request in (0, 1, 2):
        hand.compute(request, 6, KEY)
    hand.do(ops.TrimWindow((0,)))
    hand.do(ops.Publish(0))
    there, own = hand.pages(0), hand.pages(1)
    lay = places(hand, "window_5", own)
    assert places(hand, "window_5", there)[:4] == [-1] * 4
    assert hand.do(ops.Publish(1)) == 6 * PAGE
    assert hand.pages(1) == there and hand.model.grafts == [(0, own[:4], there[:4])]
    assert places(hand, "window_5", there)[:4] == lay[:4]  # no byte has moved
    assert places(hand, "window_5", own) == [-1] * 6
    # Who leaves finds all rows there, and gives up its copy.
    assert hand.do(ops.Release(2, publish=True)) is None
    assert not hand.model.grafts and hand.model.full.live == hand.model.by_name["window_5"].live == 6
    # They are held where they came to, by the request that goes on.
    assert hand.do(ops.Evict((9, 9))) == 0
    hand.do(ops.TrimWindow((1,)))
    assert hand.do(ops.Evict((9, 9))) == 4
    hand.do(ops.Release(0))
    hand.do(ops.Release(1))
    assert hand.do(ops.Evict((9, 9))) == 8


def test_windows_get_rows_back_each_by_itself() -> None:
    hand = Hand("windows")
    names = [band.name for band in hand.model.bands]
    hand.compute(0, 6, KEY)
    hand.do(ops.Release(0, publish=True))
    assert hand.do(ops.Evict(tuple(4 * (name == "window_8") for name in names))) == 4
    there = [page.page for page in hand.model.cache.everything()]
    hand.compute(1, 6)
    hand.do(ops.TrimWindow((1,)))
    # It has rows of pages 2 to 5 in window_8, of which the cache lacks two, and of page 5 in window_3.
    assert hand.model.requests[1].first_kept == [5, 2] or hand.model.requests[1].first_kept == [2, 5]
    own = hand.pages(1)
    assert hand.do(ops.Publish(1, KEY)) == 6 * PAGE
    assert hand.model.grafts == [(names.index("window_8"), own[2:4], there[2:4])]
    kept = [page.kept for page in hand.model.cache.everything()]
    window = hand.model.cache.windows.index(names.index("window_8"))
    assert [keeps[window] for keeps in kept] == [False, False, True, True, True, True]
    assert all(keeps[1 - window] for keeps in kept)


def test_a_graft_is_a_use_of_its_run() -> None:
    """Also of one that is too far from the end to be of use to a match of the whole."""
    hand = Hand("window")
    hand.compute(0, 6, KEY)
    hand.do(ops.Release(0, publish=True))
    assert hand.do(ops.Admit(1, key=KEY[:2])) == 2 * PAGE  # which makes two runs of it
    hand.do(ops.Release(1))
    assert hand.do(ops.Evict((6, 0))) == 6
    hand.compute(2, 6, (21, 22, 23, 24, 25, 26))
    hand.do(ops.Release(2, publish=True))
    hand.compute(3, 6)
    assert hand.do(ops.Publish(3, KEY)) == 6 * PAGE
    hand.do(ops.Release(3))
    assert hand.do(ops.Evict((6, 0))) == 6
    left = [page.key for page in hand.model.cache.everything() if page.kept[0]]
    assert left == [(key,) for key in KEY]


def test_what_a_forward_in_flight_writes_stays_where_it_is_after_a_graft() -> None:
    """Compaction finds it by its new name; a barrier or the forward's end lets it go."""
    hand = Hand("window", compact_hole_share=0.0)
    hand.do(ops.Admit(9))
    hand.do(ops.Extend(9, 2 * PAGE))  # leaves holes for others to move into
    hand.compute(0, 6, KEY)
    hand.do(ops.Admit(1))
    hand.do(ops.Extend(1, 6 * PAGE))
    hand.do(ops.TrimWindow((0,)))
    hand.do(ops.Publish(0))
    flying = hand.do(ops.Launch((1,)))
    own, there = hand.pages(1), hand.pages(0)
    assert hand.do(ops.Publish(1, KEY)) == 6 * PAGE
    window = hand.model.by_name["window_5"]
    assert hand.model.written(window) == {*there[:4], *own[4:]}
    assert hand.model.written(hand.model.full) == set(own)
    hand.do(ops.Release(9))
    before = places(hand, "window_5", there[:4])
    hand.do(ops.Compact(max_moves=99))
    assert places(hand, "window_5", there[:4]) == before
    hand.do(ops.Complete(flying))
    hand.do(ops.Compact(max_moves=99))
    assert places(hand, "window_5", there[:4]) != before


def test_a_pinned_place_stays_pinned_when_the_cache_gets_it() -> None:
    hand = Hand("window")
    for request in (0, 1):
        hand.compute(request, 6, KEY)
    pin = hand.do(ops.Lease(1, "window_5", 1, 3))
    hand.do(ops.TrimWindow((0,)))
    hand.do(ops.Publish(0))
    assert hand.do(ops.Publish(1)) == 6 * PAGE and hand.model.grafts
    there = hand.pages(1)
    hand.do(ops.Release(0))
    hand.do(ops.Release(1))
    assert hand.do(ops.Evict((9, 9))) == 0
    counts = hand.model.by_name["window_5"].pin_count
    assert [counts[place] for place in places(hand, "window_5", there)] == [0, 1, 1, 0, 0, 0]
    hand.do(ops.EndLease(pin))
    assert hand.do(ops.Evict((9, 9))) == 12


def test_a_pin_holds_what_its_request_shares_and_publishes() -> None:
    hand = Hand("window")
    hand.compute(0, 6, KEY)
    pin = hand.do(ops.Lease(0, "full", 5, 6))
    hand.do(ops.Release(0, publish=True))
    assert hand.do(ops.Evict((9, 9))) == 0
    hand.do(ops.EndLease(pin))
    assert hand.do(ops.Evict((9, 9))) == 12


def test_the_gate_keeps_the_hull_of_before() -> None:
    hand = Hand("full", units=60)
    hand.compute(0, 4, KEY)
    hand.do(ops.Release(0, publish=True))
    demand = [0, 0]
    demand[hand.model.full.index] = hand.model.largest(hand.model.full.index)
    assert hand.do(ops.SetGate(True)) is None
    assert not hand.arena.serves(demand)
    assert hand.do(ops.Reserve(tuple(demand))) == "gate"
    hand.do(ops.SetGate(False))
    assert hand.do(ops.Reserve(tuple(demand))) is None
    assert not hand.model.cache.by_page


def test_state_is_kept_at_checkpoints_and_matched_there_only() -> None:
    hand = Hand("state")
    hand.compute(0, 2, KEY)
    assert hand.do(ops.Checkpoint(0)) == 2 * PAGE
    assert hand.do(ops.Checkpoint(0)) == 2 * PAGE  # it is there already
    hand.do(ops.Extend(0, 3 * PAGE))
    hand.do(ops.Launch((0,)))
    hand.do(ops.Publish(0))
    slot = hand.model.cache.checkpoint_at([(k,) for k in KEY], 2)
    assert slot is not None
    assert hand.do(ops.Admit(1, key=KEY)) == 2 * PAGE
    state = hand.model.by_name["mamba"].index
    assert hand.model.copies == [(state, slot.slot, hand.model.requests[1].slots[0])]
    assert hand.do(ops.Admit(2, state_slots=0, key=KEY)) == 0
    assert hand.do(ops.Checkpoint(0)) == "misuse"  # 5 pages are not on the grid


def test_a_state_of_the_cache_may_bear_the_name_of_a_slot_that_is_still_written() -> None:
    hand = Hand("state")
    hand.do(ops.Admit(0))
    hand.compute(1, 2, KEY)
    hand.do(ops.Launch((0,)))
    name = hand.model.requests[0].slots[0]
    hand.do(ops.Release(0))
    assert hand.do(ops.Checkpoint(1)) == 2 * PAGE and name in hand.model.cache.by_slot
    assert hand.do(ops.Admit(2, key=KEY)) == 2 * PAGE


def test_a_checkpoint_without_room_stalls() -> None:
    hand = Hand("state", units=40)
    hand.compute(0, 8, tuple(range(8)))
    assert hand.do(ops.Extend(0, PAGE)) == "memory"
    clock = hand.model.cache.clock
    assert hand.do(ops.Checkpoint(0)) == 0
    assert hand.model.cache.clock == clock and not hand.model.cache.by_page


def test_used_longest_ago_goes_first_and_no_more_than_serves() -> None:
    hand = Hand("full", units=80)
    for request in range(3):
        hand.compute(request, 3, tuple(100 * request + i for i in range(3)))
        hand.do(ops.Release(request, publish=True))
    hand.do(ops.Admit(9, key=(0, 1, 2)))  # the first is used last
    hand.do(ops.Release(9))
    full = hand.model.full.index
    least = hand.model.free_bytes() // hand.model.full.page_bytes
    demand = [0, 0]
    demand[full] = least + 1
    hand.do(ops.Reserve(tuple(demand)))
    left = {page.key[0] for page in hand.model.cache.everything()}
    assert left == {0, 1, 2, 100, 101, 200, 201, 202}


# --- effects that are not so ----------------------------------------------------------------------


def published(request: int, pages: int, key: tuple[int, ...] = KEY) -> list[Operation]:
    """Operations after which a request has so many launched pages."""
    return [
        ops.Admit(request, key=key),
        ops.Extend(request, pages * PAGE),
        ops.Launch((request,)),
    ]


FILLED = [*published(0, 4), ops.Complete(1), ops.Release(0, publish=True)]
STATE = [*published(0, 2), ops.Complete(1), ops.Checkpoint(0)]
TWINS = [*published(0, 4), *published(1, 4), ops.Publish(0)]
LOST = [*published(0, 6), *published(1, 6), ops.TrimWindow((0,)), ops.Publish(0)]


def field(place: int, value: Any) -> Any:
    """A change of one field, by its place, to what `value(old)` is."""

    def change(model: CachedModel, *fields: Any) -> tuple[Any, ...]:
        return (*fields[:place], value(fields[place]), *fields[place + 1 :])

    return change


def nothing(model: CachedModel, *fields: Any) -> None:
    return None


def of_cache(change: Any) -> Any:
    """The change, for pages of the cache only."""

    def only(model: CachedModel, *fields: Any) -> Any:
        mine = isinstance(fields[0], int) and fields[0] == CACHE
        return change(model, *fields) if mine else fields

    return only


ALTERED: dict[str, tuple[str, str, list[Operation], Operation, str, Any]] = {
    "a match is not told": ("ownership", "full", FILLED, ops.Admit(1, key=KEY), "share", nothing),
    "a match of another request": (
        "ownership", "full", FILLED, ops.Admit(1, key=KEY), "share", field(0, lambda r: r + 1),
    ),
    "a match of other pages": (
        "ownership", "full", FILLED, ops.Admit(1, key=KEY), "share", field(2, lambda p: p[::-1]),
    ),
    "a match of fewer pages": (
        "ownership", "full", FILLED, ops.Admit(1, key=KEY), "share", field(2, lambda p: p[:-1]),
    ),
    "a publication from elsewhere": (
        "ownership", "full", published(0, 4), ops.Publish(0), "share", field(1, lambda i: i + 1),
    ),
    "a publication of less": (
        "ownership", "full", published(0, 4), ops.Publish(0), "share", field(2, lambda p: p[:-1]),
    ),
    "a publication of pages from nowhere": (
        "ownership", "full", published(0, 4), ops.Publish(0), "share", field(2, lambda p: p + 40),
    ),
    "a copy that stays the request's": (
        "ownership", "full", TWINS, ops.Publish(1), "share", field(2, lambda p: p + 4),
    ),
    "copies that are not freed": ("ownership", "full", TWINS, ops.Publish(1), "lease_end", nothing),
    "other copies are freed": (
        "ownership", "full", TWINS, ops.Publish(1), "lease_end", field(2, lambda p: p[:-1]),
    ),
    "copies of another holder": (
        "ownership", "full", TWINS, ops.Publish(1), "lease_end", field(0, lambda h: h + 1),
    ),
    "rows that are not grafted": ("ownership", "window", LOST, ops.Publish(1), "graft", nothing),
    "a graft of another request": (
        "ownership", "window", LOST, ops.Publish(1), "graft", field(0, lambda r: r - 1),
    ),
    "a graft of other pages": (
        "ownership", "window", LOST, ops.Publish(1), "graft", field(2, lambda p: p + 1),
    ),
    "a graft of a page less": (
        "ownership", "window", LOST, ops.Publish(1), "graft",
        lambda model, request, band, old, new: (request, band, old[1:], new[1:]),
    ),
    "grafted rows that are freed as well": (
        "ownership", "window", LOST, ops.Publish(1), "lease_end",
        lambda model, holder, band, virtual, lease: (
            (holder, band, np.concatenate([virtual[:1] - 1, virtual]), lease)
            if band == "window_5" else (holder, band, virtual, lease)
        ),
    ),
    "a graft for nothing": (
        "ownership", "window", TWINS, ops.Publish(1), "lease_end",
        lambda model, holder, band, virtual, lease: model.graft(1, band, virtual, virtual - 4),
    ),
    "an eviction for another demand": (
        "capacity", "full", FILLED, ops.Evict((1, 2)), "evict", field(0, lambda d: d[::-1]),
    ),
    "more is evicted than was said": (
        "conservation", "full", FILLED, ops.Evict((1, 2)), "evict", field(1, lambda c: (1, 2)),
    ),
    "less is evicted than was said": (
        "conservation", "full", FILLED, ops.Evict((0, 2)), "evict", field(1, lambda c: (3, 3)),
    ),
    "an eviction that is not told": ("ownership", "full", FILLED, ops.Evict((1, 2)), "evict", nothing),
    "pages that are not cached": (
        "ownership", "full", FILLED, ops.Evict((1, 2)), "lease_end", of_cache(field(2, lambda p: p + 9)),
    ),
    "pages from the middle": (
        "ownership", "full", FILLED, ops.Evict((1, 2)), "lease_end", of_cache(field(2, lambda p: p - 1)),
    ),
    "a copied state is not told": (
        "content", "state", STATE, ops.Admit(1, key=KEY), "state_copy", nothing,
    ),
    "the state of another slot": (
        "content", "state", STATE, ops.Admit(1, key=KEY), "state_copy", field(1, lambda slot: slot + 1),
    ),
    "a state into another slot": (
        "content", "state", STATE, ops.Admit(1, key=KEY), "state_copy", field(2, lambda slot: slot + 1),
    ),
    "a state from another place": (
        "tables", "state", STATE, ops.Admit(1, key=KEY), "state_copy", field(3, lambda page: page + 1),
    ),
    "a state copied for nothing": (
        "content", "state", STATE, ops.Admit(1, key=KEY), "state_copy", field(5, lambda why: "other"),
    ),
    "a copy before its forward": (
        "happens_before", "state", published(0, 2), ops.Checkpoint(0), "barrier", nothing,
    ),
    "a state that nobody owns": (
        "ownership", "state", published(0, 2), ops.Checkpoint(0), "lease_begin",
        of_cache(field(0, lambda h: 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERED)
def test_effects_that_are_not_so_are_found(name: str) -> None:
    invariant, shape, before, operation, method, change = ALTERED[name]
    found = altered_run(cached_layout(shape), before, operation, method, change)
    assert invariant in {violation.invariant for violation in found}, found


def test_a_match_is_found_however_the_arena_answers() -> None:
    """Outcomes are compared too: the tokens of a match, the pages of an eviction."""
    for operation, wrong in ((ops.Admit(1, key=KEY), 2), (ops.Evict((0, 1)), 5), (ops.Publish(9), 0)):
        watched = Watched(cached_layout("full"))
        watched.run(FILLED)
        watched.model.expect(operation)
        outcome = watched.arena.apply(operation)
        told = type(outcome)(True, wrong)
        found: list[Violation] = watched.model.settle(operation, told)
        assert found, operation


def test_without_a_cache_its_operations_are_misuse() -> None:
    layout = cached_layout("state", prefix_cache=False)
    assert not layout.config.prefix_cache
    watched = Watched(layout)
    watched.run([ops.Admit(0), ops.Extend(0, 4), ops.Launch((0,))])
    for operation in (
        ops.Admit(1, key=KEY), ops.Admit(1, limit_tokens=3), ops.Publish(0), ops.Checkpoint(0),
        ops.Evict((0, 0)), ops.Release(0, publish=True), ops.Release(0, key=KEY),
    ):  # fmt: skip
        assert watched.model.expect(operation) == Expectation(False, "misuse", None)
        outcome, violations = watched.apply(operation)
        assert outcome.reason == "misuse" and not violations


def test_illegal_calls_are_misuse() -> None:
    hand = Hand("state")
    hand.compute(0, 3, KEY)
    for operation in (
        ops.Admit(0, key=KEY), ops.Admit(1, key=(1 << 63,)), ops.Admit(1, key=KEY, limit_tokens=-1),
        ops.Publish(1), ops.Publish(0, (1 << 70,)), ops.Checkpoint(0), ops.Checkpoint(1),
        ops.Evict((1,)), ops.Evict((0, -1)), ops.Release(0, key=KEY), ops.Release(1, publish=True),
        ops.Release(0, publish=True, key=(-(1 << 64),)),
    ):  # fmt: skip
        assert hand.do(operation) == "misuse", operation


def test_pages_as_numpy_numbers() -> None:
    """What the arena tells as arrays is compared as numbers."""
    hand = Hand("both")
    assert hand.compute(0, 2, tuple(range(8))) == 0
    assert hand.do(ops.Checkpoint(0)) == 2 * PAGE
    assert np.array_equal(hand.arena.books.ledger.token_pages(0), hand.pages(0))
    layout: Layout = cached_layout("both")
    assert layout.config.prefix_keys == "tokens"
