"""Figures of the bands for people and metrics: held exactly, available as an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from bandscope.allocator.books import Books
from bandscope.allocator.cache import without


@dataclass(frozen=True, slots=True)
class BandFacts:
    """One band at one instant; page counts unless the name says bytes.

    `live + holes + pending` is the extent. `pinned` pages are live or pending. `available_estimate`:
    pages that this band alone could still take; the figures of several bands share bytes. Of the
    live pages the prefix cache owns `cached`, and `evictable` of these are held by nobody; what may go
    counts as available.
    """

    name: str
    page_bytes: int
    start_byte: int
    stop_byte: int
    live: int
    holes: int
    pending: int
    pinned: int
    available_estimate: int
    cached: int = 0
    evictable: int = 0


def band_facts(books: Books) -> list[BandFacts]:
    """The figures of every band, in chain order."""
    chain = books.chain
    nothing = [0] * len(books.bands)
    cached = nothing if books.cache is None else books.cache.tree.cached
    evictable = nothing if books.cache is None else books.cache.tree.evictable
    held = without(books.held(nothing), evictable)
    tops = chain.pack(held)
    floors = chain.pack_down(held) if tops is not None else None
    facts = []
    for index, band in enumerate(books.bands):
        available = 0
        if tops is not None and floors is not None:
            start = tops[index - 1] if index else chain.sink_bytes
            following = floors[index + 1] if index + 1 < len(floors) else chain.total_bytes
            low, high = band.places_within(start, following)
            available = max(0, high - low - held[index].pages)
        start_byte, stop_byte = band.byte_range() if band.extent else (0, 0)
        pins = books.pins.pins
        pinned = int((band.pin_count[band.low : band.high] > 0).sum()) if pins else 0
        facts.append(
            BandFacts(
                band.name,
                band.page_bytes,
                start_byte,
                stop_byte,
                band.live,
                band.holes,
                band.pending,
                pinned,
                available,
                cached[index],
                evictable[index],
            )
        )
    return facts
