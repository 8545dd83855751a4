"""Traces of arenas with a prefix cache replay bit for bit, from any slice, on a device that looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bandscope.allocator.operations import Admit, Operation
from bandscope.fuzz.replay_engine import ReplayEngine
from bandscope.inspect.decode import read_events
from bandscope.inspect.exports import export
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import replay as replayed
from bandscope.inspect.replay_time import time_trace
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.rewrite import Row, of_kind, rewrite


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_trace_with_a_cache_does_what_it_did(tmp_path: Path, name: str) -> None:
    for seed in range(2):
        recorded = record_cached(
            tmp_path / f"run{seed}", name, seed=seed, operations=500, keyframe_every=120
        )
        report = replayed(Trace(recorded.path))
        assert report.difference is None, report.difference
        assert report.keyframes > 3 and report.operations == 500


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_slice_begins_with_what_is_cached(tmp_path: Path, name: str) -> None:
    recorded = record_cached(tmp_path / "run", name, seed=3, operations=600, keyframe_every=100)
    trace = Trace(recorded.path)
    third = trace.stop // 3
    export(trace, "slice", tmp_path / "part.trace", start=third, stop=2 * third)
    part = Trace(tmp_path / "part.trace")
    report = replayed(part)
    assert report.difference is None, report.difference
    assert report.operations > 50


@pytest.mark.parametrize("device", ["none", "sim", "cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_work_of_an_engine_breaks_nothing(tmp_path: Path, name: str, device: str) -> None:
    recorded = record_cached(tmp_path / "run", name, seed=4, operations=400)
    report = replayed(Trace(recorded.path), engine=ReplayEngine(device))
    assert report.difference is None, report.difference


@pytest.mark.parametrize("kind", [Kind.SHARE, Kind.EVICTION, Kind.STATE_COPY, Kind.GRAFT])
def test_an_effect_of_the_cache_that_differs_is_found(tmp_path: Path, kind: Kind) -> None:
    recorded = record_cached(tmp_path / "run", "P3", seed=1, operations=900)
    row = of_kind(recorded.path, kind)[-1]

    def change(one: Row) -> list[Row]:
        if one.sequence != row.sequence:
            return [one]
        told = b"\x07" + one.payload[5:] if len(one.payload) > 5 else b""
        return [replace(one, payload=one.payload[:4] + told) if told else replace(one, a=one.a ^ 1)]

    rewrite(recorded.path, tmp_path / "other.trace", change)
    difference = replayed(Trace(tmp_path / "other.trace")).difference
    assert difference is not None and difference.event == row.sequence


def test_times_know_the_operations_of_the_cache(tmp_path: Path) -> None:
    recorded = record_cached(tmp_path / "run", "P3", seed=0, operations=300)
    kinds = {one.kind for one in time_trace(Trace(recorded.path), passes=1).kinds}
    assert {"Admit", "Publish", "Checkpoint", "Evict", "Release"} <= kinds


def test_keys_are_as_long_as_they_were(tmp_path: Path) -> None:
    """Also those whose numbers need 64 bits, and those that a record has no room for."""
    recorded = record_cached(tmp_path / "run", "P2w", operations=1, close=False)
    asked = [
        Admit(7, 1, (1, 2, 3)), Admit(8, 0, (-(1 << 63), (1 << 63) - 1), 5), Admit(9, 1, (), 0),
        Admit(10, 1, (1 << 63,)), Admit(1 << 63, 1, (4,)),
    ]  # fmt: skip
    for operation in asked:
        recorded.arena.apply(operation)
    recorded.recorder.close()
    told = [e.body for e in read_events(Trace(recorded.path)) if isinstance(e.body, Operation)]
    assert told[1:] == asked
