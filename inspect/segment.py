"""Writing one segment of a trace: two preallocated, memory-mapped, append-only files.

A record is complete when its number is in place, which is written last; so a reader of the same
files, or whoever opens them after the process was killed, sees whole records only. Every block of
records ends with a checksum. Space is allocated before it is mapped: a full disk is an error here,
never a signal at the next write.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from bandscope.allocator.errors import TraceError
from bandscope.inspect.format import (
    BLOCK,
    EVENTS_MAGIC,
    FORMAT_VERSION,
    HEAD,
    HEAD_BYTES,
    HEAD_CRC,
    NO_BAND,
    PAGES_MAGIC,
    PAGES_START,
    RECORD,
    RECORD_BYTES,
    RECORDS_START,
    SPARE_BYTES,
    Kind,
    crc32,
)

_pack_into = RECORD.pack_into


class SegmentWriter:
    """One segment. `put` appends a record, `payload` the bytes that belong to the next one.

    `offset`, `position`: where the next record and the next payload go. `stop`: where `put` must pause
    for a checksum. `full`: the disk gave no more room, and what came after is lost. Raises `TraceError`,
    and leaves no file behind, when the files cannot be made.
    """

    __slots__ = (
        "_block_offset", "_block_position", "_closing", "_events_file", "_kept", "_overwritten",
        "_pages_file", "closed", "events", "first_sequence", "full", "offset", "pages", "paths",
        "position", "stop",
    )  # fmt: skip

    def __init__(
        self,
        directory: Path,
        segment: int,
        *,
        trace_id: int,
        first_sequence: int,
        wall_ns: int,
        clock_ns: int,
        records: int,
        pages_bytes: int,
    ) -> None:
        self.first_sequence = first_sequence
        self.paths = segment_paths(directory, segment)
        self.closed = self._closing = False
        events_bytes = RECORDS_START + records * RECORD_BYTES + SPARE_BYTES
        self._events_file, self.events = _create(self.paths[0], events_bytes)
        try:
            self._pages_file, self.pages = _create(self.paths[1], PAGES_START + pages_bytes)
        except TraceError:
            self.events.close()
            os.close(self._events_file)
            self.paths[0].unlink(missing_ok=True)
            raise
        for magic, mapped in ((EVENTS_MAGIC, self.events), (PAGES_MAGIC, self.pages)):
            head = HEAD.pack(
                magic, FORMAT_VERSION, segment, trace_id, first_sequence, wall_ns, clock_ns, 0, 0
            )
            mapped[:HEAD_BYTES] = head + HEAD_CRC.pack(crc32(head))
        self.offset = self._block_offset = RECORDS_START
        self.position = self._block_position = PAGES_START
        self.stop = RECORDS_START + (BLOCK - 1) * RECORD_BYTES
        self.full: TraceError | None = None
        self._kept: tuple | None = None
        self._overwritten = 0

    @property
    def number(self) -> int:
        """The number of the next record in this segment, counted from 1."""
        return (self.offset - RECORDS_START) // RECORD_BYTES + 1

    @property
    def sequence(self) -> int:
        """The sequence number of the next record."""
        return self.first_sequence + self.number - 1

    @property
    def following(self) -> int:
        """The sequence number of the first record of the next segment, were this one finished now:
        after TRAILER and CHECK, and after the CHECK that may be due before them."""
        return self.sequence + (3 if self.offset >= self.stop else 2)

    @property
    def used_bytes(self) -> int:
        """Bytes of both files that hold something."""
        return self.offset + self.position

    def put(
        self, kind: int, flags: int, band: int, length: int, a: int, b: int, c: int
    ) -> None:
        """Append a record; `length` bytes of payload were given to `payload` just before."""
        if self.offset >= self.stop:
            self.end_block(length)
        offset = self.offset
        # The last argument is `number`, spelt out because this runs for every event.
        _pack_into(self.events, offset, kind, flags, band, length, a, b, c, (offset >> 5) - 1)
        self.offset = offset + RECORD_BYTES

    def payload(self, data: bytes) -> int:
        """Append the payload of the next record; returns its length."""
        length = len(data)
        position = self.position
        stop = position + length
        if stop + 8 > len(self.pages):
            self._grow_pages(stop + 8)
            position, stop = self.position, self.position + length
        self.pages[position:stop] = data
        self.position = stop + (-stop & 7)
        return length

    def end_block(self, ahead: int = 0) -> None:
        """Write the CHECK record of the block. The last `ahead` bytes of payload belong to a record
        that is not written yet, so they count for the next block."""
        end = self.position - ahead - (-ahead & 7)
        offset = self.offset
        covered = (offset - self._block_offset) // RECORD_BYTES
        draft = RECORD.pack(Kind.CHECK, 0, NO_BAND, 0, covered, end, 0, 0)
        with memoryview(self.events) as events, memoryview(self.pages) as pages:
            value = crc32(
                events[self._block_offset : offset], draft, pages[self._block_position : end]
            )
        _pack_into(
            self.events, offset, Kind.CHECK, 0, NO_BAND, 0, covered, end, value, self.number
        )
        self.offset = self._block_offset = offset + RECORD_BYTES
        self._block_position = end
        self.stop = self.offset + (BLOCK - 1) * RECORD_BYTES
        if self.stop + SPARE_BYTES > len(self.events) and not self._closing:
            self._grow_events()

    def finish(self, ending: int, lost_before: int = 0) -> int:
        """Write LOST (if any were lost here), TRAILER and the last CHECK, and cut both files to what
        they hold. `ending` says why: one of `format.ENDINGS`; `lost_before`: events lost in earlier
        segments. Returns how many were lost here.

        There is room for these in any case: `SPARE_BYTES` beyond the place of the next CHECK.
        """
        lost = 0
        self._closing = True
        if self._kept is not None:
            lost = self.number + self._overwritten
            for mapped in (self.events, self.pages):
                mapped.close()
            (self.events, self.pages, self.offset, self.position, self.stop, self._block_offset,
             self._block_position) = self._kept  # fmt: skip
            lost -= self.number
        if lost:
            self.put(Kind.LOST, 0, NO_BAND, 0, lost_before + lost, 0, 0)
        if self.offset >= self.stop:  # so that TRAILER tells its own sequence
            self.end_block()
        self.put(Kind.TRAILER, ending, NO_BAND, 0, self.sequence, 0, 0)
        self.end_block()
        self.close()
        return lost

    def close(self) -> None:
        """Cut both files to what they hold. The last block has been ended."""
        self.closed = True
        for mapped, file, used in (
            (self.events, self._events_file, self.offset),
            (self.pages, self._pages_file, self.position),
        ):
            mapped.close()
            os.ftruncate(file, used)
            os.close(file)

    def abandon(self) -> None:
        """Let go of the files as they are (in a forked child, whose parent goes on writing)."""
        if self.closed:
            return
        self.closed = True
        kept = () if self._kept is None else self._kept[:2]
        for mapped in (self.events, self.pages, *kept):
            mapped.close()
        os.close(self._events_file)
        os.close(self._pages_file)

    def _grow_events(self) -> None:
        try:
            _allocate(self._events_file, len(self.events), 2 * len(self.events), self.paths[0])
        except TraceError as error:
            # The payload of the record that is to come is in its place, but the record will not be.
            self._run_out(error, written=self._block_position)
        else:
            size = 2 * len(self.events)
            self.events.close()
            self.events = mmap.mmap(self._events_file, size)

    def _grow_pages(self, needed: int) -> None:
        size = max(2 * len(self.pages), needed + needed // 4)
        size += -size % mmap.PAGESIZE
        try:
            _allocate(self._pages_file, len(self.pages), size, self.paths[1])
        except TraceError as error:
            self._run_out(error, written=self.position, pages_bytes=size)
        else:
            self.pages.close()
            self.pages = mmap.mmap(self._pages_file, size)

    def _run_out(self, error: TraceError, *, written: int, pages_bytes: int = 0) -> None:
        """The disk is full, and payloads up to byte `written` belong to records. What is written from
        now on goes to memory and is lost, so that nobody who writes a record has to ask; the recorder
        sees `full` after the operation and stops."""
        if self._kept is not None:  # scratch memory has run out as well: overwrite it
            self._overwritten += self.number - 1
            self.pages = mmap.mmap(-1, max(pages_bytes, len(self.pages)))
            self.position = self._block_position = PAGES_START
            self.offset = self._block_offset = RECORDS_START
            self.stop = RECORDS_START + (BLOCK - 1) * RECORD_BYTES
            return
        self.full = error
        self._kept = (
            self.events, self.pages, self.offset, written, self.stop, self._block_offset,
            self._block_position,
        )  # fmt: skip
        self.events = mmap.mmap(-1, 2 * len(self.events))
        self.pages = mmap.mmap(-1, max(pages_bytes, 2 * len(self.pages)))


def segment_paths(directory: Path, segment: int) -> tuple[Path, Path]:
    """The events file and the pages file of a segment."""
    return directory / f"{segment:06}.events", directory / f"{segment:06}.pages"


def _create(path: Path, size: int) -> tuple[int, mmap.mmap]:
    """A new file of `size` bytes and more, set aside and mapped."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TraceError(
            f"the trace file {path} could not be created ({error.strerror}); record to a folder that "
            "can be written and holds no trace yet"
        ) from error
    size += -size % mmap.PAGESIZE
    try:
        _allocate(file, 0, size, path)
        return file, mmap.mmap(file, size)
    except TraceError:
        os.close(file)
        path.unlink(missing_ok=True)
        raise


def _allocate(file: int, old_size: int, size: int, path: Path) -> None:
    """Let the file system set the space aside, or leave the file as it was."""
    try:
        os.posix_fallocate(file, old_size, size - old_size)
    except OSError as error:
        os.ftruncate(file, old_size)
        raise TraceError(
            f"{size - old_size:,} more bytes were needed for the trace file {path}, but the disk did "
            f"not give them ({error.strerror}); free space, or keep less with "
            f"--record {path.parent}:ring=64MiB"
        ) from error
