"""Grafts in traces: a page of the prefix cache lies where a request's page lay, under its own name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.inspect import keyframe
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.checks.checked_timeline import CheckedTimeline
from bandscope.inspect.checks.invariants import check_trace
from bandscope.inspect.checks.races import find_races
from bandscope.inspect.decode import Event, read_events
from bandscope.inspect.differences import compare
from bandscope.inspect.exports import export
from bandscope.inspect.exports.rows import PAGES, PageRows
from bandscope.inspect.exports.window import Window
from bandscope.inspect.format import INLINE, Kind, pack_list
from bandscope.inspect.lease_lives import lease_life
from bandscope.inspect.lifetimes import page_life
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay_history import page_history
from bandscope.inspect.selection import Selection, select
from bandscope.inspect.spelling import spell_event
from bandscope.inspect.timeline import Timeline
from tests.inspect_.grafts import begin, grafted, publish
from tests.inspect_.rewrite import Change, Row, of_kind, rewrite, without
from tests.inspect_.test_bulk import same
from tests.inspect_.test_races import agrees, naive_races

WINDOW, FULL = 0, 1


def the_graft(trace: Trace) -> Event:
    """The one graft of a trace."""
    (event,) = [event for event in read_events(trace) if isinstance(event.body, events.Graft)]
    return event


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [1, 2])
def test_what_is_recorded_is_what_was_told(tmp_path: Path, pages: int) -> None:
    path = grafted(tmp_path / "run", pages)
    body = the_graft(Trace(path)).body
    assert isinstance(body, events.Graft)
    assert (body.request, body.band) == (1, "window_8")
    assert body.virtual.tolist() == list(range(pages + 2, 2 * pages + 2))
    assert body.into.tolist() == list(range(1, pages + 1))
    (row,) = of_kind(path, Kind.GRAFT)
    assert bool(row.flags & INLINE) == (pages == 1) == (not row.payload)


@pytest.mark.parametrize("pages", [1, 2])
def test_the_place_has_another_name_and_another_owner(tmp_path: Path, pages: int) -> None:
    with begin(tmp_path / "run", pages) as recorder:
        publish(recorder.arena, pages)
    trace = Trace(recorder.directory)
    at = the_graft(trace).sequence
    before, after = Timeline(trace).seek(at), Timeline(trace).seek(at + 1)
    window, now = before.bands[WINDOW], after.bands[WINDOW]
    own, into = np.arange(pages) + pages + 2, np.arange(pages) + 1
    places = window.page_of[own]
    assert (places >= 0).all() and (window.page_of[into] < 0).all()
    assert now.page_of[into].tolist() == places.tolist() and (now.page_of[own] < 0).all()
    assert now.virtual[places - now.base].tolist() == into.tolist()
    assert (now.owner[places - now.base] == events.CACHE).all()
    assert now.leased_at[into].tolist() == window.leased_at[own].tolist()
    assert {*own.tolist(), *into.tolist()} <= set(now.unpublished_rows().tolist())
    assert not set(own.tolist()) & set(window.unpublished_rows().tolist())
    difference = compare(before, after).bands[WINDOW]
    assert difference.came.tolist() == into.tolist() and difference.gone.tolist() == own.tolist()
    snapshot = keyframe.decode(keyframe.encode(recorder.arena.snapshot()))
    assert Timeline(trace).seek(trace.stop).differences(snapshot) == []


def test_many_records_at_once_lead_to_the_same_state(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        publish(recorder.arena)
        recorder.arena.release(7)
        recorder.arena.compact(urgent=True)
        recorder.arena.launch([1])
    trace = Trace(recorder.directory)
    for stop in range(the_graft(trace).sequence - 1, trace.stop + 1):
        same(BulkTimeline(trace).advance(stop), Timeline(trace).advance(stop))


# --- rules broken on purpose ----------------------------------------------------------------------


def findings(path: Path, change: Callable[[Row], Row]) -> list[str]:
    """What is found in a trace whose graft is another."""
    target = path.with_name("broken.trace")
    rewrite(path, target, lambda row: [change(row) if row.kind == Kind.GRAFT else row])
    timeline = CheckedTimeline(Trace(target))
    timeline.advance(the_graft(timeline.trace).sequence + 1)
    return [f"{finding.name}: {finding.detail}" for finding in timeline.findings]


def named(virtual: list[int], into: list[int]) -> Callable[[Row], Row]:
    """The graft with other pages."""
    payload = b"".join(pack_list(np.array(pages)) for pages in (virtual, into))
    return lambda row: replace(row, payload=payload, a=len(virtual))


def test_nothing_is_wrong_with_it(tmp_path: Path) -> None:
    assert findings(grafted(tmp_path / "run"), lambda row: row) == []


CANNOT = "tables: the event cannot be applied: ValueError: "


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda row: replace(row, b=5),
         "ownership: page window_8 4.0 of request 5 was grafted, but request 1 holds it"),
        (named([0, 5], [1, 2]),
         "ownership: page window_8 0.0 of request 1 was grafted, but request 7 holds it"),
        (named([4, 6], [1, 2]), CANNOT + "page window_8 6.0 was grafted, but nobody holds it"),
        (named([4, 5], [0, 2]),
         CANNOT + "a page was grafted into window_8 0.0, which lies at physical page 2"),
        (named([4, 5], [1, 9]),
         "ownership: a page was grafted into window_8 9.0, which is not the cache's"),
        (named([4, 5], [1, 3]),
         "ownership: a page of request 1 was grafted into one that it does not share"),
        (named([4, 5], [1, 1]), CANNOT + "pages [4, 5] were grafted into [1, 1]"),
        (named([4, 4], [1, 2]), CANNOT + "pages [4, 4] were grafted into [1, 2]"),
        (named([4, 5], [1]), CANNOT + "pages [4, 5] were grafted into [1]"),
        (lambda row: replace(row, band=FULL),
         CANNOT + "pages were grafted in full, which is no window"),
    ],
)  # fmt: skip
def test_each_rule_that_is_broken_is_named(
    tmp_path: Path, change: Callable[[Row], Row], told: str
) -> None:
    assert told in findings(grafted(tmp_path / "run"), change)


def test_a_graft_that_is_missing_is_found_at_the_keyframe(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        publish(recorder.arena)
        recorder._write_keyframe()
    (row,) = of_kind(recorder.directory, Kind.GRAFT)
    rewrite(recorder.directory, tmp_path / "other.trace", without(row.sequence))
    found = {finding.name for finding in check_trace(Trace(tmp_path / "other.trace"))}
    assert "keyframe" in found


# --- happens-before -------------------------------------------------------------------------------


def without_settles(path: Path) -> Trace:
    """The trace without its barriers."""
    target = path.with_name("racy.trace")
    rewrite(path, target, without(*(row.sequence for row in of_kind(path, Kind.BARRIER))))
    return Trace(target)


def test_a_forward_in_flight_may_write_what_is_the_caches_now(tmp_path: Path) -> None:
    """Its place is copied from, under the cache's name."""
    with begin(tmp_path / "run") as recorder:
        publish(recorder.arena)
        recorder.arena.release(7)
        assert recorder.arena.compact(urgent=True)
    assert find_races(Trace(recorder.directory)).races == []
    racy = without_settles(recorder.directory)
    report = find_races(racy)
    agrees(racy, report)
    told = {(race.kind, race.band, race.ticket, race.edge) for race in report.races}
    assert ("RAW", "window_8", 2, "settle") in told


def test_the_place_stays_one_that_was_written_when_it_is_given_up(tmp_path: Path) -> None:
    with begin(tmp_path / "run", hand_out="zero") as recorder:
        arena = recorder.arena
        publish(arena)
        arena.release(1)
        assert arena.apply(ops.Evict((2, 0))).value == 2
        arena.apply(ops.Admit(3, 0))
        while arena.extend(3, 4):
            pass
        arena.launch([3])
    assert find_races(Trace(recorder.directory)).races == []
    racy = without_settles(recorder.directory)
    report = find_races(racy)
    agrees(racy, report)
    assert ("WAW", "window_8", 2) in {(race.kind, race.band, race.ticket) for race in report.races}


def test_rows_of_a_graft_must_be_published(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        publish(recorder.arena)
        recorder.arena.complete(2)
        recorder.arena.launch([1])
    trace = Trace(recorder.directory)
    assert find_races(trace).races == []
    at = the_graft(trace).sequence
    late = [row.sequence for row in of_kind(trace.path, Kind.PUBLISH) if row.sequence > at]
    rewrite(trace.path, tmp_path / "stale.trace", without(*late))
    races = find_races(Trace(tmp_path / "stale.trace")).races
    assert [(race.band, race.edge) for race in races] == [("window_8", "publish")]
    assert "window_8 1" in races[0].first.what


def test_forwards_from_before_do_not_read_its_row(tmp_path: Path) -> None:
    """Request 4 shares the page, but its forward was launched while the cache had lost it here."""
    with begin(tmp_path / "run") as recorder:
        arena = recorder.arena
        arena.complete(2)
        assert arena.apply(ops.Admit(4, 0, (0, 1, 98))).value == 0
        assert arena.extend(4, 8)
        arena.complete(arena.launch([4]))
        assert arena.apply(ops.Publish(4)).value == 8  # grafts
        assert arena.extend(4, 12)
        arena.apply(ops.TrimWindow((4,)))
        assert arena.apply(ops.Evict((2, 0))).value == 2
        arena.launch([4])
        publish(arena)  # grafts again
        arena.release(1)
        assert arena.apply(ops.Evict((2, 0))).value == 2
        arena.launch([7])
    trace = Trace(recorder.directory)
    assert find_races(trace).races == []
    racy = without_settles(trace.path)
    assert agrees(racy, find_races(racy)) == naive_races(racy)
    assert not {race.band for race in find_races(racy).races} & {"window_8"}


# --- stories --------------------------------------------------------------------------------------


def test_the_story_of_the_requests_page_ends(tmp_path: Path) -> None:
    path = grafted(tmp_path / "run")
    life = page_life(Trace(path), "window_8", 4)
    assert [one.what for one in life.events] == ["leased", "published", "grafted"]
    last = life.events[-1]
    assert last.detail == "became the cache's page 1"
    assert last.physical == life.events[0].physical and last.operation == "Publish 1"
    assert "grafted" not in [one.what for one in page_life(Trace(path), "full", 4).events]


@pytest.mark.parametrize("pages", [1, 2])
def test_the_story_of_the_caches_page_goes_on(tmp_path: Path, pages: int) -> None:
    with begin(tmp_path / "run", pages) as recorder:
        publish(recorder.arena, pages)
        recorder.arena.complete(2)
        recorder.arena.launch([1])
        recorder.arena.release(1)
        recorder.arena.apply(ops.Evict((pages, 0)))
    trace = Trace(recorder.directory)
    of_request = page_life(trace, "window_8", pages + 2)
    life = page_life(trace, "window_8", 1)
    what = [one.what for one in life.events]
    told = ["freed", "reusable", "grafted", "published", "freed", "pending"]
    assert what[what.index("freed") :] == told
    graft = life.events[what.index("grafted")]
    assert graft.detail == f"where page {pages + 2} of request 1 lay" and graft.generation == 0
    assert graft.physical == of_request.events[-1].physical
    assert life.events[-1].physical == graft.physical


def test_a_pin_of_the_place_waits_for_the_page_under_its_new_name(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        arena = recorder.arena
        pin = arena.apply(ops.Lease(1, "window_8", 0, 2)).value
        publish(arena)
        arena.complete(2)
        recorder._write_keyframe()
        arena.apply(ops.Admit(3, 0))
        assert arena.extend(3, 8)  # the ids of request 1 come again
        arena.release(3)
        arena.apply(ops.SetGate(True))
    path = recorder.directory
    assert 4 in the_ended(path) and lease_life(Trace(path), pin).waited == []
    export(Trace(path), "slice", tmp_path / "part.trace", start=of_kind(path, Kind.KEYFRAME)[1].sequence)
    (gate,) = of_kind(path, Kind.SET_GATE)
    lost = Row(-1, Kind.LEASE_END, INLINE, WINDOW, 1, events.CACHE, 0)
    change: Change = lambda row: [row, lost] if row.kind == gate.kind else [row]  # noqa: E731
    for name in (path.name, "part.trace"):
        rewrite(tmp_path / name, tmp_path / f"lost-{name}", change)
        (waited,) = lease_life(Trace(tmp_path / f"lost-{name}"), pin).waited
        assert waited["what"] == "freed" and waited["detail"].startswith("1 of its pages")


def the_ended(path: Path) -> set[int]:
    """Window pages that request 3 gave back."""
    return {
        int(page) for event in read_events(Trace(path)) if isinstance(event.body, events.LeaseEnd)
        if event.body.band == "window_8" and np.array_equal(event.body.holder, 3)
        for page in event.body.virtual
    }  # fmt: skip


def test_the_history_of_a_place(tmp_path: Path) -> None:
    trace = Trace(grafted(tmp_path / "run"))
    state = Timeline(trace).seek(trace.stop)
    place = int(state.bands[WINDOW].page_of[1])
    said = page_history(trace, "window_8", place, trace.stop)
    assert said[-1].what == "virtual page 4 of request 1 became the cache's page 1"
    assert said[-1].operation == "Publish"
    assert said[-2].what.startswith("leased by request 1 as virtual page 4")


# --- choosing, words and tables -------------------------------------------------------------------


def test_it_is_chosen_by_request_band_and_either_page(tmp_path: Path) -> None:
    trace = Trace(grafted(tmp_path / "run"))
    event = the_graft(trace)
    assert spell_event(event.body) == "window_8: 4..5 of request 1 became the cache's 1..2"

    def chosen(**how: object) -> bool:
        wanted = Selection(kinds=("Graft",), **how)  # type: ignore[arg-type]
        return [one.sequence for one in select(trace, wanted)] == [event.sequence]

    assert chosen() and chosen(request=1) and chosen(bands=(WINDOW,))
    assert chosen(pages=(5, 5)) and chosen(pages=(1, 1))
    assert not chosen(request=4) and not chosen(pages=(3, 3)) and not chosen(bands=(FULL,))


def test_another_request_does_not_name_a_short_one(tmp_path: Path) -> None:
    trace = Trace(grafted(tmp_path / "run", 1))
    event = the_graft(trace)
    for request, found in ((1, True), (4, False)):
        named_by = {one.sequence for one in select(trace, Selection(request=request))}
        assert (event.sequence in named_by) == found


def test_its_pages_are_rows_under_both_names(tmp_path: Path) -> None:
    trace = Trace(grafted(tmp_path / "run"))
    event = the_graft(trace)
    names = [name for name, _ in PAGES]
    rows = PageRows(Window(trace, trace.start, trace.stop)).rows(event)
    one, other = (dict(zip(names, row, strict=True)) for row in rows)
    place = int(Timeline(trace).seek(event.sequence).bands[WINDOW].page_of[4])
    for row, virtual, request in ((one, 4, 1), (other, 1, None)):
        assert (row["kind"], row["band"], row["pages"]) == ("Graft", "window_8", 2)
        assert (row["virtual"], row["generation"], row["request"]) == (virtual, 0, request)
        assert (row["physical"], row["from_physical"]) == (place, None)
