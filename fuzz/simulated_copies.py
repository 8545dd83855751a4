"""The copies of lease holders that are not known to be over, and which accesses must wait for them.

Kept by virtual page, as an engine knows them; a page that gets another name in a band (a graft) is
copied under that name from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.tables import Pages
from bandscope.fuzz.simulated_work import BandAccess

Event = tuple[int, ...]
# The generations that virtual pages of a band are of now.
Generations = Callable[[int, Pages], Pages]


@dataclass
class _Copy:
    """One copy: it has happened at `event`. `pages` (n,) of `band`, of `generation` (n,), which it
    reads, or writes when it `loads`; `names`: the same pages."""

    event: Event
    band: int
    pages: Pages
    generation: Pages
    loads: bool
    names: frozenset[int]


class Copies:
    """Those of one device."""

    def __init__(self, virtual_pages: Sequence[int]) -> None:
        self._of_lease: dict[int, list[_Copy]] = {}
        # By band and virtual page: how many copies of it there are; and how many write pages.
        self._count = [np.zeros(count, np.int32) for count in virtual_pages]
        self._loads = 0

    def begin(self, lease: int, access: BandAccess, event: Event) -> None:
        """A copy of a lease was issued."""
        pages = access.pages
        names = frozenset(pages.tolist())
        loads = not access.read_count
        copy = _Copy(event, access.band, pages, access.generation, loads, names)
        self._of_lease.setdefault(lease, []).append(copy)
        self._count[access.band][pages] += 1
        self._loads += loads

    def end(self, lease: int) -> list[Event]:
        """All copies of a lease are over: when each was."""
        ended = self._of_lease.pop(lease, [])
        for copy in ended:
            self._count[copy.band][copy.pages] -= 1
            self._loads -= copy.loads
        return [copy.event for copy in ended]

    def rename(self, band: int, virtual: Pages, into: Pages, generation: Pages) -> None:
        """Pages `virtual[i]` of a band are called `into[i]` of `generation[i]` from now on."""
        order = np.argsort(virtual)
        for copy in [one for copies in self._of_lease.values() for one in copies]:
            if copy.band != band or copy.names.isdisjoint(virtual.tolist()):
                continue
            which = order[np.searchsorted(virtual, copy.pages, sorter=order) % virtual.size]
            same = virtual[which] == copy.pages
            self._count[band][copy.pages] -= 1
            copy.pages = np.where(same, into[which], copy.pages)
            copy.generation = np.where(same, generation[which], copy.generation)
            copy.names = frozenset(copy.pages.tolist())
            self._count[band][copy.pages] += 1

    def before(self, access: BandAccess, generations: Generations) -> Iterator[Event]:
        """Copies that must be over before an access: of a page of the same owner, where one of the two
        writes."""
        # Few forwards write pages that are being copied, so first ask that of all copies at once.
        written = access.pages[access.read_count :]
        if not self._loads and not np.count_nonzero(self._count[access.band][written]):
            return
        for copy in [one for copies in self._of_lease.values() for one in copies]:
            if copy.band != access.band:
                continue
            both = copy.names.intersection((access.pages if copy.loads else written).tolist())
            if not both:
                continue
            now = generations(copy.band, copy.pages)
            if any(
                page in both and same
                for page, same in zip(copy.pages.tolist(), now == copy.generation, strict=True)
            ):
                yield copy.event

    def __bool__(self) -> bool:
        return bool(self._of_lease)
