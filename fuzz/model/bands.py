"""What the model keeps about one band: which page holds what, as flat lists of plain numbers.

A page is named by its *place*, its distance from the band's base (an end's base is the end of the
arena it grows from), so that ends and floats read alike. The extent is never told, it follows: an end
reaches from its base to its outermost page in use, a float from its first to its last.
"""

from __future__ import annotations

from array import array
from typing import Literal

from bandscope.allocator.plan import BandPlan

# What a place holds: nothing (outside the extent, or a hole inside it), a page, or nothing for now.
OUTSIDE, LIVE, HOLE, PENDING = 0, 1, 2, 3
NOTHING = -1

Span = tuple[int, int]  # [start, stop)


class BandBook:
    """One band in an arena of `total_bytes` whose low `sink_bytes` belong to nobody.

    By place: `state`, `virtual_at` (−1: holds nothing), `pin_count`. By virtual page: `place_of` (−1:
    nothing stored here). `low`, `high`: the extent in places; `span`: in bytes. `told`: the extent in
    bytes that the arena last told. `stale`: virtual pages whose rows the device's tables lack;
    `changes`: batches of changes since they were last published. `freed_pinned`: pages freed under a
    pin.
    """

    __slots__ = (
        "base", "capacity", "changes", "down", "freed_pinned", "high", "index", "is_float",
        "is_state", "live", "low", "name", "page_bytes", "pending", "pin_count", "place_of", "span",
        "stale", "state", "told", "touched", "virtual_at", "window_length", "window_number",
    )  # fmt: skip

    def __init__(self, plan: BandPlan, index: int, total_bytes: int, sink_bytes: int) -> None:
        self.name = plan.name
        self.index = index
        self.page_bytes = plan.page_bytes
        self.is_state = plan.kind == "state"
        self.is_float = plan.end == "float"
        self.window_length = plan.window_length
        self.window_number = NOTHING
        self.down = plan.end == "high"
        lowest, stop = -(-sink_bytes // self.page_bytes), total_bytes // self.page_bytes
        self.base = stop - 1 if self.down else lowest
        self.capacity = max(0, stop - lowest)
        self.state = bytearray(self.capacity)
        self.virtual_at = _numbers("q", NOTHING, self.capacity)
        self.pin_count = _numbers("i", 0, self.capacity)
        self.place_of = _numbers("q", NOTHING, 0)
        self.low = self.high = self.live = self.pending = self.freed_pinned = 0
        self.span: Span = (0, 0)
        self.told: Span = (0, 0)
        self.stale: set[int] = set()
        self.changes = 0
        self.touched = False

    def make_table(self, virtual_pages: int) -> None:
        """Room for the rows of this many virtual pages."""
        self.place_of = _numbers("q", NOTHING, virtual_pages)

    @property
    def holes(self) -> int:
        return self.high - self.low - self.live - self.pending

    def places(self, physical: list[int]) -> list[int]:
        """Places of physical page numbers (byte offset / page bytes)."""
        base = self.base
        if self.down:
            return [base - page for page in physical]
        return [page - base for page in physical]

    def physical(self, places: list[int]) -> list[int]:
        """The inverse of `places`."""
        base = self.base
        return [base - place if self.down else base + place for place in places]

    def is_inside(self, places: list[int]) -> bool:
        """True when all of these are places of this band: above the sink, inside the arena."""
        return not places or (min(places) >= 0 and max(places) < self.capacity)

    def span_of(self, low: int, high: int) -> Span:
        """Bytes `[start, stop)` of places `[low, high)`."""
        if self.down:
            return (self.base - high + 1) * self.page_bytes, (self.base - low + 1) * self.page_bytes
        return (self.base + low) * self.page_bytes, (self.base + high) * self.page_bytes

    def bind(self, places: list[int], virtual: list[int]) -> int:
        """These places hold these virtual pages from now on. Stops at a place that is in use, or named
        twice, and returns it; −1 when there is none."""
        state, virtual_at, place_of = self.state, self.virtual_at, self.place_of
        for place, page in zip(places, virtual, strict=True):
            if state[place] & 1:
                return place
            state[place] = LIVE
            virtual_at[place] = page
            place_of[page] = place
        self.live += len(places)
        self.stale.update(virtual)
        self.changes += 1
        self.touched = True
        first, last = min(places), max(places)
        if first < self.low or last >= self.high:
            self._reach(first, last + 1)
        return NOTHING

    def unbind(self, virtual: list[int]) -> list[int]:
        """These virtual pages are stored here no more; returns the places, whose state is the
        caller's to set."""
        virtual_at, place_of = self.virtual_at, self.place_of
        places = []
        for page in virtual:
            place = place_of[page]
            place_of[page] = NOTHING
            virtual_at[place] = NOTHING
            places.append(place)
        self.live -= len(places)
        self.stale.update(virtual)
        self.changes += 1
        self.touched = True
        return places

    def rename(self, virtual: list[int], into: list[int]) -> None:
        """What holds page `virtual[i]` holds page `into[i]` from now on, which was stored nowhere."""
        for page, other in zip(virtual, into, strict=True):
            place = self.place_of[page]
            self.place_of[page], self.place_of[other] = NOTHING, place
            self.virtual_at[place] = other
        self.stale.update(virtual, into)
        self.changes += 2  # rows that lose a page, rows that get one

    def wait(self, places: list[int]) -> None:
        """Places that hold nothing, but may still be touched."""
        state = self.state
        for place in places:
            state[place] = PENDING
        self.pending += len(places)

    def free(self, places: list[int]) -> None:
        """Places that hold nothing and may be used again; the extent is pulled back."""
        state = self.state
        for place in places:
            state[place] = HOLE
        self.touched = True
        self._pull_back()

    def mark_published(self) -> None:
        """The device's tables have every row."""
        self.stale.clear()
        self.changes = 0

    def _reach(self, first: int, stop: int) -> None:
        state = self.state
        if self.low == self.high:
            self.low = self.high = first if self.is_float else 0
        if first < self.low:
            state[first : self.low] = state[first : self.low].replace(b"\0", b"\2")
            self.low = first
        if stop > self.high:
            state[self.high : stop] = state[self.high : stop].replace(b"\0", b"\2")
            self.high = stop
        self.span = self.span_of(self.low, self.high)

    def _pull_back(self) -> None:
        state, low, high = self.state, self.low, self.high
        if not self.live and not self.pending:
            if high > low:
                state[low:high] = bytes(high - low)
            self.low = self.high = 0
            self.span = (0, 0)
            return
        if state[high - 1] == HOLE:
            stop = 1 + max(state.rfind(LIVE, low, high), state.rfind(PENDING, low, high))
            state[stop:high] = bytes(high - stop)
            self.high = stop
            self.span = self.span_of(low, stop)
        if self.is_float and state[low] == HOLE:
            start = min(
                place
                for place in (state.find(LIVE, low, high), state.find(PENDING, low, high))
                if place >= 0
            )
            state[low:start] = bytes(start - low)
            self.low = start
            self.span = self.span_of(start, self.high)


def _numbers(code: Literal["q", "i"], value: int, count: int) -> memoryview[int]:
    # A view over plain bytes, so that a whole list can be compared with another at once.
    return memoryview(bytearray(array(code, [value]).tobytes() * count)).cast(code)


class IdBook:
    """Virtual page ids of one owner: which are `bound` (by id), their `generation`, how many were ever
    used (`fresh`: those below). `released` are the others below, packed int64, oldest release first."""

    __slots__ = ("bound", "bound_count", "capacity", "fresh", "generation", "released")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bound = bytearray(capacity)
        self.generation = _numbers("q", 0, capacity)
        self.fresh = 0
        self.bound_count = 0
        self.released = bytearray()

    def mint(self, ids: list[int]) -> bool:
        """These are bound from now on; False when one of them is none that can be. Released ones go
        first, the last released before others."""
        bound = self.bound
        if min(ids) < 0 or max(ids) >= self.capacity:
            return False
        for page in ids:
            if bound[page]:
                return False
            bound[page] = 1
        self.bound_count += len(ids)
        reused = min(len(ids), len(self.released) // 8)
        if reused:
            del self.released[-8 * reused :]
        if reused < len(ids):
            self.fresh = max(self.fresh, max(ids) + 1)
        return True

    def release(self, ids: list[int]) -> None:
        """These are free, and whoever still names them has a stale name."""
        bound, generation = self.bound, self.generation
        for page in ids:
            bound[page] = 0
            generation[page] += 1
        self.bound_count -= len(ids)
        self.released += array("q", ids).tobytes()
