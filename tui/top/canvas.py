"""A widget that shows lines as they are, one strip each."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from bandscope.tui.top.look import THEMES, Line, Theme


@lru_cache(maxsize=4096)
def _segment(theme: Theme, text: str, style: str) -> Segment:
    return Segment(text, theme.style(style))


class Canvas(Widget):
    """The whole of a screen. `show` replaces the lines; only those that differ are drawn again."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"
    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.palette = THEMES[0]

    def show(self, lines: list[Line], palette: Theme) -> None:
        """Show these lines."""
        if lines != self.lines or palette is not self.palette:
            self.lines, self.palette = lines, palette
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line, as wide as it was painted."""
        if y >= len(self.lines):
            return Strip([Segment(" " * self.size.width, self.palette.style(""))])
        line = self.lines[y]
        strip = Strip([_segment(self.palette, text, style) for text, style in line])
        return strip.adjust_cell_length(self.size.width, self.palette.style(""))

    @property
    def text(self) -> list[str]:
        """What is shown, without colours."""
        return ["".join(text for text, _ in line) for line in self.lines]
