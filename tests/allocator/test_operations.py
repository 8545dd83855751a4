"""What each operation does, where its limits lie, and that a refused one changes nothing."""

from __future__ import annotations

import itertools
import random

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.errors import MisuseError, SizingError
from bandscope.allocator.operations import Operation
from bandscope.allocator.plan import plan_from_sizes
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P2W,
    P3,
    P4,
    P5,
    UNIT,
    EventLog,
    RandomEngine,
    held_pages,
    nothing_held,
    page_list,
    small_arena,
)


def live(arena: Arena) -> dict[str, int]:
    return {band.name: band.live for band in arena.books.bands}


def test_admit_gives_state_slots_and_nothing_else() -> None:
    """A request gets the slots it asked for, in the state band only, each its own."""
    arena = small_arena(P3)

    assert arena.admit(5, state_slots=2).ok
    assert arena.admit(6).ok
    assert arena.admit(7, state_slots=0).ok
    assert live(arena) == {"mamba": 3, "window_8": 0, "full": 0}
    slots = page_list(arena, 5, "mamba") + page_list(arena, 6, "mamba")
    assert len(set(slots)) == 3
    assert page_list(arena, 7, "mamba") == []


def test_a_model_without_state_admits_any_number_of_slots_as_none() -> None:
    """Without a state band there is nothing to take, whatever the request says."""
    arena = small_arena(P2W)

    assert arena.admit(0, state_slots=3).ok
    assert held_pages(arena) == nothing_held(arena)


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_extend_holds_whole_pages_at_every_boundary(page_size: int) -> None:
    """0, 1, page − 1, page and page + 1 tokens, twice in a row, are held as ceil(tokens / page)."""
    sizes = sorted({0, 1, max(0, page_size - 1), page_size, page_size + 1})
    for first, second in itertools.product(sizes, repeat=2):
        arena = small_arena(P3, page_size=page_size)
        arena.admit(0)
        arena.extend(0, first)
        pages = -(-first // page_size)
        assert live(arena) == {"mamba": 1, "window_8": pages, "full": pages}
        arena.extend(0, second)
        pages = -(-(first + second) // page_size)

        assert live(arena) == {"mamba": 1, "window_8": pages, "full": pages}
        assert len(page_list(arena, 0, "full")) == pages
        assert arena.books.ledger.length[0] == first + second
        assert arena.check() == []


@pytest.mark.parametrize("page_size", [1, 4])
def test_decode_takes_a_page_only_when_the_last_one_is_full(page_size: int) -> None:
    """Token by token, for requests at different places inside their pages."""
    arena = small_arena(P3, page_size=page_size)
    lengths = {0: 0, 1: 1, 2: page_size}
    for request, tokens in lengths.items():
        arena.admit(request, state_slots=0)
        arena.extend(request, tokens)
    for step in range(1, 5):
        assert arena.decode([2, 0, 1]).ok
        for request, tokens in lengths.items():
            pages = -(-(tokens + step) // page_size)

            assert len(page_list(arena, request, "full")) == pages
            assert len(page_list(arena, request, "window_8")) == pages
    assert arena.decode([]).ok
    assert arena.check() == []


def test_decode_is_all_or_none() -> None:
    """When one of the batch cannot get its page, none gets a token."""
    arena = small_arena(P2M, units=12)
    for request, tokens in ((0, 4), (1, 3), (2, 2)):
        arena.admit(request, state_slots=0)
        arena.extend(request, tokens)
    before = arena.digest()
    refused = arena.decode([1, 2, 0])

    assert (refused.ok, refused.reason) == (False, "memory")
    assert arena.digest() == before
    assert arena.decode([1, 2]).ok
    assert arena.books.ledger.length[:3].tolist() == [4, 4, 3]
    assert arena.decode([1, 2]).reason == "memory"
    assert arena.books.ledger.length[:3].tolist() == [4, 4, 3]


def test_an_arena_can_be_filled_to_the_last_byte() -> None:
    """Sixteen pages of 4 u fill 64 u exactly; the seventeenth, for one token, is refused."""
    arena = small_arena(P2M)
    arena.admit(0, state_slots=0)

    assert arena.extend(0, 64).ok
    assert arena.books.chain.gaps()[-1][1] - arena.books.bands[1].byte_range()[1] == 0
    assert sum(stop - start for start, stop in arena.books.chain.gaps()) == 0
    before = arena.digest()
    refused = arena.extend(0, 1)
    assert (refused.ok, refused.reason) == (False, "memory")
    assert refused.detail == {"demand": (0, 1)}
    assert "1 of full more pages were asked for" in refused.message
    assert arena.digest() == before
    assert arena.extend(0, 0).ok


@pytest.mark.parametrize("units,served", [(24, True), (23, False)])
def test_one_unit_short_is_refused(units: int, served: bool) -> None:
    """A slot of 8 u, a window page of 2 u and three pages on a grid of 4 u end at 32 u, sink and all."""
    arena = small_arena(P3, units=units, page_size=1)

    assert arena.serves([1, 1, 3]) == served
    assert arena.apply(ops.Reserve((1, 1, 3))).ok == served
    assert arena.admit(0).ok
    assert arena.extend(0, 1).ok
    assert arena.serves([0, 0, 2]) == served


def test_bytes_are_lent_across_bands() -> None:
    """Scenario C1: a slot's bytes come from what full attention gave back, moving a page if need be."""
    for leaving in (0, 7, 14):
        arena = small_arena(P2M)
        for request in range(15):
            arena.admit(request, state_slots=0)
            arena.extend(request, 4)
        arena.admit(99, state_slots=0)
        refused = arena.admit(100)
        assert (refused.ok, refused.reason) == (False, "memory")
        assert "mamba" in refused.message and f"{(8 + 60 + 8) * UNIT:,} bytes" in refused.message
        arena.release(leaving)

        assert arena.admit(100).ok
        assert live(arena) == {"mamba": 1, "full": 14}
        assert arena.check() == []


def kept_pages(length: int, window: int, page_size: int) -> list[int]:
    """By the definition: a token at position p attends to keys at positions > p − window."""
    pages = -(-length // page_size)
    return [
        page
        for page in range(pages)
        if any(
            key > length - window for key in range(page * page_size, (page + 1) * page_size)
        )
    ]


@pytest.mark.parametrize("page_size", [1, 2, 4, 5, 16])
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 16])
def test_trimming_keeps_what_the_next_token_attends_to(window: int, page_size: int) -> None:
    """For every length up to 40, grown at once or token by token, compared with the definition."""
    plan = plan_from_sizes(
        [(f"window_{window}", 240 * page_size), ("full", 240 * page_size)], page_size=page_size
    )
    arena = Arena(plan, 1 << 20, device="none", config=ArenaConfig())
    arena.admit(0)
    for length in range(41):
        if length:
            arena.decode([0])
        arena.trim_window([0])
        arena.admit(1)
        arena.extend(1, length)
        held = page_list(arena, 1, f"window_{window}")
        arena.trim_window([1])
        kept = kept_pages(length, window, page_size)
        for request in (0, 1):
            pages, first = arena.pages_of(request, f"window_{window}")
            assert list(range(first, first + pages.size)) == (kept or [first][:0])
        assert page_list(arena, 1, f"window_{window}") == [held[page] for page in kept]
        assert len(page_list(arena, 1, "full")) == -(-length // page_size)
        assert arena.check() == []
        arena.release(1)


def test_several_windows_trim_independently() -> None:
    """Each window band keeps its own tail; full attention keeps everything."""
    arena = small_arena(P5, page_size=2)
    arena.admit(0)
    arena.admit(1)
    for tokens in (10, 9, 1):
        arena.extend(0, tokens)
        arena.trim_window([0, 1])
    expected = {
        f"window_{window}": kept_pages(20, window, 2) for window in (32, 16, 8)
    }

    assert {
        name: list(range(arena.pages_of(0, name)[1], 10)) for name in expected
    } == expected
    assert live(arena) == {"mamba": 2, "window_32": 10, "window_16": 8, "window_8": 4, "full": 10}
    assert arena.trim_window([0]).ok
    assert live(arena)["window_8"] == 4
    assert arena.check() == []


def test_a_window_of_unstated_length_keeps_everything() -> None:
    """Without a length no page may be dropped."""
    arena = small_arena(([("window", 2), ("full", 4)], 64), page_size=1)
    arena.admit(0)
    arena.extend(0, 9)
    arena.trim_window([0])

    assert live(arena) == {"window": 9, "full": 9}


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_every_cut_point_of_a_release_frees_each_page_once(page_size: int) -> None:
    """Scenario A1: trimmed at any length, between chunks or not, a release leaves nothing held."""
    for length, trimmed, rest in itertools.product(range(15), (False, True), (0, 3)):
        arena = small_arena(P2W, page_size=page_size)
        arena.admit(1)
        arena.extend(1, 2 * page_size)
        arena.admit(0)
        arena.extend(0, length)
        if trimmed:
            arena.trim_window([0])
        arena.extend(0, rest)
        assert arena.check() == []
        arena.release(0, why="aborted")

        assert live(arena) == {"window_8": 2, "full": 2}
        assert arena.check() == []
        with pytest.raises(MisuseError, match="request 0 is not running"):
            arena.release(0)


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("stop", range(5))
def test_unaligned_growth_strands_no_page(page_size: int, stop: int) -> None:
    """Scenario A4: look-ahead to 6, 9, 10, 13 tokens holds ceil(target / page), and then nothing."""
    arena = small_arena(P3, page_size=page_size)
    arena.admit(0)
    length = 0
    for target in (6, 9, 10, 13)[:stop]:
        arena.extend(0, target - length)
        length = target
        assert live(arena)["full"] == -(-target // page_size)
        arena.complete(arena.launch([0]))
    arena.release(0, why="retracted")

    assert held_pages(arena) == nothing_held(arena)


ABORTS = ("admitted", "extended", "trimmed", "launched", "decoded", "leased", "completed")


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("state", ABORTS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_abort_at_any_state_leaves_nothing(name: str, state: str, page_size: int) -> None:
    """Wherever a request is stopped, once work and leases end no page, id or pin is left."""
    arena = small_arena(LAYOUTS[name], page_size=page_size)
    arena.admit(0)
    steps = ABORTS[: ABORTS.index(state) + 1]
    tickets, leases = [], []
    if "extended" in steps:
        arena.extend(0, page_size + 1)
    if "trimmed" in steps:
        arena.trim_window([0])
    if "launched" in steps:
        tickets.append(arena.launch([0]))
    if "decoded" in steps:
        arena.decode([0])
        tickets.append(arena.launch([0]))
    if "leased" in steps:
        leases.append(arena.lease(0, "full", 0, 2))
    if "completed" in steps:
        arena.complete(tickets.pop(0))
    arena.release(0, why="aborted")
    assert arena.check() == []
    for lease in leases:
        arena.end_lease(lease)
    for ticket in tickets:
        arena.complete(ticket)

    assert held_pages(arena) == nothing_held(arena)
    assert arena.books.ids.free_count == arena.books.ids.capacity
    assert arena.books.state_ids.free_count == arena.books.state_ids.capacity
    assert len(arena.books.ledger) == 0
    assert arena.books.pins.deferred == [0] * len(arena.books.bands)
    assert arena.check() == []


def test_refused_admissions_leak_no_slot() -> None:
    """Scenario A5: a hundred refusals and aborts hold exactly as many slots as before."""
    arena = small_arena(P2M)
    arena.admit(0, state_slots=7)
    for request in range(1, 101):
        before = arena.digest()
        assert arena.admit(request, state_slots=2).reason == "memory"
        assert arena.digest() == before
        assert arena.admit(request).ok
        arena.release(request, why="aborted")

    assert live(arena) == {"mamba": 7, "full": 0}
    assert arena.check() == []


MISUSES: list[tuple[Operation, str]] = [
    (ops.Admit(0), "request 0 was admitted twice"),
    (ops.Admit(-1), "give a request from 0"),
    (ops.Admit(50, -1), "give a request from 0"),
    (ops.Extend(50, 1), "request 50 is not running"),
    (ops.Extend(0, -1), "extended by -1 tokens; extend by 0 or more"),
    (ops.Decode((0, 50)), "request 50 is not running"),
    (ops.Decode((0, 1, 0)), "names one of them twice"),
    (ops.TrimWindow((50,)), "request 50 is not running"),
    (ops.TrimWindow((1, 1)), "names one of them twice"),
    (ops.Release(50), "request 50 is not running"),
    (ops.Launch((0, 50)), "request 50 is not running"),
    (ops.Launch((0, 0)), "names one of them twice"),
    (ops.Complete(0), "ticket 0 was reported complete"),
    (ops.Complete(1), r"tickets in flight are \[2\]"),
    (ops.Complete(3), "complete each launched ticket once"),
    (ops.Compact(max_moves=-1), "ask for 0 or more"),
    (ops.Reserve((1, 1)), "pages ≥ 0 for each of the bands mamba, window_8, full"),
    (ops.Reserve((0, -1, 0)), "pages ≥ 0 for each of the bands"),
    (ops.Lease(50, "full", 0, 1), "request 50 is not running"),
    (ops.Lease(0, "half", 0, 1), "band 'half'; the bands are mamba, window_8, full"),
    (ops.Lease(0, "full", 0, 6), "holds pages 0 to 5"),
    (ops.Lease(0, "full", 2, 2), "lease pages that are held"),
    (ops.Lease(0, "full", -1, 2), "lease pages that are held"),
    (ops.Lease(0, "window_8", 0, 4), "holds pages 3 to 5"),
    (ops.Lease(0, "mamba", 0, 2), "holds pages 0 to 1"),
    (ops.EndLease(0), r"lease 0 was named, but it never began \(held: \[1\]\)"),
    (ops.EndLease(2), "end each lease once"),
    (ops.EndLease(1, "a stranger"), "ended by 'a stranger', but 'engine' holds it"),
    (ops.Lease(0, "full", 0, 1, purpose="fun"), "the purposes are forward, host copy, transfer"),
]


@pytest.mark.parametrize("operation,message", MISUSES, ids=lambda value: str(value)[:40])
def test_misuse_is_refused_and_changes_nothing(operation: Operation, message: str) -> None:
    """Each illegal operation names what was wrong; the digest stays, and the state stays healthy."""
    arena = small_arena(P3)
    for request in (0, 1):
        arena.admit(request)
        arena.extend(request, 20 if request == 0 else 4)
    arena.trim_window([0, 1])
    arena.complete(arena.launch([0]))
    arena.launch([1])
    arena.lease(0, "full", 1, 3)
    before = arena.digest()
    outcome = arena.apply(operation)

    assert (outcome.ok, outcome.reason) == (False, "misuse")
    with pytest.raises(MisuseError, match=message):
        raise MisuseError(outcome.message)
    assert arena.digest() == before
    assert arena.check() == []


def test_the_named_methods_raise_on_misuse_and_return_refusals() -> None:
    """An engine's mistakes are exceptions; a lack of memory is an outcome that is false."""
    arena = small_arena(P2M, units=12)
    arena.admit(0, state_slots=0)

    with pytest.raises(MisuseError):
        arena.complete(1)
    with pytest.raises(MisuseError):
        arena.lease(0, "full", 0, 1)
    assert not arena.extend(0, 1000)
    assert arena.extend(0, 8)


@pytest.mark.parametrize("tokens", [10**6, 10**12, 2**62, 2**63, 2**70])
def test_absurd_sizes_are_refused_as_memory(tokens: int) -> None:
    """A demand beyond every integer width is refused like any other that does not fit."""
    arena = small_arena(P3)
    arena.admit(0)
    before = arena.digest()

    assert arena.extend(0, tokens).reason == "memory"
    assert arena.admit(1, state_slots=tokens).reason == "memory"
    assert arena.apply(ops.Reserve((tokens, 0, 0))).reason == "memory"
    assert arena.digest() == before
    assert arena.check() == []


def test_reserve_moves_now_what_a_later_demand_needs() -> None:
    """After a reservation the demand fits with no page moved, and nothing was taken."""
    arena = small_arena(P3, page_size=1)
    for request in range(3):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    held = live(arena)

    assert arena.books.chain.grant([6, 0, 0]) is None
    assert arena.apply(ops.Reserve((3, 0, 0))).ok
    assert live(arena) == held
    assert arena.books.chain.grant([3, 0, 0]) is not None
    assert arena.check() == []


def test_launch_counts_tickets_from_one() -> None:
    """Tickets are dealt in order, also to a forward over no request."""
    arena = small_arena(P2W)
    arena.admit(0)

    assert [arena.launch([0]), arena.launch([]), arena.launch([0])] == [1, 2, 3]
    assert arena.books.tickets.in_flight.keys() == {1, 2, 3}


def test_pages_of_names_the_tail_of_a_window() -> None:
    """Windows start at the first page they keep; other bands at 0."""
    arena = small_arena(P3)
    arena.admit(0)
    arena.extend(0, 20)
    arena.trim_window([0])

    assert arena.pages_of(0, "window_8")[1] == 3
    assert len(page_list(arena, 0, "window_8")) == 2
    assert arena.pages_of(0, "full")[1] == 0
    assert arena.pages_of(0, "mamba")[0].size == 1
    with pytest.raises(MisuseError, match="request 4 is not running"):
        arena.pages_of(4, "full")


def test_facts_are_exact_where_they_say_so() -> None:
    """Per band: bytes of the extent, pages live, free inside, waiting and pinned."""
    arena = small_arena(P3)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 8)
    arena.release(1)
    arena.launch([0])
    arena.lease(2, "full", 0, 2)
    arena.release(2)
    facts = {fact.name: fact for fact in arena.facts()}

    for band in arena.books.bands:
        fact = facts[band.name]
        assert (fact.live, fact.holes, fact.pending) == (band.live, band.holes, band.pending)
        assert (fact.start_byte, fact.stop_byte) == band.byte_range()
        assert fact.live + fact.holes + fact.pending == band.extent
    assert (facts["full"].pinned, facts["full"].pending) == (2, 2)
    assert (facts["mamba"].live, facts["mamba"].pending, facts["mamba"].holes) == (1, 1, 1)
    for index, fact in enumerate(arena.facts()):
        demand = [0] * 3
        demand[index] = fact.available_estimate
        assert arena.serves(demand)
        demand[index] += 1
        assert not arena.serves(demand)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_estimate_of_each_band_alone_is_exact(name: str) -> None:
    """In random states, with pins and a closed gate: what is called available is served, one more
    page is not."""
    for seed in range(6):
        rng = random.Random(f"estimate/{name}/{seed}")
        arena = small_arena(LAYOUTS[name], page_size=rng.choice([1, 2]))
        engine = RandomEngine(rng, illegal=False)
        for _ in range(60):
            engine.step(arena)
            for index, fact in enumerate(arena.facts()):
                demand = [0] * len(arena.books.bands)
                demand[index] = fact.available_estimate
                assert arena.serves(demand)
                demand[index] += 1
                assert not arena.serves(demand)


def test_an_arena_too_small_for_a_page_of_each_band_is_refused() -> None:
    """The message lists every term of what is needed."""
    plan = plan_from_sizes([(name, size * UNIT) for name, size in P4[0]], page_size=1)
    needed = (7 + 7 + 1 + 3 + 2 + 5) * UNIT  # one unit for the grid of the pages of 3

    assert Arena(plan, needed, device="none").total_bytes == needed
    with pytest.raises(SizingError, match="sink 1,792 . one page of mamba 1,792"):
        Arena(plan, needed - 1, device="none")


@pytest.mark.parametrize(
    "settings",
    [
        {"hand_out": "dirty"},
        {"hand_out_state": "dirty"},
        {"barrier": "loose"},
        {"max_moves": -1},
        {"compact_hole_share": 1.5},
        {"compact_hole_share": -0.1},
        {"headroom_share": -1},
    ],
    ids=str,
)
def test_unknown_policies_are_refused(settings: dict[str, object]) -> None:
    """A configuration out of range is an error when it is made, not when it is used."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        ArenaConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("request_number", [2**63, 2**70])
def test_a_request_number_beyond_64_bits_is_refused_whole(request_number: int) -> None:
    """The number does not fit the ledger: misuse, and the digest stays."""
    arena = small_arena(P3)
    before = arena.digest()
    outcome = arena.apply(ops.Admit(request_number))

    assert outcome.reason == "misuse"
    assert arena.digest() == before
    assert arena.apply(ops.Admit(2**63 - 1)).ok


def test_what_is_no_operation_or_band_is_refused_by_name() -> None:
    """One sentence instead of a key error; an observer hears nothing of it."""
    log = EventLog()
    arena = small_arena(P3, observer=log)
    arena.admit(0)
    log.clear()

    with pytest.raises(MisuseError, match="none of the operations of an arena"):
        arena.apply(ops.Operation())
    with pytest.raises(MisuseError, match="band 'half' was named; the bands are mamba"):
        arena.pages_of(0, "half")
    assert log.effects == []


def test_an_observer_that_comes_late_starts_from_the_extents_as_they_are() -> None:
    """Its first band move begins where the extent was, not at nothing."""
    arena = small_arena(P3, page_size=1)
    arena.admit(0)
    arena.extend(0, 4)
    full = arena.books.bands[arena.books.full]
    before = full.byte_range()
    arena.books.observer = log = EventLog()
    arena.extend(0, 1)
    moves = [event for event in log.effects if isinstance(event, events.BandMove)]

    assert [move.before for move in moves if move.band == "full"] == [before]


def test_urgent_compaction_with_nothing_to_do_places_no_barrier() -> None:
    """No hole and no pending page: launched work is left alone."""
    log = EventLog()
    arena = small_arena(P3, observer=log)
    arena.admit(0)
    arena.extend(0, 8)
    arena.launch([0])
    log.clear()

    assert arena.compact(urgent=True) == 0
    assert log.effects == []
