"""Each check finds the fault planted for it, and names the band and the term."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING, Band
from bandscope.allocator.books import Books
from bandscope.allocator.errors import InvariantError
from tests.allocator.arenas import LAYOUTS, P3, RandomEngine, small_arena


def busy_arena() -> Arena:
    """P3 with live pages, holes, pending pages, pins, freed pages under a pin, and trimmed windows."""
    arena = small_arena(P3, page_size=1, units=200)
    for request in range(6):
        arena.admit(request)
        arena.extend(request, 3)
    arena.release(1)
    arena.extend(0, 8)
    arena.trim_window([0])
    arena.lease(2, "full", 0, 2)
    arena.lease(2, "full", 1, 3)
    arena.lease(3, "window_8", 0, 1)
    arena.release(3)
    arena.launch([0, 2, 4])
    arena.release(4)
    return arena


def test_an_intact_arena_gives_no_violation() -> None:
    """The busy arena of these tests shows every kind of page, and is healthy."""
    arena = busy_arena()

    assert arena.check() == []
    arena.assert_healthy()
    for band in arena.books.bands:
        assert band.live and band.pending
    assert sum(band.holes for band in arena.books.bands) > 0
    assert sum(arena.books.pins.deferred) == 1


def a_place(band: Band, code: int) -> int:
    """The lowest place of `band` in this state, pinned or not."""
    return band.low + int(np.flatnonzero(band.state[band.low : band.high] == code)[0])


def a_virtual(band: Band) -> int:
    return int(band.table.virtual_at[a_place(band, LIVE)])


Fault = Callable[[Books], object]


def count_live(books: Books) -> None:
    books.bands[1].live += 1


def count_holes(books: Books) -> None:
    books.bands[0].holes -= 1


def count_pending(books: Books) -> None:
    books.bands[2].pending += 1


def block_summary(books: Books) -> None:
    books.bands[2]._block_holes[0] += 1


def gap_inside(books: Books) -> None:
    books.bands[0].state[a_place(books.bands[0], HOLE)] = GAP


def hole_marked_live(books: Books) -> None:
    books.bands[0].state[a_place(books.bands[0], HOLE)] = LIVE


def span_end(books: Books) -> None:
    books.bands[2].high += 1


def span_start(books: Books) -> None:
    books.bands[1].low -= 1


def extent_overlaps(books: Books) -> None:
    mamba, window = books.bands[:2]
    slots = -(-window.byte_range()[1] // mamba.page_bytes) - mamba.first_page
    mamba.state[mamba.high : slots] = HOLE
    mamba._join_holes(np.arange(mamba.high, slots))
    mamba.high = slots


def extent_past_the_arena(books: Books) -> None:
    full = books.bands[2]
    full.first_page += 1


def extent_in_the_sink(books: Books) -> None:
    books.bands[0].first_page -= 1


def place_of_wrong(books: Books) -> None:
    table = books.bands[1].table
    table.place_of[a_virtual(books.bands[1])] += 1


def virtual_at_wrong(books: Books) -> None:
    band = books.bands[2]
    band.table.virtual_at[a_place(band, LIVE)] = int(books.ids.fresh)


def mapped_but_not_live(books: Books) -> None:
    band = books.bands[1]
    place = a_place(band, PENDING)
    band.table.virtual_at[place] = 0


def live_but_unmapped(books: Books) -> None:
    band = books.bands[0]
    band.table.virtual_at[a_place(band, LIVE)] = -1


def stale_row(books: Books) -> None:
    """A virtual page that holds nothing has a table row that names a place."""
    band = books.bands[1]
    trimmed = int(books.ledger.pages[books.ledger.row(0), 0])
    band.table.place_of[trimmed] = a_place(band, LIVE)


def two_owners(books: Books) -> None:
    ledger = books.ledger
    ledger.pages[ledger.row(5), 0] = ledger.pages[ledger.row(0), 10]


def a_leak(books: Books) -> None:
    ledger = books.ledger
    ledger.page_count[ledger.row(5)] -= 1
    ledger.length[ledger.row(5)] -= 1


def a_slot_leaks(books: Books) -> None:
    books.ledger.state_count[books.ledger.row(5)] = 0


def length_without_room(books: Books) -> None:
    books.ledger.length[books.ledger.row(0)] += 1


def id_free_twice(books: Books) -> None:
    books.ids.release(books.ids.released_ids()[:1].copy())


def id_free_and_held(books: Books) -> None:
    books.ids.release(books.ledger.token_pages(books.ledger.row(0))[:1])


def id_lost(books: Books) -> None:
    books.ids.released_count -= 1


def id_marked_wrong(books: Books) -> None:
    books.ids.bound[int(books.ledger.token_pages(books.ledger.row(0))[0])] = False


def trimmed_too_far(books: Books) -> None:
    books.ledger.first_kept[books.ledger.row(5), 0] += 1


def pin_count_up(books: Books) -> None:
    full = books.bands[2]
    full.pin_count[a_place(full, LIVE)] += 1


def pin_count_down(books: Books) -> None:
    pin = books.pins.pins[1]
    books.bands[pin.band].pin_count[pin.places[0]] -= 1


def pin_without_lease(books: Books) -> None:
    for number in list(books.pins.pins):
        books.pins.pins.pop(number)


def pinned_page_reused(books: Books) -> None:
    pin = books.pins.pins[3]
    band = books.bands[pin.band]
    band.pending -= 1
    band._join_holes(pin.places)


def deferred_without_lease(books: Books) -> None:
    for number in list(books.pins.pins):
        books.unpin(number, None)
    books.pins.deferred[0] = 1


def extent_ends_in_a_hole(books: Books) -> None:
    band = books.bands[2]
    band.state[band.high] = HOLE
    band.holes += 1
    band._block_holes[band.high // 256] += 1
    band.high += 1


def trimmed_past_its_pages(books: Books) -> None:
    row = books.ledger.row(0)
    books.ledger.first_kept[row, 0] = books.ledger.page_count[row] + 1


def deferred_count(books: Books) -> None:
    books.pins.deferred[1] += 1


def pending_forgotten(books: Books) -> None:
    books.tickets._pending.popleft()


def pending_reclaimed_early(books: Books) -> None:
    stamp, index, places = books.tickets._pending[0]
    books.bands[index].reclaim(places)


def pending_twice(books: Books) -> None:
    books.tickets._pending.append(books.tickets._pending[0])


def pending_of_another_band(books: Books) -> None:
    stamp, index, places = books.tickets._pending.popleft()
    books.tickets._pending.appendleft((stamp, (index + 1) % 3, places))


FAULTS: list[tuple[Fault, str, str]] = [
    (count_live, "conservation", r"band window_8 counts \d+ live pages, its extent has"),
    (count_holes, "conservation", r"band mamba counts \d+ holes pages"),
    (count_pending, "conservation", r"band full counts \d+ pending pages"),
    (block_summary, "conservation", r"band full finds \d+ holes by block, \d+ in all"),
    (gap_inside, "conservation", "band mamba has 1 pages inside its extent that are neither"),
    (hole_marked_live, "tables", "band mamba: 1 places are mapped but not live or the reverse"),
    (span_end, "conservation", "band full has 1 pages inside its extent"),
    (span_start, "conservation", "band window_8 has 1 pages inside its extent"),
    (extent_overlaps, "order", "window_8"),
    (extent_past_the_arena, "order", "full ends at byte|ends at byte"),
    (extent_in_the_sink, "order", "mamba"),
    (place_of_wrong, "tables", "band window_8: place .* names another place"),
    (virtual_at_wrong, "tables", "band full: place .* holds virtual page"),
    (mapped_but_not_live, "tables", "band window_8: 1 places are mapped but not live"),
    (live_but_unmapped, "tables", "band mamba: 1 places are mapped but not live"),
    (stale_row, "tables", r"band window_8: the row of virtual page \d+ names place \d+, which does"),
    (two_owners, "ownership", r"token page \d+ has 2 owners"),
    (a_leak, "ownership", r"band full: 1 live pages belong to no request.*\(leak\)"),
    (a_slot_leaks, "ownership", "band mamba: 1 live pages belong to no request"),
    (length_without_room, "ownership", "request 0 has room for 11 pages but a length of 12"),
    (id_free_twice, "ids", r"token id \d+ is free twice"),
    (id_free_and_held, "ids", r"token id \d+ is both free and held"),
    (id_lost, "ownership", r"1 token ids are neither free nor held by a request.*\(leak\)"),
    (id_marked_wrong, "ids", r"token id \d+ is marked against its use"),
    (trimmed_too_far, "ownership", "band window_8: 1 live pages belong to no request"),
    (pin_count_up, "pins", r"band full: place \d+ counts pins against its leases"),
    (pin_count_down, "pins", r"band full: place \d+ counts pins against its leases"),
    (pin_without_lease, "pins", "band full has pinned places but no lease"),
    (pinned_page_reused, "pins", "band window_8: a pinned place was reused or lost"),
    (deferred_without_lease, "pins", "but there is no lease"),
    (extent_ends_in_a_hole, "order", "its extent ends in a hole"),
    (trimmed_past_its_pages, "ownership", "has trimmed more pages of window_8 than it has"),
    (deferred_count, "pins", "band window_8 counts 2 pages freed under a pin, there are 1"),
    (pending_forgotten, "ownership", r"\d+ pages are pending, \d+ wait for a ticket"),
    (pending_reclaimed_early, "ownership", r"\d+ pages are pending, \d+ wait for a ticket"),
    (pending_twice, "ids", "a place waits for its ticket twice"),
    (pending_of_another_band, "ownership", r"\d+ pages are pending, \d+ wait for a ticket"),
]


@pytest.mark.parametrize("plant,invariant,message", FAULTS, ids=lambda value: getattr(
    value, "__name__", ""
))
def test_a_planted_fault_is_found_and_named(plant: Fault, invariant: str, message: str) -> None:
    """One array or counter is wrong by one entry; the check of that invariant says where."""
    arena = busy_arena()
    plant(arena.books)
    found = [str(violation) for violation in arena.check() if violation.invariant == invariant]

    with pytest.raises(AssertionError, match=message):
        raise AssertionError("; ".join(found))
    with pytest.raises(InvariantError, match=invariant) as raised:
        arena.assert_healthy()
    assert raised.value.exit_status == 1


def test_two_faults_that_cancel_in_a_total_are_both_found() -> None:
    """A leak and a double free of the same size hide from sums; both are named here."""
    arena = busy_arena()
    books = arena.books
    row = books.ledger.row(5)
    books.ledger.page_count[row] -= 1
    books.ledger.length[row] -= 1
    books.ids.release(books.ledger.token_pages(books.ledger.row(0))[:1])
    text = " ".join(str(violation) for violation in arena.check())

    assert "leak" in text
    assert "both free and held" in text


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_counter_off_by_one_is_found_in_any_state(name: str) -> None:
    """Scenario C2: each count of each band, up and down, after random operations."""
    rng = random.Random(f"drift/{name}")
    arena = small_arena(LAYOUTS[name], page_size=2)
    engine = RandomEngine(rng)
    for _ in range(10):
        for _ in range(15):
            engine.step(arena)
        for band in arena.books.bands:
            for term in ("live", "holes", "pending", "high"):
                for change in (1, -1):
                    if term == "high" and band.high + change < 0:
                        continue
                    setattr(band, term, getattr(band, term) + change)
                    found = [str(violation) for violation in arena.check()]
                    setattr(band, term, getattr(band, term) - change)

                    assert any(f"band {band.name}" in text for text in found), (term, change)
        assert arena.check() == []
