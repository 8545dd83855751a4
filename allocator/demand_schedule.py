"""The future of a set of requests that advance together, and the most memory it will take.

An engine with continuous batching is a clock: in every step each decoding request takes one token,
and the prefill budget goes to the others in the order of their admission. So the steps to come of all
admitted requests are known from their lengths and declared maxima, whoever arrives later (later ones
stand behind in the prefill order, and an earlier end than declared only frees memory sooner). A set
is safe exactly when memory holds what it takes in each of these steps.

The number of steps may be large, but few of them can be a peak: those with a chunk, and those in
which a request reaches its end, for between two ends full attention only grows and windows repeat
themselves every `page_size` steps. For these, `crests` bounds the pages from above in one pass
(O(requests · log requests)); only where the bound does not fit is the truth computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator.demand import DemandModel, Shortage
from bandscope.allocator.demand_chunks import cut, cut_one_by_one, distinct

#: (step, request) pairs for which exact pages are computed to settle one question. Past it the bound
#: decides, which is at most a page per request and band above the truth. A request alone is always
#: judged exactly: what the memory clip let pass is admitted.
EXACT_CELLS_MAX = 1 << 15


class Schedule:
    """Steps 1, 2, … of requests given in the order of their admission.

    `computed`, `prompt` and `goal`: tokens that have room now, that are to be prefilled, and that a
    request has at its declared maximum. `chunk_limits`: requests that must be prefilled in smaller
    chunks than `chunk_tokens`, the tokens that one step prefills in all; while such a one is
    prefilled, the step is its own. The last `entering` of them hold nothing yet, not even state.
    `grid_tokens`: where chunks but a request's last end (0: anywhere); `forks`: after how many tokens of
    a request one has to end (0: nowhere in particular).

    With a prefix cache requests share pages, and what one of them holds may be there already.
    `shared` (by request, 0 at first): leading pages of full attention that a request which ends later
    holds too; what the set holds in a step is at most the sum of what each holds less these, for those
    that have not ended. `held` (per band, None: what the model says): what is held before step 1, each
    page counted once.
    """

    def __init__(
        self,
        model: DemandModel,
        computed: Sequence[int] | np.ndarray,
        prompt: Sequence[int] | np.ndarray,
        goal: Sequence[int] | np.ndarray,
        chunk_tokens: int,
        chunk_limits: Sequence[int] | np.ndarray | None = None,
        *,
        entering: int = 0,
        grid_tokens: int = 0,
        forks: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        self.model = model
        self.shared: np.ndarray | None = None
        self.held: np.ndarray | None = None
        self._shared_sums: np.ndarray | None = None
        self._entering = entering
        self.computed = np.asarray(computed, np.int64)
        prompt, goal = np.asarray(prompt, np.int64), np.asarray(goal, np.int64)
        self.goal = goal
        rest = np.maximum(0, prompt - self.computed)
        due = np.flatnonzero(rest)
        whole = chunk_limits is None or (np.asarray(chunk_limits)[due] >= chunk_tokens).all()
        to_fork = np.zeros(due.size, np.int64)
        if forks is not None:
            to_fork = np.asarray(forks, np.int64)[due] - self.computed[due]
        if whole and not grid_tokens and not (to_fork > 0).any():
            owner, step, begin, end = cut(rest[due], chunk_tokens)
        else:
            limits = np.full(goal.size, chunk_tokens) if chunk_limits is None else chunk_limits
            owner, step, begin, end = cut_one_by_one(
                rest[due].tolist(),
                chunk_tokens,
                np.asarray(limits)[due].tolist(),
                max(1, grid_tokens),
                to_fork.tolist(),
            )
        #: Prefill chunks: the request, the step, and the tokens it makes room for.
        self.chunk_request = due[owner]
        self.chunk_step = step
        self.chunk_start = self.computed[self.chunk_request] + begin
        self.chunk_stop = self.computed[self.chunk_request] + end
        self.prefill_steps = int(step[-1]) if step.size else 0
        prefilled = np.zeros(goal.size, np.int64)
        prefilled[self.chunk_request] = self.chunk_step  # the last chunk of each stands
        begun = np.zeros(goal.size, np.int64)
        begun[self.chunk_request[::-1]] = self.chunk_step[::-1]
        # In step t of its decode a request makes room for token `offset + t − 1`.
        self.offset = np.maximum(self.computed, prompt) - prefilled
        self.first = prefilled + 1
        self.last = prefilled + goal - np.maximum(self.computed, prompt)
        # Requests that hold tokens but wait for their turn to be prefilled further.
        self._parked = np.flatnonzero((begun > 1) & (self.computed > 0))
        self._begun = begun
        self._last_in_order = np.sort(self.last)

    @property
    def step_count(self) -> int:
        """Steps until the last request has reached its declared maximum."""
        return int(self.last.max(initial=0))

    def held_now(self) -> np.ndarray:
        """Pages per band that the requests hold before step 1, windows trimmed."""
        if self.held is not None:
            return self.held
        inside = self.computed[: self.computed.size - self._entering]
        held: np.ndarray = self.model.held(inside).sum(axis=0)
        return held

    def totals(self, steps: np.ndarray) -> np.ndarray:
        """Pages per band of all requests in these steps, exactly: (steps, bands)."""
        when = steps[:, None]
        decoding = (self.first <= when) & (when <= self.last)
        pages = self.model.decoding(np.maximum(0, self.offset + when - 1))
        rows: np.ndarray = (pages * decoding[:, :, None]).sum(axis=1)
        self._add_chunks(steps, rows)
        self._set_state(steps, rows)
        self._share(steps, rows)
        return rows

    def crests(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps that can be a peak, ascending, and pages per band that no step after the one before
        it in the list exceeds: (steps,), (steps, bands)."""
        model, page = self.model, self.model.plan.page_size
        look_ahead = model.look_ahead_tokens
        ends = self.last[self.last > self.prefill_steps]
        steps = np.concatenate([np.arange(1, self.prefill_steps + 1), distinct(ends)])
        rows = np.zeros((steps.size, len(model.plan.bands)), np.int64)
        # What grows holds ⌈(offset + t + look-ahead) / page⌉ pages: a part of its own, ⌊t / page⌋, and
        # at most one page more where the remainders add up to a page.
        own = (self.offset + look_ahead + page - 1) // page
        shared = steps // page + (steps % page > 0)
        for index, (band, reach) in enumerate(zip(model.plan.bands, model.reaches, strict=True)):
            if band.kind == "state":
                continue
            grown = self.last
            if reach is not None:  # a window grows until it is full, and then holds at most this
                widest = model.window_pages(reach, 1 + look_ahead)
                grown = np.minimum(self.last, (widest - 1) * page - self.offset - look_ahead)
                full = _in_interval(np.maximum(self.first, grown + 1), self.last, steps)
                rows[:, index] = full[0] * widest
            count, total = _in_interval(self.first, grown, steps, own)
            rows[:, index] += total + count * shared
        self._add_chunks(steps, rows)
        self._set_state(steps, rows)
        self._share(steps, rows)
        return steps, rows

    def peak(self) -> np.ndarray:
        """The most pages of each band over all steps, exactly; for reports, since it looks at every
        step."""
        steps = np.arange(1, self.step_count + 1)
        blocks = np.array_split(steps, max(1, steps.size * self.goal.size >> 16))
        rows = [self.totals(block).max(axis=0, initial=0) for block in blocks]
        most: np.ndarray = np.max(rows, axis=0)
        return most

    def fits(self, shortage: Shortage, until_step: int | None = None) -> bool:
        """Does memory hold every step (up to `until_step`)? `shortage` answers for pages on top of
        what is held now, these requests' own pages included."""
        held = self.held_now()
        steps, rows = self.crests()
        if until_step is not None and until_step < self.step_count:
            # Within the last interval everything still grows, so the bound is that of its end.
            stop = int(np.searchsorted(steps, until_step)) + 1
            steps, rows = steps[:stop], rows[:stop]
        short = shortage(rows - held)
        failing = np.flatnonzero(short > 0)
        if not failing.size:
            return True
        limit = steps if until_step is None else np.minimum(steps, until_step)
        worst = limit[np.argmax(short)][None]
        if shortage(self.totals(worst) - held)[0] > 0:
            return False
        return self._exact(shortage, held, limit, failing)

    def _exact(
        self, shortage: Shortage, held: np.ndarray, steps: np.ndarray, failing: np.ndarray
    ) -> bool:
        """The truth for the steps behind crests whose bound does not fit."""
        page = self.model.plan.page_size
        before = np.where(failing > 0, steps[failing - 1], 0)
        first = np.maximum(before, steps[failing] - page) + 1
        counts = steps[failing] - first + 1
        if self.goal.size > 1 and int(counts.sum()) * self.goal.size > EXACT_CELLS_MAX:
            return False
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.totals(np.repeat(first, counts) + offset)
        return not (shortage(rows - held) > 0).any()

    def _add_chunks(self, steps: np.ndarray, rows: np.ndarray) -> None:
        if self.chunk_step.size:
            # Chunks stand in the order of their steps, and every prefill step has one.
            pages = self.model.during(self.chunk_start, self.chunk_stop)
            starts = np.searchsorted(self.chunk_step, np.arange(1, self.prefill_steps + 1))
            per_step = np.add.reduceat(pages, starts, axis=0)
            early = np.flatnonzero(steps <= self.prefill_steps)
            rows[early] += per_step[steps[early] - 1]
        if self._parked.size:
            parked = self._begun[self._parked] > steps[:, None]
            rows += parked @ self.model.held(self.computed[self._parked])

    def _set_state(self, steps: np.ndarray, rows: np.ndarray) -> None:
        """State is held by everyone from the first step to the last."""
        for index, band in enumerate(self.model.plan.bands):
            if band.kind == "state":
                gone = np.searchsorted(self._last_in_order, steps, side="left")
                rows[:, index] = (self.goal.size - gone) * self.model.state_slots

    def _share(self, steps: np.ndarray, rows: np.ndarray) -> None:
        """Take off what those that have not ended before a step share with later ones."""
        if self.shared is None or not self.shared.any():
            return
        if self._shared_sums is None:
            order = np.argsort(self.last)
            self._shared_sums = np.zeros(order.size + 1, np.int64)
            np.cumsum(self.shared[order], out=self._shared_sums[1:])
        ended = np.searchsorted(self._last_in_order, steps, side="left")
        left = self._shared_sums[-1] - self._shared_sums[ended]
        for index, (band, reach) in enumerate(
            zip(self.model.plan.bands, self.model.reaches, strict=True)
        ):
            if band.kind != "state" and reach is None:
                rows[:, index] -= left


def _in_interval(
    first: np.ndarray, last: np.ndarray, steps: np.ndarray, values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """How many of the intervals `[first, last]` each step lies in, and the sum of their values."""
    real = np.flatnonzero(first <= last)
    begin, end = np.argsort(first[real]), np.argsort(last[real])
    begun = np.searchsorted(first[real][begin], steps, side="right")
    ended = np.searchsorted(last[real][end], steps, side="left")
    count = begun - ended
    if values is None:
        return count, count
    sums = np.zeros((2, real.size + 1), np.int64)
    np.cumsum(values[real][begin], out=sums[0, 1:])
    np.cumsum(values[real][end], out=sums[1, 1:])
    return count, sums[0, begun] - sums[1, ended]
