"""Which chunk is computed in which step: by budget, limit, grid and fork."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bandscope.allocator.demand_chunks import cut, cut_one_by_one, next_chunk


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ((10, 16, 16, 1), 10),  # all that is left
        ((40, 16, 16, 1), 16),
        ((40, 13, 16, 4), 12),  # whole grids
        ((10, 13, 16, 4), 10),  # but for the last one
        ((40, 3, 16, 4), 0),  # the budget does not reach the grid
        ((40, 16, 8, 4), 8),
        ((40, 16, 3, 4), 3),  # a limit below the grid: off the grid
        ((40, 16, 16, 4, 8), 8),  # to the fork
        ((40, 4, 16, 4, 8), 4),
        ((40, 16, 16, 4, 32), 16),
        ((40, 16, 16, 4, 40), 16),  # a fork at the end is none
        ((40, 16, 16, 4, -8), 16),  # nor one that lies behind
    ],
)  # fmt: skip
def test_the_size_of_a_chunk(arguments: tuple[int, ...], size: int) -> None:
    assert next_chunk(*arguments) == size


def test_one_by_one_is_the_same_where_nothing_is_special() -> None:
    rng = random.Random(0)
    for _ in range(300):
        rest = [rng.randint(1, 60) for _ in range(rng.randint(1, 8))]
        chunk = rng.randint(1, 40)
        count = len(rest)
        one = cut_one_by_one(rest, chunk, [chunk] * count, 1, [0] * count)
        for mine, other in zip(cut(np.array(rest), chunk), one, strict=True):
            assert mine.tolist() == other.tolist()


def test_chunks_are_whole_end_where_they_should_and_nobody_overtakes() -> None:
    """Random grids, limits and forks: everything is computed once, in order; chunks but a request's last
    end on the grid, one at its fork; a request behind another begins only in the step in which that
    one ends, within the budget; a limited one has its steps for itself."""
    rng = random.Random(1)
    for _ in range(500):
        grid = rng.choice([1, 2, 4])
        chunk = grid * rng.randint(1, 6)
        rest = [rng.randint(1, 50) for _ in range(rng.randint(1, 6))]
        limits = [rng.choice([chunk, chunk, grid * rng.randint(1, 6)]) for _ in rest]
        limits = [min(chunk, limit) for limit in limits]
        forks = [grid * rng.randint(-1, 10) for _ in rest]
        owner, step, begin, end = (
            part.tolist() for part in cut_one_by_one(rest, chunk, limits, grid, forks)
        )
        pieces = list(zip(owner, step, begin, end, strict=True))
        assert step == sorted(step) and set(step) == set(range(1, max(step) + 1))
        spent: dict[int, int] = {}
        for who, tokens in enumerate(rest):
            mine = [piece for piece in pieces if piece[0] == who]
            assert [b for _, _, b, _ in mine] == [0] + [e for *_, e in mine[:-1]]
            assert mine[-1][3] == tokens
            assert all(e % grid == 0 for *_, e in mine[:-1])
            assert all(e - b <= limits[who] for _, _, b, e in mine)
            if 0 < forks[who] < tokens:
                assert forks[who] in [e for *_, e in mine]
            steps = [when for _, when, _, _ in mine]
            assert len(set(steps)) == len(steps)  # one chunk a step
            if limits[who] < chunk:
                assert all(step.count(when) == 1 for when in steps)
        for who, when, b, e in pieces:
            spent[when] = spent.get(when, 0) + e - b
            if e < rest[who]:  # not done: the last of its step
                assert max(other for other, at, _, _ in pieces if at == when) == who
        assert max(spent.values()) <= chunk
