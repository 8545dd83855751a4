"""The model: healthy arenas break no rule in thousands of steps, and each rule is broken by an effect
that is not so."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Outcome
from bandscope.fuzz.model import Expectation, Model
from tests.allocator.arenas import LAYOUTS, RandomEngine
from tests.fuzz.modelling import (
    EAGER,
    PATIENT,
    Watched,
    altered_run,
    layout_of,
    random_run,
)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_healthy_arenas_break_no_rule(name: str, page_size: int) -> None:
    for seed, (policies, barrier) in enumerate(
        itertools.product((EAGER, PATIENT), ("fine", "coarse", "off"))
    ):
        random_run(layout_of(name, page_size, barrier=barrier, **policies), seed, 250)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_healthy_arenas_break_no_rule_for_long(name: str, page_size: int) -> None:
    for seed in range(12):
        policies = (EAGER, PATIENT)[seed % 2]
        units = LAYOUTS[name][1] * (1 + seed % 3)
        random_run(layout_of(name, page_size, units=units, **policies), 100 + seed, 3000)


# --- rules ----------------------------------------------------------------------------------------

# P3 with one token to a page: mamba 8 u, window_8 2 u, full 4 u in 160 u beside the sink of 8 u.
P3 = layout_of("P3", units=160)
TWO = [ops.Admit(0), ops.Extend(0, 4), ops.Admit(1), ops.Extend(1, 4)]
HOLES = [*TWO, ops.Admit(2), ops.Extend(2, 4), ops.Release(1)]
FLYING = [*TWO, ops.Launch((0, 1))]
# Request 0 lies before the holes that 1 leaves, 2 behind them.
MOVES = [*HOLES, ops.Launch((0,)), ops.Complete(1)]
SMALL_CAP = layout_of("P3", units=160, max_moves=3)
NO_CAP = ops.Compact(urgent=True)


def other_holder(model: Model, holder: Any, *rest: Any) -> tuple[Any, ...]:
    return (holder + 1, *rest)


def nothing(model: Model, *fields: Any) -> None:
    return None


def field(place: int, value: Any) -> Any:
    """A change of one field, by its place, to `value` or to what `value(old)` is."""

    def change(model: Model, *fields: Any) -> tuple[Any, ...]:
        new = value(fields[place]) if callable(value) else value
        return (*fields[:place], new, *fields[place + 1 :])

    return change


def of_band(name: str, change: Any) -> Any:
    """The change, for effects of one band only."""

    def only(model: Model, *fields: Any) -> Any:
        named = any(isinstance(value, str) and value == name for value in fields)
        return change(model, *fields) if named else fields

    return only


def also(method: str, *told: Any) -> Any:
    """The effect, and after it another one that nothing did."""

    def both(model: Model, *fields: Any) -> tuple[Any, ...]:
        getattr(model, method)(*told)
        return (*fields,)

    return both


def places_of(model: Model, band: str, pages: list[int]) -> np.ndarray:
    book = model.by_name[band]
    return np.array(book.physical([book.place_of[page] for page in pages]))


def onto_a_live_page(model: Model, *fields: Any) -> tuple[Any, ...]:
    return (*fields[:3], places_of(model, "full", [0] * fields[3].size)[:1], *fields[4:])


def first_only(pages: np.ndarray) -> np.ndarray:
    return pages[:1].repeat(pages.size)


def pin_all(model: Model, *fields: Any) -> tuple[Any, ...]:
    for place in model.by_name[fields[0]].places(fields[2].tolist()):
        model.by_name[fields[0]].pin_count[place] = 1
    return (*fields,)


def pin_destinations(model: Model, *fields: Any) -> tuple[Any, ...]:
    for place in model.by_name[fields[0]].places(fields[3].tolist()):
        model.by_name[fields[0]].pin_count[place] = 1
    return (*fields,)


def close_gate(model: Model, *fields: Any) -> tuple[Any, ...]:
    model.gate_closed = True
    return (*fields,)


def settle_nothing(model: Model, *fields: Any) -> tuple[Any, ...]:
    """As if the barrier before had not been there."""
    model.ordered_through = 0
    return (*fields,)


def swap_bytes(model: Model, *fields: Any) -> tuple[Any, ...]:
    return (*fields[:4], fields[4] // 2, fields[5])


TAKE = ops.Extend(0, 2)
RULES: dict[str, tuple[Any, list[Any], Any, str, Any, str]] = {
    # Taking.
    "a page in use is handed out": (
        P3, TWO, TAKE, "lease_begin",
        of_band("full", lambda m, *f: (*f[:3], places_of(m, "full", [4, 5]), f[4])), "ownership"),
    "the sink is handed out": (
        P3, TWO, TAKE, "lease_begin", of_band("full", field(3, lambda p: p * 0)), "order"),
    "a page is handed out twice at once": (
        P3, TWO, TAKE, "lease_begin", of_band("full", field(3, first_only)), "ownership"),
    "a page that launched work may touch is handed out": (
        P3, [*FLYING, ops.Admit(2, 0), ops.Release(1)], ops.Extend(2, 1), "lease_begin",
        of_band("full", lambda m, *f: (*f[:3], np.array([m.full.base - 6]), f[4])),
        "happens_before"),
    "a pinned page is handed out": (
        P3, [*HOLES[:-1], ops.Lease(1, "full", 0, 1), ops.Release(1)], TAKE, "lease_begin",
        of_band("full", lambda m, *f: (*f[:3], m.full.base - np.array([4, 5]), f[4])), "pins"),
    "an id in use is handed out": (
        P3, TWO, TAKE, "lease_begin", field(2, lambda v: v * 0 + [4, 5]), "ids"),
    "an id beyond all is handed out": (
        P3, TWO, TAKE, "lease_begin", field(2, lambda v: v + 10_000), "ids"),
    "−1 is handed out": (P3, TWO, TAKE, "lease_begin", field(2, lambda v: v * 0 - [1, 2]), "ids"),
    "bands bind different ids": (
        P3, TWO, TAKE, "lease_begin", of_band("full", field(2, lambda v: v + 2)), "ids"),
    "too few pages are taken": (
        P3, TWO, TAKE, "lease_begin",
        of_band("full", lambda m, *f: (*f[:2], f[2][:1], f[3][:1], f[4])), "ownership"),
    "nothing is taken": (P3, TWO, TAKE, "lease_begin", of_band("full", nothing), "ownership"),
    "another request is given pages": (P3, TWO, TAKE, "lease_begin", other_holder, "ownership"),
    "a batch's pages go to the wrong requests": (
        P3, TWO, ops.Decode((0, 1)), "lease_begin", field(0, lambda h: h[::-1]), "ownership"),
    "a band grows although it has holes": (
        P3, HOLES, TAKE, "lease_begin", of_band("full", field(3, lambda p: p - 8)), "conservation"),
    "a band grows over its neighbour": (
        P3, TWO, TAKE, "lease_begin", of_band("full", field(3, lambda p: p - 22)), "order"),
    # Dropping.
    "other pages are dropped": (
        P3, TWO, ops.Release(1), "lease_end", of_band("full", field(2, lambda v: v - 1)),
        "ownership"),
    "nothing is dropped": (
        P3, TWO, ops.Release(1), "lease_end", of_band("full", nothing), "ownership"),
    "another request drops pages": (
        P3, TWO, ops.Release(1), "lease_end", other_holder, "ownership"),
    "a window is trimmed too far": (
        P3, [*TWO, ops.Extend(0, 6)], ops.TrimWindow((0,)), "lease_end",
        field(2, lambda v: np.append(v, v[-1] + 1)), "ownership"),
    "freed pages do not wait for launched work": (
        P3, FLYING, ops.Release(1), "pending", nothing, "happens_before"),
    "freed pages wait for an older ticket": (
        P3, FLYING, ops.Release(1), "pending", field(2, 0), "happens_before"),
    "other pages wait": (
        P3, FLYING, ops.Release(1), "pending", field(1, lambda p: p[:1]), "happens_before"),
    "pages are reclaimed early": (
        P3, [*FLYING, ops.Launch((0,)), ops.Release(1)], ops.Complete(1), "done",
        lambda m, *f: also("reclaim", "full", m.full.base - np.arange(4, 8))(m, *f),
        "happens_before"),
    "pages are never reclaimed": (
        P3, [*FLYING, ops.Release(1)], ops.Complete(1), "reclaim", of_band("full", nothing),
        "capacity"),
    "pages are reclaimed that do not wait": (
        P3, [*FLYING, ops.Release(1)], ops.Complete(1), "reclaim", field(1, lambda p: p[:1]),
        "happens_before"),
    # Moving.
    "a page moves while the gate is closed": (P3, MOVES, NO_CAP, "page_move", close_gate, "pins"),
    "a pinned page moves": (P3, MOVES, NO_CAP, "page_move", pin_all, "pins"),
    "a page moves to a pinned place": (
        P3, MOVES, NO_CAP, "page_move", pin_destinations, "pins"),
    "a page moves onto a live one": (
        P3, MOVES, NO_CAP, "page_move", of_band("full", onto_a_live_page), "content"),
    "two pages move to one place": (
        P3, MOVES, NO_CAP, "page_move", of_band("full", field(3, first_only)), "content"),
    "a page moves out of the arena": (
        P3, MOVES, NO_CAP, "page_move", of_band("full", field(3, lambda p: p * 0)), "order"),
    "the table follows another page": (
        P3, MOVES, NO_CAP, "page_move", of_band("full", field(1, lambda v: v[::-1])), "tables"),
    "half a page moves": (P3, MOVES, NO_CAP, "page_move", swap_bytes, "content"),
    "an urgent pass moves quietly": (
        P3, MOVES, NO_CAP, "page_move", field(5, False), "caps"),
    "a quiet pass moves urgently": (
        P3, MOVES, ops.Compact(), "page_move", field(5, True), "caps"),
    "a quiet pass exceeds its cap": (
        SMALL_CAP, MOVES, ops.Compact(), "page_move",
        lambda m, *f: (setattr(m, "move_cap", f[1].size - 1), (*f,))[1], "caps"),
    "an operation that moves nothing moves": (
        P3, MOVES, ops.Launch((0,)), "launched",
        also("page_move", "full", np.array([8]), np.array([1]), np.array([2]), 4 * 256, True),
        "caps"),
    "a page moves that launched work may write": (
        P3, [*HOLES, ops.Launch((2,))], NO_CAP, "page_move", settle_nothing, "happens_before"),
    "a page moves to where launched work may read": (
        P3, [*TWO, ops.Admit(2), ops.Extend(2, 4), ops.Launch((1,)), ops.Release(1)], NO_CAP,
        "reclaim", of_band("full", nothing), "happens_before"),
    "a page moves that could have stayed": (
        P3, MOVES, NO_CAP, "page_move",
        lambda m, *f: (m._left.append((m.full, [0])), (*f,))[1], "caps"),
    "closing holes leaves some": (
        P3, MOVES, NO_CAP, "page_move", of_band("full", nothing), "capacity"),
    # Barriers, tables, tickets.
    "tables are published without a barrier": (
        P3, [*FLYING, ops.Decode((0,))], ops.Launch((0,)), "barrier", nothing, "happens_before"),
    "the barrier is of another kind": (
        P3, [*FLYING, ops.Decode((0,))], ops.Launch((0,)), "barrier",
        field(0, "write-after-read (coarse)"), "happens_before"),
    "the barrier waits for an older forward": (
        P3, [*FLYING, ops.Decode((0,))], ops.Launch((0,)), "barrier", field(1, 0),
        "happens_before"),
    "a barrier that nothing needs": (
        P3, FLYING, ops.SetGate(True), "after",
        lambda m, *f: also("barrier", "settle", 1, "mood")(m, *f), "happens_before"),
    "a changed row is not published": (
        P3, TWO, ops.Launch((0,)), "publish", field(1, lambda rows: rows - 1), "tables"),
    "a band is not published": (
        P3, TWO, ops.Launch((0,)), "publish", of_band("mamba", nothing), "tables"),
    "a ticket is left out": (P3, TWO, ops.Launch((0,)), "launched", field(0, 2), "happens_before"),
    "a forward over other requests": (
        P3, TWO, ops.Launch((0,)), "launched", field(1, (1,)), "happens_before"),
    "another ticket completes": (
        P3, [*FLYING, ops.Launch((0,))], ops.Complete(1), "done", field(0, 2), "happens_before"),
    # Extents.
    "a band jumps": (P3, TWO, TAKE, "band_move", field(1, (0, 256)), "order"),
    "a band spans what it does not use": (
        P3, TWO, TAKE, "band_move", field(2, lambda span: (span[0] - 256, span[1])),
        "conservation"),
    "a band moves untold": (P3, TWO, TAKE, "band_move", of_band("full", nothing), "order"),
    # Leases.
    "a lease has another number": (
        P3, TWO, ops.Lease(0, "full", 0, 2), "lease_begin", field(4, 7), "pins"),
    "a lease holds other pages": (
        P3, TWO, ops.Lease(0, "full", 0, 2), "lease_begin", field(3, lambda p: p - 1), "pins"),
    "a lease is not held": (
        P3, TWO, ops.Lease(0, "full", 0, 2), "lease_begin", nothing, "pins"),
    "another lease ends": (
        P3, [*TWO, ops.Lease(0, "full", 0, 2), ops.Lease(0, "full", 0, 2)], ops.EndLease(1),
        "lease_end", field(3, 2), "pins"),
    "a lease does not end": (
        P3, [*TWO, ops.Lease(0, "full", 0, 2)], ops.EndLease(1), "lease_end", nothing, "pins"),
    "a page freed under a pin is lost": (
        P3, [*TWO, ops.Lease(0, "full", 0, 2), ops.Release(0)], ops.EndLease(1), "pending",
        nothing, "happens_before"),
    # Refusals.
    "a refusal for another reason": (
        P3, TWO, ops.Extend(0, 99), "refusal", field(0, "pins"), "capacity"),
    "a refusal of another demand": (
        P3, TWO, ops.Extend(0, 99), "refusal", field(1, (0, 1, 1)), "capacity"),
    "a refusal that miscounts": (
        P3, TWO, ops.Extend(0, 99), "refusal", field(2, (9, 9, 9)), "conservation"),
    "a refusal that sees pins": (
        P3, TWO, ops.Extend(0, 99), "refusal", field(3, ((0, 1), None, None)), "pins"),
    "a refusal that is not told": (
        P3, TWO, ops.Extend(0, 99), "refusal", nothing, "atomic"),
    "a refused operation does something": (
        P3, TWO, ops.Extend(0, 99), "refusal", also("band_move", "full", (0, 0), (0, 0), "?"),
        "atomic"),
    "an illegal operation does something": (
        P3, TWO, ops.Extend(9, 1), "after", also("barrier", "settle", 0, "?"), "atomic"),
    "the arena tries another operation": (
        P3, TWO, ops.SetGate(True), "before", field(0, ops.SetGate(False)), "determinism"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_reported_by_its_name(rule: str) -> None:
    layout, before, operation, method, change, invariant = RULES[rule]
    violations = altered_run(layout, before, operation, method, change)
    assert invariant in {violation.invariant for violation in violations}, violations
    unaltered = altered_run(layout, before, operation, method, lambda model, *fields: [*fields])
    assert not unaltered, "the same run, told as it was, breaks nothing"


OUTCOMES: dict[str, tuple[list[Any], Any, Outcome, str]] = {
    "served, but refused": (TWO, ops.Extend(0, 2), Outcome(False, reason="memory"), "capacity"),
    "refused, but served": (TWO, ops.Extend(0, 99), Outcome(True), "capacity"),
    "refused for another reason": (
        TWO, ops.Extend(0, 99), Outcome(False, reason="gate"), "capacity"),
    "an unknown request": (TWO, ops.Release(7), Outcome(True), "ownership"),
    "a request released twice": ([*TWO, ops.Release(1)], ops.Release(1), Outcome(True), "ownership"),
    "a request admitted twice": (TWO, ops.Admit(1), Outcome(True), "ownership"),
    "a request named twice": (TWO, ops.Decode((1, 1)), Outcome(True), "ownership"),
    "a ticket completed twice": (
        [*FLYING, ops.Complete(1)], ops.Complete(1), Outcome(True), "happens_before"),
    "a lease ended by another": (
        [*TWO, ops.Lease(0, "full", 0, 1)], ops.EndLease(1, "thief"), Outcome(True), "pins"),
    "a lease of trimmed pages": (
        [*TWO, ops.Extend(0, 9), ops.TrimWindow((0,))], ops.Lease(0, "window_8", 0, 1),
        Outcome(True, 1), "pins"),
    "a lease past the last page": (TWO, ops.Lease(0, "full", 0, 5), Outcome(True, 1), "pins"),
    "an empty lease": (TWO, ops.Lease(0, "full", 1, 1), Outcome(True, 1), "pins"),
    "a lease for no purpose": (
        TWO, ops.Lease(0, "full", 0, 1, purpose="fun"), Outcome(True, 1), "pins"),
    "a negative chunk": (TWO, ops.Extend(0, -1), Outcome(True), "ownership"),
    "a negative cap": (TWO, ops.Compact(max_moves=-1), Outcome(True, 0), "caps"),
    "a demand for too few bands": (TWO, ops.Reserve((1,)), Outcome(True), "capacity"),
    "another ticket": (TWO, ops.Launch((0,)), Outcome(True, 5), "happens_before"),
    "more moves than were made": (TWO, ops.Compact(), Outcome(True, 5), "caps"),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTCOMES)
def test_an_outcome_that_is_not_so_is_reported(case: str) -> None:
    before, operation, outcome, invariant = OUTCOMES[case]
    watched = Watched(P3)
    watched.run(before)
    model = watched.model
    model.expect(operation)
    right = watched.arena.apply(operation)
    assert (right.ok, right.reason, right.value) != (outcome.ok, outcome.reason, outcome.value)
    violations = model.settle(operation, outcome)
    assert invariant in {violation.invariant for violation in violations}, violations


def test_an_outcome_is_predicted_with_its_reason_and_value() -> None:
    watched = Watched(P3)
    model = watched.model
    watched.run(FLYING)
    assert model.expect(ops.Launch((0,))) == Expectation(True, "", 2)
    assert model.expect(ops.Lease(0, "full", 0, 1)) == Expectation(True, "", 1)
    assert model.expect(ops.Extend(0, 99)) == Expectation(False, "memory", None)
    assert model.expect(ops.Extend(9, 1)) == Expectation(False, "misuse", None)


def test_a_refusal_names_the_gate_or_the_pins_when_they_are_what_stands_in_the_way() -> None:
    # P2m: 16 pages of `full` alone fill the arena; every second is freed, so a slot needs moves.
    steps: list[Any] = []
    for request in range(16):
        steps += [ops.Admit(request, 0), ops.Extend(request, 1)]
    steps += [ops.Release(request) for request in range(0, 16, 2)]
    watched = Watched(layout_of("P2m"))
    watched.run(steps)
    watched.run([ops.SetGate(True)])
    assert watched.model.expect(ops.Admit(99)).reason == "gate"
    watched.run([ops.Admit(99), ops.SetGate(False), ops.Lease(15, "full", 0, 1)])
    assert watched.model.expect(ops.Admit(98)).reason == "pins"
    watched.run([ops.Admit(98), ops.EndLease(1), ops.Admit(97)])
    assert 97 in watched.model.requests and 98 not in watched.model.requests


# --- capacity and holdings ------------------------------------------------------------------------


def fits_somehow(model: Model, demand: tuple[int, ...]) -> bool:
    """Every way to place each band's extent, tried one by one (small arenas only)."""

    def place(index: int, start_byte: int) -> bool:
        if index == len(model.bands):
            return True
        band = model.bands[index]
        pages = band.live + band.freed_pinned + demand[index]
        fixed = model.fixed(band)
        if not pages and fixed is None:
            return place(index + 1, start_byte)
        last = model.total_bytes // band.page_bytes
        for first in range(-(-start_byte // band.page_bytes), last):
            for stop in range(first + pages, last + 1):
                if fixed is not None:
                    low, high = band.span_of(*fixed)
                    if first * band.page_bytes > low or stop * band.page_bytes < high:
                        continue
                if place(index + 1, stop * band.page_bytes):
                    return True
        return False

    return place(0, model.sink_bytes)


@pytest.mark.parametrize("name", ["P2m", "P2w", "P3_odd"])
def test_a_demand_is_served_exactly_when_some_layout_holds_it(name: str) -> None:
    units = {"P2m": 40, "P2w": 24, "P3_odd": 40}[name]
    layout = layout_of(name, 4, units=units)
    answers = set()
    for seed in range(4):
        rng = random.Random(seed)

        def ask(watched: Watched, step: int, rng: random.Random = rng) -> None:
            if step % 10 == 9:
                demand = tuple(rng.randint(0, 3) for _ in watched.model.bands)
                said = watched.model.serves(demand)
                assert said is fits_somehow(watched.model, demand)
                assert said is watched.arena.serves(demand)
                answers.add((said, bool(watched.model.holds), watched.model.gate_closed))

        random_run(layout, seed, 120, ask)
    assert {said for said, _, _ in answers} == {True, False}
    assert any(holds for _, holds, _ in answers) and any(gate for _, _, gate in answers)


def test_the_largest_demand_of_a_band_is_the_last_that_is_served() -> None:
    def ask(watched: Watched, step: int) -> None:
        model = watched.model
        for band in model.bands if step % 5 == 4 else []:
            demand = [0] * len(model.bands)
            most = 0
            while True:
                demand[band.index] = most + 1
                if not watched.arena.serves(demand):
                    break
                most += 1
            assert model.largest(band.index) == most

    random_run(layout_of("P4", 4), 3, 300, ask)


def test_holdings_are_by_request_and_position() -> None:
    watched = Watched(P3)
    watched.run([*TWO, ops.Extend(0, 7), ops.TrimWindow((0,)), ops.Decode((1,))])
    held = watched.model.holdings()
    assert sorted(held["full"]) == [(0, p) for p in range(11)] + [(1, p) for p in range(5)]
    # The next token is the 12th (position 11); it attends to positions 4 to 11.
    assert sorted(held["window_8"]) == [(0, p) for p in range(4, 11)] + [(1, p) for p in range(5)]
    assert sorted(held["mamba"]) == [(0, 0), (1, 0)]
    assert held["window_8"][0, 4] == held["full"][0, 4]


def test_an_access_reads_what_is_held_and_writes_what_no_forward_has_written() -> None:
    watched = Watched(layout_of("P3", 4))
    model = watched.model
    watched.run([ops.Admit(0), ops.Extend(0, 6), ops.Admit(1, 0), ops.Extend(1, 5)])
    full, window, state = (model.by_name[name].index for name in ("full", "window_8", "mamba"))
    pages = model.requests[0].pages.tolist()
    first = model.accesses((0,))
    assert [part.tolist() for part in first[full]] == [pages, pages]
    watched.run([ops.Launch((0,))])
    assert [part.tolist() for part in model.accesses((0,))[full]] == [pages, pages], "as launched"
    watched.run([ops.Extend(0, 6), ops.TrimWindow((0,))])
    pages = model.requests[0].pages.tolist()
    second = model.accesses((0,))
    # Six tokens are written: the page of the seventh is not finished, so it is written again.
    assert [part.tolist() for part in second[full]] == [pages, pages[1:]]
    assert [part.tolist() for part in second[window]] == [pages[1:], pages[1:]]
    assert [part.tolist() for part in second[state]] == [[0], [0]]


def test_a_lease_names_band_and_pages() -> None:
    watched = Watched(P3)
    watched.run([*TWO, ops.Lease(1, "full", 1, 3)])
    band, virtual = watched.model.leased(1)
    assert (band, virtual.tolist()) == (watched.model.full.index, [5, 6])


def test_an_arena_starts_exactly_when_a_page_of_each_band_fits() -> None:
    from bandscope.allocator.errors import SizingError

    for units in range(8, 24):
        layout = layout_of("P3_odd", 1, units=units)
        try:
            layout.arena()
            started = True
        except SizingError:
            started = False
        assert Model(layout).starts() is started, units


def test_the_model_stands_where_the_arena_does_after_everything_is_given_back() -> None:
    watched = Watched(layout_of("P5", 4))
    engine = RandomEngine(random.Random(5))
    for _ in range(300):
        operation = engine.choose(watched.arena)
        outcome, violations = watched.apply(operation)
        assert not violations
        engine.note(operation, outcome)
    steps: list[Any] = [ops.SetGate(False)]
    steps += [ops.Release(request) for request in engine.running]
    steps += [ops.EndLease(lease) for lease in engine.leases]
    watched.run(steps + [ops.Complete(ticket) for ticket in engine.tickets])
    for band in watched.model.bands:
        assert (band.live, band.pending, band.low, band.high) == (0, 0, 0, 0)
        assert not any(band.state) and band.told == (0, 0)
    assert watched.model.free_bytes() == watched.model.total_bytes - watched.model.sink_bytes
    assert not watched.checker.full(watched.arena)
