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
from bandscope.inspect.sealing import read_file
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


@dataclass
class SegmentReader:
    """One segment as it was when it was opened.

    `records`: every record that was written, sound or not; record i has sequence
    `first_sequence + i`. `good`: True for those that can be trusted, shape (records,). `starts`: the
    byte of each record's payload in the pages file. `unchecked`: how many records at the end no
    checksum covers. `cut`: nothing follows the last record, as when the recorder had finished.
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

    def __post_init__(self) -> None:
        self.paths = segment_paths(self.directory, self.segment)
        self._events = read_file(self.paths[0], self.damages)
        self._pages = read_file(self.paths[1], self.damages)
        self._texts: dict[int, str] | None = None
        self._read_heads()
        self._find_records()
        self._check_blocks()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def stop_sequence(self) -> int:
        """One past the sequence of the last record."""
        return self.first_sequence + len(self.records)

    # --- what is there --------------------------------------------------------------------------------

    def _read_heads(self) -> None:
        head = self._head(self._events, EVENTS_MAGIC, self.paths[0].name)
        self._head(self._pages, PAGES_MAGIC, self.paths[1].name)
        if head is None:
            self.first_sequence = self.assumed_sequence
        else:
            _, _, _, _, self.first_sequence, self.wall_ns, self.clock_ns, _, _ = head

    def _head(self, data: mmap.mmap | bytes, magic: bytes, name: str) -> tuple | None:
        if len(data) < HEAD_BYTES:
            self._damaged(name, 0, HEAD_BYTES, "the head of the file is missing")
            return None
        head = HEAD.unpack_from(data)
        (value,) = HEAD_CRC.unpack_from(data, HEAD.size)
        sound = value == crc32(data[: HEAD.size])
        if not sound or head[0] != magic or head[1] != FORMAT_VERSION or head[2] != self.segment:
            self._damaged(name, 0, HEAD_BYTES, "the head of the file is damaged")
            return None
        return head

    def _find_records(self) -> None:
        room = max(0, len(self._events) - RECORDS_START)
        count = room // RECORD_BYTES
        records = (
            np.frombuffer(self._events, RECORD_DTYPE, count, RECORDS_START) if count else NO_RECORDS
        )
        written = np.flatnonzero(records["number"])
        used = int(written[-1]) + 1 if written.size else 0
        self.records = records[:used]
        rest = room - used * RECORD_BYTES
        self.cut = rest < RECORD_BYTES
        if self.cut and rest:
            stop = len(self._events)
            self._damaged(self.paths[0].name, stop - rest, stop, "a record is cut off")

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
        for first in range(0, count, BLOCK):  # over blocks: 256 records each
            stop = min(first + BLOCK, count)
            total = int(padded[first:stop].sum())
            whole = int(records["kind"][stop - 1]) == Kind.CHECK
            if stop - first == BLOCK or whole:
                end = int(records["b"][stop - 1])
                start = end - total
                sound = (
                    whole
                    and bool(numbered[first:stop].all())
                    and PAGES_START <= start <= end <= len(self._pages)
                    and self._checksum(first, stop, start, end)
                )
                if not sound:
                    self._bad_block(first, stop, min(position, len(self._pages)))
                    continue
                if start != position:
                    self._gap(position, start)
                position = end
            else:
                start, stop = position, self._unchecked_end(first, stop, position, padded, numbered)
                self.unchecked = stop - first
                if self.cut:
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
        self, first: int, stop: int, position: int, padded: np.ndarray, numbered: np.ndarray
    ) -> int:
        """How far the records after the last checksum are plausible."""
        fits = position + np.cumsum(padded[first:stop]) <= len(self._pages)
        fits &= numbered[first:stop]
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
        if not self.damages:
            self._damaged(self.paths[1].name, start, stop, "bytes that belong to no sound record")

    def _damaged(self, name: str, start: int, stop: int, what: str) -> None:
        self.damages.append(Damage(name, start, stop, what))

    # --- what they hold -------------------------------------------------------------------------------

    def payload(self, index: int) -> bytes:
        """The payload of a sound record."""
        start = int(self.starts[index])
        return self._pages[start : start + int(self.records["length"][index])]

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
