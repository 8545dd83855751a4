"""The stepwise check sees what the full one sees: nothing in healthy arenas, and every corrupted field
of the books in the very step, but for those few that are named here."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE
from bandscope.fuzz.ledger_image import WIDE_BYTES
from bandscope.fuzz.stepwise import Stepwise
from tests.allocator.arenas import LAYOUTS
from tests.fuzz.modelling import EAGER, PATIENT, Watched, layout_of, no_op, random_run


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_stepwise_and_full_find_nothing_in_healthy_arenas(name: str, page_size: int) -> None:
    def look(watched: Watched, step: int) -> None:
        if step % 7 == 0:
            assert not watched.checker.full(watched.arena)

    for seed, policies in enumerate((EAGER, PATIENT)):
        units = LAYOUTS[name][1] * (1 + seed)
        random_run(layout_of(name, page_size, units=units, **policies), 40 + seed, 150, look)


def test_blocks_of_holes_and_wide_tables_are_followed() -> None:
    """More than 256 places to a band, more than 16 requests, more than 64 pages to one."""
    layout = layout_of("P3", 1, units=12_000)

    def look(watched: Watched, step: int) -> None:
        if step % 50 == 0:
            assert not watched.checker.full(watched.arena)

    watched = Watched(layout)
    for request in range(40):
        watched.run([ops.Admit(request), ops.Extend(request, 3 + 2 * request)])
    for request in range(0, 40, 2):
        watched.run([ops.Decode(tuple(range(request, 40))), ops.TrimWindow((request,))])
        watched.run([ops.Release(request)])
        look(watched, request)
    watched.run([ops.Compact(), ops.Compact(urgent=True), ops.Reserve((100, 0, 0))])
    assert watched.arena.books.ledger.pages.shape[1] > 64
    assert watched.arena.books.ledger.length.size > 16
    assert not watched.checker.full(watched.arena)


# --- corrupted books ------------------------------------------------------------------------------

Poke = Callable[[Watched, random.Random], Any]


def of_array(find: Callable[[Watched, random.Random], np.ndarray]) -> Poke:
    """Another value at a random index of an array; False when it is empty."""

    def poke(watched: Watched, rng: random.Random) -> Any:
        numbers = find(watched, rng)
        if not numbers.size:
            return False
        index = tuple(rng.randrange(size) for size in numbers.shape)
        if numbers.dtype == bool:
            numbers[index] = not numbers[index]
        elif numbers.dtype == np.uint8:
            numbers[index] = (int(numbers[index]) + rng.randint(1, 3)) % 4
        else:
            numbers[index] += rng.choice([-1, 1])
        return True

    return poke


def of_number(find: Callable[[Watched, random.Random], Any], name: str) -> Poke:
    """One more or one less."""

    def poke(watched: Watched, rng: random.Random) -> Any:
        owner = find(watched, rng)
        setattr(owner, name, getattr(owner, name) + rng.choice([-1, 1]))
        return True

    return poke


def band(watched: Watched, rng: random.Random) -> Any:
    return rng.choice(watched.arena.books.bands)


def ids(watched: Watched, rng: random.Random) -> Any:
    return rng.choice([watched.arena.books.ids, watched.arena.books.state_ids])


def ledger(watched: Watched, rng: random.Random) -> Any:
    return watched.arena.books.ledger


def tickets(watched: Watched, rng: random.Random) -> Any:
    return watched.arena.books.tickets


def pins(watched: Watched, rng: random.Random) -> Any:
    return watched.arena.books.pins


def running(name: str) -> Callable[[Watched, random.Random], np.ndarray]:
    """What a running request has in a column or table of the ledger."""

    def find(watched: Watched, rng: random.Random) -> np.ndarray:
        book = watched.arena.books.ledger
        if not book.row_of:
            return np.empty(0, np.int64)
        row = rng.choice(sorted(book.row_of.values()))
        numbers: np.ndarray = getattr(book, name)
        if numbers.ndim == 1:
            return numbers[row : row + 1]
        held = {"pages": book.page_count, "state": book.state_count}.get(name)
        return numbers[row, : held[row]] if held is not None else numbers[row]

    return find


def hide_holes(watched: Watched, rng: random.Random) -> bool:
    """The first hole is looked for behind it."""
    for known in watched.arena.books.bands:
        holes = np.flatnonzero(known.state == HOLE)
        if holes.size:
            known._first_hole_block = (int(holes[0]) >> 8) + 1
            for book in watched.model.bands:  # the hint is looked at when a band was touched
                book.touched = True
            return True
    return False


def forget_row(watched: Watched, rng: random.Random) -> bool:
    rows = watched.arena.books.ledger.row_of
    return bool(rows) and rows.pop(rng.choice(sorted(rows))) is not None


def swap_rows(watched: Watched, rng: random.Random) -> bool:
    rows = watched.arena.books.ledger.row_of
    if len(rows) < 2:
        return False
    one, other = rng.sample(sorted(rows), 2)
    rows[one], rows[other] = rows[other], rows[one]
    return True


def free_row(watched: Watched, rng: random.Random) -> bool:
    watched.arena.books.ledger._free_rows.append(0)
    return True


def forget_flight(watched: Watched, rng: random.Random) -> bool:
    flights = watched.arena.books.tickets.in_flight
    return bool(flights) and flights.pop(rng.choice(sorted(flights))) is not None


def invent_flight(watched: Watched, rng: random.Random) -> bool:
    watched.arena.books.tickets.in_flight[10_000] = {}
    return True


def forget_waiting(watched: Watched, rng: random.Random) -> bool:
    waiting = watched.arena.books.tickets._pending
    sizes = [batch[2].size for batch in waiting]
    del waiting[sizes.index(max(sizes))]
    return True


def restamp(watched: Watched, rng: random.Random) -> bool:
    waiting = watched.arena.books.tickets._pending
    for index, (stamp, owner, places) in enumerate(waiting):
        if places.size:
            waiting[index] = (stamp - 1, owner, places)
            return True
    return False


def waiting_places(watched: Watched, rng: random.Random) -> np.ndarray:
    batches = [batch[2] for batch in watched.arena.books.tickets._pending if batch[2].size]
    return rng.choice(batches) if batches else np.empty(0, np.int64)


def flight_pages(watched: Watched, rng: random.Random) -> np.ndarray:
    parts = [
        pages
        for writes in watched.arena.books.tickets.in_flight.values()
        for pages in writes.values()
        if pages.size
    ]
    return rng.choice(parts) if parts else np.empty(0, np.int64)


def end_pin(watched: Watched, rng: random.Random) -> bool:
    held = watched.arena.books.pins.pins
    return bool(held) and held.pop(rng.choice(sorted(held))) is not None


def pin_pages(watched: Watched, rng: random.Random) -> np.ndarray:
    held = watched.arena.books.pins.pins
    name = rng.choice(["places", "virtual", "generation"])
    return getattr(held[rng.choice(sorted(held))], name) if held else np.empty(0, np.int64)


def pin_holder(watched: Watched, rng: random.Random) -> bool:
    held = watched.arena.books.pins.pins
    if not held:
        return False
    number = rng.choice(sorted(held))
    held[number] = dataclasses.replace(held[number], holder="somebody else")
    return True


def count_deferred(watched: Watched, rng: random.Random) -> bool:
    counts = watched.arena.books.pins.deferred
    counts[rng.randrange(len(counts))] += 1
    return True


def flip_gate(watched: Watched, rng: random.Random) -> bool:
    watched.arena.books.gate_closed = not watched.arena.books.gate_closed
    return True


def forget_change(watched: Watched, rng: random.Random) -> bool:
    dirty = band(watched, rng).table._dirty
    return bool(dirty) and dirty.pop() is not None


def changed_rows(watched: Watched, rng: random.Random) -> np.ndarray:
    parts = [part for known in watched.arena.books.bands for part in known.table._dirty if part.size]
    return rng.choice(parts) if parts else np.empty(0, np.int64)


def tell_extent(watched: Watched, rng: random.Random) -> bool:
    watched.arena.books._extents_told[0] = (1, 2)
    return True


POKES: dict[str, Poke] = {
    "state": of_array(lambda w, r: (b := band(w, r)).state[: b.capacity]),
    "virtual_at": of_array(lambda w, r: band(w, r).table.virtual_at),
    "place_of": of_array(lambda w, r: band(w, r).table.place_of),
    "pin_count": of_array(lambda w, r: band(w, r).pin_count),
    "block_holes": of_array(lambda w, r: band(w, r)._block_holes),
    "first_hole_block": hide_holes,
    **{name: of_number(band, name) for name in ("low", "high", "live", "holes", "pending")},
    "unpublished batches": forget_change,
    "id generation": of_array(lambda w, r: ids(w, r).generation),
    "id bound": of_array(lambda w, r: ids(w, r).bound),
    "released ids": of_array(lambda w, r: ids(w, r).released_ids()),
    "released count": of_number(ids, "released_count"),
    "fresh ids": of_number(ids, "fresh"),
    **{
        f"request {name}": of_array(running(name))
        for name in (
            "length", "launched", "page_count", "state_count", "request", "first_kept", "pages",
            "state",
        )
    },
    "row of a request": forget_row,
    "rows of two requests": swap_rows,
    "free rows": free_row,
    "row count": of_number(ledger, "row_count"),
    "tickets issued": of_number(tickets, "issued"),
    "tickets ordered": of_number(tickets, "ordered_through"),
    "a forward in flight": forget_flight,
    "a forward nobody launched": invent_flight,
    "waiting pages": forget_waiting,
    "their stamp": restamp,
    "next lease": of_number(pins, "next_number"),
    "a lease": end_pin,
    "pages freed under pins": count_deferred,
    "gate": flip_gate,
}  # fmt: skip

# Seen by the full check, at the latest when it next looks; a step sees them when they are used: places
# that wait when they are reclaimed, rows when they are published, leases when one ends.
FULL_ONLY: dict[str, Poke] = {
    "which pages wait": of_array(waiting_places),
    "which pages a forward writes": of_array(flight_pages),
    "which pages a lease holds": of_array(pin_pages),
    "who holds a lease": pin_holder,
    "which rows are unpublished": of_array(changed_rows),
    "the extent told last": tell_extent,
}


def poked(poke: Poke, seed: int) -> tuple[bool, bool, bool]:
    """Whether there was something to corrupt, whether the step saw it, whether the full check did."""
    rng = random.Random(seed)
    watched = busy_arena(seed)
    operation = no_op(watched.model)
    watched.model.expect(operation)
    outcome = watched.arena.apply(operation)
    assert not watched.model.settle(operation, outcome)
    if not poke(watched, rng):
        return False, False, False
    try:
        in_step = bool(watched.checker.step(watched.arena, operation, outcome))
    except (AssertionError, IndexError, KeyError, ValueError):
        in_step = True  # an answer that cannot be given: the campaign reports it as a crash
    try:
        in_full = bool(watched.checker.full(watched.arena))
    except (AssertionError, IndexError, KeyError, ValueError):
        in_full = True
    return True, in_step, in_full


ARENAS = 8


def busy_arena(seed: int) -> Watched:
    """An arena in the middle of things: forwards in flight, leases, pages that wait for both, holes,
    rows to publish, trimmed windows."""
    rng = random.Random(seed)
    page = 1 + 3 * (seed % 2)
    watched = Watched(layout_of("P3", page, units=400))
    for request in range(8):
        tokens = page * (9 if request == 2 else rng.randint(3, 5)) + rng.randint(0, page)
        watched.run([ops.Admit(request, 2 if request == 1 else 1), ops.Extend(request, tokens)])
    watched.run([ops.Extend(1, 10), ops.Release(2), ops.TrimWindow((0, 1)), ops.Launch((0, 1))])
    watched.run([ops.Lease(3, "full", 0, 2), ops.Lease(4, "mamba", 0, 1), ops.Lease(3, "full", 1, 3)])
    watched.run([ops.Release(3), ops.Release(5), ops.Launch((1, 4)), ops.Decode((0, 1, 4))])
    watched.run([ops.Extend(6, 2 * page), ops.Admit(9), ops.Release(7)])
    model = watched.model
    assert len(model.flights) == 2 and len(model.waiting) > 3 and len(model.holds) == 3
    assert any(band.holes for band in model.bands) and any(b.freed_pinned for b in model.bands)
    assert all(band.stale for band in model.bands)
    return watched


@pytest.mark.parametrize("field", POKES)
def test_a_corrupted_field_is_seen_in_the_same_step(field: str) -> None:
    tried = Counter[bool]()
    for seed in range(ARENAS):
        there, in_step, _ = poked(POKES[field], seed)
        tried[there] += 1
        assert in_step or not there, f"{field} of arena {seed} was corrupted, and nothing seen"
    assert tried[True] >= 4, "hardly anything to corrupt"


@pytest.mark.parametrize("field", FULL_ONLY)
def test_what_a_step_leaves_to_the_full_check_is_seen_there(field: str) -> None:
    tried = Counter[bool]()
    for seed in range(ARENAS):
        there, in_step, in_full = poked(FULL_ONLY[field], seed)
        tried[there] += 1
        assert not in_step, f"{field} is seen by a step: it belongs to the other list"
        assert in_full or not there, f"{field} of arena {seed} was corrupted, and nothing seen"
    assert tried[True] >= 4, "hardly anything to corrupt"


def wide_arena() -> Watched:
    """Two requests, of which one makes the tables of pages wide."""
    watched = Watched(layout_of("P3", 1, units=20_000))
    watched.run([ops.Admit(0, 310), ops.Extend(0, 700), ops.Admit(1, 5), ops.Extend(1, 5)])
    watched.run([ops.Release(0), ops.Admit(0, 300), ops.Extend(0, 650)])
    ledger = watched.arena.books.ledger
    assert min(ledger.pages.nbytes, ledger.state.nbytes) > WIDE_BYTES
    return watched


@pytest.mark.parametrize(
    "table, request_number, held",
    [("pages", 0, 650), ("pages", 1, 5), ("state", 0, 300), ("state", 1, 5)],
)
def test_a_wide_table_of_pages_is_compared_as_far_as_requests_hold_any(
    table: str, request_number: int, held: int
) -> None:
    for column in (0, held // 2, held - 1, held):
        watched = wide_arena()
        ledger = watched.arena.books.ledger
        getattr(ledger, table)[ledger.row(request_number), column] += 1
        _, in_step = watched.apply(no_op(watched.model))
        assert bool(in_step) == (column < held)
        assert watched.checker.full(watched.arena), "the full check looks at all of the table"


@pytest.mark.parametrize(
    "forget",
    ["gate_closed", "tickets.ordered_through", "ledger.launched", "pins.next_number"],
)
def test_a_snapshot_that_lacks_something_is_seen_by_the_full_check(
    forget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = busy_arena(1)
    watched.run([ops.Compact(urgent=True), ops.SetGate(True)])
    assert not watched.checker.full(watched.arena)
    # What the other arena that is restored from a snapshot had before is not what this one has.
    taken = Arena.snapshot

    def lacking(arena: Arena) -> dict[str, Any]:
        snapshot = taken(arena)
        owner, _, name = forget.rpartition(".")
        part = snapshot[owner] if owner else snapshot
        part[name] = part[name] * 0 if name != "gate_closed" else False
        return snapshot

    monkeypatch.setattr(Arena, "snapshot", lacking)
    fresh = Stepwise(watched.model, watched.arena)
    found = fresh.full(watched.arena)
    assert {violation.invariant for violation in found} == {"determinism"}
