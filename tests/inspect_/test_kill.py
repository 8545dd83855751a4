"""A recording process that is killed at any instant leaves a trace that lacks one record at most."""

from __future__ import annotations

import mmap
import os
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import recorder as recorder_module
from bandscope.inspect import segment as segment_module
from bandscope.inspect.decode import read_events
from bandscope.inspect.format import RECORD
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.segment import SegmentWriter
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, RandomEngine, small_arena
from tests.inspect_.traces import Told

MEMORY = Path("/dev/shm")
OPERATIONS = 400
RING = {"ring_bytes": 1 << 17}
SMALL = {"keyframe_every": 60, "segment_records": 512, "segment_pages_bytes": 1 << 16}


class Progress:
    """What a child has told so far, in memory that outlives it: the sequence of the next record."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def sequence(self) -> int:
        return int.from_bytes(self.memory[:8], "little")

    @sequence.setter
    def sequence(self, value: int) -> None:
        self.memory[:8] = value.to_bytes(8, "little")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_record(rng: random.Random, count: int) -> None:
    """Die when some bytes of a record are written, not all."""
    write, left, part = RECORD.pack_into, [count], rng.randrange(RECORD.size + 1)

    def pack_into(buffer: Any, offset: int, *values: int) -> None:
        left[0] -= 1
        if not left[0]:
            whole = RECORD.pack(*values)
            # Its number comes last, so that far everything was zero.
            buffer[offset : offset + part] = whole[:part]
            die()
        write(buffer, offset, *values)

    segment_module._pack_into = pack_into


def before_a_record(rng: random.Random, count: int) -> None:
    """Die after a payload, before its record."""
    write, left = SegmentWriter.payload, [max(1, count // 3)]

    def payload(self: SegmentWriter, data: bytes) -> int:
        length = write(self, data)
        left[0] -= 1
        if not left[0]:
            die()
        return length

    SegmentWriter.payload = payload  # type: ignore[method-assign]


def at_a_call(rng: random.Random, count: int) -> None:
    """Die at a call of the system that makes, cuts or removes files."""
    left = [rng.randrange(1, 12)]
    for name in ("posix_fallocate", "ftruncate", "open", "close", "unlink"):
        real = getattr(os, name)

        def call(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                die()
            return real(*arguments, **named)

        setattr(os, name, call)


def from_outside(rng: random.Random, count: int) -> None:
    """Nothing here: the parent kills when the child has told `count` records."""


WAYS = [in_a_record, before_a_record, at_a_call, from_outside]


def tell(recorder: Recorder, progress: Progress) -> None:
    """Tell the sequence after every record."""
    put = SegmentWriter.put

    def told(self: SegmentWriter, *fields: int) -> None:
        put(self, *fields)
        progress.sequence = self.sequence

    SegmentWriter.put = told  # type: ignore[method-assign]
    recorder.append = recorder._segment.put


def child(path: Path, seed: int, options: dict[str, Any], progress: Progress, way: Any) -> None:
    """Record random operations for ever, or until something happens."""
    rng = random.Random(seed)
    arena = small_arena(P3)
    recorder_module.RING_BYTES_MIN = 0
    recorder = Recorder(path, arena, **options)
    tell(recorder, progress)
    way(rng, rng.randrange(5, 1500))
    recorder.append, recorder.payload = recorder._segment.put, recorder._segment.payload
    run(arena, seed)
    die()


def run(arena: Any, seed: int) -> None:
    engine = RandomEngine(random.Random(seed))
    for _ in range(OPERATIONS):
        operation = engine.choose(arena)
        engine.note(operation, arena.apply(operation))


def killed(path: Path, seed: int, options: dict[str, Any], way: Any) -> int:
    """Have a child record and be killed; returns the sequence that it had told."""
    progress = Progress()
    process = os.fork()
    if not process:
        try:
            child(path, seed, options, progress, way)
        except BaseException:  # it must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(1)
    if way is from_outside:
        goal = random.Random(seed).randrange(20, 1500)
        while progress.sequence < goal and os.waitpid(process, os.WNOHANG) == (0, 0):
            pass
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return progress.sequence
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the child failed before it was killed"
    return progress.sequence


def expected(seed: int) -> list[Any]:
    """What such a child tries, and what becomes of it."""
    observer = Told()
    run(small_arena(P3, observer=observer), seed)
    return [plain(body) for _, body in observer.told]


def plain(body: Any) -> Any:
    """As a trace keeps it: without the detail of an outcome, which its effects tell."""
    if isinstance(body, Outcome):
        return body.ok, body.value, body.reason, body.message
    return body


def check(path: Path, seed: int, told: int) -> None:
    trace = Trace(path)
    assert trace.ending == "killed"
    assert trace.damages == []
    assert trace.lost == trace.start  # what a ring overwrote
    assert told <= trace.stop <= told + 3, "more than the record being written is lost"
    bodies = [plain(e.body) for e in read_events(trace) if isinstance(e.body, Operation | Outcome)]
    if trace.start == 0:
        assert bodies == expected(seed)[: len(bodies)]
    timeline = Timeline(trace)
    timeline.advance(trace.stop)
    assert timeline.gaps == [] and timeline.damages == []


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("instant", range(3))
def test_a_killed_recorder(folder: Path, way: Any, instant: int) -> None:
    told = killed(folder / "run", instant, SMALL, way)
    check(folder / "run.trace", instant, told)


@pytest.mark.slow
@pytest.mark.parametrize("options", [SMALL, {**SMALL, **RING}], ids=["all", "ring"])
@pytest.mark.parametrize("way", WAYS)
def test_a_recorder_killed_at_a_hundred_instants(folder: Path, way: Any, options: Any) -> None:
    for instant in range(100, 200):
        path = folder / f"run{instant}"
        told = killed(path, instant, options, way)
        check(path.with_name(path.name + ".trace"), instant, told)


@pytest.mark.parametrize("written", range(32))
def test_half_a_record_is_none(folder: Path, written: int) -> None:
    """Even where the first byte of its number, which comes last, is there."""
    recorder = Recorder(folder / "run", small_arena(P3))
    while recorder._segment.number < 300:
        recorder.annotate("one record")
    at = recorder._segment.offset
    whole = RECORD.pack(1, 0, 0, 0, 0, 0, 0, 300)
    assert whole[28:] == b"\x2c\x01\0\0"
    recorder._segment.events[at : at + min(written, 29)] = whole[: min(written, 29)]
    trace = Trace(recorder.directory)
    assert trace.stop == recorder.sequence == 299 and trace.damages == []
    recorder.close()
