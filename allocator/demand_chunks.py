"""Which prefill chunk is computed in which step: a budget of tokens a step, first come first served.

The steps of a `Schedule`, and of the engine that follows it.
"""

from __future__ import annotations

import numpy as np

Cut = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def cut(rest: np.ndarray, chunk_tokens: int) -> Cut:
    """Chunks (request, step, begin, end within its rest) of requests served first come first served
    from a budget per step."""
    ends = np.cumsum(rest)
    total = int(ends[-1]) if ends.size else 0
    cuts = distinct(np.concatenate([ends, np.arange(chunk_tokens, total, chunk_tokens)]))
    owner = np.searchsorted(ends, cuts, side="left")
    base = (ends - rest)[owner]
    begin = np.concatenate([[0], cuts])[:-1]
    return owner, -(-cuts // chunk_tokens), begin - base, cuts - base


def cut_one_by_one(
    rest: list[int], chunk_tokens: int, limits: list[int], grid_tokens: int, forks: list[int]
) -> Cut:
    """`cut` when some requests take smaller chunks (`limits`), in steps of their own, when every chunk
    but a request's last ends on a grid (and so all begin there), or when one has to end after `forks`
    tokens of the rest (≤ 0: none), as `next_chunk` has it."""
    pieces: list[tuple[int, int, int, int]] = []
    step, budget = 1, chunk_tokens
    for request, (tokens, limit, fork) in enumerate(zip(rest, limits, forks, strict=True)):
        done = 0
        while done < tokens:
            size = 0
            if limit >= chunk_tokens or budget == chunk_tokens:
                size = next_chunk(tokens - done, budget, limit, grid_tokens, fork - done)
            if not size:
                step, budget = step + 1, chunk_tokens
                continue
            pieces.append((request, step, done, done + size))
            done += size
            # Nobody overtakes: those behind wait until this one is done.
            budget = budget - size if limit >= chunk_tokens and done == tokens else 0
    owner, when, begin, end = np.array(pieces, np.int64).reshape(-1, 4).T
    return owner, when, begin, end


def next_chunk(
    rest_tokens: int, budget: int, limit: int, grid_tokens: int, fork_tokens: int = 0
) -> int:
    """The size of a chunk that begins on the grid: all that is left, or as many whole grids as the
    step's budget and the request's limit allow; 0 when the budget allows none. A limit below the grid
    is of a request that memory holds in no other way: it is prefilled off the grid. None goes beyond
    the next `fork_tokens`, which lie on the grid (≤ 0: there is no fork)."""
    most = min(budget, limit)
    if 0 < fork_tokens < rest_tokens:
        rest_tokens = fork_tokens
    if rest_tokens <= most:
        return rest_tokens
    return most - most % grid_tokens if limit >= grid_tokens else most


def distinct(values: np.ndarray) -> np.ndarray:
    """Ascending, each once (`np.unique` takes longer for so few)."""
    ordered = np.sort(values)
    fresh = np.ones(ordered.size, bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return ordered[fresh]
