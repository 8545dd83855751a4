"""The simulated device: right arenas are right under every schedule, wrong ones are told, and how."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.tables import Pages
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.simulated import SimulatedDevice
from bandscope.fuzz.simulated_work import FORWARD, SCHEDULE, Memory, Stamps, writer_of_lease
from tests.allocator.arenas import LAYOUTS, P3
from tests.fuzz.simulated_runs import Run, drive, random_run

SCHEDULES = ("eager", "latest", "random:1", "pct:1:d=3:k=2000")
Device = Callable[[str], SimulatedDevice]


def found(
    schedule: str,
    invariant: str,
    device: Device = SimulatedDevice,
    steps: int = 400,
    words: str = "",
    seeds: int = 8,
    **options: object,
) -> str:
    """The first violation of an invariant (and with these words) in random runs over several arenas;
    empty when none is found. A run may end in a crash: a fault breaks more than is looked at here."""
    for seed, page_size, name in itertools.product(range(seeds), (1, 4), ("P3", "P4", "P2w")):
        layout = LAYOUTS[name]
        run = Run(
            layout, schedule.replace("SEED", str(seed)), page_size=page_size,
            units=layout[1] * (1 + seed % 2), device=device, **options,
        )  # fmt: skip
        with suppress(AssertionError, IndexError, ValueError):
            drive(run, seed, steps)
        for violation in run.violations:
            if violation.invariant == invariant and words in violation.message:
                return violation.message
    return ""


# --- right arenas ---------------------------------------------------------------------------------


def check_clean(name: str, page_size: int, steps: int, seed: int, **options: object) -> None:
    layout = LAYOUTS[name]
    digests = set()
    for schedule in SCHEDULES:
        run = random_run(
            layout, schedule, seed, steps, page_size=page_size, units=2 * layout[1], **options
        )
        digests.add(run.end())
        assert run.violations == [], schedule
        assert run.arena.books.tickets.issued > steps // 40
    assert len(digests) == 1


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_right_arena_is_right_under_every_schedule(name: str, page_size: int) -> None:
    """No violation, and the same bytes and tables in the end."""
    check_clean(name, page_size, 300, seed=7)


@pytest.mark.parametrize(
    "options",
    [{"barrier": "coarse"}, {"hand_out": "none"}, {"hand_out": "poison", "hand_out_state": "none"}],
    ids=str,
)
def test_a_right_arena_of_other_policies_is_right(options: dict[str, str]) -> None:
    """The coarse barrier, and pages that are poisoned or left as they are."""
    check_clean("P3", 4, 300, seed=3, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_right_arena_is_right_for_long(name: str, page_size: int, seed: int) -> None:
    """Thousands of steps."""
    check_clean(name, page_size, 3000, seed)


def test_a_run_is_repeated_by_its_choices() -> None:
    """The explicit list of a random run over an arena does the same again, letter by letter."""
    first = random_run(P3, "random:5", 2, 300, page_size=1)
    again = random_run(P3, first.device.choices(), 2, 300, page_size=1)

    assert again.device.choices() == first.device.choices()
    assert again.device.schedule.passed_over == 0  # type: ignore[attr-defined]
    assert again.device.digest() == first.device.digest()


# --- rules of order that are removed --------------------------------------------------------------

# Read as wrong bytes by some schedule, and as races by all.
RACES = [
    "rows-published-after-the-launch",
    "no-barrier-before-reuse",
    "barrier-behind-the-oldest-forward",
    "barrier-forgotten-at-once",
    "freed-pages-are-holes-at-once",
    "any-completion-reclaims-everything",
    "reclaimed-one-ticket-early",
    "stamped-with-the-oldest-ticket",
    "moves-read-what-is-being-written",
    "launch-forgets-the-token-pages-it-writes",
    "launch-forgets-the-state-it-writes",
    "partly-filled-page-counts-as-written",
    "urgent-compaction-places-no-barrier",
    "moves-to-pending-pages-of-an-end",
    "frontier-pulled-past-pending-pages",
    "fine-barrier-settles-pages",
    "sources-are-holes-at-once",
    "publish-without-barrier",
    "fine-barrier-asks-nothing",
    "fine-barrier-behind-an-older-forward",
]
# Races only. Of the first two bytes never tell: one stream does forwards in order, on which an arena
# must not rely. The others need a rarer run than these.
ONLY_ORDER = [
    "newest-completion-counts-for-all",
    "completion-ends-older-tickets",
    "moves-to-pending-pages-of-a-float",
    "only-the-newest-forward-writes",
]
QUICK = 4


def quick(names: list[str]) -> list[object]:
    """The first few in every run, the others in slow ones."""
    return [
        name if place < QUICK else pytest.param(name, marks=pytest.mark.slow)
        for place, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", quick([*RACES, *ONLY_ORDER]))
def test_a_rule_that_is_removed_is_a_race_even_when_the_bytes_are_right(name: str) -> None:
    """`happens_before` is told when everything is done in order, with nothing wrong to read."""
    with FAULTS[name].plant():
        message = found("eager", "happens_before", steps=800)

    assert "nothing orders them" in message and "missing is" in message


@pytest.mark.parametrize("name", quick(RACES))
def test_a_rule_that_is_removed_is_read_as_wrong_bytes(name: str) -> None:
    """`content` is told when everything is done as late as the edges allow."""
    with FAULTS[name].plant():
        assert found("latest", "content", steps=800)


@pytest.mark.parametrize("schedule", ["random:SEED", "pct:SEED:d=3:k=1500"])
@pytest.mark.parametrize("name", ["no-barrier-before-reuse", "fine-barrier-asks-nothing"])
def test_random_orders_read_wrong_bytes_too(name: str, schedule: str) -> None:
    """Common faults need no particular order."""
    with FAULTS[name].plant():
        assert found(schedule, "content", steps=800)


def test_the_coarse_barrier_is_needed_where_it_is_chosen() -> None:
    """Both ways of telling it."""
    with FAULTS["coarse-barrier-asks-nothing"].plant():
        assert found("eager", "happens_before", barrier="coarse")
        assert found("latest", "content", barrier="coarse")


class ForwardsDoNotWait(SimulatedDevice):
    def launch(self, ticket: int) -> None:
        self.issue_fills()
        self._in_flight[ticket] = self._order.position(FORWARD)


class BarriersWaitForNothing(SimulatedDevice):
    def order_behind(self, ticket: int) -> None:
        pass


class ReadsAreNotWaitedFor(SimulatedDevice):
    def order_behind_reads(self, ticket: int) -> None:
        pass


class FillsAfterTheLaunch(SimulatedDevice):
    def launch(self, ticket: int) -> None:
        fills, self._fills = self._fills, []
        super().launch(ticket)
        self._fills = fills
        self.issue_fills()


class CopiesWaitForNothing(SimulatedDevice):
    def allocate(self, *sizes: object) -> None:
        super().allocate(*sizes)  # type: ignore[arg-type]
        wait = self._order.wait
        self._order.wait = (  # type: ignore[method-assign]
            lambda stream, event: None if stream == 2 else wait(stream, event)
        )


@pytest.mark.parametrize(
    ("device", "edge"),
    [
        (ForwardsDoNotWait, "the launch: the forward stream behind the schedule stream"),
        (BarriersWaitForNothing, "a barrier: the schedule stream behind forward"),
        (ReadsAreNotWaitedFor, "the write-after-read barrier"),
        (FillsAfterTheLaunch, "the launch: the forward stream behind the schedule stream"),
        (CopiesWaitForNothing, "the copy stream behind the schedule stream"),
        (CopiesWaitForNothing, "the copy stream behind the forward stream"),
    ],
)
def test_an_edge_that_the_device_does_not_make_is_named(device: Device, edge: str) -> None:
    """Each edge of the device's own, removed: the race names it, and some schedule reads wrongly."""
    assert found("eager", "happens_before", device, words=edge)
    assert found("latest", "content", device)


# --- wrong copies ---------------------------------------------------------------------------------


class Swapped(SimulatedDevice):
    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        super().move(band, destinations, sources)


class OnePageOff(SimulatedDevice):
    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        super().move(band, sources - 1, destinations)


class HalfMoved(SimulatedDevice):
    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        super().move(band, sources[1:], destinations[1:])


class NothingZeroed(SimulatedDevice):
    def fill(self, band: int, pages: Pages, value: int) -> None:
        pass


class FillsAfterTheMove(SimulatedDevice):
    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        fills, self._fills = self._fills, []
        super().move(band, sources, destinations)
        self._fills = fills


class RowMissing(SimulatedDevice):
    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        super().publish(band, virtual[1:], physical[1:])


class WrongBand(SimulatedDevice):
    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        super().move(max(0, band - 1), sources // 8, destinations // 8)


@pytest.mark.parametrize(
    "device", [Swapped, OnePageOff, HalfMoved, NothingZeroed, FillsAfterTheMove, RowMissing, WrongBand]
)
@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_a_wrong_copy_is_read_as_wrong_bytes(device: Device, schedule: str) -> None:
    """Whatever the order of work."""
    message = found(schedule, "content", device)

    assert "virtual page" in message and "generation" in message and "expected" in message


def test_a_page_that_is_not_zeroed_shows_whose_bytes_it_exposes() -> None:
    """The message names page, generation, ticket, and what was read in place of zeroes."""
    run = Run(P3, "eager", page_size=1, device=NothingZeroed)
    run.apply(ops.Admit(0, 0))
    run.apply(ops.Extend(0, 2))
    run.apply(ops.Launch((0,)))  # reads what nobody ever wrote: still zeroes
    assert run.violations == []
    run.apply(ops.Complete(1))
    run.apply(ops.Release(0))
    run.apply(ops.Admit(1, 0))
    run.apply(ops.Extend(1, 2))
    run.apply(ops.Launch((1,)))

    assert run.first("content").startswith(
        "forward 2 read band window_8 virtual page 0 generation 1 at physical page "
    )
    assert "expected zeroes, got what forward 1 wrote to window_8 page 0 (2 pages" in (
        run.first("content")
    )


def test_without_a_policy_a_fresh_page_may_hold_anything() -> None:
    """`hand_out` none: only what its owner wrote counts."""
    none = {"hand_out": "none", "hand_out_state": "none"}

    assert not found("latest", "content", NothingZeroed, seeds=1, **none)


# --- what a race says -----------------------------------------------------------------------------


def test_a_race_names_both_accesses_and_the_missing_edge() -> None:
    """Operations by step, streams, tickets, the page and the edge; each missing edge is told once."""
    run = Run(P3, "eager", page_size=1, device=BarriersWaitForNothing)
    run.apply(ops.Admit(0, 0))
    run.apply(ops.Extend(0, 16))  # fills the arena
    run.apply(ops.Launch((0,)))
    run.apply(ops.Release(0))
    run.apply(ops.Admit(1, 0))
    run.apply(ops.Extend(1, 16))
    run.apply(ops.Launch((1,)))

    of_rows, race = run.violations
    assert {race.invariant, of_rows.invariant} == {"happens_before"}
    assert "missing is the write-after-read barrier" in of_rows.message
    assert race.message.startswith("the fill of pages (step 7, schedule stream work ")
    assert "writes physical page " in race.message
    assert "which forward 1 (step 3, forward stream work 2) writes" in race.message
    assert race.message.endswith("missing is a barrier: the schedule stream behind forward 1")


# --- completions, copies, the host ----------------------------------------------------------------


def test_a_completion_says_nothing_of_older_forwards() -> None:
    """What is issued after a late completion is behind that forward once it is behind the older ones
    too: by their completion, or by a barrier."""
    for older in ("completed", "barrier"):
        run = Run(P3, "eager", page_size=1)
        run.apply(ops.Admit(0, 0))
        for _ in range(2):
            run.apply(ops.Extend(0, 1))
            run.apply(ops.Launch((0,)))
        schedule = run.device._order.clocks[SCHEDULE]
        before = schedule[FORWARD]
        run.device.finish(2)
        assert schedule[FORWARD] == before < 4
        run.device.finish(1) if older == "completed" else run.device.order_behind(1)
        assert schedule[FORWARD] == 4


def test_unknown_tickets_and_leases_mean_nothing() -> None:
    """A campaign reports what a program says, even when the arena will refuse it."""
    device = SimulatedDevice("latest")
    device.allocate(64, [8], [8])
    device.finish(5)
    device.end_copies(7)

    assert device.violations == []


def test_a_copy_is_ordered_until_its_lease_ends() -> None:
    """A holder's copy reads what was there; reuse of its pages before its end is a race."""
    for ends in (True, False):
        run = Run(P3, "latest", page_size=1)
        run.apply(ops.Admit(0, 0))
        run.apply(ops.Extend(0, 16))
        run.apply(ops.Launch((0,)))
        run.apply(ops.Complete(1))
        lease = run.apply(ops.Lease(0, "full", 0, 16)).value
        run.apply(ops.Release(0))
        run.apply(ops.EndLease(lease)) if ends else run.arena.end_lease(lease)
        run.apply(ops.Admit(1, 0))
        run.apply(ops.Extend(1, 16))
        run.apply(ops.Launch((1,)))
        run.end()

        assert bool(run.first("happens_before")) is not ends
        assert bool(run.first("content")) is not ends
        if not ends:
            assert "the lease: its copies end before" in run.first("happens_before")


def test_a_lease_begins_after_its_fills() -> None:
    """Its holder looks at the bytes without a launch."""
    with FAULTS["lease-before-the-fills"].plant():
        message = found("eager", "content")
    assert "began while the fill of its pages" in message


def test_an_arena_that_waits_for_its_device_is_told() -> None:
    """No allocator call may."""
    with FAULTS["host-waits-at-a-move"].plant():
        message = found("eager", "determinism")
    assert "made the host wait" in message


def test_a_row_of_a_free_page_is_unmapped() -> None:
    """No forward reads it, but the next user of a stale row would."""
    with FAULTS["freed-rows-stay-mapped"].plant():
        for schedule in ("eager", "latest"):
            message = found(schedule, "tables")
            assert "but the page is free" in message


def test_a_forward_needs_an_arena() -> None:
    """The message says what to call."""
    device = SimulatedDevice()
    device.allocate(64, [8], [8])
    with pytest.raises(MisuseError, match=r"begin\(arena\)"):
        device.forward_over(1, {0: ([0], [])})


def test_pages_may_be_given_as_lists() -> None:
    """As the model keeps them."""
    run = Run(P3, "eager", page_size=1)
    run.apply(ops.Admit(0))
    run.apply(ops.Extend(0, 3))
    ticket = run.arena.launch([0])
    run.device.forward_over(ticket, {2: ([2, 0, 1], [0]), 1: ([], []), 0: ([0], [0])})

    assert run.device.take_violations() == []


# --- bytes as cells -------------------------------------------------------------------------------


def test_pages_of_all_bands_are_runs_of_the_same_cells() -> None:
    """Sizes 6 and 4 share cells of 2 bytes: page 1 of the one overlaps pages 1 and 2 of the other."""
    memory = Memory(27, [6, 4], [3, 3])
    memory.pages[0][1] = 9

    assert memory.cell_bytes == 2 and memory.cells.size == 13
    assert [band.shape for band in memory.pages] == [(4, 3), (6, 2)]
    assert memory.pages[1].tolist() == [[0, 0], [0, 9], [9, 9], [0, 0], [0, 0], [0, 0]]


def test_a_stamp_says_who_wrote_what() -> None:
    """Stamps are unique over tickets, bands and pages, and told in words."""
    stamps = Stamps([5, 3])
    stamps.band_names = ["full", "mamba"]
    pages = [np.arange(5), np.arange(3)]
    all_stamps = np.concatenate(
        [stamps.of_writer(t, b, pages[b]) for t in (1, 2, 3) for b in (0, 1)]
        + [stamps.of_writer(writer_of_lease(lease), b, pages[b]) for lease in (1, 2) for b in (0, 1)]
    )
    assert np.unique(all_stamps).size == all_stamps.size == 5 * 8
    assert stamps.describe(int(stamps.of_writer(2, 1, pages[1])[2])) == (
        "what forward 2 wrote to mamba page 2"
    )
    assert stamps.describe(int(stamps.of_writer(writer_of_lease(4), 0, pages[0])[0])) == (
        "what the holder of lease 4 wrote to full page 0"
    )
    assert stamps.describe(0) == "zeroes" and stamps.describe(-0xFF) == "the fill value 0xff"


def test_a_forward_that_is_over_races_with_nothing() -> None:
    """Although an older one runs on, what only the newer one touched may move at once; what the older
    one touches too may not, whoever touched it last."""
    for shared in (False, True):
        run = Run(P3, "eager", page_size=1)
        for request in range(3):
            run.apply(ops.Admit(request))
        run.apply(ops.Launch((2, 1) if shared else (2,)))
        run.apply(ops.Launch((1,)))
        run.device.finish(2)
        page = run.arena.pages_of(1, "mamba")[0]
        run.device.move(0, page, page + 3)
        races = [found.invariant for found in run.device.take_violations()]
        assert races == (["happens_before"] if shared else []), shared
