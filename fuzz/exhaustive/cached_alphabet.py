"""Which operations a search over an arena with a prefix cache tries in a state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation
from bandscope.fuzz.exhaustive.cached_facts import Facts

#: One choice of an alphabet: operations that come together.
Letter = tuple[Operation, ...]


@dataclass(frozen=True)
class CacheAlphabet:
    """What may be asked. `requests`: run at most at a time; `pages`: of a key, which is every sequence
    of so many numbers below `letters`; `slots`: state slots of a request; `limits`: of admissions;
    `tokens`: of extensions, as far as the key goes; `at_once`: they are launched at once; `evict`: pages
    per band; `reserve`: demands; `leases`: pins of a request's first page, at most so many; `gate`;
    `trim`; `compact`."""

    requests: int = 2
    pages: int = 2
    letters: int = 2
    at_once: bool = False
    slots: tuple[int, ...] = (1,)
    limits: tuple[int | None, ...] = (None,)
    tokens: tuple[int, ...] = (2,)
    evict: tuple[tuple[int, ...], ...] = ()
    reserve: tuple[tuple[int, ...], ...] = ()
    leases: int = 0
    gate: bool = False
    trim: bool = True
    compact: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def choices(self, arena: Arena, facts: Facts, pinned: dict[int, int]) -> list[Letter]:
        """What is tried in a state, always in the same order."""
        found: list[Letter] = []
        size = facts.page_size
        has_state = arena.books.state is not None
        slots = self.slots if has_state else (0,)
        if len(facts.rows) < self.requests:
            fresh = next(n for n in range(len(facts.rows) + 1) if n not in facts.rows)
            found += [
                (ops.Admit(fresh, count, key, limit),)
                for key in product(range(self.letters), repeat=self.pages)
                for count in slots
                for limit in self.limits
            ]
        for number, row in sorted(facts.rows.items()):
            ticket = arena.books.tickets.issued + 1
            launch: Letter = (ops.Launch((number,)), ops.Complete(ticket))
            found += [
                (ops.Extend(number, tokens), *(launch if self.at_once else ()))
                for tokens in self.tokens
                if row.length + tokens <= self.pages * size
            ]
            if row.launched < row.length:
                found.append(launch)
            elif has_state and row.slots and row.length and not row.length % facts.grid:
                found.append((ops.Checkpoint(number),))
            if row.launched // size > row.shared:
                found.append((ops.Publish(number),))
                found.append((ops.Release(number, publish=True),))
            if self.trim and facts.reaches:
                found.append((ops.TrimWindow((number,)),))
            found.append((ops.Release(number),))
            if len(pinned) < self.leases and row.pages:
                found.append((ops.Lease(number, "full", 0, 1),))
        found += [(ops.EndLease(lease),) for lease in sorted(pinned)]
        found += [(ops.Evict(pages),) for pages in self.evict]
        found += [(ops.Reserve(demand),) for demand in self.reserve]
        if self.gate:
            found.append((ops.SetGate(not arena.books.gate_closed),))
        if self.compact:
            found.append((ops.Compact(urgent=True),))
        return found
