"""Every rule of order is removed from a copy of the allocator, and its test fails there.

A mutation is a change of text in one or more modules, each text found exactly once; one that no
longer applies fails by name, so that the list follows the code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
RULES = "tests/allocator/test_ordering_rules.py"


@dataclass(frozen=True)
class Mutation:
    """How to remove a rule (`changes`: module, old text, new text) and the test that sees it."""

    row: int
    name: str
    changes: tuple[tuple[str, str, str], ...]
    test: str  # without the prefix `test_row<row>_`

    @property
    def node(self) -> str:
        return f"{RULES}::test_row{self.row}_{self.test}"


# Changes that more than one row needs.

FREED_AT_ONCE = (
    "books.py",
    "pending = self.tickets.unsettled\n        band.drop(",
    "pending = False\n        band.drop(",
)
SOURCES_AT_ONCE = (
    "books.py",
    "pending = self.tickets.unsettled\n        virtual",
    "pending = False\n        virtual",
)
NO_HULL = (
    "books.py",
    "hull = self.pins.hull(band.index) if self.pins.pins else None",
    "hull = None",
)
SETTLE_WITHOUT_BARRIER = (
    "books.py",
    "            self.device.order_behind(ticket)\n",
    "",
)
PUBLISH_WITHOUT_BARRIER = (
    "books.py",
    "        if self.tickets.unsettled:\n            self._order_table_writes()\n",
    "",
)
PACK_WITHOUT_BARRIER = (
    "compaction.py",
    'books.settle("urgent compaction")',
    "books.reclaim()",
)
EVENT_NOT_WAITED_FOR = ("device/cuda.py", "self.schedule.wait_event(done)", "pass")

MUTATIONS = [
    # 1. Table rows of an allocation: the forward waits for the schedule stream at its launch.
    Mutation(
        1,
        "rows are not published",
        (("handlers.py", "    books.publish()\n    first", "    first"),),
        "rows_of_fresh_pages_are_published_before_the_launch",
    ),
    Mutation(
        1,
        "rows are published after the launch",
        (
            ("handlers.py", "    books.publish()\n    first", "    first"),
            (
                "handlers.py",
                "    books.device.launch(ticket)\n",
                "    books.device.launch(ticket)\n    books.publish()\n",
            ),
        ),
        "a_forward_finds_every_row_up_to_date",
    ),
    Mutation(
        1,
        "the forward stream does not wait",
        (("device/cuda.py", "self.forwards.wait_stream(self.schedule)", "pass"),),
        "a_forward_follows_the_schedule_stream_at_its_launch",
    ),
    # 2. Zeroing follows the last access, and is not put off too long.
    Mutation(
        2,
        "no barrier before the fill",
        (SETTLE_WITHOUT_BARRIER,),
        "an_urgent_need_places_one_barrier_and_then_fills",
    ),
    Mutation(
        2,
        "no barrier on the device before the fill",
        (SETTLE_WITHOUT_BARRIER,),
        "zeroing_follows_the_former_owners_last_access",
    ),
    Mutation(
        2,
        "freed pages are holes at once",
        (FREED_AT_ONCE,),
        "zeroing_follows_the_former_owners_last_access",
    ),
    Mutation(
        2,
        "the barrier waits for no event",
        (EVENT_NOT_WAITED_FOR,),
        "zeroing_follows_the_former_owners_last_access",
    ),
    Mutation(
        2,
        "fills are not issued at a launch",
        (("device/cuda.py", "self.issue_fills()\n        self.forwards", "self.forwards"),),
        "fills_that_were_put_off_come_before_the_launch",
    ),
    Mutation(
        2,
        "fills are issued after the launch",
        (
            (
                "device/cuda.py",
                "self.issue_fills()\n        self.forwards.wait_stream(self.schedule)",
                "self.forwards.wait_stream(self.schedule)\n        self.issue_fills()",
            ),
        ),
        "fills_that_were_put_off_come_before_the_launch",
    ),
    Mutation(
        2,
        "fills are not issued at a move",
        (
            (
                "device/cuda.py",
                "sources: Pages, destinations: Pages) -> None:\n        self.issue_fills()\n",
                "sources: Pages, destinations: Pages) -> None:\n",
            ),
        ),
        "fills_that_were_put_off_come_before_a_move",
    ),
    Mutation(
        2,
        "fills are not issued at a lease",
        (("handlers.py", "books.device.issue_fills()", "pass"),),
        "fills_that_were_put_off_come_before_a_lease",
    ),
    # 3. Freed pages stay pending until their ticket.
    Mutation(
        3,
        "freed pages are holes at once",
        (FREED_AT_ONCE,),
        "freed_pages_are_pending_until_their_ticket",
    ),
    Mutation(
        3,
        "a completion says that all before it completed",
        (
            (
                "ordering.py",
                "return min(self.in_flight, default",
                "return max(self.in_flight, default",
            ),
        ),
        "completions_out_of_order_reclaim_only_what_is_safe",
    ),
    Mutation(
        3,
        "any completion reclaims everything",
        (("ordering.py", " and self._pending[0][0] <= through:", ":"),),
        "completions_out_of_order_reclaim_only_what_is_safe",
    ),
    Mutation(
        3,
        "the stamp is the oldest ticket in flight",
        (
            (
                "ordering.py",
                "self._pending.append((self.issued, band",
                "self._pending.append((self.completed_through + 1, band",
            ),
        ),
        "each_completion_reclaims_what_was_freed_by_then",
    ),
    Mutation(
        3,
        "rows are unmapped under the forward that reads them",
        (PUBLISH_WITHOUT_BARRIER,),
        "a_free_asks_nothing_of_the_device_before_the_next_launch",
    ),
    # 4. A move's read of its source follows a launched write of it.
    Mutation(
        4,
        "opportunistic moves do not look at writes",
        (("compaction.py", "useful &= ~np.isin(sources, band.table.place_of[written])", "pass"),),
        "an_opportunistic_move_leaves_out_pages_that_may_be_written",
    ),
    Mutation(
        4,
        "writes of launched forwards are not looked at in any layout",
        (("compaction.py", "useful &= ~np.isin(sources, band.table.place_of[written])", "pass"),),
        "no_move_reads_what_a_forward_may_still_write",
    ),
    Mutation(
        4,
        "a launch does not say which token pages it writes",
        (("handlers.py", "{index: written for index in books.token_bands}", "{}"),),
        "an_opportunistic_move_leaves_out_pages_that_may_be_written",
    ),
    Mutation(
        4,
        "a launch does not say which state it writes",
        (
            (
                "handlers.py",
                "writes[books.state] = np.concatenate(slots) if slots else np.empty(0, np.int64)",
                "pass",
            ),
        ),
        "an_opportunistic_move_leaves_out_state_that_is_being_updated",
    ),
    Mutation(
        4,
        "urgent moves place no barrier",
        (PACK_WITHOUT_BARRIER,),
        "no_move_reads_what_a_forward_may_still_write",
    ),
    # 5. A move's write of its destination follows the last reader of what was there.
    Mutation(
        5,
        "destinations in ends may be pending",
        (("band.py", "[rows] == HOLE)[:count]", "[rows] >= HOLE)[:count]"),),
        "opportunistic_moves_go_to_holes_never_to_pending_pages",
    ),
    Mutation(
        5,
        "destinations in floats may be pending",
        (("band.py", "self.state[low:high] == HOLE, low)", "self.state[low:high] >= HOLE, low)"),),
        "a_float_that_opens_its_low_side_leaves_pending_pages_alone",
    ),
    Mutation(
        5,
        "freed pages are holes at once",
        (FREED_AT_ONCE,),
        "opportunistic_moves_go_to_holes_never_to_pending_pages",
    ),
    Mutation(
        5,
        "urgent moves place no barrier",
        (SETTLE_WITHOUT_BARRIER,),
        "urgent_moves_go_to_pending_pages_behind_their_readers",
    ),
    # 6. A moved page's source is pending until every reader is done.
    Mutation(
        6,
        "sources are holes at once",
        (SOURCES_AT_ONCE,),
        "sources_of_a_move_are_pending_until_every_reader_is_done",
    ),
    Mutation(
        6,
        "sources are handed out at once",
        (SOURCES_AT_ONCE,),
        "no_old_place_is_handed_out_under_its_readers",
    ),
    Mutation(
        6,
        "a batch replaces the one before it under the same ticket",
        (
            (
                "ordering.py",
                "        self._pending.append((self.issued, band, places))\n",
                "        kept = [e for e in self._pending if e[:2] != (self.issued, band)]\n"
                "        self._pending = deque([*kept, (self.issued, band, places)])\n",
            ),
        ),
        "batches_moved_under_one_ticket_accumulate",
    ),
    # 7. Nothing moves under a transfer: pins and gate.
    Mutation(
        7,
        "opportunistic moves do not look at pins",
        (("compaction.py", "useful &= band.pin_count[sources] == 0", "pass"),),
        "compaction_leaves_pinned_pages_where_they_are",
    ),
    Mutation(
        7,
        "urgent moves do not look at pins",
        (NO_HULL,),
        "compaction_leaves_pinned_pages_where_they_are",
    ),
    Mutation(
        7,
        "relocations do not look at pins",
        (NO_HULL,),
        "relocation_works_around_pinned_pages",
    ),
    Mutation(
        7,
        "demands do not look at pins",
        (NO_HULL,),
        "a_pin_refuses_what_would_have_to_move_it",
    ),
    Mutation(
        7,
        "a page freed under a pin is reused",
        (("books.py", "if self.pins.pins:\n            places", "if False:\n            places"),),
        "a_page_freed_under_a_pin_is_not_reused_before_the_pin_ends",
    ),
    Mutation(
        7,
        "compaction does not look at the gate",
        (
            (
                "handlers.py",
                "    if books.gate_closed:\n        return Outcome(True, 0)\n",
                "",
            ),
            ("books.py", "assert not self.gate_closed, ", "assert True, "),
        ),
        "nothing_moves_while_the_gate_is_closed",
    ),
    Mutation(
        7,
        "relocations do not look at the gate",
        (
            ("books.py", "if self.gate_closed and band.live:", "if False:"),
            ("books.py", "assert not self.gate_closed, ", "assert True, "),
        ),
        "no_float_moves_while_the_gate_is_closed",
    ),
    # 8. Writes of the shared tables follow the table reads before: the write-after-read barrier.
    Mutation(
        8,
        "no barrier is placed",
        (PUBLISH_WITHOUT_BARRIER,),
        "publishing_waits_for_the_forward_before",
    ),
    Mutation(
        8,
        "no barrier is placed on the device",
        (PUBLISH_WITHOUT_BARRIER,),
        "rows_are_written_after_the_table_reads_of_every_forward",
    ),
    Mutation(
        8,
        "the fine barrier asks nothing of the device",
        (("books.py", "self.device.order_behind_reads(newest)", "pass"),),
        "rows_are_written_after_the_table_reads_of_every_forward",
    ),
    Mutation(
        8,
        "the coarse barrier asks nothing of the device",
        (("books.py", "            self.device.order_behind(newest)\n", ""),),
        "rows_are_written_after_the_table_reads_of_every_forward",
    ),
    Mutation(
        7,
        "a holder's copy does not follow the schedule stream",
        (("device/cuda.py", "self.copies.wait_stream(self.schedule)", "pass"),),
        "a_holders_copy_follows_all_that_was_issued",
    ),
    Mutation(
        7,
        "a holder's copy does not follow the forwards",
        (("device/cuda.py", "self.copies.wait_stream(self.forwards)", "pass"),),
        "a_holders_copy_follows_the_forwards",
    ),
    Mutation(
        8,
        "the fine barrier waits for no event",
        (("device/cuda.py", "self.schedule.wait_event(read)", "pass"),),
        "rows_are_written_after_the_table_reads_of_every_forward",
    ),
    Mutation(
        8,
        "the fine barrier does not fall back to the whole forward",
        (
            (
                "device/cuda.py",
                "if read is None:\n            self.order_behind(ticket)",
                "if read is None:\n            pass",
            ),
        ),
        "rows_are_written_after_the_table_reads_of_every_forward",
    ),
    # 9. A float moves behind the forwards in flight. Making room and the mover both see to it.
    Mutation(
        9,
        "the barrier asks nothing of the device",
        (SETTLE_WITHOUT_BARRIER,),
        "a_float_makes_way_behind_the_barrier_and_before_the_hand_out",
    ),
    Mutation(
        9,
        "floats of any layout move without a barrier",
        (SETTLE_WITHOUT_BARRIER,),
        "a_relocation_follows_every_forward_in_flight",
    ),
    Mutation(
        9,
        "neither making room nor the mover places the barrier",
        (
            ("books.py", 'self.settle("reuse of pending pages")', "self.reclaim()"),
            ("books.py", 'self.settle("page moves")', "pass"),
        ),
        "a_relocation_follows_every_forward_in_flight",
    ),
    Mutation(
        9,
        "the barrier waits for no event",
        (EVENT_NOT_WAITED_FOR,),
        "a_relocation_follows_every_forward_in_flight",
    ),
    # 10. Frees and compaction at once follow the forwards in flight.
    Mutation(
        10,
        "urgent compaction places no barrier",
        (PACK_WITHOUT_BARRIER,),
        "urgent_compaction_orders_itself_once_for_all_bands",
    ),
    Mutation(
        10,
        "urgent compaction asks nothing of the device",
        (SETTLE_WITHOUT_BARRIER,),
        "a_free_compacted_at_once_follows_every_forward_in_flight",
    ),
    Mutation(
        10,
        "the barrier is behind the oldest forward only",
        (
            (
                "books.py",
                "self.device.order_behind(ticket)\n",
                "self.device.order_behind(self.tickets.completed_through + 1)\n",
            ),
        ),
        "a_free_compacted_at_once_follows_every_forward_in_flight",
    ),
    Mutation(
        10,
        "bytes change bands without a barrier",
        (SETTLE_WITHOUT_BARRIER,),
        "a_neighbour_gets_no_bytes_that_a_forward_may_touch",
    ),
    Mutation(
        10,
        "frontiers are pulled back past pending pages",
        (("band.py", "_HOLE_BYTE = bytes([HOLE])", "_HOLE_BYTE = bytes([HOLE, PENDING])"),),
        "a_neighbour_gets_no_bytes_that_a_forward_may_touch",
    ),
    Mutation(
        10,
        "freed pages are holes at once",
        (FREED_AT_ONCE,),
        "a_neighbour_gets_no_bytes_that_a_forward_may_touch",
    ),
]


def copy_of_the_allocator(target: Path) -> Path:
    """What the tests of order need, in a checkout of its own: the allocator, and their modules."""
    unwanted = shutil.ignore_patterns("__pycache__")
    package = target / ".src" / "bandscope"
    shutil.copytree(CHECKOUT / "allocator", package / "allocator", ignore=unwanted)
    shutil.copy(CHECKOUT / ".src" / "bandscope" / "__init__.py", package)
    (target / "tests" / "allocator").mkdir(parents=True)
    for name in (
        "pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/allocator/__init__.py",
        "tests/allocator/arenas.py", "tests/allocator/devices.py", RULES,
    ):  # fmt: skip
        shutil.copy(CHECKOUT / name, target / name)
    return target


def apply(mutation: Mutation, copy: Path) -> None:
    """Change the text of the copy; `ValueError` when a text is not there exactly once."""
    for module, old, new in mutation.changes:
        path = copy / ".src" / "bandscope" / "allocator" / module
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(
                f"mutation {mutation.row}, {mutation.name!r}: {old!r} is {text.count(old)} times "
                f"in allocator/{module}, not once; bring the list up to date with the code"
            )
        path.write_text(text.replace(old, new))


# Imports what is slow once, then runs pytest for each line `folder node ...` in its own process.
RUNNER = """
import os, sys
import numpy, pytest, torch
try:
    import triton
except ImportError:  # not on every system; tests that need it skip
    pass
for line in sys.stdin:
    folder, *nodes = line.split()
    child = os.fork()
    if not child:
        os.chdir(folder)
        sys.path[:0] = [folder, folder + "/.src"]
        sys.stdout = sys.stderr = open("output", "w")
        status = pytest.main(["-q", "-x", "--tb=line", "-p", "no:cacheprovider", *nodes])
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Verdict = tuple[int, str]


def run_tests(jobs: list[tuple[Path, list[str]]]) -> list[Verdict]:
    """Exit status and output of pytest over each job's tests in its copy."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTHONPATH"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input="".join(f"{copy} {' '.join(nodes)}\n" for copy, nodes in jobs),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    outputs = [(copy / "output").read_text() for copy, _ in jobs]
    return list(zip(map(int, done.stdout.split()), outputs, strict=True))


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Mutation | None, Verdict]:
    """Of the mutations that are to be tested, two at a time; under None, of the code as it is."""
    chosen: list[Mutation | None] = [
        item.callspec.params["mutation"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == test_a_rule_that_is_removed_is_missed.__name__
    ]
    folder = tmp_path_factory.mktemp("mutations")
    jobs = [(folder / "intact", sorted({mutation.node for mutation in chosen if mutation}))]
    jobs += [(folder / str(n), [mutation.node]) for n, mutation in enumerate(chosen) if mutation]
    chosen.insert(0, None)
    for mutation, (copy, _) in zip(chosen, jobs, strict=True):
        copy_of_the_allocator(copy)
        if mutation is not None:
            apply(mutation, copy)
    with ThreadPoolExecutor(2) as pool:
        even, odd = pool.map(run_tests, [jobs[0::2], jobs[1::2]])
    return dict(zip(chosen[0::2], even, strict=True)) | dict(zip(chosen[1::2], odd, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda mutation: f"{mutation.row}-{mutation.name}-{mutation.test}"
)
def test_a_rule_that_is_removed_is_missed(
    mutation: Mutation, verdicts: dict[Mutation | None, Verdict]
) -> None:
    """The test of a rule passes with it and fails, by an assertion, without it."""
    status, output = verdicts[None]
    assert status == 0, f"the tests fail on the code as it is:\n{output}"
    status, output = verdicts[mutation]

    assert status == 1, f"{mutation.node} did not see it (status {status}):\n{output}"
    assert re.search(r"\.py:\d+: (AssertionError|assert )", output), output


def test_every_mutation_applies(tmp_path: Path) -> None:
    """Each text is found once in the allocator as it is; every row has a mutation and tests."""
    for number, mutation in enumerate(MUTATIONS):
        package = tmp_path / str(number) / ".src" / "bandscope" / "allocator"
        for module in {module for module, _, _ in mutation.changes}:
            (package / module).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / "allocator" / module, package / module)
        apply(mutation, tmp_path / str(number))
    rules = (CHECKOUT / RULES).read_text()
    tests = set(re.findall(r"^def (test_row\w+)", rules, re.MULTILINE))

    assert {mutation.row for mutation in MUTATIONS} == set(range(1, 11))
    assert {mutation.node.split("::")[1] for mutation in MUTATIONS} == tests
