"""Real traces against real models at their real size, with books only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.fuzz.workload.scheduler import PROMPT_REFUSED

PAIRS = [
    ("gpt-oss-20b", "mooncake", "mooncake_conversation.jsonl.gz"),
    ("qwen3-next-80b-a3b", "azure", "azure_2023_code.csv"),
    ("gemma-3-27b", "azure", "azure_2023_conv.csv"),
    ("inkling", "agentic", "agentic_coding_48.jsonl.gz"),
]
REASONING = ("gpt-oss-20b", "servegen", "servegen_deepseek_r1_clients.jsonl.gz")


def run_of(shared_data: Path, model: str, form: str, file: str, **options: object) -> Run:
    """A run on the bookkeeping device, checked every 16 steps."""
    settings = {
        "device": "none", "arena_bytes": 120 << 30, "check_every": 16, "requests": 150, **options,
    }  # fmt: skip
    workload = f"{form}:{shared_data / 'traces' / file}"
    run = Run(RunConfig(model=model, workload=workload, **settings))  # type: ignore[arg-type]
    run.serve()
    return run


@pytest.mark.parametrize(
    ("pair", "requests"),
    [
        (PAIRS[0], 150),
        (PAIRS[1], 150),
        (PAIRS[2], 150),
        (PAIRS[3], 40),  # its outputs are long: as many steps as the others
        pytest.param(PAIRS[3], 150, marks=pytest.mark.slow),
    ],
)
def test_the_first_requests_are_served_whole(
    shared_data: Path, pair: tuple[str, str, str], requests: int
) -> None:
    """All finish with every token computed once, every invariant holds, nothing stays held."""
    run = run_of(shared_data, *pair, requests=requests)
    results = run.scheduler.results
    served = list(run._open_workload(requests))
    assert results.arrived == results.finished == len(served) == requests
    assert results.prefill_tokens == sum(request.prompt_tokens for request in served)
    assert results.generated_tokens == sum(request.output_tokens for request in served)
    assert results.retractions == results.clipped_outputs == 0
    assert run.checks.full_checks == results.steps // 16 + 1
    assert [str(found) for found in run.checks.violations] == []
    assert run.failures == 0
    assert [band.live + band.pending + band.extent for band in run.arena.books.bands] == [0] * len(
        run.plan.bands
    )
    for band in run.plan.bands:
        counted = run.counters.band(band.name)
        assert counted.held == 0
        assert counted.allocated == counted.freed > 0


def test_overcommitted_reasoning_retracts_and_finishes(shared_data: Path) -> None:
    """Long outputs, little memory and no reserve: retractions, yet every request is served."""
    run = run_of(
        shared_data,
        *REASONING,
        arena_bytes=1 << 30,
        output_reserve=0.0,
        chunk_tokens=512,
        speedup=8.0,
        requests=60,
    )
    results = run.scheduler.results
    assert results.retractions > 0
    assert results.finished == 60
    assert results.decode_tokens == results.generated_tokens
    assert run.failures == 0


def test_what_cannot_fit_is_refused_by_name(shared_data: Path) -> None:
    """Prompts that no empty arena of 16 GiB holds are refused with their sum; the others finish."""
    run = run_of(shared_data, *PAIRS[3], arena_bytes=16 << 30, requests=40)
    results = run.scheduler.results
    assert results.aborts[PROMPT_REFUSED] > 0
    assert set(results.aborts) == {PROMPT_REFUSED}
    assert results.finished + results.aborts[PROMPT_REFUSED] == results.arrived
    assert results.finished > 0
    first = results.first_aborts[0]
    assert first["reason"] == "Request prompt exceeds the KV memory budget"
    for name in ("mamba", "window_512", "full"):
        assert re.search(rf"\d (slot|page)s? of {name} [\d,]+ ", first["detail"])
    assert run.failures == 0


def test_two_runs_of_a_real_trace_are_one(shared_data: Path) -> None:
    """Digest in the middle, counters and results are equal."""
    runs = []
    for _ in range(2):
        digests: list[str] = []
        run = Run(
            RunConfig(
                model="qwen3-next-80b-a3b",
                workload=f"azure:{shared_data / 'traces' / 'azure_2023_code.csv'}",
                device="none",
                requests=30,
            )
        )
        run.serve(lambda scheduler, digests=digests: digests.append(  # type: ignore[misc]
            scheduler.memory.arena.digest()
        ))
        runs.append((digests, run.counters.to_json(), run.scheduler.results.to_json()))
    assert runs[0] == runs[1]
    assert len(set(runs[0][0])) > 100
