"""Pinned pages neither move nor get reused, and a closed gate stops every move, in all bands."""

from __future__ import annotations

import itertools
import random

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.errors import MisuseError
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P3,
    EventLog,
    RandomEngine,
    crowded,
    held_pages,
    moved_pages,
    nothing_held,
    page_list,
    small_arena,
)

BANDS = ("mamba", "window_8", "full")


def test_a_page_freed_under_a_pin_also_waits_for_launched_work() -> None:
    """When the pin ends first, the page follows the newest ticket; when the ticket does, the pin."""
    for pin_first in (True, False):
        arena, _ = crowded()
        ticket = arena.launch([1])
        lease = arena.lease(1, "full", 0, 2)
        arena.release(1)
        full = arena.books.bands[2]
        assert full.pending == 2
        if pin_first:
            arena.end_lease(lease)
        else:
            arena.complete(ticket)
        assert full.pending == 2
        assert arena.check() == []
        if pin_first:
            arena.complete(ticket)
        else:
            arena.end_lease(lease)

        assert full.pending == 0
        assert arena.check() == []


def test_a_page_whose_pin_ended_waits_for_work_launched_after_it_was_freed() -> None:
    """The stamp is the newest ticket at the end of the pin, never an older one."""
    arena, log = crowded()
    lease = arena.lease(1, "full", 0, 2)
    arena.release(1)
    first, second = arena.launch([0]), arena.launch([2])
    log.clear()
    arena.end_lease(lease)

    assert [event.ticket for event in log.of(events.Pending)] == [second]
    arena.complete(first)
    assert arena.books.bands[2].pending == 2
    arena.complete(second)
    assert arena.books.bands[2].pending == 0


def test_an_urgent_need_does_not_settle_pinned_pages() -> None:
    """A barrier orders the forward, not the transfer: its pages stay out of reach."""
    arena = small_arena(P2M, page_size=1)
    for request in range(4):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    arena.launch([0, 1])
    lease = arena.lease(0, "full", 1, 3)
    pinned = set(page_list(arena, 0, "full")[1:3])
    arena.release(0)
    arena.admit(9, state_slots=0)

    refused = arena.extend(9, 3)
    assert (refused.ok, refused.reason) == (False, "memory")
    assert arena.extend(9, 2).ok
    assert not pinned & set(page_list(arena, 9, "full"))
    arena.end_lease(lease)
    assert arena.extend(9, 2).ok
    assert pinned <= set(page_list(arena, 9, "full"))
    assert arena.check() == []


def test_overlapping_leases_are_counted() -> None:
    """A page is free of pins only when every lease over it has ended, in any order."""
    for order in itertools.permutations(range(3)):
        arena, _ = crowded()
        arena.extend(1, 2)
        held = page_list(arena, 1, "full")
        leases = [arena.lease(1, "full", *span) for span in ((0, 3), (1, 4), (2, 3))]
        spans = [set(held[0:3]), set(held[1:4]), set(held[2:3])]
        arena.release(1)
        full = arena.books.bands[2]
        waiting = set(held)
        for position, index in enumerate(order):
            arena.end_lease(leases[index])
            left = [spans[other] for other in order[position + 1 :]]
            waiting = set().union(*left)
            assert full.pending == len(waiting)
            assert arena.facts()[2].pinned == len(waiting)
            assert arena.check() == []

        assert waiting == set()


def test_a_lease_ends_once() -> None:
    """A second end is refused by number and changes nothing; numbers are never dealt again."""
    arena, _ = crowded()
    first = arena.lease(1, "full", 0, 1)
    arena.end_lease(first)
    before = arena.digest()

    with pytest.raises(MisuseError, match=f"lease {first} was named, but it has ended"):
        arena.end_lease(first)
    assert arena.digest() == before
    assert arena.lease(1, "full", 0, 1) == first + 1


def test_leases_are_told_to_the_observer_with_holder_and_pages() -> None:
    """Begin and end name the holder, the band and the pages, and say that nothing is owned."""
    arena, log = crowded()
    virtual = arena.books.ledger.token_pages(arena.books.ledger.row(1)).tolist()
    log.clear()
    arena.end_lease(arena.lease(1, "window_8", 1, 2, holder="backup"))
    begin, end = log.effects

    assert (type(begin), type(end)) == (events.LeaseBegin, events.LeaseEnd)
    for event in (begin, end):
        assert (event.holder, event.band, event.owns) == ("backup", "window_8", False)
        assert event.virtual.tolist() == virtual[1:2]


# --- the gate --------------------------------------------------------------------------------------


def test_a_slot_that_needs_the_float_to_slide_is_refused_at_a_closed_gate() -> None:
    """Scenario B1: with a leased float page and a closed gate the reason is `gate`; later it works."""
    arena, log = crowded()
    lease = arena.lease(1, "window_8", 0, 1)
    arena.set_gate(closed=True)
    request = 10
    while arena.admit(request):
        request += 1
    before = arena.digest()
    refused = arena.admit(request)

    assert (refused.ok, refused.reason) == (False, "gate")
    assert "open the gate, since pages would have to move" in refused.message
    assert arena.digest() == before
    assert log.of(events.PageMove) == []
    assert log.of(events.Refusal)[-1].reason == "gate"
    arena.end_lease(lease)
    assert arena.admit(request).reason == "gate"
    arena.set_gate(closed=False)
    assert arena.admit(request).ok
    assert len(log.of(events.PageMove)) > 0
    assert arena.check() == []


def test_reasons_tell_memory_from_gate_and_pins() -> None:
    """What no layout holds is `memory` also at a closed gate and with pins."""
    arena, log = crowded()
    arena.lease(1, "window_8", 0, 1)
    assert arena.apply(ops.Reserve((1000, 0, 0))).reason == "memory"
    arena.set_gate(closed=True)
    refused = arena.apply(ops.Reserve((0, 0, 1000)))

    assert refused.reason == "memory"
    assert "release or retract a request" in refused.message
    assert [event.reason for event in log.of(events.Refusal)] == ["memory", "memory"]
    refusal = log.of(events.Refusal)[-1]
    assert refusal.demand == (0, 0, 1000)
    assert refusal.live == (4, 8, 8)
    assert refusal.fixed == tuple(arena.books.fixed(band) for band in arena.books.bands)


def test_a_closed_gate_still_lends_holes_and_gaps() -> None:
    """Growth that moves nothing goes on; pages freed at a closed gate are reused in place."""
    arena, log = crowded()
    arena.set_gate(closed=True)
    gone = page_list(arena, 0, "full")
    arena.release(0)

    assert arena.admit(10).ok
    assert arena.extend(10, 2).ok
    assert page_list(arena, 10, "full") == gone
    assert log.of(events.PageMove) == []
    assert arena.check() == []


def test_capacity_follows_gate_and_pins_at_once() -> None:
    """Scenario C3: after each of 100 random flips the answer is what a fresh arena computes."""
    rng = random.Random("capacity flips")
    arena, _ = crowded()
    arena.release(0)
    arena.release(2)
    leases: list[int] = []
    demands = [[slots, 0, 0] for slots in range(12)] + [[0, n, n] for n in range(20)]
    answers = set()
    for _ in range(100):
        roll = rng.random()
        if roll < 0.4:
            arena.set_gate(closed=not arena.books.gate_closed)
        elif roll < 0.7 or not leases:
            leases.append(arena.lease(rng.choice([1, 3]), rng.choice(BANDS), 0, 1))
        else:
            arena.end_lease(leases.pop(rng.randrange(len(leases))))
        fresh = small_arena(P3, page_size=1, compact_hole_share=0.0)
        fresh.restore(arena.snapshot())
        expected = []
        for demand in demands:
            copy = fresh.snapshot()
            expected.append(fresh.apply(ops.Reserve(tuple(demand))).ok)
            fresh.restore(copy)
        answers.add(tuple(expected))

        assert [arena.serves(demand) for demand in demands] == expected
    assert len(answers) > 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_leased_page_is_ever_moved_or_handed_out(name: str) -> None:
    """Random operations: between begin and end of a lease its pages stay, and get no new owner."""
    leased = moves = 0
    for seed in range(12):
        log = EventLog()
        rng = random.Random(f"pins/{name}/{seed}")
        arena = small_arena(
            LAYOUTS[name], page_size=rng.choice([1, 4]), observer=log, compact_hole_share=0.0
        )
        engine = RandomEngine(rng)
        for _ in range(150):
            closed = engine.closed
            before = [band.table.virtual_at.copy() for band in arena.books.bands]
            engine.step(arena)
            pins = arena.books.pins.pins.values()
            moves += len(log.of(events.PageMove))
            assert not (closed and engine.closed and log.of(events.PageMove))
            for pin in pins:
                band = arena.books.bands[pin.band]
                pages = set(band.physical(pin.places).tolist())
                leased += len(pages)
                assert not pages & moved_pages(log, band.name)
                now = band.table.virtual_at[pin.places]
                same = now == before[pin.band][pin.places]
                assert (same | (now < 0)).all(), "a pinned page got a new owner"
            assert arena.check() == []
            log.clear()
        engine.drain(arena)
        assert held_pages(arena) == nothing_held(arena)

    assert leased > 100 and moves > 5


def test_only_the_holder_ends_a_lease() -> None:
    """A stranger is refused by name and changes nothing; the holder, and the engine, may."""
    arena, _ = crowded()
    first = arena.lease(1, "full", 0, 1, holder="backup", purpose="transfer")
    second = arena.lease(1, "full", 0, 1, holder="backup")
    before = arena.digest()

    with pytest.raises(MisuseError, match="ended by 'restore', but 'backup' holds it"):
        arena.end_lease(first, "restore")
    assert arena.digest() == before
    arena.end_lease(first, "backup")
    arena.end_lease(second)
    assert arena.leases() == []


def test_leases_have_an_age_in_tickets_and_a_deadline() -> None:
    """Age counts launches since; a lease is overdue once its deadline's ticket has completed, and
    is reported, never ended."""
    arena, _ = crowded()
    ticket = arena.launch([1])
    number = arena.lease(1, "full", 0, 2, holder="peer", purpose="transfer", deadline_ticket=2)
    arena.complete(ticket)
    (fresh,) = arena.leases()
    later = arena.launch([1])
    arena.complete(later)
    (overdue,) = arena.leases()

    assert (fresh.number, fresh.holder, fresh.purpose) == (number, "peer", "transfer")
    assert (fresh.band, fresh.pages, fresh.age_tickets, fresh.overdue) == ("full", 2, 0, False)
    assert (overdue.age_tickets, overdue.overdue) == (1, True)
    assert arena.books.pins.hull(arena.books.full) is not None


def test_bytes_of_a_lease_end_with_it() -> None:
    """Scenario B2: the view reads the leased page while it is held, whatever moves around it, and
    raises once the lease has ended."""
    arena = small_arena(P3, device="cpu")
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 8)
    pages, _ = arena.pages_of(1, "full")
    size = arena.plan.band("full").page_bytes
    expected = arena.buffer[int(pages[1]) * size : (int(pages[1]) + 1) * size]
    expected.fill_(7)
    view = arena.leased_bytes(arena.lease(1, "full", 1, 2))
    arena.release(0)
    arena.release(1)  # freed under the lease: it stays where it is
    arena.compact(urgent=True)

    assert len(view) == 1
    assert view[0].eq(7).all() and view[0].numel() == size
    arena.end_lease(arena.leases()[0].number)
    with pytest.raises(MisuseError, match="has ended"):
        view[0]
    with pytest.raises(MisuseError, match="has ended"):
        len(view)
