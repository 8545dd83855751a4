"""Makes the corpus: slices of synthetic runs of four model families, random walks, shrunk programs.

    python -m tests.corpus.make

Run it to add a case or after a change of the trace format; a version that should decide differently is
accepted with `bandscope replay tests/corpus --accept --reason TEXT` instead.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bandscope.fuzz.campaign import Settings, run_campaign
from bandscope.fuzz.execution import execute
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.finds import SUFFIX
from bandscope.fuzz.replay_corpus import keep_program
from bandscope.inspect.exports import export
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay_accept import accept, describe
from bandscope.inspect.seals import seal_trace
from tests.allocator.arenas import P5
from tests.inspect_.cached import record_cached
from tests.inspect_.traces import record

FOLDER = Path(__file__).parent
KEYFRAME_EVERY = 512


@dataclass(frozen=True)
class Capture:
    """A run to capture: what `bandscope run` is given, and the events to keep."""

    model: str
    profile: str
    options: str
    arena: str
    start: int
    stop: int
    reason: str


CAPTURES = (
    Capture(
        "gpt-oss-20b", "conversation", "max_prompt_tokens=1500,max_output_tokens=400", "256MiB",
        1, 4_000, "window and full attention; the arena fills up, a step is refused and retracted",
    ),
    Capture(
        "qwen3-next-80b-a3b", "chat", "max_prompt_tokens=1500,max_output_tokens=300", "600MiB",
        16_390, 21_500, "recurrent state and full attention; a demand is refused, and two bands meet",
    ),
    Capture(
        "gemma-3-27b", "chat", "max_prompt_tokens=1200,max_output_tokens=300", "768MiB",
        8_195, 12_000, "short windows beside full attention; many decode steps, few requests",
    ),
    Capture(
        "inkling-small", "agentic", "max_prompt_tokens=1500,max_output_tokens=300", "700MiB",
        16_387, 20_500, "recurrent state, windows and full attention: a float between two ends",
    ),
)  # fmt: skip

# What a campaign under each of these faults finds is kept as a program that must break nothing.
FAULTS_SHRUNK = (
    "reclaimed-one-ticket-early",
    "wrong-grid-at-a-neighbour",
    "relocation-ignores-pins",
    "two-copies-to-one-page",
)


def main() -> None:
    """Make every case anew, without a word about this machine."""
    sys.argv = ["bandscope", "run", "--record"]
    platform.node = lambda: "example"
    platform.platform = lambda *aliased: "Linux"
    for path in [*FOLDER.glob("*.trace"), *FOLDER.glob(f"*{SUFFIX}")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        for capture in CAPTURES:
            _capture(capture, Path(scratch))
    _walk()
    _cached_walks()
    for name in FAULTS_SHRUNK:
        _shrunk(name)


def _capture(capture: Capture, scratch: Path) -> None:
    name = f"{capture.model}-{capture.profile}"
    workload = f"synthetic:profile={capture.profile},{capture.options},rate=200,requests=150"
    options = [
        "--model", capture.model, "--workload", workload, "--arena-bytes", capture.arena,
        "--device", "none", "--output-reserve", "0",
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", "from bandscope.tui.main import main; main()", "run", *options,
         "--record", str(scratch / name)],
        check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    part = FOLDER / f"{name}.trace"
    export(
        Trace(scratch / f"{name}.trace"), "slice", part, start=capture.start, stop=capture.stop
    )
    origin = (
        f"bandscope run {' '.join(options)} --record {name}; events {capture.start:,} to "
        f"{capture.stop:,}"
    )
    _keep(part, origin, capture.reason)


def _keep(path: Path, origin: str, reason: str) -> None:
    """Record a slice again, with states to compare more often, and compress it."""
    describe(path, origin, reason)
    trace = Trace(path)
    trace.header["recorder"]["keyframe_every"] = KEYFRAME_EVERY
    accept(trace, reason)
    seal_trace(Trace(path))


def _walk() -> None:
    path = record(
        FOLDER / "walk-five-bands", P5, seed=4, operations=700, keyframe_every=KEYFRAME_EVERY
    ).path
    _keep(
        path,
        "700 random operations on a small arena of five bands (tests.inspect_.traces)",
        "refusals of every kind, misuse, leases, the gate, urgent compaction and late completions",
    )


def _cached_walks() -> None:
    for name, layout, what in (
        ("walk-cached-window", "P2w", "a window and full attention, one order of eviction for both"),
        ("walk-cached-state", "P3", "states, a window and full attention; checkpoints and stalls"),
    ):
        path = record_cached(
            FOLDER / name, layout, seed=5, operations=600, keyframe_every=KEYFRAME_EVERY
        ).path
        _keep(
            path,
            f"600 random operations on a small arena with a prefix cache, {layout} "
            "(tests.inspect_.cached)",
            f"a prefix cache: matches, publications, grafts and evictions of {what}",
        )


def _shrunk(name: str) -> None:
    fault = FAULTS[name]
    with fault.plant():
        report = run_campaign(Settings(seed=7, cases=2_000, finds_max=1))
    found = next(iter(report.found.values()))
    assert execute(found.program, full_every=1).find is None, "it breaks something without the fault"
    origin = f"bandscope fuzz, under the planted fault {name}; {found.original_steps} steps before it "
    origin += f"was shrunk to {len(found.program.steps)}"
    keep_program(FOLDER / f"{name}{SUFFIX}", found.program, origin, fault.what)


if __name__ == "__main__":
    main()
