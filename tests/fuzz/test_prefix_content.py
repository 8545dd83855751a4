"""Keys of prefixes, and content through sharing, splitting, eviction and compaction on a real trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_storage
from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_nodes import CacheShape
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.prefix_keys import page_keys, page_names
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig
from bandscope.fuzz.workload.source import open_workload
from bandscope.fuzz.workload.stamps import StampForward
from bandscope.inspect.counters import Counters

# --- keys ---------------------------------------------------------------------------------------------


def test_only_whole_blocks_name_pages() -> None:
    """Blocks of 8 in pages of 4: two whole ones of a prompt of 19, then keys of the request's own."""
    request = Request(7, 0.0, 19, 9, (50, 60, 70), 8)
    keys = page_keys(request, 28, 4)
    assert keys[:4].tolist() == [50, 50, 60, 60]
    assert keys.size == 7 and (keys[4:] < 0).all() and len(set(keys[4:].tolist())) == 3
    assert page_keys(request, 28, 4).tolist() == keys.tolist()  # found again after a retraction
    assert page_keys(request, 9, 4).tolist() == keys[:2].tolist()
    other = page_keys(replace(request, index=8), 28, 4)
    assert other[:4].tolist() == keys[:4].tolist() and not set(other[4:]) & set(keys[4:])


def test_requests_without_blocks_share_nothing() -> None:
    seen: set[int] = set()
    for index in (0, 1, 2, 1 << 20):
        keys = page_keys(Request(index, 0.0, 100, 10), 110, 2)
        assert keys.size == 55 and not seen & set(keys.tolist())
        seen |= set(keys.tolist())


def test_blocks_that_are_no_whole_pages_are_refused() -> None:
    with pytest.raises(MisuseError, match="blocks of 10 tokens were given for pages of 4"):
        page_keys(Request(0, 0.0, 30, 1, (1, 2, 3), 10), 31, 4)


def test_names_stand_for_a_page_and_all_before_it() -> None:
    """Equal as long as the keys are, and never after; also for keys in another order."""
    rng = np.random.default_rng(0)
    names: dict[int, tuple[int, ...]] = {}
    for _ in range(400):
        keys = rng.integers(-3, 4, rng.integers(0, 30))
        for page, name in enumerate(page_names(keys).tolist()):
            prefix = tuple(keys[: page + 1].tolist())
            assert names.setdefault(name, prefix) == prefix
    assert len(names) > 3_000


# --- content ------------------------------------------------------------------------------------------


def short_conversations(shared_data: Path, count: int, output_tokens: int) -> list[Request]:
    """The first requests of the Mooncake conversation trace with prompts of up to 4,000 tokens, closer
    together: every other token of their prompts was there before."""
    trace = shared_data / "traces" / "mooncake_conversation.jsonl.gz"
    chosen = []
    for request in open_workload(f"mooncake:{trace}", limit=3000):
        if request.prompt_tokens <= 4_000:
            output = min(output_tokens, request.output_tokens)
            arrival = 0.05 * len(chosen)
            chosen.append(
                replace(request, index=len(chosen), arrival_seconds=arrival, output_tokens=output)
            )
        if len(chosen) == count:
            break
    return chosen


MODELS = {"gpt-oss-20b": 40, "qwen3-next-80b-a3b": 96, "inkling-small": 160}


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", MODELS)
def test_shared_pages_hold_what_they_should(
    shared_data: Path, model: str, everything: bool
) -> None:
    """Arenas of a few prompts: prefixes are matched, split, evicted, and moved by compaction; each row
    is what whoever reads it expects, whoever wrote it."""
    plan = plan_storage(declare_model(model, tensor_parallel=8), page_size=64)
    grid = 512 if plan.has_state else 0
    counters = Counters()
    config = ArenaConfig(
        hand_out="zero" if everything else "none", prefix_cache=True, checkpoint_grid_tokens=grid
    )
    arena = Arena(plan, MODELS[model] << 20, device="cpu", config=config, observer=counters)
    forward = StampForward(arena, everything=everything, expect_zeroed=everything)
    splits = 0

    def look(scheduler: Scheduler) -> None:
        nonlocal splits
        assert arena.books.cache is not None
        nodes = arena.books.cache.tree.nodes.values()
        splits = max(splits, sum(len(n.children) > 1 and n.parent is not None for n in nodes))

    settings = SchedulerConfig(chunk_tokens=1024, urgent_compact_share=0.1)
    scheduler = Scheduler(ArenaMemory(arena), settings, forward=forward, after_step=look)
    requests = short_conversations(shared_data, 150, 12)
    results = scheduler.run(requests)
    assert [str(found) for found in forward.mismatches] == []
    assert results.finished == len(requests) and results.refusals == {}
    assert forward.rows_checked > 10_000 and splits > 0
    assert results.matched_tokens > 1_000
    assert arena.books.cache is not None  # of what was computed most is gone again
    assert 64 * arena.books.cache.tree.cached[-1] < results.prefill_tokens / 2
    assert sum(counters.band(band.name).moves_urgent for band in plan.bands) > 0
    assert arena.check() == []


def test_a_wrong_page_shows(shared_data: Path) -> None:
    """A row of a shared page is overwritten: the next one that reads it names the request."""
    plan = plan_storage(declare_model("gpt-oss-20b", tensor_parallel=8), page_size=64)
    arena = Arena(plan, 64 << 20, device="cpu", config=ArenaConfig(prefix_cache=True))
    forward = StampForward(arena, everything=True)
    requests = short_conversations(shared_data, 2, 4)
    blocks = tuple(range(1, 5))
    same = [
        replace(request, prompt_tokens=2_050, prefix_blocks=blocks, arrival_seconds=n * 10.0)
        for n, request in enumerate(requests)
    ]
    spoiled = []

    def spoil(scheduler: Scheduler) -> None:
        if scheduler.results.finished == 1 and not spoiled:
            assert arena.books.cache is not None
            [page] = arena.books.cache.tree.peek(page_keys(same[1], 2_048, 64), 64).pages
            band = arena.books.bands[-1]
            place = band.table.place_of[np.array([page])]
            physical = int(band.physical(place)[0])
            forward._bands[-1].groups[0].words[physical, 5] += 1
            spoiled.append(physical)

    scheduler = Scheduler(ArenaMemory(arena), forward=forward, after_step=spoil)
    scheduler.run(same)
    assert spoiled and forward.mismatch_count
    assert {(found.request, found.page) for found in forward.mismatches} == {(1, spoiled[0])}


# --- what is found ------------------------------------------------------------------------------------


def replayed_hit_rate(
    plan: StoragePlan, requests: list[Request], chunk_tokens: int, grid: int
) -> float:
    """The share of prompt tokens that an unbounded tree has, one request after the other, published
    as the engine does: the first chunk before its windows are trimmed, the others after, and a chunk
    ends where a request parts from what is cached."""
    tree = PrefixTree(CacheShape.of_plan(plan, grid_tokens=grid, keys="hashes"))
    shape, page = tree.shape, plan.page_size
    fresh = matched = slots = 0
    for request in requests:
        goal = request.prompt_tokens + request.output_tokens
        key = page_keys(request, goal, page)
        limit = request.prompt_tokens - 1
        match = tree.match(key, tree.clock + 1, limit)
        fork = min(match.matched_tokens, limit) // (grid or page) * (grid or page)
        matched += match.tokens
        own = np.arange(fresh, fresh + key.size - match.depth)
        fresh += own.size
        pages = np.concatenate([match.pages, own])
        start = match.tokens
        while start < goal:
            stop = min(start + chunk_tokens, request.prompt_tokens)
            if start < fork:
                stop = min(stop, fork)
            if start >= request.prompt_tokens:
                stop = goal
            trimmed_to = stop if start else 0
            given = []
            if grid and stop % grid == 0 and stop <= request.prompt_tokens:
                given, slots = [(stop, slots)], slots + 1
            windows = range(len(shape.windows))
            found = tree.insert(
                key[: stop // page],
                pages[: stop // page],
                tree.clock + 1,
                kept_from=[shape.kept_from(window, trimmed_to) for window in windows],
                checkpoints=given,
            )
            pages[: found.depth] = found.pages
            start = stop
    return matched / sum(request.prompt_tokens for request in requests)


@pytest.mark.parametrize("model", MODELS)
def test_the_hit_rate_is_that_of_an_unbounded_tree(shared_data: Path, model: str) -> None:
    """With memory for everything, and each request done before the next one comes."""
    plan = plan_storage(declare_model(model), page_size=64)
    grid = 512 if plan.has_state else 0
    config = ArenaConfig(prefix_cache=True, checkpoint_grid_tokens=grid)
    arena = Arena(plan, 2 << 40, device="none", config=config)
    scheduler = Scheduler(ArenaMemory(arena), SchedulerConfig(chunk_tokens=1024))
    requests = [
        replace(request, arrival_seconds=10.0 * number)
        for number, request in enumerate(short_conversations(shared_data, 300, 4))
    ]
    results = scheduler.run(requests)
    expected = replayed_hit_rate(plan, requests, 1024, grid)
    assert expected > 0.1
    assert results.hit_rate == pytest.approx(expected, rel=0.01)
