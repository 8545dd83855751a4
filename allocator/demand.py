"""What a request needs over its life, in pages per band. One model for admission and refusals.

First version: full attention grows to the last token; a window holds its length plus the page it
grows into and the page that is about to leave; state holds its slots from the start. While a prefill
chunk runs, windows also hold the chunk: that is a demand of the *step*, shared by all requests whose
chunks it contains, and comes from `chunk_demand`.
"""

from __future__ import annotations

from bandscope.allocator.plan import StoragePlan

# A window's tail may start inside one page and end inside another.
WINDOW_SLACK_PAGES = 2


def peak_demand(
    plan: StoragePlan, prompt_tokens: int, output_tokens: int, *, state_slots: int = 1
) -> list[int]:
    """Pages per band (chain order) that one request holds at most, outside its prefill chunks."""
    total = -(-(prompt_tokens + output_tokens) // plan.page_size)
    demand = []
    for band in plan.bands:
        if band.kind == "state":
            demand.append(state_slots)
        elif band.kind == "full" or band.window_length is None:
            demand.append(total)
        else:
            window = -(-band.window_length // band.page_size) + WINDOW_SLACK_PAGES
            demand.append(min(total, window))
    return demand


def chunk_demand(plan: StoragePlan, chunk_tokens: int) -> list[int]:
    """Pages per band that one step's prefill chunks hold beyond `peak_demand`."""
    pages = -(-chunk_tokens // plan.page_size)
    return [
        pages if band.kind == "window" and band.window_length is not None else 0
        for band in plan.bands
    ]


def add(*demands: list[int]) -> list[int]:
    """The demand of all together."""
    return [sum(pages) for pages in zip(*demands, strict=True)]
