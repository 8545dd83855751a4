"""Separate pools: the split follows the ratios, and the search only ever improves."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.fuzz.workload import baseline
from bandscope.fuzz.workload.baseline import (
    BAD_RATIOS,
    DEFAULT_RATIOS,
    run_baselines,
    shares_of_demand,
    shares_of_ratios,
)
from bandscope.fuzz.workload.memory import PoolMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig

MODELS = ["gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "inkling"]
CONFIG = SchedulerConfig(chunk_tokens=16)


def small_plan() -> StoragePlan:
    """State, a window and full attention, with pages of one token."""
    return plan_from_sizes([("mamba", 512), ("window_8", 64), ("full", 128)])


def trace(limit: int | None = None) -> list[Request]:
    """Forty requests that press on full attention."""
    requests = [Request(index, index * 0.01, 20 + index % 30, 10) for index in range(40)]
    return requests[:limit]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ratios", [DEFAULT_RATIOS, BAD_RATIOS, (0.1, 0.2)])
def test_shares_sum_to_one_and_follow_the_ratios(model: str, ratios: tuple[float, float]) -> None:
    """Window tokens per full token, and state bytes per byte of the token pools, are as asked."""
    plan = plan_storage(declare_model(model))
    shares = dict(zip([b.name for b in plan.bands], shares_of_ratios(plan, *ratios), strict=True))
    assert sum(shares.values()) == pytest.approx(1.0)
    tokens = {band.name: shares[band.name] / band.entry_bytes for band in plan.bands}
    for window in plan.windows:
        assert tokens[window.name] / tokens["full"] == pytest.approx(ratios[0])
    if plan.has_state:
        state = shares.pop("mamba")
        assert state / sum(shares.values()) == pytest.approx(ratios[1])


def test_shares_of_demand_are_those_of_the_peaks() -> None:
    """One request of 20 + 10 tokens: a slot, a window of 8, 30 pages of one token."""
    shares = shares_of_demand(small_plan(), [Request(0, 0.0, 20, 10)])
    needs = [512, 8 * 64, 30 * 128]
    assert shares == pytest.approx([need / sum(needs) for need in needs])
    twice = shares_of_demand(small_plan(), [Request(0, 0.0, 20, 10), Request(1, 0.0, 20, 10)])
    assert twice == pytest.approx(shares)


def test_scaling_keeps_the_sum_and_the_other_proportions() -> None:
    """One share is scaled, the others fill what is left in their proportions."""
    scaled = baseline._scaled((0.2, 0.3, 0.5), 0, 2.5)
    assert scaled == pytest.approx((0.5, 0.1875, 0.3125))
    assert baseline._scaled((0.2, 0.3, 0.5), 0, 1.0) is None
    assert baseline._scaled((0.5, 0.5), 0, 4.0) is None


def cost_of(results: Results) -> tuple[int, float]:
    """What the search minimises: requests not served whole, then the mean time to finish."""
    seconds = results.finished_seconds
    return (
        sum(results.aborts.values()) + results.clipped_outputs,
        sum(seconds) / len(seconds) if seconds else float("inf"),
    )


@pytest.mark.parametrize("total_bytes", [9_000, 14_000, 30_000])
def test_the_search_is_never_worse_than_where_it_started(total_bytes: int) -> None:
    """The best split serves the trace at least as well as the defaults and the demand's own."""
    plan = small_plan()
    said: list[str] = []
    found = run_baselines(plan, total_bytes, trace, CONFIG, said.append)
    assert [base.name for base in found] == ["bad split", "default split", "best split"]
    assert said == ["bad split", "default split", "searching the best split", "best split"]
    bad, default, best = found
    assert bad.shares == shares_of_ratios(plan, *BAD_RATIOS)
    assert default.shares == shares_of_ratios(plan, *DEFAULT_RATIOS)
    assert sum(best.shares) == pytest.approx(1.0)
    own = Scheduler(
        PoolMemory(plan, total_bytes, shares_of_demand(plan, trace())), CONFIG
    ).run(trace())
    assert cost_of(best.results) <= cost_of(default.results)
    # Requests not served whole come first: serving more of them may take each one longer.
    assert cost_of(best.results) <= (cost_of(own)[0], cost_of(own)[1] + 1e-9)
    for base in found:
        results = base.results
        assert results.finished + sum(results.aborts.values()) == results.arrived == 40
        assert base.to_json()["shares"] == list(base.shares)
        assert base.to_json()["results"] == results.to_json()


def test_the_search_improves_a_bad_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a split that starves full attention, the search finds one that serves everything."""
    plan = small_plan()
    bad = (0.6, 0.3, 0.1)
    monkeypatch.setattr(baseline, "shares_of_demand", lambda *_: bad)
    monkeypatch.setattr(baseline, "shares_of_ratios", lambda *_: bad)
    found = run_baselines(plan, 20_000, trace, CONFIG, lambda what: None)
    assert cost_of(found[0].results)[0] > 0
    assert cost_of(found[2].results)[0] == 0
    assert found[2].shares[2] > 0.3


def test_the_best_split_is_best_on_the_whole_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the part that was searched misled, the split that served all of it best is named."""
    monkeypatch.setattr(baseline, "_search", lambda *_: (0.6, 0.35, 0.05))
    bad, default, best = run_baselines(small_plan(), 14_000, trace, CONFIG, lambda what: None)
    assert best.shares in (bad.shares, default.shares)
    assert cost_of(best.results) == min(cost_of(bad.results), cost_of(default.results))


def test_the_search_looks_at_the_first_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits are judged on a bounded part of the trace; the chosen one serves all of it."""
    monkeypatch.setattr(baseline, "SEARCH_REQUESTS_MAX", 7)
    asked: list[int | None] = []

    def requests(limit: int | None) -> Iterable[Request]:
        asked.append(limit)
        return trace(limit)

    found = run_baselines(small_plan(), 14_000, requests, CONFIG, lambda what: None)
    assert asked[:2] == [None, None]
    assert asked[-1] is None
    assert set(asked[2:-1]) == {7}
    assert [base.results.arrived for base in found] == [40, 40, 40]


@pytest.mark.parametrize(
    ("stop_at", "names"),
    [
        ("bad split", []),
        ("default split", ["bad split"]),
        ("searching the best split", ["bad split", "default split"]),
        ("best split", ["bad split", "default split"]),
    ],
)
def test_a_stop_is_honoured_and_nothing_partial_is_reported(
    stop_at: str, names: list[str]
) -> None:
    """Stopped in the middle of a split: that one is left out, and no further one is begun."""
    said: list[str] = []
    found = run_baselines(
        small_plan(), 14_000, trace, CONFIG, said.append, lambda: stop_at in said
    )
    assert said[-1] == stop_at
    assert [base.name for base in found] == names
    assert all(not base.results.stopped_early for base in found)


def test_baselines_are_the_same_every_time() -> None:
    """The search draws nothing at random."""
    runs = [
        [base.to_json() for base in run_baselines(small_plan(), 14_000, trace, CONFIG, str)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
