"""Every order in which a small program's work can be done, up to orders that cannot differ.

An arena never looks at its device, so a program issues the same work whatever the order in which the
work is done: the orders are the linear extensions of one partial order (streams, events, and what the
host waits for). Two works that touch disjoint cells and table rows commute; sleep sets (Godefroid 1996)
visit exactly one of all orders that differ only by commuting such neighbours. What a forward touches
follows from the rows it has read, so orders in which it reads stale rows are told apart too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from bandscope.allocator.checks import Violation
from bandscope.allocator.errors import MisuseError
from bandscope.fuzz.schedules import spell
from bandscope.fuzz.simulated import SimulatedDevice
from bandscope.fuzz.simulated_work import HOST, STREAMS, Memory, Touched, Work

# A run of the program on a new device with this schedule, drained at its end.
Runner = Callable[[str], SimulatedDevice]


class Behaviour(NamedTuple):
    """What an order leads to: the final bytes and tables, and what was read wrongly on the way."""

    digest: str
    violations: tuple[str, ...]


class _Footprint(NamedTuple):
    # Cells, and table rows as numbers past the cells.
    reads: frozenset[int]
    writes: frozenset[int]

    def conflicts(self, other: _Footprint) -> bool:
        return not (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )


class _State(NamedTuple):
    memory: Memory
    executed: tuple[int, int, int]
    violations: tuple[str, ...]


class Exploration:
    """Iterate to get a schedule string per order; afterwards read what was met.

    `explored`: orders given out. `pruned`: branches left because all orders through them differ from
    one already given out only by commuting. `complete`: False when `bound` ended it. `behaviours`: each
    distinct one, with the first schedule that shows it. `works`: how many works the program issues.
    `reduce=False` visits every linear extension.
    """

    def __init__(self, runner: Runner, bound: int, *, reduce: bool = True) -> None:
        device = runner("steps:")
        if not device.is_drained:
            raise MisuseError(
                "a program that leaves work undone was to be explored; call drain() at its end"
            )
        self.bound = bound
        self.explored = self.pruned = 0
        self.complete = True
        self.behaviours: dict[Behaviour, str] = {}
        self.works = len(device.works)
        self._reduce = reduce
        self._turns = device.turns
        self._start = _State(device.blank_memory(), (0, 0, 0), ())
        self._streams: list[list[Work]] = [[] for _ in STREAMS]
        self._needs = _needs(device)
        for work in device.works:
            self._streams[work.stream].append(work)
        cells = self._start.memory.cells.size
        self._cells = self._start.memory.by_page(np.arange(cells))
        sizes = [mirror.size for mirror in self._start.memory.mirrors]
        self._first_row = (cells + np.cumsum([0, *sizes])).tolist()

    def __iter__(self) -> Iterator[str]:
        yield from self._visit(self._start, [], {})

    def _visit(
        self, state: _State, order: list[int], asleep: dict[int, _Footprint]
    ) -> Iterator[str]:
        """All orders that begin with `order` (streams), which leads to `state`, but for those that
        begin with a next work of the streams `asleep`."""
        enabled = [stream for stream in range(3) if self._is_ready(stream, state.executed)]
        if not enabled:
            yield self._found(state, order)
            return
        footprints = {stream: self._footprint(stream, state) for stream in enabled}
        asleep = dict(asleep)
        if all(stream in asleep for stream in enabled):
            self.pruned += 1
        for stream in enabled:
            if stream in asleep:
                continue
            if self.explored >= self.bound:
                self.complete = False
                return
            stays = {
                other: footprint
                for other, footprint in asleep.items()
                if not footprint.conflicts(footprints[stream])
            }
            yield from self._visit(self._after(stream, state), [*order, stream], stays)
            if self._reduce:
                asleep[stream] = footprints[stream]

    def _found(self, state: _State, order: list[int]) -> str:
        text = self._spell(order)
        self.explored += 1
        behaviour = Behaviour(state.memory.digest(), tuple(sorted(state.violations)))
        self.behaviours.setdefault(behaviour, text)
        return text

    def _is_ready(self, stream: int, executed: tuple[int, ...]) -> bool:
        done = executed[stream]
        if done == len(self._streams[stream]):
            return False
        needs = self._needs[stream][done]
        return needs[0] <= executed[0] and needs[1] <= executed[1] and needs[2] <= executed[2]

    def _after(self, stream: int, state: _State) -> _State:
        memory = state.memory.copy()
        told: list[Violation] = []
        self._streams[stream][state.executed[stream]].execute(memory, told.append)
        executed = list(state.executed)
        executed[stream] += 1
        first, second, third = executed
        messages = tuple(violation.message for violation in told)
        return _State(memory, (first, second, third), state.violations + messages)

    def _footprint(self, stream: int, state: _State) -> _Footprint:
        work = self._streams[stream][state.executed[stream]]
        reads, writes = work.footprint(state.memory)
        return _Footprint(
            self._numbers(reads, work.row_reads), self._numbers(writes, work.row_writes)
        )

    def _numbers(self, touched: Touched, rows: Touched) -> frozenset[int]:
        numbers: list[int] = []
        for band, pages in touched:
            numbers += self._cells[band][pages].ravel().tolist()
        for band, virtual in rows:
            numbers += (virtual + self._first_row[band]).tolist()
        return frozenset(numbers)

    def _spell(self, order: list[int]) -> str:
        """The schedule that does it: works are done as late as that order lets them."""
        choices: list[int] = []
        executed = [0, 0, 0]
        left = iter(order)
        for event in self._turns:
            while event is not None and any(n > done for n, done in zip(event, executed, strict=True)):
                stream = next(left)
                choices.append(stream)
                executed[stream] += 1
            choices.append(HOST)
        return spell(choices)


def _needs(device: SimulatedDevice) -> list[list[tuple[int, ...]]]:
    """Per stream and work: how many works of each stream must be done before it."""
    needs: list[list[tuple[int, ...]]] = [[] for _ in STREAMS]
    seen = [0, 0, 0]
    issued = iter(device.works)
    for event in device.turns:
        if event is not None:
            seen = [max(pair) for pair in zip(seen, event, strict=True)]
            continue
        work = next(issued)
        before = [max(pair) for pair in zip(seen, work.after, strict=True)]
        before[work.stream] = work.number - 1
        needs[work.stream].append(tuple(before))
    return needs


def explore(runner: Runner, bound: int, *, reduce: bool = True) -> Exploration:
    """The orders of the program that `runner` runs, at most `bound` of them (see `Exploration`)."""
    return Exploration(runner, bound, reduce=reduce)
