"""Reading a trace while it is written, from the same process and from another one."""

from __future__ import annotations

import gc
import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation
from bandscope.inspect import keyframe, sealing
from bandscope.inspect import reader as reader_module
from bandscope.inspect import recorder as recorder_module
from bandscope.inspect.decode import Mark, read_events
from bandscope.inspect.format import CONTINUED
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, RandomEngine, small_arena
from tests.inspect_.damaging import told
from tests.inspect_.test_kill import Progress
from tests.inspect_.traces import record

SMALL = {"keyframe_every": 60, "segment_records": 512, "segment_pages_bytes": 1 << 16}


@pytest.mark.parametrize("step", [1, 7, 200])
def test_events_arrive_in_order_and_none_twice(tmp_path: Path, step: int) -> None:
    arena = small_arena(P3)
    engine = RandomEngine(random.Random(4))
    recorder = Recorder(tmp_path / "run", arena, **SMALL)
    trace = Trace(recorder.directory)
    timeline = Timeline(trace)
    seen = [event for event in read_events(trace)]
    for number in range(240):
        engine_step(arena, engine)
        if number % step == 0:
            at = trace.stop
            assert trace.refresh() == trace.stop - at
            assert trace.stop == recorder.sequence and trace.ending == "running"
            seen += read_events(trace, at)
            assert timeline.advance(trace.stop).differences(snapshot(arena)) == []
    at = trace.stop
    recorder.close()
    trace.refresh()
    seen += read_events(trace, at)
    assert [e.sequence for e in seen] == sorted({e.sequence for e in seen})
    assert [told(e) for e in seen] == [told(e) for e in read_events(Trace(recorder.directory))]
    assert trace.ending == "clean" and trace.damages == [] and timeline.gaps == []
    assert len(list(recorder.directory.glob("*.events"))) > 2


def snapshot(arena: Arena) -> dict[str, Any]:
    """As a keyframe would have it."""
    return keyframe.decode(keyframe.encode(arena.snapshot()))


def engine_step(arena: Arena, engine: RandomEngine) -> None:
    operation = engine.choose(arena)
    engine.note(operation, arena.apply(operation))


@pytest.mark.parametrize("ring", [None, 1 << 17])
def test_another_process_is_followed(tmp_path: Path, ring: int | None) -> None:
    """The reader looks as often as it can while segments are cut and overwritten."""
    progress = Progress()
    process = os.fork()
    if not process:
        try:
            recorder_module.RING_BYTES_MIN = 0
            arena = small_arena(P3)
            engine = RandomEngine(random.Random(4))
            with Recorder(tmp_path / "run", arena, ring_bytes=ring, **SMALL) as recorder:
                progress.sequence = recorder.sequence
                for _ in range(1500):
                    engine_step(arena, engine)
                    progress.sequence = recorder.sequence
            os._exit(0)
        except BaseException:
            (tmp_path / "error").write_text(traceback.format_exc())
            os._exit(1)
    while not progress.sequence:
        pass
    trace = Trace(tmp_path / "run.trace")
    seen = [event.sequence for event in read_events(trace)]
    looks, status = 0, (0, 0)
    while status == (0, 0):
        status = os.waitpid(process, os.WNOHANG)
        known, at = progress.sequence, trace.stop
        trace.refresh()
        assert trace.stop >= known, "what the writer had written is not there"
        seen += [event.sequence for event in read_events(trace, at)]
        looks += 1
    assert status[1] == 0, (tmp_path / "error").read_text()
    assert seen == sorted(set(seen)), "an event came twice, or out of order"
    assert looks > 3
    trace = Trace(tmp_path / "run.trace")
    assert trace.ending == "clean" and trace.damages == []
    if ring is None:
        assert seen == [event.sequence for event in read_events(trace)]
        operations = [e for e in read_events(trace) if isinstance(e.body, Operation)]
        assert len(operations) == 1500


def half_rotated(recorder: Recorder) -> Callable[[], None]:
    """Begin to rotate: the next segment's files are there, the last one is not finished. Returns what
    does the rest."""
    old = recorder._segment
    recorder._segment_number += 1
    following = recorder._make_segment(old.following)

    def rest() -> None:
        old.finish(CONTINUED)
        recorder._begin_segment(following)

    return rest


def test_a_segment_that_has_not_begun_is_not_there(tmp_path: Path) -> None:
    """Else the last records of the segment before it would be passed over."""
    with Recorder(tmp_path / "run", small_arena(P3)) as recorder:
        recorder.annotate("first")
        trace = Trace(recorder.directory)
        rest = half_rotated(recorder)
        assert trace.refresh() == 0 and trace.stop == recorder.sequence
        assert trace.ending == "running" and trace.damages == []
        rest()
        assert trace.refresh() == 4 and trace.stop == recorder.sequence
        assert [mark.body for mark in read_events(trace, 3)] == [
            Mark("trailer"), Mark("header"), Mark("keyframe"),
        ]  # fmt: skip


def test_a_segment_is_finished_while_the_reader_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(tmp_path / "run", small_arena(P3)) as recorder:
        recorder.annotate("first")
        rest = half_rotated(recorder)
        looked = []

        def reader(path: Path, number: int, assumed: int = 0) -> SegmentReader:
            found = SegmentReader(path, number, assumed)
            if not looked:
                looked.append(number)
                rest()
            return found

        monkeypatch.setattr(reader_module, "SegmentReader", reader)
        trace = Trace(recorder.directory)
        kinds = [event.body.what for event in read_events(trace) if isinstance(event.body, Mark)]
        if trace.stop > 5:
            assert kinds == ["header", "keyframe", "trailer", "header", "keyframe"]
        assert looked and trace.refresh() >= 0
        assert trace.stop == recorder.sequence


def test_a_record_that_is_written_during_a_copy_is_left_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may show a number without what was written before it."""
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    path = recorded.path / "000000.events"
    data = path.read_bytes()
    used = recorded.recorder.sequence
    torn = bytearray(data)
    torn[64 + 32 * (used - 1) : 64 + 32 * used - 4] = bytes(28)

    class File:
        def __init__(self, *arguments: Any) -> None:
            self.file = open(path, "rb")

        def __enter__(self) -> File:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def read(self) -> bytes:
            return bytes(torn)

        def fileno(self) -> int:
            return self.file.fileno()

    monkeypatch.setattr(sealing, "open", File, raising=False)
    assert sealing._read_plain(path) == data
    recorded.recorder.close()


def test_readers_that_hold_a_trace_open_disturb_nobody(tmp_path: Path) -> None:
    """Mappings and views of a reader outlive rotation, the end, and the files themselves."""
    arena = small_arena(P3)
    engine = RandomEngine(random.Random(4))
    held = []
    with Recorder(tmp_path / "run", arena, **SMALL) as recorder:
        for number in range(600):
            engine_step(arena, engine)
            if number % 20 == 0:
                trace = Trace(recorder.directory)
                segment = trace.segment_of(trace.stop - 1)
                held.append((trace, segment, segment.records.copy(), trace.stop))
    alone = record(tmp_path / "alone", P3, seed=4, operations=600, **SMALL)  # type: ignore[arg-type]
    assert Trace(alone.path).stop == Trace(recorder.directory).stop
    for path in list(recorder.directory.iterdir()):
        path.unlink()
    for trace, segment, records, stop in held:
        assert (segment.records == records).all() and trace.stop == stop
        assert [segment.payload(i) for i in range(len(segment))]
    held.clear()
    gc.collect()


def test_a_reader_of_a_ring_meets_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks the whole ring was overwritten."""
    monkeypatch.setattr(recorder_module, "RING_BYTES_MIN", 0)
    arena = small_arena(P3)
    engine = RandomEngine(random.Random(4))
    with Recorder(tmp_path / "run", arena, ring_bytes=1 << 17, **SMALL) as recorder:
        trace = Trace(recorder.directory)
        timeline = Timeline(trace)
        timeline.advance(trace.stop)
        at = trace.stop
        for _ in range(2500):
            engine_step(arena, engine)
        list(read_events(trace))  # as it was known before
        trace.refresh()
        assert trace.start > at and trace.lost == trace.start and trace.damages == []
        assert timeline.seek(trace.stop).differences(snapshot(arena)) == []
        follower = Timeline(Trace(recorder.directory))
        assert follower.advance(trace.stop).differences(snapshot(arena)) == []
