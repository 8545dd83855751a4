"""A naive prefix cache, and an engine that drives it and the tree side by side.

The oracle is a dictionary from prefixes (tuples of page keys) to pages. It never looks at nodes: what
can be said page by page it computes, and where the tree may choose (which page goes, which of two
copies stays) it checks that the choice was allowed and follows it. The engine plays the arena: sets of
live ids per band, so that a page freed twice, or never, is found.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from bandscope.allocator.prefix import PrefixTree
from bandscope.allocator.prefix_checks import check
from bandscope.allocator.prefix_insert import Inserted
from bandscope.allocator.prefix_nodes import CacheShape

Prefix = tuple[tuple[int, ...], ...]


@dataclass
class Entry:
    page: int
    kept: list[bool]
    clock: int


@dataclass
class Running:
    tokens: list[int]
    pages: list[int]
    kept_from: list[int]
    lease: int
    cached: int  # pages at the front that the tree owns
    checkpoints: list[tuple[int, int]] = field(default_factory=list)


class Engine:
    """Requests over a tree of the given shape, everything checked after every operation."""

    def __init__(self, shape: CacheShape, seed: int, alphabet: int = 2, pages_max: int = 12) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        self.alphabet, self.pages_max = alphabet, pages_max
        self.tree = PrefixTree(shape)
        self.cache: dict[Prefix, Entry] = {}
        self.states: dict[Prefix, int] = {}
        self.live: list[set[int]] = [set() for _ in range(shape.bands)]
        self.content: dict[int, Prefix] = {}
        self.slot_content: dict[int, Prefix] = {}
        self.free_ids = list(range(4000))
        self.free_slots = list(range(2000))
        self.rng.shuffle(self.free_ids)
        self.running: list[Running] = []
        self.seen: list[list[int]] = [[]]
        self.hashes: dict[Prefix, int] = {}
        self.clock = 0
        self.done: dict[str, int] = {}

    # --- naming sequences ----------------------------------------------------------------------

    def prefix(self, tokens: list[int], pages: int) -> Prefix:
        p = self.shape.page_size
        return tuple(tuple(tokens[i * p : (i + 1) * p]) for i in range(pages))

    def key(self, tokens: list[int]) -> list[int]:
        if self.shape.keys == "tokens":
            return tokens
        whole = self.prefix(tokens, len(tokens) // self.shape.page_size)
        return [self.hashes.setdefault(whole[: i + 1], len(self.hashes)) for i in range(len(whole))]

    def sequence(self) -> list[int]:
        base = self.rng.choice(self.seen)
        tokens = base[: self.rng.randint(0, len(base))] if self.rng.random() < 0.7 else list(base)
        most = self.pages_max * self.shape.page_size
        more = self.rng.randint(0, most // 2)
        tokens = (tokens + [self.rng.randrange(self.alphabet) for _ in range(more)])[:most]
        self.seen.append(tokens)
        del self.seen[1:-40]
        return tokens

    # --- what the dictionary says --------------------------------------------------------------

    def expected(self, tokens: list[int], limit: int | None) -> tuple[int, int]:
        """Pages that are usable, and pages that are cached."""
        p = self.shape.page_size
        whole = self.prefix(tokens, len(tokens) // p)
        matched = 0
        while matched < len(whole) and whole[: matched + 1] in self.cache:
            matched += 1
        most = matched if limit is None else min(matched, limit // p)
        for depth in range(most, 0, -1):
            if self.shape.state is not None and whole[:depth] not in self.states:
                continue
            needed = [max(0, depth * p - w + 1) // p for w in self.shape.window_tokens]
            if all(
                self.cache[whole[: i + 1]].kept[w]
                for w, first in enumerate(needed)
                for i in range(first, depth)
            ):
                return depth, matched
        return 0, matched

    def held(self) -> tuple[set[Prefix], list[set[Prefix]], set[int]]:
        """Prefixes whose page some request holds: full, per window; and slots held."""
        full: set[Prefix] = set()
        windows: list[set[Prefix]] = [set() for _ in self.shape.windows]
        for run in self.running:
            for i in range(run.cached):
                name = self.prefix(run.tokens, i + 1)
                full.add(name)
                for w, first in enumerate(run.kept_from):
                    if i >= first:
                        windows[w].add(name)
        return full, windows, set()

    def evictable(self) -> list[int]:
        full, windows, _ = self.held()
        counts = [0] * self.shape.bands
        for name, entry in self.cache.items():
            for band in (self.shape.full, *self.shape.companions):
                counts[band] += name not in full
            for w, band in enumerate(self.shape.windows):
                counts[band] += entry.kept[w] and name not in windows[w]
        if self.shape.state is not None:
            counts[self.shape.state] = len(self.states)
        return counts

    # --- the arena's part ----------------------------------------------------------------------

    def take(self, prefix: Prefix) -> int:
        page = self.free_ids.pop()
        self.content[page] = prefix
        for band in range(self.shape.bands):
            if band != self.shape.state:
                self.live[band].add(page)
        return page

    def free(self, per_band: tuple[np.ndarray, ...]) -> None:
        for band, ids in enumerate(per_band):
            for page in ids.tolist():
                self.live[band].remove(page)  # KeyError: freed twice
                if band == self.shape.full:
                    self.free_ids.append(page)
                if band == self.shape.state:
                    self.free_slots.append(page)

    def free_own(self, run: Running, start: int) -> None:
        """What a request holds by itself from page `start` on."""
        for i, page in enumerate(run.pages[start:], start):
            for band in (self.shape.full, *self.shape.companions):
                self.live[band].remove(page)
            for w, band in enumerate(self.shape.windows):
                if i >= run.kept_from[w]:
                    self.live[band].remove(page)
            self.free_ids.append(page)

    # --- operations ----------------------------------------------------------------------------

    def start(self) -> None:
        tokens = self.sequence()
        limit = self.rng.choice([None, max(0, len(tokens) - 1)])
        depth, matched = self.expected(tokens, limit)
        peeked = self.tree.peek(self.key(tokens), limit)
        found = self.tree.match(self.key(tokens), self.tick(), limit)
        p = self.shape.page_size
        assert (found.depth, found.matched_tokens) == (depth, matched * p)
        assert peeked.depth == depth and np.array_equal(peeked.pages, found.pages)
        for i, page in enumerate(found.pages.tolist()):
            name = self.prefix(tokens, i + 1)
            assert self.cache[name].page == page and self.content[page] == name
            self.cache[name].clock = self.clock
        if self.shape.state is not None:
            slot = self.states.get(self.prefix(tokens, depth))
            assert found.state_slot == slot
            assert slot is None or self.slot_content[slot] == self.prefix(tokens, depth)
        lease = self.tree.lock(found, state=found.state_slot is not None)
        self.tree.let_go_of_state(lease)
        run = Running(
            tokens[: depth * p], found.pages.tolist(), list(found.window_from), lease, depth
        )
        self.running.append(run)
        self.grow(run, tokens)

    def grow(self, run: Running, tokens: list[int]) -> None:
        """Compute up to these tokens, then trim windows; checkpoints on the grid, now and then."""
        p, shape = self.shape.page_size, self.shape
        before = len(run.tokens)
        run.tokens = tokens
        while len(run.pages) < -(-len(tokens) // p):
            run.pages.append(self.take(self.prefix(tokens, len(run.pages) + 1)))
        for i in range(before // p, len(run.pages)):
            self.content[run.pages[i]] = self.prefix(tokens, i + 1)
        if shape.state is not None:
            for at in range(before + 1, len(tokens) + 1):
                if at % shape.grid_tokens == 0 and self.rng.random() < 0.7:
                    slot = self.free_slots.pop()
                    self.live[shape.state].add(slot)
                    self.slot_content[slot] = self.prefix(tokens, at // p)
                    run.checkpoints.append((at, slot))
        for w, band in enumerate(shape.windows):
            first = max(0, len(tokens) - shape.window_tokens[w] + 1) // p
            for i in range(max(run.cached, run.kept_from[w]), first):
                self.live[band].remove(run.pages[i])
            run.kept_from[w] = max(run.kept_from[w], first)
        self.tree.trim(run.lease, len(tokens))

    def extend(self) -> None:
        run = self.rng.choice(self.running)
        more = self.rng.randint(1, 2 * self.shape.page_size)
        tokens = run.tokens + [self.rng.randrange(self.alphabet) for _ in range(more)]
        if len(tokens) <= self.pages_max * self.shape.page_size:
            self.grow(run, tokens)
            self.seen.append(tokens)

    def publish(self) -> None:
        run = self.rng.choice(self.running)
        self.insert(run, run.lease)

    def finish(self) -> None:
        run = self.running.pop(self.rng.randrange(len(self.running)))
        if self.rng.random() < 0.3:  # aborted: nothing is published
            self.tree.unlock(run.lease)
            self.drop(run, run.cached)
            return
        self.running.append(run)
        self.insert(run, None)
        self.running.pop()
        self.tree.unlock(run.lease)

    def drop(self, run: Running, start: int) -> None:
        self.free_own(run, start)
        slots = np.array([slot for _, slot in run.checkpoints], np.int64)
        if slots.size:
            state, bands = self.shape.state, range(self.shape.bands)
            self.free(tuple(slots if band == state else slots[:0] for band in bands))

    def insert(self, run: Running, lease: int | None) -> None:
        p = self.shape.page_size
        count = len(run.tokens) // p
        mine = run.pages[:count]
        given = [pair for pair in run.checkpoints if pair[0] <= count * p]
        result = self.tree.insert(
            self.key(run.tokens),
            np.array(mine, np.int64),
            self.tick(),
            kept_from=run.kept_from,
            checkpoints=given,
            lease=lease,
        )
        self.follow(run, result, mine, given)
        for band, (virtual, into) in zip(self.shape.windows, result.grafts, strict=True):
            for old, new in zip(virtual.tolist(), into.tolist(), strict=True):
                self.live[band].remove(old)
                assert new not in self.live[band], "a graft onto a page that is there"
                assert self.content[old] == self.content[new]
                self.live[band].add(new)
        self.free(result.duplicates)
        run.checkpoints = [pair for pair in run.checkpoints if pair not in given]
        if lease is None:
            self.drop(run, count)
        else:
            run.pages[: result.depth] = result.pages.tolist()
            run.cached = max(run.cached, result.depth)

    def follow(
        self,
        run: Running,
        result: Inserted,
        mine: list[int],
        given: list[tuple[int, int]],
    ) -> None:
        """Every page and slot went where it may, and the dictionary follows."""
        shape, p = self.shape, self.shape.page_size
        taken, canonical = set(result.taken.tolist()), result.pages.tolist()
        duplicates = [set(ids.tolist()) for ids in result.duplicates]
        grafts = [dict(zip(*map(np.ndarray.tolist, pair), strict=True)) for pair in result.grafts]
        assert len(canonical) == result.depth == len(mine)
        known = 0
        for i, page in enumerate(mine):
            name = self.prefix(run.tokens, i + 1)
            entry = self.cache.get(name)
            kept = [i >= first for first in run.kept_from]
            if entry is None:
                assert page in taken and canonical[i] == page
                self.cache[name] = Entry(page, kept, self.clock)
                continue
            known += 1
            entry.clock = self.clock
            assert canonical[i] == entry.page and page not in taken
            if entry.page == page:
                continue
            assert page in duplicates[shape.full]
            for w, band in enumerate(shape.windows):
                gains = kept[w] and not entry.kept[w]
                assert grafts[w].get(page) == (entry.page if gains else None)
                assert (page in duplicates[band]) == (kept[w] and not gains)
                entry.kept[w] = entry.kept[w] or kept[w]
        assert result.cached_tokens == known * p
        for at, slot in given:
            name = self.prefix(run.tokens, at // p)
            if at // p <= result.depth and name not in self.states:
                self.states[name] = slot
            else:
                assert shape.state is not None and slot in duplicates[shape.state]

    def evict(self) -> None:
        shape, rng = self.shape, self.rng
        sizes, most = shape.page_bytes, self.evictable()
        wanted = [rng.randint(0, 3) for _ in sizes]
        free = rng.randint(0, 3 * max(sizes))

        def serves(freed: object) -> bool:
            assert isinstance(freed, tuple)
            have: int = free + sum(n * size for n, size in zip(freed, sizes, strict=True))
            return have >= sum(n * size for n, size in zip(wanted, sizes, strict=True))

        assert self.tree.evictable == most
        full, windows, _ = self.held()
        before = {n: list(node.window_clock) for n, node in self.tree.nodes.items()}
        node_of = {int(i): n for n, node in self.tree.nodes.items() for i in node.pages}
        result = self.tree.evict(wanted, serves)
        assert result.served == serves(tuple(most)) == serves(result.counts) or serves((0,) * len(sizes))
        if not result.served or serves((0,) * len(sizes)):
            assert not any(result.counts)
            return
        self.done["evicted"] = self.done.get("evicted", 0) + 1
        gone = [set(ids.tolist()) for ids in result.pages]
        last = max((e.clock for e in self.cache.values() if e.page in gone[shape.full]), default=0)
        for name, entry in list(self.cache.items()):
            if entry.page in gone[shape.full]:
                assert name not in full
                for w, band in enumerate(shape.windows):
                    assert (entry.page in gone[band]) == entry.kept[w]
                del self.cache[name]
                slot = self.states.pop(name, None)
                assert slot is None or slot in gone[shape.state or 0]
            else:
                for w, band in enumerate(shape.windows):
                    if entry.page in gone[band]:
                        assert entry.kept[w] and name not in windows[w]
                        entry.kept[w] = False
        for name in self.cache:
            assert len(name) == 1 or name[:-1] in self.cache
        longer = {name[:-1] for name in self.cache}
        for name, entry in self.cache.items():
            if name not in longer and name not in full:
                assert entry.clock >= last, "a page went before one used earlier"
        alone = [ids - gone[shape.full] for ids in gone]
        for w, band in enumerate(shape.windows):
            if alone[band]:
                latest = max(before[node_of[page]][w] for page in alone[band])
                for name, entry in self.cache.items():
                    if entry.kept[w] and name not in windows[w] and node_of[entry.page] in before:
                        assert before[node_of[entry.page]][w] >= latest
        if shape.state is not None:
            self.states = {n: s for n, s in self.states.items() if s not in gone[shape.state]}
        if not shape.shared_order:
            for band in shape.windows:
                if alone[band]:
                    less = tuple(n - (b == band) for b, n in enumerate(result.counts))
                    assert not serves(less), "a page went that could have stayed"
        self.free(result.pages)

    def tick(self) -> int:
        self.clock += self.rng.randint(0, 1)
        return self.clock

    # --- one step, and what holds after it -----------------------------------------------------

    def step(self) -> None:
        choices = [(3, self.start), (2, self.evict)]
        if self.running:
            choices += [(3, self.extend), (3, self.publish), (2, self.finish)]
        if len(self.running) > 6:
            choices = [(1, self.finish)]
        (operation,) = self.rng.choices([c for _, c in choices], [w for w, _ in choices])
        self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1
        operation()
        self.verify()

    def verify(self) -> None:
        assert check(self.tree) == []
        shape = self.shape
        owned: list[set[int]] = [set() for _ in range(shape.bands)]
        for entry in self.cache.values():
            for band in (shape.full, *shape.companions):
                owned[band].add(entry.page)
            for w, band in enumerate(shape.windows):
                if entry.kept[w]:
                    owned[band].add(entry.page)
        if shape.state is not None:
            owned[shape.state] |= set(self.states.values())
        assert self.tree.cached == [len(ids) for ids in owned]
        for run in self.running:
            for i, page in enumerate(run.pages):
                assert self.content[page] == self.prefix(run.tokens, i + 1)
                assert page in self.live[shape.full]
                for w, band in enumerate(shape.windows):
                    assert i < run.kept_from[w] or page in self.live[band]
                    if i >= run.cached and i >= run.kept_from[w]:
                        owned[band].add(page)
                if i >= run.cached:
                    for band in (shape.full, *shape.companions):
                        assert page not in owned[band]
                        owned[band].add(page)
            if shape.state is not None:
                owned[shape.state] |= {slot for _, slot in run.checkpoints}
        assert owned == self.live, "a page that nobody owns, or the reverse"

    def close(self) -> None:
        """Release everything, evict everything: nothing is left."""
        while self.running:
            self.finish()
            self.verify()
        result = self.tree.evict_counts(self.tree.evictable)
        self.free(result.pages)
        assert self.tree.cached == [0] * self.shape.bands and not any(self.live)
        assert len(self.tree.nodes) == 1 and not self.tree.checkpoints
        assert check(self.tree) == []


