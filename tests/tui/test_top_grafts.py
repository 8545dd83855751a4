"""Grafts on the screen: a page of the cache that lies where a request's page lay."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.census import Census
from bandscope.tui.top.drill import page_rows
from bandscope.tui.top.lists import place_of
from bandscope.tui.top.page_details import PageSearch
from bandscope.tui.top.snapshot import PageDetails
from tests.inspect_.grafts import begin, grafted, publish

WINDOW, FULL = 0, 1


def searched(trace: Trace, page: int, stop: int, band: int = WINDOW) -> PageDetails:
    """All that is found about a physical page before an event."""
    search = PageSearch(trace, Timeline(trace).seek(stop), (band, page))
    while search.step():
        pass
    return search.details


def the_graft(trace: Trace) -> int:
    """The event of the one graft."""
    (found,) = [e.sequence for e in read_events(trace) if isinstance(e.body, events.Graft)]
    return found


def place(trace: Trace, virtual: int, stop: int) -> int:
    """Where a window page lies before an event."""
    return int(Timeline(trace).seek(stop).bands[WINDOW].page_of[virtual])


def test_the_story_of_the_page_begins_with_the_graft(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        publish(recorder.arena)
        recorder.arena.launch([1])
    trace = Trace(recorder.directory)
    at = the_graft(trace)
    details = searched(trace, place(trace, 1, trace.stop), trace.stop)
    assert (details.owner, details.users, details.virtual) == (events.CACHE, (1,), 1)
    text = "by Publish of request 1, where its page 4 lay (a graft)"
    for touch in (details.leased, details.shared):
        assert touch is not None and (touch.sequence, touch.text) == (at, text)
    assert details.read is not None and details.read.text.startswith("by forward 3 over request 1")
    assert details.written is None  # not by whoever wrote a page of this name, elsewhere
    said = [f"{row.kind}: {row.text}" for row in page_rows(details, WINDOW, ())]
    assert f"Leased: event {at:,}: {text}" in said
    of_full = searched(trace, int(Timeline(trace).seek(at).bands[FULL].page_of[1]), trace.stop, FULL)
    assert of_full.leased is not None and of_full.leased.sequence < at


def test_a_page_that_was_freed_had_its_new_name(tmp_path: Path) -> None:
    with begin(tmp_path / "run") as recorder:
        arena = recorder.arena
        publish(arena)
        arena.release(1)
        arena.apply(ops.Evict((2, 0)))
    trace = Trace(recorder.directory)
    page = place(trace, 4, the_graft(trace))
    details = searched(trace, page, trace.stop)
    assert details.freed is not None
    assert details.freed.text == "freed by Evict; it held page 1 of the cache"


@pytest.mark.parametrize("pages", [1, 2])
def test_the_cursor_goes_to_where_it_happened(tmp_path: Path, pages: int) -> None:
    trace = Trace(grafted(tmp_path / "run", pages))
    at = the_graft(trace)
    body = next(event.body for event in read_events(trace, at))
    here = place_of(trace, Timeline(trace).seek(at + 1), body)
    assert here == (WINDOW, place(trace, pages + 2, at))


def test_cached_pages_are_counted_again(tmp_path: Path) -> None:
    with begin(tmp_path / "run", 600, units=8000) as recorder:
        publish(recorder.arena, 600)
    trace = Trace(recorder.directory)
    timeline = BulkTimeline(trace)
    census = Census(timeline)
    for stop, cached in ((the_graft(trace), 0), (the_graft(trace) + 1, 600)):
        timeline.advance(stop)
        census.update()
        band = timeline.state.bands[WINDOW]
        assert census.bands[WINDOW].within(0, band.capacity)[4] == cached == band.cached()
