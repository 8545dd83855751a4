"""A page is touched only when its ticket says so, and device calls come in the order that needs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.ordering import Tickets
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P2W,
    P3,
    RandomEngine,
    held_pages,
    page_list,
    small_arena,
)
from tests.allocator.devices import HazardDevice, access, full_house, recorded


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


# --- barriers -----------------------------------------------------------------------------------


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


# --- tables -------------------------------------------------------------------------------------


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
