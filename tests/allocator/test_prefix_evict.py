"""Which pages go, in which order, how few, and at what cost (in steps, not in time)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.chain import Chain, Held
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_checks import check
from bandscope.allocator.prefix_evict import Evicted
from bandscope.allocator.prefix_nodes import CacheShape
from tests.allocator.test_prefix import FULL, STATE, WINDOW, put, tokens

JOINT = CacheShape(4, (2, 4), 1, (0,), (8,), evict="joint_lru")
TRIPLE = CacheShape(4, (8, 2, 4), 2, (1,), (8,), state=0, grid_tokens=8)


def lacks(tree: PrefixTree, short_bytes: int) -> Callable[[Sequence[int]], bool]:
    """Memory that is short of so many bytes, whatever band they come from."""
    sizes = tree.shape.page_bytes
    return lambda freed: sum(n * size for n, size in zip(freed, sizes, strict=True)) >= short_bytes


def gone(result: Evicted) -> list[list[int]]:
    return [part.tolist() for part in result.pages]


# --- order ------------------------------------------------------------------------------------


def test_full_pages_go_from_the_ends_of_the_oldest_leaves() -> None:
    tree = PrefixTree(FULL)
    put(tree, tokens(4), 10, clock=1)
    put(tree, tokens(2) + tokens(2, 100), 20, clock=2)
    put(tree, tokens(1, 500), 30, clock=3)
    order = []
    while tree.cached[0]:
        order += gone(tree.evict([1], lambda freed: freed[0] >= 1))[0]
        assert check(tree) == []
    # The leaf of the first, of the second, then what they share (used at 2), then the third.
    assert order == [13, 12, 23, 22, 11, 10, 30]


def test_a_held_prefix_is_passed_over_when_all_that_continues_it_goes() -> None:
    tree = PrefixTree(FULL)
    tree.lock(put(tree, tokens(2), 10, clock=1))
    put(tree, tokens(3), 20, clock=2)
    put(tree, tokens(2, 500), 30, clock=3)
    assert tree.evictable == [3]
    assert gone(tree.evict([3], lambda freed: freed[0] >= 3)) == [[22, 30, 31]]
    assert check(tree) == []


def test_a_use_makes_a_prefix_the_last_to_go() -> None:
    tree = PrefixTree(FULL)
    for number, clock in ((0, 1), (1, 2), (2, 3)):
        put(tree, tokens(3, 1000 * number), 10 * number, clock=clock)
    tree.match(tokens(2), 4)  # two pages of the first: its third stays the oldest
    tree.peek(tokens(3, 1000))  # looking is no use
    order = gone(tree.evict([8], lambda freed: freed[0] >= 8))[0]
    assert order == [2, 10, 11, 12, 20, 21, 22, 1]


def test_windows_have_an_order_of_their_own_and_keep_what_matches_need() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(5), 10, clock=1)
    put(tree, tokens(4, 1000), 20, clock=2)
    tree.match(tokens(5), 3)
    # Of the sequence used last the front goes last; its full pages go with nothing of it.
    order = []
    for _ in range(9):
        result = tree.evict([1, 0], lambda freed: freed[0] >= 1)
        assert result.counts == (1, 0)
        order += gone(result)[0]
        assert check(tree) == []
    assert order == [20, 21, 22, 23, 10, 11, 12, 13, 14]
    assert tree.cached == [0, 9] and tree.match(tokens(5), 4).matched_tokens == 20


def test_a_split_leaves_both_parts_where_they_were_in_the_order() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(10), 10, clock=1)
    put(tree, tokens(3, 1000), 40, clock=3)
    put(tree, tokens(14), 50, clock=5)  # the first goes on: a use of its pages, not of their windows
    put(tree, tokens(5) + tokens(4, 2000), 70, clock=6)  # and is cut
    order = gone(tree.evict([13, 0], lambda freed: freed[0] >= 13))[0]
    assert order == [*range(10, 20), 40, 41, 42]


def test_checkpoints_go_one_by_one_the_least_used_first() -> None:
    tree = PrefixTree(STATE)
    put(tree, tokens(6), 10, clock=1, checkpoints=[(8, 0), (16, 1), (24, 2)])
    tree.match(tokens(3), 2)  # copies from the first
    order = [gone(tree.evict([1, 0], lambda freed: freed[0] >= 1))[0] for _ in range(3)]
    assert order == [[1], [2], [0]] and tree.cached == [0, 6]


def test_joint_order_runs_over_both_bands() -> None:
    def fill(shape: CacheShape) -> PrefixTree:
        tree = PrefixTree(shape)
        put(tree, tokens(4), 10, clock=1)
        put(tree, tokens(2) + tokens(2, 100), 20, clock=2)
        put(tree, tokens(2, 500), 30, clock=3)
        return tree

    joint, own = fill(JOINT), fill(WINDOW)
    # Two full pages (8 bytes) and the two window pages on them (4), all used at 1.
    assert gone(joint.evict([0, 3], lacks(joint, 12))) == [[12, 13], [12, 13]]
    # In orders of their own the bands asked pay; window pages go along with full ones.
    assert own.evict([0, 3], lacks(own, 12)).counts == (2, 2)
    # A demand for window pages: its own band pays, or whatever is oldest.
    assert gone(own.evict([3, 0], lacks(own, 6))) == [[10, 11, 22], []]
    # The pages 10 and 11 were used at 1 for their windows, at 2 only as a prefix: they go before 23,
    # but where 23 must go and is enough, they need not have gone.
    before = joint.snapshot()
    assert gone(joint.evict([3, 0], lacks(joint, 4))) == [[10, 11], []]
    joint.restore(before)
    assert gone(joint.evict([3, 0], lacks(joint, 6))) == [[23], [23]]
    assert check(joint) == [] and check(own) == []


def test_joint_order_holds_only_where_the_user_page_allows_it() -> None:
    assert JOINT.shared_order
    several = CacheShape(4, (2, 2, 4), 2, (0, 1), (8, 4), evict="joint_lru")
    with_state = CacheShape(4, (8, 2, 4), 2, (1,), (8,), state=0, grid_tokens=8, evict="joint_lru")
    only_state = CacheShape(4, (8, 4), 1, state=0, grid_tokens=8, evict="joint_lru")
    assert not (several.shared_order or with_state.shared_order or only_state.shared_order)
    # An old full leaf, young checkpoints: state pays for state all the same.
    tree = PrefixTree(only_state)
    put(tree, tokens(4), 10, clock=1)
    put(tree, tokens(4, 1000), 20, clock=2, checkpoints=[(16, 5)])
    assert gone(tree.evict([1, 0], lacks(tree, 8))) == [[5], []]


# --- who pays, and how little -----------------------------------------------------------------


def test_another_band_pays_when_the_one_asked_for_has_nothing() -> None:
    """The published report of a state shortage that only evicted state (and its mirror)."""
    tree = PrefixTree(STATE)
    put(tree, tokens(15), 0)
    # 15 cached pages of 4, a gap of 4, one slot of 8 wanted: one page is enough.
    assert tree.evict([1, 0], lacks(tree, 4)).counts == (0, 1)
    tree = PrefixTree(STATE)
    published = put(tree, tokens(4), 0, checkpoints=[(8, 0), (16, 1)])
    lease = tree.lock(published)
    assert tree.evict([0, 1], lacks(tree, 4)).counts == (1, 0)
    # Nothing that may go: nothing goes.
    tree.evict_counts([9, 9])
    assert tree.evictable == [0, 0]
    refused = tree.evict([1, 1], lacks(tree, 12))
    assert not refused.served and refused.counts == (0, 0)
    tree.unlock(lease)


def test_the_band_that_gives_the_fewest_bytes_pays() -> None:
    tree = PrefixTree(TRIPLE)
    put(tree, tokens(4), 10, checkpoints=[(8, 0), (16, 1)])
    tree.lock(tree.match(tokens(4), 2))  # holds everything but two window pages and two slots
    assert tree.evictable == [2, 2, 0]
    before = tree.snapshot()
    # Full pages (4) are wanted, full has none: two window pages give 4 bytes, a slot 8.
    assert tree.evict([0, 0, 1], lacks(tree, 4)).counts == (0, 2, 0)
    tree.restore(before)
    assert tree.evict([0, 0, 2], lacks(tree, 7)).counts == (1, 0, 0)  # the windows' 4 do not do
    tree.restore(before)
    # No single band gives 18 bytes: both pay, and neither more than it must.
    assert tree.evict([0, 0, 5], lacks(tree, 18)).counts == (2, 1, 0)


def test_the_band_with_the_oldest_victim_gives_next_and_nothing_goes_in_vain() -> None:
    tree = PrefixTree(TRIPLE)
    put(tree, tokens(4, 1000), 50, clock=1)
    put(tree, tokens(4), 10, clock=2, checkpoints=[(8, 0), (16, 1)])
    tree.match(tokens(2), 3)  # uses the first checkpoint: the second is of 2
    before = tree.snapshot()
    for wanted, short_bytes, counts in (
        ((0, 1, 1), 4, (0, 1, 1)),  # the full page of 1, with its window page
        ((1, 2, 0), 4, (0, 2, 0)),  # window pages of 1
        ((1, 2, 0), 5, (1, 0, 0)),  # the slot of 2 after them, and then they need not go
        ((1, 2, 0), 10, (1, 1, 0)),
        ((1, 2, 0), 12, (1, 2, 0)),
        ((1, 2, 1), 12, (1, 2, 0)),  # with the slot of 2, the full page of 1 need not go
        ((1, 2, 1), 18, (1, 3, 1)),
    ):
        assert tree.evict(wanted, lacks(tree, short_bytes)).counts == counts
        assert check(tree) == []
        tree.restore(before)


def test_a_long_leaf_does_not_spare_what_is_older() -> None:
    tree = PrefixTree(STATE)
    put(tree, tokens(2, 500), 30, clock=1, checkpoints=[(8, 0)])
    put(tree, tokens(5), 10, clock=2)
    tree.lock(tree.peek(tokens(2, 500)))
    # The slot of 1 first, then one page of the leaf of 2; not three pages and no slot.
    assert gone(tree.evict([1, 5], lacks(tree, 12))) == [[0], [14]]


def test_nothing_that_went_could_have_stayed() -> None:
    """Against all smaller choices: no prefix of the bands' orders inside what went serves."""
    rng = random.Random(8)
    compared = 0
    for _ in range(300):
        tree = PrefixTree(CacheShape(4, (7, 3, 5), 2, (1,), (8,), state=0, grid_tokens=8))
        for number in range(4):
            pages = rng.randint(1, 4)
            given = [(8, number)] if pages > 1 else []
            put(tree, tokens(pages, rng.choice([0, 1000])), 9 * number, number, checkpoints=given)
        wanted = [rng.randint(0, 2), rng.randint(0, 4), rng.randint(0, 4)]
        serves = lacks(tree, rng.randint(1, 30))
        before, full_pages = tree.snapshot(), tree.cached[2]
        result = tree.evict(wanted, serves)
        if not result.served:
            continue
        # Full pages that went take along what is on them; leaving out the last of any band is too few.
        on_full = set(result.pages[2].tolist())
        alone = len(set(result.pages[1].tolist()) - on_full)
        tree.restore(before)
        if alone:
            assert not serves([result.counts[0], result.counts[1] - 1, result.counts[2]])
            compared += 1
        if not alone and result.counts[2]:
            # One full page less, with the same slots, would not have served.
            less = result.counts[2] - 1
            fewer = tree.evict([0, 0, full_pages], lambda f, n=less: f[2] >= n)  # type: ignore[misc]
            if set(fewer.pages[2].tolist()) < on_full and fewer.counts[0] == result.counts[0]:
                assert not serves(fewer.counts)
                compared += 1
            tree.restore(before)
    assert compared > 50


def test_a_demand_that_cannot_be_served_costs_nothing() -> None:
    tree = PrefixTree(TRIPLE)
    put(tree, tokens(6), 10, checkpoints=[(8, 0)])
    before = repr(tree.snapshot())
    asked: list[tuple[int, ...]] = []

    def serves(freed: Sequence[int]) -> bool:
        asked.append(tuple(freed))
        return False

    result = tree.evict([5, 5, 5], serves)
    assert not result.served and result.counts == (0, 0, 0) and repr(tree.snapshot()) == before
    assert asked == [(0, 0, 0), (1, 6, 6)]  # nothing, everything


def test_a_demand_that_is_served_already_costs_nothing() -> None:
    tree = PrefixTree(FULL)
    put(tree, tokens(6), 10)
    assert tree.evict([5], lambda freed: True).counts == (0,)


@pytest.mark.parametrize(
    "shape", [WINDOW, STATE, TRIPLE, JOINT], ids=["window", "state", "triple", "joint"]
)
def test_no_page_more_than_the_demand_asks_for_goes(shape: CacheShape) -> None:
    """Where the bands asked for hold enough, none gives more than is asked of it (pages that go along
    with full ones apart), and of a single band exactly the fewest that serve."""
    rng = random.Random(3)
    for round_ in range(150):
        tree = PrefixTree(shape)
        for number in range(6):
            pages = rng.randint(2, 6)
            grid = [(8 * (i + 1), 10 * number + i) for i in range(pages // 2)]
            more = {"checkpoints": grid} if shape.state is not None else {}
            put(tree, tokens(pages, rng.choice([0, 1000, 2000])), 20 * number, clock=number, **more)
        wanted = [rng.randint(0, most) if rng.random() < 0.6 else 0 for most in tree.evictable]
        need = sum(n * size for n, size in zip(wanted, shape.page_bytes, strict=True))
        serves = lacks(tree, rng.randint(1, max(1, need)))
        if not need:
            continue
        evictable = list(tree.evictable)
        result = tree.evict(wanted, serves)
        assert result.served and serves(result.counts)
        full = set(result.pages[shape.full].tolist())
        if shape.shared_order:
            continue
        assert len(full) <= wanted[shape.full]
        for window in shape.windows:
            assert len(set(result.pages[window].tolist()) - full) <= wanted[window]
        asked = [band for band, pages in enumerate(wanted) if pages]
        if len(asked) == 1 and asked[0] != shape.full:
            fewest = next(
                n
                for n in itertools.count()
                if serves([n if band == asked[0] else 0 for band in range(shape.bands)])
            )
            assert result.counts[asked[0]] == fewest <= evictable[asked[0]], round_


def test_eviction_against_a_real_chain_stops_where_the_layout_serves() -> None:
    """`serves` as an arena answers it: page grids, and room that moves of neighbours make."""
    plan = plan_from_sizes([("mamba", 32), ("window_8", 8), ("full", 16)], page_size=4)
    shape = CacheShape.of_plan(plan, grid_tokens=8)
    sizes = shape.page_bytes
    rng = random.Random(1)
    served = 0
    for _ in range(60):
        tree = PrefixTree(shape)
        for number in range(4):
            put(
                tree,
                tokens(rng.randint(2, 5), 1000 * number),
                20 * number,
                clock=number,
                checkpoints=[(8, number)],
            )
        held = list(tree.cached)
        total = plan.sink_bytes + sum(n * size for n, size in zip(held, sizes, strict=True))
        total += rng.randint(0, 40)
        arena = Arena(plan, -(-total // 256) * 256, device="none")
        chain = arena.books.chain
        spare = chain.total_bytes - total
        wanted = [rng.randint(0, 2), *[rng.randint(0, 4) + spare // 24] * 2]

        def serves(
            freed: Sequence[int],
            held: list[int] = held,
            wanted: list[int] = wanted,
            chain: Chain = chain,
        ) -> bool:
            want = [h - f + w for h, f, w in zip(held, freed, wanted, strict=True)]
            return chain.pack([Held(pages) for pages in want]) is not None

        possible = serves(tree.evictable)
        result = tree.evict(wanted, serves)
        assert result.served == possible
        if possible:
            served += 1
            assert serves(result.counts)
            full = set(result.pages[2].tolist())
            alone = len(set(result.pages[1].tolist()) - full)
            if alone:
                assert not serves([result.counts[0], result.counts[1] - 1, result.counts[2]])
    assert served > 10


# --- cost -------------------------------------------------------------------------------------


def forest(sequences: int, pages: int = 1, shape: CacheShape = FULL) -> PrefixTree:
    """Many short sequences under a common first page, used in a scrambled order."""
    tree = PrefixTree(shape)
    for number in range(sequences):
        key = [0] * 4 + [number + 1] * (4 * pages)
        start = number * (pages + 1)
        tree.insert(key, np.arange(start, start + pages + 1), number)
    return tree


def steps_of(tree: PrefixTree, action: Callable[[], object]) -> int:
    before = tree.steps
    action()
    return tree.steps - before


@pytest.mark.parametrize("shape", [FULL, WINDOW, JOINT], ids=["full", "window", "joint"])
def test_evicting_k_pages_touches_k_nodes_whatever_the_tree_holds(shape: CacheShape) -> None:
    small, large = forest(600, shape=shape), forest(4800, shape=shape)
    for k in (10, 100, 400):
        counts = [k] + [0] * (shape.bands - 1)  # of full, or of the window
        first = steps_of(small, lambda c=counts: small.evict_counts(c))  # type: ignore[misc]
        second = steps_of(large, lambda c=counts: large.evict_counts(c))  # type: ignore[misc]
        assert first <= 12 * k + 30
        assert second <= first + 2 * math.log2(4800)


def test_a_long_leaf_costs_one_node_and_few_questions() -> None:
    tree = PrefixTree(FULL)
    tree.insert(np.arange(4 * 100_000), np.arange(100_000), 1)
    asked = 0

    def serves(freed: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return freed[0] >= 12_345

    steps = steps_of(tree, lambda: tree.evict([20_000], serves))
    assert tree.cached == [100_000 - 12_345]
    assert steps <= 10 and asked <= 2 * math.log2(100_000) + 10


def test_uses_between_evictions_cost_a_step_each_at_most() -> None:
    tree = forest(4000)
    clock = 4000
    for number in range(1000):  # every fourth is used again: its entry is out of date
        clock += 1
        tree.match([0] * 4 + [4 * number + 1] * 4, clock)
    steps = steps_of(tree, lambda: tree.evict_counts([300]))
    assert steps <= 12 * 300 + 1000 + 30
    assert check(tree) == []


def test_a_match_costs_the_nodes_on_its_path() -> None:
    tree = PrefixTree(FULL)
    tree.insert(np.arange(4 * 50_000), np.arange(50_000), 1)
    for number in range(20):
        key = np.concatenate([np.arange(4 * 2_000 * (number + 1)), np.full(4, -number)])
        start = 60_000 + number * 50_000
        tree.insert(key, np.arange(start, start + key.size // 4), 2)
    assert steps_of(tree, lambda: tree.match(np.arange(4 * 50_000), 3)) <= 3 * 21 + 5


def test_orders_do_not_grow_with_the_history() -> None:
    tree = PrefixTree(WINDOW)
    for number in range(3000):
        put_key = [number] * 8
        tree.insert(put_key, np.arange(2) + 2 * (number % 50), number)
        if number >= 49:
            tree.evict_counts([0, 2])
    assert len(tree.full_order._heap) + len(tree.window_orders[0]._heap) <= 400
