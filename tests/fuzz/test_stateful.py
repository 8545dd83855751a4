"""Hypothesis drives an arena by rules, and shrinks what breaks. The model says what must come of each.

The generator of `bandscope.fuzz` is some fifty times faster; this machine is here for its shrinker, and
because it was written by others. Fixed examples and no database, so that CI always runs the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.leases import PURPOSES
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.generate.layouts import least_bytes
from bandscope.fuzz.model import Model
from bandscope.fuzz.program import Layout

COMMON = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
QUICK = settings(COMMON, max_examples=40, stateful_step_count=40)
LONG = settings(COMMON, max_examples=1500, stateful_step_count=60)

CHAINS = (
    (("mamba", 32), ("full", 16)),
    (("window_8", 8), ("full", 16)),
    (("mamba", 32), ("window_8", 8), ("full", 16)),
    (("mamba", 28), ("window_3", 12), ("full", 20)),
    (("mamba", 28), ("window_16", 12), ("window_8", 8), ("full", 20)),
    (("mamba", 32), ("window", 12), ("window_16", 8), ("window_8", 12), ("full", 16)),
)
tokens = st.one_of(st.integers(0, 6), st.integers(0, 40))


class Machine(RuleBasedStateMachine):
    """One arena, and the model of it."""

    requests = Bundle("requests")
    tickets = Bundle("tickets")
    leases = Bundle("leases")
    ended = Bundle("ended")  # leases that ended, for those who end them again

    @initialize(
        bands=st.sampled_from(CHAINS),
        page_size=st.sampled_from([1, 2, 4]),
        spare=st.sampled_from([0, 256, 512, 1024, 2048]),
        barrier=st.sampled_from(["fine", "coarse"]),
        headroom=st.sampled_from([0.0, 1 / 256, 0.1]),
        hole_share=st.sampled_from([0.0, 0.125]),
        max_moves=st.sampled_from([4096, 1, 3]),
    )
    def begin(
        self,
        bands: tuple[tuple[str, int], ...],
        page_size: int,
        spare: int,
        barrier: str,
        headroom: float,
        hole_share: float,
        max_moves: int,
    ) -> None:
        """A small arena."""
        config = ArenaConfig(
            barrier=barrier, headroom_share=headroom, compact_hole_share=hole_share,
            compact_gap_share=1.0, max_moves=max_moves,
        )  # fmt: skip
        scaled = tuple((n, size if n == "mamba" else size // 4 * page_size) for n, size in bands)
        layout = Layout(scaled, page_size, 0, config)
        layout = Layout(scaled, page_size, least_bytes(layout.plan()) + spare, config)
        self.model = Model(layout)
        self.arena = layout.arena(observer=self.model.observer)
        self.next_request = 0
        self.names = [band.name for band in self.arena.plan.bands]

    def ask(self, operation: Operation, *, illegal: bool = False) -> Outcome:
        """Apply an operation; what comes of it is what the model says, and a refusal changes nothing."""
        before = self.arena.digest()
        expected = self.model.expect(operation)
        outcome = self.arena.apply(operation)
        violations = self.model.settle(operation, outcome)
        assert not violations, [str(violation) for violation in violations]
        assert (outcome.ok, outcome.reason) == (expected.ok, expected.reason)
        assert illegal == (outcome.reason == "misuse"), (operation, outcome.message)
        if not outcome:
            assert self.arena.digest() == before
        return outcome

    # --- requests ---------------------------------------------------------------------------------

    @rule(target=requests, slots=st.integers(0, 3))
    def admit(self, slots: int) -> Any:
        self.next_request += 1
        outcome = self.ask(ops.Admit(self.next_request, slots))
        return self.next_request if outcome else multiple()

    @rule(request=requests, count=tokens)
    def extend(self, request: int, count: int) -> None:
        self.ask(ops.Extend(request, count))

    @rule(batch=st.lists(requests, unique=True, max_size=5))
    def decode(self, batch: list[int]) -> None:
        self.ask(ops.Decode(tuple(batch)))

    @rule(batch=st.lists(requests, unique=True, max_size=5))
    def trim(self, batch: list[int]) -> None:
        self.ask(ops.TrimWindow(tuple(batch)))

    @rule(request=consumes(requests), why=st.sampled_from(["finished", "aborted"]))
    def release(self, request: int, why: str) -> None:
        assert self.ask(ops.Release(request, why))

    # --- forwards ---------------------------------------------------------------------------------

    @rule(target=tickets, batch=st.lists(requests, unique=True, max_size=5))
    def launch(self, batch: list[int]) -> Any:
        return self.ask(ops.Launch(tuple(batch))).value

    @rule(ticket=consumes(tickets))
    def complete(self, ticket: int) -> None:
        assert self.ask(ops.Complete(ticket))

    # --- moves ------------------------------------------------------------------------------------

    @rule(urgent=st.booleans(), max_moves=st.one_of(st.none(), st.integers(0, 5)))
    def compact(self, urgent: bool, max_moves: int | None) -> None:
        assert self.ask(ops.Compact(urgent, max_moves))

    @rule(demand=st.lists(st.integers(0, 6), min_size=5, max_size=5))
    def reserve(self, demand: list[int]) -> None:
        wanted = tuple(demand[: len(self.names)])
        served = self.arena.serves(wanted)
        assert self.ask(ops.Reserve(wanted)).ok == served
        assert self.arena.serves(wanted) == served

    @rule(closed=st.booleans())
    def gate(self, closed: bool) -> None:
        assert self.ask(ops.SetGate(closed))

    # --- leases -----------------------------------------------------------------------------------

    @rule(
        target=leases,
        request=requests,
        band=st.integers(0, 4),
        first=st.integers(0, 9),
        size=st.integers(0, 9),
        purpose=st.sampled_from(PURPOSES),
        deadline=st.one_of(st.none(), tickets),
    )
    def lease(
        self, request: int, band: int, first: int, size: int, purpose: str, deadline: int | None
    ) -> Any:
        name = self.names[band % len(self.names)]
        pages, begin = self.arena.pages_of(request, name)
        if not pages.size:
            return multiple()
        first = begin + first % pages.size
        stop = min(begin + pages.size, first + 1 + size)
        lease = ops.Lease(request, name, first, stop, "host", purpose, deadline)
        outcome = self.ask(lease)
        assert outcome.ok
        return outcome.value

    @rule(target=ended, lease=consumes(leases), holder=st.sampled_from([None, "host"]))
    def end_lease(self, lease: int, holder: str | None) -> Any:
        assert self.ask(ops.EndLease(lease, holder))
        return lease

    # --- what must be refused ---------------------------------------------------------------------

    @rule(
        count=st.integers(-3, 3),
        kind=st.sampled_from(["extend", "decode", "trim", "launch", "release", "lease"]),
    )
    def name_a_stranger(self, count: int, kind: str) -> None:
        stranger = self.next_request + 1
        self.ask(
            {
                "extend": ops.Extend(stranger, count),
                "decode": ops.Decode((stranger,)),
                "trim": ops.TrimWindow((stranger,)),
                "launch": ops.Launch((stranger,)),
                "release": ops.Release(stranger),
                "lease": ops.Lease(stranger, "full", 0, 1),
            }[kind],
            illegal=True,
        )

    @rule(request=requests, kind=st.sampled_from(["admit", "extend", "decode", "band", "range", "why"]))
    def ask_wrongly(self, request: int, kind: str) -> None:
        pages = self.arena.pages_of(request, "full")[0].size
        if kind == "why" and not pages:
            return
        self.ask(
            {
                "admit": ops.Admit(request),
                "extend": ops.Extend(request, -1),
                "decode": ops.Decode((request, request)),
                "band": ops.Lease(request, "nowhere", 0, 1),
                "range": ops.Lease(request, "full", 0, pages + 1),
                "why": ops.Lease(request, "full", 0, 1, purpose="fun"),
            }[kind],
            illegal=True,
        )

    @rule(lease=leases)
    def end_for_somebody_else(self, lease: int) -> None:
        self.ask(ops.EndLease(lease, "thief"), illegal=True)

    @rule(lease=ended)
    def end_twice(self, lease: int) -> None:
        self.ask(ops.EndLease(lease), illegal=True)

    @rule(moves=st.integers(-2, -1), length=st.sampled_from([0, 1, 6]), ticket=st.integers(900, 901))
    def ask_for_nonsense(self, moves: int, length: int, ticket: int) -> None:
        self.ask(ops.Compact(False, moves), illegal=True)
        self.ask(ops.Reserve((0,) * length), illegal=True)
        self.ask(ops.Complete(ticket), illegal=True)

    # --- at every step, and at the end ------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "arena"))
    @invariant()
    def is_healthy(self) -> None:
        assert self.arena.check() == []

    def teardown(self) -> None:
        """Everything is given back, so nothing is held."""
        if not hasattr(self, "arena"):
            return
        arena, books = self.arena, self.arena.books
        self.ask(ops.SetGate(False))
        for request in sorted(books.ledger.row_of):
            self.ask(ops.Release(request))
        for lease in arena.leases():
            self.ask(ops.EndLease(lease.number))
        for ticket in sorted(books.tickets.in_flight):
            self.ask(ops.Complete(ticket))
        assert arena.check() == []
        assert [(band.live, band.holes, band.pending) for band in books.bands] == [
            (0, 0, 0)
        ] * len(books.bands)
        assert books.ids.free_count == books.ids.capacity
        assert arena.snapshot()["pins"]["deferred"] == [0] * len(books.bands)


def test_no_sequence_of_rules_breaks_an_arena() -> None:
    """Invariants, the model's predictions and "a refusal changes nothing", after every rule."""
    run_state_machine_as_test(Machine, settings=QUICK)


@pytest.mark.slow
def test_no_longer_sequence_of_rules_breaks_an_arena() -> None:
    """The same, 40 times as long."""
    run_state_machine_as_test(Machine, settings=LONG)


def _forgets_a_trimmed_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandscope.allocator.books import Books

    drop = Books.drop
    monkeypatch.setattr(
        Books, "drop", lambda self, band, virtual, holder: drop(self, band, virtual[1:], holder)
    )


def _moves_pinned_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandscope.allocator.leases import Pins

    monkeypatch.setattr(Pins, "hull", lambda self, band: None)


def _takes_any_number_of_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandscope.allocator import compaction

    opportunistic = compaction.opportunistic
    monkeypatch.setattr(
        compaction, "opportunistic", lambda books, cap: opportunistic(books, cap + 1)
    )


def _reuses_pages_of_launched_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from bandscope.allocator.ordering import Tickets

    monkeypatch.setattr(Tickets, "unsettled", property(lambda self: False))


@pytest.mark.parametrize(
    "plant",
    [
        _forgets_a_trimmed_page,
        pytest.param(_moves_pinned_pages, marks=pytest.mark.slow),
        pytest.param(_takes_any_number_of_moves, marks=pytest.mark.slow),
        _reuses_pages_of_launched_work,
    ],
)
def test_the_rules_find_a_fault(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault ends the run, and the rules that led to it are told. (Shrinking them takes
    Hypothesis minutes, so that is left out here.)"""
    plant(monkeypatch)
    unshrunk = settings(QUICK, max_examples=400, phases=[Phase.generate])
    with pytest.raises(AssertionError) as failure:
        run_state_machine_as_test(Machine, settings=unshrunk)
    assert "state.begin(" in "\n".join(failure.value.__notes__)
