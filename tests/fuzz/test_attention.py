"""Attention through the arena equals the reference while pages move, and faults are seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import plan_storage
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import Scheduler, SchedulerConfig

attention = pytest.importorskip(
    "bandscope.fuzz.workload.attention", reason="Triton is not installed here"
)

TINY = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "sliding_window": 8,
    "max_position_embeddings": 256,
    "layer_types": ["sliding_attention", "full_attention"],
    "dtype": "bfloat16",
}
REQUESTS = [
    Request(number, 0.01 * number, prompt, output)
    for number, (prompt, output) in enumerate([(9, 4), (17, 6), (5, 9), (12, 3), (3, 8)])
]


def serve(
    break_arena: Callable[[Arena], None] = lambda arena: None,
) -> attention.AttentionForward:  # type: ignore[name-defined]
    """A few requests in an arena so tight that pages move."""
    plan = plan_storage(declare_model(TINY), page_size=4)
    config = ArenaConfig(
        headroom_share=0.0, compact_hole_share=0.0, compact_gap_share=1.0, hand_out="poison"
    )
    arena = Arena(plan, 17 * plan.sink_bytes, device="cpu", config=config)
    break_arena(arena)
    forward = attention.AttentionForward(arena, sample_requests=3)
    results = Scheduler(
        ArenaMemory(arena), SchedulerConfig(chunk_tokens=16), forward=forward
    ).run(REQUESTS)
    forward.fetch()
    assert results.finished == len(REQUESTS)
    return forward


def test_attention_is_right_while_pages_move() -> None:
    """Every request is served, pages move, and no sum is off."""
    moved = []

    def watch(arena: Arena) -> None:
        move = arena.device.move
        arena.device.move = lambda *arguments: (moved.append(arguments), move(*arguments))[1]  # type: ignore[method-assign, func-returns-value]

    forward = serve(watch)

    assert forward.mismatches == []
    assert forward.rows_written > 2 * sum(request.prompt_tokens for request in REQUESTS)
    assert forward.rows_checked > 100
    assert moved


def test_copies_that_do_not_happen_are_seen() -> None:
    """The test of the test: tables say that pages moved, the bytes stayed."""

    def skip_moves(arena: Arena) -> None:
        arena.device.move = lambda *arguments: None  # type: ignore[method-assign]

    forward = serve(skip_moves)

    assert forward.mismatch_count > 0
    assert "attention off by" in str(forward.mismatches[0])


def test_tables_that_are_not_published_are_seen() -> None:
    """The kernels go by the device's tables: without a row they meet unmapped pages."""

    def skip_window_rows(arena: Arena) -> None:
        publish = arena.device.publish

        def partly(band: int, virtual: np.ndarray, physical: np.ndarray) -> None:
            if band:
                publish(band, virtual, physical)

        arena.device.publish = partly  # type: ignore[method-assign]

    forward = serve(skip_window_rows)

    assert forward.mismatch_count > 0
    assert forward.mismatches[0].unmapped > 0
    assert forward.mismatches[0].band == "window_8"
