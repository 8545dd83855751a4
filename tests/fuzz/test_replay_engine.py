"""Replay on devices that work: order and content of what a trace's forwards touch, and time."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bandscope.allocator.errors import DeviceError, TraceError
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.replay_engine import ReplayEngine, accesses, open_engine, open_timed
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.replay import replay
from bandscope.inspect.replay_time import ratio, read_times, time_trace
from tests.allocator.arenas import LAYOUTS, P3, RandomEngine, small_arena
from tests.fuzz import simulated_runs
from tests.inspect_.traces import record


@pytest.mark.parametrize("device", ["none", "sim", "cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_trace_replays_with_its_forwards_on_every_device(
    tmp_path: Path, name: str, device: str
) -> None:
    recorded = record(tmp_path / "run", LAYOUTS[name], seed=5, operations=250, keyframe_every=60)
    report = replay(Trace(recorded.path), engine=ReplayEngine(device))

    assert report.difference is None, str(report.difference)
    assert report.operations == 250


@pytest.mark.parametrize("schedule", ["eager", "latest", "random:3", "random:9"])
def test_every_schedule_gives_the_same_digests(tmp_path: Path, schedule: str) -> None:
    recorded = record(tmp_path / "run", P3, seed=2, operations=300, keyframe_every=60)
    report = replay(Trace(recorded.path), engine=ReplayEngine("sim", schedule))

    assert report.difference is None, str(report.difference)
    assert report.keyframes >= 2


# Faults that leave books and effects as they were: nothing but the order, or the bytes, is wrong.
UNSEEN_BY_BOOKS = {
    "no-barrier-before-reuse": ("sim", "happens_before"),
    "fine-barrier-asks-nothing": ("sim", "happens_before"),
    "copies-run-backwards": ("sim", "content"),
    "move-without-a-copy": ("cpu", "content"),
    "virtual-ids-copied-as-pages": ("cpu", "content"),
    "nothing-is-zeroed": ("sim", "content"),
}


@pytest.mark.parametrize("name", UNSEEN_BY_BOOKS)
def test_what_the_books_cannot_see_the_device_does(tmp_path: Path, name: str) -> None:
    device, invariant = UNSEEN_BY_BOOKS[name]
    recorded = record(tmp_path / "run", P3, seed=2, operations=600)
    trace = Trace(recorded.path)
    with FAULTS[name].plant():
        books = replay(trace)
        found = replay(trace, engine=ReplayEngine(device)).difference

    assert books.difference is None
    assert found is not None and found.what == "check"
    assert found.got.startswith(invariant)
    assert found.expected == "nothing broken"


def test_work_that_is_done_after_the_last_operation_is_looked_at(tmp_path: Path) -> None:
    """The last forward reads a page that moved without its bytes, and nobody waits for it."""
    arena = small_arena(P3, page_size=1, compact_hole_share=0.0)
    with Recorder(tmp_path / "run", arena):
        for request in range(4):
            arena.admit(request)
            arena.extend(request, 2)
        arena.complete(arena.launch(range(4)))
        arena.release(0)
        assert arena.compact(urgent=True)
        arena.launch([1, 2, 3])
    trace = Trace(tmp_path / "run.trace")
    assert replay(trace, engine=ReplayEngine("sim", "latest")).difference is None
    with FAULTS["move-without-a-copy"].plant():
        difference = replay(trace, engine=ReplayEngine("sim", "latest")).difference
    assert difference is not None and difference.got.startswith("content")
    assert (difference.operation, difference.event) == ("(the end)", trace.stop)


def test_forwards_that_nobody_waits_for_are_over_at_the_end(tmp_path: Path) -> None:
    """A GPU tells what it found only then."""
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena):
        arena.admit(0)
        arena.complete(arena.launch([0]))
        arena.launch([0])
        arena.launch([0])
    engine = ReplayEngine("cpu")
    waited: list[int] = []
    finish = engine.device.finish
    engine.device.finish = lambda ticket: (waited.append(ticket), finish(ticket))[1]  # type: ignore[method-assign]
    assert replay(Trace(tmp_path / "run.trace"), engine=engine).difference is None
    assert waited == [1, 2, 3]


def test_a_run_without_barriers_is_told_to_be_wrong(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=300, config={"barrier": "off"})
    difference = replay(Trace(recorded.path), engine=ReplayEngine("sim")).difference

    assert difference is not None and "happens_before" in difference.got


def test_a_slice_begins_with_pages_that_nobody_wrote_here(tmp_path: Path) -> None:
    from bandscope.inspect.exports import export

    recorded = record(
        tmp_path / "run", P3, operations=400, keyframe_every=60, segment_records=600
    )
    trace = Trace(recorded.path)
    middle = trace.start + (trace.stop - trace.start) // 2
    export(trace, "slice", tmp_path / "part.trace", start=middle, stop=trace.stop)
    for device in ("sim", "cpu"):
        part = Trace(tmp_path / "part.trace")
        report = replay(part, engine=open_engine(part, device))
        assert report.difference is None, str(report.difference)
        assert report.operations > 50


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_forward_touches_is_what_each_request_holds(name: str) -> None:
    """Against the same, asked request by request."""
    arena = small_arena(LAYOUTS[name])
    engine = RandomEngine(random.Random(8))
    looked = 0
    for _ in range(300):
        engine.step(arena)
        some = tuple(engine.running)
        one, other = accesses(arena, some), simulated_runs.accesses(arena, some)
        assert one.keys() == other.keys()
        for band in one:
            for mine, theirs in zip(one[band], other[band], strict=True):
                assert sorted(mine.tolist()) == sorted(theirs.tolist())
        looked += bool(some)
    assert looked > 100


def test_a_simulated_device_that_would_be_too_large_is_refused(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=20)
    trace = Trace(recorded.path)
    trace.header["arena"]["total_bytes"] = 1 << 50
    with pytest.raises(DeviceError, match="use --device none"):
        open_engine(trace, "sim")


# --- time -------------------------------------------------------------------------------------------


def test_times_count_every_operation(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=200)
    trace = Trace(recorded.path)
    for device in ("none", "sim"):
        report = time_trace(trace, passes=2, device=lambda device=device: open_timed(device))  # type: ignore[misc]

        assert report.device == device
        assert report.operations == 200
        assert sum(kind.count for kind in report.kinds) == 2 * 200
        assert len(report.rates) == 2 and min(report.rates) > 0
        assert min(report.rates) <= report.rate <= max(report.rates)
        for kind in report.kinds:
            assert list(kind.latency_us) == sorted(kind.latency_us)


def test_times_are_read_back_and_compared(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=100)
    report = time_trace(Trace(recorded.path), passes=2)
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"times": [report.to_json()]}), encoding="utf-8")

    assert read_times(file) == [report]
    found = ratio(report, read_times(file)[0])
    assert found.median == 1.0
    assert found.low <= 1.0 <= found.high


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"times": [{}]}', '{"times": 3}'])
def test_files_that_hold_no_times_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match="holds no times"):
        read_times(tmp_path / "other.json")
