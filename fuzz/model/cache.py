"""The prefix cache as it should be: a trie with one page to a node, and who holds what of it.

Naive on purpose, and not the allocator's tree: pages are looked at one by one. A run of pages that the
allocator keeps as one node is a chain here, of which the first page `begins` it; runs matter only for
what counts as used, and for which window pages are the first of a run.

Where the allocator may choose (which page goes of those used equally long ago), the choice is read from
its effects and checked. `publishing` and `eviction` have the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bandscope.fuzz.model.bands import NOTHING, BandBook

Key = tuple[int, ...]  # of one page


class CachedPage:
    """One page of the cache, at `depth` pages from the beginning (1 for the first).

    `page`: its virtual id; `kept[w]`: stated window number `w` still has it; `slot`: the state after
    it (−1: none). `holders`, `window_holders[w]`, `slot_holders`: how many requests and pins hold it.
    `clock`, `window_clock[w]`, `slot_clock`: when it was used last. `begins`: it is the first of a run.
    """

    __slots__ = (
        "begins", "children", "clock", "depth", "holders", "kept", "key", "page", "parent", "slot",
        "slot_clock", "slot_holders", "window_clock", "window_holders",
    )  # fmt: skip

    def __init__(
        self, parent: CachedPage | None, key: Key, page: int, kept: list[bool], clock: int
    ) -> None:
        self.parent, self.key, self.page, self.kept = parent, key, page, kept
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.slot, self.slot_clock, self.slot_holders = NOTHING, 0, 0
        self.clock, self.window_clock = clock, [clock] * len(kept)
        self.holders, self.window_holders = 0, [0] * len(kept)
        self.begins = False
        self.children: dict[Key, CachedPage] = {}


class CacheBook:
    """All that is cached. Bands by index in chain order: `full`, `companions` (windows of unstated
    length, which keep what `full` keeps), `windows` with their lengths, `state`.

    Per band: `cached` pages, and `evictable`, those that nobody holds. `by_page`, `by_slot`: where a
    virtual page or slot is. `shared_order`: full and window pages go in one order (`joint_lru`).
    """

    def __init__(
        self, bands: Sequence[BandBook], page_size: int, keys: str, evict: str
    ) -> None:
        self.page_size = page_size
        self.unit = page_size if keys == "tokens" else 1  # elements of a key for each page
        self.full = next(band.index for band in bands if band.name == "full")
        self.state = next((band.index for band in bands if band.is_state), None)
        windows = [b for b in bands if not b.is_state and b.index != self.full]
        self.windows = [band.index for band in windows if band.window_length is not None]
        self.lengths = [band.window_length or 0 for band in windows if band.window_length is not None]
        self.companions = [band.index for band in windows if band.window_length is None]
        self.page_bytes = [band.page_bytes for band in bands]
        self.shared_order = evict == "joint_lru" and len(windows) == 1 and self.state is None
        self.root = CachedPage(None, (), NOTHING, [False] * len(self.windows), 0)
        self.by_page: dict[int, CachedPage] = {}
        self.by_slot: dict[int, CachedPage] = {}
        self.clock = 0
        self.cached = [0] * len(bands)
        self.evictable = [0] * len(bands)

    # --- looking up --------------------------------------------------------------------------------

    def pages_of_key(self, key: Sequence[int]) -> list[Key]:
        """A key, page by page; what does not fill a page is left out."""
        unit = self.unit
        return [tuple(key[i : i + unit]) for i in range(0, len(key) - unit + 1, unit)]

    def known(self, keys: Sequence[Key]) -> list[CachedPage]:
        """The cached pages of a sequence, from its beginning."""
        found, at = [], self.root
        for key in keys:
            child = at.children.get(key)
            if child is None:
                break
            found.append(child)
            at = child
        return found

    def first_needed(self, window: int, pages: int) -> int:
        """The first page that the token after so many whole pages attends to in a window."""
        return max(0, pages * self.page_size - self.lengths[window] + 1) // self.page_size

    def usable(self, path: Sequence[CachedPage], limit_tokens: int | None) -> int:
        """With how many pages of a cached sequence a request can begin: every window has what the
        next token needs, and the state is there."""
        most = len(path) if limit_tokens is None else min(len(path), limit_tokens // self.page_size)
        for depth in range(most, 0, -1):
            if self.state is not None and path[depth - 1].slot == NOTHING:
                continue
            if all(
                path[i].kept[window]
                for window in range(len(self.windows))
                for i in range(self.first_needed(window, depth), depth)
            ):
                return depth
        return 0

    def checkpoint_at(self, keys: Sequence[Key], depth: int) -> CachedPage | None:
        """The page after which the state of just this sequence is kept."""
        path = self.known(keys[:depth])
        return path[-1] if len(path) == depth and path and path[-1].slot != NOTHING else None

    def everything(self) -> Iterator[CachedPage]:
        """All cached pages, those before others first."""
        left = [self.root]
        while left:
            for child in left.pop().children.values():
                yield child
                left.append(child)

    def run_of(self, page: CachedPage) -> list[CachedPage]:
        """The run that begins with `page`."""
        run = [page]
        while (after := next((c for c in page.children.values() if not c.begins), None)) is not None:
            run.append(after)
            page = after
        return run

    # --- runs and times of use ---------------------------------------------------------------------

    def cut(self, path: Sequence[CachedPage]) -> None:
        """A run ends where this path ends."""
        if path:
            for child in path[-1].children.values():
                child.begins = True

    def use(self, path: Sequence[CachedPage]) -> None:
        """A path that ends with the end of a run is used now: its pages, and of each window the runs
        that reach into what the next token needs."""
        clock, needed = self.clock, [self.first_needed(w, len(path)) for w in range(len(self.windows))]
        stop = len(path)
        for index in range(len(path) - 1, -1, -1):
            page = path[index]
            page.clock = clock
            for window, first in enumerate(needed):
                if first < stop:
                    page.window_clock[window] = clock
            if page.begins:
                stop = index

    # --- holding -----------------------------------------------------------------------------------

    def hold(self, path: Sequence[CachedPage], first: Sequence[int], sign: int) -> None:
        """A holder of a prefix comes (1) or goes (−1): all its pages, of window `w` those from
        `first[w]` on."""
        for index, page in enumerate(path):
            was, page.holders = page.holders, page.holders + sign
            change = (not page.holders) - (not was)
            if change:
                for band in (self.full, *self.companions):
                    self.evictable[band] += change
            for window, start in enumerate(first):
                if index >= start:
                    self.hold_window(page, window, sign)

    def hold_window(self, page: CachedPage, window: int, sign: int) -> None:
        """A holder of a page in one window comes or goes."""
        held = page.window_holders
        was, held[window] = held[window], held[window] + sign
        if page.kept[window]:
            self.evictable[self.windows[window]] += (not held[window]) - (not was)

    def hold_slot(self, page: CachedPage, sign: int) -> None:
        """A holder of a state comes or goes."""
        was, page.slot_holders = page.slot_holders, page.slot_holders + sign
        if self.state is not None and page.slot != NOTHING:
            self.evictable[self.state] += (not page.slot_holders) - (not was)

    # --- what is cached ----------------------------------------------------------------------------

    def add(self, parent: CachedPage, key: Key, page: int, kept: list[bool]) -> CachedPage:
        """A new page after `parent`, which nobody holds yet."""
        new = parent.children[key] = CachedPage(parent, key, page, kept, self.clock)
        self.by_page[page] = new
        self._count(new, 1)
        return new

    def drop(self, page: CachedPage) -> None:
        """A page goes, with everything on it."""
        assert page.parent is not None
        self._count(page, -1)
        del page.parent.children[page.key], self.by_page[page.page]
        if page.slot != NOTHING:
            self.drop_slot(page)

    def drop_window(self, page: CachedPage, window: int) -> None:
        """A window keeps a page no more."""
        page.kept[window] = False
        self.cached[self.windows[window]] -= 1
        if not page.window_holders[window]:
            self.evictable[self.windows[window]] -= 1

    def restore_window(self, page: CachedPage, window: int) -> None:
        """A window keeps a page again, whoever holds that."""
        page.kept[window] = True
        self.cached[self.windows[window]] += 1
        if not page.window_holders[window]:
            self.evictable[self.windows[window]] += 1

    def add_slot(self, page: CachedPage, slot: int) -> None:
        """The state after a page is kept from now on."""
        assert self.state is not None
        page.slot, page.slot_clock, page.slot_holders = slot, self.clock, 0
        self.by_slot[slot] = page
        self.cached[self.state] += 1
        self.evictable[self.state] += 1

    def drop_slot(self, page: CachedPage) -> None:
        """The state after a page is kept no more."""
        assert self.state is not None
        self.cached[self.state] -= 1
        self.evictable[self.state] -= not page.slot_holders
        del self.by_slot[page.slot]
        page.slot = NOTHING

    def _count(self, page: CachedPage, sign: int) -> None:
        for band in (self.full, *self.companions):
            self.cached[band] += sign
            self.evictable[band] += sign * (not page.holders)
        for window, band in enumerate(self.windows):
            if page.kept[window]:
                self.cached[band] += sign
                self.evictable[band] += sign * (not page.window_holders[window])
