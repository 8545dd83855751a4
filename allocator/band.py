"""One band: a contiguous run of pages with holes in it, kept in its own coordinates.

A *place* is the distance of a page from the band's base. The low end and a float count places
upwards from the first page above the sink, the high end counts them downwards from the last page of
the arena. So every band is an extent `[low, high)` of places, and an end is simply a band whose
`low` stays 0. Only `first_page` and `direction` turn a place into the physical page number that the
device uses; that number times the page size is a byte offset, in 64 bits.

Costs follow the pages touched: holes are found through a count per block of 256 places, a frontier
is pulled back over whole blocks of holes by their counts, and nothing here walks the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator.plan import BandPlan
from bandscope.allocator.tables import Pages, PageTable

GAP, LIVE, HOLE, PENDING = 0, 1, 2, 3

BLOCK_SHIFT = 8
BLOCK_PLACES = 1 << BLOCK_SHIFT

NONE: Pages = np.empty(0, np.int64)

_HOLE_BYTE = bytes([HOLE])
_TRUE_BYTE = b"\1"
_BLOCK_WORDS = np.ones(BLOCK_PLACES // 64, np.int64)  # to add up the bit counts of a block
# From one page in so many on it is cheaper to go through a whole range than from page to page.
_DENSE_SHARE = 16


@dataclass
class Band:
    """The book of one band in an arena of `total_bytes`.

    Attributes of interest to readers: `low`, `high` (frontiers, in places), `live`, `holes`,
    `pending` (page counts; their sum is the extent), `table` (virtual pages), `pin_count` (how many
    leases pin each place).
    """

    plan: BandPlan
    index: int
    total_bytes: int
    sink_bytes: int
    virtual_capacity: int
    low: int = 0
    high: int = 0
    live: int = 0
    holes: int = 0
    pending: int = 0
    name: str = field(init=False)
    page_bytes: int = field(init=False)
    is_float: bool = field(init=False)
    first_page: int = field(init=False)
    direction: int = field(init=False)
    capacity: int = field(init=False)

    def __post_init__(self) -> None:
        # Facts of the plan that every operation asks for.
        self.name, self.is_float = self.plan.name, self.plan.end == "float"
        self.page_bytes = page_bytes = self.plan.page_bytes
        lowest = -(-self.sink_bytes // page_bytes)
        end = self.total_bytes // page_bytes
        self.capacity = max(0, end - lowest)
        self.direction = -1 if self.plan.end == "high" else 1
        self.first_page = end - 1 if self.direction < 0 else lowest
        blocks = (self.capacity >> BLOCK_SHIFT) + 1
        # np.full writes every byte now; np.zeros would leave the page faults to the first moves.
        self.state = np.full(blocks * BLOCK_PLACES, GAP, np.uint8)
        self._by_block = self.state.reshape(blocks, BLOCK_PLACES)
        self._block_holes = np.zeros(blocks, np.int64)
        self._first_hole_block = 0  # no hole lies in an earlier block; a hint, not state
        self.pin_count = np.zeros(self.capacity, np.int32)
        self.table = PageTable(self.virtual_capacity, self.capacity)

    # --- where pages are ---------------------------------------------------------------------

    @property
    def extent(self) -> int:
        """Pages between the frontiers."""
        return self.high - self.low

    def physical(self, places: Pages) -> Pages:
        """Physical page numbers (byte offset / page bytes) of places."""
        up = self.direction > 0
        result: Pages = self.first_page + places if up else self.first_page - places
        return result

    def places_of_physical(self, pages: Pages) -> Pages:
        """The inverse of `physical`."""
        result: Pages = (pages - self.first_page) * self.direction
        return result

    def byte_range(self, low: int | None = None, high: int | None = None) -> tuple[int, int]:
        """Bytes `[start, stop)` of places `[low, high)`; of the extent by default."""
        low = self.low if low is None else low
        high = self.high if high is None else high
        if self.direction > 0:
            start, stop = self.first_page + low, self.first_page + high
        else:
            start, stop = self.first_page - high + 1, self.first_page - low + 1
        page_bytes = self.page_bytes
        return start * page_bytes, stop * page_bytes

    def places_within(self, start_byte: int, stop_byte: int) -> tuple[int, int]:
        """The places `[low, high)` of the whole pages inside bytes `[start, stop)`, clipped to the
        band's own grid and index limit. Empty ranges come back as `low == high`."""
        base, capacity = self.first_page, self.capacity
        first = -(-start_byte // self.page_bytes)
        last = stop_byte // self.page_bytes
        if self.direction > 0:
            low, high = first - base, last - base
        else:
            low, high = base - last + 1, base - first + 1
        low = min(max(low, 0), capacity)
        return low, max(low, min(high, capacity))

    def place_at_byte(self, byte: int) -> int:
        """The place whose page holds `byte` (for pictures; may lie outside the extent)."""
        return (byte // self.page_bytes - self.first_page) * self.direction

    # --- taking and dropping pages ------------------------------------------------------------

    def take(self, count: int, low: int, high: int) -> Pages:
        """Make `count` places live: holes first (nearest the base), then beyond the frontiers.

        The extent may grow to `[low, high)` at most; the caller has made sure that this is enough.
        A float grows upwards first; an empty one starts in the middle of what it was given.
        """
        reused = min(count, self.holes)
        fresh = count - reused
        parts = []
        if reused:
            holes = self.lowest_holes(reused)
            self._leave_holes(holes)
            parts.append(holes)
        if fresh:
            if self.low == self.high:
                start = 0 if not self.is_float else low + (high - low - fresh) // 2
                self.low = self.high = start
            above = min(fresh, high - self.high)
            below = fresh - above
            assert above >= 0 and self.low - below >= low, "taking past the agreed region"
            if above:
                parts.append(np.arange(self.high, self.high + above, dtype=np.int64))
                self.high += above
            if below:
                parts.append(np.arange(self.low - below, self.low, dtype=np.int64))
                self.low -= below
        places = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NONE
        self.state[places] = LIVE
        self.live += count
        return places

    def drop(self, places: Pages, *, pending: bool) -> None:
        """Live places hold nothing any more: holes at once, or pending until work has completed."""
        self.live -= places.size
        if pending:
            self.state[places] = PENDING
            self.pending += places.size
        else:
            self._join_holes(places)

    def reclaim(self, places: Pages) -> None:
        """Pending places become holes: nothing launched can touch them any more."""
        self.pending -= places.size
        self._join_holes(places)

    def move(self, sources: Pages, destinations: Pages, *, pending: bool) -> Pages:
        """Follow a batch of page copies. Destinations inside the extent are holes; those outside
        lie next to it. Sources become holes, or pending. Returns the virtual pages that moved."""
        if not sources.size:
            return NONE
        first, stop = int(destinations.min()), int(destinations.max()) + 1
        fresh = self._widen(min(self.low, first), max(self.high, stop))
        self.state[self._index(destinations, LIVE)] = LIVE
        left = PENDING if pending else HOLE
        # Usually the batch empties what lies on either side of its destinations.
        middle = int(np.searchsorted(sources, first))
        vacated = [
            self._index(part, left) for part in (sources[:middle], sources[middle:]) if part.size
        ]
        for index in vacated:
            self.state[index] = left
        self.holes -= destinations.size
        if pending:
            self.pending += sources.size
        else:
            self.holes += sources.size
        if fresh or sources.size * _DENSE_SHARE > self.extent:
            self._recount_blocks(self.low, self.high)
        else:
            np.subtract.at(self._block_holes, destinations >> BLOCK_SHIFT, 1)
            if not pending:
                np.add.at(self._block_holes, sources >> BLOCK_SHIFT, 1)
        self._first_hole_block = min(self._first_hole_block, self.low >> BLOCK_SHIFT)
        return self.table.rebind(sources, destinations, vacated)

    def _widen(self, low: int, high: int) -> int:
        """Grow the extent to `[low, high)` and return by how many places. They are holes, not yet
        counted by block."""
        fresh = high - low - self.extent
        self.state[low : self.low] = HOLE
        self.state[self.high : high] = HOLE
        self.holes += fresh
        self.low, self.high = low, high
        return fresh

    def _index(self, places: Pages, state: int) -> Pages | slice:
        """What to index with to give `places` this state: their whole range as a slice (many times
        cheaper) when all else in it has the state already, or the places themselves."""
        first, stop = int(places.min()), int(places.max()) + 1
        if places.size * _DENSE_SHARE > stop - first:
            others = np.count_nonzero(self.state[first:stop] == state)
            if places.size + others == stop - first:
                return slice(first, stop)
        return places

    def absorb(self) -> bool:
        """Pull both frontiers back to the outermost page in use. True when the extent changed."""
        before = (self.low, self.high)
        if self.live + self.pending == 0:
            if self.high > self.low:
                self._clear_holes(self.low, self.high)
            self.low = self.high = 0
        else:
            if self.state[self.high - 1] == HOLE:
                self._clear_holes(self._innermost_high(), self.high)
            if self.is_float and self.state[self.low] == HOLE:
                self._clear_holes(self.low, self._innermost_low())
        return (self.low, self.high) != before

    def _innermost_high(self) -> int:
        """One past the highest place that is not a hole."""
        block = (self.high - 1) >> BLOCK_SHIFT
        used = self.state[block << BLOCK_SHIFT : self.high].tobytes().rstrip(_HOLE_BYTE)
        if not used:
            lowest = max(0, block - 1 - (self.holes >> BLOCK_SHIFT))
            full = self._block_holes[lowest:block] == BLOCK_PLACES
            block = lowest + len(full.tobytes().rstrip(_TRUE_BYTE)) - 1
            used = self._by_block[block].tobytes().rstrip(_HOLE_BYTE)
        return (block << BLOCK_SHIFT) + len(used)

    def _innermost_low(self) -> int:
        """The lowest place that is not a hole."""
        block = (self.low >> BLOCK_SHIFT) + 1
        used = self.state[self.low : block << BLOCK_SHIFT].tobytes().lstrip(_HOLE_BYTE)
        if not used:
            full = self._block_holes[block : block + 2 + (self.holes >> BLOCK_SHIFT)] == BLOCK_PLACES
            block += full.size - len(full.tobytes().lstrip(_TRUE_BYTE)) + 1
            used = self._by_block[block - 1].tobytes().lstrip(_HOLE_BYTE)
        return (block << BLOCK_SHIFT) - len(used)

    def _clear_holes(self, start: int, stop: int) -> None:
        """Places `[start, stop)` at one frontier, all of them holes, leave the extent."""
        self.state[start:stop] = GAP
        self.holes -= stop - start
        first, last = start >> BLOCK_SHIFT, (stop - 1) >> BLOCK_SHIFT
        counts = self._block_holes
        if first == last:
            counts[first] -= stop - start
        else:
            counts[first] -= ((first + 1) << BLOCK_SHIFT) - start
            counts[first + 1 : last] = 0
            counts[last] -= stop - (last << BLOCK_SHIFT)
        if stop == self.high:
            self.high = start
        else:
            self.low = stop

    def _recount_blocks(self, low: int, high: int) -> None:
        """Holes per block of `[low, high)` from the states: for moves that touch much of it."""
        first, stop = low >> BLOCK_SHIFT, ((high - 1) >> BLOCK_SHIFT) + 1
        # A bit per place, counted word by word: several times faster than counting along an axis.
        bits = np.packbits(self._by_block[first:stop] == HOLE).view(np.uint64)
        counts = np.bitwise_count(bits).astype(np.int64).reshape(stop - first, _BLOCK_WORDS.size)
        self._block_holes[first:stop] = counts @ _BLOCK_WORDS

    def _join_holes(self, places: Pages) -> None:
        if not places.size:
            return
        self.state[places] = HOLE
        self.holes += places.size
        blocks = places >> BLOCK_SHIFT
        np.add.at(self._block_holes, blocks, 1)
        self._first_hole_block = min(self._first_hole_block, int(np.minimum.reduce(blocks)))

    def _leave_holes(self, places: Pages) -> None:
        self.holes -= places.size
        np.subtract.at(self._block_holes, places >> BLOCK_SHIFT, 1)

    # --- finding pages --------------------------------------------------------------------------

    def lowest_holes(self, count: int) -> Pages:
        """The `count` holes nearest the base, ascending. The caller knows there are as many."""
        if count == 0:
            return NONE
        first = self._first_hole_block
        one = self._block_holes[first] >= count  # as usual: a block that has them all
        rows = slice(first, first + 1) if one else self._blocks_of_holes(count)
        flat = np.flatnonzero(self._by_block[rows] == HOLE)[:count]
        if isinstance(rows, slice):
            return flat + (first << BLOCK_SHIFT)
        places: Pages = (rows[flat >> BLOCK_SHIFT] << BLOCK_SHIFT) + (flat & (BLOCK_PLACES - 1))
        return places

    def _blocks_of_holes(self, count: int) -> Pages:
        """The first blocks with a hole that have `count` of them together."""
        start, span, found = self._first_hole_block, 64, 0
        blocks: list[Pages] = []
        while found < count:
            assert start < self._block_holes.size, "fewer holes by block than counted"
            counts = self._block_holes[start : start + span]
            filled = np.flatnonzero(counts)
            if filled.size:
                if not blocks:
                    self._first_hole_block = start + int(filled[0])
                reached = found + np.cumsum(counts[filled])
                needed = int(np.searchsorted(reached, count)) + 1
                blocks.append(filled[:needed] + start)
                found = int(reached[min(needed, reached.size) - 1])
            start, span = start + span, span * 8
        return np.concatenate(blocks) if len(blocks) > 1 else blocks[0]

    def holes_between(self, low: int, high: int) -> Pages:
        """All holes in places `[low, high)`, ascending; cost follows the range."""
        return _indices(self.state[low:high] == HOLE, low)

    def live_between(self, low: int, high: int) -> Pages:
        """All live places in `[low, high)`, ascending; cost follows the range."""
        return _indices(self.state[low:high] == LIVE, low)

    def live_outside(self, low: int, high: int) -> Pages:
        """All live places below `low` or from `high` on, ascending; cost follows that part of the
        extent."""
        below, above = self.live_between(self.low, low), self.live_between(high, self.high)
        return np.concatenate([below, above]) if below.size and above.size else (
            below if below.size else above
        )

    def live_count(self, low: int, high: int) -> int:
        """How many places of `[low, high)` are live: much cheaper than to find them."""
        return int(np.count_nonzero(self.state[low:high] == LIVE))

    def occupied_between(self, low: int, high: int) -> Pages:
        """Live and pending places in `[low, high)`, ascending."""
        return _indices(self.state[low:high] & 1 == 1, low)

    def outermost_live(self, count: int, *, from_high: bool) -> Pages:
        """Up to `count` live places nearest one frontier, outermost first."""
        parts, found, span = [], 0, max(64, 2 * count)
        low, high = self.low, self.high
        while found < count and low < high:
            if from_high:
                start = max(low, high - span)
                places = self.live_between(start, high)[::-1]
                high = start
            else:
                stop = min(high, low + span)
                places = self.live_between(low, stop)
                low = stop
            parts.append(places)
            found += places.size
            span *= 4
        return np.concatenate(parts)[:count] if parts else NONE

    # --- state as data --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what this band does next; cost follows the extent."""
        return {
            "low": self.low,
            "high": self.high,
            "state": self.state[self.low : self.high].copy(),
            "virtual": self.table.virtual_at[self.low : self.high].copy(),
            "unpublished": self.table.unpublished(),
            "pins": np.flatnonzero(self.pin_count[self.low : self.high]) + self.low,
            "pin_counts": self.pin_count[self.low : self.high][
                self.pin_count[self.low : self.high] > 0
            ],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw."""
        self._forget(self.low, self.high)
        self.low, self.high = snapshot["low"], snapshot["high"]
        self.state[self.low : self.high] = snapshot["state"]
        self.table.virtual_at[self.low : self.high] = snapshot["virtual"]
        places = np.flatnonzero(snapshot["virtual"] >= 0) + self.low
        self.table.place_of[self.table.virtual_at[places]] = places
        self.pin_count[snapshot["pins"]] = snapshot["pin_counts"]
        state = self.state[self.low : self.high]
        self.live, self.pending = int((state == LIVE).sum()), int((state == PENDING).sum())
        self.holes = 0
        self._first_hole_block = 0
        self._join_holes(self.holes_between(self.low, self.high))
        self.table.mark_unpublished(snapshot["unpublished"])

    def _forget(self, low: int, high: int) -> None:
        virtual = self.table.virtual_at[low:high]
        self.table.place_of[virtual[virtual >= 0]] = -1
        virtual[:] = -1
        self.state[low:high] = GAP
        self.pin_count[low:high] = 0
        self._block_holes[low >> BLOCK_SHIFT : (high >> BLOCK_SHIFT) + 1] = 0


def _indices(mask: np.ndarray, start: int) -> Pages:
    """Where `mask` is true, counted from `start`."""
    places: Pages = mask.nonzero()[0]
    places += start
    return places
