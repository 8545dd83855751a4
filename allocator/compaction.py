"""Closing holes: little by little when there is time, completely when asked.

Opportunistic passes move at most a cap of pages per band, only where holes are worth it, and never
a page that unsettled work may write. An urgent pass packs every band with the fewest moves, ordered
behind launched work by a barrier.
"""

from __future__ import annotations

import numpy as np

from bandscope.allocator.band import NONE, Band
from bandscope.allocator.books import Books
from bandscope.allocator.relocation import BandMoves
from bandscope.allocator.tables import Pages


def opportunistic(books: Books, cap: int) -> int:
    """One capped pass over all bands; returns the pages moved."""
    moved = 0
    for band in books.bands:
        if _is_worth_it(books, band):
            sources, destinations = _inwards(books, band, min(cap, band.holes))
            if sources.size:
                books.move(band, sources, destinations, urgent=False)
                moved += sources.size
    books.tell_extents("compact")
    return moved


def _is_worth_it(books: Books, band: Band) -> bool:
    config = books.config
    if not band.holes or band.holes < config.compact_hole_share * band.extent:
        return False
    below, above = books.chain.room(band.index)
    faced = above - below - band.extent * band.page_bytes
    return faced <= config.compact_gap_share * books.chain.total_bytes


def pack_all(books: Books) -> int:
    """Pack every band as tightly as its pins allow; returns the pages moved."""
    if any(band.holes or band.pending for band in books.bands):
        books.settle("urgent compaction")
    moved = 0
    for band in books.bands:
        moves = pack(books, band)
        if moves.sources.size:
            books.move(band, moves.sources, moves.destinations, urgent=True)
            moved += moves.sources.size
    books.tell_extents("compact")
    return moved


def pack(books: Books, band: Band) -> BandMoves:
    """The fewest moves after which the band's extent holds no hole (but for pinned pages)."""
    if not band.holes:
        return BandMoves(band, NONE, NONE)
    pages = band.live + books.pins.deferred[band.index]
    start, stop = _tightest_window(band, pages, books.fixed(band))
    sources = band.live_outside(start, stop)
    return BandMoves(band, sources, band.holes_between(start, stop)[: sources.size])


def _tightest_window(
    band: Band, pages: int, fixed: tuple[int, int] | None
) -> tuple[int, int]:
    """The places `[start, stop)` of a packed extent that already hold the most live pages."""
    size = pages
    if fixed is not None:
        size = max(size, fixed[1] - (fixed[0] if band.is_float else 0))
    if not band.is_float:
        return 0, size
    inside = np.zeros(band.extent + 1, np.int64)
    np.cumsum(band.state[band.low : band.high] & 1, out=inside[1:])
    counts = inside[size:] - inside[: inside.size - size]
    if fixed is not None:  # only windows that cover every page that cannot move
        first = max(0, fixed[1] - size - band.low)
        last = fixed[0] - band.low
        counts = counts[: last + 1]
        counts[:first] = -1
    start = band.low + int(np.argmax(counts))
    return start, start + size


def _inwards(books: Books, band: Band, cap: int) -> tuple[Pages, Pages]:
    """Up to `cap` outermost live pages and the innermost holes they can move to.

    An end moves pages from its frontier towards its base. A float opens its tighter side.
    """
    from_high = True
    if band.is_float:
        below, above = books.chain.room(band.index)
        low, high = band.byte_range()
        from_high = above - high <= low - below
    sources = band.outermost_live(cap, from_high=from_high)
    if from_high:
        destinations = band.lowest_holes(cap)
    else:
        destinations = band.holes_between(band.low, band.high)[-cap:][::-1]
    count = min(sources.size, destinations.size)
    sources, destinations = sources[:count], destinations[:count]
    useful = sources > destinations if from_high else sources < destinations
    useful &= band.pin_count[sources] == 0
    written = books.tickets.unsettled_writes(band.index)
    if written.size:
        useful &= ~np.isin(sources, band.table.place_of[written])
    return sources[useful], destinations[useful]
