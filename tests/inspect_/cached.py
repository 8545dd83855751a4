"""Random operations on small arenas with a prefix cache: requests that begin alike, publish, keep
states, pin and leave."""

from __future__ import annotations

import random
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation, Outcome
from tests.allocator.arenas import LAYOUTS as UNCACHED
from tests.allocator.arenas import P2M, P2W, P3, P5, RandomEngine
from tests.inspect_.traces import record

PAGE = 4
GRID = 8
# Layouts with the policies of their caches.
LAYOUTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "P2m": (P2M, {"units": 128, "prefix_cache": True, "checkpoint_grid_tokens": GRID}),
    "P2w": (P2W, {"prefix_cache": True, "evict": "joint_lru"}),
    "P3": (P3, {"units": 192, "prefix_cache": True, "checkpoint_grid_tokens": GRID}),
    "P5": (P5, {"prefix_cache": True, "checkpoint_grid_tokens": GRID}),
}


class CachedEngine(RandomEngine):
    """Most of its requests continue a prefix that another one had; keys have an alphabet of two."""

    def __init__(self, rng: random.Random, **options: Any) -> None:
        super().__init__(rng, **options)
        self.known: list[tuple[int, ...]] = [()]
        self.planned: list[Operation] = []

    def choose(self, arena: Arena) -> Operation:
        """The next operation to try."""
        rng = self.rng
        if self.planned:
            return self.planned.pop(0)
        roll = rng.random()
        if len(self.running) > 5:
            return ops.Release(rng.choice(self.running), "finished", publish=True)
        if roll < 0.15 or not self.running:
            self.next_request += 1
            return ops.Admit(
                self.next_request - 1, rng.choice([0, 1, 1, 1, 2]), self._key(),
                rng.choice([None, None, None, 0, 7, 16]),
            )  # fmt: skip
        request = rng.choice(self.running)
        more = tuple(rng.choices((0, 1), k=rng.choice([0, 0, 1, 3])))
        if roll < 0.25:
            return ops.Publish(request, more)
        if roll < 0.33:
            return ops.Release(request, rng.choice(["finished", "aborted"]), True, more)
        if roll < 0.50:
            self._plan_checkpoint(arena, request, more)
            return self.planned.pop(0)
        if roll < 0.54:
            return ops.Evict(tuple(rng.choice([0, 0, 1, 3]) for _ in arena.books.bands))
        if roll < 0.56 and self.illegal:
            return rng.choice([ops.Publish(10_000), ops.Checkpoint(request), ops.Evict((-1,))])
        return super().choose(arena)

    def _key(self) -> tuple[int, ...]:
        known = self.rng.choice(self.known[-12:])
        kept = known[: self.rng.randint(0, len(known))]
        key = kept + tuple(self.rng.choices((0, 1), k=self.rng.randint(2, 8)))
        self.known.append(key)
        return key

    def _plan_checkpoint(self, arena: Arena, request: int, more: tuple[int, ...]) -> None:
        """Tokens up to the grid, a forward over them, and the state after it."""
        ledger = arena.books.ledger
        length = int(ledger.length[ledger.row(request)])
        self.planned = [
            ops.Extend(request, (-length % GRID) or GRID),
            ops.Launch((request,)),
            ops.Checkpoint(request, more) if arena.books.state is not None else ops.Publish(request),
        ]
        if self.rng.random() < 0.3:
            self.planned.append(ops.TrimWindow((request,)))

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """Remember what became of it; a plan whose step was refused ends."""
        if not outcome and isinstance(operation, ops.Extend | ops.Launch):
            self.planned = []
        super().note(operation, outcome)


RUNS = (*UNCACHED, *(f"{name} cached" for name in LAYOUTS))


def record_any(path: Any, name: str, **options: Any) -> Any:
    """A recorded run of one of `RUNS`: of a plain layout, or of a cached one."""
    cached = name.removesuffix(" cached")
    if cached != name:
        return record_cached(path, cached, **options)
    return record(path, UNCACHED[name], **options)


def record_cached(path: Any, name: str, **options: Any) -> Any:
    """A recorded run of a `CachedEngine` on one of `LAYOUTS`."""
    layout, config = LAYOUTS[name]
    return record(path, layout, config=config, engine=CachedEngine, **options)
