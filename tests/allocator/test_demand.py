"""The demand model says what arenas then hold: lives are run, step by step, and compared."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from bandscope.allocator import demand_fit
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.demand import (
    DemandModel,
    add,
    chunk_demand,
    peak_demand,
    spell_demand,
)
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import StoragePlan, plan_from_sizes
from tests.allocator.arenas import LAYOUTS, RandomEngine, small_arena

BANDS = {
    "window": [("window_8", 256), ("full", 512)],
    "state": [("mamba", 1024), ("full", 256)],
    "both": [("mamba", 768), ("window_8", 512), ("full", 256)],
    "odd": [("mamba", 1280), ("window_13", 768), ("window_3", 256), ("full", 512)],
    "unstated": [("window", 256), ("full", 256)],
}


def plan_of(name: str, page_size: int) -> StoragePlan:
    """The bands with the same bytes per token at any page size."""
    sizes = [(n, size * (1 if n == "mamba" else page_size)) for n, size in BANDS[name]]
    return plan_from_sizes(sizes, page_size=page_size)


def held_by(arena: Arena) -> list[int]:
    """Live pages per band."""
    return [band.live for band in arena.books.bands]


def run_life(
    arena: Arena, prompt: int, goal: int, chunk: int
) -> Iterator[tuple[int, int, list[int], list[int]] | None]:
    """One request alone, from admission to its end: (start, stop, pages during the step, pages after
    it is trimmed) for every step; None, and the end, when an operation finds no memory."""
    if not arena.apply(ops.Admit(0)):
        yield None
        return
    done = 0
    while done < goal:
        tokens = min(chunk, prompt - done) if done < prompt else 1
        step = ops.Extend(0, tokens) if done < prompt else ops.Decode((0,))
        if not arena.apply(step):
            yield None
            return
        during = held_by(arena)
        arena.complete(arena.launch([0]))
        arena.trim_window([0])
        yield done, done + tokens, during, held_by(arena)
        done += tokens


def lives(seed: int, count: int) -> Iterator[tuple[StoragePlan, int, int, int]]:
    """Random plans, prompts, goals and chunks."""
    rng = random.Random(seed)
    for _ in range(count):
        plan = plan_of(rng.choice(list(BANDS)), rng.choice([1, 1, 2, 3, 4, 16]))
        prompt = rng.choice([1, rng.randint(1, 12), rng.randint(1, 90)])
        yield plan, prompt, prompt + rng.randint(1, 40), rng.choice([1, 2, 3, 7, 8, 16, 64])


def test_every_step_of_a_life_holds_what_the_model_says() -> None:
    """Two hundred random lives on ample arenas: pages during and after every step, and the peak."""
    for plan, prompt, goal, chunk in lives(1, 200):
        model = DemandModel(plan)
        arena = Arena(plan, plan.sink_bytes + (1 << 20), device="none")
        reached = np.zeros(len(plan.bands), np.int64)
        for step in run_life(arena, prompt, goal, chunk):
            assert step is not None
            start, stop, during, after = step
            assert model.during(start, stop).tolist() == during
            assert model.held(stop).tolist() == after
            reached = np.maximum(reached, during)
        assert model.peak(prompt, goal, chunk).tolist() == reached.tolist()
        assert (model.most(np.array(goal)) >= model.decode_rows(goal).max(axis=0)).all()


def test_a_life_fits_exactly_when_its_rows_fit() -> None:
    """A hundred and twenty lives on the smallest arena that the rows allow, and on one 256 bytes
    smaller: the first runs to its end, the second is refused a page."""
    tight = 0
    for plan, prompt, goal, chunk in lives(2, 120):
        model = DemandModel(plan)
        rows = model.life_rows(prompt, goal, chunk)
        assert rows.shape[0] <= 2 * plan.page_size + 3
        sizes = [band.page_bytes for band in plan.bands]
        least = int(demand_fit.packed_tops(sizes, plan.sink_bytes, rows).max())
        assert None not in list(run_life(Arena(plan, least, device="none"), prompt, goal, chunk))
        if least - 256 >= plan.sink_bytes * 2 + sum(sizes):
            tight += 1
            small = Arena(plan, least - 256, device="none")
            assert list(run_life(small, prompt, goal, chunk))[-1] is None
    assert tight > 80


def test_the_memory_clip_is_exact() -> None:
    """A hundred arenas: the output that the clip allows runs to its end in the chunks that the
    limit allows; one more token does not run in chunks of any size."""
    rng = random.Random(3)
    clipped = refused = limited = 0
    for plan, prompt, _, chunk in lives(3, 100):
        sizes = [band.page_bytes for band in plan.bands]
        one_each = demand_fit.packed_tops(sizes, plan.sink_bytes, np.ones((1, len(sizes)), int))
        model = DemandModel(plan)
        rows = model.life_rows(prompt, prompt + rng.choice([0, 1, 2, rng.randint(0, 70)]), 1)
        least = int(demand_fit.packed_tops(sizes, plan.sink_bytes, rows).max())
        total = max(int(one_each[0]), least + rng.randint(-2, 3) * 256)

        def empty(rows: np.ndarray, plan: StoragePlan = plan, total: int = total) -> np.ndarray:
            return demand_fit.shortage_when_empty(plan, total, rows)

        most = model.max_new_tokens_for_memory(empty, prompt, 60)
        limit = model.chunk_limit(empty, prompt, chunk)
        arena = lambda: Arena(plan, total, device="none")  # noqa: B023, E731
        if most:
            assert None not in list(run_life(arena(), prompt, prompt + most, limit))
        if most < 60:
            clipped += most > 0
            refused += most == 0
            for size in {1, limit, chunk}:
                assert list(run_life(arena(), prompt, prompt + most + 1, size))[-1] is None
        limited += 0 < limit < chunk and most > 0
    assert clipped > 30 and refused > 3 and limited > 3, (clipped, refused, limited)


def test_a_chunk_limit_is_the_largest_that_always_fits() -> None:
    """A window of 8 in pages of one: an arena with 12 window pages to spare takes chunks of 5."""
    plan = plan_from_sizes([("window_8", 256), ("full", 256)])
    model = DemandModel(plan)
    total = plan.sink_bytes + (40 + 12) * 256

    def empty(rows: np.ndarray) -> np.ndarray:
        return demand_fit.shortage_when_empty(plan, total, rows)

    assert model.window_pages(8, 5) == 12
    assert model.chunk_limit(empty, 40, 64) == 5
    assert model.chunk_limit(empty, 40, 5) == 5
    assert model.chunk_limit(empty, 40, 64, grid_tokens=2) == 4
    assert model.chunk_limit(empty, 40, 64, grid_tokens=8) == 8  # one grid, which does not fit either
    assert model.max_new_tokens_for_memory(empty, 40, 10, grid_tokens=8) == 0
    assert model.max_new_tokens_for_memory(empty, 40, 10) == 4


@pytest.mark.parametrize("page", [1, 4, 16])
def test_slack_and_look_ahead_and_slots_are_priced(page: int) -> None:
    """A window trimmed late keeps its slack; a decode step sets rows aside; checkpoints hold slots."""
    plan = plan_of("both", page)
    plain, rich = DemandModel(plan), DemandModel(plan, 3, look_ahead_tokens=5, window_slack_tokens=10)
    for tokens in range(1, 80):
        row, more = plain.decoding(tokens), rich.decoding(tokens)
        full = -(-(tokens + 6) // page)
        assert more.tolist() == [3, full - max(0, tokens - 17) // page, full]
        assert row.tolist() == [1, -(-(tokens + 1) // page) - max(0, tokens - 7) // page,
                                -(-(tokens + 1) // page)]  # fmt: skip
    assert rich.window_pages(18, 6) >= rich.decode_rows(500)[:, 1].max()
    assert rich.held(0).tolist() == [3, 0, 0]


def test_prefill_rows_cover_a_long_prompt() -> None:
    """A million tokens in chunks of 7: the few rows looked at are the peak of all steps."""
    for page in (1, 3, 16):
        model = DemandModel(plan_of("odd", page))
        rows = model.prefill_rows(100_003, 7)
        start = np.arange(0, 100_003, 7)
        every = model.during(start, np.minimum(start + 7, 100_003))
        assert rows.shape[0] <= page + 1
        for row in np.unique(every, axis=0):
            assert (rows >= row).all(axis=1).any()


def test_old_answers_bound_new_ones() -> None:
    """Peak and chunk, added up as admission of an overcommitted driver does, bound a whole life."""
    for plan, prompt, goal, chunk in lives(5, 200):
        bound = add(peak_demand(plan, prompt, goal - prompt), chunk_demand(plan, chunk))
        assert (DemandModel(plan).peak(prompt, goal, chunk) <= bound).all()


def test_negative_settings_are_refused() -> None:
    """Each is named with its value."""
    with pytest.raises(ConfigError, match="look_ahead_tokens of -1 was asked for; give 0 or more"):
        DemandModel(plan_of("both", 1), look_ahead_tokens=-1)


def test_a_demand_is_spelled_with_its_sum() -> None:
    """Sink, every band, grids, and where the last band ends."""
    plan = plan_from_sizes([("mamba", 768), ("window_8", 512), ("full", 1024)], page_size=4)
    text = spell_demand(plan, np.array([1, 3, 5]))
    assert text == (
        "sink 1,024 + 1 slot of mamba 768 + 3 pages of window_8 1,536 + 5 pages of full 5,120 + "
        "rounding to page grids 768 = 9,216 bytes"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_demands_are_answered_like_one(layout: str) -> None:
    """Random states, pins and gates: each row is answered as `serves` does, and an empty arena's
    rows as `serves_when_empty` does."""
    yes = no = 0
    for seed in range(6):
        rng = random.Random(f"{layout} {seed}")
        arena = small_arena(LAYOUTS[layout])
        engine = RandomEngine(rng)
        for _ in range(60):
            operation = engine.choose(arena)
            engine.note(operation, arena.apply(operation))
            live = np.array(held_by(arena))
            rows = np.array([[rng.randint(0, 9) for _ in live] for _ in range(8)])
            rows = np.maximum(rows - rng.choice([0, 0, 4]), -live)
            short = demand_fit.shortage(arena.books, rows)
            answers = [arena.serves(row) for row in rows.tolist()]
            assert (short <= 0).tolist() == answers
            yes, no = yes + sum(answers), no + len(answers) - sum(answers)
            rows = np.maximum(rows, 0)
            empty = demand_fit.shortage_when_empty(arena.plan, arena.total_bytes, rows)
            assert (empty <= 0).tolist() == [arena.serves_when_empty(row) for row in rows.tolist()]
    assert yes > 500 and no > 100
