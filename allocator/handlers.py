"""What each operation does to the books. One function per operation, looked up by its type.

A handler checks, then makes room (the only step that can refuse), then changes. Illegal calls raise
`MisuseError` before anything changed; `Arena.apply` turns that into an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bandscope.allocator import cache_handlers, compaction, events
from bandscope.allocator import operations as ops
from bandscope.allocator.books import Books
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.leases import PURPOSES
from bandscope.allocator.operations import DONE, Outcome
from bandscope.allocator.tables import Pages

REQUEST_MAX = (1 << 63) - 1


def admit(books: Books, op: ops.Admit) -> Outcome:
    if op.request in books.ledger.row_of:
        raise MisuseError(
            f"request {op.request} was admitted twice; release it before admitting it again"
        )
    if not 0 <= op.request <= REQUEST_MAX or op.state_slots < 0:
        raise MisuseError(
            f"request {op.request} with {op.state_slots} state slots was admitted; give a request "
            f"from 0 to {REQUEST_MAX:,} and 0 or more slots"
        )
    if books.cache is not None:
        return cache_handlers.admit(books, op, op.state_slots if books.state is not None else 0)
    if op.key or op.limit_tokens is not None:
        cache_handlers.cache_of(books, "a match")
    if books.state is None or not op.state_slots:
        books.ledger.add(op.request)
        return DONE
    regions = books.make_room(books.slot_demand(op.state_slots))
    if isinstance(regions, Outcome):
        return regions
    row = books.ledger.add(op.request)
    virtual = books.state_ids.mint(op.state_slots)
    books.ledger.append_state(row, virtual)
    books.take(books.bands[books.state], virtual, regions[books.state], op.request)
    books.tell_extents("admit")
    return DONE


def extend(books: Books, op: ops.Extend) -> Outcome:
    row = books.ledger.row(op.request)
    if op.tokens < 0:
        raise MisuseError(
            f"request {op.request} was extended by {op.tokens} tokens; extend by 0 or more"
        )
    ledger = books.ledger
    length = int(ledger.length[row]) + op.tokens
    pages = -(-length // books.plan.page_size) - int(ledger.page_count[row])
    if pages > 0:
        taken = _take_token_pages(books, pages, op.request)
        if isinstance(taken, Outcome):
            return taken
        ledger.append_pages(row, taken)
        books.tell_extents("extend")
    ledger.length[row] = length
    return DONE


def decode(books: Books, op: ops.Decode) -> Outcome:
    ledger = books.ledger
    rows = ledger.rows(op.requests)
    full_rows = rows[ledger.length[rows] == ledger.page_count[rows] * books.plan.page_size]
    if full_rows.size:
        taken = _take_token_pages(books, full_rows.size, ledger.request[full_rows])
        if isinstance(taken, Outcome):
            return taken
        columns = ledger.page_count[full_rows]
        ledger.reach(int(columns.max()) + 1)
        ledger.pages[full_rows, columns] = taken
        ledger.page_count[full_rows] = columns + 1
        books.tell_extents("decode")
    ledger.length[rows] += 1
    return DONE


def trim_window(books: Books, op: ops.TrimWindow) -> Outcome:
    ledger = books.ledger
    rows = ledger.rows(op.requests)
    lengths, cached = ledger.length[rows], ledger.cached[rows]
    loosened = np.zeros(rows.size, bool)
    for number, (index, window) in enumerate(
        zip(books.windows, books.window_lengths, strict=True)
    ):
        if window is None:  # an unstated length keeps everything
            continue
        # The next token, at position `length`, attends to positions > length − window.
        keep = np.maximum(0, lengths - window + 1) // books.plan.page_size
        first = ledger.first_kept[rows, number]
        if not np.count_nonzero(keep > first):
            continue
        stop = np.maximum(keep, first)
        own = first
        if books.cache is not None:
            own = np.clip(cached, first, stop)
            loosened |= own > first
        virtual = ledger.spans(rows, own, stop)
        books.drop(books.bands[index], virtual, np.repeat(ledger.request[rows], stop - own))
        ledger.first_kept[rows, number] = stop
    if books.cache is not None:
        books.cache.trim(ledger.request[rows[loosened]].tolist(), lengths[loosened].tolist())
    books.tell_extents("trim")
    return DONE


def release(books: Books, op: ops.Release) -> Outcome:
    row = books.ledger.row(op.request)
    holder = op.request
    ledger = books.ledger
    cache_handlers.leave(books, row, op)
    cached = int(ledger.cached[row])
    for number, index in enumerate(books.windows):
        kept = ledger.token_pages(row, max(cached, int(ledger.first_kept[row, number])))
        books.drop(books.bands[index], kept, holder)
    virtual = ledger.token_pages(row, cached)
    if virtual.size:
        books.drop(books.bands[books.full], virtual, holder)
        books.ids.release(virtual)
    if books.state is not None:
        slots = ledger.state_slots(row)
        if slots.size:
            books.drop(books.bands[books.state], slots, holder)
            books.state_ids.release(slots)
    ledger.remove(op.request)
    books.tell_extents(op.why)
    return DONE


def launch(books: Books, op: ops.Launch) -> Outcome:
    ledger = books.ledger
    rows = ledger.rows(op.requests)
    books.publish()
    first = ledger.launched[rows] // books.plan.page_size
    written = ledger.spans(rows, first, np.maximum(first, ledger.page_count[rows]))
    writes: dict[int, Pages] = {index: written for index in books.token_bands}
    if books.state is not None:
        slots = [ledger.state_slots(row) for row in rows.tolist()]
        writes[books.state] = np.concatenate(slots) if slots else np.empty(0, np.int64)
    ticket = books.tickets.launch(writes)
    ledger.launched[rows] = ledger.length[rows]
    books.device.launch(ticket)
    if books.observer is not None:
        books.observer.launched(ticket, op.requests)
    return Outcome(True, ticket)


def complete(books: Books, op: ops.Complete) -> Outcome:
    books.tickets.complete(op.ticket)
    if books.observer is not None:
        books.observer.done(op.ticket)
    books.reclaim()
    return DONE


def compact(books: Books, op: ops.Compact) -> Outcome:
    if op.max_moves is not None and op.max_moves < 0:
        raise MisuseError(f"compaction was asked for {op.max_moves} moves; ask for 0 or more")
    books.reclaim()
    if books.gate_closed:
        return Outcome(True, 0)
    if op.urgent:
        return Outcome(True, compaction.pack_all(books))
    cap = books.config.max_moves if op.max_moves is None else op.max_moves
    return Outcome(True, compaction.opportunistic(books, cap))


def reserve(books: Books, op: ops.Reserve) -> Outcome:
    if len(op.demand) != len(books.bands) or min(op.demand) < 0:
        raise MisuseError(
            f"a demand of {op.demand} was reserved; give pages ≥ 0 for each of the bands "
            f"{', '.join(band.name for band in books.bands)}"
        )
    regions = books.make_room(op.demand)
    return regions if isinstance(regions, Outcome) else DONE


def lease(books: Books, op: ops.Lease) -> Outcome:
    row = books.ledger.row(op.request)
    names = [band.name for band in books.bands]
    if op.band not in names:
        raise MisuseError(f"a lease named band {op.band!r}; the bands are {', '.join(names)}")
    band = books.bands[names.index(op.band)]
    ids = books.ids
    if band.index == books.state:
        held, ids, trimmed = books.ledger.state_slots(row), books.state_ids, 0
    else:
        held = books.ledger.token_pages(row)
        trimmed = 0
        if band.index in books.windows:
            trimmed = int(books.ledger.first_kept[row, books.windows.index(band.index)])
    if not trimmed <= op.first_page < op.stop_page <= held.size:
        raise MisuseError(
            f"a lease named pages {op.first_page} to {op.stop_page} of request {op.request} in "
            f"{op.band}, which holds pages {trimmed} to {held.size}; lease pages that are held"
        )
    if op.purpose not in PURPOSES:
        raise MisuseError(
            f"a lease for {op.purpose!r} was asked for; the purposes are {', '.join(PURPOSES)}"
        )
    books.device.issue_fills()  # the holder looks at the bytes without a launch
    virtual = held[op.first_page : op.stop_page]
    pin = books.pins.begin(
        band.index,
        virtual,
        ids.generation[virtual],
        holder=op.holder,
        purpose=op.purpose,
        begun_ticket=books.tickets.issued,
        deadline_ticket=op.deadline_ticket,
    )
    if books.cache is not None:
        books.cache.pin(pin.number, op.request)
    if books.observer is not None:
        physical = band.physical(pin.places)
        books.observer.lease_begin(op.holder, band.name, virtual, physical, pin.number)
    return Outcome(True, pin.number)


def end_lease(books: Books, op: ops.EndLease) -> Outcome:
    books.unpin(op.lease, op.holder)
    books.tell_extents("lease end")
    return DONE


def set_gate(books: Books, op: ops.SetGate) -> Outcome:
    books.gate_closed = op.closed
    return DONE


def _take_token_pages(books: Books, pages: int, holder: events.Holder) -> Pages | Outcome:
    """Fresh virtual pages, bound in every token band; or the refusal."""
    demand = [pages] * len(books.bands)
    if books.state is not None:
        demand[books.state] = 0
    regions = books.make_room(demand)
    if isinstance(regions, Outcome):
        return regions
    virtual = books.ids.mint(pages)
    for index in books.token_bands:
        books.take(books.bands[index], virtual, regions[index], holder)
    return virtual


HANDLERS: dict[type, Callable[[Books, Any], Outcome]] = {
    ops.Admit: admit,
    ops.Extend: extend,
    ops.Decode: decode,
    ops.TrimWindow: trim_window,
    ops.Release: release,
    ops.Launch: launch,
    ops.Complete: complete,
    ops.Compact: compact,
    ops.Reserve: reserve,
    ops.Lease: lease,
    ops.EndLease: end_lease,
    ops.SetGate: set_gate,
    ops.Publish: cache_handlers.publish,
    ops.Checkpoint: cache_handlers.checkpoint,
    ops.Evict: cache_handlers.evict,
}
