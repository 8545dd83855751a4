"""Ids and the two-sided tables: which virtual page lives where, and since which generation.

Requests hold *virtual* pages. The id owner (`full`; state has a space of its own) mints them; every
band that stores bytes for a virtual page binds it to one of its own *places*. A place is the
distance of a page from its band's base (see `band.py`), so that all bookkeeping reads the same for
bands that grow up and bands that grow down; physical page numbers exist only at the device's door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

UNMAPPED = -1

Pages = np.ndarray  # int64, one dimension


@dataclass
class IdSpace:
    """Virtual page ids of one owner: minted, released, and counted by generation.

    `capacity` ids exist (as many as the owner's band could ever hold pages). Ids that were never
    used lie above `fresh`; released ones are reused last in, first out, which keeps the tables warm
    and the whole space a pure function of the operations so far.
    """

    capacity: int

    def __post_init__(self) -> None:
        self.fresh = 0
        self._released = np.empty(min(self.capacity, 1024), np.int64)
        self.released_count = 0
        self.generation = np.zeros(self.capacity, np.int64)
        self.bound = np.zeros(self.capacity, bool)

    @property
    def free_count(self) -> int:
        """Ids that can be minted now."""
        return self.released_count + self.capacity - self.fresh

    def mint(self, count: int) -> Pages:
        """`count` ids, each bound from now on. The caller has checked `free_count`."""
        assert 0 <= count <= self.free_count, "mint past the id space"
        reused = min(count, self.released_count)
        left = self.released_count - reused
        ids = self._released[left : self.released_count]
        self.released_count = left
        if count > reused:
            start = self.fresh
            self.fresh += count - reused
            ids = np.concatenate([ids, np.arange(start, self.fresh, dtype=np.int64)])
        else:
            ids = ids.copy()
        self.bound[ids] = True
        return ids

    def release(self, ids: Pages) -> None:
        """Give ids back. Their generation grows, so that an old name is recognised as stale."""
        count = ids.size
        if self.released_count + count > self._released.size:
            size = min(self.capacity, max(2 * self._released.size, self.released_count + count))
            grown = np.empty(size, np.int64)
            grown[: self.released_count] = self._released[: self.released_count]
            self._released = grown
        self._released[self.released_count : self.released_count + count] = ids
        self.released_count += count
        self.generation[ids] += 1
        self.bound[ids] = False

    def released_ids(self) -> Pages:
        """The released ids, oldest first (a copy-free view; do not write)."""
        return self._released[: self.released_count]

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what this space does next."""
        return {
            "fresh": self.fresh,
            "released": self.released_ids().copy(),
            "generation": self.generation[: self.fresh].copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw."""
        used = max(self.fresh, state["fresh"])
        self.generation[:used] = 0
        self.bound[:used] = False
        self.fresh = state["fresh"]
        self.generation[: self.fresh] = state["generation"]
        self.bound[: self.fresh] = True
        released = state["released"]
        self._released = np.empty(max(released.size, 1024), np.int64)
        self._released[: released.size] = released
        self.released_count = released.size
        self.bound[released] = False


class PageTable:
    """One band's virtual → place and place → virtual tables, each the inverse of the other.

    `place_of[v]` is `UNMAPPED` (−1) when this band stores nothing for virtual page `v` (never
    bound, or trimmed out of its window); `virtual_at[p]` likewise for a place that is not live.
    """

    def __init__(self, virtual_capacity: int, place_capacity: int) -> None:
        self.place_of = np.full(virtual_capacity, UNMAPPED, np.int64)
        self.virtual_at = np.full(place_capacity, UNMAPPED, np.int64)
        self._dirty: list[Pages] = []

    def bind(self, virtual: Pages, places: Pages) -> None:
        """Map `virtual[i]` to `places[i]`; all of them unmapped before."""
        self.place_of[virtual] = places
        self.virtual_at[places] = virtual
        self._dirty.append(virtual)

    def unbind(self, virtual: Pages) -> Pages:
        """Forget `virtual` and return the places it held."""
        places: Pages = self.place_of[virtual]
        self.place_of[virtual] = UNMAPPED
        self.virtual_at[places] = UNMAPPED
        self._dirty.append(virtual)
        return places

    def rename(self, virtual: Pages, into: Pages) -> None:
        """What `virtual[i]` was mapped to belongs to `into[i]` from now on, which was unmapped."""
        places = self.place_of[virtual]
        self.place_of[virtual] = UNMAPPED
        self._dirty.append(virtual)
        self.bind(into, places)

    def rebind(
        self, sources: Pages, destinations: Pages, vacated: Sequence[Pages | slice] | None = None
    ) -> Pages:
        """Follow a move: what lived at `sources[i]` lives at `destinations[i]` from now on.

        Returns the virtual pages that moved. Sources and destinations are disjoint. `vacated`, when
        given, covers the sources and else only places that hold nothing: slices are cheaper.
        """
        virtual: Pages = self.virtual_at.take(sources)
        self.place_of[virtual] = destinations
        self.virtual_at[destinations] = virtual
        for places in [sources] if vacated is None else vacated:
            self.virtual_at[places] = UNMAPPED
        self._dirty.append(virtual)
        return virtual

    @property
    def has_unpublished(self) -> bool:
        """True when the device's mirror lacks a change."""
        return bool(self._dirty)

    def unpublished(self) -> Pages:
        """The virtual pages that the mirror lacks, sorted, each once."""
        if not self._dirty:
            return np.empty(0, np.int64)
        changed = np.sort(np.concatenate(self._dirty) if len(self._dirty) > 1 else self._dirty[0])
        if changed.size > 1:
            # Sorting and dropping repeats is several times faster than np.unique on integers.
            first = np.empty(changed.size, bool)
            first[0] = True
            np.not_equal(changed[1:], changed[:-1], first[1:])
            changed = changed[first]
        return changed

    def take_unpublished(self) -> Pages:
        """`unpublished`, which are published from now on."""
        changed = self.unpublished()
        self._dirty = []
        return changed

    def mark_unpublished(self, virtual: Pages) -> None:
        """Exactly these rows are what the mirror lacks."""
        self._dirty = [virtual] if virtual.size else []
