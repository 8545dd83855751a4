"""The same trace against separate pools: what a fixed split of the same bytes would have served.

Splits are named by the ratios that engines use: `swa_full_tokens_ratio` (window tokens per full
token) and `mamba_full_memory_ratio` (state bytes per byte of all token pools).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.demand import peak_demand
from bandscope.allocator.plan import StoragePlan
from bandscope.fuzz.workload.memory import PoolMemory
from bandscope.fuzz.workload.pool_cache import CachedPoolMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig

DEFAULT_RATIOS = (0.8, 0.9)
# Made for the opposite of a long-prompt workload: windows and state take most of the bytes.
BAD_RATIOS = (2.0, 4.0)
# Factors by which the search scales the byte share of the bands that are not full attention.
_SEARCH_FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)
_REFINE_FACTORS = (0.85, 1.18)
SEARCH_REQUESTS_MAX = 1000


@dataclass(frozen=True)
class CacheRules:
    """The prefix cache that pools get too: which pages go first, and tokens between checkpoints."""

    evict: str
    grid_tokens: int


@dataclass(frozen=True)
class Baseline:
    """One split and what it served. `shares`: parts of the bytes beside the sink, chain order."""

    name: str
    shares: tuple[float, ...]
    results: Results

    def to_json(self) -> dict[str, Any]:
        return {"shares": list(self.shares), "results": self.results.to_json()}


def shares_of_ratios(
    plan: StoragePlan, window_ratio: float, state_ratio: float
) -> tuple[float, ...]:
    """Byte shares per band for a pair of ratios."""
    weights = np.zeros(len(plan.bands))
    for index, band in enumerate(plan.bands):
        if band.kind == "full":
            weights[index] = band.entry_bytes
        elif band.kind == "window":
            weights[index] = band.entry_bytes * window_ratio
    weights /= weights.sum()
    if plan.has_state:
        state = state_ratio / (1 + state_ratio)
        weights = np.where(
            [band.kind == "state" for band in plan.bands], state, weights * (1 - state)
        )
    return tuple(weights.tolist())


def shares_of_demand(plan: StoragePlan, requests: Iterable[Request]) -> tuple[float, ...]:
    """Byte shares in proportion to what the requests of a trace need at their peak."""
    weights = np.zeros(len(plan.bands))
    sizes = np.array([band.page_bytes for band in plan.bands])
    for request in requests:
        demand = peak_demand(plan, request.prompt_tokens, max(1, request.output_tokens))
        weights += np.array(demand) * sizes
    return tuple((weights / weights.sum()).tolist())


def run_baselines(
    plan: StoragePlan,
    total_bytes: int,
    requests: Callable[[int | None], Iterable[Request]],
    config: SchedulerConfig,
    progress: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    cache: CacheRules | None = None,
) -> list[Baseline]:
    """The bad, the default and the best split found. `requests(limit)` starts the trace afresh.

    The search judges splits on the first `SEARCH_REQUESTS_MAX` requests; the split it chooses is
    then run on all of them. With `cache` every split has a prefix cache by the same rules as the arena.
    """

    def serve(shares: tuple[float, ...], limit: int | None = None) -> Results:
        memory = _pools(plan, total_bytes, shares, cache)
        scheduler = Scheduler(memory, config, should_stop=should_stop)
        return scheduler.run(requests(limit))

    found: list[Baseline] = []
    for name, ratios in (("bad split", BAD_RATIOS), ("default split", DEFAULT_RATIOS)):
        progress(name)
        shares = shares_of_ratios(plan, *ratios)
        results = serve(shares)
        if should_stop():  # what was cut short compares with nothing
            return found
        found.append(Baseline(name, shares, results))
    progress("searching the best split")
    best = _search(plan, requests, serve, should_stop)
    if should_stop():
        return found
    progress("best split")
    results = serve(best)
    if not should_stop():
        # The search judged by a part of the trace; on all of it another split may have done better.
        candidates = [(best, results), *((base.shares, base.results) for base in found)]
        shares, results = min(candidates, key=lambda pair: _cost(pair[1]))
        found.append(Baseline("best split", shares, results))
    return found


def _pools(
    plan: StoragePlan, total_bytes: int, shares: tuple[float, ...], cache: CacheRules | None
) -> PoolMemory:
    if cache is None:
        return PoolMemory(plan, total_bytes, shares)
    return CachedPoolMemory(
        plan, total_bytes, shares, evict=cache.evict, grid_tokens=cache.grid_tokens
    )


def _cost(results: Results) -> tuple[int, float]:
    """What a split is judged by: requests not served whole, in whole percents, then the mean time to
    finish. To the request exactly, a split that starves all others to hold one more would win."""
    seconds = results.finished_seconds
    lost = sum(results.aborts.values()) + results.clipped_outputs
    percent = 100 * lost // max(1, results.arrived)
    return percent, float(np.mean(seconds)) if seconds else float("inf")


def _search(
    plan: StoragePlan,
    requests: Callable[[int | None], Iterable[Request]],
    serve: Callable[[tuple[float, ...], int | None], Results],
    should_stop: Callable[[], bool],
) -> tuple[float, ...]:
    """Coordinate search over the shares of every band but full attention, from the trace's own
    proportions and from the default ratios, whichever is better."""

    def cost(shares: tuple[float, ...]) -> tuple[int, float]:
        return _cost(serve(shares, SEARCH_REQUESTS_MAX))

    starts = [
        shares_of_demand(plan, requests(SEARCH_REQUESTS_MAX)),
        shares_of_ratios(plan, *DEFAULT_RATIOS),
    ]
    best_cost, best = min((cost(shares), shares) for shares in starts)
    for factors in (_SEARCH_FACTORS, _REFINE_FACTORS):
        for index, band in enumerate(plan.bands):
            if band.kind == "full":
                continue
            for factor in factors:
                if should_stop():
                    return best
                candidate = _scaled(best, index, factor)
                if candidate is not None:
                    best_cost, best = min((best_cost, best), (cost(candidate), candidate))
    return best


def _scaled(shares: tuple[float, ...], index: int, factor: float) -> tuple[float, ...] | None:
    """`shares` with one scaled and the others filling the rest; None when nothing would be left."""
    share = shares[index] * factor
    if factor == 1.0 or not 0 < share < 0.98:
        return None
    rest = sum(shares) - shares[index]
    return tuple(
        share if number == index else other * (1 - share) / rest
        for number, other in enumerate(shares)
    )
