"""A trace that is followed shows what one that is opened anew shows, whatever happens to its files."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.inspect.following import FollowedTrace, GrowingSegment
from bandscope.inspect.format import RECORD_BYTES, RECORDS_START
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import P3, P5, RandomEngine
from tests.inspect_.test_bulk import same
from tests.inspect_.traces import Recorded, record


def alike(followed: FollowedTrace, path: Path) -> None:
    """Both show the same records, and know the same of them."""
    fresh = Trace(path)
    assert followed.heads == fresh.heads
    assert (followed.start, followed.stop, followed.ending) == (
        fresh.start, fresh.stop, fresh.ending,
    )  # fmt: skip
    for number, _, _ in fresh.heads[-2:]:
        mine, theirs = followed.segment(number), fresh.segment(number)
        assert np.array_equal(mine.records, theirs.records)
        assert np.array_equal(mine.good, theirs.good)
        assert np.array_equal(mine.starts[mine.good], theirs.starts[theirs.good])
        assert (mine.cut, mine.unchecked, mine.ending) == (
            theirs.cut, theirs.unchecked, theirs.ending,
        )  # fmt: skip
        for index in np.flatnonzero(mine.good)[-5:].tolist():
            assert mine.payload(index) == theirs.payload(index)
        for text in range(8):
            assert mine.text(text) == theirs.text(text)
    assert [str(found) for found in followed.damages] == [str(found) for found in fresh.damages]


class Writer:
    """Goes on with a recorded run."""

    def __init__(self, run: Recorded, seed: int) -> None:
        self.run, self.engine = run, RandomEngine(random.Random(seed))

    def write(self, operations: int) -> None:
        """Apply some operations."""
        for _ in range(operations):
            operation = self.engine.choose(self.run.arena)
            self.engine.note(operation, self.run.arena.apply(operation))


@pytest.mark.parametrize("layout", [P3, P5])
@pytest.mark.parametrize("options", [
    {}, {"keyframe_every": 60, "segment_records": 512}, {"ring_bytes": 1 << 20},
])  # fmt: skip
def test_what_is_followed_is_what_is_there(
    tmp_path: Path, layout: Any, options: dict[str, Any]
) -> None:
    run = record(tmp_path / "run", layout, operations=3, close=False, **options)
    followed = FollowedTrace(run.path)
    writer, draw = Writer(run, 7), random.Random(1)
    for _ in range(16):
        writer.write(draw.choice((0, 1, 5, 30, 90)))
        before = followed.stop
        assert followed.refresh() == followed.stop - before
        alike(followed, run.path)
    run.recorder.close()
    followed.refresh()
    assert followed.ending == "clean"
    alike(followed, run.path)


def test_growth_is_taken_in_and_nothing_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "run", P5, operations=50, close=False)
    followed = FollowedTrace(run.path)
    opened = []
    monkeypatch.setattr(
        SegmentReader, "_find_records", lambda self: opened.append(self.segment)
    )
    segment = followed.segment(0)
    writer = Writer(run, 3)
    for _ in range(20):
        writer.write(20)
        followed.refresh()
        assert followed.segment(0) is segment and followed.stop == run.recorder.sequence
    assert not opened
    run.recorder.close()


def test_a_state_on_top_of_it(tmp_path: Path) -> None:
    run = record(
        tmp_path / "run", P5, operations=5, close=False, keyframe_every=70, segment_records=512
    )
    followed = FollowedTrace(run.path)
    timeline, writer = Timeline(followed), Writer(run, 3)
    for _ in range(30):
        writer.write(15)
        followed.refresh()
        timeline.advance(followed.stop)
    same(timeline.state, Timeline(Trace(run.path)).advance(followed.stop))
    run.recorder.close()


def test_a_record_that_is_being_written_waits(tmp_path: Path) -> None:
    """Its number comes last; until then it is not there."""
    run = record(tmp_path / "run", P3, operations=60, close=False)
    copy = tmp_path / "copy.trace"
    shutil.copytree(run.path, copy)
    whole = len(Trace(run.path).segment(0).records)
    path = copy / "000000.events"
    data = path.read_bytes()

    def cut(records: int, part: int) -> None:
        end = RECORDS_START + records * RECORD_BYTES + part
        path.write_bytes(data[:end] + bytes(len(data) - end))

    cut(whole - 40, 0)
    followed = FollowedTrace(copy)
    for count in range(whole - 39, whole, 5):
        cut(count, 20)
        followed.refresh()
        assert followed.stop == count
    path.write_bytes(data)
    followed.refresh()
    assert followed.stop == whole
    run.recorder.close()


def _tamper(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 0xFF]))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("what", ["record", "payload", "cut", "cut between", "gone", "zeroed"])
def test_damage_that_happens_while_it_is_followed(
    tmp_path: Path, what: str, ended: bool
) -> None:
    run = record(tmp_path / "run", P5, operations=200, close=False)
    copy = tmp_path / "copy.trace"
    shutil.copytree(run.path, copy)
    followed = FollowedTrace(copy)
    followed.refresh()
    known = followed.stop
    assert isinstance(followed.segment(0), GrowingSegment)
    while known % 256 < 100:  # so that the checksums before cover nothing of what comes
        Writer(run, 5).write(1)
        known = run.recorder.sequence
    Writer(run, 9).write(40 if ended else 300)
    if ended:
        run.recorder.close()
    events, pages = copy / "000000.events", copy / "000000.pages"
    shutil.copy(run.path / events.name, events)
    shutil.copy(run.path / pages.name, pages)
    at = RECORDS_START + (known + (2 if ended else 300)) * RECORD_BYTES
    match what:
        case "record":
            _tamper(events, at + 9)
        case "payload":
            fresh = Trace(run.path).segment(0)
            index = int(np.flatnonzero(fresh.records["length"])[-2])
            _tamper(pages, int(fresh.starts[index]))
        case "cut":
            os.truncate(events, at + 7)
        case "cut between":
            os.truncate(events, at)
        case "gone":
            events.unlink()
        case "zeroed":
            with open(events, "r+b") as file:
                file.seek(at)
                file.write(bytes(RECORD_BYTES))
    for _ in range(2):
        followed.refresh()
        alike(followed, copy)
    if not ended:
        run.recorder.close()
