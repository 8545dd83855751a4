"""Gaps, transparency, granting without moves, and whether some layout holds a demand."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bandscope.allocator.band import Band
from bandscope.allocator.chain import Chain, Held
from bandscope.allocator.plan import plan_from_sizes
from tests.allocator.arenas import LAYOUTS, P3, UNIT, RandomEngine, scatter, small_arena


def make_chain(sizes: list[tuple[str, int]], total_bytes: int) -> Chain:
    """A chain of empty bands, in bytes, with no rounding of the arena."""
    plan = plan_from_sizes(sizes)
    bands = [
        Band(band, index, total_bytes, plan.sink_bytes, total_bytes)
        for index, band in enumerate(plan.bands)
    ]
    return Chain(bands, plan.sink_bytes, total_bytes)


def put(band: Band, low: int, high: int, holes: tuple[int, ...] = ()) -> None:
    """Make places `[low, high)` the extent, live but for `holes`."""
    places = band.take(high - low, low, high)
    band.table.bind(np.flatnonzero(band.table.place_of < 0)[: high - low], places)
    gone = np.array(holes, np.int64)
    band.table.unbind(band.table.virtual_at[gone])
    band.drop(gone, pending=False)


@pytest.mark.parametrize("name", LAYOUTS)
def test_sink_extents_and_gaps_are_the_arena(name: str) -> None:
    """In every state the bytes add up, no gap is negative, and gaps lie where their bands end."""
    for seed in range(30):
        arena = small_arena(LAYOUTS[name], page_size=2)
        scatter(arena, random.Random(f"gaps/{name}/{seed}"), requests=6)
        chain = arena.books.chain
        gaps = chain.gaps()
        sizes = [stop - start for start, stop in gaps]
        extents = sum(band.extent * band.page_bytes for band in chain.bands)

        assert len(gaps) == len(chain.bands) + 1
        assert min(sizes) >= 0
        assert chain.sink_bytes + extents + sum(sizes) == arena.total_bytes


def test_an_empty_float_is_transparent() -> None:
    """Its gap is empty, its neighbours see each other, and they may share all bytes."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)
    mamba, window, full = chain.bands
    put(mamba, 0, 3)
    put(full, 0, 5)

    assert chain.gaps() == [(8, 8), (32, 32), (32, 84), (104, 104)]
    assert chain.room(0) == (8, 84)
    assert chain.room(2) == (32, 104)
    assert chain.grant([6, 0, 1]) == [(0, 9), (0, 0), (0, 6)]
    assert chain.grant([6, 0, 2]) is None
    put(window, 20, 21)
    assert chain.room(0) == (8, 48)
    assert chain.grant([3, 0, 0]) is None


def test_grant_uses_holes_before_any_frontier() -> None:
    """A demand that holes cover leaves every region as it is."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)
    mamba, window, full = chain.bands
    put(mamba, 0, 4, holes=(1, 2))
    put(window, 20, 26, holes=(22,))
    put(full, 0, 4, holes=(2,))

    assert chain.grant([2, 1, 1]) == [(0, 4), (20, 26), (0, 4)]
    assert chain.grant([3, 0, 0]) == [(0, 5), (20, 26), (0, 4)]


def test_a_float_grows_on_its_roomier_side_and_then_on_both() -> None:
    """The region that was granted names how much on which side."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)
    mamba, window, full = chain.bands
    put(mamba, 0, 2)  # up to byte 24
    put(full, 0, 5)  # from byte 84
    put(window, 14, 20)  # bytes 8 + 28 … 8 + 40: 12 free below, 36 above

    assert chain.grant([0, 18, 0]) == [(0, 2), (14, 38), (0, 5)]
    assert chain.grant([0, 19, 0]) == [(0, 2), (13, 38), (0, 5)]
    assert chain.grant([0, 24, 0]) == [(0, 2), (8, 38), (0, 5)]
    assert chain.grant([0, 25, 0]) is None


def test_a_float_with_more_room_below_grows_down_first() -> None:
    """The mirror image: the side below is used up before the side above is touched."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)
    _, window, full = chain.bands
    put(full, 0, 5)  # from byte 84
    put(window, 28, 34)  # bytes 64 … 76: 56 below, 8 above

    assert chain.grant([0, 28, 0]) == [(0, 0), (0, 34), (0, 5)]
    assert chain.grant([0, 30, 0]) == [(0, 0), (0, 36), (0, 5)]
    assert chain.grant([0, 33, 0]) is None


def test_ends_grow_before_floats_take_what_is_left() -> None:
    """A float gets its room after the ends have theirs, so that one split serves all three."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)

    assert chain.grant([5, 8, 10]) == [(0, 5), (20, 28), (0, 10)]
    assert chain.grant([5, 9, 10]) is None


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_granted_is_disjoint_and_holds_the_demand(name: str) -> None:
    """In random states: regions keep the extents, do not overlap, and have room for the demand."""
    granted = 0
    for seed in range(60):
        rng = random.Random(f"grant/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=2)
        scatter(arena, rng, requests=rng.randint(0, 6))
        chain = arena.books.chain
        demand = [rng.choice([0, 0, 1, 2, 4]) for _ in chain.bands]
        regions = chain.grant(demand)
        if regions is None:
            continue
        granted += 1
        top = chain.sink_bytes
        for band, (low, high), pages in zip(chain.bands, regions, demand, strict=True):
            assert low <= band.low and band.high <= high or not band.extent
            assert high - low >= band.live + band.pending + pages
            if high > low:
                start, stop = band.byte_range(low, high)
                assert start >= top
                top = stop
        assert top <= chain.total_bytes
        assert arena.serves(demand)
    assert granted > 10


def fits(chain: Chain, pages: tuple[int, ...]) -> bool:
    """Try every first page of every band (brute force, on the page grids)."""

    def place(index: int, start: int) -> bool:
        if index == len(chain.bands):
            return True
        size, count = chain.bands[index].page_bytes, pages[index]
        if not count:
            return place(index + 1, start)
        return any(
            first * size >= start
            and (first + count) * size <= chain.total_bytes
            and place(index + 1, (first + count) * size)
            for first in range(chain.total_bytes // size + 1)
        )

    return place(0, chain.sink_bytes)


@pytest.mark.parametrize("total_bytes", [27, 29, 30, 31, 40, 47])
def test_pack_serves_exactly_what_some_placement_serves(total_bytes: int) -> None:
    """Grids of 7, 3 and 5 bytes from byte 0: every demand, compared with trying all placements."""
    chain = make_chain([("mamba", 7), ("window_8", 3), ("full", 5)], total_bytes)
    answers = set()
    for pages in itertools.product(range(5), repeat=3):
        packed = chain.pack([Held(count) for count in pages])
        expected = fits(chain, pages)

        assert (packed is not None) == expected, pages
        answers.add(expected)
    assert answers == {True, False}


def test_packing_counts_the_padding_of_every_grid() -> None:
    """Sink 8, slots on 8, pages of 3 on their grid, pages of 5 on theirs: 30 bytes hold it, 29 not."""
    sizes = [("mamba", 8), ("window_8", 3), ("full", 5)]
    held = [Held(1), Held(2), Held(1)]

    assert make_chain(sizes, 30).pack(held) == [16, 24, 30]
    assert make_chain(sizes, 29).pack(held) is None


def test_exactly_full_and_one_byte_short() -> None:
    """The last page fits with not a byte to spare, and not with one byte less."""
    sizes = [("mamba", 8), ("full", 4)]
    held = [Held(3), Held(10)]

    assert make_chain(sizes, 8 + 24 + 40).pack(held) == [32, 72]
    assert make_chain(sizes, 8 + 24 + 39).pack(held) is None
    assert make_chain(sizes, 8 + 24 + 40).grant([3, 10]) == [(0, 3), (0, 10)]
    assert make_chain(sizes, 8 + 24 + 39).grant([3, 10]) is None


def test_pages_that_cannot_move_stretch_their_band() -> None:
    """An extent reaches over its fixed pages, and a layout that would start above them is none."""
    chain = make_chain([("mamba", 8), ("window_8", 2), ("full", 4)], 8 + 96)
    window = (18, 21)  # bytes 44 … 50

    assert chain.pack([Held(0), Held(1, window), Held(0)]) == [8, 50, 50]
    assert chain.pack([Held(4), Held(1, window), Held(0)]) == [40, 50, 50]
    assert chain.pack([Held(5), Held(1, window), Held(0)]) is None
    assert chain.pack([Held(4), Held(5, window), Held(13)]) == [40, 50, 104]
    assert chain.pack([Held(4), Held(6, window), Held(13)]) == [40, 52, 104]
    assert chain.pack([Held(4), Held(7, window), Held(13)]) is None
    assert chain.pack_down([Held(4), Held(1, window), Held(13)]) == [8, 44, 52]


def test_packed_positions_from_both_sides_enclose_every_layout() -> None:
    """For every served demand a band's highest start lies at or above its lowest end's start."""
    chain = make_chain([("mamba", 7), ("window_16", 3), ("window_8", 2), ("full", 5)], 60)
    served = 0
    for pages in itertools.product(range(4), repeat=4):
        held = [Held(count) for count in pages]
        tops = chain.pack(held)
        if tops is None:
            continue
        served += 1
        floors = chain.pack_down(held)
        starts = [chain.sink_bytes, *tops[:-1]]

        assert all(start <= floor for start, floor in zip(starts, floors, strict=True))
        assert floors == sorted(floors) and tops == sorted(tops)
    assert served > 20


def test_capacity_answers_equal_what_then_happens() -> None:
    """Before each admit, extend and decode, `serves` says exactly whether it will succeed."""
    seen = set()
    for name, layout in LAYOUTS.items():
        for seed in range(6):
            rng = random.Random(f"capacity/{name}/{seed}")
            arena = small_arena(layout, page_size=rng.choice([1, 4]))
            engine = RandomEngine(rng, illegal=False)
            for _ in range(60):
                engine.step(arena)
                if not engine.running:
                    continue
                request = rng.choice(engine.running)
                row = arena.books.ledger.row(request)
                tokens = rng.randint(1, 20)
                length = int(arena.books.ledger.length[row]) + tokens
                pages = -(-length // arena.plan.page_size)
                pages -= int(arena.books.ledger.page_count[row])
                demand = [
                    0 if band.kind == "state" else max(0, pages) for band in arena.plan.bands
                ]
                expected = arena.serves(demand)
                done = arena.extend(request, tokens).ok

                assert done == expected
                seen.add((done, engine.closed))
    assert {done for done, _ in seen} == {True, False}


def test_an_empty_arena_serves_what_it_would_when_empty() -> None:
    """`serves_when_empty` does not depend on what is held now."""
    arena = small_arena(P3)
    everything = [[12, 0, 0], [0, 48, 0], [0, 0, 24], [4, 16, 8]]

    assert [arena.serves_when_empty(demand) for demand in everything] == [True] * 4
    arena.admit(0)
    arena.extend(0, 8)
    assert [arena.serves(demand) for demand in everything] == [False] * 4
    assert [arena.serves_when_empty(demand) for demand in everything] == [True] * 4
    assert not arena.serves_when_empty([13, 0, 0])
    assert arena.total_bytes == (8 + 96) * UNIT
