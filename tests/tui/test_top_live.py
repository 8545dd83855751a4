"""The reading side of the live screen on traces that grow, were killed, cut or damaged."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.inspect import registry
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.tui.top.history import History
from bandscope.tui.top.snapshot import Snapshot
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P3, P5, RandomEngine
from tests.inspect_.traces import Recorded, record
from tests.tui.test_top_source import VIEW, agree, told


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("top") / "run", P5, seed=4, operations=250, keyframe_every=200
    )


def test_a_live_trace_is_followed_and_paused(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = [int(Trace(run.path).header["wall_ns"])]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    first = told(source)
    assert first.live and first.ending == "running" and first.newer == 0

    def more(count: int) -> None:
        for request in range(count):
            run.arena.apply(ops.Admit(1000 + run.recorder.sequence + request))

    more(5)
    second = told(source)
    assert second.position == second.stop == run.recorder.sequence > first.position
    agree(source, run.path)

    source.ask("pause")
    paused = told(source)
    more(7)
    third = told(source)
    assert third.position == paused.position and not third.live
    assert third.newer == run.recorder.sequence - paused.position > 0

    source.ask("live")
    assert told(source).position == run.recorder.sequence
    run.recorder.close()
    ended = told(source)
    assert ended.ending == "clean" and ended.position == ended.stop
    assert source.tick() is None


def test_a_ring_that_overwrites_what_is_shown(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False, ring_bytes=1 << 20)
    source = TraceSource(run.path)
    source.ask("view", VIEW)
    source.ask("go", 100)
    before = told(source)
    engine = RandomEngine(random.Random(5))
    while Trace(run.path).start <= 5_000:
        for _ in range(1_000):
            operation = engine.choose(run.arena)
            engine.note(operation, run.arena.apply(operation))

    after = told(source)
    assert after.position == before.position == 100 and after.map == before.map
    assert [band.held for band in after.bands] == [band.held for band in before.bands]
    assert after.start > 5_000
    source.ask("step", ("event", False))
    assert told(source).message
    source.ask("step", ("event", True))
    assert told(source).position >= after.start
    source.ask("go", 0)
    agree(source, run.path)
    source.ask("live")
    assert told(source).position == run.recorder.sequence
    run.recorder.close()


def test_history_follows_a_trace_over_its_segments(tmp_path: Path) -> None:
    small = {"keyframe_every": 60, "segment_records": 512}
    run = record(tmp_path / "run", P5, operations=20, close=False, **small)
    source = TraceSource(run.path)
    engine = RandomEngine(random.Random(5))
    for _ in range(40):
        for _ in range(17):
            operation = engine.choose(run.arena)
            engine.note(operation, run.arena.apply(operation))
        told(source)
        past = source.history.before(source.position)
        fresh = History(Trace(run.path)).before(source.position)
        for kind in (Kind.BAND_MOVE, Kind.PAGE_MOVE, Kind.LAUNCHED, Kind.OUTCOME):
            assert np.array_equal(past.of(kind).sequences, fresh.of(kind).sequences)
            assert np.array_equal(past.of(kind).times, fresh.of(kind).times)
    assert len(list(run.path.glob("*.events"))) > 4
    run.recorder.close()


def test_nothing_new_makes_no_snapshot(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    start = int(Trace(run.path).header["wall_ns"])
    wall = [start]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    while source.busy:
        source.tick()
    wall[0] += 60 * 10**9
    source.tick()
    assert source.tick() is None
    run.recorder.close()


def test_rates_fall_while_a_live_trace_rests(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P5, seed=4, operations=250, close=False)
    start = int(Trace(run.path).header["wall_ns"])
    wall = [start]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    source.ask("view", replace(VIEW, window_ns=10**10))
    assert any(band.moves_per_second for band in told(source).bands)
    wall[0] += 3 * 10**9
    later = told(source)
    assert not any(band.moves_per_second for band in later.bands)
    run.recorder.close()


def test_a_killed_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    monkeypatch.setattr(registry, "is_running", lambda header: False)
    source = TraceSource(run.path)
    snapshot = told(source)
    assert snapshot.ending == "killed" and snapshot.position == run.recorder.sequence
    agree(source, run.path)
    source.ask("step", ("operation", False))
    agree(source, run.path)
    run.recorder.close()


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9])
def test_a_cut_trace(recorded: Recorded, tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cut.trace"
    shutil.copytree(recorded.path, path)
    events = path / "000000.events"
    os.truncate(events, int(events.stat().st_size * keep) // 32 * 32 + 7)
    source = TraceSource(path)
    snapshot = settled(source)

    assert snapshot.ending == "truncated" and snapshot.damages
    for what in ("event", "operation", "ticket"):
        source.ask("step", (what, False))
        assert told(source).position < snapshot.position


def settled(source: TraceSource) -> Snapshot:
    """After all was looked at for damage."""
    snapshot = told(source)
    while source.busy:
        snapshot = source.tick() or snapshot
    return snapshot


def test_a_damaged_part_is_named_and_not_trusted(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    shutil.copytree(recorded.path, path)
    events = path / "000000.events"
    data = bytearray(events.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(value ^ 0xFF for value in data[middle : middle + 40])
    events.write_bytes(data)
    source = TraceSource(path)
    snapshot = settled(source)
    assert snapshot.damages and snapshot.trusted
    source.ask("go", (middle - 64) // 32 + 20)
    assert not told(source).trusted
    for _ in range(30):
        source.ask("step", ("event", True))
        told(source)


def test_nothing_in_the_folder_changes(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "kept.trace"
    shutil.copytree(recorded.path, path)

    def look() -> dict[str, Any]:
        found: dict[str, Any] = {"folder": path.stat().st_mtime_ns}
        for entry in path.iterdir():
            about = entry.stat()
            found[entry.name] = entry.read_bytes(), about.st_mtime_ns, about.st_ino
        return found

    before = look()
    source = TraceSource(path)
    questions: list[tuple[str, Any]] = [
        ("view", VIEW), ("step", ("event", False)), ("jump", "500"), ("search", "Decode"),
        ("again", True), ("filter", "band=full"), ("bookmark", None), ("check", None), ("zoom", 1),
        ("move", 3), ("page", 1), ("band", 1), ("point", 20), ("row", -2), ("live", None),
        ("pause", None),
    ]  # fmt: skip
    for what, value in questions:
        source.ask(what, value)
        told(source)
    while source.busy:
        source.tick()
    assert look() == before


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace"):
        TraceSource(tmp_path / "nothing")
