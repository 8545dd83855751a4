"""One band keeps its places right: what is taken, dropped, moved, found, and where its bytes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandscope.allocator.band import BLOCK_PLACES, GAP, HOLE, LIVE, PENDING, Band
from bandscope.allocator.plan import BandEnd, BandPlan

ENDS: tuple[BandEnd, ...] = ("low", "float", "high")


def make_band(
    end: BandEnd, *, page_bytes: int = 3, total_bytes: int = 10_000, sink_bytes: int = 5
) -> Band:
    plan = BandPlan("test", "full", None, end, 1, page_bytes, page_bytes, ())
    capacity = total_bytes // page_bytes
    return Band(plan, 0, total_bytes, sink_bytes, capacity)


def take(band: Band, count: int, low: int = 0, high: int | None = None) -> list[int]:
    """Take and bind, as the books do; virtual page = place + 1000 is never asked for here."""
    places = band.take(count, low, band.capacity if high is None else high)
    free = np.flatnonzero(band.table.place_of < 0)[:count]
    band.table.bind(free, places)
    return [int(place) for place in places]


def drop(band: Band, places: list[int], *, pending: bool = False) -> None:
    chosen = np.array(places, np.int64)
    band.table.unbind(band.table.virtual_at[chosen])
    band.drop(chosen, pending=pending)


def shape(band: Band) -> tuple[int, int, int, int, int]:
    return band.low, band.high, band.live, band.holes, band.pending


def test_holes_are_taken_before_the_frontier_moves_nearest_the_base_first() -> None:
    """Holes near the base go first; only what they cannot give comes from beyond the frontier."""
    band = make_band("low")
    take(band, 10)
    drop(band, [7, 2, 5])

    assert take(band, 2) == [2, 5]
    assert shape(band) == (0, 10, 9, 1, 0)
    assert take(band, 3) == [7, 10, 11]
    assert shape(band) == (0, 12, 12, 0, 0)


@pytest.mark.parametrize("end", ["low", "high"])
def test_an_end_starts_at_its_base_and_never_leaves_it(end: BandEnd) -> None:
    """Places of an end count from 0, also when its region is larger or its first pages are free."""
    band = make_band(end)

    assert take(band, 3) == [0, 1, 2]
    drop(band, [0, 1])
    assert band.absorb() is False
    assert shape(band) == (0, 3, 1, 2, 0)


def test_a_high_end_grows_down_from_the_last_whole_page() -> None:
    """With 53 bytes and pages of 3 the last page is 16 (bytes 48 to 51); the next ones lie below."""
    band = make_band("high", total_bytes=53)
    places = np.array(take(band, 3))

    assert band.physical(places).tolist() == [16, 15, 14]
    assert band.byte_range() == (42, 51)


def test_an_empty_float_starts_in_the_middle_of_its_region() -> None:
    """The free places below and above differ by at most one."""
    band = make_band("float")

    assert take(band, 5, 10, 30) == [17, 18, 19, 20, 21]
    assert shape(band) == (17, 22, 5, 0, 0)


def test_a_float_grows_on_both_sides_when_one_is_not_enough() -> None:
    """Upwards as far as the region allows, then downwards; the extent stays one run."""
    band = make_band("float")
    take(band, 5, 10, 30)

    assert take(band, 3, 15, 23) == [22, 15, 16]
    assert shape(band) == (15, 23, 8, 0, 0)


def test_taking_past_the_agreed_region_is_caught() -> None:
    """The caller must have made room; a band never grows into its neighbour silently."""
    band = make_band("float")
    take(band, 4, 10, 14)

    with pytest.raises(AssertionError):
        band.take(1, 10, 14)


def test_absorb_pulls_frontiers_back_to_pages_in_use() -> None:
    """Ends give up their outer holes, floats those on both sides, and inner holes stay."""
    low, middle = make_band("low"), make_band("float")
    take(low, 8)
    drop(low, [0, 3, 6, 7])
    take(middle, 8, 100, 108)
    drop(middle, [100, 101, 104, 107])

    assert low.absorb() is True
    assert shape(low) == (0, 6, 4, 2, 0)
    assert middle.absorb() is True
    assert shape(middle) == (102, 107, 4, 1, 0)
    assert middle.absorb() is False
    assert (low.state[6:8] == GAP).all()


def test_absorb_stops_at_pending_pages_and_clears_an_empty_band() -> None:
    """A pending page still belongs to the extent; with only holes left the band has no extent."""
    band = make_band("float")
    take(band, 4, 50, 54)
    drop(band, [50, 51, 52])
    drop(band, [53], pending=True)
    band.absorb()

    assert shape(band) == (53, 54, 0, 0, 1)
    band.reclaim(np.array([53]))
    assert band.absorb() is True
    assert shape(band) == (0, 0, 0, 0, 0)
    assert not band.state.any()


@pytest.mark.parametrize("tail", [1, 15, 16, 17, 300, 5000])
def test_absorb_looks_past_any_number_of_holes(tail: int) -> None:
    """Whatever the length of the run of holes at a frontier, it is pulled back past all of it."""
    band = make_band("float", page_bytes=1, total_bytes=20_000)
    take(band, 2 * tail + 1, 1000, 1000 + 2 * tail + 1)
    drop(band, [place for place in range(1000, 1001 + 2 * tail) if place != 1000 + tail])
    band.absorb()

    assert shape(band) == (1000 + tail, 1001 + tail, 1, 0, 0)


def test_pending_pages_are_not_handed_out_until_reclaimed() -> None:
    """A pending page is no hole; once reclaimed it is the first to be reused."""
    band = make_band("low")
    take(band, 4)
    drop(band, [1], pending=True)

    assert take(band, 1) == [4]
    band.reclaim(np.array([1]))
    assert shape(band) == (0, 5, 4, 1, 0)
    assert take(band, 1) == [1]


def test_moves_into_holes_and_beyond_a_frontier() -> None:
    """Destinations inside fill holes; those outside widen the extent, with holes in between."""
    band = make_band("float")
    take(band, 6, 100, 106)
    drop(band, [101])
    names = band.table.virtual_at[[104, 105]]
    moved = band.move(np.array([104, 105]), np.array([101, 108]), pending=False)

    assert moved.tolist() == names.tolist()
    assert band.table.place_of[names].tolist() == [101, 108]
    assert shape(band) == (100, 109, 5, 4, 0)
    assert band.holes_between(100, 109).tolist() == [104, 105, 106, 107]
    assert take(band, 4) == [104, 105, 106, 107]


def test_a_whole_float_can_leap() -> None:
    """All pages move to a place that does not touch the old extent; nothing is left between."""
    band = make_band("float")
    take(band, 3, 100, 103)
    band.move(np.arange(100, 103), np.arange(400, 403), pending=False)
    band.absorb()

    assert shape(band) == (400, 403, 3, 0, 0)
    assert np.flatnonzero(band.state).tolist() == [400, 401, 402]
    assert int(band._block_holes.sum()) == 0


def test_sources_of_a_move_wait_when_work_is_in_flight() -> None:
    """With `pending` the old places are not holes yet."""
    band = make_band("low")
    take(band, 4)
    drop(band, [0])
    band.move(np.array([3]), np.array([0]), pending=True)

    assert shape(band) == (0, 4, 3, 0, 1)
    assert band.state[3] == PENDING


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 9])
def test_the_lowest_holes_are_found_across_many_blocks(count: int) -> None:
    """Over 600 blocks of 256 places the summary names exactly the lowest holes, in order."""
    band = make_band("low", page_bytes=1, total_bytes=200_000)
    take(band, 160_000)
    far = BLOCK_PLACES * (64 + 512)
    holes = [5, 255, 256, 257, 64 * 256 - 1, 64 * 256, 64 * 256 + 300, far - 1, far + 700]
    drop(band, holes[::-1])

    assert band.lowest_holes(count).tolist() == holes[:count]
    assert take(band, count) == holes[:count]
    assert band.lowest_holes(9 - count).tolist() == holes[count:]


def test_a_hole_below_the_last_search_is_found_again() -> None:
    """The remembered first block is only a hint: a later hole nearer the base wins."""
    band = make_band("low", page_bytes=1, total_bytes=100_000)
    take(band, 50_000)
    drop(band, [40_000])

    assert band.lowest_holes(1).tolist() == [40_000]
    drop(band, [300])
    assert band.lowest_holes(2).tolist() == [300, 40_000]
    drop(band, [3], pending=True)
    band.lowest_holes(1)
    band.reclaim(np.array([3]))
    assert band.lowest_holes(3).tolist() == [3, 300, 40_000]


@pytest.mark.parametrize("from_high", [True, False])
@pytest.mark.parametrize("count", [0, 1, 70, 500, 10_000])
def test_outermost_live_pages_come_outermost_first(count: int, from_high: bool) -> None:
    """However sparse the live pages are, the nearest to the frontier come first, as many as asked."""
    band = make_band("float", page_bytes=1, total_bytes=30_000)
    take(band, 20_000, 100, 20_100)
    live = [100, *range(150, 20_000, 37), 20_099]
    drop(band, sorted(set(range(100, 20_100)) - set(live)))
    expected = live[::-1] if from_high else live

    assert band.outermost_live(count, from_high=from_high).tolist() == expected[:count]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("page_bytes,sink_bytes,total_bytes", [(3, 5, 53), (4, 8, 48), (5, 3, 44)])
def test_places_and_bytes_are_inverse(
    end: BandEnd, page_bytes: int, sink_bytes: int, total_bytes: int
) -> None:
    """Places name every whole page above an off-grid sink once, and byte ranges are theirs."""
    band = make_band(
        end, page_bytes=page_bytes, sink_bytes=sink_bytes, total_bytes=total_bytes
    )
    usable = [
        page
        for page in range(total_bytes // page_bytes)
        if page * page_bytes >= sink_bytes
    ]
    places = np.arange(band.capacity)
    pages = band.physical(places)

    assert sorted(pages.tolist()) == usable
    assert band.places_of_physical(pages).tolist() == places.tolist()
    for low in range(band.capacity):
        for byte in range(int(pages[low]) * page_bytes, (int(pages[low]) + 1) * page_bytes):
            assert band.place_at_byte(byte) == low
        for high in range(low + 1, band.capacity + 1):
            inside = pages[low:high]
            expected = (int(inside.min()) * page_bytes, (int(inside.max()) + 1) * page_bytes)
            assert band.byte_range(low, high) == expected


@pytest.mark.parametrize("end", ENDS)
def test_places_within_are_exactly_the_whole_pages_inside(end: BandEnd) -> None:
    """For every pair of bytes, compared with a list of the pages that fit there."""
    band = make_band(end, page_bytes=3, sink_bytes=5, total_bytes=53)
    for start in range(0, 54):
        for stop in range(start, 54):
            low, high = band.places_within(start, stop)
            found = sorted(band.physical(np.arange(low, high)).tolist())
            expected = [
                page for page in range(2, 17) if start <= page * 3 and page * 3 + 3 <= stop
            ]

            assert 0 <= low <= high <= band.capacity
            assert found == expected


def test_page_numbers_beyond_four_gib_stay_exact() -> None:
    """Byte offsets are 64-bit: a page above 2^33 keeps its place and range."""
    band = make_band(
        "high", page_bytes=1 << 20, total_bytes=(1 << 33) + (5 << 20), sink_bytes=1 << 20
    )
    take(band, 2)

    assert band.byte_range() == ((1 << 33) + (3 << 20), (1 << 33) + (5 << 20))
    assert band.physical(np.array([0])).tolist() == [(1 << 13) + 4]


def contents(band: Band) -> dict[str, Any]:
    return {
        "shape": shape(band),
        "state": np.flatnonzero(band.state).tolist(),
        "codes": band.state[np.flatnonzero(band.state)].tolist(),
        "virtual": band.table.virtual_at.tolist(),
        "place": band.table.place_of.tolist(),
        "pins": band.pin_count.tolist(),
        "blocks": band._block_holes.tolist(),
    }


def test_restore_forgets_all_that_came_after_the_snapshot() -> None:
    """Extents that grew, shrank, or lie elsewhere leave no trace, in any array."""
    band = make_band("float", total_bytes=3000)
    take(band, 400, 200, 600)
    drop(band, [210, 220])
    drop(band, [300], pending=True)
    band.pin_count[[250, 251]] = [1, 3]
    before, wanted = band.snapshot(), contents(band)
    drop(band, list(range(305, 590)))
    take(band, 350, 100, 900)
    band.pin_count[260] = 2
    band.restore(before)

    assert contents(band) == wanted
    assert band.lowest_holes(2).tolist() == [210, 220]
    other = make_band("float", total_bytes=3000)
    take(other, 5, 700, 705)
    other.restore(before)
    assert contents(other) == wanted


class NaiveBand:
    """The same book as sets of places."""

    def __init__(self, *, is_float: bool) -> None:
        self.is_float = is_float
        self.low = self.high = 0
        self.live: set[int] = set()
        self.pending: set[int] = set()

    @property
    def holes(self) -> list[int]:
        return [
            place
            for place in range(self.low, self.high)
            if place not in self.live and place not in self.pending
        ]

    def take(self, count: int, low: int, high: int) -> list[int]:
        taken = self.holes[:count]
        fresh = count - len(taken)
        if fresh and self.low == self.high:
            self.low = self.high = low + (high - low - fresh) // 2 if self.is_float else 0
        while len(taken) < count and self.high < high:
            taken.append(self.high)
            self.high += 1
        below = count - len(taken)
        taken.extend(range(self.low - below, self.low))
        self.low -= below
        self.live |= set(taken)
        return taken

    def absorb(self) -> None:
        used = self.live | self.pending
        if not used:
            self.low = self.high = 0
            return
        self.high = max(used) + 1
        self.low = min(used) if self.is_float else 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "drop", "pend", "reclaim", "move", "leave", "snapshot"]),
        st.integers(0, 700),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("end", ENDS)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(steps=steps)
def test_a_band_agrees_with_sets(end: BandEnd, steps: list[tuple[str, int, int]]) -> None:
    """After any takes, drops, reclaims, moves and restores, every question has the sets' answer."""
    band = make_band(end, page_bytes=1, total_bytes=6000)
    naive = NaiveBand(is_float=end == "float")
    for kind, count, salt in steps:
        chosen = np.random.default_rng(salt)
        live, pending = sorted(naive.live), sorted(naive.pending)
        if kind == "take":
            count = min(count, band.capacity - len(live) - len(pending))
            assert take(band, count) == naive.take(count, 0, band.capacity)
        elif kind in ("drop", "pend") and live:
            size = min(count, len(live))
            gone = chosen.choice(live, size, replace=False).tolist()
            drop(band, gone, pending=kind == "pend")
            naive.live -= set(gone)
            naive.pending |= set(gone) if kind == "pend" else set()
        elif kind == "reclaim" and pending:
            back = chosen.choice(pending, min(count, len(pending)), replace=False)
            band.reclaim(back)
            naive.pending -= set(back.tolist())
        elif kind == "move" and live and naive.holes:
            size = min(count, len(live), len(naive.holes))
            sources = chosen.choice(live, size, replace=False)
            targets = chosen.choice(naive.holes, size, replace=False)
            if size:
                band.move(sources, targets, pending=salt % 2 == 0)
                naive.live = (naive.live - set(sources.tolist())) | set(targets.tolist())
                naive.pending |= set(sources.tolist()) if salt % 2 == 0 else set()
        elif kind == "leave" and live and naive.high < band.capacity - 5:
            source, target = live[0], naive.high + salt % 4
            band.move(np.array([source]), np.array([target]), pending=False)
            naive.live = (naive.live - {source}) | {target}
            naive.high = target + 1
        elif kind == "snapshot":
            state = band.snapshot()
            band = make_band(end, page_bytes=1, total_bytes=6000)
            band.restore(state)
        if kind != "take":
            band.absorb()
            naive.absorb()
        low, high = naive.low, naive.high
        holes = naive.holes

        assert shape(band) == (low, high, len(naive.live), len(holes), len(naive.pending))
        assert band.live_between(low, high).tolist() == sorted(naive.live)
        assert band.holes_between(low, high).tolist() == holes
        assert band.occupied_between(low, high).tolist() == sorted(naive.live | naive.pending)
        assert band.lowest_holes(len(holes) // 2).tolist() == holes[: len(holes) // 2]
        outer = sorted(naive.live)[-3:][::-1]
        assert band.outermost_live(3, from_high=True).tolist() == outer
        assert int(band._block_holes.sum()) == len(holes)
        assert {*np.flatnonzero(band.state).tolist()} == set(range(low, high))
        assert (band.state[holes] == HOLE).all() and (band.state[outer] == LIVE).all()
