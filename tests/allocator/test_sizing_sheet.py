"""The sheet: every byte is in one term, and the counts are what an arena then holds."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.demand import DemandModel
from bandscope.allocator.errors import SizingError, UnsupportedModelError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.allocator.presets import preset_names
from bandscope.allocator.sizing_gpus import GPU_MEBIBYTES, gpu_bytes
from bandscope.allocator.sizing_sheet import Sheet, make_sheet
from bandscope.allocator.targets import SizingOptions, size_arena

GIB = 1 << 30
DATA = Path(__file__).parents[3] / "shared" / "data" / "models"
LENGTHS = (1, 100, 1024, 8192)


def sheet_of(plan: StoragePlan, arena_bytes: int, lengths: tuple[int, ...] = LENGTHS) -> Sheet:
    """The sheet with default options."""
    options = SizingOptions()
    return make_sheet(size_arena(plan, arena_bytes, options), options, lengths)


def supported() -> list[str]:
    """Presets that an arena serves."""
    names = []
    for name in preset_names():
        try:
            plan_storage(declare_model(name))
        except UnsupportedModelError:
            continue
        names.append(name)
    return names


@pytest.mark.parametrize("name", supported())
@pytest.mark.parametrize("arena_bytes", [3 * GIB + 123, 100 * GIB])
def test_every_byte_is_in_one_term(name: str, arena_bytes: int) -> None:
    """All models: the terms of the waste add up to the arena, none is negative, and one request more
    would not fit."""
    plan = plan_storage(declare_model(name))
    sheet = sheet_of(plan, arena_bytes)
    for figures in sheet.lengths:
        waste = figures.waste
        assert waste.total == sheet.targets.arena_bytes
        assert min(asdict(waste).values()) >= 0
        demand = [pages * figures.at_once for pages in figures.pages]
        more = [pages * (figures.at_once + 1) for pages in figures.pages]
        arena = Arena(plan, arena_bytes, device="none")
        assert arena.serves_when_empty(demand) and not arena.serves_when_empty(more)
        assert figures.concurrency == min(figures.at_once, sheet.targets.concurrency)
    assert json.loads(json.dumps(sheet.to_json()))["model"] == plan.model


def test_the_counted_requests_really_run_at_once() -> None:
    """An arena filled as the sheet says: so many requests reach the length, the next one does not."""
    plan = plan_from_sizes([("mamba", 2048), ("window_8", 1024), ("full", 512)], page_size=4)
    sheet = sheet_of(plan, 200_000, (30,))
    count = sheet.lengths[0].at_once
    assert count > 10
    arena = Arena(plan, 200_000, device="none")
    for request in range(count):
        assert arena.admit(request).ok
        for token in range(30):
            assert arena.decode([request]).ok, (request, token)
            arena.trim_window([request])
    assert not arena.admit(count) or not all(arena.decode([count]).ok for _ in range(30))


def test_the_longest_request_really_runs() -> None:
    """Alone it decodes to its end, and one token more finds no room."""
    plan = plan_from_sizes([("mamba", 2048), ("window_8", 1024), ("full", 512)], page_size=4)
    sheet = sheet_of(plan, 60_000)
    arena = Arena(plan, 60_000, device="none")
    arena.admit(0)
    for _ in range(sheet.longest_request):
        assert arena.decode([0]).ok
        arena.trim_window([0])
    assert not arena.decode([0]).ok
    short = plan_from_sizes([("mamba", 2048), ("full", 512)], page_size=4, context_length=9)
    assert sheet_of(short, 60_000).longest_request == 9


def test_waste_is_split_by_cause() -> None:
    """Three requests of 9 tokens in pages of 4, by hand."""
    plan = plan_from_sizes([("mamba", 700), ("full", 512)], page_size=4)
    figures = sheet_of(plan, 700 + 3 * (700 + 3 * 512) + 500, (9,)).lengths[0]
    assert (figures.pages, figures.request_bytes) == ((1, 3), 700 + 3 * 512)
    assert figures.at_once == 3
    waste = figures.waste
    assert waste.sink == 700
    assert waste.payload == 3 * (700 + 9 * 128)
    assert waste.page_rounding == 3 * 3 * 128
    assert waste.padding == 0
    assert waste.grid_residue == -(-4 * 700 // 512) * 512 - 4 * 700


def test_padding_is_counted_where_rows_leave_some() -> None:
    """An entry aligned to 4096 bytes: what no row uses is padding, not payload."""
    plan = plan_storage(declare_model("gemma-3-1b"), alignment_bytes=4096)
    figures = sheet_of(plan, GIB, (1024,)).lengths[0]
    per_request = sum(
        rows * band.padding_bytes for band, rows in zip(plan.bands, (512, 1024), strict=True)
    )
    assert figures.waste.padding == per_request * figures.at_once > 0


def test_gpus_are_named_in_bytes() -> None:
    """Known names in any case; others are refused with the closest."""
    assert gpu_bytes("H200") == 143_771 << 20
    assert all(gpu_bytes(name) % (1 << 20) == 0 for name in GPU_MEBIBYTES)
    with pytest.raises(SizingError, match="did you mean h200"):
        gpu_bytes("h20")
    with pytest.raises(SizingError, match="known: t4, a10"):
        gpu_bytes("abacus")


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared model data are not beside the checkout")
@pytest.mark.parametrize("page", [1, 16])
def test_published_layouts_have_these_bytes_per_token_and_slot(page: int) -> None:
    """The shared table of published models: bytes of a token and of a slot, without padding, are what
    a request then holds and the sheet counts as payload."""
    compared = 0
    with (DATA / "summary.csv").open(encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for name in supported():
        if name not in rows:
            continue
        layout = json.loads((DATA / "layouts" / f"{name}.json").read_text())["bytes"]
        plan = plan_storage(declare_model(name), page_size=page)
        figures = sheet_of(plan, 120 * GIB, (4096,)).lengths[0]
        expected = 0
        for band in plan.bands:
            tokens = {"state": 1, "full": 4096}.get(band.kind, min(4096, band.window_length or 4096))
            expected += tokens * next(
                value for key, value in layout.items()
                if key.startswith(band.kind) and isinstance(value, int)
            )  # fmt: skip
        assert figures.waste.payload == expected * figures.at_once, name
        compared += 1
    assert compared > 15


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared model data are not beside the checkout")
def test_real_configurations_are_sized() -> None:
    """Every published config.json there is: sized on every GPU that holds one request, by its file."""
    sized = 0
    for path in sorted((DATA / "configs").glob("*.json")):
        try:
            plan = plan_storage(declare_model(path))
        except UnsupportedModelError:
            continue
        for gpu in GPU_MEBIBYTES:
            sheet = sheet_of(plan, gpu_bytes(gpu) * 9 // 10)
            targets = sheet.targets
            assert targets.top_bytes <= targets.arena_bytes
            assert sheet.longest_request <= (plan.context_length or 0)
            model = DemandModel(plan)
            assert model.plan is plan and targets.concurrency >= 1
            sized += 1
    assert sized >= 9 * len(GPU_MEBIBYTES)
