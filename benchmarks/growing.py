"""A finished trace, written once more at a rate, as its recorder would: for readers that follow.

The bytes of every event are those of the trace; its header says that this process records it.

    python benchmarks/growing.py FROM.trace TO.trace [--rate 20000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from bandscope.inspect import registry
from bandscope.inspect.format import RECORD_BYTES, RECORDS_START
from bandscope.inspect.header import write_header
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment import segment_paths

_ROOM = 1 << 20


class Growing:
    """Writes the events of a trace to another folder, some at a time."""

    def __init__(self, source: Path, target: Path) -> None:
        self.trace = Trace(source)
        target.mkdir(parents=True)
        pid = os.getpid()
        header = {**self.trace.header, "pid": pid, "birth": registry.birth(pid)}
        header["wall_ns"] = time.time_ns()
        write_header(target, header)
        self.target = target
        self._numbers = [number for number, _, _ in self.trace.heads]
        self._files: tuple[int, int] | None = None
        self._at = 0  # records of the segment that are written
        self.written = self.trace.start

    def write(self, events: int) -> bool:
        """Write up to so many events more; False at the end of the trace."""
        while events > 0 and self._numbers:
            segment = self.trace.segment(self._numbers[0])
            stop = min(len(segment), self._at + events)
            self._append(stop, stop == len(segment))
            events -= stop - self._at
            self.written += stop - self._at
            self._at = stop
            if stop == len(segment):
                self._close()
        return bool(self._numbers)

    def _append(self, stop: int, last: bool) -> None:
        number = self._numbers[0]
        segment = self.trace.segment(number)
        sources = segment_paths(self.trace.path, number)
        if self._files is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            events, pages = (os.open(path, flags) for path in segment_paths(self.target, number))
            self._files = events, pages
            for file, path in zip(self._files, sources, strict=True):
                os.truncate(file, path.stat().st_size + _ROOM)
                os.pwrite(file, path.read_bytes()[:RECORDS_START], 0)
        events, pages = self._files
        lengths = segment.records["length"][self._at : stop].astype(np.int64)
        begin = int(segment.starts[self._at])
        end = int(segment.starts[stop - 1] + (lengths[-1] + 7 & ~7)) if lengths.size else begin
        os.pwrite(pages, _part(sources[1], begin, end), begin)
        low, high = (RECORDS_START + at * RECORD_BYTES for at in (self._at, stop))
        os.pwrite(events, _part(sources[0], low, high), low)
        if last:
            for file, path in zip(self._files, sources, strict=True):
                os.truncate(file, path.stat().st_size)

    def _close(self) -> None:
        assert self._files is not None
        for file in self._files:
            os.close(file)
        self._files, self._at = None, 0
        del self._numbers[0]


def _part(path: Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)


def main() -> None:
    """Write at a steady rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rate", type=float, default=20_000, help="events a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    growing = Growing(options.source, options.target)
    begun = time.monotonic()
    more = True
    while more and time.monotonic() < begun + options.seconds:
        due = int((time.monotonic() - begun) * options.rate) - growing.written
        if due > 0:
            more = growing.write(due)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
