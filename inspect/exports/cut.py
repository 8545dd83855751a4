"""A slice: a trace of its own that holds a stretch of another one, every event under its old number.

It begins with the last keyframe at or before the stretch and ends with the operation that the stretch
ends in, so it opens, seeks and replays like any trace. Of the first segment, what lies before the
keyframe is left out: there stand the header, how many events are not here (as in a ring), and the texts
that later records name; records of no meaning fill the rest of a block of checksums, so that all
numbers stay what they were. A later segment begins with its keyframe and, in the place of a copy of
the header, with how many events are not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect import format as form
from bandscope.inspect.decode import decoder_for
from bandscope.inspect.exports.window import Window, boundary
from bandscope.inspect.format import BLOCK, NO_BAND, Kind
from bandscope.inspect.header import seal_header, write_header
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment import SegmentWriter
from bandscope.inspect.segment_reader import SegmentReader

_BATCHES = frozenset({Kind.DECODE, Kind.TRIM_WINDOW, Kind.LAUNCH})


def write(window: Window, draft: Path) -> int:
    """Write the slice into the new folder `draft`; returns its events, from the keyframe on."""
    trace = window.trace
    keyframe = _keyframe_for(window)
    stop = boundary(trace, window.stop)
    header = {
        **trace.header,
        "slice_of": {
            "path": str(trace.path),
            "asked": [window.start, window.stop],
            "events": [keyframe, stop],
        },
    }
    draft.mkdir()
    write_header(draft, header)
    sealed = seal_header(header)
    begin: int | None = None  # the first event of the slice, fillers included
    for number, segment in enumerate(trace.segments(keyframe, stop)):
        first = max(0, keyframe - segment.first_sequence)
        last = min(len(segment), stop - segment.first_sequence)
        _check_sound(trace, segment, first, last)
        is_last = segment.stop_sequence >= stop
        copy = _Copy(trace, segment, number, draft, sealed, begin)
        begin = copy.run(first, last, is_last)
    return stop - keyframe


def _keyframe_for(window: Window) -> int:
    """The last keyframe at or before the window, else the first one in it."""
    trace = window.trace
    found: int | None = None
    for segment in trace.segments(trace.start, window.stop):
        for index in segment.find(Kind.KEYFRAME).tolist():
            if form.crc32(segment.payload(index)) != int(segment.records["c"][index]):
                continue
            sequence = segment.first_sequence + index
            if sequence <= window.start or found is None:
                found = sequence
    if found is None or found >= window.stop:
        raise TraceError(
            f"no sound keyframe lies before event {window.stop:,} of trace {trace.path}, so a slice "
            "could not begin; ask for later events"
        )
    return found


def _check_sound(trace: Trace, segment: SegmentReader, first: int, last: int) -> None:
    """A slice has no way to say that events in its middle are missing."""
    good = segment.good[first:last]
    if not good.all():
        bad = np.flatnonzero(~good) + first + segment.first_sequence
        raise TraceError(
            f"events {int(bad[0]):,} to {int(bad[-1]):,} of trace {trace.path} lie in a damaged part, "
            "which a slice cannot hold; slice the events before or after them"
        )


class _Copy:
    """Copies records of one segment; those that lean on a record left behind are made whole."""

    def __init__(
        self,
        trace: Trace,
        segment: SegmentReader,
        number: int,
        directory: Path,
        header: bytes,
        begin: int | None,
    ) -> None:
        self.segment = segment
        self.number = number
        self.directory = directory
        self.header = header
        self.begin = begin
        self.decoder = decoder_for(trace, segment)
        self.trace_id = int(trace.header["trace_id"], 16)

    def run(self, first: int, last: int, is_last: bool) -> int:
        """Copy records `[first, last)`; `first` is the segment's first or the slice's keyframe.
        Returns the first event of the slice."""
        segment = self.segment
        texts = self._texts_before(first, last)
        origin = self._origin(first, len(texts))
        self.clock_ns = int(segment.records["a"][first]) if first else segment.clock_ns
        lengths = segment.records["length"][first:last].astype(np.int64)
        prefix_bytes = len(self.header) + sum(len(text) + 8 for _, text in texts)
        writer = self.writer = SegmentWriter(
            self.directory,
            self.number,
            trace_id=self.trace_id,
            first_sequence=segment.first_sequence + origin,
            wall_ns=segment.wall_ns + self.clock_ns - segment.clock_ns,
            clock_ns=self.clock_ns,
            records=last - origin + BLOCK,
            pages_bytes=int(lengths.sum()) + 8 * (last - first) + prefix_bytes + 4096,
        )
        try:
            if first:
                self.begin = writer.first_sequence
                self._write_before(first - origin, texts)
                self._copy(first, last, origin)
            else:
                self._copy(self._write_start(), last, origin)
            writer.finish(form.CLEAN if is_last else form.CONTINUED)
        except BaseException:
            writer.abandon()
            raise
        if writer.full is not None:
            raise writer.full
        assert self.begin is not None
        return self.begin

    def _texts_before(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """The texts written before `first` that records from there on name."""
        records = self.segment.records[first:last]
        kind, flags = records["kind"], records["flags"]
        named_by_c = (
            np.isin(kind, (Kind.RELEASE, Kind.RELEASE_PREFIX, Kind.STATE_COPY))
            | ((kind == Kind.OUTCOME) & (flags & form.OK == 0))
            | (kind == Kind.BARRIER)
            | (kind == Kind.BAND_MOVE)
        )
        leases = (kind == Kind.LEASE_BEGIN) | (kind == Kind.LEASE_END)
        named_by_b = (kind == Kind.BARRIER) | (leases & (flags & form.HOLDER_TEXT > 0))
        named = {*records["c"][named_by_c].tolist(), *records["b"][named_by_b].tolist()}
        texts = []
        for index in self.segment.find(Kind.TEXT).tolist():
            number = int(self.segment.records["c"][index])
            if index < first and number in named:
                texts.append((number, self.segment.payload(index)))
        return texts

    def _origin(self, first: int, texts: int) -> int:
        """The old index of the new segment's first record: a whole number of blocks before `first`,
        with room for header, LOST and texts. It is below 0 where `first` is the first keyframe of a
        later segment, which has no room for LOST before it."""
        if not first:
            return 0
        origin = first - first % BLOCK
        before = self.segment.first_sequence
        while before + origin > 0 and first - origin - (first - origin) // BLOCK < 2 + texts:
            origin -= BLOCK
        return origin

    def _write_before(self, room: int, texts: list[tuple[int, bytes]]) -> None:
        """`room` records before the keyframe."""
        writer = self.writer
        length = writer.payload(self.header)
        writer.put(Kind.HEADER, 0, NO_BAND, length, self.clock_ns, 0, 0)
        if writer.first_sequence:
            writer.put(Kind.LOST, 0, NO_BAND, 0, writer.first_sequence, 0, 0)
        for number, text in texts:
            writer.put(Kind.TEXT, 0, NO_BAND, writer.payload(text), 0, 0, number)
        while writer.number <= room:
            if writer.number % BLOCK == 0:
                writer.end_block()
            else:
                writer.put(Kind.TEXT, 0, NO_BAND, 0, 0, 0, 0)

    def _write_start(self) -> int:
        """The first records of a later segment; returns how many they are."""
        records, writer = self.segment.records, self.writer
        if not self.begin or len(records) < 2:
            return 0
        second = int(records["kind"][1])
        if second == Kind.LOST:  # a ring's
            length = writer.payload(self.header)
            writer.put(Kind.HEADER, 0, NO_BAND, length, self.clock_ns, 0, 0)
        elif second == Kind.KEYFRAME:
            flags, band, _, a, b, c, _ = records[1].tolist()[1:]
            length = writer.payload(self.segment.payload(1))
            writer.put(Kind.KEYFRAME, flags, band, length, a, b, c)
        else:
            return 0
        writer.put(Kind.LOST, 0, NO_BAND, 0, self.begin, 0, 0)
        return 2

    def _copy(self, first: int, last: int, origin: int) -> None:
        segment, writer = self.segment, self.writer
        stacks: dict[int, str] | None = None
        known_stacks: set[int] = set()
        moved: dict[int, int] = {}  # old number of a batch that stays behind: its new number
        columns: list[list[Any]] = [
            segment.records[name][first:last].tolist()
            for name in ("kind", "flags", "band", "length", "a", "b", "c")
        ]
        for index, (kind, flags, band, length, a, b, c) in enumerate(
            zip(*columns, strict=True), first
        ):
            if kind == Kind.CHECK or kind == Kind.TRAILER:
                continue  # the writer's own, at the same places
            data = segment.payload(index) if length else b""
            became = None
            if kind == Kind.HEADER:
                data = self.header
            elif kind in _BATCHES and flags & form.SAME_BATCH:
                if c - 1 >= first:
                    c -= origin
                elif c in moved:
                    c = moved[c]
                else:
                    became, flags, c = c, flags & ~form.SAME_BATCH, 0
                    data = form.pack_numbers(self.decoder.batch(index))
            elif kind == Kind.STACK and c not in known_stacks:
                if not data:
                    stacks = segment.stacks() if stacks is None else stacks
                    data = stacks.get(c, "").encode()
                known_stacks.add(c)
            writer.put(kind, flags, band, writer.payload(data) if data else 0, a, b, c)
            if became is not None:
                moved[became] = writer.number - 1
