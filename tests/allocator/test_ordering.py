"""A page is touched only when its ticket says so, and device calls come in the order that needs."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.ordering import Tickets
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P2W,
    P3,
    EventLog,
    RandomEngine,
    byte_units,
    held_pages,
    page_list,
    small_arena,
)


class RecordingDevice:
    """A device that keeps the calls it gets, in order, and does nothing."""

    name = "recording"
    buffer = None
    host_waits = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def allocate(self, total_bytes: int, page_bytes: Any, virtual_pages: Any) -> None:
        self.total_bytes, self.page_bytes = total_bytes, list(page_bytes)

    def move(self, band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
        self.calls.append(("move", band, sources.tolist(), destinations.tolist()))

    def fill(self, band: int, pages: np.ndarray, value: int) -> None:
        self.calls.append(("fill", band, pages.tolist(), value))

    def issue_fills(self) -> None:
        pass

    def publish(self, band: int, virtual: np.ndarray, physical: np.ndarray) -> None:
        self.calls.append(("publish", band, virtual.tolist(), physical.tolist()))

    def mirror(self, band: int) -> None:
        return None

    def launch(self, ticket: int) -> None:
        self.calls.append(("launch", ticket))

    def forward(self, ticket: int) -> AbstractContextManager[None]:
        return nullcontext()

    def is_complete(self, ticket: int) -> bool:
        raise AssertionError("the arena asked the device whether work is done")

    def wait(self, ticket: int) -> None:
        raise AssertionError("the arena made the host wait")

    def order_behind(self, ticket: int) -> None:
        self.calls.append(("order_behind", ticket))

    def order_behind_reads(self, ticket: int) -> None:
        self.calls.append(("order_behind_reads", ticket))

    def synchronize(self) -> None:
        raise AssertionError("the arena synchronized the device")

    def names(self) -> list[str]:
        """What was called, in order."""
        return [str(call[0]) for call in self.calls]

    def take(self) -> list[tuple[Any, ...]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


def recorded(layout: Any, **options: Any) -> tuple[Arena, RecordingDevice, EventLog]:
    device, log = RecordingDevice(), EventLog()
    return small_arena(layout, device=device, observer=log, **options), device, log


def pages(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64)


# --- tickets by themselves ----------------------------------------------------------------------


def test_tickets_settle_when_all_up_to_them_completed() -> None:
    """Completed out of order, what waits for a ticket waits for every older one too."""
    tickets = Tickets()
    assert [tickets.launch({}) for _ in range(3)] == [1, 2, 3]
    tickets.defer(0, pages(1))
    tickets.complete(3)
    tickets.complete(1)

    assert (tickets.completed_through, tickets.unsettled) == (1, True)
    assert tickets.take_settled() == []
    tickets.complete(2)
    assert (tickets.completed_through, tickets.unsettled) == (3, False)
    assert [band for band, _ in tickets.take_settled()] == [0]
    assert tickets.take_settled() == []


def test_batches_freed_under_one_ticket_settle_together() -> None:
    """Batches keep their band and order; those of a younger ticket stay."""
    tickets = Tickets()
    tickets.launch({})
    assert [tickets.defer(band, pages(band + 1)) for band in (0, 1, 0)] == [1, 1, 1]
    tickets.launch({})
    assert tickets.defer(1, pages(5)) == 2
    tickets.complete(1)

    settled = [(band, places.size) for band, places in tickets.take_settled()]
    assert settled == [(0, 1), (1, 2), (0, 1)]
    tickets.complete(2)
    assert [(band, places.size) for band, places in tickets.take_settled()] == [(1, 5)]


def test_a_barrier_settles_what_was_issued_before_it_only() -> None:
    """Work launched after the barrier is unsettled again."""
    tickets = Tickets()
    tickets.launch({0: pages(2)})
    tickets.launch({0: pages(4)})

    assert tickets.unsettled_writes(0).size == 6
    assert tickets.order_behind_all() == 2
    assert not tickets.unsettled
    assert tickets.unsettled_writes(0).size == 0
    tickets.launch({0: pages(3), 1: pages(1)})
    assert tickets.unsettled
    assert tickets.unsettled_writes(0).tolist() == [0, 1, 2]
    assert tickets.unsettled_writes(2).size == 0
    tickets.complete(3)
    assert tickets.completed_through == 0 and tickets.settled_through == 2
    tickets.complete(1)
    tickets.complete(2)
    assert tickets.settled_through == 3 and not tickets.unsettled


def test_a_ticket_completes_once() -> None:
    """Unknown, future, and repeated completions are refused, naming what is in flight."""
    tickets = Tickets()
    tickets.launch({})
    tickets.launch({})
    tickets.complete(1)

    for ticket in (0, 1, 3):
        with pytest.raises(MisuseError, match=rf"ticket {ticket} .* in flight are \[2\]"):
            tickets.complete(ticket)


# --- pending pages ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_freed_pages_wait_for_their_ticket(name: str) -> None:
    """While a forward that used them is in flight, none of a request's pages is handed out."""
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


def test_pages_freed_with_nothing_in_flight_are_holes_at_once() -> None:
    """Before any launch, and after all completed, no page waits."""
    arena, _, log = recorded(P3)
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 8)
    arena.release(1)
    assert held_pages(arena) == [("mamba", 3, 1, 0), ("window_8", 6, 2, 0), ("full", 6, 2, 0)]
    arena.complete(arena.launch([0]))
    arena.release(2)

    assert [band.live for band in arena.books.bands] == [2, 4, 4]
    assert [band.pending for band in arena.books.bands] == [0, 0, 0]
    assert log.of(events.Pending) == []


def test_completions_out_of_order_release_only_what_is_safe() -> None:
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


def test_each_ticket_returns_its_own_batches() -> None:
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


# --- barriers -----------------------------------------------------------------------------------


def full_house(**options: Any) -> tuple[Arena, RecordingDevice, EventLog]:
    """P2m with 16 pages of 1 token each held by 4 requests, and a forward over two in flight."""
    arena, device, log = recorded(P2M, page_size=1, **options)
    for request in range(4):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    arena.launch([0, 1])
    device.take()
    log.clear()
    return arena, device, log


def test_an_urgent_need_places_one_barrier_and_then_reuses() -> None:
    """With no other room, a pending page is reused behind one barrier, recorded with its reason."""
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


def test_no_barrier_is_placed_while_other_pages_serve() -> None:
    """As long as holes and gaps are enough, nothing waits for the forward."""
    arena, device, _ = recorded(P2M, page_size=1)
    arena.admit(0, state_slots=0)
    arena.extend(0, 4)
    arena.launch([0])
    arena.release(0)
    arena.admit(1, state_slots=0)
    arena.extend(1, 12)

    assert "order_behind" not in device.names()
    arena.decode([1])
    assert device.names()[-2:] == ["order_behind", "fill"]


def test_a_refusal_places_no_barrier() -> None:
    """What cannot be served at all is refused without waiting for anything."""
    arena, device, log = full_house()
    arena.release(0)
    before = arena.digest()

    assert arena.extend(1, 5).reason == "memory"
    assert device.calls == []
    assert log.of(events.Barrier) == []
    assert arena.digest() == before


def test_urgent_moves_come_behind_the_barrier_and_before_the_hand_out() -> None:
    """A slot that needs the float out of its way: order, then copy, then fill; and only then use."""
    arena, device, log = recorded(P3, page_size=1)
    for request in (0, 1):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    arena.launch([0, 1])
    device.take()
    for request in range(2, 8):
        arena.admit(request)

    names = device.names()
    assert names.index("order_behind") < names.index("move")
    move = names.index("move")
    assert names[move + 1] == "fill"
    assert device.calls[move + 1][1] == 0
    assert names.count("order_behind") == 1
    (barrier,) = log.of(events.Barrier)
    assert (barrier.kind, barrier.ticket) == ("settle", 1)
    assert [move.urgent for move in log.of(events.PageMove)] == [True] * names.count("move")
    assert arena.check() == []


def test_urgent_compaction_orders_itself_once_for_all_bands() -> None:
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


def test_a_second_launch_makes_a_second_barrier_needed() -> None:
    """A barrier covers what was issued before it and nothing after."""
    arena, device, _ = full_house()
    arena.release(0)
    arena.admit(9, state_slots=0)
    arena.extend(9, 4)
    arena.launch([1, 9])
    arena.release(1)
    device.take()
    arena.admit(10, state_slots=0)
    arena.extend(10, 1)

    assert device.calls[0] == ("order_behind", 2)
    assert device.names() == ["order_behind", "fill"]


def test_opportunistic_compaction_skips_pages_that_may_be_written() -> None:
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


def test_opportunistic_compaction_never_moves_state_that_is_being_updated() -> None:
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


def test_sources_of_an_opportunistic_move_wait_for_every_reader() -> None:
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


# --- tables -------------------------------------------------------------------------------------


def test_tables_are_published_before_the_launch_that_reads_them() -> None:
    """Every launch sends exactly the rows that changed, then launches."""
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


def test_trimmed_rows_are_published_as_unmapped() -> None:
    """A row that was dropped reads −1 on the device, never an old page."""
    arena, device, _ = recorded(P2W, page_size=1)
    arena.admit(0)
    arena.extend(0, 10)
    arena.complete(arena.launch([0]))
    arena.trim_window([0])
    device.take()
    arena.launch([0])

    assert device.take() == [("publish", 0, [0, 1, 2], [-1, -1, -1]), ("launch", 2)]


@pytest.mark.parametrize("barrier,call", [("fine", "order_behind_reads"), ("coarse", "order_behind")])
def test_publishing_waits_for_the_forward_before(barrier: str, call: str) -> None:
    """With work in flight, one write-after-read barrier of the configured kind precedes the rows."""
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


def test_a_coarse_barrier_also_settles_pending_pages() -> None:
    """It waits for the whole forward, so what waited for that forward may be reused behind it."""
    for barrier, pending in (("coarse", 0), ("fine", 1)):
        arena, _, _ = recorded(P2M, page_size=1, barrier=barrier)
        for request in (0, 1):
            arena.admit(request, state_slots=0)
            arena.extend(request, 1)
        arena.launch([0, 1])
        arena.release(0)
        arena.launch([1])
        arena.compact(max_moves=0)

        assert arena.books.bands[1].pending == pending


@pytest.mark.parametrize("hand_out,value", [("zero", 0), ("poison", 0xFF), ("none", None)])
def test_hand_out_policies_of_pages_and_state(hand_out: str, value: int | None) -> None:
    """Each new owner's pages are filled as configured; state follows its own policy."""
    arena, device, _ = recorded(P3, page_size=1, hand_out=hand_out, hand_out_state="zero")
    arena.admit(0)
    arena.extend(0, 2)

    fills = [("fill", 0, page_list(arena, 0, "mamba"), 0)]
    if value is not None:
        fills += [
            ("fill", 1, page_list(arena, 0, "window_8"), value),
            ("fill", 2, page_list(arena, 0, "full"), value),
        ]
    assert device.take() == fills


# --- all rules at once ---------------------------------------------------------------------------


class HazardDevice(RecordingDevice):
    """A device that knows which bytes launched forwards touch, and rejects unordered writes.

    The test tells it what a forward reads and writes; what is settled it learns only from the
    arena's own barriers and from completions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arena: Arena | None = None
        self.next_access: tuple[np.ndarray, np.ndarray] | None = None
        self.reads: dict[int, np.ndarray] = {}
        self.writes: dict[int, np.ndarray] = {}
        self.ordered = self.tables_ordered = 0
        self.mirrors: list[np.ndarray] = []

    def allocate(self, total_bytes: int, page_bytes: Any, virtual_pages: Any) -> None:
        super().allocate(total_bytes, page_bytes, virtual_pages)
        self.mirrors = [np.full(count, -1, np.int64) for count in virtual_pages]

    def units(self, band: int, numbers: np.ndarray) -> np.ndarray:
        assert numbers.size == np.unique(numbers).size, "one call names a page twice"
        return byte_units(self.page_bytes[band], numbers, self.total_bytes)

    def unsettled(self) -> list[int]:
        return [ticket for ticket in self.reads if ticket > self.ordered]

    def check_write(self, mask: np.ndarray, what: str) -> None:
        for ticket in self.unsettled():
            touched = self.reads[ticket] | self.writes[ticket]
            assert not (mask & touched).any(), f"{what} writes what forward {ticket} may touch"

    def move(self, band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
        source, target = self.units(band, sources), self.units(band, destinations)
        assert not (source & target).any(), "a page is source and destination of one move"
        for ticket in self.unsettled():
            assert not (source & self.writes[ticket]).any(), f"{ticket} may still write a source"
        self.check_write(target, "a move")

    def fill(self, band: int, pages: np.ndarray, value: int) -> None:
        self.check_write(self.units(band, pages), "a fill")

    def publish(self, band: int, virtual: np.ndarray, physical: np.ndarray) -> None:
        newest = max(self.unsettled(), default=0)
        assert self.tables_ordered >= newest, f"rows were written while forward {newest} reads"
        self.mirrors[band][virtual] = physical

    def launch(self, ticket: int) -> None:
        assert self.next_access is not None and self.arena is not None
        self.reads[ticket], self.writes[ticket] = self.next_access
        for band, mirror in zip(self.arena.books.bands, self.mirrors, strict=True):
            places = band.table.place_of
            expected = np.where(places >= 0, band.physical(places), -1)
            assert (mirror == expected).all(), f"forward {ticket} reads stale rows of {band.name}"

    def order_behind(self, ticket: int) -> None:
        self.ordered = max(self.ordered, ticket)
        self.tables_ordered = max(self.tables_ordered, ticket)

    def order_behind_reads(self, ticket: int) -> None:
        self.tables_ordered = max(self.tables_ordered, ticket)

    def completed(self, ticket: int) -> None:
        del self.reads[ticket], self.writes[ticket]


def access(arena: Arena, requests: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes a forward over these requests reads, and those it writes, by the definition: it writes
    the rows of tokens that no forward has written yet, and all its state."""
    total, page_size = arena.total_bytes, arena.plan.page_size
    reads = byte_units(1, np.empty(0, np.int64), total)
    writes = reads.copy()
    for request in requests:
        row = arena.books.ledger.row(request)
        first_written = int(arena.books.ledger.launched[row]) // page_size
        for band in arena.plan.bands:
            held, first = arena.pages_of(request, band.name)
            written = held if band.kind == "state" else held[max(0, first_written - first) :]
            reads |= byte_units(band.page_bytes, held, total)
            writes |= byte_units(band.page_bytes, written, total)
    return reads, writes


@pytest.mark.parametrize("barrier", ["fine", "coarse"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_device_call_races_with_a_launched_forward(name: str, barrier: str) -> None:
    """Random operations with up to six forwards in flight: every write is ordered or disjoint."""
    seen = set()
    for seed in range(12):
        rng = random.Random(f"hazards/{name}/{barrier}/{seed}")
        device = HazardDevice()
        arena = small_arena(
            LAYOUTS[name],
            page_size=rng.choice([1, 2, 4]),
            device=device,
            barrier=barrier,
            compact_hole_share=rng.choice([0.0, 0.125]),
            headroom_share=rng.choice([0.0, 0.05]),
        )
        device.arena = arena
        engine = RandomEngine(rng)
        for _ in range(120):
            operation = engine.choose(arena)
            if isinstance(operation, ops.Launch):
                device.next_access = access(arena, operation.requests)
            outcome = arena.apply(operation)
            engine.note(operation, outcome)
            if isinstance(operation, ops.Complete) and outcome:
                device.completed(operation.ticket)
            if device.unsettled():
                seen.add(type(operation).__name__)
        assert arena.check() == []

    assert {"Extend", "Release", "Compact", "TrimWindow"} <= seen
