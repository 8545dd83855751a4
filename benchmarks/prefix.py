"""What the prefix cache costs: eviction of k pages, matches and inserts, in trees up to a million pages.

Run from the checkout: `python benchmarks/prefix.py`. CPU microseconds of this process alone, median
over repetitions. Trees: sequences of 64 pages of 16 tokens (three quarters of each shared with one
of 64 prompts), and "one page a leaf", the worst case for eviction, where every page is a node.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_nodes import CacheShape

SHAPES = {
    "full": CacheShape(16, (4096,), 0),
    "window + full": CacheShape(16, (1024, 4096), 1, (0,), (128,)),
    "joint window + full": CacheShape(16, (1024, 4096), 1, (0,), (128,), evict="joint_lru"),
    "state + window + full": CacheShape(
        16, (1 << 20, 1024, 4096), 2, (1,), (128,), state=0, grid_tokens=512
    ),
}


def fill(shape: CacheShape, pages: int, leaf_pages: int) -> tuple[PrefixTree, int]:
    """A tree of about so many pages; returns it and the next unused page id."""
    tree = PrefixTree(shape)
    rng = np.random.default_rng(0)
    shared = 3 * leaf_pages if leaf_pages > 1 else 64
    prompts = [rng.integers(0, 50_000, shared * 16) for _ in range(64)]
    fresh = slot = clock = 0
    while tree.cached[shape.full] < pages:
        clock += 1
        key = np.concatenate([prompts[clock % 64], rng.integers(0, 50_000, leaf_pages * 16)])
        found = tree.match(key, clock)
        need = key.size // 16 - found.depth
        ids = np.concatenate([found.pages, np.arange(fresh, fresh + need)])
        fresh += need
        given = []
        if shape.state is not None:
            given = [(key.size // 512 * 512, slot)]
            slot += 1
        tree.insert(key, ids, clock, kept_from=found.window_from, checkpoints=given)
    return tree, fresh


def cost(action: Callable[[], object], repeat: int) -> float:
    """Median CPU microseconds."""
    samples = []
    for _ in range(repeat):
        started = time.process_time_ns()
        action()
        samples.append((time.process_time_ns() - started) / 1e3)
    return statistics.median(samples)


def evictions(name: str, leaf_pages: int) -> None:
    shape = SHAPES[name]
    for pages in (10_000, 100_000, 1_000_000):
        tree, _ = fill(shape, pages, leaf_pages)
        nodes = len(tree.nodes)
        cells = []
        for k in (1, 16, 256, 4096):
            counts = [0] * shape.bands
            counts[shape.full] = k
            before, calls = tree.steps, min(9, max(1, pages // (2 * k)))
            took = cost(lambda t=tree, c=counts: t.evict_counts(c), calls)  # type: ignore[misc]
            cells.append(f"{took:>9,.0f} ({(tree.steps - before) / calls:>6,.0f})")
        print(f"{name:>22} {leaf_pages:>5} {pages:>10,} {nodes:>8,} " + " ".join(cells))


def lookups(name: str) -> None:
    shape = SHAPES[name]
    tree, fresh = fill(shape, 1_000_000, 16)
    rng = np.random.default_rng(1)
    key = rng.integers(0, 50_000, 131_072)
    pages = np.arange(fresh, fresh + 8192)
    clock = tree.clock + 1
    grid = [(131_072, 1 << 20)] if shape.state is not None else []
    insert = cost(lambda: tree.insert(key, pages, clock, checkpoints=grid), 1)
    match = cost(lambda: tree.match(key, clock), 9)
    for part in range(1, 200):  # others part from it everywhere
        branch = np.concatenate([key[: part * 640], rng.integers(0, 50_000, 16)])
        count = branch.size // 16
        ids = np.concatenate([pages[: count - 1], [fresh + 8192 + part]])
        tree.insert(branch, ids, clock)
    cut = cost(lambda: tree.match(key, clock), 9)
    hold = cost(lambda: tree.unlock(tree.lock(tree.match(key, clock))), 9)
    snap = cost(tree.snapshot, 3) / 1e3
    print(f"{name:>22} {insert:>8,.0f} {match:>8,.0f} {cut:>14,.0f} {hold:>14,.0f} {snap:>12,.0f}")


def full_arena(pages: int) -> tuple[Arena, int]:
    """An arena full of cached sequences of 16 pages (window and full), nobody running."""
    plan = plan_from_sizes([("window_128", 1024), ("full", 4096)], page_size=16)
    total = plan.sink_bytes + pages * 4096 + pages // 16 * 9 * 1024
    config = ArenaConfig(hand_out="none", prefix_cache=True)
    arena = Arena(plan, total, device="none", config=config)
    assert arena.books.cache is not None
    request = 0
    while arena.books.cache.tree.cached[1] == 16 * request:  # until one had to go for another
        # 16 keys that no other sequence has: the first one tells them apart.
        arena.admit(request, key=range(request * 16, request * 16 + 16))
        arena.extend(request, 256)
        arena.complete(arena.launch([request]))
        arena.trim_window([request])
        arena.release(request, publish=True)
        request += 1
    return arena, request


def demands(pages: int) -> None:
    """A prefill chunk of k pages in a full arena: what the whole operation takes, eviction, frees and
    moves included."""
    cells = []
    for k in (1, 16, 256, 4096):
        arena, request = full_arena(pages)
        took = []
        for _ in range(min(9, max(1, pages // (4 * k)))):
            arena.admit(request)
            took.append(cost(lambda a=arena, r=request, n=k: a.extend(r, 16 * n), 1))  # type: ignore[misc]
            request += 1
        cells.append(f"{statistics.median(took):>9,.0f}")
    print(f"{pages:>38,} " + " ".join(cells))


def main() -> None:
    print("a demand of k pages in an arena full of cache: CPU µs for k = 1, 16, 256, 4096")
    for pages in (10_000, 100_000, 1_000_000):
        demands(pages)
    print("evict k pages of full: CPU µs (steps) for k = 1, 16, 256, 4096")
    print(f"{'bands':>22} {'leaf':>5} {'pages':>10} {'nodes':>8}")
    for name in SHAPES:
        evictions(name, 16)
    evictions("full", 1)
    print("a prompt of 131,072 tokens (8,192 pages) in a tree of 1,000,000 pages: CPU µs")
    heads = ("bands", "insert", "match", "in 200 nodes", "match + lease", "snapshot ms")
    print(" ".join(f"{head:>{w}}" for head, w in zip(heads, (22, 8, 8, 14, 14, 12), strict=True)))
    for name in SHAPES:
        lookups(name)


if __name__ == "__main__":
    main()
