"""Ask `serves` in many random states, over all cores, and make every demand: `--states 1000000`.

The states and what is asked in them are those of `tests/allocator/serves_walk.py`; a wrong answer
ends the run with the seed and the step. Prints one line of counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.allocator.serves_walk import Tally, walk  # noqa: E402

STATES_PER_WALK = 2500


def one(seed: int) -> Tally:
    """One walk; the seeds of the tests are left alone."""
    tally = Tally()
    walk(10_000 + seed, STATES_PER_WALK, tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    started = time.perf_counter()
    whole = Tally()
    with ProcessPoolExecutor(asked.workers) as pool:
        for tally in pool.map(one, range(-(-asked.states // STATES_PER_WALK))):
            for name in ("states", "served", "own_demands", "pinned", "gated", "cached", "evicted"):
                setattr(whole, name, getattr(whole, name) + getattr(tally, name))
            whole.digests |= tally.digests
    print(
        f"{whole.states:,} states ({whole.distinct:,} distinct) in "
        f"{time.perf_counter() - started:.0f} s: {whole.served / whole.states:.0%} of the demands "
        f"served, {whole.own_demands:,} operations by their own demand; {whole.pinned:,} with pins, "
        f"{whole.gated:,} with the gate closed, "
        f"{whole.cached:,} with cached pages, {whole.evicted:,} demands evicted; no wrong answer"
    )


if __name__ == "__main__":
    main()
