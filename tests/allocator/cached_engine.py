"""An engine at random over an arena with a prefix cache, which knows what every page must hold.

A page's content is a function of the keys up to it, whoever computes it, and a state's of the tokens
behind it. So after any operation every page that somebody can read has one right content.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.prefix_nodes import Node


@dataclass
class Running:
    """A request: the keys of its pages, and how far it has come."""

    keys: tuple[int, ...]
    told: int  # of the keys, in pages
    computed: int = 0  # tokens launched
    room: int = 0
    leases: list[int] = field(default_factory=list)


def stamp(*what: object) -> int:
    return zlib.crc32(repr(what).encode())


class CachedEngine:
    """`step` applies one random operation; `verify` reads every page back (device `cpu`)."""

    def __init__(self, rng: random.Random, pages_max: int = 8, misuse: float = 0.03) -> None:
        self.rng = rng
        self.pages_max = pages_max
        self.misuse = misuse
        self.running: dict[int, Running] = {}
        self.leases: list[int] = []
        self.tickets: list[int] = []
        self.pool: list[tuple[int, ...]] = [()]
        self.next_request = 0
        self.seen: dict[str, int] = {}

    # --- choosing ----------------------------------------------------------------------------------

    def sequence(self) -> tuple[int, ...]:
        """Keys that begin like earlier ones, cut anywhere."""
        start = self.rng.choice(self.pool)
        keys = list(start[: self.rng.randint(0, len(start))])
        while len(keys) < self.pages_max:
            keys.append(self.rng.randint(0, 1))
        self.pool = [*self.pool[-12:], tuple(keys)]
        return tuple(keys)

    def choose(self, arena: Arena) -> Operation:
        rng, page = self.rng, arena.plan.page_size
        state = arena.books.state is not None
        anyone = rng.choice([*self.running, 0, 77]) if rng.random() < self.misuse else None
        request = anyone
        if request is None:
            request = rng.choice(list(self.running)) if self.running else self.next_request
        run = self.running.get(request, Running((), 0))
        more = self.more(run)
        choices: list[tuple[int, Operation]] = [
            (6 if len(self.running) < 5 else 1, self.admission(arena)),
            (6, ops.Extend(request, self.amount(run, page))),
            (3, ops.Decode(tuple(r for r in self.unfinished(page) if rng.random() < 0.7))),
            (8, ops.Launch(tuple(self.running))),
            (4, ops.TrimWindow(tuple(self.running))),
            (4, ops.Publish(request, more)),
            (2, ops.Release(request, "finished", publish=True, key=more)),
            (1, ops.Release(request, "retracted")),
            (1, ops.Compact(urgent=rng.random() < 0.5)),
            (1, ops.SetGate(rng.random() < 0.3)),
            (1, ops.Evict(tuple(rng.randint(0, 2) for _ in arena.books.bands))),
            (1, ops.Reserve(tuple(rng.randint(0, 3) for _ in arena.books.bands))),
            (2, self.pin(arena, request)),
        ]
        if state:
            ready = self.ready(page)
            choices.append((1, ops.Checkpoint(request, more)))
            if ready:
                request = rng.choice(ready)
                run = self.running[request]
                choices.append((25, ops.Checkpoint(request, run.keys[run.told :])))
        if self.leases:
            choices.append((3, ops.EndLease(rng.choice(self.leases))))
        if self.tickets:
            choices.append((6, ops.Complete(self.tickets[0])))
        (chosen,) = rng.choices([op for _, op in choices], [weight for weight, _ in choices])
        return chosen

    def unfinished(self, page: int) -> list[int]:
        """Requests whose keys name more tokens."""
        return [r for r, run in self.running.items() if run.room < len(run.keys) * page]

    def ready(self, page: int) -> list[int]:
        """Requests whose state may be kept now."""
        return [
            request
            for request, run in self.running.items()
            if run.computed == run.room and run.room and run.room % (2 * page) == 0
        ]

    def admission(self, arena: Arena) -> ops.Admit:
        keys = self.sequence()
        told = self.rng.choice([len(keys), self.rng.randint(0, len(keys))])
        some = self.rng.randint(0, len(keys) * arena.plan.page_size)
        limit = self.rng.choice([None, None, None, some])
        slots = self.rng.choice([1, 1, 1, 1, 1, 2, 0])
        return ops.Admit(self.next_request, slots, keys[:told], limit)

    def more(self, run: Running) -> tuple[int, ...]:
        """The next keys, and sometimes none."""
        if self.rng.random() < 0.3:
            return ()
        return run.keys[run.told :]

    def amount(self, run: Running, page: int) -> int:
        left = len(run.keys) * page - run.room
        to_grid = -run.room % (2 * page)
        return max(0, min(left, self.rng.choice([to_grid, to_grid, 2 * page, 1, page])))

    def pin(self, arena: Arena, request: int) -> Operation:
        band = self.rng.choice(arena.books.bands)
        if request not in self.running:
            return ops.Lease(request, band.name, 0, 1)
        held, first = arena.pages_of(request, band.name)
        if not held.size:
            return ops.Lease(request, band.name, 0, 1)
        start = self.rng.randrange(first, first + held.size)
        return ops.Lease(request, band.name, start, self.rng.randint(start + 1, first + held.size))

    # --- following ---------------------------------------------------------------------------------

    def step(self, arena: Arena, operation: Operation | None = None) -> tuple[Operation, Outcome]:
        """Apply an operation (a random one), and follow what became of it."""
        operation = operation or self.choose(arena)
        outcome = arena.apply(operation)
        self.seen[operation.kind] = self.seen.get(operation.kind, 0) + bool(outcome)
        if outcome:
            self.follow(arena, operation, outcome)
        else:
            self.seen[outcome.reason] = self.seen.get(outcome.reason, 0) + 1
        return operation, outcome

    def follow(self, arena: Arena, operation: Operation, outcome: Outcome) -> None:
        match operation:
            case ops.Admit():
                whole = self.pool[-1]
                run = Running(whole, len(operation.key), outcome.value, outcome.value)
                self.running[operation.request] = run
                self.next_request += 1
                self.seen["matched"] = self.seen.get("matched", 0) + (outcome.value > 0)
            case ops.Extend():
                self.running[operation.request].room += operation.tokens
            case ops.Decode():
                for request in operation.requests:
                    self.running[request].room += 1
            case ops.Launch():
                self.tickets.append(outcome.value)
                for request in operation.requests:
                    self.compute(arena, request)
            case ops.Complete():
                self.tickets.remove(operation.ticket)
            case ops.Publish() | ops.Checkpoint():
                stalled = isinstance(operation, ops.Checkpoint) and not outcome.value
                if not stalled:
                    run = self.running[operation.request]
                    run.told += len(operation.key)
                elif operation.kind == "Checkpoint":
                    self.seen["stalls"] = self.seen.get("stalls", 0) + 1
            case ops.Release():
                del self.running[operation.request]
            case ops.Lease():
                self.leases.append(outcome.value)
            case ops.EndLease():
                self.leases.remove(operation.lease)

    # --- content -----------------------------------------------------------------------------------

    def compute(self, arena: Arena, request: int) -> None:
        """What the forward of a request writes: its new pages, and its state."""
        run, page = self.running[request], arena.plan.page_size
        before, run.computed = run.computed, run.room
        if arena.device.buffer is None:
            return
        for band in arena.books.bands:
            held, first = arena.pages_of(request, band.name)
            bytes_of = pages_of_band(arena, band.index)
            if band.index == arena.books.state:
                if held.size:
                    bytes_of[held[0]] = self.state_stamp(run, run.computed, page) % 251
                continue
            for i in range(before // page, -(-run.computed // page)):
                if i >= first:
                    bytes_of[held[i - first]] = stamp(run.keys[: i + 1]) % 251

    def state_stamp(self, run: Running, tokens: int, page: int) -> int:
        depth, rest = divmod(tokens, page)
        return stamp("state", run.keys[:depth], run.keys[depth : depth + 1] if rest else (), rest)

    def verify(self, arena: Arena) -> None:
        """Every page that somebody can read holds what it must."""
        page, books = arena.plan.page_size, arena.books
        for request, run in self.running.items():
            for band in books.bands:
                held, first = arena.pages_of(request, band.name)
                content = pages_of_band(arena, band.index)
                if band.index == books.state:
                    if held.size and run.computed:
                        expect(content[held[0]], self.state_stamp(run, run.computed, page), request)
                    continue
                for i in range(first, run.computed // page):
                    expect(content[held[i - first]], stamp(run.keys[: i + 1]), (request, i, band.name))
        assert books.cache is not None
        for node in books.cache.tree.nodes.values():
            self._verify_node(arena, node)

    def _verify_node(self, arena: Arena, node: Node) -> None:
        books = arena.books
        assert books.cache is not None
        tree = books.cache.tree
        parts = [part.key for part in tree.path(node)][::-1]
        keys = tuple(np.concatenate(parts).tolist()) if parts else ()
        for band in books.bands:
            content = pages_of_band(arena, band.index)
            if band.index == books.state:
                for depth, one in node.checkpoints.items():
                    place = band.physical(band.table.place_of[np.array([one.slot])])[0]
                    expect(content[place], stamp("state", keys[:depth], (), 0), ("checkpoint", depth))
                continue
            first = 0
            if band.index in tree.shape.windows:
                first = node.first[tree.shape.windows.index(band.index)]
            places = band.physical(band.table.place_of[node.pages[first:]])
            for i, place in enumerate(places.tolist(), node.start + first):
                expect(content[place], stamp(keys[: i + 1]), ("cached", i, band.name))


def pages_of_band(arena: Arena, index: int) -> np.ndarray:
    """Shape (physical pages, bytes): a view of the arena as pages of one band."""
    size = arena.books.bands[index].page_bytes
    whole: np.ndarray = arena.buffer.numpy()
    return whole[: whole.size // size * size].reshape(-1, size)


def expect(content: np.ndarray, value: int, what: object) -> None:
    assert (content == value % 251).all(), f"{what} does not hold what was computed"
