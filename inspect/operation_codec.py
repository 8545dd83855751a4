"""Operations as records, and back: the frequent ones by fields, the others as JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation
from bandscope.inspect.format import (
    CLOSED,
    NO_BAND,
    PUBLISHES,
    URGENT,
    Kind,
    pack_key,
    pack_numbers,
    unpack_lists,
)

if TYPE_CHECKING:
    from bandscope.inspect.recorder import Recorder

_BY_NAME = {kind.__name__: kind for kind in Operation.__subclasses__()}
# What only an arena with a prefix cache is asked; not told where it is not asked for.
_OPTIONAL = {"key": (), "limit_tokens": None, "publish": False}


def told_fields(operation: Operation) -> dict[str, Any]:
    """The fields of an operation by name, without those of the prefix cache that it does not use."""
    told = {item.name: getattr(operation, item.name) for item in fields(operation)}
    return {
        name: value
        for name, value in told.items()
        if name not in _OPTIONAL or value != _OPTIONAL[name]
    }


def as_json(value: Any) -> bytes:
    """Compact JSON; numbers of NumPy become plain ones, anything unknown its `repr`."""
    return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else repr(value)


def encode_as_json(recorder: Recorder, operation: Operation, now: int) -> None:
    """Write any operation down as JSON: the rare ones, and those whose numbers fit no record."""
    data = as_json({"kind": operation.kind, **told_fields(operation)})
    recorder.append(Kind.OPERATION, 0, NO_BAND, recorder.payload(data), now, 0, 0)


def _admit(recorder: Recorder, op: ops.Admit, now: int) -> None:
    if op.key or op.limit_tokens is not None:
        _check_fits(op.request, op.state_slots)
        limit = b"" if op.limit_tokens is None else pack_numbers((op.limit_tokens,))
        length = recorder.payload(pack_key(op.key) + limit)
        recorder.append(_ADMIT_PREFIX, 0, 0, length, now, op.request, op.state_slots)
        return
    recorder.append(_ADMIT, 0, 0, 0, now, op.request, op.state_slots)


def _extend(recorder: Recorder, op: ops.Extend, now: int) -> None:
    recorder.append(_EXTEND, 0, 0, 0, now, op.request, op.tokens)


def _release(recorder: Recorder, op: ops.Release, now: int) -> None:
    why = recorder.text(op.why)
    if op.publish or op.key:
        _check_fits(op.request)
        length = recorder.payload(pack_key(op.key))
        flags = PUBLISHES if op.publish else 0
        recorder.append(_RELEASE_PREFIX, flags, 0, length, now, op.request, why)
        return
    recorder.append(_RELEASE, 0, 0, 0, now, op.request, why)


def _publish(recorder: Recorder, op: ops.Publish, now: int) -> None:
    _check_fits(op.request)
    length = recorder.payload(pack_key(op.key))
    recorder.append(_PUBLISH_PREFIX, 0, 0, length, now, op.request, 0)


def _checkpoint(recorder: Recorder, op: ops.Checkpoint, now: int) -> None:
    _check_fits(op.request)
    length = recorder.payload(pack_key(op.key))
    recorder.append(_CHECKPOINT, 0, 0, length, now, op.request, 0)


def _complete(recorder: Recorder, op: ops.Complete, now: int) -> None:
    recorder.append(_COMPLETE, 0, 0, 0, now, op.ticket, 0)


def _compact(recorder: Recorder, op: ops.Compact, now: int) -> None:
    if op.max_moves is not None and op.max_moves < 0:  # −1 means none given
        raise ValueError
    moves = -1 if op.max_moves is None else op.max_moves
    recorder.append(_COMPACT, URGENT if op.urgent else 0, 0, 0, now, moves, 0)


def _set_gate(recorder: Recorder, op: ops.SetGate, now: int) -> None:
    recorder.append(_SET_GATE, CLOSED if op.closed else 0, 0, 0, now, 0, 0)


def _decode(recorder: Recorder, op: ops.Decode, now: int) -> None:
    recorder.batch(_DECODE, op.requests, now)


def _trim_window(recorder: Recorder, op: ops.TrimWindow, now: int) -> None:
    recorder.batch(_TRIM_WINDOW, op.requests, now)


def _launch(recorder: Recorder, op: ops.Launch, now: int) -> None:
    recorder.batch(_LAUNCH, op.requests, now)


def _check_fits(request: int, slots: int = 0) -> None:
    """`ValueError` when a record has no room for these: found out before its payload is written."""
    if not (-(1 << 63) <= request < 1 << 63 and 0 <= slots < 1 << 32):
        raise ValueError


# Plain integers: looking up a member of an enumeration costs as much as writing a field.
_ADMIT, _EXTEND, _RELEASE = int(Kind.ADMIT), int(Kind.EXTEND), int(Kind.RELEASE)
_COMPLETE, _COMPACT, _SET_GATE = int(Kind.COMPLETE), int(Kind.COMPACT), int(Kind.SET_GATE)
_ADMIT_PREFIX, _RELEASE_PREFIX = int(Kind.ADMIT_PREFIX), int(Kind.RELEASE_PREFIX)
_PUBLISH_PREFIX, _CHECKPOINT = int(Kind.PUBLISH_PREFIX), int(Kind.CHECKPOINT)
_DECODE, _TRIM_WINDOW, _LAUNCH = int(Kind.DECODE), int(Kind.TRIM_WINDOW), int(Kind.LAUNCH)

# What an encoder raises when a number fits no record; nothing was written then.
UNFIT = (struct.error, TypeError, ValueError, OverflowError)
ENCODERS: dict[type, Callable[[Recorder, Any, int], None]] = {
    ops.Admit: _admit,
    ops.Extend: _extend,
    ops.Decode: _decode,
    ops.TrimWindow: _trim_window,
    ops.Release: _release,
    ops.Launch: _launch,
    ops.Complete: _complete,
    ops.Compact: _compact,
    ops.SetGate: _set_gate,
    ops.Publish: _publish,
    ops.Checkpoint: _checkpoint,
}


def decode_operation(
    kind: int, flags: int, b: int, c: int, batch: tuple[int, ...], text: str, payload: bytes
) -> Operation:
    """The operation of a record. `batch`: its requests; `text`: its text; where it has them.

    `ValueError` when the record is none.
    """
    match kind:
        case Kind.ADMIT:
            return ops.Admit(b, c)
        case Kind.EXTEND:
            return ops.Extend(b, c)
        case Kind.DECODE:
            return ops.Decode(batch)
        case Kind.TRIM_WINDOW:
            return ops.TrimWindow(batch)
        case Kind.RELEASE:
            return ops.Release(b, text)
        case Kind.LAUNCH:
            return ops.Launch(batch)
        case Kind.COMPLETE:
            return ops.Complete(b)
        case Kind.COMPACT:
            return ops.Compact(bool(flags & URGENT), None if b < 0 else b)
        case Kind.SET_GATE:
            return ops.SetGate(closed=bool(flags & CLOSED))
        case Kind.ADMIT_PREFIX:
            key, *limit = unpack_lists(payload)
            limit_tokens = int(limit[0][0]) if limit else None
            return ops.Admit(b, c, tuple(key.tolist()), limit_tokens)
        case Kind.RELEASE_PREFIX:
            return ops.Release(b, text, bool(flags & PUBLISHES), _key(payload))
        case Kind.PUBLISH_PREFIX:
            return ops.Publish(b, _key(payload))
        case Kind.CHECKPOINT:
            return ops.Checkpoint(b, _key(payload))
        case Kind.OPERATION:
            return _from_json(payload)
        case _:
            raise ValueError(f"record kind {kind} is no operation")


def _key(payload: bytes) -> tuple[int, ...]:
    (key,) = unpack_lists(payload)
    return tuple(key.tolist())


def _from_json(payload: bytes) -> Operation:
    told = json.loads(payload)
    kind = _BY_NAME.get(told.pop("kind", ""))
    if kind is None:
        raise ValueError("an operation of an unknown kind")
    values = {key: tuple(item) if isinstance(item, list) else item for key, item in told.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(str(error)) from error
