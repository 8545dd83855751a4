"""Copies a trace with chosen records dropped, altered or added: for tests of what a reader notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bandscope.inspect import format as form
from bandscope.inspect.format import Kind
from bandscope.inspect.header import write_header
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment import SegmentWriter

_BATCHES = (Kind.DECODE, Kind.TRIM_WINDOW, Kind.LAUNCH)


@dataclass(frozen=True)
class Row:
    """One record and its payload. `sequence`: in the trace it came from (−1: added)."""

    sequence: int
    kind: int
    flags: int
    band: int
    a: int
    b: int
    c: int
    payload: bytes = b""


# What becomes of a record: other records instead of it (none: it is dropped).
Change = Callable[[Row], list[Row]]


def rows(path: Path) -> list[Row]:
    """All records of a trace but checksums, in order."""
    found = []
    trace = Trace(path)
    for segment in trace.segments():
        for index, record in enumerate(segment.records.tolist()):
            kind, flags, band, _, a, b, c, _ = record
            if kind != Kind.CHECK:
                payload = segment.payload(index)
                found.append(
                    Row(segment.first_sequence + index, kind, flags, band, a, b, c, payload)
                )
    return found


def rewrite(source: Path, target: Path, change: Change) -> dict[int, int]:
    """Write `source` again as `target`, each record through `change`. Returns the new sequence by the
    old one, of the records that are kept."""
    trace = Trace(source)
    target.mkdir()
    write_header(target, trace.header)
    moved: dict[int, int] = {}
    following = trace.start
    for number, segment in enumerate(trace.segments()):
        writer = SegmentWriter(
            target,
            number,
            trace_id=int(trace.header["trace_id"], 16),
            first_sequence=following,
            wall_ns=segment.wall_ns,
            clock_ns=segment.clock_ns,
            records=4096,
            pages_bytes=1 << 16,
        )
        numbers: dict[int, int] = {}  # of records in the segment, old to new
        ending = None
        for index, (kind, flags, band, _, a, b, c, _) in enumerate(segment.records.tolist()):
            if kind == Kind.CHECK:
                continue
            if kind == Kind.TRAILER:
                ending = flags
                continue
            sequence = segment.first_sequence + index
            for row in change(Row(sequence, kind, flags, band, a, b, c, segment.payload(index))):
                if row.kind in _BATCHES and row.flags & form.SAME_BATCH:
                    row = replace(row, c=numbers[row.c])
                length = writer.payload(row.payload) if row.payload else 0
                writer.put(row.kind, row.flags, row.band, length, row.a, row.b, row.c)
                if row.sequence >= 0:
                    numbers[row.sequence - segment.first_sequence + 1] = writer.number - 1
                    moved[row.sequence] = writer.sequence - 1
        if ending is None:
            writer.end_block()
            writer.close()
        else:
            writer.finish(ending)
        following = writer.sequence
    return moved


def without(*sequences: int) -> Change:
    """Drops the records of these events."""
    gone = set(sequences)
    return lambda row: [] if row.sequence in gone else [row]


def of_kind(path: Path, kind: Kind) -> list[Row]:
    """All records of a kind."""
    return [row for row in rows(path) if row.kind == kind]
