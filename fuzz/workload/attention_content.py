"""What the forward of `--verify attention` writes: numbers that can be made again from their names.

A token is named by a hash of (request, position). Its rows are a hash of (token, layer, kind,
element): odd multiples of 1/256 between −1 and 1, which bfloat16 holds exactly, so that what is
read back carries no rounding.
"""

from __future__ import annotations

import torch

from bandscope.fuzz.workload.hashing import MIX, mix

# Kinds of rows.
KEY, VALUE, QUERY, PATTERN = range(4)
# Elements that are made at once; bounds the scratch memory of a step.
ELEMENTS_AT_ONCE = 1 << 22


def token_hashes(requests: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The names of tokens. `requests`, `positions` and the result: int64 of one shape."""
    return mix(requests * MIX[1] + positions)


def row_values(tokens: torch.Tensor, elements: int, layer: int, kind: int) -> torch.Tensor:
    """(tokens, elements) float32 of the tokens with these hashes, (tokens,) int64."""
    salted = mix(tokens ^ (layer * 4 + kind))
    element = mix(torch.arange(elements, device=tokens.device))
    bits = (mix(salted[:, None] + element[None, :]) >> 40) & 0xFF
    return (bits * 2 - 255).to(torch.float32) / 256


def rows_like(view: torch.Tensor, tokens: torch.Tensor, layer: int, kind: int) -> torch.Tensor:
    """The rows of tokens for a layer view `(pages, page size, *row shape)`, in the view's type:
    (tokens, *row shape), contiguous."""
    shape = view.shape[2:]
    return row_values(tokens, shape.numel(), layer, kind).to(view.dtype).view(-1, *shape)
