"""Who may enter: the memory clip, the refusal of what never fits, and admission, by one demand model.

All three ask `allocator.demand` what requests hold in each step of their lives, and memory whether
one layout holds it:

- *refused*: the prompt and one token do not fit even an empty memory, in the smallest chunks.
- *clipped*: an empty memory does not hold the whole output; the request gets the most it does hold.
- *admitted* (`output_reserve` 1): every step to come of all running requests and of this one fits,
  so no admitted request is ever refused a page, unless one grows past its declared length.
- *admitted* (`output_reserve` < 1, overcommitted): each request's share of its output fits, and all
  that run, growing, fit until this one has its first new token. So a request that is admitted always
  makes progress before it may have to give way: it never restarts twice in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from bandscope.allocator.demand import DemandModel, chunk_demand, spell_demand
from bandscope.allocator.demand_schedule import Schedule
from bandscope.fuzz.workload.memory import ServingMemory
from bandscope.fuzz.workload.request import Request

PROMPT_REFUSED = "Request prompt exceeds the KV memory budget"
CONTEXT_REFUSED = "prompt exceeds the context length"


@dataclass(slots=True)
class Waiting:
    """A request in the queue; after a retraction `generated` output tokens count as prompt.

    `output_tokens`: what it will get, None until it was looked at; `chunk_tokens`: the largest chunk
    that an empty memory holds.
    """

    request: Request
    generated: int = 0
    first_token_seconds: float | None = None
    output_tokens: int | None = None
    chunk_tokens: int = 0
    has_waited: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens to prefill: the prompt, and what was generated before a retraction."""
        return self.request.prompt_tokens + self.generated


@dataclass(slots=True, eq=False)
class Running:
    """One admitted request; equal to itself only. `computed` tokens have room; `goal` is prompt plus
    output, `reserved` the part of it that admission set aside. It is prefilled in chunks of up to
    `chunk_tokens`."""

    request: Request
    number: int
    admitted_seconds: float
    prompt_tokens: int
    goal_tokens: int
    reserved_tokens: int
    chunk_tokens: int
    computed: int = 0
    first_token_seconds: float | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a request can never run."""

    reason: str
    detail: str


class Admission:
    """Decides over one memory. `chunk_tokens` are prefilled per step; `output_reserve` is the share of
    a request's output that is set aside."""

    def __init__(self, memory: ServingMemory, chunk_tokens: int, output_reserve: float) -> None:
        self.memory = memory
        self.model = DemandModel(memory.plan)
        self.chunk_tokens = chunk_tokens
        self.output_reserve = output_reserve

    # --- the memory clip ----------------------------------------------------------------------------

    def look_at(self, entry: Waiting) -> Refusal | None:
        """Fill in the output and the chunk size that `entry` gets, or say why it can never run."""
        request, limit = entry.request, self.memory.plan.context_length
        if limit is not None and request.prompt_tokens >= limit:
            return Refusal(
                CONTEXT_REFUSED,
                f"prompt of {request.prompt_tokens:,} tokens, context length of {limit:,}",
            )
        empty = self.memory.shortage_when_empty
        if entry.output_tokens is None:
            output = max(1, request.output_tokens)
            if limit is not None:
                output = min(output, limit - request.prompt_tokens)
            entry.output_tokens = self.model.max_new_tokens_for_memory(
                empty, request.prompt_tokens, output
            )
        if entry.output_tokens < 1:
            return Refusal(PROMPT_REFUSED, self.budget_sum(request))
        if not entry.chunk_tokens:
            entry.chunk_tokens = self.model.chunk_limit(
                empty, entry.prompt_tokens, self.chunk_tokens
            )
        return None

    def budget_sum(self, request: Request) -> str:
        """What the prompt and one token need at their worst, term by term, and what there is."""
        prompt = request.prompt_tokens
        rows = self.model.life_rows(prompt, prompt + 1, 1)
        worst = rows[np.argmax(self.memory.shortage_when_empty(rows))]
        return (
            f"prompt of {prompt:,} tokens and one of output: "
            f"{spell_demand(self.memory.plan, worst)} of {self.memory.total_bytes:,}"
        )

    # --- admission ------------------------------------------------------------------------------------

    def reserved(self, entry: Waiting) -> int:
        """Tokens that are set aside for a request that was looked at."""
        assert entry.output_tokens is not None
        kept = max(1, entry.generated, round(entry.output_tokens * self.output_reserve))
        return entry.request.prompt_tokens + kept

    def admits(self, entry: Waiting, running: Sequence[Running]) -> bool:
        """May `entry` join `running` (in the order of their admission)?"""
        schedule = self.schedule(running, entry)
        if self.output_reserve >= 1:
            return schedule.fits(self.memory.shortage)
        if running and not self._reserves_fit(entry, running, schedule.computed[:-1]):
            return False
        return schedule.fits(self.memory.shortage, until_step=int(schedule.first[-1]))

    def schedule(self, running: Sequence[Running], entry: Waiting | None = None) -> Schedule:
        """The steps to come of the running requests, and of `entry` behind them."""
        last: tuple[int, ...] = ()
        if entry is not None:
            assert entry.output_tokens is not None
            goal = entry.request.prompt_tokens + entry.output_tokens
            last = (0, entry.prompt_tokens, goal, entry.chunk_tokens)
        names = ("computed", "prompt_tokens", "goal_tokens", "chunk_tokens")
        columns = [_column(running, name, *last[index : index + 1]) for index, name in enumerate(names)]
        computed, prompt, goals, limits = columns
        return Schedule(
            self.model, computed, prompt, goals, self.chunk_tokens, limits, entering=len(last[:1])
        )

    def _reserves_fit(
        self, entry: Waiting, running: Sequence[Running], computed: np.ndarray
    ) -> bool:
        """Whatever the order in which they run: does everybody's reserved part fit at once?"""
        model = self.model
        missing = model.most(_column(running, "reserved_tokens", self.reserved(entry)))
        missing[:-1] = np.maximum(0, missing[:-1] - model.held(computed))
        due = np.maximum(0, _column(running, "prompt_tokens") - computed)
        tokens = min(int(due.sum()) + entry.prompt_tokens, self.chunk_tokens)
        chunk = np.array(chunk_demand(model.plan, tokens))
        # Each request's chunk may start and end inside a page of its own.
        chunk[chunk > 0] += np.count_nonzero(due)
        return bool(self.memory.shortage((missing.sum(axis=0) + chunk)[None])[0] <= 0)


def _column(running: Sequence[Running], name: str, *more: int) -> np.ndarray:
    values = map(attrgetter(name), running)
    return np.fromiter(chain(values, more), np.int64, count=len(running) + len(more))
