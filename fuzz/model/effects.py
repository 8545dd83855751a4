"""The rules that effects obey. The arena tells what it does while it does it; each thing told is checked
against what the model believes at that moment, and then believed.

Where pages go and what they are called is the arena's choice, so the model adopts places and ids; that
the choice was legal is checked first. What an operation takes and drops, it owes (`takes`, `drops`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.events import Extent, Holder
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.model.bands import PENDING, BandBook
from bandscope.fuzz.model.moves import NO_MOVES, QUIET, MoveRules
from bandscope.fuzz.model.state import Hold, Waiting
from bandscope.fuzz.program import Layout


class EffectRules(MoveRules):
    """The model as an observer of the arena: the methods of `events.Observer`."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.told_any = self.refused = False  # any effect, a refusal
        # What the operation under way may do and still owes; set by what it is expected to do.
        self.takes: dict[int, int] = {}  # pages per band index
        self.taker: Any = None  # a request, or one request per page
        self.taken: list[int] | None = None  # the ids that it took
        self.drops: list[tuple[int, list[int], Any]] = []  # (band index, virtual pages, holder)
        self.may_settle = False
        self.demand: tuple[int, ...] = ()
        self.expected_refusal = ""
        self.new_hold: Hold | None = None
        self.ending = 0  # the number of the lease that ends
        self.tables_ordered = False  # a write-after-read barrier was told in this launch
        self.must_reclaim = False  # whatever is settled at its end is reusable
        self._owed_pending: tuple[BandBook, list[int]] | None = None

    def begin(self) -> None:
        """A new operation: it owes nothing and may do nothing yet."""
        self.told_any = self.refused = self.may_settle = False
        self.tables_ordered = self.must_reclaim = False
        self.may_move = NO_MOVES
        self.taken = self.new_hold = None
        self.ending = 0
        self.demand = ()
        if self.expected_refusal:
            self.expected_refusal = ""
        if self.takes:
            self.takes = {}
        if self.drops:
            self.drops = []
        if self.moved:
            self.moved = {}
            self._left = []

    # --- the observer's methods ------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """The arena is about to try it; a model that expects something else was not asked first."""
        if operation is not self.operation and operation != self.operation:
            self.broken("determinism", f"the arena tries {operation}, {self.operation} was asked")

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Nothing: `Model.settle` is told."""

    def lease_begin(
        self, holder: Holder, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        """Somebody holds pages from now on: an owner fresh ones, a lease those of one."""
        self.told_any = True
        book = self.by_name[band]
        names, places = virtual.tolist(), book.places(physical.tolist())
        if lease:
            self._hold(holder, book, names, places, lease)
            return
        count = len(names)
        if self.takes.pop(book.index, 0) != count or count != len(places):
            self.broken("ownership", f"{count} pages of {band} were taken that nobody needs")
            return
        if holder is not self.taker and not _same_holder(holder, self.taker):
            self.broken("ownership", f"pages of {band} were given to {holder}, not {self.taker}")
        if self._owed_pending is not None:
            self._owes_pending()
        if self.taken is None:
            if not (self.state_ids if book.is_state else self.ids).mint(names):
                self.taken = []
                self.broken("ids", f"ids {names[:8]} were handed out, but not all are free")
                return
            self.taken = names
        elif self.taken != names:
            self.broken("ids", f"{band} binds {names[:8]}, not {self.taken[:8]}")
            return
        if min(places) < 0 or max(places) >= book.capacity:
            self.broken("order", f"pages outside the arena were handed out of {band}")
            return
        before = book.high - book.low
        holes = before - book.live - book.pending
        used = book.bind(places, names)
        if used >= 0:
            self._taken_twice(book, used)
            return
        grown = book.high - book.low - before
        if grown:
            self.check_order(book)
        if grown != (count - holes if count > holes else 0):
            self.broken(
                "conservation",
                f"{band} took {count} pages with {holes} holes inside and grew by {grown}: holes come "
                "first",
            )

    def lease_end(self, holder: Holder, band: str, virtual: Pages, lease: int) -> None:
        """Somebody holds these pages no more."""
        self.told_any = True
        book, names = self.by_name[band], virtual.tolist()
        if self._owed_pending is not None:
            self._owes_pending()
        if lease:
            self._unhold(holder, book, names, lease)
            return
        owed = self.drops.pop(0) if self.drops else (-1, [], None)
        if owed[0] != book.index or owed[1] != names:
            self.broken(
                "ownership",
                f"pages {names[:8]} of {band} were dropped, but pages {owed[1][:8]} of "
                f"{self.bands[owed[0]].name if owed[0] >= 0 else 'no band'} were to be dropped",
            )
            return
        if not _same_holder(holder, owed[2]):
            self.broken("ownership", f"pages of {band} were dropped by {holder}, not {owed[2]}")
        self.freed(book, names)

    def freed(self, book: BandBook, names: list[int]) -> None:
        """These pages have no owner any more; they may be used again when nothing can touch them."""
        places = book.unbind(names)
        if self.holds:
            pins = book.pin_count
            pinned = [place for place in places if pins[place]]
            if pinned:
                book.wait(pinned)
                book.freed_pinned += len(pinned)
                places = [place for place in places if not pins[place]]
        if not self.unsettled:
            book.free(places)
        else:
            book.wait(places)
            if places:
                self._owed_pending = (book, places)

    def page_move(
        self,
        band: str,
        virtual: Pages,
        sources: Pages,
        destinations: Pages,
        page_bytes: int,
        urgent: bool,
    ) -> None:
        """One batch of page copies inside a band."""
        self.told_any = True
        book, names = self.by_name[band], virtual.tolist()
        start, stop = book.places(sources.tolist()), book.places(destinations.tolist())
        if self._owed_pending is not None:
            self._owes_pending()
        if not self.can_move(book, names, start, stop, urgent):
            return
        if page_bytes != book.page_bytes:
            self.broken("content", f"pages of {band} moved as {page_bytes} bytes each")
        # New places first: in the middle of a move both must be free of neighbours.
        extent = book.low, book.high
        book.unbind(names)
        book.wait(start)
        book.bind(stop, names)
        book.changes -= 1  # one batch, not two
        if (book.low, book.high) != extent:
            self.check_order(book)
        self.moved[book.index] = self.moved.get(book.index, 0) + len(names)
        if urgent:
            self._left.append((book, start))
        if self.unsettled:
            self._owed_pending = (book, start)
        else:
            book.pending -= len(start)
            book.free(start)
        if self.may_move == QUIET and (book.low < extent[0] or book.high > extent[1]):
            self.broken("conservation", f"{band} grew while holes were closed")

    def pending(self, band: str, pages: Pages, ticket: int) -> None:
        """Pages that hold nothing wait for launched work."""
        self.told_any = True
        book = self.by_name[band]
        places = book.places(pages.tolist())
        owed, self._owed_pending = self._owed_pending, None
        if owed is None or owed[0] is not book or owed[1] != places:
            self.broken("happens_before", f"pages {pages[:8]} of {band} wait, which were not freed")
        elif ticket != self.issued:
            self.broken(
                "happens_before",
                f"freed pages of {band} wait for ticket {ticket}, the newest is {self.issued}",
            )
        self.waiting.append(Waiting(ticket, book, places))

    def reclaim(self, band: str, pages: Pages) -> None:
        """Waiting pages may be used again."""
        self.told_any = True
        book = self.by_name[band]
        places = book.places(pages.tolist())
        if not places:  # all that an operation freed at that time was pinned
            return
        through = self.settled_through
        found = [batch for batch in self.waiting if batch.band is book and batch.places == places]
        if not found:
            self.broken("happens_before", f"pages {pages[:8]} of {band} did not wait")
            return
        batch = found[0]
        if batch.stamp > through:
            self.broken(
                "happens_before",
                f"pages {pages[:8]} of {band} wait for ticket {batch.stamp}; they were reclaimed when "
                f"work was settled through {through}",
            )
        self.waiting.remove(batch)
        book.pending -= len(places)
        book.free(places)

    def barrier(self, kind: str, ticket: int, why: str) -> None:
        """The schedule stream waits for launched work, or its table writes do."""
        self.told_any = True
        if ticket != self.issued:
            self.broken(
                "happens_before", f"a barrier waits for {ticket}, the newest is {self.issued}"
            )
        if kind == "settle":
            if not self.may_settle:
                self.broken("happens_before", f"a barrier ({why}) that nothing asked for")
            self.ordered_through = max(self.ordered_through, ticket)
            self.must_reclaim = True
            return
        if kind != f"write-after-read ({self.config.barrier})" or type(self.operation) is not ops.Launch:
            self.broken("happens_before", f"a barrier of kind {kind!r} ({why}) that was not needed")
        self.tables_ordered = True
        if self.config.barrier == "coarse":
            self.ordered_through = max(self.ordered_through, ticket)

    def publish(self, band: str, rows: int) -> None:
        """The device's tables get the rows that changed."""
        book = self.by_name[band]
        self.told_any = True
        if type(self.operation) is not ops.Launch:
            self.broken("happens_before", f"rows of {band} were published without a launch")
        if rows != len(book.stale):
            self.broken(
                "tables", f"{rows} rows of {band} were published, {len(book.stale)} had changed"
            )
        if not self.tables_ordered and self.unsettled:
            self.broken(
                "happens_before",
                f"rows of {band} were published without a barrier while launched work may read them",
            )
        book.mark_published()

    def launched(self, ticket: int, requests: tuple[int, ...]) -> None:
        """A forward starts: it must find every row."""
        self.told_any = True
        operation = self.operation
        if type(operation) is not ops.Launch or operation.requests != requests:
            self.broken("happens_before", f"ticket {ticket} over {requests} was not asked for")
        if ticket != self.issued + 1:
            self.broken("happens_before", f"ticket {ticket} was issued after {self.issued}")
        for band in self.bands:
            if band.stale:
                self.broken(
                    "tables", f"ticket {ticket} finds {len(band.stale)} rows of {band.name} stale"
                )

    def done(self, ticket: int) -> None:
        """Launched work has completed."""
        self.told_any = True
        operation = self.operation
        if type(operation) is not ops.Complete or operation.ticket != ticket:
            self.broken("happens_before", f"ticket {ticket} was reported complete by nobody")
        if self.flights.pop(ticket, None) is None:
            self.broken("happens_before", f"ticket {ticket} completed, but is not in flight")

    def band_move(self, band: str, before: Extent, after: Extent, why: str) -> None:
        """An extent changed: it is now what its pages need, and all extents are in order."""
        self.told_any = True
        book = self.by_name[band]
        if before != book.told:
            self.broken("order", f"{band} moved from {before}, but {book.told} was told before")
        if after != book.span:
            self.broken("conservation", f"{band} spans {after}, but its pages need {book.span}")
        book.told = after
        self.check_order(book)

    def _uncached(self, *told: Any) -> None:
        self.broken("ownership", f"a prefix cache did {told} in an arena that has none")

    share: Any = _uncached
    graft: Any = _uncached
    evict: Any = _uncached
    state_copy: Any = _uncached

    def refusal(
        self,
        reason: str,
        demand: tuple[int, ...],
        live: tuple[int, ...],
        fixed: tuple[Extent | None, ...],
    ) -> None:
        """A demand is refused, for the layout told."""
        if self.refused:
            self.broken("atomic", "one operation was refused twice")
        self.refused = True
        if reason != self.expected_refusal:
            expected = self.expected_refusal or "nothing"
            self.broken("capacity", f"{demand} was refused for {reason}, not for {expected}")
        if tuple(demand) != self.demand:
            self.broken("capacity", f"{demand} was refused, but {self.demand} was needed")
        if tuple(live) != tuple(band.live for band in self.bands):
            self.broken("conservation", f"a refusal tells {live} live pages per band")
        if tuple(fixed) != tuple(self.fixed(band) for band in self.bands):
            self.broken("pins", f"a refusal tells {fixed} as places that cannot move")

    # --- rules --------------------------------------------------------------------------------------

    def _taken_twice(self, book: BandBook, place: int) -> None:
        invariant, what = "ownership", "is live, or was taken twice"
        if book.pin_count[place]:
            invariant, what = "pins", "is pinned"
        elif book.state[place] == PENDING:
            invariant, what = "happens_before", "may still be touched"
        self.broken(invariant, f"place {place} of {book.name} was handed out, but it {what}")

    def _hold(
        self, holder: Holder, book: BandBook, names: list[int], places: list[int], lease: int
    ) -> None:
        expected = self.new_hold
        self.new_hold = None
        if (
            expected is None
            or lease != self.next_lease
            or holder != expected.holder
            or book is not expected.band
            or names != expected.virtual
            or places != expected.places
        ):
            self.broken(
                "pins", f"lease {lease} of {holder} on {book.name} is not the one asked for"
            )
            return
        for place in places:
            book.pin_count[place] += 1
        self.holds[lease] = expected
        self.next_lease += 1

    def _unhold(self, holder: Holder, book: BandBook, names: list[int], lease: int) -> None:
        hold = self.holds.pop(lease, None)
        if hold is None or lease != self.ending:
            self.broken("pins", f"lease {lease} ended, which nobody asked for")
            return
        if holder != hold.holder or book is not hold.band or names != hold.virtual:
            self.broken("pins", f"lease {lease} ended as one of {holder} on {book.name}")
        self.ending = 0
        book = hold.band
        for place in hold.places:
            book.pin_count[place] -= 1
        freed = [
            place
            for place in hold.places
            if not book.pin_count[place] and book.state[place] == PENDING
        ]
        if freed:
            self.must_reclaim = True
            book.freed_pinned -= len(freed)
            self._owed_pending = (book, freed)

    def _owes_pending(self) -> None:
        if self._owed_pending is not None:
            band, places = self._owed_pending
            self._owed_pending = None
            self.broken(
                "happens_before",
                f"{len(places)} freed pages of {band.name} do not wait for launched work",
            )


def _same_holder(told: Holder, expected: Any) -> bool:
    if isinstance(told, np.ndarray):
        return isinstance(expected, list) and told.tolist() == expected
    return bool(told == expected)

