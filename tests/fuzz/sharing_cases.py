"""Random tiny arenas and requests that begin alike, for the tests of admission with a prefix cache."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import StoragePlan, plan_from_sizes
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results
from bandscope.fuzz.workload.scheduler import NoForward, Scheduler, SchedulerConfig

BANDS = {
    "window": [("window_8", 256), ("full", 256)],
    "state": [("mamba", 512), ("full", 256)],
    "both": [("mamba", 768), ("window_8", 512), ("full", 256)],
    "several": [("mamba", 768), ("window_32", 512), ("window_5", 256), ("full", 256)],
    "windows": [("window_32", 512), ("window_5", 256), ("full", 256)],
    "unstated": [("window", 256), ("window_6", 256), ("full", 256)],
}


def plan_of(name: str, page: int) -> StoragePlan:
    """The bands with the same bytes per token at any page size."""
    sizes = [(n, size * (1 if n == "mamba" else page)) for n, size in BANDS[name]]
    return plan_from_sizes(sizes, page_size=page)


@dataclass
class Case:
    """One run: an arena, its requests, and what the scheduler is told."""

    plan: StoragePlan
    arena: Arena
    config: SchedulerConfig
    requests: list[Request]


def random_requests(rng: random.Random, count: int, block: int, tokens_max: int) -> list[Request]:
    """Prompts that go on from where an earlier one is cut, in blocks of `block` tokens."""
    prefixes: list[list[int]] = []
    fresh = 0
    requests = []
    arrival = 0.0
    for index in range(count):
        blocks: list[int] = []
        if prefixes and rng.random() < 0.8:
            blocks = list(rng.choice(prefixes[-3:]))
            if rng.random() < 0.3:
                blocks = blocks[: rng.randint(0, len(blocks))]
        prompt = rng.randint(1, tokens_max)
        if rng.random() < 0.7:
            prompt = max(prompt, min(tokens_max, len(blocks) * block + rng.randint(1, 4)))
        while len(blocks) * block < prompt:
            fresh += 1
            blocks.append(fresh)
        prefixes.append(blocks)
        arrival += rng.choice([0.0, 0.01, 0.03, 0.1]) * rng.random()
        known = tuple(blocks) if rng.random() < 0.9 else None
        requests.append(
            Request(
                index, arrival, prompt, rng.randint(1, 9), known, block if known else 0,
                priority=rng.choice([0, 0, 0, 1, 2]),
            )
        )  # fmt: skip
    return requests


def random_case(name: str, seed: int, *, cached: bool = True, tight: bool = False) -> Case:
    """One case of a kind of model; `tight`: of a size at which slots run out."""
    rng = random.Random(f"{name} {seed} {tight}")
    page = rng.choice([1, 2, 4])
    plan = plan_of(name, page)
    grid = page * rng.choice([1, 2, 3, 4]) if plan.has_state else 0
    block = page * rng.choice([1, 2, 3])
    config = ArenaConfig(
        prefix_cache=cached,
        evict=rng.choice(["lru", "joint_lru"]),
        checkpoint_grid_tokens=grid if cached else 0,
    )
    usable = (rng.randint(25, 60) if tight else rng.randint(50, 180)) * 256
    arena = Arena(plan, plan.sink_bytes + usable, device="none", config=config)
    chunk = max(grid, rng.choice([2, 5, 16, 64]))
    settings = SchedulerConfig(chunk_tokens=chunk, max_running=rng.choice([3, 50, 50]))
    tokens_max = rng.choice([10, 16, 30])
    return Case(plan, arena, settings, random_requests(rng, rng.randint(4, 8), block, tokens_max))


class Sound(NoForward):
    """Watches that what running requests hold is never more than admission said before the step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.foretold = np.empty(0, np.int64)
        self.chunks: list[tuple[int, int, int]] = []
        self.shared_most = 0
        self._step = scheduler._step
        scheduler.forward = self
        scheduler._step = self.step  # type: ignore[method-assign]

    def step(self) -> None:
        """Before a step: what is held now, and what the step may hold."""
        scheduler = self.scheduler
        running = [*scheduler.decoding, *scheduler.prefilling]
        schedule = scheduler.admission.schedule(running)
        if scheduler.memory.cached:
            # As admission would see it now.
            shared = [run.shared_pages for run in running]
            if scheduler.admission._somebody_left_early:
                shared = scheduler.admission._shared_among(running, schedule).tolist()
            schedule.shared = np.array(shared, np.int64)
            self.shared_most = max(self.shared_most, int(schedule.shared.sum()))
        between = schedule.model.held(schedule.computed).sum(axis=0)
        if schedule.shared is not None:
            unbounded = [reach is None for reach in schedule.model.reaches]
            unbounded = [yes and not band.name == "mamba"
                         for yes, band in zip(unbounded, scheduler.plan.bands, strict=True)]  # fmt: skip
            between[unbounded] -= schedule.shared.sum()
        assert (scheduler.memory.claimed() <= between).all()
        self.foretold = schedule.totals(np.array([1]))[0]
        now = np.flatnonzero(schedule.chunk_step == 1)
        chunks = zip(
            schedule.chunk_request[now], schedule.chunk_start[now], schedule.chunk_stop[now], strict=True
        )
        self.chunks = [(running[who].number, int(start), int(stop)) for who, start, stop in chunks]
        self._step()

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """In the middle of a step: room is made, nothing is trimmed or released yet."""
        assert (self.scheduler.memory.claimed() <= self.foretold).all()
        assert spans[: len(self.chunks)] == self.chunks  # then come the decoding ones
        decoding = [number for number, _, _ in spans[len(self.chunks) :]]
        assert not set(decoding) & {run.number for run in self.scheduler.prefilling}


def stuck(scheduler: Scheduler) -> bool:
    """Somebody waits, nobody runs, and that the arena is empty does not help."""
    return bool(scheduler.waiting) and not scheduler.running_count and scheduler._blocked


def serve(case: Case) -> tuple[Results, Counter[str], Sound]:
    """Run it and check that every invariant holds; the results, and refusals by operation."""
    scheduler = Scheduler(ArenaMemory(case.arena), case.config)
    sound = Sound(scheduler)
    refused: Counter[str] = Counter()
    apply = case.arena.apply

    def counted(operation):  # type: ignore[no-untyped-def]
        outcome = apply(operation)
        if not outcome.ok:
            refused[type(operation).__name__] += 1
        return outcome

    case.arena.apply = counted  # type: ignore[method-assign]
    scheduler.should_stop = lambda: scheduler.results.steps > 5_000 or stuck(scheduler)
    results = scheduler.run(case.requests)
    assert not results.stopped_early, "nobody gets on"
    assert case.arena.check() == []
    return results, refused, sound
