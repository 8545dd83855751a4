"""What one admission decision costs: many running requests, a long queue, an arena of a million pages.

Run from the checkout: `python benchmarks/admission.py`. Times are of this process alone (CPU seconds),
per decision over blocks of them, median and worst block.
"""

from __future__ import annotations

import random
import statistics
import time

import numpy as np

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.workload.admission import Waiting
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.prefix_keys import page_keys
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Running, Scheduler, SchedulerConfig

PAGES = 1_000_000
WAITING = 10_000
BLOCKS, BLOCK = 12, 25  # reading the clock may cost as much as a decision


def measure(
    running: int, prefilling: int, output_reserve: float, full_share: float, cached: bool
) -> tuple[float, float]:
    """Milliseconds of a decision, median and worst, with so many running requests whose lengths fill
    `full_share` of the arena. With a cache all prompts begin with one of eight texts of 1,024 tokens,
    and a decision looks the request up, too."""
    rng = random.Random(0)
    plan = plan_from_sizes([("mamba", 4096), ("window_128", 1024), ("full", 1024)], page_size=16)
    rules = ArenaConfig(prefix_cache=cached, checkpoint_grid_tokens=512 if cached else 0)
    arena = Arena(plan, plan.sink_bytes + PAGES * 1024, device="none", config=rules)
    memory = ArenaMemory(arena)
    config = SchedulerConfig(max_running=1 << 30, output_reserve=output_reserve)
    scheduler = Scheduler(memory, config)
    length = int(PAGES * 16 * full_share / max(1, running))
    for number in range(running):
        prompt = max(1, int(length * (0.5 + rng.random() / 2)))
        goal = prompt + rng.randint(100, 1000)
        done = prompt + rng.randint(0, 99) if number >= prefilling else 0
        request = request_of(number, prompt, goal - prompt)
        run = Running(request, number, 0.0, prompt, goal, goal, config.chunk_tokens, done)
        matched = 0
        if cached:
            key = page_keys(request, goal, plan.page_size)
            matched = memory.admit(number, key, prompt - 1).value
        else:
            memory.admit(number)
        if done > 1024 > matched:  # the checkpoint that others start from
            memory.extend(number, 1024 - matched)
            memory.launch([number])
            if cached:
                memory.checkpoint(number)
            matched = 1024
        memory.extend(number, max(1, done - matched))
        memory.trim_window([number])
        run.computed = max(matched + 1, done)
        (scheduler.decoding if done else scheduler.prefilling).append(run)
    for number in range(WAITING):
        request = request_of(running + number, rng.randint(1100, 3000), rng.randint(100, 1000))
        scheduler.waiting.append(Waiting(request))
    everyone = [*scheduler.decoding, *scheduler.prefilling]
    scheduler.admission.left_early()  # what they share is found by the first decision
    samples = []
    for _ in range(BLOCKS):
        entries = [scheduler.waiting.popleft() for _ in range(BLOCK)]
        started = time.process_time()
        for entry in entries:
            scheduler.admission.look_at(entry)
            scheduler.admission.admits(entry, everyone, scheduler.admission.look_up(entry))
        samples.append((time.process_time() - started) / BLOCK)
    return 1e3 * statistics.median(samples), 1e3 * max(samples)


def request_of(number: int, prompt_tokens: int, output_tokens: int) -> Request:
    """A request whose prompt begins with one of eight texts of 16 blocks."""
    blocks = np.arange(-(-prompt_tokens // 64)) + (number + 1 << 20)
    shared = min(16, blocks.size)
    blocks[:shared] = np.arange(shared) + 1000 * (number % 8)
    return Request(number, 0.0, prompt_tokens, output_tokens, blocks, 64)


def main() -> None:
    print(f"{WAITING:,} waiting, {PAGES:,} pages of full attention; CPU ms per decision")
    heads = ("running", "of them prefilling", "reserve", "arena held", "cache", "median", "worst")
    widths = (8, 19, 8, 11, 6, 8, 8)
    print(" ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for running, prefilling in ((1, 0), (100, 4), (1000, 10), (1000, 500), (4000, 10)):
        for reserve in (1.0, 0.5):
            for share in (0.5, 0.94):
                for cached in (False, True):
                    median, worst = measure(running, prefilling, reserve, share, cached)
                    print(
                        f"{running:>8,} {prefilling:>19,} {reserve:>8} {share:>11.0%} "
                        f"{'yes' if cached else 'no':>6} {median:>8.3f} {worst:>8.3f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
