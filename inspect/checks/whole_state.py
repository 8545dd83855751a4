"""The invariants of one whole state of an arena."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.allocator.events import CACHE
from bandscope.inspect.state import ArenaState, BandState

Found = tuple[str, str, str]  # invariant, band, in words


def state_findings(state: ArenaState) -> Iterator[Found]:
    """What is broken in a state between two operations."""
    for band in state.bands:
        yield from _pages(band)
        yield from _tables(band)
        live = np.flatnonzero(band.state == LIVE)
        owners = np.unique(band.owner[live]).tolist()
        for owner in owners:
            if owner not in state.requests and not (owner == CACHE and state.has_cache):
                pages = int(np.count_nonzero(band.owner[live] == owner))
                yield (
                    "ownership", band.name,
                    f"{pages} pages are held by request {owner}, which is not running",
                )  # fmt: skip
    yield from _shared(state)
    yield from _order(state)
    yield from _ids(state)
    yield from _pins(state)


def _pages(band: BandState) -> Iterator[Found]:
    inside = band.slice
    states = band.state[inside]
    known = sum(int(np.count_nonzero(states == one)) for one in (LIVE, HOLE, PENDING))
    if known != states.size:
        detail = f"its extent has {states.size} pages, but live + holes + pending are {known}"
        yield "conservation", band.name, detail
    outside = int(np.count_nonzero(band.state != GAP)) - int(np.count_nonzero(states != GAP))
    if outside:
        yield "conservation", band.name, f"{outside} pages outside of its extent hold something"


def _tables(band: BandState) -> Iterator[Found]:
    bound = np.flatnonzero(band.page_of >= 0)
    live = band.state == LIVE
    if (band.virtual[band.page_of[bound] - band.base] != bound).any():
        yield "tables", band.name, "v2p and p2v are not inverse"
    if bound.size != int(np.count_nonzero(live)) or not live[band.page_of[bound] - band.base].all():
        detail = f"{bound.size} pages are bound, {np.count_nonzero(live)} are live"
        yield "tables", band.name, detail
    if (band.virtual[~live] >= 0).any():
        yield "tables", band.name, "a page that is not live has a name"


def _shared(state: ArenaState) -> Iterator[Found]:
    """What requests share with the prefix cache is the cache's, and theirs that run."""
    full = state.bands[state.full]
    for request, virtual in sorted(state.shared.items()):
        if request not in state.requests:
            detail = f"request {request} shares {virtual.size} cached pages, but is not running"
            yield "ownership", full.name, detail
        pages = full.page_of[virtual]
        astray = (pages < 0) | (full.owner[pages - full.base] != CACHE)
        if astray.any():
            page = state.name(full.index, int(virtual[astray][0]))
            detail = f"request {request} shares page {page}, which is not the cache's"
            yield "ownership", full.name, detail


def _order(state: ArenaState) -> Iterator[Found]:
    total, start = state.sink_bytes, state.sink_bytes
    for band in state.bands:
        low, high = band.byte_range()
        if high > low:
            if low < start:
                detail = f"bytes {low:,} to {high:,} begin before byte {start:,}, where others end"
                yield "order", band.name, detail
            total += max(0, low - start) + high - low
            start = high
    total += state.total_bytes - start
    if start > state.total_bytes:
        yield "order", "", f"extents end at byte {start:,} of {state.total_bytes:,}"
    elif total != state.total_bytes:
        yield (
            "conservation", "",
            f"sink, extents and gaps are {total:,} bytes, the arena is {state.total_bytes:,}",
        )  # fmt: skip


def _ids(state: ArenaState) -> Iterator[Found]:
    for index in (state.full, state.state_band):
        if index is None:
            continue
        band, ids = state.bands[index], state.ids_of(index)
        free = np.asarray(ids.released, np.int64)
        bound = np.flatnonzero(band.page_of >= 0)
        if np.unique(free).size != free.size:
            yield "ids", band.name, "an id is free twice"
        if np.intersect1d(free, bound).size:
            yield "ids", band.name, "an id is free and bound"
        if free.size + bound.size != ids.fresh or bound.max(initial=-1) >= ids.fresh:
            detail = f"{ids.fresh} ids are in use, but {bound.size} are bound and {free.size} free"
            yield "ids", band.name, detail
    full = state.bands[state.full]
    for band in state.bands:
        if band.index not in (state.full, state.state_band):
            astray = (band.page_of >= 0) & (full.page_of < 0)
            if astray.any():
                detail = f"{int(astray.sum())} pages are bound whose id is free"
                yield "ids", band.name, detail


def _pins(state: ArenaState) -> Iterator[Found]:
    for band in state.bands:
        held = [pin.physical for pin in state.pins.values() if pin.band == band.index]
        counts = np.zeros(band.capacity, np.int64)
        if held:
            np.add.at(counts, np.concatenate(held) - band.base, 1)
        if (counts != band.pins).any():
            yield "pins", band.name, "the pins of its pages are not those of the leases"
        if ((counts > 0) & (band.state != LIVE) & (band.state != PENDING)).any():
            yield "pins", band.name, "a pinned page is neither live nor pending"
