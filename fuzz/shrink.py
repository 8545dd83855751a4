"""The smallest program that still breaks the same invariant.

Passes, repeated until none helps: cut behind the find, leave out whole requests, leave out runs of steps
(halves, quarters, …, single ones), thin out batches, lower numbers, make the layout and the schedule
simpler. Every candidate is run; one that breaks the same invariant and is simpler is kept. Nothing
depends on time, so the same program shrinks to the same result; the best so far is a program of its
own, so an interrupted shrink goes on from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.errors import BandscopeError
from bandscope.fuzz.execution import Find, execute, execute_twice
from bandscope.fuzz.program import Program, Step

EXECUTIONS_MAX = 4000

# Runs a program and says what it found.
Runner = Callable[[Program], Find | None]


@dataclass(frozen=True)
class Shrunk:
    """The smallest program found, what it breaks, and how many programs were run for it."""

    program: Program
    find: Find
    executions: int


def shrink(
    program: Program,
    find: Find,
    *,
    run: Runner | None = None,
    executions_max: int = EXECUTIONS_MAX,
    kept: Callable[[Program, Find], None] | None = None,
) -> Shrunk:
    """Make `program`, which breaks `find.invariant`, as small as it goes. `kept` is told every
    improvement, so that it can be written down."""
    if run is None:
        run = execute_twice if find.invariant == "determinism" else _run
    return _Shrinker(program, find, run, executions_max, kept).shrink()


def _run(program: Program) -> Find | None:
    # A candidate ends where the find was, and an execution ends with the full check, so what only that
    # one sees is seen without running it at every step.
    return execute(program).find


class _Shrinker:
    def __init__(
        self,
        program: Program,
        find: Find,
        run: Runner,
        executions_max: int,
        kept: Callable[[Program, Find], None] | None,
    ) -> None:
        self.program, self.find = program, find
        self._run, self._kept = run, kept
        self.executions, self.executions_max = 0, executions_max
        self._tried: set[Program] = {program}

    def shrink(self) -> Shrunk:
        self._cut()
        passes = (
            self._requests, self._runs, self._pairs, self._batches, self._numbers, self._layout,
            self._schedule,
        )  # fmt: skip
        before = None
        while before != self.program and self.executions < self.executions_max:
            before = self.program
            for simplify in passes:
                simplify()
        return Shrunk(self.program, self.find, self.executions)

    # --- trying ---------------------------------------------------------------------------------

    def _try(self, program: Program) -> bool:
        """Keep `program` when it breaks the same invariant."""
        if program in self._tried or self.executions >= self.executions_max:
            return False
        self._tried.add(program)
        self.executions += 1
        try:
            find = self._run(program)
        except BandscopeError:  # no such arena
            return False
        if find is None or find.invariant != self.find.invariant:
            return False
        self.program, self.find = program, find
        self._cut()
        if self._kept is not None:
            self._kept(self.program, self.find)
        return True

    def _cut(self) -> None:
        steps = self.program.steps[: self.find.step + 1]
        self.program = dataclasses.replace(self.program, steps=steps)
        self._tried.add(self.program)

    def _steps(self, steps: Sequence[Step]) -> bool:
        return self._try(dataclasses.replace(self.program, steps=tuple(steps)))

    # --- fewer steps ------------------------------------------------------------------------------

    def _requests(self) -> None:
        """Leave out everything about one request, the busiest last."""
        counts: dict[int, int] = {}
        for step in self.program.steps:
            for request in _requests_of(step):
                counts[request] = counts.get(request, 0) + 1
        for request in sorted(counts, key=lambda name: (counts[name], name)):
            self._steps([s for step in self.program.steps for s in _without(step, request)])

    def _runs(self) -> None:
        size = max(1, len(self.program.steps) // 2)
        while size:
            start = len(self.program.steps) - size
            while start >= 0:
                steps = self.program.steps
                start = min(start, len(steps) - size)
                if start < 0:
                    break
                self._steps([*steps[:start], *steps[start + size :]])
                start -= size
            size //= 2

    def _pairs(self) -> None:
        """Leave out two steps that only work together, such as a launch and its completion."""
        if len(self.program.steps) > 40:
            return
        first = 0
        while first < len(self.program.steps):
            second = first + 1
            while second < len(self.program.steps):
                steps = self.program.steps
                rest = [*steps[:first], *steps[first + 1 : second], *steps[second + 1 :]]
                if not self._steps(rest):
                    second += 1
            first += 1

    # --- simpler steps ----------------------------------------------------------------------------

    def _batches(self) -> None:
        self._replace_each(_smaller_batches)

    def _numbers(self) -> None:
        page = self.program.layout.page_size
        self._replace_each(lambda step: _lower_numbers(step, page))
        self._rename()

    def _replace_each(self, simpler: Callable[[Step], Iterator[Step]]) -> None:
        index = len(self.program.steps) - 1
        while index >= 0:
            again = True
            while again and index < len(self.program.steps):
                again = False
                for candidate in simpler(self.program.steps[index]):
                    steps = list(self.program.steps)
                    steps[index] = candidate
                    if self._steps(steps):
                        again = True
                        break
            index -= 1

    def _rename(self) -> None:
        """Number requests, tickets and leases from 0 on, in the order of their appearance."""
        requests: dict[int, int] = {}
        for step in self.program.steps:
            for request in _requests_of(step):
                requests.setdefault(request, len(requests))
        self._steps([_renamed(step, requests) for step in self.program.steps])

    # --- a simpler arena and device ----------------------------------------------------------------

    def _layout(self) -> None:
        again = True
        while again:
            again = any(
                self._try(dataclasses.replace(self.program, layout=layout))
                for layout in _simpler_layouts(self.program)
            )

    def _schedule(self) -> None:
        for schedule in ("eager", "latest"):
            if self.program.schedule == schedule:
                return
            if self._try(dataclasses.replace(self.program, schedule=schedule)):
                return


# --- steps -----------------------------------------------------------------------------------------


def _requests_of(step: Step) -> tuple[int, ...]:
    operation = step.operation
    if hasattr(operation, "requests"):
        return tuple(operation.requests)
    return (operation.request,) if hasattr(operation, "request") else ()


def _without(step: Step, request: int) -> list[Step]:
    """The step with no word of `request`; nothing when nothing is left."""
    named = _requests_of(step)
    if request not in named:
        return [step]
    if not hasattr(step.operation, "requests"):
        return []
    rest = tuple(name for name in named if name != request)
    return [_with(step, requests=rest)] if rest else []


def _with(step: Step, **fields: object) -> Step:
    return Step(dataclasses.replace(step.operation, **fields), step.name)  # type: ignore[arg-type]


def _renamed(step: Step, requests: dict[int, int]) -> Step:
    operation = step.operation
    if hasattr(operation, "requests"):
        return _with(step, requests=tuple(requests[name] for name in operation.requests))
    if hasattr(operation, "request"):
        return _with(step, request=requests[operation.request])
    return step


def _smaller_batches(step: Step) -> Iterator[Step]:
    requests = getattr(step.operation, "requests", ())
    if len(requests) < 2:
        return
    half = len(requests) // 2
    yield _with(step, requests=requests[:half])
    yield _with(step, requests=requests[half:])
    for left_out in range(len(requests)):
        yield _with(step, requests=requests[:left_out] + requests[left_out + 1 :])


def _lower_numbers(step: Step, page: int) -> Iterator[Step]:
    match step.operation:
        case ops.Extend(tokens=count):
            for fewer in _lower(count, page):
                yield _with(step, tokens=fewer)
        case ops.Admit(state_slots=count):
            for fewer in _lower(count, 1):
                yield _with(step, state_slots=fewer)
        case ops.Reserve(demand=demand):
            for index, count in enumerate(demand):
                for fewer in _lower(count, 1):
                    yield _with(step, demand=(*demand[:index], fewer, *demand[index + 1 :]))
        case ops.Lease(first_page=first, stop_page=stop, deadline_ticket=deadline):
            if deadline is not None:
                yield _with(step, deadline_ticket=None)
            if stop - first > 1:
                yield _with(step, stop_page=first + 1)
                yield _with(step, first_page=stop - 1)
        case ops.Compact(urgent=urgent, max_moves=cap):
            if urgent and cap is not None:
                yield _with(step, max_moves=None)
            if not urgent and cap is not None:
                yield _with(step, max_moves=None)
                for fewer in _lower(cap, 1):
                    yield _with(step, max_moves=fewer)


def _lower(count: int, page: int) -> Iterator[int]:
    """Smaller numbers, the smallest first, whole pages before others."""
    seen = {count}
    for fewer in (0, 1, page, count // 2 // page * page, count // 2, count - page, count - 1):
        if 0 <= fewer < count and fewer not in seen:
            seen.add(fewer)
            yield fewer


def _simpler_layouts(program: Program) -> Iterator:  # type: ignore[type-arg]
    """Layouts with a band fewer, plain policies, smaller pages, a smaller arena."""
    layout = program.layout
    used = {
        step.operation.band for step in program.steps if isinstance(step.operation, ops.Lease)
    }
    widths = {
        len(step.operation.demand)
        for step in program.steps
        if isinstance(step.operation, ops.Reserve)
    }
    for index, (name, _) in enumerate(layout.bands):
        if len(layout.bands) > 2 and name != "full" and name not in used and not widths:
            rest = layout.bands[:index] + layout.bands[index + 1 :]
            yield dataclasses.replace(layout, bands=rest)
    default = ArenaConfig()
    if layout.config != default:
        yield dataclasses.replace(layout, config=default)
        for item in dataclasses.fields(ArenaConfig):
            plain = getattr(default, item.name)
            if getattr(layout.config, item.name) != plain:
                config = dataclasses.replace(layout.config, **{item.name: plain})
                yield dataclasses.replace(layout, config=config)
    total = layout.total_bytes
    for smaller in (total // 2, total * 3 // 4, total * 7 // 8, total * 15 // 16, total - 256):
        if 0 < smaller < total:
            yield dataclasses.replace(layout, total_bytes=smaller // 256 * 256)
    if layout.page_size > 1:
        bands = tuple(
            (name, size if name == "mamba" else max(1, size // layout.page_size))
            for name, size in layout.bands
        )
        yield dataclasses.replace(layout, page_size=1, bands=bands)
        yield dataclasses.replace(layout, page_size=1)
