"""Maps of hand-made states: every state has its character, and nothing small gets lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect.state import ArenaState
from bandscope.tui.top.cells import arena_map, page_facts, settle_cursor, zoom_map
from bandscope.tui.top.look import PLAIN, UNICODE
from bandscope.tui.top.snapshot import ArenaMap, Cell, Span

PAGE = 1024


def make_state(total_pages: int, extents: dict[str, tuple[int, int]]) -> ArenaState:
    """An arena with a sink of one page; all pages of the extents are holes."""
    header: dict[str, Any] = {
        "arena": {"total_bytes": total_pages * PAGE, "sink_bytes": PAGE},
        "page_size": 4,
        "bands": [
            {
                "name": name, "kind": "full" if name == "full" else "window", "page_bytes": PAGE,
                "window_length": None, "first_page": 1, "direction": 1,
                "capacity": total_pages - 1, "virtual_capacity": total_pages - 1,
            }
            for name in extents
        ],
    }  # fmt: skip
    state = ArenaState(header)
    for band, extent in zip(state.bands, extents.values(), strict=True):
        band.extent = extent
        band.state[band.slice] = HOLE
    return state


def hold(state: ArenaState, band: int, pages: Any) -> None:
    """Make pages live, with virtual pages of the same numbers."""
    of_band = state.bands[band]
    places = np.atleast_1d(pages) - of_band.base
    of_band.state[places] = LIVE
    of_band.virtual[places] = places
    of_band.owner[places] = 7
    of_band.page_of[places] = places + of_band.base


def cells(shown: ArenaMap) -> list[tuple[Cell, int]]:
    """One per character."""
    return [(run.cell, run.band) for run in shown.runs for _ in range(run.length)]


@pytest.mark.parametrize("columns", [20, 40, 200])
@pytest.mark.parametrize("page", [1, 499_999, 999_999])
def test_one_live_page_of_a_million_is_seen(columns: int, page: int) -> None:
    state = make_state(1_000_000, {"full": (1, 1_000_000)})
    hold(state, 0, page)
    shown = arena_map(state, 0, state.total_bytes, columns, (0, page))

    told = cells(shown)
    different = [at for at, (cell, _) in enumerate(told) if cell not in (Cell.HOLE, Cell.SINK)]
    assert len(told) == columns
    assert different == [shown.cursor]
    assert told[shown.cursor][0] is Cell.MOSTLY_HOLES


@pytest.mark.parametrize("rare", ["hole", "pending", "pinned"])
def test_one_other_page_of_a_million_is_seen(rare: str) -> None:
    state = make_state(1_000_000, {"full": (1, 1_000_000)})
    band = state.bands[0]
    band.state[:] = LIVE
    place = 123_456
    if rare == "pinned":
        band.pins[place] = 1
    else:
        band.state[place] = HOLE if rare == "hole" else PENDING
    told = cells(arena_map(state, 0, state.total_bytes, 100))

    expected = {"hole": Cell.MOSTLY_LIVE, "pending": Cell.PENDING, "pinned": Cell.PINNED}[rare]
    assert [cell for cell, _ in told if cell not in (Cell.LIVE, Cell.SINK)] == [expected]


def test_a_band_of_one_page_among_a_million_has_a_character() -> None:
    state = make_state(1_000_000, {"window_8": (1, 2), "window_4": (2, 3), "full": (3, 1_000_000)})
    hold(state, 1, 2)
    told = cells(arena_map(state, 0, state.total_bytes, 50))

    assert [band for _, band in told[:4]] == [-1, 0, 1, 2]
    assert told[2] == (Cell.LIVE, 1)


def test_bands_squeezed_at_the_right_edge_keep_their_characters() -> None:
    extents = {
        "a": (1, 99_997), "b": (99_997, 99_998), "c": (99_998, 99_999), "full": (99_999, 100_000),
    }  # fmt: skip
    state = make_state(100_000, extents)
    told = cells(arena_map(state, 0, state.total_bytes, 40))

    assert [band for _, band in told[-4:]] == [0, 1, 2, 3]


def test_every_state_has_a_character_of_its_own() -> None:
    state = make_state(10, {"window_8": (1, 6), "full": (8, 10)})
    hold(state, 0, [2, 3])
    state.bands[0].state[3] = PENDING
    state.bands[0].pins[2] = 1
    told = [cell for cell, _ in cells(arena_map(state, 0, state.total_bytes, 10))]

    assert told == [
        Cell.SINK, Cell.HOLE, Cell.LIVE, Cell.PINNED, Cell.PENDING, Cell.HOLE, Cell.GAP, Cell.GAP,
        Cell.HOLE, Cell.HOLE,
    ]  # fmt: skip


@pytest.mark.parametrize("glyphs", [UNICODE, PLAIN])
def test_characters_differ_without_colour(glyphs: Any) -> None:
    assert set(glyphs.cells) == set(Cell)
    assert len(set(glyphs.cells.values())) == len(Cell)
    marks = {glyphs.came, glyphs.left, glyphs.cursor}
    assert len(marks) == 3 and not marks & set(glyphs.cells.values())


def test_plain_characters_are_ascii() -> None:
    assert all(glyph.isascii() for glyph in (*PLAIN.cells.values(), PLAIN.spark, PLAIN.came))


def test_moves_are_marked_where_they_began_and_ended() -> None:
    state = make_state(101, {"full": (1, 101)})
    moves = [(0, np.array([50, 51]), np.array([10, 99]))]
    shown = arena_map(state, 0, state.total_bytes, 101, None, moves)

    assert shown.moved_from == (50, 51)
    assert shown.moved_to == (10, 99)


def test_part_of_the_arena() -> None:
    state = make_state(1000, {"window_8": (1, 400), "full": (500, 1000)})
    hold(state, 0, np.arange(380, 400))
    shown = arena_map(state, 350 * PAGE, 550 * PAGE, 200)

    told = cells(shown)
    assert told[0] == (Cell.HOLE, 0)
    assert told[30] == (Cell.LIVE, 0) == told[49]
    assert told[50] == (Cell.GAP, -1) == told[149]
    assert told[150] == (Cell.HOLE, 1)


def test_nothing_of_a_band_is_in_the_part() -> None:
    state = make_state(1000, {"window_8": (1, 400), "full": (500, 1000)})
    shown = arena_map(state, 410 * PAGE, 490 * PAGE, 80, (0, 3))

    assert shown.spans == () and shown.cursor == -1
    assert {cell for cell, _ in cells(shown)} == {Cell.GAP}


@pytest.mark.parametrize(("pages", "columns"), [(1, 1), (7, 3), (3, 7), (1000, 37), (10, 10)])
def test_character_and_page_lead_to_each_other(pages: int, columns: int) -> None:
    span = Span(0, 5, 5 + columns, 100, 100 + pages)
    for column in range(5, 5 + columns):
        page = span.page_at(column)
        assert 100 <= page < 100 + pages
        assert span.page_at(span.column_of(page)) == page
    for page in range(100, 100 + pages):
        assert 5 <= span.column_of(page) < 5 + columns


def test_zoom_shows_single_pages_around_the_cursor() -> None:
    state = make_state(100_000, {"full": (1, 100_000)})
    hold(state, 0, 50_000)
    zoom = zoom_map(state, (0, 50_000), 80)

    told = [run.cell for run in zoom.runs for _ in range(run.length)]
    assert len(told) == 80 and told[zoom.cursor] is Cell.LIVE
    assert zoom.page_first + zoom.cursor == 50_000
    assert told.count(Cell.LIVE) == 1


@pytest.mark.parametrize("page", [1, 2, 99_999])
def test_zoom_at_the_ends(page: int) -> None:
    state = make_state(100_000, {"full": (1, 100_000)})
    zoom = zoom_map(state, (0, page), 80)

    assert sum(run.length for run in zoom.runs) == 80
    assert zoom.page_first + zoom.cursor == page


def test_the_cursor_stays_inside_of_what_exists() -> None:
    state = make_state(100, {"window_8": (10, 20), "full": (50, 60)})
    assert settle_cursor(state, None) == (0, 10)
    assert settle_cursor(state, (0, 5)) == (0, 10)
    assert settle_cursor(state, (0, 25)) == (0, 19)
    state.bands[0].extent = (0, 0)
    assert settle_cursor(state, (0, 15)) == (1, 50)
    state.bands[1].extent = (0, 0)
    assert settle_cursor(state, (0, 15)) is None


def test_facts_of_a_page() -> None:
    state = make_state(100, {"full": (1, 50)})
    hold(state, 0, 30)
    facts = page_facts(state, (0, 30))

    assert (facts.state, facts.name, facts.owner) == ("live", "full 29.0", 7)
    assert page_facts(state, (0, 31)).name == ""
