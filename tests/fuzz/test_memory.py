"""Arena and separate pools answer the scheduler alike, and pools count exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.plan import StoragePlan, plan_from_sizes
from bandscope.fuzz.workload.memory import ArenaMemory, PoolMemory, ServingMemory

LAYOUTS = {
    "window": [("window_8", 64), ("full", 128)],
    "unknown window": [("window", 64), ("full", 128)],
    "state": [("mamba", 512), ("full", 64)],
    "both": [("mamba", 768), ("window_8", 64), ("full", 128)],
    "several": [("mamba", 320), ("window_16", 192), ("window_5", 64), ("full", 128)],
}


def plan_of(name: str, page_size: int) -> StoragePlan:
    """The layout with the same bytes per token at any page size."""
    sizes = [(n, size * (1 if n == "mamba" else page_size)) for n, size in LAYOUTS[name]]
    return plan_from_sizes(sizes, page_size=page_size)


class NaivePool:
    """Pages of separate pools, kept one by one in dictionaries: slow and plainly right."""

    def __init__(self, plan: StoragePlan, capacity: list[int]) -> None:
        self.plan = plan
        self.capacity = capacity
        self.pages: list[dict[int, set[int]]] = [{} for _ in plan.bands]  # request → page numbers
        self.length: dict[int, int] = {}

    def used(self) -> list[int]:
        return [sum(map(len, held.values())) for held in self.pages]

    def _grow(self, asked: dict[int, int], states: list[int]) -> bool:
        """Give every request room for so many tokens, or nothing to anyone."""
        fresh: list[list[tuple[int, int]]] = [[] for _ in self.plan.bands]
        for index, band in enumerate(self.plan.bands):
            if band.kind == "state":
                fresh[index] = [(request, 0) for request in states]
                continue
            for request, tokens in asked.items():
                had = -(-self.length[request] // self.plan.page_size)
                needs = -(-(self.length[request] + tokens) // self.plan.page_size)
                fresh[index] += [(request, page) for page in range(had, needs)]
        used = self.used()
        if any(used[i] + len(fresh[i]) > self.capacity[i] for i in range(len(used))):
            return False
        for index, new in enumerate(fresh):
            for request, page in new:
                self.pages[index].setdefault(request, set()).add(page)
        for request, tokens in asked.items():
            self.length[request] += tokens
        return True

    def admit(self, request: int) -> bool:
        if not self._grow({}, [request]):
            return False
        self.length[request] = 0
        return True

    def extend(self, request: int, tokens: int) -> bool:
        return self._grow({request: tokens}, [])

    def decode(self, requests: list[int]) -> bool:
        return self._grow(dict.fromkeys(requests, 1), [])

    def trim_window(self, requests: list[int]) -> None:
        for index, band in enumerate(self.plan.bands):
            if band.kind != "window" or band.window_length is None:
                continue
            for request in requests:
                attended = {  # what the next token sees besides itself
                    position // self.plan.page_size
                    for position in range(
                        max(0, self.length[request] - band.window_length + 1),
                        self.length[request],
                    )
                }
                first = min(attended, default=self.length[request] // self.plan.page_size)
                held = self.pages[index].get(request, set())
                held -= {page for page in held if page < first}

    def release(self, request: int) -> None:
        for held in self.pages:
            held.pop(request, None)
        del self.length[request]

    def held(self, requests: list[int]) -> list[list[int]]:
        return [[len(held.get(request, ())) for held in self.pages] for request in requests]


def step(rng: random.Random, memories: list[object], running: list[int], fresh: int) -> int:
    """One random operation on every memory alike; all must answer the same. Returns the next id."""
    kind = rng.choice(["admit", "extend", "extend", "decode", "trim", "release"])
    if kind == "admit" or not running:
        answers = [bool(memory.admit(fresh)) for memory in memories]  # type: ignore[attr-defined]
        if answers[0]:
            running.append(fresh)
        fresh += 1
    elif kind == "extend":
        request, tokens = rng.choice(running), rng.randint(0, 40)
        answers = [bool(memory.extend(request, tokens)) for memory in memories]  # type: ignore
    elif kind == "decode":
        batch = rng.sample(running, rng.randint(1, len(running)))
        answers = [bool(memory.decode(batch)) for memory in memories]  # type: ignore[attr-defined]
    elif kind == "trim":
        batch = rng.sample(running, rng.randint(1, len(running)))
        answers = [True]
        for memory in memories:
            memory.trim_window(batch)  # type: ignore[attr-defined]
    else:
        request = running.pop(rng.randrange(len(running)))
        answers = [True]
        for memory in memories:
            if isinstance(memory, NaivePool):
                memory.release(request)
            else:
                memory.release(request, "finished")  # type: ignore[attr-defined]
    assert len(set(answers)) == 1
    return fresh


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_arena_and_pools_hold_the_same_pages(name: str, page_size: int) -> None:
    """With ample room, `held` and the bytes used agree after every one of 150 operations."""
    plan = plan_of(name, page_size)
    rng = random.Random(f"{name} {page_size}")
    arena = ArenaMemory(Arena(plan, 64 << 20, device="none"))
    pools = PoolMemory(plan, 64 << 20, [1 / len(plan.bands)] * len(plan.bands))
    naive = NaivePool(plan, [10**9] * len(plan.bands))
    running: list[int] = []
    fresh = 0
    for _ in range(150):
        fresh = step(rng, [arena, pools, naive], running, fresh)
        assert arena.held(running).tolist() == naive.held(running)
        assert pools.held(running).tolist() == naive.held(running)
        assert arena.used_bytes() == pools.used_bytes()
    for request in running:
        arena.release(request, "finished")
        pools.release(request, "finished")
    assert arena.used_bytes() == pools.used_bytes() == 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_pools_are_exact_at_their_limits(name: str, page_size: int) -> None:
    """Small pools grant and refuse exactly as a model that keeps every page in a dictionary."""
    plan = plan_of(name, page_size)
    refused = 0
    for seed in range(4):
        rng = random.Random(seed)
        shares = np.array([rng.random() + 0.2 for _ in plan.bands])
        shares = shares / shares.sum()
        total = plan.sink_bytes + rng.randint(6_000, 20_000)
        pools = PoolMemory(plan, total, shares.tolist())
        capacity = [
            int((total - plan.sink_bytes) * share) // band.page_bytes
            for share, band in zip(shares, plan.bands, strict=True)
        ]
        assert pools.capacity.tolist() == capacity
        naive = NaivePool(plan, capacity)
        running: list[int] = []
        fresh = 0
        for _ in range(150):
            before = len(running), naive.used()
            fresh = step(rng, [pools, naive], running, fresh)
            refused += before == (len(running), naive.used())
            assert pools.held(running).tolist() == naive.held(running)
            assert pools.used.tolist() == naive.used()
            demand = [rng.randint(0, 30) for _ in plan.bands]
            fits = [used + more <= most for used, more, most in
                    zip(naive.used(), demand, capacity, strict=True)]  # fmt: skip
            assert pools.serves(demand) == all(fits)
            empty = [more <= most for more, most in zip(demand, capacity, strict=True)]
            assert pools.serves_when_empty(demand) == all(empty)
    assert refused > 20


def test_a_full_pool_is_named_and_nothing_changes() -> None:
    """Room in other pools does not help: the refusal names the pool, and counts stay."""
    plan = plan_of("both", 1)
    pools = PoolMemory(plan, plan.sink_bytes + 10_000, [0.2, 0.2, 0.6])
    assert pools.capacity.tolist() == [2, 31, 46]
    assert pools.admit(0)
    outcome = pools.extend(0, 32)
    assert (outcome.ok, outcome.reason) == (False, "memory")
    assert outcome.message == "the pool of window_8 is full"
    assert pools.held([0]).tolist() == [[1, 0, 0]]
    assert pools.extend(0, 31)
    pools.trim_window([0])
    assert pools.held([0]).tolist() == [[1, 7, 31]]
    assert pools.admit(1)
    assert pools.admit(2).message == "the pool of mamba is full"
    outcome = pools.extend(1, 16)
    assert outcome.message == "the pool of full is full"
    assert pools.used.tolist() == [2, 7, 31]
    assert pools.used_bytes() == 2 * 768 + 7 * 64 + 31 * 128


@pytest.mark.parametrize("kind", ["arena", "pools"])
def test_tickets_count_from_one(kind: str) -> None:
    """Both memories number launches alike, and completing or compacting changes no holding."""
    plan = plan_of("both", 4)
    memory: ServingMemory
    if kind == "arena":
        memory = ArenaMemory(Arena(plan, 1 << 20, device="none"))
    else:
        memory = PoolMemory(plan, 1 << 20, [0.3, 0.3, 0.4])
    memory.admit(7)
    memory.extend(7, 30)
    held = memory.held([7]).tolist()
    assert [memory.launch([7]), memory.launch([7])] == [1, 2]
    memory.complete(1)
    memory.complete(2)
    memory.compact()
    assert memory.held([7]).tolist() == held == [[1, 8, 8]]


def test_an_arena_serves_what_no_split_serves() -> None:
    """The same bytes: each pool alone is too small for its phase, the arena lends across."""
    plan = plan_from_sizes([("mamba", 256), ("full", 256)])
    arena = ArenaMemory(Arena(plan, plan.sink_bytes + 40 * 256, device="none"))
    pools = PoolMemory(plan, plan.sink_bytes + 40 * 256, [0.5, 0.5])
    assert arena.serves([1, 39]) and arena.serves([30, 10])
    assert not arena.serves([1, 40])
    assert arena.serves_when_empty([1, 39]) and not arena.serves_when_empty([1, 40])
    assert not pools.serves([1, 39]) and not pools.serves([30, 10])
    assert pools.serves([20, 20])


def test_an_arena_waits_for_the_device_before_it_completes() -> None:
    """The engine needs the step's tokens: the device is waited for, then the arena is told."""
    plan = plan_of("state", 1)
    arena = Arena(plan, 1 << 20, device="none")
    memory = ArenaMemory(arena)
    waited: list[tuple[int, bool]] = []
    arena.device.wait = lambda ticket: waited.append(  # type: ignore[method-assign]
        (ticket, arena.books.tickets.unsettled)
    )
    memory.admit(0)
    memory.launch([0])
    memory.complete(1)
    assert waited == [(1, True)]
    assert not arena.books.tickets.unsettled
