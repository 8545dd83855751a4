"""One run from model to report: refusals before any work, complete plain data, bounded series."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.device.cpu import CpuDevice
from bandscope.allocator.device.none import NoDevice
from bandscope.allocator.errors import (
    BandscopeError,
    ConfigError,
    DeviceError,
    SizingError,
    UnsupportedModelError,
    WorkloadError,
)
from bandscope.allocator.operations import DONE
from bandscope.allocator.plan import plan_from_sizes
from bandscope.fuzz.workload import series as series_module
from bandscope.fuzz.workload.results import Results, percentiles
from bandscope.fuzz.workload.run import Run
from bandscope.fuzz.workload.run_config import DEFAULT_ARENA_BYTES, RunConfig
from bandscope.fuzz.workload.series import Series

TINY = {
    "model_type": "qwen3_next", "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 8,
    "full_attention_interval": 4, "linear_num_key_heads": 1, "linear_key_head_dim": 8,
    "linear_num_value_heads": 2, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
SMALL = "synthetic:requests=20,rate=50,max_prompt_tokens=300,max_output_tokens=30"


def config_of(**options: Any) -> RunConfig:
    """A run of books only that ends in a moment."""
    settings = {"device": "none", "arena_bytes": 1 << 30, "workload": SMALL, **options}
    return RunConfig(**settings)


@pytest.fixture
def tiny_model(tmp_path: Path) -> str:
    """A folder with a small model's config.json."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any device memory that is taken fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("memory was taken before everything was checked")

    monkeypatch.setattr(CpuDevice, "allocate", refuse)
    monkeypatch.setattr(NoDevice, "allocate", refuse)


# --- a run ---------------------------------------------------------------------------------------


def test_a_run_serves_everything_and_is_healthy() -> None:
    """Without bytes: all requests finish, checks run at their stride, and nothing is found."""
    run = Run(config_of(check_every=8))
    run.serve()
    results = run.scheduler.results
    assert results.finished == results.arrived == 20
    assert run.failures == 0
    assert run.verify == "off"
    assert run.content is None
    assert run.checks.full_checks == results.steps // 8 + 1
    assert [band.live + band.pending for band in run.arena.books.bands] == [0, 0]
    assert run.wall_seconds > 0


@pytest.mark.parametrize("verify", [None, "off", "stamps", "all"])
def test_a_run_on_the_cpu_verifies_as_asked(tiny_model: str, verify: str | None) -> None:
    """Stamps are the default where there are bytes; `all` also zeroes and reads everything."""
    run = Run(
        config_of(model=tiny_model, device="cpu", arena_bytes=8 << 20, verify=verify)
    )
    run.serve()
    assert run.verify == (verify or "stamps")
    assert run.failures == 0
    assert run.scheduler.results.finished == 20
    assert (run.content is None) == (verify == "off")
    if run.content is not None:
        assert run.content.everything == run.content.expect_zeroed == (verify == "all")
        assert run.content.rows_checked > 0
    assert run.arena.books.config.hand_out == ("zero" if verify == "all" else "none")
    assert run.arena.books.config.hand_out_state == "zero"


def test_the_report_is_plain_data_and_complete(tiny_model: str) -> None:
    """Everything a reader needs is in the report, and it survives JSON unchanged."""
    run = Run(
        config_of(model=tiny_model, device="cpu", arena_bytes=8 << 20, baseline=True, requests=15)
    )
    run.serve()
    run.compare()
    data = run.to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))
    assert list(data) == [
        "schema", "config", "device", "verify", "arena_bytes", "sink_bytes", "plan", "sizing",
        "max_running", "prefix_cache", "workload",
        "results", "bands", "counters", "largest_gap_bytes_min", "series", "checks", "content",
        "baselines", "wall_seconds", "steps_per_second", "digest",
        "recording",
    ]  # fmt: skip
    assert data["schema"] == "bandscope-run/1"
    assert data["config"] == asdict(run.config)
    assert data["device"] == "cpu"
    assert data["plan"]["family"] == "qwen3-next"
    assert [band["name"] for band in data["plan"]["bands"]] == ["mamba", "full"]
    assert data["plan"]["bands"][1] == {
        "name": "full", "end": "high", "entry_bytes": 32, "page_bytes": 512, "layers": 1,
    }  # fmt: skip
    assert data["workload"]["name"] == SMALL
    assert data["workload"]["report"]["requests_yielded"] == 15
    assert data["results"]["finished"] == 15
    names = {field.name for field in fields(Results)} | {"hit_rate"}
    assert set(data["results"]) == names
    assert data["bands"][0]["name"] == "mamba"
    assert data["counters"]["operations"]["Launch"] == data["results"]["steps"]
    assert len(data["series"]) == len(run.series.samples) > 0
    assert data["checks"] == {
        "full_checks": run.checks.full_checks, "violations": 0, "first_violations": [],
    }  # fmt: skip
    assert data["content"]["mismatches"] == 0
    assert data["content"]["rows_written"] > 0
    assert list(data["baselines"]) == ["bad split", "default split", "best split"]
    for base in data["baselines"].values():
        assert set(base["results"]) == names
        assert base["results"]["arrived"] == 15
    assert data["digest"] == run.arena.digest()
    assert data["steps_per_second"] == pytest.approx(data["results"]["steps"] / run.wall_seconds)


def test_a_report_before_the_run_is_plain_data_too() -> None:
    """A run that was never served reports zeros, not errors."""
    data = Run(config_of()).to_json()
    json.dumps(data, allow_nan=False)
    assert data["results"]["steps"] == 0
    assert data["content"] is None
    assert data["steps_per_second"] is None
    assert data["largest_gap_bytes_min"] is None


@pytest.mark.parametrize("speedup", [1.0, 20.0])
def test_runs_repeat_exactly(speedup: float) -> None:
    """Same configuration, same digest and results; only the wall clock differs."""
    reports = []
    for _ in range(2):
        run = Run(config_of(speedup=speedup, arena_bytes=200 << 20, output_reserve=0.2))
        run.serve()
        data = run.to_json()
        reports.append({k: v for k, v in data.items() if k not in ("wall_seconds",
                        "steps_per_second")})  # fmt: skip
    assert reports[0] == reports[1]


def test_seed_and_options_reach_where_they_belong() -> None:
    """Options of the run are those of the arena, the scheduler and the workload."""
    run = Run(
        config_of(
            seed=9, requests=7, chunk_tokens=123, max_running=4, output_reserve=0.5, max_moves=11,
            page_size=8, tensor_parallel=2,
        )
    )  # fmt: skip
    assert run.plan.page_size == 8
    assert run.plan.tensor_parallel == 2
    assert run.arena.books.config.max_moves == 11
    assert run.scheduler.config is run.scheduler_config
    assert run.scheduler_config.chunk_tokens == 123
    assert run.scheduler_config.max_running == 4
    assert run.scheduler_config.output_reserve == 0.5
    assert run.workload.expected_requests == 7
    first = next(iter(run.workload))
    assert first != next(iter(Run(config_of(seed=8)).workload))


def test_defaults() -> None:
    """What runs when nothing is said: a small GPT-OSS, synthetic requests, a full reserve."""
    config = RunConfig()
    assert (config.model, config.workload, config.device) == ("gpt-oss-20b", "synthetic", "auto")
    assert (config.page_size, config.seed, config.speedup) == (16, 0, 1.0)
    assert (config.arena_bytes, config.requests, config.verify) == (None, None, None)
    assert config.output_reserve == 1.0
    assert DEFAULT_ARENA_BYTES == {"cpu": 2 << 30, "none": 120 << 30}
    assert Run(RunConfig(device="none")).total_bytes == 120 << 30


def test_progress_is_called_after_every_step_and_a_stop_is_honoured() -> None:
    """A stop ends the run at a step, with everything released and counted."""
    run = Run(config_of())
    steps: list[int] = []
    run.serve(lambda scheduler: steps.append(scheduler.results.steps), lambda: len(steps) >= 5)
    assert steps == [1, 2, 3, 4, 5]
    assert run.scheduler.results.stopped_early
    assert run.failures == 0
    assert [band.live + band.pending for band in run.arena.books.bands] == [0, 0]
    assert run.to_json()["results"]["stopped_early"] is True


def test_a_leak_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages held when nothing runs are reported as a leak, by name and count."""
    run = Run(config_of(requests=3))
    original = run.arena.apply
    monkeypatch.setattr(
        run.arena, "apply", lambda op: DONE if op == ops.Release(0, "finished") else original(op)
    )
    run.serve()
    assert run.failures == 1
    [found] = run.checks.violations
    assert found.invariant == "ownership"
    assert "although nothing runs (leak)" in found.message
    assert run.to_json()["checks"]["first_violations"] == [str(found)]


def test_a_violation_is_counted_at_every_check_and_kept_up_to_a_limit() -> None:
    """What is wrong for good is found by each check; the first twenty findings are kept."""
    run = Run(config_of(check_every=1))
    run.arena.books.ids.fresh += 1  # an id that nobody holds and that is not free
    run.serve()
    assert run.failures == run.checks.full_checks == run.scheduler.results.steps + 1 > 20
    assert len(run.checks.violations) == 20
    assert {found.invariant for found in run.checks.violations} == {"ownership"}


def test_content_mismatches_are_failures(tiny_model: str) -> None:
    """A skipped copy is a failure of the run, and the report names the place."""
    run = Run(
        config_of(
            model=tiny_model, device="cpu", arena_bytes=48 << 10, output_reserve=0.2,
            chunk_tokens=64,
        )
    )  # fmt: skip
    run.arena.device.move = lambda *_: None  # type: ignore[method-assign]
    run.serve()
    assert run.checks.violation_count == 0
    assert run.failures == run.content.mismatch_count > 0  # type: ignore[union-attr]
    content = run.to_json()["content"]
    assert content["mismatches"] == run.failures
    assert content["first_mismatches"][0].startswith("content: request ")


def test_baselines_serve_the_same_requests() -> None:
    """The comparison sees the asked number of requests, afresh each time; a stop ends it."""
    run = Run(config_of(requests=6))
    run.serve()
    said: list[str] = []
    run.compare(said.append)
    assert said[0] == "bad split"
    assert {base.results.arrived for base in run.baselines} == {6}
    tokens = run.scheduler.results.prefill_tokens
    assert {base.results.prefill_tokens for base in run.baselines} == {tokens}
    run.compare(should_stop=lambda: True)
    assert run.baselines == []


# --- what is refused, before any memory is taken -----------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "parts"),
    [
        ({"verify": "stamps"}, ConfigError, ["--verify stamps", "only keeps books"]),
        ({"verify": "all"}, ConfigError, ["--verify all", "only keeps books"]),
        ({"verify": "some"}, ConfigError, ["--verify some", "off, stamps, all"]),
        ({"page_size": 0}, ConfigError, ["pages of 0 tokens"]),
        ({"page_size": -4}, ConfigError, ["pages of -4 tokens"]),
        ({"requests": 0}, ConfigError, ["--requests 0", "1 or more"]),
        ({"chunk_tokens": 0}, ConfigError, ["--chunk-tokens 0"]),
        ({"max_running": 0}, ConfigError, ["--max-running 0"]),
        ({"check_every": 0}, ConfigError, ["--check-every 0"]),
        ({"max_moves": -1}, ConfigError, ["--max-moves -1", "0 or more"]),
        ({"seed": -1}, ConfigError, ["--seed -1"]),
        ({"output_reserve": 1.5}, ConfigError, ["--output-reserve 1.5"]),
        ({"output_reserve": -0.1}, ConfigError, ["--output-reserve -0.1"]),
        ({"output_reserve": float("nan")}, ConfigError, ["--output-reserve nan"]),
        ({"speedup": 0.0}, WorkloadError, ["speedup is 0.0"]),
        ({"speedup": float("inf")}, WorkloadError, ["speedup is inf"]),
        ({"tensor_parallel": 0}, ConfigError, ["tensor parallel width", "0"]),
        ({"tensor_parallel": 3}, ConfigError, ["layer 0", "8 KV heads", "width 3"]),
        ({"device": "tpu"}, DeviceError, ["'tpu'", "auto, cpu, cuda, none"]),
        ({"model": "gpt-oss-20"}, ConfigError, ["'gpt-oss-20'", "did you mean gpt-oss-20b"]),
        ({"model": "openai/gpt-oss-120"}, ConfigError, ["did you mean gpt-oss-120b"]),
        ({"model": "qwen3-8b"}, UnsupportedModelError, ["full attention only"]),
        ({"model": "llama-4-scout-17b-16e"}, UnsupportedModelError, ["layer 0"]),
        ({"workload": "nothing"}, WorkloadError, ["'nothing' is no workload"]),
        ({"workload": "azure:/no/such/file.csv"}, WorkloadError, ["/no/such/file.csv"]),
        ({"workload": "synthetic:ratee=3"}, WorkloadError, ["ratee"]),
        ({"arena_bytes": 1 << 20}, SizingError, ["one request", "1 page of full"]),
        ({"arena_bytes": -5}, ConfigError, ["--arena-bytes -5", "1 or more"]),
        ({"arena_bytes": 0}, ConfigError, ["--arena-bytes 0"]),
        ({"barrier": "loose"}, ConfigError, ["--barrier loose", "fine, coarse, off"]),
        ({"slow_forward": -1}, ConfigError, ["--slow-forward -1", "0 or more"]),
    ],
)
def test_bad_values_are_refused_before_memory_is_taken(
    no_allocation: None, options: dict[str, Any], error: type[BandscopeError], parts: list[str]
) -> None:
    """Each message says what was asked; nothing was allocated and the exit status is 2."""
    with pytest.raises(error) as caught:
        Run(config_of(**options))
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("model", "terms"),
    [
        (
            "gpt-oss-20b",
            ["sink 393,216", "9 pages of window_128 3,538,944", "1 page of full 393,216"],
        ),
        (
            "qwen3-next-80b-a3b",
            ["sink 77,266,944", "1 slot of mamba 77,266,944", "1 page of full 393,216"],
        ),
        (
            "inkling-small",
            ["sink ", "1 slot of mamba ", "33 pages of window_512 ", "1 page of full "],
        ),
    ],
)
def test_an_arena_below_the_floor_names_every_term(
    no_allocation: None, model: str, terms: list[str]
) -> None:
    """The sum is the terms' sum, and one byte unit more is accepted."""
    with pytest.raises(SizingError) as caught:
        Run(config_of(model=model, arena_bytes=256))
    message = str(caught.value)
    for term in terms:
        assert term in message
    needed = int(message.split("one request needs ")[1].split(" bytes")[0].replace(",", ""))
    listed = message.split("(")[1].split(")")[0].split(" + ")
    assert sum(int(term.rsplit(" ", 1)[1].replace(",", "")) for term in listed) == needed
    with pytest.raises(SizingError):
        Run(config_of(model=model, arena_bytes=needed - 1))
    with pytest.raises(AssertionError, match="memory was taken"):
        Run(config_of(model=model, arena_bytes=-(-needed // 256) * 256))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"sliding_window": 8192}, ["'sliding_window'", "8192", "context length is only 4096"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers"]),
        ({"head_dim": "eight"}, ["head_dim"]),
    ],
)
def test_a_bad_model_configuration_is_refused(
    no_allocation: None, tmp_path: Path, change: dict[str, Any], parts: list[str]
) -> None:
    """A window longer than the context, missing and malformed fields: named with the file."""
    values: dict[str, Any] = {
        "model_type": "gpt_oss", "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 8,
        "sliding_window": 24, "max_position_embeddings": 4096, **change,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    with pytest.raises(ConfigError) as caught:
        Run(config_of(model=str(file)))
    for part in [str(file), *parts]:
        assert part in str(caught.value)


def test_an_arena_larger_than_memory_is_refused() -> None:
    """The CPU device says how much there is, and what to do."""
    with pytest.raises(DeviceError, match="make --arena-bytes smaller, or use --device none"):
        Run(config_of(device="cpu", arena_bytes=1 << 50))


def test_a_trace_that_ends_badly_releases_nothing_twice(tmp_path: Path) -> None:
    """Strict reading raises in the middle of the run; the wall clock is still taken."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:00.0000000,100,5\n"
        "2023-11-16 18:15:01.0000000,many,5\n"
    )
    run = Run(config_of(workload=f"azure:{trace}", strict=True))
    with pytest.raises(WorkloadError, match="line 3"):
        run.serve()
    assert run.wall_seconds > 0
    lenient = Run(config_of(workload=f"azure:{trace}"))
    lenient.serve()
    assert lenient.to_json()["workload"]["report"]["rows_malformed"] == 1


# --- results and series ------------------------------------------------------------------------


def test_means_are_weighted_by_time() -> None:
    """A step of three seconds counts three times one of a second."""
    results = Results()
    results.step(1.0, 10, 2, 4, 100)
    results.step(3.0, 0, 4, 8, 500)
    assert results.concurrency_mean == pytest.approx(7.0)
    assert results.used_bytes_mean == pytest.approx(400.0)
    assert (results.concurrency_peak, results.used_bytes_peak) == (8, 500)
    assert (results.prefill_tokens, results.decode_tokens, results.steps) == (10, 6, 2)
    assert results.busy_seconds == 4.0


def test_percentiles_of_known_samples() -> None:
    """0 to 100: every percentile is its own number."""
    found = percentiles([float(n) for n in reversed(range(101))])
    assert found == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert percentiles([]) == dict.fromkeys(("mean", "p50", "p90", "p99", "max"))


@pytest.mark.parametrize("steps", [1, 511, 512, 513, 1023, 1024, 3000])
def test_a_series_is_bounded_and_evenly_spread(steps: int) -> None:
    """Never more samples than the limit; they start at the first step, one stride apart."""
    plan = plan_from_sizes([("mamba", 256), ("full", 256)])
    arena = Arena(plan, 64 << 10, device="none")
    series = Series()
    for step in range(steps):
        series.step(arena, float(step), 1, 2)
        assert len(series.samples) < series_module.SAMPLES_MAX
    stride = 1
    while steps > series_module.SAMPLES_MAX * stride - stride:
        stride *= 2
    assert series.stride == stride
    clocks = [sample.clock_seconds for sample in series.samples]
    assert clocks == [float(step) for step in range(0, steps, stride)]
    assert series.seen == steps


def test_a_sample_is_what_the_arena_holds() -> None:
    """Extents in bytes, pages by state, and the smallest of the largest gaps."""
    plan = plan_from_sizes([("mamba", 512), ("window_8", 256), ("full", 256)])
    arena = Arena(plan, plan.sink_bytes + 16_384, device="none")
    series = Series()
    arena.admit(0)
    series.step(arena, 0.5, 1, 3)
    arena.extend(0, 10)
    arena.launch([0])
    arena.trim_window([0])
    series.step(arena, 1.5, 1, 0)
    first, second = series.samples
    assert (first.clock_seconds, first.running, first.waiting) == (0.5, 1, 3)
    assert first.live == (1, 0, 0)
    assert first.extents[1] == first.extents[2] == (0, 0)
    assert first.extents[0] == (512, 1024)
    assert second.live == (1, 7, 10)
    assert second.pending == (0, 3, 0)
    assert second.holes == (0, 0, 0)
    assert [stop - start for start, stop in second.extents] == [512, 2560, 2560]
    gaps = [stop - start for start, stop in arena.books.chain.gaps()]
    assert series.largest_gap_bytes_min == max(gaps)


def test_compaction_pressure_packs_at_random_and_stays_right() -> None:
    """Urgent compactions in a share of the steps: more pages move, content and books stay right."""
    moved = {}
    for share in (0.0, 0.5):
        run = Run(
            RunConfig(
                device="cpu", requests=12, arena_bytes=256 << 20, compact_pressure=share, seed=3
            )
        )
        run.serve()
        assert run.failures == 0
        moved[share] = sum(band.moves_urgent for band in run.counters.bands.values())
    assert moved[0.5] > moved[0.0]


def test_compaction_pressure_is_a_share() -> None:
    with pytest.raises(ConfigError, match="--compact-pressure 2 was asked for"):
        Run(RunConfig(device="none", compact_pressure=2))
