"""When the reading thread looks for news: a clock and a queue that only count."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from bandscope.tui.top import conductor as module
from bandscope.tui.top.conductor import ThreadConductor


class Source:
    """Takes `work` seconds for a look."""

    def __init__(self, clock: list[float], work: float, resting: bool, busy: bool) -> None:
        self.clock, self.work, self.resting, self.busy = clock, work, resting, busy
        self.looked: list[float] = []
        self.asked: list[tuple[str, Any]] = []

    def ask(self, what: str, value: Any = None) -> None:
        """Remember it."""
        self.asked.append((what, value))

    def tick(self) -> None:
        """A look."""
        self.looked.append(self.clock[0])
        self.clock[0] += self.work


def looks(
    monkeypatch: pytest.MonkeyPatch, count: int, *, refresh: float, work: float,
    resting: bool = False, busy: bool = False, question_after: float | None = None,
) -> list[float]:
    """When so many looks began."""
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    source = Source(clock, work, resting, busy)
    conductor = ThreadConductor(lambda: source, refresh)  # type: ignore[arg-type,return-value]

    class Questions:
        """Nobody asks, but the clock goes on; the thread is stopped after the last look."""

        def get(self, timeout: float) -> tuple[str, Any] | None:
            """Wait."""
            if len(source.looked) == count:
                return None
            if question_after is not None and len(source.looked) == 1:
                clock[0] += question_after
                return "pause", None
            clock[0] += timeout
            raise queue.Empty

        def get_nowait(self) -> None:
            """There is no second one."""
            raise queue.Empty

    conductor._questions = Questions()  # type: ignore[assignment]
    conductor.run(lambda told: None)
    return [round(at, 3) for at in source.looked]


def test_the_work_is_part_of_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, 4, refresh=0.1, work=0.03) == [0.0, 0.1, 0.2, 0.3]


def test_work_that_takes_longer_leaves_room_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was missed is not made up for."""
    assert looks(monkeypatch, 3, refresh=0.1, work=0.5) == [0.0, 0.505, 1.01]


def test_counting_only_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, 3, refresh=0.1, work=0.0, resting=True) == [0.0, 1.0, 2.0]
    assert looks(monkeypatch, 3, refresh=2.0, work=0.0, resting=True) == [0.0, 2.0, 4.0]


def test_unfinished_work_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, 3, refresh=10.0, work=0.01, busy=True) == [0.0, 0.03, 0.06]


def test_a_question_is_answered_at_once_and_moves_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = looks(monkeypatch, 4, refresh=0.1, work=0.0, question_after=0.03)
    assert begun == [0.0, 0.03, 0.1, 0.2]
