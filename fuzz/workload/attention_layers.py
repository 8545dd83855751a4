"""The layers that take part in `--verify attention`: their views, and the kernels run on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.device import forward as kernels
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import BandPlan
from bandscope.fuzz.workload.attention_batch import Batch
from bandscope.fuzz.workload.attention_content import (
    ELEMENTS_AT_ONCE,
    KEY,
    QUERY,
    VALUE,
    row_values,
    rows_like,
    token_hashes,
)

QUERY_HEADS_PER_KV_HEAD = 4
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class TokenLayer:
    """One layer of a token band: number `band_index` of the arena, `layer` of the model.

    `keys` and `values`: (pages, page size, KV heads, width). A latent row is one KV head and its
    value is the front part of it: with `latent` the values have no row of their own.
    """

    band: BandPlan
    band_index: int
    layer: int
    keys: torch.Tensor
    values: torch.Tensor
    latent: bool

    @property
    def tokens_at_once(self) -> int:
        """Tokens whose keys (or values) are made at once: a multiple of 16, so that parts of
        uploaded numbers stay aligned."""
        widest = max(self.keys[0, 0].numel(), self.values[0, 0].numel())
        return max(16, ELEMENTS_AT_ONCE // widest // 16 * 16)

    def first_attended(self, length: int) -> int:
        """First position that the last of `length` tokens attends to."""
        window = self.band.window_length
        return 0 if window is None else max(0, length - window)


class Attended(NamedTuple):
    """Attention as the arena gave it: `queries` (batch, heads, width) in the keys' type, `out`
    (batch, heads, value width) float32, `unmapped` (batch,) int32 tokens without a page."""

    queries: torch.Tensor
    out: torch.Tensor
    unmapped: torch.Tensor


def token_layers(arena: Arena, per_band: int) -> list[TokenLayer]:
    """`per_band` layers of each token band, first and last among them; `ConfigError` where rows are
    kept in a type that the kernels do not compute with."""
    found = []
    for index, band in enumerate(arena.plan.bands):
        if band.kind == "state":
            continue
        for layer in spread_layers(band, per_band):
            names = {row.name for row in band.rows if row.layer == layer}
            latent = "latent" in names
            if latent:
                keys = float_view(arena, layer, "latent").unsqueeze(2)
                # The plan does not say how much of the row is the rotary part, which is no value;
                # of the models served it is a ninth.
                values = keys[..., : keys.shape[3] - keys.shape[3] // 9]
            else:
                keys, values = float_view(arena, layer, "k"), float_view(arena, layer, "v")
            found.append(TokenLayer(band, index, layer, keys, values, latent))
    return found


def spread_layers(band: BandPlan, count: int) -> list[int]:
    """`count` of a band's layers, evenly spread: the first, and from two on the last too."""
    layers = np.array(band.layers)
    places = np.linspace(0, len(layers) - 1, min(count, len(layers)))
    chosen: list[int] = layers[np.unique(places.round().astype(int))].tolist()
    return chosen


def float_view(arena: Arena, layer: int, row: str) -> torch.Tensor:
    """`arena.view`, refused where the kernels do not compute with its type."""
    view = arena.view(layer, row)
    if view.dtype not in _TYPES:
        raise ConfigError(
            f"--verify attention was asked for, but row {row!r} of layer {layer} is kept as "
            f"{view.dtype}; it computes with 16 and 32 bit floats, so use --verify stamps"
        )
    return view


def write_tokens(
    layer: TokenLayer, batch: Batch, mirror: torch.Tensor | None, slow: int
) -> torch.Tensor:
    """Write the rows of the batch's new tokens; returns (batch,) int32 tokens without a page."""
    unmapped = torch.zeros_like(batch.requests_there, dtype=torch.int32)
    tokens = token_hashes(batch.requests_there[batch.numbers], batch.positions)
    step = layer.tokens_at_once
    for start in range(0, tokens.numel(), step):  # over batches of bounded scratch memory
        part = slice(start, start + step)
        keys = rows_like(layer.keys, tokens[part], layer.layer, KEY)
        values = None
        if not layer.latent:
            values = rows_like(layer.values, tokens[part], layer.layer, VALUE)
        kernels.write_rows(
            layer.keys, None if layer.latent else layer.values, mirror, batch.page_table,
            batch.numbers[part], batch.positions[part], keys, values,
            table_rows=batch.rows_there, unmapped=unmapped, slow=slow,
        )  # fmt: skip
    return unmapped


def attend(
    layer: TokenLayer,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    mirror: torch.Tensor | None,
    page_table: torch.Tensor,
    table_rows: torch.Tensor,
    *,
    window: int | None,
    slow: int = 0,
) -> Attended:
    """Attention of the last token of each request, through the tables.

    `requests`, `lengths` (tokens of context), `table_rows` (rows of `page_table`): (batch,)
    int64 on the device. `mirror` None: the page table holds physical pages.
    """
    heads, width = layer.keys.shape[2] * QUERY_HEADS_PER_KV_HEAD, layer.keys.shape[3]
    last = token_hashes(requests, lengths - 1)
    queries = row_values(last, heads * width, layer.layer, QUERY).to(layer.keys.dtype)
    queries = queries.view(-1, heads, width)
    out = torch.full(
        (requests.numel(), heads, layer.values.shape[3]), torch.nan, device=requests.device
    )
    unmapped = torch.zeros_like(requests, dtype=torch.int32)
    kernels.paged_attention(
        queries, layer.keys, layer.values, mirror, page_table, lengths, scale=width**-0.5, out=out,
        unmapped=unmapped, window=window, table_rows=table_rows, slow=slow,
    )  # fmt: skip
    return Attended(queries, out, unmapped)
