"""The program: keys and mouse become questions, snapshots become lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme as TextualTheme

from bandscope.inspect.registry import Running, running
from bandscope.tui.top.canvas import Canvas
from bandscope.tui.top.conductor import Conductor
from bandscope.tui.top.errands import Errands
from bandscope.tui.top.keys import KEYS, with_keys
from bandscope.tui.top.look import NO_COLOUR, PLAIN, THEMES, UNICODE, Theme
from bandscope.tui.top.paint import Ui, layout, paint, view_of
from bandscope.tui.top.paint_lists import TABS, rows_of, tab_at
from bandscope.tui.top.screens import HelpScreen, PickerScreen, PromptScreen
from bandscope.tui.top.settings import Settings
from bandscope.tui.top.snapshot import Row, Snapshot, View

WINDOWS_NS = tuple(
    round(seconds * 1e9) for seconds in (0.01, 0.1, 1, 10, 60, 600, 3600)
)
OPEN_WINDOW = 3


def window_for(duration_ns: int) -> int:
    """The first window that holds a whole trace, up to the usual one."""
    fitting = [index for index, window in enumerate(WINDOWS_NS) if window >= duration_ns]
    return min([OPEN_WINDOW, *fitting])


class Fresh(Message):
    """A new snapshot, or words about what went wrong."""

    def __init__(self, conductor: Conductor, told: Snapshot | str) -> None:
        super().__init__()
        self.conductor = conductor
        self.told = told


def _textual_theme(theme: Theme) -> TextualTheme:
    return TextualTheme(
        name=theme.name, primary=theme.accent, background=theme.background,
        foreground=theme.foreground, surface=theme.bar, panel=theme.bar, accent=theme.accent,
        warning=theme.warn, error=theme.bad, success=theme.good, dark=theme.dark,
    )  # fmt: skip


class TopApp(Errands):
    """`conduct`: makes what drives the source of a trace. `path`: the trace, None: let the person
    pick. `threaded`: whether a conductor's `run` needs a thread. `settings`: what is in force.
    `first`: questions that are asked before anything else."""

    TITLE = "bandscope top"
    CSS = "Screen { overflow: hidden; }"
    # Tab is the one key that Textual's own screens take before the program.
    BINDINGS = [
        Binding(
            key.keys, key.action, key.help, show=False, priority=key.keys.endswith("tab"), id=key.name
        )
        for key in KEYS
    ]

    def __init__(
        self,
        conduct: Callable[[Path], Conductor],
        path: Path | None,
        *,
        plain: bool = False,
        theme: str = "dark",
        threaded: bool = True,
        find: Callable[[], Sequence[Running]] = running,
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        first: Sequence[tuple[str, Any]] = (),
    ) -> None:
        super().__init__()
        self.glyphs = PLAIN if plain else UNICODE
        self.settings = settings
        self.palette = next(known for known in THEMES if known.name == theme)
        if self.no_color:
            self.palette = NO_COLOUR
        for known in THEMES:
            self.register_theme(_textual_theme(known))
        self.theme = theme
        self.ui = Ui(glyphs=self.glyphs, groups=with_keys(settings.keys))
        self.snapshot: Snapshot | None = None
        self.conductor: Conductor | None = None
        self._conduct = conduct
        self._path = path
        self._threaded = threaded
        self._find = find
        self._window = OPEN_WINDOW
        self._skip = 0
        self._view: View | None = None
        self._canvas = Canvas()
        self._extent = Size(80, 24)
        self._first = list(first)
        self._back: list[tuple[str, int, int]] = []  # tab, chosen row, first row
        self._ring: list[Path] = []  # arenas that are gone through
        self._words = ""  # about what was done last, until something else is

    def compose(self) -> ComposeResult:
        """One canvas."""
        yield self._canvas

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """Every key's action, for the command palette."""
        for key in (key for _, keys in self.ui.groups for key in keys):
            title = f"{key.name}: {key.help} ({key.shown})"
            yield SystemCommand(title, "", partial(self.run_action, key.action))

    def on_mount(self) -> None:
        """Begin to read, or ask which trace."""
        self._extent = self.size
        self.set_keymap({name: ",".join(keys) for name, keys in self.settings.keys.items()})
        if self._path is None:
            self.action_pick()
        else:
            self.show_trace(self._path)

    def on_unmount(self) -> None:
        """Let the reading thread end."""
        if self.conductor is not None:
            self.conductor.stop()

    # --- the trace --------------------------------------------------------------------------------

    def show_trace(self, path: Path) -> None:
        """Show a trace."""
        if self.conductor is not None:
            self.conductor.stop()
        self._path, self.snapshot, self._view, self._words = path, None, None, ""
        self.ui = replace(self.ui, trouble="", selected=0)
        self._skip = 0
        self._back.clear()
        conductor = self.conductor = self._conduct(path)

        def post(told: Snapshot | str) -> None:
            self.post_message(Fresh(conductor, told))

        self._ask_view()
        first, self._first = self._first, []
        for question in first:
            conductor.ask(*question)
        if self._threaded:
            self.run_worker(lambda: conductor.run(post), thread=True, name="reader")
        else:
            conductor.run(post)
        self._draw()

    def on_fresh(self, message: Fresh) -> None:
        """Show what came."""
        if message.conductor is not self.conductor:
            return  # of the trace before
        if isinstance(message.told, str):
            self.ui = replace(self.ui, trouble=message.told)
        else:
            if self.snapshot is None and message.told.ending != "running":
                self._window = window_for(message.told.end_ns)
            self.snapshot = message.told
            self.ui = replace(self.ui, trouble=self._words)
        self._settle_row()
        self._ask_view()
        self._draw()

    def _room(self) -> Any:
        bands = 3 if self.snapshot is None else len(self.snapshot.bands)
        return layout(self._extent.width, self._extent.height, bands)

    def _ask_view(self) -> None:
        view = view_of(self._room(), self.ui.tab, self._skip, WINDOWS_NS[self._window])
        rows = self._room().rows
        if rows_of(self.ui.tab, rows, self._extent.width) < rows:  # the chosen row is told about
            view = replace(view, chosen=self.ui.selected)
        if view != self._view and self.conductor is not None:
            self._view = view
            self.conductor.ask("view", view)

    def _draw(self) -> None:
        lines = paint(self.snapshot, self.ui, self._extent.width, self._extent.height)
        self._canvas.show(lines, self.palette)

    def on_resize(self, event: events.Resize) -> None:
        """Ask for what fits, and draw what there is."""
        self._extent = event.size  # the program's own size follows later
        self._ask_view()
        self._draw()

    # --- keys -------------------------------------------------------------------------------------

    def action_ask(self, what: str, value: Any = None) -> None:
        """A question as it is."""
        self._words = ""
        if self.conductor is not None:
            self.conductor.ask(what, value)

    def action_step(self, what: str, forwards: bool) -> None:
        """Step in time."""
        self.action_ask("step", (what, forwards))

    def action_go(self, sequence: int) -> None:
        """To an event."""
        self.action_ask("go", sequence)

    def _prompt(self, question: str, what: str, value: str = "") -> None:
        def typed(text: str | None) -> None:
            if text is not None:
                self.action_ask(what, text)

        self.push_screen(PromptScreen(question, value), typed)

    def action_jump(self) -> None:
        """Ask where to."""
        self._prompt("jump to an event or a time: 1200, 1.5s, 20ms, end", "jump")

    def action_search(self) -> None:
        """Ask what for."""
        self._prompt("search: words, band=full kind=LeaseBegin request=3 pages=3..9", "search")

    def action_filter(self) -> None:
        """Ask what to show."""
        self.action_open("events")
        self._prompt("show only: words, band= kind= request= pages= (empty: all)", "filter")

    def action_compare(self) -> None:
        """Ask what to compare with."""
        self._prompt("compare with an event, a time, or the folder of another trace", "compare")

    def action_window(self, more: bool) -> None:
        """More or less time."""
        self._window = max(0, min(self._window + (1 if more else -1), len(WINDOWS_NS) - 1))
        self._ask_view()

    def action_tab(self, steps: int) -> None:
        """Another list."""
        if len(self.screen_stack) > 1:
            return
        self.action_open(TABS[(TABS.index(self.ui.tab) + steps) % len(TABS)])

    def action_open(self, tab: str) -> None:
        """A list."""
        if tab == "request":
            self.action_ask("request", None)
        self._show_tab(tab)

    def _show_tab(self, tab: str, selected: int = 0, skip: int = 0) -> None:
        self._words = ""
        self.ui = replace(self.ui, tab=tab, selected=selected, trouble="")
        self._skip = skip
        self._ask_view()
        self._draw()

    def action_row(self, steps: int) -> None:
        """Another row: of events, the position follows."""
        if self.ui.tab == "events":
            self.action_ask("row", steps)
            return
        self.ui = replace(self.ui, selected=max(0, self.ui.selected + steps))
        self._settle_row()
        self._ask_view()
        self._draw()

    def action_page(self, steps: int) -> None:
        """A page of rows."""
        self.action_row(steps * max(1, self._room().rows - 1))

    def _settle_row(self) -> None:
        """Keep the chosen row among those that are there, and on the screen."""
        if self.ui.tab == "events" or self.snapshot is None:
            return
        rows = max(1, rows_of(self.ui.tab, self._room().rows, self._extent.width))
        shown = self.snapshot.lists
        here = shown.tab == self.ui.tab and self.snapshot.view.skip == self._skip
        if here and len(shown.rows) < rows:  # the last page
            last = self._skip + len(shown.rows) - 1
            self.ui = replace(self.ui, selected=max(0, min(self.ui.selected, last)))
        chosen = self.ui.selected
        self._skip = max(0, min(max(self._skip, chosen - rows + 1), chosen))

    def _rows_shown(self) -> int:
        """How many rows of the list are on the screen."""
        most = rows_of(self.ui.tab, self._room().rows, self._extent.width)
        return 0 if self.snapshot is None else min(most, len(self.snapshot.lists.rows))

    def _chosen_row(self) -> Row | None:
        """The chosen row of a list; None in the events, whose position is the choice."""
        if self.snapshot is None or self.ui.tab == "events":
            return None
        shown = self.snapshot.lists
        index = self.ui.selected - self.snapshot.view.skip
        inside = shown.tab == self.ui.tab and 0 <= index < len(shown.rows)
        return shown.rows[index] if inside else None

    def action_enter(self) -> None:
        """To where the chosen row leads."""
        row = self._chosen_row()
        if row is None:
            return
        if row.opens is None:
            if row.sequence >= 0:
                self.action_go(row.sequence + 1)
            return
        what, value = row.opens
        if what == "trace":
            self.show_trace(Path(value))
        elif what == "request":
            self._open_request(value)
        else:
            self.action_ask(what, value)

    def _open_request(self, request: int | None) -> None:
        self._back.append((self.ui.tab, self.ui.selected, self._skip))
        self.action_ask("request", request)
        self._show_tab("request")

    def action_drill(self) -> None:
        """From the chosen row, or else the page under the cursor, to the pages of its request."""
        row = self._chosen_row()
        if self.ui.tab != "request":
            self._open_request(row.request if row is not None and row.request >= 0 else None)

    def action_return(self) -> None:
        """The list before the last drill."""
        if self._back:
            tab, selected, skip = self._back.pop()
            self._show_tab(tab, selected, skip)

    def action_pick(self) -> None:
        """Choose among the recorders that run."""

        def picked(path: Path | None) -> None:
            if path is not None:
                self.show_trace(path)
            elif self.conductor is None:
                self.exit()

        self.push_screen(PickerScreen(self._find), picked)

    def action_theme(self) -> None:
        """The next theme."""
        if self.palette is not NO_COLOUR:
            self.palette = THEMES[(THEMES.index(self.palette) + 1) % len(THEMES)]
            self.theme = self.palette.name
            self._draw()

    def action_help(self) -> None:
        """Every key."""
        self.push_screen(HelpScreen())

    # --- mouse ------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """A page of the map, a tab, a row."""
        if self.snapshot is None or len(self.screen_stack) > 1:
            return
        room = self._room()
        part, line = room.part_at(event.y)
        if part == "map" and event.x >= room.gutter:
            self.action_ask("point", event.x - room.gutter)
        elif part == "tabs":
            tab = tab_at(event.x, room.width, self.ui.tab)
            if tab is not None:
                self.action_open(tab)
        elif part == "list" and line < self._rows_shown():
            if self.ui.tab == "events":
                self.action_go(self.snapshot.lists.rows[line].sequence + 1)
            else:
                self.ui = replace(self.ui, selected=self.snapshot.view.skip + line)
                self.action_enter()
                self._draw()

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        """Rows down."""
        if len(self.screen_stack) == 1:
            self.action_row(1)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        """Rows up."""
        if len(self.screen_stack) == 1:
            self.action_row(-1)
