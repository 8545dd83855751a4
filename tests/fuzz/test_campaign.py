"""Campaigns: the same everywhere for one seed, everything found is reported, nothing else is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.handlers import HANDLERS
from bandscope.fuzz import campaign
from bandscope.fuzz.campaign import Report, Settings, choose_case, run_campaign, run_case
from bandscope.fuzz.execution import Execution, execute, uncollected
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.finds import file_name, read_corpus, reproduce, write_find
from bandscope.fuzz.fleet import Processes
from bandscope.fuzz.goals import GOALS
from bandscope.fuzz.program import Layout, Program, Step

LAYOUT = Layout((("mamba", 2048), ("full", 1024)), 4, 65536)
FAULT = "second-window-not-freed"


def told(report: Report) -> tuple[object, ...]:
    """All of a report that must be equal wherever its campaign ran."""
    return (
        report.digest, report.cases, report.steps, report.corpus, list(report.coverage.moments.items()),
        list(report.coverage.pairs.items()), {name: f.program for name, f in report.found.items()},
    )  # fmt: skip


def test_one_seed_is_one_campaign_with_one_worker_and_with_two() -> None:
    """Cases, steps, digests, coverage and corpus, over more rounds than one."""
    settings = Settings(5, "mixed", cases=campaign.ROUND + 8)
    here = run_campaign(settings)
    with Processes(2) as two:
        there = run_campaign(settings, fleet=two)
    assert told(here) == told(there)
    assert not here.found and here.ending == "all cases were run"
    assert any(choose_case(settings, campaign.ROUND + n, here.corpus).parents for n in range(8))
    assert run_campaign(Settings(6, "mixed", cases=8)).digest != here.digest


def test_one_seed_is_one_campaign_over_prefix_caches_too() -> None:
    """Cases of arenas with a cache: the same with one worker and with two."""
    settings = Settings(5, "caching", cases=24)
    here = run_campaign(settings)
    with Processes(2) as two:
        there = run_campaign(settings, fleet=two)
    assert told(here) == told(there) and not here.found
    assert all(program.layout.config.prefix_cache for program in here.corpus)


CHILD = """
from bandscope.fuzz.campaign import Settings, run_campaign
for profile in ("hostile", "caching"):
    report = run_campaign(Settings(5, profile, cases=10))
    print(report.digest, report.steps, len(report.coverage.moments))
"""


def test_fresh_processes_with_any_hash_seed() -> None:
    """The digest does not hang on the order of sets, on ids or on the time."""
    lines = set()
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ended = subprocess.run(
            [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True
        )
        lines.add(ended.stdout)
    assert len(lines) == 1 and len(lines.pop().split()) == 6


def test_a_planted_fault_is_found_shrunk_kept_and_reproduced(tmp_path: Path) -> None:
    """Through files: the program breaks the arena with the fault, and does not without it."""
    with FAULTS[FAULT].plant():
        report = run_campaign(Settings(0, cases=400, finds_max=1))
        (found,) = report.found.values()
        assert len(found.program.steps) <= 12 < found.original_steps
        path = write_find(tmp_path, found)
        assert path.name == file_name(found.find)
        assert write_find(tmp_path, found) == path  # once
        program, find = reproduce(path)
        assert find is not None and find.invariant == found.find.invariant
        assert program == found.program == read_corpus(tmp_path)[0]
    assert reproduce(path)[1] is None


def test_the_same_find_is_reported_once(tmp_path: Path) -> None:
    """However often it is met; the rest is counted."""
    heard: list[str] = []
    with FAULTS[FAULT].plant():
        report = run_campaign(
            Settings(0, cases=40, shrink=False), found=lambda found: heard.append(found.find.signature)
        )
    assert heard == list(report.found) and len(set(heard)) == len(heard)
    assert sum(found.times for found in report.found.values()) > len(report.found)


def test_an_exception_out_of_the_arena_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the place in the allocator where it came from."""

    def broken(books: object, op: object) -> None:
        raise IndexError("off by one")

    monkeypatch.setitem(HANDLERS, ops.Compact, broken)
    verdict = execute(Program(LAYOUT, (Step(ops.Admit(1)), Step(ops.Compact()))))
    assert verdict.find is not None
    assert (verdict.find.invariant, verdict.find.step) == ("crash", 1)
    assert "IndexError" in verdict.find.message and "off by one" in verdict.find.message


def test_a_case_that_does_not_end_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless loop in the allocator is stopped by the clock and reported as a hang."""

    def endless(books: object, op: object) -> None:
        while True:
            pass

    monkeypatch.setattr(campaign, "HANG_SECONDS", 0.2)
    monkeypatch.setitem(HANDLERS, ops.Admit, endless)
    result = run_case(Settings(0, "serving"), choose_case(Settings(0, "serving"), 0, ()))
    assert result.find is not None and result.find.invariant == "hang"


def test_interrupting_keeps_what_was_done() -> None:
    """Ctrl-C in the middle of a case: a report of the cases before it."""

    def interrupt(report: Report) -> None:
        if report.cases == 3:
            raise KeyboardInterrupt

    report = run_campaign(Settings(0, cases=50), progress=interrupt)
    assert (report.ending, report.cases) == ("interrupted", 3)
    assert report.to_json()["operations"] == report.steps > 0


def test_every_goal_is_reached_and_at_least_forty_there_are() -> None:
    """A campaign of the smoke test's size looks everywhere it promises to."""
    report = run_campaign(Settings(1, cases=70))
    assert len(GOALS) >= 90
    assert not report.found
    # The rarest of a prefix cache are met where every arena has one.
    cached = run_campaign(Settings(1, "caching", cases=60))
    assert not cached.found
    assert set(report.goals_missed()) & set(cached.goals_missed()) == set()
    assert len(report.goals_missed()) <= 3


@pytest.mark.parametrize("device", ["none", "cpu"])
def test_other_devices_run_the_same_programs(device: str) -> None:
    """Books alone, and real bytes in host memory: the books end equal."""
    case = choose_case(Settings(3, "hostile"), 2, ())
    here = run_case(Settings(3, "hostile"), case)
    there = run_case(Settings(3, "hostile", device), case)
    assert here.find is None and there.find is None
    assert here.digest.split("-")[0] == there.digest.split("-")[0]
    assert here.program == there.program


def test_bytes_that_went_astray_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device with bytes: moves that copy nothing are content that is not there."""
    from bandscope.allocator.device.cpu import CpuDevice

    steps = [Step(ops.Admit(n)) for n in range(4)] + [Step(ops.Extend(n, 8)) for n in range(4)]
    steps += [Step(ops.Launch((0, 1, 2, 3)), 1), Step(ops.Complete(1)), Step(ops.Release(3))]
    steps += [Step(ops.Release(0)), Step(ops.Compact(urgent=True)), Step(ops.Launch((1, 2)), 2)]
    program = Program(LAYOUT, tuple(steps))
    assert execute(program, device="cpu").find is None
    monkeypatch.setattr(CpuDevice, "move", lambda *fields: None)
    find = execute(program, device="cpu").find
    assert find is not None and find.invariant == "content"


def test_the_campaign_looks_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three checkers is asked at every step: without any of them a fault is missed."""
    calls = {"settle": 0, "step": 0, "take": 0}
    execution = Execution(LAYOUT)
    settle, step, take = (
        execution.model.settle, execution.checker.step, execution.device.take_violations,
    )  # fmt: skip

    def counted(name: str, call: object) -> object:
        def count(*fields: object) -> object:
            calls[name] += 1
            return call(*fields)  # type: ignore[operator]

        return count

    monkeypatch.setattr(execution.model, "settle", counted("settle", settle))
    monkeypatch.setattr(execution.checker, "step", counted("step", step))
    monkeypatch.setattr(execution.device, "take_violations", counted("take", take))
    for operation in (ops.Admit(1), ops.Extend(1, 5), ops.Launch((1,)), ops.Release(9)):
        execution.step(Step(operation, 1))
    assert calls == {"settle": 4, "step": 4, "take": 4}


@pytest.mark.parametrize("collecting", [True, False])
def test_cases_leave_the_collector_as_they_found_it(collecting: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with pytest.raises(KeyError), uncollected():
            with uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()
