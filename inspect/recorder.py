"""The recorder: an observer that writes everything an arena does to a trace.

One writer, no locks, no threads, no sockets, and nobody is waited for: a reader maps the same files.
An operation is written before it is tried; its outcome and its effects follow. A disk that runs full
stops the recording, never the arena.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import TraceError
from bandscope.allocator.events import Extent, Holder, Observers
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.inspect import format as form
from bandscope.inspect import keyframe, registry
from bandscope.inspect.format import Kind, pack_list
from bandscope.inspect.header import make_header, seal_header, write_header
from bandscope.inspect.operation_codec import as_json, encode_operation
from bandscope.inspect.segment import SegmentWriter

KEYFRAME_EVERY = 16_384
SEGMENT_RECORDS = 262_144
SEGMENT_PAGES_BYTES = 8 << 20
RING_SEGMENTS = 8
RING_BYTES_MIN = 1 << 20
# A keyframe is put off until the records since the last one take at least this many times its bytes.
KEYFRAME_SHARE = 3
STACK_DEPTH_MAX = 64

_clock = time.perf_counter_ns


class Recorder:
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
        _make_directory(self.directory)
        self._t0 = _clock()
        self._trace_id = int.from_bytes(os.urandom(8), "little")
        self._header = make_header(
            self.arena,
            trace_id=self._trace_id,
            rank=self.rank,
            recorder={
                "ring_bytes": self.ring_bytes,
                "keyframe_every": self._keyframe_every,
                "stacks": self._stacks,
            },
        )
        write_header(self.directory, self._header)
        self._kept: list[tuple[SegmentWriter, int]] = []  # sealed segments and their bytes
        self._segment_number = 0
        self._open_segment(0)
        self._registration = registry.register(self.directory, self._header)

    def _open_segment(self, first_sequence: int) -> None:
        now = _clock() - self._t0
        segment = SegmentWriter(
            self.directory,
            self._segment_number,
            trace_id=self._trace_id,
            first_sequence=first_sequence,
            wall_ns=time.time_ns(),
            clock_ns=now,
            records=self._segment_records,
            pages_bytes=self._segment_pages_bytes,
        )
        self._segment = segment
        self.append: Callable[..., None] = segment.put
        self.payload: Callable[[bytes], int] = segment.payload
        self._texts: dict[str, int] = {}
        self._stack_numbers: dict[str, int] = {}
        self._batch: tuple[int, ...] | None = None
        self._batch_number = 0
        self.append(
            Kind.HEADER, 0, form.NO_BAND, self.payload(seal_header(self._header)), now, 0, 0
        )
        if self.lost:
            self.append(Kind.LOST, 0, form.NO_BAND, 0, self.lost, 0, 0)
        self._write_keyframe()

    def _write_keyframe(self) -> None:
        snapshot = self.arena.snapshot()
        payload = keyframe.encode(snapshot)
        digest = int.from_bytes(bytes.fromhex(self.arena.digest(snapshot))[:8], "little", signed=True)
        now = _clock() - self._t0
        segment = self._segment
        length = self.payload(payload)
        self.append(Kind.KEYFRAME, 0, form.NO_BAND, length, now, digest, form.crc32(payload))
        self._keyframe_bytes = length
        self._bytes_at_keyframe = segment.used_bytes
        self._pause_at = segment.number + self._keyframe_every

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
            self._pause_at = segment.number + max(1, self._keyframe_every // 4)
        else:
            self._write_keyframe()

    def _rotate(self) -> None:
        segment = self._segment
        following = segment.sequence + 2  # after its TRAILER and CHECK
        segment.finish(form.CONTINUED)
        self._kept.append((segment, segment.used_bytes))
        if self.ring_bytes is not None:
            room = self.ring_bytes - self.ring_bytes // RING_SEGMENTS
            while self._kept and sum(size for _, size in self._kept) > room:
                oldest, _ = self._kept.pop(0)
                self.lost += oldest.number - 1
                for path in oldest.paths:
                    path.unlink(missing_ok=True)
        self._segment_number += 1
        try:
            self._open_segment(following)
        except TraceError as error:
            self._give_up(error)

    def _stop(self, ending: int, error: TraceError | None = None) -> None:
        self._segment.finish(ending)
        if error is not None:
            self._give_up(error)

    def _give_up(self, error: TraceError) -> None:
        self.error = error
        self.append, self.payload = self._lose, len
        self._pause_at = sys.maxsize
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
        if self.error is None:
            self._stop(form.CLEAN)
        registry.unregister(self._registration)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def annotate(self, text: str) -> None:
        """A note of the user's at this point of the trace."""
        self.append(Kind.NOTE, 0, form.NO_BAND, self.payload(text.encode()), self._now(), 0, 0)

    def violation(self, name: str, detail: str) -> None:
        """An invariant that was found broken, by whoever checked."""
        length = self.payload(as_json({"name": name, "detail": detail}))
        self.append(Kind.VIOLATION, 0, form.NO_BAND, length, self._now(), 0, 0)

    # --- operations -----------------------------------------------------------------------------------

    def before(self, operation: Operation) -> None:
        """Write down what is about to be tried."""
        if self._stacks:
            self._write_stack()
        encode_operation(self, operation, _clock() - self._t0)

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Write down what became of it; every so often, a keyframe."""
        value = outcome.value
        if outcome.ok:
            self.append(
                Kind.OUTCOME, form.OK, 0, 0, _clock() - self._t0,
                form.NO_VALUE if value is None else value, 0,
            )  # fmt: skip
        else:
            reason = form.REASONS.index(outcome.reason)
            message = self.text(outcome.message)
            self.append(Kind.OUTCOME, 0, reason, 0, _clock() - self._t0, form.NO_VALUE, message)
        segment = self._segment
        if segment.number >= self._pause_at or segment.full is not None:
            if self.error is None:
                self._pause()

    def batch(self, kind: int, requests: tuple[int, ...], now: int) -> None:
        """An operation on a batch of requests; a batch that was written last is not written again."""
        if requests == self._batch:
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
            number = self._texts[text] = len(self._texts) + 1
            data = text.encode()
            self.append(Kind.TEXT, 0, form.NO_BAND, self.payload(data), 0, 0, number)
        return number

    def _now(self) -> int:
        return _clock() - self._t0

    def _write_stack(self) -> None:
        frame: FrameType | None = sys._getframe(3)  # past before, apply and the arena's own wrapper
        lines = []
        for _ in range(self._stacks):
            if frame is None:
                break
            code = frame.f_code
            lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        stack = "\n".join(lines)
        number = self._stack_numbers.get(stack)
        data = b""
        if number is None:
            number = self._stack_numbers[stack] = len(self._stack_numbers) + 1
            data = stack.encode()
        self.append(Kind.STACK, 0, form.NO_BAND, self.payload(data), 0, 0, number)

    # --- effects --------------------------------------------------------------------------------------

    def lease_begin(
        self, holder: Holder, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        """Pages got a holder; one page fits into the record."""
        if virtual.size == 1 and type(holder) is int:
            self.append(
                Kind.LEASE_BEGIN, form.INLINE, self._band_index[band], 0,
                virtual.item() << 32 | physical.item(), holder, 0,
            )  # fmt: skip
            return
        flags, who, extra = self._holder(holder)
        length = self.payload(pack_list(virtual) + pack_list(physical) + extra)
        self.append(
            Kind.LEASE_BEGIN, flags, self._band_index[band], length, virtual.size, who, lease
        )

    def lease_end(self, holder: Holder, band: str, virtual: Pages, lease: int) -> None:
        """Pages lost a holder."""
        if virtual.size == 1 and type(holder) is int:
            self.append(
                Kind.LEASE_END, form.INLINE, self._band_index[band], 0, virtual.item(), holder, 0
            )
            return
        flags, who, extra = self._holder(holder)
        length = self.payload(pack_list(virtual) + extra)
        self.append(Kind.LEASE_END, flags, self._band_index[band], length, virtual.size, who, lease)

    def _holder(self, holder: Holder) -> tuple[int, int, bytes]:
        """Flags, field `b` and a list of holders, as the record of a lease has them."""
        if isinstance(holder, int):
            return 0, holder, b""
        if isinstance(holder, str):
            return form.PIN | form.HOLDER_TEXT, self.text(holder), b""
        if holder.size == 1:
            return 0, holder.item(), b""
        return form.HOLDER_EACH, 0, form.pack_numbers(holder.tolist())

    def page_move(
        self,
        band: str,
        virtual: Pages,
        sources: Pages,
        destinations: Pages,
        page_bytes: int,
        urgent: bool,
    ) -> None:
        """One batch of copies is one record."""
        lists = pack_list(virtual) + pack_list(sources) + pack_list(destinations)
        length = self.payload(lists)
        flags = form.URGENT if urgent else 0
        self.append(Kind.PAGE_MOVE, flags, self._band_index[band], length, virtual.size, 0, 0)

    def band_move(self, band: str, before: Extent, after: Extent, why: str) -> None:
        """An extent changed; written in pages, which fit."""
        index = self._band_index[band]
        size = self.arena.books.bands[index].page_bytes
        text = self._texts.get(why) or self.text(why)
        self.append(
            Kind.BAND_MOVE, 0, index, 0,
            before[0] // size << 32 | before[1] // size,
            after[0] // size << 32 | after[1] // size,
            text,
        )  # fmt: skip

    def pending(self, band: str, pages: Pages, ticket: int) -> None:
        """Physical pages wait for a ticket."""
        self._physical(Kind.PENDING, band, pages, ticket)

    def reclaim(self, band: str, pages: Pages) -> None:
        """Physical pages became holes."""
        self._physical(Kind.RECLAIM, band, pages, 0)

    def _physical(self, kind: int, band: str, pages: Pages, ticket: int) -> None:
        index = self._band_index[band]
        if pages.size == 1:
            self.append(kind, form.INLINE, index, 0, pages.item(), ticket, 0)
        else:
            self.append(kind, 0, index, self.payload(pack_list(pages)), pages.size, ticket, 0)

    def barrier(self, kind: str, ticket: int, why: str) -> None:
        """The schedule stream waits."""
        self.append(Kind.BARRIER, 0, form.NO_BAND, 0, ticket, self.text(kind), self.text(why))

    def launched(self, ticket: int, requests: tuple[int, ...]) -> None:
        """A forward was launched; its requests are those of the operation."""
        self.append(Kind.LAUNCHED, 0, form.NO_BAND, 0, ticket, 0, 0)

    def done(self, ticket: int) -> None:
        """A ticket completed."""
        self.append(Kind.DONE, 0, form.NO_BAND, 0, ticket, 0, 0)

    def publish(self, band: str, rows: int) -> None:
        """Table rows were sent to the device."""
        self.append(Kind.PUBLISH, 0, self._band_index[band], 0, rows, 0, 0)

    def refusal(
        self,
        reason: str,
        demand: tuple[int, ...],
        live: tuple[int, ...],
        fixed: tuple[Extent | None, ...],
    ) -> None:
        """A demand was refused, with the layout it was refused for."""
        told = {"reason": reason, "demand": demand, "live": live, "fixed": fixed}
        self.append(Kind.REFUSAL, 0, form.NO_BAND, self.payload(as_json(told)), 0, 0, 0)

    # --- forks ----------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """In the child: its own trace from here on; the parent's files are let go as they are."""
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


def trace_directory(path: str | Path, rank: int | None) -> Path:
    """`NAME` → `NAME.trace`, or `NAME.rank3.trace` for one of several ranks."""
    path = Path(path)
    stem = path.name.removesuffix(".trace") or "bandscope"
    return path.with_name(f"{stem}.trace" if rank is None else f"{stem}.rank{rank}.trace")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = any(directory.iterdir())
    except OSError as error:
        raise TraceError(
            f"the trace folder {directory} could not be made ({error.strerror}); record to a folder "
            "that can be written"
        ) from error
    if found:
        raise TraceError(
            f"the trace folder {directory} is not empty; record to a new one, or remove it first"
        )


