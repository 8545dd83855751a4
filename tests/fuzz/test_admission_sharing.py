"""Admission with a prefix cache: whoever is admitted finishes, however pages are shared and evicted."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator import prefix_checks
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.requests import RequestLedger
from bandscope.fuzz.workload import scheduler as scheduler_module
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.pool_cache import CachedPoolMemory
from bandscope.fuzz.workload.prefix_keys import page_keys
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig
from bandscope.fuzz.workload.sharing import common_pages, later_held_pages
from tests.fuzz.sharing_cases import BANDS, Case, Sound, plan_of, random_case, serve, stuck


def assert_all_finish(name: str, seeds: range) -> Counter[str]:
    """No operation is refused, nobody is retracted but for priority, everybody ends; what happened."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        for tight in (False, True):
            case = random_case(name, seed, cached=seed % 6 > 0, tight=tight)
            results, refused, sound = serve(case)
            what = (name, seed, tight)
            assert refused == Counter(), what
            assert results.retractions == results.preemptions, what
            assert results.finished + sum(results.aborts.values()) == len(case.requests), what
            seen["matched"] += results.matched_tokens
            seen["shared"] += sound.shared_most
            seen["waits"] += results.admission_waits
            seen["preemptions"] += results.preemptions
            seen["restored"] += results.restored_tokens
            seen["checkpoints"] += results.checkpoints
            seen["stalls"] += results.checkpoint_stalls
            seen["finished"] += results.finished
    return seen


@pytest.mark.parametrize("name", BANDS)
def test_whoever_is_admitted_finishes(name: str) -> None:
    """Random tiny arenas, grids, chunks, policies and prompts that begin alike, with and without a
    cache: what requests hold never exceeds what admission said, and no demand is refused. That
    includes arenas so small that checkpoints stall."""
    seen = assert_all_finish(name, range(100))
    expected = {"matched", "shared", "waits", "preemptions", "restored", "finished"}
    if "mamba" in [band.name for band in plan_of(name, 1).bands]:
        expected |= {"checkpoints", "stalls"}
    assert not [what for what in expected if not seen[what]]


@pytest.mark.slow
@pytest.mark.parametrize("name", BANDS)
def test_whoever_is_admitted_finishes_in_many_more_cases(name: str) -> None:
    assert_all_finish(name, range(1_000, 1_600))


@pytest.mark.parametrize("name", BANDS)
def test_separate_pools_keep_the_same_promise(name: str) -> None:
    """The same cases against pools with the same cache; at the end only cached pages are in use."""
    matched = 0
    for seed in range(12):
        case = random_case(name, seed, tight=seed % 2 > 0)
        memory = pools_of(case)
        scheduler = Scheduler(memory, case.config)
        Sound(scheduler)
        scheduler.should_stop = lambda s=scheduler: s.results.steps > 5_000 or stuck(s)  # type: ignore
        scheduler.after_step = lambda s, memory=memory: assert_counts(memory)  # type: ignore
        results = scheduler.run(case.requests)
        assert not results.stopped_early and results.refusals == Counter()
        assert results.retractions == results.preemptions
        assert results.finished + sum(results.aborts.values()) == len(case.requests)
        assert memory.used.tolist() == memory.tree.cached
        assert list(prefix_checks.check(memory.tree)) == []
        matched += results.matched_tokens
    assert matched


def pools_of(case: Case) -> CachedPoolMemory:
    """Even pools of the case's bytes, with its cache."""
    rules = case.arena.books.config
    return CachedPoolMemory(
        case.plan,
        case.arena.total_bytes,
        [1 / len(case.plan.bands)] * len(case.plan.bands),
        evict=rules.evict,
        grid_tokens=rules.checkpoint_grid_tokens,
    )


def assert_counts(memory: CachedPoolMemory) -> None:
    assert (memory.used >= 0).all() and (memory.used <= memory.capacity).all()
    assert (memory.claimed() >= 0).all()


@pytest.mark.parametrize("broken", ["end", "early leave", "evictable"])
def test_the_promise_needs_each_of_its_rules(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a shared page for the one that ends first, keep the numbers when somebody leaves early, or
    say that more is held than is, to be given back later: some case then breaks."""
    admission = scheduler_module.Admission
    if broken == "early leave":
        monkeypatch.setattr(admission, "left_early", lambda self: None)
    elif broken == "evictable":
        claimed = ArenaMemory.claimed
        monkeypatch.setattr(ArenaMemory, "claimed", lambda self: claimed(self) + 2)
    else:

        def everybody(self: Any, running: Any, schedule: Any, found: Any, what: bool) -> np.ndarray:
            shared = np.array([run.shared_pages for run in running] + [0], np.int64)
            if found.tokens and running:
                shared[-1] = self.memory.common(found, [run.number for run in running]).max()
            self._shared = shared
            return shared

        monkeypatch.setattr(admission, "_shared_beside", everybody)
    broke = 0
    for seed in range(1, 400):
        case = random_case("window" if seed % 2 else "state", seed, tight=seed % 3 == 0)
        try:
            results, refused, _ = serve(case)
        except AssertionError:
            broke += 1
            break
        broke += bool(refused)
    assert broke


def test_the_checkpoint_that_a_match_copies_from_has_its_price() -> None:
    """A slot is worth sixteen pages. One request leaves its prompt and a checkpoint behind, another one
    runs, and a third with the first prompt would fit beside it, but not while its state is copied: it
    waits, instead of being admitted and then refused."""
    plan = plan_from_sizes([("mamba", 4096), ("full", 256)], page_size=1)
    same = tuple(range(1, 10))
    requests = [
        Request(0, 0.0, 9, 1, same, 1),
        Request(1, 1.0, 3, 7),  # too short for a checkpoint of its own
        Request(2, 1.02, 9, 1, same, 1),
    ]
    waits = matched = 0
    for usable in range(13_312, 18_000, 256):
        config = ArenaConfig(prefix_cache=True, checkpoint_grid_tokens=4)
        arena = Arena(plan, plan.sink_bytes + usable, device="none", config=config)
        scheduler = Scheduler(ArenaMemory(arena), SchedulerConfig(chunk_tokens=4))
        scheduler.should_stop = lambda s=scheduler: stuck(s)  # type: ignore
        results = scheduler.run(requests)
        assert results.finished == 3 and results.refusals == Counter(), usable
        waits += results.admission_waits
        matched += results.matched_tokens
    assert waits and matched


@pytest.mark.parametrize("name", BANDS)
def test_shortage_is_what_serves_says(name: str) -> None:
    """Many rows at once and one demand: the same answer, with cached pages and pins in the arena."""
    answers: Counter[bool] = Counter()
    evicting = 0
    for seed in range(1, 16):
        case = random_case(name, seed)
        rng = random.Random(seed)
        memory = ArenaMemory(case.arena)

        def compare(
            scheduler: Scheduler, case: Case = case, rng: random.Random = rng,
            memory: ArenaMemory = memory,
        ) -> None:  # fmt: skip
            nonlocal evicting
            books = case.arena.books
            most = [case.arena.total_bytes // band.page_bytes for band in books.bands]
            rows = np.array([[rng.randint(0, pages // 2) for pages in most] for _ in range(6)])
            told = [memory.serves(row.tolist()) for row in rows]
            assert (memory.shortage(rows) <= 0).tolist() == told
            answers.update(told)
            evicting += sum(
                books.chain.pack(books.held(row.tolist())) is None and yes
                for row, yes in zip(rows, told, strict=True)
            )

        scheduler = Scheduler(memory, case.config, after_step=compare)
        scheduler.should_stop = lambda s=scheduler: stuck(s)  # type: ignore
        assert not scheduler.run(case.requests).stopped_early
    assert answers[True] > 50 and answers[False] > 50 and evicting > 20


# --- what is subtracted -------------------------------------------------------------------------------


def test_common_pages_is_the_leading_run() -> None:
    """The binary search finds what a comparison page by page finds."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        pages = rng.permutation(40)[: rng.integers(0, 20)]
        ledger = RequestLedger(0)
        expected = {}
        for request in rng.permutation(8).tolist():
            row = ledger.add(request)
            run = int(rng.integers(0, pages.size + 1))
            ledger.append_pages(row, np.concatenate([pages[:run], np.arange(100, 124 - run)]))
            ledger.cached[row] = rng.integers(0, 24)
            expected[request] = min(run, int(ledger.cached[row]))
        asked = rng.permutation(8)[:5].tolist()
        found = common_pages(ledger, asked, pages)
        assert found.tolist() == [expected[request] for request in asked]


@pytest.mark.parametrize("name", BANDS)
def test_what_the_tree_says_is_what_the_rows_say(name: str) -> None:
    """Pages shared with anybody before in the list: by nodes of the tree, and by the rows of ids."""
    compared = 0
    for seed in range(40):
        case = random_case(name, seed)
        rng = random.Random(seed)

        def compare(scheduler: Scheduler, case: Case = case, rng: random.Random = rng) -> None:
            nonlocal compared
            books = case.arena.books
            assert books.cache is not None
            numbers = [run.number for run in scheduler.running()]
            rng.shuffle(numbers)
            leases = [books.cache.sharing[number].lease for number in numbers]
            found = later_held_pages(books.cache.tree, leases)
            rows = [books.ledger.token_pages(books.ledger.row(number)) for number in numbers]
            for place, row in enumerate(rows):
                others = [len(_common(row, other)) for other in rows[:place]]
                assert found[place] == max(others, default=0)
                compared += bool(found[place])

        scheduler = Scheduler(ArenaMemory(case.arena), case.config, after_step=compare)
        scheduler.run(case.requests)
    assert compared


def _common(one: np.ndarray, other: np.ndarray) -> list[int]:
    same = one[: other.size] == other[: one.size]
    return one[: int(same.argmin()) if not same.all() else same.size].tolist()


def test_what_only_a_pin_keeps_is_not_counted_as_the_requests() -> None:
    """Two run with one prompt, its pages are pinned, and both go: the pin keeps the prompt cached, and
    nothing of it is expected back from anybody."""
    plan = plan_of("window", 4)
    config = ArenaConfig(prefix_cache=True)
    arena = Arena(plan, plan.sink_bytes + 500 * 256, device="none", config=config)
    memory = ArenaMemory(arena)
    key = page_keys(Request(0, 0.0, 40, 8, tuple(range(10)), 4), 48, 4)
    for number in (0, 1):
        memory.admit(number, key, 39)
        memory.extend(number, 40 - int(arena.books.ledger.length[number]))
        arena.complete(memory.launch([number]))
        memory.publish(number)
    held = memory.claimed()
    assert held.tolist() == [10, 10]
    pin = arena.apply(ops.Lease(0, "full", 0, 2, "peer", "transfer")).value
    assert (memory.claimed() <= held).all()
    for number in (0, 1):
        memory.release(number, "finished", publish=True)
    assert memory.claimed().tolist() == [0, 0]
    assert (memory.shortage(np.zeros((1, 2), np.int64)) <= 0).all()
    assert sum(arena.books.cache.tree.evictable) == 0  # type: ignore[union-attr]
    arena.apply(ops.EndLease(pin, "peer"))
    assert arena.books.cache.tree.evictable == [10, 10]  # type: ignore[union-attr]


def test_sharing_lets_more_run_at_once() -> None:
    """Ten requests with one long prompt: without a cache few fit, with one all that come later do."""
    plan = plan_of("window", 4)
    blocks = tuple(range(1, 26))
    requests = [Request(n, 0.03 * n, 100, 60, blocks, 4) for n in range(10)]
    peaks = []
    for cached in (False, True):
        arena = Arena(
            plan, plan.sink_bytes + 500 * 256, device="none", config=ArenaConfig(prefix_cache=cached)
        )
        results = Scheduler(ArenaMemory(arena), SchedulerConfig(chunk_tokens=96)).run(requests)
        assert results.finished == 10
        peaks.append(results.concurrency_peak)
        # The first chunk, whose window rows were published before they were trimmed.
        assert results.hit_rate == pytest.approx(9 * 96 / 1000 if cached else 0)
    assert peaks[1] >= 2 * peaks[0]
