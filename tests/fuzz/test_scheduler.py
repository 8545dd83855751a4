"""The engine loop: what is asked is served once, in order, within its budgets, and given back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.families import declare_model
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import (
    PROMPT_REFUSED,
    Scheduler,
    SchedulerConfig,
    StepCost,
    Waiting,
)

STEPS_MAX = 20_000
UNIT = 256
WINDOW = [("window_8", UNIT), ("full", UNIT)]
STATE = [("mamba", 2 * UNIT), ("full", UNIT)]
BOTH = [("mamba", 3 * UNIT), ("window_8", UNIT), ("full", 2 * UNIT)]
SEVERAL = [
    ("mamba", 3 * UNIT), ("window_32", 2 * UNIT), ("window_8", UNIT), ("full", UNIT),
]  # fmt: skip
LAYOUTS = {"window": WINDOW, "state": STATE, "both": BOTH, "several windows": SEVERAL}


@dataclass
class Spy(events.EffectObserver):
    """An observer and a forward that keep what they saw, and check each step as it comes."""

    chunk_tokens: int = 10**9
    operations: list[Operation] = field(default_factory=list)
    moves: int = 0
    computed: dict[int, int] = field(default_factory=dict)
    left: list[tuple[int, int]] = field(default_factory=list)
    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    prefill_tokens: int = 0

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Observer: keep what was done; nothing here may ever be illegal."""
        assert outcome.reason != "misuse", outcome.message
        if outcome.ok:
            self.operations.append(operation)

    def effect(self, event: events.Effect) -> None:
        """Observer: count moved pages."""
        if isinstance(event, events.PageMove):
            self.moves += event.sources.size

    def entering(self, request: int, key: object, tokens: int) -> None:
        """Forward: nothing is cached here, so everybody starts with nothing."""
        assert key is None and tokens == 0

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """Forward: each request goes on exactly where it stopped."""
        numbers = [number for number, _, _ in spans]
        assert len(set(numbers)) == len(numbers)
        chunk = 0
        for number, start, stop in spans:
            assert self.computed.get(number, 0) == start < stop
            self.computed[number] = stop
        extended = {
            op.request: op.tokens for op in self.operations_since_launch() if type(op) is ops.Extend
        }
        for number, start, stop in spans:
            if number in extended:
                assert extended[number] == stop - start
                chunk += stop - start
            else:
                assert stop - start == 1  # a decoding request
        assert set(extended) <= set(numbers)
        assert chunk <= self.chunk_tokens
        self.prefill_tokens += chunk
        self.steps.append(spans)

    def operations_since_launch(self) -> list[Operation]:
        """What was done for the newest launch, the launch itself left out."""
        newest = len(self.operations) - 1
        start = newest
        while start and type(self.operations[start - 1]) is not ops.Launch:
            start -= 1
        return self.operations[start:newest]

    def leaving(self, request: int, tokens: int) -> None:
        """Forward: what leaves was really computed."""
        assert self.computed.get(request, 0) == tokens
        self.left.append((request, tokens))


def requests_of(*sizes: tuple[int, int], gap_seconds: float = 0.0) -> list[Request]:
    """Requests of (prompt, output) tokens, `gap_seconds` apart."""
    return [
        Request(index, index * gap_seconds, prompt, output)
        for index, (prompt, output) in enumerate(sizes)
    ]


def random_requests(seed: int, count: int = 10, tokens_max: int = 30) -> list[Request]:
    """Requests of random sizes that arrive faster than they finish."""
    rng = random.Random(seed)
    arrival, result = 0.0, []
    for index in range(count):
        arrival += rng.random() * 0.05
        result.append(
            Request(index, arrival, rng.randint(1, tokens_max), rng.randint(1, tokens_max))
        )
    return result


def scheduler_of(
    bands: list[tuple[str, int]] | StoragePlan,
    usable_bytes: int,
    *,
    page_size: int = 1,
    context_length: int | None = None,
    after_step: Callable[[Scheduler], None] | None = None,
    **config: object,
) -> tuple[Scheduler, Spy]:
    """A scheduler over a bookkeeping arena of `usable_bytes` beside the sink; `bands` are given
    by bytes per token. It is stopped after `STEPS_MAX` turns, so that a livelock fails a test."""
    plan = bands
    if not isinstance(plan, StoragePlan):
        sizes = [(name, size * (1 if name == "mamba" else page_size)) for name, size in plan]
        plan = plan_from_sizes(sizes, page_size=page_size, context_length=context_length)
    settings = SchedulerConfig(**config)  # type: ignore[arg-type]
    spy = Spy(settings.chunk_tokens)
    arena = Arena(plan, plan.sink_bytes + usable_bytes, device="none", observer=spy)
    turns = 0

    def should_stop() -> bool:
        nonlocal turns
        turns += 1
        return turns > STEPS_MAX

    scheduler = Scheduler(
        ArenaMemory(arena), settings, forward=spy, after_step=after_step, should_stop=should_stop
    )
    return scheduler, spy


def serve(scheduler: Scheduler, requests: Sequence[Request]) -> Scheduler:
    """Run, then check what must hold after any run."""
    results = scheduler.run(requests)
    assert not results.stopped_early, "livelock"
    assert results.finished + sum(results.aborts.values()) == results.arrived == len(requests)
    assert_nothing_held(scheduler)
    return scheduler


def assert_nothing_held(scheduler: Scheduler) -> None:
    """No page, request or ticket is left, and no invariant is broken."""
    arena = scheduler.memory.arena  # type: ignore[attr-defined]
    assert arena.check() == []
    assert [band.live + band.pending + band.extent for band in arena.books.bands] == [0] * len(
        arena.books.bands
    )
    assert len(arena.books.ledger) == 0
    assert not arena.books.tickets.unsettled
    assert scheduler.running_count == 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_every_request_of_a_small_trace_finishes(name: str, page_size: int) -> None:
    """All bands, page sizes 1, 16 and 64: every token is computed once and nothing is left."""
    sizes = [(5, 3), (200, 40), (1, 1), (64, 64), (63, 2), (17, 130)]
    scheduler, spy = scheduler_of(
        LAYOUTS[name], 4 << 20, page_size=page_size, chunk_tokens=96
    )
    results = serve(scheduler, requests_of(*sizes, gap_seconds=0.01)).results
    assert results.finished == len(sizes)
    assert results.prefill_tokens == sum(prompt for prompt, _ in sizes)
    assert results.decode_tokens == sum(output for _, output in sizes)
    assert results.generated_tokens == sum(output for _, output in sizes)
    assert sorted(spy.left) == [(n, sum(size)) for n, size in enumerate(sizes)]
    assert results.retractions == results.clipped_outputs == 0
    assert len(results.queue_seconds) == len(results.first_token_seconds) == len(sizes)
    assert len(results.finished_seconds) == len(sizes)


@pytest.mark.parametrize(
    "model", ["gpt-oss-20b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "inkling-small"]
)
def test_real_models_are_served_and_checked_at_every_step(model: str) -> None:
    """Window, state, MLA with state, and all together, each healthy after every single step."""
    plan = plan_storage(declare_model(model))
    checked = 0

    def check(scheduler: Scheduler) -> None:
        nonlocal checked
        checked += 1
        assert scheduler.memory.arena.check() == []  # type: ignore[attr-defined]

    scheduler, _ = scheduler_of(plan, 4 << 30, after_step=check, chunk_tokens=512)
    requests = requests_of((900, 20), (3000, 30), (10, 40), (700, 5), gap_seconds=0.02)
    results = serve(scheduler, requests).results
    assert results.finished == 4
    assert checked == results.steps > 0


def test_one_request_takes_the_steps_it_must() -> None:
    """A prompt of 25 in chunks of 10, an output of 4: three prefills, four decodes, exact time."""
    cost = StepCost(1.0, 0.01, 0.001)
    scheduler, spy = scheduler_of(WINDOW, 1 << 20, chunk_tokens=10, cost=cost)
    results = serve(scheduler, requests_of((25, 4))).results
    assert spy.steps == [
        [(0, 0, 10)], [(0, 10, 20)], [(0, 20, 25)],
        [(0, 25, 26)], [(0, 26, 27)], [(0, 27, 28)], [(0, 28, 29)],
    ]  # fmt: skip
    assert results.first_token_seconds == [pytest.approx(3 + 0.25)]
    assert results.finished_seconds == [pytest.approx(7 + 0.25 + 0.004)]
    assert results.clock_seconds == pytest.approx(results.busy_seconds)
    assert results.concurrency_peak == 1
    assert results.concurrency_mean == pytest.approx(1.0)
    assert results.steps == 7


def test_the_clock_jumps_to_the_next_arrival() -> None:
    """With nothing to do the clock goes on at the next arrival, and busy time does not count it."""
    scheduler, _ = scheduler_of(WINDOW, 1 << 20, cost=StepCost(1.0, 0.0, 0.0))
    requests = [Request(0, 5.0, 3, 1), Request(1, 100.0, 3, 1)]
    results = serve(scheduler, requests).results
    assert results.queue_seconds == [0.0, 0.0]
    assert results.finished_seconds == [2.0, 2.0]
    assert results.clock_seconds == 102.0
    assert results.busy_seconds == 4.0
    assert results.idle_times == 3


def test_the_chunk_budget_is_shared_first_come_first_served() -> None:
    """Prompts of 6, 6 and 6 with a budget of 8: the budget is filled in order of arrival."""
    scheduler, spy = scheduler_of(WINDOW, 1 << 20, chunk_tokens=8)
    serve(scheduler, requests_of((6, 3), (6, 3), (6, 3)))
    assert spy.steps[0] == [(0, 0, 6), (1, 0, 2)]
    assert spy.steps[1] == [(1, 2, 6), (2, 0, 4), (0, 6, 7)]
    assert spy.steps[2] == [(2, 4, 6), (0, 7, 8), (1, 6, 7)]


def test_admission_is_first_come_first_served() -> None:
    """A large request at the head is not overtaken by the small ones behind it."""
    sizes = [(60, 20), (150, 40), (2, 2), (2, 2)]
    scheduler, spy = scheduler_of(STATE, 220 * UNIT)
    results = serve(scheduler, requests_of(*sizes)).results
    admitted = [op.request for op in spy.operations if type(op) is ops.Admit]
    assert admitted == [0, 1, 2, 3]
    first_seen = [next(i for i, s in enumerate(spy.steps) if n in {x for x, _, _ in s})
                  for n in range(4)]  # fmt: skip
    assert first_seen == sorted(first_seen)
    assert first_seen[1] > first_seen[0]  # it had to wait
    assert spy.left[0] == (0, 80)
    assert results.admission_waits == 1


def test_at_most_max_running_requests_run() -> None:
    """Twenty requests with room for all, but no more than three at once."""
    peaks = []
    scheduler, _ = scheduler_of(
        WINDOW,
        1 << 20,
        max_running=3,
        chunk_tokens=64,
        after_step=lambda s: peaks.append(s.running_count),
    )
    results = serve(scheduler, requests_of(*[(10, 10)] * 20)).results
    assert results.concurrency_peak == max(peaks) == 3


def test_a_ticket_completes_only_after_the_next_launch() -> None:
    """Forwards overlap: ticket n completes after launch n + 1, all in order, none is forgotten."""
    scheduler, spy = scheduler_of(BOTH, 1 << 20, chunk_tokens=16)
    serve(scheduler, requests_of((40, 6), (30, 9), gap_seconds=0.01))
    launched, completed = 0, 0
    for op in spy.operations:
        if type(op) is ops.Launch:
            launched += 1
            assert launched - completed <= 2
        elif type(op) is ops.Complete:
            completed += 1
            assert op.ticket == completed
            if completed < scheduler.results.steps:
                assert launched == completed + 1
    assert launched == completed == scheduler.results.steps


def test_a_finished_request_frees_under_its_own_forward() -> None:
    """Pages freed by the step that finishes are pending until that forward completed."""
    seen: list[int] = []

    def look(scheduler: Scheduler) -> None:
        books = scheduler.memory.arena.books  # type: ignore[attr-defined]
        seen.append(sum(band.pending for band in books.bands))

    scheduler, _ = scheduler_of(STATE, 1 << 20, after_step=look)
    serve(scheduler, requests_of((10, 1), (10, 3)))
    assert seen == [0, 12, 0, 14]


def test_windows_are_trimmed_to_their_length() -> None:
    """After every step a request holds no more window pages than its window can reach."""
    held: list[int] = []

    def look(scheduler: Scheduler) -> None:
        numbers = [running.number for running in scheduler.running()]
        held.extend(scheduler.memory.held(numbers)[:, 0].tolist())

    scheduler, _ = scheduler_of(WINDOW, 1 << 20, chunk_tokens=20, after_step=look)
    serve(scheduler, requests_of((100, 30)))
    assert max(held) == 7  # the next token attends to itself and seven others


def test_a_prompt_that_never_fits_is_refused_with_the_sum() -> None:
    """The agreed message, with every band's pages and bytes in the detail; the others go on."""
    scheduler, _ = scheduler_of(BOTH, 100 * UNIT, page_size=4)
    results = serve(scheduler, requests_of((10, 2), (500, 5), (10, 2))).results
    assert PROMPT_REFUSED == "Request prompt exceeds the KV memory budget"
    assert results.aborts == Counter({"Request prompt exceeds the KV memory budget": 1})
    assert results.first_aborts == [
        {
            "request": 1,
            "reason": "Request prompt exceeds the KV memory budget",
            "detail": "prompt of 500 tokens and one of output: sink 2,048 + 1 slot of mamba 768 + "
            "3 pages of window_8 3,072 + 126 pages of full 258,048 + rounding to page grids 256 = "
            "264,192 bytes of 27,648",
        }
    ]
    assert results.finished == 2


def test_a_prompt_over_the_context_length_is_refused() -> None:
    """A prompt as long as the context leaves no room for an output; one token less is served."""
    scheduler, _ = scheduler_of(WINDOW, 1 << 20, context_length=50)
    results = serve(scheduler, requests_of((50, 1), (49, 1), (51, 1))).results
    assert results.aborts == Counter({"prompt exceeds the context length": 2})
    assert results.first_aborts[0]["detail"] == "prompt of 50 tokens, context length of 50"
    assert results.finished == 1
    assert results.clipped_outputs == 0


def test_an_output_is_clipped_at_the_context_length() -> None:
    """Prompt 40 and output 100 in a context of 50: ten tokens are generated."""
    scheduler, spy = scheduler_of(WINDOW, 1 << 20, context_length=50)
    results = serve(scheduler, requests_of((40, 100))).results
    assert results.clipped_outputs == 1
    assert results.generated_tokens == results.decode_tokens == 10
    assert spy.left == [(0, 50)]


def test_an_output_is_clipped_to_the_longest_that_an_empty_arena_holds() -> None:
    """60 pages hold a slot of 2 and 58 tokens, so an output of 48 after a prompt of 10."""
    scheduler, _ = scheduler_of(STATE, 60 * UNIT)
    results = serve(scheduler, requests_of((10, 500), (10, 48), (57, 9), (58, 9))).results
    assert results.clipped_outputs == 2
    assert results.generated_tokens == 48 + 48 + 1
    assert results.aborts == Counter({PROMPT_REFUSED: 1})


def test_the_first_of_every_reason_is_kept() -> None:
    """Many refusals of one kind do not hide the first of another."""
    scheduler, _ = scheduler_of(WINDOW, 60 * UNIT, context_length=100)
    results = serve(scheduler, requests_of(*[(200, 1)] * 9, (90, 1), (91, 1))).results
    assert [entry["request"] for entry in results.first_aborts] == [0, 1, 2, 3, 4, 9]
    assert {entry["reason"] for entry in results.first_aborts} == set(results.aborts)


@pytest.mark.parametrize("stop_after", [0, 1, 7, 30])
def test_a_stop_request_releases_everything(stop_after: int) -> None:
    """Stopped at any step: the arena is empty and healthy, and the counts cover what was done."""
    scheduler, _ = scheduler_of(BOTH, 150 * UNIT, chunk_tokens=8, output_reserve=0.2)
    scheduler.should_stop = lambda: scheduler.results.steps >= stop_after
    results = scheduler.run(random_requests(3))
    assert results.stopped_early
    assert results.steps == stop_after
    assert results.finished < results.arrived or stop_after == 0
    assert_nothing_held(scheduler)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_full_reserve_never_retracts(name: str, page_size: int) -> None:
    """With the worst case set aside, no admitted request is refused a page, also when tight."""
    waits = 0
    for seed in range(6):
        rng = random.Random(seed)
        scheduler, _ = scheduler_of(
            LAYOUTS[name],
            UNIT * rng.randint(100, 250),
            page_size=page_size,
            chunk_tokens=rng.choice([1, 8, 64]),
        )
        results = serve(scheduler, random_requests(seed)).results
        assert results.refusals == Counter()
        assert results.retractions == 0
        assert results.admissions == results.finished
        waits += results.admission_waits
    assert waits > 0  # it was tight


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("output_reserve", [0.0, 0.3])
def test_retraction_keeps_progress_and_everything_finishes(
    name: str, output_reserve: float
) -> None:
    """Overcommitted: requests are retracted, go on with what they generated, and all finish."""
    retractions = 0
    for seed in range(6):
        rng = random.Random(seed)
        scheduler, spy = scheduler_of(
            LAYOUTS[name],
            UNIT * rng.randint(100, 250),
            chunk_tokens=rng.choice([4, 8, 16]),
            output_reserve=output_reserve,
            after_step=lambda s: assert_healthy(s),
        )
        requests = random_requests(seed)
        results = serve(scheduler, requests).results
        released = Counter(op.why for op in spy.operations if type(op) is ops.Release)
        assert results.retractions == released["retracted"]
        assert results.admissions == sum(released.values())
        assert results.decode_tokens == results.generated_tokens  # no token is decoded twice
        assert results.prefill_tokens == spy.prefill_tokens
        computed = sum(tokens for _, tokens in spy.left)
        assert results.prefill_tokens + results.decode_tokens == computed
        assert len(results.first_token_seconds) == results.finished
        if not results.aborts and not results.clipped_outputs:
            assert results.generated_tokens == sum(r.output_tokens for r in requests)
        retractions += results.retractions
    assert retractions > 0


def assert_healthy(scheduler: Scheduler) -> None:
    """No violation, and running requests are in the order in which they arrived."""
    assert scheduler.memory.arena.check() == []  # type: ignore[attr-defined]
    running = sorted(scheduler.running(), key=lambda running: running.number)
    order = [run.request.index for run in running]
    order += [entry.request.index for entry in scheduler.waiting]
    assert order == sorted(order)


def test_a_retracted_request_goes_on_where_it_was() -> None:
    """Two requests fill the arena: the later one is retracted and prefills what it generated."""
    scheduler, spy = scheduler_of(STATE, 100 * UNIT, output_reserve=0.0, chunk_tokens=50)
    results = serve(scheduler, requests_of((10, 80), (10, 80))).results
    assert results.retractions == 1
    # 4 pages of state and 96 tokens: with 48 each, the next decode of both fails.
    assert spy.left == [(1, 48), (0, 90), (2, 90)]
    assert [span for step in spy.steps for span in step if span[0] == 2][0] == (2, 0, 48)
    assert results.prefill_tokens == 10 + 10 + 48
    assert results.decode_tokens == results.generated_tokens == 160
    assert len(results.first_token_seconds) == 2
    assert results.admissions == 3
    assert results.refusals == Counter({"memory": 1})


def test_a_retraction_while_its_chunk_is_due() -> None:
    """The request retracted by a decode may be the one that was to prefill in the same step."""
    retractions = 0
    for seed in range(12):
        scheduler, _ = scheduler_of(
            WINDOW, UNIT * (60 + 5 * seed), output_reserve=0.0, chunk_tokens=4
        )
        results = serve(scheduler, random_requests(seed)).results
        assert results.finished == 10
        retractions += results.retractions
    assert retractions > 20


def test_a_retracted_request_whose_replay_fills_the_window_is_no_livelock() -> None:
    """What was generated is prefilled in a larger chunk than the prompt was; it must still fit."""
    retractions = 0
    for units in range(84, 116, 4):
        for chunk in (40, 48, 64):
            scheduler, _ = scheduler_of(
                WINDOW, UNIT * units, output_reserve=0.0, chunk_tokens=chunk
            )
            results = serve(scheduler, requests_of((1, 60), (10, 60))).results
            assert results.finished == 2
            retractions += results.retractions
    assert retractions > 3


def test_what_is_admitted_fits_an_empty_arena_at_any_time_of_its_life() -> None:
    """Whatever was generated before a retraction: an empty arena holds every step of the rest of the
    life, prefilled again in the chunks that the request then gets; one token more it does not hold."""
    clipped = limited = 0
    for units in range(40, 160, 5):
        scheduler, _ = scheduler_of(WINDOW, UNIT * units, chunk_tokens=64, output_reserve=0.0)
        admission, memory = scheduler.admission, scheduler.memory
        entry = Waiting(Request(0, 0.0, 20, 60))
        assert admission.look_at(entry) is None
        fits = entry.output_tokens or 0
        clipped += fits < 60
        for generated in range(0, fits + 1):
            again = Waiting(entry.request, generated, output_tokens=fits)
            assert admission.look_at(again) is None
            limited += again.chunk_tokens < 64
            rows = admission.model.life_rows(20 + generated, 20 + fits, again.chunk_tokens)
            assert (memory.shortage_when_empty(rows) <= 0).all()
            assert admission.admits(again, [])
        if fits < 60:
            rows = admission.model.life_rows(20, 20 + fits + 1, 1)
            assert (memory.shortage_when_empty(rows) > 0).any()
    assert clipped > 3 and limited > 100


def progress_of(spy: Spy, left: Sequence[int]) -> list[int]:
    """Tokens computed by each life of one request of the trace, in order."""
    return [tokens for number, tokens in spy.left if number in left]


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_request_restarts_twice_without_progress(name: str) -> None:
    """Overcommitted to the utmost: every life of a request ends with more tokens than the one
    before, from the first to the last."""
    lives = 0
    for seed in range(12):
        rng = random.Random(seed)
        scheduler, spy = scheduler_of(
            LAYOUTS[name],
            UNIT * rng.randint(60, 200),
            page_size=rng.choice([1, 1, 4]),
            chunk_tokens=rng.choice([3, 8, 16]),
            output_reserve=0.0,
        )
        numbers: dict[int, list[int]] = {}

        def note(scheduler: Scheduler, numbers: dict[int, list[int]] = numbers) -> None:
            for running in scheduler.running():
                kept = numbers.setdefault(running.request.index, [])
                if running.number not in kept:
                    kept.append(running.number)

        scheduler.after_step = note
        results = serve(scheduler, random_requests(seed, count=16)).results
        assert set(results.aborts) <= {PROMPT_REFUSED}
        for index, left in numbers.items():
            ends = progress_of(spy, left)
            prompt = random_requests(seed, count=16)[index].prompt_tokens
            assert all(later > max(earlier, prompt) for earlier, later in
                       zip(ends, ends[1:], strict=False)), (seed, index, ends)  # fmt: skip
            lives += len(ends) - 1
    assert lives > 10


def test_a_chunk_makes_those_admitted_later_give_way() -> None:
    """A prefill chunk that finds no room retracts the request admitted after it, never an older one."""
    for seed in range(20):
        scheduler, spy = scheduler_of(
            STATE, UNIT * (50 + 3 * seed), output_reserve=0.0, chunk_tokens=5
        )
        serve(scheduler, random_requests(seed, count=12))
        running: set[int] = set()
        for op in spy.operations:
            if type(op) is ops.Admit:
                running.add(op.request)
            elif type(op) is ops.Release:
                if op.why == "retracted":
                    assert op.request == max(running)
                running.remove(op.request)


class Refusing(ArenaMemory):
    """An arena that refuses one request's chunks while another runs, as pinned pages may."""

    refused, because_of = 0, 2

    def extend(self, request: int, tokens: int) -> Outcome:
        if request == self.refused and self.because_of in self.arena.books.ledger.row_of:
            return Outcome(False, reason="pins", message="pinned")
        return super().extend(request, tokens)


def test_a_refused_chunk_retracts_those_behind_it_until_it_fits() -> None:
    """The two requests behind the refused one leave, last first, and come back when there is room;
    the one that cannot be helped is aborted, and the others go on."""
    scheduler, spy = scheduler_of(STATE, 1 << 20, chunk_tokens=8)
    arena = scheduler.memory.arena  # type: ignore[attr-defined]
    memory = Refusing(arena)
    memory.because_of = 1
    scheduler.memory = memory
    results = serve(scheduler, requests_of((20, 3), (20, 3), (20, 3))).results
    released = [(op.request, op.why) for op in spy.operations if type(op) is ops.Release]
    assert released[:2] == [(2, "retracted"), (1, "retracted")]
    assert results.finished == 3 and results.retractions == 2
    assert results.refusals == Counter({"pins": 2})

    scheduler, spy = scheduler_of(STATE, 1 << 20, chunk_tokens=8)
    memory = Refusing(scheduler.memory.arena)  # type: ignore[attr-defined]
    memory.because_of = 0  # itself: nobody else can help
    scheduler.memory = memory
    results = serve(scheduler, requests_of((20, 3), (20, 3))).results
    assert results.aborts == Counter({"no memory for its chunks": 1})
    assert results.finished == 1


def test_the_same_trace_twice_is_the_same_run() -> None:
    """Equal results to the last float, equal operations, equal digest."""
    runs = []
    for _ in range(2):
        scheduler, spy = scheduler_of(BOTH, 150 * UNIT, output_reserve=0.2, chunk_tokens=16)
        mid: list[str] = []

        def keep(scheduler: Scheduler, mid: list[str] = mid) -> None:
            mid.append(scheduler.memory.arena.digest())  # type: ignore[attr-defined]

        scheduler.after_step = keep
        results = serve(scheduler, random_requests(5)).results
        runs.append((results.to_json(), spy.operations, spy.steps, mid))
    assert runs[0] == runs[1]
    assert runs[0][0]["retractions"] > 0


def test_a_trace_may_come_from_an_iterator() -> None:
    """Requests are taken one at a time; nothing is read ahead but the next one."""
    taken: list[int] = []

    def stream():
        for request in requests_of(*[(5, 2)] * 4, gap_seconds=10.0):
            taken.append(request.index)
            yield request

    seen: list[int] = []
    scheduler, _ = scheduler_of(
        WINDOW, 1 << 20, after_step=lambda s: seen.append(len(taken) - s.results.arrived)
    )
    scheduler.run(stream())
    assert max(seen) == 1
    assert scheduler.results.finished == 4


def test_no_requests_is_no_work() -> None:
    """An empty trace ends at once with an empty report."""
    scheduler, spy = scheduler_of(WINDOW, 1 << 20)
    results = serve(scheduler, []).results
    assert results.steps == 0
    assert results.to_json()["queue_seconds"] == {
        "mean": None, "p50": None, "p90": None, "p99": None, "max": None,
    }  # fmt: skip
    assert [op.kind for op in spy.operations] == ["Compact"]


_DIGEST_SCRIPT = """
from tests.fuzz.test_scheduler import BOTH, UNIT, random_requests, scheduler_of
scheduler, _ = scheduler_of(BOTH, 150 * UNIT, output_reserve=0.2, chunk_tokens=16)
digests = []
scheduler.after_step = lambda s: digests.append(s.memory.arena.digest())
scheduler.run(random_requests(5))
import hashlib
print(hashlib.sha256("".join(digests).encode()).hexdigest(), scheduler.results.to_json())
"""


def test_the_hash_seed_decides_nothing() -> None:
    """Other processes with other hash seeds reach the same digests and results."""
    outputs = set()
    for seed in ("1", "4242"):
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", _DIGEST_SCRIPT],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop()) > 100
