"""`serves` is true exactly when the operation then succeeds, in any state (`serves_walk`)."""

from __future__ import annotations

import pytest

from tests.allocator.serves_walk import Tally, walk


def test_serves_tells_the_truth_in_random_states() -> None:
    tally = Tally()
    for seed in range(12):
        walk(seed, 250, tally)
    assert tally.states == 3000
    assert 0.2 < tally.served / tally.asked < 0.9
    for kind in ("pinned", "gated", "cached", "evicted", "own_demands"):
        assert getattr(tally, kind) > 50, kind


@pytest.mark.slow
def test_serves_tells_the_truth_in_more_random_states() -> None:
    tally = Tally()
    for seed in range(100, 140):
        walk(seed, 2000, tally)
    assert tally.distinct > 50_000
