"""What an arena is good for: requests of given lengths, what bounds them, and where bytes are lost.

Pure arithmetic over a plan and a size, exact like the rest of the sizing: every byte of the arena is
in one term of `Waste`, and a test adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bandscope.allocator.demand import DemandModel
from bandscope.allocator.demand_fit import packed_tops, shortage_when_empty
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.targets import SizingOptions, Targets

REQUESTS_MAX = 1 << 24


@dataclass(frozen=True)
class Waste:
    """Where the bytes of an arena are when it is filled with requests of one length.

    `payload`: rows that the next token of some request may read. `page_rounding`: the rest of pages
    that hold some of them. `padding`: bytes of entries that belong to no row, for alignment.
    `grid_residue`: between bands, because a band starts on its own page grid. `unused`: what is left
    above, too little for one more request.
    """

    payload: int
    sink: int
    page_rounding: int
    padding: int
    grid_residue: int
    unused: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True)
class LengthFigures:
    """Requests of `tokens` (prompt and output) at their longest.

    `pages` and `request_bytes`: what one holds at most while it decodes its last page of tokens.
    `bytes_per_token`: the share of one token of it. `at_once`: how many fit, all at their longest;
    `concurrency`: the same within the targets' bounds, and `bounded_by` which of them. `waste`: of the
    arena filled with `at_once` of them.
    """

    tokens: int
    pages: tuple[int, ...]
    request_bytes: int
    bytes_per_token: float
    at_once: int
    concurrency: int
    bounded_by: str
    waste: Waste


@dataclass(frozen=True)
class Sheet:
    """The sizing of one model on one arena, with figures per length of request."""

    targets: Targets
    longest_request: int
    lengths: tuple[LengthFigures, ...]

    def to_json(self) -> dict[str, Any]:
        """Every number, sizes in bytes."""
        targets, plan = self.targets, self.targets.plan
        return {
            "model": plan.model,
            "tensor_parallel": plan.tensor_parallel,
            "page_size": plan.page_size,
            "context_length": plan.context_length,
            "budget_bytes": targets.budget_bytes,
            "arena_bytes": targets.arena_bytes,
            "sink_bytes": plan.sink_bytes,
            "targets": targets.tokens,
            "target_bytes": targets.top_bytes,
            "concurrency": targets.concurrency,
            "bounded_by": targets.bounded_by,
            "bounds": targets.bounds,
            "longest_request": self.longest_request,
            "bands": [
                {
                    "name": band.name,
                    "kind": band.kind,
                    "layers": len(band.layers),
                    "entry_bytes": band.entry_bytes,
                    "padding_bytes": band.padding_bytes,
                    "page_bytes": band.page_bytes,
                    "target_pages": pages,
                }
                for band, pages in zip(plan.bands, targets.pages, strict=True)
            ],
            "lengths": [asdict(figures) for figures in self.lengths],
        }


def make_sheet(targets: Targets, options: SizingOptions, lengths: Sequence[int]) -> Sheet:
    """The whole sheet: `lengths` are of requests, in tokens."""
    model = DemandModel(targets.plan, options.state_slots)
    return Sheet(
        targets,
        longest_request(model, targets.arena_bytes, options),
        tuple(figures_at(model, targets, tokens) for tokens in lengths),
    )


def longest_request(model: DemandModel, arena_bytes: int, options: SizingOptions) -> int:
    """Tokens of the longest request that the arena holds alone, up to the context length."""
    plan = model.plan
    # No request is longer than the arena has room for in the band that grows with every token.
    entry_bytes = plan.bands[-1].entry_bytes
    most = options.context_length or plan.context_length or arena_bytes // entry_bytes
    return 1 + model.max_new_tokens_for_memory(
        lambda rows: shortage_when_empty(plan, arena_bytes, rows), 1, most - 1
    )


def figures_at(model: DemandModel, targets: Targets, tokens: int) -> LengthFigures:
    """What requests of one length need of the arena, and how many it holds."""
    plan = model.plan
    row = model.decode_rows(tokens).max(axis=0)
    at_once = _count(plan, targets.arena_bytes, row)
    bounds = {f"memory for {tokens:,} tokens each": at_once, **targets.bounds}
    bounded_by = min(bounds, key=bounds.__getitem__)
    request_bytes = sum(
        int(pages) * band.page_bytes for pages, band in zip(row, plan.bands, strict=True)
    )
    return LengthFigures(
        tokens,
        tuple(row.tolist()),
        request_bytes,
        request_bytes / tokens,
        at_once,
        bounds[bounded_by],
        bounded_by,
        _waste(model, targets.arena_bytes, tokens, row, at_once),
    )


def _count(plan: StoragePlan, arena_bytes: int, row: np.ndarray) -> int:
    """The most requests that hold `row` pages each."""

    def fits(count: int) -> bool:
        return bool(shortage_when_empty(plan, arena_bytes, row[None] * count)[0] <= 0)

    low, high = 0, min(REQUESTS_MAX, arena_bytes // plan.bands[-1].page_bytes + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _waste(
    model: DemandModel, arena_bytes: int, tokens: int, row: np.ndarray, count: int
) -> Waste:
    plan = model.plan
    payload = padding = rounding = held = 0
    for band, reach, pages in zip(plan.bands, model.reaches, row.tolist(), strict=True):
        entries = pages * band.page_size
        used = entries if band.kind == "state" else min(tokens, reach or tokens)
        payload += used * band.payload_bytes
        padding += used * band.padding_bytes
        rounding += (entries - used) * band.entry_bytes
        held += pages * band.page_bytes
    sizes = [band.page_bytes for band in plan.bands]
    top = int(packed_tops(sizes, plan.sink_bytes, row[None] * count)[0])
    return Waste(
        payload=payload * count,
        sink=plan.sink_bytes,
        page_rounding=rounding * count,
        padding=padding * count,
        grid_residue=top - plan.sink_bytes - held * count,
        unused=arena_bytes - top,
    )
