"""A trace is a program: its operations, tried again, must do what they did.

The arena is rebuilt from the first keyframe and every operation after it is applied. Effects and outcome
are compared operation by operation, as the records that a recorder would write for them, and the whole
state at every keyframe, by digest. The first difference ends the replay: what follows from a wrong
decision says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.checks import Violation
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import BandscopeError, TraceError
from bandscope.allocator.events import Observer, Observers
from bandscope.allocator.leases import Pin
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import BandPlan, StoragePlan
from bandscope.inspect import format as form
from bandscope.inspect import keyframe
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay_difference import (
    Difference,
    compare_rows,
    compare_states,
    exception_instead,
)
from bandscope.inspect.replay_rows import RowObserver
from bandscope.inspect.replay_steps import RecordedStep, Texts, read_steps
from bandscope.inspect.state import ArenaState

__all__ = ["Difference", "Engine", "ReplayReport", "arena_of", "replay", "restored_arena"]


class Engine(Protocol):
    """A device and the work that a serving engine does on it around the operations: forwards, copies of
    lease holders, waiting. `fuzz.replay_engine` has one for every device."""

    arena_device: Device

    @property
    def observers(self) -> Sequence[Observer]:
        """Whoever is told the arena's effects as well."""

    def begin(self, arena: Arena) -> None:
        """The arena is as the keyframe says."""

    def before(self, operation: Operation) -> None:
        """An operation is about to be tried."""

    def after(self, operation: Operation, outcome: Outcome) -> list[Violation]:
        """It was; what was found broken meanwhile."""

    def finish(self) -> list[Violation]:
        """Nothing more comes: run everything to its end; what was found broken."""


@dataclass
class ReplayReport:
    """What was replayed: operations applied, effects and keyframes compared, the first difference.

    `state`: the arena as it is where the replay ended, None without a difference.
    """

    start: int
    stop: int
    operations: int = 0
    effects: int = 0
    keyframes: int = 0
    difference: Difference | None = None
    state: ArenaState | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        difference = self.difference
        return {
            "start": self.start,
            "stop": self.stop,
            "operations": self.operations,
            "effects": self.effects,
            "keyframes": self.keyframes,
            "difference": None if difference is None else difference.to_json(),
        }


def replay(
    trace: Trace,
    *,
    until: int | None = None,
    device: str | Device = "none",
    engine: Engine | None = None,
) -> ReplayReport:
    """Replay a trace from its first keyframe to event `until` (to the end when None), on a device or on
    that of an `engine`, which then does its work on it and says what it finds.

    Raises `TraceError` when it holds no keyframe, or when a part that is needed is damaged, and
    `DeviceError` when the device cannot hold the arena.
    """
    start, snapshot = first_keyframe(trace)
    stop = trace.stop if until is None else min(until, trace.stop)
    check_sound(trace, start, stop)
    arena = restored_arena(trace, snapshot, device if engine is None else engine.arena_device)
    if engine is not None:
        engine.begin(arena)
    texts = Texts()
    observer = RowObserver(arena, texts)
    arena.books.observer = observer
    if engine is not None and engine.observers:
        arena.books.observer = Observers(observer, *engine.observers)
    report = ReplayReport(start, stop)
    for step in read_steps(trace, texts, start + 1, stop):
        difference = _try(trace, arena, step, observer, engine)
        report.operations += 1
        report.effects += len(step.rows) - 1
        if difference is None and step.keyframes:
            difference = _compare_keyframes(trace, arena, step)
            report.keyframes += len(step.keyframes)
        if difference is not None:
            report.difference = difference
            report.state = state_of(trace, arena, difference.after)
            return report
    if engine is not None:
        found = engine.finish()
        if found:
            message = str(found[0])
            report.difference = Difference(stop, "(the end)", "check", "nothing broken", message, stop)
            report.state = state_of(trace, arena, stop)
    return report


def _try(
    trace: Trace,
    arena: Arena,
    step: RecordedStep,
    observer: RowObserver,
    engine: Engine | None,
) -> Difference | None:
    operation = step.operation
    try:
        if engine is not None:
            engine.before(operation)
        outcome = arena.apply(operation)
        found = [] if engine is None else engine.after(operation, outcome)
    except BandscopeError:
        raise
    except Exception as error:  # whatever comes out of an arena that differs is the difference
        rows, payloads = observer.rows, observer.payloads
        return exception_instead(trace, step, rows, payloads, observer.texts, error)
    if observer.rows != step.rows or observer.payloads != step.payloads:
        difference = compare_rows(trace, step, observer.rows, observer.payloads, observer.texts)
        if difference is not None:
            return difference
    if found:
        return Difference(
            step.sequence, repr(operation), "check", "nothing broken", str(found[0]), step.stop
        )
    return None


def _compare_keyframes(trace: Trace, arena: Arena, step: RecordedStep) -> Difference | None:
    """The digest says whether the state is the same, the keyframe itself what is not."""
    snapshot = arena.snapshot()
    got = int.from_bytes(bytes.fromhex(arena.digest(snapshot))[:8], "little", signed=True)
    for sequence in step.keyframes:
        segment = trace.segment_of(sequence)
        index = sequence - segment.first_sequence
        digest = int(segment.records["b"][index])
        if digest != got:
            payload = segment.payload(index)
            recorded = keyframe.decode(payload)
            parts = compare_states(recorded, keyframe.decode(keyframe.encode(snapshot)))
            return Difference(
                sequence, repr(step.operation), "digest",
                f"{digest & (1 << 64) - 1:016x}",
                f"{got & (1 << 64) - 1:016x}; what differs: {', '.join(parts) or 'nothing decoded'}",
                step.stop,
            )  # fmt: skip
    return None


def state_of(trace: Trace, arena: Arena, sequence: int) -> ArenaState:
    """An arena as a state of this trace's bands, before event `sequence`."""
    state = ArenaState(trace.header)
    state.restore(keyframe.decode(keyframe.encode(arena.snapshot())), sequence)
    return state


def restored_arena(
    trace: Trace, snapshot: dict[str, Any] | None = None, device: str | Device = "none"
) -> Arena:
    """An arena like the recorded one, as the trace's first keyframe says (or a decoded `snapshot`)."""
    if snapshot is None:
        _, snapshot = first_keyframe(trace)
    arena = arena_of(trace, device)
    try:
        arena.restore(snapshot_of(snapshot))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(
            f"the first keyframe of trace {trace.path} does not describe an arena of this version "
            f"({type(error).__name__}: {error}); replay it with the version that recorded it"
        ) from error
    return arena


def arena_of(trace: Trace, device: str | Device = "none") -> Arena:
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


def first_keyframe(trace: Trace) -> tuple[int, dict[str, Any]]:
    """The sequence of the first sound keyframe, and what it says; `TraceError` when there is none."""
    for segment in trace.segments():
        for index in segment.find(Kind.KEYFRAME).tolist():
            payload = segment.payload(index)
            if form.crc32(payload) == int(segment.records["c"][index]):
                return segment.first_sequence + index, keyframe.decode(payload)
    raise TraceError(
        f"trace {trace.path} holds no sound keyframe, so there is nothing to begin from; record it "
        "again with `bandscope run --record NAME`"
    )


def check_sound(trace: Trace, start: int, stop: int) -> None:
    """`TraceError` when events `[start, stop)` are damaged or missing."""
    at = start
    for segment in trace.segments(start, stop):
        if not segment.good.all() or segment.first_sequence > at:
            raise TraceError(
                f"trace {trace.path} is damaged, so it cannot be replayed as a whole; `bandscope "
                "inspect summary` names the damaged parts, and `bandscope inspect export TRACE slice "
                "OUT` cuts a sound part out of it"
            )
        at = segment.stop_sequence


def operations_of(trace: Trace, start: int, stop: int) -> Iterator[RecordedStep]:
    """The steps of a trace, for whoever does not compare them."""
    return read_steps(trace, Texts(), start, stop)
