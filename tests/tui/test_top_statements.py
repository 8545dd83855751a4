"""The twenty statements about a live screen that are its acceptance list, one after the other.

`STATEMENTS` says where each is tested; those that lead here are tested below, on real traces, by keys.
The screen is driven without a thread (`DirectConductor`), with a clock that the test turns.
"""

from __future__ import annotations

import ast
import importlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect.reader import Trace
from bandscope.tui.top.app import TopApp
from bandscope.tui.top.keys import KEYS, MOUSE
from bandscope.tui.top.look import NO_COLOUR, PLAIN, THEMES, UNICODE
from bandscope.tui.top.paint import Ui, paint
from bandscope.tui.top.screens import HelpScreen
from bandscope.tui.top.snapshot import View
from bandscope.tui.top.source import TraceSource
from bandscope.tui.top.table import COLUMNS
from tests.allocator.arenas import P3, P5
from tests.inspect_.traces import Recorded, record
from tests.tui.test_top_app import play, text_of
from tests.tui.test_top_source import agree, told

STATEMENTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("space pauses, data flows on, +N events, End or l returns",
        ("statements.test_1_pause", "live.test_a_live_trace_is_followed_and_paused")),
    2: ("left and right step an event, [ ] a launch, Home, End, g, bookmarks",
        ("statements.test_2_steps", "source.test_steps_land_where_they_say",
         "source.test_jump_to_events_and_times", "source.test_bookmarks")),
    3: ("the state at N is that of a fresh replay, for all N",
        ("statements.test_3_every_instant",
         "source.test_every_step_there_and_back_is_what_a_replay_says")),
    4: ("+ and - zoom bytes, time by itself; one page of a million is seen",
        ("statements.test_4_zoom", "cells.test_one_live_page_of_a_million_is_seen",
         "cells.test_one_other_page_of_a_million_is_seen",
         "cells.test_a_band_of_one_page_among_a_million_has_a_character")),
    5: ("the selected page: owner, id, generation, move, read, write, barrier, request",
        ("details.test_the_story_of_a_page_is_that_of_the_whole_trace",
         "details.test_the_tab_of_a_page",
         "details.test_a_barrier_that_waits_is_told_and_a_fine_one_is_not")),
    6: ("search, filters, next and previous match, count of matches",
        ("source.test_search_there_and_back", "desk.test_matches_are_counted_nearby",
         "source.test_the_list_is_what_fits_the_filter",
         "desk.test_while_it_searches_everything_else_is_answered")),
    7: ("events and picture share one cursor",
        ("source.test_events_and_map_share_one_cursor", "statements.test_7_one_cursor")),
    8: ("counters per band and of the arena; sparklines; estimates are labelled",
        ("statements.test_8_counters", "statements.test_8_estimates_are_labelled")),
    9: ("a violation raises a banner, can be gone to, stays in a list",
        ("statements.test_9_violation",
         "source.test_checks_find_what_is_recorded_and_what_is_broken")),
    10: ("the process ends: the last state stays, how it ended, attach again",
         ("statements.test_10_the_end", "live.test_a_killed_trace", "live.test_a_cut_trace",
          "paint.test_how_it_ended", "actions.test_attach_to_the_process_that_returned",
          "desk.test_a_process_that_returns_is_noticed")),
    11: ("several processes and ranks: picker, next and previous",
         ("app.test_the_picker_shows_who_runs_and_opens_one",
          "actions.test_next_and_previous_arena", "desk.test_the_ranks_of_a_run_side_by_side")),
    12: ("compare two instants, and two traces by sequence; differing pages marked",
         ("compare.test_a_marked_instant_is_compared_wherever_one_goes",
          "compare.test_compare_with_another_trace_event_by_event",
          "compare.test_differing_pages_are_marked_on_the_map_and_in_the_zoom")),
    13: ("export: SVG, JSON, CSV, Perfetto, slice; --once, --json",
         ("actions.test_exports_are_asked_for_or_written", "desk.test_other_forms",
          "desk.test_the_events_of_a_filter_as_csv", "desk.test_a_slice_around_the_instant",
          "command.test_once", "command.test_json")),
    14: ("read-only: no key changes the trace or reaches the process",
         ("statements.test_14_no_key_changes_anything",
          "live.test_nothing_in_the_folder_changes")),
    15: ("80×24 works, 50 columns degrade, too small is said, resizing live",
         ("statements.test_15_sizes", "app.test_resizes_in_bursts",
          "paint.test_what_a_small_terminal_keeps")),
    16: ("ASCII, NO_COLOR, light, colour-blind palette; states differ without colour",
         ("statements.test_16_looks", "cells.test_characters_differ_without_colour",
          "cells.test_plain_characters_are_ascii", "app.test_without_colour")),
    17: ("help lists every binding; footer; palette; mouse",
         ("app.test_every_binding_is_in_the_help", "statements.test_17_help_and_palette",
          "settings.test_the_help_names_every_key_in_force", "app.test_mouse",
          "actions.test_every_tab_can_be_clicked_where_it_stands")),
    18: ("every size from 40 to 240 × 10 to 70: nothing overlaps, nothing outside",
         ("paint.test_every_size_is_filled_exactly", "paint.test_the_parts_fill_every_size")),
    19: ("refresh from 0.1 to 10 s; nothing to do when nothing is new",
         ("command.test_bad_usage", "live.test_nothing_new_makes_no_snapshot")),
    20: ("fake reader and clock, no sleeping tests", ("statements.test_20_no_test_sleeps",)),
}  # fmt: skip


@pytest.mark.parametrize("number", range(1, 21))
def test_every_statement_has_its_tests(number: int) -> None:
    _, places = STATEMENTS[number]
    for place in places:
        module, _, name = place.partition(".")
        found = importlib.import_module(f"tests.tui.test_top_{module}")
        assert callable(getattr(found, name)), place


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("statements") / "run", P5, seed=4, operations=250, keyframe_every=200
    )


def position(app: TopApp) -> int:
    """The event before which the arena is shown."""
    assert app.snapshot is not None
    return app.snapshot.position


def test_1_pause(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = int(Trace(run.path).header["wall_ns"])
    source = TraceSource(run.path, wall_ns=lambda: wall)

    async def script(app: TopApp, pilot: Any) -> None:
        for back in ("end", "l", "space"):
            await pilot.press("space")
            await pilot.pause()
            before = position(app)
            for request in range(4):
                run.arena.apply(ops.Admit(run.recorder.sequence + request, state_slots=0))
            app.conductor.tick()  # type: ignore[attr-defined, union-attr]
            await pilot.pause()
            news = run.recorder.sequence - before
            assert news > 0 and f"paused, +{news:,} events" in text_of(app)
            assert position(app) == before
            await pilot.press(back)
            await pilot.pause()
            assert position(app) == run.recorder.sequence and "live · running" in text_of(app)

    play(source, script)
    run.recorder.close()


def test_2_steps(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("g", *"900", "enter")
        assert position(app) == 900
        await pilot.press("b", "right")
        one = position(app)
        assert one > 900
        await pilot.press("left", "left")
        assert position(app) < 900
        for forwards, backwards in (
            ("right", "left"), ("shift+right", "shift+left"), ("]", "["), ("full_stop", "comma"),
        ):  # fmt: skip
            await pilot.press("'")
            assert position(app) == 900
            await pilot.press(forwards)
            there = position(app)
            await pilot.press(forwards)
            further = position(app)
            await pilot.press(backwards)
            assert 900 < there < further and position(app) == there
        await pilot.press("home")
        assert position(app) == source.first
        await pilot.press("end")
        assert position(app) == source.end

    play(source, script)


def test_3_every_instant(tmp_path: Path) -> None:
    path = record(tmp_path / "run", P3, seed=2, operations=45, keyframe_every=60).path
    source = TraceSource(path)
    places = list(range(source.first, source.end + 1))
    random.Random(1).shuffle(places)
    for place in places:
        source.ask("go", place)
        assert source.position == place
        agree(source, path)


def test_4_zoom(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)

    async def script(app: TopApp, pilot: Any) -> None:
        def bytes_and_time() -> tuple[int, int]:
            assert app.snapshot is not None
            shown = app.snapshot.map
            return shown.high - shown.low, app.snapshot.view.window_ns

        await pilot.press("g", *"900", "enter")
        whole, time = bytes_and_time()
        await pilot.press("plus", "plus")
        assert bytes_and_time()[0] < whole and bytes_and_time()[1] == time
        await pilot.press("minus", "minus", "}")
        assert bytes_and_time()[0] == whole and bytes_and_time()[1] > time
        await pilot.press("{", "{")
        assert bytes_and_time()[1] < time
        await pilot.press("plus", "0")
        assert bytes_and_time()[0] == whole

    play(source, script)


def test_7_one_cursor(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("g", *"900", "enter")
        await pilot.press("/", *"kind=LeaseBegin", "enter")
        for key in ("n", "n", "N", "up", "down"):
            await pilot.press(key)
            snapshot = app.snapshot
            assert snapshot is not None and snapshot.page is not None
            row = snapshot.lists.rows[snapshot.lists.current]
            assert row.sequence == snapshot.position - 1
            if row.band >= 0:  # about a page: there the cursor is
                assert snapshot.page.band == row.band
                assert snapshot.map.spans and snapshot.map.cursor >= 0

    play(source, script)


def test_8_counters(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", View(columns=120, rows=10, window_ns=10**8))
    for place in range(source.first, source.end, 97):
        source.ask("go", place)
        source._dirty = True
        snapshot = told(source)
        state = source.timeline.state
        empty = 0
        for shown, band in zip(snapshot.bands, state.bands, strict=True):
            assert (shown.held, shown.holes, shown.pending) == (
                band.count(LIVE), band.count(HOLE), band.count(PENDING)
            )  # fmt: skip
            assert shown.extent_bytes == band.byte_range()
            empty += (shown.holes + shown.pending) * band.page_bytes
            assert len(shown.spark) > 1
        extents = sum(high - low for low, high in (band.byte_range() for band in state.bands))
        assert snapshot.sink_bytes + extents + sum(snapshot.gaps) == snapshot.total_bytes
        assert snapshot.wasted_bytes == empty
        lines = ["".join(t for t, _ in line) for line in paint(snapshot, Ui(), 200, 40)]
        for words in ("held ", "wasted ", "gaps ", "largest ", "/s moved"):
            assert words in lines[1]
    facts = snapshot.to_json()
    assert facts["gaps_bytes"] == sum(snapshot.gaps)
    assert facts["largest_gap_bytes"] == max(snapshot.gaps)


def test_8_estimates_are_labelled(recorded: Recorded) -> None:
    (estimate,) = [column for column in COLUMNS if column.title.startswith("~")]
    snapshot = told(TraceSource(recorded.path))
    for band in snapshot.bands:
        assert estimate.value(band).startswith("~")
        for column in COLUMNS:
            assert column is estimate or "~" not in column.value(band)


def test_9_violation(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    run.recorder.violation("conservation", "a page too many")
    broken = run.recorder.sequence
    for request in range(3):
        run.arena.apply(ops.Admit(7000 + request, state_slots=0))
    run.recorder.close()
    source = TraceSource(run.path)

    async def script(app: TopApp, pilot: Any) -> None:
        assert "1 findings (tab Checks)" in text_of(app).split("\n")[1]
        await pilot.press("4")
        assert "a page too many" in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert position(app) == broken
        await pilot.press("end")
        assert "a page too many" in text_of(app)

    play(source, script)


def test_10_the_end(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = int(Trace(run.path).header["wall_ns"])
    source = TraceSource(run.path, wall_ns=lambda: wall)

    async def script(app: TopApp, pilot: Any) -> None:
        assert app.snapshot is not None
        held = [band.held for band in app.snapshot.bands]
        run.recorder.close()
        app.conductor.tick()  # type: ignore[attr-defined, union-attr]
        await pilot.pause()
        assert "at the end · ended cleanly" in text_of(app)
        assert [band.held for band in app.snapshot.bands] == held

    play(source, script)


def test_14_no_key_changes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key, on a trace that is being written: no file of it changes, and nothing appears but the
    settings, which one key is for."""
    run = record(tmp_path / "run", P5, seed=4, operations=120, close=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal was sent"))
    source = TraceSource(run.path)

    def look() -> dict[str, Any]:
        found: dict[str, Any] = {"folder": run.path.stat().st_mtime_ns}
        for file in run.path.iterdir():
            about = file.stat()
            found[file.name] = file.read_bytes(), about.st_mtime_ns, about.st_ino
        return found

    before, sequence = look(), run.recorder.sequence
    written: list[str] = []

    async def script(app: TopApp, pilot: Any) -> None:
        for key in KEYS:
            for name in key.keys.split(","):
                if key.name == "quit":
                    continue
                await pilot.press(name)
                await pilot.pause()
                if len(app.screen_stack) > 1:
                    await pilot.press("escape")
                    await pilot.pause()
                while source.busy:
                    source.tick()
                if (tmp_path / "config").exists() and not written:
                    written.append(key.name)
                assert app.is_running, key.name

    play(source, script)
    assert look() == before and run.recorder.sequence == sequence
    assert list((tmp_path / "here").iterdir()) == [] and written == ["save"]
    run.recorder.close()


def test_15_sizes(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("g", *"900", "enter")
        full = text_of(app)
        assert all(word in full for word in ("bands", "pages", "moves", "page ", "held"))
        await pilot.resize_terminal(50, 24)
        await pilot.pause()
        small = text_of(app)
        assert "held" in small and "event 900" in small and "paused" in small
        await pilot.resize_terminal(29, 24)
        await pilot.pause()
        assert "too small" in text_of(app) and "30×8" in text_of(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert text_of(app) == full

    play(source, script, size=(80, 24))


def test_16_looks(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", View(columns=80, rows=12))
    source.ask("go", 900)
    snapshot = told(source)
    plain = paint(snapshot, Ui(glyphs=PLAIN), 100, 30)
    assert "".join(text for line in plain for text, _ in line).isascii()
    for glyphs in (PLAIN, UNICODE):
        marks = [glyphs.came, glyphs.left, glyphs.cursor, glyphs.differs]
        assert len(set(marks)) == len(marks)
        assert len(set(glyphs.cells.values())) == len(glyphs.cells)
    assert {"light", "high-contrast"} <= {theme.name for theme in THEMES}
    assert not NO_COLOUR.style("bad bold").color
    # Okabe and Ito's palette, in the theme that is used when none is named.
    assert THEMES[0].bands == ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00")


def test_17_help_and_palette(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)

    async def script(app: TopApp, pilot: Any) -> None:
        assert "? help" in text_of(app).split("\n")[-1]
        commands = list(app.get_system_commands(app.screen))
        assert [command.title.partition(":")[0] for command in commands] == [k.name for k in KEYS]
        pause = next(command for command in commands if command.title.startswith("pause:"))
        result: Any = pause.callback()
        await result
        await pilot.pause()
        assert "paused" in text_of(app)
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        said = text_of(app)
        for active in app.active_bindings.values():
            if active.binding.id is not None:
                assert active.binding.description in said
        for what, _ in MOUSE:
            assert what in said
        await pilot.press("escape")
        await pilot.press("ctrl+p")
        await pilot.pause()
        assert type(app.screen).__name__ == "CommandPalette"
        await pilot.press("escape")

    play(source, script, size=(140, 120))


def test_20_no_test_sleeps() -> None:
    """Nor looks at a clock: snapshots are asked for, and the screen is told them."""
    for path in sorted(Path(__file__).parent.glob("test_top_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert not called.endswith((".sleep", "perf_counter", "monotonic")), (path, called)
