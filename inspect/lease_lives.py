"""The whole life of one lease that pins pages, gathered from a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.errors import TraceError
from bandscope.inspect import format as form
from bandscope.inspect.decode import Event
from bandscope.inspect.format import Kind
from bandscope.inspect.lifetimes import operation_in_words
from bandscope.inspect.operation_codec import told_fields
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.selection import band_index, first_timeline, gaps, operation_at, scan
from bandscope.inspect.timeline import Timeline


@dataclass
class LeaseLife:
    """A lease that pins pages: asked by `operation`, from event `begun` to `ended` (None: it lasts).

    `waited`: what could not go on because of it: pages freed meanwhile, refusals for pins.
    `begun_ns`, `ended_ns`: since recording began; `begun` is None where the trace begins later.
    """

    number: int
    holder: str
    band: str
    virtual: np.ndarray
    physical: np.ndarray
    begun: int | None
    begun_ns: int | None
    operation: dict[str, Any] | None
    ended: int | None = None
    ended_ns: int | None = None
    ended_by: str = ""
    waited: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data; arrays are left to `reader.as_json`."""
        return dict(self.__dict__)


def lease_life(trace: Trace, number: int) -> LeaseLife:
    """The life of lease `number`; `TraceError` when the trace knows of none."""
    timeline = first_timeline(trace)
    life = _held_at_start(trace, timeline, number)
    known: list[int] = [] if life is None else [number]
    held: set[int] = set()  # pages that the lease pins and that nobody has freed
    if life is not None:
        of_band = timeline.state.bands[band_index(trace, life.band)]
        now = of_band.virtual[life.physical - of_band.base]  # some may have been grafted since
        held = set(now[now >= 0].tolist())
    start = timeline.state.sequence if life is not None else None
    for event in scan(trace, _lease_sieve, start):
        body = event.body
        if isinstance(body, events.LeaseBegin):
            if body.lease:
                known.append(body.lease)
            if body.lease == number and life is None:
                operation = operation_at(trace, event.operation)
                told = None if operation is None else _fields(operation)
                life = LeaseLife(
                    number, str(body.holder), body.band, body.virtual, body.physical,
                    event.sequence, event.time_ns, told,
                )  # fmt: skip
                held = set(body.virtual.tolist())
        elif life is None:
            continue
        elif isinstance(body, events.LeaseEnd) and body.lease == number:
            life.ended, life.ended_ns = event.sequence, event.time_ns
            life.ended_by = operation_in_words(trace, event.operation)
            break
        else:
            _waits(trace, life, event, held)
    if life is None:
        there = f"its leases are {min(known)} to {max(known)}" if known else "it has none"
        raise TraceError(f"lease {number} was asked for, but trace {trace.path} has no such: {there}")
    life.gaps = gaps(trace, life.begun, life.ended)
    return life


def _held_at_start(trace: Trace, timeline: Timeline, number: int) -> LeaseLife | None:
    pin = timeline.state.pins.get(number)
    if pin is None:
        return None
    band = timeline.state.bands[pin.band].name
    return LeaseLife(number, pin.holder, band, pin.virtual, pin.physical, None, None, None)


def _lease_sieve(segment: SegmentReader) -> np.ndarray:
    kinds, flags = segment.records["kind"], segment.records["flags"]
    pin = flags & form.PIN != 0
    refused = (kinds == Kind.OUTCOME) & (flags & form.OK == 0)
    begins = (kinds == Kind.LEASE_BEGIN) & pin
    changes = (kinds == Kind.LEASE_END) | (kinds == Kind.GRAFT)
    mask: np.ndarray = begins | changes | refused
    return mask


def _waits(trace: Trace, life: LeaseLife, event: Event, held: set[int]) -> None:
    body = event.body
    if isinstance(body, events.Graft):
        if body.band == life.band:  # the places that it pins have other names
            names = dict(zip(body.virtual.tolist(), body.into.tolist(), strict=True))
            renamed = held & names.keys()
            held -= renamed
            held |= {names[page] for page in renamed}
        return
    if isinstance(body, events.LeaseEnd):
        if not body.owns or body.band != life.band:
            return
        pages = held.intersection(body.virtual.tolist())
        if not pages:
            return
        held -= pages
        what, detail = "freed", f"{len(pages)} of its pages, which wait for its end"
    elif getattr(body, "reason", "") == "pins":
        what, detail = "refused", str(getattr(body, "message", ""))
    else:
        return
    life.waited.append(
        {
            "sequence": event.sequence,
            "time_ns": event.time_ns,
            "what": what,
            "operation": operation_in_words(trace, event.operation),
            "detail": detail,
        }
    )


def _fields(operation: Any) -> dict[str, Any]:
    return {"kind": operation.kind, **told_fields(operation)}
