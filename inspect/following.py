"""A trace that grows, followed: what was looked at once is not looked at again.

`Trace.refresh` opens the last segment anew. That is right for all that can happen to a file, and too
much ten times a second. Here the last segment takes in the records that came since; whatever is not
plain growth is left to `Trace.refresh`.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from bandscope.inspect.format import (
    BLOCK,
    PAGES_START,
    RECORD_BYTES,
    RECORD_DTYPE,
    RECORDS_START,
    Kind,
)
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader

_READ_BYTES = 1 << 16


class _Room:
    """An array that grows at its end without being copied every time."""

    def __init__(self, values: np.ndarray) -> None:
        self._store = np.zeros(max(4096, 2 * values.size), values.dtype)
        self.size = 0
        self.append(values)

    def append(self, values: np.ndarray) -> None:
        stop = self.size + values.size
        if stop > self._store.size:
            store = np.zeros(2 * stop, self._store.dtype)
            store[: self.size] = self._store[: self.size]
            self._store = store
        self._store[self.size : stop] = values
        self.size = stop

    @property
    def values(self) -> np.ndarray:
        return self._store[: self.size]


class GrowingSegment(SegmentReader):
    """A segment that can take in what was written to it since it was opened."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rooms: tuple[_Room, _Room, _Room] | None = None
        self._checked = self._position = 0
        self.spoiled = False  # that it cannot be used any more

    @property
    def ending(self) -> int | None:
        """Flags of the TRAILER, when that is the sound last word."""
        tail = self.records["kind"][-2:]  # a look at two records instead of all
        return super().ending if Kind.TRAILER in tail else None

    def grow(self) -> bool:
        """Take in what came; False when that is not plain growth, and the segment is to be opened
        anew. Records that are not whole yet are left for the next time."""
        if not self._begin():
            return False
        self.spoiled = not self._take()
        return not self.spoiled

    def _take(self) -> bool:
        assert self._rooms is not None
        try:
            with open(self.paths[0], "rb") as file:
                data = self._read(file.fileno())
                size = os.fstat(file.fileno()).st_size
        except OSError:
            return False
        if data is None:
            return False
        if data.size:
            self._rooms[0].append(data)
            self._show()
            if not self._check():
                return False
            if (data.view(RECORD_DTYPE)["kind"] == Kind.TEXT).any():
                self._texts = None
        rest = size - RECORDS_START - len(self.records) * RECORD_BYTES
        if rest < RECORD_BYTES:  # nothing can follow
            self.cut = True
            return rest == 0 and self.ending is not None
        return True

    def _begin(self) -> bool:
        if self._rooms is not None:
            return True
        plain = self.begun and not (self.cut or self.missing or self.damages)
        if not plain or not len(self.records) or not self.good.all() or not self.ends_sound:
            return False
        self._checked = len(self.records) - self.unchecked
        self._position = PAGES_START
        if self._checked:
            last = self.records[self._checked - 1]
            if last["kind"] != Kind.CHECK:
                return False
            self._position = int(last["b"])
        stop = RECORDS_START + len(self.records) * RECORD_BYTES
        self._rooms = (
            _Room(np.frombuffer(self._events, np.uint8, stop)), _Room(self.good),
            _Room(self.starts),
        )  # fmt: skip
        self._show()
        return True

    def _show(self) -> None:
        assert self._rooms is not None
        written: Any = self._rooms[0].values
        self._events = written
        self.records = written[RECORDS_START:].view(RECORD_DTYPE)

    def _read(self, file: int) -> np.ndarray | None:
        """The whole records that came, as bytes. A record is read once more after its number, which
        is written last, was seen."""
        start = RECORDS_START + len(self.records) * RECORD_BYTES
        number = len(self.records) + 1
        whole = 0
        while True:
            seen = os.pread(file, _READ_BYTES, start + whole * RECORD_BYTES)
            numbers = np.frombuffer(seen, "<u4", len(seen) // RECORD_BYTES * 8)[7::8]
            right = numbers == np.arange(number + whole, number + whole + numbers.size)
            count = numbers.size if right.all() else int(np.argmin(right))
            if numbers[count:].any():  # perhaps the next block is being written; perhaps damage
                later = np.flatnonzero(numbers[count:])
                if later.size > 1 or int(later[0]) > 0:
                    return None
            whole += count
            if count < numbers.size or not numbers.size:
                break
        data = os.pread(file, whole * RECORD_BYTES, start)
        return np.frombuffer(data, np.uint8) if len(data) == whole * RECORD_BYTES else None

    def _check(self) -> bool:
        """Check the blocks that are complete now, and find every payload."""
        assert self._rooms is not None
        records, first = self.records, self._checked
        padded = (records["length"][first:].astype(np.int64) + 7) & ~7
        ends = np.cumsum(padded) + self._position
        if not self._map(int(ends[-1])):
            return False
        known = self._rooms[2].size
        self._rooms[1].append(np.ones(len(records) - known, bool))
        self._rooms[2].append((ends - padded)[known - first :])
        self.good, self.starts = self._rooms[1].values, self._rooms[2].values
        while first < len(records):
            stop = min(first + BLOCK, len(records))
            last = records[stop - 1]
            if last["kind"] != Kind.CHECK:
                if stop - first == BLOCK:
                    return False
                break
            start, end = self._position, int(last["b"])
            if end != int(ends[stop - 1 - self._checked]):
                return False
            if not self._checksum(first, stop, start, end):
                return False
            first, self._position = stop, end
        self._checked, self.unchecked = first, len(records) - first
        return True

    def _map(self, stop: int) -> bool:
        """Whether the pages file is known up to a byte."""
        if stop <= len(self._pages):
            return True
        try:
            with open(self.paths[1], "rb") as file:
                if stop > os.fstat(file.fileno()).st_size:
                    return False
                self._pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            return False
        return True


class FollowedTrace(Trace):
    """A trace for whoever refreshes it often."""

    def refresh(self) -> int:
        """Look again at a trace that grows; returns how many events came."""
        number = self._segments[-1] if self._segments else -1
        last = self._cache.get(number)
        if isinstance(last, GrowingSegment) and self._starts:
            if last.grow():
                self._damages[number] = last.damages, last.stop_sequence
                if last.ending is None:
                    before, self.stop = self.stop, last.stop_sequence
                    return self.stop - before
                self._finished.add(number)
            elif last.spoiled:
                del self._cache[number]
        return super().refresh()

    def _open(self, number: int, assumed_sequence: int) -> SegmentReader:
        reader = GrowingSegment(self.path, number, assumed_sequence)
        return self._keep(number, reader)
