"""Continuous batching against a virtual clock: the engine loop that drives an arena with a trace.

One step: take arrivals, admit from the head of the queue while every step to come of all admitted
requests fits (`admission`), cut prefill chunks from a token budget, give every decoding request one
token, launch, and complete the forward *before* this one, so that freed pages really wait for
launched work.

When a step cannot get its memory, the request of the lowest priority admitted last is retracted: it
goes back to the head of its queue with what it has generated, and is prefilled again later. So the
first one of the highest priority always runs to its end, which an empty memory holds; a prefill chunk
retracts only those that stand behind it. A request of a higher priority may retract others to enter
(`preemption`).

With a prefix cache a request starts behind what the cache has of its prompt, and publishes each chunk
once it is launched: the first one before the windows are trimmed, since prompts part near their
beginnings, the others after it (`docs/run.md` has what that buys). Where it parts from what the
cache has but cannot use as it is, a chunk ends, so that the next one can start there. On a model with
state, a checkpoint goes along where a chunk ends on the grid. When there is no room for one, the
request goes on without: its windows are trimmed all the same, so it never holds more than it was
priced for.

Nothing here depends on real time: the same trace, seed and memory give the same operations.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bandscope.allocator.demand_chunks import next_chunk
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.workload.admission import PROMPT_REFUSED, Admission
from bandscope.fuzz.workload.engine import Forward, NoForward, SchedulerConfig, StepCost
from bandscope.fuzz.workload.entries import Running, Waiting
from bandscope.fuzz.workload.memory import ServingMemory
from bandscope.fuzz.workload.preemption import choose_victims, order_of_giving_way
from bandscope.fuzz.workload.priority import WaitingQueue
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.results import Results

__all__ = [
    "PROMPT_REFUSED", "Forward", "NoForward", "Running", "Scheduler", "SchedulerConfig", "StepCost",
    "Waiting",
]  # fmt: skip

#: Steps after which a request at the head of the queue is looked at again when nothing was given
#: back: as those that run come nearer their ends, a later one overlaps less with them.
RETRY_STEPS = 8


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
        self.waiting = WaitingQueue()
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
        preempted_for: Waiting | None = None
        while self.waiting and not self._blocked:
            entry = self.waiting.head
            if not self._can_ever_run(entry):
                self.waiting.popleft()
                continue
            found = None
            if self.running_count < self.config.max_running:
                found = self.admission.enters(entry, [*self.decoding, *self.prefilling])
            if found is None:
                if entry is not preempted_for and self._preempt(entry):
                    preempted_for = entry
                    continue
                self._block(self.results.steps + RETRY_STEPS)
                if self.running_count < self.config.max_running:
                    self.results.admission_waits += not entry.has_waited
                    entry.has_waited = True
                return
            outcome = self.memory.admit(
                self._next_number, entry.key, found.tokens if self.memory.cached else None
            )
            if not outcome:
                self._block()
                self._refused(outcome)
                return
            self.waiting.popleft()
            self._start(entry, outcome.value or 0, found.fork_tokens)

    def _preempt(self, entry: Waiting) -> bool:
        """Retract whoever has to give way so that `entry` can enter; False when nobody does."""
        running = [*self.decoding, *self.prefilling]
        priority = entry.request.priority
        if all(run.request.priority >= priority for run in running):
            return False
        found = self.admission.look_up(entry)
        victims = choose_victims(
            running,
            priority,
            lambda rest: self.admission.admits(entry, rest, found, hypothetical=True),
            least=len(running) + 1 - self.config.max_running,
        )
        for victim in victims:
            self._retract(victim)
        self.results.preemptions += len(victims)
        return bool(victims)

    def _block(self, retry_at_step: int = 0) -> None:
        """Admit nobody until something leaves, or until this step (0: no such step)."""
        self._blocked = True
        self._retry_at_step = retry_at_step

    def _start(self, entry: Waiting, matched_tokens: int, fork_tokens: int) -> None:
        request = entry.request
        running = Running(
            request,
            self._next_number,
            self.clock_seconds,
            entry.prompt_tokens,
            entry.goal_tokens,
            self.admission.reserved(entry),
            entry.chunk_tokens,
            computed=matched_tokens,
            first_token_seconds=entry.first_token_seconds,
            fork_tokens=fork_tokens,
            restarted=entry.restarted,
        )
        self._next_number += 1
        self.admission.entered(running, [*self.decoding, *self.prefilling])
        self.prefilling.append(running)
        self.forward.entering(running.number, entry.key, matched_tokens)
        self.results.enter(request.prompt_tokens, matched_tokens, restarted=entry.restarted)
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
        begun = {number for number, start, _ in spans if not start}
        prefilled = {number for number, _, _ in spans} - begun
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
        self._publish(begun)
        self.memory.trim_window([number for number in batch if number not in gone])
        for running in finished:
            self._leave(running, "finished")
        self._publish(prefilled)
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
        whole = budget = self.admission.chunk_tokens
        for running in list(self.prefilling):
            alone = running.chunk_tokens < whole
            if budget == 0 or (alone and budget < whole) or running not in self.prefilling:
                break
            tokens = next_chunk(
                running.prompt_tokens - running.computed,
                budget,
                running.chunk_tokens,
                max(1, self.memory.grid_tokens),
                running.fork_tokens - running.computed,
            )
            if not tokens:  # what is left of the budget does not reach the grid
                break
            if not self._extend(running, tokens):
                if not spans and not self.decoding:
                    self._abort(running)
                break
            spans.append((running.number, running.computed, running.computed + tokens))
            running.computed += tokens
            # Those behind wait until this one is done, also when a cut left some of the budget.
            done = running.computed >= running.prompt_tokens
            budget = 0 if alone or not done else budget - tokens
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
            self._retract_for_room(victim)

    def _decode_all(self) -> list[Running]:
        """One more token for every decoding request; retracts until it fits. The tokens that are
        computed in this step start at `computed`, which `_advance` then counts up."""
        while self.decoding:
            outcome = self.memory.decode([running.number for running in self.decoding])
            if outcome:
                return list(self.decoding)
            self._refused(outcome)
            self._retract_for_room(self._victim())
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

    def _publish(self, numbers: set[int]) -> None:
        """Give the chunks of this step to the cache, with the state where they end on the grid."""
        if not (self.memory.cached and numbers):
            return
        grid = self.memory.grid_tokens
        for running in [run for run in self.running() if run.number in numbers]:
            if not grid or running.computed % grid:
                self.memory.publish(running.number)
            elif self.memory.checkpoint(running.number):
                self.results.checkpoints += 1
            else:
                self.results.checkpoint_stalls += 1

    def _collect_finished(self) -> list[Running]:
        finished = [run for run in self.decoding if run.computed >= run.goal_tokens]
        if finished:
            self.decoding = [run for run in self.decoding if run.computed < run.goal_tokens]
        return finished

    def _leave(self, running: Running, why: str) -> None:
        self.forward.leaving(running.number, running.computed)
        self.memory.release(
            running.number, why, publish=self.memory.cached and why == "finished"
        )
        self._blocked = False
        if why == "finished":
            self.results.finished += 1
            self.results.generated_tokens += running.goal_tokens - running.request.prompt_tokens
            self.results.finished_seconds.append(
                self.clock_seconds - running.request.arrival_seconds
            )
        else:
            self.admission.left_early()

    # --- when memory runs out -----------------------------------------------------------------------

    def _victim(self) -> Running:
        """Who gives way when memory runs out."""
        return order_of_giving_way(self.running())[0]

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
        entry = Waiting(
            running.request, generated, running.first_token_seconds, restarted=True
        )
        entry.output_tokens = running.goal_tokens - running.request.prompt_tokens
        self.waiting.appendleft(entry)

    def _retract_for_room(self, running: Running) -> None:
        self._retract(running)
        self._block()  # until something finishes: it would only be retracted again

    def _refused(self, outcome: Outcome) -> None:
        self.results.refusals[outcome.reason] += 1

    def _complete(self, *, keep: int) -> None:
        while len(self._in_flight) > keep:
            self.memory.complete(self._in_flight.popleft())
