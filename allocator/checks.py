"""Every invariant that needs no device ordering, checked against the books themselves.

Each check recomputes from the page states and tables, never from the counters it checks. Sets, not
sums: two errors that cancel in a total are both found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bandscope.allocator import cache_checks
from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING, Band
from bandscope.allocator.books import Books
from bandscope.allocator.tables import IdSpace, Pages


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and where."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


def check_books(books: Books) -> list[Violation]:
    """All violations, empty when healthy. Cost follows the extents and the ids in use."""
    return [violation for check in CHECKS for violation in check(books)]


def conservation(books: Books) -> Iterator[Violation]:
    """Sink + extents + gaps = arena in bytes; live + holes + pending = extent in pages."""
    extents = sum(band.extent * band.page_bytes for band in books.bands)
    gaps = sum(stop - start for start, stop in books.chain.gaps())
    total = books.plan.sink_bytes + extents + gaps
    if total != books.chain.total_bytes:
        yield Violation(
            "conservation",
            f"sink {books.plan.sink_bytes} + extents {extents} + gaps {gaps} = {total} bytes, but "
            f"the arena has {books.chain.total_bytes}",
        )
    for band in books.bands:
        inside = np.bincount(band.state[band.low : band.high], minlength=4)
        for name, code, counted in (
            ("live", LIVE, band.live),
            ("holes", HOLE, band.holes),
            ("pending", PENDING, band.pending),
        ):
            if inside[code] != counted:
                yield Violation(
                    "conservation",
                    f"band {band.name} counts {counted} {name} pages, its extent has "
                    f"{inside[code]}",
                )
        if inside[GAP]:
            yield Violation(
                "conservation",
                f"band {band.name} has {inside[GAP]} pages inside its extent that are neither "
                "live, hole nor pending",
            )
        if int(band._block_holes.sum()) != band.holes:
            yield Violation(
                "conservation",
                f"band {band.name} finds {int(band._block_holes.sum())} holes by block, "
                f"{band.holes} in all",
            )


def order(books: Books) -> Iterator[Violation]:
    """Extents are disjoint, in chain order, above the sink and inside the arena."""
    start, below = books.plan.sink_bytes, "the sink"
    for band in books.bands:
        if not band.extent:
            continue
        low, high = band.byte_range()
        if low < start:
            yield Violation(
                "order", f"band {band.name} starts at byte {low}, below the end {start} of {below}"
            )
        if not 0 <= band.low <= band.high <= band.capacity:
            yield Violation(
                "order",
                f"band {band.name} spans places {band.low} to {band.high} of {band.capacity}",
            )
        outermost = [band.high - 1] if band.plan.end != "float" else [band.low, band.high - 1]
        if any(band.state[place] == HOLE for place in outermost if 0 <= place < band.capacity):
            yield Violation(
                "order",
                f"band {band.name} spans places {band.low} to {band.high}, but its extent ends in a "
                "hole; frontiers are pulled back to a page in use",
            )
        start, below = high, f"band {band.name}"
    if start > books.chain.total_bytes:
        yield Violation(
            "order", f"{below} ends at byte {start} of {books.chain.total_bytes}"
        )


def tables(books: Books) -> Iterator[Violation]:
    """v2p and p2v are inverse; exactly the live places hold a virtual page."""
    for band in books.bands:
        virtual = band.table.virtual_at[band.low : band.high]
        live = band.state[band.low : band.high] == LIVE
        wrong = np.flatnonzero((virtual >= 0) != live)
        if wrong.size:
            yield Violation(
                "tables",
                f"band {band.name}: {wrong.size} places are mapped but not live or the reverse, "
                f"the first is place {int(wrong[0]) + band.low}",
            )
        places = np.flatnonzero(virtual >= 0)
        back = band.table.place_of[virtual[places]] - band.low
        if (back != places).any():
            first = int(places[back != places][0])
            yield Violation(
                "tables",
                f"band {band.name}: place {first + band.low} holds virtual page "
                f"{int(virtual[first])}, whose table row names another place",
            )
        space = books.state_ids if band.index == books.state else books.ids
        rows = band.table.place_of[: space.fresh]
        mapped = np.flatnonzero(rows >= 0)
        named = np.minimum(rows[mapped], band.capacity - 1)
        stale = mapped[band.table.virtual_at[named] != mapped]
        if stale.size:
            yield Violation(
                "tables",
                f"band {band.name}: the row of virtual page {int(stale[0])} names place "
                f"{int(rows[stale[0]])}, which does not hold it",
            )


def ids(books: Books) -> Iterator[Violation]:
    """An id is free or bound, never both; what is bound is what requests and the cache hold."""
    ledger = books.ledger
    rows = list(ledger.row_of.values())
    held = [ledger.token_pages(row, int(ledger.cached[row])) for row in rows]
    slots = [ledger.state_slots(row) for row in rows]
    if books.cache is not None:
        held.append(cache_checks.cached_pages(books, books.full))
        slots.append(cache_checks.cached_slots(books))
    yield from _id_space("token", books.ids, held)
    if books.state is not None:
        yield from _id_space("state", books.state_ids, slots)


def _id_space(name: str, space: IdSpace, held: list[Pages]) -> Iterator[Violation]:
    owned = np.concatenate(held) if held else np.empty(0, np.int64)
    uses = np.bincount(owned, minlength=space.fresh)
    twice = np.flatnonzero(uses > 1)
    if twice.size:
        yield Violation(
            "ownership", f"{name} page {int(twice[0])} has {int(uses[twice[0]])} owners"
        )
    released = space.released_ids()
    free = np.bincount(released, minlength=space.fresh)
    if (free > 1).any():
        yield Violation("ids", f"{name} id {int(np.argmax(free > 1))} is free twice")
    both = np.flatnonzero((free > 0) & (uses[: free.size] > 0))
    if both.size:
        yield Violation("ids", f"{name} id {int(both[0])} is both free and held")
    lost = np.flatnonzero((free[: space.fresh] == 0) & (uses[: space.fresh] == 0))
    if lost.size:
        yield Violation(
            "ownership",
            f"{lost.size} {name} ids are neither free nor held by a request; the first is "
            f"{int(lost[0])} (leak)",
        )
    wrong = np.flatnonzero(space.bound[: space.fresh] != (uses[: space.fresh] > 0))
    if wrong.size:
        yield Violation("ids", f"{name} id {int(wrong[0])} is marked against its use")


def ownership(books: Books) -> Iterator[Violation]:
    """Every live page of every band belongs to exactly the request that should hold it, or to the
    prefix cache."""
    ledger = books.ledger
    rows = np.array(sorted(ledger.row_of.values()), np.int64)
    counts = ledger.page_count[rows]
    for index in books.token_bands:
        first = ledger.cached[rows]
        if index in books.windows:
            first = np.maximum(first, ledger.first_kept[rows, books.windows.index(index)])
            ahead = rows[first > counts]
            if ahead.size:
                yield Violation(
                    "ownership",
                    f"request {int(ledger.request[ahead[0]])} has trimmed more pages of "
                    f"{books.bands[index].name} than it has",
                )
                continue
        held = [ledger.spans(rows, first, counts)]
        if books.cache is not None:
            held.append(cache_checks.cached_pages(books, index))
        yield from _same_pages(books.bands[index], np.sort(np.concatenate(held)))
    if books.state is not None:
        slots = [ledger.state_slots(int(row)) for row in rows]
        if books.cache is not None:
            slots.append(cache_checks.cached_slots(books))
        expected = np.sort(np.concatenate(slots)) if slots else np.empty(0, np.int64)
        yield from _same_pages(books.bands[books.state], expected)
    page_size = books.plan.page_size
    short = rows[ledger.length[rows] > counts * page_size]
    if short.size:
        row = int(short[0])
        yield Violation(
            "ownership",
            f"request {int(ledger.request[row])} has room for {int(ledger.page_count[row])} pages "
            f"but a length of {int(ledger.length[row])} tokens",
        )


def _same_pages(band: Band, expected: Pages) -> Iterator[Violation]:
    found = np.sort(band.table.virtual_at[band.live_between(band.low, band.high)])
    if found.size == expected.size and (found == expected).all():
        return
    leaked = np.setdiff1d(found, expected)
    missing = np.setdiff1d(expected, found)
    if leaked.size:
        yield Violation(
            "ownership",
            f"band {band.name}: {leaked.size} live pages belong to no request, the first is "
            f"virtual page {int(leaked[0])} (leak)",
        )
    if missing.size:
        yield Violation(
            "ownership",
            f"band {band.name}: {missing.size} pages that requests hold are not live, the first is "
            f"virtual page {int(missing[0])}",
        )
    if not leaked.size and not missing.size:
        yield Violation("ownership", f"band {band.name}: a virtual page is live twice")


def pins(books: Books) -> Iterator[Violation]:
    """Pin counts equal the leases; a pinned page is live, or freed and waiting for its pin."""
    for index, band in enumerate(books.bands):
        expected = np.zeros(band.capacity, np.int32) if books.pins.pins else None
        if expected is None:
            if band.pin_count[band.low : band.high].any():
                yield Violation("pins", f"band {band.name} has pinned places but no lease")
            if books.pins.deferred[index]:
                yield Violation(
                    "pins",
                    f"band {band.name} counts {books.pins.deferred[index]} pages freed under a pin, but "
                    "there is no lease",
                )
            continue
        for pin in books.pins.pins.values():
            if pin.band == index:
                expected[pin.places] += 1
        wrong = np.flatnonzero(expected != band.pin_count)
        if wrong.size:
            yield Violation(
                "pins", f"band {band.name}: place {int(wrong[0])} counts pins against its leases"
            )
        pinned = np.flatnonzero(expected)
        state = band.state[pinned]
        if ((state != LIVE) & (state != PENDING)).any():
            yield Violation("pins", f"band {band.name}: a pinned place was reused or lost")
        if int((state == PENDING).sum()) != books.pins.deferred[index]:
            yield Violation(
                "pins",
                f"band {band.name} counts {books.pins.deferred[index]} pages freed under a pin, "
                f"there are {int((state == PENDING).sum())}",
            )


def pending(books: Books) -> Iterator[Violation]:
    """Pending pages are exactly those that a ticket or a pin keeps; none is forgotten."""
    for index, band in enumerate(books.bands):
        deferred = [
            places for _, owner, places in books.tickets.snapshot()["pending"] if owner == index
        ]
        waiting = np.sort(np.concatenate(deferred)) if deferred else np.empty(0, np.int64)
        if waiting.size > 1 and (waiting[1:] == waiting[:-1]).any():
            yield Violation("ids", f"band {band.name}: a place waits for its ticket twice")
        state = band.state[band.low : band.high] == PENDING
        found = np.flatnonzero(state) + band.low
        found = found[band.pin_count[found] == 0]
        if found.size != waiting.size or (found != waiting).any():
            yield Violation(
                "ownership",
                f"band {band.name}: {found.size} pages are pending, {waiting.size} wait for a "
                "ticket (a page nobody will reclaim, or one reclaimed too early)",
            )


def cache(books: Books) -> Iterator[Violation]:
    """The prefix cache's own invariants, and that requests share what their leases hold."""
    for invariant, message in cache_checks.broken(books):
        yield Violation(invariant, message)


CHECKS: tuple[Callable[[Books], Iterator[Violation]], ...] = (
    conservation,
    order,
    tables,
    ids,
    ownership,
    pins,
    pending,
    cache,
)
