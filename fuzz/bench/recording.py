"""What recording costs, and what a recorded trace costs to read.

Costs of single events are clocked in a loop; the share of a run is the median of alternated pairs of
one run with and one without the recorder, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Outcome
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.bench.rows import Row
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.sealing import seal_file
from bandscope.inspect.timeline import Timeline

EVENTS = 20_000
PAIRS = 20
SEEKS = 50
NEVER = 1 << 40


def rows() -> Iterator[Row]:
    """Every row, as it is measured."""
    yield Row("an event while nobody records: the guard", guard_ns(), "ns", 60.0)
    for name, cost_us in event_costs_us().items():
        yield Row(f"an event while recording: {name}", cost_us, "µs", 0.5)
    share, events_us = run_shares()
    yield Row(
        f"a recorded run against an unrecorded one ({PAIRS} pairs, rows stamped)",
        share * 100,
        "% slower",
        2.0,
    )
    yield Row("an event of the books alone, the driver around it", events_us, "µs", None)
    yield from reading()


def _quiet_arena() -> Arena:
    plan = plan_from_sizes([("window_8", 1024), ("full", 1024)], page_size=1)
    return Arena(plan, 4096 * 1024, device="none")


def _best_ns(call: Callable[[], object], count: int = EVENTS, rounds: int = 5) -> float:
    """Least disturbed of several rounds, the empty loop taken off."""

    def once(what: Callable[[], object]) -> float:
        started = time.perf_counter_ns()
        for _ in range(count):
            what()
        return (time.perf_counter_ns() - started) / count

    empty = min(once(lambda: None) for _ in range(rounds))
    return min(once(call) for _ in range(rounds)) - empty


def guard_ns() -> float:
    """What the allocator does at every event when no observer is set, in ns."""
    books = _quiet_arena().books

    def guarded() -> None:
        if books.observer is not None:
            books.observer.done(1)

    return _best_ns(guarded)


def event_costs_us() -> dict[str, float]:
    """Microseconds per event of each frequent kind, in a loop."""
    arena = _quiet_arena()
    one, few = np.array([5]), np.array([3, 9, 1, 7])
    batch = ops.Decode(tuple(range(64)))
    extend, done = ops.Extend(5, 7), Outcome(True)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "cost", arena, keyframe_every=NEVER)
        calls: dict[str, Callable[[], object]] = {
            "operation asked": lambda: recorder.before(extend),
            "operation on a batch of 64, the same as before": lambda: recorder.before(batch),
            "outcome": lambda: recorder.after(extend, done),
            "lease of one page": lambda: recorder.lease_begin(5, "full", one, one, 0),
            "lease of four scattered pages": lambda: recorder.lease_begin(5, "full", few, few, 0),
            "end of a lease": lambda: recorder.lease_end(5, "full", one, 0),
            "ticket done": lambda: recorder.done(3),
            "barrier": lambda: recorder.barrier("settle", 3, "page moves"),
            "publish": lambda: recorder.publish("full", 3),
        }
        costs = {name: _best_ns(call) / 1000 for name, call in calls.items()}
        recorder.close()
    return costs


def run_shares() -> tuple[float, float]:
    """The share by which recording slows a run with stamped rows, and microseconds per event of a
    run of the books alone."""
    stamped = RunConfig(device="cpu", verify="stamps", requests=24, arena_bytes=512 << 20)
    books = RunConfig(device="none", verify="off", requests=100, arena_bytes=2 << 30)
    shares, costs = [], []
    for _ in range(PAIRS):
        plain, _ = _run_seconds(stamped, False)
        recorded, _ = _run_seconds(stamped, True)
        shares.append(recorded / plain - 1)
    for _ in range(5):
        plain, _ = _run_seconds(books, False)
        recorded, events = _run_seconds(books, True)
        costs.append((recorded - plain) / events * 1e6)
    return statistics.median(shares), statistics.median(costs)


def _run_seconds(config: RunConfig, record: bool) -> tuple[float, int]:
    run = Run(config)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run", run.arena) if record else None
        started = time.process_time()
        run.scheduler.run(run.workload)
        seconds = time.process_time() - started
        if recorder is None:
            return seconds, 0
        recorder.close()
        return seconds, recorder.sequence


def reading(requests: int = 3_000) -> Iterator[Row]:
    """Opening, seeking and sealing a trace of some million events."""
    workload = f"synthetic:requests={requests}"
    run = Run(RunConfig(device="none", verify="off", workload=workload, arena_bytes=2 << 30))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "read", run.arena)
        run.scheduler.run(run.workload)
        recorder.close()
        started = time.perf_counter()
        trace = Trace(recorder.directory)
        opened = time.perf_counter() - started
        events = trace.stop
        yield Row(f"open a trace of {events:,} events", opened, "s", 1.0)
        rng = np.random.default_rng(0)
        timeline = Timeline(trace)
        samples = []
        for sequence in rng.integers(trace.start + 3, trace.stop, SEEKS).tolist():
            started = time.perf_counter()
            timeline.seek(sequence)
            samples.append(time.perf_counter() - started)
        yield Row("jump anywhere, median", statistics.median(samples) * 1e3, "ms", 50.0)
        yield Row("jump anywhere, worst", max(samples) * 1e3, "ms", 50.0)
        started = time.perf_counter()
        Timeline(trace).advance(trace.stop)
        pace = (time.perf_counter() - started) / events * 1e6
        yield Row("state, event after event", pace, "µs per event")
        yield Row("bytes per event, raw", trace.size_bytes / events, "B", 32.0)
        files = [path for path in recorder.directory.iterdir() if path.suffix != ".json"]
        sealed = sum(seal_file(path)[1] for path in files)
        yield Row("bytes per event, sealed", sealed / events, "B", 8.0)
