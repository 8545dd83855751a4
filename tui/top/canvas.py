"""A widget that shows lines as they are, one strip each."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from bandscope.tui.top.look import THEMES, Line, Theme


class Canvas(Widget):
    """The whole of a screen. `show` replaces the lines; only those that differ are drawn again."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"
    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.palette = THEMES[0]
        self._strips: dict[int, Strip] = {}  # of the lines that did not change
        self._styles: dict[str, Style] = {}
        self._width = self._painted = 0

    def show(self, lines: list[Line], palette: Theme) -> None:
        """Show these lines, which are all of the same width."""
        self._painted = sum(cell_len(text) for text, _ in lines[0]) if lines else 0
        if palette is not self.palette or len(lines) != len(self.lines):
            self.lines, self.palette = lines, palette
            self._strips.clear()
            self._styles.clear()
            self.refresh()
            return
        changed = [
            y for y, (old, new) in enumerate(zip(self.lines, lines, strict=True)) if old != new
        ]
        self.lines = lines
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(*_stripes(changed, self.size.width))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Some of the lines. They have no border, link or filter, so they go to the screen as they
        are; Textual's own way costs more than everything else that draws them."""
        self._settle()
        strips, make = self._strips, self._strip
        lines = [strips.get(y) or make(y) for y in crop.line_range]
        if crop.x or crop.right < self._width:
            lines = [line.crop(crop.x, crop.right) for line in lines]
        return lines

    def render_line(self, y: int) -> Strip:
        """One line, as wide as the widget."""
        self._settle()
        return self._strips.get(y) or self._strip(y)

    def _settle(self) -> None:
        width = self.size.width
        if width != self._width:
            self._width = width
            self._strips.clear()

    def _strip(self, y: int) -> Strip:
        background = self.palette.style("")
        if y >= len(self.lines):
            return Strip([Segment(" " * self._width, background)], self._width)
        styles = self._styles
        segments = []
        for text, style in self.lines[y]:
            known = styles.get(style)
            if known is None:
                known = styles[style] = self.palette.style(style)
            segments.append(Segment(text, known))
        strip = Strip(segments, self._painted)
        if self._painted != self._width:
            strip = strip.adjust_cell_length(self._width, background)
        self._strips[y] = strip
        return strip

    @property
    def text(self) -> list[str]:
        """What is shown, without colours."""
        return ["".join(text for text, _ in line) for line in self.lines]


def _stripes(rows: list[int], width: int) -> list[Region]:
    """The neighbouring rows as regions."""
    regions: list[Region] = []
    for y in rows:
        last = regions[-1] if regions else None
        if last is not None and last.bottom == y:
            regions[-1] = Region(0, last.y, width, last.height + 1)
        else:
            regions.append(Region(0, y, width, 1))
    return regions
