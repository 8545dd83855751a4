"""The arenas of one test: made, recorded, judged, and their traces kept where the test failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.checks import Violation
from bandscope.allocator.device import open_device
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import BandscopeError
from bandscope.allocator.events import Observer, Observers
from bandscope.allocator.families import declare_model
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.allocator.sizing import parse_bytes
from bandscope.fuzz.pytest_trace import TestTrace
from bandscope.fuzz.replay_engine import ReplayEngine
from bandscope.inspect.checks.invariants import check_trace
from bandscope.inspect.checks.leaks import find_leaks
from bandscope.inspect.checks.races import find_races
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.spelling import spell_runs

STACKS = 6  # frames of the test's Python stack with every operation
_CHECKED_PAGES_MAX = 4_096  # arenas of so many pages are checked after every operation
_SHOWN = 10

PlanLike = StoragePlan | str | Sequence[tuple[str, int]]


class InstrumentedArena(Arena):
    """An arena that is recorded; on the simulated device every forward's accesses are checked too."""

    def __init__(
        self,
        plan: StoragePlan,
        total_bytes: int,
        folder: Path,
        *,
        device: str | Device,
        schedule: str,
        config: ArenaConfig | None,
        observer: Observer | None,
    ) -> None:
        self.violations: list[Violation] = []
        self._engine: ReplayEngine | None = None
        self._is_small = False
        if device == "sim":
            self._engine = ReplayEngine("sim", schedule)
            device = self._engine.arena_device
        elif isinstance(device, str):
            device = open_device(device)
        super().__init__(plan, total_bytes, device=device, config=config, observer=observer)
        if self._engine is not None:
            self._engine.begin(self)
        self._is_small = sum(band.capacity for band in self.books.bands) <= _CHECKED_PAGES_MAX
        self.recorder = Recorder(folder, self, stacks=STACKS)
        self.trace = TestTrace(self.recorder)

    def apply(self, operation: Operation) -> Outcome:
        """Try an operation, and look whether all is right."""
        engine = self._engine
        if engine is not None:
            engine.before(operation)
        outcome = super().apply(operation)
        if self.violations:
            return outcome  # what follows the first says nothing
        if engine is not None:
            self.violations += engine.after(operation, outcome)
        if self._is_small:
            self.violations += self.check()
        return outcome

    def finish(self) -> None:
        """Run the simulated device's queues empty, and look a last time."""
        if not self.violations and self._engine is not None:
            self.violations += self._engine.finish()


@dataclass
class Watched:
    """An arena of the test. `whole`: its trace holds everything that was asked of it."""

    arena: Arena
    recorder: Recorder
    whole: bool = True

    def still_records(self) -> bool:
        """Whether nobody has taken the recorder off the arena."""
        observer = self.arena.books.observer
        if isinstance(observer, Observers):
            return self.recorder in observer.observers
        return observer is self.recorder


@dataclass
class TestSession:
    """Everything of one test. `folder`: where traces are recorded; `artifacts`: where those of a failed
    test go (None: they stay where they are)."""

    __test__ = False  # pytest, this is no test

    folder: Path
    artifacts: Path | None
    leak_allowed: bool = False
    judged_at_teardown: bool = False
    watched: list[Watched] = field(default_factory=list)
    judged: bool = False

    def __post_init__(self) -> None:
        self.factory = ArenaFactory(self)

    def next_path(self) -> Path:
        """Where the next arena's trace goes."""
        return self.folder / f"arena-{len(self.watched) + 1}"

    def watch(self, arena: Arena) -> None:
        """Record an arena that the test built itself."""
        self.watched.append(Watched(arena, Recorder(self.next_path(), arena, stacks=STACKS)))

    def judge(self, *, leaks: bool = True) -> str:
        """End the recordings and check everything; the report, empty when all is right."""
        if self.judged:
            return ""
        self.judged = True
        parts = []
        for number, watched in enumerate(self.watched, 1):
            problems = self._problems(watched, leaks)
            if problems:
                parts.append(self._report(number, watched, problems))
        if not parts:
            return ""
        report = "\n\n".join(parts)
        self._keep(report)
        return report

    def judge_failed(self) -> str:
        """The same for a test that failed on its own: where its traces are is told in any case, and
        what it holds is no leak."""
        report = self.judge(leaks=False)
        if not report:
            report = "every check of the arenas passed; the traces:"
            report += "".join(f"\n  {self._path(watched)}" for watched in self.watched)
            self._keep(report)
        return report

    def close(self) -> None:
        """Let go of the arenas."""
        for watched in self.watched:
            watched.recorder.close()

    def _problems(self, watched: Watched, leaks: bool) -> list[str]:
        arena, recorder = watched.arena, watched.recorder
        whole = watched.whole and watched.still_records()
        if isinstance(arena, InstrumentedArena):
            arena.finish()
            found = list(arena.violations)
        else:
            found = []
        found += [each for each in arena.check() if each not in found]
        for each in found[:_SHOWN]:
            recorder.violation(each.invariant, each.message)
        recorder.close()
        problems = [str(each) for each in found[:_SHOWN]]
        if not whole or recorder.error is not None:
            return problems
        try:
            trace = Trace(recorder.directory)
            problems += _of_trace(trace, leaks and self._judges_leaks(arena))
        except BandscopeError as error:
            problems.append(f"the trace cannot be checked: {error}")
        return problems

    def _judges_leaks(self, arena: Arena) -> bool:
        return isinstance(arena, InstrumentedArena) and not self.leak_allowed

    def _report(self, number: int, watched: Watched, problems: list[str]) -> str:
        path = self._path(watched)
        shown = problems[:_SHOWN]
        lines = [f"bandscope: arena {number} is not right ({len(problems)} found)"]
        lines += [f"  {line}" for problem in shown for line in problem.splitlines()]
        if len(problems) > len(shown):
            lines.append(f"  … and {len(problems) - len(shown):,} more")
        lines += [
            f"  trace: {path}",
            f"  look at it with `bandscope inspect events {path}`, run it again with `bandscope replay "
            f"{path} --device sim`",
        ]
        return "\n".join(lines)

    def _path(self, watched: Watched) -> Path:
        name = watched.recorder.directory.name
        return (self.folder if self.artifacts is None else self.artifacts) / name

    def _keep(self, report: str) -> None:
        """Copy the traces of a failed test to where they are kept."""
        if self.artifacts is None:
            return
        self.close()
        shutil.rmtree(self.artifacts, ignore_errors=True)
        self.artifacts.mkdir(parents=True)
        for watched in self.watched:
            shutil.copytree(watched.recorder.directory, self._path(watched))
        (self.artifacts / "report.txt").write_text(f"{report}\n", encoding="utf-8")


def _of_trace(trace: Trace, judge_leaks: bool) -> list[str]:
    """What the trace alone tells: invariants, races, and what is held at its end."""
    leaks = find_leaks(trace)
    # Held at the end is judged below, with who leased it.
    problems = [
        str(finding)
        for finding in check_trace(trace)
        if not (finding.name == "ownership" and "(leak)" in finding.detail)
    ]
    for race in find_races(trace).races:
        stacks = "".join(
            f"\n    {which}: {line}"
            for which, access in (("first", race.first), ("second", race.second))
            for line in access.stack.splitlines()[:3]
        )
        problems.append(f"race: {race}{stacks}")
    if judge_leaks:
        for one in (*leaks.holdings, *leaks.unended):
            if one.lease and one not in leaks.unended:
                continue
            who = f"lease {one.lease} of {one.owner!r}" if one.lease else f"request {one.owner}"
            problems.append(
                f"leak: {who} still holds {one.virtual.size} pages of {one.band} "
                f"({spell_runs(one.virtual)}), since {one.operation} at event {one.sequence:,}; release "
                "it, or mark the test with bandscope_allow_leak"
            )
    return problems


class ArenaFactory:
    """What the fixture `bandscope_arena` gives: call it to make an arena.

    `bandscope_arena(plan, total_bytes)` makes an `InstrumentedArena`: an `Arena` whose `trace` is a
    `TestTrace`. `plan`: a `StoragePlan`, the name of a model, or bands as `(name, page bytes)`;
    `total_bytes`: a number, or text like `64MiB`; `page_size`: tokens per page, for the latter two.
    `device`: `sim` (order and content of all accesses are checked, under `schedule`), `none`, `cpu` or
    `cuda`, or a device of your own. `config` and `observer`: as for `Arena`.
    """

    def __init__(self, session: TestSession) -> None:
        self._session = session

    def __call__(
        self,
        plan: PlanLike = "gpt-oss-20b",
        total_bytes: int | str = "64MiB",
        *,
        page_size: int = 16,
        device: str | Device = "sim",
        schedule: str = "eager",
        config: ArenaConfig | None = None,
        observer: Observer | None = None,
    ) -> InstrumentedArena:
        if isinstance(plan, str):
            plan = plan_storage(declare_model(plan), page_size=page_size)
        elif not isinstance(plan, StoragePlan):
            plan = plan_from_sizes(plan, page_size=page_size)
        size = parse_bytes(total_bytes) if isinstance(total_bytes, str) else total_bytes
        session = self._session
        arena = InstrumentedArena(
            plan,
            size,
            session.next_path(),
            device=device,
            schedule=schedule,
            config=config,
            observer=observer,
        )
        session.watched.append(Watched(arena, arena.recorder))
        return arena


class WatchEveryArena:
    """With `--bandscope`: every arena that is built while a test runs is recorded and checked."""

    def __init__(self) -> None:
        self.session: Callable[[], TestSession] | None = None
        self._plain: dict[str, Any] = {}

    def begin(self) -> None:
        """From now on."""
        self._plain = {name: getattr(Arena, name) for name in ("__init__", "restore")}
        made, restored = self._plain["__init__"], self._plain["restore"]

        def make(arena: Arena, *arguments: Any, **options: Any) -> None:
            made(arena, *arguments, **options)
            if self.session is not None and type(arena) is Arena:
                self.session().watch(arena)

        def restore(arena: Arena, snapshot: dict[str, Any]) -> None:
            for watched in self._watched_of(arena):
                watched.whole = False  # its trace does not say what came from outside
            restored(arena, snapshot)

        setattr(Arena, "__init__", make)  # noqa: B010
        setattr(Arena, "restore", restore)  # noqa: B010

    def _watched_of(self, arena: Arena) -> list[Watched]:
        if self.session is None:
            return []
        return [each for each in self.session().watched if each.arena is arena]

    def end(self) -> None:
        """No more."""
        for name, value in self._plain.items():
            setattr(Arena, name, value)
