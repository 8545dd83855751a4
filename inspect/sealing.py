"""Sealed segments: the files of a finished segment, compressed in place, and read back.

Records of 32 bytes compress best by column, so their bytes are transposed first, and the columns that
count up are replaced by differences. What is read is exactly what was written.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from bandscope.inspect.format import RECORD_BYTES, RECORDS_START

if TYPE_CHECKING:
    from bandscope.inspect.segment_reader import Damage

SEALED_SUFFIX = ".zst"
_MAGIC_RECORDS, _MAGIC_PLAIN = b"BNDSEAL1", b"BNDSEAL0"
_LEVEL = 19
_BYTES_MAX = 1 << 33


def seal_file(path: Path) -> tuple[int, int]:
    """Compress one file of a finished segment and remove the original; bytes before and after.

    The compressed file is complete and read back before the original goes.
    """
    data = path.read_bytes()
    is_records = path.suffix == ".events" and len(data) > RECORDS_START
    packed = (_MAGIC_RECORDS if is_records else _MAGIC_PLAIN) + zstandard.ZstdCompressor(
        level=_LEVEL, write_checksum=True
    ).compress(_columns(data) if is_records else data)
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
        if path.exists():
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
        if sealed.exists():
            return _unseal(sealed.read_bytes())
        damages.append(Damage(path.name, 0, 0, "the file is missing"))
    except (OSError, ValueError, zstandard.ZstdError) as error:
        size = sealed.stat().st_size if sealed.exists() else 0
        damages.append(Damage(sealed.name, 0, size, f"the file cannot be read ({error})"))
    return b""


def _unseal(packed: bytes) -> bytes:
    magic = packed[:8]
    if magic not in (_MAGIC_RECORDS, _MAGIC_PLAIN):
        raise ValueError("it is not a sealed file")
    data = zstandard.ZstdDecompressor().decompress(packed[8:], max_output_size=_BYTES_MAX)
    return _rows(data) if magic == _MAGIC_RECORDS else data


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
