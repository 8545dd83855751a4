"""What the recorder writes: rings, notes, stacks, names."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation
from bandscope.inspect import keyframe, recorder
from bandscope.inspect.decode import Note, Stack, Violation, read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, P5, RandomEngine, small_arena
from tests.inspect_.traces import record

RING_BYTES = 1 << 18


def total_size(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir())


# --- rings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [P3, P5], ids=["P3", "P5"])
def test_a_ring_keeps_the_newest_and_counts_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    monkeypatch.setattr(recorder, "RING_BYTES_MIN", RING_BYTES)
    arena = small_arena(layout)
    engine = RandomEngine(random.Random(3))
    snapshots, sizes, asked = {}, [], []
    with Recorder(tmp_path / "run", arena, ring_bytes=RING_BYTES) as ring:
        for step in range(2500):
            operation = engine.choose(arena)
            asked.append(operation)
            engine.note(operation, arena.apply(operation))
            if step % 9 == 0:
                snapshots[ring.sequence] = arena.snapshot()
                sizes.append(total_size(ring.directory))
    assert RING_BYTES * 0.75 < max(sizes) < RING_BYTES * 1.15
    assert total_size(ring.directory) <= RING_BYTES
    trace = Trace(ring.directory)
    assert trace.start > 0 and trace.lost == trace.start == ring.lost
    assert trace.damages == [] and trace.ending == "clean"
    kept = [e.body for e in read_events(trace) if isinstance(e.body, Operation)]
    assert kept == asked[-len(kept) :] and len(kept) > 200
    timeline = Timeline(trace)
    checked = 0
    for sequence, snapshot in snapshots.items():
        if sequence > trace.start + 3:
            told = keyframe.decode(keyframe.encode(snapshot))
            assert timeline.advance(sequence).differences(told) == []
            checked += 1
    assert checked > 50 and timeline.gaps == [] and timeline.damages == []
    with pytest.raises(TraceError, match="holds events"):
        timeline.seek(trace.start - 1)


def test_a_ring_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="or more"):
        Recorder(tmp_path / "run", small_arena(P3), ring_bytes=1000)


# --- segments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyframe_every", range(60, 76))
def test_sequences_go_on_from_segment_to_segment(tmp_path: Path, keyframe_every: int) -> None:
    """Wherever in a block of records a segment ends."""
    path = record(
        tmp_path / "run", P3, operations=260, keyframe_every=keyframe_every, segment_records=512
    ).path
    trace = Trace(path)
    stops = [segment.stop_sequence for segment in trace.segments()]
    starts = [segment.first_sequence for segment in trace.segments()]
    assert len(starts) > 1 and starts[1:] == stops[:-1] and trace.damages == []


@pytest.mark.parametrize("spare", range(0, 4))
def test_a_segment_may_end_just_where_a_checksum_is_due(tmp_path: Path, spare: int) -> None:
    path = tmp_path / "run"
    arena = small_arena(P3)
    with Recorder(path, arena, segment_records=512) as writer:
        while writer._segment.number < 256 - spare:
            writer.annotate("one record")
        writer._rotate()
        writer.annotate("the next segment")
    trace = Trace(writer.directory)
    first, second = trace.segments()
    assert second.first_sequence == first.stop_sequence and trace.damages == []
    trailer = int(first.find(Kind.TRAILER)[0])
    assert int(first.records["a"][trailer]) == trailer + first.first_sequence


def test_after_a_keyframe_nothing_refers_to_what_lies_before(tmp_path: Path) -> None:
    """So damage reaches to the next keyframe at most."""
    trace = Trace(record(tmp_path / "run", P3, operations=300, keyframe_every=50).path)
    (segment,) = trace.segments()
    keyframes = segment.find(Kind.KEYFRAME).tolist()
    texts = {int(segment.records["c"][i]): i for i in segment.find(Kind.TEXT).tolist()}
    assert len(keyframes) > 4
    for kind, field in ((Kind.BAND_MOVE, "c"), (Kind.BARRIER, "b"), (Kind.RELEASE, "c")):
        for index in segment.find(kind).tolist():
            number = int(segment.records[field][index])
            last = max((at for at in keyframes if at < index), default=0)
            assert not number or last < texts[number] < index
    same = [i for i in segment.find(Kind.DECODE).tolist() if segment.records["flags"][i] & 1]
    for index in same:
        assert int(segment.records["c"][index]) - 1 > max(at for at in keyframes if at < index)


# --- what is said besides ---------------------------------------------------------------------------


def test_notes_and_violations_come_back(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena) as writer:
        arena.admit(1)
        writer.annotate("überall \ud800 here")
        writer.annotate("")
        writer.violation("NoOverlap", "band full overlaps band mamba")
        arena.release(1, why="done \udc80")
    bodies = [e.body for e in read_events(Trace(writer.directory))]
    notes = [body for body in bodies if isinstance(body, Note)]
    assert notes == [Note("überall \\ud800 here"), Note("")]
    assert Violation("NoOverlap", "band full overlaps band mamba") in bodies
    assert ops.Release(1, "done \\udc80") in bodies


@pytest.mark.parametrize("others", [0, 1, 2])
def test_stacks_begin_with_the_caller_of_the_arena(tmp_path: Path, others: int) -> None:
    """However many observers there are, and whichever way the arena is called."""

    def caller() -> None:
        arena.admit(1)
        arena.apply(ops.Extend(1, 4))
        for _ in range(5):
            arena.decode([1])

    arena = small_arena(P3)
    besides = [Recorder(tmp_path / f"other{i}", arena) for i in range(others)]
    with Recorder(tmp_path / "run", arena, stacks=2) as writer:
        caller()
    for other in reversed(besides):
        other.close()
    stacks = [e.body for e in read_events(Trace(writer.directory)) if isinstance(e.body, Stack)]
    assert len(stacks) == 7
    for stack in stacks:
        assert len(stack.frames) == 2
        file, _, rest = stack.frames[0].rpartition(":")
        assert file == __file__ and rest.endswith(" caller")
        assert stack.frames[1].endswith(" test_stacks_begin_with_the_caller_of_the_arena")
    lines = [int(stack.frames[0].rpartition(":")[2].split()[0]) for stack in stacks]
    assert [line - lines[0] for line in lines] == [0, 1, 3, 3, 3, 3, 3]
    (segment,) = Trace(writer.directory).segments()
    written = [len(segment.payload(i)) > 0 for i in segment.find(Kind.STACK).tolist()]
    assert written == [True, True, True, False, False, False, False]


def test_stacks_are_written_once_per_segment(tmp_path: Path) -> None:
    path = record(
        tmp_path / "run", P3, operations=300, keyframe_every=60, segment_records=512, stacks=3
    ).path
    for segment in Trace(path).segments():
        indexes = segment.find(Kind.STACK).tolist()
        written = [int(segment.records["c"][i]) for i in indexes if segment.payload(i)]
        assert len(written) == len(set(written)) == len(segment.stacks()) > 0


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rank", "name"),
    [
        ("run", None, "run.trace"), ("run.trace", None, "run.trace"), ("run", 3, "run.rank3.trace"),
        ("run.trace", 0, "run.rank0.trace"), ("v1.2", None, "v1.2.trace"),
    ],
)  # fmt: skip
def test_names(tmp_path: Path, given: str, rank: int | None, name: str) -> None:
    path = record(tmp_path / given, P3, operations=5, rank=rank).path
    assert path.name == name and Trace(path).header["rank"] == rank


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "run", P3, operations=5)
    with pytest.raises(TraceError, match="not empty"):
        Recorder(tmp_path / "run", small_arena(P3))
    with pytest.raises(TraceError, match="could not be made"):
        Recorder("/proc/nothing/run", small_arena(P3))


def test_a_later_format_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bandscope.inspect.header.FORMAT_VERSION", 2)
    path = record(tmp_path / "run", P3, operations=5).path
    with pytest.raises(TraceError, match="has format 2"):
        Trace(path)


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=5)
    recorded.recorder.close()
    assert Trace(recorded.path).ending == "clean"
