"""Views address exactly the bytes that the plan says, no two share a byte, wherever they lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.decl import (
    MHA,
    MLA,
    FullLifetime,
    LayerDecl,
    ModelDecl,
    Part,
    State,
    StateLifetime,
    StateTensor,
    WindowLifetime,
)
from bandscope.allocator.errors import ConfigError, MisuseError
from bandscope.allocator.layout import TORCH_DTYPES, find_row, layer_view, row_view
from bandscope.allocator.plan import BandPlan, RowPlan, StoragePlan, plan_from_sizes, plan_storage

STATE = State(
    "test", (StateTensor("conv", (4, 3), "bfloat16"), StateTensor("temporal", (2, 4, 8), "float32"))
)


def make_plan(*parts: Part, page_size: int = 4, alignment_bytes: int = 16) -> StoragePlan:
    layers = tuple(LayerDecl(index, (part,)) for index, part in enumerate(parts))
    model = ModelDecl("toy", "toy", 4096, layers)
    return plan_storage(model, page_size=page_size, alignment_bytes=alignment_bytes)


def full(geometry: object) -> Part:
    return Part(geometry, FullLifetime())  # type: ignore[arg-type]


def window(geometry: object) -> Part:
    return Part(geometry, WindowLifetime(16))  # type: ignore[arg-type]


UNEVEN = MHA(2, 8, 4)  # keys of 8, values of 4 elements a head
PLANS = {
    "mha+window": make_plan(full(MHA(2, 8, 8)), window(UNEVEN), full(MHA(2, 8, 8)), window(UNEVEN)),
    "uneven+state": make_plan(full(UNEVEN), Part(STATE, StateLifetime()), full(UNEVEN)),
    "mla+state": make_plan(
        full(MLA(16, 4)), Part(STATE, StateLifetime()), full(MLA(16, 4)), page_size=3
    ),
    "wide alignment": make_plan(
        full(MHA(1, 3, 5)), Part(STATE, StateLifetime()), page_size=2, alignment_bytes=64
    ),
}
TOTAL_BYTES = 64 << 10


def rows_of(plan: StoragePlan) -> list[tuple[BandPlan, RowPlan]]:
    return [(band, row) for band in plan.bands for row in band.rows]


def row_offsets(band: BandPlan, row: RowPlan) -> np.ndarray:
    """Byte offsets of every element of a row by the plan alone: (pages, entries, elements)."""
    item = TORCH_DTYPES[row.dtype].itemsize
    elements = int(np.prod(row.shape))
    pages = np.arange(TOTAL_BYTES // band.page_bytes)[:, None, None] * band.page_bytes
    entries = np.arange(band.page_size)[None, :, None] * band.entry_bytes
    return pages + entries + row.offset_bytes + np.arange(elements)[None, None, :] * item


@pytest.mark.parametrize("name", PLANS)
def test_a_view_addresses_exactly_the_bytes_of_its_row(name: str) -> None:
    """Writing through each view changes those bytes and no others, for every layer and row."""
    plan = PLANS[name]
    for band, row in rows_of(plan):
        buffer = torch.zeros(TOTAL_BYTES, dtype=torch.uint8)
        view = layer_view(plan, buffer, row.layer, row.name)
        pages = TOTAL_BYTES // band.page_bytes
        leading = (pages,) if band.kind == "state" else (pages, band.page_size)
        item = TORCH_DTYPES[row.dtype].itemsize
        expected = np.zeros(TOTAL_BYTES, np.uint8)
        offsets = row_offsets(band, row)
        for byte in range(item):
            expected[offsets + byte] = 0xFF
        raw = view.view(torch.uint8 if item == 1 else {2: torch.int16, 4: torch.int32}[item])
        raw.fill_(-1 if item > 1 else 255)

        assert view.shape == (*leading, *row.shape)
        assert view.dtype == TORCH_DTYPES[row.dtype]
        assert (buffer.numpy() == expected).all()


@pytest.mark.parametrize("name", PLANS)
def test_each_element_of_a_view_lies_where_the_plan_puts_it(name: str) -> None:
    """Storage offset and strides, element by element, against offsets computed from the plan."""
    plan = PLANS[name]
    buffer = torch.zeros(TOTAL_BYTES, dtype=torch.uint8)
    for band, row in rows_of(plan):
        view = layer_view(plan, buffer, row.layer, row.name)
        index = [np.arange(size) for size in view.shape]
        grid = np.meshgrid(*index, indexing="ij")
        steps = zip(grid, view.stride(), strict=True)
        found = view.storage_offset() + sum(axis * stride for axis, stride in steps)

        assert (found.reshape(-1) * view.element_size() == row_offsets(band, row).reshape(-1)).all()


@pytest.mark.parametrize("name", PLANS)
def test_views_of_different_rows_share_no_byte(name: str) -> None:
    """Inside a band, the rows of all layers of all entries are disjoint and inside their page."""
    plan = PLANS[name]
    for band in plan.bands:
        uses = np.zeros(TOTAL_BYTES, np.int64)
        for row in band.rows:
            offsets = row_offsets(band, row)
            pages = offsets // band.page_bytes
            assert (pages == np.arange(pages.shape[0])[:, None, None]).all()
            for byte in range(TORCH_DTYPES[row.dtype].itemsize):
                uses[offsets + byte] += 1
        whole = TOTAL_BYTES // band.page_bytes * band.page_bytes

        assert uses.max() == 1
        assert uses.sum() == whole // band.entry_bytes * band.payload_bytes


def test_what_a_request_wrote_is_read_back_after_its_pages_moved() -> None:
    """Rows of every layer, written through views, survive compaction; indices come from the arena."""
    plan = PLANS["uneven+state"]
    arena = Arena(plan, 64 << 10, device="cpu", config=ArenaConfig())
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 9)
    values = {}
    for request, (band, row) in itertools.product(range(4), rows_of(plan)):
        view = arena.view(row.layer, row.name)
        pages, _ = arena.pages_of(request, band.name)
        number = 10 * request + row.layer + len(row.name) / 4
        view[torch.from_numpy(pages)] = number
        values[request, band.name, row] = number
    before = {request: arena.pages_of(request, "full")[0].tolist() for request in (1, 3)}
    arena.release(0)
    arena.release(2)
    arena.compact(urgent=True)
    after = {request: arena.pages_of(request, "full")[0].tolist() for request in (1, 3)}

    assert before != after
    for (request, name, row), number in values.items():
        if request in (1, 3):
            pages, _ = arena.pages_of(request, name)
            found = arena.view(row.layer, row.name)[torch.from_numpy(pages)]
            assert (found == number).all()
    assert arena.view(0, "k") is arena.view(0, "k")


def test_an_unknown_row_lists_those_there_are() -> None:
    """The message names the layer's rows, or none for a layer that keeps nothing."""
    plan = PLANS["uneven+state"]

    assert find_row(plan, 0, "v")[1].name == "v"
    with pytest.raises(ConfigError, match="row 'latent' of layer 0 .* that layer of toy keeps: k, v"):
        find_row(plan, 0, "latent")
    with pytest.raises(ConfigError, match="layer 9 .* keeps: none"):
        find_row(plan, 9, "k")


@pytest.mark.parametrize(
    "what,entry_bytes,page_size,offset",
    [("row offset", 16, 4, 2), ("entry", 18, 4, 0), ("page", 18, 1, 0)],
)
def test_unaligned_rows_are_refused(
    what: str, entry_bytes: int, page_size: int, offset: int
) -> None:
    """A view whose rows would not start on whole elements is refused, naming the size at fault."""
    row = RowPlan(0, "k", (2,), "float32", offset, 8)
    band = BandPlan("full", "full", None, "high", page_size, entry_bytes, 8, (row,))
    buffer = torch.zeros(1024, dtype=torch.uint8)
    what = "entry" if what == "page" else what

    with pytest.raises(ConfigError, match=f"the {what} of .* is no multiple of 4, the size of"):
        row_view(band, row, buffer, torch.float32, (2,))
    assert row_view(band, row, buffer, torch.uint8, (8,)).shape[-1] == 8


def test_offsets_beyond_two_and_four_gib_are_exact() -> None:
    """Scenario H4: pages of 64 KiB around bytes 2^31 and 2^32, and the last; no bytes are needed."""
    plan = make_plan(full(MHA(8, 64, 64)), window(MHA(8, 64, 64)), full(MHA(8, 64, 64)))
    band, row = find_row(plan, 2, "v")
    total = (6 << 30) + 4096
    buffer = torch.empty(total, dtype=torch.uint8, device="meta")
    view = layer_view(plan, buffer, 2, "v")
    page_bytes = band.page_bytes
    last = total // page_bytes - 1

    assert view.shape[0] == last + 1
    for page in ((1 << 31) // page_bytes - 1, (1 << 31) // page_bytes, (1 << 32) // page_bytes, last):
        for entry in (0, band.page_size - 1):
            one = view[page, entry]
            expected = page * page_bytes + entry * band.entry_bytes + row.offset_bytes
            assert one.storage_offset() * view.element_size() == expected
            assert expected + row.row_bytes <= total


def test_pages_near_the_end_of_a_large_arena_have_exact_physical_numbers() -> None:
    """Books of 6 GiB: the high end's first pages lie at the very top, in 64-bit bytes."""
    plan = plan_from_sizes([("mamba", 1 << 20), ("full", 64 << 10)])
    arena = Arena(plan, (6 << 30) + 4096, device="none")
    arena.admit(0)
    arena.extend(0, 3)
    full_band = arena.books.bands[1]

    assert arena.pages_of(0, "full")[0].tolist() == [98303, 98302, 98301]
    assert full_band.byte_range() == (98301 * (64 << 10), 6 << 30)


def test_an_arena_without_bytes_has_no_views() -> None:
    """A device that only keeps books says so."""
    arena = Arena(PLANS["mla+state"], 64 << 10, device="none")

    with pytest.raises(MisuseError, match="device 'none' were asked for, but it only keeps books"):
        arena.view(0, "latent")
