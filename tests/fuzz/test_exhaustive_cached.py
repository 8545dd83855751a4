"""The exhaustive search over arenas with a prefix cache: what it proves, and what it would find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bandscope.allocator import operations as ops
from bandscope.fuzz.exhaustive import ARENAS, CacheAlphabet, explore_cached, explore_named
from bandscope.fuzz.exhaustive.arenas import cached
from bandscope.fuzz.exhaustive.cached_bench import CachedBench
from bandscope.fuzz.exhaustive.cached_facts import Facts
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.program import Names, Program

QUICK = [
    name
    for name, arena in ARENAS.items()
    if not arena.nightly and isinstance(arena.alphabet, CacheAlphabet)
]


@pytest.mark.parametrize("name", QUICK)
def test_every_state_and_step_of_a_small_arena_is_right(name: str) -> None:
    """Nothing is violated, and the search went as far as it says."""
    report = explore_named(name)
    assert report.ok, str(report)
    assert report.depth == ARENAS[name].depth
    assert sum(report.by_depth) == report.states > 300
    assert report.refused > 0 and report.drained > 10 and report.probes > report.states
    assert report.to_json()["alphabet"]["requests"] == 2


def test_the_same_search_in_any_process() -> None:
    """States, transitions and fingerprint do not depend on the process or the hash seed."""
    code = (
        "from bandscope.fuzz.exhaustive import explore_named\n"
        "r = explore_named('twin-states', depth=5)\n"
        "print(r.states, r.transitions, r.refused, r.probes, r.by_depth, r.fingerprint)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1


def test_states_of_one_name_have_one_future() -> None:
    """What is left out of a name decides nothing: wherever a state is met again, the same operations
    lead to the same outcomes and names."""
    arena = ARENAS["twins"]
    alphabet = arena.alphabet
    assert isinstance(alphabet, CacheAlphabet)
    bench = CachedBench(arena.layout)

    def future() -> set[tuple[object, ...]]:
        mark, facts = bench.mark(), bench.facts()
        found: set[tuple[object, ...]] = set()
        for letter in alphabet.choices(bench.arena, facts, bench.owners):
            outcome, violations = bench.step(letter, facts)
            assert outcome is not None and not violations
            # The order of requests is a name, so kinds stand for operations.
            kinds = tuple(operation.kind for operation in letter)
            key = getattr(letter[0], "key", None)
            value = None if isinstance(letter[0], ops.Lease | ops.Launch) else outcome.value
            found.add((kinds, key, outcome.ok, outcome.reason, value, bench.name(bench.facts())))
            bench.back(mark)
        return found

    known: dict[bytes, set[tuple[object, ...]]] = {}
    met = 0
    level = [()]  # the choices that lead to a state
    for _ in range(6):
        following: list[tuple[int, ...]] = []
        for path in level:
            bench.empty()
            for ordinal in path:
                facts = bench.facts()
                for operation in alphabet.choices(bench.arena, facts, bench.owners)[ordinal]:
                    bench.do(operation, bench.facts())
            name = bench.name(bench.facts())
            if name in known:
                met += 1
                assert future() == known[name]
                continue
            known[name] = future()
            count = len(alphabet.choices(bench.arena, bench.facts(), bench.owners))
            following += [(*path, ordinal) for ordinal in range(count)]
        level = following  # type: ignore[assignment]
    assert met > 50 and len(known) > 50


def test_a_match_is_predicted_without_the_tree() -> None:
    """By hand: a prefix whose window pages are gone cannot be used to its end, a shorter one can."""
    layout = cached(("window_2", 1), ("full", 1), units=12)
    bench = CachedBench(layout)
    for operation in (
        ops.Admit(0, 0, (0, 0, 1)), ops.Extend(0, 3), ops.Launch((0,)), ops.Complete(1),
        ops.Publish(0), ops.Release(0),
    ):  # fmt: skip
        bench.do(operation, bench.facts())
    facts = bench.facts()
    assert facts.match((0, 0, 1), None) == (0, 0, 1) and facts.match((0, 0, 1), 2) == (0, 0)
    assert facts.match((1, 0), None) == () and facts.evictable() == facts.cached() == (3, 3)
    bench.do(ops.Evict((2, 0)), facts)
    facts = bench.facts()
    assert facts.cached() == (1, 3)
    # The next token needs the page before it: only that of the whole prefix is left.
    assert facts.match((0, 0, 1), None) == (0, 0, 1) and facts.match((0, 0, 1), 2) == ()


# Name of the fault, arena that shows it, invariant.
SHOWN = [
    ("match-not-held", "shared", "ownership"),
    ("matched-windows-from-the-start", "shared", "cache"),
    ("match-copies-the-wrong-way", "checkpoints", "content"),
    ("copied-state-held-for-ever", "checkpoints", "cache"),
    ("checkpoint-copies-the-wrong-way", "checkpoints", "content"),
    ("checkpoint-of-another-slot", "twin-states", "content"),
    ("match-ignores-its-limit", "twin-states", "cache"),
    ("duplicate-released-twice", "twins", "ids"),
    ("publishes-what-is-not-computed", "shared", "cache"),
    ("trim-keeps-its-lease", "shared", "cache"),
    ("release-drops-shared-pages", "shared", "ids"),
    ("held-window-pages-evicted", "shared", "ownership"),
    ("evicted-windows-leak", "shared", "cache"),
    ("capacity-ignores-the-cache", "shared", "capacity"),
    ("capacity-counts-held-pages", "shared", "capacity"),
    ("admission-counts-its-own-match", "checkpoints", "atomic"),
    ("pin-ends-with-its-request", "shared", "pins"),
    ("graft-not-done", "twins", "ownership"),
    ("grafts-a-page-too-far", "twins", "conservation"),
    ("grafts-rows-that-were-trimmed", "twins", "conservation"),
    ("grafts-only-where-nobody-holds", "twins", "cache"),
    ("grafted-page-stays-mapped", "twins", "tables"),
]


@pytest.mark.parametrize(("name", "arena", "invariant"), SHOWN)
def test_a_planted_fault_is_found(name: str, arena: str, invariant: str) -> None:
    """It is seen again from the start, and its program is plain data that a sound arena runs."""
    with FAULTS[name].plant():
        report = explore_named(arena, findings_max=1)
    (finding,) = report.findings
    assert finding.invariant == invariant and finding.confirmed, str(finding)
    program = Program.from_json(finding.program.to_json())
    assert program == finding.program
    sound, names = program.layout.arena(), Names()
    for step in program.steps:
        outcome = sound.apply(names.resolve(step))
        names.note(step, outcome)
        assert outcome.reason != "misuse" and sound.check() == []


# What these searches cannot see: faults that need more pages or operations than they have, a forward in
# flight, or a device with tables.
UNSEEN = {
    "graft-is-no-use", "graft-not-published", "graft-without-renaming-writes",
    "admission-evicts-the-state-it-copies", "checkpoint-copied-too-early", "evicts-in-vain",
    "match-is-no-use", "match-over-a-tombstone", "window-reach-a-page-short",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n, f in FAULTS.items() if f.group == "cache"))
def test_every_planted_fault_of_the_cache_is_found(name: str) -> None:
    """In one of the quick arenas, but for those that are stated to be out of reach."""
    with FAULTS[name].plant():
        found = any(not explore_named(arena, findings_max=1).ok for arena in QUICK)
    assert found != (name in UNSEEN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared-wide", "checkpoints-wide"])
def test_larger_arenas(name: str) -> None:
    """As far as some thousand states go, each asked for every small demand."""
    report = explore_named(name, states_max=12_000)
    assert report.ok, str(report)


def test_facts_are_read_anew() -> None:
    """They do not change under whoever holds them."""
    bench = CachedBench(ARENAS["shared"].layout)
    before = bench.facts()
    bench.do(ops.Admit(0, 0, (0, 1)), before)
    assert isinstance(before, Facts) and not before.rows and 0 in bench.facts().rows
    report = explore_cached(ARENAS["shared"].layout, CacheAlphabet(requests=1), depth=2)
    assert report.ok and report.depth == 2
