"""A trace replays bit for bit, and a changed decision or a changed trace is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import chain
from bandscope.allocator.band import Band
from bandscope.fuzz.faults import FAULTS
from bandscope.inspect.decode import read_events
from bandscope.inspect.exports import export
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import operations_of, replay
from bandscope.inspect.replay_difference import same
from bandscope.inspect.replay_history import page_history
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS, P3, P5, EventLog, small_arena
from tests.inspect_.rewrite import Row, of_kind, rewrite, rows, without
from tests.inspect_.traces import Recorded, record


@pytest.mark.parametrize("device", ["none", "cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_trace_replays_bit_for_bit(tmp_path: Path, name: str, device: str) -> None:
    recorded = record(
        tmp_path / "run", LAYOUTS[name], seed=3, operations=400, keyframe_every=60,
        segment_records=600,
    )  # fmt: skip
    report = replay(Trace(recorded.path), device=device)

    assert report.difference is None, str(report.difference)
    assert report.operations == 400
    assert report.keyframes >= 3 and report.effects > 400


@pytest.mark.parametrize("barrier", ["fine", "coarse", "off"])
def test_every_barrier_policy_replays(tmp_path: Path, barrier: str) -> None:
    recorded = record(tmp_path / "run", P3, operations=300, config={"barrier": barrier})
    report = replay(Trace(recorded.path))

    assert report.difference is None, str(report.difference)


def test_a_flipped_decision_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holes nearest the base are no longer taken first."""
    recorded = record(tmp_path / "run", P3, operations=300)
    plain = Band.lowest_holes
    monkeypatch.setattr(Band, "lowest_holes", lambda band, count: plain(band, count)[::-1])
    difference = replay(Trace(recorded.path)).difference

    assert difference is not None and difference.what in ("effect", "digest")
    assert f"event {difference.event:,}" in str(difference)


def test_a_flipped_capacity_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demand that was served is refused."""
    recorded = record(tmp_path / "run", P3, operations=300)

    def tighter(self: Any, held: Any) -> Any:
        tops = packed(self, held)
        return None if tops is not None and tops[-1] > self.total_bytes * 0.7 else tops

    packed = chain.Chain.pack
    monkeypatch.setattr(chain.Chain, "pack", tighter)
    monkeypatch.setattr(chain.Chain, "grant", lambda self, demand: None)
    difference = replay(Trace(recorded.path)).difference

    assert difference is not None


def test_a_replay_can_stop_early(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=300)
    whole = replay(Trace(recorded.path))
    half = replay(Trace(recorded.path), until=whole.stop // 2)

    assert 0 < half.operations < whole.operations


def test_an_operation_that_is_cut_in_two_is_left_out(walk: Recorded) -> None:
    """As the last one of a process that was killed in it."""
    trace = Trace(walk.path)
    for number, outcome in enumerate(of_kind(walk.path, Kind.OUTCOME)[50:53], 50):
        report = replay(trace, until=outcome.sequence)
        assert report.difference is None, str(report.difference)
        assert report.operations == number
        assert replay(trace, until=outcome.sequence + 1).operations == number + 1


def test_every_keyframe_is_compared(walk: Recorded, tmp_path: Path) -> None:
    """Also those that a segment begins with."""
    trace = Trace(walk.path)
    keyframes = of_kind(walk.path, Kind.KEYFRAME)
    assert replay(trace).keyframes == len(keyframes) - 1  # it begins at the first
    starts = [start for _, start, _ in trace.heads][1:]
    opening = next(row for row in keyframes if row.sequence > starts[0])

    def change(row: Row) -> list[Row]:
        return [replace(row, b=row.b ^ 1) if row.sequence == opening.sequence else row]

    moved = rewrite(walk.path, tmp_path / "altered.trace", change)
    difference = replay(Trace(tmp_path / "altered.trace")).difference
    assert difference is not None
    assert (difference.what, difference.event) == ("digest", moved[opening.sequence])


def test_a_slice_replays(tmp_path: Path) -> None:
    """A part of a trace, cut out of its middle, is a program as well."""
    recorded = record(
        tmp_path / "run", P3, operations=400, keyframe_every=60, segment_records=600
    )
    trace = Trace(recorded.path)
    middle = trace.start + (trace.stop - trace.start) // 3
    export(trace, "slice", tmp_path / "part.trace", start=middle, stop=2 * middle)
    report = replay(Trace(tmp_path / "part.trace"))

    assert report.difference is None, str(report.difference)
    assert 50 < report.operations < 400


# One fault for each kind of decision: which places, which relocation, a wrong refusal, an extent that is
# not pulled back, which ids; and a barrier, an opportunistic pass and a trim.
FLIPPED = [
    "float-grows-on-the-wrong-side",
    "relocation-forgets-a-side",
    "pending-counts-as-held",
    "frontier-not-pulled-back-at-a-free",
    "id-bound-and-free",
    "publish-without-barrier",
    "compaction-ignores-the-gate",
    "window-page-rounded-up",
]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A trace that every fault of `FLIPPED` changes."""
    return record(
        tmp_path_factory.mktemp("walk") / "run", P5, seed=4, operations=500, keyframe_every=60,
        segment_records=600,
    )  # fmt: skip


@pytest.mark.parametrize("name", FLIPPED)
def test_a_planted_fault_is_named_at_the_first_event_that_it_affects(
    walk: Recorded, name: str
) -> None:
    trace = Trace(walk.path)
    with FAULTS[name].plant():
        difference = replay(trace).difference

        # The same found the slow way: both arenas side by side, their effects as objects.
        log = EventLog()
        arena = small_arena(P5, observer=log)
        affected = None
        for step in operations_of(trace, trace.start, trace.stop):
            log.clear()
            outcome = arena.apply(step.operation)
            recorded = [*_effects(trace, step.sequence, step.stop)]
            came = [*log.effects, outcome]
            unlike = [
                number
                for number, (mine, theirs) in enumerate(zip(recorded, came, strict=False))
                if type(mine) is not type(theirs) or not _same(mine, theirs)
            ]
            if unlike or len(recorded) != len(came):
                affected = step.sequences[unlike[0]]
                break

    assert difference is not None and affected is not None
    assert difference.event == affected
    assert str(difference).startswith(f"event {affected:,}, {step.operation!r}: the ")
    assert difference.expected != difference.got


def _effects(trace: Trace, start: int, stop: int) -> list[Any]:
    return [event.body for event in read_events(trace, start + 1, stop) if event.kind not in _MARKS]


_MARKS = ("Mark", "Note", "Stack", "Violation", "Lost")


def _same(mine: Any, theirs: Any) -> bool:
    if type(mine).__name__ == "Launched":  # its requests are those of the operation
        return bool(mine.ticket == theirs.ticket)
    if type(mine).__name__ == "Outcome":
        return (mine.ok, mine.value, mine.message) == (theirs.ok, theirs.value, theirs.message)
    return same(mine, theirs)


def test_an_exception_of_the_arena_is_a_difference(
    walk: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(band: Band, count: int) -> Any:
        raise RuntimeError("out of holes")

    monkeypatch.setattr(Band, "lowest_holes", broken)
    difference = replay(Trace(walk.path)).difference

    assert difference is not None and "RuntimeError: out of holes" in difference.got


def test_the_state_where_it_ended_and_the_past_of_the_page(walk: Recorded) -> None:
    trace = Trace(walk.path)
    with FAULTS["id-bound-and-free"].plant():
        report = replay(trace)
    difference = report.difference
    assert difference is not None and report.state is not None
    assert report.state.sequence == difference.after
    assert difference.band is not None and difference.physical is not None

    history = page_history(trace, difference.band, difference.physical, difference.event)
    assert 0 < len(history) <= 8
    assert all(event.sequence < difference.event for event in history)
    assert [event.sequence for event in history] == sorted(event.sequence for event in history)
    assert any("leased by request" in event.what for event in history)


@pytest.mark.parametrize("index", [0, 2, 4])  # the low end, a float, the high end
def test_the_past_of_a_page_is_what_the_trace_says(walk: Recorded, index: int) -> None:
    """Against the state at every event: wherever a page changes hands, its history says so."""
    trace = Trace(walk.path)
    timeline = Timeline(trace)
    state = timeline.advance(trace.start + 3)
    known = state.bands[index]
    changes: dict[int, list[int]] = {}
    before = known.virtual.copy()
    for sequence in range(state.sequence + 1, trace.stop + 1):
        timeline.advance(sequence)
        for page in np.flatnonzero(known.virtual != before).tolist():
            changes.setdefault(page, []).append(sequence - 1)
        before = known.virtual.copy()
    page = max(changes, key=lambda page: len(changes[page]))
    told = page_history(trace, known.name, page + known.base, trace.stop, most=1 << 20)
    words = ("leased", "freed", "moved")
    changed = [event.sequence for event in told if any(word in event.what for word in words)]

    assert len(changes[page]) > 5
    assert changed == changes[page]


# --- altered traces ---------------------------------------------------------------------------------


def _operations(path: Path) -> list[list[Row]]:
    """Every operation with the records up to the next one."""
    found: list[list[Row]] = []
    for row in rows(path):
        if Kind.ADMIT <= row.kind <= Kind.OPERATION:
            found.append([])
        if found:
            found[-1].append(row)
    return found


def test_an_operation_that_is_taken_out_is_noticed(walk: Recorded, tmp_path: Path) -> None:
    taken = next(
        steps for steps in _operations(walk.path)[100:] if steps[0].kind == Kind.RELEASE
    )
    gone = [row.sequence for row in taken if row.kind >= Kind.ADMIT]
    rewrite(walk.path, tmp_path / "cut.trace", without(*gone))
    difference = replay(Trace(tmp_path / "cut.trace")).difference

    assert difference is not None
    assert difference.event >= taken[0].sequence


def test_an_operation_whose_record_alone_is_taken_out_is_noticed(
    walk: Recorded, tmp_path: Path
) -> None:
    taken = of_kind(walk.path, Kind.COMPLETE)[3]
    moved = rewrite(walk.path, tmp_path / "cut.trace", without(taken.sequence))
    difference = replay(Trace(tmp_path / "cut.trace")).difference

    assert difference is not None
    assert difference.event == moved[taken.sequence + 1]
    assert difference.got == "nothing more"


def test_an_outcome_that_is_taken_out_is_noticed(walk: Recorded, tmp_path: Path) -> None:
    taken = of_kind(walk.path, Kind.OUTCOME)[40]
    rewrite(walk.path, tmp_path / "cut.trace", without(taken.sequence))
    difference = replay(Trace(tmp_path / "cut.trace")).difference

    assert difference is not None and difference.expected == "nothing more"


def test_an_outcome_that_is_altered_is_named(walk: Recorded, tmp_path: Path) -> None:
    altered = next(row for row in of_kind(walk.path, Kind.OUTCOME)[77:] if row.flags & 1)

    def change(row: Row) -> list[Row]:
        return [replace(row, b=4711) if row.sequence == altered.sequence else row]

    moved = rewrite(walk.path, tmp_path / "altered.trace", change)
    difference = replay(Trace(tmp_path / "altered.trace")).difference

    assert difference is not None
    assert difference.event == moved[altered.sequence]
    assert (difference.what, difference.expected) == ("outcome", "done, 4711")


def test_an_effect_that_is_altered_is_named(walk: Recorded, tmp_path: Path) -> None:
    """A page move to another place: the bytes of its payload differ, and nothing else."""
    altered = of_kind(walk.path, Kind.PAGE_MOVE)[2]

    def change(row: Row) -> list[Row]:
        if row.sequence != altered.sequence:
            return [row]
        last = int.from_bytes(row.payload[-4:], "little") + 1
        return [replace(row, payload=row.payload[:-4] + last.to_bytes(4, "little"))]

    moved = rewrite(walk.path, tmp_path / "altered.trace", change)
    difference = replay(Trace(tmp_path / "altered.trace")).difference

    assert difference is not None
    assert difference.event == moved[altered.sequence]
    assert difference.expected.startswith("PageMove ")


def test_two_operations_that_change_places_are_noticed(walk: Recorded, tmp_path: Path) -> None:
    """An admission and the operation after it."""
    steps = _operations(walk.path)
    number = next(
        number
        for number in range(60, len(steps) - 1)
        if steps[number][0].kind == Kind.ADMIT and steps[number + 1][0].kind == Kind.EXTEND
    )
    first, second = (
        [row for row in steps[at] if row.kind >= Kind.ADMIT] for at in (number, number + 1)
    )
    names = {row.sequence for row in (*first, *second)}

    def change(row: Row) -> list[Row]:
        if row.sequence == first[0].sequence:
            return [*second, *first]
        return [] if row.sequence in names else [row]

    moved = rewrite(walk.path, tmp_path / "swapped.trace", change)
    difference = replay(Trace(tmp_path / "swapped.trace")).difference

    assert difference is not None
    assert difference.event >= min(moved[row.sequence] for row in second)


def test_a_state_that_is_altered_is_named(walk: Recorded, tmp_path: Path) -> None:
    """The digest of one keyframe."""
    altered = of_kind(walk.path, Kind.KEYFRAME)[2]

    def change(row: Row) -> list[Row]:
        return [replace(row, b=row.b ^ 1) if row.sequence == altered.sequence else row]

    moved = rewrite(walk.path, tmp_path / "altered.trace", change)
    difference = replay(Trace(tmp_path / "altered.trace")).difference

    assert difference is not None
    assert (difference.what, difference.event) == ("digest", moved[altered.sequence])


def test_any_number_of_passes_gives_the_same_answer(walk: Recorded) -> None:
    trace = Trace(walk.path)
    reports = [replay(trace).to_json() for _ in range(3)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["difference"] is None


def test_another_spelling_of_the_same_effect_is_no_difference(
    walk: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may write long lists of pages in other bytes."""
    from bandscope.inspect import effect_writer

    def plain(values: Any) -> bytes:
        return (2 << 30 | values.size).to_bytes(4, "little") + values.astype("<i8").tobytes()

    monkeypatch.setattr(effect_writer, "pack_list", plain)
    report = replay(Trace(walk.path))
    assert report.difference is None and report.operations == 500
