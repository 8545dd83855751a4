"""The future of a set of requests: every step against a naive simulation, and the answers about all."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from bandscope.allocator import demand_schedule
from bandscope.allocator.demand import DemandModel
from bandscope.allocator.demand_schedule import Schedule
from bandscope.allocator.plan import StoragePlan, plan_from_sizes

BANDS = {
    "window": [("window_8", 256), ("full", 512)],
    "state": [("mamba", 1024), ("full", 256)],
    "odd": [("mamba", 1280), ("window_13", 768), ("window_3", 256), ("full", 512)],
    "unstated": [("window", 256), ("full", 256)],
}


@dataclass
class One:
    """A request of the naive simulation."""

    computed: int
    prompt: int
    goal: int
    limit: int


def plan_of(name: str, page: int) -> StoragePlan:
    """The bands with the same bytes per token at any page size."""
    sizes = [(n, size * (1 if n == "mamba" else page)) for n, size in BANDS[name]]
    return plan_from_sizes(sizes, page_size=page)


def naive_steps(model: DemandModel, requests: list[One], chunk: int) -> list[list[int]]:
    """Play the engine one step at a time, in plain integers; pages per band during each step."""
    page, plan = model.plan.page_size, model.plan
    running = [One(**vars(request)) for request in requests]
    rows = []
    while running:
        spans: dict[int, tuple[int, int]] = {}
        budget = chunk
        for index, one in enumerate(running):
            if one.computed >= one.prompt:
                spans[index] = (one.computed, one.computed + 1 + model.look_ahead_tokens)
        for index, one in enumerate(running):
            if one.computed >= one.prompt:
                continue
            if not budget or (one.limit < chunk and budget < chunk):
                break
            tokens = min(budget, one.limit, one.prompt - one.computed)
            spans[index] = (one.computed, one.computed + tokens)
            budget = 0 if one.limit < chunk else budget - tokens
        row = [0] * len(plan.bands)
        for index, one in enumerate(running):
            start, stop = spans.get(index, (one.computed, one.computed))
            for number, band in enumerate(plan.bands):
                first = 0
                if band.window_length is not None:
                    first = max(0, start - band.window_length - model.window_slack_tokens + 1) // page
                pages = -(-stop // page) - first
                row[number] += model.state_slots if band.kind == "state" else pages
        rows.append(row)
        for index, (start, stop) in spans.items():
            one = running[index]
            one.computed = stop if start < one.prompt else start + 1
        running = [one for one in running if one.computed < one.goal]
    return rows


def random_set(rng: random.Random, chunk: int, *, limits: bool) -> list[One]:
    """Decoding requests, at most one half prefilled, and some that have not begun."""
    requests = []
    for _ in range(rng.randint(0, 5)):
        prompt = rng.randint(1, 40)
        computed = prompt + rng.randint(0, 10)
        requests.append(One(computed, prompt, computed + rng.randint(1, 30), chunk))
    for number in range(rng.randint(0, 5)):
        prompt = rng.randint(1, 50)
        computed = rng.randint(0, prompt - 1) if number == 0 or rng.random() < 0.1 else 0
        limit = rng.randint(1, chunk) if limits and rng.random() < 0.5 else chunk
        requests.append(One(computed, prompt, prompt + rng.randint(0, 30), limit))
    requests.append(One(0, 5, 7, chunk))
    return requests


def schedule_of(model: DemandModel, requests: list[One], chunk: int, **settings: int) -> Schedule:
    """The schedule of a set."""
    return Schedule(
        model,
        [one.computed for one in requests],
        [one.prompt for one in requests],
        [one.goal for one in requests],
        chunk,
        [one.limit for one in requests],
        **settings,
    )


def cases(seed: int, count: int):  # type: ignore[no-untyped-def]
    """Models, sets and chunks, with and without smaller chunks for some."""
    rng = random.Random(seed)
    for number in range(count):
        plan = plan_of(rng.choice(list(BANDS)), rng.choice([1, 2, 3, 4, 16]))
        model = DemandModel(
            plan,
            state_slots=rng.choice([1, 1, 2]),
            look_ahead_tokens=rng.choice([0, 0, 3]),
            window_slack_tokens=rng.choice([0, 0, 4]),
        )
        chunk = rng.choice([1, 3, 8, 16, 100])
        yield rng, model, random_set(rng, chunk, limits=number % 2 == 1), chunk


def test_every_step_is_what_a_simulation_holds() -> None:
    """Four hundred random sets: exact totals of every step, the peak, and what is held now."""
    for _, model, requests, chunk in cases(1, 400):
        rows = naive_steps(model, requests, chunk)
        schedule = schedule_of(model, requests, chunk)
        assert schedule.step_count == len(rows)
        assert schedule.totals(np.arange(1, len(rows) + 1)).tolist() == rows
        assert schedule.peak().tolist() == np.array(rows).max(axis=0).tolist()
        held = [model.held(one.computed) for one in requests]
        assert schedule.held_now().tolist() == np.sum(held, axis=0).tolist()
        held = held[:-1]
        entering = schedule_of(model, requests, chunk, entering=1)
        expected = np.sum(held, axis=0) if held else np.zeros(len(model.plan.bands))
        assert entering.held_now().tolist() == expected.tolist()


def test_crests_bound_every_step_and_closely() -> None:
    """Each step is bounded by the crest at or after it; a crest is at most a page per request and
    band above the steps it stands for."""
    for _, model, requests, chunk in cases(2, 300):
        rows = np.array(naive_steps(model, requests, chunk))
        steps, bounds = schedule_of(model, requests, chunk).crests()
        assert (np.diff(steps) > 0).all() and steps[-1] == len(rows)
        before = 0
        for step, bound in zip(steps.tolist(), bounds, strict=True):
            interval = rows[before:step]
            assert (interval <= bound).all()
            assert (bound - interval.max(axis=0) <= len(requests)).all()
            before = step


@pytest.mark.parametrize("until", [False, True])
def test_a_set_fits_exactly_when_all_its_steps_fit(until: bool) -> None:
    """Bytes for the highest step and 256 fewer: yes and no, as the simulation says; also for the
    first steps only."""
    answers = []
    for rng, model, requests, chunk in cases(3, 250):
        rows = np.array(naive_steps(model, requests, chunk))
        schedule = schedule_of(model, requests, chunk)
        last = rng.randint(1, len(rows)) if until else len(rows)
        weights = np.array([band.page_bytes for band in model.plan.bands])
        most = int((rows[:last] @ weights).max())
        held = schedule.held_now()
        for total in (most, most - 256, most + rng.randint(-4, 4) * 512):
            def shortage(demands: np.ndarray, total: int = total, held: np.ndarray = held,
                         weights: np.ndarray = weights) -> np.ndarray:  # fmt: skip
                return (demands + held) @ weights - total

            fits = schedule.fits(shortage, until_step=last if until else None)
            assert fits == (most <= total)
            answers.append(fits)
    assert 200 < sum(answers) < 560


def test_bounds_decide_when_the_truth_would_cost_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit on exact work an answer may be a cautious no, never a wrong yes; one request
    alone is always judged exactly."""
    monkeypatch.setattr(demand_schedule, "EXACT_CELLS_MAX", 0)
    cautious = 0
    for _, model, requests, chunk in cases(4, 200):
        for members in (requests, requests[-1:]):
            rows = np.array(naive_steps(model, members, chunk))
            schedule = schedule_of(model, members, chunk)
            weights = np.array([band.page_bytes for band in model.plan.bands])
            most, held = int((rows @ weights).max()), schedule.held_now()

            def need(demands: np.ndarray, weights: np.ndarray = weights,
                     held: np.ndarray = held) -> np.ndarray:  # fmt: skip
                return (demands + held) @ weights

            fits = schedule.fits(lambda demands: need(demands) - most)  # noqa: B023
            cautious += not fits
            assert fits or len(members) > 1
            assert not schedule.fits(lambda demands: need(demands) - most + 1)  # noqa: B023
    assert cautious > 20


def test_an_earlier_end_only_frees_memory() -> None:
    """Whoever ends before its declared maximum: no step of the others holds more than predicted."""
    for rng, model, requests, chunk in cases(5, 200):
        rows = np.array(naive_steps(model, requests, chunk))
        for one in requests:
            least = max(one.prompt, one.computed + 1)
            one.goal = rng.randint(min(least, one.goal), one.goal)
        sooner = np.array(naive_steps(model, requests, chunk))
        assert (sooner <= rows[: len(sooner)]).all()


def test_a_later_arrival_changes_nothing_for_those_before_it() -> None:
    """A request that joins behind takes its own pages; the others' steps stay as they were."""
    for rng, model, requests, chunk in cases(6, 200):
        if any(one.limit < chunk for one in requests):
            continue
        newcomer = One(0, rng.randint(1, 30), 40, chunk)
        alone = schedule_of(model, requests, chunk)
        joined = schedule_of(model, [*requests, newcomer], chunk)
        count = len(requests)
        assert joined.last[:count].tolist() == alone.last.tolist()
        assert joined.offset[:count].tolist() == alone.offset.tolist()
