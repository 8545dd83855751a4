"""What attention must give: softmax in float64 over rows made from their names, in order.

Nothing here reads the arena or its tables, so no fault of theirs can be in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bandscope.fuzz.workload.attention_content import KEY, VALUE, rows_like, token_hashes
from bandscope.fuzz.workload.attention_layers import TokenLayer


def right_attention(
    layer: TokenLayer, query: torch.Tensor, request: int, first: int, stop: int
) -> torch.Tensor:
    """Attention of one query to tokens `first … stop` of a request.

    `query` (heads, width), in the type of the keys; query head `h` reads KV head
    `h // (heads / KV heads)`. Result: (heads, value width) float64, on the query's device.
    """
    kv_heads, width = layer.keys.shape[2:]
    grouped = query.double().view(kv_heads, -1, width) * width**-0.5
    scores = torch.cat(
        [
            torch.einsum("kgd,tkd->kgt", grouped, keys.double())
            for _, keys in _context(layer, request, first, stop, KEY, query.device)
        ],
        dim=2,
    )
    weights = scores.softmax(dim=2)
    value_width = layer.values.shape[3]
    result = torch.zeros(
        (*grouped.shape[:2], value_width), dtype=torch.float64, device=query.device
    )
    kind = KEY if layer.latent else VALUE
    for start, values in _context(layer, request, first, stop, kind, query.device):
        part = weights[:, :, start - first : start - first + len(values)]
        result += torch.einsum("kgt,tkd->kgd", part, values[..., :value_width].double())
    return result.flatten(0, 1)


def _context(
    layer: TokenLayer, request: int, first: int, stop: int, kind: int, where: torch.device
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first position, rows (tokens, KV heads, width)) of a context, in batches of bounded size."""
    view = layer.values if kind == VALUE else layer.keys
    for start in range(first, stop, layer.tokens_at_once):
        positions = torch.arange(start, min(stop, start + layer.tokens_at_once), device=where)
        tokens = token_hashes(torch.full_like(positions, request), positions)
        yield start, rows_like(view, tokens, layer.layer, kind)
