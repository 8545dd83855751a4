"""A least-recently-used order over things whose time of use only ever grows.

A heap with one entry per thing. An entry is looked at only when it reaches the top: out of date, it
sinks to where it belongs; no longer a candidate, it is dropped. So a use costs nothing here, and the
next victim costs O(log n) and at most one step per use since.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

#: When it was used last, its depth (shallower first at the same time), its number.
Key = tuple[int, int, int]


class LeastRecent:
    """Candidates by number; `key_of(number)` is the key now, None when it is no candidate."""

    def __init__(self, key_of: Callable[[int], Key | None]) -> None:
        self._key_of = key_of
        self._heap: list[Key] = []
        self._queued: set[int] = set()
        self._prune_at = 64
        self.steps = 0  # heap entries looked at: what the cost tests count

    def offer(self, number: int) -> None:
        """`number` may have become a candidate."""
        if number in self._queued:
            return
        key = self._key_of(number)
        if key is None:
            return
        self.steps += 1
        self._queued.add(number)
        heapq.heappush(self._heap, key)
        if len(self._heap) > self._prune_at:
            self._prune()

    def head(self) -> Key | None:
        """The candidate used longest ago, left where it is."""
        while self._heap:
            self.steps += 1
            entry = self._heap[0]
            key = self._key_of(entry[2])
            if key == entry:
                return entry
            if key is None:
                heapq.heappop(self._heap)
                self._queued.discard(entry[2])
            else:
                assert key > entry, "a time of use went backwards"
                heapq.heapreplace(self._heap, key)
        return None

    def pop(self) -> Key | None:
        """Take the head out; `offer` puts it back while it is a candidate."""
        head = self.head()
        if head is not None:
            heapq.heappop(self._heap)
            self._queued.discard(head[2])
        return head

    def candidates(self) -> set[int]:
        """Everything in the order now (for checks; looks at all)."""
        return {number for number in self._queued if self._key_of(number) is not None}

    def _prune(self) -> None:
        # What died without reaching the top goes when it could be half of the heap.
        live = self.candidates()
        self._heap = [entry for entry in self._heap if entry[2] in live]
        heapq.heapify(self._heap)
        self._queued = live
        self._prune_at = max(64, 2 * len(self._heap))
