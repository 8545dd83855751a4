"""Group C: admission, capacity and accounting: what fits is served, what does not is refused, and the
books say so at every moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE
from bandscope.allocator.errors import SizingError
from bandscope.allocator.plan import plan_from_sizes
from bandscope.allocator.sizing import check_one_request_floor, floor_pages, usable_bytes
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P3,
    UNIT,
    EventLog,
    RandomEngine,
    held_pages,
    page_list,
    small_arena,
)
from tests.scenarios.closing import close, refused


# C1. sgl-project/sglang#34441
def starved(band: str, observer: EventLog) -> tuple[Arena, ops.Operation]:
    """P2m with all but 4 u (`mamba`: 0 u) held by one-page requests of the other band, and an
    operation that asks `band` for one page more than the gap holds."""
    arena = small_arena(P2M, observer=observer)
    if band == "mamba":
        for request in range(15):
            arena.admit(request, state_slots=0)
            assert arena.extend(request, 4)
        return arena, ops.Admit(99, state_slots=1)
    for request in range(8):
        assert arena.admit(request)
    arena.admit(99, state_slots=0)
    return arena, ops.Extend(99, 4)


@pytest.mark.parametrize("band", ["mamba", "full"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_starved_band_is_served_by_one_page_of_its_neighbour(band: str, inner: bool) -> None:
    """One page given back by the other band is enough, wherever it lay: at most one page moves. When
    nobody gives anything back, the refusal shows the bytes."""
    log = EventLog()
    arena, operation = starved(band, log)
    outcome = refused(arena, operation, "memory")
    demand = (1, 0) if band == "mamba" else (0, 1)
    assert outcome.detail == {"demand": demand}
    held = 8 * UNIT + (68 if band == "mamba" else 68) * UNIT
    assert f"{held:,} bytes would be held of {72 * UNIT:,}" in outcome.message
    (refusal,) = log.of(events.Refusal)
    assert refusal.live == tuple(known.live for known in arena.books.bands)
    # The other band's frontier is its newest page; page 0 of it lies at its base.
    arena.release(0 if inner else (14 if band == "mamba" else 7))
    log.clear()
    assert arena.apply(operation)

    moved = sum(event.sources.size for event in log.of(events.PageMove))
    assert moved == (1 if inner else 0)
    assert held_pages(arena)[0 if band == "mamba" else 1][1] == 1
    close(arena)


# C2. sgl-project/sglang#35158
def test_an_arena_too_small_for_one_request_is_refused_with_every_term() -> None:
    """P3 needs 1 slot, 3 window pages and 1 page of full attention: 18 u, and 2 u for the grids."""
    bands, _ = P3
    plan = plan_from_sizes([(name, units * UNIT) for name, units in bands], page_size=4)
    assert floor_pages(plan) == [1, 3, 1]
    sink = plan.sink_bytes
    for units in (17, 19):
        with pytest.raises(SizingError) as refusal:
            check_one_request_floor(plan, sink + units * UNIT)
        text = str(refusal.value)
        for term in (
            "sink 2,048", "1 slot of mamba 2,048", "3 pages of window_8 1,536",
            "1 page of full 1,024", "rounding to page grids 512",
        ):  # fmt: skip
            assert term in text
    with pytest.raises(SizingError, match="one page of every band needs"):
        small_arena(P3, units=13)
    for units in (20, 21, 22, 23, 96):
        check_one_request_floor(plan, sink + units * UNIT)


@pytest.mark.parametrize("units", [20, 21, 22, 23, 96])
def test_at_the_floor_one_request_runs_alone_to_its_end(units: int) -> None:
    """It decodes, trims, and is never asked to give way to itself, as long as full has room."""
    arena = small_arena(P3, units=units, page_size=4)
    arena.admit(0)
    steps = 4 * ((units - 14) // 4)
    for _ in range(steps):
        assert arena.decode([0])
        arena.trim_window([0])
        assert arena.complete(arena.launch([0]))
        assert arena.check() == []
    close(arena)


def test_usable_bytes_and_the_stated_rounding_are_the_budget() -> None:
    """Odd byte budgets: what is between the sink and the end is extents and gaps, to the byte."""
    bands, _ = P3
    plan = plan_from_sizes([(name, units * UNIT) for name, units in bands], page_size=4)
    for budget in (plan.sink_bytes + 22 * UNIT + odd for odd in (0, 1, 255, 256, 257, 700)):
        arena = Arena(plan, budget, device="none")
        assert 0 <= budget - arena.total_bytes < UNIT
        assert arena.total_bytes == usable_bytes(budget)
        arena.admit(0)
        arena.extend(0, 4)
        spans = [band.byte_range() for band in arena.books.bands]
        gaps = arena.books.chain.gaps()
        assert sum(stop - start for start, stop in [*spans, *gaps]) == (
            arena.total_bytes - plan.sink_bytes
        )
        close(arena)
    full = small_arena(P2M, units=16, page_size=4)  # 8 u of state and 8 u of tokens: to the last byte
    assert full.serves((1, 2)) and not full.serves((1, 3))
    assert full.admit(0) and full.extend(0, 8)
    assert all(start == stop for start, stop in full.books.chain.gaps())
    refused(full, ops.Extend(0, 1), "memory")
    close(full)


def drifts(arena: Arena) -> Iterator[tuple[str, str, Callable[[int], None]]]:
    """(band, term, how to make it drift by one page)."""
    for band in arena.books.bands:
        for term in ("live", "holes", "pending"):

            def shift(by: int, band: object = band, term: str = term) -> None:
                setattr(band, term, getattr(band, term) + by)

            yield band.name, f"{term} pages", shift

        def widen(by: int, band: object = band) -> None:
            band.high += by  # type: ignore[attr-defined]

        yield band.name, "neither live, hole nor pending", widen

        def hole(by: int, band: object = band) -> None:
            band._block_holes[0] += by  # type: ignore[attr-defined]

        yield band.name, "holes by block", hole


def test_a_counter_that_drifts_by_one_page_is_named_with_its_band() -> None:
    """Each counter of each band, one at a time; undone, the arena is healthy again."""
    arena = small_arena(P3, page_size=1)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 3)
    arena.release(1)
    arena.launch([0])
    arena.release(2)
    assert arena.check() == []
    names = set()
    for band, term, shift in list(drifts(arena)):
        shift(1)
        found = [str(violation) for violation in arena.check()]
        assert any(f"band {band}" in text and term in text for text in found), (band, term, found)
        shift(-1)
        assert arena.check() == []
        names.add((band, term))
    assert len(names) == 15
    pending = arena.books.tickets._pending
    lost = pending.popleft()  # pages that nobody will reclaim
    band = arena.books.bands[lost[1]].name
    told = f"band {band}: {lost[2].size} pages are pending, 0 wait"
    assert any(told in str(one) for one in arena.check())
    pending.appendleft(lost)
    close(arena)


# C3. sgl-project/sglang#38837
def fresh_answer(arena: Arena, twin: Arena, demand: tuple[int, ...]) -> bool:
    """Whether the demand is served by an arena that knows the state only, and really makes room."""
    twin.restore(arena.snapshot())
    served = twin.serves(demand)
    assert twin.apply(ops.Reserve(demand)).ok is served
    return served


def test_capacity_follows_the_gate_at_once() -> None:
    """Three holes in `full`: what `mamba` can have depends on whether they may be closed."""
    arena = small_arena(P2M, page_size=1)
    for request in range(16):
        arena.admit(request, state_slots=0)
        arena.extend(request, 1)
    for request in (2, 3, 5):
        arena.release(request)
    for closed in (False, True, False, True, True, False):
        arena.set_gate(closed=closed)
        assert arena.serves((1, 0)) is not closed
        assert arena.serves((0, 3)) and not arena.serves((0, 4))
        assert not arena.serves((2, 0))
    close(arena)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_capacity_answer_is_the_fresh_one_through_gate_flips_and_leases(name: str) -> None:
    """A hundred flips; each answer is that of a new arena in the same state, and then comes true."""
    rng = random.Random(f"gates/{name}")
    arena, twin = (small_arena(LAYOUTS[name], page_size=1) for _ in range(2))
    engine = RandomEngine(rng, gate=False, illegal=False)
    answers = set()
    demands = [
        tuple(rng.choice([0, 0, 1, 2, 5]) for _ in arena.books.bands) for _ in range(6)
    ]
    for flip in range(100):
        if flip % 10 == 0:
            for _ in range(12):
                engine.step(arena)
        arena.set_gate(closed=flip % 2 == 0)
        engine.closed = False
        for demand in demands[flip % 2 :: 2]:
            answer = arena.serves(demand)
            assert answer is fresh_answer(arena, twin, demand)
            answers.add(answer)
    assert answers == {True, False}
    close(arena)


# C4. sgl-project/sglang#36770, #33773
def test_a_slot_that_cannot_be_had_is_a_refusal_and_the_request_goes_on() -> None:
    """Two slots run, two are being written back after their owners left; a third party finds none."""
    log = EventLog()
    arena = small_arena(P2M, page_size=4, observer=log)
    for request in range(4):
        arena.admit(request)
    arena.extend(0, 28)  # the other half of the arena
    arena.extend(1, 1)
    leases = [arena.lease(request, "mamba", 0, 1, holder="write back") for request in (2, 3)]
    for request in (2, 3):
        arena.release(request)
    outcome = refused(arena, ops.Admit(9), "memory")
    assert outcome.detail == {"demand": (1, 0)}
    (refusal,) = log.of(events.Refusal)
    assert refusal.live == (2, 8) and refusal.fixed == ((2, 4), None)
    assert arena.facts()[0].pinned == arena.facts()[0].pending == 2
    assert arena.complete(arena.launch([0, 1]))  # goes on
    refused(arena, ops.Extend(0, 4), "memory")
    refused(arena, ops.Decode((1, 0)), "memory")  # request 1 has room for its token
    assert arena.decode([1])
    refused(arena, ops.Admit(9), "memory")
    arena.end_lease(leases[0])
    assert arena.admit(9)
    refused(arena, ops.Admit(10), "memory")
    arena.end_lease(leases[1])
    assert arena.admit(10)
    close(arena)


# C5. sgl-project/sglang#16067, #12432
LIFE: list[tuple[str, list[ops.Operation]]] = [
    ("admitted, no token yet", [ops.Admit(0), ops.Admit(1)]),
    ("prefilled, not launched", [ops.Extend(0, 13), ops.Extend(1, 6)]),
    ("running", [ops.Launch((0, 1))]),
    ("look-ahead token", [ops.Decode((0, 1))]),
    ("window trimmed behind a forward", [ops.Launch((0,)), ops.TrimWindow((0, 1))]),
    ("in write-back", [ops.Lease(0, "full", 0, 2), ops.Lease(0, "mamba", 0, 1, "transfer")]),
    ("in two transfers at once", [ops.Lease(0, "full", 1, 4, "peer", "transfer")]),
    ("retracted under its leases", [ops.Release(0, "retracted")]),
    ("gate closed", [ops.SetGate(True), ops.Compact(True)]),
    ("admitted again", [ops.SetGate(False), ops.Admit(0), ops.Extend(0, 4)]),
    ("transferred, not queued", [ops.EndLease(1), ops.EndLease(2), ops.EndLease(3)]),
    ("pending behind a forward", [ops.Release(1)]),
    ("first forward done", [ops.Complete(1)]),
    ("all forwards done", [ops.Complete(2)]),
]


def test_a_healthy_arena_is_reported_clean_at_every_step_of_a_life_and_a_leak_is_not() -> None:
    """At each point: no report; every page of every extent has exactly one class; a page that is
    taken for nobody is reported at the same point."""
    arena = small_arena(P3, page_size=4)
    leaky = small_arena(P3, page_size=4)
    for point, operations in LIFE:
        for operation in operations:
            assert arena.apply(operation), (point, operation)
        assert arena.check() == [], point
        for band, facts in zip(arena.books.bands, arena.facts(), strict=True):
            assert facts.live + facts.holes + facts.pending == band.extent, point
            owners = list(arena.books.ledger.row_of)
            owned = [page for owner in owners for page in page_list(arena, owner, band.name)]
            assert len(set(owned)) == len(owned) == facts.live, point
        leaky.restore(arena.snapshot())
        assert leaky.check() == [], point
        for band in leaky.books.bands:
            demand = [int(other is band) for other in leaky.books.bands]
            regions = leaky.books.make_room(demand)
            assert isinstance(regions, list), point
            space = leaky.books.state_ids if band.index == 0 else leaky.books.ids
            leaky.books.take(band, space.mint(1), regions[band.index], 0)
            found = [str(violation) for violation in leaky.check()]
            assert any(f"band {band.name}: 1 live pages belong to no request" in text for text in found)
            leaky.restore(arena.snapshot())
    close(arena)


def test_a_lost_page_is_found_though_every_total_is_right() -> None:
    """A live page is marked a hole, and a hole live: the sums stay, the sets do not."""
    arena = small_arena(P3, page_size=1)
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 2)
    arena.release(1)
    full = arena.books.bands[2]
    hole = int(full.holes_between(0, full.high)[0])
    lost = int(full.table.place_of[arena.books.ledger.token_pages(0)[0]])
    full.state[lost], full.state[hole] = HOLE, full.state[lost]
    assert any("mapped but not live or the reverse" in str(one) for one in arena.check())
