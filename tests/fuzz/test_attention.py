"""Attention and states through the arena equal the reference while pages move; faults are named."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.demand import add, chunk_demand, peak_demand
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import plan_storage
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig

pytest.importorskip("triton", reason="Triton is not installed here")

from bandscope.allocator.device import forward as kernels  # noqa: E402
from bandscope.fuzz.workload import attention  # noqa: E402
from bandscope.fuzz.workload.attention import TOLERANCE, AttentionForward  # noqa: E402
from bandscope.fuzz.workload.attention_batch import BatchTables  # noqa: E402
from bandscope.fuzz.workload.attention_results import MISMATCHES_KEPT  # noqa: E402
from bandscope.fuzz.workload.attention_states import state_tolerance  # noqa: E402

GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16,
    "sliding_window": 8, "max_position_embeddings": 4096,
}  # fmt: skip
GDN = {
    "model_type": "qwen3_next", "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 16,
    "full_attention_interval": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 8,
    "linear_num_value_heads": 2, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 2, "kv_lora_rank": 24,
    "qk_rope_head_dim": 8, "model_max_length": 4096,
    "linear_attn_config": {
        "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4,
        "full_attn_layers": [2], "kda_layers": [1],
    },
}  # fmt: skip
MODELS = {"gpt-oss": GPT_OSS, "gdn": GDN, "kimi": KIMI}
SIZES = [(9, 14), (17, 16), (5, 19), (12, 13), (3, 18), (30, 5), (8, 18)]
REQUESTS = [
    Request(number, 0.01 * number, prompt, output)
    for number, (prompt, output) in enumerate(SIZES)
]


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """The interpreter leaves its arguments in reference cycles."""
    yield
    gc.collect()


def serve(
    model: dict[str, Any],
    break_arena: Callable[[Arena], None] = lambda arena: None,
    *,
    page_size: int = 4,
    **options: Any,
) -> AttentionForward:
    """A few requests in an arena that holds two of the largest, so that pages move and requests are
    retracted: such a one leaves with its windows trimmed."""
    plan = plan_storage(declare_model(model), page_size=page_size)
    demand = add(*[peak_demand(plan, 30, 9)] * 2, chunk_demand(plan, 16))
    total = plan.sink_bytes + sum(
        pages * band.page_bytes for pages, band in zip(demand, plan.bands, strict=True)
    )
    config = ArenaConfig(
        headroom_share=0.0, compact_hole_share=0.0, compact_gap_share=1.0, hand_out="poison"
    )
    arena = Arena(plan, total, device="cpu", config=config)
    break_arena(arena)
    forward = AttentionForward(
        arena, sample_requests=2, reference_tokens=200, fetch_steps=3, attend_all=False, **options
    )
    scheduler = Scheduler(
        ArenaMemory(arena), SchedulerConfig(chunk_tokens=16, output_reserve=0.2), forward=forward
    )
    results = scheduler.run(REQUESTS)
    forward.fetch()
    assert results.finished == len(REQUESTS)
    assert results.retractions > 0
    assert arena.check() == []
    return forward


class Moves:
    """Counts the pages that a device moves, per band; drops the first batch of band `skip`."""

    def __init__(self, arena: Arena, skip: int | None = None) -> None:
        self.pages = [0] * len(arena.plan.bands)
        self.skip = skip
        move = arena.device.move

        def counted(band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
            self.pages[band] += sources.size
            if band == self.skip:
                self.skip = None
                return
            move(band, sources, destinations)

        arena.device.move = counted  # type: ignore[method-assign]


def is_named(forward: AttentionForward, bands: set[str]) -> None:
    """Faults were found, kept up to the limit, and say who, where and when."""
    assert forward.mismatch_count > 0
    assert len(forward.mismatches) == min(MISMATCHES_KEPT, forward.mismatch_count)
    assert {found.band for found in forward.mismatches} <= bands
    for found in forward.mismatches:
        assert found.ticket > 0
        assert not found.error <= TOLERANCE or found.unmapped or found.what.startswith("state")
        assert str(found).startswith(
            f"content: request {found.request}, band {found.band}, layer {found.layer}, ticket "
            f"{found.ticket}: {found.what} off by "
        )


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_an_intact_run_has_no_mismatch(model: str, page_size: int) -> None:
    """Every kind of band: pages move, requests come and go, and nothing is off."""
    moves: list[Moves] = []
    forward = serve(
        MODELS[model], lambda arena: moves.append(Moves(arena)), page_size=page_size
    )
    assert forward.mismatches == []
    assert forward.mismatch_count == 0
    tokens = sum(request.prompt_tokens for request in REQUESTS)
    assert forward.rows_written > tokens
    assert forward.rows_checked > tokens
    assert sum(moves[0].pages) > 0


def test_slow_kernels_change_nothing() -> None:
    """Stretched kernels compute the same."""
    assert serve(GPT_OSS, slow=1).mismatch_count == 0


# --- the test of the test -------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "band"), [("gpt-oss", 0), ("gpt-oss", 1), ("gdn", 0)])
def test_one_batch_of_copies_that_does_not_happen_is_seen(model: str, band: int) -> None:
    """Tables say that pages moved, the bytes stayed: a window, full attention, and states."""
    moves: list[Moves] = []
    forward = serve(MODELS[model], lambda arena: moves.append(Moves(arena, skip=band)))
    assert moves[0].pages[band] > 0
    is_named(forward, {forward.arena.plan.bands[band].name})


@pytest.mark.parametrize(("model", "band"), [("gpt-oss", 0), ("gpt-oss", 1), ("gdn", 0)])
def test_one_update_of_the_tables_that_is_lost_is_seen(model: str, band: int) -> None:
    """The kernels go by the device's tables: without a row they meet unmapped pages."""
    skipped: list[int] = []

    def lose(arena: Arena) -> None:
        publish = arena.device.publish

        def partly(index: int, virtual: np.ndarray, physical: np.ndarray) -> None:
            if index == band and not skipped:
                skipped.append(virtual.size)
                return
            publish(index, virtual, physical)

        arena.device.publish = partly  # type: ignore[method-assign]

    forward = serve(MODELS[model], lose)
    is_named(forward, {forward.arena.plan.bands[band].name})
    assert max(found.unmapped for found in forward.mismatches) > 0


def small_arena(
    model: dict[str, Any], *, page_size: int = 16, total_bytes: int = 4 << 20, **options: Any
) -> AttentionForward:
    """A forward over an arena with room to spare, whose results are judged at once."""
    plan = plan_storage(declare_model(model), page_size=page_size)
    arena = Arena(plan, total_bytes, device="cpu")
    return AttentionForward(arena, **{"reference_tokens": 5000, "fetch_steps": 1, **options})


def compute(forward: AttentionForward, request: int, tokens: int) -> None:
    """`tokens` more tokens of a request, alone in its batch."""
    arena = forward.arena
    start = int(arena.books.ledger.length[arena.books.ledger.row(request)])
    arena.extend(request, tokens)
    forward.run(arena.launch([request]), [(request, start, start + tokens)])


def test_one_wrong_token_in_a_long_context_is_seen() -> None:
    """Every token weighs about the same: one row of a context of 3,000 that is another's shows, in
    the key alone or the value alone."""
    forward = small_arena(GPT_OSS)
    arena = forward.arena
    arena.admit(0)
    compute(forward, 0, 3000)
    assert forward.mismatch_count == 0
    assert 0 < forward.error_max < TOLERANCE / 10
    pages, _ = arena.pages_of(0, "full")
    layer = arena.plan.band("full").layers[0]
    for number, row in enumerate(("k", "v")):
        view = arena.view(layer, row)
        token = view[int(pages[50]), 3]
        before = token.clone()
        token.copy_(view[int(pages[51]), 3])
        compute(forward, 0, 1)
        assert forward.mismatch_count == number + 1
        found = forward.mismatches[-1]
        assert (found.band, found.layer, found.request) == ("full", layer, 0)
        assert TOLERANCE < found.error < 0.01
        token.copy_(before)
    compute(forward, 0, 1)
    assert forward.mismatch_count == 2


def test_a_token_that_is_no_number_is_seen_in_a_request_that_is_not_compared() -> None:
    """Everyone attends; of those beyond the sample at least NaN shows."""
    forward = small_arena(GPT_OSS, attend_all=True, sample_requests=0)
    arena = forward.arena
    for request in (0, 1):
        arena.admit(request)
        compute(forward, request, 20)
    pages, _ = arena.pages_of(1, "full")
    arena.view(arena.plan.band("full").layers[0], "v")[int(pages[0]), 2] = torch.nan
    arena.decode([0, 1])
    forward.run(arena.launch([0, 1]), [(0, 20, 21), (1, 20, 21)])
    assert [found.request for found in forward.mismatches] == [1]
    assert forward.rows_checked == 0


@pytest.mark.parametrize("band", ["full", "window_8"])
def test_an_unmapped_page_of_the_context_is_seen(band: str) -> None:
    """The device's table lost one row: its tokens are counted, even where nothing is compared."""
    forward = small_arena(GPT_OSS, page_size=4, sample_requests=0, attend_all=True)
    arena = forward.arena
    arena.admit(0)
    compute(forward, 0, 8)
    assert forward.mismatch_count == 0
    names = [plan.name for plan in arena.plan.bands]
    virtual = arena.books.ledger.token_pages(arena.books.ledger.row(0))
    mirror = arena.device.mirror(names.index(band))
    assert mirror is not None
    mirror[int(virtual[1])] = -1
    compute(forward, 0, 1)
    (found,) = forward.mismatches
    assert (found.what, found.band, found.unmapped) == ("attention", band, 4)


def test_new_tokens_without_a_page_are_seen() -> None:
    """A write that the device's table has no place for is counted."""
    forward = small_arena(GPT_OSS, page_size=4)
    arena = forward.arena
    arena.admit(0)
    compute(forward, 0, 4)
    arena.device.publish = lambda *arguments: None  # type: ignore[method-assign]
    compute(forward, 0, 3)
    assert {(found.what, found.unmapped) for found in forward.mismatches} == {
        ("write", 3),
        ("attention", 3),
    }


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("row", ["temporal", "conv"])
def test_a_state_of_another_step_is_seen(row: str, leaves: bool) -> None:
    """A slot that is put back to what it was one forward before, by the next forward and by the
    last look at a request that leaves; and a first forward that does not find zeros."""
    forward = small_arena(GDN, page_size=4, total_bytes=1 << 20)
    arena = forward.arena
    arena.admit(0)
    (slot,), _ = arena.pages_of(0, "mamba")
    layer = arena.plan.band("mamba").layers[0]
    name = next(each.name for each in arena.plan.band("mamba").rows if each.name.startswith(row))
    view = arena.view(layer, name)[int(slot)]
    for _ in range(4):
        before = view.clone()
        compute(forward, 0, 1)
    assert forward.mismatch_count == 0
    share = ((view - before).abs() / view.abs()).min()
    assert share > state_tolerance(view.dtype), "these two steps are told apart"
    view.copy_(before)
    if leaves:
        forward.leaving(0, 4)
        forward.fetch()
    else:
        compute(forward, 0, 1)
    (found,) = forward.mismatches
    assert (found.what, found.band, found.layer) == (f"state {name}", "mamba", layer)

    arena.admit(1)
    (slot,), _ = arena.pages_of(1, "mamba")
    arena.view(layer, name)[int(slot)].view(-1)[-1] = 1e-3
    compute(forward, 1, 1)
    assert forward.mismatch_count == 2
    assert forward.mismatches[1].request == 1


def test_one_wrong_element_of_a_state_is_seen() -> None:
    """A slot is compared whole; what is wrong with it is named with its size."""
    forward = small_arena(GDN, page_size=4, total_bytes=1 << 20)
    arena = forward.arena
    arena.admit(0)
    compute(forward, 0, 3)
    (slot,), _ = arena.pages_of(0, "mamba")
    layer = arena.plan.band("mamba").layers[0]
    arena.view(layer, "temporal")[int(slot)].view(-1)[-1] += 2
    compute(forward, 0, 1)
    (found,) = forward.mismatches
    assert found.what == "state temporal"
    assert found.error == pytest.approx(2, rel=0.05)


def test_states_of_long_runs_stay_within_the_tolerance() -> None:
    """Roundings of 200 steps do not add up; the tolerance is of the size of the type's own."""
    forward = small_arena(GDN, page_size=4, total_bytes=1 << 20, sample_requests=0)
    forward.arena.admit(0)
    for _ in range(200):
        compute(forward, 0, 1)
    forward.leaving(0, 200)
    forward.fetch()
    assert forward.mismatches == []
    assert state_tolerance(torch.bfloat16) < 0.07 and state_tolerance(torch.float32) < 4e-6


def test_a_leaving_request_is_read_whole() -> None:
    """What is overwritten after the last forward is seen, with the windows trimmed or not."""
    forward = small_arena(GPT_OSS, page_size=1)
    arena = forward.arena
    for request in (0, 1):
        arena.admit(request)
        compute(forward, request, 20)
    arena.trim_window([0])
    checked = forward.rows_checked
    forward.leaving(0, 20)
    forward.fetch()
    assert forward.rows_checked == checked + 20 + 7, "the window keeps what the next token reads"
    assert forward.mismatches == []
    pages, _ = arena.pages_of(1, "window_8")
    arena.view(arena.plan.band("window_8").layers[0], "k")[int(pages[-1])] *= -1
    forward.leaving(1, 20)
    forward.fetch()
    assert [(found.request, found.band) for found in forward.mismatches] == [(1, "window_8")]


def test_a_context_beyond_the_allowance_is_compared_and_paid_back() -> None:
    """However long a request is, it is compared; then the steps after it compare nothing until its
    debt is paid."""
    forward = small_arena(GPT_OSS, reference_tokens=40)
    forward.arena.admit(0)
    checked = []
    for tokens in (100, 1, 1, 1):
        compute(forward, 0, tokens)
        checked.append(forward.rows_checked)
    assert checked == [108, 108, 218, 218]
    assert forward.mismatch_count == 0


def test_comparing_comes_after_the_reads_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tables_read` stands behind every kernel that looks into a table, and before the reference,
    so that the fine barrier waits for no more than it must."""
    forward = small_arena(GDN, page_size=4, total_bytes=1 << 20)
    order: list[str] = []

    def told(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def tell(*arguments: Any, **options: Any) -> Any:
            order.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, tell)

    for name in ("write_rows", "state_step", "paged_attention"):
        told(kernels, name)
    told(attention, "right_attention")
    device: Any = forward.arena.device
    device.tables_read = lambda ticket: order.append("tables read")
    forward.arena.admit(0)
    compute(forward, 0, 5)
    assert order.count("tables read") == 1
    place = order.index("tables read")
    assert set(order[:place]) == {"write_rows", "state_step", "paged_attention"}
    assert set(order[place + 1 :]) == {"right_attention"}


def test_the_page_table_on_the_device_follows_the_ledger() -> None:
    """Only the pages of new tokens are sent, rows and columns grow, rows pass to other requests."""
    arena = Arena(plan_storage(declare_model(GPT_OSS), page_size=2), 4 << 20, device="cpu")
    tables = BatchTables(arena)
    ledger = arena.books.ledger
    spans: dict[int, int] = {}
    more = [(number, 3) for number in range(2, 40)]
    for request, tokens in [(0, 70), (1, 5), (0, 1), (0, 90), *more]:
        if request not in spans:
            arena.admit(request)
        start = spans.get(request, 0)
        spans[request] = start + tokens
        arena.extend(request, tokens)
        batch = tables.batch([(request, start, start + tokens)])
        assert batch.positions.tolist() == list(range(start, start + tokens))
        if request == 20:
            arena.release(1)
            del spans[1]
    for request, tokens in spans.items():
        row = ledger.row(request)
        pages = ledger.token_pages(row)
        assert pages.size == -(-tokens // 2)
        assert batch.page_table[row, : pages.size].tolist() == pages.tolist()


def test_kernels_that_cannot_run_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels are for the CPU, compiled ones for a GPU; the message says how."""
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(ConfigError, match="set TRITON_INTERPRET=1"):
        small_arena(GPT_OSS)


def test_rows_of_eight_bits_are_refused() -> None:
    """The kernels compute with 16 and 32 bit floats; other rows are for the stamps."""
    plan = plan_storage(
        declare_model(GPT_OSS, kv_dtype="float8_e4m3fn"), page_size=4
    )
    with pytest.raises(ConfigError, match="float8_e4m3fn.*--verify stamps"):
        AttentionForward(Arena(plan, 1 << 20, device="cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_host_waits_for_no_part_of_a_forward() -> None:
    """On a GPU a step with attention, states, comparison and sending only issues work."""
    plan = plan_storage(declare_model(KIMI), page_size=4)
    arena = Arena(plan, 16 << 20, device="cuda")
    forward = AttentionForward(arena, fetch_steps=1)
    arena.admit(0)
    compute(forward, 0, 30)
    compute(forward, 0, 1)  # kernels are compiled by now
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(40):
            compute(forward, 0, 1)
        forward.leaving(0, 71)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    forward.fetch()
    assert forward.mismatches == []
    assert forward.rows_checked > 40
