"""The stretch of a trace that is exported, and its events grouped by operation."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import format as form
from bandscope.inspect.decode import Event, read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader


@dataclass(frozen=True)
class Window:
    """Events `[start, stop)` of a trace; at least one of them is an operation."""

    trace: Trace
    start: int
    stop: int

    @property
    def bands(self) -> list[dict[str, Any]]:
        """The bands of the header, in chain order."""
        bands: list[dict[str, Any]] = self.trace.header["bands"]
        return bands

    def events(self, kinds: set[int] | None = None) -> Iterator[Event]:
        """The events in order (only of these record kinds, when given)."""
        return read_events(self.trace, self.start, self.stop, kinds)

    def operations(self) -> Iterator[tuple[SegmentReader, np.ndarray]]:
        """Per segment, the indexes of the operations of the window."""
        for segment in self.trace.segments(self.start, self.stop):
            first = max(0, self.start - segment.first_sequence)
            last = min(len(segment), self.stop - segment.first_sequence)
            yield segment, first + np.flatnonzero(_is_operation(segment)[first:last])

    def times(self) -> tuple[int, int]:
        """When the first and the last operation of the window were tried."""
        found: list[int] = []
        for segment, indexes in self.operations():
            if indexes.size:
                times = segment.records["a"]
                found = [found[0] if found else int(times[indexes[0]]), int(times[indexes[-1]])]
        return found[0], found[1]


def make_window(trace: Trace, start: int | None, stop: int | None) -> Window:
    """Events `[start, stop)`, cut to what the trace holds; `TraceError` when no operation is there."""
    first = trace.start if start is None else max(start, trace.start)
    last = trace.stop if stop is None else min(stop, trace.stop)
    held = f"trace {trace.path} holds events {trace.start:,} to {trace.stop - 1:,}"
    if first >= last:
        raise TraceError(
            f"events {start if start is not None else trace.start:,} up to "
            f"{stop if stop is not None else trace.stop:,} were asked for, but {held}"
        )
    window = Window(trace, first, last)
    if not any(indexes.size for _, indexes in window.operations()):
        whole = (first, last) == (trace.start, trace.stop)
        raise TraceError(
            f"trace {trace.path} holds no operation, so there is nothing to export; was the recorder "
            "attached before the arena was used?"
            if whole
            else f"no operation lies in events {first:,} to {last - 1:,}; {held}; ask for more of them"
        )
    return window


def _is_operation(segment: SegmentReader) -> np.ndarray:
    kinds = segment.records["kind"]
    asked = (kinds >= form.FIRST_OPERATION) & (kinds <= form.LAST_OPERATION)
    sound: np.ndarray = asked & segment.good
    return sound


def boundary(trace: Trace, sequence: int) -> int:
    """The first event at or after `sequence` that lies between two operations: the operation that
    `sequence` falls into is passed. `trace.stop` when that one has no outcome."""
    if sequence >= trace.stop:
        return trace.stop
    inside = False
    for segment in trace.segments(trace.segment_of(sequence).first_sequence):
        kinds = segment.records["kind"]
        at = max(0, sequence - segment.first_sequence)
        edges = np.flatnonzero(_is_operation(segment) | ((kinds == Kind.OUTCOME) & segment.good))
        before = np.searchsorted(edges, at)
        if at or segment.first_sequence == sequence:
            inside = bool(before) and int(kinds[edges[before - 1]]) != Kind.OUTCOME
        if not inside:
            return sequence
        if before < edges.size:
            edge = int(edges[before])
            ended = int(kinds[edge]) == Kind.OUTCOME
            return segment.first_sequence + edge + (1 if ended else 0)
    return trace.stop


@dataclass
class Step:
    """An operation with all that happened until its outcome; or one event outside of any."""

    asked: Event | None = None
    effects: list[Event] = field(default_factory=list)
    outcome: Event | None = None

    @property
    def stop(self) -> int:
        """The event after the last one of the step."""
        last = self.outcome or (self.effects[-1] if self.effects else self.asked)
        assert last is not None
        return last.sequence + 1

    @property
    def duration_ns(self) -> int | None:
        """From the call until its outcome; None where one of them is missing."""
        if self.asked is None or self.outcome is None:
            return None
        return self.outcome.time_ns - self.asked.time_ns


def steps(events: Iterator[Event]) -> Iterator[Step]:
    """The events grouped by operation."""
    step: Step | None = None
    for event in events:
        if isinstance(event.body, Operation):
            if step is not None:
                yield step
            step = Step(event)
        elif isinstance(event.body, Outcome):
            whole = step or Step()
            whole.outcome = event
            step = None
            yield whole
        elif step is not None:
            step.effects.append(event)
        else:
            yield Step(None, [event])
    if step is not None:
        yield step


def need(package: str, extra: str, purpose: str) -> Any:
    """An optional package, or a `TraceError` that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0].replace("_", "-")
        raise TraceError(
            f"{purpose} needs {name}; install bandscope[{extra}]"
        ) from error
