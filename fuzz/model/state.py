"""What the model believes of an arena, and the questions that belief answers: does a demand fit, what is
settled, who holds what. Nothing here looks at the arena."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bandscope.allocator import sizing
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation
from bandscope.allocator.tables import Pages
from bandscope.fuzz.model.bands import PENDING, BandBook, IdBook, Span
from bandscope.fuzz.model.cache import CachedPage
from bandscope.fuzz.program import Layout

# By band index: virtual pages that a forward reads, and those that it writes.
Access = dict[int, tuple[Pages, Pages]]


class Forward(list[tuple["Request", int, int]]):
    """A launched forward, per request: tokens that earlier forwards had written, pages at the launch.
    `renamed`: by band index, the virtual pages that it writes there, where some bear other names now."""

    def __init__(self, parts: Iterable[tuple[Request, int, int]]) -> None:
        super().__init__(parts)
        self.renamed: dict[int, list[int]] = {}


class Request:
    """What one request holds. `length`: tokens with room; `launched`: tokens that some forward has
    written; `room`: tokens its pages hold; `pages`: virtual pages in position order; `first_kept`: per
    window band, pages trimmed from the front; `slots`: virtual state slots. `row`: for whoever keeps an
    image of the ledger. With a prefix cache, `path`: its first pages, which are the cache's, and
    `key`: what names its sequence as far as it is known."""

    __slots__ = (
        "first_kept", "key", "launched", "length", "number", "pages", "path", "room", "row", "slots",
    )  # fmt: skip

    def __init__(self, number: int, windows: int, slots: list[int]) -> None:
        self.number = number
        self.length = self.launched = self.room = self.row = 0
        self.pages = array("q")
        self.slots = slots
        self.first_kept = [0] * windows
        self.path: Sequence[CachedPage] = ()
        self.key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """A lease: `places` and what they were called, by id and generation, when it began."""

    holder: str
    purpose: str
    band: BandBook
    places: list[int]
    virtual: list[int]
    generation: list[int]
    begun_ticket: int
    deadline_ticket: int | None


@dataclass(slots=True, eq=False)
class Waiting:
    """Places of a band that wait until tickets up to `stamp` are settled."""

    stamp: int
    band: BandBook
    places: list[int]


class ModelState:
    """The arena as it should be. `bands` in byte order; `owners`: the token bands."""

    def __init__(self, layout: Layout) -> None:
        plan = layout.plan()
        self.config = layout.config
        self.page_size = plan.page_size
        self.sink_bytes = plan.sink_bytes
        self.total_bytes = sizing.usable_bytes(layout.total_bytes)
        self.bands = [
            BandBook(band, index, self.total_bytes, self.sink_bytes)
            for index, band in enumerate(plan.bands)
        ]
        self.by_name = {band.name: band for band in self.bands}
        self.full = self.by_name["full"]
        self.state_band = next((band for band in self.bands if band.is_state), None)
        self.token_bands = [band for band in self.bands if not band.is_state]
        self.windows = [band for band in self.token_bands if band is not self.full]
        for number, band in enumerate(self.windows):
            band.window_number = number
        self.ids = IdBook(self.full.capacity)
        self.state_ids = IdBook(self.state_band.capacity if self.state_band else 0)
        for band in self.bands:
            band.make_table(band.capacity if band.is_state else self.full.capacity)
        spare = 2 * sum(band.page_bytes for band in self.bands)
        self._easy_bytes = self.total_bytes - self.sink_bytes - spare
        self.token_indices = [band.index for band in self.token_bands]
        self.requests: dict[int, Request] = {}
        # Tickets: the newest, what the schedule stream is ordered behind, the forwards in flight.
        self.issued = 0
        self.ordered_through = 0
        self.flights: dict[int, Forward] = {}
        self.waiting: deque[Waiting] = deque()
        self.holds: dict[int, Hold] = {}
        self.next_lease = 1
        self.gate_closed = False
        # Pinned places per band index, and of which leases: the next number, how many are held.
        self._hulls: dict[int, Span] = {}
        self._hulls_of = (0, 0)
        self.operation: Operation | None = None
        self.violations: list[Violation] = []

    def broken(self, invariant: str, message: str) -> None:
        """A rule did not hold."""
        self.violations.append(Violation(invariant, message))

    # --- tickets ---------------------------------------------------------------------------------

    @property
    def settled_through(self) -> int:
        """Every ticket up to this one has completed, or the schedule stream is ordered behind it."""
        completed = min(self.flights) - 1 if self.flights else self.issued
        return max(self.ordered_through, completed)

    @property
    def unsettled(self) -> bool:
        """True when launched work is neither completed nor ordered by a barrier."""
        return bool(self.flights) and self.settled_through < self.issued

    def written(self, band: BandBook) -> set[int]:
        """Virtual pages of `band` that launched work may still write, no barrier being behind it."""
        pages: set[int] = set()
        for ticket, forward in self.flights.items():
            if ticket > self.ordered_through:
                pages.update(self.writes_of(forward, band))
        return pages

    def writes_of(self, forward: Forward, band: BandBook) -> list[int]:
        """Virtual pages of `band` that a forward writes: those of tokens that no forward had written
        before, and all state."""
        if band.is_state:
            return [slot for request, _, _ in forward for slot in request.slots]
        if band.index in forward.renamed:
            return forward.renamed[band.index]
        page_size = self.page_size
        return [
            page
            for request, first_token, pages in forward
            for page in request.pages[first_token // page_size : pages]
        ]

    def rename_writes(self, band: BandBook, names: dict[int, int]) -> None:
        """What launched work writes to pages of `band` that bear other names now, it writes to those."""
        for forward in self.flights.values():
            writes = self.writes_of(forward, band)
            if not names.keys().isdisjoint(writes):
                forward.renamed[band.index] = [names.get(page, page) for page in writes]

    def touched_by(self, forward: Forward) -> Access:
        """Per band: the virtual pages that a forward over these requests reads (all they hold), and
        those that it writes and that are still held there."""
        page_size = self.page_size
        fresh = [request.pages[token // page_size :] for request, token, _ in forward]
        fresh_pages = _joined(fresh)
        access: Access = {}
        for band in self.bands:
            number = band.window_number
            if band.is_state:
                slots = np.array([slot for request, _, _ in forward for slot in request.slots], np.int64)
                access[band.index] = slots, slots
            elif number < 0:
                access[band.index] = _joined([request.pages for request, _, _ in forward]), fresh_pages
            else:
                kept = [request.pages[request.first_kept[number] :] for request, _, _ in forward]
                writes = fresh_pages
                if any([len(a) < len(b) for a, b in zip(kept, fresh, strict=True)]):
                    writes = _joined(
                        [a if len(a) < len(b) else b for a, b in zip(kept, fresh, strict=True)]
                    )
                access[band.index] = _joined(kept), writes
        return access

    # --- capacity ----------------------------------------------------------------------------------

    def fixed(self, band: BandBook) -> Span | None:
        """The hull of places that cannot move now: pinned ones, and live ones under a closed gate."""
        pinned = self._pinned(band) if self.holds else None
        if not (self.gate_closed and band.live):
            return pinned
        first, last = band.state.find(1), band.state.rfind(1)
        return (min(first, pinned[0]), max(last + 1, pinned[1])) if pinned else (first, last + 1)

    def _pinned(self, band: BandBook) -> Span | None:
        """The hull of pinned places: they stay where they are as long as the same leases are held."""
        leases = (self.next_lease, len(self.holds))
        if leases != self._hulls_of:
            self._hulls_of = leases
            self._hulls = {}
            for hold in self.holds.values():
                first, stop = self._hulls.get(hold.band.index, (hold.places[0], 0))
                self._hulls[hold.band.index] = (
                    min(first, *hold.places), max(stop, max(hold.places) + 1)
                )  # fmt: skip
        return self._hulls.get(band.index)

    def serves(self, demand: Sequence[int], *, all_can_move: bool = False) -> bool:
        """Does some layout hold what is live, plus pages freed under a pin, plus `demand`? Every band is
        packed as high as it goes, from the top down; what is left above the sink decides."""
        bands = self.bands
        some_stuck = not all_can_move and (self.gate_closed or bool(self.holds))
        if not some_stuck:
            left = self._easy_bytes
            for band, pages in zip(bands, demand, strict=True):
                left -= (band.live + band.freed_pinned + pages) * band.page_bytes
            if left >= 0:
                return True  # with a page of each band to spare, no grid can be in the way
        hulls = [self.fixed(band) for band in bands] if some_stuck else [None] * len(bands)
        return self._packs(demand, hulls)

    def _packs(self, demand: Sequence[int], hulls: Sequence[Span | None]) -> bool:
        bands = self.bands
        floor = self.total_bytes
        for index in range(len(bands) - 1, -1, -1):
            band = bands[index]
            pages = band.live + band.freed_pinned + demand[index]
            fixed = hulls[index]
            if not pages and fixed is None:
                continue
            page_bytes = band.page_bytes
            stop = floor // page_bytes
            start = stop - pages
            if fixed is not None:
                low, high = band.span_of(*fixed)
                if high > stop * page_bytes:
                    return False
                start = min(start, low // page_bytes)
            floor = start * page_bytes
            if floor < self.sink_bytes:
                return False
        return True

    def may_go(self) -> list[int]:
        """Pages per band that may be evicted for a demand: those that a prefix cache alone holds."""
        return [0] * len(self.bands)

    def evicted(self) -> dict[int, list[int]]:
        """Places by band index that the operation under way made free by eviction."""
        return {}

    def reason_against(self, demand: Sequence[int]) -> str:
        """Why `demand` is refused; empty when it is served."""
        if self.serves(demand):
            return ""
        if not self.serves(demand, all_can_move=True):
            return "memory"
        return "gate" if self.gate_closed else "pins"

    def largest(self, index: int) -> int:
        """The most pages of one band alone that are served now; −1 when not even none is."""
        demand = [0] * len(self.bands)
        free = self.total_bytes - self.sink_bytes
        gone = self.may_go()
        for band, pages in zip(self.bands, gone, strict=True):
            demand[band.index] = -pages
            free -= (band.live + band.freed_pinned - pages) * band.page_bytes
        # As many as bytes allow, less what grids and pages that cannot move cost.
        too_many = free // self.bands[index].page_bytes + 1
        step, some = 1, too_many - 1
        hulls = [self.fixed(band) for band in self.bands]
        while some >= 0:
            demand[index] = some - gone[index]
            if self._packs(demand, hulls):
                break
            too_many = some
            some, step = max(some - step, -1 if not some else 0), 2 * step
        while some + 1 < too_many:
            middle = (some + too_many) // 2
            demand[index] = middle - gone[index]
            if self._packs(demand, hulls):
                some = middle
            else:
                too_many = middle
        return some

    def room(self, band: BandBook) -> Span:
        """Bytes between the nearest extents below and above `band`."""
        start, stop = self.sink_bytes, self.total_bytes
        for other in self.bands:
            if other.low == other.high or other is band:
                continue
            if other.index < band.index:
                start = other.span[1]
            else:
                stop = other.span[0]
                break
        return start, stop

    # --- who holds what ------------------------------------------------------------------------------

    def held(self, request: int, band: BandBook) -> list[int]:
        """Virtual pages of a request in a band, in position order."""
        known = self.requests[request]
        if band.is_state:
            return known.slots
        first = known.first_kept[band.window_number] if band.window_number >= 0 else 0
        return known.pages[first:].tolist()

    def holdings(self) -> dict[str, dict[tuple[int, int], int]]:
        """Per band: (request, position in pages) → virtual page."""
        found: dict[str, dict[tuple[int, int], int]] = {}
        for band in self.bands:
            pages = found[band.name] = {}
            for request in self.requests.values():
                first = 0
                if band.window_number >= 0:
                    first = request.first_kept[band.window_number]
                for position, page in enumerate(self.held(request.number, band), first):
                    pages[request.number, position] = page
        return found

    def free_bytes(self) -> int:
        """Bytes that are neither sink nor in an extent."""
        extents = sum((band.high - band.low) * band.page_bytes for band in self.bands)
        return self.total_bytes - self.sink_bytes - extents

    def waiting_pages(self, band: BandBook) -> dict[int, int]:
        """Places of a band that wait for a ticket, and which; those freed under a pin wait for that."""
        return {
            place: batch.stamp
            for batch in self.waiting
            if batch.band is band
            for place in batch.places
        }

    def pinned_and_freed(self, band: BandBook) -> set[int]:
        """Places that hold nothing but are pinned."""
        return {
            place
            for hold in self.holds.values()
            if hold.band is band
            for place in hold.places
            if band.state[place] == PENDING
        }


def _joined(parts: Sequence[array]) -> Pages:
    return np.frombuffer(b"".join(parts), np.int64)
