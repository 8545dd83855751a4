"""State at event n, for any n: the nearest sound keyframe before it, then the events between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.allocator.errors import TraceError
from bandscope.inspect import format as form
from bandscope.inspect import keyframe
from bandscope.inspect.decode import Decoder, decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import Damage, SegmentReader
from bandscope.inspect.state import UNMAPPED, ArenaState, Pin, RequestState

_U32 = 0xFFFFFFFF
# What a damaged record that no checksum covers may cause when it is applied.
_IMPLAUSIBLE = (IndexError, ValueError, KeyError, TypeError, OverflowError)


class Timeline:
    """Moves an `ArenaState` along a trace.

    `seek(n)`: the state before event n. `advance(n)`: go on to n from where it is. `gaps`: stretches
    of events that could not be applied, as (first event, first event after it); the state after one is
    right again, because it begins at a keyframe. `damages`: what was found out on the way.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.state = ArenaState(trace.header)
        self.gaps: list[tuple[int, int]] = []
        self.damages: list[Damage] = []
        self._segment: SegmentReader | None = None
        self._decoder: Decoder | None = None
        self._operation: tuple[int, int] | None = None
        self._placed = False
        # In a gap: where it ends, and the keyframe there, if there is one.
        self._blind: tuple[int, dict[str, Any] | None] | None = None

    # --- where to -------------------------------------------------------------------------------------

    def seek(self, sequence: int) -> ArenaState:
        """The state before event `sequence` (after all events, when it is `trace.stop`)."""
        if not self.trace.start <= sequence <= self.trace.stop:
            raise TraceError(
                f"event {sequence:,} was asked for, but trace {self.trace.path} holds events "
                f"{self.trace.start:,} to {self.trace.stop:,}"
            )
        found = self._keyframe_before(sequence)
        if found is None:
            raise TraceError(
                f"no sound keyframe lies before event {sequence:,} of trace {self.trace.path}; ask for "
                "a later event (`bandscope inspect summary` names the damaged parts)"
            )
        segment, index, snapshot = found
        start = segment.first_sequence + index + 1
        here = self.state.sequence
        if not (self._placed and start <= here <= sequence):
            self._place(snapshot, start)
        return self.advance(sequence)

    def advance(self, sequence: int) -> ArenaState:
        """Apply the events up to `sequence`, this one excluded."""
        if not self._placed:
            self._place_at_start()
        while self.state.sequence < sequence:
            if self._blind is not None:
                stop, snapshot = self._blind
                if sequence < stop or snapshot is None:
                    self.state.sequence = min(sequence, stop)
                if self.state.sequence == sequence:
                    break
                if snapshot is not None:
                    self._place(snapshot, stop)
                    continue
            segment = self.trace.segment_of(self.state.sequence)
            self._enter(segment)
            first = self.state.sequence - segment.first_sequence
            last = min(len(segment), sequence - segment.first_sequence)
            sound = segment.good[first:last]
            if self._blind is not None or first >= last or not sound[0]:
                self._skip(segment.first_sequence + first)
            elif sound.all():
                self._apply(segment, first, last)
            else:
                self._apply(segment, first, first + int(np.argmin(sound)))
        return self.state

    def _place_at_start(self) -> None:
        """At the first sound keyframe of the trace."""
        for segment in self.trace.segments():
            for index in segment.find(Kind.KEYFRAME).tolist():
                snapshot = self._snapshot(segment, index)
                if snapshot is not None:
                    start = segment.first_sequence + index + 1
                    # What comes before a trace's first keyframe is its header.
                    if not segment.good[:index].all():
                        self._note_gap(segment.first_sequence, start)
                    self._place(snapshot, start)
                    return
            self._note_gap(segment.first_sequence, segment.stop_sequence)
        raise TraceError(
            f"trace {self.trace.path} holds no sound keyframe, so no state can be rebuilt; `bandscope "
            "inspect summary` names the damaged parts"
        )

    def _place(self, snapshot: dict[str, Any], sequence: int) -> None:
        self.state.restore(snapshot, sequence)
        self._operation = None
        self._placed = True
        self._blind = None

    def _skip(self, start: int) -> None:
        """Events from `start` on are missing or damaged: state stays as it is up to the next sound
        keyframe."""
        stop, snapshot = self.trace.stop, None
        for segment in self.trace.segments(start):
            for index in segment.find(Kind.KEYFRAME).tolist():
                if segment.first_sequence + index >= start and snapshot is None:
                    snapshot = self._snapshot(segment, index)
                    if snapshot is not None:
                        stop = segment.first_sequence + index + 1
            if snapshot is not None:
                break
        self._note_gap(start, stop)
        self._blind = stop, snapshot

    def _note_gap(self, start: int, stop: int) -> None:
        if stop > start and not any(low <= start and stop <= high for low, high in self.gaps):
            self.gaps.append((start, stop))

    def _keyframe_before(self, sequence: int) -> tuple[SegmentReader, int, dict[str, Any]] | None:
        for segment in self.trace.segments_before(sequence):
            for index in reversed(segment.find(Kind.KEYFRAME).tolist()):
                if segment.first_sequence + index < sequence:
                    snapshot = self._snapshot(segment, index)
                    if snapshot is not None:
                        return segment, index, snapshot
        return None

    def _snapshot(self, segment: SegmentReader, index: int) -> dict[str, Any] | None:
        payload = segment.payload(index)
        try:
            if form.crc32(payload) != int(segment.records["c"][index]):
                raise ValueError("its checksum does not match")
            return keyframe.decode(payload)
        except ValueError as error:
            start = int(segment.starts[index])
            what = f"the keyframe of event {segment.first_sequence + index:,} is damaged: {error}"
            damage = Damage(segment.paths[1].name, start, start + len(payload), what)
            if damage not in self.damages:
                self.damages.append(damage)
            return None

    # --- events -------------------------------------------------------------------------------------

    def _enter(self, segment: SegmentReader) -> None:
        if segment is not self._segment:
            self._segment = segment
            self._decoder = decoder_for(self.trace, segment)

    def _apply(self, segment: SegmentReader, first: int, last: int) -> None:
        records = segment.records[first:last]
        columns = [records[name].tolist() for name in ("kind", "flags", "band", "a", "b", "c")]
        appliers = APPLIERS
        index = first
        for kind, flags, band, a, b, c in zip(*columns, strict=True):
            applier = appliers.get(kind)
            if applier is not None:
                try:
                    applier(self, index, flags, band, a, b, c)
                except _IMPLAUSIBLE as error:
                    if index < len(segment) - segment.unchecked:
                        raise
                    self._implausible(segment, index, error)
            elif form.FIRST_OPERATION <= kind <= form.LAST_OPERATION:
                self._operation = (kind, index)
                self.state.time_ns = a
            index += 1
        self.state.sequence = segment.first_sequence + last

    def _implausible(self, segment: SegmentReader, index: int, error: Exception) -> None:
        start = form.RECORDS_START + index * form.RECORD_BYTES
        what = f"event {segment.first_sequence + index:,} cannot be applied ({error})"
        self.damages.append(
            Damage(segment.paths[0].name, start, start + form.RECORD_BYTES, what)
        )

    def _outcome(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.time_ns = a
        operation, self._operation = self._operation, None
        if operation is None or not flags & form.OK:
            return
        kind, asked = operation
        state, segment, decoder = self.state, self._segment, self._decoder
        assert segment is not None and decoder is not None
        requests = state.requests
        match kind:
            case Kind.DECODE:
                for request in decoder.batch(asked):
                    requests[request].length += 1
            case Kind.LAUNCH:
                for request in decoder.batch(asked):
                    known = requests[request]
                    known.launched = known.length
                    known.last_ticket = b
            case Kind.ADMIT:
                requests[int(segment.records["b"][asked])] = RequestState()
            case Kind.ADMIT_PREFIX:  # `b`: the tokens that were matched
                requests[int(segment.records["b"][asked])] = RequestState(b, b)
            case Kind.EXTEND:
                record = segment.records[asked]
                requests[int(record["b"])].length += int(record["c"])
            case Kind.RELEASE | Kind.RELEASE_PREFIX:
                request = int(segment.records["b"][asked])
                del requests[request]
                state.leave(request)
            case Kind.SET_GATE:
                state.gate_closed = bool(int(segment.records["flags"][asked]) & form.CLOSED)

    def _lease_begin(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        state = self.state
        bands = state.bands[band]
        sequence = self._segment.first_sequence + index  # type: ignore[union-attr]
        if flags & form.INLINE:
            virtual, page = a >> 32, (a & _U32) - bands.base
            bands.state[page] = LIVE
            bands.virtual[page] = virtual
            bands.owner[page] = b
            bands.ticket[page] = 0
            bands.page_of[virtual] = page + bands.base
            bands.leased_at[virtual] = sequence
            bands.unpublished.append(virtual)
            count = 1
        else:
            virtuals, physical, *each = self._decoder.pages(index)  # type: ignore[union-attr]
            pages = physical - bands.base
            if flags & form.PIN:
                bands.pins[pages] += 1
                holder = self._segment.text(b)  # type: ignore[union-attr]
                state.pins[c] = Pin(c, holder, band, virtuals, physical, sequence, state.issued)
                return
            bands.state[pages] = LIVE
            bands.virtual[pages] = virtuals
            bands.owner[pages] = each[0] if each else b
            bands.ticket[pages] = 0
            bands.page_of[virtuals] = physical
            bands.leased_at[virtuals] = sequence
            bands.unpublished.append(virtuals)
            count = virtuals.size
        if band == state.full:
            state.ids.mint(count)
        elif band == state.state_band:
            state.state_ids.mint(count)

    def _lease_end(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        state = self.state
        bands = state.bands[band]
        if flags & form.PIN:
            pin = state.pins.pop(c)
            bands.pins[pin.physical - bands.base] -= 1
            return
        if flags & form.INLINE:
            page: Any = int(bands.page_of[a]) - bands.base
            virtuals: Any = a
            # A slot that was taken and given back at once may lie where the extent never got to.
            inside = bands.extent[0] <= page + bands.base < bands.extent[1]
            bands.state[page] = PENDING if bands.pins[page] else HOLE if inside else GAP
        else:
            virtuals = self._decoder.pages(index)[0]  # type: ignore[union-attr]
            page = bands.page_of[virtuals] - bands.base
            bands.state[page] = np.where(bands.pins[page] > 0, PENDING, HOLE)
        bands.virtual[page] = UNMAPPED
        bands.owner[page] = UNMAPPED
        bands.page_of[virtuals] = UNMAPPED
        bands.unpublished.append(virtuals)
        if band == state.full or band == state.state_band:
            ids = state.ids_of(band)
            ids.generation[virtuals] += 1
            if flags & form.INLINE:
                ids.released.append(virtuals)
            else:
                ids.released.extend(virtuals.tolist())

    def _page_move(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        bands = self.state.bands[band]
        virtuals, sources, destinations = self._decoder.pages(index)  # type: ignore[union-attr]
        old, new = sources - bands.base, destinations - bands.base
        bands.owner[new] = bands.owner[old]
        bands.state[new] = LIVE
        bands.virtual[new] = virtuals
        bands.ticket[new] = 0
        bands.page_of[virtuals] = destinations
        bands.state[old] = HOLE  # a PENDING record follows where work in flight may read it
        bands.virtual[old] = UNMAPPED
        bands.owner[old] = UNMAPPED
        bands.unpublished.append(virtuals)

    def _band_move(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        bands = self.state.bands[band]
        old, new = bands.extent, (b >> 32, b & _U32)
        base = bands.base
        if old[1] > old[0]:
            for low, high in ((old[0], min(old[1], new[0])), (max(old[0], new[1]), old[1])):
                if high > low:
                    bands.state[low - base : high - base] = GAP
        bands.extent = new if new[1] > new[0] else (0, 0)
        for low, high in ((new[0], min(new[1], old[0])), (max(new[0], old[1]), new[1])):
            if high > low:
                part = bands.state[low - base : high - base]
                part[part == GAP] = HOLE

    def _pending(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        bands = self.state.bands[band]
        pages: Any = a if flags & form.INLINE else self._decoder.pages(index)[0]  # type: ignore[union-attr]
        bands.state[pages - bands.base] = PENDING
        bands.ticket[pages - bands.base] = b

    def _reclaim(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        bands = self.state.bands[band]
        pages: Any = a if flags & form.INLINE else self._decoder.pages(index)[0]  # type: ignore[union-attr]
        bands.state[pages - bands.base] = HOLE
        bands.ticket[pages - bands.base] = 0

    def _launched(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.issued = a
        self.state.in_flight.add(a)

    def _done(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.in_flight.discard(a)

    def _publish(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.bands[band].unpublished = []

    def _barrier(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        kind = self._segment.text(b)  # type: ignore[union-attr]
        if kind == "settle" or "coarse" in kind:
            self.state.ordered_through = a

    def _share(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.share(b, c, self._decoder.pages(index)[0])  # type: ignore[union-attr]

    def _graft(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.state.bands[band].graft(*self._decoder.pages(index))  # type: ignore[union-attr]


_Applier = Callable[[Timeline, int, int, int, int, int, int], None]
APPLIERS: dict[int, _Applier] = {
    Kind.OUTCOME: Timeline._outcome,
    Kind.LEASE_BEGIN: Timeline._lease_begin,
    Kind.LEASE_END: Timeline._lease_end,
    Kind.PAGE_MOVE: Timeline._page_move,
    Kind.BAND_MOVE: Timeline._band_move,
    Kind.PENDING: Timeline._pending,
    Kind.RECLAIM: Timeline._reclaim,
    Kind.LAUNCHED: Timeline._launched,
    Kind.DONE: Timeline._done,
    Kind.PUBLISH: Timeline._publish,
    Kind.BARRIER: Timeline._barrier,
    Kind.SHARE: Timeline._share,
    Kind.GRAFT: Timeline._graft,
}
