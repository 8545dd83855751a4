"""A disk without room ends the recording with one sentence; the arena and what was written stay."""

from __future__ import annotations

import errno
import os
import random
import resource
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect.decode import Lost, read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.segment import SegmentWriter
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, RandomEngine, small_arena

OPERATIONS = 300
# What needs room while it is recorded.
NEEDS: dict[str, dict[str, Any]] = {
    "events": {"keyframe_every": 10**9, "segment_records": 512},
    "pages": {"keyframe_every": 10**9, "segment_records": 10**5, "segment_pages_bytes": 4096},
    "segments": {"keyframe_every": 60, "segment_records": 512},
}


class Disk:
    """Counts what is set aside, and refuses from some call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
        self.calls = 0
        real = os.posix_fallocate

        def posix_fallocate(file: int, offset: int, length: int) -> None:
            self.calls += 1
            if self.calls > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(file, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)


def run(arena: Arena, operations: int = OPERATIONS) -> list[Any]:
    """Random operations, always the same ones; what was asked and what became of it."""
    engine = RandomEngine(random.Random(7))
    told: list[Any] = []
    for _ in range(operations):
        operation = engine.choose(arena)
        outcome = arena.apply(operation)
        engine.note(operation, outcome)
        told += [operation, (outcome.ok, outcome.value, outcome.message)]
    return told


def bodies(trace: Trace) -> list[Any]:
    return [
        (e.body.ok, e.body.value, e.body.message) if isinstance(e.body, Outcome) else e.body
        for e in read_events(trace)
        if isinstance(e.body, Operation | Outcome)
    ]


def check(path: Path, told: list[Any], *, ending: str = "disk full") -> Trace:
    trace = Trace(path)
    assert trace.ending == ending and trace.damages == []
    found = bodies(trace)
    assert found == told[: len(found)]
    timeline = Timeline(trace)
    timeline.advance(trace.stop)
    assert timeline.gaps == [] and timeline.damages == []
    return trace


@pytest.mark.parametrize("need", NEEDS)
def test_the_recording_stops_and_the_arena_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], need: str
) -> None:
    """At whichever call the disk has no more."""
    alone = small_arena(P3)
    told = run(alone)
    for after in range(2, 30):
        with monkeypatch.context() as patch:
            disk = Disk(patch, after=after)
            written = count_records(patch)
            arena = small_arena(P3)
            recorder = Recorder(tmp_path / f"run{after}", arena, **NEEDS[need])
            assert run(arena) == told and arena.digest() == alone.digest()
            failed = recorder.error is not None
            recorder.close()
            assert arena.books.observer is None
        said = capsys.readouterr().err
        if disk.calls <= after:
            assert not failed and said == ""
            check(recorder.directory, told, ending="clean")
            assert after > 2
            return
        assert failed and said.count("\n") == 1 and "No space left" in said
        check_lost(check(recorder.directory, told), written)
    raise AssertionError("the disk was never large enough")


def count_records(patch: pytest.MonkeyPatch) -> list[int]:
    """Kinds of all records that are given to a segment."""
    written: list[int] = []
    put = SegmentWriter.put

    def counting(self: SegmentWriter, kind: int, *fields: int) -> None:
        written.append(int(kind))
        put(self, kind, *fields)

    patch.setattr(SegmentWriter, "put", counting)
    return written


def check_lost(trace: Trace, written: list[int]) -> None:
    """What the trace lacks of what was given to it is what it says was lost, checksums included."""
    kinds = np.concatenate([segment.records["kind"] for segment in trace.segments()])
    lacking = len(written) - int((kinds != Kind.CHECK).sum())
    assert lacking <= trace.lost <= lacking + lacking // 255 + 1
    if trace.lost:
        assert [e.body for e in read_events(trace)][-2] == Lost(trace.lost)


def test_without_any_room_the_recorder_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in (0, 1):
        with monkeypatch.context() as patch:
            Disk(patch, after=after)
            arena = small_arena(P3)
            with pytest.raises(TraceError, match="free space"):
                Recorder(tmp_path / "run", arena)
        assert arena.books.observer is None
        assert not (tmp_path / "run.trace").exists()
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena):
        run(arena, 5)
    assert Trace(tmp_path / "run.trace").ending == "clean"


def test_a_note_at_the_very_end_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Disk(monkeypatch, after=2)
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena, segment_pages_bytes=1 << 16) as recorder:
        told = run(arena, 20)
        recorder.annotate("x" * 100_000)
    assert capsys.readouterr().err.count("\n") == 1
    assert check(recorder.directory, told).lost == 1


@pytest.mark.parametrize("limit_kib", [48, 64, 80, 100, 200])
def test_a_limit_of_the_system_is_met_in_earnest(tmp_path: Path, limit_kib: int) -> None:
    """`RLIMIT_FSIZE` in a child process."""
    process = os.fork()
    if not process:
        try:
            os.close(2)  # its one sentence is not this test's
            arena = small_arena(P3)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_kib << 10, limit_kib << 10))
            with Recorder(
                tmp_path / "run", arena, keyframe_every=10**9, segment_records=512,
                segment_pages_bytes=40 << 10,
            ) as recorder:  # fmt: skip
                run(arena, 2000)
            os._exit(0 if recorder.error is not None else 3)
        except BaseException:
            (tmp_path / "error").write_text(traceback.format_exc())
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (tmp_path / "error").read_text()
    assert check(tmp_path / "run.trace", run(small_arena(P3), 2000)).lost > 0


def test_a_payload_may_be_larger_than_the_pages_file(tmp_path: Path) -> None:
    arena = small_arena(P3)
    pages = np.random.default_rng(1).permutation(200_000)
    with Recorder(tmp_path / "run", arena, segment_pages_bytes=4096) as recorder:
        recorder.reclaim("full", pages)
        recorder.annotate("after")
    trace = Trace(recorder.directory)
    found = [e.body for e in read_events(trace)]
    assert any(np.array_equal(getattr(body, "pages", ()), pages) for body in found)
    assert trace.ending == "clean" and trace.damages == []
