"""The effects of a prefix cache, and the rules that they obey: shared, evicted, copied, given up.

What is cached and who holds it is in `cache`, the rules of publishing and eviction in modules of their
own; here they meet requests, pins and demands. What operations do with it is in `cached`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bandscope.allocator.checks import Violation
from bandscope.allocator.events import CACHE, Holder
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cache import CacheBook, CachedPage, Key
from bandscope.fuzz.model.eviction import Eviction
from bandscope.fuzz.model.expectation import Expectation
from bandscope.fuzz.model.model import Model
from bandscope.fuzz.model.publishing import publish
from bandscope.fuzz.model.state import Request
from bandscope.fuzz.program import Layout


@dataclass
class PinnedPrefix:
    """What a pin of a request's pages holds of the cache: the `path` that the request shares and the
    states `after` pages of it. `request`: whose pages they are, while it runs."""

    request: Request | None
    path: Sequence[CachedPage] = ()
    after: list[CachedPage] = field(default_factory=list)


@dataclass
class Publication:
    """Pages that an operation publishes: the first ones of `request`, which `keys` name. `stands`: after
    how many pages a state is given along, 0 without. `goes_on`: the request uses the cache's pages from
    then on. `path`: once it is known, what became of it."""

    request: Request
    key: tuple[int, ...]
    keys: list[Key]
    goes_on: bool
    stands: int = 0
    path: list[CachedPage] | None = None


class CacheEffects(Model):
    """A model with a `cache`. `pinned`: what pins hold of it, by lease."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        config = layout.config
        self.cache = CacheBook(self.bands, self.page_size, config.prefix_keys, config.evict)
        # Window bands of a stated length, by their number among all.
        self.stated = [band.window_number for band in self.windows if band.window_length is not None]
        self.pinned: dict[int, PinnedPrefix] = {}
        self._matched: list[CachedPage] = []  # by the request that was admitted last
        self._forget_operation()

    def _forget_operation(self) -> None:
        self.copies, self.grafts = [], []
        self._eviction: Eviction | None = None
        self._evicted: dict[int, list[int]] = {}
        self._must_evict = self._stalled = False
        self._goal: list[int] | None = None  # of the operation Evict
        self._match: list[CachedPage] | None = None  # not told yet
        self._copy: tuple[str, int] | None = None  # why a state must be copied, and which
        self._publication: Publication | None = None
        # By band index: copies to be freed, and pages that get the places of others before.
        self._owed: dict[int, list[int]] = {}
        self._owed_grafts: dict[int, tuple[list[int], list[int]]] = {}

    def begin(self) -> None:
        super().begin()
        self._forget_operation()

    def settle(self, operation: Operation, outcome: Outcome) -> list[Violation]:
        found = super().settle(operation, outcome)
        if outcome.ok:
            self._settle_cache(operation)
        found += self.violations
        self.violations = []
        return found

    def _settle_cache(self, operation: Operation) -> None:
        if self._must_evict and self._eviction is None:
            self.broken("capacity", f"{operation.kind} evicted nothing, but had to")
        if self._eviction is not None and not self._eviction.is_over:
            self.broken("conservation", f"of {self._eviction.counts} evicted pages not all went")
        if self._match:
            self.broken("ownership", f"{len(self._match)} matched pages were not shared")
        if self._copy is not None:
            self.broken("content", f"no state was copied for a {self._copy[0]}")
        if self._owed or self._owed_grafts:
            left = f"{self._owed}, {self._owed_grafts}"
            self.broken("ownership", f"{operation.kind} left copies where they are: {left}")
        if self._stalled and self.told_any:
            self.broken("atomic", "a checkpoint that stalled did something")

    # --- capacity ----------------------------------------------------------------------------------

    def may_go(self) -> list[int]:
        return self.cache.evictable

    def evicted(self) -> dict[int, list[int]]:
        return self._evicted

    def serves(self, demand: Sequence[int], *, all_can_move: bool = False) -> bool:
        """Also true when it is served once all that nobody holds has gone. What cannot move stays
        where it was before."""
        if super().serves(demand, all_can_move=all_can_move):
            return True
        gone = self.cache.evictable
        if not any(gone):
            return False
        hulls = [None if all_can_move else self.fixed(band) for band in self.bands]
        return self._packs([n - g for n, g in zip(demand, gone, strict=True)], hulls)

    def _demand(self, pages: list[int]) -> Expectation:
        expected = super()._demand(pages)
        self._must_evict = expected.ok and not super().serves(pages)
        return expected

    # --- effects -----------------------------------------------------------------------------------

    def share(self, request: int, first_page: int, virtual: Pages) -> None:
        """Pages of a request's sequence are the cache's from now on."""
        self.told_any = True
        names, publication = virtual.tolist(), self._publication
        if self._match is not None:
            match, self._match = self._match, None
            right: tuple[Any, ...] = (self.taker, 0, [page.page for page in match])
            if (request, first_page, names) != right:
                self.broken("ownership", f"{(request, first_page, names)} is shared, not {right}")
        elif publication is None or publication.path is not None:
            self.broken("ownership", f"pages {names[:8]} of request {request} are shared for nothing")
        elif (request, first_page) != (publication.request.number, len(publication.request.path)):
            self.broken("ownership", f"pages of request {request} are shared from {first_page} on")
        else:
            self._publish([page.page for page in publication.request.path] + names)

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None:
        """Pages of the cache lie in a window where copies of a request lay."""
        self.told_any = True
        book, told = self.by_name[band], (virtual.tolist(), into.tolist())
        owed, publication = self._owed_grafts.pop(book.index, None), self._publication
        if publication is None or request != publication.request.number or told != owed:
            self.broken("ownership", f"{band}: pages {told} were grafted for {request}, not {owed}")
            return
        place_of = book.place_of
        if any(place_of[page] < 0 for page in told[0]) or any(place_of[page] >= 0 for page in told[1]):
            self.broken("tables", f"{band}: pages {told} were grafted, which it has not, or has already")
            return
        book.rename(*told)
        self.rename_writes(book, dict(zip(*told, strict=True)))
        self.grafts.append((book.index, *told))

    def evict(self, demand: tuple[int, ...], counts: tuple[int, ...]) -> None:
        """Pages of the cache are about to go."""
        self.told_any = True
        goal = self._goal
        if goal is None:
            right, wanted = self.demand, list(self.demand)
            hulls = [self.fixed(band) for band in self.bands]
            before = [band.live + band.freed_pinned for band in self.bands]

            def serves(freed: Sequence[int]) -> bool:
                now = [band.live + band.freed_pinned for band in self.bands]
                sums = zip(wanted, before, now, freed, strict=True)
                return self._packs([n + b - a - f for n, b, a, f in sums], hulls)

        else:
            right, wanted = self.operation.pages, goal  # type: ignore[union-attr]

            def serves(freed: Sequence[int]) -> bool:
                return all(n >= least for n, least in zip(freed, wanted, strict=True))

        if tuple(demand) != right or self._eviction is not None:
            self.broken("capacity", f"pages were evicted for {demand}, {right} was asked for")
        self._eviction = Eviction(self.cache, wanted, counts, serves)

    def state_copy(
        self, band: str, source: int, destination: int, from_page: int, to_page: int, why: str
    ) -> None:
        """A state is copied, by the schedule stream."""
        self.told_any = True
        book, expected, self._copy = self.by_name[band], self._copy, None
        fresh = (self.taken or [NOTHING])[0]
        if expected != (why, source) or destination != fresh or not book.is_state:
            self.broken(
                "content",
                f"slot {source} was copied to {destination} ({why}), not {expected} to {fresh}",
            )
            return
        if book.physical([book.place_of[source], book.place_of[destination]]) != [from_page, to_page]:
            self.broken("tables", f"the state at {from_page} was copied to {to_page}: other slots")
        # No forward writes a state of the cache; one in flight may have written a slot of that name.
        if why == "checkpoint" and source in self.written(book):
            self.broken("happens_before", f"slot {source} was copied while a forward may write it")
        self.copies.append((book.index, source, destination))

    def lease_end(self, holder: Holder, band: str, virtual: Pages, lease: int) -> None:
        eviction, of_cache = self._eviction, isinstance(holder, int) and holder == CACHE
        evicts = of_cache and eviction is not None and not eviction.is_over
        if self._publication is not None and not evicts:
            self._is_published()  # what is given up now follows from it
        if lease or not (self._owed or of_cache):
            super().lease_end(holder, band, virtual, lease)
            return
        book, names = self.by_name[band], virtual.tolist()
        if not evicts and not self._is_owed(holder, names, self._owed.get(book.index)):
            super().lease_end(holder, band, virtual, lease)
            return
        self.told_any = True
        if self._owed_pending is not None:
            self._owes_pending()
        if any(not 0 <= name < len(book.place_of) or book.place_of[name] < 0 for name in names):
            self.broken("ownership", f"pages {names[:8]} of {band} were given up, which hold nothing")
            return
        if evicts:
            self._evicted[book.index] = [book.place_of[name] for name in names]
        self.freed(book, names)
        if book is self.full:
            self.ids.release(names)
        elif book.is_state:
            self.state_ids.release(names)
        if not evicts:
            del self._owed[book.index]
            if self._owed_grafts:
                self.broken("ownership", f"copies were freed before the grafts {self._owed_grafts}")
            return
        assert eviction is not None
        if not eviction.take(book.index, names):
            self.broken("conservation", f"more pages of {band} were evicted than {eviction.counts}")
        if eviction.is_over:
            for invariant, message in eviction.settle():
                self.broken(invariant, message)

    def _is_owed(self, holder: Holder, names: list[int], owed: list[int] | None) -> bool:
        if owed is None or self._publication is None:
            return False
        mine = isinstance(holder, int) and holder == self._publication.request.number
        return mine and sorted(names) == sorted(owed)

    # --- publishing --------------------------------------------------------------------------------

    def _kept_from(self, request: Request) -> list[int]:
        return [request.first_kept[number] for number in self.stated]

    def _begins_publishing(
        self, request: Request, more: tuple[int, ...], *, goes_on: bool
    ) -> Publication:
        key = request.key + more
        keys = self.cache.pages_of_key(key)[: request.launched // self.page_size]
        self._publication = Publication(request, key, keys, goes_on)
        return self._publication

    def _publish(self, told: list[int]) -> None:
        """What the request's sequence has in the cache from now on is `told`."""
        publication, cache = self._publication, self.cache
        assert publication is not None
        request, keys, cache.clock = publication.request, publication.keys, cache.clock + 1
        kept_from, own = self._kept_from(request), request.pages[: len(keys)].tolist()
        result = publish(cache, keys, own, kept_from, told)
        publication.path = path = result.path
        for invariant, message in result.wrong:
            self.broken(invariant, message)
        self._owed, self._owed_grafts = result.duplicates, result.grafts
        if publication.stands and self.taken and len(path) >= publication.stands:
            cache.add_slot(path[publication.stands - 1], self.taken[0])
        request.key = publication.key
        if not publication.goes_on:
            return
        if own != told:
            self._rename(request, told)
        cache.hold(path, kept_from, 1)
        cache.hold(request.path, kept_from, -1)
        request.path = path

    def _rename(self, request: Request, pages: list[int]) -> None:
        """A request's row names other pages; forwards in flight write those that it named before."""
        before = Request(request.number, len(self.windows), request.slots)
        before.pages, before.first_kept = request.pages, list(request.first_kept)
        for forward in self.flights.values():
            for index, (other, tokens, count) in enumerate(forward):
                if other is request:
                    forward[index] = before, tokens, count
        request.pages = array("q", pages) + request.pages[len(pages) :]

    def _is_published(self) -> Publication:
        """The publication of the operation, which is over."""
        publication = self._publication
        assert publication is not None
        if publication.path is None:
            self._publish([page.page for page in publication.request.path])
        return publication

    def _pins_follow(self, request: Request, path: Sequence[CachedPage]) -> None:
        for pinned in self.pinned.values():
            if pinned.request is request:
                self._hold_pinned(pinned, -1)
                self._hold_all(pinned, path)

    def _hold_all(self, pinned: PinnedPrefix, path: Sequence[CachedPage]) -> None:
        """A pin holds this prefix, in all windows and with all its states."""
        pinned.path, pinned.after = path, [page for page in path if page.slot != NOTHING]
        self._hold_pinned(pinned, 1)

    def _hold_pinned(self, pinned: PinnedPrefix, sign: int) -> None:
        self.cache.hold(pinned.path, [0] * len(self.stated), sign)
        for page in pinned.after:
            self.cache.hold_slot(page, sign)
