"""A new golden: never without a reason, whole or not at all, and it says where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandscope.allocator.band import Band
from bandscope.allocator.errors import TraceError
from bandscope.inspect import replay_accept
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import replay
from bandscope.inspect.replay_accept import accept, describe, golden_of
from bandscope.inspect.seals import seal_trace
from tests.allocator.arenas import P3
from tests.inspect_.traces import record


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("sealed", [False, True])
def test_what_this_version_decides_becomes_the_golden(
    tmp_path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(tmp_path / "run", P3, operations=300, keyframe_every=60)
    # A version that takes the holes farthest from the base first.
    plain = Band.lowest_holes
    monkeypatch.setattr(Band, "lowest_holes", lambda band, count: plain(band, count)[::-1])
    if sealed:
        seal_trace(Trace(recorded.path))
    old = Trace(recorded.path)
    asked = [e.body for e in read_events(old) if e.operation == e.sequence]
    assert replay(old).difference is not None

    assert accept(old, "farthest holes first") == recorded.path

    new = Trace(recorded.path)
    report = replay(new)
    assert report.difference is None, str(report.difference)
    assert report.operations == 300 and report.keyframes >= 2
    assert [e.body for e in read_events(new) if e.operation == e.sequence] == asked
    golden = golden_of(new)
    assert golden.reason == "farthest holes first"
    assert golden.origin == golden_of(old).origin
    assert golden.revision == new.header["revision"]
    assert new.header["bands"] == old.header["bands"]
    assert sealed == any(path.suffix == ".zst" for path in recorded.path.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["run.trace"]


def test_no_golden_without_a_reason(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=50)
    before = _files(recorded.path)
    for reason in ("", "  "):
        with pytest.raises(TraceError, match="--reason"):
            accept(Trace(recorded.path), reason)
        with pytest.raises(TraceError, match="--reason"):
            describe(recorded.path, "somewhere", reason)
    assert _files(recorded.path) == before


def test_the_old_golden_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(tmp_path / "run", P3, operations=50)
    before = _files(recorded.path)

    def full(draft: Path, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replay_accept, "_exchange", full)
    with pytest.raises(TraceError, match="No space left"):
        accept(Trace(recorded.path), "because")
    assert _files(recorded.path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.trace"]


def test_two_steps_do_where_folders_cannot_change_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(tmp_path / "run", P3, operations=50)
    monkeypatch.setattr(replay_accept.ctypes, "CDLL", lambda *options, **more: object())
    accept(Trace(recorded.path), "because")

    assert golden_of(Trace(recorded.path)).reason == "because"
    assert [path.name for path in tmp_path.iterdir()] == ["run.trace"]


def test_a_case_says_where_it_comes_from(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=50)
    assert "recorded by" in golden_of(Trace(recorded.path)).origin

    describe(recorded.path, "a synthetic workload", "three bands under pressure")
    golden = golden_of(Trace(recorded.path))
    assert (golden.origin, golden.reason) == ("a synthetic workload", "three bands under pressure")
    assert golden.revision == Trace(recorded.path).header["revision"]
    assert replay(Trace(recorded.path)).difference is None

    accept(Trace(recorded.path), "still right")
    golden = golden_of(Trace(recorded.path))
    assert (golden.origin, golden.reason) == ("a synthetic workload", "still right")
