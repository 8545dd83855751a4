"""Priority: who is admitted first, who gives way, and that nobody starts over for ever."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import ConfigError
from bandscope.fuzz.workload.entries import Running, Waiting
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.preemption import choose_victims, order_of_giving_way
from bandscope.fuzz.workload.priority import WaitingQueue, parse_priority, with_priority
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import NoForward, Scheduler, SchedulerConfig
from tests.fuzz.sharing_cases import BANDS, plan_of


def scheduler_of(name: str, usable_pages: int, **settings: object) -> Scheduler:
    plan = plan_of(name, 1)
    arena = Arena(plan, plan.sink_bytes + usable_pages * 256, device="none")
    return Scheduler(ArenaMemory(arena), SchedulerConfig(**settings))  # type: ignore[arg-type]


class Order(NoForward):
    """Keeps who entered and left, in order."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.entered, self.left = scheduler, [], []  # type: ignore[var-annotated]
        scheduler.forward = self

    def entering(self, request: int, key: object, tokens: int) -> None:
        running = next(run for run in self.scheduler.running() if run.number == request)
        self.entered.append(running.request.index)

    def leaving(self, request: int, tokens: int) -> None:
        self.left.append((request, tokens))


# --- rules --------------------------------------------------------------------------------------------


def test_rules_give_priorities() -> None:
    requests = [Request(n, float(n), 500 * (n + 1), 5, client=f"c{n % 3}") for n in range(200)]

    def given(text: str, seed: int = 0) -> list[int]:
        return [r.priority for r in with_priority(requests, parse_priority(text, seed))]

    assert parse_priority("none") is None and given("none") == [0] * 200
    assert given("short-prompts") == [1, 1] + [0] * 198
    assert given("short-prompts:1500") == [1, 1, 1] + [0] * 197
    assert given("clients:c1,c2")[:6] == [0, 1, 1, 0, 1, 1]
    assert given("random:0") == [0] * 200 and given("random:1") == [1] * 200
    drawn = given("random:0.3")
    assert drawn == given("random:0.3") != given("random:0.3", seed=1)
    assert 40 < sum(drawn) < 80


def test_a_rule_depends_on_the_request_alone() -> None:
    """A part of a trace has the priorities that it has in the whole."""
    requests = [Request(n, float(n), 100, 5) for n in range(50)]
    rule = parse_priority("random:0.5", 3)
    whole = [r.priority for r in with_priority(requests, rule)]
    assert [r.priority for r in with_priority(requests[20:], rule)] == whole[20:]
    assert with_priority(requests, None).__next__() is requests[0]


@pytest.mark.parametrize(
    "text",
    ["", "none:1", "short-prompts:", "short-prompts:0", "short-prompts:-1", "random", "random:2",
     "random:x", "random:nan", "clients:", "clients:a,,b", "high"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="--priority .* was asked for; give none, short-prompts"):
        parse_priority(text)


def test_priority_is_part_of_a_request() -> None:
    one, other = Request(0, 0.0, 5, 5), Request(0, 0.0, 5, 5, priority=1)
    assert one != other and hash(one) != hash(other)


# --- the queue ----------------------------------------------------------------------------------------


def test_the_queue_is_highest_first_and_first_come_first_served() -> None:
    """Against a sorted list, through random appends, returns and removals."""
    rng = random.Random(0)
    queue, expected = WaitingQueue(), []  # type: ignore[var-annotated]
    for step in range(2_000):
        if expected and rng.random() < 0.45:
            expected.sort(key=lambda item: (-item[0], item[1]))
            assert queue.head.request.index == expected[0][2]
            assert queue.popleft().request.index == expected.pop(0)[2]
        else:
            priority, left = rng.randint(-2, 3), rng.random() < 0.3
            entry = Waiting(Request(step, 0.0, 1, 1, priority=priority))
            (queue.appendleft if left else queue.append)(entry)
            expected.append((priority, -step if left else step, step))
        assert len(queue) == len(expected) and bool(queue) == bool(expected)
    expected.sort(key=lambda item: (-item[0], item[1]))
    assert [entry.request.index for entry in queue] == [item[2] for item in expected]
    with pytest.raises(IndexError):
        WaitingQueue().head  # noqa: B018


# --- victims ------------------------------------------------------------------------------------------


def running(number: int, priority: int, *, restarted: bool = False, computed: int = 5) -> Running:
    request = Request(number, 0.0, 5, 5, priority=priority)
    return Running(
        request, number, 0.0, 5, 10, 10, 8, computed=computed, restarted=restarted
    )


def test_the_lowest_priority_gives_way_first_then_the_last_admitted() -> None:
    runs = [running(0, 1), running(1, 0), running(2, 2), running(3, 0), running(4, 1)]
    assert [run.number for run in order_of_giving_way(runs)] == [3, 1, 4, 0, 2]
    for needed in range(1, 5):
        asked: list[list[int]] = []

        def admits(rest: list[Running], needed: int = needed, asked: list = asked) -> bool:  # type: ignore
            asked.append([run.number for run in rest])
            return len(rest) <= 5 - needed

        victims = choose_victims(runs, 2, admits)
        assert [run.number for run in victims] == [3, 1, 4, 0][:needed]
        assert asked[0] == [2]  # whether it helps at all is asked first
    assert choose_victims(runs, 2, lambda rest: not rest) == []
    assert choose_victims(runs, 0, lambda rest: True) == []
    assert [v.number for v in choose_victims(runs, 3, lambda rest: True, least=2)] == [3, 1]
    assert choose_victims(runs[:1], 2, lambda rest: True, least=2) == []


def test_who_was_retracted_gives_way_only_after_a_new_token() -> None:
    assert running(0, 0).may_give_way and running(0, 0, computed=0).may_give_way
    assert not running(0, 0, restarted=True).may_give_way
    assert running(0, 0, restarted=True, computed=6).may_give_way
    runs = [running(0, 0, restarted=True), running(1, 0)]
    assert [v.number for v in choose_victims(runs, 1, lambda rest: len(rest) < 2)] == [1]
    assert choose_victims(runs, 1, lambda rest: not rest) == []


# --- in the engine ------------------------------------------------------------------------------------


def test_higher_priorities_are_admitted_first() -> None:
    """One at a time, all there at once: by priority, then as they came."""
    scheduler = scheduler_of("window", 500, max_running=1)
    order = Order(scheduler)
    priorities = [0, 2, 1, 0, 2, 1]
    requests = [Request(n, 0.0, 5, 5, priority=p) for n, p in enumerate(priorities)]
    assert scheduler.run(requests).finished == 6
    assert order.entered == [1, 4, 2, 5, 0, 3]


def test_a_higher_priority_takes_the_place_of_a_lower_one() -> None:
    """Memory holds one of them: the urgent one enters at once, the other goes on afterwards."""
    scheduler = scheduler_of("window", 90)
    order = Order(scheduler)
    requests = [Request(0, 0.0, 30, 30), Request(1, 0.1, 30, 30, priority=1)]
    results = scheduler.run(requests)
    assert order.entered == [0, 1, 0]
    assert (results.preemptions, results.retractions, results.finished) == (1, 1, 2)
    # What it had generated was kept: no token was decoded twice.
    assert results.decode_tokens == results.generated_tokens == 60


def test_a_higher_priority_takes_the_last_place() -> None:
    """As many run as may: one has to go although there is memory."""
    scheduler = scheduler_of("window", 900, max_running=2)
    order = Order(scheduler)
    requests = [Request(n, 0.0, 5, 40) for n in range(2)] + [Request(2, 0.1, 5, 5, priority=1)]
    results = scheduler.run(requests)
    assert order.entered == [0, 1, 2, 1] and results.preemptions == 1
    assert results.refusals == Counter()


@pytest.mark.parametrize("priority", [0, -1])
def test_equals_and_higher_ones_never_give_way(priority: int) -> None:
    scheduler = scheduler_of("window", 90, max_running=1)
    order = Order(scheduler)
    scheduler.run([Request(0, 0.0, 30, 30), Request(1, 0.1, 30, 30, priority=priority)])
    assert order.entered == [0, 1] and scheduler.results.preemptions == 0


def test_nobody_is_retracted_when_it_does_not_help() -> None:
    """The urgent one needs the room of its equal, too: the lower one is left alone."""
    scheduler = scheduler_of("window", 130)
    order = Order(scheduler)
    requests = [
        Request(0, 0.0, 50, 20, priority=1),
        Request(1, 0.0, 5, 20),
        Request(2, 0.1, 70, 20, priority=1),
    ]
    results = scheduler.run(requests)
    assert results.preemptions == 0 and results.finished == 3
    assert order.entered == [0, 1, 2]


@pytest.mark.parametrize("reserve", [1.0, 0.3])
@pytest.mark.parametrize("name", BANDS)
def test_nobody_restarts_twice_without_a_new_token(name: str, reserve: float) -> None:
    """Streams of urgent requests against tight memories: between two retractions a request has always
    made a token, so each is preempted at most once more than it has output; everybody finishes."""
    preempted = 0
    for seed in range(6):
        rng = random.Random(f"{name} {seed}")
        scheduler = scheduler_of(
            name, rng.randint(80, 160), output_reserve=reserve,
            chunk_tokens=rng.choice([4, 16]), max_running=rng.choice([2, 4, 50]),
        )  # fmt: skip
        progress: dict[int, list[int]] = defaultdict(list)
        retract = scheduler._retract

        def note(run: Running, retract=retract, progress=progress) -> None:  # type: ignore
            progress[run.request.index].append(max(run.computed, run.prompt_tokens))
            retract(run)

        scheduler._retract = note  # type: ignore[method-assign]
        requests = sorted(
            (
                Request(n, rng.random(), rng.randint(1, 30), rng.randint(1, 20),
                        priority=rng.choice([0, 0, 1, 2]))
                for n in range(30)
            ),
            key=lambda request: request.arrival_seconds,
        )  # fmt: skip
        results = scheduler.run(requests)
        assert results.finished + sum(results.aborts.values()) == 30
        outputs = {request.index: request.output_tokens for request in requests}
        for index, reached in progress.items():
            assert all(before < after for before, after in zip(reached, reached[1:], strict=False))
            assert len(reached) <= 1 + outputs[index]
        preempted += results.preemptions
        if reserve == 1:
            assert results.retractions == results.preemptions and results.refusals == Counter()
    assert preempted > 5
