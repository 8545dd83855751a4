"""Sizes are read and rounded as stated, and an arena that cannot run one request is refused."""

from __future__ import annotations

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import SizingError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.sizing import (
    ARENA_BYTES_MAX,
    ROUND_BYTES,
    check_holds_one_page,
    check_one_request_floor,
    floor_pages,
    floor_terms,
    parse_bytes,
    share_of_memory,
    usable_bytes,
)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("4096", 4096),
        ("1", 1),
        (" 8 GiB ", 8 << 30),
        ("8GiB", 8 << 30),
        ("8gib", 8 << 30),
        ("8G", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("2 kb", 2000),
        ("3m", 3 << 20),
        ("7b", 7),
        ("0.5TiB", 1 << 39),
        ("1024TiB", 1 << 50),
        ("1.001kB", 1001),
        ("0.3MB", 300_000),
        ("1125899906842623", (1 << 50) - 1),
    ],
)
def test_sizes_are_read_with_decimal_and_binary_units(text: str, expected: int) -> None:
    """kB is 1000 and KiB (or K) 1024 bytes; case and blanks do not matter."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "8 Gigs", "-1", "+1", "1e9", "1,000", "8GiB8", "0x10", "1..5", ".5", "5.", "nan",
     "inf", "8 G iB", "8GiB\n8"],
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    """The message repeats what was given and shows how sizes are written."""
    with pytest.raises(SizingError, match="not a number with a unit; write it like 8GiB") as raised:
        parse_bytes(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    "text", ["0", "0GiB", "0.4", "1025TiB", "1125899906842625", pytest.param("9" * 400, id="400 nines")]
)
def test_sizes_that_no_arena_has_are_refused(text: str) -> None:
    """Nothing at all and more than 1024 TiB are refused by range."""
    with pytest.raises(SizingError, match="sizes lie between 1 byte and 1024 TiB"):
        parse_bytes(text)
    assert parse_bytes("1024TiB") == ARENA_BYTES_MAX


def test_usable_bytes_are_whole_rounding_units() -> None:
    """Rounded down, never up; less than one unit is lost."""
    for total in (0, 1, 255, 256, 257, 511, 512, 10**12 + 7, (1 << 50) - 1):
        usable = usable_bytes(total)

        assert usable % ROUND_BYTES == 0
        assert 0 <= total - usable < ROUND_BYTES
    assert Arena(plan_from_sizes([("mamba", 8), ("full", 4)]), 1023, device="none").total_bytes == 768


def test_a_share_of_memory_is_rounded_and_must_be_free() -> None:
    """The share counts from the whole device; what is not free is refused with both figures."""
    assert share_of_memory(1000_000, 1000_000, 0.5) == 499_968
    assert share_of_memory(1024, 512, 0.5) == 512
    assert share_of_memory(1024, 1024, 1.0) == 1024
    with pytest.raises(SizingError, match="75% of the device's 1,024 bytes .* only 767 are free"):
        share_of_memory(1024, 767, 0.75)
    for fraction in (0, -0.5, 1.01, float("nan")):
        with pytest.raises(SizingError, match="give a number above 0 and up to 1"):
            share_of_memory(1024, 1024, fraction)


PLAN = plan_from_sizes(
    [("mamba", 8192), ("window_10", 4096), ("full", 4096)], page_size=4, context_length=1000
)


def test_the_floor_is_sink_windows_one_slot_and_one_page() -> None:
    """A window of 10 tokens needs 10 + 4 tokens: four pages of 4."""
    assert floor_terms(PLAN) == {
        "sink": 8192,
        "1 slot of mamba": 8192,
        "4 pages of window_10": 4 * 4096,
        "1 page of full": 4096,
    }


@pytest.mark.parametrize("context,pages", [(1, 1), (4, 1), (5, 2), (13, 4), (14, 4), (1000, 4)])
def test_a_window_never_counts_more_than_the_context(context: int, pages: int) -> None:
    """A short context holds fewer pages than the window would."""
    assert f"{pages} pages of window_10" in floor_terms(PLAN, context)


def test_a_window_of_unstated_length_counts_the_whole_context() -> None:
    """Without a length every token may stay."""
    plan = plan_from_sizes([("window", 512), ("full", 1024)], page_size=4, context_length=41)

    assert floor_terms(plan)["11 pages of window"] == 11 * 512
    assert floor_terms(plan, 8)["2 pages of window"] == 2 * 512


def test_the_floor_passes_at_equality_and_fails_one_rounding_unit_below() -> None:
    """The refusal lists every term, the sum, and what was given."""
    needed = 8192 + 8192 + 4 * 4096 + 4096
    check_one_request_floor(PLAN, needed)
    check_one_request_floor(PLAN, needed + 255)

    for total in (needed - 1, needed - ROUND_BYTES):
        with pytest.raises(SizingError) as raised:
            check_one_request_floor(PLAN, total)
        message = str(raised.value)
        assert f"an arena of {needed - ROUND_BYTES:,} bytes was asked for" in message
        assert f"one request needs {needed:,} bytes" in message
        for name, size in floor_terms(PLAN).items():
            assert f"{name} {size:,}" in message


def test_an_arena_holds_at_least_one_page_of_every_band() -> None:
    """The least arena is the sink and a page of each; it passes exactly, and not below."""
    needed = 8192 + 8192 + 4096 + 4096
    check_holds_one_page(PLAN, needed)

    assert Arena(PLAN, needed, device="none").serves([1, 1, 1])
    with pytest.raises(SizingError, match="one page of every band needs 24,576 bytes"):
        check_holds_one_page(PLAN, needed - 1)
    with pytest.raises(SizingError, match="sink 8,192 . one page of mamba 8,192"):
        Arena(PLAN, needed - 1, device="none")


@pytest.mark.parametrize("context", [1, 5, 14, 15, 33, 100])
def test_an_arena_at_the_floor_runs_one_request(context: int) -> None:
    """Scenario C2: at the floor plus the pages of full that a context needs, it decodes to its end."""
    floor = sum(floor_terms(PLAN, context).values())
    pages = -(-context // PLAN.page_size)
    arena = Arena(PLAN, floor + (pages - 1) * 4096, device="none")
    assert arena.admit(0).ok
    for _ in range(context):
        assert arena.decode([0]).ok
        arena.complete(arena.launch([0]))
        arena.trim_window([0])

    assert arena.check() == []


@pytest.mark.parametrize("context", [1, 4, 30])
def test_the_floor_counts_rounding_to_page_grids(context: int) -> None:
    """Off-grid pages: an arena exactly at the floor takes the floor's pages, and says what grids
    cost when it is one rounding unit smaller."""
    plan = plan_from_sizes([("mamba", 8192), ("window_10", 2048), ("full", 5120)])
    pages = floor_pages(plan, context)
    start = plan.sink_bytes
    for band, count in zip(plan.bands, pages, strict=True):
        start = (-(-start // band.page_bytes) + count) * band.page_bytes
    check_one_request_floor(plan, start, context)
    arena = Arena(plan, start, device="none")

    assert arena.serves(pages)
    with pytest.raises(SizingError, match="rounding to page grids"):
        check_one_request_floor(plan, start - 256, context)
