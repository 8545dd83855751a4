"""`bandscope run` with a prefix cache, priorities and sizing options, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bandscope.allocator.errors import BandscopeError
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import RunConfig
from bandscope.tui.commands.run import run as run_command

SHARED = (
    "synthetic:shift-shared,requests=60,rate=20,phase_seconds=1,max_prompt_tokens=3000,"
    "max_output_tokens=20"
)
BOOKS = ["--device", "none", "--arena-bytes", "3GiB", "--workload", SHARED]
STATE = ["--model", "qwen3-next-80b-a3b", "--prefix-cache"]

app = typer.Typer()
app.command("run")(run_command)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def report(tmp_path: Path, *arguments: str) -> tuple[str, dict]:
    """What is printed, as one line, and the plain data."""
    file = tmp_path / "report.json"
    result = CliRunner().invoke(app, [*BOOKS, *arguments, "--json", str(file)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split()), json.loads(file.read_text())


def refusal(*arguments: str) -> str:
    """The one sentence that is said before any work; `main` ends with status 2 for it."""
    result = CliRunner().invoke(app, [*BOOKS, *arguments])
    assert isinstance(result.exception, BandscopeError), result.output
    return str(result.exception)


def test_the_report_says_what_the_cache_had(tmp_path: Path) -> None:
    text, data = report(tmp_path, "--prefix-cache", "--evict", "joint_lru", "--baseline")
    assert data["prefix_cache"]["evict"] == "joint_lru"
    assert data["prefix_cache"]["cached_bytes"] > 0
    results = data["results"]
    assert 0.1 < results["hit_rate"] == results["matched_tokens"] / results["prompt_tokens"]
    assert results["prefill_tokens"] == results["prompt_tokens"] - results["matched_tokens"]
    assert f"{results['hit_rate']:.1%} of the prompts' tokens were there" in text
    assert "prefix hit rate" in text and "healthy" in text
    for base in data["baselines"].values():  # every split has a cache, too
        assert base["results"]["matched_tokens"] > 0
        assert base["results"]["finished"] == 60


def test_without_a_cache_nothing_is_said_of_it(tmp_path: Path) -> None:
    text, data = report(tmp_path)
    assert data["prefix_cache"] is None and data["sizing"] is None
    assert "prefix" not in text and "sizing" not in text and "priority" not in text


def test_checkpoints_are_counted(tmp_path: Path) -> None:
    text, data = report(
        tmp_path, *STATE, "--checkpoint-grid", "256", "--chunk-tokens", "512", "--page-size", "64"
    )
    assert data["prefix_cache"]["checkpoint_grid_tokens"] == 256
    assert data["results"]["checkpoints"] > 0 and data["results"]["matched_tokens"] > 0
    assert "checkpoints on a grid of 256 tokens, 0 stalled" in text


def test_the_grid_is_512_tokens_in_whole_pages() -> None:
    run = Run(RunConfig(model="qwen3-next-80b-a3b", device="none", prefix_cache=True, page_size=24))
    assert run.grid_tokens == 528
    assert run.arena.books.config.checkpoint_grid_tokens == 528
    assert Run(RunConfig(device="none", prefix_cache=True)).grid_tokens == 0  # no state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*STATE, "--chunk-tokens", "500"),
         "--chunk-tokens 500 was asked for, but state checkpoints lie 512 tokens apart"),
        ((*STATE, "--checkpoint-grid", "100"),
         "--checkpoint-grid 100 was asked for with pages of 16 tokens; give a multiple"),
        (("--checkpoint-grid", "512"), "give --prefix-cache, too"),
        (("--evict", "joint_lru"), "give --prefix-cache, too"),
        (("--prefix-cache", "--evict", "fifo"), "the policies are lru, joint_lru"),
        (("--priority", "loud"), "--priority loud was asked for; give none, short-prompts"),
        (("--mem-fraction-static", "0.9"), "both say how large the arena may be, so give one"),
        (("--swa-full-tokens-ratio", "x"), "--swa-full-tokens-ratio 'x' is not a number"),
        (("--max-total-tokens", "100000000"), "lower max_total_tokens or raise the budget"),
        (("--max-running-requests", "0"), "max_running_requests of 0 was asked for"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


def test_a_share_of_the_memory_needs_a_gpu() -> None:
    with pytest.raises(BandscopeError, match="has no memory of its own; give --arena-bytes"):
        from fractions import Fraction

        Run(RunConfig(device="none", mem_fraction_static=Fraction(9, 10)))


def test_attention_cannot_check_shared_prefixes() -> None:
    with pytest.raises(BandscopeError, match="use --verify stamps with --prefix-cache"):
        Run(RunConfig(device="cpu", verify="attention", prefix_cache=True))


def test_priorities_reach_the_scheduler(tmp_path: Path) -> None:
    text, data = report(
        tmp_path, "--priority", "short-prompts:1500", "--arena-bytes", "200MiB", "--speedup", "10"
    )
    preemptions = data["results"]["preemptions"]
    assert preemptions > 0 and f"({preemptions:,} for priority)" in text
    assert data["results"]["retractions"] == preemptions


# --- sizing -------------------------------------------------------------------------------------------


def test_max_total_tokens_sizes_the_arena(tmp_path: Path) -> None:
    text, data = report(tmp_path, "--max-total-tokens", "50000")
    assert 50_000 <= data["sizing"]["tokens"]["full"] < 50_100
    assert data["arena_bytes"] == data["sizing"]["arena_bytes"] < 3 << 30
    assert "targets" in text and "tokens of full" in text


def test_the_sheets_concurrency_bounds_the_run(tmp_path: Path) -> None:
    text, data = report(tmp_path, "--max-running-requests", "3", "--speedup", "10")
    assert data["max_running"] == data["sizing"]["concurrency"] == 3
    assert data["results"]["concurrency_peak"] == 3
    assert "up to 3 requests at once (sheet: 3, bounded by max_running_requests)" in text


def test_state_targets_bound_the_run(tmp_path: Path) -> None:
    arguments = ("--model", "qwen3-next-80b-a3b", "--speedup", "10")
    _, slots = report(tmp_path, *arguments, "--max-mamba-cache-size", "5")
    assert slots["sizing"]["tokens"]["mamba"] == slots["max_running"] == 5
    _, ratio = report(tmp_path, *arguments, "--mamba-full-memory-ratio", "0.25")
    _, more = report(tmp_path, *arguments, "--mamba-full-memory-ratio", "0.5")
    assert ratio["max_running"] < more["max_running"]
    assert ratio["results"]["concurrency_peak"] <= ratio["max_running"]


def test_the_window_ratio_is_a_target_only(tmp_path: Path) -> None:
    _, data = report(tmp_path, "--swa-full-tokens-ratio", "0.5")
    tokens = data["sizing"]["tokens"]
    assert abs(tokens["window_128"] - tokens["full"] / 2) <= 16
    assert data["results"]["finished"] == 60
