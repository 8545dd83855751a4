"""A measured row: what, how much, the target it was held against, and whether it was reached."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure. `reached` is None where there is no target."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def target_text(self) -> str:
        if self.target is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.target:g} {self.unit}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


def median_seconds(
    call: Callable[[], object],
    repeats: int,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    warm_ups: int = 2,
) -> float:
    """Median host time of `call`; `before` and `after` run around each and do not count."""
    samples = []
    for _ in range(repeats + warm_ups):
        before()
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
        after()
    return statistics.median(samples[warm_ups:])
