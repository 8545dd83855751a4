"""One arena under everything that looks at it: an operation is applied here, and its step judged."""

from __future__ import annotations

import itertools

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.exhaustive.alphabet import Alphabet, Enumerator
from bandscope.fuzz.exhaustive.geometry import Geometry
from bandscope.fuzz.exhaustive.naming import Naming
from bandscope.fuzz.exhaustive.state import CompactBooks
from bandscope.fuzz.exhaustive.state_rules import damage, nothing_left
from bandscope.fuzz.exhaustive.step_rules import StepRules
from bandscope.fuzz.exhaustive.view import View
from bandscope.fuzz.exhaustive.watch import WatchedDevice
from bandscope.fuzz.program import Layout

NOBODY = 99
NOTHING = 1 << 30

# Whatever the state, these are refused as misuse.
MISUSE: tuple[Operation, ...] = (
    ops.Admit(-1),
    ops.Extend(NOBODY, 1),
    ops.Decode((NOBODY,)),
    ops.TrimWindow((NOBODY,)),
    ops.Release(NOBODY),
    ops.Launch((NOBODY,)),
    ops.Complete(NOTHING),
    ops.Compact(max_moves=-1),
    ops.EndLease(NOTHING),
    ops.Lease(NOBODY, "full", 0, 1),
    ops.Reserve((1,)),
)


class Bench:
    """One arena with everything that looks at it."""

    def __init__(self, layout: Layout, alphabet: Alphabet) -> None:
        self.device = WatchedDevice()
        self.arena = layout.arena(self.device)
        self.books = self.arena.books
        self.compact = CompactBooks(self.arena, alphabet.requests, max(alphabet.state_slots))
        self.naming = Naming(self.books)
        self.geometry = Geometry(self.arena)
        self.rules = StepRules(self.geometry, layout.config)
        geometry = self.geometry
        self.enumerator = Enumerator(
            alphabet, geometry.names, state=geometry.state, windows=geometry.windows
        )
        self.demands = small_demands(len(geometry.names))
        single = [
            tuple(pages if index == band else 0 for index in range(len(geometry.names)))
            for band, most in enumerate(geometry.capacity)
            for pages in range(3, most + 2)
        ]
        self.edges = [*self.demands, *single]

    def step(
        self, before: View, operation: Operation
    ) -> tuple[Outcome | None, View | None, list[Violation]]:
        """Apply one operation to the state `before`, which is that of the books, and look at it."""
        issued = self.device.issued
        issued.clear()
        noted = _noted(self) if isinstance(operation, ops.Launch) else []
        try:
            outcome = self.arena.apply(operation)
        except Exception as error:  # whatever a faulty allocator raises is a finding
            return None, None, [_crash(error)]
        try:
            after = self.compact.view()
            found = damage(self.geometry, after, self.books)
            if outcome.reason == "misuse":
                found.append(Violation("misuse", f"a legal call was refused: {outcome.message}"))
            elif not found:
                found = self.rules.check(before, operation, outcome, after, issued)
                found += _not_published(self, before, operation, after, noted)
        except (IndexError, ValueError, KeyError, OverflowError) as error:
            return outcome, None, [_crash(error)]
        return outcome, after, found

    def misuse(self, view: View, only: int | None = None) -> list[Violation]:
        """Illegal calls of every kind (or one of them), refused with nothing changed."""
        illegal = list(MISUSE)
        illegal += [ops.EndLease(lease[0], "somebody else") for lease in view.leases]
        for request, (_, _, count, kept, _, _) in view.requests.items():
            for window, first in zip(self.geometry.windows, kept, strict=True):
                if first:
                    illegal.append(ops.Lease(request, self.geometry.names[window], first - 1, first))
            illegal += [
                ops.Admit(request),
                ops.Extend(request, -1),
                ops.Decode((request, request)),
                ops.Lease(request, "full", 0, count + 1),
                ops.Lease(request, "full", 0, 0),
                ops.Lease(request, "none", 0, 1),
            ]
        self.device.issued.clear()
        for operation in illegal if only is None else [illegal[only % len(illegal)]]:
            try:
                outcome = self.arena.apply(operation)
            except Exception as error:
                return [_crash(error)]
            if outcome.ok or outcome.reason != "misuse":
                return [Violation("misuse", f"{operation} was not refused as misuse: {outcome}")]
        if not self.compact.view().same_as(view) or self.device.issued:
            return [Violation("atomic", "an illegal call changed the books")]
        return []

    def drain(
        self, view: View, *, late: bool, done: list[Operation] | None = None
    ) -> list[Violation]:
        """Open the gate and end everything: afterwards nothing is held. `late`: work completes last.
        `done` gets the operations applied."""
        tickets = [ops.Complete(ticket) for ticket, _ in view.in_flight]
        leave: list[Operation] = [ops.Release(request) for request in view.requests]
        leave += [ops.EndLease(lease[0]) for lease in view.leases]
        steps: list[Operation] = [*leave, *tickets] if late else [*tickets, *reversed(leave)]
        if view.gate:
            steps.insert(0, ops.SetGate(False))
        for operation in steps:
            if done is not None:
                done.append(operation)
            _, after, found = self.step(view, operation)
            if found or after is None:
                return found
            view = after
        return list(nothing_left(view))


def small_demands(bands: int) -> list[tuple[int, ...]]:
    """Demands of 0 to 2 pages per band; for many bands those of at most 2 pages in all, or 1 of each."""
    demands = itertools.product(range(3), repeat=bands)
    return [each for each in demands if bands < 4 or sum(each) <= 2 or max(each) <= 1]


def _crash(error: Exception) -> Violation:
    return Violation("crash", f"{type(error).__name__}: {error}")


def _noted(bench: Bench) -> list[set[int]]:
    """By band the rows that are noted for the next publish."""
    return [
        {page for pages in band.table._dirty for page in pages.tolist()}
        for band in bench.books.bands
    ]


def _not_published(
    bench: Bench, before: View, operation: Operation, after: View, noted: list[set[int]]
) -> list[Violation]:
    """Rows of a table that changed are noted for the next publish; a launch publishes all that were
    `noted` before it."""
    found = []
    names = bench.geometry.names
    if isinstance(operation, ops.Launch):
        for what, band, pages, _ in bench.device.issued:
            if what == "publish":
                noted[band] -= set(pages)
        for name, rows, dirty in zip(names, noted, after.dirty, strict=True):
            if rows or dirty:
                found.append(Violation("tables", f"{name}: rows {sorted(rows)} were not published"))
        return found
    for index, (then, now) in enumerate(zip(before.place_of, after.place_of, strict=True)):
        if then == now:
            continue
        changed = {page for page, (a, b) in enumerate(zip(then, now, strict=True)) if a != b}
        missed = changed - _noted(bench)[index]
        if missed:
            found.append(
                Violation("tables", f"{names[index]}: rows {sorted(missed)} will not be published")
            )
    return found
