"""Checks of the trace that is shown, a piece at a time between two snapshots; and its damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bandscope.allocator.errors import TraceError
from bandscope.inspect.checks.checked_timeline import CheckedTimeline
from bandscope.inspect.checks.races import find_races
from bandscope.inspect.reader import Trace
from bandscope.tui.top.snapshot import Row

RACE_EVENTS = 20_000
_PIECE = 10_000
_STUMBLES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Checks:
    """Invariants of everything up to the end, and races of the events before a position.

    `progress`: how far they are, in words; `rows`: what was found, by event; `stacks`: by the text of
    a race, the frames of both accesses. It opens the trace once more, so that what is shown does not
    wait for the segments that are checked.
    """

    def __init__(self) -> None:
        self.progress = ""
        self.rows: list[Row] = []
        self.stacks: dict[str, tuple[str, ...]] = {}  # who called the arena, by a race's text
        self._work: Iterator[str] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is more to do."""
        return self._work is not None

    def begin(self, path: Path, position: int) -> None:
        """Check everything that is there now."""
        self.rows, self.stacks = [], {}
        self._work = self._run(path, position)

    def tick(self) -> bool:
        """Do a piece; whether there was one to do."""
        if self._work is None:
            return False
        try:
            self.progress = next(self._work)
        except StopIteration:
            self._work = None
        except (TraceError, *_STUMBLES) as error:
            self.progress = f"checking stopped: {error}"
            self._work = None
        return True

    def _run(self, path: Path, position: int) -> Iterator[str]:
        trace = Trace(path)
        stop = trace.stop
        start = max(trace.start, position - RACE_EVENTS)
        yield "looking for races"
        report = find_races(trace, start, position)
        for race in report.races:
            self.rows.append(Row(race.before, -1, f"Race {race.kind}", str(race)))
            self.stacks[str(race)] = tuple(
                f"{which}   {frame}"
                for which, access in (("first", race.first), ("second", race.second))
                for frame in access.stack.splitlines()
            )
        races = f"races: events {start:,} to {position:,}"
        timeline = CheckedTimeline(trace)
        known = 0
        at = trace.start
        while at < stop:
            at = min(stop, at + _PIECE)
            timeline.advance(at)
            known = self._take(timeline, known)
            yield f"{races}; invariants: {at / max(1, stop):.0%} of {stop:,} events"
        timeline.check_state()
        self._take(timeline, known)
        missing = "; damaged parts were left out" if timeline.gaps or report.gaps else ""
        yield f"{races}; invariants: all {stop:,} events{missing}"

    def _take(self, timeline: CheckedTimeline, known: int) -> int:
        for finding in timeline.findings[known:]:
            where = f"{finding.band}: " if finding.band else ""
            self.rows.append(Row(finding.sequence, -1, finding.name, where + finding.detail))
        self.rows.sort(key=lambda row: row.sequence)
        return len(timeline.findings)


class DamageScan:
    """Looks at one segment after the other for damage, in a reader of its own."""

    def __init__(self, path: Path) -> None:
        self.damages: tuple[str, ...] = ()
        self.progress = ""
        self._work: Iterator[None] | None = self._run(path)

    @property
    def busy(self) -> bool:
        """Whether there is more to look at."""
        return self._work is not None

    def tick(self) -> bool:
        """Look at the next segment; whether there was one."""
        if self._work is None:
            return False
        try:
            next(self._work)
        except (StopIteration, TraceError):
            self._work = None
        return True

    def _run(self, path: Path) -> Iterator[None]:
        trace = Trace(path)
        for segment in trace.segments():
            share = segment.stop_sequence / max(1, trace.stop)
            self.progress = f"{share:.0%} of the trace was looked at for damage"
            yield
        self.damages = tuple(str(damage) for damage in trace.damages)
        self.progress = ""
