"""What the operations of the prefix cache do to the books: match, publish, checkpoint, evict, leave.

As in `handlers.py`, a handler checks, then makes room, then changes. A match is part of an admission,
so that a slot and a lease are taken together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.books import Books
from bandscope.allocator.cache import PrefixCache
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.events import CACHE
from bandscope.allocator.operations import Outcome
from bandscope.allocator.prefix_insert import Inserted
from bandscope.allocator.tables import Pages


def cache_of(books: Books, what: str) -> PrefixCache:
    """The cache; `MisuseError` on an arena without one."""
    if books.cache is None:
        raise MisuseError(
            f"{what} was asked of an arena without a prefix cache; leave it out, or build the arena "
            "with prefix_cache"
        )
    return books.cache


def admit(books: Books, op: ops.Admit, slots: int) -> Outcome:
    """A request enters with what the cache has of its prefix; `slots` of state."""
    cache = cache_of(books, "a match")
    tree, ledger = cache.tree, books.ledger
    if op.limit_tokens is not None and op.limit_tokens < 0:
        raise MisuseError(
            f"a match of at most {op.limit_tokens} tokens was asked for; give 0 or more"
        )
    key = cache.key(None, op.key)
    # Without a slot of its own there is nowhere to copy the state to.
    limit = 0 if books.state is not None and not slots else op.limit_tokens
    demand = books.slot_demand(slots)
    found = tree.peek(key, limit)
    if not books.serves(demand, beside=found):
        return books.refuse(demand, beside=found)
    match = tree.match(key, cache.next_clock, limit)
    has_state = match.state_slot is not None
    lease = tree.lock(match, state=has_state)
    regions = books.make_room(demand)
    assert not isinstance(regions, Outcome), "what is served with a prefix held can be made"
    row = ledger.add(op.request)
    cache.enter(op.request, key, match, lease)
    if slots:
        assert books.state is not None
        virtual = books.state_ids.mint(slots)
        ledger.append_state(row, virtual)
        books.take(books.bands[books.state], virtual, regions[books.state], op.request)
        if match.state_slot is not None:
            books.copy_state(match.state_slot, int(virtual[0]), "match")
            tree.let_go_of_state(lease)
    if match.depth:
        ledger.append_pages(row, match.pages)
        ledger.length[row] = ledger.launched[row] = match.tokens
        for window, start in zip(tree.shape.windows, match.window_from, strict=True):
            ledger.first_kept[row, books.windows.index(window)] = start
        if books.observer is not None:
            books.observer.share(op.request, 0, match.pages)
    books.tell_extents("admit")
    return Outcome(True, match.tokens)


def publish(books: Books, op: ops.Publish) -> Outcome:
    cache = cache_of(books, "a publication")
    row = books.ledger.row(op.request)
    sharing = cache.sharing[op.request]
    sharing.key = cache.key(sharing.key, op.key)
    published = _insert(books, cache, row, op.request, lease=sharing.lease)
    cache.publish(op.request, published.depth)
    books.tell_extents("publish")
    return Outcome(True, sharing.pages * books.plan.page_size)


def checkpoint(books: Books, op: ops.Checkpoint) -> Outcome:
    cache = cache_of(books, "a checkpoint")
    tree, ledger = cache.tree, books.ledger
    row = ledger.row(op.request)
    sharing = cache.sharing[op.request]
    key = cache.key(sharing.key, op.key)
    tokens, working = _checkpoint_place(books, cache, row, op.request, key)
    depth = tokens // books.plan.page_size
    given: list[tuple[int, int]] = []
    there = tree.checkpoint_at(key, depth)
    if there is None:
        demand = books.slot_demand(1)
        if not books.serves(demand):
            return _stall(books, cache)
        regions = books.make_room(demand)
        assert books.state is not None and not isinstance(regions, Outcome)
        band = books.bands[books.state]
        if (books.tickets.unsettled_writes(band.index) == working).any():
            books.settle("state checkpoint")
        slot = books.state_ids.mint(1)
        books.take(band, slot, regions[band.index], CACHE)
        books.copy_state(working, int(slot[0]), "checkpoint")
        given = [(tokens, int(slot[0]))]
    sharing.key = key
    published = _insert(books, cache, row, op.request, lease=sharing.lease, checkpoints=given)
    cache.publish(op.request, published.depth)
    there = tree.checkpoint_at(key, depth)
    assert there is not None, "what is published reaches the checkpoint"
    there.clock = tree.clock
    books.tell_extents("checkpoint")
    return Outcome(True, tokens)


def _stall(books: Books, cache: PrefixCache) -> Outcome:
    """No slot for a checkpoint: nothing happens, and the outcome says who has them."""
    assert books.state is not None
    slots = {
        "running": books.bands[books.state].live - cache.tree.cached[books.state],
        "locked": cache.tree.cached[books.state] - cache.tree.evictable[books.state],
        "leased": sum(pin.band == books.state for pin in books.pins.pins.values()),
    }
    told = ", ".join(f"{count} {who}" for who, count in slots.items())
    return Outcome(True, 0, message=f"no slot for a checkpoint: {told}", detail=slots)


def evict(books: Books, op: ops.Evict) -> Outcome:
    cache = cache_of(books, "an eviction")
    if len(op.pages) != len(books.bands) or min(op.pages) < 0:
        raise MisuseError(
            f"an eviction of {op.pages} pages was asked for; give pages ≥ 0 for each of the bands "
            f"{', '.join(band.name for band in books.bands)}"
        )
    gone = cache.tree.evict_counts(op.pages).pages
    books.evict(op.pages, gone)
    return Outcome(True, sum(ids.size for ids in gone))


def leave(books: Books, row: int, op: ops.Release) -> None:
    """What a release does to the cache, before the request's own pages are freed."""
    cache = books.cache
    if cache is None:
        if op.publish or op.key:
            cache_of(books, "a publication")
        return
    sharing = cache.sharing[op.request]
    published = None
    if op.publish:
        sharing.key = cache.key(sharing.key, op.key)
        published = _insert(books, cache, row, op.request, lease=None)
        books.ledger.cached[row] = published.depth
    elif op.key:
        raise MisuseError(
            f"request {op.request} was released with more of its key, but not published; leave the "
            "key out, or publish"
        )
    cache.leave(op.request, published)


# --- shared steps ---------------------------------------------------------------------------------


def _insert(
    books: Books,
    cache: PrefixCache,
    row: int,
    request: int,
    *,
    lease: int | None,
    checkpoints: Sequence[tuple[int, int]] = (),
) -> Inserted:
    """Publish the whole launched pages of a request that its key names. Copies that are not needed
    are freed; the row names the cache's pages."""
    tree, ledger = cache.tree, books.ledger
    sharing = cache.sharing[request]
    unit = tree.shape.unit
    pages = min(int(ledger.launched[row]) // books.plan.page_size, sharing.key.size // unit)
    kept = [
        int(ledger.first_kept[row, books.windows.index(window)]) for window in tree.shape.windows
    ]
    published = tree.insert(
        sharing.key[: pages * unit],
        ledger.pages[row, :pages].astype(np.int64),
        cache.next_clock,
        kept_from=kept,
        checkpoints=checkpoints,
        lease=lease,
    )
    start = sharing.pages
    shared = published.pages[start:]
    ledger.pages[row, start : published.depth] = shared
    if shared.size and books.observer is not None:
        books.observer.share(request, start, shared)
    for window, (virtual, into) in zip(tree.shape.windows, published.grafts, strict=True):
        books.graft(books.bands[window], virtual, into, request)
    _free(books, published.duplicates, request)
    return published


def _free(books: Books, per_band: Sequence[Pages], request: int) -> None:
    """A request's copies that are not needed, and their ids."""
    for band in books.bands:
        ids = per_band[band.index]
        books.drop(band, ids, request)
    books.release_ids(per_band)


def _checkpoint_place(
    books: Books, cache: PrefixCache, row: int, request: int, key: np.ndarray
) -> tuple[int, int]:
    """After how many tokens the checkpoint stands, and the slot that holds the state."""
    ledger, shape = books.ledger, cache.tree.shape
    slots = ledger.state_slots(row)
    if books.state is None or not slots.size:
        raise MisuseError(
            f"a checkpoint of request {request} was asked for, but it has no state; publish it only"
        )
    tokens, launched = int(ledger.length[row]), int(ledger.launched[row])
    if launched != tokens or not tokens or tokens % shape.grid_tokens:
        raise MisuseError(
            f"a checkpoint of request {request} was asked for at {tokens} tokens, of which {launched} "
            f"are launched; checkpoint on the grid of {shape.grid_tokens} tokens, after the launch"
        )
    if key.size < tokens // shape.page_size * shape.unit:
        raise MisuseError(
            f"a checkpoint of request {request} at {tokens} tokens was asked for under a key for "
            f"{key.size // shape.unit * shape.page_size}; continue the key"
        )
    return tokens, int(slots[0])
