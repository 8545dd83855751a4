"""Phases of a hostile run, what follows what, and how a choice is made.

Numbers here are sums and products of plain floats, never of a library's logarithm: a seed gives the same
steps on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp
from typing import TypeVar

TABLE = 256
STUCK_MAX = 10  # refusals in a row after which something must go

# What a phase multiplies the weights of a mix by.
PHASES: dict[str, dict[str, float]] = {
    "steady": {},
    "fill": {"Admit": 3, "Extend": 4, "Decode": 2, "Release": 0.1},
    "drain": {"Release": 8, "Complete": 6, "EndLease": 8, "Admit": 0.1, "Extend": 0.2, "SetGate": 0},
    "long prompts": {"Extend": 3, "Admit": 0.5, "Release": 0.5},
    "many short": {"Admit": 5, "Release": 2, "Extend": 2},
    "churn": {"Release": 3, "Admit": 4, "Extend": 2, "Compact": 1.5},
    "brim": {"Release": 1.5, "Admit": 2, "Extend": 3, "Decode": 2, "TrimWindow": 2, "Reserve": 2},
    "in flight": {"Launch": 6, "Complete": 0.3, "Release": 2},
    "pinned": {"Lease": 6, "EndLease": 0.5, "Release": 2},
    "compacting": {"Compact": 6, "Reserve": 2, "Release": 2, "Extend": 2},
}
# Two more where the arena has a prefix cache.
CACHED_PHASES: dict[str, dict[str, float]] = {
    **PHASES,
    "sharing": {"Admit": 3, "Publish": 4, "Checkpoint": 3, "Launch": 2, "Release": 2, "Compact": 0.3},
    "evicting": {"Admit": 2, "Extend": 4, "Release": 2, "Evict": 2, "Checkpoint": 3, "Launch": 2},
}
FORCED = ("Release", "Complete", "EndLease")  # by a drain, even where the mix has them off

AGAIN = "Release again"  # the request that the step before was about

# What is often worth doing right after an operation: where features meet is where arenas break.
FOLLOWERS: dict[str, tuple[str, ...]] = {
    "Admit": ("Extend", "Lease", AGAIN),
    "Extend": ("Launch", "Lease", AGAIN, "Compact"),
    "Decode": ("Launch", "TrimWindow", "Compact"),
    "TrimWindow": ("Compact", "Extend", "Reserve"),
    "Release": ("Compact", "Compact", "Admit", "Extend", "Reserve", "Complete"),
    "Launch": ("TrimWindow", AGAIN, "Compact", "Complete", "Decode", "Lease"),
    "Complete": ("Compact", "Release", "Extend"),
    "Compact": ("Launch", "Extend", "Complete", "Compact"),
    "Reserve": ("Extend", "Admit", "Compact"),
    "Lease": (AGAIN, "Compact", "TrimWindow", "SetGate", "EndLease", "Extend"),
    "EndLease": ("Compact", "Extend", "Complete"),
    "SetGate": ("Extend", "Compact", "Admit", "Lease", "Decode"),
}
CACHED_FOLLOWERS: dict[str, tuple[str, ...]] = {
    **FOLLOWERS,
    "Admit": ("Extend", "Lease", "Launch", "Publish", AGAIN),
    "Extend": ("Launch", "Launch", "Lease", "Publish", "Checkpoint", AGAIN),
    "TrimWindow": ("Publish", "Admit", "Extend", "Evict", "Compact"),
    "Release": ("Admit", "Admit", "Extend", "Evict", "Reserve", "Compact"),
    "Launch": ("Publish", "Publish", "Checkpoint", "TrimWindow", AGAIN, "Complete"),
    "Lease": (AGAIN, "Publish", "TrimWindow", "Evict", "SetGate", "Extend"),
    "EndLease": ("Evict", "Extend", "Compact"),
    "SetGate": ("Extend", "Admit", "Checkpoint", "Evict", "Decode"),
    "Publish": ("TrimWindow", "Admit", "Lease", "Extend", "Publish", "Checkpoint", "Evict", AGAIN),
    "Checkpoint": ("Admit", "Admit", "Extend", "Checkpoint", "Evict", "Lease", AGAIN),
    "Evict": ("Admit", "Publish", "Extend", "Compact", "Evict"),
}
AFTER_REFUSAL = (AGAIN, "Compact", "Reserve", "Complete", "EndLease", "Release")

T = TypeVar("T")


def in_proportion(choices: Sequence[T], weights: Sequence[float]) -> list[T]:
    """`TABLE` choices, each as often as its weight says, and at least once when it has a weight."""
    total = sum(weights)
    counts = [max(1, int(weight / total * TABLE)) if weight else 0 for weight in weights]
    counts[counts.index(max(counts))] += TABLE - sum(counts)  # the most frequent one has most to spare
    return [choice for choice, count in zip(choices, counts, strict=True) for _ in range(count)]


def exponential(roll: float) -> float:
    """A number of mean 1, exponentially distributed up to a few percent, from one in [0, 1)."""
    mantissa, exponent = frexp(1.0 - roll)
    # The logarithm, a straight line between powers of two.
    return 0.6667 * (2.0 * (1.0 - mantissa) - exponent)
