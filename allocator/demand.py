"""What requests need of memory, in pages per band, as their lives go on.

One model for everything that asks in advance: the one-request floor, the memory clip, admission and
the sheets of `bandscope size`. It is exact: what it says a step holds is what an arena then holds.

A request's life is a row of *steps*. A step makes room for the tokens `[start, stop)`, launches the
forward that computes them, and then trims the windows. While it runs, a request holds

- full attention (and a window of unstated length): the pages of tokens `[0, stop)`;
- a window of `w` tokens: the pages of `[0, stop)` without those that token `start` no longer attends
  to, as they were trimmed after the step before. So the rows of a prefill chunk live together until
  its launch, and a decoding request holds at most `ceil((w − 1) / page) + 1` pages;
- state: its slots, from its admission to its end.

Prefill steps take up to a chunk of tokens, decode steps one (and room for look-ahead tokens). Pages
of full attention never shrink, and a step whose start lies a whole number of pages further holds at
least as many pages of every window. So of equal steps only the last `page_size` can be a peak:
answers about one request cost the page size, never its length. `demand_schedule` answers for many
requests at once, `demand_fit` asks whether an arena holds what they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import StoragePlan

#: Rows of pages per band in chain order → the bytes that each row is short of (≤ 0: it fits).
Shortage = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class DemandModel:
    """The demand of requests over the bands of `plan`.

    `state_slots`: slots that a request holds (checkpoints included). `look_ahead_tokens`: rows a
    decode step sets aside beyond its token (speculative decoding). `window_slack_tokens`: how many
    tokens windows keep beyond their length, for an engine that trims late (behind its latest state
    checkpoint, say). `ConfigError` for negative values.
    """

    plan: StoragePlan
    state_slots: int = 1
    look_ahead_tokens: int = 0
    window_slack_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("state_slots", "look_ahead_tokens", "window_slack_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of {getattr(self, name)} was asked for; give 0 or more")

    @cached_property
    def reaches(self) -> list[int | None]:
        """Tokens that each band keeps behind the next one, itself included; None: all of them."""
        return [
            None if band.window_length is None else band.window_length + self.window_slack_tokens
            for band in self.plan.bands
        ]

    # --- one step -----------------------------------------------------------------------------------

    def during(self, start: np.ndarray | int, stop: np.ndarray | int) -> np.ndarray:
        """Pages held while a step makes room for tokens `[start, stop)`: shape (…, bands)."""
        start, stop = np.broadcast_arrays(start, stop)
        page = self.plan.page_size
        pages = -(-stop // page)
        held = np.empty((*stop.shape, len(self.plan.bands)), np.int64)
        for index, (band, reach) in enumerate(zip(self.plan.bands, self.reaches, strict=True)):
            if band.kind == "state":
                held[..., index] = self.state_slots
            elif reach is None:
                held[..., index] = pages
            else:
                held[..., index] = pages - np.maximum(0, start - reach + 1) // page
        return held

    def held(self, tokens: np.ndarray | int) -> np.ndarray:
        """Pages held between steps, once the windows are trimmed, by requests of so many tokens."""
        return self.during(tokens, tokens)

    def decoding(self, start: np.ndarray | int) -> np.ndarray:
        """Pages held while a decode step makes room for token `start` and its look-ahead."""
        return self.during(start, np.asarray(start) + 1 + self.look_ahead_tokens)

    def window_pages(self, reach: int, step_tokens: int = 1) -> int:
        """The most pages that one request holds in a window of this reach while it takes steps of
        this size, however long it gets and wherever its steps begin."""
        return -(-(reach + step_tokens - 2) // self.plan.page_size) + 1

    def most(self, goal_tokens: np.ndarray) -> np.ndarray:
        """Pages per band that no decode step up to these lengths exceeds: (requests, bands)."""
        step = 1 + self.look_ahead_tokens
        rows = self.during(0, goal_tokens + self.look_ahead_tokens)
        for index, reach in enumerate(self.reaches):
            if reach is not None:
                rows[..., index] = np.minimum(rows[..., index], self.window_pages(reach, step))
        return rows

    # --- one life -----------------------------------------------------------------------------------

    def decode_rows(self, goal_tokens: int, start_tokens: int = 0) -> np.ndarray:
        """Pages of the decode steps from `start_tokens` to `goal_tokens` that can be a peak."""
        first = max(start_tokens, goal_tokens - self.plan.page_size)
        return self.decoding(np.arange(first, goal_tokens))

    def prefill_rows(self, prompt_tokens: int, chunk_tokens: int, start_tokens: int = 0) -> np.ndarray:
        """Pages of the prefill steps from `start_tokens` on, in chunks of `chunk_tokens` and a rest,
        that can be a peak."""
        count = -(-(prompt_tokens - start_tokens) // chunk_tokens)
        # The last one is a rest with a size of its own, so one more than a period of equal ones.
        steps = np.arange(max(0, count - 1 - self.plan.page_size), max(0, count))
        start = start_tokens + steps * chunk_tokens
        return self.during(start, np.minimum(start + chunk_tokens, prompt_tokens))

    def life_rows(
        self, prompt_tokens: int, goal_tokens: int, chunk_tokens: int, start_tokens: int = 0
    ) -> np.ndarray:
        """Pages of every step of a life that can be a peak: an arena holds the whole life of a
        request alone exactly when it holds each of these rows. `goal_tokens`: prompt and output."""
        rows = [
            self.held(np.array([start_tokens])),
            self.prefill_rows(prompt_tokens, chunk_tokens, start_tokens),
            self.decode_rows(goal_tokens, max(prompt_tokens, start_tokens)),
        ]
        return np.unique(np.concatenate(rows), axis=0)

    def peak(
        self, prompt_tokens: int, goal_tokens: int, chunk_tokens: int, start_tokens: int = 0
    ) -> np.ndarray:
        """The most pages of each band; two bands may peak in different steps."""
        rows = self.life_rows(prompt_tokens, goal_tokens, chunk_tokens, start_tokens)
        most: np.ndarray = rows.max(axis=0)
        return most

    # --- what an empty arena holds ------------------------------------------------------------------

    def max_new_tokens_for_memory(
        self, shortage: Shortage, prompt_tokens: int, max_new_tokens: int, *, grid_tokens: int = 1
    ) -> int:
        """The most output tokens, up to `max_new_tokens`, with which memory holds a request alone;
        0 when not even its prompt and one token fit.

        `shortage` answers for the empty memory. Exact: the chunks of the prompt are as small as they
        may be (`grid_tokens`: where chunks may be cut), since a smaller chunk never holds more than
        the chunk it is a part of; `chunk_limit` then says how large they can be.
        """
        if (shortage(self.prefill_rows(prompt_tokens, grid_tokens)) > 0).any():
            return 0

        def holds(tokens: int) -> bool:
            rows = self.decode_rows(prompt_tokens + tokens, prompt_tokens)
            return not (shortage(rows) > 0).any()

        return _largest(holds, max_new_tokens)

    def chunk_limit(
        self, shortage: Shortage, prompt_tokens: int, chunk_tokens: int, *, grid_tokens: int = 1
    ) -> int:
        """The chunk size, up to `chunk_tokens`, with which memory holds the prefill of a request
        alone: `chunk_tokens` if it does, otherwise the largest whole number of grids that does
        wherever its chunks begin, or one grid (which does when any size does)."""
        if not (shortage(self.prefill_rows(prompt_tokens, chunk_tokens)) > 0).any():
            return chunk_tokens
        pages = -(-prompt_tokens // self.plan.page_size)

        def holds(grids: int) -> bool:
            row = self.during(0, prompt_tokens)
            for index, reach in enumerate(self.reaches):
                if reach is not None:
                    row[index] = min(pages, self.window_pages(reach, grids * grid_tokens))
            return not (shortage(row[None]) > 0).any()

        return max(1, _largest(holds, (chunk_tokens - 1) // grid_tokens)) * grid_tokens


def peak_demand(
    plan: StoragePlan, prompt_tokens: int, output_tokens: int, *, state_slots: int = 1
) -> list[int]:
    """Pages per band (chain order) that one request holds at most, outside its prefill chunks."""
    rows = DemandModel(plan, state_slots).decode_rows(max(1, prompt_tokens + output_tokens))
    most: list[int] = rows.max(axis=0).tolist()
    return most


def chunk_demand(plan: StoragePlan, chunk_tokens: int) -> list[int]:
    """Pages per band that one step's prefill chunks hold at most beyond `peak_demand`."""
    pages = -(-chunk_tokens // plan.page_size)
    return [pages if band.window_length is not None else 0 for band in plan.bands]


def add(*demands: list[int]) -> list[int]:
    """The demand of all together."""
    return [sum(pages) for pages in zip(*demands, strict=True)]


def spell_demand(plan: StoragePlan, pages: np.ndarray) -> str:
    """The pages of a row with their bytes and the sum, the sink and page grids included."""
    terms, start = [f"sink {plan.sink_bytes:,}"], plan.sink_bytes
    lost = 0
    for band, count in zip(plan.bands, pages.tolist(), strict=True):
        unit = "slot" if band.kind == "state" else "page"
        plural = "" if count == 1 else "s"
        terms.append(f"{count:,} {unit}{plural} of {band.name} {count * band.page_bytes:,}")
        first = -(-start // band.page_bytes) * band.page_bytes if count else start
        lost += first - start
        start = first + count * band.page_bytes
    if lost:
        terms.append(f"rounding to page grids {lost:,}")
    return f"{' + '.join(terms)} = {start:,} bytes"


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that `holds` (as do all below it); 0 when none does."""
    if most <= 0:
        return 0
    if holds(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
