"""Schedules: what they choose, how their strings repeat a run, what PCT and exploration promise."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.errors import ConfigError, MisuseError
from bandscope.fuzz.schedules import Pct, guarantee, parse_schedule, spell
from bandscope.fuzz.schedules_explore import explore
from bandscope.fuzz.simulated import SimulatedDevice
from bandscope.fuzz.simulated_work import COPY, FORWARD, HOST, SCHEDULE, Memory, Touched, Work
from tests.allocator.arenas import P3
from tests.fuzz.simulated_runs import Run

# --- programs on paper: works that write and tell what they read ----------------------------------


class Paper(Work):
    """Reads some cells, tells what it saw, and writes its name into others (pages of one cell)."""

    what = "paper work"

    def __init__(self, name: int, stream: int, reads: list[int], writes: list[int]) -> None:
        self.name, self.stream = name, stream
        self.reads: Touched = [(0, np.array(reads, np.int64))]
        self.writes: Touched = [(0, np.array(writes, np.int64))]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        pages = memory.pages[0]
        saw = pages[self.reads[0][1]].ravel().tolist()
        if saw:
            tell(Violation("content", f"{self.name} saw {saw}"))
        pages[self.writes[0][1]] = self.name


PaperWork = tuple[int, list[int], list[int]]  # stream, cells read, cells written


def paper_run(
    works: list[PaperWork], schedule: str, waits: dict[int, list[int]] | None = None
) -> SimulatedDevice:
    """A run of works in this order of issue; `waits[i]`: streams that the stream of work i waits for
    before it. Names count from 1."""
    device = SimulatedDevice(schedule)
    device.allocate(64, [8], [8])
    for index, (stream, reads, writes) in enumerate(works):
        for other in (waits or {}).get(index, ()):
            device._order.wait(stream, device._order.position(other))
        device.issue(Paper(index + 1, stream, reads, writes))
    device.drain()
    return device


def saw(device: SimulatedDevice) -> list[str]:
    """What paper works told, sorted."""
    return sorted(v.message for v in device.violations if v.invariant == "content")


# --- strings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("eager", "eager"),
        ("latest", "latest"),
        ("random:7", "random:7"),
        ("pct:3", "pct:3:d=3:k=200"),
        ("pct:3:d=2:k=50", "pct:3:d=2:k=50"),
        ("steps:s3.f2.", "steps:s3.f2."),
        ("steps:", "steps:"),
    ],
)
def test_a_schedule_is_named_by_its_string(text: str, meaning: str) -> None:
    """The string that a schedule gives names all of it, defaults included, and is read again."""
    assert parse_schedule(text).text == meaning
    assert parse_schedule(meaning).text == meaning


@pytest.mark.parametrize(
    "text",
    ["", "soon", "random", "random:x", "random:-1", "pct:1:d=0:k=5", "pct:1:d=2:k=0", "steps:x"],
)
def test_a_wrong_string_is_refused_with_what_there_is(text: str) -> None:
    """One sentence names the string and the schedules."""
    with pytest.raises(ConfigError, match=r"eager, latest, random:SEED"):
        parse_schedule(text)


def test_choices_are_spelled_with_counts() -> None:
    """Runs of one letter are counted."""
    assert spell([SCHEDULE, SCHEDULE, SCHEDULE, HOST, FORWARD, COPY, COPY]) == "steps:s3.fc2"
    assert spell([]) == "steps:"


RACE: list[PaperWork] = [(FORWARD, [0], []), (SCHEDULE, [], [0]), (COPY, [0], [1]), (FORWARD, [1], [])]


@pytest.mark.parametrize("schedule", ["latest", *[f"random:{n}" for n in range(8)], "pct:1", "pct:2"])
def test_the_printed_string_repeats_the_run(schedule: str) -> None:
    """Both strings that a device prints give the same order and so the same readings again."""
    first = paper_run(RACE, schedule)
    for text in (first.schedule_string(), first.choices()):
        again = paper_run(RACE, text)

        assert (again.choices(), saw(again)) == (first.choices(), saw(first))
        assert again.digest() == first.digest()


def test_random_runs_differ_and_repeat() -> None:
    """Seeds give several orders; the same seed always the same."""
    orders = [paper_run(RACE, f"random:{seed}").choices() for seed in range(20)]

    assert len(set(orders)) > 5
    assert orders == [paper_run(RACE, f"random:{seed}").choices() for seed in range(20)]


def test_latest_lets_writes_overtake_reads() -> None:
    """The forward was issued first and reads last; eager does it in order."""
    program: list[PaperWork] = [(FORWARD, [0], []), (SCHEDULE, [], [0])]

    assert saw(paper_run(program, "eager")) == ["1 saw [0]"]
    assert saw(paper_run(program, "latest")) == ["1 saw [2]"]


def test_a_list_that_no_longer_fits_is_followed_as_far_as_it_goes() -> None:
    """Letters that are not enabled are passed over and counted; after the end it is as in latest."""
    device = paper_run([(SCHEDULE, [], [0])], "steps:fc.s")

    assert device.schedule.passed_over == 2  # type: ignore[attr-defined]
    assert device.schedule.ended  # type: ignore[attr-defined]
    assert device.choices() == "steps:.s.3"


# --- PCT ------------------------------------------------------------------------------------------

# A reading needs `depth` ordering constraints: 1 < 3 < 2 for the first, and 2 < 4 for the second.
TORN: list[PaperWork] = [
    (SCHEDULE, [], [0]), (SCHEDULE, [], [0]), (FORWARD, [0], []), (FORWARD, [0], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "steps", "bug"),
    [(2, 16, ["3 saw [1]"]), (3, 16, ["3 saw [1]", "4 saw [2]"])],
)
def test_pct_keeps_its_promise(depth: int, steps: int, bug: list[str]) -> None:
    """The bug of that depth is found in at least the stated share of runs, with the run's steps
    within the bound; eager never finds it."""
    runs = [paper_run(TORN, f"pct:{seed}:d={depth}:k={steps}") for seed in range(800)]
    found = sum(set(bug) <= set(saw(run)) for run in runs)

    assert all(len(run._choices) <= steps for run in runs)
    assert found / len(runs) >= guarantee(depth, steps) > 0
    assert not set(bug) <= set(saw(paper_run(TORN, "eager")))


def test_pct_needs_its_changes() -> None:
    """Without change points (depth 1) no priority order alone tears a reading of depth 3 apart."""
    runs = [paper_run(TORN, f"pct:{seed}:d=1:k=16") for seed in range(300)]

    assert not any({"3 saw [1]", "4 saw [2]"} <= set(saw(run)) for run in runs)


def test_the_guarantee_is_the_published_one() -> None:
    """1 / (n · k^(d − 1)) with the host and three streams as n = 4 threads."""
    assert guarantee(1, 200) == 1 / 4
    assert guarantee(3, 10) == pytest.approx(1 / 400)
    assert sorted(Pct(5, 3, 200).priorities) == [3, 4, 5, 6]
    assert set(Pct(5, 3, 200)._changes.values()) == {1, 2}


# --- exploration ----------------------------------------------------------------------------------


def random_program(rng: random.Random) -> tuple[list[PaperWork], dict[int, list[int]]]:
    """Up to 7 works over 3 streams and 3 cells, with some waits."""
    works: list[PaperWork] = []
    waits: dict[int, list[int]] = {}
    for index in range(rng.randint(3, 7)):
        cells = rng.sample(range(3), rng.randint(0, 2))
        cut = rng.randint(0, len(cells))
        works.append((rng.choice([SCHEDULE, FORWARD, COPY]), cells[:cut], cells[cut:]))
        if rng.random() < 0.3:
            waits[index] = [rng.choice([SCHEDULE, FORWARD, COPY])]
    return works, waits


def orders_that_differ(works: list[PaperWork], strings: list[str]) -> int:
    """How many of these orders are not the same up to commuting neighbours: by the definition, those
    in which some two conflicting works stand in another order."""

    def conflicting(first: int, second: int) -> bool:
        (_, reads, writes), (_, others, changed) = works[first], works[second]
        return bool({*writes} & {*others, *changed} or {*reads} & {*changed})

    numbers = {s: [i for i, w in enumerate(works) if w[0] == s] for s in range(3)}
    found = set()
    for text in strings:
        left = {stream: iter(of_stream) for stream, of_stream in numbers.items()}
        device = paper_run_choices(text)
        order = [next(left[choice]) for choice in device if choice != HOST]
        found.add(
            frozenset(pair for pair in itertools.combinations(order, 2) if conflicting(*pair))
        )
    return len(found)


def paper_run_choices(text: str) -> list[int]:
    """The choices that a `steps:` string lists."""
    return list(parse_schedule(text)._letters)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(25))
def test_reduced_exploration_misses_nothing_and_repeats_nothing(seed: int) -> None:
    """On random programs: the same behaviours as with all orders, one order for each class of orders
    that differ, and every string repeats exactly what was said of it."""
    works, waits = random_program(random.Random(seed))

    def run(schedule: str) -> SimulatedDevice:
        return paper_run(works, schedule, waits)

    full, reduced = explore(run, 10_000, reduce=False), explore(run, 10_000)
    all_orders, some_orders = list(full), list(reduced)

    assert full.complete and reduced.complete
    assert set(reduced.behaviours) == set(full.behaviours)
    assert len(set(all_orders)) == len(all_orders) == full.explored
    assert orders_that_differ(works, all_orders) == len(some_orders) == reduced.explored
    assert set(some_orders) <= set(all_orders)
    for behaviour, text in reduced.behaviours.items():
        device = run(text)
        assert device.choices() == text
        assert (device.digest(), tuple(saw(device))) == behaviour


def test_orders_of_independent_work_are_explored_once() -> None:
    """3 + 3 works on cells of their own: 20 orders, all alike."""
    works: list[PaperWork] = [(SCHEDULE, [], [n]) for n in range(3)]
    works += [(FORWARD, [], [n]) for n in range(3, 6)]
    full = explore(lambda schedule: paper_run(works, schedule), 100, reduce=False)
    reduced = explore(lambda schedule: paper_run(works, schedule), 100)

    assert (len(list(full)), full.pruned) == (20, 0)
    assert (len(list(reduced)), len(reduced.behaviours)) == (1, 1)
    assert reduced.pruned > 0


def test_an_exploration_stops_at_its_bound_and_says_so() -> None:
    """It gives out as many orders as were asked for, and is not complete."""
    works: list[PaperWork] = [(stream, [], [0]) for stream in (0, 1, 2) * 3]
    exploration = explore(lambda schedule: paper_run(works, schedule), 10)

    assert len(list(exploration)) == 10
    assert not exploration.complete


def test_a_program_that_is_not_drained_is_refused() -> None:
    """Otherwise works that never ran would count as done."""

    def run(schedule: str) -> SimulatedDevice:
        device = SimulatedDevice(schedule)
        device.allocate(64, [8], [8])
        device.issue(Paper(1, SCHEDULE, [], [0]))
        return device

    with pytest.raises(MisuseError, match="drain"):
        explore(run, 10)


def small_program(device: Callable[[str], SimulatedDevice]) -> Callable[[str], SimulatedDevice]:
    """Forwards that overlap with fills and table writes, a release under one of them, reuse of its
    pages, and a compaction."""

    def run(schedule: str) -> SimulatedDevice:
        run = Run(P3, schedule, page_size=1, device=device)
        for operation in (
            ops.Admit(0), ops.Extend(0, 4), ops.Launch((0,)), ops.Admit(1), ops.Extend(1, 3),
            ops.Launch((0, 1)), ops.Release(0), ops.Admit(2), ops.Extend(2, 12), ops.Launch((1, 2)),
            ops.Complete(1), ops.Compact(urgent=True), ops.Launch((1,)),
        ):  # fmt: skip
            run.apply(operation)
        run.device.drain()
        run.device._violations += [v for v in run.violations if v.invariant == "content"]
        return run.device

    return run


def test_a_correct_arena_behaves_alike_in_every_order() -> None:
    """All orders that the edges allow end with the same bytes, and nothing is read wrongly. Since all
    conflicts are ordered, they even differ only by commuting neighbours."""
    run = small_program(SimulatedDevice)
    full, reduced = explore(run, 5_000, reduce=False), explore(run, 5_000)

    assert len(list(full)) > 20 and full.complete
    assert [behaviour.violations for behaviour in full.behaviours] == [()]
    assert len(list(reduced)) == 1 and reduced.complete


class NoBarriers(SimulatedDevice):
    """The schedule stream never waits for a forward."""

    def order_behind(self, ticket: int) -> None:
        pass


def test_exploration_finds_what_a_missing_barrier_allows() -> None:
    """Some order reads wrongly; reduced and full exploration agree on all behaviours; the schedule of
    the wrong one shows it again."""
    run = small_program(NoBarriers)
    reduced, full = explore(run, 20_000), explore(run, 20_000, reduce=False)
    assert len(list(reduced)) < len(list(full))
    assert reduced.complete and full.complete
    assert set(reduced.behaviours) == set(full.behaviours)
    wrong = {b: text for b, text in reduced.behaviours.items() if b.violations}
    assert wrong
    for behaviour, text in wrong.items():
        assert tuple(saw(run(text))) == behaviour.violations
