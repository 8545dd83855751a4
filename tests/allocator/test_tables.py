"""Ids and tables: minted once, released once, recognised when stale, and always inverse."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bandscope.allocator.tables import UNMAPPED, IdSpace, PageTable


def test_ids_are_minted_fresh_in_order_and_reused_last_in_first_out() -> None:
    """The newest released ids come back first; fresh ones only when none is left."""
    space = IdSpace(10)

    assert space.mint(4).tolist() == [0, 1, 2, 3]
    space.release(np.array([1]))
    space.release(np.array([3, 0]))
    assert space.mint(1).tolist() == [0]
    assert space.mint(1).tolist() == [3]
    assert space.mint(3).tolist() == [1, 4, 5]
    assert space.free_count == 4


def test_every_release_starts_a_new_generation() -> None:
    """A name of (id, generation) is never the name of a later owner's page."""
    space = IdSpace(4)
    names = set()
    for _ in range(5):
        ids = space.mint(2)
        fresh = {(int(page), int(space.generation[page])) for page in ids}

        assert not fresh & names
        names |= fresh
        space.release(ids)


def test_ids_are_bound_exactly_while_held() -> None:
    """Free and bound ids divide the space, and no id is dealt twice, over random mints and frees."""
    rng = random.Random("ids")
    space = IdSpace(3000)
    held: list[int] = []
    for _ in range(300):
        if rng.random() < 0.5:
            count = rng.randint(0, min(400, space.free_count))
            ids = space.mint(count).tolist()
            assert not set(ids) & set(held)
            assert len(set(ids)) == count and all(0 <= page < 3000 for page in ids)
            held += ids
        else:
            rng.shuffle(held)
            cut = rng.randint(0, len(held))
            gone, held = held[:cut], held[cut:]
            space.release(np.array(gone, np.int64))

        assert space.free_count == 3000 - len(held)
        assert np.flatnonzero(space.bound).tolist() == sorted(held)
        assert len(set(space.released_ids().tolist())) == space.released_count


def test_minting_past_the_space_is_caught() -> None:
    """The whole space can be minted, and not one id more."""
    space = IdSpace(3)

    assert space.mint(3).tolist() == [0, 1, 2]
    with pytest.raises(AssertionError):
        space.mint(1)


def test_a_minted_array_is_the_callers_own() -> None:
    """Later releases do not write into ids that were handed out earlier."""
    space = IdSpace(8)
    space.release(space.mint(4))
    ids = space.mint(2)
    kept = ids.tolist()
    space.release(np.array([7]) if space.bound[7] else ids[:0])
    space.release(space.mint(2))

    assert ids.tolist() == kept


def test_an_id_space_is_restored_with_its_future() -> None:
    """After a restore the same ids with the same generations are dealt as after the snapshot."""
    space = IdSpace(50)
    space.mint(10)
    space.release(np.array([4, 2, 9]))
    state = space.snapshot()
    expected = [space.mint(5).tolist() for _ in range(3)], space.generation.tolist()
    space.release(np.arange(8))
    space.restore(state)

    assert ([space.mint(5).tolist() for _ in range(3)], space.generation.tolist()) == expected
    other = IdSpace(50)
    other.mint(40)
    other.restore(state)
    assert [other.mint(5).tolist() for _ in range(3)] == expected[0]
    assert other.generation.tolist() == expected[1]
    assert np.flatnonzero(other.bound).size == 7 + 15


def test_tables_are_inverse_after_bind_rebind_and_unbind() -> None:
    """Random binds, moves and unbinds, compared with a dictionary after each."""
    rng = random.Random("tables")
    table = PageTable(60, 40)
    place_of: dict[int, int] = {}
    for _ in range(400):
        free = sorted(set(range(40)) - set(place_of.values()))
        unbound = sorted(set(range(60)) - set(place_of))
        roll = rng.random()
        if roll < 0.4 and free:
            count = rng.randint(0, min(5, len(free)))
            virtual, places = rng.sample(unbound, count), rng.sample(free, count)
            table.bind(np.array(virtual, np.int64), np.array(places, np.int64))
            place_of |= dict(zip(virtual, places, strict=True))
        elif roll < 0.7:
            virtual = rng.sample(sorted(place_of), rng.randint(0, min(5, len(place_of))))
            places = table.unbind(np.array(virtual, np.int64)).tolist()
            assert places == [place_of.pop(page) for page in virtual]
        elif free and place_of:
            count = rng.randint(1, min(4, len(free), len(place_of)))
            virtual, targets = rng.sample(sorted(place_of), count), rng.sample(free, count)
            sources = np.array([place_of[page] for page in virtual], np.int64)
            moved = table.rebind(sources, np.array(targets, np.int64)).tolist()
            assert moved == virtual
            place_of |= dict(zip(virtual, targets, strict=True))

        expected = [place_of.get(page, UNMAPPED) for page in range(60)]
        inverse = {place: page for page, place in place_of.items()}
        assert table.place_of.tolist() == expected
        assert table.virtual_at.tolist() == [inverse.get(place, UNMAPPED) for place in range(40)]


def test_unpublished_rows_are_named_once_each_and_only_once() -> None:
    """Rows changed several times come once, sorted; taking them leaves none."""
    table = PageTable(20, 20)
    assert not table.has_unpublished
    assert table.take_unpublished().tolist() == []
    table.bind(np.array([7, 3]), np.array([0, 1]))
    table.rebind(np.array([0]), np.array([5]))
    table.unbind(np.array([3]))
    table.bind(np.array([1]), np.array([1]))

    assert table.has_unpublished
    assert table.take_unpublished().tolist() == [1, 3, 7]
    assert not table.has_unpublished
    assert table.take_unpublished().tolist() == []
    table.mark_unpublished(np.array([2, 9]))
    assert table.unpublished().tolist() == [2, 9]
    assert table.take_unpublished().tolist() == [2, 9]
