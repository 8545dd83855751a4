"""The model of an arena with a prefix cache: what each operation does with it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.events import CACHE
from bandscope.allocator.operations import Operation
from bandscope.fuzz.model.bands import NOTHING
from bandscope.fuzz.model.cached_effects import CacheEffects, PinnedPrefix
from bandscope.fuzz.model.expectation import DONE, MISUSE, Expectation
from bandscope.fuzz.model.model import ADVANCE, EXPECT
from bandscope.fuzz.model.state import Request
from bandscope.fuzz.program import Layout

KEY_LIMIT = 1 << 63


class CachedModel(CacheEffects):
    """See the module."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._grid = layout.config.checkpoint_grid_tokens
        self.expectations, self.advances = {**EXPECT, **EXPECT_CACHED}, {**ADVANCE, **ADVANCE_CACHED}

    # --- what each operation will do -----------------------------------------------------------------

    def _expect_cached_admit(self, op: ops.Admit) -> Expectation:
        cache, limit = self.cache, op.limit_tokens
        if self.is_illegal(op) or not _is_key(op.key) or (limit is not None and limit < 0):
            return MISUSE
        index = NOTHING if self.state_band is None else self.state_band.index
        slots = 0 if self.state_band is None else op.state_slots
        if self.state_band is not None and not slots:
            limit = 0  # there is nowhere to copy the state to
        known = cache.known(cache.pages_of_key(op.key))
        path = known[: cache.usable(known, limit)]
        has_state = bool(path) and self.state_band is not None
        needed = [cache.first_needed(w, len(path)) for w in range(len(self.stated))]
        # What is matched is held before room is made.
        cache.hold(path, needed, 1)
        if has_state:
            cache.hold_slot(path[-1], 1)
        if slots:
            expected = self._demand([slots * (band.index == index) for band in self.bands])
            if not expected.ok:
                cache.hold(path, needed, -1)
                if has_state:
                    cache.hold_slot(path[-1], -1)
                return expected
            self.takes = {index: slots}
        self.taker = op.request
        cache.clock += 1
        cache.cut(path)
        cache.use(path)
        if has_state:
            path[-1].slot_clock = cache.clock
            self._copy = "match", path[-1].slot
        self._match = path
        self._matched = path
        return Expectation(True, "", len(path) * self.page_size)

    def _expect_publish(self, op: ops.Publish) -> Expectation:
        request = self.requests.get(op.request)
        if request is None or not _is_key(op.key):
            return MISUSE
        self._begins_publishing(request, op.key, goes_on=True)
        return DONE

    def _expect_checkpoint(self, op: ops.Checkpoint) -> Expectation:
        request, state = self.requests.get(op.request), self.state_band
        if request is None or not _is_key(op.key) or state is None or not request.slots:
            return MISUSE
        tokens = request.length
        if request.launched != tokens or not tokens or tokens % self._grid:
            return MISUSE
        keys = self.cache.pages_of_key(request.key + op.key)
        depth = tokens // self.page_size
        if len(keys) < depth:
            return MISUSE
        if self.cache.checkpoint_at(keys, depth) is None:
            demand = [int(band is state) for band in self.bands]
            if not self.serves(demand):
                self._stalled = True
                return DONE
            self._demand(demand)
            self.takes, self.taker = {state.index: 1}, CACHE
            self._copy = "checkpoint", request.slots[0]
        self._begins_publishing(request, op.key, goes_on=True).stands = depth
        return DONE

    def _expect_evict(self, op: ops.Evict) -> Expectation:
        if len(op.pages) != len(self.bands) or min(op.pages) < 0:
            return MISUSE
        most = self.cache.evictable
        self._goal = [min(pair) for pair in zip(op.pages, most, strict=True)]
        self._must_evict = any(self._goal)
        return DONE

    def _expect_cached_release(self, op: ops.Release) -> Expectation:
        request = self.requests.get(op.request)
        if request is None or not _is_key(op.key) or (op.key and not op.publish):
            return MISUSE
        own = len(request.path)
        if op.publish:
            own = len(self._begins_publishing(request, op.key, goes_on=False).keys)
        for band in self.windows:
            kept = request.pages[max(own, request.first_kept[band.window_number]) :].tolist()
            if kept:
                self.drops.append((band.index, kept, op.request))
        if own < len(request.pages):
            self.drops.append((self.full.index, request.pages[own:].tolist(), op.request))
        if request.slots and self.state_band is not None:
            self.drops.append((self.state_band.index, request.slots, op.request))
        return DONE

    # --- what it has done, once it is done -----------------------------------------------------------

    def bear_out(self, operation: Operation, value: Any) -> None:
        if isinstance(operation, ops.Compact):
            super().bear_out(operation, value)
            return
        right = 0
        if isinstance(operation, ops.Evict):
            right = 0 if self._eviction is None else sum(self._eviction.counts)
        elif not self._stalled:
            publication = self._is_published()
            request = publication.request
            self._pins_follow(request, request.path)
            right = len(request.path) * self.page_size
            if isinstance(operation, ops.Checkpoint):
                there = self.cache.checkpoint_at(publication.keys, publication.stands)
                right = publication.stands * self.page_size
                if there is not None:
                    there.slot_clock = self.cache.clock
        if value != right:
            self.broken("capacity", f"{operation.kind} yields {value}, not {right}")

    def _cached_admitted(self, op: ops.Admit) -> None:
        request = self.requests[op.request] = Request(op.request, len(self.windows), self.taken or [])
        path = request.path = self._matched
        request.key = op.key
        request.pages = array("q", [page.page for page in path])
        request.length = request.launched = request.room = len(path) * self.page_size
        for window, number in enumerate(self.stated):
            request.first_kept[number] = self.cache.first_needed(window, len(path))
        if path and self.state_band is not None:
            self.cache.hold_slot(path[-1], -1)  # its copy is issued

    def _cached_trimmed(self, op: ops.TrimWindow) -> None:
        for request, number, first in self.trimmed:
            if number in self.stated:
                held = request.path[request.first_kept[number] : first]
                for page in held:
                    self.cache.hold_window(page, self.stated.index(number), -1)
        self._trimmed(op)

    def _cached_released(self, op: ops.Release) -> None:
        request = self.requests.pop(op.request)
        own = len(request.path)
        if op.publish:
            path = self._is_published().path or []
            self._pins_follow(request, path)
            own = len(path)
            self.last_shared = [page.page for page in path]
        for pinned in self.pinned.values():
            if pinned.request is request:
                pinned.request = None
        self.cache.hold(request.path, self._kept_from(request), -1)
        self.ids.release(request.pages[own:].tolist())
        self.state_ids.release(request.slots)

    def _leased(self, op: ops.Lease) -> None:
        request = self.requests[op.request]
        pinned = self.pinned[self.next_lease - 1] = PinnedPrefix(request)
        self._hold_all(pinned, request.path)

    def _lease_ended(self, op: ops.EndLease) -> None:
        self._hold_pinned(self.pinned.pop(op.lease), -1)


def _is_key(key: Sequence[int]) -> bool:
    return all(-KEY_LIMIT <= element < KEY_LIMIT for element in key)


EXPECT_CACHED: dict[type, Callable[[Any, Any], Expectation]] = {
    ops.Admit: CachedModel._expect_cached_admit,
    ops.Release: CachedModel._expect_cached_release,
    ops.Publish: CachedModel._expect_publish,
    ops.Checkpoint: CachedModel._expect_checkpoint,
    ops.Evict: CachedModel._expect_evict,
}

ADVANCE_CACHED: dict[type, Callable[[Any, Any], None]] = {
    ops.Admit: CachedModel._cached_admitted,
    ops.TrimWindow: CachedModel._cached_trimmed,
    ops.Release: CachedModel._cached_released,
    ops.Lease: CachedModel._leased,
    ops.EndLease: CachedModel._lease_ended,
}
