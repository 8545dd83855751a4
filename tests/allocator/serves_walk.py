"""Random states of random arenas, and the question asked in each: does `serves` tell the truth?

Arenas of every layout, with and without a prefix cache, with pins, closed gates, work in flight and
holes. In each state a random demand is asked for and then made (`Reserve`), the next operation's own
demand is asked before it is tried, and answers that are remembered are compared with fresh ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from bandscope.allocator import demand_fit, prefix_checks
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation
from tests.allocator.arenas import LAYOUTS, RandomEngine, small_arena
from tests.allocator.cached_engine import CachedEngine

RESTART_STEPS = 250


@dataclass
class Tally:
    """What was asked. `states`: steps; `distinct`: of these with a digest not seen before."""

    states: int = 0
    asked: int = 0
    served: int = 0
    own_demands: int = 0
    pinned: int = 0
    gated: int = 0
    cached: int = 0
    evicted: int = 0
    digests: set[str] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        return len(self.digests)


def random_arena(rng: random.Random) -> tuple[Arena, RandomEngine | CachedEngine]:
    bands, units = LAYOUTS[rng.choice(sorted(LAYOUTS))]
    page = rng.choice([1, 2, 4])
    options: dict[str, object] = {
        "page_size": page,
        "units": units - rng.choice([0, 0, 7, 16, 23]),
        "headroom_share": rng.choice([0.0, 0.05]),
    }
    if rng.random() < 0.4:
        return small_arena((bands, units), **options), RandomEngine(rng)  # type: ignore[arg-type]
    options |= {"prefix_cache": True, "evict": rng.choice(["lru", "joint_lru"])}
    if any(name == "mamba" for name, _ in bands):
        options["checkpoint_grid_tokens"] = rng.choice([1, 2]) * page
    return small_arena((bands, units), **options), CachedEngine(rng)  # type: ignore[arg-type]


def own_demand(arena: Arena, operation: Operation) -> list[int] | None:
    """What a legal operation needs; None where that is not known from outside."""
    books, ledger, page = arena.books, arena.books.ledger, arena.plan.page_size
    tokens = [int(index != books.state) for index in range(len(books.bands))]
    match operation:
        case ops.Extend(request, more) if request in ledger.row_of and more >= 0:
            row = ledger.row(request)
            pages = -(-(int(ledger.length[row]) + more) // page) - int(ledger.page_count[row])
            return [max(0, pages) * one for one in tokens]
        case ops.Decode(requests) if len(set(requests)) == len(requests) and requests:
            if all(request in ledger.row_of for request in requests):
                rows = ledger.rows(requests)
                full = int((ledger.length[rows] == ledger.page_count[rows] * page).sum())
                return [full * one for one in tokens]
        case ops.Admit(request, slots, key) if not key and slots >= 0:
            if request >= 0 and request not in ledger.row_of and operation.limit_tokens is None:
                return [0 if one else slots for one in tokens]
    return None


def walk(seed: int, states: int, tally: Tally) -> None:
    """Ask in so many states; `AssertionError` names the seed and the step of a wrong answer."""
    rng = random.Random(f"serves/{seed}")
    arena, engine = random_arena(rng)
    for step in range(states):
        if step % RESTART_STEPS == RESTART_STEPS - 1:
            arena, engine = random_arena(rng)
        where = f"seed {seed}, step {step}"
        ask(arena, rng, tally, where)
        operation = engine.choose(arena)
        if isinstance(engine, CachedEngine):
            demand = own_demand(arena, operation)
            served = demand is None or arena.serves(demand)
            operation, outcome = engine.step(arena, operation)
        else:
            demand = own_demand(arena, operation)
            served = demand is None or arena.serves(demand)
            outcome = arena.apply(operation)
            engine.note(operation, outcome)
        if demand is not None:
            tally.own_demands += 1
            assert bool(outcome) == served or outcome.reason == "misuse", f"{where}: {operation}"


def ask(arena: Arena, rng: random.Random, tally: Tally, where: str) -> None:
    """One state: a random demand, and what is remembered."""
    books = arena.books
    most = [2 + fact.available_estimate for fact in arena.facts()]
    demand = tuple(rng.randint(0, rng.choice([1, 3, pages])) for pages in most)
    served, before = arena.serves(demand), arena.digest()
    tally.states += 1
    tally.asked += 1
    tally.served += served
    tally.pinned += bool(books.pins.pins)
    tally.gated += books.gate_closed
    tally.digests.add(before[:16])
    short = demand_fit.shortage(books, np.array([demand]))[0]
    assert (short <= 0) == served, f"{where}: the row of {demand} is short of {short} bytes"
    if books.cache is not None:
        tree = books.cache.tree
        tally.cached += any(tree.cached)
        found = prefix_checks.check(tree)
        assert not found, f"{where}: {found}"
        gone = sum(tree.cached)
    assert bool(arena.apply(ops.Reserve(demand))) == served, f"{where}: Reserve({demand})"
    if books.cache is not None:
        tally.evicted += sum(books.cache.tree.cached) < gone
    if not served:
        assert arena.digest() == before, f"{where}: a refused {demand} changed something"
