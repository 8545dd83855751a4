"""A trace replays bit for bit, and a changed decision or a changed trace is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import chain
from bandscope.allocator.band import Band
from bandscope.inspect.exports import export
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import replay
from tests.allocator.arenas import LAYOUTS, P3
from tests.inspect_.traces import record


@pytest.mark.parametrize("device", ["none", "cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_trace_replays_bit_for_bit(tmp_path: Path, name: str, device: str) -> None:
    recorded = record(
        tmp_path / "run", LAYOUTS[name], seed=3, operations=400, keyframe_every=60,
        segment_records=600,
    )  # fmt: skip
    report = replay(Trace(recorded.path), device=device)

    assert report.difference is None, str(report.difference)
    assert report.operations == 400
    assert report.keyframes >= 3 and report.effects > 400


@pytest.mark.parametrize("barrier", ["fine", "coarse", "off"])
def test_every_barrier_policy_replays(tmp_path: Path, barrier: str) -> None:
    recorded = record(tmp_path / "run", P3, operations=300, config={"barrier": barrier})
    report = replay(Trace(recorded.path))

    assert report.difference is None, str(report.difference)


def test_a_flipped_decision_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holes nearest the base are no longer taken first."""
    recorded = record(tmp_path / "run", P3, operations=300)
    plain = Band.lowest_holes
    monkeypatch.setattr(Band, "lowest_holes", lambda band, count: plain(band, count)[::-1])
    difference = replay(Trace(recorded.path)).difference

    assert difference is not None and difference.what in ("effect", "digest")
    assert f"event {difference.event:,}" in str(difference)


def test_a_flipped_capacity_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demand that was served is refused."""
    recorded = record(tmp_path / "run", P3, operations=300)

    def tighter(self: Any, held: Any) -> Any:
        tops = packed(self, held)
        return None if tops is not None and tops[-1] > self.total_bytes * 0.7 else tops

    packed = chain.Chain.pack
    monkeypatch.setattr(chain.Chain, "pack", tighter)
    monkeypatch.setattr(chain.Chain, "grant", lambda self, demand: None)
    difference = replay(Trace(recorded.path)).difference

    assert difference is not None


def test_a_replay_can_stop_early(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=300)
    whole = replay(Trace(recorded.path))
    half = replay(Trace(recorded.path), until=whole.stop // 2)

    assert 0 < half.operations < whole.operations


def test_a_slice_replays(tmp_path: Path) -> None:
    """A part of a trace, cut out of its middle, is a program as well."""
    recorded = record(
        tmp_path / "run", P3, operations=400, keyframe_every=60, segment_records=600
    )
    trace = Trace(recorded.path)
    middle = trace.start + (trace.stop - trace.start) // 3
    export(trace, "slice", tmp_path / "part.trace", start=middle, stop=2 * middle)
    report = replay(Trace(tmp_path / "part.trace"))

    assert report.difference is None, str(report.difference)
    assert 50 < report.operations < 400
