"""Typed strided views of the arena: what each layer's kernels index.

A page is `page_size` entries; an entry is one token's (or one state slot's) rows of all layers, back
to back. So a layer's rows lie at a constant stride in the whole arena, and one `as_strided` view per
row serves every page a band will ever hold, wherever the band moves.
"""

from __future__ import annotations

import torch

from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import BandPlan, RowPlan, StoragePlan

TORCH_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


def find_row(plan: StoragePlan, layer: int, name: str) -> tuple[BandPlan, RowPlan]:
    """The band that keeps row `name` of `layer`, and the row. `ConfigError` lists what there is."""
    rows = [(band, row) for band in plan.bands for row in band.rows if row.layer == layer]
    for band, row in rows:
        if row.name == name:
            return band, row
    known = ", ".join(row.name for _, row in rows) or "none"
    raise ConfigError(
        f"row {name!r} of layer {layer} was asked for, but that layer of {plan.model} keeps: {known}"
    )


def layer_view(
    plan: StoragePlan, buffer: torch.Tensor, layer: int, name: str
) -> torch.Tensor:
    """The rows `name` of `layer`: `(pages, page_size, *shape)`, or `(slots, *shape)` for state.

    `buffer` is the arena (`uint8`, one dimension). Page 0 starts at byte 0 (inside the sink).
    """
    band, row = find_row(plan, layer, name)
    return row_view(band, row, buffer, TORCH_DTYPES[row.dtype], row.shape)


def row_view(
    band: BandPlan,
    row: RowPlan,
    buffer: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """A view of a row's bytes as `shape` elements of `dtype` per entry, aligned or refused."""
    item = dtype.itemsize
    for what, value in (
        ("row offset", row.offset_bytes),
        ("entry", band.entry_bytes),
        ("page", band.page_bytes),
    ):
        if value % item:
            raise ConfigError(
                f"the {what} of {value} bytes for row {row.name!r} of layer {row.layer} in band "
                f"{band.name} is no multiple of {item}, the size of {dtype}; plan the storage with "
                f"a larger alignment"
            )
    pages = buffer.numel() // band.page_bytes
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    leading = [pages] if band.kind == "state" else [pages, band.page_size]
    leading_strides = [band.page_bytes // item, band.entry_bytes // item][: len(leading)]
    whole = buffer[: buffer.numel() // item * item].view(dtype)
    return torch.as_strided(
        whole, [*leading, *shape], [*leading_strides, *strides], row.offset_bytes // item
    )
