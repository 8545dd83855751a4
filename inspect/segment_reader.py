"""Reading one segment of a trace: which records are there, which of them are sound, their payloads.

The files may be growing, finished, left behind by a killed process, cut or damaged. Nothing here
raises for any of that: what cannot be trusted is left out and named as `Damage`, with byte offsets.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

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
    RECORD_DTYPE,
    RECORDS_START,
    Kind,
    crc32,
)
from bandscope.inspect.sealing import MISSING, read_file, read_start
from bandscope.inspect.segment import segment_paths

NO_RECORDS = np.zeros(0, RECORD_DTYPE)


@dataclass(frozen=True)
class Damage:
    """Bytes `[start, stop)` of a file of a trace that cannot be used, and why."""

    file: str
    start: int
    stop: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}, bytes {self.start:,} to {self.stop:,}: {self.what}"


def open_head(data: bytes, magic: bytes, segment: int) -> tuple | None:
    """The fields of the head of a file; None when they are not there or damaged."""
    if len(data) < HEAD_BYTES:
        return None
    head = HEAD.unpack_from(data)
    (value,) = HEAD_CRC.unpack_from(data, HEAD.size)
    sound = value == crc32(data[: HEAD.size])
    return head if sound and head[:3] == (magic, FORMAT_VERSION, segment) else None


def peek(directory: Path, segment: int) -> tuple[int, int] | None:
    """First sequence and clock of a segment from the head of its events, without its records; None
    when that is not sound. `FileNotFoundError` when the segment is gone."""
    head = open_head(read_start(segment_paths(directory, segment)[0]), EVENTS_MAGIC, segment)
    return None if head is None else (head[4], head[6])


@dataclass
class SegmentReader:
    """One segment as it was when it was opened.

    `records`: every record that was written, sound or not; record i has sequence
    `first_sequence + i`. `good`: True for those that can be trusted, shape (records,). `starts`: the
    byte of each record's payload in the pages file. `unchecked`: how many records at the end no
    checksum covers. `cut`: nothing follows the last record, as when the recorder had finished.
    `begun`: False where the writer had not come to the first record yet, when it may still be busy
    with the segment before. `missing`: the files are gone.
    `ends_sound`: the last block is as it was written.
    """

    directory: Path
    segment: int
    assumed_sequence: int = 0
    first_sequence: int = 0
    clock_ns: int = 0
    wall_ns: int = 0
    records: np.ndarray = field(default_factory=lambda: NO_RECORDS)
    good: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    damages: list[Damage] = field(default_factory=list)
    unchecked: int = 0
    cut: bool = False
    begun: bool = True
    missing: bool = False
    ends_sound: bool = True

    def __post_init__(self) -> None:
        self.paths = segment_paths(self.directory, self.segment)
        self._events = read_file(self.paths[0], self.damages)
        self._pages = read_file(self.paths[1], self.damages)
        self.missing = any(damage.what == MISSING for damage in self.damages)
        self._texts: dict[int, str] | None = None
        self._find_records()
        self._read_heads()
        self._check_blocks()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def stop_sequence(self) -> int:
        """One past the sequence of the last record."""
        return self.first_sequence + len(self.records)

    @property
    def lost_before(self) -> int:
        """Events that a ring had overwritten when this segment was begun."""
        second = self.records[1:2]
        return int(second["a"][0]) if second.size and second["kind"][0] == Kind.LOST else 0

    @property
    def ending(self) -> int | None:
        """Flags of the TRAILER, when that is the sound last word."""
        trailers = self.find(Kind.TRAILER)
        if not trailers.size or int(trailers[-1]) < len(self) - 2 or self.unchecked:
            return None
        return int(self.records["flags"][trailers[-1]])

    # --- what is there --------------------------------------------------------------------------------

    def _read_heads(self) -> None:
        """Both files have the same head, so one sound head is enough."""
        if not len(self.records) and self._is_blank(self._pages):
            self.begun = False
            self.damages.clear()
        if not len(self.records) and not self.cut:
            self.begun = False  # room was set aside for records
        heads = [
            self._head(self._events, EVENTS_MAGIC, self.paths[0].name),
            self._head(self._pages, PAGES_MAGIC, self.paths[1].name),
        ]
        head = heads[0] or heads[1]
        if head is None:
            self.first_sequence = self.assumed_sequence
        else:
            _, _, _, _, self.first_sequence, self.wall_ns, self.clock_ns, _, _ = head

    @staticmethod
    def _is_blank(data: mmap.mmap | bytes) -> bool:
        return not any(data[:HEAD_BYTES])

    def _head(self, data: mmap.mmap | bytes, magic: bytes, name: str) -> tuple | None:
        if len(data) < HEAD_BYTES or self._is_blank(data):
            if self.begun and not any(damage.file.startswith(name) for damage in self.damages):
                self._damaged(name, 0, HEAD_BYTES, "the head of the file is missing")
            return None
        head = open_head(data[:HEAD_BYTES], magic, self.segment)
        if head is None:
            self._damaged(name, 0, HEAD_BYTES, "the head of the file is damaged")
        return head

    def _find_records(self) -> None:
        size = len(self._events)
        room = max(0, size - RECORDS_START)
        count = room // RECORD_BYTES
        records = (
            np.frombuffer(self._events, RECORD_DTYPE, count, RECORDS_START) if count else NO_RECORDS
        )
        written = np.flatnonzero(records["number"])
        used = int(written[-1]) + 1 if written.size else 0
        if 0 < used < count and int(records["number"][used - 1]) != used:
            used -= 1  # its number is half written
        self.records = records[:used]
        rest = room - used * RECORD_BYTES
        self.cut = rest < RECORD_BYTES
        if self.cut and rest:
            self._damaged(self.paths[0].name, size - rest, size, "a record is cut off")

    # --- what is sound --------------------------------------------------------------------------------

    def _check_blocks(self) -> None:
        records = self.records
        count = len(records)
        self.good = np.zeros(count, bool)
        lengths = records["length"].astype(np.int64)
        padded = (lengths + 7) & ~7
        before = np.cumsum(padded) - padded if count else padded
        self.starts = np.zeros(count, np.int64)
        numbered = records["number"] == np.arange(1, count + 1, dtype=np.uint32)
        position = PAGES_START
        sure = True  # that the next payload lies at `position`
        for first in range(0, count, BLOCK):  # over blocks: 256 records each
            stop = min(first + BLOCK, count)
            total = int(padded[first:stop].sum())
            whole = int(records["kind"][stop - 1]) == Kind.CHECK
            if stop - first == BLOCK or whole:
                end = int(records["b"][stop - 1])
                start = end - total
                self.ends_sound = (
                    whole
                    and bool(numbered[first:stop].all())
                    and PAGES_START <= start <= end
                    and (end <= len(self._pages) or not total)
                    and self._checksum(first, stop, start, end)
                )
                if not self.ends_sound:
                    self._bad_block(first, stop, min(position, len(self._pages)))
                    # Where the lengths and the CHECK agree, it is known where the next block goes on.
                    sure = sure and end == position + total
                    position += total
                    continue
                if start != position and sure:
                    self._gap(position, start)
                position, sure = end, True
            else:
                stop = self._unchecked_end(first, stop, position, padded, numbered, sure)
                start = position
                self.unchecked = count - first
                if self.cut and stop > first:
                    low = RECORDS_START + first * RECORD_BYTES
                    high = RECORDS_START + stop * RECORD_BYTES
                    self._damaged(
                        self.paths[0].name, low, high,
                        f"the last {stop - first} records lack their checksum; they are shown as found",
                    )  # fmt: skip
            self.good[first:stop] = True
            self.starts[first:stop] = start + before[first:stop] - before[first]

    def _checksum(self, first: int, stop: int, start: int, end: int) -> bool:
        last = self.records[stop - 1]
        covered = stop - 1 - first
        if int(last["a"]) != covered or int(last["flags"]) or int(last["band"]) != NO_BAND:
            return False
        draft = RECORD.pack(Kind.CHECK, 0, NO_BAND, int(last["length"]), covered, end, 0, 0)
        low = RECORDS_START + first * RECORD_BYTES
        high = RECORDS_START + (stop - 1) * RECORD_BYTES
        with memoryview(self._events) as events, memoryview(self._pages) as pages:
            value = crc32(events[low:high], draft, pages[start:end])
        return value == int(last["c"])

    def _unchecked_end(
        self,
        first: int,
        stop: int,
        position: int,
        padded: np.ndarray,
        numbered: np.ndarray,
        sure: bool,
    ) -> int:
        """How far the records after the last checksum are plausible; `sure`: it is known that their
        payloads begin at `position`."""
        fits = position + np.cumsum(padded[first:stop]) <= len(self._pages)
        fits &= numbered[first:stop] & sure
        if fits.all():
            return stop
        kept = first + int(np.argmin(fits))
        low = RECORDS_START + kept * RECORD_BYTES
        high = RECORDS_START + stop * RECORD_BYTES
        self._damaged(
            self.paths[0].name, low, high, f"{stop - kept} records do not fit what was written"
        )
        return kept

    def _bad_block(self, first: int, stop: int, position: int) -> None:
        low = RECORDS_START + first * RECORD_BYTES
        high = RECORDS_START + stop * RECORD_BYTES
        self._damaged(
            self.paths[0].name,
            low,
            high,
            f"the checksum of {stop - first} records and their pages (from byte {position:,} of "
            f"{self.paths[1].name}) does not match",
        )

    def _gap(self, start: int, stop: int) -> None:
        self._damaged(self.paths[1].name, start, stop, "bytes that belong to no record")

    def _damaged(self, name: str, start: int, stop: int, what: str) -> None:
        self.damages.append(Damage(name, start, stop, what))

    # --- what they hold -------------------------------------------------------------------------------

    def payload(self, index: int) -> bytes:
        """The payload of a sound record."""
        start = int(self.starts[index])
        return self._pages[start : start + int(self.records["length"][index])]

    @property
    def words(self) -> np.ndarray:
        """The pages file as words of 32 bits; a payload begins at an even one."""
        return np.frombuffer(self._pages, "<i4", len(self._pages) // 4)

    def text(self, number: int) -> str:
        """A text by its number; says so when it lies in a damaged part."""
        if number == 0:
            return ""
        if self._texts is None:
            self._texts = self._read_texts(Kind.TEXT)
        return self._texts.get(number, "(a text in a damaged part)")

    def stacks(self) -> dict[int, str]:
        """Python stacks by their number."""
        return self._read_texts(Kind.STACK)

    def _read_texts(self, kind: Kind) -> dict[int, str]:
        texts = {}
        for index in self.find(kind).tolist():
            data = self.payload(index)
            if data:
                texts[int(self.records["c"][index])] = data.decode(errors="replace")
        return texts

    def find(self, kind: Kind) -> np.ndarray:
        """The indexes of all sound records of a kind, ascending."""
        return np.flatnonzero((self.records["kind"] == kind) & self.good)
