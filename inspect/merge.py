"""Several traces on one time line: the ranks of a run, a process and its forks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from bandscope.inspect.decode import Event, read_events
from bandscope.inspect.reader import Trace


def wall_time(trace: Trace, event: Event) -> int:
    """When an event was, in ns since 1970: the wall clock at the start of its trace, and since then the
    trace's own clock, which never jumps."""
    return int(trace.header["wall_ns"]) + event.time_ns


def merge(
    traces: Sequence[Trace], kinds: set[int] | None = None
) -> Iterator[tuple[int, Event]]:
    """The events of all traces by wall time, each with the index of its trace. Events of one trace stay
    in their order; of several at the same time, those of the trace given first come first."""
    streams = [_timed(index, trace, kinds) for index, trace in enumerate(traces)]
    for _, index, _, event in heapq.merge(*streams):
        yield index, event


def _timed(
    index: int, trace: Trace, kinds: set[int] | None
) -> Iterator[tuple[int, int, int, Event]]:
    latest = 0
    for event in read_events(trace, kinds=kinds):
        latest = max(latest, wall_time(trace, event))  # a keyframe has the time of its operation
        yield latest, index, event.sequence, event
