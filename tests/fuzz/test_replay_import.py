"""Captures of other allocators become traces that replay; what does not map is named."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.fuzz.replay_import import import_capture
from bandscope.inspect.decode import Note, read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import replay
from bandscope.inspect.timeline import Timeline


def snapshot() -> dict[str, Any]:
    """As `torch.cuda.memory._snapshot()` gives it: one block lives from before, one ends in it."""
    events = [
        {"action": "alloc", "addr": 0x2000, "size": 1000, "stream": 0},
        {"action": "free_requested", "addr": 0x1000, "size": 700, "stream": 0},
        {"action": "free_completed", "addr": 0x1000, "size": 700, "stream": 0},
        {"action": "segment_alloc", "addr": 0x8000, "size": 2 << 20, "stream": 0},
        {"action": "alloc", "addr": 0x1000, "size": 100, "stream": 7},
        {"action": "free_completed", "addr": 0x2000, "size": 1000, "stream": 0},
        {"action": "oom", "size": 1 << 40, "stream": 0},
    ]
    blocks = [
        {"size": 512, "requested_size": 100, "state": "active_allocated", "address": 0x1000},
        {"size": 2048, "requested_size": 2000, "state": "active_allocated", "address": 0x3000},
        {"size": 512, "requested_size": 0, "state": "inactive", "address": 0x3800},
    ]
    segments = [{"address": 0x1000, "total_size": 1 << 20, "blocks": blocks}]
    return {"segments": segments, "device_traces": [events, []]}


@pytest.mark.parametrize("form", ["json", "gzip", "pickle"])
def test_a_snapshot_of_torch(tmp_path: Path, form: str) -> None:
    text = json.dumps(snapshot()).encode()
    data = {"json": text, "gzip": gzip.compress(text), "pickle": pickle.dumps(snapshot())}[form]
    (tmp_path / "capture").write_bytes(data)
    report = import_capture(tmp_path / "capture", "torch", tmp_path / "run")

    assert (report.allocations, report.frees) == (2, 2)
    assert (report.held_at_start, report.held_at_end) == (2, 2)
    assert report.peak_bytes == 700 + 2000 + 1000
    assert report.page_bytes == 512
    assert report.rounded_bytes == (2 + 4 + 2) * 512 - report.peak_bytes
    assert report.unsupported == {
        "free_requested events (a release comes with free_completed)": 1,
        "oom events": 1,
        "segment_alloc events": 1,
        "streams beyond the first (all on one)": 1,
        "times of events": 7,
    }
    trace = Trace(tmp_path / "run.trace")
    assert replay(trace).difference is None
    sizes = [event.body.tokens for event in read_events(trace) if isinstance(event.body, ops.Extend)]
    assert sizes == [2, 4, 2, 1]  # pages: the held ones by address, then the events
    notes = [event.body.text for event in read_events(trace) if isinstance(event.body, Note)]
    assert "not in this trace: 1 oom events" in notes


LOG = """Thread,Time,Action,Pointer,Size,Stream
1,10:00:00.1,allocate,0x7f00,1024,0
2,10:00:00.2,allocate,0x8f00,100,1
1,10:00:00.3,allocate failure,(nil),99999999999,0
1,10:00:00.4,free,0x7f00,1024,0
1,10:00:00.5,free,0xdead,16,0
1,10:00:00.6,allocate,0x7f00,0,0
"""


def test_a_log_of_rmm(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    report = import_capture(tmp_path / "log.csv", "rmm", tmp_path / "run")

    assert (report.allocations, report.frees, report.held_at_end) == (3, 1, 2)
    assert report.peak_bytes == 1124
    assert report.unsupported == {
        "allocate failure rows (nothing was given)": 1,
        "allocations of no bytes (one page each)": 1,
        "frees of what was not allocated in the log": 1,
        "streams beyond the first (all on one)": 1,
        "threads beyond the first (taken in the order of the log)": 1,
        "times of events": 6,
    }
    assert replay(Trace(tmp_path / "run.trace")).difference is None


class _Code:
    def __reduce__(self) -> Any:
        return (print, ("this must never run",))


@pytest.mark.parametrize(
    ("form", "data", "sentence"),
    [
        ("torch", b"", "holds no capture of torch"),
        ("torch", b"{}", "holds no capture of torch"),
        ("torch", b'{"events": []}', "holds no allocation"),
        ("torch", b'{"events": [[1]]}', "holds no capture of torch"),
        ("torch", b"\x80\x05.", "holds no capture of torch"),
        ("torch", pickle.dumps(_Code()), "it wants builtins.print"),
        ("torch", b"\x1f\x8b nothing", "holds no capture of torch"),
        ("rmm", b"a,b\n1,2\n", "its columns lack Action, Pointer, Size"),
        ("rmm", LOG.replace("0x7f00", "seven").encode(), "holds no capture of rmm"),
        ("cudf", b"", "the forms are torch, rmm"),
    ],
)
def test_what_is_no_capture_is_refused(
    tmp_path: Path, form: str, data: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "capture").write_bytes(data)
    with pytest.raises(TraceError, match=sentence):
        import_capture(tmp_path / "capture", form, tmp_path / "run")
    assert "must never run" not in capsys.readouterr().out
    assert not (tmp_path / "run.trace").exists()


# Peak MB by the data's own page of figures.
REAL = {
    "small_cold_start": (36, 26, 3249.1),
    "lm_ctx128_forward_bf16": (937, 937, 779.8),
    "lm_medium_ctx128_inference": (1280, 1280, 1737.0),
    "lm_medium_ctx512_inference": (1666, 1666, 1949.3),
    "lm_medium_ctx1024_inference": (1280, 1280, 2877.4),
    "lm_medium_ctx512_training": (7591, 7370, 12426.6),
    "lm_medium_ctx1024_training": (7591, 7370, 24207.2),
}
_LONG = [name for name in REAL if "medium" in name]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in _LONG else ()) for name in REAL],
)
def test_real_snapshots(tmp_path: Path, shared_data: Path, name: str) -> None:
    allocations, frees, peak = REAL[name]
    report = import_capture(shared_data / "snapshots" / f"{name}.json.gz", "torch", tmp_path / "run")

    assert (report.allocations, report.frees) == (allocations, frees)
    assert round(report.peak_bytes / 1e6, 1) == peak
    assert report.held_at_end == report.held_at_start + allocations - frees
    assert set(report.unsupported) <= {
        "free_requested events (a release comes with free_completed)",
        "segment_alloc events",
        "times of events",
    }
    trace = Trace(tmp_path / "run.trace")
    assert replay(trace).difference is None
    state = Timeline(trace).seek(trace.stop)
    assert len(state.requests) == report.held_at_end
