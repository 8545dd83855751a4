"""Random walks over small arenas that are walked again under a planted fault, step by step.

A walk is chosen along an intact arena and kept: its steps, and all that could be observed after each.
Walked again under a fault, the first observation that differs shows the fault.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import BandscopeError
from bandscope.allocator.operations import Operation
from bandscope.fuzz.faults import Fault
from tests.allocator.arenas import LAYOUTS, UNIT, small_arena
from tests.allocator.devices import RecordingDevice

WALKS = 120
STEPS = 90
# Windows whose pages are larger than those of full attention: more ids than places.
WIDE = ([("window_8", 5), ("full", 2)], 60)
CHOICES = {**LAYOUTS, "wide": WIDE}
NAMES = list(CHOICES)
SIZES = WALKS  # no walk: which arenas start at all
LARGE_UNITS = 2400  # more places than a block of them has

# What chance meets too seldom: steps by hand on an arena of its own.
_FULL_OF = [op for request, pages in enumerate((100, 300, 100, 100))
            for op in (ops.Admit(request, 0), ops.Extend(request, pages))]  # fmt: skip
BY_HAND: dict[int, tuple[str, dict[str, Any], list[Operation]]] = {
    # Two forwards in flight; the older one writes the outermost page.
    -1: (
        "P2w",
        {"page_size": 1, "compact_hole_share": 0.0},
        [
            *(op for request in range(3) for op in (ops.Admit(request), ops.Extend(request, 1))),
            ops.Release(0),
            ops.Launch((2,)),
            ops.Launch((1,)),
            ops.Compact(),
        ],
    ),
    # A hole appears in a block of places before the one that holes were last taken from.
    -2: (
        "P2m",
        {"page_size": 1, "units": LARGE_UNITS},
        [*_FULL_OF, ops.Release(2), ops.Extend(3, 1), ops.Release(0), ops.Extend(3, 1)],
    ),
}


class ToldDevice(RecordingDevice):
    """Keeps also the calls that `RecordingDevice` leaves out or refuses."""

    def issue_fills(self) -> None:
        self.calls.append(("issue_fills",))

    def synchronize(self) -> None:
        self.calls.append(("synchronize",))


@dataclass(frozen=True)
class Seen:
    """What could be observed after one step.

    `outcome`: done or refused and why, its value, or the type of what was raised; `capacity`: answers
    to a few demands; `device`: the calls it got; `broken`: violated invariants; `digest`: the state.
    """

    outcome: Any
    capacity: tuple[bool, ...] = ()
    device: tuple[Any, ...] = ()
    broken: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Difference:
    """The first step at which a walk went another way, and what showed it (a field of `Seen`)."""

    walk: int
    step: int
    shown_by: str
    expected: Any
    found: Any


@dataclass(frozen=True)
class Walk:
    """Steps and what was seen. A step that is None saves and restores the state."""

    number: int
    steps: tuple[Operation | None, ...]
    seen: tuple[Seen, ...]


def arena_of(number: int) -> Arena:
    """The empty arena of a walk: another layout, page size and policy each."""
    if number in BY_HAND:
        name, options, _ = BY_HAND[number]
        return small_arena(CHOICES[name], device=ToldDevice(), **options)  # type: ignore[arg-type]
    rng = random.Random(f"arena/{number}")
    large = number % 10 == 9
    return small_arena(
        CHOICES[NAMES[number % len(NAMES)]],
        units=LARGE_UNITS if large else None,
        page_size=1 if large else rng.choice([1, 1, 2, 4]),
        device=ToldDevice(),  # type: ignore[arg-type]
        barrier=rng.choice(["fine", "fine", "coarse"]),
        compact_hole_share=rng.choice([0.0, 0.0, 0.125]),
        headroom_share=rng.choice([0.0, 0.0, 0.05]),
        max_moves=rng.choice([1, 2, 4096]),
    )


def observe(arena: Arena, step: Operation | None) -> Seen:
    """Take one step and look at everything."""
    device: Any = arena.device
    device.take()
    try:
        if step is None:
            arena.restore(arena.snapshot())
            outcome: Any = "restored"
        else:
            done = arena.apply(step)
            outcome = (done.ok, done.reason, done.value)
        bands = len(arena.books.bands)
        asked = [[0] * index + [2] + [0] * (bands - index - 1) for index in range(bands)]
        capacity = tuple(arena.serves(demand) for demand in [*asked, [1] * bands])
        calls = tuple(map(repr, device.take()))
        broken = tuple(map(str, arena.check()))
        return Seen(outcome, capacity, calls, broken, arena.digest())
    except BandscopeError:
        raise
    except Exception as error:  # a fault may break anything
        return Seen(f"raised {type(error).__name__}: {error}")


class Walker:
    """Chooses steps along an intact arena: most of them legal, many of them at a boundary."""

    def __init__(self, arena: Arena, rng: random.Random) -> None:
        self.arena, self.rng, self.next_request = arena, rng, 0
        self.large = arena.total_bytes > 1000 * UNIT
        # Everything; mostly moves under several forwards; many small requests; and in a large arena
        # little but coming and going, so that blocks of pages fill and empty.
        kinds = ["eeeeddddtttrrrlllcccckkkgpppqqqbbff", "eedddrrllllkkkkcb", "aaaaaaeffdrlc"]
        self.kinds = "eeeeeeeedrrrlck" if self.large else rng.choice(kinds)

    def step(self) -> Operation | None:
        rng, arena, books = self.rng, self.arena, self.arena.books
        running = list(books.ledger.row_of)
        roll = rng.random()
        if roll < 0.04:
            return self.illegal(running)
        if roll < 0.06:
            return None
        if roll < 0.20 or not running:
            self.next_request += 1
            return ops.Admit(self.next_request, rng.choice([0, 1, 1, 2]))
        some = tuple(rng.sample(running, rng.randint(1, min(4, len(running)))))
        page = arena.plan.page_size
        tickets = list(books.tickets.in_flight)
        leases = list(books.pins.pins.values())
        match rng.choice(self.kinds):
            case "e" if self.large:
                return ops.Extend(some[0], rng.choice([1, 64, 100, 150]))
            case "e":
                sizes = [0, 1, page - 1, page, page + 1, 3 * page, 5 * page]
                return ops.Extend(some[0], rng.choice(sizes))
            case "a":
                self.next_request += 1
                return ops.Admit(self.next_request, 0)
            case "f":
                return self.exactly_full(some[0])
            case "d":
                return ops.Decode(some)
            case "t":
                return ops.TrimWindow(some)
            case "r":
                return ops.Release(some[0])
            case "l":
                return ops.Launch(some)
            case "c" if tickets:
                return ops.Complete(rng.choice(tickets))
            case "k":
                return ops.Compact(rng.random() < 0.4, rng.choice([None, None, 0, 1, 2]))
            case "g":
                return ops.SetGate(not books.gate_closed or rng.random() < 0.1)
            case "p":
                return self.lease(some[0])
            case "q" if leases:
                pin = rng.choice(leases)
                return ops.EndLease(pin.number, rng.choice([None, pin.holder]))
        return self.at_capacity()

    def lease(self, request: int) -> Operation:
        rng, arena = self.rng, self.arena
        band = rng.choice(arena.plan.bands).name
        pages, first = arena.pages_of(request, band)
        if not pages.size:
            return ops.Compact()
        start = first + rng.randrange(pages.size)
        stop = rng.randint(start + 1, first + pages.size)
        deadline = rng.choice([None, None, arena.books.tickets.issued])
        return ops.Lease(request, band, start, stop, f"peer {request}", "transfer", deadline)

    def at_capacity(self) -> Operation:
        """The largest demand of one band that is served, or one page more."""
        bands = len(self.arena.books.bands)
        demand = [self.rng.choice([0, 0, 1]) for _ in range(bands)]
        index = self.rng.randrange(bands)
        while self.arena.serves(demand) and demand[index] < 40:
            demand[index] += 1
        demand[index] = max(0, demand[index] - self.rng.choice([0, 1, 1]))
        return ops.Reserve(tuple(demand))

    def exactly_full(self, request: int) -> Operation:
        """All the token pages that are left, and no more."""
        arena, ledger = self.arena, self.arena.books.ledger
        state, bands = arena.books.state, len(arena.books.bands)
        pages = 0
        while arena.serves([0 if index == state else pages + 1 for index in range(bands)]):
            pages += 1
        row = ledger.row(request)
        room = (int(ledger.page_count[row]) + pages) * arena.plan.page_size
        return ops.Extend(request, room - int(ledger.length[row]))

    def illegal(self, running: list[int]) -> Operation:
        one = self.rng.choice(running) if running else 0
        band = self.rng.choice(self.arena.plan.bands).name
        held = int(self.arena.pages_of(one, band)[1]) if running else 0
        pages = len(self.arena.pages_of(one, band)[0]) + held if running else 0
        numbers = list(self.arena.books.pins.pins)
        window = next((known.name for known in self.arena.plan.windows), band)
        trimmed = int(self.arena.pages_of(one, window)[1]) if running else 0
        return self.rng.choice(
            [
                ops.Admit(one),
                ops.Decode((one, one)),
                ops.Extend(one, -1),
                ops.Launch((one, 10_000)),
                ops.Complete(10_000),
                ops.EndLease(numbers[0] if numbers else 9, "nobody"),
                ops.Lease(one, window, max(0, trimmed - 1), trimmed + 1),
                ops.Lease(one, band, held, pages + 1),
                ops.Lease(one, band, held, held),
                ops.Compact(max_moves=-1),
                ops.Release(10_000),
            ]
        )


@functools.cache
def walk(number: int) -> Walk:
    """A walk of the allocator as it is. Never call it under a fault."""
    arena = arena_of(number)
    walker = Walker(arena, random.Random(f"walk/{number}"))
    steps: list[Operation | None] = []
    seen: list[Seen] = []
    by_hand = BY_HAND[number][2] if number in BY_HAND else None
    for index in range(STEPS if by_hand is None else len(by_hand)):
        step = walker.step() if by_hand is None else by_hand[index]
        steps.append(step)
        seen.append(observe(arena, step))
    return Walk(number, tuple(steps), tuple(seen))


def difference(
    fault: Fault, hint: int = -1, walks: Iterable[int] = range(WALKS)
) -> Difference | None:
    """The first step of the first walk at which the fault shows, None when it never does. The walk
    `hint` is tried first."""
    for number in dict.fromkeys([hint, *BY_HAND, *walks, SIZES]):
        if number == SIZES:
            expected_sizes = sizes_that_start()
            with fault.plant():
                sizes = sizes_that_start()
            if sizes != expected_sizes:
                return Difference(SIZES, -1, "outcome", expected_sizes, sizes)
            continue
        known = walk(number)
        with fault.plant():
            try:
                arena = arena_of(number)
            except Exception as error:
                return Difference(number, -1, "outcome", "an arena", repr(error))
            for index, step in enumerate(known.steps):
                found, expected = observe(arena, step), known.seen[index]
                if found != expected:
                    return _first(number, index, expected, found)
    return None


def _first(number: int, index: int, expected: Seen, found: Seen) -> Difference:
    # What an invariant says counts most; a mere digest least.
    for name in ("broken", "outcome", "capacity", "device", "digest"):
        if getattr(expected, name) != getattr(found, name):
            if name == "broken" and not found.broken:
                continue
            return Difference(number, index, name, getattr(expected, name), getattr(found, name))
    raise AssertionError("two different observations are equal")


def sizes_that_start() -> list[bool]:
    """For each size around the least that holds one page of every band: does the arena start?"""
    started = []
    for name in NAMES:
        for units in range(5, 40):
            try:
                small_arena(CHOICES[name], units=units)
                started.append(True)
            except BandscopeError:
                started.append(False)
    return started


