"""The chain: bands in byte order, the gaps between them, and whether a demand fits.

Two questions are answered here, page grids, index limits and pinned pages included:

- `pack(demand)`: does *some* layout hold what is live plus the demand? Packing every band as low as
  it goes (each start rounded up to the band's own grid, each extent stretched over its pinned
  pages) leaves the most room for the next one, so one walk over the bands decides it exactly.
- `grant(demand)`: can the demand be taken with nothing moved, and on which side of each float?

`relocation.py` chooses the layout that moves the fewest bytes when something must move. A band
without an extent is *transparent*: it has no frontier and its neighbours may grow past it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bandscope.allocator.band import Band

Span = tuple[int, int]  # [start, stop)


@dataclass(frozen=True)
class Held:
    """What one band must keep holding, for a question about layouts.

    `pages`: pages that stay (live, and pending ones that a lease pins) plus the demand.
    `fixed`: the hull of places that cannot move, or None when all can.
    """

    pages: int
    fixed: Span | None = None


@dataclass
class Chain:
    """Bands in byte order over `[sink_bytes, total_bytes)`."""

    bands: list[Band]
    sink_bytes: int
    total_bytes: int

    def gaps(self) -> list[Span]:
        """Free bytes before each band and after the last. The gap before a transparent band is
        empty; the next one is whole, so the sum of all is what is free between frontiers."""
        gaps, start = [], self.sink_bytes
        for band in self.bands:
            if band.extent:
                low, high = band.byte_range()
                gaps.append((start, low))
                start = high
            else:
                gaps.append((start, start))
        gaps.append((start, self.total_bytes))
        return gaps

    def room(self, index: int, spans: Sequence[Span | None] | None = None) -> Span:
        """Bytes between the nearest frontiers below and above band `index` (its own inside)."""
        if spans is None:
            spans = [band.byte_range() if band.extent else None for band in self.bands]
        below = self.sink_bytes
        for span in spans[:index]:
            if span:
                below = span[1]
        above = (span[0] for span in spans[index + 1 :] if span)
        return below, next(above, self.total_bytes)

    def grant(self, demand: Sequence[int]) -> list[Span] | None:
        """Regions (places) in which each band can take its demand with no page moved, or None when
        this division of the gaps does not serve (another one, or a move, might).

        Holes are used first. Ends then grow; after them floats, on their roomier side, and on both
        when one is not enough. An empty float starts in the middle of its room.
        """
        bands = self.bands
        regions = [(band.low, band.high) for band in bands]
        growing = [
            band for pages, band in zip(demand, bands, strict=True) if pages > band.holes
        ]
        if not growing:
            return regions
        spans = [band.byte_range() if band.high > band.low else None for band in bands]
        if len(growing) > 1:
            growing.sort(key=lambda band: (band.is_float, band.high == band.low))
        for band in growing:
            index = band.index
            low, high = band.places_within(*self.room(index, spans))
            region = _grow(band, demand[index] - band.holes, low, high)
            if region is None:
                return None
            regions[index] = region
            spans[index] = band.byte_range(*region)
        return regions

    def pack(self, held: Sequence[Held]) -> list[int] | None:
        """First free byte above each band when all are packed as low as they go; None when they do
        not fit. Exact: no other layout holds what this one cannot."""
        tops, start = [], self.sink_bytes
        for band, want in zip(self.bands, held, strict=True):
            top = packed_top(band, want, start)
            if top is None or top > self.total_bytes:
                return None
            tops.append(top)
            start = top
        return tops

    def pack_down(self, held: Sequence[Held]) -> list[int]:
        """Last usable byte below each band when all are packed as high as they go. Only asked of
        demands that `pack` serves."""
        floors, stop = [], self.total_bytes
        for band, want in zip(reversed(self.bands), reversed(held), strict=True):
            if want.pages or want.fixed:
                page_bytes = band.page_bytes
                start = stop // page_bytes - want.pages
                if want.fixed:
                    start = min(start, band.byte_range(*want.fixed)[0] // page_bytes)
                stop = start * page_bytes
            floors.append(stop)
        return floors[::-1]


def packed_top(band: Band, want: Held, start_byte: int) -> int | None:
    """First byte above `band` when its extent starts at the first page at or above `start_byte`;
    None when a page that cannot move lies below that."""
    if not want.pages and want.fixed is None:
        return start_byte
    page_bytes = band.page_bytes
    first = -(-start_byte // page_bytes)
    stop = first + want.pages
    if want.fixed is not None:
        low, high = band.byte_range(*want.fixed)
        if low // page_bytes < first:
            return None
        stop = max(stop, high // page_bytes)
    return stop * page_bytes


def _grow(band: Band, fresh: int, low: int, high: int) -> Span | None:
    """The extent of `band` after taking `fresh` pages beyond its frontiers, within places
    `[low, high)`; None when they do not fit there."""
    if not band.is_float:
        return (0, band.high + fresh) if band.high + fresh <= high else None
    if not band.extent:
        start = low + (high - low - fresh) // 2
        return (start, start + fresh) if fresh <= high - low else None
    room_below, room_above = band.low - low, high - band.high
    if fresh > room_below + room_above:
        return None
    above = min(fresh, room_above) if room_above >= room_below else fresh - min(fresh, room_below)
    return band.low - (fresh - above), band.high + above
