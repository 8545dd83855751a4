"""Every sequence of operations over a small arena with a prefix cache, breadth first.

As `search` does for arenas without one, but a state is left and found again by doing its operations once
more, so nothing of the allocator needs to be taken apart. A forward is launched and completed at once.
States that differ in names only (numbers of requests, pages, nodes, leases; the clock but for the order
of uses) are one.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation, check_books
from bandscope.allocator.operations import Operation
from bandscope.fuzz.exhaustive.bench import small_demands
from bandscope.fuzz.exhaustive.cached_alphabet import CacheAlphabet, Letter
from bandscope.fuzz.exhaustive.cached_bench import CachedBench
from bandscope.fuzz.exhaustive.cached_facts import Facts
from bandscope.fuzz.exhaustive.cached_rules import state_violations
from bandscope.fuzz.exhaustive.known import NO_PARENT, KnownStates
from bandscope.fuzz.exhaustive.report import Finding, Report
from bandscope.fuzz.program import Layout, Program, named

EVERYTHING = 1 << 20


class CachedSearch:
    """A search over one arena; see `explore_cached`."""

    def __init__(
        self, layout: Layout, alphabet: CacheAlphabet, *, name: str, findings_max: int,
        drain_every: int, probe_all: bool = False,
    ) -> None:  # fmt: skip
        self.layout, self.alphabet = layout, alphabet
        self.findings_max, self.drain_every = findings_max, drain_every
        self.probe_all = probe_all
        self._probed: set[tuple[object, ...]] = set()
        self.bench = CachedBench(layout)
        self.report = Report(name, layout, alphabet)
        self.demands = small_demands(len(self.bench.geometry.names))
        self._known = KnownStates()
        self._told: set[tuple[str, str]] = set()

    def run(
        self, depth: int | None, states_max: int | None, progress: Callable[[Report], None] | None
    ) -> Report:
        """Explore level by level until nothing is new, or `depth` or `states_max` is reached."""
        started, cpu, report = time.perf_counter(), time.process_time(), self.report
        facts = self.bench.facts()
        self._note(facts, NO_PARENT, 0)
        self._look(0, facts)
        frontier, report.by_depth, full = [0], [1], False
        while frontier and not full and (depth is None or report.depth < depth):
            following: list[int] = []
            for number in frontier:
                self._expand(number, following)
                full = len(self._told) >= self.findings_max or (
                    states_max is not None and report.states >= states_max
                )
                if progress is not None and number % 500 == 0:
                    progress(report)
                if full:
                    break
            frontier = following
            report.depth += not full
            if frontier:
                report.by_depth.append(len(frontier))
        report.closed = not frontier and not full and not report.findings
        report.seconds = time.perf_counter() - started
        report.cpu_seconds = time.process_time() - cpu
        report.memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        report.occupancies = self.bench.geometry.packing.remembered
        report.fingerprint = self._known.fingerprint
        return report

    def _letters(self, facts: Facts) -> list[Letter]:
        return self.alphabet.choices(self.bench.arena, facts, self.bench.owners)

    def _reach(self, number: int) -> list[Operation]:
        """Bring the arena to a state; returns the operations that lead there."""
        self.bench.empty()
        done: list[Operation] = []
        for ordinal in self._known.path(number):
            facts = self.bench.facts()
            letter = self._letters(facts)[ordinal]
            for operation in letter:
                self.bench.do(operation, self.bench.facts())
            done += letter
        return done

    def _expand(self, number: int, following: list[int]) -> None:
        bench, report = self.bench, self.report
        self._reach(number)
        mark, before = bench.mark(), bench.facts()
        same = bench.arena.digest(mark[0])
        for ordinal, letter in enumerate(self._letters(before)):
            if ordinal:
                bench.back(mark)
            report.transitions += 1
            outcome, found = bench.step(letter, before)
            if found or outcome is None:
                self._tell(found, letter, number)
                continue
            if not outcome.ok:
                report.refused += 1
                if bench.arena.digest() != same:
                    message = f"a refused {letter[0].kind} changed the books"
                    self._tell([Violation("atomic", message)], letter, number)
                continue
            after = bench.facts()
            child = self._note(after, number, ordinal)
            if child is not None:
                following.append(child)
                self._look(child, after)
                continue
            # A known state, but the bytes are not in its name.
            found = list(state_violations(bench.arena, after))
            if found:
                self._tell(found, letter, number)

    def _note(self, facts: Facts, parent: int, ordinal: int) -> int | None:
        """The number of a state that is new, None for a known one."""
        new = self._known.note(self.bench.name(facts), parent, ordinal)
        self.report.states += new is not None
        return new

    def _look(self, number: int, facts: Facts) -> None:
        """What is asked once of every new state: invariants, counts, bytes; `serves` against brute force
        and against the operation itself; a drain of every so-many-th."""
        bench, report = self.bench, self.report
        arena = bench.arena
        found = [*check_books(arena.books), *state_violations(arena, facts)]
        for demand in self.demands:
            report.probes += 1
            if arena.serves(demand) != facts.serves(demand):
                answer = arena.serves(demand)
                message = f"serves({demand}) is {answer}, which is wrong"
                found.append(Violation("capacity", message))
        if found:
            self._tell(found, (), number)
            return
        # What the answer depends on; which pages go then depends on more, so one is tried all the same.
        key = (facts.needs, facts.hulls, facts.evictable())
        demands = self.demands
        if key in self._probed and not self.probe_all:
            demands = [demands[number % len(demands)]]
        self._probed.add(key)
        mark = bench.mark()
        for demand in demands:
            letter: Letter = (ops.Reserve(demand),)
            report.probes += 1
            outcome, found = bench.step(letter, facts)
            if found:
                self._tell(found, letter, number)
            if outcome is None or outcome.ok:
                bench.back(mark)
        if number % self.drain_every == 0:
            report.drained += 1
            self._drain(number, facts)

    def _drain(self, number: int, facts: Facts) -> None:
        """Everything ends and everything cached goes: nothing is left."""
        bench = self.bench
        steps: list[Operation] = [ops.SetGate(False)]
        steps += [ops.Release(request) for request in facts.rows]
        steps += [ops.EndLease(lease) for lease in bench.owners]
        steps.append(ops.Evict((EVERYTHING,) * len(bench.geometry.names)))
        found: list[Violation] = []
        for at, operation in enumerate(steps):
            _, found = bench.step((operation,), bench.facts())
            if found:
                self._tell(found, tuple(steps[: at + 1]), number)
                return
        books = bench.arena.books
        for band in books.bands:
            if band.extent or band.live or band.pending or books.pins.deferred[band.index]:
                message = f"nothing is held, but {band.name} keeps {band.live} pages (leak)"
                found.append(Violation("ownership", message))
        found += check_books(books)
        if found:
            self._tell(found, tuple(steps), number)

    def _tell(self, found: Sequence[Violation], letter: Letter, number: int) -> None:
        """Keep the first violation of each kind, with its program; run it once more from the start."""
        kind = letter[-1].kind if letter else "state"
        for violation in found:
            if (violation.invariant, kind) in self._told or len(self._told) >= self.findings_max:
                continue
            self._told.add((violation.invariant, kind))
            mark = self.bench.mark()
            done = [*self._reach(number), *letter]
            again = CachedSearch(
                self.layout, self.alphabet, name="", findings_max=1, drain_every=1 << 30
            )
            again._known = self._known
            confirmed = self._again(again, letter, number, violation)
            self.bench.back(mark)
            program = Program(self.layout, named(done), profile="exhaustive")
            self.report.findings.append(
                Finding(
                    violation.invariant, violation.message, kind, len(done), program, confirmed
                )
            )

    @staticmethod
    def _again(other: CachedSearch, letter: Letter, number: int, violation: Violation) -> bool:
        """Does a new arena show the same violation?"""
        other._reach(number)
        bench = other.bench
        seen: list[Violation] = []
        if not letter:
            facts = bench.facts()
            seen = [*check_books(bench.arena.books), *state_violations(bench.arena, facts)]
            if any(bench.arena.serves(d) != facts.serves(d) for d in other.demands):
                seen.append(Violation("capacity", ""))
        elif isinstance(letter[0], ops.SetGate) and len(letter) > 1:  # a drain
            for operation in letter:
                seen += bench.step((operation,), bench.facts())[1]
            seen += check_books(bench.arena.books)
            if any(band.live for band in bench.arena.books.bands):
                seen.append(Violation("ownership", ""))
        else:
            before = bench.arena.digest()
            outcome, seen = bench.step(letter, bench.facts())
            seen += state_violations(bench.arena, bench.facts())
            if outcome is not None and not outcome.ok and bench.arena.digest() != before:
                seen.append(Violation("atomic", ""))
        return violation.invariant in {each.invariant for each in seen}


def explore_cached(
    layout: Layout,
    alphabet: CacheAlphabet,
    *,
    depth: int | None = None,
    states_max: int | None = None,
    progress: Callable[[Report], None] | None = None,
    name: str = "",
    findings_max: int = 5,
    drain_every: int = 16,
    probe_all: bool = False,
) -> Report:
    """Search all sequences of an alphabet's letters over a small arena with a prefix cache.

    `depth`: at most so many letters; `states_max`: stop inside the level in which so many states were
    met. In every state met: all invariants, counts and bytes; `serves` of every small demand against
    brute force, and in every one that is filled anew (with `probe_all` in all) against the operation.
    Every `drain_every`-th state is drained.
    """
    search = CachedSearch(
        layout, alphabet, name=name, findings_max=findings_max, drain_every=drain_every,
        probe_all=probe_all,
    )  # fmt: skip
    return search.run(depth, states_max, progress)
