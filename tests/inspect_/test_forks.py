"""Forks and ranks record to traces of their own, which are read on one time line."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from bandscope.allocator.operations import Operation
from bandscope.inspect import merge as merging
from bandscope.inspect.decode import Note, read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import P3, small_arena
from tests.inspect_.damaging import told
from tests.inspect_.traces import record


def in_a_fork(what: Callable[[], None]) -> int:
    """Do something in a forked child; returns its process number."""
    process = os.fork()
    if not process:
        try:
            what()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert status == 0
    return process


def test_a_fork_records_to_a_trace_of_its_own(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(1)
        before = (recorder.directory / "000000.events").read_bytes()

        def child() -> None:
            arena.extend(1, 8)
            recorder.annotate("in the child")
            recorder.close()

        process = in_a_fork(child)
        assert (recorder.directory / "000000.events").read_bytes() == before
        arena.admit(2)
    parent = Trace(tmp_path / "run.trace")
    forked = Trace(tmp_path / f"run.fork-{process}.trace")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"run.fork-{process}.trace", "run.trace",
    ]  # fmt: skip
    for trace in (parent, forked):
        assert trace.ending == "clean" and trace.damages == []
    assert forked.header["pid"] == process and forked.header["trace_id"] != parent.header["trace_id"]
    operations = [
        [type(e.body).__name__ for e in read_events(trace) if isinstance(e.body, Operation)]
        for trace in (parent, forked)
    ]
    assert operations == [["Admit", "Admit"], ["Extend"]]
    assert any(e.body == Note("in the child") for e in read_events(forked))


def test_a_fork_that_just_ends_was_killed_and_its_parent_was_not(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(1)
        process = in_a_fork(lambda: None)
        assert Trace(tmp_path / f"run.fork-{process}.trace").ending == "killed"
        assert Trace(recorder.directory).ending == "running"
    assert Trace(recorder.directory).ending == "clean"


def test_a_fork_of_a_fork(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena):
        arena.admit(1)

        def child() -> None:
            process = in_a_fork(lambda: arena.admit(3) and None)
            name = f"run.fork-{os.getpid()}.fork-{process}.trace"
            assert len(list(read_events(Trace(tmp_path / name)))) > 3

        in_a_fork(child)
    assert Trace(tmp_path / "run.trace").ending == "clean"


def test_a_fork_that_cannot_record_goes_on(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(1)

        def child() -> None:
            assert recorder.error is not None
            arena.admit(2)
            recorder.close()

        recorder.directory, kept = Path("/proc/nothing/run.trace"), recorder.directory
        in_a_fork(child)
        recorder.directory = kept
        arena.admit(2)
    trace = Trace(tmp_path / "run.trace")
    assert trace.ending == "clean" and trace.damages == []


def test_a_fork_after_recording_had_ended(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=5)
    in_a_fork(lambda: None)
    assert [path.name for path in tmp_path.iterdir()] == ["run.trace"]
    assert Trace(recorded.path).ending == "clean"


def test_traces_are_merged_by_wall_time(tmp_path: Path) -> None:
    """Three ranks that take turns."""
    arenas = [small_arena(P3) for _ in range(3)]
    recorders = [Recorder(tmp_path / "run", arena, rank=i) for i, arena in enumerate(arenas)]
    order = [0, 1, 2, 2, 1, 0, 1, 1, 0, 2] * 5
    for request, rank in enumerate(order):
        arenas[rank].admit(request)
        arenas[rank].release(request)
    for recorder in recorders:
        recorder.close()
    traces = [Trace(tmp_path / f"run.rank{rank}.trace") for rank in range(3)]
    merged = list(merging.merge(traces))
    for index, trace in enumerate(traces):
        own = [told(event) for of, event in merged if of == index]
        assert own == [told(event) for event in read_events(trace)]
    asked = [index for index, event in merged if event.kind == "Admit"]
    assert asked == order
    admits = list(merging.merge(traces, kinds={Kind.ADMIT}))
    assert [index for index, _ in admits] == order
    times = [merging.wall_time(traces[index], event) for index, event in admits]
    assert times == sorted(times)


def test_merging_nothing_and_one(tmp_path: Path) -> None:
    trace = Trace(record(tmp_path / "run", P3, operations=20).path)
    assert list(merging.merge([])) == []
    assert [event.sequence for _, event in merging.merge([trace])] == [
        event.sequence for event in read_events(trace)
    ]
