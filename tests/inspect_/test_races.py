"""The race checker: clean runs are clean, and every edge that is taken away is missed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import format as form
from bandscope.inspect.checks.races import RaceReport, find_races
from bandscope.inspect.decode import read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import LAYOUTS, P3, small_arena
from tests.inspect_.rewrite import of_kind, rewrite, rows, without
from tests.inspect_.traces import record

ONE_KEYFRAME = {"keyframe_every": 10**9}


# --- an independent, naive answer -----------------------------------------------------------------


@dataclass
class Forward:
    """All that a forward touches, spelt out: pages as (band, physical page), rows as (band, virtual)."""

    ticket: int
    reads: set[tuple[int, int]] = field(default_factory=set)
    writes: set[tuple[int, int]] = field(default_factory=set)
    rows: set[tuple[int, int]] = field(default_factory=set)
    done: bool = False
    ordered: bool = False
    reads_ordered: bool = False


@dataclass
class Request:
    """Pages of a request in order, by band, and its tokens."""

    pages: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    length: int = 0
    launched: int = 0
    shared: int = 0  # pages at the front that are the prefix cache's


def naive_races(trace: Trace) -> set[tuple[int, int, str, int]]:
    """Every (event, ticket, kind, band) of a schedule-stream access that a forward conflicts with, by
    comparing each access with every forward so far. Reads the trace from its first event, of an arena
    that was empty."""
    header = trace.header
    names = [band["name"] for band in header["bands"]]
    sizes = [band["page_bytes"] for band in header["bands"]]
    state = [band["kind"] == "state" for band in header["bands"]]
    config = header["arena"]["config"]
    page_size = header["page_size"]
    fills = [config["hand_out_state" if of else "hand_out"] != "none" for of in state]
    forwards: list[Forward] = []
    requests: dict[int, Request] = defaultdict(Request)
    page_of: dict[tuple[int, int], int] = {}
    owner: dict[tuple[int, int], int] = {}
    dirty: dict[int, set[int]] = defaultdict(set)
    found: set[tuple[int, int, str, int]] = set()
    asked: Operation | None = None

    def overlap(one: tuple[int, int], band: int, page: int) -> bool:
        start, stop = one[1] * sizes[one[0]], (one[1] + 1) * sizes[one[0]]
        return start < (page + 1) * sizes[band] and page * sizes[band] < stop

    def touched(band: int, page: int, sequence: int, schedule_writes: bool) -> None:
        for forward in forwards:
            if forward.done or forward.ordered:
                continue
            for one in forward.reads:  # what is written is read as well
                if overlap(one, band, page) and (schedule_writes or one in forward.writes):
                    wrote = "WAW" if one in forward.writes else "WAR"
                    kind = wrote if schedule_writes else "RAW"
                    found.add((sequence, forward.ticket, kind, band))

    for event in read_events(trace):
        body = event.body
        match body:
            case Operation():
                asked = body
            case Outcome(ok=True):
                if isinstance(asked, ops.Decode):
                    for number in asked.requests:
                        requests[number].length += 1
                elif isinstance(asked, ops.Extend):
                    requests[asked.request].length += asked.tokens
                elif isinstance(asked, ops.Release):
                    requests.pop(asked.request, None)
                elif isinstance(asked, ops.Admit) and body.value:
                    requests[asked.request].length = body.value
                    requests[asked.request].launched = body.value
            case events.Share():
                sharer = requests[body.request]
                sharer.shared = body.first_page + body.virtual.size
                for band in range(len(names)):
                    if not state[band]:
                        sharer.pages[band][body.first_page : sharer.shared] = body.virtual.tolist()
                        for virtual in body.virtual.tolist():
                            if (band, virtual) in owner:
                                owner[band, virtual] = events.CACHE
            case events.Graft():
                band = names.index(body.band)
                for virtual, into in zip(body.virtual.tolist(), body.into.tolist(), strict=True):
                    page_of[band, into] = page_of.pop((band, virtual))
                    del owner[band, virtual]
                    owner[band, into] = events.CACHE
                    dirty[band] |= {virtual, into}
            case events.StateCopy():
                band = names.index(body.band)
                touched(band, body.from_page, event.sequence, False)
                touched(band, body.to_page, event.sequence, True)
            case events.LeaseBegin(lease=0):
                band = names.index(body.band)
                holders = np.broadcast_to(body.holder, body.virtual.size).tolist()  # type: ignore[arg-type]
                for who, virtual, page in zip(
                    holders, body.virtual.tolist(), body.physical.tolist(), strict=True
                ):
                    if fills[band]:
                        touched(band, page, event.sequence, True)
                    requests[who].pages[band].append(virtual)
                    page_of[band, virtual] = page
                    owner[band, virtual] = who
                    dirty[band].add(virtual)
            case events.LeaseEnd(lease=0):
                band = names.index(body.band)
                for virtual in body.virtual.tolist():
                    del page_of[band, virtual], owner[band, virtual]
                    dirty[band].add(virtual)
            case events.PageMove():
                band = names.index(body.band)
                for page in body.sources.tolist():
                    touched(band, page, event.sequence, False)
                for virtual, page in zip(
                    body.virtual.tolist(), body.destinations.tolist(), strict=True
                ):
                    touched(band, page, event.sequence, True)
                    page_of[band, virtual] = page
                    dirty[band].add(virtual)
            case events.Launched():
                assert isinstance(asked, ops.Launch)
                forward = Forward(body.ticket)
                for number in asked.requests:
                    request = requests[number]
                    for band, pages in request.pages.items():
                        for index, virtual in enumerate(pages):
                            holder = owner.get((band, virtual))
                            shared = index < request.shared and not state[band]
                            if holder != (events.CACHE if shared else number):
                                continue  # a window that was trimmed
                            place = (band, page_of[band, virtual])
                            forward.reads.add(place)
                            forward.rows.add((band, virtual))
                            first = request.launched // page_size
                            if state[band] or (not shared and index >= first):
                                forward.writes.add(place)
                    request.launched = request.length
                forwards.append(forward)
            case events.Done():
                for forward in forwards:
                    forward.done |= forward.ticket == body.ticket
            case events.Barrier():
                for forward in forwards:
                    if forward.ticket <= body.ticket:
                        forward.ordered |= body.kind == "settle" or "coarse" in body.kind
                        forward.reads_ordered |= "fine" in body.kind
            case events.Publish():
                band = names.index(body.band)
                for forward in forwards:
                    loose = not (forward.done or forward.ordered or forward.reads_ordered)
                    if loose and any((band, v) in forward.rows for v in dirty[band]):
                        found.add((event.sequence, forward.ticket, "WAR", band))
                dirty[band].clear()
    return found


def agrees(trace: Trace, report: RaceReport) -> set[tuple[int, int, str, int]]:
    """That a report says what the naive answer says; returns that."""
    naive = naive_races(trace)
    names = [band["name"] for band in trace.header["bands"]]
    told = {(r.before, r.ticket, r.kind, names.index(r.band)) for r in report.races if r.ticket}
    assert told <= naive, told - naive
    # The first time that something is missing is told, with the newest forward it is missing for.
    for sequence in {one[0] for one in naive if one[0] == min(naive)[0]}:
        newest = max(ticket for at, ticket, _, _ in naive if at == sequence)
        assert any(at == sequence and ticket == newest for at, ticket, _, _ in told)
    assert bool(naive) == bool(told)
    return naive


# --- clean runs, and policies that are wrong ------------------------------------------------------


@pytest.mark.parametrize("barrier", ["fine", "coarse"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_with_its_barriers_is_clean(tmp_path: Path, name: str, barrier: str) -> None:
    for seed in range(3):
        recorded = record(
            tmp_path / f"run{seed}", LAYOUTS[name], seed=seed, operations=300,
            config={"barrier": barrier}, keyframe_every=(10**9, 60, 200)[seed],
        )  # fmt: skip
        trace = Trace(recorded.path)
        report = find_races(trace)
        assert report.races == [] and report.gaps == [] and report.notes == []
        assert report.events > 300
        assert naive_races(trace) == set()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_without_barriers_is_flagged_as_the_naive_answer_says(
    tmp_path: Path, name: str
) -> None:
    flagged = 0
    for seed in range(3):
        recorded = record(
            tmp_path / f"run{seed}", LAYOUTS[name], seed=seed, operations=300,
            config={"barrier": "off"}, **ONE_KEYFRAME,
        )  # fmt: skip
        trace = Trace(recorded.path)
        report = find_races(trace)
        agrees(trace, report)
        flagged += bool(report.races)
        for race in report.races:
            assert race.edge == "write-after-read (fine)" and race.kind == "WAR"
            assert f"behind ticket {race.ticket} before event {race.before:,}" in str(race)
    assert flagged


# --- edges taken away -----------------------------------------------------------------------------


def _altered(path: Path, at: Path) -> Iterator[tuple[form.Kind, int, Trace]]:
    """The trace once without each barrier and once without each completion."""
    for kind in (Kind.BARRIER, Kind.DONE):
        for number, row in enumerate(of_kind(path, kind)):
            target = at / f"{kind.name}{number}"
            rewrite(path, target, without(row.sequence))
            yield kind, row.a, Trace(target)


@pytest.mark.parametrize("hand_out", ["zero", "none"])
@pytest.mark.parametrize("barrier", ["fine", "coarse"])
@pytest.mark.parametrize("name", ["P2w", "P3_odd", "P5"])
def test_every_edge_that_is_taken_away_is_missed_where_it_was_needed(
    tmp_path: Path, name: str, barrier: str, hand_out: str
) -> None:
    needed = {Kind.BARRIER: 0, Kind.DONE: 0}
    for seed in range(2):
        recorded = record(
            tmp_path / f"run{seed}", LAYOUTS[name], seed=seed, operations=220,
            config={"barrier": barrier, "hand_out": hand_out}, **ONE_KEYFRAME,
        )  # fmt: skip
        place = tmp_path / f"altered{seed}"
        place.mkdir()
        for kind, ticket, trace in _altered(recorded.path, place):
            report = find_races(trace)
            naive = agrees(trace, report)
            if naive:
                needed[kind] += 1
                first = min(report.races, key=lambda race: race.before)
                # A barrier waits for the newest forward; the newest that it was needed for is named.
                assert first.ticket <= ticket if kind == Kind.BARRIER else first.ticket == ticket
    assert needed[Kind.BARRIER]


def test_the_settle_before_a_relocation_is_missed(tmp_path: Path) -> None:
    """A forward writes state slots; a float that moves them away must wait for it."""
    arena = small_arena(P3, page_size=1, compact_hole_share=0.0)
    with Recorder(tmp_path / "run", arena) as recorder:
        for request in range(4):
            arena.admit(request)
            arena.extend(request, 2)
        arena.apply(ops.Launch((0, 1, 2, 3)))
        arena.release(0)
        arena.release(1)
        assert arena.compact(urgent=True)
    path = recorder.directory
    assert find_races(Trace(path)).races == []
    (settle,) = of_kind(path, Kind.BARRIER)
    rewrite(path, tmp_path / "altered", without(settle.sequence))
    trace = Trace(tmp_path / "altered")
    report = find_races(trace)
    agrees(trace, report)
    moves = of_kind(tmp_path / "altered", Kind.PAGE_MOVE)
    kinds = {race.kind for race in report.races}
    assert "RAW" in kinds and kinds & {"WAW", "WAR"}
    assert {race.edge for race in report.races} == {"settle"}
    assert {race.ticket for race in report.races} == {settle.a} == {1}
    assert report.races[0].before == moves[0].sequence
    assert report.races[0].second.operation == "Compact"
    assert report.races[0].first.operation == "Launch"
    assert "a settle barrier behind ticket 1" in report.races[0].missing


def test_the_write_after_read_barrier_of_one_launch_is_missed(tmp_path: Path) -> None:
    """Nothing but a table row conflicts: the page is not even reused."""
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena, stacks=8) as recorder:
        arena.admit(0)
        arena.extend(0, 2)
        arena.admit(1)
        arena.extend(1, 2)
        arena.apply(ops.Launch((0, 1)))
        arena.release(0)
        arena.apply(ops.Launch((1,)))
    (barrier,) = of_kind(recorder.directory, Kind.BARRIER)
    rewrite(recorder.directory, tmp_path / "altered", without(barrier.sequence))
    report = find_races(Trace(tmp_path / "altered"))
    assert {(r.kind, r.edge, r.ticket) for r in report.races} == {
        ("WAR", "write-after-read (fine)", 1)
    }
    assert {race.band for race in report.races} == {"mamba", "window_8", "full"}
    race = next(race for race in report.races if race.band == "full")
    assert race.places == 2
    for access in (race.first, race.second):
        assert "test_races.py" in access.stack
    assert report.to_json()["races"][0]["missing"] == report.races[0].missing


def test_bytes_that_change_bands_are_followed(tmp_path: Path) -> None:
    """A page of one band is freed too early, and another band grows over its bytes."""
    flagged = 0
    for seed in range(12):
        recorded = record(
            tmp_path / f"run{seed}", LAYOUTS["P3"], seed=seed, operations=260, **ONE_KEYFRAME
        )
        target = tmp_path / f"altered{seed}"
        gone = {row.sequence for row in of_kind(recorded.path, Kind.DONE)}
        gone |= {row.sequence for row in of_kind(recorded.path, Kind.BARRIER)}
        rewrite(recorded.path, target, without(*gone))
        trace = Trace(target)
        report = find_races(trace)
        agrees(trace, report)
        flagged += any(
            race.edge == "settle" and not race.first.what.startswith(race.band)
            for race in report.races
        )
    assert flagged


def test_a_launch_that_publishes_nothing_is_missed(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(0)
        arena.extend(0, 2)
        arena.apply(ops.Launch((0,)))
    published = of_kind(recorder.directory, Kind.PUBLISH)
    rewrite(
        recorder.directory, tmp_path / "altered", without(*(row.sequence for row in published))
    )
    report = find_races(Trace(tmp_path / "altered"))
    assert {(race.kind, race.edge) for race in report.races} == {("RAW", "publish")}
    assert {race.band for race in report.races} == {"mamba", "window_8", "full"}


# --- leases ---------------------------------------------------------------------------------------


def test_a_pinned_page_that_is_handed_out_is_a_race_with_its_holder(tmp_path: Path) -> None:
    arena = small_arena(P3, page_size=1)
    with Recorder(tmp_path / "run", arena) as recorder:
        arena.admit(0)
        arena.extend(0, 2)
        number = arena.apply(ops.Lease(0, "full", 0, 2, holder="backup")).value
        arena.release(0)
        arena.apply(ops.EndLease(number))
        arena.admit(1)
        arena.extend(1, 2)
    path = recorder.directory
    assert find_races(Trace(path)).races == []
    (ended,) = [row for row in of_kind(path, Kind.LEASE_END) if row.flags & form.PIN]
    rewrite(path, tmp_path / "altered", without(ended.sequence))
    (race,) = find_races(Trace(tmp_path / "altered")).races
    assert (race.kind, race.edge, race.band, race.places) == ("WAR", "lease end", "full", 2)
    assert race.first.stream == "copy" and race.first.lease == number
    assert race.missing.startswith(f"the end of lease {number} before")


# --- what is not known ----------------------------------------------------------------------------


def test_a_part_of_a_trace_says_what_it_cannot_know(tmp_path: Path) -> None:
    recorded = record(
        tmp_path / "run", P3, seed=1, operations=400, config={"barrier": "off"}, keyframe_every=100
    )
    trace = Trace(recorded.path)
    whole = find_races(trace)
    middle = (trace.start + trace.stop) // 2
    part = find_races(trace, start=middle)
    assert all(race.before >= middle for race in part.races)
    known = {(race.before, race.kind, race.band) for race in whole.races}
    assert part.races and {(r.before, r.kind, r.band) for r in part.races} & known
    early = find_races(trace, stop=middle)
    assert all(race.before < middle for race in early.races)
    with_open = [find_races(trace, start=at).notes for at in range(100, trace.stop, 150)]
    assert any("were launched before event" in note for notes in with_open for note in notes)


def test_after_damage_nothing_is_said_that_needs_what_came_before(tmp_path: Path) -> None:
    recorded = record(
        tmp_path / "run", P3, seed=3, operations=1200, keyframe_every=300, segment_records=600
    )
    path = recorded.path / "000000.events"
    data = bytearray(path.read_bytes())
    data[form.RECORDS_START + 280 * form.RECORD_BYTES + 9] ^= 0xFF
    path.write_bytes(bytes(data))
    trace = Trace(recorded.path)
    report = find_races(trace)
    assert report.races == []
    (gap,) = report.gaps
    assert gap[0] <= 280 < gap[1] <= trace.stop
    assert report.events < trace.stop


def test_a_barrier_that_says_another_ticket_orders_only_that(tmp_path: Path) -> None:
    """Altered, not dropped: the barrier waits for the forward before the newest."""
    found = 0
    for seed in range(4):
        recorded = record(
            tmp_path / f"run{seed}", LAYOUTS["P3"], seed=seed, operations=250, **ONE_KEYFRAME
        )
        target = tmp_path / f"altered{seed}"
        rewrite(
            recorded.path, target,
            lambda row: [replace(row, a=row.a - 1) if row.kind == Kind.BARRIER else row],
        )  # fmt: skip
        trace = Trace(target)
        report = find_races(trace)
        agrees(trace, report)
        found += len(report.races)
    assert found


def test_no_altered_record_raises(tmp_path: Path) -> None:
    """Every record dropped once, or one of its fields changed: a report, never an error."""
    recorded = record(tmp_path / "run", P3, seed=8, operations=60, **ONE_KEYFRAME)
    rng = np.random.default_rng(0)
    bookkeeping = {Kind.HEADER, Kind.KEYFRAME}
    batches = {Kind.DECODE, Kind.LAUNCH, Kind.TRIM_WINDOW}  # others may refer to these
    for number, row in enumerate(rows(recorded.path)):
        if row.kind in bookkeeping or row.kind in form.BOOKKEEPING and rng.random() < 0.5:
            continue
        if row.kind not in batches or row.flags & form.SAME_BATCH:
            target = tmp_path / f"dropped{number}"
            rewrite(recorded.path, target, without(row.sequence))
            find_races(Trace(target))
        if row.kind >= form.FIRST_EFFECT:
            name = ("a", "b", "c")[int(rng.integers(3))]
            value = int(rng.choice([0, 1 << 31, getattr(row, name) + 1])) & 0xFFFFFFFF
            target = tmp_path / f"changed{number}"
            changed = replace(row, **{name: value})  # type: ignore[arg-type]
            rewrite(
                recorded.path, target,
                lambda one, row=row, changed=changed: [changed] if one == row else [one],
            )  # fmt: skip
            find_races(Trace(target))
