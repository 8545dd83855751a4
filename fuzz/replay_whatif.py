"""What if: the operations of a trace on another arena, and what would have changed.

A trace holds what an engine asked for, not what it would have asked on another arena; so a small policy
stands in for it. What is refused now and was done then is tried again after the youngest request is
retracted (which may be the one that asks), until it fits or nobody is left who asks. What a retracted
request asks later is left out. What was refused then is not done now either, since the engine asked
again, but counted where it would have fitted. So the table says how much pressure there would have been,
and what that pressure costs in moves, not how an engine would have scheduled around it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import ConfigError, SizingError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.sizing import parse_bytes
from bandscope.fuzz.generate.from_trace import program_of_trace
from bandscope.fuzz.program import Layout, Names, Program, Step
from bandscope.fuzz.replay_whatif_memory import (
    REFUSED,
    Change,
    Memory,
    OtherArena,
    Pools,
    WhatIf,
    changed_layout,
)
from bandscope.inspect.counters import Counters
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import operations_of

__all__ = ["Change", "WhatIf", "changed_layout", "parse_sweep", "what_if"]

_SWEEP_MAX = 100


def parse_sweep(text: str) -> list[int]:
    """`8GiB` → one size; `8GiB..16GiB:5` → five sizes from the first to the last, evenly spaced."""
    match = re.fullmatch(r"\s*([^.:]+(?:\.\d+[^.:]*)?)\.\.([^:]+):(\d+)\s*", text)
    if match is None:
        if ".." in text or ":" in text:
            raise SizingError(
                f"arena sizes {text!r} were asked for; write one size, or a sweep like 8GiB..16GiB:5"
            )
        return [parse_bytes(text)]
    low, high, count = parse_bytes(match[1]), parse_bytes(match[2]), int(match[3])
    if not 2 <= count <= _SWEEP_MAX or high <= low:
        raise SizingError(
            f"arena sizes {text!r} were asked for; a sweep goes upwards in 2 to {_SWEEP_MAX} steps, "
            "like 8GiB..16GiB:5"
        )
    return [low + (high - low) * step // (count - 1) for step in range(count)]


def what_if(
    trace: Trace, changes: Sequence[Change], *, start: int | None = None, stop: int | None = None
) -> list[WhatIf]:
    """A row for the arena as it was, then one for each change.

    `TraceError` for a trace that is no program, `ConfigError` for a change that means nothing.
    """
    program = program_of_trace(trace, start, stop)
    asked = sum(
        1 for _ in operations_of(trace, trace.start if start is None else start,
                                 trace.stop if stop is None else stop)
    )  # fmt: skip
    opening = len(program.steps) - asked
    outcomes: list[Outcome] = []
    recorded, counters = _recorded(program, opening, outcomes)
    rows = [recorded]
    for change in changes:
        layout = changed_layout(program.layout, change)
        row = WhatIf(change, layout.total_bytes, layout.page_size)
        rows.append(row)
        try:
            if change.pools:
                memory: Memory = Pools(layout, counters)
            else:
                memory = OtherArena(layout)
        except (SizingError, ConfigError) as error:
            row.problem = str(error)
            continue
        _Policy(program.layout, layout, memory, row).run(program.steps, outcomes, opening)
        memory.count(row)
    return rows


def _recorded(
    program: Program, opening: int, outcomes: list[Outcome]
) -> tuple[WhatIf, Counters]:
    """The trace on the arena that it was recorded on."""
    memory = OtherArena(program.layout)
    names = Names()
    row = WhatIf(Change(), memory.arena.total_bytes, program.layout.page_size)
    for number, step in enumerate(program.steps):
        if number == opening:
            memory.begin_counting()
        outcome = memory.apply(names.resolve(step))
        names.note(step, outcome)
        outcomes.append(outcome)
        if number >= opening:
            row.operations += 1
            row.refusals += outcome.reason in REFUSED
            row.retractions += (
                outcome.ok
                and isinstance(step.operation, ops.Release)
                and step.operation.why == "retracted"
            )
    memory.count(row)
    return row, memory.counters


class _Policy:
    """Asks a memory for what was recorded, and retracts requests where it must."""

    def __init__(self, recorded: Layout, layout: Layout, memory: Memory, row: WhatIf) -> None:
        self.old_page, self.new_page = recorded.page_size, layout.page_size
        self.memory = memory
        self.row = row
        self.names = Names()
        self.running: dict[int, int] = {}  # request: how many were admitted before it
        self.age = 0
        self.gone: set[int] = set()
        self.ahead: dict[int, int] = {}  # tokens that were computed then and are matched now

    def run(self, steps: Sequence[Step], outcomes: Sequence[Outcome], opening: int) -> None:
        """Ask for every step; the first `opening` only make the state to begin with."""
        for number, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
            if number == opening:
                self.memory.begin_counting()
                self.row.refusals = self.row.retractions = self.row.left_out = 0
            self._step(step, outcome)
            self.row.operations += number >= opening

    def _step(self, step: Step, then: Outcome) -> None:
        operation = self._without_the_gone(self.names.resolve(step))
        if operation is None:
            self.row.left_out += 1
            return
        if not then.ok:
            if then.reason in REFUSED and self.memory.would_serve(operation):
                self.row.served += 1
            return
        operation = self._without_the_matched(operation)
        if operation is None:
            return
        outcome = self._ask(operation)
        self.names.note(step, outcome)
        if outcome.ok:
            if isinstance(operation, ops.Admit):
                self.running[operation.request] = self.age
                self.age += 1
                self._follow_match(operation.request, then.value or 0, outcome.value or 0)
            elif isinstance(operation, ops.Release):
                self.running.pop(operation.request, None)
                self.ahead.pop(operation.request, None)

    def _ask(self, operation: Operation) -> Outcome:
        outcome = self.memory.apply(operation)
        if outcome.reason in REFUSED:
            self.row.refusals += 1
            outcome = self._make_room(operation, outcome)
        return outcome

    def _follow_match(self, request: int, then: int, now: int) -> None:
        """A request began with `now` tokens from the prefix cache instead of `then`: what is missing it
        computes at once, what is more it need not compute later."""
        if now < then:
            self._ask(ops.Extend(request, then - now))
        elif now > then:
            self.ahead[request] = now - then

    def _without_the_matched(self, operation: Operation) -> Operation | None:
        """The operation without tokens that are there already, None when nothing is left."""
        if not isinstance(operation, ops.Extend) or not self.ahead.get(operation.request):
            return operation
        less = min(self.ahead[operation.request], operation.tokens)
        self.ahead[operation.request] -= less
        if less == operation.tokens:
            return None
        return dataclasses.replace(operation, tokens=operation.tokens - less)

    def _make_room(self, operation: Operation, outcome: Outcome) -> Outcome:
        if not _requests(operation):
            return outcome  # a reservation; nothing was taken
        while outcome.reason in REFUSED:
            asking = _requests(operation)
            among = self.running if outcome.reason == "memory" else asking
            victim = max([*among, *asking], key=lambda one: self.running.get(one, self.age))
            self._retract(victim)
            is_itself = isinstance(operation, ops.Admit) and victim in asking
            left = None if is_itself else self._without_the_gone(operation)
            if left is None:
                return outcome
            operation = left
            outcome = self.memory.apply(operation)
        return outcome

    def _retract(self, request: int) -> None:
        if request in self.running:
            self.memory.apply(ops.Release(request, "retracted"))
            del self.running[request]
            self.ahead.pop(request, None)
        self.gone.add(request)
        self.row.retractions += 1

    def _without_the_gone(self, operation: Operation) -> Operation | None:
        """The operation without requests that have been retracted, None when nothing is left."""
        match operation:
            case ops.Admit(request=request):
                self.gone.discard(request)  # its number again: another request
                return operation
            case ops.Decode(requests=requests) | ops.TrimWindow(requests=requests) | ops.Launch(
                requests=requests
            ):
                left = tuple(request for request in requests if request not in self.gone)
                if not left and requests:
                    return None
                if len(left) == len(requests):
                    return operation
                return dataclasses.replace(operation, requests=left)
            case ops.Lease(request=request):
                if request in self.gone:
                    return None
                return self._rescaled(operation)
            case (
                ops.Extend(request=request)
                | ops.Release(request=request)
                | ops.Publish(request=request)
                | ops.Checkpoint(request=request)
            ):
                return None if request in self.gone else operation
        return operation

    def _rescaled(self, lease: ops.Lease) -> ops.Lease:
        """A lease of the same tokens in pages of another size."""
        if self.old_page == self.new_page or lease.band == "mamba":
            return lease
        first = lease.first_page * self.old_page // self.new_page
        stop = -(-lease.stop_page * self.old_page // self.new_page)
        return dataclasses.replace(lease, first_page=first, stop_page=max(stop, first + 1))


def _requests(operation: Operation) -> list[int]:
    found = getattr(operation, "requests", None)
    if found is not None:
        return list(found)
    request = getattr(operation, "request", None)
    return [] if request is None else [request]
