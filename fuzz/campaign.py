"""A campaign: case after case, fresh ones and variations of those that reached something new.

A case is a function of the campaign's seed, its index and the programs it varies, which are chosen
from the corpus as it was at the start of the round. So the same seed gives the same cases and digests in
any process and with any number of workers.
"""

from __future__ import annotations

import hashlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bandscope.fuzz.coverage import Coverage
from bandscope.fuzz.execution import (
    FULL_EVERY,
    Execution,
    Find,
    execute_twice,
    run_steps,
    uncollected,
)
from bandscope.fuzz.generate import Generator, mutate
from bandscope.fuzz.goals import GOALS, missed
from bandscope.fuzz.program import Program, Step
from bandscope.fuzz.shrink import Shrunk, shrink

ROUND = 32
VARIED_SHARE = 0.4
# Of so many cases one is run again, twice, from its program alone.
REPEATED_EVERY = 16
CORPUS_MAX = 512
HANG_SECONDS = 60
STEPS = (16, 64, 256, 1024)


@dataclass(frozen=True)
class Settings:
    """What a campaign runs. `cases` and `seconds` end it, whichever comes first; `finds_max` distinct
    finds do too."""

    seed: int = 0
    profile: str = "mixed"
    device: str = "sim"
    cases: int | None = None
    seconds: float | None = None
    finds_max: int = 20
    shrink: bool = True
    full_every: int = FULL_EVERY


@dataclass
class CaseResult:
    """What came of one case. `steps`: how many were applied; `nanoseconds` they took."""

    index: int
    program: Program
    find: Find | None
    steps: int
    digest: str
    nanoseconds: int
    coverage: Coverage


@dataclass
class Found:
    """A distinct find: the shrunk program, the case it came from, and how often it was met. `seconds`:
    when it was seen, from the start; `shrink_seconds`: what shrinking it took."""

    find: Find
    program: Program
    case: int
    original_steps: int
    executions: int
    times: int = 1
    seconds: float = 0.0
    shrink_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "signature": self.find.signature,
            **self.find.to_json(),
            "case": self.case,
            "times": self.times,
            "steps": len(self.program.steps),
            "original_steps": self.original_steps,
            "executions": self.executions,
            "seconds": round(self.seconds, 3),
            "shrink_seconds": round(self.shrink_seconds, 3),
            "program": self.program.to_json(),
        }


@dataclass
class Report:
    """What a campaign did. `digest` covers every case in order; `busy_seconds` is the time that steps
    took, over all workers."""

    settings: Settings
    cases: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    seconds: float = 0.0
    corpus: list[Program] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    found: dict[str, Found] = field(default_factory=dict)  # by signature
    signatures: dict[str, str] = field(default_factory=dict)  # as met: as shrunk
    digest: str = ""
    ending: str = ""

    @property
    def rate(self) -> float:
        """Operations a second and core, every check included."""
        return self.steps / self.busy_seconds if self.busy_seconds else 0.0

    def goals_missed(self) -> list[str]:
        """The goals that no case reached."""
        return missed(self.coverage.moments)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "seed": self.settings.seed,
            "profile": self.settings.profile,
            "device": self.settings.device,
            "cases": self.cases,
            "operations": self.steps,
            "operations_per_second_and_core": round(self.rate),
            "seconds": round(self.seconds, 3),
            "moments": len(self.coverage.moments),
            "pairs": len(self.coverage.pairs),
            "corpus": len(self.corpus),
            "goals": len(GOALS),
            "goals_missed": self.goals_missed(),
            "finds": [found.to_json() for found in self.found.values()],
            "digest": self.digest,
            "ending": self.ending,
        }


class Hang(BaseException):
    """A case did not end. No `Exception`, or the execution would take it for one of the arena's."""


@dataclass(frozen=True)
class Case:
    """One case of a campaign: its index, and the programs that it varies (none: a fresh one)."""

    index: int
    parents: tuple[Program, ...] = ()


def choose_case(settings: Settings, index: int, corpus: Sequence[Program]) -> Case:
    """Case `index`: a fresh one, or a variation of two programs of the corpus."""
    rng = random.Random(f"{settings.seed}/{index}/parents")
    if not corpus or rng.random() >= VARIED_SHARE:
        return Case(index)
    return Case(index, tuple(rng.choice(corpus) for _ in range(2)))


def run_case(settings: Settings, case: Case) -> CaseResult:
    """Run a case of a campaign."""
    index = case.index
    rng = random.Random(f"{settings.seed}/{index}")
    coverage = Coverage()
    started = time.perf_counter_ns()
    if case.parents:
        program = mutate(case.parents, rng.getrandbits(48))
        execution = Execution(
            program.layout, program.schedule, device=settings.device, coverage=coverage,
            full_every=settings.full_every,
        )  # fmt: skip
        with _watched(execution):
            run_steps(execution, program.steps)
    else:
        generator = Generator(rng.getrandbits(48), settings.profile)
        count = int(rng.expovariate(1.0) * rng.choice(STEPS)) + 8
        execution = Execution(
            generator.layout, generator.schedule, device=settings.device, coverage=coverage,
            full_every=settings.full_every,
        )  # fmt: skip
        steps: list[Step] = []
        with _watched(execution), uncollected():
            for _ in range(count):
                step = generator.next()
                steps.append(step)
                outcome = execution.step(step)
                if execution.find is not None:
                    break
                generator.note(step, outcome)
            execution.finish()
        program = Program(
            generator.layout, tuple(steps), generator.schedule, settings.seed, settings.profile
        )
    if execution.find is None and index % REPEATED_EVERY == 0 and settings.device == "sim":
        execution.find = execute_twice(program)
    digest = "" if execution.find is not None else execution.digest()
    nanoseconds = time.perf_counter_ns() - started
    return CaseResult(index, program, execution.find, execution.steps, digest, nanoseconds, coverage)


@contextmanager
def _watched(execution: Execution) -> Iterator[None]:
    """A case that takes longer than `HANG_SECONDS` is a find. Only where signals can be had."""

    def ring(number: int, frame: Any) -> None:
        raise Hang(f"the case had not ended after {HANG_SECONDS} seconds")

    try:
        before = signal.signal(signal.SIGALRM, ring)
    except (ValueError, AttributeError):  # not the main thread, or no such signal
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    except Hang as hang:
        execution.find = Find("hang", "end", execution.steps, str(hang))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Runs cases of one round; results come in the order of their index.
Fleet = Callable[[Settings, Sequence[Case]], Iterator[CaseResult]]


def alone(settings: Settings, cases: Sequence[Case]) -> Iterator[CaseResult]:
    """The fleet of this process."""
    for case in cases:
        yield run_case(settings, case)


def run_campaign(
    settings: Settings,
    *,
    fleet: Fleet = alone,
    corpus: Sequence[Program] = (),
    progress: Callable[[Report], None] | None = None,
    found: Callable[[Found], None] | None = None,
) -> Report:
    """Run rounds of cases until cases, seconds or finds are used up. `corpus`: programs to vary from
    the start; `progress` is told after every case, `found` of every distinct find, shrunk."""
    report = Report(settings, corpus=list(corpus))
    hasher = hashlib.blake2b(digest_size=16)
    started = time.monotonic()
    try:
        while not report.ending:
            first = report.cases
            count = ROUND if settings.cases is None else min(ROUND, settings.cases - first)
            if not count:
                report.ending = "all cases were run"
                break
            indices = range(first, first + count)
            cases = [choose_case(settings, index, report.corpus) for index in indices]
            for result in fleet(settings, cases):
                _take_in(report, result, hasher, started, found)
                report.seconds = time.monotonic() - started
                if progress is not None:
                    progress(report)
                if len(report.found) >= settings.finds_max:
                    report.ending = f"{len(report.found)} distinct finds"
                elif settings.seconds is not None and report.seconds >= settings.seconds:
                    report.ending = "the time was used up"
                if report.ending:
                    break
    except KeyboardInterrupt:
        report.ending = "interrupted"
    report.digest = hasher.hexdigest()
    report.seconds = time.monotonic() - started
    return report


def _take_in(
    report: Report,
    result: CaseResult,
    hasher: Any,
    started: float,
    found: Callable[[Found], None] | None,
) -> None:
    report.cases += 1
    report.steps += result.steps
    report.busy_seconds += result.nanoseconds / 1e9
    hasher.update(f"{result.index} {result.digest} {result.find}\n".encode())
    if result.find is not None:
        _keep_find(report, result, result.find, started, found)
    fresh = report.coverage.merge(result.coverage)
    if fresh and result.find is None:
        report.corpus.append(result.program)
        if len(report.corpus) > CORPUS_MAX:
            # The oldest half thins out, so that both old and new ground stays in reach.
            report.corpus = report.corpus[: CORPUS_MAX // 2 : 2] + report.corpus[CORPUS_MAX // 2 :]


def _keep_find(
    report: Report,
    result: CaseResult,
    find: Find,
    started: float,
    found: Callable[[Found], None] | None,
) -> None:
    known = report.signatures.get(find.signature)
    if known is not None:  # met before, as it was before it was shrunk
        report.found[known].times += 1
        return
    small = Shrunk(result.program, find, 0)
    before = time.monotonic()
    if report.settings.shrink and find.invariant != "hang":
        small = shrink(result.program, find)
    signature = small.find.signature
    report.signatures[find.signature] = signature
    if signature in report.found:
        report.found[signature].times += 1
        return
    report.found[signature] = Found(
        small.find, small.program, result.index, result.steps, small.executions,
        seconds=before - started, shrink_seconds=time.monotonic() - before,
    )  # fmt: skip
    if found is not None:
        found(report.found[signature])
