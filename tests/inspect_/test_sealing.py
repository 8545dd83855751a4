"""Sealed traces read like the ones they were made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bandscope.inspect.decode import read_events
from bandscope.inspect.format import RECORDS_START
from bandscope.inspect.reader import Trace
from bandscope.inspect.sealing import _columns, _rows, _unseal, read_start, seal_file
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS, P3
from tests.inspect_.damaging import told
from tests.inspect_.traces import record


def seal(path: Path) -> tuple[int, int]:
    """Seal every segment; bytes before and after."""
    sizes = [seal_file(file) for file in sorted(path.glob("[0-9]*.*"))]
    return sum(before for before, _ in sizes), sum(after for _, after in sizes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sealed_trace_reads_the_same(tmp_path: Path, name: str) -> None:
    plain = record(
        tmp_path / "run", LAYOUTS[name], operations=250, keyframe_every=100, segment_records=600
    ).path
    sealed = tmp_path / "sealed.trace"
    shutil.copytree(plain, sealed)
    before, after = seal(sealed)
    assert after < before / 2
    assert not list(sealed.glob("*.events")) and not list(sealed.glob("*.pages"))
    one, other = Trace(plain), Trace(sealed)
    assert other.damages == [] and other.ending == "clean"
    assert (one.start, one.stop, one.lost) == (other.start, other.stop, other.lost)
    assert [told(e) for e in read_events(one)] == [told(e) for e in read_events(other)]
    for part in range(1, 8):
        at = one.stop * part // 8
        a, b = Timeline(one).seek(at), Timeline(other).seek(at)
        for mine, theirs in zip(a.bands, b.bands, strict=True):
            assert np.array_equal(mine.state, theirs.state)
            assert np.array_equal(mine.virtual, theirs.virtual)


def test_the_bytes_come_back_exactly(tmp_path: Path) -> None:
    path = record(tmp_path / "run", P3, operations=60).path
    for file in sorted(path.glob("[0-9]*.*")):
        data = file.read_bytes()
        before, after = seal_file(file)
        sealed = file.with_name(file.name + ".zst")
        packed = sealed.read_bytes()
        assert (before, after) == (len(data), len(packed)) and not file.exists()
        assert _unseal(packed) == data
        assert read_start(file) == data[:64]


@pytest.mark.parametrize("extra", [0, 1, 31])
@pytest.mark.parametrize("records", [0, 1, 2, 700])
def test_columns_and_rows_are_inverse(records: int, extra: int) -> None:
    data = np.random.default_rng(records).bytes(RECORDS_START + 32 * records + extra)
    assert _rows(_columns(data)) == data


def test_a_segment_left_by_a_killed_process_can_be_sealed(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=60, close=False)
    recorded.recorder._segment.events.flush()
    stop = Trace(recorded.path).stop
    copy = tmp_path / "copy.trace"
    shutil.copytree(recorded.path, copy)
    seal(copy)
    assert Trace(copy).stop == stop and Trace(copy).damages == []
    recorded.recorder.close()


def test_the_original_is_preferred_where_both_are_there(tmp_path: Path) -> None:
    """As a seal that was killed at the last moment leaves it."""
    path = record(tmp_path / "run", P3, operations=60).path
    copy = (path / "000000.events").read_bytes()
    seal_file(path / "000000.events")
    (path / "000000.events").write_bytes(copy)
    assert Trace(path).damages == [] and Trace(path).ending == "clean"


def test_what_is_no_sealed_file_is_named(tmp_path: Path) -> None:
    path = record(tmp_path / "run", P3, operations=60).path
    seal_file(path / "000000.pages")
    (path / "000000.pages.zst").write_bytes(b"something else")
    damages = Trace(path).damages
    assert any(damage.file == "000000.pages.zst" for damage in damages)
    with pytest.raises(ValueError, match="head"):
        _unseal(b"x" * 100)
