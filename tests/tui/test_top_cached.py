"""What `bandscope top` shows of a prefix cache: its pages on the map, in the table, and who uses one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.band import HOLE, LIVE
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.decode import read_events
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.build import build
from bandscope.tui.top.cells import arena_map, cells_of
from bandscope.tui.top.census import Census
from bandscope.tui.top.drill import page_rows, request_rows
from bandscope.tui.top.lists import lease_rows
from bandscope.tui.top.look import PLAIN, THEMES, UNICODE
from bandscope.tui.top.page_details import PageSearch
from bandscope.tui.top.paint import Ui, paint
from bandscope.tui.top.paint_lists import list_lines
from bandscope.tui.top.paint_map import page_line, zoom_line
from bandscope.tui.top.paint_words import facts_of
from bandscope.tui.top.screens import help_lines
from bandscope.tui.top.snapshot import Cell, PageDetails, Run, View
from bandscope.tui.top.source import TraceSource
from bandscope.tui.top.table import table_lines
from tests.allocator.arenas import P2W, P3, small_arena
from tests.inspect_.cached import LAYOUTS, record_cached
from tests.inspect_.traces import record
from tests.tui.test_top_cells import hold, make_state
from tests.tui.test_top_source import agree, told

VIEW = View(columns=80, rows=12, waterfall=6)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Request 0 published two pages with a state after them; requests 1 and 2 share them."""
    arena = small_arena(P3, prefix_cache=True, checkpoint_grid_tokens=4)
    with Recorder(tmp_path / "used", arena) as recorder:
        arena.apply(ops.Admit(0, 1, (7, 8)))
        assert arena.extend(0, 8)
        arena.complete(arena.launch([0]))
        assert arena.apply(ops.Checkpoint(0)).value == 8
        arena.apply(ops.Release(0))
        recorder._write_keyframe()  # what happened before it is in another stretch
        for request in (1, 2):
            assert arena.apply(ops.Admit(request, 1, (7, 8, 9))).value == 8
        assert arena.extend(1, 4)
        arena.launch([1])
    return tmp_path / "used.trace"


def words(rows: list[Any]) -> list[str]:
    """Kinds and texts of rows."""
    return [f"{row.kind}: {row.text}" for row in rows]


def words_of(lines: list[Any]) -> list[str]:
    """Lines without their styles."""
    return ["".join(text for text, _ in line) for line in lines]


def searched(path: Path, band: int, virtual: int) -> PageDetails:
    """All that is found about a page at the end of a trace."""
    trace = Trace(path)
    state = Timeline(trace).seek(trace.stop)
    search = PageSearch(trace, state, (band, int(state.bands[band].page_of[virtual])))
    while search.step():
        pass
    return search.details


# --- the map and its counts -----------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_counts_are_those_of_the_state_wherever_it_goes(tmp_path: Path, name: str) -> None:
    run = record_cached(tmp_path / "run", name, seed=2, operations=600, keyframe_every=400)
    timeline = BulkTimeline(Trace(run.path))
    census = Census(timeline)
    draw = random.Random(1)
    at = 1
    while at < timeline.trace.stop:
        at = min(timeline.trace.stop, at + draw.choice((1, 5, 60, 300)))
        state = timeline.advance(at)
        census.update()
        for band, counted in zip(state.bands, census.bands, strict=True):
            part = band.slice
            assert counted.within(part.start, part.stop)[4] == band.cached()
            first, stop = sorted(draw.choices(range(band.capacity + 1), k=2))
            pages = band.owner[first:stop]
            assert counted.within(first, stop)[4] == int((pages == events.CACHE).sum())


def test_pages_that_only_change_hands_are_counted_again(tmp_path: Path) -> None:
    arena = small_arena(P2W, units=6000, prefix_cache=True)
    with Recorder(tmp_path / "run", arena):
        arena.apply(ops.Admit(0, 0, tuple(range(600))))
        assert arena.extend(0, 2400)
        arena.complete(arena.launch([0]))
        assert arena.apply(ops.Publish(0)).value == 2400
    trace = Trace(tmp_path / "run.trace")
    share = next(e.sequence for e in read_events(trace) if isinstance(e.body, events.Share))
    timeline = BulkTimeline(trace)
    census = Census(timeline)
    for stop, cached in ((share, 0), (share + 1, 600)):
        timeline.advance(stop)
        census.update()
        for band, counted in zip(timeline.state.bands, census.bands, strict=True):
            assert counted.within(band.slice.start, band.slice.stop)[4] == cached


def test_the_census_of_a_large_band_counts_across_its_blocks() -> None:
    state = make_state(100_000, {"full": (1, 100_000)})
    state.has_cache = True
    hold(state, 0, np.arange(1, 100_000))
    band = state.bands[0]
    band.owner[30_000:70_001] = events.CACHE

    class Still:
        dirty = [np.ones((band.capacity >> 8) + 1, bool)]

    still = Still()
    still.state = state  # type: ignore[attr-defined]
    census = Census(still)  # type: ignore[arg-type]
    census.update()
    counted = arena_map(state, 0, state.total_bytes, 100, None, (), census)
    assert counted.runs == arena_map(state, 0, state.total_bytes, 100).runs
    shown = [run.cell for run in counted.runs for _ in range(run.length)]
    assert shown.count(Cell.CACHED) in (39, 40, 41) and shown.count(Cell.LIVE) in (58, 59, 60)


def test_a_character_is_cached_where_most_of_its_live_pages_are() -> None:
    state = make_state(101, {"full": (1, 101)})
    band = state.bands[0]
    hold(state, 0, np.arange(1, 101))

    def of_ten(cached: int, holes: int) -> Cell:
        band.owner[:10], band.state[:10] = 7, LIVE
        band.owner[:cached] = events.CACHE
        band.state[10 - holes : 10] = HOLE
        return Cell(int(cells_of(band, 1, 101, 10, has_cache=True)[0]))

    assert of_ten(10, 0) is Cell.CACHED and of_ten(6, 0) is Cell.CACHED
    assert of_ten(5, 0) is Cell.LIVE
    assert of_ten(3, 5) is Cell.CACHED and of_ten(2, 5) is Cell.MOSTLY_LIVE
    assert of_ten(4, 6) is Cell.MOSTLY_HOLES
    band.pins[0] = 1
    assert of_ten(10, 0) is Cell.PINNED
    band.owner[:10] = events.CACHE
    assert Cell(int(cells_of(band, 1, 101, 10)[0])) is Cell.PINNED
    band.pins[0] = 0
    assert Cell(int(cells_of(band, 1, 101, 10)[0])) is Cell.LIVE  # of an arena without a cache


# --- the screen -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_shown_is_what_a_fresh_replay_says(tmp_path: Path, name: str) -> None:
    path = record_cached(tmp_path / "run", name, seed=4, operations=400, keyframe_every=150).path
    source = TraceSource(path)
    source.ask("view", VIEW)
    while source.busy:
        source.tick()
    agree(source, path)
    shown, state = build(source), source.timeline.state
    assert [band.cached for band in shown.bands] == [band.cached() for band in state.bands]
    assert any(band.cached for band in shown.bands)
    assert all("cached" in band for band in shown.to_json()["bands"])
    for width in (80, 120, 200):
        text = "\n".join("".join(t for t, _ in line) for line in paint(shown, Ui(), width, 40))
        assert " cached " in text


def test_without_a_cache_nothing_speaks_of_one(tmp_path: Path) -> None:
    path = record(tmp_path / "run", P3, seed=4, operations=200).path
    source = TraceSource(path)
    shown = told(source)
    assert not shown.has_cache and all(band.cached is None for band in shown.bands)
    assert not any("cached" in band for band in shown.to_json()["bands"])
    text = "\n".join("".join(t for t, _ in line) for line in paint(shown, Ui(), 200, 40))
    assert "cached" not in text
    assert "cache" not in str(help_lines(80, PLAIN))
    assert "mostly of the prefix cache" in str(help_lines(80, PLAIN, has_cache=True))


def test_nothing_is_torn_apart_at_the_edge(used: Path) -> None:
    """Neither the legend, nor a help text, a fact, a title or a row without a mark that it goes on."""
    source = TraceSource(used)
    for tab in ("events", "leases", "page"):
        source.ask("view", replace(VIEW, tab=tab))
        shown = told(source)
        known = {" · ".join(facts_of(shown)[:count]) for count in range(20)}
        for width in range(40, 241):
            assert all(
                sum(cell_len(text) for text, _ in line) <= width
                for line in help_lines(width, PLAIN, has_cache=True)
            ), width
            lines = words_of(paint(shown, Ui(tab), width, 40))
            assert lines[1].strip() in known, width
            assert all(len(line) <= width for line in words_of(table_lines(shown, width, 9, PLAIN)))
            for row, line in zip(
                shown.lists.rows, list_lines(shown, tab, 0, width, 40), strict=False
            ):
                begun = line[-1][0].removesuffix("…")
                assert row.text.startswith(begun) and (begun != line[-1][0] or begun == row.text)


def test_the_cursor_is_seen_on_every_character(used: Path) -> None:
    """What it stands on can be told, too; a full block in reverse would be a blank."""
    source = TraceSource(used)
    shown = told(source)
    assert shown.zoom is not None
    for cell, glyph in UNICODE.cells.items():
        zoom = replace(shown.zoom, runs=(Run(cell, 0, 3),), cursor=1, differing=())
        pieces = zoom_line(replace(shown, zoom=zoom), 0, 80, UNICODE)[:3]
        assert [text for text, _ in pieces] == [glyph] * 3
        for theme in THEMES:
            styles = [theme.style(style) for _, style in pieces]
            assert styles[0] == styles[2] != styles[1]
            assert not (glyph == "█" and styles[1].reverse), cell


def test_the_line_of_a_page_says_who_uses_it(used: Path) -> None:
    source = TraceSource(used)
    source.ask("view", VIEW)
    shown = told(source)
    state = source.timeline.state
    page = int(state.bands[2].page_of[0])
    source.ask("cursor", (2, page))
    shown = told(source)
    said = "".join(text for text, _ in page_line(shown, 9, 111))
    assert "holds 0.0 of the cache, used by r1, r2" in said
    many = replace(shown, page=replace(shown.page, users=tuple(range(1, 8))))  # type: ignore[type-var]
    assert "used by r1, r2, r3, r4 and 3 more" in "".join(text for text, _ in page_line(many, 9, 111))


# --- one page, one request ------------------------------------------------------------------------


def test_the_story_of_a_cached_page(used: Path) -> None:
    told_events = list(read_events(Trace(used)))
    shares = [event.sequence for event in told_events if isinstance(event.body, events.Share)]
    launches = [event.sequence for event in told_events if isinstance(event.body, ops.Launch)]
    details = searched(used, 2, 0)
    assert details.owner == events.CACHE and details.users == (1, 2)
    assert details.shared is not None and details.shared.sequence == shares[0]
    assert details.shared.text == "by Checkpoint of request 0"
    assert details.read is not None and details.read.sequence == launches[1]
    assert details.read.text == "by forward 2 over request 1, which shares it"
    said = words(page_rows(details, 2, (2,)))
    assert "Owner: the prefix cache; 2 requests use it" in said
    assert "User: request 1 shares it; Enter lists its pages" in said
    assert any(line.startswith("Shared: event") for line in said)
    assert not any(line.startswith("Last write: none") for line in said)


def test_the_story_of_a_kept_state(used: Path) -> None:
    copies = [e for e in read_events(Trace(used)) if isinstance(e.body, events.StateCopy)]
    slot = copies[0].body.destination  # type: ignore[union-attr]
    details = searched(used, 0, slot)
    assert details.owner == events.CACHE and details.users == ()
    assert details.written is not None and details.written.sequence == copies[0].sequence
    assert details.read is not None and details.read.sequence == copies[-1].sequence
    copied = searched(used, 0, copies[-1].body.destination)  # type: ignore[union-attr]
    assert copied.owner == 2 and copied.written is not None
    assert copied.written.text == f"a copy of slot {slot} (match)"


def test_own_pages_follow_on_what_was_matched(used: Path) -> None:
    """The forward of request 1 wrote its own page, which stands behind the two that it shares."""
    own = next(
        e.body.virtual[0] for e in read_events(Trace(used))
        if isinstance(e.body, events.LeaseBegin) and e.body.holder == 1 and e.body.band == "full"
    )  # fmt: skip
    details = searched(used, 2, int(own))
    assert details.written is not None and details.written.text == "by forward 2 over request 1"


def test_lists_tell_of_the_cache(used: Path) -> None:
    trace = Trace(used)
    state = Timeline(trace).seek(trace.stop)
    said = words(lease_rows(state))
    assert any(
        line.startswith("Cache: prefix cache: owns 1 mamba, 2 window_8, 2 full pages; 2 requests")
        for line in said
    ), said
    assert any("request 1, 12 tokens: owns" in line and "shares 2 with the cache" in line
               for line in said)  # fmt: skip
    rows = words(request_rows(state, 1))
    assert "Shared: its first 2 pages are the cache's: 0..1" in rows
