"""Searches, refusals, ranks, what runs again, and exports of the live screen's source."""

from __future__ import annotations

import csv
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.allocator.operations import Outcome
from bandscope.inspect import registry
from bandscope.inspect.checks.fragmentation import explain_refusals
from bandscope.inspect.checks.invariants import check_trace
from bandscope.inspect.checks.leaks import find_leaks
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.registry import Running
from bandscope.inspect.selection import first_timeline
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top import saving
from bandscope.tui.top.ranks import ranks_of, run_and_rank
from bandscope.tui.top.saving import FORMS, free_path, parse_form, write_new
from bandscope.tui.top.searching import COUNT_EVENTS, PIECE_EVENTS, Search
from bandscope.tui.top.snapshot import Snapshot, View
from bandscope.tui.top.source import TraceSource
from bandscope.tui.top.travel import Query
from tests.allocator.arenas import P3, P5, small_arena
from tests.inspect_.traces import Recorded, record
from tests.tui.test_top_source import agree, told

VIEW = View(columns=80, rows=40)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("desk") / "run", P5, seed=4, operations=300, keyframe_every=200
    )


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Several pieces long; what is searched for lies at its two ends."""
    arena = small_arena(P3)
    recorder = Recorder(tmp_path_factory.mktemp("long") / "long", arena)
    arena.apply(ops.Admit(7))
    for _ in range(2 * PIECE_EVENTS):
        arena.apply(ops.SetGate(False))
    arena.apply(ops.Release(7, "aborted"))
    recorder.close()
    return Recorded(recorder.directory, arena, recorder)


def settled(source: TraceSource) -> Snapshot:
    """After everything that takes long."""
    snapshot = source.tick()
    while source.busy:
        snapshot = source.tick() or snapshot
    assert snapshot is not None
    return snapshot


# --- search ---------------------------------------------------------------------------------------


def test_a_search_looks_at_one_piece_per_step(long: Recorded) -> None:
    source = TraceSource(long.path)
    settled(source)
    source.ask("go", 10)
    looked: list[int] = []
    whole = Query.events

    def counted(self: Query, trace: Trace, start: int, stop: int) -> Any:
        looked.append(stop - start)
        return whole(self, trace, start, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Query, "events", counted)
        source.ask("search", "why aborted")
        assert looked == [PIECE_EVENTS] and source.position == 10
        assert "looking at event" in told(source).matches
        while source.position == 10:
            before = len(looked)
            source.tick()
            assert sum(looked[before:]) <= PIECE_EVENTS
    assert len(looked) > 3
    found = settled(source)
    assert "1 match in events" in found.matches
    body: Any = next(iter(read_events(source.trace, found.position - 1))).body
    assert body == ops.Release(7, "aborted")
    source.ask("search", "Admit request 7")
    assert "no match after" in settled(source).message and source.position == found.position
    source.ask("again", False)
    settled(source)
    assert source.position < 10


def test_while_it_searches_everything_else_is_answered(long: Recorded) -> None:
    source = TraceSource(long.path)
    settled(source)
    source.ask("go", 10)
    source.ask("search", "why aborted")
    assert source.busy
    source.ask("view", replace(VIEW, rows=3))
    assert told(source).view.rows == 3 and source.busy
    source.ask("stop search")
    stopped = told(source)
    assert stopped.message == "the search was stopped" and not source.desk.busy
    source.ask("again", True)
    assert source.busy
    source.ask("step", ("event", True))
    assert not source.desk.busy and told(source).matches == ""
    agree(source, long.path)


def test_matches_are_counted_nearby(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    assert trace.stop < COUNT_EVENTS
    for text in ("kind=LeaseBegin band=full", "decode", "request=3", "pages=2..4", "done"):
        search = Search(trace, text)
        search.begin(500, True)
        while search.busy:
            search.step()
        count = sum(1 for _ in Query.parse(trace, text).events(trace, trace.start, trace.stop))
        assert f"/{text}: {count:,} match" in search.words


def test_a_filter_looks_at_one_piece_per_picture(long: Recorded) -> None:
    source = TraceSource(long.path)
    settled(source)
    source.ask("view", VIEW)
    source.ask("live")
    looked: list[int] = []
    whole = Query.events

    def counted(self: Query, trace: Trace, start: int, stop: int) -> Any:
        looked.append(stop - start)
        return whole(self, trace, start, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Query, "events", counted)
        source.ask("filter", "admit state_slots")
        rows: tuple[Any, ...] = ()
        while True:
            before = len(looked)
            snapshot = source.tick()
            assert sum(looked[before:]) <= 2 * 8_192
            rows = rows if snapshot is None else snapshot.lists.rows
            if not source.busy:
                break
    assert len(looked) > 2 and [row.kind for row in rows] == ["Admit"]


def test_a_search_that_breaks_is_not_tried_again(recorded: Recorded) -> None:
    for error, says in ((TraceError("it was overwritten"), True), (KeyError("odd record"), False)):
        source = TraceSource(recorded.path)
        settled(source)
        source.ask("go", 10)
        source.ask("search", "no such words")
        assert source.desk.search is not None

        def broken(self: Search, error: Exception = error) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Search, "step", broken)
            source.desk.search.begin(10, True)
            if says:
                assert "overwritten" in told(source).message
            else:
                with pytest.raises(KeyError):
                    source.tick()
            assert not source.desk.busy


@pytest.mark.parametrize("tab", ["page", "request", "compare", "refusals", "leases", "ranks"])
def test_no_list_breaks_on_a_damaged_trace(recorded: Recorded, tmp_path: Path, tab: str) -> None:
    path = tmp_path / "bad.trace"
    shutil.copytree(recorded.path, path)
    rng = random.Random(3)
    for file in (path / "000000.events", path / "000000.pages"):
        data = bytearray(file.read_bytes())
        for _ in range(2):
            at = rng.randrange(len(data) // 3, len(data))
            data[at] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    source = TraceSource(path)
    source.ask("view", replace(VIEW, tab=tab))
    source.ask("mark")
    for _ in range(25):
        source.ask("go", rng.randrange(source.first, source.end))
        source.ask("band", rng.randrange(5))
        source.ask("view", replace(VIEW, tab=tab, chosen=rng.randrange(4)))
        settled(source)
    source.ask("search", "pages decode")
    settled(source)


# --- refusals -------------------------------------------------------------------------------------


def test_a_chosen_refusal_tells_reason_cure_and_layout(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", replace(VIEW, tab="refusals", rows=500))
    rows = told(source).lists.rows
    explained = {one.sequence: one for one in explain_refusals(Trace(recorded.path))}
    assert explained
    seen = 0
    for chosen, row in enumerate(rows):
        source.ask("view", replace(VIEW, tab="refusals", rows=500, chosen=chosen))
        details = settled(source).lists.details
        if row.kind == "Refusal":
            one = explained[row.sequence]
            text = "\n".join(details)
            assert str(one.options[0]) in details[1] and details[1].startswith("Cure: ")
            assert f"({one.reason})" in details[0]
            for title in ("asked", "held", "extent", "cannot move"):
                assert f"\n{title}" in text
            for name, pages in one.demand.items():
                assert name in details[2] and f"{pages:,}" in details[3]
            seen += 1
        elif row.text.startswith("refused (misuse)"):
            assert "its sentence says what to do" in details[0]
        elif row.text.startswith("refused (memory)"):
            assert details[1].startswith("Cure: ")  # of the layout before it
    assert seen == len(explained)


def test_the_layout_of_a_refusal_is_looked_for_between_pictures(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    settled(source)
    source.ask("view", replace(VIEW, tab="refusals"))
    assert "looking" in told(source).lists.details[0] and source.busy
    assert "looking" not in settled(source).lists.details[0]


# --- ranks ----------------------------------------------------------------------------------------


def test_names_of_ranks() -> None:
    assert run_and_rank(Path("/x/run.rank12.trace")) == ("run", 12)
    assert run_and_rank(Path("/x/run.trace")) == ("run", -1)
    assert run_and_rank(Path("/x/a.rank1.rank2.trace")) == ("a.rank1", 2)


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Three ranks and a trace that is none."""
    made = [
        record(tmp_path / "job", P3, seed=rank, operations=80, rank=rank).path for rank in (0, 1, 10)
    ]
    record(tmp_path / "job", P3, operations=20)
    record(tmp_path / "job2", P3, operations=20, rank=0)
    return made


def test_the_ranks_of_a_run_side_by_side(three: list[Path]) -> None:
    assert ranks_of(three[1]) == three
    assert ranks_of(three[0].with_name("job.trace")) == [three[0].with_name("job.trace")]
    source = TraceSource(three[1])
    source.ask("view", replace(VIEW, tab="ranks"))
    rows = told(source).lists.rows
    assert [row.kind for row in rows] == ["rank 0", "rank 1", "rank 10"]
    for row, path in zip(rows, three, strict=True):
        assert row.opens == ("trace", str(path)) and row.sequence == Trace(path).stop
        assert "".join(text for text, _ in row.pieces) == row.text

    # Elsewhere in time, each stands at the same time on the wall.
    source.ask("go", 200)
    wall = source.timeline.state.time_ns + int(source.trace.header["wall_ns"])
    for row, path in zip(told(source).lists.rows, three, strict=True):
        trace = Trace(path)
        since = wall + 1 - int(trace.header["wall_ns"])
        expected = trace.sequence_at(max(0, since))
        state = Timeline(trace).seek(max(expected, first_timeline(trace).state.sequence))
        assert row.sequence == state.sequence
        letters = {piece[0] for piece, style in row.pieces if style.startswith("band")}
        assert len(letters) == sum(band.extent[1] > band.extent[0] for band in state.bands)


def test_a_rank_that_cannot_be_read_says_so(three: list[Path]) -> None:
    shutil.rmtree(three[2])
    three[2].mkdir()
    source = TraceSource(three[0])
    source.ask("view", replace(VIEW, tab="ranks"))
    rows = told(source).lists.rows
    assert rows[2].kind == "rank 10" and "nothing can be read" in rows[2].text
    assert rows[2].opens is None


# --- the same command again -----------------------------------------------------------------------


def again(path: Path, header: dict[str, Any], **changes: Any) -> Running:
    """A recorder like the one of a header."""
    facts: dict[str, Any] = {
        "pid": 1, "command": list(map(str, header["command"])), "started": "9999-01-01T00:00:00Z",
        "trace": path, "rank": header["rank"], "model": "", "bands": [], "total_bytes": 1,
    }  # fmt: skip
    return Running(**{**facts, **changes})


def test_a_process_that_returns_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = [10**18]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    header = source.trace.header
    found: list[Running] = [again(tmp_path / "next.trace", header)]
    asked: list[int] = []

    def find() -> list[Running]:
        asked.append(wall[0])
        return found

    source.desk.find = find
    settled(source)
    assert asked == []  # it still runs
    run.recorder.close()
    found.clear()
    found += [
        again(run.path, header, pid=header["pid"], started=header["started"]),  # itself
        again(tmp_path / "other.trace", header, command=["other"]),
        again(tmp_path / "before.trace", header, started="1999-01-01T00:00:00Z"),
        again(tmp_path / "rank.trace", header, rank=3),
    ]
    assert told(source).successor == ""
    found.append(again(tmp_path / "next.trace", header))
    source.tick()
    assert len(asked) == 1  # not at every look
    wall[0] += 3 * 10**9
    assert told(source).successor == str(tmp_path / "next.trace")
    wall[0] += 3 * 10**9
    source.tick()
    assert len(asked) == 2


def test_a_trace_at_the_same_place_counts_too(tmp_path: Path) -> None:
    source = TraceSource(record(tmp_path / "run", P3, operations=30).path)
    place = source.trace.path
    source.desk.find = lambda: [again(place, source.trace.header, pid=5)]
    assert told(source).successor == str(place)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_trace_whose_folder_is_gone_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = 10**18
    source = TraceSource(run.path, wall_ns=lambda: wall)
    source.ask("view", VIEW)
    before = settled(source)
    run.path.rename(tmp_path / "moved.trace")
    if replaced:
        record(tmp_path / "run", P3, seed=5, operations=20)
    gone = told(source)
    assert "removed or replaced" in gone.message
    assert (gone.position, gone.bands) == (before.position, before.bands)
    monkeypatch.setattr(registry, "is_running", lambda header: False)
    source.desk.find = lambda: [again(run.path, source.trace.header, pid=5)]
    ended = told(source)
    assert ended.ending == "killed" and ended.successor == str(run.path)
    run.recorder.close()


def test_a_trace_of_the_same_name_counts_too(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    source = TraceSource(record(tmp_path / "run", P3, operations=30).path)
    named = again(tmp_path / "new" / "run.trace", source.trace.header, command=["another"])
    source.desk.find = lambda: [named]
    assert told(source).successor == str(named.trace)


# --- exports --------------------------------------------------------------------------------------


@pytest.fixture
def exporting(recorded: Recorded, tmp_path: Path) -> TraceSource:
    """A source that exports to a folder of its own."""
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.desk.folder = lambda: tmp_path
    return source


def test_the_events_of_a_filter_as_csv(exporting: TraceSource, tmp_path: Path) -> None:
    exporting.ask("go", 900)
    exporting.ask("filter", "kind=LeaseBegin")
    exporting.ask("export", ("csv", 0))
    assert told(exporting).message == f"written to {tmp_path / 'run-at-900.csv'}"
    with open(tmp_path / "run-at-900.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    trace = exporting.trace
    expected = list(Query.parse(trace, "kind=LeaseBegin").events(trace, trace.start, 900))
    assert [int(row["sequence"]) for row in rows] == [event.sequence for event in expected]
    assert float(rows[0]["time_s"]) == pytest.approx(expected[0].time_ns / 1e9)


@pytest.mark.parametrize("tab", ["leases", "refusals", "compare", "request"])
def test_other_lists_as_csv(exporting: TraceSource, tmp_path: Path, tab: str) -> None:
    exporting.ask("go", 900)
    exporting.ask("mark")
    exporting.ask("go", 1000)
    exporting.ask("request", min(exporting.timeline.state.requests))
    exporting.ask("view", replace(VIEW, tab=tab, rows=5_000))
    rows = told(exporting).lists.rows
    exporting.ask("view", replace(VIEW, tab=tab, rows=3, skip=1))
    exporting.ask("export", ("csv", 0))
    with open(tmp_path / "run-at-1000.csv", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [row["text"] for row in written] == [row.text.strip() for row in rows]
    assert exporting.view.rows == 3


def test_a_slice_around_the_instant(exporting: TraceSource, tmp_path: Path) -> None:
    exporting.ask("go", 800)
    exporting.ask("export", ("slice", 100))
    path = tmp_path / "run-at-800.trace"
    assert told(exporting).message == f"written to {path}"
    cut = Trace(path)
    assert cut.start <= 750 and 850 <= cut.stop < exporting.trace.stop
    assert TraceSource(path).ending == "clean"
    agree(exporting, path)
    # What is held where a slice ends was not leaked: it ends in the middle of a run.
    assert check_trace(cut) == [] and find_leaks(cut).verdict == "live at end of data"


@pytest.mark.parametrize("form", ["perfetto", "html"])
def test_other_forms(exporting: TraceSource, tmp_path: Path, form: str) -> None:
    exporting.ask("go", 800)
    exporting.ask("export", (form, 100))
    (written,) = tmp_path.iterdir()
    assert written.name.startswith("run-at-800.") and str(written) in told(exporting).message
    if form == "perfetto":
        assert json.loads(written.read_text())


def test_nothing_is_ever_overwritten(exporting: TraceSource, tmp_path: Path) -> None:
    exporting.ask("go", 800)
    for _ in range(3):
        exporting.ask("export", ("csv", 0))
        exporting.ask("export", ("slice", 50))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "run-at-800-2.csv", "run-at-800-2.trace", "run-at-800-3.csv", "run-at-800-3.trace",
        "run-at-800.csv", "run-at-800.trace",
    ]  # fmt: skip
    with pytest.raises(TraceError, match="could not be written"):
        write_new(tmp_path / "run-at-800.csv", "over it")


def test_what_cannot_be_written_is_one_sentence(exporting: TraceSource, tmp_path: Path) -> None:
    exporting.desk.folder = lambda: tmp_path / "missing"
    exporting.ask("export", ("csv", 0))
    assert "could not be written" in told(exporting).message
    exporting.desk.folder = lambda: exporting.trace.path
    for form in ("csv", "slice"):
        exporting.ask("export", (form, 10))
        assert "nothing is written" in told(exporting).message
    with pytest.raises(TraceError, match="nothing is written"):
        free_path(exporting.trace.path, "x", 1, ".svg")


@pytest.mark.parametrize("text", ["", "pdf", "slice many", "slice 0", "slice -3", "svg,csv"])
def test_unknown_forms(text: str) -> None:
    with pytest.raises(TraceError, match="write one of"):
        parse_form(text)


def test_known_forms() -> None:
    for form in FORMS:
        assert parse_form(f" {form.upper()} ") == (form, 2 * saving.AROUND_EVENTS)
    assert parse_form("slice 2,000") == ("slice", 2000)


def test_refused_operations_have_outcomes(recorded: Recorded) -> None:
    """The traces of these tests hold what they are meant to."""
    bodies = [event.body for event in read_events(Trace(recorded.path))]
    reasons = {body.reason for body in bodies if isinstance(body, Outcome) and not body.ok}
    assert {"memory", "misuse"} <= reasons
