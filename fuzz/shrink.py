"""The smallest program that still breaks the same invariant.

Passes, repeated until none helps: cut behind the find, leave out whole requests, leave out runs of
steps (halves, quarters, …, single ones), thin out batches, lower numbers, shorten keys, make the layout
and the schedule simpler. Every candidate is run; one that breaks the same invariant and is simpler is
kept. Nothing depends on time, so the same program shrinks to the same result; the best so far is a
program of its own, so an interrupted shrink goes on from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import BandscopeError
from bandscope.fuzz.execution import Find, execute, execute_twice
from bandscope.fuzz.program import Program, Step
from bandscope.fuzz.shrink_steps import (
    in_pages_of_one,
    key_of,
    lower_numbers,
    renamed,
    requests_of,
    simpler_layouts,
    smaller_batches,
    with_key,
    without,
)

EXECUTIONS_MAX = 4000
EVERYTHING = 1 << 20  # more pages than any band has

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
            self._requests, self._runs, self._evictions, self._pairs, self._batches, self._numbers,
            self._keys, self._layout, self._schedule,
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
            for request in requests_of(step):
                counts[request] = counts.get(request, 0) + 1
        for request in sorted(counts, key=lambda name: (counts[name], name)):
            self._steps([s for step in self.program.steps for s in without(step, request)])

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

    def _evictions(self) -> None:
        """An eviction that is asked for in the place of a demand that makes one: it needs no full arena,
        so what filled it can go."""
        steps, layout = self.program.steps, self.program.layout
        if not layout.config.prefix_cache or not steps or isinstance(steps[-1].operation, ops.Evict):
            return
        bands = range(len(layout.bands))
        few = [tuple(int(band == index) for band in bands) for index in bands]
        for pages in (tuple(1 for _ in bands), *few, tuple(EVERYTHING for _ in bands)):
            if self._steps([*steps[:-1], Step(ops.Evict(pages))]):
                return

    # --- simpler steps ----------------------------------------------------------------------------

    def _batches(self) -> None:
        self._replace_each(smaller_batches)

    def _numbers(self) -> None:
        page = self.program.layout.page_size
        self._replace_each(lambda step: lower_numbers(step, page))
        self._rename()

    def _keys(self) -> None:
        """All keys at once, so that those that agree go on to: fewer letters, cut, without their
        beginning."""
        longest = max((len(key_of(step)) for step in self.program.steps), default=0)
        if not longest:
            return
        unit = self.program.layout.page_size
        for change in (
            lambda key: tuple([0] * len(key)),
            lambda key: tuple([int(letter != key[0]) for letter in key]),
            lambda key: tuple([letter % 2 for letter in key]),
        ):
            self._steps([with_key(step, change(key_of(step))) for step in self.program.steps])
        for count in (longest // 2, longest - unit, longest - 1, 1):
            if 0 < count < longest:
                for part in (slice(0, count), slice(longest - count, None)):
                    steps = [with_key(step, key_of(step)[part]) for step in self.program.steps]
                    self._steps(steps)

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
            for request in requests_of(step):
                requests.setdefault(request, len(requests))
        self._steps([renamed(step, requests) for step in self.program.steps])

    # --- a simpler arena and device ----------------------------------------------------------------

    def _layout(self) -> None:
        if self.program.layout.page_size > 1:
            self._try(in_pages_of_one(self.program))
        again = True
        while again:
            again = any(
                self._try(dataclasses.replace(self.program, layout=layout))
                for layout in simpler_layouts(self.program)
            )

    def _schedule(self) -> None:
        for schedule in ("eager", "latest"):
            if self.program.schedule == schedule:
                return
            if self._try(dataclasses.replace(self.program, schedule=schedule)):
                return
