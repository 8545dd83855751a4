"""When the list of events is made anew, and when the one of the picture before stands."""

from __future__ import annotations

from pathlib import Path

from bandscope.allocator import operations as ops
from bandscope.tui.top.pace import Pace
from bandscope.tui.top.snapshot import Lists, Row, View
from tests.tui.screens import resting_source, steady_run

FULL = Lists("events", tuple(Row(number, 0, "Note", "") for number in range(4)))


def test_a_list_stands_for_three_pictures_at_most() -> None:
    pace = Pace()
    made = []
    for position in range(0, 1000, 100):
        kept = pace.kept(position, 4)
        made.append(kept is None)
        if kept is None:
            pace.keep(FULL, position)
        assert pace.stale is not made[-1]
    assert made == [True, False, False] * 3 + [True]


def test_what_can_be_read_is_never_old() -> None:
    """Few new events, a list that is not full, one that is filtered, or a question: a new list."""
    pace = Pace()
    pace.keep(FULL, 100)
    assert pace.kept(104, 4) is None and pace.kept(105, 4) is FULL
    pace.keep(FULL, 100)
    assert pace.kept(500, 5) is None
    pace.keep(Lists("events", FULL.rows, about="only x"), 100)
    assert pace.kept(500, 4) is None
    pace.keep(FULL, 100)
    pace.forget()
    assert pace.kept(500, 4) is None


def test_the_screen_catches_up_when_things_calm_down(tmp_path: Path) -> None:
    """Pictures that were quick may show an older list; the last one never does, nor one asked for."""
    run = steady_run(tmp_path, operations=50)
    source = resting_source(run)
    source.ask("view", View(columns=80, rows=5, waterfall=0))
    source.tick()
    old = 0
    for request in range(1000, 1020):
        for number in range(10):
            run.arena.apply(ops.Admit(request * 100 + number))
        picture = source.tick()
        assert picture is not None and picture.position == run.recorder.sequence
        old += picture.lists.rows[-1].sequence < picture.position - 5
    assert 10 <= old <= 15
    last = source.tick()
    assert last is None or last.lists.rows[-1].sequence == last.position - 1
    for _ in range(4):
        last = source.tick() or last
    assert last is not None and last.lists.rows[-1].sequence == last.position - 1
    for number in range(30):
        run.arena.apply(ops.Admit(900_000 + number))
    source.ask("pause")
    paused = source.tick()
    assert paused is not None and paused.lists.rows[-1].sequence >= paused.position - 1
    run.recorder.close()
