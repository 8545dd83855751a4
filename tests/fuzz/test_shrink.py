"""The shrinker, on made-up faults whose smallest program is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.fuzz.execution import Find
from bandscope.fuzz.program import Layout, Program, Step
from bandscope.fuzz.shrink import shrink
from bandscope.fuzz.shrink_steps import in_pages_of_one

LAYOUT = Layout(
    (("mamba", 2048), ("window_8", 512), ("full", 1024)), 4, 1 << 20, ArenaConfig(max_moves=7)
)


def noise(seed: int, count: int) -> list[Step]:
    """Steps that have nothing to do with any fault."""
    rng = random.Random(seed)
    steps = []
    for index in range(count):
        request = rng.randrange(6)
        steps.append(
            Step(
                rng.choice(
                    [
                        ops.Admit(request),
                        ops.Extend(request, rng.randrange(40)),
                        ops.Decode(tuple(rng.sample(range(6), 3))),
                        ops.Launch((request,)),
                        ops.Release(request),
                        ops.Compact(),
                    ]
                ),
                index,
            )
        )
    return steps


def first(program: Program, breaks: Callable[[list[Step]], bool]) -> Find | None:
    """A fault that shows at the first prefix for which `breaks` holds."""
    for stop in range(1, len(program.steps) + 1):
        if breaks(list(program.steps[:stop])):
            return Find("made up", program.steps[stop - 1].operation.kind, stop - 1, "it broke")
    return None


def lease_then_release(steps: list[Step]) -> bool:
    """A lease of a request's page, then its release, then an urgent compaction."""
    kinds = [(step.operation.kind, getattr(step.operation, "request", None)) for step in steps]
    if not isinstance(steps[-1].operation, ops.Compact) or not steps[-1].operation.urgent:
        return False
    leased = {request for kind, request in kinds if kind == "Lease"}
    return any(kind == "Release" and request in leased for kind, request in kinds)


def test_three_steps_are_left_of_a_thousand() -> None:
    """With the lowest numbers, one band fewer, plain policies, the smallest arena, no schedule."""
    steps = noise(1, 1000)
    steps[300:300] = [Step(ops.Lease(3, "full", 2, 9, deadline_ticket=5), 2000)]
    steps[700:700] = [Step(ops.Release(3))]
    steps.append(Step(ops.Compact(urgent=True, max_moves=4)))
    program = Program(LAYOUT, tuple(steps), "pct:1:d=3:k=200")
    find = first(program, lease_then_release)
    assert find is not None
    shrunk = shrink(program, find, run=lambda p: first(p, lease_then_release))
    kinds = [step.operation.kind for step in shrunk.program.steps]
    assert kinds == ["Lease", "Release", "Compact"]
    lease = shrunk.program.steps[0].operation
    assert isinstance(lease, ops.Lease)
    assert (lease.request, lease.stop_page - lease.first_page, lease.deadline_ticket) == (0, 1, None)
    assert shrunk.program.schedule == "eager"
    layout = shrunk.program.layout
    assert len(layout.bands) == 2 and layout.config == ArenaConfig() and layout.page_size == 1
    assert layout.total_bytes <= 512
    assert shrunk.executions < 1000


def test_numbers_go_as_low_as_the_fault_allows() -> None:
    """Seven tokens, of one request, in one batch with another one."""

    def breaks(steps: list[Step]) -> bool:
        tokens = sum(s.operation.tokens for s in steps if isinstance(s.operation, ops.Extend))
        last = steps[-1].operation
        return tokens >= 7 and isinstance(last, ops.Decode) and {2, 4} <= set(last.requests)

    program = Program(LAYOUT, (*noise(2, 300), Step(ops.Decode((0, 2, 3, 4, 5)))), "latest")

    def run(candidate: Program) -> Find | None:
        # Names of requests must survive here, so renaming never helps.
        return first(candidate, breaks)

    find = run(program)
    assert find is not None
    shrunk = shrink(program, find, run=run)
    extends = [s.operation for s in shrunk.program.steps if isinstance(s.operation, ops.Extend)]
    assert sum(each.tokens for each in extends) == 7
    assert shrunk.program.steps[-1].operation == ops.Decode((2, 4))


def test_another_invariant_is_another_find() -> None:
    """The shrinker does not slip from the fault it was given to one that is easier to have."""

    def run(program: Program) -> Find | None:
        for index, step in enumerate(program.steps):
            if isinstance(step.operation, ops.Release):
                two = any(isinstance(s.operation, ops.SetGate) for s in program.steps[:index])
                return Find("rare" if two else "common", "Release", index, "")
        return None

    program = Program(LAYOUT, (Step(ops.SetGate(True)), Step(ops.Admit(1)), Step(ops.Release(1))))
    find = run(program)
    assert find is not None and find.invariant == "rare"
    shrunk = shrink(program, find, run=run)
    assert [step.operation.kind for step in shrunk.program.steps] == ["SetGate", "Release"]


def test_two_steps_that_only_go_together() -> None:
    """An even number of launches: leaving out one of them breaks nothing."""

    def breaks(steps: list[Step]) -> bool:
        launches = sum(isinstance(step.operation, ops.Launch) for step in steps)
        return launches % 2 == 0 and isinstance(steps[-1].operation, ops.Release)

    steps = [Step(ops.Launch(()), n) for n in range(4)] + [Step(ops.Release(1))]
    program = Program(LAYOUT, tuple(steps))
    find = first(program, breaks)
    assert find is not None
    shrunk = shrink(program, find, run=lambda p: first(p, breaks))
    assert len(shrunk.program.steps) == 1


@pytest.mark.parametrize("stop", [1, 3, 10])
def test_an_interrupted_shrink_goes_on(stop: int) -> None:
    """From what was kept last, to the same result; every kept program breaks the invariant."""
    steps = [*noise(3, 200), Step(ops.Lease(3, "full", 0, 4), 900), Step(ops.Release(3))]
    steps += [*noise(4, 100), Step(ops.Compact(urgent=True))]
    program = Program(LAYOUT, tuple(steps), "latest")

    def run(candidate: Program) -> Find | None:
        return first(candidate, lease_then_release)

    find = run(program)
    assert find is not None
    whole = shrink(program, find, run=run)
    kept: list[tuple[Program, Find]] = []
    shrink(program, find, run=run, executions_max=stop, kept=lambda p, f: kept.append((p, f)))
    again, broke = kept[-1] if kept else (program, find)
    assert run(again) == broke
    rest = shrink(again, broke, run=run)
    assert len(rest.program.steps) == len(whole.program.steps) == 3
    assert shrink(program, find, run=run).program == whole.program  # deterministic


CACHED = Layout(
    (("mamba", 2048), ("window_9", 512), ("full", 1024)), 4, 1 << 20,
    ArenaConfig(max_moves=7, prefix_cache=True, evict="joint_lru", checkpoint_grid_tokens=12),
)  # fmt: skip


def shared_twice(steps: list[Step]) -> bool:
    """A publication, then an admission under a key that begins as the published one does."""
    last = steps[-1].operation
    if not isinstance(last, ops.Admit) or not last.key:
        return False
    keys = {
        step.operation.request: step.operation.key
        for step in steps
        if isinstance(step.operation, ops.Admit)
    }
    return any(
        isinstance(step.operation, ops.Publish)
        and keys.get(step.operation.request, ())[:1] == last.key[:1]
        for step in steps[:-1]
    )


def test_keys_are_shortened_together() -> None:
    """What must agree goes on to agree: one page of a key, of the smallest letter, is left; limits,
    publications of a release and checkpoints are not. The cache stays where it is needed."""
    steps = noise(2, 60)
    steps[10:10] = [
        Step(ops.Admit(7, 2, (1, 0, 1, 1, 0, 1), 8)),
        Step(ops.Checkpoint(7, (1, 1))),
        Step(ops.Publish(7, (0, 1))),
    ]
    steps.append(Step(ops.Evict((1, 2, 3))))
    steps.append(Step(ops.Admit(8, 1, (1, 0, 1, 0), 4)))
    program = Program(CACHED, tuple(steps), "latest")

    def breaks(program: Program) -> Find | None:
        return first(program, shared_twice) if program.layout.config.prefix_cache else None

    find = breaks(program)
    assert find is not None
    shrunk = shrink(program, find, run=breaks).program
    assert [step.operation for step in shrunk.steps] == [
        ops.Admit(0, 0, (0,)), ops.Publish(0), ops.Admit(1, 0, (0,)),
    ]  # fmt: skip
    config = shrunk.layout.config
    assert config == ArenaConfig(prefix_cache=True, checkpoint_grid_tokens=config.checkpoint_grid_tokens)
    assert len(shrunk.layout.bands) == 2 and shrunk.layout.page_size == 1
    shrunk.layout.plan()


def test_releases_and_evictions_are_made_smaller() -> None:
    """A release without what it published, for the plain reason; an eviction of as little as breaks."""

    def breaks(program: Program) -> Find | None:
        for at, step in enumerate(program.steps):
            operation = step.operation
            if isinstance(operation, ops.Evict) and sum(operation.pages) >= 2 and any(
                isinstance(before.operation, ops.Release) for before in program.steps[:at]
            ):
                return Find("made up", "Evict", at, "it broke")
        return None

    steps = (
        Step(ops.Admit(5, 1, (0, 1))),
        Step(ops.Release(5, "retracted", True, (1, 0))),
        Step(ops.Evict((0, 9, 4))),
    )
    program = Program(CACHED, steps)
    find = breaks(program)
    assert find is not None
    shrunk = shrink(program, find, run=breaks).program
    assert shrunk.steps[0].operation == ops.Release(0)
    assert sum(shrunk.steps[1].operation.pages) == 2  # type: ignore[attr-defined]


def test_a_page_of_one_token_keeps_what_is_shared() -> None:
    """Lengths, limits, grid and windows shrink with the page, keys stay one a page."""
    steps = (
        Step(ops.Admit(0, 1, (0, 1, 1), 9)),
        Step(ops.Extend(0, 12)),
        Step(ops.Lease(0, "window_9", 0, 1)),
    )
    small = in_pages_of_one(Program(CACHED, steps))
    assert small.layout.page_size == 1 and small.layout.config.checkpoint_grid_tokens == 3
    assert [name for name, _ in small.layout.bands] == ["mamba", "window_3", "full"]
    assert [step.operation for step in small.steps] == [
        ops.Admit(0, 1, (0, 1, 1), 2), ops.Extend(0, 3), ops.Lease(0, "window_3", 0, 1),
    ]  # fmt: skip


def test_an_eviction_is_asked_for_instead_of_made_by_a_full_arena() -> None:
    """What only filled the arena is left out then."""

    def breaks(program: Program) -> Find | None:
        published = filled = 0
        for at, step in enumerate(program.steps):
            operation = step.operation
            published += isinstance(operation, ops.Publish)
            filled += isinstance(operation, ops.Extend)
            if published and (
                isinstance(operation, ops.Evict) or (isinstance(operation, ops.Reserve) and filled > 9)
            ):
                return Find("made up", operation.kind, at, "it broke")
        return None

    steps = [Step(ops.Admit(0, 1, (0, 1))), Step(ops.Publish(0))]
    steps += [Step(ops.Extend(0, 4)) for _ in range(10)]
    program = Program(CACHED, (*steps, Step(ops.Reserve((0, 1, 1)))))
    find = breaks(program)
    assert find is not None
    shrunk = shrink(program, find, run=breaks).program
    assert [step.operation.kind for step in shrunk.steps] == ["Publish", "Evict"]
