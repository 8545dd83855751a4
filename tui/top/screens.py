"""Screens on top of the main one: help, the picker of running recorders, and one line of input."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Input

from bandscope.inspect.registry import Running
from bandscope.tui.top.canvas import Canvas
from bandscope.tui.top.comparing import LETTERS, WORDS
from bandscope.tui.top.keys import GROUPS, MOUSE, Groups
from bandscope.tui.top.look import LEGEND, LEGEND_OF_CACHE, Glyphs, Line, clean, fit
from bandscope.tui.top.ranks import run_and_rank
from bandscope.tui.units import spell_bytes

if TYPE_CHECKING:
    from bandscope.tui.top.app import TopApp


class _Lines(ModalScreen[Any]):
    """Lines that may be longer than the screen."""

    def __init__(self) -> None:
        super().__init__()
        self.top = 0
        self.extent = Size(80, 24)

    def compose(self) -> ComposeResult:
        """One canvas."""
        yield Canvas()

    @property
    def main(self) -> TopApp:
        """The program."""
        app: Any = self.app
        return app  # type: ignore[no-any-return]

    def content(self, width: int) -> list[Line]:
        """All lines."""
        raise NotImplementedError

    def draw(self) -> None:
        """Show the part that fits."""
        width, height = self.extent
        lines = self.content(width)
        self.top = max(0, min(self.top, len(lines) - height))
        shown = (lines[self.top : self.top + height] + [[] for _ in range(height)])[:height]
        glyphs = self.main.glyphs
        self.query_one(Canvas).show(
            [fit(line, width, glyphs) for line in shown], self.main.palette
        )

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.extent = self.app.size
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        self.extent = event.size
        self.draw()


def help_lines(
    width: int, glyphs: Glyphs, groups: Groups = GROUPS, has_cache: bool = False
) -> list[Line]:
    """Every key, in two columns where there is room; then the mouse, and the characters."""
    lines: list[Line] = [[(" bandscope top: keys", "accent bold")], []]
    cells: list[Line] = []
    wide = width >= 130
    room = width // 2 if wide else width
    for group, keys in groups:
        cells.append([(f" {group}", "bold")])
        for key in keys:
            cells += _explained(f"   {key.shown:<17} ", key.help, room)
        cells.append([])
    cells.append([(" Mouse and more", "bold")])
    for what, does in MOUSE:
        cells += _explained(f"   {what:<22} ", does, room)
    if wide:
        half = -(-len(cells) // 2)
        right = cells[half:] + [[]]
        for one, other in zip(cells[:half], right, strict=False):
            lines.append(fit(one, width // 2, glyphs) + other)
    else:
        lines += cells
    lines += [[], [(" Characters of the maps", "bold")]]
    legend = (*LEGEND, *LEGEND_OF_CACHE) if has_cache else LEGEND
    lines += _side_by_side([f"{glyphs.cells[cell]} {name}" for cell, name in legend], width)
    lines += _side_by_side([
        f"{glyphs.left} moved from", f"{glyphs.came} moved to", f"{glyphs.cursor} cursor",
        f"{glyphs.differs} differs", "~ before a figure: an estimate",
    ], width)  # fmt: skip
    told = [f"{letter} {WORDS[kind]}" for kind, letter in LETTERS.items()]
    lines += _side_by_side(["in the zoom, while comparing:", *told], width)
    lines.append([])
    close = textwrap.wrap("Up and Down scroll; any other key closes this.", width - 2)
    lines += [[(f" {part}", "dim")] for part in close]
    return lines


def _explained(key: str, text: str, width: int) -> list[Line]:
    """A key and what it does, which goes on below itself where there is no room beside."""
    first, *more = textwrap.wrap(text, max(10, width - len(key) - 1))
    return [[(key, "accent"), (first, "")], *([(" " * len(key) + part, "")] for part in more)]


def _side_by_side(parts: list[str], width: int) -> list[Line]:
    """Parts in as many lines as they need; none is torn apart."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 < width:
            lines[-1] += f"   {part}"
        else:
            lines.append(f"   {part}")
    return [[(line, "")] for line in lines]


class HelpScreen(_Lines):
    """Every key."""

    def content(self, width: int) -> list[Line]:
        """The help."""
        shown = self.main.snapshot
        has_cache = shown is not None and shown.has_cache
        return help_lines(width, self.main.glyphs, self.main.ui.groups, has_cache)

    def on_key(self, event: events.Key) -> None:
        """Scroll, or close."""
        event.stop()
        event.prevent_default()
        page = max(1, self.size.height - 2)
        steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page}
        if event.key in steps:
            self.top += steps[event.key]
            self.draw()
        else:
            self.dismiss()


NOBODY = (
    "no recorder of yours runs on this machine; start one with `bandscope run … --record NAME`, or "
    "name a trace: bandscope top TRACE"
)


def by_run(found: Sequence[Running]) -> list[Running]:
    """The ranks of a run beside each other, runs in the order in which they began."""
    first: dict[tuple[Path, str], int] = {}
    for index, entry in enumerate(found):
        first.setdefault((entry.trace.parent, run_and_rank(entry.trace)[0]), index)

    def place(entry: Running) -> tuple[int, int]:
        run, rank = run_and_rank(entry.trace)
        return first[entry.trace.parent, run], rank

    return sorted(found, key=place)


class PickerScreen(_Lines):
    """Which of the recorders that run."""

    BINDINGS = [
        Binding("up", "choose(-1)"),
        Binding("down", "choose(1)"),
        Binding("enter", "take"),
        Binding("r", "look"),
        Binding("escape,q,p", "leave"),
    ]

    def __init__(self, find: Callable[[], Sequence[Running]]) -> None:
        super().__init__()
        self._find = find
        self.found = by_run(find())
        self.chosen = 0

    def content(self, width: int) -> list[Line]:
        """One line per recorder."""
        lines: list[Line] = [[(" bandscope top: recorders that run", "accent bold")], []]
        if not self.found:
            lines.append([(f" {NOBODY}", "warn")])
        for index, entry in enumerate(self.found):
            rank = "" if entry.rank is None else f"rank {entry.rank}"
            name = entry.trace.name.removesuffix(".trace")
            text = (
                f" {entry.pid:>8} {rank:<8} {name:<20} {entry.started}  "
                f"{spell_bytes(entry.total_bytes):>10}  {entry.model}  {', '.join(entry.bands)}  "
                f"{entry.trace}  {' '.join(entry.command)}"
            )
            end = "reverse" if index == self.chosen else ""
            lines.append([(">" if end else " ", "accent bold"), (clean(text), end)])
        lines += [[], [(" Up, Down and Enter choose; r looks again; q leaves.", "dim")]]
        return lines

    def action_choose(self, steps: int) -> None:
        """Another one."""
        self.chosen = max(0, min(self.chosen + steps, len(self.found) - 1))
        self.draw()

    def action_look(self) -> None:
        """Look again for recorders."""
        self.found = by_run(self._find())
        self.action_choose(0)

    def action_take(self) -> None:
        """Show the chosen one."""
        if self.found:
            trace: Path = self.found[self.chosen].trace
            self.dismiss(trace)

    def action_leave(self) -> None:
        """Choose none."""
        self.dismiss(None)


class PromptScreen(ModalScreen[str | None]):
    """One line of input at the bottom."""

    DEFAULT_CSS = """
    PromptScreen { background: transparent; }
    PromptScreen Input { dock: bottom; height: 1; border: none; padding: 0 1; }
    PromptScreen Input:focus { border: none; }
    """
    BINDINGS = [Binding("escape", "leave")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        """The line."""
        line = Input(self._value, placeholder=self._question)
        line.cursor_blink = False
        yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        event.stop()
        self.dismiss(event.value)

    def action_leave(self) -> None:
        """Take nothing."""
        self.dismiss(None)
