"""What a forward or copy must find: where its pages lie, and what their owner last left in them.

Kept by virtual page as the engine asks, never by looking at what the device did: a page that was copied
to a wrong place, or to none, is expected to hold what its owner wrote all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bandscope.allocator.tables import Pages
from bandscope.fuzz.simulated_work import UNKNOWN, ZEROES, BandAccess, Stamps

if TYPE_CHECKING:
    from bandscope.allocator.arena import Arena

Named = Sequence[int] | Pages  # virtual pages


class Expectation:
    """Of one arena. The books say where a page lies and of which generation it is when something is
    issued; a page of a generation not met before is fresh and holds what the hand-out policy says."""

    def __init__(self, arena: Arena, stamps: Stamps) -> None:
        books, config = arena.books, arena.books.config
        fresh = {"zero": ZEROES, "poison": -0xFF, "none": UNKNOWN}
        self._stamps = stamps
        self._bands = books.bands
        self._fresh, self._ids = [], []
        for band in books.bands:
            is_state = band.index == books.state
            self._fresh.append(fresh[config.hand_out_state if is_state else config.hand_out])
            self._ids.append(books.state_ids if is_state else books.ids)
        # By band and virtual page: what was left there, and by an owner of which generation.
        rows = [band.table.place_of.size for band in books.bands]
        self._left = [np.full(count, UNKNOWN, np.int64) for count in rows]
        self._generation = [np.full(count, -1, np.int64) for count in rows]

    def access(self, band: int, reads: Named, writes: Named, writer: int) -> BandAccess:
        """An access that is issued now: it reads pages, then `writer` leaves its stamp in others."""
        pages = _joined(reads, writes)
        of_band, left = self._bands[band], self._left[band]
        physical = of_band.physical(of_band.table.place_of[pages])
        generation = self._meet(band, pages)
        count = len(reads)
        access = BandAccess(band, pages, count, physical, generation, left[pages[:count]])
        if count < pages.size:
            written = pages[count:]
            access.written = self._stamps.of_writer(writer, band, written)
            left[written] = access.written
        return access

    def copy(self, band: int, source: int, destination: int) -> None:
        """A page was copied to another: that was left there which was left in its source."""
        left = self._left[band]
        self._meet(band, np.array([source, destination]))
        left[destination] = left[source]

    def rename(self, band: int, virtual: Pages, into: Pages) -> Pages:
        """Pages of a band are called `into[i]` from now on: that was left there which was left under the
        old names, whose generation may be past by now. Returns the generations of the new ones."""
        generation = self.generations(band, into)
        self._left[band][into] = self._left[band][virtual]
        self._generation[band][into] = generation
        return generation

    def _meet(self, band: int, pages: Pages) -> Pages:
        """The generations of pages; those not met before are fresh."""
        known = self._generation[band]
        generation: Pages = self._ids[band].generation[pages]
        before = known[pages]
        if generation.tobytes() != before.tobytes():
            stale = generation != before
            fresh = pages[stale]
            self._left[band][fresh] = self._fresh[band]
            known[fresh] = generation[stale]
        return generation

    def wrongly_mapped(self, mirrors: Sequence[Pages]) -> str:
        """Names a table row that says where a page lies that holds nothing, or nothing of one that
        lies somewhere, if `mirrors` has one; else empty. (Where mapped pages lie, accesses check.)"""
        for band, rows in zip(self._bands, mirrors, strict=True):
            places = band.table.place_of
            differs = (rows ^ places) < 0  # one of the two is negative, and the other is not
            if np.count_nonzero(differs):
                page = int(differs.argmax())
                return (
                    f"the table row of band {band.name} virtual page {page} says "
                    f"{int(rows[page])}, but the page is {'free' if places[page] < 0 else 'held'}"
                )
        return ""

    def generations(self, band: int, pages: Pages) -> Pages:
        """Of which generation pages are now."""
        found: Pages = self._ids[band].generation[pages]
        return found


def _joined(first: Named, second: Named) -> Pages:
    if isinstance(first, np.ndarray):
        return np.concatenate((first, second)) if len(second) else first
    return np.array([*first, *second], np.int64)
