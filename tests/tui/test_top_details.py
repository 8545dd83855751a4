"""The story of the page under the cursor against one that is told by reading the whole trace."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Outcome
from bandscope.inspect.decode import read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.timeline import Timeline
from bandscope.tui.top.drill import page_rows, request_rows
from bandscope.tui.top.page_details import PageSearch, stack_of
from bandscope.tui.top.snapshot import PageDetails, Touch, View
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P3, P5, small_arena
from tests.inspect_.traces import Recorded, record
from tests.tui.test_top_source import told

VIEW = View(columns=80, rows=60, tab="page")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(
        tmp_path_factory.mktemp("details") / "run", P5, seed=8, operations=500, keyframe_every=150
    )


class Naive:
    """Follows every page through a whole trace: sequences of what happened to it last, by band and
    virtual page. Also who waits for nothing."""

    def __init__(self, trace: Trace, stop: int) -> None:
        self.page_size = trace.header["page_size"]
        self.leased: dict[tuple[str, int], int] = {}
        self.moved: dict[tuple[str, int], int] = {}
        self.read: dict[tuple[str, int], int] = {}
        self.written: dict[tuple[str, int], int] = {}
        self.owner: dict[tuple[str, int], int] = {}
        self.order: dict[int, list[int]] = {}  # of a request: its pages of the full band
        self.length: dict[int, int] = {}
        self.launched: dict[int, int] = {}
        asked: Any = None
        for event in read_events(trace, None, stop):
            body = event.body
            if isinstance(body, ops.Operation):
                asked = event
            elif isinstance(body, Outcome):
                if body.ok and asked is not None:
                    self._done(asked.sequence, asked.body)
            elif isinstance(body, events.LeaseBegin) and body.owns:
                self._lease(event.sequence, body)
            elif isinstance(body, events.LeaseEnd) and body.owns:
                for virtual in body.virtual.tolist():
                    for facts in (self.leased, self.moved, self.read, self.written, self.owner):
                        facts.pop((body.band, virtual), None)
            elif isinstance(body, events.PageMove):
                for virtual in body.virtual.tolist():
                    self.moved[body.band, virtual] = self.written[body.band, virtual] = event.sequence

    def _lease(self, sequence: int, body: events.LeaseBegin) -> None:
        holders = np.broadcast_to(np.asarray(body.holder), body.virtual.shape)
        for virtual, holder in zip(body.virtual.tolist(), holders.tolist(), strict=True):
            self.leased[body.band, virtual] = self.written[body.band, virtual] = sequence
            self.owner[body.band, virtual] = holder
            if body.band == "full":
                self.order.setdefault(holder, []).append(virtual)

    def _done(self, sequence: int, operation: Any) -> None:
        if isinstance(operation, ops.Admit):
            self.order[operation.request] = []
            self.length[operation.request] = self.launched[operation.request] = 0
        elif isinstance(operation, ops.Extend):
            self.length[operation.request] += operation.tokens
        elif isinstance(operation, ops.Decode):
            for request in operation.requests:
                self.length[request] += 1
        elif isinstance(operation, ops.Launch):
            for key, owner in self.owner.items():
                if owner in operation.requests:
                    self.read[key] = sequence
                    first = self.launched[owner] // self.page_size
                    if key[0] == "mamba" or self.order[owner].index(key[1]) >= first:
                        self.written[key] = sequence
            for request in operation.requests:
                self.launched[request] = self.length[request]


def searched(trace: Trace, position: int, cursor: tuple[int, int]) -> PageDetails:
    """All that is found about a page."""
    search = PageSearch(trace, Timeline(trace).seek(position), cursor)
    while search.step():
        pass
    return search.details


def test_the_story_of_a_page_is_that_of_the_whole_trace(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    compared: set[str] = set()
    rng = random.Random(1)
    for position in range(400, trace.stop, 211):
        naive = Naive(trace, position)
        state = Timeline(trace).seek(position)
        for band in state.bands:
            held = np.flatnonzero(band.virtual >= 0).tolist()
            for at in rng.sample(held, min(9, len(held))):
                details = searched(trace, position, (band.index, at + band.base))
                key = band.name, int(band.virtual[at])
                assert details.complete and details.virtual == key[1]
                assert details.owner == naive.owner[key]
                for name in ("leased", "moved", "read", "written"):
                    touch, expected = getattr(details, name), getattr(naive, name).get(key)
                    assert (None if touch is None else touch.sequence) == expected, (position, key, name)
                    compared |= {f"{name} {expected is not None}"}
    assert compared == {
        "leased True", "moved True", "moved False", "read True", "read False", "written True",
    }  # fmt: skip


def test_pages_of_several_requests_that_are_leased_at_once(tmp_path: Path) -> None:
    """A batch in step: one decode leases a page for each of its requests."""
    arena = small_arena(P3, units=4_000)
    with Recorder(tmp_path / "run", arena, keyframe_every=100) as recorder:
        for request in range(5):
            arena.apply(ops.Admit(request))
            arena.apply(ops.Extend(request, 3))
        for step in range(24):
            batch = tuple(range(5)) if step % 3 else (0, 2, 4)
            arena.apply(ops.Decode(tuple(range(5))))
            ticket = arena.apply(ops.Launch(batch)).value
            arena.apply(ops.Complete(ticket))
    trace = Trace(recorder.directory)
    leases = [event.body for event in read_events(trace, kinds={int(Kind.LEASE_BEGIN)})]
    assert sum(len(getattr(body, "holder", ())) > 1 for body in leases
               if isinstance(getattr(body, "holder", None), np.ndarray)) > 5  # fmt: skip
    for position in (trace.stop - 2, trace.stop // 2):
        naive = Naive(trace, position)
        state = Timeline(trace).seek(position)
        for band in state.bands:
            for at in np.flatnonzero(band.virtual >= 0).tolist():
                details = searched(trace, position, (band.index, at + band.base))
                key = band.name, int(band.virtual[at])
                for name in ("leased", "read", "written"):
                    touch, expected = getattr(details, name), getattr(naive, name).get(key)
                    assert (None if touch is None else touch.sequence) == expected, (key, name)


def test_an_empty_page_tells_how_it_became_empty(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    seen = set()
    for position in range(400, trace.stop, 61):
        state = Timeline(trace).seek(position)
        for band in state.bands:
            inside = range(*band.extent)
            for page in [p for p in inside if band.virtual[p - band.base] < 0]:
                freed = searched(trace, position, (band.index, page)).freed
                if freed is None:
                    continue  # it came with the extent, and was never held
                # The newest event that emptied this very place.
                before = [
                    event for event in read_events(trace, freed.sequence, position)
                    if getattr(event.body, "band", "") == band.name
                    and isinstance(event.body, events.LeaseBegin | events.PageMove)
                ]  # fmt: skip
                for event in before[1:]:
                    body: Any = event.body
                    places = getattr(body, "physical", getattr(body, "destinations", None))
                    assert getattr(body, "lease", 0) or not (places == page).any()
                seen.add(freed.text.split()[0])
    assert {"freed", "its"} <= seen


def test_the_search_goes_on_piece_by_piece(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    state = Timeline(trace).seek(trace.stop - 5)
    oldest = None
    for band in state.bands:
        for at in np.flatnonzero(band.virtual >= 0).tolist():
            details = searched(trace, trace.stop - 5, (band.index, at + band.base))
            assert details.leased is not None
            if oldest is None or details.leased.sequence < oldest[0]:
                oldest = details.leased.sequence, (band.index, at + band.base)
    assert oldest is not None
    search = PageSearch(trace, state, oldest[1])
    steps, reached = 0, [trace.stop]
    while search.step():
        steps += 1
        reached.append(search.details.looked_back)
        assert reached[-1] < reached[-2] and not search.details.complete
    assert steps >= 2


def test_a_barrier_that_waits_is_told_and_a_fine_one_is_not(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    barriers = list(read_events(trace, kinds={int(Kind.BARRIER)}))
    kinds, other = set(), 0
    for position in range(300, trace.stop, 97):
        state = Timeline(trace).seek(position)
        for band in state.bands:
            for at in np.flatnonzero(band.virtual >= 0)[:3].tolist():
                details = searched(trace, position, (band.index, at + band.base))
                ticket = max(t.ticket for t in (details.read, details.written, Touch(0, "")) if t)
                waiting: dict[str, list[int]] = {"settle": [], "write-after-read (fine)": []}
                for event in barriers:
                    body: Any = event.body
                    if ticket and body.ticket >= ticket and event.sequence < position:
                        waiting[body.kind].append(event.sequence)
                expected = waiting["settle"][0] if waiting["settle"] else None
                touch = details.barrier
                assert (None if touch is None else touch.sequence) == expected
                kinds.add(expected is None)
                other += expected is None and bool(waiting["write-after-read (fine)"])
    assert other, "somewhere only a fine barrier stands behind the forward"
    assert kinds == {True, False}


# --- stacks ---------------------------------------------------------------------------------------


def lease_here(arena: Any, request: int) -> None:
    """The function whose name a stack must hold."""
    arena.apply(ops.Extend(request, 5))


def test_stacks_of_a_page(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena, stacks=3) as recorder:
        arena.apply(ops.Admit(1))
        lease_here(arena, 1)
        arena.apply(ops.Launch((1,)))
    trace = Trace(recorder.directory)
    state = Timeline(trace).seek(trace.stop)
    band = state.bands[state.full]
    details = searched(trace, trace.stop, (band.index, band.extent[0]))
    assert details.leased is not None and details.read is not None
    assert details.leased.stack[0].endswith("lease_here")
    assert details.read.stack[0].endswith("test_stacks_of_a_page")
    assert stack_of(trace, details.leased.sequence) == details.leased.stack
    rows = [row.text for row in page_rows(details, band.index, ())]
    assert any(text.endswith("lease_here") for text in rows)


def test_a_stack_at_the_end_of_a_block(tmp_path: Path) -> None:
    arena = small_arena(P3)
    with Recorder(tmp_path / "run", arena, stacks=1) as recorder:
        for _ in range(400):
            arena.apply(ops.SetGate(False))
    trace = Trace(recorder.directory)
    kinds = trace.segment_of(0).records["kind"]
    asked = np.flatnonzero(kinds == Kind.SET_GATE)
    assert (kinds[asked - 1] == Kind.CHECK).any()
    for sequence in asked.tolist():
        assert stack_of(trace, sequence)[0].endswith("test_a_stack_at_the_end_of_a_block")


def test_without_stacks_there_are_none(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    assert all(stack_of(trace, sequence) == () for sequence in range(trace.start, trace.stop, 40))


# --- on the screen --------------------------------------------------------------------------------


def held_page(source: TraceSource) -> tuple[int, int]:
    """A page of the band of full attention that some request holds."""
    state = source.timeline.state
    band = state.bands[state.full]
    return band.index, int(np.flatnonzero(band.virtual >= 0)[0]) + band.base


def test_the_tab_of_a_page(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", VIEW)
    source.ask("go", 1500)
    source.ask("cursor", held_page(source))
    snapshot = told(source)
    while source.busy:
        snapshot = source.tick() or snapshot
    details, page = snapshot.details, snapshot.page
    assert details is not None and page is not None and details.complete
    assert (details.page, details.owner) == (page.page, page.owner)
    kinds = [row.kind for row in snapshot.lists.rows]
    assert kinds[:3] == ["Page", "Owner", "Leased"] and kinds[-1] == "Barrier"
    assert {"Last move", "Last read", "Last write"} <= set(kinds)
    assert snapshot.lists.rows[1].opens == ("request", page.owner)
    source.ask("view", replace(VIEW, tab="events"))
    assert told(source).details is None


def test_a_live_page_is_looked_up_once_a_second(tmp_path: Path) -> None:
    run = record(tmp_path / "run", P3, operations=60, close=False)
    wall = [int(Trace(run.path).header["wall_ns"])]
    source = TraceSource(run.path, wall_ns=lambda: wall[0])
    source.ask("view", VIEW)
    while source.busy:
        source.tick()
    first = told(source) if source._dirty else source.desk.page
    looked_at = source.desk.page
    assert first is not None and looked_at is not None
    for number in range(3):
        run.arena.apply(ops.Admit(5000 + number, state_slots=0))
        source.tick()
    assert source.desk.page is looked_at and source.position > looked_at.position
    wall[0] += 2 * 10**9
    source.tick()  # although nothing came since
    assert source.desk.page is not looked_at
    run.recorder.close()


# --- from a page to its request, and back ---------------------------------------------------------


def test_the_pages_of_a_request_in_every_band(recorded: Recorded) -> None:
    trace = Trace(recorded.path)
    for position in (500, 1200, trace.stop - 100):
        state = Timeline(trace).seek(position)
        for request in state.requests:
            rows = request_rows(state, request)
            places: dict[int, list[int]] = {band.index: [] for band in state.bands}
            for row in rows:
                if row.opens is None:
                    continue
                what, (band, first) = row.opens
                assert what == "cursor" and row.band == band
                words = row.text.partition(":")[0].replace(",", "").split()
                numbers = [int(word) for word in words if word.isdigit()]
                assert numbers[0] == first
                places[band] += range(numbers[0], numbers[-1] + 1)
            for band_state in state.bands:
                owned = np.flatnonzero(band_state.owner == request) + band_state.base
                assert places[band_state.index] == owned.tolist()
            assert f"{state.requests[request].length:,} tokens" in rows[0].text


def test_questions_lead_to_a_request_and_to_a_page(recorded: Recorded) -> None:
    source = TraceSource(recorded.path)
    source.ask("view", replace(VIEW, tab="request"))
    source.ask("go", 1500)
    source.ask("cursor", held_page(source))
    snapshot = told(source)
    assert snapshot.page is not None
    owner = snapshot.page.owner
    assert snapshot.lists.rows[0].text.startswith(f"request {owner}:")
    bands = source.timeline.state.bands
    holders = {int(number) for band in bands for number in band.owner[band.owner >= 0]}
    other = min(holders - {owner})
    source.ask("request", other)
    rows = told(source).lists.rows
    assert rows[0].text.startswith(f"request {other}:")
    row = next(row for row in rows if row.opens is not None)
    assert row.opens is not None
    source.ask(*row.opens)
    page = told(source).page
    assert page is not None and (page.band, page.page) == row.opens[1] and page.owner == other
    source.ask("request", 99_999)
    assert "holds nothing here" in told(source).lists.rows[0].text
