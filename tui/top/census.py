"""How many pages are in which state, kept up to date by looking only at what changed.

Pages are counted by blocks of 256. What a stretch of pages holds is a difference of two running sums,
so a map of a million pages costs as much as its characters, not its pages.
"""

from __future__ import annotations

import numpy as np

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.allocator.events import CACHE
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.bulk_band import BLOCK_BITS
from bandscope.inspect.state import BandState

_BLOCK = 1 << BLOCK_BITS
_INSIDE = np.arange(_BLOCK)
_STATES = (LIVE, HOLE, PENDING)


class BandCensus:
    """Of one band: `totals[:, i]` are live pages, holes, pending and pinned pages below page
    `256 i` (counted from the band's base), and, where there is a prefix cache, its pages."""

    def __init__(self, band: BandState, has_cache: bool = False) -> None:
        self.band = band
        self.has_cache = has_cache
        blocks = (band.capacity >> BLOCK_BITS) + 1
        self._counts = np.zeros((5 if has_cache else 4, blocks), np.int32)
        self.totals = np.zeros((len(self._counts), blocks + 1), np.int64)

    def recount(self, dirty: np.ndarray) -> None:
        """Count the dirty blocks again; `dirty` is clean then."""
        blocks = np.flatnonzero(dirty)
        if not blocks.size:
            return
        band, whole = self.band, self.band.capacity >> BLOCK_BITS
        if blocks[-1] == whole:  # the last one is shorter
            part = band.state[whole << BLOCK_BITS :]
            self._counts[:3, whole] = [np.count_nonzero(part == state) for state in _STATES]
            self._counts[3, whole] = np.count_nonzero(band.pins[whole << BLOCK_BITS :])
            if self.has_cache:
                last = band.owner[whole << BLOCK_BITS :]
                self._counts[4, whole] = np.count_nonzero(last == CACHE)
            blocks = blocks[:-1]
        states = band.state[: whole << BLOCK_BITS].reshape(whole, _BLOCK)
        pins = band.pins[: whole << BLOCK_BITS].reshape(whole, _BLOCK)
        if blocks.size < whole:
            states, pins = states[blocks], pins[blocks]
        for row, state in enumerate(_STATES):
            self._counts[row, blocks] = np.count_nonzero(states == state, axis=1)
        self._counts[3, blocks] = np.count_nonzero(pins, axis=1)
        if self.has_cache:
            owners = band.owner[: whole << BLOCK_BITS].reshape(whole, _BLOCK)
            owners = owners[blocks] if blocks.size < whole else owners
            self._counts[4, blocks] = np.count_nonzero(owners == CACHE, axis=1)
        np.cumsum(self._counts, axis=1, out=self.totals[:, 1:])
        dirty[:] = False

    def below(self, pages: np.ndarray) -> np.ndarray:
        """Live pages, holes, pending and pinned pages below each of `pages` (from the band's base),
        and those of the prefix cache where there is one: shape (4 or 5, pages)."""
        blocks, rest = pages >> BLOCK_BITS, pages & (_BLOCK - 1)
        result = self.totals[:, blocks]
        edges = np.flatnonzero(rest)
        if edges.size:
            at = (blocks[edges] << BLOCK_BITS)[:, None] + _INSIDE
            inside = _INSIDE < rest[edges, None]
            at = np.where(inside, at, at[:, :1])
            states = np.where(inside, self.band.state[at], 255)
            for row, state in enumerate(_STATES):
                result[row, edges] += np.count_nonzero(states == state, axis=1)
            if self.totals[3, -1]:
                result[3, edges] += np.count_nonzero(
                    inside & (self.band.pins[at] > 0), axis=1
                )
            if self.has_cache:
                result[4, edges] += np.count_nonzero(
                    inside & (self.band.owner[at] == CACHE), axis=1
                )
        return result

    def within(self, first: int, stop: int) -> tuple[int, int, int, int, int | None]:
        """Live pages, holes, pending and pinned pages of `[first, stop)`, and those of the prefix
        cache (None without one)."""
        low, high = self.below(np.array([first, stop])).T
        live, holes, pending, pinned, *cached = (high - low).tolist()
        return live, holes, pending, pinned, cached[0] if cached else None


class Census:
    """Of every band of a timeline."""

    def __init__(self, timeline: BulkTimeline) -> None:
        self._timeline = timeline
        state = timeline.state
        self.bands = [BandCensus(band, state.has_cache) for band in state.bands]

    def update(self) -> None:
        """Count what changed since the last time."""
        for band, dirty in zip(self.bands, self._timeline.dirty, strict=True):
            band.recount(dirty)
