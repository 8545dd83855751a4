"""Keyframes: a snapshot of the arena's books as bytes, and back.

The snapshot's tree of dictionaries, lists and numbers becomes JSON; its arrays lie after it, one after
the other, each in the narrowest integer type that holds it. The whole is compressed. Nothing is
executed when a keyframe is read, so a trace from a stranger is safe to open.
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import zstandard

_SIZES = struct.Struct("<II")
_LEVEL = 1
_BYTES_MAX = 1 << 31
_COMPRESSOR = zstandard.ZstdCompressor(level=_LEVEL)


def encode(snapshot: dict[str, Any]) -> bytes:
    """Compressed bytes of `Arena.snapshot()` (or of any tree of such values)."""
    return _COMPRESSOR.compress(encode_raw(snapshot))


def encode_raw(snapshot: dict[str, Any]) -> bytes:
    """The same before compression."""
    arrays = _Arrays()
    tree = json.dumps(_strip(snapshot, arrays), separators=(",", ":")).encode()
    return b"".join([_SIZES.pack(len(tree), len(arrays.parts)), tree, *arrays.parts])


def decode(payload: bytes | memoryview) -> dict[str, Any]:
    """The snapshot's tree. Dataclasses come back as dictionaries of their fields, tuples as lists.

    `ValueError` when the bytes are not a keyframe.
    """
    try:
        raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=_BYTES_MAX)
        return decode_raw(raw)
    except (zstandard.ZstdError, struct.error, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"a keyframe cannot be read: {error}") from error


def decode_raw(raw: bytes) -> dict[str, Any]:
    """The inverse of `encode_raw`."""
    size, _ = _SIZES.unpack_from(raw)
    start = _SIZES.size + size
    tree = json.loads(raw[_SIZES.size : start])
    result: dict[str, Any] = _restore(tree, raw, start)
    return result


class _Arrays:
    """The arrays of a tree, one after the other: a prefix cache has two for each of its nodes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes) -> int:
        """Where it lies."""
        offset = self.size
        self.parts.append(data)
        self.size += len(data)
        return offset


def _strip(value: Any, arrays: _Arrays) -> Any:
    """`value` as JSON, its arrays replaced by `{"@": [dtype, wanted dtype, shape, byte offset]}`."""
    if isinstance(value, np.ndarray):
        narrow = _narrow(value)
        offset = arrays.add(narrow.tobytes())
        return {"@": [narrow.dtype.str, value.dtype.str, list(value.shape), offset]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _strip(item, arrays) for key, item in value.items()}
        return {"%": [[key, _strip(item, arrays)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_strip(item, arrays) for item in value]
    if is_dataclass(value):
        return {item.name: _strip(getattr(value, item.name), arrays) for item in fields(value)}
    if isinstance(value, np.integer):
        return int(value)
    return value


def _narrow(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.dtype.itemsize == 1 or not values.size:
        return values
    low, high = int(values.min()), int(values.max())
    for dtype in (np.int8, np.int16, np.int32):
        info = np.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.astype(dtype)
    return values


def _restore(tree: Any, raw: bytes, start: int) -> Any:
    if isinstance(tree, list):
        return [_restore(item, raw, start) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "@" in tree:
        stored, wanted, shape, offset = tree["@"]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(raw, np.dtype(stored), count, start + offset)
        return values.reshape(shape).astype(np.dtype(wanted))
    if "%" in tree:
        return {key: _restore(item, raw, start) for key, item in tree["%"]}
    return {key: _restore(item, raw, start) for key, item in tree.items()}
