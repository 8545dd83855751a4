"""Stamps stay right in an intact run of every family, and every kind of corruption is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.demand import add, chunk_demand, peak_demand
from bandscope.allocator.events import Effect, EffectObserver, PageMove
from bandscope.allocator.families import declare_model
from bandscope.allocator.layout import row_view
from bandscope.allocator.plan import plan_storage
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig
from bandscope.fuzz.workload.stamps import MISMATCHES_KEPT, StampForward

_GDN = {
    "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 8,
    "full_attention_interval": 4, "linear_num_key_heads": 1, "linear_key_head_dim": 8,
    "linear_num_value_heads": 2, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
_KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 4, "kv_lora_rank": 24,
    "qk_rope_head_dim": 8, "model_max_length": 4096,
    "linear_attn_config": {
        "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4,
        "full_attn_layers": [4], "kda_layers": [1, 2, 3],
    },
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16,
    "mamba_d_conv": 4, "max_position_embeddings": 4096,
}  # fmt: skip

# Every servable family, small enough that a page is a few hundred bytes.
TINY: dict[str, dict[str, Any]] = {
    "gpt-oss": {
        "model_type": "gpt_oss", "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 8,
        "sliding_window": 24, "max_position_embeddings": 4096,
    },
    "gemma3": {
        "model_type": "gemma3_text", "num_hidden_layers": 6, "num_key_value_heads": 1,
        "head_dim": 8, "sliding_window": 40, "sliding_window_pattern": 3,
        "max_position_embeddings": 4096,
    },
    "gemma4": {
        "model_type": "gemma4_text", "num_hidden_layers": 6, "num_key_value_heads": 2,
        "head_dim": 8, "num_global_key_value_heads": 1, "global_head_dim": 16,
        "sliding_window": 24, "max_position_embeddings": 4096,
    },
    "mimo": {
        "model_type": "mimo_v2_flash", "num_hidden_layers": 4, "num_key_value_heads": 1,
        "head_dim": 24, "v_head_dim": 16, "swa_num_key_value_heads": 2, "swa_head_dim": 24,
        "swa_v_head_dim": 16, "sliding_window": 16, "hybrid_layer_pattern": [0, 1, 1, 0],
        "max_position_embeddings": 4096,
    },
    "qwen3-next": {"model_type": "qwen3_next", **_GDN},
    "qwen3.5": {"model_type": "qwen3_5", "text_config": _GDN},
    "kimi-linear": _KIMI,
    "kimi-k3": {"model_type": "kimi_k3", "text_config": _KIMI},
    "nemotron-h": {
        "model_type": "nemotron_h", "num_hidden_layers": 6, "hybrid_override_pattern": "M-M*ME",
        "num_key_value_heads": 1, "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 8,
        "n_groups": 1, "ssm_state_size": 16, "conv_kernel": 4, "max_position_embeddings": 4096,
    },
    "falcon-h1": {
        "model_type": "falcon_h1", "num_hidden_layers": 3, "num_key_value_heads": 1,
        "head_dim": 8, **_MAMBA2,
    },
    "granite": {
        "model_type": "granitemoehybrid", "num_hidden_layers": 4, "hidden_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 1,
        "layer_types": ["mamba", "mamba", "attention", "mamba"], **_MAMBA2,
    },
    "jamba": {
        "model_type": "jamba", "num_hidden_layers": 4, "hidden_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 1, "attn_layer_period": 4,
        "attn_layer_offset": 2, "mamba_expand": 2, "mamba_d_state": 8, "mamba_d_conv": 4,
        "max_position_embeddings": 4096,
    },
    "inkling": {
        "model_type": "inkling_mm_model",
        "text_config": {
            "num_hidden_layers": 6, "hidden_size": 32, "num_key_value_heads": 1, "head_dim": 8,
            "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 24,
            "sconv_kernel_size": 4, "model_max_length": 4096, "local_layer_ids": [0, 1, 2, 3, 4],
        },
    },
}  # fmt: skip


class Moves(EffectObserver):
    """An observer that counts moved pages."""

    def __init__(self) -> None:
        self.pages = 0

    def effect(self, event: Effect) -> None:
        """Count what moved."""
        if isinstance(event, PageMove):
            self.pages += event.sources.size


def requests_of(seed: int, count: int = 24) -> list[Request]:
    """Requests that overlap, so that pages are handed out, moved and reused all the time."""
    rng = random.Random(seed)
    return [
        Request(index, index * 0.02, rng.randint(1, 120), rng.randint(1, 40))
        for index in range(count)
    ]


def prepared(
    model: Mapping[str, Any],
    *,
    arena_bytes: int | None = None,
    page_size: int = 4,
    everything: bool = False,
    hand_out: str = "none",
    output_reserve: float = 0.2,
) -> tuple[Scheduler, StampForward, Moves]:
    """A scheduler that stamps a small CPU arena; by default it holds three of the largest requests
    and a chunk, so that bands press on each other."""
    plan = plan_storage(declare_model(model), page_size=page_size)
    if arena_bytes is None:
        demand = add(*[peak_demand(plan, 120, 40)] * 3, chunk_demand(plan, 32))
        arena_bytes = plan.sink_bytes + sum(
            pages * band.page_bytes for pages, band in zip(demand, plan.bands, strict=True)
        )
    moves = Moves()
    arena = Arena(
        plan,
        arena_bytes,
        device="cpu",
        config=ArenaConfig(hand_out=hand_out, compact_hole_share=0.0),
        observer=moves,
    )
    stamps = StampForward(arena, everything=everything, expect_zeroed=everything)
    scheduler = Scheduler(
        ArenaMemory(arena),
        SchedulerConfig(chunk_tokens=32, output_reserve=output_reserve),
        forward=stamps,
    )
    return scheduler, stamps, moves


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("everything", [False, True])
def test_an_intact_run_has_no_mismatch(family: str, everything: bool) -> None:
    """Every family: pages move and are reused, and every row reads back as it was written."""
    scheduler, stamps, moves = prepared(
        TINY[family], everything=everything, hand_out="zero" if everything else "none"
    )
    results = scheduler.run(requests_of(1))
    assert results.finished == 24
    assert stamps.mismatches == []
    assert stamps.mismatch_count == 0
    assert moves.pages > 0
    tokens = results.prefill_tokens + results.decode_tokens
    rows = {band.name: len(band.rows) for band in scheduler.plan.bands}
    state_rows = rows.pop("mamba", 0)  # written once by every forward of a request
    state_written = stamps.rows_written - tokens * sum(rows.values())
    assert state_written >= results.decode_tokens * state_rows
    assert (state_written > 0) == (state_rows > 0)
    assert stamps.rows_checked > stamps.rows_written / 2
    assert scheduler.memory.arena.check() == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("family", ["gpt-oss", "kimi-linear", "inkling"])
def test_other_page_sizes_are_intact_too(family: str, page_size: int) -> None:
    """Pages of one token and of sixteen."""
    scheduler, stamps, _ = prepared(TINY[family], page_size=page_size)
    assert scheduler.run(requests_of(2)).finished == 24
    assert stamps.mismatch_count == 0
    assert stamps.rows_checked > 0


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gpt-oss-120b"])
def test_a_real_model_is_intact_in_a_small_arena(model: str) -> None:
    """A preset's own rows, in 128 MiB of the CPU."""
    run = Run(
        RunConfig(
            model=model,
            arena_bytes=128 << 20,
            device="cpu",
            workload="synthetic:requests=12,max_prompt_tokens=400,max_output_tokens=12",
            chunk_tokens=256,
        )
    )
    run.serve()
    assert run.verify == "stamps"
    assert run.scheduler.results.finished == 12
    assert run.failures == 0
    assert run.content is not None and run.content.rows_checked > 10_000


@pytest.mark.parametrize("family", ["gpt-oss", "mimo", "qwen3-next", "kimi-linear", "inkling"])
def test_stamps_lie_where_the_plan_says(family: str) -> None:
    """Each row's stamp is found by the plan's byte arithmetic and by the layer view alike, and no
    two rows of the arena carry the same one."""
    scheduler, stamps, _ = prepared(TINY[family], arena_bytes=1 << 20)
    arena: Arena = scheduler.memory.arena  # type: ignore[attr-defined]
    for request, tokens in ((5, 21), (9, 7)):
        arena.admit(request)
        arena.extend(request, tokens)
    ticket = arena.launch([5, 9])
    stamps.run(ticket, [(5, 0, 21), (9, 0, 7)])
    words = arena.buffer.numpy().view(np.int64)
    seen: list[int] = []
    for band in arena.plan.bands:
        for request, tokens in ((5, 21), (9, 7)):
            pages, first = arena.pages_of(request, band.name)
            assert first == 0
            for row in band.rows:
                view = row_view(band, row, arena.buffer, torch.int64, ())
                for position in range(1 if band.kind == "state" else tokens):
                    page = int(pages[position // band.page_size])
                    entry = position % band.page_size
                    byte = page * band.page_bytes + entry * band.entry_bytes + row.offset_bytes
                    found = int(words[byte // 8])
                    where = (page,) if band.kind == "state" else (page, entry)
                    assert int(view[where]) == found != 0
                    seen.append(found)
    assert len(set(seen)) == len(seen) == stamps.rows_written
    assert int(np.count_nonzero(words)) == len(seen)  # and nothing else was written


# --- the test of the test ----------------------------------------------------------------------


def corrupted(
    family: str, corrupt: Callable[[Arena, StampForward], None], **options: Any
) -> StampForward:
    """Run with a corruption installed, and return the stamps that should have found it."""
    scheduler, stamps, _ = prepared(TINY[family], **options)
    corrupt(scheduler.memory.arena, stamps)  # type: ignore[attr-defined]
    scheduler.run(requests_of(1))
    assert scheduler.memory.arena.check() == []  # type: ignore[attr-defined] # books are right
    return stamps


def assert_named(stamps: StampForward, band: str | None = None) -> None:
    """Mismatches were found, kept up to the limit, and each names request, position and page."""
    assert stamps.mismatch_count > 0
    assert len(stamps.mismatches) == min(MISMATCHES_KEPT, stamps.mismatch_count)
    bands = {plan.name: plan for plan in stamps.arena.plan.bands}
    for found in stamps.mismatches:
        assert band is None or found.band == band
        assert (found.layer, found.row) in {
            (row.layer, row.name) for row in bands[found.band].rows
        }
        assert found.expected != found.found
        text = str(found)
        assert text.startswith(
            f"content: request {found.request}, position {found.position}, band {found.band}, "
            f"layer {found.layer} row {found.row}, physical page {found.page}: expected stamp 0x"
        )


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-next", "inkling"])
def test_a_move_to_the_wrong_page_is_found(family: str) -> None:
    """A device that copies each batch one page further than asked."""

    def corrupt(arena: Arena, stamps: StampForward) -> None:
        move = arena.device.move

        def wrong(band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
            last = arena.total_bytes // arena.plan.bands[band].page_bytes - 1
            move(band, sources, np.minimum(destinations + 1, last))

        arena.device.move = wrong  # type: ignore[method-assign]

    assert_named(corrupted(family, corrupt))


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-next", "inkling"])
def test_a_skipped_move_is_found(family: str) -> None:
    """A device that copies nothing."""

    def corrupt(arena: Arena, stamps: StampForward) -> None:
        arena.device.move = lambda *_: None  # type: ignore[method-assign]

    assert_named(corrupted(family, corrupt))


def test_one_skipped_page_of_one_move_is_found() -> None:
    """The last page of a single batch is not copied: the owner's full read at the end finds it."""
    skipped: list[int] = []

    def corrupt(arena: Arena, stamps: StampForward) -> None:
        move = arena.device.move

        def short(band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
            if arena.plan.bands[band].kind == "full" and not skipped:
                skipped.append(int(destinations[-1]))
                sources, destinations = sources[:-1], destinations[:-1]
            move(band, sources, destinations)

        arena.device.move = short  # type: ignore[method-assign]

    stamps = corrupted("gpt-oss", corrupt)
    assert len(skipped) == 1
    assert_named(stamps, "full")


def two_running(family: str, second_stamped: int = 20) -> tuple[Arena, StampForward]:
    """Requests 0 and 1 with room for 20 tokens each, all of them stamped unless asked otherwise."""
    scheduler, stamps, _ = prepared(TINY[family], arena_bytes=1 << 20)
    arena: Arena = scheduler.memory.arena  # type: ignore[attr-defined]
    for request in (0, 1):
        arena.admit(request)
        arena.extend(request, 20)
    stamps.run(arena.launch([0, 1]), [(0, 0, 20), (1, 0, second_stamped)])
    assert stamps.mismatch_count == 0
    return arena, stamps


@pytest.mark.parametrize("family", TINY)
def test_two_requests_that_share_a_page_are_found(family: str) -> None:
    """A ledger row that names another request's page: who wrote it first reads the other's stamps,
    in every token band."""
    arena, stamps = two_running(family, second_stamped=16)
    ledger = arena.books.ledger
    ledger.pages[ledger.row(1), 4] = ledger.pages[ledger.row(0), 4]
    stamps.run(arena.launch([1]), [(1, 16, 20)])
    assert stamps.mismatch_count == 0
    stamps.leaving(0, 20)
    assert_named(stamps)
    rows = sum(len(band.rows) for band in arena.plan.bands if band.kind != "state")
    assert stamps.mismatch_count == 4 * rows
    wrong = {(found.request, found.position) for found in stamps.mismatches}
    assert wrong <= {(0, position) for position in (16, 17, 18, 19)}


@pytest.mark.parametrize("family", ["gpt-oss", "kimi-linear"])
def test_a_page_handed_out_while_in_use_is_found(family: str) -> None:
    """A new request is bound to the place of a page that is still held: its writes show."""
    arena, stamps = two_running(family)
    arena.admit(2)
    arena.extend(2, 4)
    band = arena.books.bands[arena.books.full]
    held = arena.books.ledger.token_pages(arena.books.ledger.row(0))
    given = arena.books.ledger.token_pages(arena.books.ledger.row(2))
    band.table.place_of[given[0]] = band.table.place_of[held[2]]
    stamps.run(arena.launch([2]), [(2, 0, 4)])
    assert stamps.mismatch_count == 0
    stamps.leaving(0, 20)
    assert_named(stamps, "full")
    assert {(found.request, found.position) for found in stamps.mismatches} == {
        (0, position) for position in (8, 9, 10, 11)
    }
    page = int(arena.pages_of(0, "full")[0][2])
    assert {found.page for found in stamps.mismatches} == {page}


@pytest.mark.parametrize("family", ["qwen3-next", "kimi-linear", "nemotron-h", "jamba", "inkling"])
def test_an_overwritten_state_slot_is_found(family: str) -> None:
    """One byte of the first row of a slot: the next forward of its owner reads it and says so."""
    arena, stamps = two_running(family)
    band = arena.plan.band("mamba")
    slot = int(arena.pages_of(1, "mamba")[0][0])
    arena.buffer[slot * band.page_bytes + band.rows[0].offset_bytes] ^= 0x40
    arena.decode([0, 1])
    stamps.run(arena.launch([0, 1]), [(0, 20, 21), (1, 20, 21)])
    assert_named(stamps, "mamba")
    assert stamps.mismatch_count == 1
    found = stamps.mismatches[0]
    assert (found.request, found.position, found.page) == (1, 20, slot)
    assert (found.layer, found.row) == (band.rows[0].layer, band.rows[0].name)
    stamps.leaving(1, 21)  # it was written again by that forward
    assert stamps.mismatch_count == 1


def test_a_state_slot_lost_before_the_request_leaves_is_found() -> None:
    """The last look at a request reads its state, too."""
    arena, stamps = two_running("qwen3-next")
    band = arena.plan.band("mamba")
    slot = int(arena.pages_of(1, "mamba")[0][0])
    arena.buffer[slot * band.page_bytes : (slot + 1) * band.page_bytes] = 0
    stamps.leaving(1, 20)
    assert stamps.mismatch_count == len(band.rows)
    assert_named(stamps, "mamba")


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-next", "inkling"])
def test_verify_all_finds_pages_that_were_not_zeroed(family: str) -> None:
    """A device whose fill does nothing: a reused page still shows its former owner's bytes."""

    def corrupt(arena: Arena, stamps: StampForward) -> None:
        arena.device.fill = lambda *_: None  # type: ignore[method-assign]

    stamps = corrupted(family, corrupt, everything=True, hand_out="zero")
    assert_named(stamps)
    assert all(found.expected == 0 for found in stamps.mismatches)
    assert all(found.band != "mamba" for found in stamps.mismatches)


def test_everything_finds_at_once_what_a_sample_may_miss() -> None:
    """One word of an old token is changed: reading the whole context finds it at the next step."""
    for everything in (False, True):
        scheduler, stamps, _ = prepared(TINY["gpt-oss"], arena_bytes=1 << 20, everything=everything)
        arena: Arena = scheduler.memory.arena  # type: ignore[attr-defined]
        arena.admit(0)
        arena.extend(0, 2000)
        stamps.run(arena.launch([0]), [(0, 0, 2000)])
        page = int(arena.pages_of(0, "full")[0][100])
        arena.view(1, "k")[page, 3] = 0
        arena.decode([0])
        stamps.run(arena.launch([0]), [(0, 2000, 2001)])
        assert stamps.mismatch_count == int(everything)
        if not everything:
            stamps.leaving(0, 2001)
        assert [(found.position, found.layer, found.row) for found in stamps.mismatches] == [
            (403, 1, "k")
        ]


def test_stamps_tell_requests_positions_and_layers_apart() -> None:
    """Content of one request copied over another's, or shifted by a token, is found."""
    for shift in (False, True):
        arena, stamps = two_running("gpt-oss")
        pages = {request: arena.pages_of(request, "full")[0] for request in (0, 1)}
        view = arena.view(1, "v")
        if shift:
            view[int(pages[0][0]), 1] = view[int(pages[0][0]), 0].clone()
        else:
            view[int(pages[0][0]), 1] = view[int(pages[1][0]), 1].clone()
        stamps.leaving(0, 20)
        assert [(found.position, found.layer, found.row) for found in stamps.mismatches] == [
            (1, 1, "v")
        ]


def test_the_sample_is_seeded() -> None:
    """Equal seeds read back equal rows; the run itself does not depend on what is read."""
    outcomes = []
    for _ in range(2):
        scheduler, stamps, _ = prepared(TINY["inkling"])
        scheduler.run(requests_of(4))
        outcomes.append((stamps.rows_checked, scheduler.memory.arena.digest()))  # type: ignore
    assert outcomes[0] == outcomes[1]
