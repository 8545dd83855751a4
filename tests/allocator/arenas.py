"""Small arenas for tests: reference layouts in abstract units, and random states of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.events import Observer
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import plan_from_sizes

# Bytes of one unit `u`. A multiple of the rounding unit, so that sizes in units are exact.
UNIT = 256

P2M = ([("mamba", 8), ("full", 4)], 64)
P2W = ([("window_8", 2), ("full", 4)], 64)
P3 = ([("mamba", 8), ("window_8", 2), ("full", 4)], 96)
# Off-grid on purpose: no page size divides a neighbour's.
P3_ODD = ([("mamba", 7), ("window_8", 3), ("full", 5)], 71)
P4 = ([("mamba", 7), ("window_16", 3), ("window_8", 2), ("full", 5)], 100)
P5 = ([("mamba", 8), ("window_32", 3), ("window_16", 2), ("window_8", 3), ("full", 4)], 150)
LAYOUTS = {"P2m": P2M, "P2w": P2W, "P3": P3, "P3_odd": P3_ODD, "P4": P4, "P5": P5}


def small_arena(
    layout: tuple[list[tuple[str, int]], int],
    *,
    page_size: int = 4,
    device: str | Device = "none",
    units: int | None = None,
    observer: Observer | None = None,
    **config: object,
) -> Arena:
    """An arena of `units` (the layout's own size by default) beside the sink; no headroom, so that
    moves are exactly what a demand needs."""
    bands, size = layout
    plan = plan_from_sizes([(name, units * UNIT) for name, units in bands], page_size=page_size)
    total = plan.sink_bytes + (size if units is None else units) * UNIT
    settings = {"headroom_share": 0.0, "compact_gap_share": 1.0, **config}
    return Arena(
        plan, total, device=device, config=ArenaConfig(**settings), observer=observer  # type: ignore[arg-type]
    )


def scatter(arena: Arena, rng: random.Random, requests: int = 8) -> list[int]:
    """Fill `arena` with random requests and release some of them, so that holes lie everywhere.
    Returns the requests that still run."""
    page = arena.plan.page_size
    running: list[int] = []
    for request in range(requests):
        if not arena.admit(request, state_slots=rng.choice([0, 1, 1])):
            continue
        running.append(request)
        arena.extend(request, rng.randint(0, 4 * page))
        if rng.random() < 0.5:
            arena.trim_window([request])
        if running and rng.random() < 0.45:
            gone = running.pop(rng.randrange(len(running)))
            arena.release(gone)
    return running


class EventLog(events.EffectObserver):
    """An observer that keeps all it is told, in order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.effects: list[Any] = []
        self.outcomes: list[Outcome] = []

    def before(self, operation: Operation) -> None:
        self.operations.append(operation)

    def effect(self, event: Any) -> None:
        self.effects.append(event)

    def after(self, operation: Operation, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def of(self, kind: type) -> list[Any]:
        """The effects of one kind."""
        return [event for event in self.effects if isinstance(event, kind)]

    def clear(self) -> None:
        """Forget everything told so far."""
        self.__init__()  # type: ignore[misc]


class RandomEngine:
    """Chooses random operations, most of them legal, from a seeded generator and its own notes."""

    def __init__(self, rng: random.Random, *, gate: bool = True, illegal: bool = True) -> None:
        self.rng = rng
        self.gate = gate
        self.illegal = illegal
        self.closed = False
        self.running: list[int] = []
        self.tickets: list[int] = []
        self.leases: list[int] = []
        self.next_request = 0

    def choose(self, arena: Arena) -> Operation:
        """The next operation to try."""
        rng, page = self.rng, arena.plan.page_size
        if self.illegal and rng.random() < 0.03:
            return rng.choice(
                [
                    ops.Extend(10_000, 1),
                    ops.Complete(10_000),
                    ops.EndLease(10_000),
                    ops.Compact(max_moves=-1),
                    ops.Admit(self.running[0] if self.running else -1),
                ]
            )
        roll = rng.random()
        if roll < 0.15 or not self.running:
            self.next_request += 1
            return ops.Admit(self.next_request - 1, rng.choice([0, 1, 1, 2]))
        some = tuple(rng.sample(self.running, rng.randint(1, len(self.running))))
        if roll < 0.40:
            tokens = rng.choice([0, 1, max(0, page - 1), page, page + 1, 3 * page, 5 * page])
            return ops.Extend(some[0], tokens)
        if roll < 0.58:
            return ops.Decode(some)
        if roll < 0.68:
            return ops.TrimWindow(some)
        if roll < 0.78:
            return ops.Release(some[0])
        if roll < 0.85:
            return ops.Launch(some)
        if roll < 0.90 and self.tickets:
            return ops.Complete(rng.choice(self.tickets))
        if roll < 0.94:
            return ops.Compact(urgent=rng.random() < 0.4)
        if roll < 0.96 and (self.gate or self.closed):
            return ops.SetGate(not self.closed)
        if roll < 0.98:
            band = rng.choice(arena.books.bands).name
            pages, first = arena.pages_of(some[0], band)
            if pages.size:
                stop = first + rng.randint(1, pages.size)
                return ops.Lease(some[0], band, first, stop)
        if self.leases:
            return ops.EndLease(rng.choice(self.leases))
        return ops.Reserve(tuple(rng.choice([0, 0, 1, 2]) for _ in arena.books.bands))

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """Remember what became of it."""
        if not outcome:
            return
        match operation:
            case ops.Admit(request=request):
                self.running.append(request)
            case ops.Release(request=request):
                self.running.remove(request)
            case ops.Launch():
                self.tickets.append(outcome.value)
            case ops.Complete(ticket=ticket):
                self.tickets.remove(ticket)
            case ops.Lease():
                self.leases.append(outcome.value)
            case ops.EndLease(lease=lease):
                self.leases.remove(lease)
            case ops.SetGate(closed=closed):
                self.closed = closed

    def step(self, arena: Arena) -> tuple[Operation, Outcome]:
        """Choose, apply and note one operation."""
        operation = self.choose(arena)
        outcome = arena.apply(operation)
        self.note(operation, outcome)
        return operation, outcome

    def drain(self, arena: Arena) -> None:
        """Open the gate, complete, end and release everything: afterwards nothing is held."""
        arena.set_gate(closed=False)
        for request in self.running:
            arena.release(request)
        for number in self.leases:
            arena.end_lease(number)
        for ticket in self.tickets:
            arena.complete(ticket)
        self.running, self.leases, self.tickets = [], [], []


def crowded(**options: Any) -> tuple[Arena, EventLog]:
    """P3, one-token pages: four requests with 1 slot and 2 pages each."""
    log = EventLog()
    arena = small_arena(P3, page_size=1, observer=log, compact_hole_share=0.0, **options)
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 2)
    return arena, log


def moved_pages(log: EventLog, band: str) -> set[int]:
    """Physical pages that any move named, as source or destination."""
    found: set[int] = set()
    for event in log.of(events.PageMove):
        if event.band == band:
            found |= {*event.sources.tolist(), *event.destinations.tolist()}
    return found


def held_pages(arena: Arena) -> list[tuple[str, int, int, int]]:
    """(name, live, holes, pending) of every band."""
    return [(band.name, band.live, band.holes, band.pending) for band in arena.books.bands]


def nothing_held(arena: Arena) -> list[tuple[str, int, int, int]]:
    """What `held_pages` gives for an empty arena."""
    return [(band.name, 0, 0, 0) for band in arena.books.bands]


def page_list(arena: Arena, request: int, band: str) -> list[int]:
    """Physical pages of a request in a band, as plain numbers."""
    pages: list[int] = arena.pages_of(request, band)[0].tolist()
    return pages


def byte_units(page_bytes: int, pages: np.ndarray, total_bytes: int) -> np.ndarray:
    """Which units (`UNIT` bytes) of the arena these physical pages cover, as a mask."""
    mask = np.zeros(total_bytes // UNIT, bool)
    width = page_bytes // UNIT
    for page in pages.tolist():
        mask[page * width : (page + 1) * width] = True
    return mask
