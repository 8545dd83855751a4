"""Every sequence of operations over a small arena, breadth first, through the allocator's own code.

From each state that was met for the first time every operation of the alphabet is tried. A state that
differs from a known one in names only (`naming`) is that state again. So what holds in all
states and all steps found here holds for every sequence of the explored length; when no new state is
left, for every sequence of any length. Memory: a digest of 16 bytes and a parent per state, and the
states of the last level, packed.

A violation ends that branch. Its shortest program is rebuilt from the parents, and run once more on a
new arena from the first step on, with nothing put back in between.
"""

from __future__ import annotations

import gc
import resource
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation, check_books
from bandscope.allocator.operations import Operation
from bandscope.fuzz.exhaustive.alphabet import Alphabet
from bandscope.fuzz.exhaustive.bench import Bench
from bandscope.fuzz.exhaustive.known import NO_PARENT, KnownStates
from bandscope.fuzz.exhaustive.report import Finding, Report
from bandscope.fuzz.exhaustive.state_rules import capacity, nothing_left
from bandscope.fuzz.exhaustive.view import View
from bandscope.fuzz.program import Layout, Program, named

Progress = Callable[[Report], None]

# Calls of `progress` come this many expanded states apart.
PROGRESS_EVERY = 2_000

@dataclass(frozen=True)
class Trail:
    """How a violation is reached: the `ordinals` of operations, each in its state's list, then `last`,
    or a drain in which work completes late (True) or early (False), or nothing."""

    ordinals: tuple[int, ...]
    last: Operation | None = None
    drain: bool | None = None


class Search:
    """A search over one arena; see `explore`."""

    def __init__(
        self,
        layout: Layout,
        alphabet: Alphabet,
        *,
        name: str = "",
        full_check_every: int = 64,
        drain_every: int = 64,
        repeat_every: int = 16,
        findings_max: int = 5,
    ) -> None:
        self.layout, self.alphabet = layout, alphabet
        self.full_check_every, self.drain_every = full_check_every, drain_every
        self.repeat_every, self.findings_max = repeat_every, findings_max
        self.bench = Bench(layout, alphabet)
        self.report = Report(name, layout, alphabet)
        self._known = KnownStates()
        self._probed: set[tuple[object, ...]] = set()
        self._told: set[tuple[str, str]] = set()
        # What a drain showed, which may be a long way to it: told once all shorter ones were tried.
        self._late: list[tuple[int, int, bool, list[Violation]]] = []

    def run(
        self, depth: int | None, states_max: int | None, progress: Progress | None
    ) -> Report:
        """Explore level by level until nothing is new, or `depth` or `states_max` is reached."""
        started, report, bench = time.perf_counter(), self.report, self.bench
        self._cpu_started = time.process_time()
        frontier = [bench.compact.pack()]
        numbers = array("L")
        empty = bench.compact.view()
        self._note(empty, NO_PARENT, 0)
        self._look(0, empty)
        numbers.append(0)
        report.by_depth = [1]
        full = False
        expanded = 0
        while frontier and not full and (depth is None or report.depth < depth):
            following: list[bytes] = []
            following_numbers = array("L")
            for number, packed in zip(numbers, frontier, strict=True):
                self._expand(number, packed, following, following_numbers)
                expanded += 1
                full = len(self._told) >= self.findings_max or (
                    states_max is not None and report.states >= states_max
                )
                if progress is not None and expanded % PROGRESS_EVERY == 0:
                    self._measure(started)
                    progress(report)
                if full:
                    break
            frontier, numbers = following, following_numbers
            if full:
                if frontier:
                    report.by_depth.append(len(frontier))
                break
            report.depth += 1
            if frontier:
                report.by_depth.append(len(frontier))
            self._tell_late(report.depth)
            full = len(self._told) >= self.findings_max
            self._measure(started)
            if progress is not None:
                progress(report)
        self._tell_late()
        report.closed = not frontier and not full and not report.findings
        self._measure(started)
        return report

    def _measure(self, started: float) -> None:
        report = self.report
        report.seconds = time.perf_counter() - started
        report.cpu_seconds = time.process_time() - self._cpu_started
        report.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        report.occupancies = len(self._probed)
        report.fingerprint = self._known.fingerprint

    def _expand(
        self, number: int, packed: bytes, following: list[bytes], numbers: array[int]
    ) -> None:
        """Try everything in one state."""
        bench, report = self.bench, self.report
        compact = bench.compact
        compact.unpack(packed)
        before = compact.view()
        mark = compact.bookmark()
        changed = False
        for ordinal, operation in enumerate(bench.enumerator.operations(before)):
            if changed:
                mark.back()
            report.transitions += 1
            outcome, after, found = bench.step(before, operation)
            changed = True
            if found or after is None or outcome is None:
                self._tell(found, operation, number, ordinal)
                if len(self._told) >= self.findings_max:
                    return
                continue
            if not outcome.ok:
                report.refused += 1
                changed = False  # the rules have seen that it is as before
                continue
            if after.raw == before.raw and not bench.device.issued:
                continue
            if number % self.repeat_every == 0:
                mark.back()
                bench.arena.apply(operation)
                if bench.compact.view().raw != after.raw:
                    found = [Violation("determinism", "the same operation did something else again")]
                    self._tell(found, operation, number, ordinal)
                    continue
            child = self._note(after, number, ordinal)
            if child is not None:
                following.append(compact.pack())
                numbers.append(child)
                self._look(child, after)

    def _note(self, view: View, parent: int, ordinal: int) -> int | None:
        """The number of a state that is new, None for a known one."""
        name = self.bench.naming.canonical(view)
        new = self._known.note(name, parent, ordinal)
        self.report.states += new is not None
        return new

    def _look(self, number: int, view: View) -> None:
        """What is asked once of every new state, and of every new way to fill the bands. The books are
        left as they come."""
        bench, report = self.bench, self.report
        compact, geometry = bench.compact, bench.geometry
        key = (*view.state, view.gate, *(view.pin_count if view.leases else ()))
        is_new = key not in self._probed
        demands = bench.edges
        if not is_new:  # what the answers depend on was met before; one of them is asked all the same
            demands = [bench.edges[number % len(bench.edges)]]
        found = list(capacity(geometry, view, bench.books, demands))
        found += nothing_left(view)
        found += bench.misuse(view, None if is_new else number)
        if number % self.full_check_every == 0:
            found += check_books(bench.books)
            assert compact.is_housed(), "an array left its block; make the search's arena smaller"
        report.probes += len(demands)
        if found:
            self._tell(found, None, number, None)
            return
        drain = number % self.drain_every == 0
        if not is_new and not drain:
            return
        mark = compact.bookmark()
        if is_new:
            self._probed.add(key)
            occupancy = geometry.occupancy(view)
            for index, demand in enumerate(bench.demands):
                # Of the demands that `serves` denies, which is known to be right, one is enough.
                if not geometry.serves(occupancy, demand) and index != number % len(bench.demands):
                    continue
                asked = ops.Reserve(demand)
                outcome, _, found = bench.step(view, asked)
                report.probes += 1
                if found:
                    self._tell(found, asked, number, None)
                if outcome is None or outcome.ok:
                    mark.back()
        if drain:
            mark.back()
            report.drained += 1
            late = number // self.drain_every % 2 == 0
            done: list[Operation] = []
            found = bench.drain(view, late=late, done=done)
            if found:
                self._late.append((len(self.ordinals(number)) + len(done), number, late, found))

    @property
    def states(self) -> frozenset[bytes]:
        """The digests of all states met."""
        return frozenset(self._known.digests)

    # --- findings -----------------------------------------------------------------------------------

    def ordinals(self, number: int) -> tuple[int, ...]:
        """The operations that lead to a state, each by its place in the list of the state before."""
        return tuple(self._known.path(number))

    def _tell_late(self, longest: int | None = None) -> None:
        """What drains showed in at most `longest` operations, shortest first."""
        for steps, number, way, found in sorted(self._late, key=lambda each: each[:2]):
            if longest is None or steps <= longest:
                self._tell(found, None, number, None, drain=way)

    def _tell(
        self,
        found: Sequence[Violation],
        operation: Operation | None,
        number: int,
        ordinal: int | None,
        *,
        drain: bool | None = None,
    ) -> None:
        """Keep the first violation of each kind, with its program."""
        kind = "drain" if drain is not None else operation.kind if operation is not None else "state"
        for violation in found:
            if (violation.invariant, kind) in self._told or len(self._told) >= self.findings_max:
                continue
            self._told.add((violation.invariant, kind))
            path = self.ordinals(number)
            if ordinal is not None:
                trail = Trail((*path, ordinal))
            else:
                trail = Trail(path, operation, drain)
            program, seen = replay(self.layout, self.alphabet, trail)
            confirmed = violation.invariant in {each.invariant for each in seen}
            self.report.findings.append(
                Finding(
                    violation.invariant,
                    violation.message,
                    kind,
                    len(program.steps),
                    program,
                    confirmed,
                )
            )


def replay(
    layout: Layout, alphabet: Alphabet, trail: Trail
) -> tuple[Program, list[Violation]]:
    """The program of a trail, and what the same rules say when it runs on a new arena."""
    bench = Bench(layout, alphabet)
    view = bench.compact.view()
    done: list[Operation] = []
    seen: list[Violation] = []
    for ordinal in trail.ordinals:
        operation = bench.enumerator.operations(view)[ordinal]
        done.append(operation)
        _, after, seen = bench.step(view, operation)
        if after is None:
            break
        view = after
        if not seen:  # asked in every state, as an engine does: an answer may have been remembered
            seen = list(capacity(bench.geometry, view, bench.books, bench.edges))
    else:
        if trail.last is not None:
            done.append(trail.last)
            seen = bench.step(view, trail.last)[2]
        elif trail.drain is not None:
            seen = bench.drain(view, late=trail.drain, done=done)
        elif not seen:
            seen = [
                *capacity(bench.geometry, view, bench.books, bench.edges),
                *nothing_left(view),
                *bench.misuse(view),
                *check_books(bench.books),
            ]
    return Program(layout, named(done), profile="exhaustive"), seen


def explore(
    layout: Layout,
    alphabet: Alphabet,
    *,
    depth: int | None = None,
    states_max: int | None = None,
    progress: Progress | None = None,
    name: str = "",
    full_check_every: int = 64,
    drain_every: int = 64,
    repeat_every: int = 16,
    findings_max: int = 5,
) -> Report:
    """Search all sequences of an alphabet's operations over a small arena.

    `depth`: at most so many operations; `states_max`: stop inside the level in which so many states were
    met (the levels before it are complete). `progress` gets the report as it grows. Every
    `full_check_every`-th state also goes through `check_books`, every `drain_every`-th is drained, from
    every `repeat_every`-th each operation is tried twice and must do the same.
    `findings_max`: stop after so many different violations. The result depends on nothing but the
    arguments, times and memory apart.
    """
    search = Search(
        layout,
        alphabet,
        name=name,
        full_check_every=full_check_every,
        drain_every=drain_every,
        repeat_every=repeat_every,
        findings_max=findings_max,
    )
    # Nothing here is circular but exceptions, and the collector would walk all states again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return search.run(depth, states_max, progress)
    finally:
        if collecting:
            gc.enable()
