"""The arenas, and separate pools, that the operations of a trace are asked of instead."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import ConfigError, MisuseError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.program import Layout
from bandscope.fuzz.workload.memory import PoolMemory
from bandscope.inspect.counters import Counters


@dataclass(frozen=True)
class Change:
    """What is different: None stays as it was recorded. `pools`: separate pools instead of an arena,
    split by the most bytes that each band held at once. `evict`: in which order cached prefixes go."""

    arena_bytes: int | None = None
    page_size: int | None = None
    max_moves: int | None = None
    barrier: str | None = None
    pools: bool = False
    evict: str | None = None

    @property
    def is_none(self) -> bool:
        """Whether everything stays."""
        return self == Change()


@dataclass
class WhatIf:
    """One row of the table.

    `refusals`: operations refused for memory, gate or pins that were done then; `served`: refused then,
    and fitting now; `retractions`: requests that had to leave; `left_out`: operations of theirs that
    were not asked. Pages and bytes moved; `band_moves`: extents that changed; `barriers`; `held_bytes`:
    the most held at once. Of an arena with a prefix cache: tokens that requests began with, cached pages
    that went for a demand, states that there was no slot for. `problem`: why the arena cannot be built,
    else empty.
    """

    change: Change
    arena_bytes: int = 0
    page_size: int = 0
    operations: int = 0
    refusals: int = 0
    served: int = 0
    retractions: int = 0
    left_out: int = 0
    pages_moved: int = 0
    pages_moved_urgent: int = 0
    bytes_moved: int = 0
    band_moves: int = 0
    barriers: int = 0
    held_bytes: int = 0
    hit_tokens: int | None = None
    evicted_pages: int | None = None
    stalls: int | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        told = dataclasses.asdict(self)
        for name in ("hit_tokens", "evicted_pages", "stalls"):
            if told[name] is None:
                del told[name]
        return told


def changed_layout(layout: Layout, change: Change) -> Layout:
    """The arena of a change. Token pages of another size keep their bytes per token."""
    page_size = layout.page_size if change.page_size is None else change.page_size
    if page_size < 1:
        raise ConfigError(f"pages of {page_size} tokens were asked for; give 1 or more")
    if layout.config.prefix_cache and page_size != layout.page_size:
        raise ConfigError(
            f"pages of {page_size} tokens were asked for, but the keys of the trace name pages of "
            f"{layout.page_size}; keep the page size, or record a run with another"
        )
    if change.evict is not None and not layout.config.prefix_cache:
        raise ConfigError(
            f"eviction by {change.evict} was asked for, but the trace is of an arena without a prefix "
            "cache"
        )
    bands = tuple(
        (name, size if name == "mamba" else size // layout.page_size * page_size)
        for name, size in layout.bands
    )
    policies = {
        name: value
        for name in ("max_moves", "barrier", "evict")
        if (value := getattr(change, name)) is not None
    }
    try:
        config = dataclasses.replace(layout.config, **policies)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    total = layout.total_bytes if change.arena_bytes is None else change.arena_bytes
    return Layout(bands, page_size, total, config)


REFUSED = ("memory", "gate", "pins", "ids")


class Memory:
    """What the policy asks of an arena or of pools."""

    def apply(self, operation: Operation) -> Outcome:
        raise NotImplementedError

    def would_serve(self, operation: Operation) -> bool:
        """Whether an operation that was refused then would be done now."""
        raise NotImplementedError

    def begin_counting(self) -> None:
        """What was done so far only made the state that the trace begins with."""

    def count(self, row: WhatIf) -> None:
        """Write down what it cost."""


class OtherArena(Memory):
    """An arena of a layout."""

    def __init__(self, layout: Layout) -> None:
        self.counters = Counters()
        self.arena: Arena = layout.arena(observer=self.counters)
        self._most = 0

    def begin_counting(self) -> None:
        held = {name: band.held for name, band in self.counters.bands.items()}
        self.counters = self.arena.books.observer = Counters()
        self._most = 0
        for name, pages in held.items():
            self.counters.band(name).held = self.counters.band(name).held_peak = pages

    def apply(self, operation: Operation) -> Outcome:
        outcome = self.arena.apply(operation)
        used = sum(band.live * band.page_bytes for band in self.arena.books.bands)
        self._most = max(self._most, used)
        return outcome

    def would_serve(self, operation: Operation) -> bool:
        books = self.arena.books
        ledger, size = books.ledger, self.arena.plan.page_size
        pages = slots = 0
        try:
            match operation:
                case ops.Admit(state_slots=wanted):
                    slots = wanted
                case ops.Extend(request=request, tokens=tokens):
                    row = ledger.row(request)
                    pages = -(-(int(ledger.length[row]) + tokens) // size)
                    pages -= int(ledger.page_count[row])
                case ops.Decode(requests=requests):
                    rows = ledger.rows(requests)
                    pages = int((ledger.length[rows] == ledger.page_count[rows] * size).sum())
                case ops.Reserve(demand=demand):
                    return self.arena.serves(demand)
                case _:
                    return False
        except MisuseError:
            return False
        wanted_pages = [
            slots if band.index == books.state else max(0, pages) for band in books.bands
        ]
        return self.arena.serves(wanted_pages)

    def count(self, row: WhatIf) -> None:
        row.barriers = sum(self.counters.barriers.values())
        row.held_bytes = self._most
        if self.arena.books.cache is not None:
            cache = self.counters.cache
            row.hit_tokens, row.stalls = cache.hit_tokens, cache.stalls
            row.evicted_pages = sum(cache.evicted.values())
        for band in self.counters.bands.values():
            row.pages_moved += band.moves_urgent + band.moves_opportunistic
            row.pages_moved_urgent += band.moves_urgent
            row.bytes_moved += band.bytes_moved
            row.band_moves += sum(band.band_moves.values())


class Pools(Memory):
    """Separate pools of the same bytes, split by the most that each band held in the recorded run."""

    def __init__(self, layout: Layout, recorded: Counters) -> None:
        plan = layout.plan()
        peaks = [recorded.band(band.name).held_peak * band.page_bytes for band in plan.bands]
        total = sum(peaks)
        if not total:
            raise ConfigError("nothing was held, so there is nothing to split pools by")
        self.pools = PoolMemory(plan, layout.total_bytes, [peak / total for peak in peaks])
        self._most = 0

    def apply(self, operation: Operation) -> Outcome:
        pools = self.pools
        done = Outcome(True)
        try:
            match operation:
                case ops.Admit(request=request):
                    done = pools.admit(request)
                case ops.Extend(request=request, tokens=tokens):
                    done = pools.extend(request, tokens)
                case ops.Decode(requests=requests):
                    done = pools.decode(requests)
                case ops.TrimWindow(requests=requests):
                    pools.trim_window(requests)
                case ops.Release(request=request, why=why):
                    pools.release(request, why)
                case ops.Launch(requests=requests):
                    done = Outcome(True, pools.launch(requests))
        except MisuseError as error:
            return Outcome(False, reason="misuse", message=str(error))
        self._most = max(self._most, pools.used_bytes())
        return done

    def would_serve(self, operation: Operation) -> bool:
        return False

    def count(self, row: WhatIf) -> None:
        row.held_bytes = self._most
