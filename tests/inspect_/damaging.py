"""Damaged copies of a small trace, and what must still be true of each."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect.decode import Event, Mark, read_events
from bandscope.inspect.format import BLOCK
from bandscope.inspect.reader import Trace
from bandscope.inspect.sealing import SEALED_SUFFIX, seal_file
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3
from tests.inspect_.traces import record

SECONDS_MAX = 20  # per damaged trace: an endless loop is a failure, not a hang


@dataclass
class Clean:
    """The undamaged trace: its files, every event, where its keyframes lie, how it ends."""

    path: Path
    files: dict[str, bytes]
    events: dict[int, tuple]
    keyframes: list[int]
    ending: str
    stop: int


def make_clean(folder: Path, *, sealed: bool = False, close: bool = True, **options: Any) -> Clean:
    """A trace of a few hundred events in two segments or more, with several keyframes each."""
    settings: dict[str, Any] = {"keyframe_every": 60, "segment_records": 512, "operations": 130}
    settings.update(options)
    path = record(folder / "clean", P3, seed=3, close=close, **settings).path
    if sealed:
        for name in sorted(path.glob("[0-9]*.*")):
            seal_file(name)
    return look(path)


def look(path: Path) -> Clean:
    """What an undamaged trace says."""
    trace = Trace(path)
    assert trace.damages == []
    events = {event.sequence: told(event) for event in read_events(trace)}
    keyframes = [e.sequence for e in read_events(trace) if e.body == Mark("keyframe")]
    files = {entry.name: entry.read_bytes() for entry in sorted(path.iterdir())}
    return Clean(path, files, events, keyframes, trace.ending, trace.stop)


def told(event: Event) -> tuple:
    """An event as values that can be compared."""
    names = type(event.body).__match_args__  # type: ignore[union-attr]
    values = [getattr(event.body, name) for name in names]
    body = [v.tobytes() if isinstance(v, np.ndarray) else v for v in values]
    return event.time_ns, event.operation, type(event.body), body


class Bench:
    """A copy of a clean trace that is damaged and mended again, one file at a time."""

    def __init__(self, clean: Clean, folder: Path) -> None:
        self.clean = clean
        self.path = folder / "damaged.trace"
        shutil.copytree(clean.path, self.path)
        self.final = self._state(Timeline(Trace(clean.path)))

    @contextmanager
    def damaged(self, name: str, data: bytes | None) -> Iterator[None]:
        """While it lasts, a file holds `data` (None: it is gone)."""
        file = self.path / name
        file.unlink()
        if data is not None:
            file.write_bytes(data)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            file.write_bytes(self.clean.files[name])

    def check_cut(self, name: str, size: int) -> None:
        """A file is cut to `size` bytes: everything before is read."""
        self._check_file(name, self.clean.files[name][:size], f"cut to {size} bytes", self.clean.stop)

    def check_flip(self, name: str, bit: int) -> None:
        """A bit is flipped: a block is lost at most, of a sealed trace a segment."""
        data = bytearray(self.clean.files[name])
        data[bit // 8] ^= 1 << bit % 8
        most = self.clean.stop if name.endswith(SEALED_SUFFIX) else BLOCK
        self._check_file(name, bytes(data), f"bit {bit} flipped", most)

    def check_missing(self, name: str) -> None:
        """A file is gone."""
        self._check_file(name, None, "missing", self.clean.stop)

    def _check_file(self, name: str, data: bytes | None, what: str, most: int) -> None:
        """Everything of a damaged trace is read; nothing but a `TraceError` may be raised."""
        with self.damaged(name, data), _time_limit():
            try:
                self._check(name, most)
            except Exception as error:
                raise AssertionError(f"{name}, {what}: {error!r}") from error

    def _check(self, name: str, most: int) -> None:
        clean = self.clean
        try:
            trace = Trace(self.path)
        except TraceError as error:
            assert "holds no events" in str(error), error
            assert len(list(self.path.glob("*.pages*"))) <= 1
            return
        damages, ending = trace.damages, trace.ending
        if clean.ending != "clean":  # records that no checksum covers yet: nobody can tell
            list(read_events(trace))
            self._check_states(trace)
            return
        assert damages or ending != clean.ending, "the damage is not named"
        for damage in damages:
            assert str(damage) and 0 <= damage.start <= damage.stop
        self._check_events(trace, most)
        self._check_states(trace)

    def _check_events(self, trace: Trace, most: int) -> None:
        found = {event.sequence: told(event) for event in read_events(trace)}
        lost = self._unreadable(trace)
        assert lost[1] - lost[0] <= most, f"events {lost} are lost, but at most {most} may be"
        for sequence, expected in self.clean.events.items():
            if not lost[0] <= sequence < lost[1] and found.get(sequence) != expected:
                # A text or a batch of the damaged block, or an operation that began there.
                assert lost[1] <= sequence < self._recovered(lost[1]), f"event {sequence}"
        assert not set(found) - set(self.clean.events) - set(range(*lost)), "an event was invented"

    def _unreadable(self, trace: Trace) -> tuple[int, int]:
        """The events that damage may have taken: the blocks that are unsound, and what is missing."""
        bad = np.ones(self.clean.stop, bool)
        for segment in trace.segments():
            checked = segment.good.copy()
            checked[len(checked) - segment.unchecked :] &= not segment.cut
            part = bad[segment.first_sequence : segment.stop_sequence]
            part[:] = ~checked[: len(part)]
        lost = np.flatnonzero(bad)
        return (int(lost[0]), int(lost[-1]) + 1) if lost.size else (0, 0)

    def _recovered(self, sequence: int) -> int:
        """From where on nothing refers to what lies before `sequence`: the next keyframe."""
        return min((s for s in self.clean.keyframes if s >= sequence), default=self.clean.stop)

    def _check_states(self, trace: Trace) -> None:
        timeline = Timeline(trace)
        try:
            timeline.advance(trace.stop)
        except TraceError as error:
            assert "no sound keyframe" in str(error), error
            return
        end = self._recovered(self._unreadable(trace)[1])
        covered = self.clean.ending == "clean"  # by checksums
        if covered and trace.stop == self.clean.stop and end < self.clean.stop:
            assert self._describe(timeline.state) == self.final
        for part in (4, 2, 3):
            try:
                timeline.seek(trace.start + (trace.stop - trace.start) * part // 4)
            except TraceError as error:
                assert "no sound keyframe" in str(error), error

    def _state(self, timeline: Timeline) -> str:
        return self._describe(timeline.advance(timeline.trace.stop))

    @staticmethod
    def _describe(state: ArenaState) -> str:
        bands = [
            (b.extent, b.state.tobytes(), b.virtual.tobytes(), b.owner.tobytes(), b.pins.tobytes())
            for b in state.bands
        ]
        return repr((bands, state.requests, sorted(state.pins), state.issued, state.in_flight))


@contextmanager
def _time_limit() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"reading did not end within {SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
