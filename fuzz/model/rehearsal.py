"""Exactly which cached pages go for a demand, worked out naively: sets of pages, counted anew each time.

Victims of one operation's use lie on one path, so time and depth order them fully. Too slow for large
caches, of which `eviction` checks the single rules only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cache import CacheBook, CachedPage

Serves = Callable[[Sequence[int]], bool]


class Rehearsal:
    """What is to go: per band the victims taken, each as the pages that it gives, in their order."""

    def __init__(self, cache: CacheBook, serves: Serves) -> None:
        self.cache, self.serves = cache, serves
        self.payers = [cache.full, *cache.windows, *([] if cache.state is None else [cache.state])]
        self.taken: dict[int, list[list[CachedPage]]] = {band: [] for band in self.payers}
        self.runs = [cache.run_of(page) for page in cache.everything() if page.begins]

    def gone(self, most: Sequence[int]) -> dict[int, set[int]]:
        """Ids per band that go when no band gives more than `most`."""
        self._plan(most)
        for band in sorted(self.payers, key=lambda band: (-self.cache.page_bytes[band], band)):
            self._give_back(band)
        return {band: self._ids(band) for band in self.payers}

    def _plan(self, most: Sequence[int]) -> None:
        """Whoever was used longest ago goes next, until it is enough."""
        victims = {band: self._victims(band) for band in self.payers}
        heads = {band: next(victims[band], None) for band in self.payers}
        left = {band: most[band] for band in self.payers}
        while not self._is_enough():
            ages = [
                (head[0], rank, band)
                for rank, band in enumerate(self.payers)
                if left[band] and (head := heads[band]) is not None
            ]
            if not ages:
                return
            band = min(ages)[2]
            head = heads[band]
            assert head is not None
            pages = head[2][: left[band]]
            taken = self.taken[band]
            taken.append(pages)
            if self._is_enough():
                taken[-1] = self._least(band, pages)
            left[band] -= len(pages)
            heads[band] = next(victims[band], None) if left[band] else None

    def _give_back(self, band: int) -> None:
        """What a band would have given last stays, where the rest is enough."""
        taken = self.taken[band]
        while taken:
            pages = taken.pop()
            if not self._is_enough():
                taken.append(pages)
                taken[-1] = self._least(band, pages)
                return

    def _least(self, band: int, pages: list[CachedPage]) -> list[CachedPage]:
        """As few of the newest victim's pages as are enough."""
        taken = self.taken[band]
        for count in range(1, len(pages)):
            taken[-1] = pages[:count]
            if self._is_enough():
                break
        else:
            return pages
        return taken[-1]

    def _victims(self, band: int) -> Iterator[tuple[int, int, list[CachedPage]]]:
        """A band's victims, oldest first: time, depth, pages that it can give in their order."""
        cache = self.cache
        if band == cache.full:
            yield from self._leaves()
        elif band == cache.state:
            states = [p for p in cache.everything() if p.slot != NOTHING and not p.slot_holders]
            for page in sorted(states, key=lambda page: (page.slot_clock, page.depth)):
                yield page.slot_clock, page.depth, [page]
        else:
            window = cache.windows.index(band)
            found = []
            for run in self.runs:
                pages = [p for p in run if p.kept[window] and not p.window_holders[window]]
                if pages:
                    found.append((run[0].window_clock[window], run[0].depth, pages))
            yield from sorted(found, key=lambda victim: victim[:2])

    def _leaves(self) -> Iterator[tuple[int, int, list[CachedPage]]]:
        left = [run for run in self.runs if not run[0].holders]
        gone: set[CachedPage] = set()
        while True:
            bare = [
                (run[0].clock, run[0].depth, run)
                for run in left
                if all(child in gone for child in run[-1].children.values())
            ]
            if not bare:
                return
            clock, depth, run = min(bare, key=lambda victim: victim[:2])
            yield clock, depth, run[::-1]
            left.remove(run)
            gone.update(run)

    def _ids(self, band: int) -> set[int]:
        cache = self.cache
        full = {page for pages in self.taken[cache.full] for page in pages}
        if band == cache.full:
            return {page.page for page in full}
        alone = {page for pages in self.taken[band] for page in pages}
        if band == cache.state:
            along = {page for page in full if page.slot != NOTHING}
            return {page.slot for page in along | alone}
        window = cache.windows.index(band)
        return {page.page for page in full if page.kept[window]} | {page.page for page in alone}

    def _is_enough(self) -> bool:
        cache = self.cache
        counts = [0] * len(cache.page_bytes)
        for band in self.payers:
            counts[band] = len(self._ids(band))
        for band in cache.companions:
            counts[band] = counts[cache.full]
        return self.serves(counts)
