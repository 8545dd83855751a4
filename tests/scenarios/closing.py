"""The closing checks of every scenario: with everything given back, nothing is held anywhere."""

from __future__ import annotations

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.arena import Arena
from bandscope.allocator.events import Holder
from bandscope.allocator.operations import Operation, Outcome
from tests.allocator.arenas import EventLog, held_pages, nothing_held


def close(arena: Arena) -> None:
    """Drain all forwards and leases, release all requests, evict all cache; then assert what
    `assert_empty` does."""
    arena.set_gate(closed=False)
    for lease in arena.leases():
        arena.end_lease(lease.number)
    for ticket in list(arena.books.tickets.in_flight):
        arena.complete(ticket)
    for request in list(arena.books.ledger.row_of):
        arena.release(request)
    if arena.books.cache is not None:
        arena.evict(arena.books.cache.tree.cached)
    arena.compact(urgent=True)
    assert_empty(arena)


def assert_empty(arena: Arena) -> None:
    """Every band holds zero pages, bytes are conserved, no id is both live and free, tables are
    inverse of each other, and all ids that were ever used are back."""
    books = arena.books
    arena.assert_healthy()
    assert held_pages(arena) == nothing_held(arena)
    assert [band.extent for band in books.bands] == [0] * len(books.bands)
    gaps = sum(stop - start for start, stop in books.chain.gaps())
    assert arena.plan.sink_bytes + gaps == arena.total_bytes
    for space in (books.ids, books.state_ids):
        assert sorted(space.released_ids().tolist()) == list(range(space.fresh))
        assert space.free_count == space.capacity
    for band in books.bands:
        assert (band.table.place_of == -1).all() and (band.table.virtual_at == -1).all()
        assert not band.pin_count.any()
    assert not arena.leases() and not books.tickets.in_flight and len(books.ledger) == 0


class Holdings(EventLog):
    """Follows who owns which page, as an arena tells it: every page is taken once and freed once.

    `owner`: (band, virtual page) → request. A page that is freed without an owner, or taken while
    it has one, fails at that moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owner: dict[tuple[str, int], int] = {}
        self.freed: list[tuple[str, int]] = []

    def effect(self, event: object) -> None:
        super().effect(event)
        if isinstance(event, events.LeaseBegin) and event.owns:
            for virtual, holder in self._named(event.virtual, event.holder):
                assert (event.band, virtual) not in self.owner, "a page got a second owner"
                self.owner[event.band, virtual] = holder
        elif isinstance(event, events.LeaseEnd) and event.owns:
            for virtual, holder in self._named(event.virtual, event.holder):
                assert self.owner.pop((event.band, virtual), None) == holder, "freed twice"
                self.freed.append((event.band, virtual))

    @staticmethod
    def _named(virtual: np.ndarray, holder: Holder) -> list[tuple[int, int]]:
        assert not isinstance(holder, str)
        holders = np.broadcast_to(np.asarray(holder), virtual.shape)
        return list(zip(virtual.tolist(), holders.tolist(), strict=True))


def refused(arena: Arena, operation: Operation, reason: str) -> Outcome:
    """Apply an operation that must be refused for this reason, and leave the digest as it was."""
    before = arena.digest()
    outcome = arena.apply(operation)
    assert (outcome.ok, outcome.reason) == (False, reason), outcome
    assert outcome.message and arena.digest() == before
    return outcome


def physical(arena: Arena, request: int, band: str) -> set[int]:
    """Physical pages that a request holds in a band."""
    return set(arena.pages_of(request, band)[0].tolist())
