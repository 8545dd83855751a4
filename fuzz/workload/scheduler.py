"""Continuous batching against a virtual clock: the engine loop that drives an arena with a trace.

One step: take arrivals, admit from the head of the queue while every step to come of all admitted
requests fits (`admission`), cut prefill chunks from a token budget, give every decoding request one
token, launch, and complete the forward *before* this one, so that freed pages really wait for
launched work.

When a step cannot get its memory, the request admitted last is retracted: it goes back to the head of
the queue with what it has generated, and is prefilled again later. So the one admitted first always
runs to its end, which an empty memory holds; a prefill chunk retracts only those admitted after it.

Nothing here depends on real time: the same trace, seed and memory give the same operations.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bandscope.allocator.operations import Outcome
from bandscope.fuzz.workload.admission import PROMPT_REFUSED, Admission, Running, Waiting
from bandscope.fuzz.workload.memory import ServingMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results

__all__ = ["PROMPT_REFUSED", "Running", "Scheduler", "SchedulerConfig", "StepCost", "Waiting"]

#: Steps after which a request at the head of the queue is looked at again when nothing was given
#: back: as those that run come nearer their ends, a later one overlaps less with them.
RETRY_STEPS = 8


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
        self.admission = Admission(
            self.memory, self.config.chunk_tokens, self.config.output_reserve
        )
        self._next_number = 0
        self._in_flight: deque[int] = deque()
        self._blocked = False
        self._retry_at_step = 0
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
        # An answer of "no" stands until memory was given back, somebody new is at the head, or
        # those that run have come some steps nearer their ends.
        if self._blocked and self.results.steps >= self._retry_at_step > 0:
            self._blocked = False
        while self.waiting and self.running_count < self.config.max_running and not self._blocked:
            entry = self.waiting[0]
            if not self._can_ever_run(entry):
                self.waiting.popleft()
                continue
            if not self.admission.admits(entry, [*self.decoding, *self.prefilling]):
                self._block(self.results.steps + RETRY_STEPS)
                self.results.admission_waits += not entry.has_waited
                entry.has_waited = True
                return
            outcome = self.memory.admit(self._next_number)
            if not outcome:
                self._block()
                self._refused(outcome)
                return
            self.waiting.popleft()
            self._start(entry)

    def _block(self, retry_at_step: int = 0) -> None:
        """Admit nobody until something leaves, or until this step (0: no such step)."""
        self._blocked = True
        self._retry_at_step = retry_at_step

    def _start(self, entry: Waiting) -> None:
        request = entry.request
        assert entry.output_tokens is not None
        running = Running(
            request,
            self._next_number,
            self.clock_seconds,
            entry.prompt_tokens,
            request.prompt_tokens + entry.output_tokens,
            self.admission.reserved(entry),
            entry.chunk_tokens,
            first_token_seconds=entry.first_token_seconds,
        )
        self._next_number += 1
        self.prefilling.append(running)
        self.results.admissions += 1
        self.results.queue_seconds.append(self.clock_seconds - request.arrival_seconds)

    def _can_ever_run(self, entry: Waiting) -> bool:
        """Abort a request that not even an empty memory could hold; clip an output that it could
        not hold to the end."""
        is_new = entry.output_tokens is None
        refusal = self.admission.look_at(entry)
        if refusal is not None:
            self.results.abort(entry.request.index, refusal.reason, refusal.detail)
            return False
        assert entry.output_tokens is not None
        if is_new and entry.output_tokens < entry.request.output_tokens:
            self.results.clipped_outputs += 1
        return True

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
        """Cut this step's chunks, first come first served, from the token budget. A request that
        must take smaller chunks has its steps for itself."""
        spans: list[tuple[int, int, int]] = []
        whole = budget = self.config.chunk_tokens
        for running in list(self.prefilling):
            alone = running.chunk_tokens < whole
            if budget == 0 or (alone and budget < whole) or running not in self.prefilling:
                break
            tokens = min(budget, running.chunk_tokens, running.prompt_tokens - running.computed)
            if not self._extend(running, tokens):
                if not spans and not self.decoding:
                    self._abort(running)
                break
            spans.append((running.number, running.computed, running.computed + tokens))
            running.computed += tokens
            budget = 0 if alone else budget - tokens
        return spans

    def _extend(self, running: Running, tokens: int) -> bool:
        """Room for a chunk; those admitted later give way to it (which only pins or a closed gate
        make necessary: admission has seen to the memory)."""
        while True:
            outcome = self.memory.extend(running.number, tokens)
            if outcome:
                return True
            self._refused(outcome)
            victim = self._victim()
            if victim is running:
                return False
            self._retract(victim)

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
        self._blocked = False
        if why == "finished":
            self.results.finished += 1
            self.results.generated_tokens += running.goal_tokens - running.request.prompt_tokens
            self.results.finished_seconds.append(
                self.clock_seconds - running.request.arrival_seconds
            )

    # --- when memory runs out -----------------------------------------------------------------------

    def _victim(self) -> Running:
        """Who gives way: the request admitted last."""
        return max(self.running(), key=lambda running: running.number)

    def _abort(self, running: Running) -> None:
        """Alone, and its chunk does not fit: the clip said that it does, so pages of it cannot move."""
        self.prefilling.remove(running)
        self._leave(running, "aborted")
        self.results.abort(
            running.request.index,
            "no memory for its chunks",
            self.admission.budget_sum(running.request),
        )

    def _retract(self, running: Running) -> None:
        (self.prefilling if running in self.prefilling else self.decoding).remove(running)
        self._leave(running, "retracted")
        self.results.retractions += 1
        generated = max(0, running.computed - running.request.prompt_tokens)
        if running.computed < running.prompt_tokens:  # retracted again before it was restored
            generated = running.prompt_tokens - running.request.prompt_tokens
        entry = Waiting(running.request, generated, running.first_token_seconds)
        entry.output_tokens = running.goal_tokens - running.request.prompt_tokens
        self.waiting.appendleft(entry)
        self._block()  # until something finishes: it would only be retracted again

    def _refused(self, outcome: Outcome) -> None:
        self.results.refusals[outcome.reason] += 1

    def _complete(self, *, keep: int) -> None:
        while len(self._in_flight) > keep:
            self.memory.complete(self._in_flight.popleft())
