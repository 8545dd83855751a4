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

_BY_NAME = {kind.__name__: kind for kind in Operation.__subclasses__()}


def as_json(value: Any) -> bytes:
    """Compact JSON; numbers of NumPy become plain ones, anything unknown its `repr`."""
    return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else repr(value)


def encode_as_json(recorder: Recorder, operation: Operation, now: int) -> None:
    """Write any operation down as JSON: the rare ones, and those whose numbers fit no record."""
    told = {item.name: getattr(operation, item.name) for item in fields(operation)}
    data = as_json({"kind": operation.kind, **told})
    recorder.append(Kind.OPERATION, 0, NO_BAND, recorder.payload(data), now, 0, 0)


def _admit(recorder: Recorder, op: ops.Admit, now: int) -> None:
    recorder.append(_ADMIT, 0, 0, 0, now, op.request, op.state_slots)


def _extend(recorder: Recorder, op: ops.Extend, now: int) -> None:
    recorder.append(_EXTEND, 0, 0, 0, now, op.request, op.tokens)


def _release(recorder: Recorder, op: ops.Release, now: int) -> None:
    recorder.append(_RELEASE, 0, 0, 0, now, op.request, recorder.text(op.why))


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


# Plain integers: looking up a member of an enumeration costs as much as writing a field.
_ADMIT, _EXTEND, _RELEASE = int(Kind.ADMIT), int(Kind.EXTEND), int(Kind.RELEASE)
_COMPLETE, _COMPACT, _SET_GATE = int(Kind.COMPLETE), int(Kind.COMPACT), int(Kind.SET_GATE)
_DECODE, _TRIM_WINDOW, _LAUNCH = int(Kind.DECODE), int(Kind.TRIM_WINDOW), int(Kind.LAUNCH)

# What an encoder raises when a number fits no record; nothing was written then.
UNFIT = (struct.error, TypeError, ValueError)
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
