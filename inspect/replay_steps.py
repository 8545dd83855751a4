"""The operations of a trace, each with the records that its effects and its outcome left.

Records are read by columns, a segment at a time, and stay plain tuples: nothing is decoded but the
operations. So whoever tries the operations again compares tuples and bytes, and decodes only what
differs. Texts have a number of their own here (`Texts`), since each stretch of a trace numbers its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation
from bandscope.inspect import format as form
from bandscope.inspect.decode import Decoder, decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.operation_codec import decode_operation
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader

# kind, flags, band, length, a, b, c: a record without its number, its texts numbered by `Texts`, and
# without the time of an outcome.
Row = tuple[int, int, int, int, int, int, int]


class Texts:
    """Numbers for texts, the same for the same text wherever it stands; 0 for the empty one."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}
        self._texts = [""]

    def number(self, text: str) -> int:
        """The number of a text, a new one when it is new."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return number

    def __getitem__(self, number: int) -> str:
        return self._texts[number]


@dataclass(slots=True)
class RecordedStep:
    """One operation of a trace. `sequence`: of its record; `rows`: its effects and, last, its outcome,
    which is record `outcome`; `payloads`: those of the rows that have one, in order; `sequences`: of
    the rows; `keyframes`: sequences of the keyframes right after it."""

    sequence: int
    operation: Operation
    rows: list[Row]
    payloads: list[bytes]
    sequences: list[int]
    keyframes: list[int]

    @property
    def stop(self) -> int:
        """One past the sequence of its outcome."""
        return (self.sequences[-1] if self.sequences else self.sequence) + 1

    @property
    def has_ended(self) -> bool:
        """Whether its last row is an outcome."""
        return bool(self.rows) and self.rows[-1][0] == _OUTCOME


def read_steps(trace: Trace, texts: Texts, start: int, stop: int) -> Iterator[RecordedStep]:
    """The steps whose events lie in `[start, stop)`; a last one without an outcome is left out: the
    process was killed in it, or `stop` lies in it. Between two segments there may be a keyframe; it
    counts for the last step before it."""
    waiting: RecordedStep | None = None
    for segment in trace.segments(start, stop):
        first = max(0, start - segment.first_sequence)
        last = min(len(segment), stop - segment.first_sequence)
        for step in _steps_of(trace, segment, texts, first, last):
            if isinstance(step, list):
                if waiting is not None:
                    waiting.keyframes += step
                continue
            if waiting is not None:
                yield waiting
            waiting = step
    if waiting is not None and waiting.has_ended:
        yield waiting


def _steps_of(
    trace: Trace, segment: SegmentReader, texts: Texts, first: int, last: int
) -> Iterator[RecordedStep | list[int]]:
    """The keyframes before the first step of a segment, then its steps."""
    records = segment.records[first:last]
    kinds = records["kind"]
    asked = np.flatnonzero((kinds >= form.FIRST_OPERATION) & (kinds <= form.LAST_OPERATION))
    told = np.flatnonzero((kinds == Kind.OUTCOME) | (kinds >= form.FIRST_EFFECT))
    frames = np.flatnonzero(kinds == Kind.KEYFRAME)
    offset = segment.first_sequence + first
    opening = asked[0] if asked.size else last - first
    yield (frames[frames < opening] + offset).tolist()
    if not asked.size:
        return

    rows = _rows(segment, texts, records[told])
    with_payload = told[records["length"][told] > 0]
    payloads = [segment.payload(index) for index in (with_payload + first).tolist()]
    ends = np.append(asked[1:], last - first)
    row_edges = np.searchsorted(told, np.append(asked, last - first)).tolist()
    payload_edges = np.searchsorted(with_payload, np.append(asked, last - first)).tolist()
    sequences = (told + offset).tolist()
    frame_low, frame_high = (
        np.searchsorted(frames, edges).tolist() for edges in (asked, ends)
    )
    operations = _operations(trace, segment, (asked + first).tolist())
    for number, (sequence, operation) in enumerate(
        zip((asked + offset).tolist(), operations, strict=True)
    ):
        low, high = row_edges[number], row_edges[number + 1]
        found: list[int] = []
        if frame_low[number] < frame_high[number]:
            found = (frames[frame_low[number] : frame_high[number]] + offset).tolist()
        yield RecordedStep(
            sequence,
            operation,
            rows[low:high],
            payloads[payload_edges[number] : payload_edges[number + 1]],
            sequences[low:high],
            found,
        )


_OUTCOME = int(Kind.OUTCOME)


def _rows(segment: SegmentReader, texts: Texts, records: np.ndarray) -> list[Row]:
    """Records as rows."""
    kinds, flags = records["kind"], records["flags"]
    a, b, c = (records[name].astype(np.int64) for name in ("a", "b", "c"))
    outcome = kinds == Kind.OUTCOME
    a[outcome] = 0
    leases = (kinds == Kind.LEASE_BEGIN) | (kinds == Kind.LEASE_END)
    barrier = kinds == Kind.BARRIER
    in_c = (kinds == Kind.BAND_MOVE) | (kinds == Kind.STATE_COPY) | barrier
    in_c |= outcome & (flags & form.OK == 0)
    in_b = barrier | (leases & (flags & form.HOLDER_TEXT > 0))
    for column, where in ((b, in_b), (c, in_c)):
        if where.any():
            numbers, inverse = np.unique(column[where], return_inverse=True)
            known = [texts.number(segment.text(number)) for number in numbers.tolist()]
            column[where] = np.array(known, np.int64)[inverse]
    columns = [kinds, flags, records["band"], records["length"], a, b, c]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _operations(trace: Trace, segment: SegmentReader, indexes: list[int]) -> Iterator[Operation]:
    decoder: Decoder = decoder_for(trace, segment)
    records = segment.records[indexes]
    columns = [records[name].tolist() for name in ("kind", "flags", "length", "b", "c")]
    for index, kind, flags, length, b, c in zip(indexes, *columns, strict=True):
        batch: tuple[int, ...] = ()
        text = ""
        try:
            if kind in _BATCHES:
                batch = decoder.batch(index)
            elif kind in _RELEASES:
                text = segment.text(c)
            payload = segment.payload(index) if length and not batch else b""
            yield decode_operation(kind, flags, b, c, batch, text, payload)
        except (ValueError, LookupError, TypeError) as error:
            raise TraceError(
                f"event {segment.first_sequence + index:,} of trace {trace.path} holds no operation of "
                f"this version ({error}); replay it with the version that recorded it"
            ) from error


_BATCHES = frozenset({int(Kind.DECODE), int(Kind.TRIM_WINDOW), int(Kind.LAUNCH)})
_RELEASES = frozenset({int(Kind.RELEASE), int(Kind.RELEASE_PREFIX)})


class RowsAsSegment:
    """Rows of one step with what a `Decoder` asks of a segment, so that they become objects."""

    def __init__(self, rows: list[Row], payloads: list[bytes], texts: Texts) -> None:
        self.records = np.zeros(len(rows), form.RECORD_DTYPE)
        for number, name in enumerate(("kind", "flags", "band", "length", "a", "b", "c")):
            self.records[name] = [row[number] for row in rows]
        self.texts = texts
        given = iter(payloads)
        self._payloads = [next(given) if row[3] else b"" for row in rows]

    def payload(self, index: int) -> bytes:
        """The payload of a row."""
        return self._payloads[index]

    def text(self, number: int) -> str:
        """A text by its number."""
        return self.texts[number]


def bodies(trace: Trace, rows: list[Row], payloads: list[bytes], texts: Texts) -> list[Any]:
    """Rows of one step as effects and an outcome; None for one that decodes to nothing."""
    bands: list[dict[str, Any]] = trace.header["bands"]
    decoder = Decoder(
        RowsAsSegment(rows, payloads, texts),  # type: ignore[arg-type]
        [band["name"] for band in bands],
        [band["page_bytes"] for band in bands],
    )
    return [decoder.body(index) for index in range(len(rows))]
