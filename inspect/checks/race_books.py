"""What the race checker remembers: who holds which page since which ticket, and open forwards.

Nothing is remembered per access. A request's pages are read by every forward launched over it while
it holds them, so what forward T touched of a page is known when the page leaves its owner or its
place; only then is it written down, in T's own marks, and only while T is open: neither seen to
complete nor waited for by the schedule stream. When T is ordered its marks are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator.events import CACHE
from bandscope.inspect.state import ArenaState

NOT_IN_BATCH = np.iinfo(np.int32).max
READ, WRITTEN = 1, 2
STILL_OWN = np.iinfo(np.int64).max

Pages = Any  # one page number, or an int64 array of them


@dataclass(slots=True)
class Forward:
    """An open forward.

    `first_written`: by row of a request, the index of the first page it may write (`NOT_IN_BATCH`
    for others). `left[band]`: by physical page (from the band's base), whether it read or may have
    written a page that has left its owner or place since; `log[band]`: those pages with their names.
    `rows[band]`: virtual pages whose table rows it read and that changed since the last publish.
    `orphans`: byte ranges it touched that no band holds any more, as (start, stop, mark, band, page).
    `shared`: per request that shares some, the virtual pages of the prefix cache that it reads.
    """

    number: int
    operation: str
    sequence: int
    stack: str
    first_written: np.ndarray
    left: list[np.ndarray | None]
    log: list[list[tuple[Pages, Pages, Pages]]]
    rows: list[list[Pages]]
    reads_open: bool = True
    orphans: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    shared: list[np.ndarray] = field(default_factory=list)
    _reads: np.ndarray | None = None

    def reads_shared(self, capacity: int) -> np.ndarray:
        """By virtual page, shape (capacity,), whether it reads it as a page of the prefix cache; made
        when it is first asked for."""
        if self._reads is None:
            self._reads = np.zeros(capacity, bool)
            for pages in self.shared:
                self._reads[pages] = True
        return self._reads

    def name_of(self, band: int, page: int) -> tuple[int, int]:
        """Virtual page and generation of a page it left its mark on, the latest."""
        for pages, virtual, generation in reversed(self.log[band]):
            at = np.flatnonzero(np.atleast_1d(pages) == page)
            if at.size:
                one = int(at[-1])
                return int(np.atleast_1d(virtual)[one]), int(np.atleast_1d(generation)[one])
        return -1, -1


class BandBooks:
    """One band: `page_of` by virtual page (−1: unmapped; counted from `base`), `placed` by physical
    page (the newest ticket when its content came there), `pinned` by physical page (how many leases).
    `fresh`: virtual pages bound or moved since the last publish. `grafted` by virtual page: the newest
    ticket when the prefix cache's page took over a place here (0: never); None while none did."""

    def __init__(self, about: dict[str, Any], base: int, space: SpaceBooks, fills: bool) -> None:
        self.name: str = about["name"]
        self.page_bytes: int = about["page_bytes"]
        self.base = base
        self.space = space
        self.is_state = about["kind"] == "state"
        self.counts_pages = self.name == "full" or self.is_state
        self.fills = fills
        self.page_of = np.full(about["virtual_capacity"], -1, np.int64)
        self.placed = np.zeros(about["capacity"], np.int64)
        self.pinned = np.zeros(about["capacity"], np.int16)
        self.pins = 0
        self.fresh: list[Pages] = []
        self.grafted: np.ndarray | None = None
        self.spare: list[np.ndarray] = []  # mark arrays, all zero, to be used again

    def marks(self) -> np.ndarray:
        """An array of marks, all zero."""
        return self.spare.pop() if self.spare else np.zeros(self.placed.size, np.uint8)


class SpaceBooks:
    """The ids of one owner, by virtual page: `row` of the request that holds it, `index` in that
    request's order, `leased` (the newest ticket when it was leased), `owned` (the newest ticket when
    the prefix cache took it from that request; forwards after it only read it), `generation`."""

    def __init__(self, capacity: int) -> None:
        self.row = np.zeros(capacity, np.int64)
        self.index = np.zeros(capacity, np.int64)
        self.leased = np.zeros(capacity, np.int64)
        self.owned = np.full(capacity, STILL_OWN)
        self.generation = np.zeros(capacity, np.int64)


class Requests:
    """Rows of requests: tokens with room, tokens launched, pages; a row is used again after its
    request left. `epoch` changes when a batch's rows may have changed."""

    def __init__(self) -> None:
        self.row_of: dict[int, int] = {}
        self.free: list[int] = []
        self.length = np.zeros(64, np.int64)
        self.launched = np.zeros(64, np.int64)
        self.pages = np.zeros(64, np.int64)
        self.shared: dict[int, np.ndarray] = {}  # by row, pages of the cache; never written in place
        self.epoch = 0

    def row(self, request: int) -> int:
        """The row of a request, made when there is none."""
        row = self.row_of.get(request)
        if row is None:
            row = self.free.pop() if self.free else len(self.row_of)
            if row >= self.length.size:
                for name in ("length", "launched", "pages"):
                    setattr(self, name, np.concatenate([getattr(self, name)] * 2))
            self.length[row] = self.launched[row] = self.pages[row] = 0
            self.row_of[request] = row
        return row

    def remove(self, request: int) -> None:
        """The request left."""
        row = self.row_of.pop(request, None)
        if row is not None:
            self.shared.pop(row, None)
            self.free.append(row)
            self.epoch += 1


class RaceBooks:
    """All of it, for one arena."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.page_size: int = header["page_size"]
        self.place(ArenaState(header), None)

    def place(self, state: ArenaState, snapshot: dict[str, Any] | None) -> None:
        """Begin anew at a keyframe: holders are known, what launched work touched is not."""
        config = self.header["arena"]["config"]
        spaces = {
            state.full: SpaceBooks(len(state.ids.generation)),
            state.state_band: SpaceBooks(len(state.state_ids.generation)),
        }
        self.bands: list[BandBooks] = []
        for band, about in zip(state.bands, self.header["bands"], strict=True):
            is_state = band.index == state.state_band
            fills = config["hand_out_state" if is_state else "hand_out"] != "none"
            space = spaces[state.state_band if is_state else state.full]
            books = BandBooks(about, band.base, space, fills)
            held = band.page_of >= 0
            books.page_of[held] = band.page_of[held] - band.base
            books.placed[:] = state.issued
            books.pinned[:] = band.pins
            self.bands.append(books)
        spaces[state.full].generation[:] = state.ids.generation
        spaces[state.state_band].generation[:] = state.state_ids.generation
        for space in spaces.values():
            space.leased[:] = state.issued
        self.issued = state.issued
        self.open: list[Forward] = []
        self.requests = Requests()
        # Per lease: band, pages, virtual pages, holder, operation, event, stack.
        self.pins: dict[int, tuple[int, Pages, Pages, str, str, int, str]] = {}
        for pin in state.pins.values():
            band_books = self.bands[pin.band]
            band_books.pins += 1
            pages = pin.physical - band_books.base
            self.pins[pin.number] = (
                pin.band, pages, pin.virtual, pin.holder, "Lease", max(pin.sequence, 0), "",
            )  # fmt: skip
        if snapshot is not None:
            self._place_requests(snapshot["ledger"], spaces[state.full], spaces[state.state_band])
        # Whatever the cache owns here, no forward to come writes.
        for index, space in spaces.items():
            if index is not None and state.has_cache:
                of_band = state.bands[index]
                held = of_band.page_of >= 0
                cached = np.zeros(held.size, bool)
                cached[held] = of_band.owner[of_band.page_of[held] - of_band.base] == CACHE
                space.owned[: held.size][cached] = state.issued
        for request, virtual in state.shared.items():
            self.requests.shared[self.requests.row(request)] = virtual

    def _place_requests(
        self, ledger: dict[str, Any], full: SpaceBooks, of_state: SpaceBooks
    ) -> None:
        requests = self.requests
        rows = np.array([requests.row(number) for number in ledger["request"].tolist()], np.int64)
        if not rows.size:
            return
        counts = np.asarray(ledger["page_count"], np.int64)
        requests.length[rows] = ledger["length"]
        requests.launched[rows] = ledger["launched"]
        requests.pages[rows] = counts
        virtual = np.asarray(ledger["pages"], np.int64)
        full.row[virtual] = np.repeat(rows, counts)
        full.index[virtual] = np.arange(virtual.size) - np.repeat(np.cumsum(counts) - counts, counts)
        for row, slots in zip(rows, ledger["state"], strict=True):
            of_state.row[np.asarray(slots, np.int64)] = row

    # --- forwards -------------------------------------------------------------------------------

    def launch(
        self, ticket: int, rows: np.ndarray, operation: str, sequence: int, stack: str
    ) -> Forward:
        """A forward over the requests of these rows."""
        requests = self.requests
        first = np.full(requests.length.size, NOT_IN_BATCH, np.int32)
        first[rows] = requests.launched[rows] // self.page_size
        requests.launched[rows] = requests.length[rows]
        count = len(self.bands)
        forward = Forward(
            ticket, operation, sequence, stack, first, [None] * count,
            [[] for _ in range(count)], [[] for _ in range(count)],
        )  # fmt: skip
        if requests.shared:
            found = (requests.shared.get(row) for row in rows.tolist())
            forward.shared = [pages for pages in found if pages is not None]
        self.issued = ticket
        self.open.append(forward)
        return forward

    def share(self, request: int, first_page: int, virtual: np.ndarray) -> None:
        """These pages of a request are the prefix cache's from now on, whoever's they were."""
        row = self.requests.row(request)
        known = self.requests.shared.get(row, virtual[:0])
        self.requests.shared[row] = np.concatenate((known[:first_page], virtual))
        # A request's own pages follow on those that it shares.
        self.requests.pages[row] = max(int(self.requests.pages[row]), first_page + virtual.size)
        space = next(band.space for band in self.bands if not band.is_state)
        fresh = virtual[space.owned[virtual] == STILL_OWN]
        space.owned[fresh] = self.issued

    def settle(self, ticket: int) -> None:
        """The schedule stream waits for all forwards up to `ticket`."""
        for forward in self.open:
            if forward.number <= ticket:
                self._forget(forward)
        self.open = [forward for forward in self.open if forward.number > ticket]

    def settle_reads(self, ticket: int) -> None:
        """The schedule stream waits for the table reads of all forwards up to `ticket`."""
        for forward in self.open:
            if forward.number <= ticket and forward.reads_open:
                forward.reads_open = False
                forward.rows = [[] for _ in self.bands]

    def done(self, ticket: int) -> None:
        """The host saw this one complete."""
        for at, forward in enumerate(self.open):
            if forward.number == ticket:
                self._forget(forward)
                del self.open[at]
                return

    def _forget(self, forward: Forward) -> None:
        for band, left, log in zip(self.bands, forward.left, forward.log, strict=True):
            if left is not None:
                for pages, _, _ in log:
                    left[pages] = 0
                band.spare.append(left)

    # --- pages that leave -------------------------------------------------------------------------

    def touched(
        self, forward: Forward, band: BandBooks, virtual: Pages, pages: Pages
    ) -> tuple[Any, Any, Any]:
        """What an open forward did to these held pages, as (read their rows, read them where they
        are, may write them there); all of one page or arrays of bool."""
        space, ticket = band.space, forward.number
        first = forward.first_written.take(space.row[virtual], mode="clip")
        before, theirs = space.leased[virtual] < ticket, space.owned[virtual] >= ticket
        if band.grafted is not None:
            before = before & (band.grafted[virtual] < ticket)
        own = (first != NOT_IN_BATCH) & before & theirs
        rows = own
        if forward.shared and not band.is_state:
            rows = own | (forward.reads_shared(space.row.size)[virtual] & before)
        read = rows & (band.placed[pages] < ticket)
        written = read & own
        return rows, read, written if band.is_state else written & (space.index[virtual] >= first)

    def leave(self, index: int, virtual: Pages, pages: Pages) -> None:
        """These pages leave their owner or their place: write down which open forwards may touch
        them, and whose table rows change."""
        band = self.bands[index]
        for forward in self.open:
            rows, read, written = self.touched(forward, band, virtual, pages)
            many = isinstance(virtual, np.ndarray)
            if not rows.any():
                continue
            if forward.reads_open:
                forward.rows[index].append(virtual[rows] if many else virtual)
            if not read.any():
                continue
            left = forward.left[index]
            if left is None:
                left = forward.left[index] = band.marks()
            if many and not read.all():
                at, who, written = pages[read], virtual[read], written[read]
            else:
                at, who = pages, virtual
            left[at] = np.maximum(left[at], READ + written)
            forward.log[index].append((at, who, band.space.generation[who]))

    def graft(self, index: int, virtual: np.ndarray, into: np.ndarray) -> None:
        """Pages `into` of the prefix cache lie where pages `virtual` lay. What open forwards may do
        there stays written down by place; those to come know the place by its new name."""
        band = self.bands[index]
        pages = band.page_of[virtual]
        self.leave(index, virtual, pages)
        band.page_of[virtual] = -1
        band.page_of[into] = pages
        band.fresh.append(into)
        if band.grafted is None:
            band.grafted = np.zeros(band.page_of.size, np.int64)
        band.grafted[into] = self.issued

    def shrink(self, index: int, first: int, stop: int) -> None:
        """The band gives up pages `[first, stop)` (from its base): bytes that others may take."""
        band = self.bands[index]
        for forward in self.open:
            left = forward.left[index]
            if left is not None and left[first:stop].any():
                for page in (first + np.flatnonzero(left[first:stop])).tolist():
                    start = (page + band.base) * band.page_bytes
                    forward.orphans.append(
                        (start, start + band.page_bytes, int(left[page]), index, page)
                    )
                left[first:stop] = 0
