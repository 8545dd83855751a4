"""The books of a small arena as one compact value: taken, put back and named in microseconds.

`Arena.snapshot` is made for arenas of any size and copies dozens of arrays. Here the arrays of the very
same books are *housed* once as views into three blocks of memory, so that the whole state goes back with
three copies, and is read with three calls. What the books decide is untouched: they run the code they
always run, on arrays that happen to lie next to each other.

Two forms of a state: a `View` (plain values, for the rules), and `pack` (bytes, for the states that wait
to be expanded).
"""

from __future__ import annotations

import marshal
from collections import deque
from typing import Any

import numpy as np

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.leases import Pin
from bandscope.fuzz.exhaustive.view import Request, View

# Numbers are kept in signed bytes, and a request's pages in the ledger's first columns.
PAGES_MAX = 64

# What leases of a search are: nothing distinguishes them but their pages.
HOLDER, PURPOSE = "engine", "host copy"

class _Block:
    """One piece of memory for many arrays of a type, and the parts of it that matter."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.segments: list[tuple[np.ndarray, tuple[slice, ...]]] = []
        self.spans: list[slice] = []

    def add(self, array: np.ndarray, *used: slice) -> int:
        """Plan a place for `array`, of which `used` matters; returns the number of the segment."""
        assert array.dtype == self.dtype, f"{array.dtype} in a block of {self.dtype}"
        self.segments.append((array, used))
        return len(self.segments) - 1

    def house(self) -> list[np.ndarray]:
        """Allocate; the new views, equal to the arrays they stand for, in order."""
        self.memory = np.empty(sum(array.size for array, _ in self.segments), self.dtype)
        views, keep, start = [], [], 0
        kept = 0
        for array, used in self.segments:
            view = self.memory[start : start + array.size].reshape(array.shape)
            view[...] = array
            numbers = np.arange(start, start + array.size).reshape(array.shape)[used].reshape(-1)
            views.append(view)
            keep.append(numbers)
            self.spans.append(slice(kept, kept + numbers.size))
            kept += numbers.size
            start += array.size
        self.keep = np.concatenate(keep)
        self.empty = self.memory.copy()
        return views


class _Parts:
    """Where what lies among the bytes of a view: spans, or starts."""

    def __init__(
        self, bands: int, words: list[slice], halves: list[slice], octets: list[slice]
    ) -> None:
        self.place_of, self.virtual_at = words[0 : 3 * bands : 3], words[1 : 3 * bands : 3]
        self.block_holes = [span.start for span in words[2 : 3 * bands : 3]]
        self.pin_count, self.state = halves[:bands], octets[:bands]
        self.bound = octets[bands : bands + 2]
        base = 3 * bands
        self.released = [words[base].start, words[base + 2].start]
        self.generation = words[base + 1 : base + 4 : 2]
        length, launched, count, slots, _, kept, state = (
            span.start for span in words[base + 4 : base + 11]
        )
        self.ledger = (length, launched, count, slots, kept, state, halves[bands].start)


class CompactBooks:
    """The books of `arena`, housed in blocks. `requests`: how many run at most, with how many `slots`
    each. The arena must be new for `unpack`: what no request uses is then as it was at first."""

    def __init__(self, arena: Arena, requests: int, slots: int = 1) -> None:
        books = arena.books
        if slots > books.ledger.state.shape[1]:
            books.ledger.state = np.zeros((books.ledger.state.shape[0], slots), np.int64)
        self.arena, self.books = arena, books
        self.band_count = len(books.bands)
        spaces = [books.ids, books.state_ids]
        # No request holds more pages than there are ids.
        columns = max(books.ids.capacity, 1)
        ledger = books.ledger
        pages = max(len(band.table.virtual_at) for band in books.bands)
        if requests > ledger.length.size or pages > PAGES_MAX:
            raise ConfigError(
                f"an arena of {pages} pages with {requests} requests was to be searched, but a search "
                f"takes up to {PAGES_MAX} pages of a band and {ledger.length.size} requests; make it "
                "smaller"
            )
        words, halves, octets = _Block(np.int64), _Block(np.int32), _Block(np.uint8)
        rows = slice(0, requests)
        owners: list[tuple[object, str, _Block, int]] = []

        def house(owner: object, name: str, block: _Block, *used: slice) -> int:
            number = block.add(getattr(owner, name), *used)
            owners.append((owner, name, block, number))
            return number

        for band in books.bands:
            house(band.table, "place_of", words, slice(None))
            house(band.table, "virtual_at", words, slice(None))
            house(band, "_block_holes", words, slice(None))
            house(band, "pin_count", halves, slice(None))
            house(band, "state", octets, slice(0, band.capacity))
        for space in spaces:
            house(space, "_released", words, slice(None))
            house(space, "generation", words, slice(None))
            space.bound = space.bound.view(np.uint8)
            house(space, "bound", octets, slice(None))
        for name in ("length", "launched", "page_count", "state_count", "request"):
            house(ledger, name, words, rows)
        house(ledger, "first_kept", words, rows, slice(None))
        house(ledger, "state", words, rows, slice(None))
        house(ledger, "pages", halves, rows, slice(0, columns))
        views = {id(block): block.house() for block in (words, halves, octets)}
        for owner, name, block, number in owners:
            setattr(owner, name, views[id(block)][number])
        for band in books.bands:
            band._by_block = band.state.reshape(band._by_block.shape)
        for space in spaces:
            space.bound = space.bound.view(bool)
        self._words, self._halves, self._octets = words, halves, octets
        self._known: dict[int, tuple[np.ndarray, bytes]] = {}
        self._windows, self._wide = ledger.window_count, ledger.state.shape[1]
        self._parts = _Parts(self.band_count, words.spans, halves.spans, octets.spans)
        self._housed = [(owner, name, getattr(owner, name)) for owner, name, *_ in owners]
        self._columns, self._rows = columns, requests
        self._single_ids = [
            [np.array([page]) for page in range(space.capacity)] for space in spaces
        ]
        self._space_of = [1 if index == books.state else 0 for index in range(self.band_count)]

    def is_housed(self) -> bool:
        """True while no array was replaced by one outside the blocks."""
        return all(getattr(owner, name) is array for owner, name, array in self._housed)

    # --- reading ----------------------------------------------------------------------------------

    def view(self) -> View:
        """The state now."""
        books, found = self.books, View()
        words = self._words.memory.take(self._words.keep).astype(np.uint8).tobytes()
        halves = self._halves.memory.take(self._halves.keep).astype(np.uint8).tobytes()
        octets = self._octets.memory.take(self._octets.keep).tobytes()
        parts = self._parts
        found.place_of = [words[span] for span in parts.place_of]
        found.virtual_at = [words[span] for span in parts.virtual_at]
        found.block_holes = [words[at] for at in parts.block_holes]
        found.pin_count = [halves[span] for span in parts.pin_count]
        found.state = [octets[span] for span in parts.state]
        bands = books.bands
        found.extents = tuple([(band.low, band.high) for band in bands])
        found.counts = tuple([(band.live, band.holes, band.pending) for band in bands])
        ids, slots = books.ids, books.state_ids
        found.fresh = (ids.fresh, slots.fresh)
        found.released = [
            words[start : start + space.released_count]
            for start, space in zip(parts.released, (ids, slots), strict=True)
        ]
        found.generation = [words[span] for span in parts.generation]
        found.bound = [octets[span] for span in parts.bound]
        ledger = books.ledger
        found.requests = {
            request: self._request(words, halves, row)
            for request, row in sorted(ledger.row_of.items())
        }
        tickets, pins = books.tickets, books.pins
        found.issued, found.ordered = tickets.issued, tickets.ordered_through
        told = self._told
        found.in_flight = tuple(
            [
                (ticket, tuple([(band, told(pages)) for band, pages in writes.items()]))
                for ticket, writes in tickets.in_flight.items()
            ]
        )
        found.pending = tuple(
            [(stamp, band, told(places)) for stamp, band, places in tickets._pending]
        )
        found.leases = tuple(
            [
                (pin.number, pin.band, told(pin.places), told(pin.virtual), told(pin.generation))
                for pin in pins.pins.values()
            ]
        )
        found.next_lease, found.deferred = pins.next_number, tuple(pins.deferred)
        found.gate = books.gate_closed
        found.dirty = tuple([bool(band.table._dirty) for band in bands])
        found.raw = (
            words, halves, octets, found.extents, found.counts, found.fresh, ids.released_count,
            slots.released_count, tuple(ledger.row_of.items()), tuple(ledger._free_rows),
            ledger.row_count, found.issued, found.ordered, found.in_flight, found.pending,
            found.leases, found.next_lease, found.deferred, found.gate,
        )  # fmt: skip
        found.memo = None
        return found

    def _request(self, words: bytes, halves: bytes, row: int) -> Request:
        length, launched, count, slots, kept, state, pages = self._parts.ledger
        windows, width, wide = self._windows, self._columns, self._wide
        held, slot_count = words[count + row], words[slots + row]
        first, second, third = kept + row * windows, pages + row * width, state + row * wide
        return (
            words[length + row],
            words[launched + row],
            held,
            words[first : first + windows],
            halves[second : second + held],
            words[third : third + slot_count],
        )

    def _told(self, pages: np.ndarray) -> bytes:
        """Pages as bytes; arrays that were told before (they are never written) cost a look-up."""
        known = self._known.get(id(pages))
        if known is None:
            known = self._known[id(pages)] = (pages, bytes(pages.tolist()))
        return known[1]

    # --- leaving a state and coming back -----------------------------------------------------------

    def bookmark(self) -> Bookmark:
        """A way back to the state now, cheaper than `pack`."""
        return Bookmark(self)

    def pack(self) -> bytes:
        """The state now, in a few hundred bytes. Tickets and leases are counted anew from 1."""
        books = self.books
        tickets, pins, ledger = books.tickets, books.pins, books.ledger
        stamps = [*tickets.in_flight, *(stamp for stamp, _, _ in tickets._pending)]
        shift = min(stamps, default=tickets.issued) - 1 if stamps else tickets.issued
        return marshal.dumps(
            (
                self._words.memory.take(self._words.keep).astype(np.int8).tobytes(),
                self._halves.memory.take(self._halves.keep).astype(np.int8).tobytes(),
                self._octets.memory.take(self._octets.keep).tobytes(),
                [
                    (band.low, band.high, band.live, band.holes, band.pending, bool(band.table._dirty))
                    for band in books.bands
                ],
                [(space.fresh, space.released_count) for space in (books.ids, books.state_ids)],
                (sorted(ledger.row_of.items()), list(ledger._free_rows), ledger.row_count),
                (
                    tickets.issued - shift,
                    max(tickets.ordered_through - shift, 0),
                    [
                        (ticket - shift, [(band, _bytes(pages)) for band, pages in writes.items()])
                        for ticket, writes in tickets.in_flight.items()
                    ],
                    [
                        (stamp - shift, band, _bytes(places))
                        for stamp, band, places in tickets._pending
                    ],
                ),
                [(pin.band, _bytes(pin.places), _bytes(pin.virtual)) for pin in pins.pins.values()],
                list(pins.deferred),
                books.gate_closed,
            )
        )

    def unpack(self, packed: bytes) -> None:
        """Become what `pack` saw, with every id unpublished that may be."""
        words, halves, octets, bands, spaces, rows, tickets, pins, deferred, gate = marshal.loads(packed)
        self._known.clear()
        for block, values, dtype in (
            (self._words, words, np.int8),
            (self._halves, halves, np.int8),
            (self._octets, octets, np.uint8),
        ):
            block.memory[:] = block.empty
            block.memory[block.keep] = np.frombuffer(values, dtype)
        books = self.books
        both = (books.ids, books.state_ids)
        for owner, (fresh, released) in zip(both, spaces, strict=True):
            owner.fresh, owner.released_count = fresh, released
        for index, (band, values) in enumerate(zip(books.bands, bands, strict=True)):
            band.low, band.high, band.live, band.holes, band.pending, dirty = values
            band._first_hole_block = 0
            number = self._space_of[index]
            # One note each, as if every id had changed at another time.
            notes = self._single_ids[number][: both[number].fresh]
            band.table._dirty = notes if dirty else []
        ledger = books.ledger
        ledger.row_of, ledger._free_rows, ledger.row_count = dict(rows[0]), rows[1], rows[2]
        issued, ordered, in_flight, pending = tickets
        books.tickets.issued, books.tickets.ordered_through = issued, ordered
        books.tickets.in_flight = {
            ticket: {band: _pages(pages) for band, pages in writes} for ticket, writes in in_flight
        }
        books.tickets._pending = deque((stamp, band, _pages(p)) for stamp, band, p in pending)
        books.pins.pins = {
            number: Pin(
                number, HOLDER, PURPOSE, band, _pages(places), virtual := _pages(names),
                np.zeros(virtual.size, np.int64), 0, None,
            )
            for number, (band, places, names) in enumerate(pins, 1)
        }  # fmt: skip
        books.pins.next_number = len(pins) + 1
        books.pins.deferred = deferred
        books.gate_closed = gate


class Bookmark:
    """A state to which the books go back many times."""

    def __init__(self, compact: CompactBooks) -> None:
        self.compact = compact
        books = compact.books
        blocks = (compact._words, compact._halves, compact._octets)
        self.memories = [(block.memory, block.memory.copy()) for block in blocks]
        self.bands = [
            (band, band.low, band.high, band.live, band.holes, band.pending, list(band.table._dirty))
            for band in books.bands
        ]
        self.spaces = [
            (space, space.fresh, space.released_count) for space in (books.ids, books.state_ids)
        ]
        self.row_of, self.row_count = dict(books.ledger.row_of), books.ledger.row_count
        self.free_rows = list(books.ledger._free_rows)
        tickets, pins = books.tickets, books.pins
        self.tickets = (tickets.issued, tickets.ordered_through)
        self.in_flight, self.pending = dict(tickets.in_flight), list(tickets._pending)
        self.pins, self.next_lease = dict(pins.pins), pins.next_number
        self.deferred, self.gate = list(pins.deferred), books.gate_closed

    def back(self) -> None:
        """The books become what they were when this was made."""
        books = self.compact.books
        for memory, copy in self.memories:
            memory[:] = copy
        for band, low, high, live, holes, pending, dirty in self.bands:
            band.low, band.high, band.live, band.holes, band.pending = low, high, live, holes, pending
            band._first_hole_block = 0
            band.table._dirty = dirty[:]
        for space, fresh, count in self.spaces:
            space.fresh, space.released_count = fresh, count
        ledger, tickets, pins = books.ledger, books.tickets, books.pins
        ledger.row_of, ledger.row_count = dict(self.row_of), self.row_count
        ledger._free_rows = self.free_rows[:]
        tickets.issued, tickets.ordered_through = self.tickets
        tickets.in_flight, tickets._pending = dict(self.in_flight), deque(self.pending)
        pins.pins, pins.next_number = dict(self.pins), self.next_lease
        pins.deferred, books.gate_closed = self.deferred[:], self.gate


def _bytes(pages: np.ndarray) -> bytes:
    return bytes(pages.tolist())


def _pages(packed: bytes) -> np.ndarray:
    return np.array(list(packed), np.int64)
