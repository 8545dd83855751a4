"""The rules of page moves: which pages may move and where to, how many, and what holes may be left."""

from __future__ import annotations

from bandscope.allocator import operations as ops
from bandscope.fuzz.model.bands import LIVE, PENDING, BandBook
from bandscope.fuzz.model.state import ModelState
from bandscope.fuzz.program import Layout

NO_MOVES, URGENT, QUIET = 0, 1, 2  # which page moves an operation may make


class MoveRules(ModelState):
    """`may_move`, `move_cap`: what the operation under way may do; `moved`: what it did."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.may_move = NO_MOVES
        self.move_cap = 0
        self.moved: dict[int, int] = {}  # pages per band index
        self._left: list[tuple[BandBook, list[int]]] = []  # places that pages were moved from

    def can_move(
        self, book: BandBook, names: list[int], start: list[int], stop: list[int], urgent: bool
    ) -> bool:
        """Whether pages `names` of `book` may move from places `start` to `stop`."""
        state, pins = book.state, book.pin_count
        before = len(self.violations)
        if self.gate_closed:
            self.broken("pins", f"pages of {book.name} moved while the gate is closed")
        if not self.may_move or (self.may_move == URGENT) != urgent:
            self.broken("caps", f"pages of {book.name} moved in an operation that moves none so")
        if self.may_move == QUIET:
            self._check_quiet(book, len(names))
        if not (book.is_inside(start) and book.is_inside(stop)):
            self.broken("order", f"pages of {book.name} moved outside the arena")
            return False
        if len({*start, *stop}) != 2 * len(names) or len(start) != len(stop):
            self.broken("content", f"one batch of moves of {book.name} names a page twice")
            return False
        for place, page in zip(start, names, strict=True):
            if state[place] != LIVE or book.virtual_at[place] != page:
                self.broken(
                    "tables", f"place {place} of {book.name} moved as page {page}, it holds another"
                )
                return False
            if pins[place]:
                self.broken("pins", f"place {place} of {book.name} moved, but it is pinned")
        for place in stop:
            if pins[place]:
                self.broken("pins", f"a page of {book.name} moved to place {place}, which is pinned")
            elif state[place] == PENDING:
                self.broken(
                    "happens_before",
                    f"a page of {book.name} moved to place {place}, which launched work may touch",
                )
            elif state[place] == LIVE:
                self.broken("content", f"a page of {book.name} moved to place {place}, which is live")
        if self.flights:
            writes = self.written(book)
            early = [page for page in names if page in writes]
            if early:
                self.broken(
                    "happens_before",
                    f"pages {early[:8]} of {book.name} moved, which launched work may still write",
                )
        return len(self.violations) == before

    def _check_quiet(self, book: BandBook, moves: int) -> None:
        if self.moved.get(book.index, 0) + moves > self.move_cap:
            self.broken("caps", f"{moves} pages of {book.name} moved, the cap is {self.move_cap}")
        if not self.is_worth_it(book):
            self.broken("caps", f"{book.name} was compacted with room to spare")

    def is_worth_it(self, book: BandBook) -> bool:
        """Are there holes enough, and so little free around the band, that moves buy something?"""
        extent = book.high - book.low
        if not book.holes or book.holes < self.config.compact_hole_share * extent:
            return False
        start, stop = self.room(book)
        faced = stop - start - extent * book.page_bytes
        return faced <= self.config.compact_gap_share * self.total_bytes

    def check_order(self, book: BandBook) -> None:
        """The extent of `book` overlaps no neighbour, nor the sink, nor the arena's end."""
        if book.low == book.high:
            return
        (start, stop), (low, high) = book.span, self.room(book)
        if start < low or stop > high:
            self.broken(
                "order", f"{book.name} spans bytes {start} to {stop}, its room is {low} to {high}"
            )

    def check_moves(self) -> None:
        """Pages of a band are interchangeable: one that left a place of the extent it then has need not
        have moved."""
        for book, places in self._left:
            needless = [place for place in places if book.low <= place < book.high]
            if needless:
                self.broken(
                    "caps", f"{len(needless)} pages of {book.name} moved that could have stayed"
                )

    def check_compacted(self, operation: ops.Compact) -> None:
        """Closing holes leaves none that could be closed: an urgent pass packs every band, another one
        does something where it is worth it and nothing stands in the way."""
        if self.gate_closed:
            return
        for band in self.bands:
            if operation.urgent:
                size = band.live + band.freed_pinned
                fixed = self.fixed(band)
                if fixed is not None:
                    size = max(size, fixed[1] - (fixed[0] if band.is_float else 0))
                if band.high - band.low != size:
                    self.broken(
                        "capacity",
                        f"{band.name} was packed to {band.high - band.low} pages, it needs {size}",
                    )
            elif not (
                band.index in self.moved
                or not self.move_cap
                or band.pending
                or self.holds
                or self.flights
            ) and self.is_worth_it(band):
                self.broken("capacity", f"{band.name} has holes worth closing, and none was")
