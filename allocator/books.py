"""The arena's books: its state, and the few steps every operation is made of.

Taking pages, dropping them, making room, settling launched work and publishing tables are written
once, here; `handlers.py` composes them into operations. A step that can fail is asked before
anything changes, so a refused operation leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.band import Band
from bandscope.allocator.cache import PrefixCache, without
from bandscope.allocator.chain import Chain, Held, Span
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.leases import Pins, split_pinned
from bandscope.allocator.operations import Outcome
from bandscope.allocator.ordering import Tickets
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.policies import ArenaConfig
from bandscope.allocator.prefix import Match
from bandscope.allocator.relocation import Layout, plan_layout
from bandscope.allocator.requests import RequestLedger
from bandscope.allocator.tables import IdSpace, Pages


class Books:
    """State of one arena of `total_bytes` over a storage plan, and the device that holds its bytes."""

    def __init__(
        self, plan: StoragePlan, total_bytes: int, device: Device, config: ArenaConfig
    ) -> None:
        self.plan = plan
        self.config = config
        self.device = device
        self._observer: events.Observer | None = None
        sink = plan.sink_bytes
        names = [band.name for band in plan.bands]
        self.full = names.index("full")
        self.state = next(
            (index for index, band in enumerate(plan.bands) if band.kind == "state"), None
        )
        self.windows = [index for index, band in enumerate(plan.bands) if band.kind == "window"]
        self.window_lengths = [plan.bands[index].window_length for index in self.windows]
        self.token_bands = [index for index in range(len(names)) if index != self.state]

        def capacity(index: int) -> int:
            page_bytes = plan.bands[index].page_bytes
            return max(0, total_bytes // page_bytes - -(-sink // page_bytes))

        owner = [self.state if index == self.state else self.full for index in range(len(names))]
        virtual_pages = [capacity(index or 0) for index in owner]
        self.ledger = RequestLedger(len(self.windows))
        self.cache = PrefixCache(plan, config, self.ledger) if config.prefix_cache else None
        # A device that lacks the memory says so before tables of that size are made.
        device.allocate(total_bytes, [band.page_bytes for band in plan.bands], virtual_pages)
        self.bands = [
            Band(band, index, total_bytes, sink, virtual_pages[index])
            for index, band in enumerate(plan.bands)
        ]
        self.ids = IdSpace(capacity(self.full))
        self.state_ids = IdSpace(capacity(self.state) if self.state is not None else 0)
        self.chain = Chain(self.bands, sink, total_bytes)
        self.tickets = Tickets()
        self.pins = Pins(self.bands)
        self.gate_closed = False
        # What the observer was told last, in bytes and as frontiers; no band has an extent yet.
        self._extents_told: list[Span] = [(0, 0)] * len(self.bands)
        self._frontiers_told: list[Span] = [(0, 0)] * len(self.bands)

    @property
    def observer(self) -> events.Observer | None:
        """Who is told about every effect; may be changed between operations."""
        return self._observer

    @observer.setter
    def observer(self, observer: events.Observer | None) -> None:
        self._observer = observer
        # Whoever comes late starts from the extents as they are.
        self._extents_told = [self._span(band) for band in self.bands]
        self._frontiers_told = [(band.low, band.high) for band in self.bands]

    @staticmethod
    def _span(band: Band) -> Span:
        return band.byte_range() if band.extent else (0, 0)

    # --- questions ------------------------------------------------------------------------------

    def held(self, demand: Sequence[int], *, ignore_fixed: bool = False) -> list[Held]:
        """What each band must hold to serve `demand` on top of what is live."""
        result = []
        for band, pages in zip(self.bands, demand, strict=True):
            fixed = None if ignore_fixed else self.fixed(band)
            result.append(Held(band.live + self.pins.deferred[band.index] + pages, fixed))
        return result

    def fixed(self, band: Band) -> Span | None:
        """The hull of places of `band` that cannot move now: pinned ones, and all live ones while
        the gate is closed."""
        hull = self.pins.hull(band.index) if self.pins.pins else None
        if self.gate_closed and band.live:
            first = int(band.outermost_live(1, from_high=False)[0])
            last = int(band.outermost_live(1, from_high=True)[0])
            if hull is None:
                return first, last + 1
            return min(first, hull[0]), max(last + 1, hull[1])
        return hull

    def serves(self, demand: Sequence[int], beside: Match | None = None) -> bool:
        """True exactly when an operation that needs `demand` more pages per band then succeeds.
        `beside`: it holds this prefix of the cache, too."""
        held = self.held(demand)
        if self.chain.pack(held) is not None:
            return True
        return self.cache is not None and self.cache.serves(self.chain, held, beside)

    def slot_demand(self, slots: int) -> list[int]:
        """The demand of so many state slots."""
        demand = [0] * len(self.bands)
        if self.state is not None:
            demand[self.state] = slots
        return demand

    # --- making room -----------------------------------------------------------------------------

    def make_room(self, demand: Sequence[int]) -> list[Span] | Outcome:
        """Regions in which every band can take its demand; cached pages go and pages move when they
        must. A refusal comes back as its `Outcome`, with nothing changed."""
        regions = self.chain.grant(demand)
        if regions is not None:
            return regions
        held = self.held(demand)
        if self.chain.pack(held) is None:
            gone = None
            if self.cache is not None:
                gone = self.cache.make_way(self.chain, held, demand)
            if gone is None:
                return self.refuse(demand)
            self.evict(demand, gone)
        self.settle("reuse of pending pages")
        regions = self.chain.grant(demand)
        if regions is not None:
            return regions
        layout = self._roomy_layout(demand)
        self.execute(layout, why="relocate")
        return layout.regions

    def _roomy_layout(self, demand: Sequence[int]) -> Layout:
        spare_bytes = int(self.config.headroom_share * self.chain.total_bytes)
        roomy = [
            pages + (spare_bytes // band.page_bytes if pages else 0)
            for pages, band in zip(demand, self.bands, strict=True)
        ]
        layout = plan_layout(self.chain, self.held(roomy))
        if layout is None:
            layout = plan_layout(self.chain, self.held(demand))
        assert layout is not None, "a demand that packs has a layout"
        return layout

    def refuse(self, demand: Sequence[int], beside: Match | None = None) -> Outcome:
        """The refusal of a demand that no layout serves (`beside` this prefix of the cache)."""
        held = self.held(demand)
        freed: Sequence[int] = [0] * len(self.bands)
        if self.cache is not None:
            freed = self.cache.evictable(beside)
        reason = "memory"
        if self.chain.pack(without(self.held(demand, ignore_fixed=True), freed)) is not None:
            reason = "gate" if self.gate_closed else "pins"
        if self.observer is not None:
            self.observer.refusal(
                reason,
                tuple(demand),
                tuple(band.live for band in self.bands),
                tuple(want.fixed for want in held),
            )
        wanted = ", ".join(
            f"{pages} of {band.name}"
            for pages, band in zip(demand, self.bands, strict=True)
            if pages
        )
        needed = self.plan.sink_bytes + sum(
            want.pages * band.page_bytes for want, band in zip(held, self.bands, strict=True)
        )
        needed -= sum(
            pages * band.page_bytes for pages, band in zip(freed, self.bands, strict=True)
        )
        hint = {
            "memory": "release or retract a request",
            "gate": "open the gate, since pages would have to move",
            "pins": "end a lease, since pinned pages would have to move",
        }[reason]
        return Outcome(
            False,
            reason=reason,
            message=(
                f"{wanted} more pages were asked for, but no layout of the arena holds them: "
                f"{needed:,} bytes would be held of {self.chain.total_bytes:,}; {hint}"
            ),
            detail={"demand": tuple(demand)},
        )

    def settle(self, why: str) -> None:
        """Order the schedule stream behind all launched work, so that every page that waits for it
        can be reused by what is issued next. The host does not wait."""
        if self.tickets.unsettled:
            ticket = self.tickets.order_behind_all()
            self.device.order_behind(ticket)
            if self.observer is not None:
                self.observer.barrier("settle", ticket, why)
        self.reclaim()

    def reclaim(self) -> None:
        """Pages whose work is settled become holes; frontiers are pulled back past them."""
        observer = self._observer
        for index, places in self.tickets.take_settled():
            band = self.bands[index]
            band.reclaim(places)
            band.absorb()
            if observer is not None:
                observer.reclaim(band.name, band.physical(places))
        self.tell_extents("reclaim")

    def execute(self, layout: Layout, *, why: str) -> int:
        """Run the moves of a layout, urgently: ordered behind launched work. Returns pages moved."""
        if layout.moves:
            self.settle("page moves")
        for moves in layout.moves:
            self.move(moves.band, moves.sources, moves.destinations, urgent=True)
            self.tell_extents(why)
        return sum(moves.sources.size for moves in layout.moves)

    def move(self, band: Band, sources: Pages, destinations: Pages, *, urgent: bool) -> None:
        """One batch of page copies and everything that follows from it."""
        assert not self.gate_closed, "a page was about to move while the gate is closed"
        from_pages, to_pages = band.physical(sources), band.physical(destinations)
        self.device.move(band.index, from_pages, to_pages)
        pending = self.tickets.unsettled
        virtual = band.move(sources, destinations, pending=pending)
        if self.observer is not None:
            self.observer.page_move(
                band.name, virtual, from_pages, to_pages, band.page_bytes, urgent
            )
        if pending:
            self._defer(band, sources)
        band.absorb()

    # --- taking and dropping ----------------------------------------------------------------------

    def take(self, band: Band, virtual: Pages, region: Span, holder: events.Holder) -> None:
        """Bind virtual pages to fresh places of `band` inside its region and hand them out."""
        if not virtual.size:
            return
        places = band.take(virtual.size, *region)
        band.table.bind(virtual, places)
        is_state = band.index == self.state
        hand_out = self.config.hand_out_state if is_state else self.config.hand_out
        if hand_out != "none":
            value = 0 if hand_out == "zero" else 0xFF
            self.device.fill(band.index, band.physical(places), value)
        if self._observer is not None:
            self._observer.lease_begin(holder, band.name, virtual, band.physical(places), 0)

    def drop(self, band: Band, virtual: Pages, holder: events.Holder) -> None:
        """The owner of these pages holds them no more; they become holes when nothing launched and
        no pin can touch them."""
        if not virtual.size:
            return
        places = band.table.unbind(virtual)
        if self._observer is not None:
            self._observer.lease_end(holder, band.name, virtual, 0)
        if self.pins.pins:
            places, pinned = split_pinned(band, places)
            if pinned.size:
                band.drop(pinned, pending=True)
                self.pins.note_freed(band.index, pinned.size)
        pending = self.tickets.unsettled
        band.drop(places, pending=pending)
        if pending:
            self._defer(band, places)
        band.absorb()

    # --- the prefix cache -------------------------------------------------------------------------

    def graft(self, band: Band, virtual: Pages, into: Pages, request: int) -> None:
        """Pages of the cache that a window band has lost lie there again, where a request's copies lay.
        Whatever may still write a copy writes the cache's page."""
        if not virtual.size:
            return
        band.table.rename(virtual, into)
        self.tickets.rename(band.index, virtual, into)
        if self.observer is not None:
            self.observer.graft(request, band.name, virtual, into)

    def evict(self, demand: Sequence[int], per_band: Sequence[Pages]) -> None:
        """Free what the prefix cache gives up for a demand."""
        if self.observer is not None and any(ids.size for ids in per_band):
            self.observer.evict(tuple(demand), tuple(int(ids.size) for ids in per_band))
        for band, ids in zip(self.bands, per_band, strict=True):
            self.drop(band, ids, events.CACHE)
        self.release_ids(per_band)
        self.tell_extents("evict")

    def release_ids(self, per_band: Sequence[Pages]) -> None:
        """The ids of pages that no band holds any more."""
        self.ids.release(per_band[self.full])
        if self.state is not None:
            self.state_ids.release(per_band[self.state])

    def copy_state(self, source: int, destination: int, why: str) -> None:
        """Copy one state slot over another, behind what was issued; the caller has seen to launched
        work that may write the source."""
        assert self.state is not None
        band = self.bands[self.state]
        pages = band.physical(band.table.place_of[np.array([source, destination])])
        self.device.copy(band.index, pages[:1], pages[1:])
        if self.observer is not None:
            from_page, to_page = pages.tolist()
            self.observer.state_copy(band.name, source, destination, from_page, to_page, why)

    # --- pins ---------------------------------------------------------------------------------------

    def unpin(self, number: int, holder: str | None) -> None:
        """End a lease; what it alone kept from reuse follows the launched work, then is free."""
        pin, freed = self.pins.end(number, holder)
        if self.cache is not None:
            self.cache.unpin(number)
        band = self.bands[pin.band]
        if self.observer is not None:
            self.observer.lease_end(pin.holder, band.name, pin.virtual, number)
        if freed.size:
            self._defer(band, freed)
            self.reclaim()

    def _defer(self, band: Band, places: Pages) -> None:
        stamp = self.tickets.defer(band.index, places)
        if self.observer is not None and places.size:
            self.observer.pending(band.name, band.physical(places), stamp)

    # --- the device's mirror ------------------------------------------------------------------------

    def publish(self) -> None:
        """Bring the device's tables up to date, ordered after the reads of launched forwards."""
        dirty = [band for band in self.bands if band.table.has_unpublished]
        if not dirty:
            return
        if self.tickets.unsettled:
            self._order_table_writes()
        for band in dirty:
            virtual = band.table.take_unpublished()
            places = band.table.place_of[virtual]
            physical = np.where(places >= 0, band.physical(places), -1)
            self.device.publish(band.index, virtual, physical)
            if self.observer is not None:
                self.observer.publish(band.name, virtual.size)

    def mirror_everything(self) -> None:
        """Send every row of every table to the device, without a barrier: after a restore the mirror
        knows nothing of what the books say now. What counts as unpublished stays so."""
        for band in self.bands:
            places = band.table.place_of
            physical = np.where(places >= 0, band.physical(places), -1)
            self.device.publish(band.index, np.arange(places.size), physical)

    def _order_table_writes(self) -> None:
        newest = self.tickets.issued
        if self.config.barrier == "coarse":
            self.tickets.order_behind_all()
            self.device.order_behind(newest)
        elif self.config.barrier == "fine":
            self.device.order_behind_reads(newest)
        if self.observer is not None:
            kind = f"write-after-read ({self.config.barrier})"
            self.observer.barrier(kind, newest, "table publish")

    def tell_extents(self, why: str) -> None:
        """Tell the observer about extents that changed since the last time."""
        observer = self._observer
        if observer is None:
            return
        frontiers = [(band.low, band.high) for band in self.bands]
        if frontiers == self._frontiers_told:
            return
        self._frontiers_told = frontiers
        for index, band in enumerate(self.bands):
            now = self._span(band)
            if now != self._extents_told[index]:
                observer.band_move(band.name, self._extents_told[index], now, why)
                self._extents_told[index] = now
