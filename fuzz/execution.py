"""One program under every check: apply a step, compare with the model, look at the arena, at each step.

The first violation ends an execution. What broke is a `Find`; an exception out of the arena and a run
that does not end are finds too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.events import Observers
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.coverage import Coverage
from bandscope.fuzz.devices import open_fuzz_device
from bandscope.fuzz.model import model_of
from bandscope.fuzz.program import Layout, Names, Program, Step
from bandscope.fuzz.spot_checks import FewestBytes, restored, smallest
from bandscope.fuzz.stepwise import Stepwise

# What only the full check sees is listed, and tested, in tests/fuzz/test_stepwise.py.
FULL_EVERY = 1024


@dataclass(frozen=True)
class Find:
    """What broke. `step`: the index of the step at which it was seen; `operation`: its kind;
    `invariant`: the name of DESIGN.md's table, or `crash` or `hang`."""

    invariant: str
    operation: str
    step: int
    message: str

    @property
    def signature(self) -> str:
        """Equal for finds that are reported once: what broke, in which kind of operation, and where.
        Where is the message without its numbers."""
        words = [word for word in self.message.split() if not any(c.isdigit() for c in word)]
        return f"{self.invariant}/{self.operation}/{' '.join(words)[:60]}"

    def __str__(self) -> str:
        return f"{self.invariant} broke at step {self.step}, {self.operation}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Execution:
    """An arena of `layout`, with all that watches it. `device`: `sim` (the default), `none`, `cpu` or
    `cuda`; `schedule` is the order in which a simulated one works."""

    def __init__(
        self,
        layout: Layout,
        schedule: str = "eager",
        *,
        device: str = "sim",
        coverage: Coverage | None = None,
        full_every: int = FULL_EVERY,
    ) -> None:
        self.layout = layout
        self.find: Find | None = None
        self.steps = 0
        self.names = Names()
        self.model = model_of(layout)
        self.coverage = coverage
        self._full_every = full_every
        self.device = open_fuzz_device(device, schedule)
        self.arena = layout.arena(self.device.arena_device)
        self.device.begin(self.arena)
        observers: list[Any] = [self.model.observer]
        if coverage is not None:
            coverage.begin(layout)
            observers.append(coverage)
        if self.device.observer is not None:
            observers.append(self.device.observer)
        self.arena.books.observer = Observers(*observers) if observers[1:] else observers[0]
        self.checker = Stepwise(self.model, self.arena)
        self.fewest_bytes = FewestBytes(self.model)

    def step(self, step: Step) -> Outcome:
        """Apply one step under all checks; afterwards `find` says whether something broke."""
        operation = self.names.resolve(step)
        model, device = self.model, self.device
        device.step = self.steps
        kind = type(operation)
        if kind is ops.Complete:
            device.finish(operation.ticket)  # type: ignore[attr-defined]
        elif kind is ops.EndLease:
            device.end_copies(operation.lease)  # type: ignore[attr-defined]
        try:
            model.expect(operation)
            if self.fewest_bytes.is_tiny:
                self.fewest_bytes.look(operation)
            outcome = self.arena.apply(operation)
            violations = model.settle(operation, outcome)
            if model.moved:
                violations += self.fewest_bytes.settle(outcome, model.demand)
            if outcome.ok:
                for copy in model.copies:
                    device.state_copied(*copy)
                for graft in model.grafts:
                    device.grafted(*graft)
                if kind is ops.Launch:
                    touched = model.accesses(operation.requests)  # type: ignore[attr-defined]
                    device.forward_over(outcome.value, touched)
                elif kind is ops.Lease:
                    device.copy_over(outcome.value, *model.leased(outcome.value))
            violations += self.checker.step(self.arena, operation, outcome)
            if self.steps % self._full_every == self._full_every - 1:
                violations += self.checker.full(self.arena)
            violations += device.take_violations()
        except Exception as error:  # whatever comes out of an arena is a find, not the end of a night
            violations = [Violation("crash", _crash(error))]
            outcome = Outcome(False, reason="crash")
        self.names.note(step, outcome)
        if self.coverage is not None:
            self.coverage.note(operation, outcome, self.arena)
        if violations:
            self._broke(violations[0], operation.kind)
        self.steps += 1
        return outcome

    def finish(self) -> None:
        """Run the device's queues empty and check everything once more, and what is only checked then
        (`fuzz.spot_checks`)."""
        if self.find is not None:
            return
        self.steps -= 1
        try:
            self.device.drain()
            violations = self.device.take_violations() + self.checker.full(self.arena)
            violations += smallest(self.layout)
            snapshot = self.arena.snapshot()
            violations += restored(self.layout, snapshot, self.arena.digest(snapshot), self.model)
        except Exception as error:
            violations = [Violation("crash", _crash(error))]
        if violations:
            self._broke(violations[0], "end")
        self.steps += 1

    def digest(self) -> str:
        """Of the books and of the bytes: equal for equal programs, in any process."""
        return f"{self.arena.digest()}-{self.device.digest()}"

    def _broke(self, violation: Violation, kind: str) -> None:
        self.find = Find(violation.invariant, kind, self.steps, violation.message)


def _crash(error: Exception) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "allocator" in code.co_filename:
            place = f" in {code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}: {error}"


@dataclass(frozen=True)
class Verdict:
    """How a program ended: steps applied, what was found, the digest, seconds."""

    steps: int
    find: Find | None
    digest: str
    seconds: float


def execute(program: Program, *, device: str = "sim", full_every: int = FULL_EVERY) -> Verdict:
    """Run a program to its end or to its first violation."""
    started = time.perf_counter()
    execution = Execution(
        program.layout, program.schedule, device=device, full_every=full_every
    )
    run_steps(execution, program.steps)
    digest = execution.digest() if execution.find is None else ""
    return Verdict(execution.steps, execution.find, digest, time.perf_counter() - started)


def execute_twice(program: Program) -> Find | None:
    """What one execution finds, or that a second one ends in another state."""
    first, second = execute(program), execute(program)
    if first.find is None and second.find is None and first.digest != second.digest:
        message = "the same program ended in two different states"
        return Find("determinism", "end", len(program.steps), message)
    return first.find or second.find


def run_steps(execution: Execution, steps: Iterable[Step]) -> None:
    """Apply steps until one breaks something; then the device's queues are run empty."""
    with uncollected():
        for step in steps:
            execution.step(step)
            if execution.find is not None:
                return
        execution.finish()


@contextmanager
def uncollected() -> Iterator[None]:
    """Cycles of objects are left alone for a while: a case makes few, and looking for them costs time
    at every step. May be nested."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
