"""A recorded run as a program: the same outcomes from its beginning, a like state from its middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.generate import Generator, mutate, program_of_trace
from bandscope.fuzz.program import Names, Program
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace, open_trace
from bandscope.inspect.recorder import Recorder


def recorded(folder: Path, profile: str, seed: int, steps: int = 250) -> tuple[Trace, Arena]:
    """A run of the generator, recorded; and the arena as it was at the end."""
    generator = Generator(seed, profile)
    arena, names = generator.layout.arena(), Names()
    recorder = Recorder(folder / f"{profile}-{seed}", arena)
    for _ in range(steps):
        step = generator.next()
        outcome = arena.apply(names.resolve(step))
        names.note(step, outcome)
        generator.note(step, outcome)
    recorder.close()
    return open_trace(recorder.directory), arena


def told(trace: Trace) -> list[tuple[int, Operation, Outcome]]:
    """What the trace says: operations, where they stand, and their outcomes."""
    result: list[tuple[int, Operation, Outcome]] = []
    asked: Any = None
    for event in read_events(trace):
        if isinstance(event.body, Operation):
            asked = event
        elif isinstance(event.body, Outcome):
            result.append((asked.sequence, asked.body, event.body))
    return result


def run(program: Program) -> tuple[list[tuple[Operation, Outcome]], Arena]:
    arena, names, outcomes = program.layout.arena(), Names(), []
    for step in program.steps:
        operation = names.resolve(step)
        outcome = arena.apply(operation)
        names.note(step, outcome)
        outcomes.append((operation, outcome))
    return outcomes, arena


@pytest.mark.parametrize("profile", ["serving", "hostile", "misuse", "mixed", "caching"])
def test_a_whole_trace_gives_its_outcomes_again(profile: str, tmp_path: Path) -> None:
    """Operation by operation: done or refused, for the same reason, with the same value; and the arena
    ends as it did. A fault put into one operation is seen."""
    for seed in range(4):
        trace, arena = recorded(tmp_path, profile, seed)
        program = program_of_trace(trace)
        outcomes, again = run(program)
        expected = told(trace)
        assert len(outcomes) == len(expected) == 250
        for (operation, outcome), (_, asked, was) in zip(outcomes, expected, strict=True):
            assert operation.kind == asked.kind
            assert (outcome.ok, outcome.reason, outcome.value) == (was.ok, was.reason, was.value)
            if outcome.ok:
                assert operation == asked
        assert program.layout == Generator(seed, profile).layout or (
            program.layout.total_bytes == arena.total_bytes
        )
        assert again.digest() == arena.digest()
        assert Program.from_json(program.to_json()) == program


def test_what_is_known_of_a_program_survives_leaving_steps_out(tmp_path: Path) -> None:
    """Names, not numbers: without one launch, all others are still completed by their own names."""
    trace, _ = recorded(tmp_path, "serving", 1)
    program = program_of_trace(trace)
    done = next(s.operation.ticket for s in program.steps if isinstance(s.operation, ops.Complete))
    less = [s for s in program.steps if not (isinstance(s.operation, ops.Launch) and s.name == done)]
    assert len(less) == len(program.steps) - 1
    kept = Program(program.layout, tuple(less))
    completed = sum(
        outcome.ok for operation, outcome in run(kept)[0] if isinstance(operation, ops.Complete)
    )
    everything = sum(
        outcome.ok for operation, outcome in run(program)[0] if isinstance(operation, ops.Complete)
    )
    assert completed == everything - 1


@pytest.mark.parametrize("profile", ["serving", "hostile"])
def test_a_part_of_a_trace_begins_in_a_like_state(profile: str, tmp_path: Path) -> None:
    """The requests that ran are there again with their tokens, slots and trimmed windows, forwards are
    in flight and the gate is as it was; then the operations of the part follow."""
    compared, gates = 0, set()
    for seed in range(10):
        trace, _ = recorded(tmp_path, profile, seed, 190)
        expected = told(trace)
        # Where the gate is closed, if it ever is.
        closed = [
            at for at, (_, op, was) in enumerate(expected[40:120], 41)
            if isinstance(op, ops.SetGate) and op.closed and was.ok
        ]  # fmt: skip
        at = closed[0] if closed else 120
        program = program_of_trace(trace, expected[at][0], expected[at + 60][0])
        part = expected[at : at + 60]
        assert [s.operation.kind for s in program.steps[-60:]] == [op.kind for _, op, _ in part]

        # What it should begin with: the real arena, run up to there.
        generator = Generator(seed, profile)
        real, names = generator.layout.arena(), Names()
        for _ in range(at):
            step = generator.next()
            outcome = real.apply(names.resolve(step))
            names.note(step, outcome)
            generator.note(step, outcome)
        begin = Program(program.layout, program.steps[:-60])
        outcomes, like = run(begin)
        if not all(outcome.ok for _, outcome in outcomes):
            continue  # its pages do not fit as they are made now (they were made one by one)
        compared += 1
        assert requests(like) == requests(real)
        assert like.books.gate_closed == real.books.gate_closed
        gates.add(real.books.gate_closed)
        assert len(like.books.tickets.in_flight) == len(real.books.tickets.in_flight)
        run(program)
    assert compared >= 5
    assert profile == "serving" or gates == {False, True}


def test_a_part_of_a_trace_with_a_prefix_cache_begins_with_what_was_shared(tmp_path: Path) -> None:
    """Requests come back with their tokens, keys and slots, and share what they shared."""
    compared = shared = 0
    for seed in range(14):
        trace, _ = recorded(tmp_path, "caching", seed, 190)
        expected = told(trace)
        program = program_of_trace(trace, expected[120][0])
        part = expected[120:]
        assert [s.operation.kind for s in program.steps[-len(part) :]] == [o.kind for _, o, _ in part]
        generator = Generator(seed, "caching")
        real, names = generator.layout.arena(), Names()
        for _ in range(120):
            step = generator.next()
            outcome = real.apply(names.resolve(step))
            names.note(step, outcome)
            generator.note(step, outcome)
        begin = Program(program.layout, program.steps[: -len(part)])
        outcomes, like = run(begin)
        if not all(outcome.ok for _, outcome in outcomes):
            continue  # its pages do not fit as they are made now
        compared += 1
        assert {n: each[:2] for n, each in requests(like).items()} == {
            n: each[:2] for n, each in requests(real).items()
        }
        assert like.books.cache is not None and real.books.cache is not None
        for number, sharing in real.books.cache.sharing.items():
            mine = like.books.cache.sharing[number]
            assert mine.key.tolist() == sharing.key.tolist()
            shared += sharing.pages > 0
            assert mine.pages >= sharing.pages
        run(program)
    assert compared >= 5 and shared >= 5


def requests(arena: Arena) -> dict[int, tuple[int, ...]]:
    """By request: its tokens, state slots, and the first page kept of every window."""
    ledger = arena.books.ledger
    return {
        number: (
            int(ledger.length[row]),
            int(ledger.state_count[row]),
            *ledger.first_kept[row].tolist(),
        )
        for number, row in ledger.row_of.items()
    }


def test_leases_of_the_middle_are_held_again(tmp_path: Path) -> None:
    """A lease that was held at the start of a part, its request gone or not, can be ended in it."""
    ended = 0
    for seed in range(12):
        trace, _ = recorded(tmp_path, "hostile", seed, 160)
        expected = told(trace)
        program = program_of_trace(trace, expected[80][0])
        outcomes, _ = run(program)
        before = {was.value for _, op, was in expected[:80] if isinstance(op, ops.Lease)}
        for (operation, outcome), step in zip(outcomes, program.steps, strict=True):
            if isinstance(operation, ops.EndLease) and outcome.ok:
                assert isinstance(step.operation, ops.EndLease)
                ended += step.operation.lease in before
    assert ended > 0


def test_a_trace_can_be_mutated(tmp_path: Path) -> None:
    """It is a seed like any other program."""
    trace, _ = recorded(tmp_path, "serving", 2, 80)
    program = program_of_trace(trace)
    for seed in range(20):
        run(mutate([program], seed))
