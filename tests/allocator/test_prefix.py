"""The prefix tree, rule by rule: alignment, what is usable, copies, leases, snapshots, refusals."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bandscope.allocator.arena import _feed
from bandscope.allocator.errors import ConfigError, MisuseError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.prefix import PrefixTree, repeat_blocks
from bandscope.allocator.prefix_checks import check
from bandscope.allocator.prefix_insert import Inserted
from bandscope.allocator.prefix_nodes import CacheShape
from tests.allocator.prefix_oracle import Engine
from tests.allocator.test_prefix_model import SHAPES

FULL = CacheShape(4, (4,), 0)
WINDOW = CacheShape(4, (2, 4), 1, (0,), (8,))  # two pages before a match
STATE = CacheShape(4, (8, 4), 1, state=0, grid_tokens=8)


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int64)


def tokens(pages: int, first: int = 0) -> list[int]:
    return list(range(first, first + 4 * pages))


def put(tree: PrefixTree, key: Sequence[int], first_page: int, clock: int = 1, **more: Any) -> Inserted:
    """Publish a finished sequence whose page `i` is `first_page + i`."""
    count = len(key) // tree.shape.unit
    pages = np.arange(first_page, first_page + count)
    result = tree.insert(key, pages, clock, **more)
    assert check(tree) == []
    return result


def digest(tree: PrefixTree) -> str:
    hasher = hashlib.blake2b()
    _feed(hasher, tree.snapshot())
    return hasher.hexdigest()


# --- alignment --------------------------------------------------------------------------------


def test_only_whole_pages_are_shared() -> None:
    tree = PrefixTree(FULL)
    put(tree, tokens(3), 10)
    other = tokens(3)
    other[6] = 99  # inside the second page
    found = tree.match(other, 2)
    assert (found.tokens, found.pages.tolist()) == (4, [10])
    assert tree.match(tokens(3)[:11], 2).tokens == 8
    assert tree.match(tokens(3), 2, limit_tokens=11).tokens == 8
    assert tree.match(tokens(3)[:3], 2).tokens == 0
    assert tree.match([], 2).node == 0


def test_insert_splits_at_the_page_where_two_sequences_part() -> None:
    tree = PrefixTree(FULL)
    put(tree, tokens(4), 10)
    branch = tokens(2) + tokens(2, 100)
    result = tree.insert(branch, ids(50, 51, 52, 53), 2)
    assert result.cached_tokens == 8
    assert result.pages.tolist() == [10, 11, 52, 53] and result.taken.tolist() == [52, 53]
    assert result.duplicates[0].tolist() == [50, 51]
    assert sorted(len(node) for node in tree.nodes.values()) == [0, 2, 2, 2]
    assert check(tree) == []


def test_a_block_hash_covers_its_pages() -> None:
    tree = PrefixTree(CacheShape(4, (4,), 0, keys="hashes"))
    put(tree, repeat_blocks(np.array([7, 8]), 8, 4).tolist(), 0)
    assert tree.match(repeat_blocks(np.array([7, 9]), 8, 4), 2).tokens == 8
    with pytest.raises(MisuseError, match="blocks of 10 tokens"):
        repeat_blocks(np.array([7]), 10, 4)


def test_an_unbounded_tree_hits_exactly_the_overlap() -> None:
    for page_size in (1, 3, 4):
        rng = random.Random(page_size)
        tree = PrefixTree(CacheShape(page_size, (4,), 0))
        seen: set[tuple[int, ...]] = set()
        known: list[list[int]] = [[]]
        fresh = 0
        for clock in range(1500):
            base = rng.choice(known[-50:])
            more = [rng.randrange(3) for _ in range(rng.randint(0, 20))]
            key = base[: rng.randint(0, len(base))] + more
            known.append(key)
            count = len(key) // page_size
            names = [tuple(key[: (i + 1) * page_size]) for i in range(count)]
            assert tree.match(key, clock).depth == sum(name in seen for name in names)
            tree.insert(key, np.arange(fresh, fresh + count), clock)
            fresh += count
            seen.update(names)
            assert tree.cached == [len(seen)]
        assert check(tree) == []


# --- what is usable ---------------------------------------------------------------------------


def test_a_match_ends_where_every_window_is_whole() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, kept_from=[4])  # a finished request keeps its last two pages
    assert tree.match(tokens(6), 2).window_from == (4,)
    assert tree.match(tokens(6), 2).tokens == 24
    assert tree.match(tokens(5), 2).tokens == 0  # page 3 has lost its window rows
    assert tree.match(tokens(5), 2).matched_tokens == 20


def test_a_short_prefix_needs_its_pages_from_the_first_on() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(1), 10)
    put(tree, tokens(3), 20, clock=2, kept_from=[1])  # page 1, 2: and page 0 is the first one's
    assert tree.match(tokens(3), 3).tokens == 12
    assert tree.evict_counts([1, 0]).pages[0].tolist() == [10]
    assert tree.match(tokens(1), 3).tokens == 0
    assert tree.match(tokens(3), 3).tokens == 12


def test_a_state_match_ends_at_the_deepest_checkpoint_and_copies_it() -> None:
    tree = PrefixTree(STATE)
    put(tree, tokens(5), 10, checkpoints=[(8, 0), (16, 1)])
    found = tree.match(tokens(5), 2)
    assert (found.tokens, found.state_slot, found.matched_tokens) == (16, 1, 20)
    assert tree.match(tokens(5), 2, limit_tokens=15).state_slot == 0
    assert tree.match(tokens(1), 2).state_slot is None and tree.match(tokens(1), 2).tokens == 0
    # The slot stays the tree's: giving it away a second time is an error.
    with pytest.raises(MisuseError, match="copy it into a new one"):
        tree.insert(tokens(8), ids(10, 11, 12, 13, 14, 60, 61, 62), 3, checkpoints=[(32, 1)])
    result = put(tree, tokens(5), 20, clock=3, checkpoints=[(16, 7)])
    assert result.duplicates[0].tolist() == [7] and result.duplicates[1].tolist() == list(range(20, 25))


def lists(pair: tuple[np.ndarray, np.ndarray]) -> tuple[list[int], list[int]]:
    return pair[0].tolist(), pair[1].tolist()


def test_window_rows_recomputed_after_their_eviction_come_back() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, kept_from=[4])
    tree.evict_counts([2, 0])
    assert tree.match(tokens(6), 2).tokens == 0 and tree.cached == [0, 6]
    result = put(tree, tokens(6), 20, clock=3, kept_from=[4])
    assert not result.taken.size and lists(result.grafts[0]) == ([24, 25], [14, 15])
    assert [part.tolist() for part in result.duplicates] == [[], list(range(20, 26))]
    assert tree.match(tokens(6), 4).pages.tolist() == list(range(10, 16))
    assert check(tree) == []


def test_a_graft_takes_only_the_rows_that_the_tree_lacks() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, kept_from=[4])
    tree.evict_counts([1, 0])
    result = put(tree, tokens(6), 20, clock=3, kept_from=[2])
    assert lists(result.grafts[0]) == ([22, 23, 24], [12, 13, 14])
    assert [part.tolist() for part in result.duplicates] == [[25], list(range(20, 26))]
    assert tree.cached == [4, 6] and check(tree) == []


def test_a_graft_is_a_use() -> None:
    """What was computed again goes after what has not been used for longer."""
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, clock=1, kept_from=[4])
    tree.evict_counts([2, 0])
    put(tree, tokens(6, 50), 30, clock=2, kept_from=[4])
    longer = np.concatenate([tokens(6), tokens(6, 90)])
    result = put(tree, longer, 40, clock=3, kept_from=[4])  # its own next token needs none of them
    assert lists(result.grafts[0]) == ([44, 45], [14, 15])
    assert tree.evict_counts([2, 0]).pages[0].tolist() == [34, 35]


def test_window_rows_of_shared_pages_are_the_trees_to_know() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, kept_from=[4])
    tree.evict_counts([2, 0])
    result = tree.insert(tokens(6), ids(10, 11, 12, 13, 24, 25), 2, kept_from=[2])
    assert lists(result.grafts[0]) == ([24, 25], [14, 15])
    assert tree.cached == [2, 6] and check(tree) == []


def test_rows_are_grafted_whoever_holds_the_page_and_with_a_lease() -> None:
    tree = PrefixTree(WINDOW)
    lease = tree.lock(put(tree, tokens(6), 10, kept_from=[4]))
    tree.trim(lease, 6 * 4 + 20)  # its request has gone on, and needs these window pages no more
    tree.evict_counts([2, 0])
    assert tree.cached == [0, 6]
    mine = tree.lock(tree.match(tokens(6), 2))
    result = tree.insert(tokens(6), ids(*range(20, 26)), 3, kept_from=[4], lease=mine)
    assert result.depth == 6 and result.pages.tolist() == list(range(10, 16))
    assert lists(result.grafts[0]) == ([24, 25], [14, 15])
    assert tree.evictable == [0, 0], "the publisher goes on and needs them"
    tree.unlock(mine)
    assert tree.evictable == [2, 0], "the other one does not"
    tree.unlock(lease)
    assert check(tree) == []


# --- leases -----------------------------------------------------------------------------------


def test_what_is_held_stays_until_the_last_lease_ends() -> None:
    tree = PrefixTree(WINDOW)
    put(tree, tokens(6), 10, kept_from=[2])
    first, second = (tree.lock(tree.match(tokens(6), 2)) for _ in range(2))
    assert tree.evictable == [2, 0]  # window pages 2 and 3 lie before what the next token needs
    assert [part.tolist() for part in tree.evict_counts([9, 9]).pages] == [[12, 13], []]
    tree.unlock(first)
    assert tree.evictable == [0, 0]
    tree.trim(second, 6 * 4 + 3)  # the next token, 27, attends to 20 … 27: page 4 may go
    assert tree.evictable == [1, 0]
    tree.unlock(second)
    assert tree.evictable == [2, 6] and check(tree) == []


def test_a_lease_follows_what_its_request_publishes() -> None:
    tree = PrefixTree(FULL)
    lease = tree.lock(tree.match(tokens(2), 1))
    tree.insert(tokens(2), ids(10, 11), 1, lease=lease)
    assert tree.evictable == [0]
    tree.insert(tokens(3), ids(10, 11, 12), 2, lease=lease)
    assert tree.evictable == [0] and tree.cached == [3]
    with pytest.raises(MisuseError, match="does not begin with the prefix"):
        tree.insert(tokens(3, 7), ids(20, 21, 22), 2, lease=lease)
    tree.unlock(lease)
    assert tree.evictable == [3]
    with pytest.raises(MisuseError, match="not held"):
        tree.unlock(lease)


def test_a_split_below_a_lease_keeps_it() -> None:
    tree = PrefixTree(WINDOW)
    lease = tree.lock(put(tree, tokens(6), 10, kept_from=[0]))
    put(tree, tokens(2) + tokens(3, 100), 20)
    assert check(tree) == []
    tree.evict_counts([9, 9])
    assert tree.match(tokens(6), 3).tokens == 24
    tree.unlock(lease)
    assert check(tree) == []


def test_committing_holds_the_windows_and_checkpoints_of_the_path() -> None:
    shape = CacheShape(4, (8, 2, 4), 2, (1,), (8,), state=0, grid_tokens=8)
    tree = PrefixTree(shape)
    published = put(tree, tokens(6), 10, checkpoints=[(8, 0), (16, 1)])
    lease = tree.lock(published, committing=True)
    assert tree.evictable == [0, 0, 0]
    assert not tree.evict([1, 0, 0], lambda freed: freed[0] > 0).served
    tree.unlock(lease)
    assert tree.evictable == [2, 6, 6] and check(tree) == []


def test_a_checkpoint_is_held_until_it_is_copied() -> None:
    tree = PrefixTree(STATE)
    put(tree, tokens(4), 10, checkpoints=[(16, 3)])
    lease = tree.lock(tree.match(tokens(4), 2), state=True)
    assert tree.evictable == [0, 0]
    tree.let_go_of_state(lease)
    assert tree.evict_counts([1, 0]).pages[0].tolist() == [3]
    tree.unlock(lease)
    assert check(tree) == []


def test_a_match_that_was_evicted_since_cannot_be_held() -> None:
    tree = PrefixTree(STATE)
    put(tree, tokens(4), 10, checkpoints=[(8, 2), (16, 3)])
    found, shorter = tree.match(tokens(4), 2), tree.match(tokens(2), 2)
    tree.evict_counts([1, 0])
    with pytest.raises(MisuseError, match="state after"):
        tree.lock(shorter, state=True)
    tree.evict_counts([0, 1])
    with pytest.raises(MisuseError, match="evicted or cut"):
        tree.lock(found)
    windows = PrefixTree(WINDOW)
    put(windows, tokens(4), 10)
    found = windows.match(tokens(4), 2)
    windows.evict_counts([3, 0])
    with pytest.raises(MisuseError, match="window pages"):
        windows.lock(found)


# --- refusals change nothing ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.insert(tokens(2), ids(1, 2, 3), 9), "under a key for 2"),
        (lambda t: t.insert(tokens(2), ids(1, 1), 9), "an id twice"),
        (lambda t: t.insert(tokens(2), ids(-1, 1), 9), "below 0"),
        (lambda t: t.insert(tokens(2, 50), ids(1, 10), 9), "owns at another place"),
        (lambda t: t.insert(tokens(4), ids(11, 10, 1, 2), 9), "owns at another place"),
        (lambda t: t.insert(tokens(2), ids(1, 2), 0), "never goes back"),
        (lambda t: t.match(tokens(2), 0), "never goes back"),
        (lambda t: t.match([[1, 2]], 9), "one row of integers"),
        (lambda t: t.insert(tokens(2), ids(1, 2), 9, kept_from=[0, 0]), "each of 1 windows"),
        (lambda t: t.insert(tokens(2), ids(1, 2), 9, checkpoints=[(4, 9)]), "on the grid"),
        (lambda t: t.insert(tokens(2), ids(1, 2), 9, checkpoints=[(16, 9)]), "inside the pages"),
        (lambda t: t.insert(tokens(4), ids(1, 2, 3, 4), 9, checkpoints=[(8, 9), (16, 9)]), "twice"),
        (lambda t: t.insert(tokens(2), ids(1, 2), 9, lease=77), "not held"),
        (lambda t: t.insert(tokens(4), ids(1, 2, 3, 4), 9, lease=1), "does not begin"),
        (
            lambda t: t.insert(tokens(4), ids(10, 11, 12, 13), 9, kept_from=[1], lease=1),
            "trim the request and its lease alike",
        ),
        (lambda t: t.evict([1, 2], lambda freed: True), "each of the 3 bands"),
        (lambda t: t.trim(77, 4), "not held"),
    ],
)
def test_an_illegal_call_is_refused_and_changes_nothing(
    call: Callable[[PrefixTree], object], message: str
) -> None:
    tree = PrefixTree(CacheShape(4, (8, 2, 4), 2, (1,), (8,), state=0, grid_tokens=8))
    tree.lock(put(tree, tokens(4), 10, clock=5, checkpoints=[(16, 4)]))
    before = digest(tree)
    with pytest.raises(MisuseError, match=message):
        call(tree)
    assert digest(tree) == before and check(tree) == []


def test_a_question_in_the_middle_of_an_eviction_cannot_change_the_tree() -> None:
    tree = PrefixTree(FULL)
    put(tree, tokens(4), 10)

    def serves(freed: Sequence[int]) -> bool:
        tree.insert(tokens(2, 90), ids(1, 2), 9)
        return True

    with pytest.raises(MisuseError, match="insert was called inside evict"):
        tree.evict([1], serves)
    assert tree.evict([1], lambda freed: freed[0] >= 1).counts == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"full": 1}, "name each band once"),
        ({"page_size": 0}, "give 1 or more"),
        ({"keys": "words"}, "keys is 'words'"),
        ({"evict": "fifo"}, "evict is 'fifo'"),
        ({"page_bytes": (8, 4), "full": 1, "state": 0, "grid_tokens": 6}, "multiple of the page"),
        ({"page_bytes": (8, 4), "full": 1, "windows": (0,)}, "give one each"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheShape(**{"page_size": 4, "page_bytes": (4,), "full": 0, **options})


def test_the_shape_of_a_plan() -> None:
    plan = plan_from_sizes([("mamba", 4096), ("window_128", 1024), ("full", 1024)], page_size=16)
    shape = CacheShape.of_plan(plan, grid_tokens=64, evict="joint_lru")
    assert (shape.state, shape.windows, shape.full, shape.companions) == (0, (1,), 2, ())
    assert shape.window_tokens == (128,) and shape.reaches == (8,) and not shape.shared_order
    plan = plan_from_sizes([("window_128", 1024), ("full", 1024)], page_size=16)
    assert CacheShape.of_plan(plan, evict="joint_lru").shared_order


# --- state as data ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state and window", "two windows", "joint"])
def test_a_restored_tree_goes_on_alike(name: str) -> None:
    engine = Engine(SHAPES[name], seed=5)
    for _ in range(60):
        engine.step()
    copy = PrefixTree(engine.tree.shape)
    copy.restore(engine.tree.snapshot())
    assert check(copy) == [] and digest(copy) == digest(engine.tree)
    # Both see the same calls from now on; every answer and every digest agree.
    original = engine.tree
    for call in ("insert", "match", "lock", "unlock", "trim", "evict", "let_go_of_state"):

        def both(*args: Any, _call: str = call, **more: Any) -> Any:
            second = getattr(copy, _call)(*args, **more)
            first = getattr(PrefixTree, _call)(original, *args, **more)
            assert repr(getattr(first, "pages", first)) == repr(getattr(second, "pages", second))
            return first

        setattr(engine.tree, call, both)
    for _ in range(60):
        engine.step()
        assert digest(copy) == digest(original)
    snapshot = original.snapshot()
    copy.evict_counts(copy.evictable)
    copy.restore(snapshot)
    assert digest(copy) == digest(original)


# --- the checks can fail ----------------------------------------------------------------------


def _other_start(tree: PrefixTree) -> None:
    max(tree.nodes.values(), key=lambda node: node.start).start += 1


def _same_page(tree: PrefixTree) -> None:
    nodes = [node for node in tree.nodes.values() if node.number]
    nodes[0].pages = nodes[0].pages.copy()
    nodes[0].pages[0] = nodes[1].pages[0]


DAMAGE: dict[str, tuple[str, Callable[[PrefixTree], Any]]] = {
    "a start": ("structure", _other_start),
    "an unaligned key": ("structure", lambda t: setattr(t.nodes[1], "key", t.nodes[1].key[:-1])),
    "a lost child": ("structure", lambda t: t.nodes[0].children.clear()),
    "a first page past the end": ("structure", lambda t: t.nodes[1].first.__setitem__(0, 99)),
    "a page owned twice": ("ownership", _same_page),
    "a mark": ("ownership", lambda t: t.owned.set(ids(3), True)),
    "a slot's mark": ("ownership", lambda t: t.owned_slots.set(ids(4), False)),
    "a lock": ("locks", lambda t: setattr(t.nodes[1], "locks", 7)),
    "a window lock": ("locks", lambda t: t.leases[1].window_from.__setitem__(0, 0)),
    "a lease's node": ("locks", lambda t: t.nodes.pop(t.leases[1].node.number)),
    "a checkpoint's lock": ("locks", lambda t: setattr(t.checkpoints[1], "locks", 2)),
    "a checkpoint off the grid": ("checkpoints", lambda t: setattr(t.checkpoints[1], "depth", 3)),
    "a checkpoint that is gone": ("checkpoints", lambda t: t.checkpoints.pop(1)),
    "a count": ("counts", lambda t: t.cached.__setitem__(1, 1)),
    "an evictable count": ("counts", lambda t: t.evictable.__setitem__(2, 50)),
    "an order of full": ("orders", lambda t: t.full_order._queued.clear()),
    "an order of a window": ("orders", lambda t: t.window_orders[0]._queued.clear()),
    "an order of state": ("orders", lambda t: t.state_order._queued.clear()),
    "a clock": ("clocks", lambda t: setattr(t.nodes[1], "clock", 1000)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_is_found_by_its_check(damage: str) -> None:
    tree = PrefixTree(CacheShape(4, (8, 2, 4), 2, (1,), (8,), state=0, grid_tokens=8))
    put(tree, tokens(6), 10, checkpoints=[(16, 4), (24, 5)])
    put(tree, tokens(2) + tokens(2, 100), 20, clock=2)
    tree.lock(tree.match(tokens(4), 3), state=True)
    assert check(tree) == []
    invariant, hurt = DAMAGE[damage]
    hurt(tree)
    assert invariant in {violation.invariant for violation in check(tree)}
