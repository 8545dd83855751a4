"""The rules of eviction: which cached pages may go for a demand, how many, and in which order.

Which ones go is the arena's choice among those used equally long ago. It is told page by page; what was
told is checked as a whole and then believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cache import CacheBook, CachedPage
from bandscope.fuzz.model.rehearsal import Rehearsal

Rule = tuple[str, str]  # an invariant, and how it was broken
# Whether memory serves the demand once so many pages per band are free.
Serves = Callable[[Sequence[int]], bool]
# A cache of up to so many pages is small enough to work out all of what must go.
REHEARSED_PAGES = 128


class Eviction:
    """One eviction, from what was told at first (`counts` per band) to the last page. `wanted`: pages
    per band that the demand asks for."""

    def __init__(
        self, cache: CacheBook, wanted: Sequence[int], counts: Sequence[int], serves: Serves
    ) -> None:
        self.cache, self.serves = cache, serves
        self.wanted, self.counts = list(wanted), list(counts)
        self.gone: list[list[int]] = [[] for _ in counts]

    @property
    def is_over(self) -> bool:
        """All that was to go has gone."""
        return [len(pages) for pages in self.gone] == self.counts

    def take(self, band: int, pages: list[int]) -> bool:
        """These go; False when so many were not announced."""
        gone = self.gone[band]
        gone += pages
        return len(gone) <= self.counts[band]

    def settle(self) -> list[Rule]:
        """What was wrong with it; the cache is then without what has gone."""
        wrong = list(self._not_cached())
        if not wrong:
            wrong = [*self._held(), *self._needed()]
            lost = self._with_pages()
            wrong += [*self._order(lost), *self._paid(lost), *self._too_many(lost)]
        if not wrong and len(self.cache.by_page) <= REHEARSED_PAGES:
            wrong = list(self._rehearsed())
        self._carry_out()
        return wrong if wrong else list(self._ends_of_runs())

    # --- one rule at a time ------------------------------------------------------------------------

    def _pages(self, band: int) -> Iterator[CachedPage]:
        at = self.cache.by_slot if band == self.cache.state else self.cache.by_page
        for name in self.gone[band]:
            yield at[name]

    def _not_cached(self) -> Iterator[Rule]:
        cache = self.cache
        for band, names in enumerate(self.gone):
            at = cache.by_slot if band == cache.state else cache.by_page
            if len(set(names)) < len(names) or any(name not in at for name in names):
                yield "ownership", f"pages {names[:8]} were evicted, but the cache has other ones"
        if len({frozenset(self.gone[band]) for band in (cache.full, *cache.companions)}) > 1:
            yield "ownership", "a page was evicted from full and stays in a band of unstated length"

    def _held(self) -> Iterator[Rule]:
        cache = self.cache
        for page in self._pages(cache.full):
            if page.holders:
                yield "ownership", f"page {page.page} was evicted, but {page.holders} hold it"
        for window, band in enumerate(cache.windows):
            for page in self._pages(band):
                if page.window_holders[window]:
                    yield "ownership", f"window page {page.page} was evicted, but it is held"
                if not page.kept[window]:
                    yield "ownership", f"window page {page.page} was evicted a second time"
        if cache.state is not None:
            for page in self._pages(cache.state):
                if page.slot_holders:
                    yield "ownership", f"state slot {page.slot} was evicted, but it is held"

    def _needed(self) -> Iterator[Rule]:
        if self.serves([0] * len(self.counts)):
            yield "capacity", f"{self.counts} pages were evicted for a demand that was served"
        elif not self.serves(self.counts):
            yield "capacity", f"{self.counts} pages were evicted, which does not serve the demand"

    def _with_pages(self) -> list[list[CachedPage]]:
        """Per band: what went without its page of `full`."""
        cache = self.cache
        full = set(self.gone[cache.full])
        lost: list[list[CachedPage]] = [[] for _ in self.counts]
        for band in (*cache.windows, *(() if cache.state is None else (cache.state,))):
            lost[band] = [page for page in self._pages(band) if page.page not in full]
        return lost

    def _order(self, lost: Sequence[Sequence[CachedPage]]) -> Iterator[Rule]:
        """Within a band nothing stays that was used before what went and that could have gone."""
        cache = self.cache
        full = set(self.gone[cache.full])
        newest = max((page.clock for page in self._pages(cache.full)), default=-1)
        newest_rows = [
            max((page.window_clock[window] for page in lost[band]), default=-1)
            for window, band in enumerate(cache.windows)
        ]
        newest_slot = -1
        if cache.state is not None:
            newest_slot = max((page.slot_clock for page in lost[cache.state]), default=-1)
        for page in cache.everything():
            if page.page in full:
                for window, band in enumerate(cache.windows):
                    if page.kept[window] and page.page not in self.gone[band]:
                        yield "ownership", f"page {page.page} was evicted, but not from its window"
                if page.slot != NOTHING and page.slot not in self.gone[cache.state or 0]:
                    yield "ownership", f"page {page.page} was evicted, but not the state after it"
                if any(child.page not in full for child in page.children.values()):
                    yield "ownership", f"page {page.page} was evicted from the middle of a prefix"
                continue
            is_leaf = all(child.page in full for child in page.children.values())
            if is_leaf and not page.holders and page.clock < newest:
                yield "capacity", f"page {page.page} stays, one used after it was evicted"
            for window, band in enumerate(cache.windows):
                if (
                    page.window_clock[window] < newest_rows[window]
                    and page.kept[window]
                    and not page.window_holders[window]
                    and page.page not in self.gone[band]
                ):
                    yield "capacity", f"window page {page.page} stays, one used after it went"
            if (
                page.slot != NOTHING
                and page.slot_clock < newest_slot
                and not page.slot_holders
                and page.slot not in self.gone[cache.state or 0]
            ):
                yield "capacity", f"state slot {page.slot} stays, one used after it was evicted"

    def _paid(self, lost: Sequence[Sequence[CachedPage]]) -> Iterator[Rule]:
        """No band gives more than the policy asks of it."""
        cache = self.cache
        if cache.shared_order:
            return
        most = self._payments()
        for band, pages in enumerate(lost):
            gave = self.counts[band] if band == cache.full else len(pages)
            if band not in cache.companions and gave > most[band]:
                yield "capacity", f"band {band} gave {gave} pages where {most[band]} were asked of it"

    def _payments(self) -> list[int]:
        """The bands that are asked for pages pay, no more than is asked of them. Where that does not
        serve, one more pays, the one that does with the fewest bytes; where none does alone, all."""
        cache, evictable = self.cache, self.cache.evictable
        payers = [cache.full, *cache.windows, *(() if cache.state is None else (cache.state,))]
        most = [0] * len(evictable)
        for band in payers:
            most[band] = min(self.wanted[band], evictable[band])
        if self._serves_with(most):
            return most
        offers = []
        for rank, band in enumerate(payers):
            more = list(most)
            more[band] = evictable[band]
            if not self._serves_with(more):
                continue
            low = most[band]
            while low < more[band]:
                middle = (low + more[band]) // 2
                if self._serves_with([*more[:band], middle, *more[band + 1 :]]):
                    more[band] = middle
                else:
                    low = middle + 1
            offers.append(((low - most[band]) * cache.page_bytes[band], rank, band, low))
        if not offers:
            return list(evictable)
        _, _, band, pages = min(offers)
        most[band] = pages
        return most

    def _serves_with(self, freed: Sequence[int]) -> bool:
        full = freed[self.cache.full]
        return self.serves(
            [full if band in self.cache.companions else pages for band, pages in enumerate(freed)]
        )

    def _too_many(self, lost: Sequence[Sequence[CachedPage]]) -> Iterator[Rule]:
        """Nothing went that could have stayed: with one page less of any band it would not serve."""
        cache = self.cache
        for band, pages in enumerate(lost):
            if pages and self.serves([n - (b == band) for b, n in enumerate(self.counts)]):
                yield "capacity", f"a page of band {band} was evicted that could have stayed"
        full = set(self.gone[cache.full])
        tops = [
            page
            for page in self._pages(cache.full)
            if page.parent is not None and page.parent.page not in full
        ]
        if not tops:
            return
        newest = max(page.clock for page in tops)
        last = [page for page in tops if page.clock == newest]
        less = list(self.counts)
        for band in (cache.full, *cache.companions):
            less[band] -= 1
        for window, band in enumerate(cache.windows):
            less[band] -= any(page.kept[window] for page in last)
        if cache.state is not None:
            less[cache.state] -= any(page.slot != NOTHING for page in last)
        if self.serves(less):
            yield "capacity", "a page of full was evicted that could have stayed"

    def _rehearsed(self) -> Iterator[Rule]:
        """Exactly what goes, order between bands included."""
        cache = self.cache
        most = cache.evictable if cache.shared_order else self._payments()
        for band, right in Rehearsal(cache, self.serves).gone(most).items():
            if set(self.gone[band]) != right:
                yield "capacity", f"of band {band} pages {self.gone[band]} were evicted, not {right}"

    def _ends_of_runs(self) -> Iterator[Rule]:
        """A window keeps the tail of a run: what it gives up lies in front."""
        for page in self.cache.everything():
            before = page.parent
            if page.begins or before is None:
                continue
            for window, keeps in enumerate(page.kept):
                if before.kept[window] and not keeps:
                    yield "capacity", f"window page {page.page} went before the one in front of it"

    def _carry_out(self) -> None:
        cache = self.cache
        for window, band in enumerate(cache.windows):
            for name in self.gone[band]:
                page = cache.by_page.get(name)
                if page is not None and page.kept[window]:
                    cache.drop_window(page, window)
        if cache.state is not None:
            for name in self.gone[cache.state]:
                if name in cache.by_slot:
                    cache.drop_slot(cache.by_slot[name])
        pages = [cache.by_page[name] for name in self.gone[cache.full] if name in cache.by_page]
        for page in sorted(pages, key=lambda page: -page.depth):
            cache.drop(page)
