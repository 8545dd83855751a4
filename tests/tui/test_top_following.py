"""The live screen goes on from segment to segment, whatever it sees of the next one at first."""

from __future__ import annotations

import shutil
from pathlib import Path

from bandscope.inspect.reader import Trace
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P5
from tests.inspect_.traces import record
from tests.tui.test_top_source import agree


def test_a_segment_whose_files_are_there_before_its_first_record(tmp_path: Path) -> None:
    run = record(
        tmp_path / "run", P5, operations=120, close=False, keyframe_every=200, segment_records=512
    )
    path = tmp_path / "copy.trace"
    shutil.copytree(run.path, path)
    number, first, _ = Trace(path).heads[-1]
    assert number > 0
    whole = {}
    for file in path.glob(f"{number:06}.*"):
        whole[file] = file.read_bytes()
        file.write_bytes(bytes(len(whole[file])))
    source = TraceSource(path)
    for _ in range(3):
        source.tick()
        assert source.position == first and source.ending == "running"
    for file, data in whole.items():
        file.write_bytes(data)
    source.tick()
    assert source.position == Trace(path).stop > first
    agree(source, path)
    run.recorder.close()
