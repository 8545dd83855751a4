"""Admission against what then happens: predicted pages are the pages held, and nobody is refused one."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.fuzz.workload.admission import PROMPT_REFUSED, Admission, Waiting
from bandscope.fuzz.workload.memory import ArenaMemory, PoolMemory, ServingMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import NoForward, Scheduler, SchedulerConfig

BANDS = {
    "window": [("window_8", 256), ("full", 256)],
    "state": [("mamba", 512), ("full", 256)],
    "both": [("mamba", 768), ("window_8", 512), ("full", 256)],
    "several": [("mamba", 768), ("window_32", 512), ("window_5", 256), ("full", 256)],
}


def plan_of(name: str, page: int) -> StoragePlan:
    """The bands with the same bytes per token at any page size."""
    sizes = [(n, size * (1 if n == "mamba" else page)) for n, size in BANDS[name]]
    return plan_from_sizes(sizes, page_size=page)


def memory_of(kind: str, plan: StoragePlan, usable_bytes: int) -> ServingMemory:
    """An arena, or pools split evenly."""
    if kind == "arena":
        return ArenaMemory(Arena(plan, plan.sink_bytes + usable_bytes, device="none"))
    return PoolMemory(plan, plan.sink_bytes + usable_bytes, [1 / len(plan.bands)] * len(plan.bands))


class Watcher(NoForward):
    """Compares the pages of each step of a scheduler with what its schedule says before the step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.foretold: list[int] = []
        self.compared = 0
        self._step = scheduler._step
        scheduler.forward = self
        scheduler._step = self.step  # type: ignore[method-assign]

    def step(self) -> None:
        """Before a step: what is held now, and what the step will hold."""
        running = [*self.scheduler.decoding, *self.scheduler.prefilling]
        schedule = self.scheduler.admission.schedule(running)
        held = self.scheduler.memory.held([run.number for run in running]).sum(axis=0)
        assert schedule.held_now().tolist() == held.tolist()
        self.foretold = schedule.totals(np.array([1]))[0].tolist()
        self._step()

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """In the middle of a step: room is made, nothing is trimmed or released yet."""
        numbers = [run.number for run in self.scheduler.running()]
        assert self.scheduler.memory.held(numbers).sum(axis=0).tolist() == self.foretold
        self.compared += 1


def random_requests(seed: int, count: int, tokens_max: int = 60) -> list[Request]:
    """Requests of random sizes that arrive faster than they finish."""
    rng = random.Random(seed)
    return [
        Request(index, index * 0.01 * rng.random(), rng.randint(1, tokens_max),
                rng.randint(1, tokens_max))
        for index in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["arena", "pools"])
@pytest.mark.parametrize("name", BANDS)
def test_every_step_holds_what_was_foretold_and_nobody_is_refused(kind: str, name: str) -> None:
    """Tight memories, all page sizes and chunk sizes: each step's pages are exactly the schedule's, no
    operation is refused, nobody is retracted, and everybody who fits alone finishes."""
    waits = compared = 0
    for seed in range(4):
        rng = random.Random(f"{seed} {name}")
        plan = plan_of(name, rng.choice([1, 2, 4, 8]))
        memory = memory_of(kind, plan, rng.randint(70, 300) * 256)
        scheduler = Scheduler(memory, SchedulerConfig(chunk_tokens=rng.choice([2, 16, 64])))
        watcher = Watcher(scheduler)
        results = scheduler.run(sorted(random_requests(seed, 16), key=lambda r: r.arrival_seconds))
        assert results.refusals == Counter()
        assert results.retractions == 0
        assert set(results.aborts) <= {PROMPT_REFUSED}
        assert results.finished + sum(results.aborts.values()) == 16
        waits += results.admission_waits
        compared += watcher.compared
    assert waits > 5 and compared > 150


@pytest.mark.parametrize("output", [1, 3])
@pytest.mark.parametrize("kind", ["arena", "pools"])
def test_prompts_that_fit_only_in_smaller_chunks_are_served_in_them(
    kind: str, output: int
) -> None:
    """A window as wide as full attention, and chunks of 64: long prompts get chunks of their own
    size, alone in their steps, and every step is still foretold."""
    plan = plan_of("window", 1)
    sizes = set()
    for usable in range(84, 120, 6):
        memory = memory_of(kind, plan, usable * 256)
        if kind == "pools":
            memory = PoolMemory(plan, plan.sink_bytes + usable * 256, [0.3, 0.7])
        scheduler = Scheduler(memory, SchedulerConfig(chunk_tokens=64))
        watcher = Watcher(scheduler)
        seen: list[tuple[int, int]] = []
        scheduler.after_step = lambda s, seen=seen: seen.extend(  # type: ignore
            (run.chunk_tokens, run.computed) for run in s.prefilling)  # fmt: skip
        requests = [
            Request(n, 0.0, tokens, output)
            for n, tokens in enumerate([20, 57, 3, 58, 2, 50, 61, 5, 40])
        ]
        results = scheduler.run(requests)
        assert results.refusals == Counter() and results.retractions == 0
        assert results.finished + results.aborts[PROMPT_REFUSED] == 9
        assert watcher.compared == results.steps
        limited = [(chunk, done) for chunk, done in seen if chunk < 64]
        assert all(done % chunk == 0 for chunk, done in limited)
        sizes |= {chunk for chunk, _ in limited}
    assert len(sizes) > 3


def test_a_whole_run_is_foretold_from_its_first_step() -> None:
    """Everybody arrives at once and fits: all steps to the last end are known before the first one."""
    plan = plan_of("both", 4)
    memory = memory_of("arena", plan, 1 << 20)
    scheduler = Scheduler(memory, SchedulerConfig(chunk_tokens=16))
    requests = [Request(index, 0.0, 5 + 7 * index, 30 - 2 * index) for index in range(9)]
    rows: list[list[int]] = []
    held: list[list[int]] = []

    class Keep(NoForward):
        def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
            running = [*scheduler.decoding, *scheduler.prefilling]
            held.append(memory.held([run.number for run in running]).sum(axis=0).tolist())

    scheduler.forward = Keep()
    step = scheduler._step

    def first_step() -> None:
        if not rows:
            schedule = scheduler.admission.schedule([*scheduler.decoding, *scheduler.prefilling])
            rows.extend(schedule.totals(np.arange(1, schedule.step_count + 1)).tolist())
        step()

    scheduler._step = first_step  # type: ignore[method-assign]
    assert scheduler.run(requests).finished == 9
    assert held == rows
    assert len(rows) > 30


@pytest.mark.parametrize("name", BANDS)
def test_a_refused_admission_would_have_failed(name: str) -> None:
    """Forced in against the answer, some operation of the set is refused; so "no" is no caution."""
    forced = 0
    for seed in range(10):
        plan = plan_of(name, 1)
        memory = memory_of("arena", plan, (100 + 5 * seed) * 256)
        scheduler = Scheduler(memory, SchedulerConfig(chunk_tokens=16))
        rng = random.Random(seed)
        requests = [Request(i, 0.0, rng.randint(5, 40), rng.randint(5, 40)) for i in range(8)]
        admits = scheduler.admission.admits
        refused_once = [False]

        def force(entry, running, found, admits=admits, refused_once=refused_once):  # type: ignore
            if admits(entry, running, found):
                return True
            if refused_once[0]:
                return False
            refused_once[0] = True
            return True

        scheduler.admission.admits = force  # type: ignore[method-assign]
        results = scheduler.run(requests)
        if refused_once[0]:
            forced += 1
            assert results.refusals["memory"] > 0, seed
        assert results.finished + sum(results.aborts.values()) == 8
    assert forced > 5


@pytest.mark.parametrize("output_reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", BANDS)
def test_whoever_fits_alone_is_admitted_alone(name: str, output_reserve: float) -> None:
    """The clip and admission are one model: what the clip lets pass, an empty arena admits; and what
    it holds alone runs to its end."""
    rng = random.Random(name)
    clipped = 0
    for _ in range(30):
        plan = plan_of(name, rng.choice([1, 4]))
        memory = memory_of("arena", plan, rng.randint(60, 300) * 256)
        admission = Admission(memory, rng.choice([1, 8, 64]), output_reserve)
        prompt = rng.randint(1, 80)
        entry = Waiting(Request(0, 0.0, prompt, 60), generated=rng.choice([0, 0, 5]))
        refusal = admission.look_at(entry)
        if refusal is None:
            clipped += entry.output_tokens != 60
            assert admission.admits(entry, [])
        else:
            assert refusal.reason == PROMPT_REFUSED
            assert f"prompt of {prompt} tokens and one of output: sink" in refusal.detail
            needed, total = refusal.detail.split(" = ")[1].split(" bytes of ")
            assert int(needed.replace(",", "")) > int(total.replace(",", "")) == memory.total_bytes
    assert clipped > 2


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b-a3b", "inkling-small"])
def test_real_models_never_retract_at_full_reserve(model: str) -> None:
    """Arenas of some ten requests: it is tight, every step is foretold, and nobody gives way."""
    plan = plan_storage(declare_model(model))
    page_bytes = plan.bands[-1].page_bytes
    usable = 12 * plan.sink_bytes + 4_000 // 16 * page_bytes
    scheduler = Scheduler(memory_of("arena", plan, usable), SchedulerConfig(chunk_tokens=512))
    watcher = Watcher(scheduler)
    rng = random.Random(model)
    requests = [
        Request(index, 0.0, rng.randint(20, 900), rng.randint(5, 120)) for index in range(24)
    ]
    results = scheduler.run(requests)
    assert results.refusals == Counter() and results.retractions == 0
    assert results.finished + results.aborts[PROMPT_REFUSED] == 24
    assert results.admission_waits > 0 and watcher.compared == results.steps
