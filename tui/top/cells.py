"""Pages as characters: which band and which state each character of a map shows.

Cost follows the pages that are shown, in array operations, or the characters where there is a
census; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.allocator.events import CACHE
from bandscope.inspect.state import GLYPHS, ArenaState, BandState
from bandscope.tui.top.census import BandCensus, Census
from bandscope.tui.top.placing import place, sink_columns
from bandscope.tui.top.snapshot import ArenaMap, Cell, PageFacts, Run, Span, ZoomMap

_MANY = 1 << 15  # pages: beyond, those that a census counted are not counted again
_BITS = 21  # a band has fewer pages than 2²¹ per character: three counts fit into one number
_MASK = (1 << _BITS) - 1
_WEIGHTS = np.zeros(256, np.int64)
_WEIGHTS[LIVE], _WEIGHTS[HOLE], _WEIGHTS[PENDING] = 1, 1 << _BITS, 1 << 2 * _BITS


def spans_of(
    bands: Sequence[BandState], low: int, high: int, columns: int, taken: int = 0
) -> tuple[Span, ...]:
    """Which characters show which pages of which band, disjoint and in chain order, for the bytes
    `[low, high)`; the first `taken` characters are used already. A band of one page has one too."""
    spans = []
    extents = [band.byte_range() for band in bands]
    for index, first, stop in place(extents, low, high, columns, taken):
        size = bands[index].page_bytes
        start, end = max(extents[index][0], low), min(extents[index][1], high)
        spans.append(Span(bands[index].index, first, stop, start // size, -(-end // size)))
    return tuple(spans)


def cells_of(
    band: BandState,
    first: int,
    stop: int,
    columns: int,
    census: BandCensus | None = None,
    has_cache: bool = False,
) -> np.ndarray:
    """`Cell` numbers of the pages `[first, stop)` spread over `columns` characters; `has_cache`: some
    may be the prefix cache's."""
    low = first - band.base
    count = stop - first
    starts = np.arange(columns) * count // columns
    if census is not None and count >= _MANY:
        below = census.below(low + np.append(starts, count))
        live, holes, pending, pinned_count, *cached = below[:, 1:] - below[:, :-1]
        return _cells(live, holes, pending, pinned_count > 0, cached[0] if cached else None)
    states = band.state[low : low + count]
    pins = band.pins[low : low + count]
    if count <= columns:
        sums, pinned = _WEIGHTS[states[starts]], pins[starts] > 0
    else:
        sums = np.add.reduceat(_WEIGHTS[states], starts)
        pinned = np.maximum.reduceat(pins, starts) > 0
    live, holes, pending = sums & _MASK, sums >> _BITS & _MASK, sums >> 2 * _BITS
    kept = None
    if has_cache:
        theirs = (band.owner[low : low + count] == CACHE).astype(np.int64)
        kept = theirs[starts] if count <= columns else np.add.reduceat(theirs, starts)
    return _cells(live, holes, pending, pinned, kept)


def _cells(
    live: np.ndarray,
    holes: np.ndarray,
    pending: np.ndarray,
    pinned: np.ndarray,
    cached: np.ndarray | None = None,
) -> np.ndarray:
    cells = np.where(live >= holes, Cell.MOSTLY_LIVE, Cell.MOSTLY_HOLES)
    cells[live == 0] = Cell.HOLE
    cells[(holes == 0) & (live > 0)] = Cell.LIVE
    if cached is not None:
        cells[(cached * 2 > live) & (live >= holes)] = Cell.CACHED
    cells[pending > 0] = Cell.PENDING
    cells[pinned] = Cell.PINNED
    return cells


def runs_of(cells: np.ndarray, bands: np.ndarray) -> tuple[Run, ...]:
    """Neighbours that are alike, as runs."""
    if not cells.size:
        return ()
    edges = np.flatnonzero((np.diff(cells) != 0) | (np.diff(bands) != 0)) + 1
    starts = np.concatenate(([0], edges, [cells.size]))
    return tuple(
        Run(Cell(int(cells[start])), int(bands[start]), int(stop - start))
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    )


def arena_map(
    state: ArenaState,
    low: int,
    high: int,
    columns: int,
    cursor: tuple[int, int] | None = None,
    moves: Sequence[tuple[int, np.ndarray, np.ndarray]] = (),
    census: Census | None = None,
) -> ArenaMap:
    """The bytes `[low, high)` of an arena; `moves`: (band, sources, destinations) to be marked;
    `census`: of this state, so that not every page is looked at."""
    cells = np.full(columns, int(Cell.GAP))
    owners = np.full(columns, -1)
    taken = sink_columns(state.sink_bytes, low, high, columns)
    cells[:taken] = Cell.SINK
    spans = spans_of(state.bands, low, high, columns, taken)
    for span in spans:
        band = state.bands[span.band]
        owners[span.first : span.stop] = span.band
        cells[span.first : span.stop] = cells_of(
            band, span.page_first, span.page_stop, span.stop - span.first,
            None if census is None else census.bands[span.band], state.has_cache,
        )  # fmt: skip
    at = {span.band: span for span in spans}
    here = -1
    if cursor is not None and cursor[0] in at:
        span = at[cursor[0]]
        if span.page_first <= cursor[1] < span.page_stop:
            here = span.column_of(cursor[1])
    marked: list[set[int]] = [set(), set()]
    for band_index, *lists in moves:
        if band_index not in at:
            continue
        span = at[band_index]
        for marks, pages in zip(marked, lists, strict=True):
            inside = pages[(pages >= span.page_first) & (pages < span.page_stop)]
            count, width = span.page_stop - span.page_first, span.stop - span.first
            spots = ((inside - span.page_first + 1) * width - 1) // count
            marks.update((span.first + np.minimum(spots, width - 1)).tolist())
    return ArenaMap(
        low, high, runs_of(cells, owners), spans,
        tuple(sorted(marked[0])), tuple(sorted(marked[1])), here,
    )  # fmt: skip


def zoom_map(state: ArenaState, cursor: tuple[int, int], columns: int) -> ZoomMap:
    """Single pages around the cursor, as many as there are characters."""
    band = state.bands[cursor[0]]
    first, stop = band.extent
    begin = max(first, min(cursor[1] - columns // 2, stop - columns))
    end = min(stop, begin + columns)
    cells = cells_of(band, begin, end, end - begin, has_cache=state.has_cache)
    return ZoomMap(
        band.index, begin, runs_of(cells, np.full(cells.size, band.index)), cursor[1] - begin
    )


def settle_cursor(state: ArenaState, cursor: tuple[int, int] | None) -> tuple[int, int] | None:
    """The nearest page to the cursor that is inside an extent; None in an empty arena."""
    existing = [band for band in state.bands if band.extent[1] > band.extent[0]]
    if not existing:
        return None
    if cursor is None:
        return existing[0].index, existing[0].extent[0]
    band = min(existing, key=lambda known: abs(known.index - cursor[0]))
    if band.index != cursor[0]:
        return band.index, band.extent[0 if band.index > cursor[0] else 1] - (
            0 if band.index > cursor[0] else 1
        )
    return band.index, min(max(cursor[1], band.extent[0]), band.extent[1] - 1)


def page_facts(state: ArenaState, cursor: tuple[int, int]) -> PageFacts:
    """What is known about a page at this instant."""
    band = state.bands[cursor[0]]
    at = cursor[1] - band.base
    virtual = int(band.virtual[at])
    holds = virtual >= 0
    return PageFacts(
        band.index,
        cursor[1],
        GLYPHS[int(band.state[at])],
        state.name(band.index, virtual) if holds else "",
        int(band.owner[at]),
        tuple(
            pin.number
            for pin in state.pins.values()
            if pin.band == band.index and bool((pin.physical == cursor[1]).any())
        ),
        int(band.ticket[at]),
        int(band.leased_at[virtual]) if holds else -1,
        users_of(state, band.index, virtual),
    )


def users_of(state: ArenaState, band: int, virtual: int) -> tuple[int, ...]:
    """The requests that share a virtual page with the prefix cache; a state is shared by none."""
    if virtual < 0 or not state.has_cache or band == state.state_band:
        return ()
    return tuple(state.users_of(virtual))
