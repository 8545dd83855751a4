"""One instant of an arena as text: all its bytes on one line, then each band page by page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect.state import ArenaState, BandState
from bandscope.tui.band_picture import letters_of, line_of, styles_of
from bandscope.tui.units import spell_bytes

_ROWS_MAX = 4
_LEGEND = (
    "█ live  ▓ mostly live  ░ mostly holes  · holes  ~ some pending  P some pinned"
)


def arena_picture(state: ArenaState, *, width: int) -> Text:
    """The arena's bytes across, one letter per band, and below it the pages of every band that
    exists, low bytes first; a cell stands for several pages where there are many."""
    columns = max(20, width)
    letters = letters_of([band.kind for band in state.bands])
    styles = styles_of(len(state.bands))
    text = Text(no_wrap=True, overflow="crop")
    extents = [band.byte_range() for band in state.bands]
    for glyphs, index in line_of(
        state.sink_bytes, state.total_bytes, extents, columns, letters
    ):
        text.append(glyphs, style="dim" if index is None else styles[index])
    text.append(f"\n0{spell_bytes(state.total_bytes):>{columns - 1}}\n", style="dim")
    for letter, band, style in zip(letters, state.bands, styles, strict=True):
        text.append(f"{letter} {band.name}  ", style=style)
    text.append("# sink  · gap\n", style="dim")
    for letter, band, style in zip(letters, state.bands, styles, strict=True):
        rows, pages_per_cell = band_rows(band, columns)
        if not rows:
            continue
        plural = "" if pages_per_cell == 1 else f", {pages_per_cell:,} to a cell"
        first, stop = band.extent
        text.append(f"\n{letter} {band.name}: pages {first:,} to {stop - 1:,}{plural}\n", style="bold")
        for line in rows:
            text.append(line + "\n", style=style)
    text.append(_LEGEND, style="dim")
    return text


def band_rows(band: BandState, columns: int) -> tuple[list[str], int]:
    """The pages of a band's extent as lines of glyphs, and how many pages a cell stands for."""
    part = band.slice
    states, pins = band.state[part], band.pins[part]
    if not states.size:
        return [], 1
    pages_per_cell = max(1, -(-states.size // (columns * _ROWS_MAX)))
    starts = np.arange(0, states.size, pages_per_cell)
    live = np.add.reduceat((states == LIVE).astype(np.int64), starts)
    holes = np.add.reduceat((states == HOLE).astype(np.int64), starts)
    pending = np.add.reduceat((states == PENDING).astype(np.int64), starts)
    pinned = np.add.reduceat((pins > 0).astype(np.int64), starts)
    cells = np.where(holes == 0, "█", np.where(live == 0, "·", np.where(live >= holes, "▓", "░")))
    cells = np.where(pending > 0, "~", cells)
    cells = np.where(pinned > 0, "P", cells)
    line: Sequence[str] = "".join(cells.tolist())
    rows = [str(line[at : at + columns]) for at in range(0, len(line), columns)]
    return rows, pages_per_cell
