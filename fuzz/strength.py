"""How strong the fuzzer is: the campaign against every planted fault.

A fault counts as found when a campaign of ordinary programs reports anything within the budget; what it
reports is shrunk, with the fault still in place. A fault that no check sees is a hole in the checks.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from bandscope.allocator.errors import ConfigError
from bandscope.fuzz.campaign import Settings, run_campaign
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.program import Program

BUDGET_SECONDS = 60.0
# The ordinary campaign looks for all faults but those of the prefix cache, which only a part of its
# arenas have.
PROFILE, PROFILES = "mixed", {"cache": "caching"}


@dataclass(frozen=True)
class Strength:
    """One fault against the campaign. `seconds` and `operations`: until it was seen; `length`: steps of
    the shrunk program; `invariant`: what saw it; `shrink_seconds`: what shrinking took on top."""

    fault: str
    found: bool
    seconds: float
    operations: int
    length: int
    invariant: str
    message: str
    shrink_seconds: float
    program: Program | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        told = asdict(self)
        told["program"] = None if self.program is None else self.program.to_json()
        return told


def measure(
    name: str,
    *,
    seed: int = 0,
    budget_seconds: float = BUDGET_SECONDS,
    profile: str | None = None,
    shrink: bool = True,
) -> Strength:
    """Plant one fault and let the campaign look for it, of the profile of its group by default."""
    if profile is None:
        profile = PROFILES.get(FAULTS[name].group, PROFILE)
    settings = Settings(
        seed=seed, profile=profile, seconds=budget_seconds, finds_max=1, full_every=64,
        shrink=shrink,
    )  # fmt: skip
    with FAULTS[name].plant():
        report = run_campaign(settings)
    if not report.found:
        return Strength(name, False, report.seconds, report.steps, 0, "", "", 0.0)
    (found,) = report.found.values()
    return Strength(
        name, True, found.seconds, report.steps, len(found.program.steps), found.find.invariant,
        found.find.message, found.shrink_seconds, found.program,
    )  # fmt: skip


def measure_all(
    names: Sequence[str] | None = None,
    *,
    workers: int = 1,
    seed: int = 0,
    budget_seconds: float = BUDGET_SECONDS,
    shrink: bool = True,
    seconds: float | None = None,
) -> Iterator[Strength]:
    """Every fault (or those named), each in a process of its own core; in the order of the list. After
    `seconds`, no more are begun."""
    end = None if seconds is None else time.monotonic() + seconds
    options = {"seed": seed, "budget_seconds": budget_seconds, "shrink": shrink}
    chosen = list(FAULTS if names is None else names)
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        raise ConfigError(
            f"fault {unknown[0]!r} was asked for, but the planted faults are {', '.join(FAULTS)}"
        )
    if workers == 1:
        for name in chosen:
            if end is not None and time.monotonic() > end:
                return
            yield measure(name, **options)  # type: ignore[arg-type]
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [pool.submit(measure, name, **options) for name in chosen]  # type: ignore[arg-type]
        for job in jobs:
            if end is not None and time.monotonic() > end and job.cancel():
                continue
            yield job.result()


def totals(rows: Sequence[Strength]) -> dict[str, Any]:
    """The figures that the design asks for: how many were found, median and worst seconds, and the
    length that nine of ten shrunk programs keep to."""
    found = [row for row in rows if row.found]
    lengths = sorted(row.length for row in found)
    return {
        "faults": len(rows),
        "found": len(found),
        "missed": [row.fault for row in rows if not row.found],
        "seconds_median": statistics.median(row.seconds for row in found) if found else None,
        "seconds_max": max((row.seconds for row in found), default=None),
        "length_median": statistics.median(lengths) if found else None,
        "length_p90": lengths[max(0, -(-len(lengths) * 9 // 10) - 1)] if found else None,
        "length_max": lengths[-1] if found else None,
    }
