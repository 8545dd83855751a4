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

With a prefix cache a request starts with what the cache has of its prompt, and pages are shared. What
a set of requests holds is then less than the sum of what each holds: a page is counted once, for the one
of its holders that ends last (`Schedule.shared`). That number is found when a request enters, for it
and for those that end before it; who ends when is known then and stays so, until somebody leaves
before its end. Then all are found anew. Windows are counted as if nothing of them were shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

import numpy as np

from bandscope.allocator.demand import DemandModel, chunk_demand, spell_demand
from bandscope.allocator.demand_schedule import Schedule
from bandscope.fuzz.workload.entries import Running, Waiting
from bandscope.fuzz.workload.memory import NOTHING_FOUND, Found, ServingMemory
from bandscope.fuzz.workload.prefix_keys import page_keys
from bandscope.fuzz.workload.request import Request

PROMPT_REFUSED = "Request prompt exceeds the KV memory budget"
CONTEXT_REFUSED = "prompt exceeds the context length"


@dataclass(frozen=True)
class Refusal:
    """Why a request can never run."""

    reason: str
    detail: str


class Admission:
    """Decides over one memory. `chunk_tokens` are prefilled per step, at least the checkpoint grid of a
    memory that has one; `output_reserve` is the share of a request's output that is set aside."""

    def __init__(self, memory: ServingMemory, chunk_tokens: int, output_reserve: float) -> None:
        self.memory = memory
        self.model = DemandModel(memory.plan)
        self.grid_tokens = memory.grid_tokens
        # Whole grids, so that the chunks of a request alone are those that its clip was judged by.
        self.chunk_tokens = chunk_tokens - chunk_tokens % max(1, self.grid_tokens)
        self.output_reserve = output_reserve
        self._somebody_left_early = False
        self._shared = np.empty(0, np.int64)
        self._held_already = 0  # pages of what was found that somebody holds

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
                empty, request.prompt_tokens, output, grid_tokens=max(1, self.grid_tokens)
            )
        if entry.output_tokens < 1:
            return Refusal(PROMPT_REFUSED, self.budget_sum(request))
        if not entry.chunk_tokens:
            entry.chunk_tokens = self._chunk_limit(entry.prompt_tokens)
        return None

    def _chunk_limit(self, prompt_tokens: int) -> int:
        """The largest chunk of a prompt that an empty memory holds. What a retracted request has
        generated was clipped for decode steps: where not even one grid of its replay fits, it is
        prefilled off the grid."""
        model, empty, grid = self.model, self.memory.shortage_when_empty, max(1, self.grid_tokens)
        limit = model.chunk_limit(empty, prompt_tokens, self.chunk_tokens, grid_tokens=grid)
        if grid > 1 and (empty(model.prefill_rows(prompt_tokens, limit)) > 0).any():
            return model.chunk_limit(empty, prompt_tokens, grid - 1)
        return limit

    def budget_sum(self, request: Request) -> str:
        """What the prompt and one token need at their worst, term by term, and what there is."""
        prompt = request.prompt_tokens
        rows = self.model.life_rows(prompt, prompt + 1, max(1, self.grid_tokens))
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

    def look_up(self, entry: Waiting) -> Found:
        """What the cache has of a request that was looked at."""
        if not self.memory.cached:
            return NOTHING_FOUND
        page_size = self.memory.plan.page_size
        if entry.key is None:
            entry.key = page_keys(entry.request, entry.goal_tokens, page_size)
        return self.memory.look_up(entry.key, entry.prompt_tokens - 1)

    def enters(self, entry: Waiting, running: Sequence[Running]) -> Found | None:
        """What a request that may enter beside all that run starts with; None when it may not."""
        found = self.look_up(entry)
        if self.admits(entry, running, found):
            return found
        if running:
            return None
        # Other chunks than the clip was judged by, and the checkpoint beside its copy, may not fit an
        # empty memory that holds the whole request.
        for less in (replace(found, fork_tokens=0), NOTHING_FOUND):
            if self.memory.cached and self.admits(entry, running, less):
                return less
        return None

    def admits(
        self,
        entry: Waiting,
        running: Sequence[Running],
        found: Found = NOTHING_FOUND,
        *,
        hypothetical: bool = False,
    ) -> bool:
        """May `entry`, with what the cache has of it, join `running` (in the order of their admission
        within each phase)? `hypothetical`: these are not all that run; the others would go first."""
        schedule = self.schedule(running, entry, found)
        if self.memory.cached or hypothetical:
            schedule.held = self.memory.claimed()
        if self.memory.cached:
            schedule.shared = self._shared_beside(running, schedule, found, hypothetical)
            if found.tokens and self.memory.plan.has_state and not self._match_fits(found):
                return False
        if self.output_reserve >= 1:
            return schedule.fits(self.memory.shortage)
        if running and not self._reserves_fit(entry, running, schedule):
            return False
        return schedule.fits(self.memory.shortage, until_step=int(schedule.first[-1]))

    def entered(self, run: Running, running: Sequence[Running]) -> None:
        """`run` was admitted beside `running`, as the last answer of `admits` said it might be."""
        if self.memory.cached:
            for other, shared in zip([*running, run], self._shared.tolist(), strict=True):
                other.shared_pages = shared

    def left_early(self) -> None:
        """A running request left before its declared maximum: who ends when has changed."""
        self._somebody_left_early = True

    def schedule(
        self, running: Sequence[Running], entry: Waiting | None = None, found: Found = NOTHING_FOUND
    ) -> Schedule:
        """The steps to come of the running requests, and of `entry` behind them."""
        last: tuple[int, ...] = ()
        if entry is not None:
            last = (found.tokens, entry.prompt_tokens, entry.goal_tokens)
        names = ("computed", "prompt_tokens", "goal_tokens")
        columns = [_column(running, name, *last[index : index + 1]) for index, name in enumerate(names)]
        computed, prompt, goals = columns
        limits = np.full(computed.size, self.chunk_tokens)
        forks = np.zeros(computed.size, np.int64)
        everyone: list[Running | Waiting] = [*running, *([] if entry is None else [entry])]
        for index in np.flatnonzero(computed < prompt).tolist():  # few of them are prefilled
            limits[index] = everyone[index].chunk_tokens
            forks[index] = running[index].fork_tokens if index < len(running) else found.fork_tokens
        return Schedule(
            self.model,
            computed,
            prompt,
            goals,
            self.chunk_tokens,
            limits,
            entering=len(last[:1]),
            grid_tokens=self.grid_tokens,
            forks=forks,
        )

    # --- shared pages -----------------------------------------------------------------------------

    def _shared_beside(
        self, running: Sequence[Running], schedule: Schedule, found: Found, hypothetical: bool
    ) -> np.ndarray:
        """Per request, the one that enters last: pages that a later-ending one holds too."""
        if hypothetical:
            shared = np.append(self._shared_among(running, schedule), 0)
        else:
            if self._somebody_left_early:
                self._somebody_left_early = False
                for run, pages in zip(running, self._shared_among(running, schedule), strict=True):
                    run.shared_pages = int(pages)
            shared = _column(running, "shared_pages", 0)
        self._held_already = 0
        if found.tokens and running:
            common = self.memory.common(found, list(map(attrgetter("number"), running)))
            ends_before = schedule.last[:-1] <= schedule.last[-1]
            shared[:-1] = np.maximum(shared[:-1], np.where(ends_before, common, 0))
            shared[-1] = common[~ends_before].max(initial=0)
            self._held_already = int(common.max())
        if not hypothetical:
            self._shared = shared
        return shared

    def _shared_among(self, running: Sequence[Running], schedule: Schedule) -> np.ndarray:
        """The same for those that run, from the cache alone."""
        numbers = _column(running, "number")
        latest_end_first = np.lexsort((numbers, schedule.last[: numbers.size]))[::-1]
        shared = np.empty(numbers.size, np.int64)
        shared[latest_end_first] = self.memory.later_held(numbers[latest_end_first].tolist())
        return shared

    def _match_fits(self, found: Found) -> bool:
        """Can the request enter with what was found, beside what is held? The checkpoint that it copies
        its state from is held until the copy is issued, a slot beside its own."""
        model = self.model
        row = model.held(found.tokens)
        for index, (band, reach) in enumerate(zip(model.plan.bands, model.reaches, strict=True)):
            if band.kind == "state":
                row[index] += 1
            elif reach is None:
                row[index] -= self._held_already
        return bool(self.memory.shortage(row[None])[0] <= 0)

    def _reserves_fit(
        self, entry: Waiting, running: Sequence[Running], schedule: Schedule
    ) -> bool:
        """Whatever the order in which they run: does everybody's reserved part fit at once?"""
        model, computed = self.model, schedule.computed[:-1]
        missing = model.most(_column(running, "reserved_tokens", self.reserved(entry)))
        missing[:-1] = np.maximum(0, missing[:-1] - model.held(computed))
        due = np.maximum(0, _column(running, "prompt_tokens") - computed)
        prompt_left = entry.prompt_tokens - int(schedule.computed[-1])
        tokens = min(int(due.sum()) + prompt_left, self.chunk_tokens)
        chunk = np.array(chunk_demand(model.plan, tokens))
        # Each request's chunk may start and end inside a page of its own.
        chunk[chunk > 0] += np.count_nonzero(due)
        return bool(self.memory.shortage((missing.sum(axis=0) + chunk)[None])[0] <= 0)


def _column(running: Sequence[Running], name: str, *more: int) -> np.ndarray:
    values = map(attrgetter(name), running)
    return np.fromiter(chain(values, more), np.int64, count=len(running) + len(more))
