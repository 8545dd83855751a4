"""The prefix tree against a naive dictionary, over random lives of requests."""

from __future__ import annotations

import pytest

from bandscope.allocator.prefix_nodes import CacheShape
from tests.allocator.prefix_oracle import Engine

SHAPES = {
    "full only": CacheShape(4, (4,), 0),
    "page of one token": CacheShape(1, (4,), 0),
    "window of 8": CacheShape(4, (2, 4), 1, (0,), (8,)),
    "window of 9, hashes": CacheShape(4, (2, 4), 1, (0,), (9,), keys="hashes"),
    "window of one token": CacheShape(2, (2, 4), 1, (0,), (1,)),
    "window of 2, page of 1": CacheShape(1, (2, 4), 1, (0,), (2,)),
    "long window": CacheShape(2, (3, 4), 1, (0,), (100,)),
    "two windows": CacheShape(2, (2, 3, 4), 2, (0, 1), (9, 3)),
    "two windows, page of 1": CacheShape(1, (2, 3, 4), 2, (0, 1), (3, 6), keys="hashes"),
    "window of unstated length": CacheShape(2, (2, 4), 1, (), (), (0,)),
    "joint": CacheShape(2, (2, 4), 1, (0,), (5,), evict="joint_lru"),
    "joint, hashes": CacheShape(4, (5, 4), 1, (0,), (6,), keys="hashes", evict="joint_lru"),
    "state": CacheShape(2, (8, 4), 1, state=0, grid_tokens=4),
    "state on every page": CacheShape(1, (8, 4), 1, state=0, grid_tokens=1, keys="hashes"),
    "state and window": CacheShape(2, (8, 2, 4), 2, (1,), (6,), state=0, grid_tokens=6),
    "state, window, joint asked": CacheShape(
        4, (9, 2, 4), 2, (1,), (5,), state=0, grid_tokens=8, evict="joint_lru"
    ),
}


def walk(name: str, seed: int, steps: int) -> None:
    engine = Engine(SHAPES[name], seed)
    for _ in range(steps):
        engine.step()
    assert engine.done["evicted"] and engine.done["publish"] and engine.done["finish"]
    engine.close()


@pytest.mark.parametrize("name", SHAPES)
def test_a_tree_does_what_a_dictionary_does(name: str) -> None:
    for seed in range(2):
        walk(name, seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_tree_does_what_a_dictionary_does_for_long(name: str) -> None:
    for seed in range(100, 110):
        walk(name, seed, 1000)
