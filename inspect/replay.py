"""A trace is a program: its operations, tried again, must do what they did.

The arena is rebuilt from the first keyframe and every operation after it is applied. Outcome and
effects are compared operation by operation, and the whole state at every keyframe, by digest. The first
difference ends the replay: what follows from a wrong decision says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import TraceError
from bandscope.allocator.leases import Pin
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import BandPlan, StoragePlan
from bandscope.inspect import format as form
from bandscope.inspect import keyframe
from bandscope.inspect.decode import Event, Mark, read_events
from bandscope.inspect.reader import Trace


@dataclass(frozen=True)
class Difference:
    """Where a replay first differs. `event`: the sequence of the event; `operation`: the operation it
    belongs to; `what`: `outcome`, `effect` or `digest`; then what the trace says and what came."""

    event: int
    operation: str
    what: str
    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"event {self.event:,}, {self.operation}: the {self.what} was {self.expected}, and is now "
            f"{self.got}"
        )


@dataclass
class ReplayReport:
    """What was replayed: operations applied, effects and keyframes compared, the first difference."""

    start: int
    stop: int
    operations: int = 0
    effects: int = 0
    keyframes: int = 0
    difference: Difference | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        told = {item.name: getattr(self, item.name) for item in fields(self)}
        difference = self.difference
        told["difference"] = None if difference is None else dict(
            (item.name, getattr(difference, item.name)) for item in fields(difference)
        )
        return told


@dataclass
class _Effects(events.EffectObserver):
    """Keeps the effects of one operation. Arrays are copied: they belong to the moment."""

    kept: list[Any] = field(default_factory=list)

    def effect(self, event: events.Effect) -> None:
        for item in fields(event):
            value = getattr(event, item.name)
            if isinstance(value, np.ndarray):
                setattr(event, item.name, value.copy())
        self.kept.append(event)


def replay(trace: Trace, *, until: int | None = None, device: str = "none") -> ReplayReport:
    """Replay a trace from its first keyframe to event `until` (to the end when None).

    Raises `TraceError` when it holds no keyframe, or when a part that is needed is damaged.
    """
    start, snapshot = _first_keyframe(trace)
    stop = trace.stop if until is None else min(until, trace.stop)
    if any(not segment.good.all() for segment in trace.segments(start, stop)):
        raise TraceError(
            f"trace {trace.path} is damaged, so it cannot be replayed as a whole; `bandscope inspect "
            "summary` names the damaged parts, and `bandscope inspect export --form slice` cuts a sound "
            "part out of it"
        )
    observer = _Effects()
    arena = arena_of(trace, device)
    arena.restore(snapshot_of(snapshot))
    arena.books.observer = observer
    report = ReplayReport(start, stop)
    for operation, outcome, effects, keyframes in _operations(trace, start, stop):
        observer.kept = []
        got = arena.apply(operation.body)  # type: ignore[arg-type]
        report.operations += 1
        report.effects += len(effects)
        report.difference = _compare(operation, outcome, effects, got, observer.kept)
        if report.difference is None:
            report.difference = _compare_keyframes(trace, arena, operation, keyframes)
            report.keyframes += len(keyframes)
        if report.difference is not None:
            break
    return report


def arena_of(trace: Trace, device: str = "none") -> Arena:
    """An empty arena like the recorded one. The rows of its layers are not in a trace, so it serves
    bookkeeping and page content, not a model's forward."""
    header = trace.header
    try:
        plan = StoragePlan(
            header["model"],
            header["family"],
            header["context_length"],
            header["page_size"],
            header["tensor_parallel"],
            tuple(
                BandPlan(
                    band["name"],
                    band["kind"],
                    band["window_length"],
                    band["end"],
                    band["page_bytes"] // band["entry_bytes"],
                    band["entry_bytes"],
                    band["entry_bytes"],
                    (),
                )
                for band in header["bands"]
            ),
        )
        config = ArenaConfig(**header["arena"]["config"])
        return Arena(plan, header["arena"]["total_bytes"], device=device, config=config)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"the header of trace {trace.path} does not describe an arena of this version ({error}); "
            "replay it with the version that recorded it"
        ) from error


def snapshot_of(tree: dict[str, Any]) -> dict[str, Any]:
    """A decoded keyframe as `Arena.restore` takes it: leases are objects again."""
    pins = [Pin(**pin) for pin in tree["pins"]["pins"]]
    pending = [tuple(entry) for entry in tree["tickets"]["pending"]]
    return {
        **tree,
        "pins": {**tree["pins"], "pins": pins},
        "tickets": {**tree["tickets"], "pending": pending},
    }


def _first_keyframe(trace: Trace) -> tuple[int, dict[str, Any]]:
    for segment in trace.segments():
        for index in segment.find(form.Kind.KEYFRAME).tolist():
            payload = segment.payload(index)
            if form.crc32(payload) == int(segment.records["c"][index]):
                return segment.first_sequence + index, keyframe.decode(payload)
    raise TraceError(
        f"trace {trace.path} holds no sound keyframe, so there is nothing to begin from; record it "
        "again with `bandscope run --record NAME`"
    )


def _operations(
    trace: Trace, start: int, stop: int
) -> Iterator[tuple[Event, Event | None, list[Event], list[int]]]:
    """Every operation with its outcome, its effects and the digests of keyframes right after it."""
    asked: Event | None = None
    outcome: Event | None = None
    effects: list[Event] = []
    digests: list[int] = []
    for event in read_events(trace, start + 1, stop):
        body = event.body
        if isinstance(body, Operation):
            if asked is not None and outcome is not None:
                yield asked, outcome, effects, digests
            asked, outcome, effects, digests = event, None, [], []
        elif isinstance(body, Outcome):
            outcome = event
        elif isinstance(body, Mark):
            if body.what == "keyframe" and asked is not None:
                segment = trace.segment_of(event.sequence)
                digests.append(int(segment.records["b"][event.sequence - segment.first_sequence]))
        elif type(body).__module__ == events.__name__:
            effects.append(event)
    if asked is not None and outcome is not None:  # the last one may not have been finished
        yield asked, outcome, effects, digests


def _compare(
    operation: Event, outcome: Event | None, effects: list[Event], got: Outcome, came: list[Any]
) -> Difference | None:
    name = repr(operation.body)
    for told, event in zip(effects, came, strict=False):
        if not same_effect(told.body, event):
            return Difference(told.sequence, name, "effect", repr(told.body), repr(event))
    if len(effects) != len(came):
        at = effects[-1].sequence if len(effects) > len(came) else operation.sequence
        missing = effects[len(came)].body if len(effects) > len(came) else "nothing more"
        extra = came[len(effects)] if len(came) > len(effects) else "nothing more"
        return Difference(at, name, "effect", repr(missing), repr(extra))
    if outcome is None or not isinstance(outcome.body, Outcome):
        return None
    told_outcome = outcome.body
    for what in ("ok", "value", "reason", "message"):
        if getattr(told_outcome, what) != getattr(got, what):
            return Difference(
                outcome.sequence, name, "outcome", _brief(told_outcome), _brief(got)
            )
    return None


def _brief(outcome: Outcome) -> str:
    if outcome.ok:
        return "done" if outcome.value is None else f"done with {outcome.value}"
    return f"refused for {outcome.reason} ({outcome.message})"


def _compare_keyframes(
    trace: Trace, arena: Arena, operation: Event, digests: list[int]
) -> Difference | None:
    if not digests:
        return None
    got = int.from_bytes(bytes.fromhex(arena.digest())[:8], "little", signed=True)
    for digest in digests:
        if digest != got:
            return Difference(
                operation.sequence, repr(operation.body), "digest", f"{digest:x}", f"{got:x}"
            )
    return None


def same_effect(told: Any, came: Any) -> bool:
    """True when two effects say the same, arrays by content. The requests of a launch are those of its
    operation and are not compared."""
    if type(told) is not type(came):
        return False
    if isinstance(told, events.Launched):
        return bool(told.ticket == came.ticket)
    for item in fields(told):
        mine, theirs = getattr(told, item.name), getattr(came, item.name)
        if isinstance(mine, np.ndarray) or isinstance(theirs, np.ndarray):
            if not np.array_equal(np.atleast_1d(mine), np.atleast_1d(theirs)):
                return False
        elif mine != theirs:
            return False
    return True
