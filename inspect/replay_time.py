"""How fast a trace's operations are: per second, and how long each kind takes, against another build.

The operations are read first. Each pass then builds the arena anew and applies them twice: once with
nothing around them, which gives the rate, and once with a clock around each, which gives the latencies
(and costs about 0.1 µs per operation). Nothing observes the arena. Rates are of wall time; the time of
the process is told as well, because on a busy machine it says more.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bandscope.allocator.arena import Arena
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import check_sound, first_keyframe, operations_of, restored_arena

SCHEMA = "bandscope-replay-time/1"
PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True)
class KindTimes:
    """One kind of operation: how many, and percentiles of its latency in µs (`PERCENTILES`)."""

    kind: str
    count: int
    latency_us: tuple[float, ...]


@dataclass(frozen=True)
class TimeReport:
    """`rates`: operations per second of each pass; `cpu_rates`: per second of process time."""

    trace: str
    device: str
    operations: int
    rates: tuple[float, ...]
    cpu_rates: tuple[float, ...]
    kinds: tuple[KindTimes, ...]

    @property
    def rate(self) -> float:
        """The median of the passes."""
        return statistics.median(self.rates)

    @property
    def cpu_rate(self) -> float:
        """The median of the passes, per second of process time."""
        return statistics.median(self.cpu_rates)

    def to_json(self) -> dict[str, Any]:
        """Plain data, which `read_times` reads."""
        return {"schema": SCHEMA, **asdict(self), "rate": self.rate, "cpu_rate": self.cpu_rate}


@dataclass(frozen=True)
class Ratio:
    """This report's rates over another's: of the medians, and from the worst pass against its best to
    the best against its worst."""

    median: float
    low: float
    high: float


def time_trace(
    trace: Trace,
    *,
    until: int | None = None,
    passes: int = 3,
    device: Callable[[], str | Device] = lambda: "none",
) -> TimeReport:
    """Time the operations of a trace to event `until`; `device` gives each arena its device.

    Raises `TraceError` for a trace that cannot be replayed or holds no operation.
    """
    start, snapshot = first_keyframe(trace)
    stop = trace.stop if until is None else min(until, trace.stop)
    check_sound(trace, start, stop)
    operations = [step.operation for step in operations_of(trace, start + 1, stop)]
    if not operations:
        raise TraceError(f"trace {trace.path} holds no operation to time; give a longer one")
    name = ""
    rates, cpu_rates, latencies = [], [], []
    for _ in range(passes):
        arena = restored_arena(trace, snapshot, device())
        name = arena.device.name
        wall, cpu = _rate(arena, operations)
        rates.append(len(operations) / wall)
        cpu_rates.append(len(operations) / cpu)
        latencies.append(_latencies(restored_arena(trace, snapshot, device()), operations))
    return TimeReport(
        str(trace.path), name, len(operations), tuple(rates), tuple(cpu_rates),
        _by_kind(operations, np.concatenate(latencies)),
    )  # fmt: skip


def _rate(arena: Arena, operations: list[Operation]) -> tuple[float, float]:
    """Seconds of wall and of process time for all operations; waits for the device at the end."""
    apply = arena.apply
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for operation in operations:
            apply(operation)
        arena.device.synchronize()
        return max(time.perf_counter() - wall, 1e-9), max(time.process_time() - cpu, 1e-9)
    finally:
        gc.enable()


def _latencies(arena: Arena, operations: list[Operation]) -> np.ndarray:
    """ns of each operation."""
    apply, clock = arena.apply, time.perf_counter_ns
    taken = np.zeros(len(operations), np.int64)
    gc.collect()
    gc.disable()
    try:
        for number, operation in enumerate(operations):
            before = clock()
            apply(operation)
            taken[number] = clock() - before
    finally:
        gc.enable()
    return taken


def _by_kind(operations: list[Operation], latencies_ns: np.ndarray) -> tuple[KindTimes, ...]:
    kinds = np.array([operation.kind for operation in operations])
    kinds = np.tile(kinds, latencies_ns.size // kinds.size)
    found = []
    for kind in sorted(set(kinds.tolist())):
        of_kind = latencies_ns[kinds == kind]
        percentiles = np.percentile(of_kind, PERCENTILES) / 1e3
        found.append(KindTimes(kind, of_kind.size, tuple(round(p, 3) for p in percentiles.tolist())))
    return tuple(found)


def ratio(mine: TimeReport, other: TimeReport) -> Ratio:
    """How many times as fast as `other`."""
    return Ratio(
        mine.rate / other.rate,
        min(mine.rates) / max(other.rates),
        max(mine.rates) / min(other.rates),
    )


def read_times(path: Path) -> list[TimeReport]:
    """The reports that `bandscope replay --mode time --json` printed; `TraceError` for other files."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return [
            TimeReport(
                one["trace"],
                one["device"],
                one["operations"],
                tuple(one["rates"]),
                tuple(one["cpu_rates"]),
                tuple(
                    KindTimes(kind["kind"], kind["count"], tuple(kind["latency_us"]))
                    for kind in one["kinds"]
                ),
            )
            for one in told["times"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"{path} holds no times ({type(error).__name__}: {error}); give a trace, or what "
            "`bandscope replay --mode time --json` printed"
        ) from error
