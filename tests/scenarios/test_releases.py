"""Group A: what is released is released once, at every point at which a request may end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE
from bandscope.allocator.errors import MisuseError
from tests.allocator.arenas import P2M, P2W, P3, EventLog, held_pages, page_list, small_arena
from tests.scenarios.closing import Holdings, assert_empty, close, refused

PAGE_SIZES = (1, 2, 4, 16)
ENDS = ("finished", "aborted", "retracted")
every_page_size = pytest.mark.parametrize("page_size", PAGE_SIZES)


# A1. sgl-project/sglang#38981 (#38982)
@every_page_size
@pytest.mark.parametrize("trimmed", [False, True])
def test_an_abort_between_prefill_chunks_frees_the_boundary_page_once(
    page_size: int, trimmed: bool
) -> None:
    """Two chunks share a page at every unaligned cut; it is freed once, and the count is exact."""
    for cut, rest in itertools.product(range(15), (0, 1, 4)):
        log = Holdings()
        arena = small_arena(P2W, page_size=page_size, units=128, observer=log)
        arena.admit(7)
        arena.admit(8)
        arena.extend(8, 3)
        before = held_pages(arena)
        arena.extend(7, cut)
        if trimmed:
            arena.trim_window([7])
        arena.extend(7, rest)  # aborted between this chunk and the next
        pages = -(-(cut + rest) // page_size)
        assert len(page_list(arena, 7, "full")) == pages
        log.freed.clear()
        arena.release(7, "aborted")

        assert held_pages(arena) == before
        full = [virtual for band, virtual in log.freed if band == "full"]
        assert len(full) == len(set(full)) == pages
        assert len(log.freed) == len(set(log.freed))
        refused(arena, ops.Release(7, "aborted"), "misuse")
        close(arena)


# A2. sgl-project/sglang#36081 (#36135)
@pytest.mark.parametrize("deferral", ["ticket", "pin"])
def test_a_deferred_free_frees_the_old_window_page_when_its_id_is_bound_anew(deferral: str) -> None:
    """The free of W1 is put off; meanwhile its id is bound to W2. Only W1 is free afterwards."""
    arena = small_arena(P2W, page_size=4)
    arena.admit(0)
    arena.extend(0, 4)
    (virtual,) = arena.books.ledger.token_pages(arena.books.ledger.row(0)).tolist()
    (first,) = page_list(arena, 0, "window_8")
    if deferral == "ticket":
        ticket = arena.launch([0])
    else:
        lease = arena.lease(0, "window_8", 0, 1)
    arena.release(0)
    arena.admit(1)
    arena.extend(1, 4)
    assert arena.books.ledger.token_pages(arena.books.ledger.row(1)).tolist() == [virtual]
    (second,) = page_list(arena, 1, "window_8")
    assert second != first
    window = arena.books.bands[0]
    assert window.pending == 1
    if deferral == "ticket":
        arena.complete(ticket)
    else:
        arena.end_lease(lease)

    assert (window.pending, window.live) == (0, 1)
    assert page_list(arena, 1, "window_8") == [second]
    arena.extend(1, 4)  # the freed place is used again, and not the one that lives
    assert page_list(arena, 1, "window_8") == [second, first]
    close(arena)


# A2, the wrong result
def test_a_page_freed_under_its_new_id_is_reported_with_the_one_that_is_lost() -> None:
    """W2 free while its id maps to it, W1 unreachable: the checks name both."""
    arena = small_arena(P2W, page_size=4)
    arena.admit(0)
    arena.extend(0, 4)
    window = arena.books.bands[0]
    arena.launch([0])
    arena.release(0)
    arena.admit(1)
    arena.extend(1, 4)
    (deferred,) = arena.books.tickets.snapshot()["pending"][:1]
    assert arena.check() == []
    wrong = window.table.place_of[arena.books.ledger.token_pages(0)]
    window.state[deferred[2]], window.state[wrong] = window.state[wrong], HOLE
    window.state[deferred[2]] = 3  # still pending: nobody will reclaim it
    window.live, window.holes = 0, 1
    window._block_holes[0] = 1
    arena.books.tickets._pending.popleft()

    found = [str(violation) for violation in arena.check()]
    assert any("mapped but not live" in text and f"place {int(wrong[0])}" in text for text in found)
    assert any("a page nobody will reclaim" in text for text in found)


# A3. sgl-project/sglang-jax#982, #994; sgl-project/sglang#6888
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("why", ENDS)
def test_a_second_release_of_the_look_ahead_token_is_refused_at_the_call(
    why: str, overlap: bool, page_size: int
) -> None:
    """Step N is in flight when the result of N − 1 ends the request; the clean-up comes second."""
    log = Holdings()
    arena = small_arena(P3, page_size=page_size, observer=log)
    for request in (1, 2):
        arena.admit(request)
        arena.extend(request, 4)
    first = arena.launch([1, 2])
    if overlap:
        arena.decode([1, 2])  # one token ahead
        second = arena.launch([1, 2])
    arena.complete(first)
    arena.release(1, why)
    told = refused(arena, ops.Release(1, why), "misuse")
    assert "request 1 is not running" in told.message
    arena.admit(3)  # takes the row, and perhaps the ids, that request 1 had
    arena.extend(3, 4)
    held = [page_list(arena, 3, band.name) for band in arena.plan.bands]
    refused(arena, ops.Release(1, why), "misuse")
    assert [page_list(arena, 3, band.name) for band in arena.plan.bands] == held
    if overlap:
        refused(arena, ops.Decode((1, 2)), "misuse")
        refused(arena, ops.Decode((2, 2)), "misuse")
        arena.complete(second)

    assert arena.check() == []
    assert len(log.owner) == sum(band.live for band in arena.books.bands)
    close(arena)


# A3, the report: sets, not sums
def test_a_double_free_is_reported_as_one_even_when_a_leak_hides_it_in_the_sum() -> None:
    """One id free twice and one lost keep every total right; both are named, each as what it is."""
    arena = small_arena(P2W, page_size=1)
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 1)
        arena.release(request)
        arena.admit(request + 10)
        arena.extend(request + 10, 1)
    arena.release(10)
    arena.release(11)
    space = arena.books.ids
    released = space.released_ids()
    total = space.free_count
    lost, twice = released[0], released[1]
    space._released[0] = twice

    assert space.free_count == total
    found = [str(violation) for violation in arena.check()]
    assert f"ids: token id {twice} is free twice" in found
    assert any(f"the first is {lost} (leak)" in text for text in found)


# A4. sgl-project/sglang#31616; #13826, sgl-project/sglang-jax#1147
@every_page_size
@pytest.mark.parametrize("why", ENDS)
def test_no_page_tail_is_stranded_whatever_length_a_request_ends_at(
    page_size: int, why: str
) -> None:
    """Look-ahead targets 6, 9, 10, 13: pages are ceil(target / page size), and none afterwards."""
    targets = (6, 9, 10, 13)
    for stop in range(1, len(targets) + 1):
        arena = small_arena(P2W, page_size=page_size, units=160)
        arena.admit(0)
        length = 0
        for target in targets[:stop]:
            arena.extend(0, target - length)
            length = target
            pages = -(-target // page_size)
            assert [band.live for band in arena.books.bands] == [pages, pages]
            assert arena.token_ids(0).size == target
            arena.launch([0])
            arena.complete(arena.books.tickets.issued)
            refused(arena, ops.Extend(0, -1), "misuse")  # what was not accepted stays allocated
        arena.release(0, why)
        assert_empty(arena)


# A5. sgl-project/sglang#12693, #21404
@pytest.mark.parametrize("path", ["abort", "no memory", "again", "no slot"])
def test_a_state_slot_of_a_request_that_never_runs_comes_back_once(path: str) -> None:
    """A request that has its slot and no token yet ends in four ways, a hundred times each."""
    arena = small_arena(P2M, page_size=4)
    arena.admit(0)
    arena.extend(0, 20)
    before, ids = held_pages(arena), arena.books.state_ids.free_count
    for request in range(100, 200):
        if path == "no slot":
            refused(arena, ops.Admit(request, state_slots=9), "memory")
            refused(arena, ops.Extend(request, 1), "misuse")
        else:
            slots = 1 + request % 2
            assert arena.admit(request, state_slots=slots)
            assert arena.books.bands[0].live == 1 + slots
            if path == "no memory":
                refused(arena, ops.Extend(request, 64), "memory")
            if path == "again":
                refused(arena, ops.Admit(request), "misuse")
            assert arena.release(request, "aborted")
        assert held_pages(arena) == before
        assert arena.books.state_ids.free_count == ids
        assert len(arena.books.ledger) == 1
    assert arena.books.ledger.row_count == (1 if path == "no slot" else 2)  # rows are used again
    close(arena)


# A6. NVIDIA/TensorRT-LLM#17926 (#18095)
class Meddler(EventLog):
    """At every effect, that is between any two steps of an operation: asks whether the pages of one
    request are still its own and where they were, and whether the extents are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.arena: Arena | None = None
        self.pinned: dict[str, list[int]] = {}
        self.looked = 0

    def effect(self, event: object) -> None:
        super().effect(event)
        if self.arena is None:
            return
        self.looked += 1
        for band, pages in self.pinned.items():
            assert page_list(self.arena, 0, band)[: len(pages)] == pages
        spans = [band.byte_range() for band in self.arena.books.bands if band.extent]
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_what_a_request_is_copying_out_is_never_taken_to_serve_it() -> None:
    """The arena is full of one request whose pages are pinned: its own demand finds nothing, and in
    no step of making room for anybody is one of its pages freed, moved or handed out."""
    log = Meddler()
    arena = small_arena(P3, page_size=4, observer=log)
    for request in range(4):
        arena.admit(request)
        arena.extend(request, 8)
    for request in (1, 3):
        arena.release(request)
    leases = [arena.lease(0, band.name, 0, 1 + (band.name != "mamba")) for band in arena.plan.bands]
    log.pinned = {band.name: page_list(arena, 0, band.name) for band in arena.plan.bands}
    log.arena = arena
    assert arena.extend(0, 4)  # while it is being copied out it may grow
    arena.release(2)
    served = 0
    for request in range(10, 40):  # until only its own pages are left
        if not arena.admit(request) or not arena.extend(request, 4):
            break
        served += 1
    assert served >= 3 and log.looked > 10
    refused(arena, ops.Extend(0, 64), "memory")
    assert arena.compact(urgent=True) >= 0
    log.arena = None
    for lease in leases:
        arena.end_lease(lease)
    close(arena)


# A7. sgl-project/sglang#35351, #36207, #33974
def as_numbers(arena: Arena, request: int, band: str) -> torch.Tensor:
    """The pages of a request as 16-bit floats, shape (pages, numbers)."""
    page_bytes = arena.plan.band(band).page_bytes
    rows = arena.buffer[: arena.total_bytes // page_bytes * page_bytes].view(torch.float16)
    return rows.view(-1, page_bytes // 2)[arena.pages_of(request, band)[0]]


def poison(arena: Arena, request: int, band: str) -> None:
    """Not-a-number in every byte that the request owns."""
    page_bytes = arena.plan.band(band).page_bytes
    for page in page_list(arena, request, band):
        arena.buffer[page * page_bytes : (page + 1) * page_bytes] = 0xFF


@pytest.mark.parametrize("band", ["mamba", "window_8", "full"])
@pytest.mark.parametrize("hand_out", ["zero", "poison", "none"])
def test_a_reader_of_rows_not_yet_written_meets_no_former_owners_bytes(
    hand_out: str, band: str
) -> None:
    """Rows that are weighted with 0 must be finite: a page is zeroed when it is handed out, also
    after a move. The other policies show what the reader would meet."""
    arena = small_arena(
        P3, page_size=4, device="cpu", hand_out=hand_out, hand_out_state=hand_out,
        compact_hole_share=0.0,
    )  # fmt: skip
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 8)
        poison(arena, request, band)
    arena.release(0)
    arena.release(2)
    arena.admit(9)
    arena.extend(9, 5)
    rows = as_numbers(arena, 9, band)
    rows[0, 0] = 1.0
    arena.release(1)
    arena.compact(urgent=True)
    read = as_numbers(arena, 9, band)
    weights = torch.zeros(read.shape[1], dtype=torch.float16)
    weights[0] = 1.0

    assert bool((read * weights).sum().isfinite()) is (hand_out == "zero")
    close(arena)


def test_writes_aimed_at_the_sink_are_counted_and_reach_no_page() -> None:
    """Padding lanes have no id: they are sent to row 0 of the sink, counted, and refused on wish."""
    arena = small_arena(P2W, page_size=4, device="cpu")
    arena.admit(0)
    arena.extend(0, 6)
    arena.launch([0])
    padded = torch.cat([torch.from_numpy(arena.token_ids(0)), torch.tensor([-1, -1])])
    for band in arena.plan.bands:
        rows = arena.translate(band.name, padded)
        assert rows[-2:].tolist() == [0, 0] and int(rows[:-2].min()) * band.entry_bytes >= (
            arena.plan.sink_bytes
        )
    assert arena.device.unmapped_tokens() == 4
    strict = small_arena(P2W, page_size=4, device="cpu", debug=True)
    with pytest.raises(MisuseError, match="2 of 2 token ids are not mapped in band full"):
        strict.translate("full", torch.tensor([-1, -1]))
    close(arena)


def test_every_handed_out_page_is_zeroed_once_and_before_it_is_named() -> None:
    """What the device is asked to fill is what the owner is told it holds: no page is left out."""
    from tests.allocator.devices import recorded

    arena, device, log = recorded(P3, page_size=4)
    arena.admit(0)
    arena.extend(0, 9)
    arena.decode([0])
    filled = [(call[1], page) for call in device.calls if call[0] == "fill" for page in call[2]]
    names = [band.name for band in arena.plan.bands]
    told = [
        (names.index(event.band), page)
        for event in log.of(events.LeaseBegin)
        for page in np.asarray(event.physical).tolist()
    ]
    assert sorted(filled) == sorted(told) and len(set(filled)) == len(filled)
    close(arena)


