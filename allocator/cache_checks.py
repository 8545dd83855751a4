"""What holds between the prefix cache and the books around it, recomputed from the tree's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bandscope.allocator import prefix_checks
from bandscope.allocator.books import Books
from bandscope.allocator.cache import PrefixCache
from bandscope.allocator.tables import Pages

_NONE: Pages = np.empty(0, np.int64)


def cached_pages(books: Books, band: int) -> Pages:
    """The virtual pages that the cache keeps in a token band, in the order of its nodes."""
    if books.cache is None:
        return _NONE
    tree = books.cache.tree
    first = [0] * len(tree.nodes)
    if band in tree.shape.windows:
        window = tree.shape.windows.index(band)
        first = [node.first[window] for node in tree.nodes.values()]
    nodes = zip(tree.nodes.values(), first, strict=True)
    return np.concatenate([node.pages[start:] for node, start in nodes])


def cached_slots(books: Books) -> Pages:
    """The virtual slots of its checkpoints."""
    if books.cache is None:
        return _NONE
    return np.array([one.slot for one in books.cache.tree.checkpoints.values()], np.int64)


def broken(books: Books) -> Iterator[tuple[str, str]]:
    """(invariant, message) of what does not hold; nothing without a cache."""
    cache = books.cache
    if cache is None:
        if books.ledger.cached.any():
            yield "ownership", "requests share pages of a prefix cache, but there is none"
        return
    for found in prefix_checks.check(cache.tree):
        yield "ownership", f"prefix cache, {found.invariant}: {found.message}"
    yield from _sharing(books, cache)
    yield from _leases(books, cache)


def _sharing(books: Books, cache: PrefixCache) -> Iterator[tuple[str, str]]:
    """Every request shares a prefix: its row begins with the pages that its lease holds."""
    ledger, tree, page = books.ledger, cache.tree, books.plan.page_size
    if set(cache.sharing) != set(ledger.row_of):
        yield "ownership", "the requests that share prefixes are not those that run"
        return
    for request, sharing in cache.sharing.items():
        row = ledger.row(request)
        lease = tree.leases.get(sharing.lease)
        if lease is None:
            yield "ownership", f"request {request} shares under lease {sharing.lease}, which ended"
            continue
        parts = [part.pages for part in tree.path(lease.node)][::-1]
        held = np.concatenate(parts) if parts else _NONE
        mine = ledger.token_pages(row)[: sharing.pages]
        if not sharing.pages == held.size == int(ledger.cached[row]) or (mine != held).any():
            yield "ownership", (
                f"request {request} shares {sharing.pages} pages ({int(ledger.cached[row])} by its "
                f"row) and its lease holds {held.size}, or others"
            )
        if sharing.pages * page > int(ledger.launched[row]):
            yield "content", f"request {request} shares pages that nobody has computed"
        keys = [part.key for part in tree.path(lease.node)][::-1]
        key = np.concatenate(keys) if keys else _NONE
        if key.size > sharing.key.size or (sharing.key[: key.size] != key).any():
            yield "ownership", f"request {request} shares a prefix with another key than its own"
        kept = [books.windows.index(window) for window in tree.shape.windows]
        for window, number in enumerate(kept):
            first = int(ledger.first_kept[row, number])
            if lease.window_from[window] > first and first < sharing.pages:
                yield "ownership", (
                    f"request {request} needs window pages from {first} on, but its lease holds those "
                    f"from {lease.window_from[window]}"
                )


def _leases(books: Books, cache: PrefixCache) -> Iterator[tuple[str, str]]:
    """The tree's leases are those of running requests and of pins; a pin holds all its pages."""
    known = [sharing.lease for sharing in cache.sharing.values()] + list(cache.pin_leases.values())
    if sorted(known) != sorted(cache.tree.leases):
        yield "pins", (
            f"the prefix cache has the leases {sorted(cache.tree.leases)}, requests and pins know "
            f"{sorted(known)}"
        )
    stray = (set(cache.pin_leases) | set(cache.pin_requests)) - set(books.pins.pins)
    if stray:
        yield "pins", f"pins {sorted(stray)} have ended, but the prefix cache still knows them"
    if not books.pins.pins:
        return
    tree = cache.tree
    for number, pin in books.pins.pins.items():
        if pin.band == books.state:
            continue
        # By place: a graft gives a pinned page another name.
        names = books.bands[pin.band].table.virtual_at[pin.places]
        names = names[names >= 0]
        names = names[tree.owned_of(names)]
        lease = tree.leases.get(cache.pin_leases.get(number, -1))
        held = set()
        if lease is not None:
            held = {page for part in tree.path(lease.node) for page in part.pages.tolist()}
        loose = [page for page in names.tolist() if page not in held]
        if loose:
            yield "pins", f"pin {number} does not hold page {loose[0]}, which may be evicted under it"
