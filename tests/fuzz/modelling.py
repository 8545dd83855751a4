"""Layouts, runs and altered effects for the tests of the model and of the stepwise check."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.model import Model, model_of
from bandscope.fuzz.program import Layout
from bandscope.fuzz.stepwise import Stepwise
from tests.allocator.arenas import LAYOUTS, UNIT, RandomEngine

# Two sets of policies: moves as few as possible and compaction always; and an arena's own.
EAGER: dict[str, Any] = {"headroom_share": 0.0, "compact_gap_share": 1.0}
PATIENT: dict[str, Any] = {"headroom_share": 1 / 64, "compact_gap_share": 0.125, "max_moves": 3}


def layout_of(name: str, page_size: int = 1, *, units: int | None = None, **config: Any) -> Layout:
    """One of the reference layouts, `units` (its own size by default) beside the sink."""
    bands, size = LAYOUTS[name]
    layout = Layout(
        tuple((band, count * UNIT) for band, count in bands),
        page_size,
        0,
        ArenaConfig(**{**EAGER, **config}),
    )
    total = layout.plan().sink_bytes + (size if units is None else units) * UNIT
    return dataclasses.replace(layout, total_bytes=total)


class Watched:
    """An arena under the model and the stepwise check."""

    def __init__(self, layout: Layout, observer: Any = None) -> None:
        self.model = model_of(layout)
        self.arena: Arena = layout.arena()
        self.arena.books.observer = observer or self.model.observer
        self.checker = Stepwise(self.model, self.arena)

    def apply(self, operation: Operation) -> tuple[Outcome, list[Violation]]:
        """One operation, and what was found wrong with it."""
        self.model.expect(operation)
        outcome = self.arena.apply(operation)
        violations = self.model.settle(operation, outcome)
        return outcome, violations + self.checker.step(self.arena, operation, outcome)

    def run(self, operations: Sequence[Operation]) -> None:
        """Operations with which nothing is wrong."""
        for operation in operations:
            _, violations = self.apply(operation)
            assert not violations, f"{operation}: {violations[0]}"


def random_run(
    layout: Layout, seed: int, steps: int, after: Callable[[Watched, int], None] | None = None
) -> Watched:
    """A random engine's steps, with none of which anything is wrong; `after` looks at each."""
    watched = Watched(layout)
    engine = RandomEngine(random.Random(seed))
    for step in range(steps):
        operation = engine.choose(watched.arena)
        outcome, violations = watched.apply(operation)
        assert not violations, f"step {step}, {operation}: {violations[0]}"
        engine.note(operation, outcome)
        if after is not None:
            after(watched, step)
    return watched


Change = Callable[..., Any]


class Altered:
    """Passes effects on to a model; once armed, those of one kind are changed on the way. `change` is
    given the model and the effect's fields; it returns other fields, or None for an effect that is
    not told."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.method = ""
        self.change: Change | None = None
        self.changed = 0

    def arm(self, method: str, change: Change) -> None:
        """From now on `method` tells something else."""
        self.method, self.change = method, change

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self.model, name)
        if name != self.method or self.change is None:
            return passed_on
        change = self.change

        def told(*fields: Any) -> None:
            altered = change(self.model, *fields)
            self.changed += altered is not fields
            if altered is not None:
                passed_on(*altered)

        return told


def altered_run(
    layout: Layout,
    before: Sequence[Operation],
    operation: Operation,
    method: str,
    change: Change,
) -> list[Violation]:
    """What the model finds when `operation`, after some healthy ones, tells an effect that is not so."""
    model = model_of(layout)
    observer = Altered(model)
    arena = layout.arena()
    books: Any = arena.books
    books.observer = observer
    for step in before:
        model.expect(step)
        violations = model.settle(step, arena.apply(step))
        assert not violations, f"{step}: {violations[0]}"
    observer.arm(method, change)
    model.expect(operation)
    outcome = arena.apply(operation)
    assert observer.changed, f"{operation} told no {method}"
    return model.settle(operation, outcome)


def no_op(model: Model) -> ops.SetGate:
    """An operation that leaves everything as it is."""
    return ops.SetGate(model.gate_closed)
