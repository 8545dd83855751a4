"""The picture of the bands: what exists is visible at any width, and the width is exact."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console, Group
from rich.text import Text

from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.fuzz.workload.series import Sample
from bandscope.tui.band_picture import WIDTH_MIN, band_letters, band_styles, picture

WIDTHS = range(1, 301)
FIVE = [("mamba", 8), ("window_32", 4), ("window_16", 4), ("window_8", 4), ("full", 4)]
LABEL = 13  # the clock, and a blank


def plan_of(bands: list[tuple[str, int]]) -> StoragePlan:
    """A plan with pages of these bytes."""
    return plan_from_sizes(bands)


def sample_of(*extents: tuple[int, int], clock_seconds: float = 1.0) -> Sample:
    """A sample with these extents in bytes and nothing else."""
    nothing = (0,) * len(extents)
    return Sample(clock_seconds, 0, 0, extents, nothing, nothing, nothing)


def rows_of(text: Text) -> list[str]:
    """The lines of samples: all but the axis and the legend, without the clock."""
    return [line[LABEL:] for line in text.plain.split("\n")[:-2]]


def assert_shows(row: str, letters: list[str], extents: list[tuple[int, int]]) -> None:
    """Every band with an extent is there, as one run, in chain order, and no other is."""
    shown = [letter for letter, (start, stop) in zip(letters, extents, strict=True) if stop > start]
    runs = [glyph for i, glyph in enumerate(row) if not i or row[i - 1] != glyph]
    assert [glyph for glyph in runs if glyph.isalpha()] == shown


def test_every_band_is_visible_at_every_width() -> None:
    """Five bands of a page each, at the low end, at the high end, or spread, each get a cell."""
    plan = plan_of(FIVE)
    letters = band_letters(plan)
    total = 1_000_000
    layouts = [
        [(8, 16), (16, 20), (20, 24), (24, 28), (28, 32)],
        [(total - 24, total - 16), (total - 16, total - 12), (total - 12, total - 8),
         (total - 8, total - 4), (total - 4, total)],
        [(8, 16), (300_000, 300_004), (300_004, 300_008), (999_000, 999_004), (999_996, total)],
        [(8, 999_980), (999_980, 999_984), (999_984, 999_988), (999_988, 999_992),
         (999_996, total)],
        [(8, 16), (16, 20), (0, 0), (24, 28), (32, total)],
        [(0, 0)] * 5,
    ]  # fmt: skip
    for width in WIDTHS:
        columns = max(width, WIDTH_MIN) - LABEL - 1
        for extents in layouts:
            [row] = rows_of(picture(plan, total, [sample_of(*extents)], width=width, rows=1))
            assert len(row) == columns
            assert_shows(row, letters, extents)


def test_random_layouts_keep_order_and_width() -> None:
    """Whatever the extents are, the bands show once each, in order, in a line of the same width."""
    rng = random.Random("picture")
    plan = plan_of(FIVE)
    letters = band_letters(plan)
    for _ in range(600):
        total = rng.choice([64, 1000, 120 << 30])
        cuts = sorted(rng.sample(range(8, total + 1), 10))
        extents = [
            (cuts[2 * band], cuts[2 * band + 1]) if rng.random() < 0.8 else (0, 0)
            for band in range(5)
        ]
        width = rng.choice(WIDTHS)
        [row] = rows_of(picture(plan, total, [sample_of(*extents)], width=width, rows=1))
        assert len(row) == max(width, WIDTH_MIN) - LABEL - 1
        assert_shows(row, letters, extents)


def test_cells_are_in_proportion() -> None:
    """A quarter of the bytes is a quarter of the cells, the sink is shaded, and gaps are dots."""
    plan = plan_of([("mamba", 100), ("full", 100)])
    assert plan.sink_bytes == 100
    sample = sample_of((100, 350), (500, 1000))
    [row] = rows_of(picture(plan, 1000, [sample], width=20 + LABEL + 1, rows=1))
    assert row == "##" + "SSSSS" + "···" + "F" * 10


def test_every_line_has_the_same_width() -> None:
    """No line is wider than asked, whatever the clock says."""
    plan = plan_of([("mamba", 8), ("full", 8)])
    clocks = [0.0, 0.000_4, 0.5, 59.99, 3599.0, 999 * 3600.0]
    samples = [sample_of((8, 500), (600, 1000), clock_seconds=clock) for clock in clocks]
    for width in (24, 40, 79, 200):
        text = picture(plan, 1000, samples, width=width, rows=6)
        lines = text.plain.split("\n")
        assert len(lines) == 8
        assert {len(line) for line in lines[:-1]} == {width - 1}


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (5, 16), (16, 16), (17, 16), (500, 16), (9, 1)]
)
def test_at_most_the_asked_rows(count: int, rows: int) -> None:
    """Samples are thinned evenly, never to nothing."""
    plan = plan_of([("mamba", 8), ("full", 8)])
    samples = [sample_of((8, 16), (992, 1000)) for _ in range(count)]
    shown = len(rows_of(picture(plan, 1000, samples, width=60, rows=rows)))
    assert 1 <= shown <= rows
    assert shown >= min(count, rows) // 2


@pytest.mark.parametrize(
    "model",
    ["gpt-oss-20b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "inkling", "mimo-v2-flash"],
)
def test_letters_and_legend_of_real_models(model: str) -> None:
    """Letters are unique, never those of sink or gap, and the legend names every band."""
    plan = plan_storage(declare_model(model))
    letters = band_letters(plan)
    assert len(set(letters)) == len(letters) == len(plan.bands)
    assert len(set(band_styles(plan))) == len(plan.bands)
    extents = [(0, 0)] * len(plan.bands)
    legend = picture(plan, 1 << 40, [sample_of(*extents)], width=100, rows=1).plain.split("\n")[-1]
    for letter, band in zip(letters, plan.bands, strict=True):
        assert f"{letter} {band.name}" in legend
    assert "# sink" in legend and "· gap" in legend


def test_letters_of_the_most_bands_there_can_be() -> None:
    """State, three windows and full attention."""
    assert band_letters(plan_of(FIVE)) == ["S", "A", "B", "C", "F"]
    windows = [("window_4", 4), ("window_3", 4), ("window_2", 4), ("window_1", 4), ("full", 4)]
    assert band_letters(plan_of(windows)) == ["A", "B", "C", "D", "F"]


def test_bands_have_their_colours() -> None:
    """Each band's cells carry the style that its legend has."""
    plan = plan_of([("mamba", 8), ("window_8", 8), ("full", 8)])
    text = picture(plan, 1000, [sample_of((8, 200), (300, 400), (900, 1000))], width=80, rows=1)
    styles = band_styles(plan)
    for letter, style in zip(band_letters(plan), styles, strict=True):
        spans = [span for span in text.spans if span.style == style]
        assert [text.plain[span.start : span.end].strip()[0] for span in spans] == [letter, letter]


def test_a_narrow_terminal_crops_and_does_not_wrap() -> None:
    """Printed where there is less room than the least width, a line stays one line."""
    plan = plan_of([("mamba", 8), ("full", 8)])
    text = picture(plan, 1000, [sample_of((8, 500), (600, 1000))], width=5, rows=1)
    screen = io.StringIO()
    Console(width=5, file=screen).print(Group(text))
    assert len(screen.getvalue().rstrip("\n").split("\n")) == 3
