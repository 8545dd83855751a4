"""Exports: slices that agree with their trace at every event, and tables that other programs read."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import keyframe
from bandscope.inspect.decode import read_events
from bandscope.inspect.exports import FORMS, export
from bandscope.inspect.exports.window import boundary, steps
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.sealing import seal_file
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS, small_arena
from tests.inspect_.traces import Recorded, record

DOCS = Path(__file__).resolve().parents[2] / "docs" / "exports.md"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A trace of several segments with keyframes in between."""
    return record(
        tmp_path_factory.mktemp("exports") / "run", LAYOUTS["P3"], seed=3, operations=600,
        snapshots=True, keyframe_every=150, segment_records=900, stacks=2,
    )  # fmt: skip


@pytest.fixture
def trace(recorded: Recorded) -> Trace:
    return Trace(recorded.path)


def plain(body: Any) -> Any:
    """A body that compares, arrays included."""
    if dataclasses.is_dataclass(body):
        return type(body).__name__, [
            plain(getattr(body, item.name)) for item in dataclasses.fields(body)
        ]
    return body.tolist() if hasattr(body, "tolist") else body


# --- slices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_slice_has_the_same_states_and_events_under_the_same_numbers(
    tmp_path: Path, name: str
) -> None:
    recorded = record(
        tmp_path / "run", LAYOUTS[name], seed=11, operations=500, snapshots=True,
        keyframe_every=90, segment_records=700, stacks=2,
    )  # fmt: skip
    trace = Trace(recorded.path)
    span = trace.stop - trace.start
    for number, (low, high) in enumerate(
        [(0, 1), (0.05, 0.1), (0.13, 0.8), (0.5, 0.95), (0.33, 0.34), (0.7, 1), (0.97, 1)]
    ):
        start, stop = trace.start + int(low * span), trace.start + int(high * span)
        report = export(trace, "slice", tmp_path / f"s{number}.trace", start=start, stop=stop)
        cut = Trace(report.out)
        assert cut.damages == [] and cut.ending == "clean" and cut.lost == cut.start
        first, last = cut.header["slice_of"]["events"]
        assert first <= max(start, first) and last >= stop and report.events == last - first
        segment = cut.segment_of(first)
        assert segment.records["kind"][first - segment.first_sequence] == Kind.KEYFRAME

        marks = ("Mark", "Lost")  # later segments begin otherwise
        told = [e for e in read_events(trace, first, last) if e.kind not in marks]
        found = [e for e in read_events(cut, first, last) if e.kind not in marks]
        assert [(e.sequence, e.operation, plain(e.body)) for e in found] == [
            (e.sequence, e.operation if e.operation >= first else -1, plain(e.body)) for e in told
        ]

        timeline = Timeline(cut)
        inside = [n for n in recorded.snapshots if first < n <= last]
        for sequence in inside[:: max(1, len(inside) // 25)]:
            snapshot = keyframe.decode(keyframe.encode(recorded.snapshots[sequence]))
            assert timeline.seek(sequence).differences(snapshot) == []
        assert timeline.gaps == []


def test_a_slice_of_a_ring_and_of_sealed_segments(tmp_path: Path) -> None:
    recorded = record(
        tmp_path / "run", LAYOUTS["P4"], seed=1, operations=9000, ring_bytes=1 << 20,
        keyframe_every=400,
    )  # fmt: skip
    trace = Trace(recorded.path)
    assert trace.start > 0
    for path in sorted(recorded.path.glob("*.events"))[:2]:
        seal_file(path)
        seal_file(path.with_suffix(".pages"))
    trace = Trace(recorded.path)
    middle = trace.start + (trace.stop - trace.start) // 10
    report = export(trace, "slice", tmp_path / "cut", start=middle, stop=middle + 2000)
    cut = Trace(report.out)
    assert cut.damages == [] and cut.lost == cut.start
    marks = ("Mark", "Lost")
    told, found = (
        [plain(e.body) for e in read_events(t, middle, middle + 2000) if e.kind not in marks]
        for t in (trace, cut)
    )
    assert found == told


def test_a_slice_may_begin_with_the_first_keyframe_of_any_segment(
    trace: Trace, tmp_path: Path
) -> None:
    """There is no room for a LOST record before it, so the slice takes numbers of the one before."""
    beginnings = [segment.first_sequence for segment in trace.segments()][1:]
    assert beginnings
    for number, start in enumerate(beginnings):
        report = export(trace, "slice", tmp_path / str(number), start=start + 1, stop=start + 50)
        cut = Trace(report.out)
        assert cut.damages == [] and cut.start == start - 256 and cut.lost == cut.start
        told = [plain(event.body) for event in read_events(trace, start + 1, start + 50)]
        assert [plain(event.body) for event in read_events(cut, start + 1, start + 50)] == told
        assert Timeline(cut).seek(start + 2).issued == Timeline(trace).seek(start + 2).issued


def test_a_slice_of_a_slice(trace: Trace, tmp_path: Path) -> None:
    once = Trace(export(trace, "slice", tmp_path / "a", start=700, stop=1800).out)
    twice = Trace(export(once, "slice", tmp_path / "b", start=1200, stop=1500).out)
    assert Timeline(twice).seek(1400).ids.released == Timeline(trace).seek(1400).ids.released
    assert [plain(e.body) for e in read_events(twice, 1200, 1500)] == [
        plain(e.body) for e in read_events(trace, 1200, 1500)
    ]


def test_a_slice_ends_with_an_operation(trace: Trace) -> None:
    inside = False
    for event in read_events(trace):
        if isinstance(event.body, Operation):
            assert boundary(trace, event.sequence) == event.sequence
            inside = True
        elif inside:
            assert boundary(trace, event.sequence) > event.sequence
        if isinstance(event.body, Outcome):
            assert boundary(trace, event.sequence) == event.sequence + 1
            inside = False


def test_a_slice_across_damage_is_refused_and_beside_it_is_made(
    recorded: Recorded, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(recorded.path, tmp_path / "bad.trace")
    path = tmp_path / "bad.trace" / "000000.events"
    data = bytearray(path.read_bytes())
    data[64 + 32 * 600] ^= 1
    path.write_bytes(data)
    bad = Trace(tmp_path / "bad.trace")
    with pytest.raises(TraceError, match="events 512 to 767 .* damaged"):
        export(bad, "slice", tmp_path / "cut", start=400, stop=1000)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.trace"]
    export(bad, "slice", tmp_path / "before", start=200, stop=400)
    assert Trace(tmp_path / "before").damages == []
    # The other forms show what is there.
    assert export(bad, "csv", tmp_path / "bad.csv").events > 1000
    assert export(bad, "html", tmp_path / "bad.html").bytes
    assert export(bad, "perfetto", tmp_path / "bad.json").events > 1000


# --- tables ---------------------------------------------------------------------------------------


def test_csv_has_every_event(trace: Trace, tmp_path: Path) -> None:
    report = export(trace, "csv", tmp_path / "events.csv")
    with open(report.out, newline="") as file:
        rows = list(csv.DictReader(file))
    events = list(read_events(trace))
    assert report.events == len(rows) == len(events)
    for row, event in zip(rows, events, strict=True):
        assert int(row["sequence"]) == event.sequence and row["kind"] == event.kind
        assert int(row["time_ns"]) == event.time_ns
    assert {row["ok"] for row in rows if row["kind"] == "Outcome"} == {"true", "false"}


def test_parquet_has_the_same_events_and_all_their_pages(trace: Trace, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    report = export(trace, "parquet", tmp_path / "tables")
    assert report.files == ("events.parquet", "operations.parquet", "pages.parquet")
    tables = {n: parquet.read_table(report.out / f"{n}.parquet").to_pylist() for n in
              ("events", "operations", "pages")}
    export(trace, "csv", tmp_path / "events.csv")
    with open(tmp_path / "events.csv", newline="") as file:
        told = list(csv.DictReader(file))
    for row, text in zip(tables["events"], told, strict=True):
        assert {k: "" if v is None else str(v).lower() if isinstance(v, bool) else str(v)
                for k, v in row.items()} == text

    # The runs of pages of an event are the pages of the event, with the names of that moment.
    runs: dict[int, list[dict[str, Any]]] = {}
    for row in tables["pages"]:
        runs.setdefault(row["sequence"], []).append(row)
    timeline = Timeline(trace)
    for event in read_events(trace):
        body: Any = event.body
        mine = runs.pop(event.sequence, [])
        if hasattr(body, "virtual") and body.virtual.size:
            state = timeline.advance(event.sequence)
            expanded = [(r["virtual"] + i, r["physical"] + i * r["step"], r["generation"])
                        for r in mine for i in range(r["pages"])]  # fmt: skip
            band = next(b for b in state.bands if b.name == body.band)
            generation = state.ids_of(band.index).generation[body.virtual].tolist()
            if event.kind == "LeaseEnd":
                held = band.page_of[body.virtual] >= 0
                assert held.all() or body.lease  # a pinned page may have been freed
                generation = [g if h else None for g, h in zip(generation, held, strict=True)]
            if event.kind == "PageMove":
                places = body.destinations.tolist()
            elif event.kind == "LeaseBegin":
                places = body.physical.tolist()
            elif body.lease:
                places = state.pins[body.lease].physical.tolist()
            else:
                places = band.page_of[body.virtual].tolist()
            assert expanded == list(zip(body.virtual.tolist(), places, generation, strict=True))
        elif hasattr(body, "pages") and event.kind in ("Pending", "Reclaim"):
            expanded_places = [r["physical"] + i for r in mine for i in range(r["pages"])]
            assert expanded_places == sorted(body.pages.tolist())
    assert not runs

    by_step = [s for s in steps(read_events(trace)) if s.asked is not None]
    assert [row["sequence"] for row in tables["operations"]] == [
        s.asked.sequence for s in by_step if s.asked
    ]
    assert all(row["duration_ns"] >= 0 for row in tables["operations"])


def queries() -> list[tuple[str, str]]:
    """The DuckDB examples of the documentation, each with the line above it."""
    text = DOCS.read_text(encoding="utf-8")
    return re.findall(r"^([^\n]+)\n\n```sql\n(.*?)```", text, re.S | re.M)


@pytest.mark.parametrize("query", [q for _, q in queries()], ids=[t[:40] for t, _ in queries()])
def test_the_queries_of_the_documentation_run(trace: Trace, tmp_path: Path, query: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    export(trace, "parquet", tmp_path / "run")
    result = duckdb.sql(query.replace("'run/", f"'{tmp_path}/run/")).fetchall()
    assert result, query


# --- errors ---------------------------------------------------------------------------------------


def test_an_unknown_form_names_those_there_are(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="'xml'; choose one of perfetto, parquet, csv, html, slice"):
        export(trace, "xml", tmp_path / "x")


@pytest.mark.parametrize("form", FORMS)
def test_nothing_recorded_is_an_error_and_leaves_nothing(tmp_path: Path, form: str) -> None:
    from bandscope.inspect.recorder import Recorder

    with Recorder(tmp_path / "empty", small_arena(LAYOUTS["P2m"])) as recorder:
        pass
    empty = Trace(recorder.directory)
    with pytest.raises(TraceError, match="holds no operation.*was the recorder attached"):
        export(empty, form, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["empty.trace"]


def test_a_stretch_outside_the_trace_is_an_error(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds events 0 to"):
        export(trace, "csv", tmp_path / "out.csv", start=10**6)
    with pytest.raises(TraceError, match="no operation lies in events 0 to 1"):
        export(trace, "csv", tmp_path / "out.csv", stop=2)


def test_a_missing_package_is_named(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TraceError, match=r"needs pyarrow; install bandscope\[parquet\]"):
        export(trace, "parquet", tmp_path / "tables")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_on_the_way_leaves_what_was_there(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bandscope.inspect.exports import comma

    out = tmp_path / "events.csv"
    out.write_text("precious")
    monkeypatch.setattr(comma.EventRows, "row", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(trace, "csv", out)
    assert out.read_text() == "precious" and list(tmp_path.iterdir()) == [out]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(TraceError, match="is there already"):
        export(trace, "slice", tmp_path / "folder")
    with pytest.raises(TraceError, match="is a folder"):
        export(trace, "csv", tmp_path / "folder")
