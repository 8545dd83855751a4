"""What a request's pages hold, as keys of the prefix cache: one integer a page.

A page inside the whole blocks that a trace names has its block's id, so requests that begin alike
have the same keys. Every other page (a partly filled last block, what is generated, requests of which
nothing is known) has a key that only this request has at this place: −1 − (index · 2²⁴ + page). A
request that was retracted has the same keys again and finds its own pages.

The cache compares keys from the first page on, so a page is named by its key and all before it. For
content that is written and read back this is one number, `page_names`: the running sum of hashes of
(key, page).
"""

from __future__ import annotations

import numpy as np

from bandscope.allocator.prefix import repeat_blocks
from bandscope.fuzz.workload.request import Request

# Pages of one request: TOKENS_MAX of them at the smallest page.
_PAGE_BITS = 24
_POSITIVE = (1 << 63) - 1
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


def page_keys(request: Request, tokens: int, page_size: int) -> np.ndarray:
    """Keys of the whole pages of the first `tokens` tokens (prompt and output): int64, (pages,).
    `MisuseError` when the trace's blocks are no whole number of pages."""
    keys = -1 - ((request.index << _PAGE_BITS) | np.arange(tokens // page_size, dtype=np.int64))
    if request.prefix_blocks is None or not request.block_tokens:
        return keys
    # What lies behind the prompt's end is no part of the block.
    blocks = np.asarray(request.prefix_blocks, np.int64)
    blocks = blocks[: request.prompt_tokens // request.block_tokens] & _POSITIVE
    shared = repeat_blocks(blocks, request.block_tokens, page_size)[: keys.size]
    keys[: shared.size] = shared
    return keys


def page_names(keys: np.ndarray) -> np.ndarray:
    """A number per page that stands for its content: equal where the keys up to it are equal."""
    words = keys.astype(np.uint64) * np.uint64(_MIX[0])
    words ^= (np.arange(keys.size, dtype=np.uint64) + np.uint64(1)) * np.uint64(_MIX[1])
    words ^= words >> np.uint64(29)
    words *= np.uint64(_MIX[1])
    words ^= words >> np.uint64(32)
    return np.cumsum(words, dtype=np.uint64).view(np.int64)
