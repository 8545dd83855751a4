"""Group cache: prefixes that are shared, published, kept or evicted in a wrong way."""

from __future__ import annotations

from bandscope.fuzz.faults.planting import Edit, Fault, edited


def _fault(name: str, what: str, *edits: Edit, source: str = "docs/prefix.md") -> Fault:
    return Fault(name, "cache", source, what, edited(*edits))


_MATCHES = (
    _fault(
        "match-not-held",
        "What a request was given by a match is not held for it, and may be evicted under it.",
        (
            "cache_handlers.admit",
            "lease = tree.lock(match, state=has_state)",
            "lease = tree.lock(tree.peek(key, 0))",
        ),
    ),
    _fault(
        "match-over-a-tombstone",
        "A match goes on behind window pages that were evicted, where a later node keeps its own.",
        ("prefix.PrefixTree._find", "if reach and run[window]:", "if reach and node.first[window]:"),
        ("prefix.PrefixTree._keeps", "return False", "continue"),
    ),
    _fault(
        "window-reach-a-page-short",
        "A match asks for one window page less than the next token attends to.",
        (
            "prefix_nodes.CacheShape.reaches",
            "-(-(tokens - 1) // self.page_size)",
            "(tokens - 1) // self.page_size",
        ),
    ),
    _fault(
        "match-ignores-its-limit",
        "A match gives more than was asked for, so that no token is left to compute.",
        (
            "prefix.PrefixTree._find",
            "limit = min(matched, max(0, limit_tokens) // shape.page_size)",
            "limit = matched",
        ),
    ),
    _fault(
        "match-without-a-slot",
        "A request without a state slot of its own is given a prefix whose state it cannot have.",
        (
            "cache_handlers.admit",
            "limit = 0 if books.state is not None and not slots else op.limit_tokens",
            "limit = op.limit_tokens",
        ),
    ),
    _fault(
        "matched-windows-from-the-start",
        "A request is said to keep window pages of its match that the cache has evicted.",
        (
            "cache_handlers.admit",
            "ledger.first_kept[row, books.windows.index(window)] = start",
            "ledger.first_kept[row, books.windows.index(window)] = 0",
        ),
    ),
    _fault(
        "match-shares-the-slot",
        "A request writes its state into the slot of the cache, which it was to copy.",
        (
            "cache_handlers.admit",
            'books.copy_state(match.state_slot, int(virtual[0]), "match")',
            "ledger.state[row, 0] = match.state_slot",
        ),
    ),
    _fault(
        "match-copies-the-wrong-way",
        "The new slot is copied over the state that the cache keeps.",
        (
            "cache_handlers.admit",
            'books.copy_state(match.state_slot, int(virtual[0]), "match")',
            'books.copy_state(int(virtual[0]), match.state_slot, "match")',
        ),
    ),
    _fault(
        "admission-evicts-the-state-it-copies",
        "Room for an admission is made by evicting the very state that it was to start from.",
        (
            "cache_handlers.admit",
            "lease = tree.lock(match, state=has_state)",
            "lease = tree.lock(match)",
        ),
    ),
    _fault(
        "copied-state-held-for-ever",
        "The state that a match was copied from cannot be evicted while the request runs.",
        ("cache_handlers.admit", "tree.let_go_of_state(lease)", "pass"),
    ),
    _fault(
        "match-is-no-use",
        "What a match uses does not count as used, so that it is the first to be evicted.",
        ("prefix.PrefixTree.match", "self._touch(node, found.window_from, clock)", "pass"),
    ),
)

_PUBLICATIONS = (
    _fault(
        "duplicate-released-twice",
        "The id of a duplicate is given back twice, so that two owners get it.",
        (
            "cache_handlers._free",
            "books.release_ids(per_band)",
            "books.release_ids(per_band)\n    books.ids.release(per_band[books.full][:1])",
        ),
    ),
    _fault(
        "duplicate-not-freed",
        "A request goes over to the cache's page and its own copy stays for ever.",
        ("cache_handlers._insert", "_free(books, published.duplicates, request)", "pass"),
    ),
    _fault(
        "row-keeps-its-duplicate",
        "A request goes on naming the copy that was freed for it.",
        ("cache_handlers._insert", "ledger.pages[row, start : published.depth] = shared", "pass"),
    ),
    _fault(
        "publishes-what-is-not-computed",
        "Pages that have room but were never launched are published as if they held their tokens.",
        (
            "cache_handlers._insert",
            "int(ledger.launched[row]) // books.plan.page_size",
            "int(ledger.length[row]) // books.plan.page_size",
        ),
    ),
    _fault(
        "publishes-half-a-page",
        "The last page is published although a part of its tokens is missing.",
        (
            "cache_handlers._insert",
            "int(ledger.launched[row]) // books.plan.page_size",
            "-(-int(ledger.launched[row]) // books.plan.page_size)",
        ),
    ),
    _fault(
        "split-loses-window-leases",
        "When a node is cut, its upper part forgets which window pages are held.",
        (
            "prefix_books.PrefixBooks.split",
            "upper.window_locks[window] = locks[:pages].copy()",
            "upper.window_locks[window] = np.zeros_like(locks[:pages])",
        ),
    ),
    _fault(
        "split-loses-leases",
        "When a node is cut, its upper part counts as held by nobody.",
        ("prefix_books.PrefixBooks.split", "upper.locks = node.locks", "upper.locks = 0"),
    ),
    _fault(
        "trim-frees-shared-pages",
        "A window is trimmed and the cache's pages are freed as if they were the request's own.",
        (
            "handlers.trim_window",
            "own = np.clip(cached, first, stop)",
            "loosened |= np.clip(cached, first, stop) > first",
        ),
    ),
    _fault(
        "trim-keeps-its-lease",
        "A trimmed window is held in the cache as long as the request runs.",
        (
            "handlers.trim_window",
            "books.cache.trim(ledger.request[rows[loosened]].tolist(), lengths[loosened].tolist())",
            "pass",
        ),
    ),
    _fault(
        "lease-trimmed-a-page-too-far",
        "A request lets go of the cache's window page that its next token attends to.",
        (
            "prefix.PrefixTree.trim",
            "min(self.shape.kept_from(window, tokens), held.node.stop)",
            "min(self.shape.kept_from(window, tokens) + 1, held.node.stop)",
        ),
    ),
    _fault(
        "release-drops-shared-pages",
        "A request that leaves frees the pages that it shares with the cache.",
        ("handlers.release", "cached = int(ledger.cached[row])", "cached = 0"),
    ),
    _fault(
        "release-frees-what-it-published",
        "Pages that a leaving request has just published are freed as its own.",
        ("cache_handlers.leave", "books.ledger.cached[row] = published.depth", "pass"),
    ),
    _fault(
        "release-keeps-its-hold",
        "The prefix of a request that has left is held for ever.",
        (
            "cache.PrefixCache.leave",
            "self.tree.unlock(self.sharing.pop(request).lease)",
            "self.sharing.pop(request)",
        ),
    ),
)

_CHECKPOINTS = (
    _fault(
        "working-slot-given-away",
        "The cache is given the slot that the request goes on writing, not the copy.",
        (
            "cache_handlers.checkpoint",
            "given = [(tokens, int(slot[0]))]",
            "given = [(tokens, working)]",
        ),
    ),
    _fault(
        "checkpoint-copied-too-early",
        "The state is copied before the forward that computes it has ended.",
        (
            "cache_handlers.checkpoint",
            "if (books.tickets.unsettled_writes(band.index) == working).any():",
            "if False:",
        ),
    ),
    _fault(
        "checkpoint-copies-the-wrong-way",
        "The fresh slot is copied over the state of the request.",
        (
            "cache_handlers.checkpoint",
            'books.copy_state(working, int(slot[0]), "checkpoint")',
            'books.copy_state(int(slot[0]), working, "checkpoint")',
        ),
    ),
    _fault(
        "checkpoint-of-another-slot",
        "Of several slots of a request not the first, which holds its state, is kept.",
        ("cache_handlers._checkpoint_place", "int(slots[0])", "int(slots[-1])"),
    ),
    _fault(
        "stall-publishes",
        "A checkpoint that found no slot publishes its pages all the same, and says it was kept.",
        (
            "cache_handlers.checkpoint",
            "return _stall(books, cache)",
            "return publish(books, ops.Publish(op.request, op.key))",
        ),
    ),
)

_EVICTIONS = (
    _fault(
        "held-pages-evicted",
        "A prefix that a single request holds counts as free to go.",
        ("prefix_books.PrefixBooks._full_key", "or node.locks or", "or node.locks > 1 or"),
        ("prefix_books.PrefixBooks._count", "if not node.locks:", "if node.locks < 2:"),
        ("prefix_books.PrefixBooks.drop_tail", "assert not node.locks and", "assert"),
    ),
    _fault(
        "held-window-pages-evicted",
        "Window pages that a single request holds count as free to go.",
        (
            "prefix_nodes.Node.window_stop",
            "np.searchsorted(locks, 1)",
            "np.searchsorted(locks, 2)",
        ),
    ),
    _fault(
        "evicted-ids-leak",
        "Evicted pages are freed, but their ids never come back.",
        ("books.Books.evict", "self.release_ids(per_band)", "pass"),
    ),
    _fault(
        "evicted-windows-leak",
        "An evicted page of full attention leaves its window page behind.",
        (
            "prefix_books.PrefixBooks.drop_tail",
            "freed[band] = node.pages[max(node.first[window], left) :]",
            "freed[band] = NONE",
        ),
    ),
    _fault(
        "evicted-slots-leak",
        "An evicted page takes its checkpoint along, whose slot stays for ever.",
        (
            "prefix_books.PrefixBooks.drop_tail",
            "freed[shape.state] = np.array([self._forget(node, depth) for depth in gone], np.int64)",
            "freed[shape.state] = np.array([self._forget(node, depth) for depth in gone], np.int64)[:0]",
        ),
    ),
    _fault(
        "evicts-in-vain",
        "What turned out not to be needed for a demand is evicted all the same.",
        ("prefix_evict.evict", "run.reduce()", "pass"),
    ),
    _fault(
        "capacity-ignores-the-cache",
        "A demand that evicting would serve is said not to fit.",
        (
            "books.Books.serves",
            "return self.cache is not None and self.cache.serves(self.chain, held, beside)",
            "return False",
        ),
    ),
    _fault(
        "capacity-counts-held-pages",
        "Cached pages that requests hold are counted as room.",
        (
            "cache.PrefixCache.serves",
            "freed = self.evictable(beside)",
            "freed = self.evictable(beside) if beside is not None else self.tree.cached",
        ),
    ),
    _fault(
        "admission-counts-its-own-match",
        "The prefix that a request is about to share is counted as room for its slots.",
        (
            "cache_handlers.admit",
            "if not books.serves(demand, beside=found):",
            "if not books.serves(demand):",
        ),
        (
            "cache_handlers.admit",
            'assert not isinstance(regions, Outcome), "what is served with a prefix held can be made"',
            "if isinstance(regions, Outcome):\n        tree.unlock(lease)\n        return regions",
        ),
    ),
)

_PINS = (
    _fault(
        "pin-does-not-hold-its-prefix",
        "A pinned page of the cache is evicted and frees no room.",
        ("handlers.lease", "books.cache.pin(pin.number, op.request)", "pass"),
    ),
    _fault(
        "pin-does-not-follow",
        "A pin does not hold what its request publishes later.",
        (
            "cache.PrefixCache.publish",
            "for pin in [pin for pin, owner in self.pin_requests.items() if owner == request]:",
            "for pin in ():",
        ),
    ),
    _fault(
        "pin-ends-with-its-request",
        "A pinned prefix may be evicted once the request has left.",
        (
            "cache.PrefixCache.leave",
            "del self.pin_requests[pin]",
            "self._let_go(pin)\n            del self.pin_requests[pin]",
        ),
    ),
    _fault(
        "restore-forgets-pinned-prefixes",
        "After a restore the end of a lease no longer lets go of its prefix.",
        (
            "cache.PrefixCache.restore",
            'self.pin_leases = dict(state["pin_leases"])',
            "self.pin_leases = {}",
        ),
    ),
)

FAULTS = _MATCHES + _PUBLICATIONS + _CHECKPOINTS + _EVICTIONS + _PINS
