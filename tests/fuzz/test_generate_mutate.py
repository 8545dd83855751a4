"""Programs made from programs: whatever comes out can be run, and every change really changes."""

from __future__ import annotations

import json
from random import Random

import pytest

from bandscope.allocator import operations as ops
from bandscope.fuzz.generate import PROFILES, generate, mutate
from bandscope.fuzz.generate.mutate import _CHANGES, _Draft, _refit, _splice, requests_of
from bandscope.fuzz.program import Layout, Names, Program, Step
from bandscope.fuzz.shrink_steps import key_of


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [generate(seed, profile, 90) for profile in PROFILES for seed in range(4)]


def run(program: Program) -> list[str]:
    """The reasons of all outcomes; the arena must come out of it well."""
    arena, names, reasons = program.layout.arena(), Names(), []
    for step in program.steps:
        outcome = arena.apply(names.resolve(step))
        names.note(step, outcome)
        reasons.append(outcome.reason)
    assert arena.check() == []
    return reasons


def test_what_comes_out_is_well_formed_and_runs(programs: list[Program]) -> None:
    """Also when it is mutated again and again: no exception, each name made once, its layout built."""
    pool = list(programs)
    reasons: set[str] = set()
    for seed in range(250):
        program = mutate(pool, seed, operations_max=400)
        reasons.update(run(program))
        made = [(type(step.operation), step.name) for step in program.steps if step.name is not None]
        assert len(set(made)) == len(made)
        assert all(
            isinstance(step.operation, ops.Launch | ops.Lease)
            for step in program.steps
            if step.name is not None
        )
        assert len(program.steps) <= 400
        assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program
        assert program.layout.config.barrier != "off"
        if seed % 4 == 0:
            pool.append(program)
    assert reasons == {"", "memory", "gate", "pins", "misuse"}


def test_a_mutation_is_a_function_of_programs_and_seed(programs: list[Program]) -> None:
    """Twice the same is the same; other seeds give other programs, none like its parents."""
    told = [json.dumps(mutate(programs, seed).to_json()) for seed in range(60)]
    assert told == [json.dumps(mutate(programs, seed).to_json()) for seed in range(60)]
    parents = {json.dumps(program.to_json()) for program in programs}
    assert len(set(told)) >= 58
    assert not parents & set(told)


def test_parents_are_left_alone(programs: list[Program]) -> None:
    before = json.dumps([program.to_json() for program in programs])
    for seed in range(40):
        mutate(programs, seed)
    assert json.dumps([program.to_json() for program in programs]) == before


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_each_change_changes_what_its_name_says(change: object, programs: list[Program]) -> None:
    """Lists get shorter, longer, reordered, resized; numbers meet; schedules and arenas differ."""
    changed = 0
    for seed in range(40):
        random = Random(seed)
        parent = programs[seed % len(programs)]
        draft = _Draft(parent.layout, list(parent.steps), parent.schedule, parent.layout.page_size)
        if change is _splice:
            _splice(random, draft, programs[(seed + 5) % len(programs)])
        else:
            change(random, draft)  # type: ignore[operator]
        steps, name = list(parent.steps), change.__name__  # type: ignore[attr-defined]
        if name in ("_cut", "_thin"):
            assert len(draft.steps) <= len(steps)
            assert [step for step in steps if step in draft.steps] or not draft.steps
        elif name == "_repeat":
            assert len(draft.steps) > len(steps)
            assert set(map(repr, draft.steps)) == set(map(repr, steps))
        elif name == "_reorder":
            assert sorted(map(repr, draft.steps)) == sorted(map(repr, steps))
        elif name == "_resize":
            assert [step.operation.kind for step in draft.steps] == [s.operation.kind for s in steps]
        elif name == "_merge":
            numbers = {n for step in steps for n in requests_of(step.operation)}
            assert {n for step in draft.steps for n in requests_of(step.operation)} <= numbers
        if name == "_relayout":
            draft.layout.arena()
        else:
            assert draft.layout == parent.layout
        before = (parent.layout, steps, parent.schedule)
        changed += (draft.layout, draft.steps, draft.schedule) != before
    assert changed > 20


def test_a_spliced_part_keeps_its_meaning() -> None:
    """Its tickets and leases get names of their own, its bands and demands those of the new arena."""
    here = Layout((("mamba", 64), ("full", 64)), 4, 1 << 14)
    there = Layout((("window_8", 64), ("window_4", 64), ("full", 64)), 4, 1 << 14)
    part = [
        Step(ops.Admit(1)),
        Step(ops.Extend(1, 4)),
        Step(ops.Launch((1,)), 1),
        Step(ops.Lease(1, "window_8", 0, 1, deadline_ticket=1), 1),
        Step(ops.Reserve((1, 2, 3))),
        Step(ops.Complete(1)),
        Step(ops.EndLease(1)),
    ]
    own = Program(here, (Step(ops.Admit(1)), Step(ops.Launch((1,)), 2), Step(ops.Complete(2))))
    other = Program(there, tuple(part))
    for seed in range(200):
        draft = _Draft(here, list(own.steps), "eager", 4)
        _splice(Random(seed), draft, other)
        added = [step for step in draft.steps if step not in own.steps]
        made = {step.name for step in added if isinstance(step.operation, ops.Launch)}
        for step in added:
            match step.operation:
                case ops.Complete(ticket=name):
                    assert name == 4 and (not made or made == {4})
                case ops.EndLease(lease=name):
                    assert name == 4
                case ops.Lease(band=band, deadline_ticket=name):
                    assert (band, name, step.name) == ("mamba", 4, 4)
                case ops.Reserve(demand=demand):
                    assert demand == (1, 2)


def test_steps_follow_to_an_arena_with_other_bands() -> None:
    """A band that stays keeps its leases, a longer chain gets a longer demand; what was wrong stays."""
    old = Layout((("mamba", 64), ("full", 64)), 4, 1 << 14)
    new = Layout((("window", 64), ("window_4", 64), ("full", 64)), 4, 1 << 14)
    for operation, expected in (
        (ops.Lease(1, "full", 0, 1), ops.Lease(1, "full", 0, 1)),
        (ops.Lease(1, "mamba", 0, 1), ops.Lease(1, "window", 0, 1)),
        (ops.Lease(1, "none", 0, 1), ops.Lease(1, "none", 0, 1)),
        (ops.Reserve((1, 2)), ops.Reserve((1, 2, 0))),
        (ops.Reserve((1,)), ops.Reserve((1,))),
        (ops.Admit(1), ops.Admit(1)),
    ):
        assert _refit(Step(operation, None), old, new).operation == expected


def test_nothing_can_be_made_of_nothing() -> None:
    with pytest.raises(ValueError, match="generate one first"):
        mutate([], 0)
    empty = Program(Layout((("mamba", 64), ("full", 64)), 4, 1 << 14), ())
    for seed in range(60):
        mutate([empty], seed).layout.arena()


def test_programs_over_prefix_caches_are_varied() -> None:
    """Their arenas can be built whatever changed, keys are cut, continued and exchanged, and most of
    what comes out is still legal."""
    programs = [generate(seed, "caching", 90, misuse=0.0) for seed in range(6)]
    keys = {key_of(step) for program in programs for step in program.steps}
    fresh, caches, misuse, total = set(), set(), 0, 0
    for seed in range(120):
        program = mutate(programs, seed)
        arena, names = program.layout.arena(), Names()
        caches.add(program.layout.config.prefix_cache)
        for step in program.steps:
            outcome = arena.apply(names.resolve(step))
            names.note(step, outcome)
            misuse += outcome.reason == "misuse"
            total += 1
        assert arena.check() == []
        fresh |= {key_of(step) for step in program.steps} - keys
    assert len(fresh) > 20 and caches == {True}
    assert misuse < 0.6 * total


def test_steps_leave_their_keys_behind_where_there_is_no_cache() -> None:
    """A stretch of a program over a cache goes into one without: its requests are admitted as ever."""
    cached = [generate(seed, "caching", 60, misuse=0.0) for seed in range(3)]
    plain = [
        program
        for program in (generate(seed, "hostile", 60) for seed in range(12))
        if not program.layout.config.prefix_cache
    ]
    spliced = 0
    for seed in range(300):
        program = mutate([*plain, *cached], seed)
        if program.layout.config.prefix_cache:
            continue
        for step in program.steps:
            operation = step.operation
            if isinstance(operation, ops.Admit | ops.Release):
                assert not operation.key
            spliced += isinstance(operation, ops.Publish)
    assert spliced > 20
