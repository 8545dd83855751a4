"""The bands over time as text: the arena's bytes across, time downwards, one letter per band.

Colour and letter both tell the bands apart, so the picture reads the same without colour. Gaps are
dots, and the sink at the left edge is `#`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bandscope.allocator.plan import StoragePlan
from bandscope.fuzz.workload.series import Sample
from bandscope.tui.units import spell_bytes, spell_seconds

# Okabe and Ito's palette: told apart with every common form of colour blindness.
_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00")
_SINK, _GAP = "#", "·"
WIDTH_MIN = 20


def band_letters(plan: StoragePlan) -> list[str]:
    """One letter per band in chain order: `S` state, `F` full attention, `A`, `B`… windows."""
    return letters_of([band.kind for band in plan.bands])


def letters_of(kinds: Sequence[str]) -> list[str]:
    """The same from the kinds of the bands."""
    windows = iter("ABCDEGHIJ")
    return [{"state": "S", "full": "F"}.get(kind) or next(windows, "?") for kind in kinds]


def band_styles(plan: StoragePlan) -> list[str]:
    """The colour of each band, in chain order."""
    return styles_of(len(plan.bands))


def styles_of(count: int) -> list[str]:
    """The colours of so many bands."""
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def picture(
    plan: StoragePlan, total_bytes: int, samples: Sequence[Sample], *, width: int, rows: int
) -> Text:
    """A compact chart of the samples, at most `rows` lines of `width` columns, with a legend."""
    width = max(width, WIDTH_MIN)
    label_width = 12
    columns = max(1, width - label_width - 2)
    letters, styles = band_letters(plan), band_styles(plan)
    text = Text(no_wrap=True, overflow="crop")
    step = max(1, -(-len(samples) // max(1, rows)))
    for sample in samples[step - 1 :: step]:
        text.append(f"{spell_seconds(sample.clock_seconds):>{label_width}} ", style="dim")
        for glyph, band in line_of(
            plan.sink_bytes, total_bytes, sample.extents, columns, letters
        ):
            text.append(glyph, style="dim" if band is None else styles[band])
        text.append("\n")
    text.append(" " * (label_width + 1))
    text.append(f"0{spell_bytes(total_bytes):>{columns - 1}}\n", style="dim")
    text.append(" " * (label_width + 1))
    for letter, known, style in zip(letters, plan.bands, styles, strict=True):
        text.append(f"{letter} {known.name}  ", style=style)
    text.append(f"{_SINK} sink  {_GAP} gap", style="dim")
    return text


def line_of(
    sink_bytes: int,
    total_bytes: int,
    extents: Sequence[tuple[int, int]],
    columns: int,
    letters: list[str],
) -> list[tuple[str, int | None]]:
    """Runs of (glyph × length, band or None) of one instant, exactly `columns` characters.

    `extents`: bytes `[start, stop)` of every band in chain order, `(0, 0)` where it has none.
    """
    cells: list[tuple[str, int | None]] = [(_GAP, None)] * columns
    sink_cells = sink_bytes * columns // total_bytes
    cells[:sink_cells] = [(_SINK, None)] * sink_cells
    for index, first, last in _spans(total_bytes, extents, columns):
        cells[first:last] = [(letters[index], index)] * (last - first)
    runs: list[tuple[str, int | None]] = []
    for glyph, band in cells:
        if runs and runs[-1][1] == band and runs[-1][0][0] == glyph:
            runs[-1] = (runs[-1][0] + glyph, band)
        else:
            runs.append((glyph, band))
    return runs


def _spans(
    total_bytes: int, extents: Sequence[tuple[int, int]], columns: int
) -> list[tuple[int, int, int]]:
    """(band, first cell, stop cell) of every band that exists, disjoint and in chain order.

    A band of a few bytes still gets a cell, also beside others as small: what exists is visible.
    """
    spans: list[tuple[int, int, int]] = []
    taken = 0
    for index, (start, stop) in enumerate(extents):
        if stop > start:
            first = max(taken, start * columns // total_bytes)
            taken = max(first + 1, round(stop * columns / total_bytes))
            spans.append((index, first, taken))
    limit = columns
    for place in reversed(range(len(spans))):  # what was pushed over the right edge comes back
        index, first, last = spans[place]
        last = min(last, limit)
        limit = min(first, last - 1)
        spans[place] = (index, limit, last)
    return spans
