"""What a trace is, in one page: who recorded it, what is in it, how it ended, what is damaged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.format import Kind
from bandscope.inspect.notes import Annotation, read_notes
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import Damage
from bandscope.inspect.selection import gaps


@dataclass(frozen=True)
class Summary:
    """A trace at a glance.

    `kinds`: sound events by name, most frequent first. `first_ns`, `last_ns`: of the first and the
    last operation that are there, since recording began. `bytes_per_event` counts all files.
    `missing`: stretches `[first, stop)` of events that cannot be used.
    """

    path: str
    header: dict[str, Any]
    start: int
    stop: int
    kinds: dict[str, int]
    operations: int
    first_ns: int
    last_ns: int
    ending: str
    lost: int
    segments: int
    keyframes: int
    violations: int
    size_bytes: int
    damages: list[Damage]
    missing: list[tuple[int, int]]
    notes: list[Annotation]

    @property
    def events(self) -> int:
        """Events that can be used."""
        return sum(self.kinds.values())

    @property
    def bytes_per_event(self) -> float:
        return self.size_bytes / self.events if self.events else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.__dict__,
            "events": self.events,
            "bytes_per_event": self.bytes_per_event,
            "damages": [damage.__dict__ for damage in self.damages],
            "notes": [note.to_json() for note in self.notes],
        }


def summarize(trace: Trace) -> Summary:
    """Look at every segment once."""
    counts: Counter[int] = Counter()
    segments = 0
    first_ns, last_ns = -1, -1
    for reader in trace.segments():
        segments += 1
        kinds = reader.records["kind"]
        for kind, count in enumerate(np.bincount(kinds[reader.good], minlength=1).tolist()):
            counts[kind] += count
        timed = np.flatnonzero(
            (kinds >= form.FIRST_OPERATION) & (kinds <= Kind.OUTCOME) & reader.good
        )
        if timed.size:
            first_ns = int(reader.records["a"][timed[0]]) if first_ns < 0 else first_ns
            last_ns = int(reader.records["a"][timed[-1]])
    named: Counter[str] = Counter()
    for kind, count in counts.most_common():
        if count:
            named[form.kind_name(kind)] += count
    low, high = form.FIRST_OPERATION, form.LAST_OPERATION
    return Summary(
        str(trace.path),
        trace.header,
        trace.start,
        trace.stop,
        dict(named.most_common()),
        sum(count for kind, count in counts.items() if low <= kind <= high),
        max(first_ns, 0),
        max(last_ns, 0),
        trace.ending,
        trace.lost,
        segments,
        counts[Kind.KEYFRAME],
        counts[Kind.VIOLATION],
        trace.size_bytes,
        trace.damages,
        gaps(trace),
        read_notes(trace),
    )
