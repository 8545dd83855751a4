"""Every row of the user page on sizing, admission and limits: one test each, named after the row.

The page describes the system whose options these are; a docstring quotes the row's subject.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bandscope.allocator import demand_fit
from bandscope.allocator.arena import Arena
from bandscope.allocator.demand import DemandModel
from bandscope.allocator.errors import SizingError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.allocator.sizing import check_one_request_floor, floor_terms, static_bytes
from bandscope.allocator.targets import SizingOptions, size_arena
from bandscope.fuzz.workload.admission import Admission, Waiting
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request

GIB = 1 << 30


def plan_of(model: str, page_size: int = 16) -> StoragePlan:
    """A model's bands."""
    return plan_storage(declare_model(model), page_size=page_size)


def both() -> StoragePlan:
    """State, a window of 8 and full attention in pages of four tokens."""
    return plan_from_sizes([("mamba", 2048), ("window_8", 1024), ("full", 512)], page_size=4)


def test_mem_fraction_static_is_the_budget() -> None:
    """`--mem-fraction-static`: the arena's byte budget comes from the static memory fraction, with the
    weights inside it; nine tenths means nine tenths, not its nearest float."""
    assert static_bytes(1_000_000_000_000_000_000, 0.9, 0) == 900_000_000_000_000_000
    assert static_bytes(100 * GIB, Fraction(9, 10), 40 * GIB) == 50 * GIB
    with pytest.raises(SizingError, match="95,000 bytes of weights leave nothing .* 90,000 bytes"):
        static_bytes(100_000, 0.9, 95_000)
    with pytest.raises(SizingError, match="give a number above 0 and up to 1"):
        static_bytes(100_000, 1.5, 0)


def test_mem_fraction_static_floor_of_one_request_is_named_term_by_term() -> None:
    """`--mem-fraction-static`: if the arena cannot hold the floor of one request at batch size 1 (its
    window rows, its state slots and the sink), startup fails and names the terms."""
    plan = plan_of("inkling-small")
    with pytest.raises(SizingError) as raised:
        size_arena(plan, 10 << 20, SizingOptions())
    for name, size in floor_terms(plan).items():
        assert f"{name} {size:,}" in str(raised.value)
    assert list(floor_terms(plan)) == [
        "sink", "1 slot of mamba", "33 pages of window_512", "1 page of full"
    ]  # fmt: skip


def test_mem_fraction_static_floor_does_not_charge_a_whole_request() -> None:
    """`--mem-fraction-static`: whether a whole request fits, its full-attention tokens included, is
    checked at the memory clip and at admission: an arena at the floor starts."""
    plan = both()
    floor = sum(floor_terms(plan).values())
    check_one_request_floor(plan, floor)
    arena = Arena(plan, floor, device="none")
    admission = Admission(ArenaMemory(arena), 64, 1.0)
    short, long = Waiting(Request(0, 0.0, 3, 1)), Waiting(Request(1, 0.0, 30, 1))
    assert admission.look_at(short) is None and admission.admits(short, [])
    refusal = admission.look_at(long)
    assert refusal is not None
    assert refusal.reason == "Request prompt exceeds the KV memory budget"


def test_mem_fraction_static_floor_counts_a_slot_once_at_any_page_size() -> None:
    """`--mem-fraction-static`: a state slot is one entry, whatever the page size of the tokens."""
    for page in (1, 256):
        plan = plan_of("falcon-h1-0.5b", page)
        slot = plan.bands[0].page_bytes
        assert floor_terms(plan)["1 slot of mamba"] == slot
        check_one_request_floor(plan, 2 * max(slot, plan.sink_bytes) + 2 * plan.sink_bytes)


def test_max_total_tokens_is_the_smallest_budget_that_reaches_it() -> None:
    """`--max-total-tokens`: the smallest budget, within the measured one, whose sizing gives at least
    that many full-attention tokens, with windows and state sized by the same rules."""
    for model in ("gpt-oss-20b", "qwen3-next-80b-a3b", "inkling"):
        plan = plan_of(model)
        whole = size_arena(plan, 100 * GIB, SizingOptions())
        for tokens in (5_000, whole.full_tokens // 3):
            targets = size_arena(plan, 100 * GIB, SizingOptions(max_total_tokens=tokens))
            assert targets.full_tokens >= tokens
            again = size_arena(plan, targets.arena_bytes, SizingOptions())
            assert again.pages == targets.pages
            below = size_arena(plan, targets.arena_bytes - 256, SizingOptions())
            assert below.full_tokens < tokens


def test_max_total_tokens_beyond_the_budget_is_refused() -> None:
    """`--max-total-tokens`: within the measured budget; more is refused with what would be needed."""
    with pytest.raises(SizingError, match="999,999,999 full-attention tokens were asked for"):
        size_arena(plan_of("gpt-oss-20b"), 10 * GIB, SizingOptions(max_total_tokens=999_999_999))


def test_max_total_tokens_does_not_cap_growth_at_run_time() -> None:
    """`--max-total-tokens`: it sizes the full-attention target; it does not cap how far full attention
    can grow into the arena at run time."""
    plan = both()
    targets = size_arena(plan, 1 << 20, SizingOptions(max_total_tokens=400))
    arena = Arena(plan, targets.arena_bytes, device="none")
    index = len(plan.bands) - 1
    demand = [0] * len(plan.bands)
    demand[index] = targets.pages[index] * 2
    assert arena.serves(demand)


def test_max_running_requests_bounds_the_concurrency() -> None:
    """`--max-running-requests`: bounds the concurrency the sizing solves for; state and windows get no
    larger target than these requests can hold."""
    plan = plan_of("inkling-small")
    free = size_arena(plan, 60 * GIB, SizingOptions())
    bound = size_arena(plan, 60 * GIB, SizingOptions(max_running_requests=20, chunk_tokens=1600))
    assert (bound.concurrency, bound.bounded_by) == (20, "max_running_requests")
    assert bound.tokens["mamba"] == 20 < free.tokens["mamba"]
    assert bound.pages[1] == 20 * 33 + 100
    assert bound.full_tokens > free.full_tokens


def test_max_running_requests_is_capped_at_half_the_full_tokens() -> None:
    """`--max-running-requests`: the result is also capped at half the full-attention tokens."""
    plan = plan_of("gpt-oss-20b")
    targets = size_arena(plan, 1 * GIB, SizingOptions(max_running_requests=10**6))
    assert targets.concurrency == targets.full_tokens // 2
    assert targets.bounded_by == "half the full-attention tokens"


def test_swa_full_tokens_ratio_is_a_target_not_a_partition() -> None:
    """`--swa-full-tokens-ratio`: sets the window sub-pools' sizing target relative to full attention.
    It is a boot target, not a partition."""
    plan = plan_of("gpt-oss-20b")
    for ratio in (Fraction(1, 10), Fraction(1, 2), Fraction(1)):
        targets = size_arena(plan, GIB, SizingOptions(swa_full_tokens_ratio=ratio))
        wanted = int(targets.full_tokens * ratio) // 16 * 16
        assert targets.tokens["window_128"] == wanted
    arena = Arena(plan, GIB, device="none")
    narrow = size_arena(plan, GIB, SizingOptions(swa_full_tokens_ratio=Fraction(1, 10)))
    assert arena.serves([narrow.pages[0] * 5, narrow.pages[1] // 5])


def test_swa_full_tokens_ratio_applies_to_every_window() -> None:
    """`--swa-full-tokens-ratio`: with several window sub-pools each has the target."""
    plan = plan_from_sizes([("window_64", 256), ("window_8", 512), ("full", 1024)], page_size=1)
    targets = size_arena(plan, 1 << 20, SizingOptions(swa_full_tokens_ratio=Fraction(1, 2)))
    assert targets.pages[0] == targets.pages[1] == targets.pages[2] // 2 > 64


def test_mamba_full_memory_ratio_is_a_share_of_the_arena() -> None:
    """`--mamba-full-memory-ratio`: the state sub-pool's boot target, a share of the arena."""
    plan = plan_of("qwen3-next-80b-a3b")
    for ratio in (Fraction(1, 4), Fraction(9, 10), Fraction(3)):
        targets = size_arena(plan, 100 * GIB, SizingOptions(mamba_full_memory_ratio=ratio))
        beside = targets.arena_bytes - plan.sink_bytes
        slot = plan.bands[0].page_bytes
        assert targets.pages[0] == int(beside * ratio / (1 + ratio)) // slot


def test_max_mamba_cache_size_is_an_explicit_slot_count() -> None:
    """`--max-mamba-cache-size`: an explicit slot count, which bounds the concurrency; one that leaves
    no room for a request is refused with the sum."""
    plan = plan_of("qwen3-next-80b-a3b")
    targets = size_arena(plan, 20 * GIB, SizingOptions(max_mamba_cache_size=7))
    assert (targets.pages[0], targets.concurrency, targets.bounded_by) == (7, 7, "state slots")
    with pytest.raises(SizingError, match=r"500 × 77,266,944 bytes, the sink and the tokens of one"):
        size_arena(plan, 20 * GIB, SizingOptions(max_mamba_cache_size=500))
    with pytest.raises(SizingError, match="one request holds 3; ask for at least as many"):
        size_arena(plan, 20 * GIB, SizingOptions(max_mamba_cache_size=2, state_slots=3))


def test_max_mamba_cache_size_does_not_cap_slots_at_run_time() -> None:
    """`--max-mamba-cache-size`: the arena may give state more slots at run time."""
    plan = plan_of("qwen3-next-80b-a3b")
    targets = size_arena(plan, 4 * GIB, SizingOptions(max_mamba_cache_size=3))
    arena = Arena(plan, targets.arena_bytes, device="none")
    assert all(arena.admit(request).ok for request in range(40))


def test_capacity_is_one_layout_for_one_demand() -> None:
    """Capacity: every capacity decision asks whether one layout of the arena serves a concrete demand;
    per-sub-pool availability figures are estimates for observers."""
    arena = Arena(both(), both().sink_bytes + 64 * 512, device="none")
    available = [fact.available_estimate for fact in arena.facts()]
    alone = [[count if index == band else 0 for index in range(3)]
             for band, count in enumerate(available)]  # fmt: skip
    assert all(arena.serves(demand) for demand in alone)
    assert not arena.serves(available)  # each figure counts the same bytes


def test_held_figures_are_exact_and_state_is_reported_in_slots() -> None:
    """Observability: state is reported in slots; the held figures are exact."""
    arena = Arena(both(), 1 << 20, device="none")
    arena.admit(0, state_slots=3)
    arena.extend(0, 13)
    assert [fact.live for fact in arena.facts()] == [3, 4, 4]


def test_a_prompt_that_fits_no_empty_arena_is_aborted_at_admission_with_the_sum() -> None:
    """Admission: a prompt that cannot fit even an otherwise empty arena is aborted at admission with
    `Request prompt exceeds the KV memory budget`, and the sum says why."""
    plan = both()
    memory = ArenaMemory(Arena(plan, plan.sink_bytes + 30 * 512, device="none"))
    admission = Admission(memory, 64, 1.0)
    refusal = admission.look_at(Waiting(Request(0, 0.0, 90, 1)))
    assert refusal is not None
    assert refusal.reason == "Request prompt exceeds the KV memory budget"
    assert refusal.detail == (
        "prompt of 90 tokens and one of output: sink 2,048 + 1 slot of mamba 2,048 + 3 pages of "
        "window_8 3,072 + 23 pages of full 11,776 = 18,944 bytes of 17,408"
    )


def test_a_busy_arena_makes_a_request_wait_instead() -> None:
    """Admission: what fits an empty arena waits while others hold its memory; it is not refused."""
    plan = both()
    memory = ArenaMemory(Arena(plan, plan.sink_bytes + 60 * 512, device="none"))
    assert memory.admit(0)
    assert memory.extend(0, 48)
    admission = Admission(memory, 64, 1.0)
    entry = Waiting(Request(1, 0.0, 60, 4))
    assert admission.look_at(entry) is None and entry.output_tokens == 4
    assert not admission.admits(entry, [])
    memory.release(0, "finished")
    assert admission.admits(entry, [])


def test_the_memory_clip_and_admission_price_with_the_same_model() -> None:
    """Admission: the memory clip and admission price a request with the same demand model
    (`max_new_tokens_for_memory`): what the clip grants is admitted, one token more is not."""
    plan = both()
    memory = ArenaMemory(Arena(plan, plan.sink_bytes + 60 * 512, device="none"))
    admission = Admission(memory, 64, 1.0)
    entry = Waiting(Request(0, 0.0, 60, 10_000))
    assert admission.look_at(entry) is None
    assert entry.output_tokens is not None and 0 < entry.output_tokens < 10_000
    assert admission.admits(entry, [])
    entry.output_tokens += 1
    assert not admission.admits(entry, [])


def test_a_prefill_chunk_prices_the_window_rows_it_holds_until_it_is_launched() -> None:
    """Admission: chunks and windows: a chunk's rows live together, so a chunk that does not fit is cut
    smaller before the prompt is refused."""
    plan = plan_from_sizes([("window_8", 1024), ("full", 256)])
    memory = ArenaMemory(Arena(plan, plan.sink_bytes + 30 * 1024, device="none"))
    admission = Admission(memory, 64, 1.0)
    entry = Waiting(Request(0, 0.0, 50, 1))
    assert admission.look_at(entry) is None
    assert 1 <= entry.chunk_tokens < 50
    assert DemandModel(plan).during(0, 50).tolist() == [50, 50]
    assert DemandModel(plan).peak(50, 51, 1).tolist() == [8, 51]


def test_the_context_length_limits_prompt_and_output() -> None:
    """Limits: a prompt as long as the context is refused, an output is cut to what is left of it."""
    plan = plan_from_sizes([("window_8", 256), ("full", 256)], context_length=50)
    admission = Admission(ArenaMemory(Arena(plan, 1 << 20, device="none")), 64, 1.0)
    refusal = admission.look_at(Waiting(Request(0, 0.0, 50, 1)))
    assert refusal is not None and refusal.reason == "prompt exceeds the context length"
    entry = Waiting(Request(0, 0.0, 45, 100))
    assert admission.look_at(entry) is None and entry.output_tokens == 5


def test_known_limitation_window_rows_of_a_stalled_checkpoint_have_a_price() -> None:
    """Known limitations, "window rows when state checkpoints stall": there, a request may hold more
    window rows than it was priced for. Here the rows that stay behind a late trim are part of the
    model, so the clip and admission count them."""
    plan = both()
    empty = lambda rows: demand_fit.shortage_when_empty(plan, 40_000, rows)  # noqa: E731
    prompt, stalled = DemandModel(plan), DemandModel(plan, window_slack_tokens=40)
    assert stalled.held(100)[1] == prompt.held(100)[1] + 10
    plain = prompt.max_new_tokens_for_memory(empty, 100, 10**6)
    assert stalled.max_new_tokens_for_memory(empty, 100, 10**6) == plain - 10 * 1024 // 512 * 4


@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_state_slot_and_its_checkpoints_are_held_from_admission(page: int) -> None:
    """`--max-mamba-cache-size` with checkpoints: the slots that a request holds divide the cache."""
    plan = plan_of("qwen3-next-80b-a3b", page)
    targets = size_arena(plan, 60 * GIB, SizingOptions(max_mamba_cache_size=30, state_slots=3))
    assert targets.concurrency == 10
    assert DemandModel(plan, 3).held(np.array([0, 5]))[:, 0].tolist() == [3, 3]
