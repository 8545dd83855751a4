"""Does some layout of an arena hold these pages? From a trace's header alone.

Packing every band as low as it goes, each start rounded up to the band's own page grid and each extent
stretched over the pages that cannot move, leaves the most room for the next one: so one walk over the
bands decides it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator.band import LIVE, PENDING
from bandscope.allocator.events import CACHE
from bandscope.inspect.state import ArenaState, BandState

Hull = tuple[int, int]  # physical pages [first, stop)
NONE_LOW = 1 << 62  # the lowest page of nothing


def packed_top(state: ArenaState, pages: Sequence[int], fixed: Sequence[Hull | None]) -> int | None:
    """First byte above all bands when they are packed as low as they go; None when a page that cannot
    move is in the way. `pages`: to be held, by band; `fixed`: the hull of pages that cannot move."""
    start = state.sink_bytes
    for band, count, hull in zip(state.bands, pages, fixed, strict=True):
        if not count and hull is None:
            continue
        first = -(-start // band.page_bytes)
        stop = first + count
        if hull is not None:
            if hull[0] < first:
                return None
            stop = max(stop, hull[1])
        start = stop * band.page_bytes
    return start


def serves(state: ArenaState, pages: Sequence[int], fixed: Sequence[Hull | None]) -> bool:
    """True when a layout holds `pages` in the arena as it is."""
    top = packed_top(state, pages, fixed)
    return top is not None and top <= state.total_bytes


def held_pages(state: ArenaState) -> list[int]:
    """Pages per band that stay, whatever is decided: live ones, and pending ones that a lease pins."""
    return [
        int(np.count_nonzero(band.state == LIVE))
        + int(np.count_nonzero((band.state == PENDING) & (band.pins > 0)))
        for band in state.bands
    ]


def evictable_pages(state: ArenaState) -> list[int]:
    """Pages per band that the prefix cache can give up, as far as a trace tells: those that no request
    uses. None while leases pin, since a pin keeps more of the cache than its own pages; and none of the
    windows that those who use a page have left behind. So it is rather too few than too many."""
    return [int(np.count_nonzero(_cached_of(state, band, 0))) for band in state.bands]


def _cached_of(state: ArenaState, band: BandState, users: int) -> np.ndarray:
    """By virtual page, those that the cache owns and so many requests use; a kept state is used by
    nobody."""
    found = np.zeros(band.page_of.size, bool)
    if state.has_cache and not state.pins:
        held = np.flatnonzero(band.page_of >= 0)
        cached = held[band.owner[band.page_of[held] - band.base] == CACHE]
        if band.index == state.state_band:
            found[cached] = users == 0
        else:
            found[cached] = state.users[cached] == users
    return found


def hulls(
    state: ArenaState, *, gate_closed: bool, leases: Sequence[int]
) -> list[Hull | None]:
    """Per band the hull of the pages that cannot move: those that these leases pin, and all live ones
    while the gate is closed."""
    found: list[Hull | None] = []
    for band in state.bands:
        parts = [state.pins[n].physical for n in leases if state.pins[n].band == band.index]
        if gate_closed:
            parts.append(np.flatnonzero(band.state == LIVE) + band.base)
        parts = [part for part in parts if part.size]
        low = min((int(part.min()) for part in parts), default=0)
        high = max((int(part.max()) for part in parts), default=-1)
        found.append((low, high + 1) if parts else None)
    return found


class Owners:
    """Who holds what: `requests` ascending, shape (requests,), the prefix cache as `CACHE` among them.
    By request and band, shape (requests, bands): `freed` (pages that its release frees: those that no
    lease pins, and cached ones that nobody else uses, which the cache can give up then), `low` and
    `stop` (the hull of its physical pages; `NONE_LOW`, −1 when there are none). `bytes` of all its
    pages."""

    def __init__(self, state: ArenaState) -> None:
        self.state = state
        live = [np.flatnonzero(band.state == LIVE) for band in state.bands]
        owners = [band.owner[at] for band, at in zip(state.bands, live, strict=True)]
        self.requests = np.unique(np.concatenate(owners))
        shape = self.requests.size, len(live)
        self.freed = np.zeros(shape, np.int64)
        self.low = np.full(shape, NONE_LOW, np.int64)
        self.stop = np.full(shape, -1, np.int64)
        self.bytes = np.zeros(shape[0], np.int64)
        for band, at, owner in zip(state.bands, live, owners, strict=True):
            row = np.searchsorted(self.requests, owner)
            number = band.index
            free = band.pins[at] == 0
            self.freed[:, number] = np.bincount(row[free], minlength=shape[0])
            self.bytes += np.bincount(row, minlength=shape[0]) * band.page_bytes
            np.minimum.at(self.low[:, number], row, at + band.base)
            np.maximum.at(self.stop[:, number], row, at + band.base + 1)
            if state.has_cache:
                self._count_shared(band)

    def _count_shared(self, band: BandState) -> None:
        alone = _cached_of(self.state, band, 1)
        rows = np.searchsorted(self.requests, list(self.state.shared))
        for row, (request, virtual) in zip(rows.tolist(), self.state.shared.items(), strict=True):
            if row < self.requests.size and self.requests[row] == request:
                self.freed[row, band.index] += np.count_nonzero(alone[virtual])

    def fit_without_one(self, wanted: Sequence[int], pinned: Sequence[Hull | None]) -> np.ndarray:
        """Whether `wanted` pages per band fit when one request is released: an answer per request.
        `pinned`: the hull of what leases pin."""
        low, stop = _others(self.low, np.minimum, NONE_LOW), _others(self.stop, np.maximum, -1)
        return self._fit(np.asarray(wanted) - self.freed, low, stop, pinned)

    def fit_without_many(
        self, order: np.ndarray, wanted: Sequence[int], pinned: Sequence[Hull | None]
    ) -> np.ndarray:
        """The same when all up to this one are released, in this order (rows of requests)."""
        pages = np.asarray(wanted) - np.cumsum(self.freed[order], axis=0)
        kept = np.setdiff1d(np.arange(self.requests.size), order)
        low, stop = np.full_like(pages, NONE_LOW), np.full_like(pages, -1)
        rest = np.concatenate([order, kept])
        lows = np.minimum.accumulate(self.low[rest][::-1], axis=0)[::-1]
        stops = np.maximum.accumulate(self.stop[rest][::-1], axis=0)[::-1]
        follow = min(order.size, rest.size - 1)
        low[:follow], stop[:follow] = lows[1 : follow + 1], stops[1 : follow + 1]
        return self._fit(pages, low, stop, pinned)

    def _fit(
        self, pages: np.ndarray, low: np.ndarray, stop: np.ndarray, pinned: Sequence[Hull | None]
    ) -> np.ndarray:
        state = self.state
        start = np.full(len(pages), state.sink_bytes, np.int64)
        fits = np.ones(len(pages), bool)
        for band, hull in zip(state.bands, pinned, strict=True):
            count = pages[:, band.index]
            from_page, to_page = np.full_like(count, NONE_LOW), np.full_like(count, -1)
            if state.gate_closed:
                from_page, to_page = low[:, band.index], stop[:, band.index]
            if hull is not None:
                from_page, to_page = np.minimum(from_page, hull[0]), np.maximum(to_page, hull[1])
            first = -(-start // band.page_bytes)
            fits &= from_page >= first
            top = np.maximum(first + count, to_page) * band.page_bytes
            start = np.where((count > 0) | (to_page >= 0), top, start)
        return fits & (start <= state.total_bytes)


def _others(values: np.ndarray, best: np.ufunc, none: int) -> np.ndarray:
    """By column, the best of all rows but one: an answer per row."""
    edge = np.full((1, values.shape[1]), none, values.dtype)
    before = np.concatenate([edge, best.accumulate(values, axis=0)[:-1]])
    after = np.concatenate([best.accumulate(values[::-1], axis=0)[::-1][1:], edge])
    others: np.ndarray = best(before, after)
    return others
