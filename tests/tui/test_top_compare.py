"""Two instants, or two traces, compared on the live screen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.inspect.differences import compare
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.comparing import LETTERS
from bandscope.tui.top.look import PLAIN, UNICODE
from bandscope.tui.top.paint import Ui, paint
from bandscope.tui.top.snapshot import Snapshot, View
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P3, P5
from tests.inspect_.traces import Recorded, record
from tests.tui.test_top_source import told

VIEW = View(columns=80, rows=400, tab="compare")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("compare") / "run", P5, seed=4, operations=300, keyframe_every=200
    )


def agrees(snapshot: Snapshot, path: Path, base: int) -> None:
    """The numbers are those of two fresh replays."""
    trace = Trace(path)
    before, after = Timeline(trace).seek(base), Timeline(trace).seek(snapshot.position)
    found, shown = compare(before, after), snapshot.compared
    assert shown is not None and shown.base == base
    for band, change in zip(found.bands, shown.bands, strict=True):
        for kind in LETTERS:
            assert change.pages[kind] == getattr(band, kind).size
        assert change.counts_after == band.counts_after
    assert list(shown.requests_came) == found.requests_came
    assert list(shown.requests_gone) == found.requests_gone


def test_a_marked_instant_is_compared_wherever_one_goes(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 600)
    source.ask("mark")
    first = told(source)
    assert first.compared is not None and first.compared.same
    for position in (601, 700, 1100, 400, source.end):
        source.ask("go", position)
        agrees(told(source), recorded.path, 600)
    source.ask("step", ("operation", False))
    agrees(told(source), recorded.path, 600)
    source.ask("mark")
    assert told(source).compared is None


def test_differing_pages_are_marked_on_the_map_and_in_the_zoom(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 600)
    source.ask("mark")
    trace = Trace(recorded.path)
    before = Timeline(trace).seek(600)
    seen = set()
    for step in range(40):
        if step % 5 == 0:  # elsewhere
            source.ask("go", 620 + 10 * step)
            after = Timeline(trace).seek(source.position)
            found = compare(before, after)
        snapshot = told(source)
        zoom = snapshot.zoom
        assert zoom is not None
        band, marks = after.bands[zoom.band], dict(zoom.differing)
        for offset in range(sum(run.length for run in zoom.runs)):
            page = zoom.page_first + offset
            virtual = int(band.virtual[page - band.base])
            kinds = [
                kind for kind in LETTERS
                if kind != "gone" and virtual in getattr(found.bands[zoom.band], kind)
            ]  # fmt: skip
            gone = found.bands[zoom.band].gone
            if not kinds and page in before.bands[zoom.band].page_of[gone]:
                kinds = ["gone"]
            assert marks.get(offset, "") == (LETTERS[kinds[0]] if kinds else ""), page
            seen.update(kinds)
            if kinds:  # and the character of the map that shows this page
                span = next(span for span in snapshot.map.spans if span.band == zoom.band)
                assert span.column_of(page) in snapshot.map.differing
        source.ask("band", 1)
    assert {"came", "gone", "moved"} <= seen

    lines = ["".join(t for t, _ in line) for line in paint(snapshot, Ui(tab="compare"), 100, 40)]
    assert UNICODE.differs in lines[4] and "compared with event 600" in lines[1]
    plain = paint(snapshot, Ui(tab="compare", glyphs=PLAIN), 100, 40)
    text = "\n".join("".join(t for t, _ in line) for line in plain)
    assert text.isascii() and PLAIN.differs in text.split("\n")[4]


def test_rows_of_a_comparison_lead_to_the_pages(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 600)
    source.ask("mark")
    source.ask("go", 640)
    snapshot = told(source)
    trace = Trace(recorded.path)
    found = compare(Timeline(trace).seek(600), Timeline(trace).seek(640))
    rows = snapshot.lists.rows
    assert [row.kind for row in rows[:5]] == [band.band for band in found.bands]
    led = [row for row in rows if row.opens is not None]
    assert led
    for row in led:
        assert row.opens is not None
        source.ask(*row.opens)
        page = told(source).page
        assert page is not None and page.band == row.opens[1][0]


@pytest.mark.parametrize("place", ["500", "0s", "start"])
def test_compare_with_a_place(recorded: Recorded, place: str) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("compare", place)
    shown = told(source).compared
    assert shown is not None and shown.base == (500 if place == "500" else source.first)
    source.ask("compare", "")
    assert told(source).compared is None


def test_compare_with_another_trace_event_by_event(recorded: Recorded, tmp_path: Path) -> None:
    other = tmp_path / "other.trace"
    shutil.copytree(recorded.path, other)
    longer = record(tmp_path / "longer", P5, seed=4, operations=330, keyframe_every=200).path
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 900)
    source.ask("compare", str(other))
    for position in (900, 901, 300, 1300):
        source.ask("go", position)
        shown = told(source).compared
        assert shown is not None and shown.same and shown.base == position
        assert shown.other == str(other)
    source.ask("compare", str(longer).removesuffix(".trace"))
    assert told(source).compared is not None
    source.ask("live")
    shown = told(source).compared
    # The same operations: only its longer end is not here.
    assert shown is not None and shown.base == source.position


def test_traces_of_other_bands_cannot_be_compared(recorded: Recorded, tmp_path: Path) -> None:
    other = record(tmp_path / "p3", P3, operations=40).path
    source = TraceSource(recorded.path)
    source.ask("compare", str(other))
    snapshot = told(source)
    assert "other bands" in snapshot.message and snapshot.compared is None
    for wrong in (str(tmp_path / "missing.trace"), "99999999", "nowhere"):
        source.ask("compare", wrong)
        assert told(source).message and told_again(source).compared is None


def told_again(source: TraceSource) -> Snapshot:
    """Another snapshot, although nothing changed."""
    source._dirty = True
    return told(source)


def test_the_state_that_is_compared_with_does_not_change(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("go", 600)
    source.ask("mark")
    comparison = source.desk.comparison
    assert comparison is not None
    kept = [band.state.copy() for band in comparison.base.bands]
    for position in (620, 900, 1300, 300):
        source.ask("go", position)
        told(source)
    assert all(
        np.array_equal(one, band.state)
        for one, band in zip(kept, comparison.base.bands, strict=True)
    )


def test_a_live_comparison_is_made_once_a_second(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = [int(Trace(run.path).header["wall_ns"])]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    source.ask("view", replace(VIEW, window_ns=10**7))  # in which nothing else is due
    source.ask("mark")
    base = told(source).position
    run.arena.apply(ops.Admit(5000, state_slots=0))
    soon = told(source)
    assert soon.position > base and soon.compared is not None and soon.compared.same
    wall[0] += 2 * 10**9
    later = told(source)  # although nothing came since
    assert later.compared is not None and later.compared.requests_came == (5000,)
    run.recorder.close()
