"""What an arena with a prefix cache holds, as a dictionary of prefixes, recomputed every time.

A prefix is a tuple with a number per page. The dictionary says which page holds it, which windows keep
that page, and which slot holds the state after it. Who holds what follows from the requests and from the
pins, so what may be evicted, what a match finds and what room there is are predicted without the tree's
counts, orders and locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import LIVE
from bandscope.allocator.cache import PrefixCache
from bandscope.allocator.device.none import NoDevice
from bandscope.allocator.prefix_nodes import Node
from bandscope.allocator.tables import Pages
from bandscope.fuzz.exhaustive.geometry import Geometry
from bandscope.fuzz.exhaustive.packing import Hull

Prefix = tuple[int, ...]
Demand = tuple[int, ...]
Label = tuple[object, ...]


class LabelledDevice(NoDevice):
    """Books only; `labels` says what the bytes of a page stand for, by band and physical page."""

    def __init__(self) -> None:
        self.labels: dict[tuple[int, int], Label] = {}

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        read = [self.labels.get((band, page), ()) for page in sources.tolist()]
        for page, label in zip(destinations.tolist(), read, strict=True):
            self.labels[band, page] = label

    copy = move

    def fill(self, band: int, pages: Pages, value: int) -> None:
        for page in pages.tolist():
            self.labels[band, page] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached page: its virtual id, and which windows keep it."""

    page: int
    kept: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A running request. `first`: the first page that each window keeps; `shared`: pages that are the
    cache's."""

    key: Prefix
    length: int
    launched: int
    pages: tuple[int, ...]
    slots: tuple[int, ...]
    first: tuple[int, ...]
    shared: int


class Facts:
    """One state of an arena. `pinned`: by lease, the prefix that it holds."""

    def __init__(self, arena: Arena, geometry: Geometry, pinned: dict[int, Prefix]) -> None:
        books = arena.books
        assert books.cache is not None
        self.geometry, self.cache = geometry, books.cache
        self.pinned = pinned
        self.page_size = geometry.page_size
        shape = self.cache.tree.shape
        self.reaches, self.grid = shape.reaches, shape.grid_tokens
        self.windows = [books.windows.index(band) for band in shape.windows]
        self.entries: dict[Prefix, Entry] = {}
        self.states: dict[Prefix, int] = {}
        self._read(self.cache.tree.root, ())
        self.rows = {number: self._row(arena, number) for number in books.ledger.row_of}
        self.needs, self.hulls = self._room(arena)

    def _read(self, node: Node, prefix: Prefix) -> None:
        named = prefix + tuple(node.key.tolist())
        for at, page in enumerate(node.pages.tolist()):
            kept = tuple(at >= first for first in node.first)
            self.entries[named[: node.start + at + 1]] = Entry(page, kept)
        for depth, checkpoint in node.checkpoints.items():
            self.states[named[:depth]] = checkpoint.slot
        for child in node.children.values():
            self._read(child, named)

    def _row(self, arena: Arena, number: int) -> Row:
        ledger, cache = arena.books.ledger, self.cache
        row = ledger.row(number)
        return Row(
            tuple(cache.sharing[number].key.tolist()),
            int(ledger.length[row]),
            int(ledger.launched[row]),
            tuple(ledger.token_pages(row).tolist()),
            tuple(ledger.state_slots(row).tolist()),
            tuple(int(ledger.first_kept[row, window]) for window in self.windows),
            int(ledger.cached[row]),
        )

    def _room(self, arena: Arena) -> tuple[tuple[int, ...], tuple[Hull, ...]]:
        """Pages per band that a layout must give, and those that cannot move."""
        needs, hulls = [], []
        for band in arena.books.bands:
            alive = band.state[: band.capacity] == LIVE
            pinned = band.pin_count[: band.capacity] > 0
            fixed = alive | pinned if arena.books.gate_closed else pinned
            needs.append(int(np.count_nonzero(alive | pinned)))
            pages = band.physical(np.flatnonzero(fixed))
            hulls.append((int(pages.min()), int(pages.max()) + 1) if pages.size else None)
        return tuple(needs), tuple(hulls)

    # --- who holds what ------------------------------------------------------------------------------

    def holds(self, beside: Prefix = ()) -> Iterator[tuple[Prefix, tuple[int, ...], bool]]:
        """Each hold: a prefix, from which page on its windows are held, and whether its states are."""
        none = (0,) * len(self.reaches)
        for row in self.rows.values():
            yield row.key[: row.shared], row.first, False
        for prefix in self.pinned.values():
            yield prefix, none, True
        if beside:
            yield beside, self.window_from(len(beside)), False

    def window_from(self, depth: int) -> tuple[int, ...]:
        """From which page on each window is needed by the token after so many pages."""
        return tuple(max(0, depth - reach) for reach in self.reaches)

    def evictable(self, beside: Prefix = ()) -> Demand:
        """Pages per band that may go; `beside`: were this matched prefix held, with its state."""
        shape = self.cache.tree.shape
        full: set[Prefix] = set()
        kept: list[set[Prefix]] = [set() for _ in self.reaches]
        states: set[Prefix] = {beside} if beside else set()
        for prefix, first, with_states in self.holds(beside):
            for at in range(1, len(prefix) + 1):
                full.add(prefix[:at])
                if with_states:
                    states.add(prefix[:at])
                for window, start in enumerate(first):
                    if at > start:
                        kept[window].add(prefix[:at])
        counts = [0] * shape.bands
        for prefix, entry in self.entries.items():
            counts[shape.full] += prefix not in full
            for band in shape.companions:
                counts[band] += prefix not in full
            for window, band in enumerate(shape.windows):
                counts[band] += entry.kept[window] and prefix not in kept[window]
        if shape.state is not None:
            counts[shape.state] = sum(prefix not in states for prefix in self.states)
        return tuple(counts)

    def cached(self) -> Demand:
        """Pages per band that the cache owns."""
        shape = self.cache.tree.shape
        counts = [0] * shape.bands
        for band in (shape.full, *shape.companions):
            counts[band] = len(self.entries)
        for window, band in enumerate(shape.windows):
            counts[band] = sum(entry.kept[window] for entry in self.entries.values())
        if shape.state is not None:
            counts[shape.state] = len(self.states)
        return tuple(counts)

    # --- predictions -----------------------------------------------------------------------------------

    def serves(self, demand: Demand, freed: Demand | None = None, beside: Prefix = ()) -> bool:
        """By brute force: does some layout hold the demand once `freed` (all that may go) has gone?"""
        if freed is None:
            freed = self.evictable(beside)
        wanted = zip(self.needs, demand, freed, strict=True)
        return self.geometry.packing.fits(tuple(n + d - f for n, d, f in wanted), self.hulls)

    def match(self, key: Prefix, limit_tokens: int | None) -> Prefix:
        """The longest prefix of a key that can be used."""
        most = len(key)
        if limit_tokens is not None:
            most = min(most, limit_tokens // self.page_size)
        has_state = self.cache.tree.shape.state is not None
        for depth in range(most, 0, -1):
            prefix = key[:depth]
            if prefix not in self.entries or (has_state and prefix not in self.states):
                continue
            needed = enumerate(self.window_from(depth))
            if all(
                self.entries[key[: at + 1]].kept[window]
                for window, start in needed
                for at in range(start, depth)
            ):
                return prefix
        return ()


def cache_of(arena: Arena) -> PrefixCache:
    """The cache of an arena that has one."""
    assert arena.books.cache is not None
    return arena.books.cache
