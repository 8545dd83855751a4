"""Opening a trace: live, finished, killed, cut or damaged, all by the same code.

A trace is opened read-only, and its segments are looked at one at a time, so memory stays bounded.
Nothing of what is wrong with a file raises an error later than here: it is listed in `damages`.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect import registry
from bandscope.inspect.format import (
    CONTINUED,
    ENDINGS,
    FEATURES,
    FORMAT_VERSION,
    HEADER_NAME,
    RECORD_BYTES,
    RECORDS_START,
    Kind,
)
from bandscope.inspect.header import open_header
from bandscope.inspect.sealing import SEALED_SUFFIX
from bandscope.inspect.segment_reader import Damage, SegmentReader, peek

_SEGMENTS_KEPT = 3
_TRIES = 8


class Trace:
    """A trace in the directory `path`.

    `header`: the recorder's (see `header.make_header`). `start`, `stop`: the sequence numbers
    `[start, stop)` that are there; start is above 0 where a ring overwrote the oldest. Raises
    `TraceError` when there is nothing that could be shown.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._damages: dict[int, tuple[list[Damage], int]] = {}  # and one past the last event
        self._finished: set[int] = set()
        self._heads: dict[int, tuple[int, int]] = {}  # first sequence and clock
        self._cache: OrderedDict[int, SegmentReader] = OrderedDict()
        self.header_damage: Damage | None = None
        self._segments: list[int] = []
        self.header = self._read_header()
        if self.header["format"] != FORMAT_VERSION:
            raise TraceError(
                f"trace {self.path} has format {self.header['format']}, but this version reads format "
                f"{FORMAT_VERSION}; open it with the version that wrote it "
                f"({self.header.get('versions', {}).get('bandscope')})"
            )
        unknown = [one for one in self.header.get("features", ()) if one not in FEATURES]
        if unknown:
            raise TraceError(
                f"trace {self.path} uses {', '.join(map(repr, unknown))}, which this version does not "
                "know; open it with the version that wrote it "
                f"({self.header.get('versions', {}).get('bandscope')})"
            )
        self._starts: list[int] = []
        self._clocks: list[int] = []
        self.stop = 0
        self.refresh()

    # --- what there is ----------------------------------------------------------------------------

    def _list_segments(self) -> list[int]:
        if not self.path.is_dir():
            raise TraceError(
                f"{self.path} is no trace: a trace is a folder that holds {HEADER_NAME}; record one "
                "with `bandscope run --record NAME`"
            )
        names = [name.removesuffix(SEALED_SUFFIX) for name in os.listdir(self.path)]
        events, pages = (
            {int(n[:6]) for n in names if n[6:] == suffix and n[:6].isdigit()}
            for suffix in (".events", ".pages")
        )
        # Of a segment that the ring is about to overwrite, its pages may still be there.
        first = min(events, default=0)
        return sorted(events | {number for number in pages if number >= first})

    def _read_header(self) -> dict[str, Any]:
        path = self.path / HEADER_NAME
        try:
            data = path.read_bytes()
        except OSError as error:
            data = b""
            what = f"the header cannot be read ({error.strerror})"
        else:
            try:
                return open_header(data)
            except ValueError as error:
                what = f"the header is damaged ({error}); a copy in a segment is used"
        self.header_damage = Damage(HEADER_NAME, 0, len(data), what)
        for segment in self._list_segments():
            reader = SegmentReader(self.path, segment)
            for index in reader.find(Kind.HEADER).tolist():
                try:
                    return open_header(reader.payload(index))
                except ValueError:
                    continue
        raise TraceError(
            f"nothing can be read of trace {self.path}: its header is missing or damaged, and no "
            "segment holds a sound copy; record again with `bandscope run --record NAME`"
        )

    def refresh(self) -> int:
        """Look again at a trace that grows; returns how many events came."""
        before = self.stop if self._starts else 0
        self._forget_unfinished()
        for attempt in range(_TRIES):
            try:
                self._look()
                break
            except FileNotFoundError:  # the ring overwrote a segment while it was looked at, or
                if attempt == _TRIES - 1:  # it is lacking
                    self._look(lacking=True)
        if not self._segments:
            raise TraceError(
                f"trace {self.path} holds no events: nothing was recorded; was the recorder attached "
                "before the arena was used?"
            )
        self.stop = self.segment(self._segments[-1]).stop_sequence
        return self.stop - before

    def _look(self, lacking: bool = False) -> None:
        """Which segments there are and where each begins, by their heads where these are sound.
        `FileNotFoundError` when one is not there, unless it may be `lacking`."""
        self._segments, self._starts, self._clocks = [], [], []
        numbers = self._list_segments()
        self._heads = {n: head for n, head in self._heads.items() if n in numbers}
        for number in numbers:
            if number not in self._heads:
                sure = number != numbers[-1] and not lacking
                head = peek(self.path, number) if sure else None
                if head is None:
                    reader = self._open(number, self._follows())
                    if reader.missing and sure:
                        raise FileNotFoundError
                    if not reader.begun:
                        continue
                    head = reader.first_sequence, reader.clock_ns
                self._heads[number] = head
            self._segments.append(number)
            self._starts.append(self._heads[number][0])
            self._clocks.append(self._heads[number][1])
        # The segment before the last may have been finished since it was opened.
        self._forget_unfinished(but=self._segments[-1:])

    def _forget_unfinished(self, but: Sequence[int] = ()) -> None:
        """Let go of what may have grown since it was read."""
        for number in [n for n, reader in self._cache.items() if reader.ending is None]:
            if number not in but:
                del self._cache[number]
        self._damages = {
            n: found for n, found in self._damages.items() if n in self._finished or n in but
        }

    def _follows(self) -> int:
        """The sequence after the segments looked at so far."""
        return self.segment(self._segments[-1]).stop_sequence if self._segments else 0

    @property
    def heads(self) -> list[tuple[int, int, int]]:
        """Every segment in order: its number, the sequence of its first event, and its time in ns."""
        return list(zip(self._segments, self._starts, self._clocks, strict=True))

    @property
    def start(self) -> int:
        """The sequence of the first event that is there."""
        return self._starts[0]

    @property
    def damages(self) -> list[Damage]:
        """All that cannot be used. Looks at every segment."""
        found = [self.header_damage] if self.header_damage is not None else []
        last = self.segment(self._segments[-1])
        if last.good[:2].all() and last.lost_before < self.start:
            name = self.segment(self._segments[0]).paths[0].name
            what = f"{self.start - last.lost_before:,} events before it are missing"
            found.append(Damage(name, 0, 0, what))
        for index, number in enumerate(self._segments):
            if number not in self._damages:
                self.segment(number)
            damages, stop = self._damages[number]
            found += damages
            if index + 1 < len(self._segments):
                start = self._starts[index + 1]
                if stop < start:
                    name = self.segment(number).paths[0].name
                    at = RECORDS_START + (stop - self._starts[index]) * RECORD_BYTES
                    what = f"events {stop:,} to {start - 1:,} are missing"
                    found.append(Damage(name, at, at + (start - stop) * RECORD_BYTES, what))
        return found

    @property
    def ending(self) -> str:
        """How the trace ends: `clean`, `disk full`, `recording stopped`, `running`, `killed` (the
        process is gone, the files are as it left them), `truncated` (a file is cut) or `damaged` (the
        last block is, so that nobody can tell)."""
        last = self.segment(self._segments[-1])
        ending = last.ending
        if ending is not None and ending != CONTINUED and ending < len(ENDINGS):
            return ENDINGS[ending]
        if ending is None and not last.ends_sound:
            return "damaged"
        if ending is None and last.cut:
            return "truncated"
        if registry.is_running(self.header):
            return "running"
        return "killed"

    @property
    def lost(self) -> int:
        """Events that a ring overwrote or a full disk swallowed."""
        lost = 0
        for segment in self._segments:
            reader = self.segment(segment)
            for index in reader.find(Kind.LOST).tolist():
                lost = max(lost, int(reader.records["a"][index]))
        # A ring says what it is about to overwrite.
        return lost - max(0, self.segment(self._segments[-1]).lost_before - self.start)

    # --- segments and events ------------------------------------------------------------------------

    def segment(self, number: int) -> SegmentReader:
        """A segment by its number; the last few are kept open."""
        reader = self._cache.get(number)
        if reader is None:
            head = self._heads.get(number)
            reader = self._open(number, 0 if head is None else head[0])
        else:
            self._cache.move_to_end(number)
        return reader

    def _open(self, number: int, assumed_sequence: int) -> SegmentReader:
        return self._keep(number, SegmentReader(self.path, number, assumed_sequence))

    def _keep(self, number: int, reader: SegmentReader) -> SegmentReader:
        self._damages[number] = reader.damages, reader.stop_sequence
        if reader.ending is not None:
            self._finished.add(number)
        self._cache[number] = reader
        while len(self._cache) > _SEGMENTS_KEPT:
            self._cache.popitem(last=False)
        return reader

    def segments(self, start: int | None = None, stop: int | None = None) -> Iterator[SegmentReader]:
        """The segments that hold events `[start, stop)`, in order."""
        start = self.start if start is None else start
        stop = self.stop if stop is None else stop
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        for number, begin in zip(self._segments[first:], self._starts[first:], strict=True):
            if begin >= stop:
                break
            yield self.segment(number)

    def segments_before(self, sequence: int) -> Iterator[SegmentReader]:
        """The segments that hold events before `sequence`, the nearest first."""
        for number in self._segments[: int(np.searchsorted(self._starts, sequence))][::-1]:
            yield self.segment(number)

    def segment_of(self, sequence: int) -> SegmentReader:
        """The segment that holds an event."""
        if not self.start <= sequence < self.stop:
            raise TraceError(
                f"event {sequence:,} was asked for, but trace {self.path} holds events "
                f"{self.start:,} to {self.stop - 1:,}"
            )
        index = int(np.searchsorted(self._starts, sequence, side="right")) - 1
        return self.segment(self._segments[index])

    def sequence_at(self, time_ns: int) -> int:
        """The first event at or after a time on the trace's clock (ns since recording began)."""
        index = max(0, int(np.searchsorted(self._clocks, time_ns, side="right")) - 1)
        reader = self.segment(self._segments[index])
        kinds = reader.records["kind"]
        timed = np.flatnonzero((kinds >= Kind.ADMIT) & (kinds <= Kind.OUTCOME) & reader.good)
        later = timed[reader.records["a"][timed] >= time_ns]
        return reader.first_sequence + int(later[0]) if later.size else reader.stop_sequence

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the trace that are used."""
        total = 0
        for entry in os.scandir(self.path):
            total += entry.stat().st_size
        last = self.segment(self._segments[-1])
        if not last.cut:  # room set aside for what is to come does not count
            total -= last.paths[0].stat().st_size - RECORDS_START - 32 * len(last)
        return total


def open_trace(path: str | Path, kind: type[Trace] = Trace) -> Trace:
    """Open `NAME.trace`, or `NAME` where that is meant; `kind`: the class that reads it."""
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".trace").is_dir():
        path = path.with_name(path.name + ".trace")
    return kind(path)


def as_json(value: Any) -> str:
    """JSON of events and reports: arrays as lists, paths as text."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
