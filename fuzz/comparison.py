"""Everything an arena keeps and answers, against everything the model believes. Slow and plain."""

from __future__ import annotations

from collections.abc import Iterator

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import Band
from bandscope.allocator.books import Books
from bandscope.allocator.checks import Violation
from bandscope.fuzz.cache_comparison import compare_cache
from bandscope.fuzz.model import Model
from bandscope.fuzz.model.bands import BandBook


def compare_everything(model: Model, arena: Arena) -> list[Violation]:
    """What differs, each by the name of the invariant it breaks."""
    books = arena.books
    found = []
    for book, band in zip(model.bands, books.bands, strict=True):
        found += [*_band(book, band), *_waiting(model, book, books)]
    found += [*_ids(model, books), *_requests(model, arena), *_tickets(model, books)]
    found += [*compare_leases(model, books), *compare_cache(model, books), *_answers(model, arena)]
    return found


def _band(book: BandBook, band: Band) -> Iterator[Violation]:
    counted = (band.low, band.high, band.live, band.holes, band.pending)
    right = (book.low, book.high, book.live, book.holes, book.pending)
    if counted != right:
        yield Violation(
            "conservation",
            f"band {band.name} counts low, high, live, holes, pending {counted}, the model {right}",
        )
    if bytes(band.state[: book.capacity]) != book.state or band.state[book.capacity :].any():
        yield Violation("conservation", f"pages of {band.name} are not in the state they should be")
    for what, theirs, ours, invariant in (
        ("virtual pages at places", band.table.virtual_at, book.virtual_at, "tables"),
        ("places of virtual pages", band.table.place_of, book.place_of, "tables"),
        ("pin counts", band.pin_count, book.pin_count, "pins"),
    ):
        if theirs.tobytes() != ours.tobytes():
            yield Violation(invariant, f"{what} of {band.name} are not what the effects told")
    unpublished = band.table.unpublished().tolist()
    if set(unpublished) != book.stale:
        yield Violation(
            "tables",
            f"band {band.name} has {len(unpublished)} rows to publish, {len(book.stale)} changed",
        )


def _waiting(model: Model, book: BandBook, books: Books) -> Iterator[Violation]:
    told = {
        int(place): stamp
        for stamp, band, places in books.tickets.snapshot()["pending"]
        if band == book.index
        for place in places
    }
    if told != model.waiting_pages(book):
        yield Violation(
            "happens_before",
            f"{len(told)} pages of {book.name} wait for tickets, but not those that were freed, or not "
            "for the ticket of that time",
        )
    if books.pins.deferred[book.index] != len(model.pinned_and_freed(book)):
        yield Violation("pins", f"pages of {book.name} freed under a pin are miscounted")


def _ids(model: Model, books: Books) -> Iterator[Violation]:
    spaces = [("token", books.ids, model.ids)]
    if model.state_band is not None:
        spaces.append(("state", books.state_ids, model.state_ids))
    for name, space, book in spaces:
        if (space.fresh, space.capacity) != (book.fresh, book.capacity):
            yield Violation("ids", f"{space.fresh} {name} ids were ever used, {book.fresh} is right")
        if space.bound.tobytes() != book.bound:
            yield Violation("ids", f"{name} ids are bound that nobody holds, or the reverse")
        if space.released_ids().tobytes() != book.released:
            yield Violation("ids", f"released {name} ids are not those that were released")
        if space.generation.tobytes() != book.generation.tobytes():
            yield Violation("ids", f"a {name} id's generation is not how often it was released")


def _requests(model: Model, arena: Arena) -> Iterator[Violation]:
    ledger = arena.books.ledger
    if sorted(ledger.row_of) != sorted(model.requests):
        yield Violation("ownership", "other requests run than were admitted")
        return
    if len(set(ledger.row_of.values())) != len(ledger.row_of):
        yield Violation("ownership", "two requests share a row")
    for number, request in model.requests.items():
        row = ledger.row_of[number]
        told = [
            int(column[row])
            for column in (
                ledger.request, ledger.length, ledger.launched, ledger.page_count, ledger.state_count,
                ledger.cached,
            )
        ]  # fmt: skip
        right = [
            number, request.length, request.launched, len(request.pages), len(request.slots),
            len(request.path),
        ]  # fmt: skip
        if told != right or ledger.first_kept[row].tolist() != request.first_kept:
            yield Violation("ownership", f"request {number} counts {told}, {right} is right")
            continue
        if ledger.token_pages(row).tolist() != request.pages.tolist():
            yield Violation("ownership", f"request {number} holds other pages than it took")
            continue
        if ledger.state_slots(row).tolist() != request.slots:
            yield Violation("ownership", f"request {number} holds other slots than it took")
            continue
        for band in model.bands:
            yield from holding(model, arena, number, band)
        ids = [page * model.page_size + i for page in request.pages for i in range(model.page_size)]
        if arena.token_ids(number).tolist() != ids[: request.length]:
            yield Violation("tables", f"the token ids of request {number} are not its pages'")


def holding(model: Model, arena: Arena, request: int, band: BandBook) -> Iterator[Violation]:
    """Where the arena says that a request's pages of a band lie, and where they do."""
    pages, first = arena.pages_of(request, band.name)
    kept = 0
    if band.window_number >= 0:
        kept = model.requests[request].first_kept[band.window_number]
    right = band.physical([band.place_of[page] for page in model.held(request, band)])
    if first != kept or pages.tolist() != right:
        yield Violation(
            "tables",
            f"request {request} is said to hold pages {pages.tolist()[:8]} of {band.name} from page "
            f"{first} on, it holds {right[:8]} from page {kept} on",
        )


def _tickets(model: Model, books: Books) -> Iterator[Violation]:
    tickets = books.tickets
    counts = tickets.issued, tickets.ordered_through, tickets.settled_through, tickets.unsettled
    right = model.issued, model.ordered_through, model.settled_through, model.unsettled
    if counts != right:
        yield Violation("happens_before", f"tickets stand at {counts}, {right} is right")
    if tickets.in_flight.keys() != model.flights.keys():
        yield Violation("happens_before", f"tickets {sorted(tickets.in_flight)} are in flight")
        return
    for ticket, forward in model.flights.items():
        for band in model.bands:
            if tickets.in_flight[ticket][band.index].tolist() != model.writes_of(forward, band):
                yield Violation(
                    "happens_before",
                    f"forward {ticket} is said to write other pages of {band.name} than it does",
                )


def compare_leases(model: Model, books: Books) -> Iterator[Violation]:
    """Which leases are held, and every fact of each."""
    pins = books.pins
    if pins.next_number != model.next_lease or pins.pins.keys() != model.holds.keys():
        yield Violation("pins", f"leases {sorted(pins.pins)} are held, {sorted(model.holds)} began")
        return
    for number, hold in model.holds.items():
        pin = pins.pins[number]
        told = (
            pin.number, pin.holder, pin.band, pin.places.tolist(), pin.virtual.tolist(),
            pin.begun_ticket, pin.purpose, pin.deadline_ticket, pin.generation.tolist(),
        )  # fmt: skip
        right = (
            number, hold.holder, hold.band.index, hold.places, hold.virtual,
            hold.begun_ticket, hold.purpose, hold.deadline_ticket, hold.generation,
        )  # fmt: skip
        if told != right:
            yield Violation("pins", f"lease {number} is {told}, {right} is what began")
    if books.gate_closed is not model.gate_closed:
        yield Violation("pins", f"the gate counts as closed: {books.gate_closed}")


def _answers(model: Model, arena: Arena) -> Iterator[Violation]:
    books = arena.books
    ages = [(fact.number, fact.age_tickets, fact.pages) for fact in arena.leases()]
    right_ages = [
        (number, model.issued - hold.begun_ticket, len(hold.places))
        for number, hold in sorted(model.holds.items())
    ]
    if ages != right_ages:
        yield Violation("pins", f"leases are reported as {ages}, {right_ages} is right")
    free = sum(stop - start for start, stop in books.chain.gaps())
    if free != model.free_bytes():
        yield Violation("conservation", f"gaps of {free} bytes, {model.free_bytes()} are free")
    told = [tuple(span) for span in books._extents_told]
    if books.observer is not None and told != [band.told for band in model.bands]:
        yield Violation("order", "an extent was told that the arena does not remember, or the reverse")
    for fact, band in zip(arena.facts(), model.bands, strict=True):
        if (fact.live, fact.holes, fact.pending) != (band.live, band.holes, band.pending):
            yield Violation("conservation", f"the facts of {band.name} are not those of its pages")
