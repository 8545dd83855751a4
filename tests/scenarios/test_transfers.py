"""Group D: transfers and leases: pages that somebody else writes or reads outlive their owner."""

from __future__ import annotations

import itertools

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import MisuseError
from tests.allocator.arenas import P2W, P3, EventLog, held_pages, moved_pages, small_arena
from tests.scenarios.closing import assert_empty, close, physical, refused

BANDS = ("window_8", "full")


# D1. sgl-project/sglang#24527, #35049, #32564, #27372
@pytest.mark.parametrize("asks_at", range(3, 9))
@pytest.mark.parametrize("order", ["first in first out", "last in first out"])
def test_pages_under_an_incoming_write_reach_nobody_before_it_has_ended(
    asks_at: int, order: str
) -> None:
    """The writer takes 6 ticks, its request is aborted at tick 3, another asks for memory at each
    tick: it gets other pages or is refused, and never sees the writer's bytes."""
    log = EventLog()
    arena = small_arena(P2W, page_size=4, device="cpu", observer=log, compact_hole_share=0.0)
    for request, tokens in ((1, 4), (0, 16)):
        arena.admit(request)
        arena.extend(request, tokens)
    leases = [arena.lease(0, band, 0, 4, "peer", purpose="transfer") for band in BANDS]
    pages = {band: physical(arena, 0, band) for band in BANDS}
    views = [arena.leased_bytes(number) for number in leases]
    for tick in range(1, 10):
        if tick == 3:
            arena.release(0, "aborted")
        if tick == 6:  # the writer stamps its pages and reports
            for view in views:
                for index in range(len(view)):
                    view[index][:] = 0xAB
        if tick == 7:
            for number in leases if order.startswith("first") else leases[::-1]:
                arena.end_lease(number, "peer")
        if tick == asks_at:
            arena.admit(2)
            assert arena.extend(2, 16)
            arena.compact(urgent=True)
            if tick <= 6:
                assert not any(physical(arena, 2, band) & pages[band] for band in BANDS)
                assert not any(moved_pages(log, band) & pages[band] for band in BANDS)
                refused(arena, ops.Extend(2, 8), "memory")
            assert arena.check() == []
    assert arena.extend(2, 8)  # what waited for the writer is served now
    assert any(physical(arena, 2, band) & pages[band] for band in BANDS)
    for band in BANDS:
        size = arena.plan.band(band).page_bytes
        for page in physical(arena, 2, band):
            assert not arena.buffer[page * size : (page + 1) * size].any(), "a foreign stamp"
    close(arena)


def test_while_a_dead_peer_holds_the_last_pages_a_demand_waits_for_them() -> None:
    """With every other page in use the answer is no; overdue is said, and nothing is taken back."""
    arena = small_arena(P2W, page_size=4)
    arena.admit(0)
    arena.extend(0, 16)
    leases = [
        arena.lease(0, band, 0, 4, "peer", purpose="transfer", deadline_ticket=1) for band in BANDS
    ]
    arena.admit(1)
    while arena.extend(1, 4):
        pass
    arena.release(0, "aborted")
    refused(arena, ops.Extend(1, 4), "memory")
    assert not any(lease.overdue for lease in arena.leases())
    arena.complete(arena.launch([1]))
    assert all(lease.overdue and lease.age_tickets == 1 for lease in arena.leases())
    refused(arena, ops.Extend(1, 4), "memory")
    refused(arena, ops.EndLease(leases[0], "engine"), "misuse")
    for number in leases:
        arena.end_lease(number, "peer")

    assert arena.extend(1, 16)
    close(arena)


def test_a_stamp_after_the_lease_was_ended_for_a_timeout_is_stopped_at_the_door() -> None:
    """The pages belong to another request by then, under another generation; the writer is told."""
    arena = small_arena(P2W, page_size=4, device="cpu")
    arena.admit(0)
    arena.extend(0, 8)
    number = arena.lease(0, "full", 0, 2, "peer", purpose="transfer", deadline_ticket=0)
    pin = arena.books.pins.held(number)
    view = arena.leased_bytes(number)
    arena.release(0, "aborted")
    arena.end_lease(number)  # given up without word from the peer
    arena.admit(1)
    arena.extend(1, 8)
    assert sorted(arena.books.ledger.token_pages(0)) == sorted(pin.virtual)
    assert (arena.books.ids.generation[pin.virtual] == pin.generation + 1).all()

    with pytest.raises(MisuseError, match=f"lease {number} was named, but it has ended"):
        view[0][:] = 0xAB
    assert not arena.buffer.any()
    refused(arena, ops.EndLease(number, "peer"), "misuse")
    close(arena)


# D1, several writers
def test_a_page_under_two_writers_and_a_forward_waits_for_the_last_of_them() -> None:
    """Whoever ends first; and the pages of neither writer move, whichever lease is the newer."""
    for order in itertools.permutations(("one", "two", "forward")):
        log = EventLog()
        arena = small_arena(P2W, page_size=4, observer=log)
        for request in range(3):
            arena.admit(request)
            arena.extend(request, 8)
        arena.release(0)
        kept = physical(arena, 2, "full")  # the outermost, which compaction would move first
        leases = {
            "one": arena.lease(2, "full", 0, 2, "one", purpose="transfer"),
            "two": arena.lease(2, "full", 0, 1, "two", purpose="transfer"),
        }
        arena.compact(urgent=True)
        ticket = arena.launch([2])
        arena.release(2, "aborted")
        assert not moved_pages(log, "full") & kept
        for last in order:
            full = arena.books.bands[1]
            assert full.pending > 0
            if last == "forward":
                arena.complete(ticket)
            else:
                arena.end_lease(leases[last], last)
            assert arena.check() == []
        assert arena.books.bands[1].pending == 0
        close(arena)


# D2. sgl-project/sglang#9817
def handed_over(requests: list[int]) -> list[tuple[str, list[ops.Operation]]]:
    """The states of requests that arrive by transfer, and what leads to each."""
    everyone = tuple(requests)
    return [
        ("pre-allocated", [op for r in requests for op in (ops.Admit(r), ops.Extend(r, 13))]),
        ("published", [ops.Launch(())]),
        (
            "transferring",
            [ops.Lease(r, band, 1, 3, f"peer {r}", "transfer") for r in requests for band in BANDS]
            + [ops.Lease(r, "mamba", 0, 1, f"peer {r}", "transfer") for r in requests],
        ),
        ("transferred", []),  # the leases end here, in the test
        ("queued", [ops.Complete(1)]),
        ("running", [ops.Launch(everyone), ops.Decode(everyone)]),
        ("a step later", [ops.Launch(everyone), ops.TrimWindow(everyone)]),
    ]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("aborted_at", range(7))
@pytest.mark.parametrize("late", [False, True])
def test_an_abort_between_any_two_states_of_a_hand_over_leaves_nothing(
    aborted_at: int, count: int, late: bool
) -> None:
    """Zero pages, leases and rows; leases end before the abort or after it."""
    arena = small_arena(P3, units=192, page_size=4)
    arena.admit(99)
    arena.extend(99, 5)
    before, rows = held_pages(arena), len(arena.books.ledger)
    requests = list(range(count))
    leases: list[int] = []
    for state, operations in handed_over(requests)[: aborted_at + 1]:
        for operation in operations:
            outcome = arena.apply(operation)
            assert outcome, (state, operation)
            if isinstance(operation, ops.Lease):
                leases.append(outcome.value)
        if state == "transferred" or (not late and state == "transferring"):
            while leases:
                arena.end_lease(leases.pop())
    for request in requests:
        arena.release(request, "aborted")
        refused(arena, ops.Release(request, "aborted"), "misuse")
        assert arena.check() == []
    for number in leases:
        arena.end_lease(number)
        refused(arena, ops.EndLease(number), "misuse")
    for ticket in list(arena.books.tickets.in_flight):
        arena.complete(ticket)
        refused(arena, ops.Complete(ticket), "misuse")

    assert arena.leases() == [] and len(arena.books.ledger) == rows
    assert [(name, live, pending) for name, live, _, pending in held_pages(arena)] == [
        (name, live, pending) for name, live, _, pending in before
    ]
    close(arena)


# D3. ModelTC/LightLLM#1406
def quarantined(arena: Arena) -> list[int]:
    """Pages per band that hold nothing and are pinned."""
    facts = arena.facts()
    assert all(one.pinned == one.pending for one in facts)
    return [one.pinned for one in facts]


def test_pages_of_a_transfer_that_never_ends_are_their_own_class_for_as_long_as_it_takes() -> None:
    """Ten transfers, two of which never report: a thousand requests come and go around their pages,
    which are neither free nor leaked. A late report frees them once."""
    log = EventLog()
    arena = small_arena(P3, units=192, page_size=4, observer=log, compact_hole_share=0.0)
    numbers: dict[int, list[int]] = {}
    for request in range(10):
        arena.admit(request, state_slots=0)
        arena.extend(request, 8)
        numbers[request] = [
            arena.lease(
                request, band, 0, 2, f"peer {request}", purpose="transfer", deadline_ticket=500
            )
            for band in BANDS
        ]
    dead = {band: physical(arena, 3, band) | physical(arena, 7, band) for band in BANDS}
    for request in range(10):
        arena.release(request, "timeout")
        if request not in (3, 7):
            for number in numbers[request]:
                arena.end_lease(number, f"peer {request}")
    assert quarantined(arena) == [0, 4, 4]
    free = [arena.serves([0, 0, pages]) for pages in (32, 48)]
    log.clear()
    for request, next_up in itertools.pairwise(range(100, 1100)):
        assert arena.admit(request)
        assert arena.extend(request, 4 + request % 9)
        ticket = arena.launch([request])
        if request % 7 == 0:
            arena.compact(urgent=request % 2 == 0)
        assert not any(physical(arena, request, band) & dead[band] for band in BANDS)
        arena.release(request)
        arena.complete(ticket)
        assert next_up not in arena.books.ledger.row_of
    assert arena.check() == []
    assert quarantined(arena) == [0, 4, 4]
    assert not any(moved_pages(log, band) & dead[band] for band in BANDS)
    assert [arena.serves([0, 0, pages]) for pages in (32, 48)] == free
    assert [lease.holder for lease in arena.leases()] == ["peer 3"] * 2 + ["peer 7"] * 2
    assert {(lease.age_tickets, lease.overdue) for lease in arena.leases()} == {(999, True)}
    for request in (7, 3):
        for number in numbers[request]:
            arena.end_lease(number, f"peer {request}")
            refused(arena, ops.EndLease(number, f"peer {request}"), "misuse")
    assert arena.serves([0, 0, 48])
    arena.admit(2000)
    newer = arena.lease(2000, "mamba", 0, 1)
    for number in itertools.chain.from_iterable(numbers.values()):  # later still
        refused(arena, ops.EndLease(number), "misuse")
    arena.end_lease(newer)
    arena.release(2000)
    assert_empty(arena)
