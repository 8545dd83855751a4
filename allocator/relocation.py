"""Which pages to move so that a demand fits, moving the fewest bytes.

Pages of a band are interchangeable, so a layout is just its cuts (the byte positions between
neighbouring bands), and its cost is the live bytes that lie on the wrong side of a cut: pages of
the band below that end above it, and pages of the band above that start below it. The cost is a sum
over cuts, and the only coupling is that a band must fit between its two cuts, so a dynamic program
over candidate positions finds the minimum.

Which positions can matter? Take any layout that serves, and lower its first cut as far as it goes
without losing a live page of the band below: the cost does not grow, and every later band has more
room. So a best first cut is the lowest that holds the first band's pages, or the end of one of its
live pages. The same argument, cut by cut, gives for every next cut: the lowest position that the
cut before allows, or the end of a live page of the band below it. Only pages above the packed
position of their band are ever looked at. (Tests compare with brute force over all layouts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.band import LIVE, NONE, Band
from bandscope.allocator.chain import Chain, Held, Span
from bandscope.allocator.tables import Pages


@dataclass(frozen=True)
class BandMoves:
    """The page copies of one band: places `sources[i]` → `destinations[i]`, all disjoint, both
    lists ascending."""

    band: Band
    sources: Pages
    destinations: Pages

    @property
    def moved_bytes(self) -> int:
        return self.sources.size * self.band.page_bytes


@dataclass(frozen=True)
class Layout:
    """A layout that serves: the region of each band, and what must move to get there.

    `regions`: places `[low, high)` per band, pairwise disjoint in bytes. `moves`: in the order in
    which they must run (a band moves only into bytes that are free by then).
    """

    regions: list[Span]
    moves: list[BandMoves]

    @property
    def moved_bytes(self) -> int:
        return sum(move.moved_bytes for move in self.moves)


def plan_layout(chain: Chain, held: Sequence[Held]) -> Layout | None:
    """The layout that holds `held` and moves the fewest bytes, or None when none does.

    Pending pages must have been reclaimed (their work ordered by a barrier) or be part of `held`
    as fixed; the plan treats only live and fixed pages as occupied.
    """
    tops = chain.pack(held)
    if tops is None:
        return None
    cuts = _cheapest_cuts(chain, held, tops)
    edges = [chain.sink_bytes, *cuts, chain.total_bytes]
    regions = [
        band.places_within(edges[index], edges[index + 1])
        for index, band in enumerate(chain.bands)
    ]
    moves = [_moves_into(band, region) for band, region in zip(chain.bands, regions, strict=True)]
    return Layout(regions, _in_order(chain, [move for move in moves if move.sources.size]))


def _cheapest_cuts(chain: Chain, held: Sequence[Held], tops: list[int]) -> list[int]:
    floors = chain.pack_down(held)
    positions, costs = np.array([chain.sink_bytes]), np.zeros(1, np.int64)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for index in range(len(chain.bands) - 1):
        below, above = chain.bands[index], chain.bands[index + 1]
        lowest, highest = tops[index], floors[index + 1]
        reached = _tops_from(below, held[index], positions)
        reached = reached[reached <= highest]
        if index == len(chain.bands) - 2:
            # Nothing above depends on the last cut, so raising it to the next frontier is free.
            lowest = max(lowest, min(highest, chain.room(index)[1]))
            reached = np.maximum(reached, lowest)
        ends = _live_pages(below, lowest // below.page_bytes, None) + 1
        ends *= below.page_bytes
        origin = _running_argmin(costs[: reached.size])
        costs, positions = costs[origin], reached
        if ends.size:
            # Two ascending runs: a stable sort merges them.
            positions = np.sort(np.concatenate([reached, ends[ends <= highest]]), kind="stable")
            last = np.searchsorted(reached, positions, side="right") - 1
            cut_off = below.live - _live_counts(below, positions // below.page_bytes)
            origin, costs = origin[last], costs[last] + cut_off * below.page_bytes
        costs = costs + _live_counts(above, -(-positions // above.page_bytes)) * above.page_bytes
        steps.append((positions, origin))
    cuts: list[int] = []
    choice = int(np.argmin(costs))
    for positions, origin in reversed(steps):
        cuts.append(int(positions[choice]))
        choice = int(origin[choice])
    return cuts[::-1]


UNUSABLE = 1 << 62


def _tops_from(band: Band, want: Held, starts: np.ndarray) -> np.ndarray:
    """`packed_top` of many ascending start bytes; `UNUSABLE` where a page that cannot move lies
    below the start."""
    if not want.pages and want.fixed is None:
        return starts
    page_bytes = band.page_bytes
    first = -(-starts // page_bytes)
    tops = (first + want.pages) * page_bytes
    if want.fixed is not None:
        low, high = band.byte_range(*want.fixed)
        tops = np.where(first <= low // page_bytes, np.maximum(tops, high), UNUSABLE)
    return tops


def _running_argmin(costs: np.ndarray) -> np.ndarray:
    """For each index the index of the first minimum of `costs[: index + 1]`."""
    if costs.size == 1:
        return np.zeros(1, np.int64)
    minima = np.minimum.accumulate(costs)
    lower = np.concatenate(([True], minima[1:] < minima[:-1]))
    result: np.ndarray = np.maximum.accumulate(np.where(lower, np.arange(costs.size), 0))
    return result


def _live_pages(band: Band, first: int | None, stop: int | None) -> Pages:
    """Physical numbers of the live pages in `[first, stop)` (open where None), ascending."""
    low, high = _places(band, first, stop)
    if low == high:
        return NONE
    pages = band.physical(band.live_between(low, high))
    return pages if band.direction > 0 else pages[::-1]


def _live_counts(band: Band, stops: Pages) -> Pages:
    """For each of these ascending physical page numbers, how many live pages lie below it."""
    if not band.live:
        return np.zeros(stops.size, np.int64)
    first, last = int(stops[0]), int(stops[-1])
    below = band.live_count(*_places(band, None, first))
    if first == last:
        return np.full(stops.size, below)
    low, high = _places(band, first, last)
    live = band.state[low:high] == LIVE
    counts = np.zeros(high - low + 1, np.int64)
    np.cumsum(live if band.direction > 0 else live[::-1], out=counts[1:])
    start = band.byte_range(low, high)[0] // band.page_bytes
    counts += below
    return counts.take(stops - start, mode="clip")


def _places(band: Band, first: int | None, stop: int | None) -> Span:
    """Places of the extent whose physical numbers lie in `[first, stop)` (open where None)."""
    low, high = band.low, band.high
    if band.direction > 0:
        low = low if first is None else max(low, first - band.first_page)
        high = high if stop is None else min(high, stop - band.first_page)
    else:
        low = low if stop is None else max(low, band.first_page - stop + 1)
        high = high if first is None else min(high, band.first_page - first + 1)
    return low, max(low, high)


def _moves_into(band: Band, region: Span) -> BandMoves:
    """Live pages outside `region` go to holes inside it, and past the extent when those run out."""
    low, high = region
    inside = (max(low, band.low), min(high, band.high))
    if inside[0] >= inside[1]:  # nothing of the extent stays: the band leaps
        sources = band.live_between(band.low, band.high)
        start = low if low >= band.high else high - sources.size
        return BandMoves(band, sources, np.arange(start, start + sources.size, dtype=np.int64))
    sources = band.live_outside(*inside)
    if not sources.size:
        return BandMoves(band, NONE, NONE)
    holes = band.holes_between(*inside)[: sources.size]
    missing = sources.size - holes.size
    if not missing:
        return BandMoves(band, sources, holes)
    above = min(missing, max(0, high - band.high))
    below = missing - above
    destinations = np.concatenate(
        [
            np.arange(band.low - below, band.low, dtype=np.int64),
            holes,
            np.arange(band.high, band.high + above, dtype=np.int64),
        ]
    )
    return BandMoves(band, sources, destinations)


def _in_order(chain: Chain, moves: list[BandMoves]) -> list[BandMoves]:
    """Order the moves so that each runs into bytes no other band's extent covers at that time.

    Only neighbours can be in each other's way, and never both ways at once (their new places keep
    their order), so there is always one that can go next.
    """
    spans: list[Span | None] = [
        band.byte_range() if band.extent else None for band in chain.bands
    ]
    ordered, waiting = [], list(moves)
    while waiting:
        for move in waiting:
            low, high = chain.room(move.band.index, spans)
            wide = move.band.byte_range(
                min(move.band.low, int(move.destinations[0])),
                max(move.band.high, int(move.destinations[-1]) + 1),
            )
            if low <= wide[0] and wide[1] <= high:
                break
        else:
            raise AssertionError("two bands wait for each other's bytes")
        waiting.remove(move)
        ordered.append(move)
        if waiting:
            spans[move.band.index] = _extent_after(move)
    return ordered


def _extent_after(move: BandMoves) -> Span:
    """Bytes of the band's extent once `move` has run and its frontiers were pulled back."""
    band = move.band
    stays = band.state[band.low : band.high] & 1 == 1
    stays[move.sources - band.low] = False
    places = np.concatenate([np.flatnonzero(stays) + band.low, move.destinations])
    return band.byte_range(int(places.min()) if band.is_float else 0, int(places.max()) + 1)
