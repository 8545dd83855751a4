"""What the reading side of the live screen says of recorded, live, killed and damaged traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect import format as form
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.build import build
from bandscope.tui.top.snapshot import Device, Snapshot, View
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P3, P5
from tests.inspect_.traces import Recorded, record

VIEW = View(columns=80, rows=12, waterfall=6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("top") / "run", P5, seed=4, operations=250, keyframe_every=200
    )


def told(source: TraceSource) -> Snapshot:
    """The snapshot of a question that changes something."""
    snapshot = source.tick()
    assert snapshot is not None
    return snapshot


def agree(source: TraceSource, path: Path) -> None:
    """The state that is shown is that of a fresh replay up to there."""
    fresh = Timeline(Trace(path)).seek(source.position)
    same(source.timeline.state, fresh)
    snapshot = build(source)
    for shown, band in zip(snapshot.bands, fresh.bands, strict=True):
        counts = (shown.held, shown.holes, shown.pending)
        assert counts == (band.count(LIVE), band.count(HOLE), band.count(PENDING))
        assert shown.extent_bytes == band.byte_range()


def same(one: ArenaState, other: ArenaState) -> None:
    """Two states say the same of every page."""
    for mine, theirs in zip(one.bands, other.bands, strict=True):
        assert mine.extent == theirs.extent
        for name in ("state", "virtual", "owner", "pins", "page_of"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert one.in_flight == other.in_flight and one.issued == other.issued


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["event", "operation", "ticket"])
def test_every_step_there_and_back_is_what_a_replay_says(recorded: Recorded, what: str) -> None:
    source = TraceSource(recorded.path)
    source.ask("go", 0)
    assert source.position == source.first and not source.live
    forwards = [source.position]
    while True:
        source.ask("step", (what, True))
        if source.position == forwards[-1]:
            break
        forwards.append(source.position)
    assert "no " + what in source.message
    assert len(forwards) > 10
    for position in forwards[:: max(1, len(forwards) // 60)]:
        source.ask("go", position)
        agree(source, recorded.path)

    source.ask("go", forwards[-1])
    backwards = [source.position]
    while True:
        source.ask("step", (what, False))
        if source.position == backwards[-1]:
            break
        backwards.append(source.position)
    if what == "event":
        assert len(backwards) == len(forwards)
    else:
        assert backwards[::-1][-len(forwards) + 1 :] == forwards[1:]


def test_steps_land_where_they_say(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    kinds = trace.segment_of(trace.start).records["kind"]
    source = TraceSource(recorded.path)
    source.ask("go", 300)
    source.ask("step", ("operation", True))
    assert form.FIRST_OPERATION <= kinds[source.position] <= form.LAST_OPERATION
    source.ask("step", ("ticket", True))
    assert kinds[source.position - 1] == Kind.LAUNCHED
    source.ask("step", ("event", True))
    assert kinds[source.position - 1] not in form.BOOKKEEPING


def test_jump_to_events_and_times(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    for place in ("300", "1,000", "end"):
        source.ask("jump", place)
        agree(source, recorded.path)
    middle = told(source).end_ns // 2
    source.ask("jump", f"{middle}ns")
    assert source.position == Trace(recorded.path).sequence_at(middle)
    agree(source, recorded.path)


@pytest.mark.parametrize("place", ["nowhere", "99999999", "-3", "5h", ""])
def test_bad_jumps_say_so_and_change_nothing(recorded: Recorded, place: str) -> None:
    source = TraceSource(recorded.path)
    before = source.position
    source.ask("jump", place)

    assert source.position == before
    assert told(source).message


def test_bookmarks(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("next bookmark")
    assert "no bookmarks" in told(source).message
    for place in (400, 700):
        source.ask("go", place)
        source.ask("bookmark")
    source.ask("next bookmark")
    assert source.position == 400
    source.ask("next bookmark")
    assert source.position == 700 and told(source).bookmarks == (400, 700)
    source.ask("bookmark")
    assert told(source).bookmarks == (400,)


# --- lists ----------------------------------------------------------------------------------------


def test_events_and_map_share_one_cursor(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 800)
    source.ask("search", "kind=LeaseBegin band=full")
    snapshot = told(source)

    row = snapshot.lists.rows[snapshot.lists.current]
    assert row.sequence == source.position - 1
    assert row.kind == "LeaseBegin" and snapshot.bands[row.band].name == "full"
    assert snapshot.page is not None and snapshot.page.band == row.band
    assert "matches" in snapshot.matches


def test_search_there_and_back(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("go", 300)
    source.ask("search", "PageMove")
    first = source.position
    source.ask("again", True)
    second = source.position
    assert second > first
    source.ask("again", False)
    assert source.position == first
    source.ask("search", "no-such-word")
    assert "no match" in told(source).message and source.position == first


@pytest.mark.parametrize("query", ["band=attic", "kind=None", "request=x", "pages=9..3", "speed=3"])
def test_bad_queries_say_so(recorded: Recorded, query: str) -> None:
    source = TraceSource(recorded.path)
    for what in ("filter", "search"):
        source.ask(what, query)
        assert told(source).message


@pytest.mark.parametrize("query", ["", "kind=LeaseBegin", "band=full", "request=3", "finished"])
def test_the_list_is_what_fits_the_filter(recorded: Recorded, query: str) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("filter", query)
    trace = Trace(recorded.path)
    every = [e.sequence for e in source.events.query.events(trace, trace.start, trace.stop)]
    for position in (900, 905, 400, 1200, 1210, 100):
        source.ask("go", position)
        rows = told(source).lists
        before = [row.sequence for row in rows.rows[: rows.current + 1]]
        after = [row.sequence for row in rows.rows[rows.current + 1 :]]
        assert before == [s for s in every if s < position][-len(before) :] if before else True
        assert after == [s for s in every if s >= position][: len(after)]
        assert len(before) + len(after) == min(12, len(before) + len(after), len(every))
        assert len(before) == min(12 - len(after), len([s for s in every if s < position]))


def test_rows_of_a_filtered_list_lead_to_its_events(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("filter", "kind=Launched")
    source.ask("row", -1)
    places = [source.position]
    for _ in range(3):
        source.ask("row", -1)
        places.append(source.position)
    assert places == sorted(set(places), reverse=True)
    source.ask("row", 2)
    assert source.position == places[1]


@pytest.mark.parametrize("tab", ["leases", "tickets", "checks", "refusals"])
def test_other_lists(recorded: Recorded, tab: str) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", replace(VIEW, tab=tab, rows=500))
    state = source.timeline.state
    rows = told(source).lists.rows
    match tab:
        case "leases":
            holders = {int(n) for band in state.bands for n in band.owner[band.slice] if n >= 0}
            assert len(rows) == len(state.pins) + len(holders)
        case "tickets":
            assert {row.kind for row in rows} >= {"Launched", "Done", "Barrier"}
            assert all(len(row.lane) == 10 for row in rows)
        case "checks":
            assert rows == ()
        case "refusals":
            refused = [what for kind, what in recorded.told if kind == "outcome" and not what.ok]
            assert sum(row.kind == "Outcome" for row in rows) == len(refused)


def test_checks_find_what_is_recorded_and_what_is_broken(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=120, close=False)
    run.recorder.violation("conservation", "a page too many")
    run.recorder.close()
    source = TraceSource(run.path)
    source.ask("view", replace(VIEW, tab="checks"))
    assert told(source).violations == 1
    source.ask("check")
    while source.busy:
        source.tick()
    source.ask("view", replace(VIEW, tab="checks", rows=20))
    snapshot = told(source)

    assert "conservation: a page too many" in [row.text for row in snapshot.lists.rows]
    assert "all" in snapshot.checks


def test_the_waterfall_ends_with_the_present(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", replace(VIEW, window_ns=source.now_ns))
    for place in (200, 600, 1000):
        source.ask("go", place)
        snapshot = told(source)
        present = tuple(band.extent_bytes for band in snapshot.bands)
        assert snapshot.waterfall[-1].extents == present
        for piece in snapshot.waterfall[:-1]:
            if piece.extents is not None:
                # As the state was after the last event of that time.
                at = Trace(recorded.path).sequence_at(piece.time_ns + 1)
                state = Timeline(Trace(recorded.path)).seek(at)
                assert piece.extents == tuple(band.byte_range() for band in state.bands)


# --- the cursor and the map -----------------------------------------------------------------------


def test_the_cursor_walks_over_every_band(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 1000)
    source.ask("point", 0)
    seen = []
    for _ in range(90):
        snapshot = told(source)
        assert snapshot.page is not None and snapshot.map.cursor >= 0
        seen.append(snapshot.page.band)
        source.ask("move", 1)
    existing = [i for i, b in enumerate(source.timeline.state.bands) if b.extent[1] > b.extent[0]]
    assert sorted(set(seen)) == existing and seen == sorted(seen)


def test_zooming_keeps_the_cursor_in_sight(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 1000)
    source.ask("band", 1)
    for _ in range(12):
        source.ask("zoom", 1)
        snapshot = told(source)
        assert snapshot.map.cursor >= 0
        assert sum(run.length for run in snapshot.map.runs) == 80
    assert snapshot.map.high - snapshot.map.low < snapshot.total_bytes
    for _ in range(20):
        source.ask("zoom", -1)
    assert (told(source).map.low, build(source).map.high) == (0, snapshot.total_bytes)


def test_figures_of_the_device_are_passed_on(recorded: Recorded) -> None:
    figures = Device("H200", memory_used_bytes=5)
    assert told(TraceSource(recorded.path, device=lambda: figures)).device == figures
