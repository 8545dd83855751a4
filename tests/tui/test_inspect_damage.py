"""`bandscope inspect` on damaged, cut and killed traces: no command ever raises, damage is named."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from bandscope.inspect import registry
from bandscope.inspect.sealing import seal_file
from tests.allocator.arenas import P3
from tests.inspect_.traces import record
from tests.tui.inspecting import (
    READERS,
    Inspect,
    damage,
    events_file,
    record_p5,
)

TINY = {"keyframe_every": 256, "segment_records": 1024, "segment_pages_bytes": 1 << 16}


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A trace with a damaged block in its middle, and a keyframe after it."""
    path = record_p5(tmp_path, operations=500, keyframe_every=256)
    damage(path)
    return path


def every_command(inspect: Inspect, trace: Path) -> None:
    """All that read a trace, as text or JSON by turns; a defect of Bandscope would be status 70."""
    for number, (command, rest) in enumerate(READERS.items()):
        ended = inspect(command, trace, *rest, *(["--json"] if number % 2 else []))
        assert ended.status in (0, 1, 2), (command, ended)
        assert ended.status != 2 or ended.err.count("\n") == 1
        assert "Traceback" not in ended.err


def test_damage_is_named_and_the_rest_is_read(inspect: Inspect, damaged: Path) -> None:
    """Byte offsets in the summary; the events on both sides of the gap, and the gap between them."""
    every_command(inspect, damaged)
    told = inspect("summary", damaged, "--json").data
    (found,) = told["damages"]
    assert found["file"] == "000000.events"
    assert found["start"] <= 64 + 32 * 300 + 5 < found["stop"]
    ((first, stop),) = told["missing"]
    assert (first, stop) == (256, 512)
    assert "damaged: 000000.events, bytes" in inspect("summary", damaged).out
    events = inspect("events", damaged, "--json", "--limit", "0").data
    sequences = {event["sequence"] for event in events["events"]}
    assert min(sequences) < 256 and max(sequences) > 512
    assert not sequences & set(range(256, 512))
    assert events["gaps"] == [[256, 512]]
    assert "events 256 to 511" in inspect("events", damaged, "--limit", "0").flat


def test_a_picture_from_within_a_gap_says_that_it_is_old(
    inspect: Inspect, damaged: Path
) -> None:
    """Within the gap the state is that before it; after the next keyframe it is right again."""
    assert "of an earlier instant" in inspect("at", damaged, "400").flat
    assert inspect("at", damaged, "400", "--json").data["stale"] is True
    assert inspect("at", damaged, "end", "--json").data["stale"] is False
    assert "of an earlier instant" not in inspect("at", damaged, "end").flat


def test_a_life_across_a_gap_says_so(inspect: Inspect, damaged: Path) -> None:
    told = inspect("page", damaged, "full", "1", "--json").data
    assert [event["what"] for event in told["events"]].count("unknown") == 1
    assert told["gaps"] == [[256, 512]]


def test_stumbling_over_a_damaged_trace_is_a_sentence(
    inspect: Inspect, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a reader trips over in a damaged trace: one sentence that names the damage."""
    from bandscope.inspect import summary

    def trip(trace: object) -> None:
        raise IndexError("out of bounds")

    monkeypatch.setattr(summary, "summarize", trip)
    assert "000000.events, bytes" in inspect.refused("summary", damaged)


@pytest.mark.parametrize("file", ["000000.events", "000000.pages", "trace.json"])
@pytest.mark.parametrize("kind", ["cut", "flip", "missing", "zeros"])
def test_no_damage_to_any_file_raises(
    inspect: Inspect, tmp_path: Path, file: str, kind: str
) -> None:
    """Cuts, flipped bits, blocks of zeros and missing files, sampled over the whole file."""
    sound = record(tmp_path / "sound", P3, seed=2, operations=60, **TINY).path
    data = (sound / file).read_bytes()
    rng = random.Random(f"{file} {kind}")
    for _ in range(1 if kind == "missing" else 3):
        trace = tmp_path / "broken.trace"
        shutil.rmtree(trace, ignore_errors=True)
        shutil.copytree(sound, trace)
        broken, place = bytearray(data), rng.randrange(len(data))
        if kind == "cut":
            del broken[place:]
        elif kind == "flip":
            broken[place] ^= 1 << rng.randrange(8)
        elif kind == "zeros":
            broken[place : place + 200] = bytes(len(broken[place : place + 200]))
        (trace / file).write_bytes(broken)
        if kind == "missing":
            (trace / file).unlink()
        every_command(inspect, trace)


def test_a_trace_without_a_sound_record_says_so(inspect: Inspect, tmp_path: Path) -> None:
    """The summary still tells what is known; everything else points to it."""
    path = record(tmp_path / "gone", P3, operations=30).path
    file = events_file(path)
    data = bytearray(file.read_bytes())
    data[64 + 40 :] = bytes(b ^ 0xFF for b in data[64 + 40 :])
    file.write_bytes(data)
    assert inspect("summary", path).status == 0
    assert "no operation can be read" in inspect.refused("events", path)


def test_a_damaged_sealed_file(inspect: Inspect, tmp_path: Path) -> None:
    """The compressed file is checked as a whole; what is in it is lost, and said to be."""
    path = record(tmp_path / "sealed", P3, operations=30).path
    seal_file(events_file(path))
    sealed = path / "000000.events.zst"
    sealed.write_bytes(sealed.read_bytes()[:-20])
    every_command(inspect, path)


def test_a_killed_run(
    inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files as they lie while the recorder has not ended; then the same with its process gone."""
    live = record(tmp_path / "live", P3, operations=60, close=False)
    assert inspect("summary", live.path, "--json").data["ending"] == "running"
    every_command(inspect, live.path)
    monkeypatch.setattr(registry, "is_running", lambda header: False)
    assert inspect("summary", live.path, "--json").data["ending"] == "killed"
    every_command(inspect, live.path)
    assert inspect("leaks", live.path).status == 0  # live at the end of the data is no leak
    live.recorder.close()
