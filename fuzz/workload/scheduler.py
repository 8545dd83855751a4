"""Continuous batching against a virtual clock: the engine loop that drives an arena with a trace.

One step: take arrivals, admit from the head of the queue while the worst case of all admitted
requests fits, cut prefill chunks from a token budget, give every decoding request one token, launch,
and complete the forward *before* this one, so that freed pages really wait for launched work. When a
step cannot get its memory, the request admitted last is retracted: it goes back to the head of the
queue with what it has generated, and is prefilled again later.

Nothing here depends on real time: the same trace, seed and memory give the same operations.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bandscope.allocator.demand import add, chunk_demand, peak_demand
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.workload.memory import ServingMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results

PROMPT_REFUSED = "Request prompt exceeds the KV memory budget"


@dataclass(frozen=True)
class StepCost:
    """Seconds of one forward in the virtual clock: a fixed part, and parts per token.

    The defaults are of the order of a 20B-class mixture-of-experts model on one H200; they set how
    fast requests pile up, not how memory behaves.
    """

    step_seconds: float = 0.008
    prefill_token_seconds: float = 0.000_02
    decode_request_seconds: float = 0.000_02

    def seconds(self, prefill_tokens: int, decoding: int) -> float:
        return (
            self.step_seconds
            + prefill_tokens * self.prefill_token_seconds
            + decoding * self.decode_request_seconds
        )


@dataclass(frozen=True)
class SchedulerConfig:
    """`chunk_tokens`: prefill tokens per step. `max_running`: requests at once. `output_reserve`:
    share of a request's outstanding output that admission sets aside (1: the worst case, so that
    admitted requests finish; less: more at once, with retractions). `urgent_compact_share`: share of
    the steps, drawn by `seed`, after which every band is packed at once although nobody asks for it:
    pressure for tests of what moves under readers."""

    chunk_tokens: int = 8192
    max_running: int = 1024
    output_reserve: float = 1.0
    compact_every_steps: int = 1
    urgent_compact_share: float = 0.0
    seed: int = 0
    cost: StepCost = StepCost()


class Forward(Protocol):
    """The model's part of a step, for drivers that check content. `spans` are (request, first
    token, stop token) that this forward computes."""

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """Write and read the arena as a model would."""

    def leaving(self, request: int, tokens: int) -> None:
        """The request is about to be released with `tokens` computed: last look at its content."""


class NoForward:
    """A model that touches nothing."""

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        pass

    def leaving(self, request: int, tokens: int) -> None:
        pass


@dataclass(slots=True)
class Running:
    """One admitted request. `computed` tokens have room; `goal` is prompt plus output."""

    request: Request
    number: int
    admitted_seconds: float
    prompt_tokens: int
    goal_tokens: int
    computed: int = 0
    first_token_seconds: float | None = None


@dataclass(slots=True)
class Waiting:
    """A request in the queue; after a retraction `generated` output tokens count as prompt."""

    request: Request
    generated: int = 0
    first_token_seconds: float | None = None
    clipped_output: int | None = None


@dataclass
class Scheduler:
    """The loop. `results` fills while it runs and is complete at any time (also after Ctrl-C)."""

    memory: ServingMemory
    config: SchedulerConfig = SchedulerConfig()
    forward: Forward = field(default_factory=NoForward)
    results: Results = field(default_factory=Results)
    after_step: Callable[[Scheduler], None] | None = None
    should_stop: Callable[[], bool] = lambda: False  # noqa: E731

    def __post_init__(self) -> None:
        self.plan = self.memory.plan
        self.clock_seconds = 0.0
        self.waiting: deque[Waiting] = deque()
        self.prefilling: list[Running] = []
        self.decoding: list[Running] = []
        self._peaks: dict[int, list[int]] = {}
        self._next_number = 0
        self._in_flight: deque[int] = deque()
        self._blocked = False
        self._random = random.Random(self.config.seed)

    # --- the loop -----------------------------------------------------------------------------

    def run(self, requests: Iterable[Request]) -> Results:
        """Serve every request; returns the results."""
        arrivals = iter(requests)
        upcoming = next(arrivals, None)
        while upcoming is not None or self.waiting or self.running_count:
            if self.should_stop():
                self.results.stopped_early = True
                self._release_all()
                break
            while upcoming is not None and upcoming.arrival_seconds <= self.clock_seconds:
                self.waiting.append(Waiting(upcoming))
                self.results.arrived += 1
                self._blocked = False
                upcoming = next(arrivals, None)
            self._admit()
            if self.running_count:
                self._step()
            elif upcoming is not None:
                self._idle()
                self.clock_seconds = max(self.clock_seconds, upcoming.arrival_seconds)
        self._idle()
        self.results.clock_seconds = self.clock_seconds
        return self.results

    @property
    def running_count(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def running(self) -> Iterator[Running]:
        """Requests that hold memory, in the order of their admission within each phase."""
        yield from self.prefilling
        yield from self.decoding

    def _release_all(self) -> None:
        for running in list(self.running()):
            self._leave(running, "stopped")
        self.prefilling, self.decoding = [], []

    def _idle(self) -> None:
        self._complete(keep=0)
        self.memory.compact()
        self.results.idle_times += 1

    # --- admission ------------------------------------------------------------------------------

    def _admit(self) -> None:
        # An answer of "no" stands until memory was given back or somebody new is at the head.
        while self.waiting and self.running_count < self.config.max_running and not self._blocked:
            entry = self.waiting[0]
            if not self._can_ever_run(entry):
                self.waiting.popleft()
                continue
            peak = self._peak(entry, self.config.output_reserve)
            if not self.memory.serves(add(self._outstanding(), peak, self._chunk_for(entry))):
                self._blocked = True
                self.results.admission_waits += 1
                return
            outcome = self.memory.admit(self._next_number)
            if not outcome:
                self._blocked = True
                self._refused(outcome)
                return
            self.waiting.popleft()
            self._start(entry, peak)

    def _start(self, entry: Waiting, peak: list[int]) -> None:
        request = entry.request
        output = request.output_tokens if entry.clipped_output is None else entry.clipped_output
        running = Running(
            request,
            self._next_number,
            self.clock_seconds,
            request.prompt_tokens + entry.generated,
            request.prompt_tokens + max(1, output),
            first_token_seconds=entry.first_token_seconds,
        )
        self._peaks[running.number] = peak
        self._next_number += 1
        self.prefilling.append(running)
        self.results.admissions += 1
        self.results.queue_seconds.append(self.clock_seconds - request.arrival_seconds)

    def _can_ever_run(self, entry: Waiting) -> bool:
        """Abort a request that not even an empty arena could hold; clip an output that it could
        not hold to the end."""
        request = entry.request
        limit = self.plan.context_length
        if limit is not None and request.prompt_tokens >= limit:
            self.results.abort(
                request.index,
                "prompt exceeds the context length",
                f"prompt of {request.prompt_tokens:,} tokens, context length of {limit:,}",
            )
            return False
        output = max(1, request.output_tokens)
        if limit is not None:
            output = min(output, limit - request.prompt_tokens)
        fits = self._longest_output(request, output)
        if fits < 1:
            self.results.abort(request.index, PROMPT_REFUSED, self._budget_sum(request))
            return False
        if fits < request.output_tokens and entry.clipped_output is None:
            self.results.clipped_outputs += 1
            entry.clipped_output = fits
        return True

    def _longest_output(self, request: Request, output: int) -> int:
        """The most output tokens, up to `output`, with which an empty arena holds the request."""

        def holds(tokens: int) -> bool:
            demand = peak_demand(self.plan, request.prompt_tokens, tokens)
            # Retracted at its last token, it is prefilled again with all that it has generated.
            replayed = tokens if self.config.output_reserve < 1 else 0
            prefilled = min(request.prompt_tokens + replayed, self.config.chunk_tokens)
            chunk = chunk_demand(self.plan, prefilled)
            return self.memory.serves_when_empty(add(demand, chunk))

        if holds(output):
            return output
        low, high = 0, output
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def _budget_sum(self, request: Request) -> str:
        demand = peak_demand(self.plan, request.prompt_tokens, 1)
        terms = [
            f"{pages} pages of {band.name} = {pages * band.page_bytes:,} bytes"
            for pages, band in zip(demand, self.plan.bands, strict=True)
        ]
        return f"prompt of {request.prompt_tokens:,} tokens: " + ", ".join(terms)

    def _peak(self, entry: Waiting, reserve: float) -> list[int]:
        output = entry.clipped_output or max(1, entry.request.output_tokens)
        kept = max(1, entry.generated, round(output * reserve))
        return peak_demand(self.plan, entry.request.prompt_tokens, kept)

    def _chunk_for(self, entry: Waiting) -> list[int]:
        """What the next step's chunks may hold, when `entry` is prefilled with those before it."""
        due = sum(running.prompt_tokens - running.computed for running in self.prefilling)
        due += entry.request.prompt_tokens + entry.generated
        # Each request's chunk may start and end inside a page of its own.
        pages = chunk_demand(self.plan, min(due, self.config.chunk_tokens))
        return [count + len(self.prefilling) if count else 0 for count in pages]

    def _outstanding(self) -> list[int]:
        """What the running requests may still take, pages per band."""
        numbers = [running.number for running in self.running()]
        if not numbers:
            return [0] * len(self.plan.bands)
        peaks = np.array([self._peaks[number] for number in numbers])
        missing = np.maximum(peaks - self.memory.held(numbers), 0)
        result: list[int] = missing.sum(axis=0).tolist()
        return result

    # --- one step ---------------------------------------------------------------------------------

    def _step(self) -> None:
        # Decoding comes first: it may retract a request, whose chunk must not be cut by then.
        decoding = self._decode_all()
        spans = self._prefill_chunks()
        prefill_tokens = sum(stop - start for _, start, stop in spans)
        spans += [(running.number, running.computed, running.computed + 1) for running in decoding]
        if not spans:
            return  # everything was retracted or waits for the forward in flight
        batch = [number for number, _, _ in spans]
        ticket = self.memory.launch(batch)
        self._in_flight.append(ticket)
        self.forward.run(ticket, spans)
        seconds = self.config.cost.seconds(prefill_tokens, len(decoding))
        self.clock_seconds += seconds
        self.results.step(
            seconds, prefill_tokens, len(decoding), self.running_count, self.memory.used_bytes()
        )
        self._advance(decoding)
        finished = self._collect_finished()
        gone = {running.number for running in finished}
        self.memory.trim_window([number for number in batch if number not in gone])
        for running in finished:
            self._leave(running, "finished")
        self._complete(keep=1)
        if self._random.random() < self.config.urgent_compact_share:
            self.memory.compact(urgent=True)
        elif self.results.steps % self.config.compact_every_steps == 0:
            self.memory.compact()
        if self.after_step is not None:
            self.after_step(self)

    def _prefill_chunks(self) -> list[tuple[int, int, int]]:
        """Cut this step's chunks, first come first served, from the token budget."""
        spans: list[tuple[int, int, int]] = []
        budget = self.config.chunk_tokens
        for running in list(self.prefilling):
            if budget == 0:
                break
            tokens = min(budget, running.prompt_tokens - running.computed)
            outcome = self.memory.extend(running.number, tokens)
            if not outcome:
                self._refused(outcome)
                if not spans and not self.decoding:
                    self._make_way(running)
                break
            spans.append((running.number, running.computed, running.computed + tokens))
            running.computed += tokens
            budget -= tokens
        return spans

    def _decode_all(self) -> list[Running]:
        """One more token for every decoding request; retracts until it fits. The tokens that are
        computed in this step start at `computed`, which `_advance` then counts up."""
        while self.decoding:
            outcome = self.memory.decode([running.number for running in self.decoding])
            if outcome:
                return list(self.decoding)
            self._refused(outcome)
            self._retract(self._victim())
        return []

    def _advance(self, decoding: list[Running]) -> None:
        for running in decoding:
            running.computed += 1
        for running in list(self.prefilling):
            if running.computed >= running.prompt_tokens:
                self.prefilling.remove(running)
                self.decoding.append(running)
                if running.first_token_seconds is None:
                    running.first_token_seconds = self.clock_seconds
                    self.results.first_token_seconds.append(
                        self.clock_seconds - running.request.arrival_seconds
                    )

    def _collect_finished(self) -> list[Running]:
        finished = [run for run in self.decoding if run.computed >= run.goal_tokens]
        if finished:
            self.decoding = [run for run in self.decoding if run.computed < run.goal_tokens]
        return finished

    def _leave(self, running: Running, why: str) -> None:
        self.forward.leaving(running.number, running.computed)
        self.memory.release(running.number, why)
        del self._peaks[running.number]
        self._blocked = False
        if why == "finished":
            self.results.finished += 1
            self.results.generated_tokens += running.goal_tokens - running.request.prompt_tokens
            self.results.finished_seconds.append(
                self.clock_seconds - running.request.arrival_seconds
            )

    # --- when memory runs out -----------------------------------------------------------------------

    def _victim(self) -> Running:
        return max(self.running(), key=lambda running: running.number)

    def _make_way(self, keep: Running) -> None:
        """A prefill chunk does not fit and nothing else can go on: retract somebody else, and when
        there is nobody else, the request itself cannot be served."""
        others = [running for running in self.running() if running is not keep]
        if others:
            self._retract(max(others, key=lambda running: running.number))
            return
        self.prefilling.remove(keep)
        self._leave(keep, "aborted")
        self.results.abort(
            keep.request.index, "no memory for its chunks", self._budget_sum(keep.request)
        )

    def _retract(self, running: Running) -> None:
        (self.prefilling if running in self.prefilling else self.decoding).remove(running)
        self._leave(running, "retracted")
        self.results.retractions += 1
        generated = max(0, running.computed - running.request.prompt_tokens)
        if running.computed < running.prompt_tokens:  # retracted again before it was restored
            generated = running.prompt_tokens - running.request.prompt_tokens
        entry = Waiting(running.request, generated, running.first_token_seconds)
        if running.goal_tokens < running.request.prompt_tokens + running.request.output_tokens:
            entry.clipped_output = running.goal_tokens - running.request.prompt_tokens
        self.waiting.appendleft(entry)
        self._blocked = True  # until something finishes: it would only be retracted again

    def _refused(self, outcome: Outcome) -> None:
        self.results.refusals[outcome.reason] += 1

    def _complete(self, *, keep: int) -> None:
        while len(self._in_flight) > keep:
            self.memory.complete(self._in_flight.popleft())
