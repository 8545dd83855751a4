"""The trace format: its numbers, its record, and how lists of pages are packed.

`docs/trace-format.md` documents every byte. A trace is a directory: `trace.json` (the header) and
numbered segments of two files each. `NNNNNN.events` holds a head and then records of 32 bytes, so
that event n is found by arithmetic; `NNNNNN.pages` holds what does not fit in a record (page lists,
texts, keyframes), in the order of the records. Both only ever grow while they are written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

FORMAT_VERSION = 1
HEADER_NAME = "trace.json"
# What a trace may use beyond the first version's records; a reader needs to know all that it uses.
PREFIX_CACHE = "prefix cache"
FEATURES = frozenset({PREFIX_CACHE})
EVENTS_MAGIC, PAGES_MAGIC = b"BNDSCOPE", b"BNDPAGES"

# Head of both files: magic, format, segment, trace id, first sequence, wall clock ns, trace clock ns,
# reserved; then the CRC-32 of the 60 bytes before it.
HEAD = struct.Struct("<8sIIQQQQQI")
HEAD_CRC = struct.Struct("<I")
HEAD_BYTES = HEAD.size + HEAD_CRC.size
RECORDS_START = PAGES_START = HEAD_BYTES

# A record: kind, flags, band, payload bytes, a, b, c, and last of all the number of the record in its
# segment counted from 1: a record is there when its number is.
RECORD = struct.Struct("<BBHIqqII")
RECORD_BYTES = RECORD.size
RECORD_DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("band", "<u2"),
        ("length", "<u4"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("c", "<u4"),
        ("number", "<u4"),
    ]
)
# Every BLOCK-th record of a segment is a CHECK over the records and payloads since the one before.
BLOCK = 256
# Room that a writer keeps at the end of its events file, for LOST, TRAILER and CHECK.
SPARE_BYTES = 4 * RECORD_BYTES
NO_BAND = 0xFFFF
NO_VALUE = -(1 << 63)

assert HEAD_BYTES == 64 and RECORD_BYTES == 32 == RECORD_DTYPE.itemsize


class Kind(IntEnum):
    """What a record is."""

    HEADER = 1
    KEYFRAME = 2
    CHECK = 3
    TRAILER = 4
    LOST = 5
    TEXT = 6
    NOTE = 8
    STACK = 9
    VIOLATION = 10
    # Operations, asked.
    ADMIT = 16
    EXTEND = 17
    DECODE = 18
    TRIM_WINDOW = 19
    RELEASE = 20
    LAUNCH = 21
    COMPLETE = 22
    COMPACT = 23
    SET_GATE = 24
    ADMIT_PREFIX = 25
    RELEASE_PREFIX = 26
    PUBLISH_PREFIX = 27
    CHECKPOINT = 28
    OPERATION = 31
    # What became of the operation.
    OUTCOME = 32
    # Effects.
    BAND_MOVE = 48
    PAGE_MOVE = 49
    LEASE_BEGIN = 50
    LEASE_END = 51
    PENDING = 52
    RECLAIM = 53
    BARRIER = 54
    LAUNCHED = 55
    DONE = 56
    PUBLISH = 57
    REFUSAL = 58
    SHARE = 59
    EVICTION = 60
    STATE_COPY = 61
    GRAFT = 62


# What a record is called where that is not its own name: the same operation with more to tell.
_CALLED = {Kind.ADMIT_PREFIX: "Admit", Kind.RELEASE_PREFIX: "Release"}


def kind_name(kind: int) -> str:
    """The name of what a record holds, `LeaseBegin`; of an unknown one its number."""
    try:
        known = Kind(kind)
    except ValueError:
        return f"kind {kind}"
    return _CALLED.get(known) or "".join(part.title() for part in known.name.split("_"))


FIRST_OPERATION, LAST_OPERATION = Kind.ADMIT, Kind.OPERATION
FIRST_EFFECT, LAST_EFFECT = Kind.BAND_MOVE, max(Kind)
BOOKKEEPING = frozenset(
    {Kind.HEADER, Kind.KEYFRAME, Kind.CHECK, Kind.TRAILER, Kind.LOST, Kind.TEXT, Kind.STACK}
)

# Flags, by kind.
INLINE = 1  # page records, SHARE, GRAFT: the one page is in the record, there is no payload
SAME_BATCH = 1  # DECODE, TRIM_WINDOW, LAUNCH: the requests are those of record number `c`
URGENT = 2  # PAGE_MOVE, COMPACT
HOLDER_EACH = 4  # LEASE_BEGIN, LEASE_END: a holder per page, as a list after the pages
HOLDER_TEXT = 8  # LEASE_BEGIN, LEASE_END: `b` is the number of the holder's text
PIN = 16  # LEASE_BEGIN, LEASE_END: `c` is the number of the lease
OK = 1  # OUTCOME
CLOSED = 1  # SET_GATE
PUBLISHES = 1  # RELEASE_PREFIX

# How a trace or a segment ended, by the flags of its TRAILER.
ENDINGS = ("clean", "continued in the next segment", "disk full", "recording stopped")
CLEAN, CONTINUED, DISK_FULL, STOPPED = range(4)

REASONS = ("", "memory", "gate", "pins", "ids", "misuse")

_LIST = struct.Struct("<I")
_RAW, _RUNS, _WIDE = 0, 1, 2
_COUNT_MAX = (1 << 30) - 1
_RUNS_FROM = 16  # shorter lists are not searched for runs
_I32 = np.dtype("<i4")
_I64 = np.dtype("<i8")


def crc32(*parts: bytes | memoryview) -> int:
    """CRC-32 of several parts, one after the other."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def pack_list(values: np.ndarray) -> bytes:
    """A list of page numbers (int64 array, each below 2³¹): a word of form and count, then the numbers
    as int32, or as runs of `(start, length)` where that is shorter."""
    count = values.size
    if count >= _RUNS_FROM:
        # A list that does not begin with neighbours is hardly a list of runs.
        if values.item(1) - values.item(0) == 1 or values.item(3) - values.item(2) == 1:
            breaks = (values[1:] - values[:-1] != 1).nonzero()[0]
            if 2 * (breaks.size + 1) < count - 1:
                edges = np.empty(breaks.size + 2, np.int64)
                edges[0], edges[-1] = 0, count
                edges[1:-1] = breaks
                edges[1:-1] += 1
                runs = np.empty((breaks.size + 1, 2), _I32)
                runs[:, 0] = values[edges[:-1]]
                runs[:, 1] = edges[1:] - edges[:-1]
                return _LIST.pack(_RUNS << 30 | count) + _LIST.pack(len(runs)) + runs.tobytes()
        return _LIST.pack(count) + values.astype(_I32).tobytes()
    return _SHORT[count](count, *values.tolist())


# A short list is packed quicker number by number than through an array.
_SHORT = [struct.Struct(f"<I{count}i").pack for count in range(_RUNS_FROM)]


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """A list of request numbers: as int32 where they fit, else as int64. `struct.error` when one is
    no integer of 64 bits."""
    count = len(numbers)
    try:
        return struct.pack(f"<I{count}i", count, *numbers)
    except struct.error:
        return struct.pack(f"<I{count}q", _WIDE << 30 | count, *numbers)


def pack_key(key: Sequence[int]) -> bytes:
    """The key of a prefix as a list: as int32 where its numbers fit, else as int64. `ValueError` or
    `OverflowError` when one is no integer of 64 bits."""
    if not len(key):
        return _LIST.pack(0)
    values = np.asarray(key)
    if values.dtype.kind not in "iu" or values.ndim != 1 or values.dtype == np.uint64:
        raise ValueError("a key is a list of integers of 64 bits")
    narrow = values.astype(_I32)
    if np.array_equal(narrow, values):
        return _LIST.pack(values.size) + narrow.tobytes()
    return _LIST.pack(_WIDE << 30 | values.size) + values.astype(_I64).tobytes()


def unpack_numbers(payload: bytes) -> tuple[int, ...]:
    """The inverse of `pack_numbers`. `ValueError` when it is none."""
    if len(payload) < 4:
        raise ValueError("a list of numbers is cut off")
    (word,) = _LIST.unpack_from(payload)
    count = word & _COUNT_MAX
    try:
        return struct.unpack_from(f"<{count}{'q' if word >> 30 == _WIDE else 'i'}", payload, 4)
    except struct.error as error:
        raise ValueError(f"a list of {count} numbers is cut off") from error


def unpack_lists(payload: bytes | memoryview) -> list[np.ndarray]:
    """The lists of a payload, int64 each. `ValueError` when it is not a payload of lists."""
    lists = []
    position, end = 0, len(payload)
    while position < end:
        if position + 4 > end:
            raise ValueError("a page list is cut off")
        (word,) = _LIST.unpack_from(payload, position)
        form, count = word >> 30, word & _COUNT_MAX
        position += 4
        if form == _RUNS:
            if position + 4 > end:
                raise ValueError("a page list is cut off")
            (runs,) = _LIST.unpack_from(payload, position)
            pairs = _numbers(payload, position + 4, 2 * runs, _I32).reshape(-1, 2)
            position += 4 + 8 * runs
            lengths = pairs[:, 1]
            if int(lengths.sum()) != count or (runs and int(lengths.min()) < 1):
                raise ValueError(f"a page list of {count} pages holds runs of {lengths.sum()}")
            before = np.cumsum(lengths) - lengths
            lists.append(np.repeat(pairs[:, 0] - before, lengths) + np.arange(count))
        else:
            dtype = _I64 if form == _WIDE else _I32
            lists.append(_numbers(payload, position, count, dtype))
            position += count * dtype.itemsize
    return lists


def _numbers(payload: bytes | memoryview, start: int, count: int, dtype: np.dtype) -> np.ndarray:
    if start + count * dtype.itemsize > len(payload):
        raise ValueError(f"a page list of {count} numbers is cut off")
    return np.frombuffer(payload, dtype, count, start).astype(np.int64)
