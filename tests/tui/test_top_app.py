"""The live screen with a source that remembers what it was asked; no clock, sleep or thread."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from bandscope.inspect.registry import Running
from bandscope.tui.top.app import TopApp
from bandscope.tui.top.canvas import Canvas
from bandscope.tui.top.conductor import DirectConductor
from bandscope.tui.top.keys import KEYS
from bandscope.tui.top.look import NO_COLOUR, PLAIN, THEMES
from bandscope.tui.top.paint import layout
from bandscope.tui.top.paint_lists import TABS
from bandscope.tui.top.screens import HelpScreen, PickerScreen, PromptScreen, help_lines
from bandscope.tui.top.snapshot import Row, Snapshot


class FakeSource:
    """Shows one snapshot, in the view that was asked for, and remembers every question."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.asked: list[tuple[str, Any]] = []
        self._dirty = True

    def ask(self, what: str, value: Any = None) -> None:
        """Remember it."""
        if what == "view":
            tab = self.snapshot.lists if value.tab == "events" else replace(
                self.snapshot.lists, tab=value.tab, current=-1
            )
            self.snapshot = replace(self.snapshot, view=value, lists=tab)
        else:
            self.asked.append((what, value))
        self._dirty = True

    def tick(self) -> Snapshot | None:
        """The snapshot, once per question."""
        dirty, self._dirty = self._dirty, False
        return self.snapshot if dirty else None


Play = Callable[[TopApp, Any], Awaitable[None]]


def play(
    source: Any, script: Play, *, size: tuple[int, int] = (120, 40), **options: Any
) -> TopApp:
    """Run the program, threadless, under a script."""
    path = options.pop("path", Path("some.trace"))
    app = TopApp(lambda path: DirectConductor(source), path, threaded=False, **options)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())
    return app


def text_of(app: TopApp) -> str:
    """What the topmost screen shows."""
    return "\n".join(app.screen.query_one(Canvas).text)


# --- keys -----------------------------------------------------------------------------------------

ASKED = {key.shown: key for key in KEYS if key.action.startswith(("ask", "step", "go"))}


@pytest.mark.parametrize("shown", sorted(ASKED))
def test_a_key_asks_what_it_says(shown: str, snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)
    key = ASKED[shown]

    async def script(app: TopApp, pilot: Any) -> None:
        for name in key.keys.split(","):
            source.asked.clear()
            await pilot.press(name)
            await pilot.pause()
            kind, _, rest = key.action.partition("(")
            given = ast.literal_eval("(" + rest.rstrip(")") + ",)")
            if kind == "ask":
                expected = (given[0], given[1] if len(given) > 1 else None)
            else:
                expected = ("step", given) if kind == "step" else ("go", given[0])
            assert source.asked == [expected]

    play(source, script)


def test_every_binding_is_in_the_help() -> None:
    said = "\n".join("".join(text for text, _ in line) for line in help_lines(80, PLAIN))
    for key in KEYS:
        assert key.shown in said and key.help in said
    bound = {binding.key for binding in TopApp.BINDINGS}  # type: ignore[union-attr]
    assert bound == {key.keys for key in KEYS}
    names = [name for key in KEYS for name in key.keys.split(",")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("key", "what"), [("g", "jump"), ("slash", "search"), ("f", "filter")]
)
def test_keys_that_ask_for_words(key: str, what: str, snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press(key)
        assert isinstance(app.screen, PromptScreen)
        await pilot.press("1", "q", "space", "2")
        await pilot.press("enter")
        assert source.asked == [(what, "1q 2")]
        await pilot.press(key, "7", "escape")
        assert source.asked == [(what, "1q 2")] and not isinstance(app.screen, PromptScreen)

    play(source, script)


def test_tabs_rows_and_enter(snapshot: Snapshot) -> None:
    rows = tuple(Row(100 + index, -1, "Kind", f"row number {index}") for index in range(4))
    source = FakeSource(replace(snapshot, lists=replace(snapshot.lists, rows=rows)))

    async def script(app: TopApp, pilot: Any) -> None:
        for number, tab in enumerate(TABS, 1):
            await pilot.press(str(number))
            assert app.ui.tab == source.snapshot.view.tab == tab
        source.asked.clear()
        await pilot.press("tab")
        assert app.ui.tab == "events"
        await pilot.press("down")
        assert source.asked == [("row", 1)]
        await pilot.press("5", "down", "down")
        await pilot.pause()
        assert app.ui.tab == "refusals" and "> " in text_of(app)
        await pilot.press("enter")
        assert source.asked[-1] == ("go", 103)
        await pilot.press("pagedown", "enter")
        assert source.asked[-1] == ("go", 104)
        await pilot.press("pageup", "enter")
        assert source.asked[-1] == ("go", 101)

    play(source, script)


def test_time_window_theme_help_and_quit(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        before = source.snapshot.view.window_ns
        await pilot.press("right_curly_bracket")
        assert source.snapshot.view.window_ns > before
        await pilot.press("left_curly_bracket")
        assert source.snapshot.view.window_ns == before
        seen = []
        for _ in THEMES:
            seen.append(app.palette.name)
            await pilot.press("t")
        assert seen == [theme.name for theme in THEMES]
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert "bandscope top: keys" in text_of(app)
        await pilot.press("pagedown", "pagedown")
        assert "any other key closes" in text_of(app)
        await pilot.press("q")
        assert not isinstance(app.screen, HelpScreen) and app.is_running
        await pilot.press("q")
        await pilot.pause()

    app = play(source, script)
    assert not app.is_running


def test_mouse(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        room = layout(120, 40, len(snapshot.bands))
        tops, at = {}, 0
        for name, height in room.parts:
            tops[name] = at
            at += height
        await pilot.click(offset=(room.gutter + 33, tops["map"] + 1))
        assert source.asked == [("point", 33)]
        await pilot.click(offset=(14, tops["tabs"]))
        assert app.ui.tab == "leases"
        await pilot.press("1")
        await pilot.click(offset=(20, tops["list"] + 2))
        assert source.asked[-1] == ("go", snapshot.lists.rows[2].sequence + 1)

    play(source, script)


# --- what is seen ---------------------------------------------------------------------------------


def test_pause_and_new_events_are_told(snapshot: Snapshot) -> None:
    source = FakeSource(replace(snapshot, live=False, newer=1234, ending="running"))

    async def script(app: TopApp, pilot: Any) -> None:
        assert "paused, +1,234 events" in text_of(app)
        source.snapshot = replace(source.snapshot, live=True, newer=0)
        source._dirty = True
        app.conductor.tick()  # type: ignore[union-attr]
        await pilot.pause()
        assert "live · running" in text_of(app)

    play(source, script)


def test_resizes_in_bursts(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        for size in ((200, 60), (40, 10), (10, 3), (100, 30), (60, 17), (240, 70), (80, 24)):
            await pilot.resize_terminal(*size)
        await pilot.pause()
        lines = text_of(app).split("\n")
        assert len(lines) == 24 and {cell_len(line) for line in lines} == {80}
        assert source.snapshot.view.columns == 80 - 9

    play(source, script)


@pytest.mark.parametrize("theme", [theme.name for theme in THEMES])
def test_themes_tell_bands_and_states_apart(theme: str, snapshot: Snapshot) -> None:
    palette = next(known for known in THEMES if known.name == theme)
    assert len({palette.style(f"band{index}").color for index in range(5)}) == 5

    async def script(app: TopApp, pilot: Any) -> None:
        picture = app.export_screenshot()
        assert palette.bands[0].lower() in picture.lower()

    play(FakeSource(snapshot), script, theme=theme)


def test_without_colour(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: TopApp, pilot: Any) -> None:
        assert app.palette is NO_COLOUR
        for y in range(5):
            for segment in app.query_one(Canvas).render_line(y):
                assert segment.style is not None
                assert segment.style.color is None and segment.style.bgcolor is None
        await pilot.press("t")
        assert app.palette is NO_COLOUR

    play(FakeSource(snapshot), script)


# --- picker ---------------------------------------------------------------------------------------


def entry(pid: int, trace: str) -> Running:
    """A recorder that runs."""
    return Running(
        pid, ["python", "serve.py"], "2026-01-01T00:00:00Z", Path(trace), None, "model", ["full"],
        1 << 30,
    )  # fmt: skip


def test_the_picker_shows_who_runs_and_opens_one(snapshot: Snapshot) -> None:
    found = [entry(11, "/a.trace"), entry(22, "/b.trace")]
    opened: list[Path] = []
    source = FakeSource(snapshot)

    def conduct(path: Path) -> DirectConductor:
        opened.append(path)
        return DirectConductor(source)

    app = TopApp(conduct, None, threaded=False, find=lambda: found)

    async def run() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            assert isinstance(app.screen, PickerScreen)
            assert "/a.trace" in text_of(app) and "serve.py" in text_of(app)
            await pilot.press("down", "down", "up", "down", "enter")
            await pilot.pause()
            assert opened == [Path("/b.trace")]
            assert "event 1,000" in text_of(app)
            await pilot.press("p")
            assert isinstance(app.screen, PickerScreen)
            await pilot.press("escape")
            await pilot.pause()
            assert app.is_running and opened == [Path("/b.trace")]

    asyncio.run(run())


def test_the_picker_without_anybody(snapshot: Snapshot) -> None:
    async def script(app: TopApp, pilot: Any) -> None:
        assert "no recorder of yours runs" in text_of(app)
        await pilot.press("enter", "r")
        assert app.is_running
        await pilot.press("escape")
        await pilot.pause()
        assert not app.is_running

    play(FakeSource(snapshot), script, path=None, find=list)


def test_what_goes_wrong_is_said(snapshot: Snapshot) -> None:
    class Broken(FakeSource):
        pass

    source = Broken(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        app.conductor._post("reading failed: disk on fire")  # type: ignore[union-attr]
        await pilot.pause()
        assert "disk on fire" in text_of(app)
        await pilot.press("space")
        await pilot.pause()
        assert "disk on fire" not in text_of(app)

    play(source, script)


def test_the_command_palette_knows_every_key(snapshot: Snapshot) -> None:
    async def script(app: TopApp, pilot: Any) -> None:
        commands = list(app.get_system_commands(app.screen))
        assert len(commands) == len(KEYS)

    play(FakeSource(snapshot), script)
