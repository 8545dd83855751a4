"""Drives arenas on simulated devices: a random engine, its forwards and its holders' copies."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.simulated import SimulatedDevice
from tests.allocator.arenas import RandomEngine, small_arena

Accesses = dict[int, tuple[Pages, Pages]]


def accesses(arena: Arena, requests: tuple[int, ...]) -> Accesses:
    """What a forward over these requests touches, to be asked before its launch: it reads all that
    they hold, and writes the pages of tokens that no forward has written yet, and all their state."""
    books, page_size = arena.books, arena.plan.page_size
    found: Accesses = {}
    for index in range(len(books.bands)):
        reads: list[Pages] = [np.empty(0, np.int64)]
        writes: list[Pages] = [np.empty(0, np.int64)]
        for request in requests:
            row = books.ledger.row(request)
            if index == books.state:
                held = books.ledger.state_slots(row)
                written = held
            else:
                first = 0
                if index in books.windows:
                    first = int(books.ledger.first_kept[row, books.windows.index(index)])
                held = books.ledger.token_pages(row, first)
                fresh = int(books.ledger.launched[row]) // page_size
                written = held[max(0, fresh - first) :]
            reads.append(held)
            writes.append(written)
        found[index] = np.concatenate(reads), np.concatenate(writes)
    return found


class Run:
    """An arena on a simulated device, and an engine that tells the device what it does."""

    def __init__(
        self,
        layout: Any,
        schedule: str,
        *,
        device: Callable[[str], SimulatedDevice] = SimulatedDevice,
        **options: Any,
    ) -> None:
        self.device = device(schedule)
        self.arena = small_arena(layout, device=self.device, **options)
        self.device.begin(self.arena)
        self.violations: list[Violation] = []

    def apply(self, operation: Operation) -> Outcome:
        """One operation, with what an engine does around it."""
        device, arena = self.device, self.arena
        device.step += 1
        touched: Accesses = {}
        match operation:
            case ops.Complete(ticket=ticket):
                device.finish(ticket)
            case ops.EndLease(lease=lease):
                device.end_copies(lease)
            case ops.Launch(requests=requests):
                if all(request in arena.books.ledger.row_of for request in requests):
                    touched = accesses(arena, requests)
        outcome = arena.apply(operation)
        if outcome.ok and isinstance(operation, ops.Launch):
            device.forward_over(outcome.value, touched)
        if outcome.ok and isinstance(operation, ops.Lease):
            self._copy(outcome.value)
        self.violations += device.take_violations()
        return outcome

    def _copy(self, number: int) -> None:
        """The holder copies the pages out; every third one loads them instead."""
        pin = self.arena.books.pins.pins[number]
        self.device.copy_over(number, pin.band, pin.virtual, "reads" if number % 3 else "writes")

    def end(self) -> str:
        """Run everything to its end; the digest of bytes and tables."""
        digest = self.device.digest()
        self.violations += self.device.take_violations()
        return digest

    def first(self, invariant: str) -> str:
        """The first violation of that invariant, empty when there is none."""
        return next((v.message for v in self.violations if v.invariant == invariant), "")


def drive(run: Run, seed: int, steps: int) -> None:
    """Let a random engine choose operations, then run the device's queues empty."""
    engine = RandomEngine(random.Random(seed))
    for _ in range(steps):
        operation = engine.choose(run.arena)
        engine.note(operation, run.apply(operation))
    run.end()


def random_run(layout: Any, schedule: str, seed: int, steps: int, **options: Any) -> Run:
    """A run of a random engine."""
    run = Run(layout, schedule, **options)
    drive(run, seed, steps)
    return run
