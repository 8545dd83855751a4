"""The ten rules of order, one section per rule: an action, and what it must be ordered after.

The numbers are the rows of the table of ordering rules of the system we implement; each test's name
begins with its row. Tickets are driven by hand. `test_ordering_mutations.py` removes each rule from
a copy of the allocator and sees its test fail.
"""

from __future__ import annotations

import itertools

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P2W,
    P3,
    crowded,
    moved_pages,
    page_list,
    small_arena,
)
from tests.allocator.devices import (
    PaperRun,
    full_house,
    hazardous,
    recorded,
)

BANDS = ("mamba", "window_8", "full")
FLOATS = [name for name, (bands, _) in LAYOUTS.items() if len(bands) > 2]
every_layout = pytest.mark.parametrize("name", LAYOUTS)
every_barrier = pytest.mark.parametrize("barrier", ["fine", "coarse"])


def roomy(name: str) -> tuple[list[tuple[str, int]], int]:
    """The layout with twice its bytes."""
    bands, units = LAYOUTS[name]
    return bands, 2 * units


def served(arena: Arena, count: int, tokens: int) -> list[int]:
    """Admit `count` requests of so many tokens, each with a state slot where there is state."""
    for request in range(count):
        assert arena.admit(request)
        assert arena.extend(request, tokens)
    return list(range(count))


def packed(arena: Arena) -> list[int]:
    """Requests of one token each until not one more fits."""
    for request in itertools.count():
        if not arena.admit(request):
            return list(range(request))
        if not arena.extend(request, 1):
            arena.release(request)
            return list(range(request))
    raise AssertionError


def all_pages(arena: Arena, request: int) -> set[tuple[str, int]]:
    """Every page that a request holds, as (band, physical page)."""
    names = [band.name for band in arena.books.bands]
    return {(name, page) for name in names for page in page_list(arena, request, name)}


def waiting(arena: Arena) -> int:
    """Pending pages of all bands."""
    return sum(band.pending for band in arena.books.bands)


# --- 1. table rows of an allocation: nothing; the forward waits -----------------------------------


def test_row1_rows_of_fresh_pages_are_published_before_the_launch() -> None:
    """Rows of fresh pages wait for no ticket, and are written before the forward is launched."""
    arena, device, _ = recorded(P2W, page_size=1)
    arena.admit(0)
    arena.extend(0, 2)
    device.take()
    arena.launch([0])

    assert [call[0] for call in device.calls] == ["publish", "publish", "launch"]
    for call, band in zip(device.take(), arena.books.bands, strict=False):
        rows, places = call[2], call[3]
        assert rows == [0, 1]
        assert places == page_list(arena, 0, band.name)
    arena.launch([0])
    assert device.take() == [("launch", 2)]


@every_barrier
@every_layout
def test_row1_a_forward_finds_every_row_up_to_date(name: str, barrier: str) -> None:
    """A launched forward reads no stale row, whatever was taken, dropped or moved before it."""
    arena, device, log = hazardous(
        roomy(name), page_size=1, barrier=barrier, compact_hole_share=0.0
    )
    served(arena, 4, 1)
    device.finish(device.forward_over([0, 1, 2, 3]))
    arena.release(0)
    assert arena.compact() > 0
    device.forward_over([1, 2, 3])
    arena.decode([1])
    device.forward_over([1])

    assert device.names().count("launch") == 3
    assert log.of(events.PageMove)


@every_layout
def test_row1_a_forward_follows_the_schedule_stream_at_its_launch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward stream waits at the launch for all that was issued: rows, fills and copies."""
    run = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, compact_hole_share=0.0)
    served(run.arena, 3, 1)
    run.arena.release(0)
    assert run.arena.compact() > 0
    run.forward([1, 2])

    assert run.races() == []
    assert run.ordered_conflicts("publish", "tables") > 0
    assert run.ordered_conflicts("fill", "forward 1") > 0
    assert run.ordered_conflicts("move", "forward 1") > 0


# --- 2. zeroing of handed-out pages: their last access --------------------------------------------


def test_row2_an_urgent_need_places_one_barrier_and_then_fills() -> None:
    """A page that a forward may still touch is zeroed for its new owner behind one barrier."""
    arena, device, log = full_house()
    gone = set(page_list(arena, 0, "full"))
    arena.release(0)
    arena.release(1)
    assert device.take() == []
    arena.admit(9, state_slots=0)
    assert arena.extend(9, 3).ok

    assert [call[0] for call in device.calls] == ["order_behind", "fill"]
    assert device.calls[0] == ("order_behind", 1)
    assert log.of(events.Barrier) == [events.Barrier("settle", 1, "reuse of pending pages")]
    assert arena.extend(9, 5).ok
    assert device.names().count("order_behind") == 1
    assert gone <= set(page_list(arena, 9, "full"))
    assert arena.check() == []


@every_barrier
@every_layout
def test_row2_zeroing_follows_the_former_owners_last_access(
    name: str, barrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fill of a reused page comes after every launched forward that touches its bytes."""
    run = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, barrier=barrier)
    requests = packed(run.arena)
    run.forward(requests)
    gone = all_pages(run.arena, 0)
    run.arena.release(0)
    assert run.arena.admit(99) and run.arena.extend(99, 1)
    run.forward([99])

    assert gone & all_pages(run.arena, 99)
    assert run.races() == []
    assert run.ordered_conflicts("forward 1", "fill") > 0


@every_layout
def test_row2_fills_that_were_put_off_come_before_the_launch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeroing may be put off, but not past the launch of the forward that then writes the page."""
    run = PaperRun(monkeypatch, roomy(name), page_size=1)
    served(run.arena, 2, 2)
    run.forward([0, 1])

    assert run.of("fill")
    assert run.ordered_conflicts("fill", "forward 1") == len(run.of("fill"))
    assert run.arena.extend(0, 1)
    run.forward([0])
    assert run.races() == []
    assert run.ordered_conflicts("fill", "forward 2") > 0


@every_layout
def test_row2_fills_that_were_put_off_come_before_a_move(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move copies a page that was zeroed, onto a page that was: neither fill comes later."""
    run = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, compact_hole_share=0.0)
    served(run.arena, 3, 1)
    run.arena.release(0)
    assert run.names() == []
    assert run.arena.compact() > 0
    run.forward([1, 2])

    names = run.names()
    assert "fill" not in names[names.index("move") :]
    assert run.ordered_conflicts("fill", "move") > 0


def test_row2_fills_that_were_put_off_come_before_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes a lease looks at the bytes without a launch: no fill is left for later."""
    run = PaperRun(monkeypatch, P3, page_size=1)
    served(run.arena, 2, 2)
    assert run.names() == []
    run.arena.lease(0, "full", 0, 1)

    assert set(run.names()) == {"fill"}
    before = len(run.work)
    run.arena.launch([0, 1])
    assert set(run.names()[before:]) == {"publish"}


# --- 3. a free: nothing; its pages stay pending ---------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_row3_freed_pages_are_pending_until_their_ticket(name: str) -> None:
    """A freed page becomes a hole when every forward launched by then has completed."""
    arena, device, _ = recorded(LAYOUTS[name], page_size=1)
    for request in (0, 1):
        arena.admit(request)
        arena.extend(request, 2)
    ticket = arena.launch([0, 1])
    bands = [band.name for band in arena.books.bands]
    freed = {band: set(page_list(arena, 0, band)) for band in bands}
    arena.release(0)
    assert sum(band.pending for band in arena.books.bands) == sum(map(len, freed.values()))
    arena.admit(2)
    arena.extend(2, 1)

    for band in bands:
        assert not freed[band] & set(page_list(arena, 2, band))
    assert "order_behind" not in device.names()
    arena.complete(ticket)
    assert sum(band.pending for band in arena.books.bands) == 0
    arena.admit(3)
    arena.extend(3, 1)
    for band in (bands[0], bands[-1]):  # an end reuses the pages nearest its base
        assert set(page_list(arena, 3, band)) <= freed[band]
    assert arena.check() == []


def test_row3_completions_out_of_order_reclaim_only_what_is_safe() -> None:
    """A page freed under ticket 2 waits for ticket 1 as well, which may still read it."""
    arena, _, log = recorded(P2W, page_size=1)
    for request in (0, 1, 2):
        arena.admit(request)
        arena.extend(request, 1)
    first = arena.launch([0, 1])
    arena.release(0)
    second = arena.launch([1, 2])
    arena.release(1)
    third = arena.launch([2])

    assert [event.ticket for event in log.of(events.Pending)] == [1, 1, 2, 2]
    arena.complete(second)
    assert [band.pending for band in arena.books.bands] == [2, 2]
    arena.complete(third)
    assert [band.pending for band in arena.books.bands] == [2, 2]
    arena.complete(first)
    assert [band.pending for band in arena.books.bands] == [0, 0]
    assert arena.check() == []


def test_row3_each_completion_reclaims_what_was_freed_by_then() -> None:
    """With several forwards in flight, each completion reclaims what was freed up to its ticket."""
    arena, _, log = recorded(P2M, page_size=1)
    for request in range(4):
        arena.admit(request, state_slots=0)
        arena.extend(request, 1)
    tickets = []
    for request in range(3):
        tickets.append(arena.launch([request]))
        arena.release(request)
    log.clear()
    reclaimed = []
    for ticket in tickets:
        arena.complete(ticket)
        reclaimed.append([event.pages.size for event in log.of(events.Reclaim)])

    assert reclaimed == [[1], [1, 1], [1, 1, 1]]


@every_layout
def test_row3_a_free_asks_nothing_of_the_device_before_the_next_launch(name: str) -> None:
    """Rows are unmapped in the books at once, and on the device only behind the barrier."""
    arena, device, log = recorded(LAYOUTS[name], page_size=1)
    served(arena, 2, 1)
    arena.launch([0, 1])
    device.take()
    arena.release(0)
    assert device.calls == []
    assert {event.ticket for event in log.of(events.Pending)} == {1}
    arena.launch([1])

    count = len(arena.books.bands)
    assert device.names() == ["order_behind_reads"] + ["publish"] * count + ["launch"]
    assert all(call[3] == [-1] for call in device.calls if call[0] == "publish")


# --- 4. a move's read of its source: a launched write of it ---------------------------------------


def test_row4_an_opportunistic_move_leaves_out_pages_that_may_be_written() -> None:
    """A page that a launched forward writes stays; others move, and no barrier is placed."""
    arena, device, log = recorded(P2M, page_size=1, compact_hole_share=0.0)
    for request in range(4):
        arena.admit(request, state_slots=0)
        arena.extend(request, 2)
    arena.complete(arena.launch([0, 1, 2, 3]))
    arena.decode([3])  # its ninth page is the outermost, and written by the next forward
    written = page_list(arena, 3, "full")[2]
    arena.release(0)
    arena.launch([3])
    device.take()
    moved = arena.compact()

    assert moved == 1
    (call,) = device.calls
    assert call[0] == "move" and written not in call[2]
    assert page_list(arena, 3, "full")[2] == written
    assert log.of(events.PageMove)[0].urgent is False


def test_row4_an_opportunistic_move_leaves_out_state_that_is_being_updated() -> None:
    """A forward rewrites its requests' state slots, however long ago they were taken."""
    arena, device, _ = recorded(P2M, page_size=1, compact_hole_share=0.0)
    for request in range(3):
        arena.admit(request)
    arena.complete(arena.launch([0, 1, 2]))
    arena.release(0)
    ticket = arena.launch([2])
    device.take()

    assert arena.compact() == 0
    assert device.calls == []
    arena.complete(ticket)
    assert arena.compact() == 1
    assert arena.compact() == 0


@pytest.mark.parametrize("urgent", [False, True])
@every_barrier
@every_layout
def test_row4_no_move_reads_what_a_forward_may_still_write(
    name: str, barrier: str, urgent: bool
) -> None:
    """Outermost pages that are being written: opportunistic leaves them out, urgent comes after."""
    arena, device, log = hazardous(
        roomy(name), page_size=1, barrier=barrier, compact_hole_share=0.0
    )
    served(arena, 4, 1)
    device.finish(device.forward_over([0, 1, 2]))  # request 3 is written for the first time below
    arena.release(0)
    ticket = device.forward_over([3])
    written = all_pages(arena, 3)
    device.take()
    moved = arena.compact(urgent=urgent)

    if urgent:
        assert moved
        assert device.calls[0] == ("order_behind", ticket)
        assert not written <= all_pages(arena, 3)
    else:
        assert "order_behind" not in device.names()
        assert written == all_pages(arena, 3)
        device.finish(ticket)
        assert arena.compact() > 0
        assert not written <= all_pages(arena, 3)


# --- 5. a move's write of its destination: its last reader ----------------------------------------


@every_barrier
@every_layout
def test_row5_opportunistic_moves_go_to_holes_never_to_pending_pages(
    name: str, barrier: str
) -> None:
    """Of two freed requests, the one whose reader is in flight is no destination until then."""
    arena, device, log = hazardous(
        roomy(name), page_size=1, barrier=barrier, compact_hole_share=0.0
    )
    served(arena, 5, 1)
    device.finish(device.forward_over([0, 1, 2, 3, 4]))
    read, idle = all_pages(arena, 1), all_pages(arena, 2)
    arena.release(2)
    ticket = device.forward_over([1])
    arena.release(1)
    device.take()
    assert arena.compact() > 0

    moves = log.of(events.PageMove)
    targets = {(move.band, page) for move in moves for page in move.destinations.tolist()}
    assert targets and targets <= idle
    assert "order_behind" not in device.names()
    device.finish(ticket)
    log.clear()
    arena.compact()
    moves = log.of(events.PageMove)
    targets = {(move.band, page) for move in moves for page in move.destinations.tolist()}
    assert targets & read
    assert arena.check() == []


def test_row5_a_float_that_opens_its_low_side_leaves_pending_pages_alone() -> None:
    """Its destinations are its highest holes: a pending page above them is none."""
    arena, device, log = hazardous(P3, units=200, page_size=1, compact_hole_share=0.0)
    for request in range(8):
        assert arena.admit(request, state_slots=0) and arena.extend(request, 1)
    for request in range(10, 18):  # state leaves little room below the float
        assert arena.admit(request)
    by_place = sorted(range(8), key=lambda request: page_list(arena, request, "window_8"))
    idle, read = by_place[5:7]
    holes = page_list(arena, idle, "window_8")
    device.finish(device.forward_over(by_place))
    arena.release(idle)
    device.forward_over([read])
    arena.release(read)
    arena.compact()

    (move,) = [move for move in log.of(events.PageMove) if move.band == "window_8"]
    assert move.destinations.tolist() == holes


@every_barrier
@every_layout
def test_row5_urgent_moves_go_to_pending_pages_behind_their_readers(
    name: str, barrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy over a freed page comes after the launched forward that reads it."""
    run = PaperRun(monkeypatch, roomy(name), page_size=1, barrier=barrier)
    served(run.arena, 4, 1)
    run.forward([0, 1, 2, 3])
    run.arena.release(0)
    assert run.arena.compact(urgent=True) > 0
    run.forward([1, 2, 3])

    assert run.races() == []
    assert run.ordered_conflicts("forward 1", "move") > 0


# --- 6. reuse of a moved page's source: its readers -----------------------------------------------


def test_row6_sources_of_a_move_are_pending_until_every_reader_is_done() -> None:
    """The old place stays pending until all forwards launched before the move are done."""
    arena, device, log = recorded(P2M, page_size=1, compact_hole_share=0.0)
    for request in range(3):
        arena.admit(request, state_slots=0)
        arena.extend(request, 1)
    arena.complete(arena.launch([0, 1, 2]))
    arena.release(0)
    first, second = arena.launch([2]), arena.launch([1])
    old = page_list(arena, 2, "full")
    assert arena.compact() == 1
    assert [event.ticket for event in log.of(events.Pending)] == [second]
    assert page_list(arena, 2, "full") != old
    arena.admit(3, state_slots=0)
    arena.extend(3, 1)

    assert page_list(arena, 3, "full") != old
    arena.complete(second)
    assert arena.books.bands[1].pending == 1
    arena.complete(first)
    assert arena.books.bands[1].pending == 0
    arena.admit(4, state_slots=0)
    arena.extend(4, 1)
    assert page_list(arena, 4, "full") == old
    assert arena.check() == []


@every_barrier
@every_layout
def test_row6_batches_moved_under_one_ticket_accumulate(name: str, barrier: str) -> None:
    """Every batch of old places waits for the ticket, and none is lost when the next one comes."""
    arena, device, log = hazardous(
        roomy(name), page_size=1, barrier=barrier, compact_hole_share=0.0
    )
    served(arena, 6, 1)
    device.finish(device.forward_over([0, 1, 2, 3, 4, 5]))
    arena.release(0)
    arena.release(1)
    ticket = device.forward_over([2])
    moved = [arena.compact(max_moves=1), arena.compact(max_moves=1)]
    left = [
        (move.band, page) for move in log.of(events.PageMove) for page in move.sources.tolist()
    ]
    assert all(moved)
    assert len(set(left)) == waiting(arena) == sum(moved)
    assert {event.ticket for event in log.of(events.Pending)} == {ticket}
    device.finish(ticket)

    back = [(e.band, page) for e in log.of(events.Reclaim) for page in e.pages.tolist()]
    assert sorted(back) == sorted(left)
    assert waiting(arena) == 0
    assert arena.check() == []


@every_layout
def test_row6_no_old_place_is_handed_out_under_its_readers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is left is taken, zeroed and written while a forward still reads the old places."""
    run = PaperRun(monkeypatch, roomy(name), page_size=1, compact_hole_share=0.0)
    arena = run.arena
    for request in range(4):  # without state, which a forward would write
        assert arena.admit(request, state_slots=0) and arena.extend(request, 1)
    run.complete(run.forward([0, 1, 2, 3]))
    arena.release(0)
    run.forward([1, 2, 3])
    assert arena.compact() > 0
    demand = [int(index != arena.books.state) for index in range(len(arena.books.bands))]
    request = 10
    while arena.books.chain.grant(demand) is not None:
        assert arena.admit(request, state_slots=0) and arena.extend(request, 1)
        request += 1
    run.forward([1, 2, 3, *range(10, request)])

    assert run.races() == []
    assert request > 10 and waiting(arena) > 0
    assert run.log.of(events.Barrier) == [
        events.Barrier("write-after-read (fine)", 2, "table publish")
    ]
    assert run.ordered_conflicts("move", "forward 3") > 0


# --- 7. any move: transfers that hold physical pages ----------------------------------------------


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("band", BANDS)
def test_row7_compaction_leaves_pinned_pages_where_they_are(band: str, urgent: bool) -> None:
    """The outermost page, the one that would move first, stays while a lease pins it."""
    arena, log = crowded()
    pinned = page_list(arena, 3, band)
    lease = arena.lease(3, band, 0, len(pinned))
    arena.release(0)
    arena.release(2)
    arena.compact(urgent=urgent)

    assert page_list(arena, 3, band) == pinned
    assert not moved_pages(log, band) & set(pinned)
    assert arena.check() == []
    arena.end_lease(lease)
    arena.compact(urgent=True)
    assert all(known.holes == 0 for known in arena.books.bands)
    assert arena.check() == []


def test_row7_a_pin_refuses_what_would_have_to_move_it() -> None:
    """A demand that would have to move a pinned page is refused, and served when the lease ends."""
    arena = small_arena(P3, page_size=1)
    arena.admit(0)
    arena.extend(0, 2)
    lease = arena.lease(0, "window_8", 0, 1)
    start = page_list(arena, 0, "window_8")[0] * arena.books.bands[1].page_bytes
    slots = (start - arena.plan.sink_bytes) // arena.books.bands[0].page_bytes - 1
    demand = (slots + 1, 0, 0)
    assert not arena.serves(demand)
    before = arena.digest()
    refused = arena.apply(ops.Reserve(demand))

    assert (refused.ok, refused.reason) == (False, "pins")
    assert "end a lease, since pinned pages would have to move" in refused.message
    assert arena.digest() == before
    assert arena.serves((slots, 0, 0))
    arena.end_lease(lease)
    assert arena.serves(demand)
    assert arena.apply(ops.Reserve(demand)).ok


@pytest.mark.parametrize("holder", range(4))
def test_row7_relocation_works_around_pinned_pages(holder: int) -> None:
    """A float whose pinned page stays may stretch and shift the rest; the page never moves."""
    arena, log = crowded()
    pinned = page_list(arena, holder, "window_8")
    arena.lease(holder, "window_8", 0, 1)
    for request in itertools.count(10):
        if not arena.admit(request):
            break

    assert page_list(arena, holder, "window_8")[0] == pinned[0]
    assert pinned[0] not in moved_pages(log, "window_8")
    assert arena.check() == []


def test_row7_a_holders_copy_follows_all_that_was_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease holder's copy comes after the fills, moves and forwards that wrote the pages it reads."""
    run = PaperRun(monkeypatch, P3, page_size=1, hand_out="zero")
    arena = run.arena
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 2)
    run.forward([0, 1, 2])
    arena.release(0)
    assert arena.compact(urgent=True)  # behind the forward, by a barrier
    arena.extend(2, 1)
    arena.lease(2, "full", 0, 3, purpose="host copy")
    pages, _ = arena.pages_of(2, "full")
    with run.device.copying():
        run.issue("copy", run._units(BANDS.index("full"), pages), ())

    assert run.ordered_conflicts("move", "copy")
    assert run.ordered_conflicts("fill", "copy")
    assert run.races() == []


def test_row7_a_holders_copy_follows_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease holder's copy comes after the forward in flight that writes the pages it reads."""
    run = PaperRun(monkeypatch, P3, page_size=1)
    run.arena.admit(0)
    run.arena.extend(0, 2)
    run.forward([0])
    run.arena.lease(0, "full", 0, 2, purpose="host copy")
    pages, _ = run.arena.pages_of(0, "full")
    with run.device.copying():
        run.issue("copy", run._units(BANDS.index("full"), pages), ())

    assert run.ordered_conflicts("forward 1", "copy")
    assert run.races() == []


@pytest.mark.parametrize("band", BANDS)
def test_row7_a_page_freed_under_a_pin_is_not_reused_before_the_pin_ends(band: str) -> None:
    """It waits as pending, belongs to nobody, takes room, and becomes a hole when the pin ends."""
    arena, log = crowded()
    pages = page_list(arena, 1, band)
    lease = arena.lease(1, band, 0, len(pages))
    arena.release(1)
    index = BANDS.index(band)

    assert arena.books.bands[index].pending == len(pages)
    assert arena.books.pins.deferred[index] == len(pages)
    assert arena.check() == []
    for request in range(10, 20):
        arena.admit(request)
        arena.extend(request, 1)
        arena.compact(urgent=request % 2 == 0)
        assert not set(pages) & set(page_list(arena, request, band))
        assert arena.check() == []
        arena.release(request)
    assert not set(pages) & moved_pages(log, band)
    arena.end_lease(lease)
    assert arena.books.bands[index].pending == 0
    assert arena.books.pins.deferred == [0, 0, 0]
    assert arena.check() == []


@pytest.mark.parametrize("urgent", [False, True])
def test_row7_nothing_moves_while_the_gate_is_closed(urgent: bool) -> None:
    """Compaction of any kind moves no page of any band; with the gate open again, it does."""
    arena, log = crowded()
    arena.release(0)
    arena.release(2)
    arena.launch([1])
    arena.set_gate(closed=True)
    before = {band: page_list(arena, 3, band) for band in BANDS}
    log.clear()

    assert arena.compact(urgent=urgent) == 0
    assert log.of(events.PageMove) + log.of(events.Barrier) == []
    assert {band: page_list(arena, 3, band) for band in BANDS} == before
    arena.set_gate(closed=False)
    assert arena.compact(urgent=urgent) > 0
    assert arena.check() == []


def test_row7_no_float_moves_while_the_gate_is_closed() -> None:
    """What needs a relocation is refused at a closed gate, and served once it is open."""
    arena, log = crowded()
    arena.set_gate(closed=True)
    request = next(number for number in itertools.count(10) if not arena.admit(number))

    assert log.of(events.Refusal)[-1].reason == "gate"
    assert log.of(events.PageMove) == []
    arena.set_gate(closed=False)
    assert arena.admit(request)
    assert log.of(events.PageMove)


# --- 8. writes of the shared tables: the table reads before ---------------------------------------


@pytest.mark.parametrize(
    "barrier,call", [("fine", "order_behind_reads"), ("coarse", "order_behind")]
)
def test_row8_publishing_waits_for_the_forward_before(barrier: str, call: str) -> None:
    """With a forward in flight, one barrier of the configured kind comes before the rows."""
    arena, device, log = recorded(P3, page_size=1, barrier=barrier)
    arena.admit(0)
    arena.extend(0, 1)
    arena.launch([0])
    arena.decode([0])
    device.take()
    log.clear()
    ticket = arena.launch([0])

    assert device.take() == [
        (call, 1),
        ("publish", 1, [1], [page_list(arena, 0, "window_8")[1]]),
        ("publish", 2, [1], [page_list(arena, 0, "full")[1]]),
        ("launch", 2),
    ]
    assert log.of(events.Barrier) == [
        events.Barrier(f"write-after-read ({barrier})", 1, "table publish")
    ]
    arena.complete(1)
    arena.complete(ticket)
    arena.decode([0])
    device.take()
    arena.launch([0])
    assert device.names() == ["publish", "publish", "launch"]


@pytest.mark.parametrize("tells_reads", [True, False])
@every_barrier
@every_layout
def test_row8_rows_are_written_after_the_table_reads_of_every_forward(
    name: str, barrier: str, tells_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine: behind the table reads, when the forward says where they end; else behind it all."""
    run = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, barrier=barrier)
    served(run.arena, 2, 1)
    run.forward([0, 1], tells_reads=tells_reads)
    run.arena.decode([0])
    run.forward([0, 1], tells_reads=tells_reads)

    assert run.races() == []
    assert run.ordered_conflicts("tables", "publish") > 0
    whole = run.of("forward 1")[0].number in run.of("publish")[-1].after
    assert whole == (barrier == "coarse" or not tells_reads)


# --- 9. a float moves: the forwards in flight -----------------------------------------------------


def test_row9_a_float_makes_way_behind_the_barrier_and_before_the_hand_out() -> None:
    """A slot that needs the float out of its way: order, then copy, then fill; only then use."""
    arena, device, log = recorded(P3, page_size=1)
    for request in (0, 1):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    arena.launch([0, 1])
    device.take()
    for request in range(2, 8):
        arena.admit(request)

    names = device.names()
    move = names.index("move")
    assert "order_behind" in names[:move]
    assert names[move + 1] == "fill"
    assert device.calls[move + 1][1] == 0
    assert names.count("order_behind") == 1
    (barrier,) = log.of(events.Barrier)
    assert (barrier.kind, barrier.ticket) == ("settle", 1)
    assert [move.urgent for move in log.of(events.PageMove)] == [True] * names.count("move")
    assert arena.check() == []


@every_barrier
@pytest.mark.parametrize("name", FLOATS)
def test_row9_a_relocation_follows_every_forward_in_flight(
    name: str, barrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover places the barrier: forwards touch what it copies and what it overwrites."""
    run = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, barrier=barrier)
    arena = run.arena
    for request in (0, 1):
        arena.admit(request, state_slots=0)
        arena.extend(request, 2)
    run.forward([0])
    assert arena.decode([1])
    run.forward([1])
    assert run.of("move") == []
    request = 2
    while not run.log.of(events.PageMove) and arena.admit(request):
        request += 1
    run.forward([0, 1])

    floats = {band.name for band in arena.books.bands if band.is_float}
    assert {move.band for move in run.log.of(events.PageMove)} & floats
    assert [race for race in run.races() if "move" in race] == []
    assert run.races() == []
    conflicts = [run.ordered_conflicts(f"forward {ticket}", "move") for ticket in (1, 2)]
    assert sum(conflicts) > 0


# --- 10. frees and compaction at once: the forwards in flight -------------------------------------


def test_row10_urgent_compaction_orders_itself_once_for_all_bands() -> None:
    """One barrier, then the copies of every band; the old places are holes at once and vanish."""
    arena, device, log = recorded(P3, page_size=1)
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 3)
    arena.launch([0, 1, 2, 3])
    arena.release(0)
    arena.release(2)
    device.take()

    assert arena.compact(urgent=True) > 0
    assert device.names() == ["order_behind"] + ["move"] * len(log.of(events.PageMove))
    assert log.of(events.Barrier) == [
        barrier for barrier in log.of(events.Barrier) if barrier.why == "urgent compaction"
    ]
    assert len(log.of(events.Barrier)) == 1
    assert [band.holes + band.pending for band in arena.books.bands] == [0, 0, 0]


@every_barrier
@every_layout
def test_row10_a_free_compacted_at_once_follows_every_forward_in_flight(
    name: str, barrier: str
) -> None:
    """Two forwards in flight, a free and an urgent pass between: all copies come after both."""
    arena, device, log = hazardous(roomy(name), page_size=1, barrier=barrier)
    served(arena, 5, 1)
    device.forward_over([0, 1])
    newest = device.forward_over([2, 3, 4])
    arena.release(0)
    device.take()
    assert arena.compact(urgent=True) > 0

    assert device.calls[0] == ("order_behind", newest)
    assert device.names().count("order_behind") == 1
    assert waiting(arena) == sum(band.holes for band in arena.books.bands) == 0
    assert log.of(events.PageMove)


@every_layout
def test_row10_a_neighbour_gets_no_bytes_that_a_forward_may_touch(name: str) -> None:
    """A freed page at a frontier stays in its extent until then: its bytes are not yet a gap."""
    arena, device, _ = hazardous(LAYOUTS[name], page_size=1)
    requests = packed(arena)
    before = {band.name: band.extent for band in arena.books.bands}
    ticket = device.forward_over(requests)
    for request in requests[1:]:
        arena.release(request)
    assert {band.name: band.extent for band in arena.books.bands} == before
    device.take()
    arena.admit(99, state_slots=0)
    while arena.extend(99, 1):  # takes what state had, where there is state
        pass

    assert device.names().count("order_behind") == 1
    full = arena.books.bands[-1]
    assert full.extent >= before["full"] + (arena.books.state is not None)
    device.finish(ticket)
    assert arena.check() == []
