"""One arena with a prefix cache under everything that looks at it."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.exhaustive.cached_alphabet import Letter
from bandscope.fuzz.exhaustive.cached_facts import Facts, LabelledDevice, Prefix, cache_of
from bandscope.fuzz.exhaustive.cached_rules import compute, step_violations
from bandscope.fuzz.exhaustive.geometry import Geometry
from bandscope.fuzz.program import Layout


class CachedBench:
    """One arena, what is known of its pins, and the judgement of each letter. `owners`: by lease, the
    request whose prefix it holds (−1: it has left); `pinned`: that prefix."""

    def __init__(self, layout: Layout) -> None:
        self.device = LabelledDevice()
        self.arena = layout.arena(self.device)
        self.geometry = Geometry(self.arena)
        self.owners: dict[int, int] = {}
        self.pinned: dict[int, Prefix] = {}
        self._start = self.arena.snapshot()

    def facts(self) -> Facts:
        """The state now."""
        return Facts(self.arena, self.geometry, dict(self.pinned))

    def mark(self) -> tuple[Any, ...]:
        """The state now, to come back to."""
        return (
            self.arena.snapshot(), dict(self.device.labels), dict(self.owners), dict(self.pinned),
        )  # fmt: skip

    def back(self, mark: tuple[Any, ...]) -> None:
        """Become what `mark` saw."""
        self.arena.restore(mark[0])
        self.device.labels = dict(mark[1])
        self.owners, self.pinned = dict(mark[2]), dict(mark[3])

    def empty(self) -> None:
        """Become what it was when it was new."""
        self.back((self._start, {}, {}, {}))

    def do(self, operation: Operation, before: Facts) -> Outcome:
        """Apply an operation, unjudged."""
        if isinstance(operation, ops.Launch):
            for request in operation.requests:
                compute(self.arena, before, request)
        outcome = self.arena.apply(operation)
        self._follow(operation, outcome, before)
        return outcome

    def step(self, letter: Letter, before: Facts) -> tuple[Outcome | None, list[Violation]]:
        """Apply a letter to the state `before`, and judge it. What is refused ends it; only the first
        operation of a letter ever is."""
        outcome: Outcome | None = None
        try:
            for operation in letter:
                done = self.do(operation, before)
                outcome = done if outcome is None else outcome
                if done.reason == "misuse":
                    message = f"a legal call was refused: {done.message}"
                    return outcome, [Violation("misuse", message)]
                after = self.facts()
                found = list(step_violations(before, operation, done, after))
                if found or not done.ok:
                    return outcome, found
                before = after
            return outcome, []
        except Exception as error:  # whatever a faulty allocator raises is a finding
            return None, [Violation("crash", f"{type(error).__name__}: {error}")]

    def _follow(self, operation: Operation, outcome: Outcome, before: Facts) -> None:
        if not outcome.ok:
            return
        match operation:
            case ops.Lease(request=request):
                row = before.rows[request]
                self.owners[outcome.value] = request
                self.pinned[outcome.value] = row.key[: row.shared]
            case ops.EndLease(lease=lease):
                del self.owners[lease], self.pinned[lease]
            case ops.Publish(request=request) | ops.Checkpoint(request=request):
                sharing = cache_of(self.arena).sharing[request]
                self._hold(request, tuple(sharing.key[: sharing.pages].tolist()))
            case ops.Release(request=request, publish=publish):
                row = before.rows[request]
                if publish:
                    depth = min(row.launched // before.page_size, len(row.key))
                    self._hold(request, row.key[:depth])
                for lease in [n for n, owner in self.owners.items() if owner == request]:
                    self.owners[lease] = -1

    def _hold(self, request: int, prefix: Prefix) -> None:
        for lease, owner in self.owners.items():
            if owner == request:
                self.pinned[lease] = prefix

    def name(self, facts: Facts) -> bytes:
        """The same for states that differ in names only."""
        books, tree = self.arena.books, cache_of(self.arena).tree
        clocks = {node.clock for node in tree.nodes.values()}
        clocks.update(clock for node in tree.nodes.values() for clock in node.window_clock)
        clocks.update(checkpoint.clock for checkpoint in tree.checkpoints.values())
        rank = {clock: at for at, clock in enumerate(sorted(clocks))}
        token_bands = [books.bands[index] for index in books.token_bands]

        def places(virtual: Sequence[int]) -> list[list[int]]:
            ids = np.array(virtual, np.int64)
            return [band.table.place_of[ids].tolist() for band in token_bands]

        def slots(virtual: Sequence[int]) -> list[int]:
            if books.state is None:
                return []
            found: list[int] = books.bands[books.state].table.place_of[list(virtual)].tolist()
            return found

        nodes = [
            (
                tuple(node.key.tolist()), node.start, tuple(node.first), rank[node.clock],
                [rank[clock] for clock in node.window_clock], places(node.pages),  # type: ignore[arg-type]
                0 if node.parent is None else order[node.parent.number],
                # Counts follow from the rest, but a faulty one must not hide behind a sound state.
                node.locks, [None if held is None else held.tolist() for held in node.window_locks],
                [
                    (depth, rank[state.clock], slots([state.slot]), state.locks)
                    for depth, state in sorted(node.checkpoints.items())
                ],
            )
            for order in [{number: at for at, number in enumerate(sorted(tree.nodes))}]
            for _, node in sorted(tree.nodes.items())
        ]  # fmt: skip
        pins = {
            number: sorted(
                (list(books.pins.pins[lease].places.tolist()), self.pinned[lease])
                for lease, owner in self.owners.items()
                if owner == number
            )
            for number in [*facts.rows, -1]
        }
        rows = sorted(
            (
                row.key, row.length, row.launched, row.shared, row.first, places(row.pages),
                slots(row.slots), pins[number],
            )
            for number, row in facts.rows.items()
        )  # fmt: skip
        bands = [(band.low, band.high, band.state[: band.capacity].tobytes()) for band in books.bands]
        counts = (tree.cached, tree.evictable, len(tree.leases))
        return marshal.dumps((nodes, rows, pins[-1], bands, books.gate_closed, counts))
