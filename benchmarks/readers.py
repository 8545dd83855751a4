"""Do readers disturb the writer? Latencies of recorded operations alone and with two readers.

Two processes follow the trace while the driver runs: both read every event that comes; one of them is
stopped (SIGSTOP) for the middle of each round. Rounds with and without readers alternate, and the
medians of their 99th percentiles are compared. Needs three cores to say something: with fewer, readers
take the writer's time, whatever they read.

    python benchmarks/readers.py [--rounds 5] [--seconds 12] [--stopped 10]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.inspect.recorder import Recorder

FOLLOW = """
import sys, time
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
trace = Trace(sys.argv[1])
timeline = Timeline(trace)
print("reading", flush=True)
while True:
    trace.refresh()
    timeline.advance(trace.stop)
    time.sleep(0.1)
"""


def round_us(seconds: float, stopped: float, readers: int) -> tuple[float, float, int]:
    """99th percentile and median of operations in µs, and how many there were."""
    run = Run(
        RunConfig(
            device="none", verify="off", workload="synthetic:requests=100000", arena_bytes=2 << 30
        )
    )
    latencies: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run", run.arena)
        apply = run.arena.apply

        def timed(operation: Operation) -> Outcome:
            started = time.perf_counter_ns()
            outcome = apply(operation)
            latencies.append(time.perf_counter_ns() - started)
            return outcome

        run.arena.apply = timed  # type: ignore[method-assign]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", FOLLOW, str(recorder.directory)], stdout=subprocess.PIPE
            )
            for _ in range(readers)
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        started = time.monotonic()
        pause = started + (seconds - stopped) / 2
        state = {"stopped": False}

        def should_stop() -> bool:
            now = time.monotonic()
            if processes and not state["stopped"] and now > pause:
                os.kill(processes[0].pid, signal.SIGSTOP)
                state["stopped"] = True
            return now > started + seconds

        run.scheduler.should_stop = should_stop
        run.scheduler.run(run.workload)
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
        recorder.close()
    samples = np.array(latencies)
    return float(np.percentile(samples, 99)) / 1e3, float(np.median(samples)) / 1e3, samples.size


def main() -> None:
    """Alternate, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--stopped", type=float, default=10.0)
    options = parser.parse_args()
    alone, watched = [], []
    for number in range(options.rounds):
        for readers, kept in ((0, alone), (2, watched)):
            p99, median, count = round_us(options.seconds, options.stopped, readers)
            kept.append(p99)
            print(
                f"round {number + 1}, {readers} readers: p99 {p99:.1f} µs, median {median:.1f} µs, "
                f"{count:,} operations",
                flush=True,
            )
    ratio = statistics.median(watched) / statistics.median(alone)
    print(f"p99 with readers / alone, medians of {options.rounds} rounds: {ratio:.3f}")


if __name__ == "__main__":
    main()
