"""A timeline that applies thousands of records at once, for whoever follows a trace that grows.

It leads to the same states as `Timeline`, which applies one record after the other; whatever is not
plain (pins, grafts, damage, numbers that do not add up) is left to that.
"""

from __future__ import annotations

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.bulk_band import (
    BLOCK_BITS,
    OF_BANDS,
    BandBatch,
    Odd,
    Scratch,
    apply_band,
    plan_band,
)
from bandscope.inspect.bulk_requests import RequestBatch, apply_requests, plan_requests
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.timeline import Timeline

_DOUBTS = (Odd, IndexError, ValueError, KeyError, TypeError, OverflowError)
_OPERATIONS = np.zeros(256, bool)
_OPERATIONS[form.FIRST_OPERATION : form.LAST_OPERATION + 1] = True
_LEASES = np.zeros(256, bool)
_LEASES[[Kind.LEASE_BEGIN, Kind.LEASE_END]] = True
# What happens to the bands and to the requests, the gate after it, an operation without outcome; and
# which requests leave at which records, where there is a prefix cache that they may leave.
_Plan = tuple[
    list[tuple[int, BandBatch]],
    RequestBatch,
    bool | None,
    tuple[int, int] | None,
    list[tuple[int, int]],
]


class BulkTimeline(Timeline):
    """`dirty`: per band, which blocks of 256 pages may have changed; whoever counts pages clears
    them."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._scratch = [Scratch(band) for band in self.state.bands]

    @property
    def dirty(self) -> list[np.ndarray]:
        """By band index, shape (capacity // 256 + 1,), bool."""
        return [scratch.dirty for scratch in self._scratch]

    def _place(self, snapshot: dict, sequence: int) -> None:
        super()._place(snapshot, sequence)
        self._touch_all()

    def _touch_all(self) -> None:
        for scratch in self._scratch:
            scratch.dirty[:] = True

    def _apply(self, segment: SegmentReader, first: int, last: int) -> None:
        records = segment.records[first:last]
        kinds = records["kind"]
        pinned = _LEASES[kinds] & ((records["flags"] & form.PIN) > 0)
        at = first
        for place in (np.flatnonzero(pinned | (kinds == Kind.GRAFT)) + first).tolist():
            self._apply_part(segment, at, place)
            if kinds[place - first] == Kind.GRAFT:
                self._apply_graft(segment, place)
            else:
                self._apply_each(segment, place, place + 1)
            at = place + 1
        self._apply_part(segment, at, last)

    def _apply_each(self, segment: SegmentReader, first: int, last: int) -> None:
        self._touch_all()
        super()._apply(segment, first, last)

    def _apply_graft(self, segment: SegmentReader, index: int) -> None:
        """Pages change their names between what comes before and after."""
        super()._apply(segment, index, index + 1)
        assert self._decoder is not None
        number = int(segment.records["band"][index])
        band = self.state.bands[number]
        pages = band.page_of[self._decoder.pages(index)[1]] - band.base
        self._scratch[number].dirty[pages >> BLOCK_BITS] = True

    def _apply_part(self, segment: SegmentReader, first: int, last: int) -> None:
        if first >= last:
            return
        try:
            plan = self._plan(segment, first, last)
        except _DOUBTS:
            plan = None
        if plan is None:
            self._apply_each(segment, first, last)
            return
        state = self.state
        bands, requests, gate, operation, leaving = plan
        for index, batch in bands:
            band = state.bands[index]
            apply_band(band, self._scratch[index], batch)
            if index in (state.full, state.state_band):
                ids = state.ids_of(index)
                np.add.at(ids.generation, batch.gone.virtual, 1)
                for change in batch.ids:
                    if isinstance(change, int):
                        ids.mint(change)
                    else:
                        ids.release(change)
        if state.has_cache:
            self._apply_shares(segment, first, last, leaving)
        apply_requests(state.requests, requests)
        if gate is not None:
            state.gate_closed = gate
        self._operation = operation
        self._apply_rest(segment, first, last)
        state.sequence = segment.first_sequence + last

    def _plan(
        self, segment: SegmentReader, first: int, last: int
    ) -> _Plan | None:
        state = self.state
        records = segment.records[first:last]
        kinds = records["kind"]
        words = segment.words
        bands = []
        ours = np.flatnonzero(OF_BANDS[kinds])
        band_of = records["band"][ours]
        for band in state.bands:
            mine = ours[band_of == band.index]
            if mine.size:
                has_ids = band.index in (state.full, state.state_band)
                starts = segment.starts[first:last][mine]
                sequences = mine + (segment.first_sequence + first)
                bands.append((band.index, plan_band(
                    band, self._scratch[band.index], words, starts, records[mine], sequences,
                    has_ids=has_ids, has_pins=bool(state.pins),
                )))  # fmt: skip
        if sum(batch.count for _, batch in bands) != ours.size:
            return None
        asked, tickets, operation, outcomes = self._pair(segment, first, records)
        requests = plan_requests(state.requests, segment, words, asked, tickets)
        if requests is None:
            return None
        kind_of = segment.records["kind"][asked]
        told = asked[kind_of == Kind.SET_GATE]
        gate = bool(segment.records["flags"][told[-1]] & form.CLOSED) if told.size else None
        leaving: list[tuple[int, int]] = []
        if state.has_cache:
            leaves = np.isin(kind_of, (Kind.RELEASE, Kind.RELEASE_PREFIX))
            numbers = segment.records["b"][asked[leaves]].tolist()
            leaving = list(zip(outcomes[leaves].tolist(), numbers, strict=True))
        return bands, requests, gate, operation, leaving

    def _apply_shares(
        self, segment: SegmentReader, first: int, last: int, leaving: list[tuple[int, int]]
    ) -> None:
        """Pages that became the cache's, after everything else was done to them: those that are still
        held since before that are its now, wherever they lie."""
        state, decoder = self.state, self._decoder
        assert decoder is not None
        records = segment.records
        shares = (np.flatnonzero(records["kind"][first:last] == Kind.SHARE) + first).tolist()
        told = [(index, -1) for index in shares] + leaving
        for index, request in sorted(told):
            if request >= 0:
                state.leave(request)
                continue
            sharer, first_page = int(records["b"][index]), int(records["c"][index])
            virtual = decoder.pages(index)[0]
            state.share(sharer, first_page, virtual, before=segment.first_sequence + index)
            for band, scratch in zip(state.bands, self._scratch, strict=True):
                if band.index != state.state_band:
                    pages = band.page_of[virtual]
                    scratch.dirty[pages[pages >= 0] - band.base >> BLOCK_BITS] = True

    def _pair(
        self, segment: SegmentReader, first: int, records: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[int, int] | None, np.ndarray]:
        """Where the operations that succeeded were asked, what their outcomes said, and the operation
        that has no outcome yet; then where those outcomes are."""
        kinds = records["kind"]
        opened = np.flatnonzero(_OPERATIONS[kinds])
        outcomes = np.flatnonzero(kinds == Kind.OUTCOME)
        carried = self._operation
        at = np.searchsorted(opened, outcomes) - 1
        before = np.concatenate(([-1], outcomes[:-1]))
        asked = np.where(at >= 0, opened[np.maximum(at, 0)], -1) if opened.size else np.full(
            outcomes.size, -1
        )
        known = asked > before
        asked = asked + first
        if carried is not None and outcomes.size and not known[0]:
            asked[0], known[0] = carried[1], True
        known &= (records["flags"][outcomes] & form.OK) > 0
        pending = carried if not outcomes.size else None
        if opened.size and (not outcomes.size or opened[-1] > outcomes[-1]):
            pending = int(kinds[opened[-1]]), int(opened[-1]) + first
        return asked[known], records["b"][outcomes[known]], pending, outcomes[known] + first

    def _apply_rest(self, segment: SegmentReader, first: int, last: int) -> None:
        """Times, tickets, barriers and the gate."""
        state = self.state
        records = segment.records[first:last]
        kinds = records["kind"]
        timed = np.flatnonzero(_OPERATIONS[kinds] | (kinds == Kind.OUTCOME))
        if timed.size:
            state.time_ns = int(records["a"][timed[-1]])
        launched = records["a"][kinds == Kind.LAUNCHED]
        if launched.size:
            state.issued = int(launched[-1])
            state.in_flight.update(launched.tolist())
        state.in_flight.difference_update(records["a"][kinds == Kind.DONE].tolist())
        barriers = np.flatnonzero(kinds == Kind.BARRIER)
        for text, ticket in zip(
            records["b"][barriers].tolist(), records["a"][barriers].tolist(), strict=True
        ):
            kind = segment.text(text)
            if kind == "settle" or "coarse" in kind:
                state.ordered_through = ticket
