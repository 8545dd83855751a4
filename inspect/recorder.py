"""The recorder: an observer that writes everything an arena does to a trace.

One writer, no locks, no threads, no sockets, and nobody is waited for: a reader maps the same files.
An operation is written before it is tried; its outcome and its effects follow. A disk that runs full
stops the recording, never the arena.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import TraceError
from bandscope.allocator.events import Observers
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import format as form
from bandscope.inspect import keyframe, registry
from bandscope.inspect.effect_writer import EffectWriter
from bandscope.inspect.folder import make_folder, remove_folder, trace_directory
from bandscope.inspect.format import Kind
from bandscope.inspect.header import make_header, seal_header, write_header
from bandscope.inspect.operation_codec import ENCODERS, UNFIT, as_json, encode_as_json
from bandscope.inspect.segment import SegmentWriter
from bandscope.inspect.stacks import STACK_DEPTH_MAX, caller_stack

KEYFRAME_EVERY = 8_192
SEGMENT_RECORDS = 131_072
SEGMENT_PAGES_BYTES = 4 << 20
RING_SEGMENTS = 8
RING_BYTES_MIN = 1 << 20
# A keyframe is put off until the records since the last one take at least this many times its bytes.
KEYFRAME_SHARE = 3

_clock = time.perf_counter_ns
# Plain integers of this module, as in `effect_writer`.
_OUTCOME, _OK, _NO_VALUE, _NO_BAND = int(Kind.OUTCOME), form.OK, form.NO_VALUE, form.NO_BAND


class Recorder(EffectWriter):
    """Records one arena into the directory `path` (`.trace` is added to its name).

    `ring_bytes`: keep about this many bytes, overwriting the oldest (None: keep everything).
    `stacks`: frames of the Python stack to keep per operation (0: none). `rank`: of this process among
    several; it is added to the name. A recorder is attached to the arena by its constructor, next to
    an observer that is there already. Raises `TraceError` when the directory holds a trace already or
    cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        arena: Arena,
        *,
        ring_bytes: int | None = None,
        keyframe_every: int = KEYFRAME_EVERY,
        segment_records: int = SEGMENT_RECORDS,
        segment_pages_bytes: int = SEGMENT_PAGES_BYTES,
        stacks: int = 0,
        rank: int | None = None,
    ) -> None:
        if ring_bytes is not None:
            if ring_bytes < RING_BYTES_MIN:
                raise TraceError(
                    f"a ring of {ring_bytes:,} bytes was asked for; give {RING_BYTES_MIN:,} or more"
                )
            half = ring_bytes // RING_SEGMENTS // 2
            segment_records, segment_pages_bytes = half // form.RECORD_BYTES, half
            keyframe_every = min(keyframe_every, segment_records // 4)
        self.directory = trace_directory(path, rank)
        self.arena = arena
        self.rank = rank
        self.ring_bytes = ring_bytes
        self.lost = 0
        self.error: TraceError | None = None
        self._keyframe_every = keyframe_every
        self._segment_records = max(segment_records, 2 * form.BLOCK)
        self._segment_pages_bytes = segment_pages_bytes
        self._stacks = min(stacks, STACK_DEPTH_MAX)
        self._band_index = {band.name: index for index, band in enumerate(arena.books.bands)}
        self._owner = os.getpid()
        self._start()
        before = arena.books.observer
        arena.books.observer = self if before is None else Observers(before, self)
        self._before = before
        _recorders.append(self)

    # --- the life of a trace ------------------------------------------------------------------------

    def _start(self) -> None:
        make_folder(self.directory)
        wall_ns, self._t0 = time.time_ns(), _clock()
        self._trace_id = int.from_bytes(os.urandom(8), "little")
        self._header = make_header(
            self.arena,
            trace_id=self._trace_id,
            rank=self.rank,
            wall_ns=wall_ns,
            recorder={
                "ring_bytes": self.ring_bytes,
                "keyframe_every": self._keyframe_every,
                "stacks": self._stacks,
            },
        )
        self._kept: list[tuple[SegmentWriter, int]] = []  # finished segments and their bytes
        self._segment_number = 0
        self._registration: Path | None = None
        try:
            write_header(self.directory, self._header)
            segment = self._make_segment(0)
        except TraceError:
            remove_folder(self.directory)
            raise
        self._begin_segment(segment)
        self._registration = registry.register(self.directory, self._header)

    def _make_segment(self, first_sequence: int) -> SegmentWriter:
        return SegmentWriter(
            self.directory,
            self._segment_number,
            trace_id=self._trace_id,
            first_sequence=first_sequence,
            wall_ns=time.time_ns(),
            clock_ns=_clock() - self._t0,
            records=self._segment_records,
            pages_bytes=self._segment_pages_bytes,
        )

    def _begin_segment(self, segment: SegmentWriter) -> None:
        now = _clock() - self._t0
        self._segment = segment
        self.append, self.payload = segment.put, segment.payload
        self._texts = {}
        self._texts_written = 0
        self._stack_numbers: dict[str, int] = {}
        self.append(
            Kind.HEADER, 0, _NO_BAND, self.payload(seal_header(self._header)), now, 0, 0
        )
        if self.lost:
            self.append(Kind.LOST, 0, _NO_BAND, 0, self.lost, 0, 0)
        self._write_keyframe()

    def _write_keyframe(self) -> None:
        snapshot = self.arena.snapshot()
        payload = keyframe.encode(snapshot)
        digest = int.from_bytes(bytes.fromhex(self.arena.digest(snapshot))[:8], "little", signed=True)
        now = _clock() - self._t0
        segment = self._segment
        length = self.payload(payload)
        self.append(Kind.KEYFRAME, 0, _NO_BAND, length, now, digest, form.crc32(payload))
        # What follows a keyframe refers to nothing before it, so damage before it stays there.
        self._texts.clear()
        self._batch: tuple[int, ...] | None = None
        self._batch_number = 0
        self._keyframe_bytes = length
        self._bytes_at_keyframe = segment.used_bytes
        self._pause_offset = segment.offset + self._keyframe_every * form.RECORD_BYTES

    def _pause(self) -> None:
        """Between two operations, now and then: a keyframe, a new segment, or the end."""
        segment = self._segment
        if segment.full is not None:
            self._stop(form.DISK_FULL, segment.full)
        elif (
            segment.number + self._keyframe_every > self._segment_records
            or segment.position > self._segment_pages_bytes * 3 // 4
        ):
            self._rotate()
        elif segment.used_bytes - self._bytes_at_keyframe < KEYFRAME_SHARE * self._keyframe_bytes:
            wait = max(1, self._keyframe_every // 4)
            self._pause_offset = segment.offset + wait * form.RECORD_BYTES
        else:
            self._write_keyframe()

    def _rotate(self) -> None:
        segment = self._segment
        self._segment_number += 1
        try:
            following = self._make_segment(segment.following)
        except TraceError as error:
            self._stop(form.DISK_FULL, error)
            return
        segment.finish(form.CONTINUED)
        self._kept.append((segment, segment.used_bytes))
        overwritten: list[SegmentWriter] = []
        if self.ring_bytes is not None:
            room = self.ring_bytes - self.ring_bytes // RING_SEGMENTS
            while self._kept and sum(size for _, size in self._kept) > room:
                oldest, _ = self._kept.pop(0)
                self.lost += oldest.number - 1
                overwritten.append(oldest)
        self._begin_segment(following)  # says what is lost, before it is
        for oldest in overwritten:
            for path in oldest.paths:
                path.unlink(missing_ok=True)

    def _stop(self, ending: int, error: TraceError | None = None) -> None:
        self.lost += self._segment.finish(ending, self.lost)
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: TraceError) -> None:
        self.error = error
        self.append, self.payload = self._lose, len
        self._pause_offset = sys.maxsize
        print(f"bandscope: recording to {self.directory} stopped: {error}", file=sys.stderr)

    def _lose(self, *record: int) -> None:
        self.lost += 1

    @property
    def sequence(self) -> int:
        """The sequence number of the next event."""
        return self._segment.sequence

    def close(self) -> None:
        """End the trace cleanly and let go of the arena. Closing twice does nothing."""
        if self not in _recorders:
            return
        _recorders.remove(self)
        self.arena.books.observer = self._before
        full = self._segment.full
        if self.error is None:
            self._stop(form.CLEAN if full is None else form.DISK_FULL, full)
        registry.unregister(self._registration)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def annotate(self, text: str) -> None:
        """A note of the user's at this point of the trace."""
        length = self.payload(text.encode(errors="backslashreplace"))
        self.append(Kind.NOTE, 0, _NO_BAND, length, self._now(), 0, 0)

    def violation(self, name: str, detail: str) -> None:
        """An invariant that was found broken, by whoever checked."""
        length = self.payload(as_json({"name": name, "detail": detail}))
        self.append(Kind.VIOLATION, 0, _NO_BAND, length, self._now(), 0, 0)

    # --- operations -----------------------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """Write down what is about to be tried."""
        if self._stacks:
            self._write_stack()
        now = _clock() - self._t0
        try:
            ENCODERS[type(operation)](self, operation, now)
        except (KeyError, *UNFIT):
            encode_as_json(self, operation, now)

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Write down what became of it; every so often, a keyframe."""
        if outcome.ok:
            value = outcome.value
            self.append(
                _OUTCOME, _OK, 0, 0, _clock() - self._t0, _NO_VALUE if value is None else value, 0
            )
        else:
            reason = form.REASONS.index(outcome.reason)
            message = self.text(outcome.message)
            self.append(_OUTCOME, 0, reason, 0, _clock() - self._t0, _NO_VALUE, message)
        if self._segment.offset >= self._pause_offset or self._segment.full is not None:
            if self.error is None:
                self._pause()

    def batch(self, kind: int, requests: tuple[int, ...], now: int) -> None:
        """An operation on a batch of requests; a batch that was written last is not written again."""
        if requests is self._batch or requests == self._batch:
            self.append(kind, form.SAME_BATCH, 0, 0, now, len(requests), self._batch_number)
            return
        length = self.payload(form.pack_numbers(requests))
        self.append(kind, 0, 0, length, now, len(requests), 0)
        # After the record, which a CHECK may have preceded.
        self._batch, self._batch_number = requests, self._segment.number - 1

    def text(self, text: str) -> int:
        """The number of a text, which is written once per segment; 0 for the empty text."""
        if not text:
            return 0
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = self._texts_written = self._texts_written + 1
            data = text.encode(errors="backslashreplace")
            self.append(Kind.TEXT, 0, _NO_BAND, self.payload(data), 0, 0, number)
        return number

    def _now(self) -> int:
        return _clock() - self._t0

    def _write_stack(self) -> None:
        stack = caller_stack(self._stacks)
        number = self._stack_numbers.get(stack)
        data = b""
        if number is None:
            number = self._stack_numbers[stack] = len(self._stack_numbers) + 1
            data = stack.encode(errors="backslashreplace")
        self.append(Kind.STACK, 0, _NO_BAND, self.payload(data), 0, 0, number)

    # --- forks ----------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """In the child: its own trace from here on; the parent's files are let go as they are."""
        if self._segment.closed:  # recording had stopped
            self._registration = None
            return
        self._segment.abandon()
        self.directory = self.directory.with_name(
            f"{self.directory.stem}.fork-{os.getpid()}{self.directory.suffix}"
        )
        self.lost = 0
        try:
            self._start()
        except TraceError as error:
            self._give_up(error)


_recorders: list[Recorder] = []


def _restart_in_child() -> None:
    for recorder in _recorders:
        recorder._after_fork()


os.register_at_fork(after_in_child=_restart_in_child)
