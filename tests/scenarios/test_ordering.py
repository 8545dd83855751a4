"""Group B: compaction, order and races: what may move, when, and after what."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import MisuseError
from bandscope.inspect.checks.invariants import check_trace
from bandscope.inspect.checks.races import find_races
from bandscope.inspect.format import Kind, pack_list, unpack_lists
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import (
    LAYOUTS,
    P2W,
    P3,
    EventLog,
    RandomEngine,
    crowded,
    moved_pages,
    page_list,
    small_arena,
)
from tests.allocator.devices import HazardDevice, PaperRun, hazardous
from tests.inspect_.rewrite import Row, of_kind, rewrite
from tests.scenarios.closing import close, physical, refused

BANDS = ("mamba", "window_8", "full")


# B1. sgl-project/sglang#37506
@pytest.mark.parametrize("leased", BANDS)
def test_with_the_gate_closed_no_band_moves_not_even_the_float(leased: str) -> None:
    """A demand that needs the float to slide waits for the gate, then for the lease; compaction of
    either kind does nothing. Reopened, it is served, twice over."""
    arena, log = crowded()
    for request in (0, 2):
        arena.release(request)
    arena.admit(8, state_slots=0)
    arena.extend(8, 1)
    number = arena.lease(1, leased, 0, 1)
    pinned = page_list(arena, 1, leased)[0]
    arena.set_gate(closed=True)
    places = {band: page_list(arena, 1, band) for band in BANDS}
    demand = ops.Admit(9, state_slots=5)
    for _ in range(2):
        log.clear()
        assert refused(arena, demand, "gate").message.endswith("pages would have to move")
        assert arena.compact() == 0 and arena.compact(urgent=True) == 0
        assert {band: page_list(arena, 1, band) for band in BANDS} == places
        assert log.of(events.PageMove) == []
        arena.set_gate(closed=False)
        arena.compact(urgent=True)
        assert pinned not in moved_pages(log, leased)
        assert page_list(arena, 1, leased)[0] == pinned
        arena.set_gate(closed=True)
        places = {band: page_list(arena, 1, band) for band in BANDS}
    arena.set_gate(closed=False)
    arena.end_lease(number)

    assert arena.apply(demand)
    close(arena)


def test_a_slide_of_the_float_under_a_lease_is_refused_for_pins_and_served_after() -> None:
    """With the gate open, one leased page in the middle of the float refuses what must move it."""
    arena, log = crowded()
    number = arena.lease(2, "window_8", 0, 1)
    for request in (0, 3):
        arena.release(request)
    slots = 1
    while arena.serves([slots + 1, 0, 0]):
        slots += 1
    log.clear()
    demand = ops.Admit(9, state_slots=slots + 1)
    refused(arena, demand, "pins")
    assert log.of(events.PageMove) == []
    arena.end_lease(number)

    assert arena.apply(demand)
    close(arena)


# B2. sgl-project/sglang#36731 (#39478)
def stamp(arena: Arena, request: int, band: str, value: int) -> None:
    """Write `value` to every byte of a request's first page, `value + 1` to the next, and so on."""
    page_bytes = arena.plan.band(band).page_bytes
    for number, page in enumerate(page_list(arena, request, band)):
        arena.buffer[page * page_bytes : (page + 1) * page_bytes] = value + number


@pytest.mark.parametrize("band", BANDS)
def test_the_bytes_of_a_lease_hold_still_and_are_out_of_reach_after_it(band: str) -> None:
    """While it is held a neighbour is freed and everything is compacted: the same bytes. After its
    last end, also one by an exception, the view raises."""
    arena = small_arena(P3, page_size=4, device="cpu", compact_hole_share=0.0)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 8)
        stamp(arena, request, band, 10 * request + 1)
    number, nested = (arena.lease(1, band, 0, 1, holder="reader") for _ in range(2))
    view = arena.leased_bytes(number)
    inner = arena.leased_bytes(nested)
    arena.release(0)
    arena.compact(urgent=True)
    arena.release(2)
    arena.compact()
    assert view[0].unique().tolist() == [11]
    arena.end_lease(nested)
    with pytest.raises(MisuseError, match=f"lease {nested} was named, but it has ended"):
        inner[0]
    arena.admit(3)
    arena.extend(3, 16)
    arena.compact(urgent=True)
    assert view[0].unique().tolist() == [11]
    with pytest.raises(KeyError):
        try:
            raise KeyError("the reader failed")
        finally:
            arena.end_lease(number)
    arena.compact(urgent=True)
    with pytest.raises(MisuseError, match=f"lease {number} was named, but it has ended"):
        view[0]
    with pytest.raises(MisuseError):
        arena.leased_bytes(number)
    close(arena)


# B3. sgl-project/sglang#37496, #39479
@pytest.mark.parametrize("band", BANDS)
def test_copies_by_virtual_id_are_right_before_and_after_a_move(band: str) -> None:
    """Bytes are found through the tables; a copy that took virtual ids for pages goes wrong at once,
    since no page above the sink has the number of its id."""
    arena = small_arena(P3, page_size=4, device="cpu", compact_hole_share=0.0)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 8)
        stamp(arena, request, band, 10 * request + 1)

    def copied(request: int) -> list[int]:
        """The stamps of a request's pages, in its own order."""
        size = arena.plan.band(band).page_bytes
        pages = arena.buffer[: arena.total_bytes // size * size].view(-1, size)
        if band == "mamba":
            found = pages[arena.pages_of(request, band)[0]]
        else:
            arena.launch([request])
            arena.complete(arena.books.tickets.issued)
            rows = arena.translate(band, torch.from_numpy(arena.token_ids(request)))
            assert (rows % 4).tolist() == [0, 1, 2, 3] * 2
            found = pages[rows[::4] // 4]
        assert (found == found[:, :1]).all()
        return [int(value) for value in found[:, 0]]

    space = arena.books.ledger
    virtual = space.state_slots(2) if band == "mamba" else space.token_pages(2)
    assert not set(virtual.tolist()) & physical(arena, 2, band)
    stamps = [[11, 12], [21, 22]] if band != "mamba" else [[11], [21]]
    assert [copied(1), copied(2)] == stamps
    before = [physical(arena, request, band) for request in (1, 2)]
    arena.release(0)
    assert arena.compact(urgent=True) > 0
    assert [physical(arena, request, band) for request in (1, 2)] != before
    arena.admit(9)
    arena.extend(9, 8)
    stamp(arena, 9, band, 91)  # over the places that were left
    assert [copied(1), copied(2)] == stamps
    close(arena)


def test_ids_that_are_not_mapped_are_refused_or_counted_never_silently_translated() -> None:
    """Never bound, trimmed and just freed ids; id 0 is an ordinary id and not the sink."""
    arena = small_arena(P3, page_size=4, device="cpu", debug=True)
    for request in range(2):
        arena.admit(request)
        arena.extend(request, 16)
    first, second = (torch.from_numpy(arena.token_ids(request)) for request in range(2))
    assert int(first[0]) == 0
    arena.launch([0, 1])
    arena.trim_window([1])
    refused(arena, ops.Lease(1, "window_8", 0, 1), "misuse")
    arena.release(0)
    arena.extend(1, 1)
    arena.launch([1])
    assert int(arena.translate("full", second).min()) * arena.plan.band("full").entry_bytes >= (
        arena.plan.sink_bytes
    )
    reused = torch.tensor([int(arena.token_ids(1)[-1])])
    assert int(arena.translate("full", reused)) > 0
    gone = first[first // 4 != int(reused) // 4]
    for band, ids in (("full", gone), ("window_8", gone), ("window_8", second[:4])):
        with pytest.raises(MisuseError, match=f"{ids.numel()} of {ids.numel()} token ids are not"):
            arena.translate(band, ids)
    close(arena)


# B4. sgl-project/sglang#26380, #31687, #26646, #38258
TABLE_WRITES: dict[str, list[ops.Operation]] = {
    "allocation": [ops.Release(0), ops.Extend(1, 8)],  # takes an id whose row the forward reads
    "result processing": [ops.Release(0)],
    "window free": [ops.TrimWindow((1,))],
    "table update of compaction": [ops.Release(0), ops.Compact()],
}


def between_launches(
    arena: Arena,
    writes: list[ops.Operation],
    launch: Callable[[list[int]], int],
    complete: Callable[[int], object],
) -> None:
    """With forwards 2 and 3 in flight, do what writes rows that they read; then launch forward 4."""
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 13)
    complete(launch([0, 1, 2]))
    arena.decode([0, 1, 2])
    launch([2, 1])
    launch([0, 1, 2])
    for operation in writes:
        assert arena.apply(operation)
    launch([1, 2])


@pytest.mark.parametrize("writes", TABLE_WRITES)
@pytest.mark.parametrize("barrier", ["fine", "coarse"])
def test_table_writes_follow_the_reads_of_the_forward_in_flight(
    barrier: str, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the rows: no two accesses are left unordered by the device's streams."""
    run = PaperRun(
        monkeypatch, P3, units=160, page_size=4, barrier=barrier, compact_hole_share=0.0
    )
    between_launches(run.arena, TABLE_WRITES[writes], run.forward, run.complete)

    assert run.races() == []
    assert run.ordered_conflicts("tables", "publish") > 0
    for ticket in list(run.arena.books.tickets.in_flight):
        run.complete(ticket)
    close(run.arena)


@pytest.mark.parametrize("writes", TABLE_WRITES)
@pytest.mark.parametrize("barrier", ["off", "fine"])
def test_without_the_barrier_the_race_is_reported_though_every_byte_is_right(
    barrier: str, writes: str, tmp_path: Path
) -> None:
    """The checker names both streams, the row and the missing edge; the trace says it was off."""
    arena = small_arena(P3, units=160, page_size=4, barrier=barrier, compact_hole_share=0.0)
    with Recorder(tmp_path / "run", arena) as recorder:
        between_launches(arena, TABLE_WRITES[writes], arena.launch, arena.complete)
        close(arena)
    trace = Trace(recorder.directory)
    assert trace.header["arena"]["config"]["barrier"] == barrier
    races = find_races(trace).races
    if barrier == "fine":
        assert races == []
        return
    assert races and {race.edge for race in races} == {"write-after-read (fine)"}
    for race in races:
        assert race.kind == "WAR" and race.ticket in (2, 3)
        assert (race.first.stream, race.second.stream) == ("forward", "schedule")
        assert f"write-after-read barrier (fine) behind ticket {race.ticket}" in race.missing


def test_every_publish_says_which_barrier_is_on() -> None:
    """Also that it is off: nothing turns it off without a word."""
    for barrier in ("fine", "coarse", "off"):
        log = EventLog()
        arena = small_arena(P3, page_size=4, barrier=barrier, observer=log)
        arena.admit(0)
        arena.launch([0])
        arena.extend(0, 4)
        arena.launch([0])
        assert [event.kind for event in log.of(events.Barrier)] == [f"write-after-read ({barrier})"]
        close(arena)


# B5. triton-lang/triton#10743
def executed(batch: events.PageMove, order: list[int], pages: int) -> np.ndarray:
    """Page contents after the copies of one launch, run one by one in this order."""
    content = np.arange(pages)
    for index in order:
        content[batch.destinations[index]] = content[batch.sources[index]]
    return content


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_copies_of_one_launch_give_the_same_bytes_in_any_order(name: str) -> None:
    """Compaction and relocation never emit a chain, a cycle or two copies to one page."""
    batches = 0
    for seed in range(12):
        rng = random.Random(f"chains/{name}/{seed}")
        log = EventLog()
        arena = small_arena(
            LAYOUTS[name], page_size=1, observer=log, compact_hole_share=0.0, headroom_share=0.02
        )
        engine = RandomEngine(rng)
        for _ in range(150):
            engine.step(arena)
        for batch in log.of(events.PageMove):
            batches += 1
            count = batch.sources.size
            pages = int(max(batch.sources.max(), batch.destinations.max())) + 1
            orders = [list(range(count)), list(reversed(range(count)))]
            orders.append(rng.sample(orders[0], count))
            results = [executed(batch, order, pages) for order in orders]
            assert all((result == results[0]).all() for result in results)
            assert np.unique(batch.destinations).size == count == np.unique(batch.sources).size
            assert not np.intersect1d(batch.sources, batch.destinations).size
        engine.drain(arena)
        close(arena)
    assert batches > 10


@pytest.mark.parametrize(
    "chain", [((5, 6), (6, 7)), ((5, 6), (6, 5)), ((5, 6), (7, 7))], ids=["chain", "cycle", "clash"]
)
def test_a_hand_made_batch_whose_bytes_hang_on_the_order_is_recognised(
    chain: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """A chain, a cycle and two copies to one page: the checking device refuses each of them."""
    sources, destinations = (np.array(pages) for pages in chain)
    batch = events.PageMove("full", sources, sources, destinations, 1, True)
    orders = [executed(batch, order, 9) for order in ([0, 1], [1, 0])]
    assert (orders[0] != orders[1]).any()
    _, device, _ = hazardous(P2W, page_size=1)
    assert isinstance(device, HazardDevice)
    with pytest.raises(AssertionError, match="source and destination|names a page twice"):
        device.move(1, sources, destinations)


@pytest.mark.parametrize("bend", ["chain", "clash"])
def test_a_batch_that_hangs_on_the_order_is_found_in_a_trace(tmp_path: Path, bend: str) -> None:
    """The checks of a trace name a copy onto a page that is in use, and two copies onto one page."""
    log = EventLog()
    arena = small_arena(P2W, page_size=1, compact_hole_share=0.0, observer=log)
    with Recorder(tmp_path / "run", arena) as recorder:
        for request in range(8):
            arena.admit(request)
            arena.extend(request, 1)
        for request in (0, 1, 2):
            arena.release(request)
        arena.compact(urgent=True)
        close(arena)
    path = recorder.directory
    assert check_trace(Trace(path)) == []
    move = next(row for row in of_kind(path, Kind.PAGE_MOVE))
    virtual, sources, destinations = unpack_lists(move.payload)
    destinations[0] = sources[1] if bend == "chain" else destinations[1]
    payload = b"".join(pack_list(pages) for pages in (virtual, sources, destinations))

    def bent(row: Row) -> list[Row]:
        return [replace(row, payload=payload) if row.sequence == move.sequence else row]

    rewrite(path, tmp_path / "bent", bent)
    told = "no hole" if bend == "chain" else "two pages moved onto one"
    assert any(told in str(finding) for finding in check_trace(Trace(tmp_path / "bent")))
