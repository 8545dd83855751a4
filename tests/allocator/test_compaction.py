"""Compaction: capped and careful when there is time, complete and minimal when asked."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bandscope.allocator import compaction, events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE, LIVE, PENDING, Band
from tests.allocator.arenas import LAYOUTS, P2M, P3, EventLog, RandomEngine, scatter, small_arena


def holes(arena: Arena) -> list[int]:
    return [band.holes for band in arena.books.bands]


def striped(units: int = 400, **options: object) -> tuple[Arena, EventLog]:
    """A large P3 where every second of 24 one-page requests has left: 12 holes or so a band."""
    log = EventLog()
    arena = small_arena(P3, page_size=1, units=units, observer=log, **options)
    for request in range(24):
        arena.admit(request)
        arena.extend(request, 1)
    for request in range(0, 24, 2):
        arena.release(request)
    log.clear()
    return arena, log


@pytest.mark.parametrize("cap", [0, 1, 3, 5, 100])
def test_an_opportunistic_pass_is_capped_per_band(cap: int) -> None:
    """No band moves more than the cap, each moves as many as are useful, and passes add up."""
    arena, log = striped(max_moves=cap, compact_hole_share=0.0)
    moved = arena.compact()
    by_band = {event.band: event.sources.size for event in log.of(events.PageMove)}

    assert moved == sum(by_band.values())
    assert by_band == ({band.name: min(cap, 6) for band in arena.books.bands} if cap else {})
    for _ in range(12):
        arena.compact()
    assert holes(arena) == ([0, 0, 0] if cap else holes(arena))
    assert arena.check() == []


def test_a_call_may_lower_the_cap() -> None:
    """`max_moves` of the operation wins over the arena's own."""
    arena, log = striped()

    assert arena.compact(max_moves=2) == 6
    assert {event.sources.size for event in log.of(events.PageMove)} == {2}
    assert arena.compact(max_moves=0) == 0


def test_an_urgent_pass_is_not_capped() -> None:
    """It packs every band, whatever the cap says."""
    arena, log = striped(max_moves=1)

    assert arena.compact(urgent=True, max_moves=1) == 18
    assert holes(arena) == [0, 0, 0]
    assert all(event.urgent for event in log.of(events.PageMove))
    assert arena.compact(urgent=True) == 0


@pytest.mark.parametrize("share,moves", [(0.0, True), (0.4, True), (0.6, False)])
def test_bands_with_few_holes_are_left_alone(share: float, moves: bool) -> None:
    """Half of each extent is holes: worth it at a share of 0.4 and not at 0.6."""
    arena, _ = striped(compact_hole_share=share)

    assert (arena.compact() > 0) == moves


def test_bands_with_room_to_spare_are_left_alone() -> None:
    """A band is worth moving while the free bytes around it are at most the share, and no longer."""
    arena, _ = striped(compact_hole_share=0.0)
    below, above = arena.books.chain.room(0)
    mamba = arena.books.bands[0]
    share = (above - below - mamba.extent * mamba.page_bytes) / arena.total_bytes
    for allowed, moves in ((0.0, False), (share - 1e-9, False), (share + 1e-9, True), (1.0, True)):
        other, log = striped(compact_hole_share=0.0, compact_gap_share=allowed)
        other.compact()

        assert ("mamba" in {event.band for event in log.of(events.PageMove)}) == moves
        assert other.compact(urgent=True) >= 0
        assert holes(other) == [0, 0, 0]


def test_a_band_without_holes_moves_nothing() -> None:
    """Packed bands stay as they are, urgently or not."""
    arena = small_arena(P3, page_size=1, compact_hole_share=0.0)
    arena.admit(0)
    arena.extend(0, 4)
    before = arena.digest()

    assert arena.compact() == 0
    assert arena.compact(urgent=True) == 0
    assert arena.digest() == before


def test_a_float_opens_its_tighter_side() -> None:
    """Pages leave the side with the smaller gap, so that the room there grows."""
    for tight_low in (True, False):
        arena = small_arena(P3, page_size=1, units=200, compact_hole_share=0.0)
        for request in range(8):
            arena.admit(request, state_slots=0)
            arena.extend(request, 1)
        for request in range(10, 18 if tight_low else 10):
            arena.admit(request)
        arena.release(3)
        if not tight_low:
            arena.admit(99, state_slots=0)
        chain, window = arena.books.chain, arena.books.bands[1]
        below, above = chain.room(1)
        low, high = window.byte_range()
        assert (low - below < above - high) == tight_low or not tight_low
        arena.compact(max_moves=1)
        after = window.byte_range()

        assert (after[0] > low) == (low - below < above - high)
        assert (after[1] < high) == (low - below >= above - high)


def fewest_moves(band: Band, deferred: int, fixed: tuple[int, int] | None) -> tuple[int, int]:
    """(extent, live pages outside) of the best packed window, by trying every one."""
    size = band.live + deferred
    base = 0 if not band.is_float else None
    if fixed is not None:
        size = max(size, fixed[1] - (fixed[0] if base is None else 0))
    starts = [0] if base is not None else range(band.low, band.high - size + 1)
    best = None
    for start in starts:
        if fixed is not None and not (start <= fixed[0] and fixed[1] <= start + size):
            continue
        outside = sum(
            1
            for place in range(band.low, band.high)
            if band.state[place] == LIVE and not start <= place < start + size
        )
        best = outside if best is None else min(best, outside)
    assert best is not None
    return size, best


@pytest.mark.parametrize("name", LAYOUTS)
def test_urgent_packing_makes_the_fewest_moves(name: str) -> None:
    """For random states, with and without pins, compared with every window of a packed extent."""
    compared = 0
    for seed in range(40):
        rng = random.Random(f"pack/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=1, units=2 * LAYOUTS[name][1])
        running = scatter(arena, rng, requests=12)
        if running and rng.random() < 0.5:
            request, band = rng.choice(running), rng.choice(arena.books.bands).name
            pages, first = arena.pages_of(request, band)
            if pages.size:
                arena.lease(request, band, first, first + 1)
                if rng.random() < 0.5:
                    arena.release(request)
        for band in arena.books.bands:
            if not band.holes:
                continue
            deferred = arena.books.pins.deferred[band.index]
            fixed = arena.books.fixed(band)
            size, expected = fewest_moves(band, deferred, fixed)
            moves = compaction.pack(arena.books, band)

            assert moves.sources.size == moves.destinations.size == expected
            assert not set(moves.sources.tolist()) & set(moves.destinations.tolist())
            assert (band.state[moves.sources] == LIVE).all()
            assert (band.state[moves.destinations] == HOLE).all()
            assert not band.pin_count[moves.sources].any()
            compared += expected > 0
            live = band.live
            arena.books.move(band, moves.sources, moves.destinations, urgent=True)
            assert band.live == live and band.extent <= size
            if fixed is None:
                assert (band.extent, band.holes) == (live, 0)
        assert arena.check() == []
    assert compared > 10


def stamp(arena: Arena) -> dict[tuple[str, int], bytes]:
    """Write a pattern into every live page that names band and virtual page; return the patterns."""
    written = {}
    for band in arena.books.bands:
        flat = arena.buffer.numpy()
        for place in band.live_between(band.low, band.high).tolist():
            virtual = int(band.table.virtual_at[place])
            seed = f"{band.name}/{virtual}"
            pattern = random.Random(seed).randbytes(band.page_bytes)
            start = band.byte_range(place, place + 1)[0]
            flat[start : start + band.page_bytes] = np.frombuffer(pattern, np.uint8)
            written[band.name, virtual] = pattern
    return written


def read(arena: Arena) -> dict[tuple[str, int], bytes]:
    """The bytes of every live page, through the virtual tables."""
    found = {}
    for band in arena.books.bands:
        flat = arena.buffer.numpy()
        for virtual in np.flatnonzero(band.table.place_of >= 0).tolist():
            start = band.byte_range(*(band.table.place_of[virtual] + [0, 1]).tolist())[0]
            found[band.name, virtual] = flat[start : start + band.page_bytes].tobytes()
    return found


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_content_moves_with_the_pages(name: str, urgent: bool) -> None:
    """After compaction on the CPU every virtual page still reads what was written into it."""
    moved = 0
    for seed in range(10):
        rng = random.Random(f"content/{name}/{seed}")
        arena = small_arena(
            LAYOUTS[name], page_size=1, device="cpu", compact_hole_share=0.0,
            units=2 * LAYOUTS[name][1],
        )
        scatter(arena, rng, requests=12)
        expected = stamp(arena)
        moved += arena.compact(urgent=urgent)

        assert read(arena) == expected
        assert arena.check() == []
    assert moved > 5


@pytest.mark.parametrize("name", LAYOUTS)
def test_content_survives_relocations(name: str) -> None:
    """Demands that force every band to make way leave all bytes right, and hand out zeros."""
    moved = 0
    for seed in range(20):
        log = EventLog()
        rng = random.Random(f"relocate/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=1, device="cpu", observer=log)
        running = scatter(arena, rng, requests=10)
        arena.buffer[: arena.plan.sink_bytes] = 7
        for request in range(50, 56):
            expected = stamp(arena)
            before = set(expected)
            if not arena.admit(request, state_slots=rng.choice([0, 1, 3])):
                continue
            arena.extend(request, rng.choice([0, 1, 4, 8]))
            found = read(arena)

            assert {key: found[key] for key in before} == expected
            assert all(not any(found[key]) for key in found.keys() - before)
            if running and rng.random() < 0.5:
                arena.release(running.pop(0))
                arena.trim_window(running)
            expected = stamp(arena)
            demand = tuple(rng.choice([0, 1, 2, 6]) for _ in arena.books.bands)
            arena.apply(ops.Reserve(demand))
            assert read(arena) == expected
        moved += sum(event.sources.size for event in log.of(events.PageMove))
        assert (arena.buffer[: arena.plan.sink_bytes] == 7).all()
        assert arena.check() == []
    assert moved > 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_moves_are_disjoint_inside_one_band_and_between_free_bytes(name: str) -> None:
    """Over random operations each batch names every page once, sources apart from destinations."""
    batches = 0
    for seed in range(15):
        log = EventLog()
        rng = random.Random(f"batches/{name}/{seed}")
        arena = small_arena(
            LAYOUTS[name], page_size=rng.choice([1, 2]), observer=log, compact_hole_share=0.0
        )
        engine = RandomEngine(rng, illegal=False)
        for _ in range(120):
            engine.step(arena)
        for event in log.of(events.PageMove):
            named = event.sources.tolist() + event.destinations.tolist()
            batches += 1

            assert len(set(named)) == len(named) == 2 * event.virtual.size
            assert len(set(event.virtual.tolist())) == event.virtual.size
    assert batches > 5


@pytest.mark.parametrize("name", LAYOUTS)
def test_band_moves_tell_the_whole_story_of_every_extent(name: str) -> None:
    """Each event starts where the one before ended, and the last ends where the band now is."""
    for seed in range(8):
        log = EventLog()
        rng = random.Random(f"extents/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=2, observer=log, compact_hole_share=0.0)
        extents = {band.name: (0, 0) for band in arena.books.bands}
        engine = RandomEngine(rng)
        for _ in range(100):
            engine.step(arena)
            for event in log.of(events.BandMove):
                assert event.before == extents[event.band]
                assert event.before != event.after
                extents[event.band] = event.after
            log.clear()
            for band in arena.books.bands:
                expected = band.byte_range() if band.extent else (0, 0)
                assert extents[band.name] == expected


def test_urgent_compaction_works_around_pinned_and_freed_pages() -> None:
    """A page freed under a pin stays in place as pending; the others close up around it."""
    arena = small_arena(P2M, page_size=1, units=96)
    for request in range(8):
        arena.admit(request)
    arena.lease(5, "mamba", 0, 1)
    for request in (0, 2, 5, 7):
        arena.release(request)
    mamba = arena.books.bands[0]

    assert arena.compact(urgent=True) == 1
    assert (mamba.low, mamba.high) == (0, 6)
    assert mamba.state[:6].tolist().count(HOLE) == 1
    assert mamba.state[5] == PENDING
    assert arena.check() == []
