"""Small arenas with a prefix cache, and random walks over them: sequences that begin alike, published,
matched, checkpointed and evicted, between everything else that an engine does."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.execution import Execution
from bandscope.fuzz.program import Layout, Step

UNIT = 256
PAGE = 2

#: Bands in units, what a small arena of them has beside the sink, and policies.
SHAPES: dict[str, tuple[tuple[tuple[str, int], ...], int, dict[str, Any]]] = {
    "full": ((("full", 4), ("window", 2)), 200, {}),
    "window": ((("full", 4), ("window_5", 2)), 200, {}),
    "joint": ((("full", 4), ("window_5", 3)), 200, {"evict": "joint_lru"}),
    "windows": ((("full", 3), ("window_3", 2), ("window_8", 4)), 240, {}),
    "state": ((("mamba", 8), ("full", 4)), 200, {}),
    "both": ((("mamba", 7), ("window_5", 3), ("full", 5)), 250, {"prefix_keys": "tokens"}),
    "all": ((("mamba", 7), ("window_8", 3), ("window", 2), ("window_3", 2), ("full", 5)), 330, {}),
}


def cached_layout(name: str, *, units: int | None = None, **config: Any) -> Layout:
    """One of `SHAPES`, with a prefix cache and moves as few as possible."""
    bands, size, policies = SHAPES[name]
    settings: dict[str, Any] = {
        "headroom_share": 0.0, "compact_gap_share": 1.0, "prefix_cache": True,
        "checkpoint_grid_tokens": 2 * PAGE if any(band == "mamba" for band, _ in bands) else 0,
    }  # fmt: skip
    layout = Layout(
        tuple((band, count * UNIT) for band, count in bands),
        PAGE,
        0,
        ArenaConfig(**{**settings, **policies, **config}),
    )
    total = layout.plan().sink_bytes + (size if units is None else units) * UNIT
    return dataclasses.replace(layout, total_bytes=total)


class CachingEngine:
    """Chooses operations for an arena with a prefix cache, from a seed and its own notes. Sequences are
    numbers that are continued from a few, so that many begin alike."""

    def __init__(self, seed: int, layout: Layout, *, requests: int = 6, gate: bool = True) -> None:
        self.random = random.Random(seed)
        plan = layout.plan()
        self.names = [band.name for band in plan.bands]
        self.page, self.grid = plan.page_size, layout.config.checkpoint_grid_tokens
        self.by_token = layout.config.prefix_keys == "tokens"
        self.most, self.gate = requests, gate
        self.seen: list[tuple[int, ...]] = [()]
        self.running: dict[int, tuple[int, ...]] = {}  # the sequence of each
        self.length: dict[int, int] = {}
        self.told: dict[int, int] = {}  # how much of its key is known
        self.launched: dict[int, int] = {}
        self.tickets: list[int] = []
        self.leases: list[int] = []
        self.closed = False
        self.next = 0

    def _sequence(self) -> tuple[int, ...]:
        """Pages (or tokens) that begin like some seen before."""
        base = self.random.choice(self.seen)
        kept = base[: self.random.randint(0, len(base))] if self.random.random() < 0.5 else base
        unit = self.page if self.by_token else 1
        more = self.random.randint(0, 8) * unit + self.random.choice((0, 0, unit // 2))
        made = kept
        for _ in range(more):
            bit = self.random.randrange(2)
            made += (bit if self.by_token else hash((*made[-1:], bit)) % 9973,)  # hashes are chained
        self.seen = [*self.seen[-30:], made]
        return made

    def _key(self, request: int) -> tuple[int, ...]:
        known = self.told[request]
        more = self.running[request][known:]
        return more if self.random.random() < 0.7 else more[: self.random.randint(0, len(more))]

    def _is_ready(self, request: int) -> bool:
        """Its state may be kept as it is now."""
        length = self.length[request]
        on_grid = bool(self.grid and length) and not length % self.grid
        return on_grid and self.launched[request] == length

    def choose(self) -> Operation:
        """The next operation."""
        rng, running = self.random, list(self.running)
        kinds = ["admit"] * 5 if len(running) < self.most else []
        if running:
            kinds += ["extend", "launch", "step"] * 4 + ["publish", "publish", "trim"] * 2
            ready = [one for one in running if self._is_ready(one)]
            kinds += ["checkpoint"] * (6 if ready else self.random.random() < 0.1)
            kinds += ["release"] * (3 if len(running) >= self.most else 2)
            kinds += ["decode", "decode", "lease"]
        kinds += ["complete"] * 4 * bool(self.tickets) + ["end lease"] * 2 * bool(self.leases)
        kinds += ["evict", "compact", "urgent", "reserve"] + ["gate"] * self.gate
        some = tuple(rng.sample(running, rng.randint(1, len(running)))) if running else ()
        one = rng.choice(running) if running else 0
        match rng.choice(kinds):
            case "admit":
                key = self._sequence()
                limit = rng.choice((None, None, max(0, len(key) * (1 if self.by_token else 2) - 1)))
                given = key[: rng.choice((len(key), len(key), len(key) // 2))]
                return ops.Admit(self.next, rng.choice((1, 1, 1, 0, 2)), given, limit)
            case "extend":
                return ops.Extend(one, rng.choice((1, 2, 3, 4, 4, 5, 8)))
            case "step":  # to the grid
                grid = self.grid or self.page
                return ops.Extend(one, grid - self.length[one] % grid)
            case "launch":
                return ops.Launch(some)
            case "publish":
                return ops.Publish(one, self._key(one))
            case "checkpoint":
                one = rng.choice(ready or running)
                return ops.Checkpoint(one, self.running[one][self.told[one] :])
            case "trim":
                return ops.TrimWindow(some)
            case "release":
                publish = rng.random() < 0.6
                return ops.Release(one, "finished", publish, self._key(one) if publish else ())
            case "decode":
                return ops.Decode(some)
            case "lease":
                first = rng.randint(0, 4)
                return ops.Lease(one, rng.choice(self.names), first, first + rng.randint(1, 3))
            case "complete":
                return ops.Complete(rng.choice((self.tickets[0], rng.choice(self.tickets))))
            case "end lease":
                return ops.EndLease(rng.choice(self.leases))
            case "evict":
                return ops.Evict(tuple(rng.randint(0, 2) for _ in self.names))
            case "compact":
                return ops.Compact()
            case "urgent":
                return ops.Compact(urgent=True)
            case "gate":
                self.closed = not self.closed and rng.random() < 0.5
                return ops.SetGate(self.closed)
        return ops.Reserve(tuple(rng.randint(0, 6) for _ in self.names))

    def note(self, operation: Operation, outcome: Outcome) -> None:
        """What became of it."""
        if not outcome.ok:
            return
        match operation:
            case ops.Admit(request=request):
                self.next += 1
                sequence = self.seen[-1] if operation.key == self.seen[-1][: len(operation.key)] else ()
                self.running[request] = sequence
                self.told[request] = len(operation.key)
                self.length[request] = self.launched[request] = outcome.value
            case ops.Extend(request=request, tokens=tokens):
                self.length[request] += tokens
            case ops.Decode(requests=requests):
                for request in requests:
                    self.length[request] += 1
            case ops.Publish(request=request) | ops.Checkpoint(request=request):
                stalled = isinstance(operation, ops.Checkpoint) and not outcome.value
                if not stalled:
                    self.told[request] += len(operation.key)
            case ops.Release(request=request):
                del self.running[request]
            case ops.Launch(requests=requests):
                self.tickets.append(outcome.value)
                self.launched |= {request: self.length[request] for request in requests}
            case ops.Complete(ticket=ticket):
                self.tickets.remove(ticket)
            case ops.Lease():
                self.leases.append(outcome.value)
            case ops.EndLease(lease=lease):
                self.leases.remove(lease)


class CachedRun:
    """Steps of an engine under every check; `find` is None where nothing is wrong. `done`: how often
    each kind of moment was met."""

    def __init__(self, layout: Layout, seed: int, schedule: str = "random:1", **options: Any) -> None:
        self.engine = CachingEngine(seed, layout, **options)
        self.execution = Execution(layout, schedule, full_every=20)
        self.done: dict[str, int] = {}
        self.operations: list[Operation] = []
        self._tickets = self._leases = 0

    def run(self, steps: int) -> None:
        """So many steps, then the end; stops at the first find."""
        for _ in range(steps):
            operation = self.engine.choose()
            self.operations.append(operation)
            outcome = self.execution.step(Step(operation, self._name(operation)))
            self.engine.note(operation, outcome)
            self._count(operation, outcome)
            if self.execution.find is not None:
                return
        self.execution.finish()

    def _name(self, operation: Operation) -> int | None:
        # Names are the numbers that the arena is about to give.
        books = self.execution.arena.books
        if isinstance(operation, ops.Launch):
            return books.tickets.issued + 1
        return books.pins.next_number if isinstance(operation, ops.Lease) else None

    def _count(self, operation: Operation, outcome: Outcome) -> None:
        model: Any = self.execution.model
        said = operation.kind if outcome.ok else f"{operation.kind} {outcome.reason}"
        names = [said]
        if model.evicted() and not isinstance(operation, ops.Evict):
            names.append(f"{operation.kind} evicts")
        if outcome.ok and isinstance(operation, ops.Admit | ops.Checkpoint):
            names.append(f"{operation.kind} {'finds' if outcome.value else 'nothing'}")
        for name in names:
            self.done[name] = self.done.get(name, 0) + 1
