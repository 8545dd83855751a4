"""How things look: characters (with a plain set for terminals that have only ASCII), and themes.

Okabe and Ito's colours tell bands apart with every common form of colour blindness; states
differ by their characters too, so that nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from bandscope.tui.top.snapshot import Cell

# A piece of a line: its text and the name of its style.
Piece = tuple[str, str]
Line = list[Piece]


@dataclass(frozen=True)
class Glyphs:
    """The characters of a screen."""

    cells: dict[Cell, str]
    spark: str
    came: str
    left: str
    cursor: str
    live: str
    paused: str
    rule: str
    differs: str
    translate: dict[int, str] = field(default_factory=dict)


UNICODE = Glyphs(
    {
        Cell.GAP: "·", Cell.SINK: "#", Cell.LIVE: "█", Cell.MOSTLY_LIVE: "▓",
        Cell.MOSTLY_HOLES: "░", Cell.HOLE: "-", Cell.PENDING: "~", Cell.PINNED: "P",
        Cell.CACHED: "▒",
    },
    " ▁▂▃▄▅▆▇█", "▼", "△", "▲", "●", "‖", "─", "≠",
)  # fmt: skip
PLAIN = Glyphs(
    {
        Cell.GAP: ".", Cell.SINK: "#", Cell.LIVE: "@", Cell.MOSTLY_LIVE: "+",
        Cell.MOSTLY_HOLES: ":", Cell.HOLE: "-", Cell.PENDING: "~", Cell.PINNED: "P",
        Cell.CACHED: "%",
    },
    " .:-=+*%@", "v", "x", "^", "*", "=", "-", "!",
    str.maketrans({"→": ">", "·": ".", "–": "-", "µ": "u", "…": "~", "←": "<"}),
)  # fmt: skip
LEGEND = (
    (Cell.LIVE, "live"), (Cell.MOSTLY_LIVE, "mostly live"), (Cell.MOSTLY_HOLES, "mostly holes"),
    (Cell.HOLE, "hole"), (Cell.PENDING, "pending"), (Cell.PINNED, "pinned"), (Cell.GAP, "gap"),
    (Cell.SINK, "sink"),
)  # fmt: skip
LEGEND_OF_CACHE = ((Cell.CACHED, "mostly of the prefix cache"),)


@dataclass(frozen=True)
class Theme:
    """Colours by what they say."""

    name: str
    dark: bool
    background: str
    foreground: str
    dim: str
    faint: str
    bar: str
    accent: str
    good: str
    warn: str
    bad: str
    bands: tuple[str, ...]

    def style(self, name: str) -> Style:
        """The style of a name: a colour's name or `bandN`, with `bold`, `reverse` or `bar` (on the
        colour of bars) after it; or `under` for what is under the cursor."""
        return _style(self, name)


@lru_cache(maxsize=1024)
def _style(theme: Theme, name: str) -> Style:
    words = name.split()
    colour, bold, reverse, background = theme.foreground, False, False, theme.background
    if not theme.background:
        strong = "bold" in name or "bad" in name
        reverse = any(word in name for word in ("reverse", "bar", "under"))
        return Style(bold=strong, reverse=reverse, dim="faint" in name)
    for word in words:
        if word.startswith("band"):
            colour = theme.bands[int(word[4:]) % len(theme.bands)]
        elif word == "bold":
            bold = True
        elif word == "reverse":
            reverse = True
        elif word == "under":
            colour = theme.foreground
        elif word == "bar":
            background = theme.bar
        else:
            colour = getattr(theme, word)
    return Style(color=colour, bgcolor=background, bold=bold, reverse=reverse)


THEMES = (
    Theme(
        "dark", True, "#101418", "#d8dee6", "#8d99a6", "#4d5863", "#22303c", "#56B4E9", "#3fc79a",
        "#F0E442", "#ff7a3d", ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00"),
    ),
    Theme(
        "light", False, "#ffffff", "#1c2126", "#58636e", "#a5adb5", "#dfe7ee", "#00528a", "#00684c",
        "#7a5c00", "#b03a00", ("#9a6200", "#0072B2", "#00704f", "#a14a7c", "#b84a00"),
    ),
    Theme(
        "high-contrast", True, "#000000", "#ffffff", "#e0e0e0", "#9a9a9a", "#333333", "#00ffff",
        "#00ff90", "#ffff00", "#ff8060", ("#ffb000", "#60d0ff", "#30ff90", "#ff90e0", "#ff7040"),
    ),
)  # fmt: skip


# For NO_COLOR: nothing but bold, dim and reverse.
NO_COLOUR = Theme("no-colour", True, "", "", "", "", "", "", "", "", "", ())


def clean(text: str) -> str:
    """Text from a trace without what could steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def shortened(text: str, room: int) -> str:
    """The text where it fits into `room` characters; else what fits of it, and `…`."""
    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - 1).rstrip() + "…" if room > 1 else ""


def fitting(parts: Iterable[str], separator: str, room: int) -> str:
    """The first parts, as many as fit into `room` characters as a whole."""
    said, left = "", room
    for part in parts:
        more = separator + part if said else part
        left -= cell_len(more)
        if left < 0:
            break
        said += more
    return said


def fit(line: Line, width: int, glyphs: Glyphs, fill: str = "") -> Line:
    """The line as exactly `width` characters; what is too long is cut."""
    result: Line = []
    left = width
    for text, style in line:
        if not text or not left:
            continue
        text = clean(text)
        if glyphs.translate:
            text = text.translate(glyphs.translate).encode("ascii", "replace").decode()
        size = len(text) if text.isascii() else cell_len(text)
        if size > left:
            text, size = set_cell_size(text, left), left
        result.append((text, style))
        left -= size
    if left:
        result.append((" " * left, fill))
    return result
