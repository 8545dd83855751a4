"""Sealed segments: the files of a finished segment, compressed in place, and read back.

Records of 32 bytes compress best by column, so their bytes are transposed first, and the columns that
count up are replaced by differences. What is read is exactly what was written. A sealed file begins
with a head that says how long the file was; damage to any byte of it is found, and costs the file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from bandscope.inspect.format import HEAD_BYTES, RECORD_BYTES, RECORDS_START, crc32

if TYPE_CHECKING:
    from bandscope.inspect.segment_reader import Damage

SEALED_SUFFIX = ".zst"
MISSING = "the file is missing"
# Head of a sealed file: magic, how it was transformed, CRC-32 of the zstd frame that follows, bytes of
# the file as it was, CRC-32 of the 24 bytes before, 0. Nothing follows the frame.
_HEAD = struct.Struct("<8sIIQII")
_MAGIC = b"BNDSEAL1"
_PLAIN, _COLUMNS = 0, 1
_LEVEL = 19
_BYTES_MAX = 1 << 33


def seal_file(path: Path) -> tuple[int, int]:
    """Compress one file of a finished segment and remove the original; bytes before and after.

    The compressed file is complete and read back before the original goes.
    """
    data = path.read_bytes()
    form = _COLUMNS if path.suffix == ".events" and len(data) > RECORDS_START else _PLAIN
    body = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(
        _columns(data) if form == _COLUMNS else data
    )
    head = _HEAD.pack(_MAGIC, form, crc32(body), len(data), 0, 0)[:-8]
    packed = head + struct.pack("<II", crc32(head), 0) + body
    sealed = path.with_name(path.name + SEALED_SUFFIX)
    draft = sealed.with_name(sealed.name + ".new")
    with open(draft, "wb") as out:
        out.write(packed)
        out.flush()
        os.fsync(out.fileno())
    if _unseal(draft.read_bytes()) != data:
        draft.unlink()
        raise AssertionError(f"{path} did not survive being compressed")
    os.replace(draft, sealed)
    path.unlink()
    return len(data), len(packed)


def read_file(path: Path, damages: list[Damage]) -> mmap.mmap | bytes:
    """The bytes of a file of a segment, mapped where it is not sealed; empty, with the damage noted,
    where it cannot be read."""
    from bandscope.inspect.segment_reader import Damage

    sealed = path.with_name(path.name + SEALED_SUFFIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read_plain(path)
        return _unseal(sealed.read_bytes())
    except FileNotFoundError:
        damages.append(Damage(path.name, 0, 0, MISSING))
    except (OSError, ValueError, MemoryError, zstandard.ZstdError) as error:
        found = sealed if sealed.exists() else path
        with contextlib.suppress(OSError):
            size = found.stat().st_size
            damages.append(Damage(found.name, 0, size, f"the file cannot be read ({error})"))
            return b""
        damages.append(Damage(path.name, 0, 0, MISSING))
    return b""


def read_start(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file of a segment, or fewer; `FileNotFoundError` when it is gone."""
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        with open(path.with_name(path.name + SEALED_SUFFIX), "rb") as file:
            file.seek(_HEAD.size)
            try:
                with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                    return stream.read(HEAD_BYTES)
            except zstandard.ZstdError:
                return b""
    except OSError:
        return b""


def _read_plain(path: Path) -> mmap.mmap | bytes:
    """A finished file is mapped. The events of one that still grows are copied: its writer will cut
    off what it did not need, and to look at a mapping there would be a signal, not an error.

    They are copied twice: a record that is written during a copy may show its number, which comes last,
    but not what comes before it. All whose number the first copy has are whole in the second.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return b""
        if path.suffix == ".events":
            last = os.pread(file.fileno(), 4, max(0, size - 4))
            if (size - RECORDS_START) % RECORD_BYTES or last == bytes(4):
                data = file.read()
                count = max(0, len(data) - RECORDS_START) // RECORD_BYTES
                stop = RECORDS_START + count * RECORD_BYTES
                written = np.flatnonzero(np.frombuffer(data[RECORDS_START:stop], "<u4")[7::8])
                used = int(written[-1]) + 1 if written.size else 0
                whole = os.pread(file.fileno(), RECORDS_START + used * RECORD_BYTES, 0)
                return whole + bytes(max(0, len(data) - len(whole)))
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _unseal(packed: bytes) -> bytes:
    if len(packed) < _HEAD.size:
        raise ValueError("its head is cut off")
    magic, form, value, size, head_value, zero = _HEAD.unpack_from(packed)
    if magic != _MAGIC or zero or head_value != crc32(packed[: _HEAD.size - 8]):
        raise ValueError("its head is damaged")
    if form not in (_PLAIN, _COLUMNS) or size > _BYTES_MAX:
        raise ValueError("it was sealed by a later version")
    body = packed[_HEAD.size :]
    if crc32(body) != value:
        raise ValueError("its checksum does not match")
    data = zstandard.ZstdDecompressor().decompress(body)
    if len(data) != size:
        raise ValueError("its size does not match")
    return _rows(data) if form == _COLUMNS else data


def _columns(data: bytes) -> bytes:
    """Head, records byte column by byte column, rest; numbers and times as differences."""
    count = (len(data) - RECORDS_START) // RECORD_BYTES
    stop = RECORDS_START + count * RECORD_BYTES
    rows = np.frombuffer(data, "<u4", count * 8, RECORDS_START).reshape(count, 8).copy()
    rows[1:] -= rows[:-1].copy()  # differences of neighbours, modulo 2³²
    by_byte = rows.view("u1").reshape(count, RECORD_BYTES).T
    return data[:RECORDS_START] + by_byte.tobytes() + data[stop:]


def _rows(data: bytes) -> bytes:
    count = (len(data) - RECORDS_START) // RECORD_BYTES
    stop = RECORDS_START + count * RECORD_BYTES
    by_byte = np.frombuffer(data, "u1", count * RECORD_BYTES, RECORDS_START)
    rows = np.ascontiguousarray(by_byte.reshape(RECORD_BYTES, count).T).view("<u4")
    rows = np.cumsum(rows, axis=0, dtype=np.uint32).astype("<u4")
    return data[:RECORDS_START] + rows.tobytes() + data[stop:]
