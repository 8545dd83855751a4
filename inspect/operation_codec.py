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
from bandscope.inspect.format import CLOSED, NO_BAND, URGENT, Kind

if TYPE_CHECKING:
    from bandscope.inspect.recorder import Recorder

_U32 = 1 << 32
_I64 = 1 << 63
_BY_NAME = {kind.__name__: kind for kind in Operation.__subclasses__()}


def as_json(value: Any) -> bytes:
    """Compact JSON; numbers of NumPy become plain ones, anything unknown its `repr`."""
    return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else repr(value)


def encode_operation(recorder: Recorder, operation: Operation, now: int) -> None:
    """Write an operation down, tried at `now`. Never fails: what fits no record becomes JSON."""
    encoder = _ENCODERS.get(type(operation))
    if encoder is None or not encoder(recorder, operation, now):
        told = {item.name: getattr(operation, item.name) for item in fields(operation)}
        data = as_json({"kind": operation.kind, **told})
        recorder.append(Kind.OPERATION, 0, NO_BAND, recorder.payload(data), now, 0, 0)


def _admit(recorder: Recorder, op: ops.Admit, now: int) -> bool:
    if not (0 <= op.request < _I64 and 0 <= op.state_slots < _U32):
        return False
    recorder.append(Kind.ADMIT, 0, 0, 0, now, op.request, op.state_slots)
    return True


def _extend(recorder: Recorder, op: ops.Extend, now: int) -> bool:
    if not (0 <= op.request < _I64 and 0 <= op.tokens < _U32):
        return False
    recorder.append(Kind.EXTEND, 0, 0, 0, now, op.request, op.tokens)
    return True


def _release(recorder: Recorder, op: ops.Release, now: int) -> bool:
    if not 0 <= op.request < _I64:
        return False
    recorder.append(Kind.RELEASE, 0, 0, 0, now, op.request, recorder.text(op.why))
    return True


def _complete(recorder: Recorder, op: ops.Complete, now: int) -> bool:
    if not 0 <= op.ticket < _I64:
        return False
    recorder.append(Kind.COMPLETE, 0, 0, 0, now, op.ticket, 0)
    return True


def _compact(recorder: Recorder, op: ops.Compact, now: int) -> bool:
    moves = -1 if op.max_moves is None else op.max_moves
    if not -1 <= moves < _I64 or (op.max_moves is not None and moves < 0):
        return False
    recorder.append(Kind.COMPACT, URGENT if op.urgent else 0, 0, 0, now, moves, 0)
    return True


def _set_gate(recorder: Recorder, op: ops.SetGate, now: int) -> bool:
    recorder.append(Kind.SET_GATE, CLOSED if op.closed else 0, 0, 0, now, 0, 0)
    return True


def _batch(kind: Kind) -> Callable[[Recorder, Any, int], bool]:
    code = int(kind)

    def encode(recorder: Recorder, op: Any, now: int) -> bool:
        try:
            recorder.batch(code, op.requests, now)
        except (struct.error, TypeError):  # not numbers of 64 bits
            return False
        return True

    return encode


_ENCODERS: dict[type, Callable[[Recorder, Any, int], bool]] = {
    ops.Admit: _admit,
    ops.Extend: _extend,
    ops.Decode: _batch(Kind.DECODE),
    ops.TrimWindow: _batch(Kind.TRIM_WINDOW),
    ops.Release: _release,
    ops.Launch: _batch(Kind.LAUNCH),
    ops.Complete: _complete,
    ops.Compact: _compact,
    ops.SetGate: _set_gate,
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
        case Kind.OPERATION:
            return _from_json(payload)
        case _:
            raise ValueError(f"record kind {kind} is no operation")


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
