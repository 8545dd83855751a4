"""The synthetic generator: the same for a seed everywhere, and shaped like the real traces."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.source import open_workload
from bandscope.fuzz.workload.synthetic import (
    PROFILES,
    LogNormal,
    SyntheticOptions,
    generate,
    parse_options,
)

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("BANDSCOPE_SHARED", ROOT.parent / "shared")) / "data" / "traces"

FITTED_TO = {
    "conversation": "mooncake_conversation",
    "code": "azure_2023_code",
    "chat": "azure_2023_conv",
    "agentic": "agentic_coding_48",
    "reasoning": "servegen_deepseek_r1_clients",
}

DIGEST_PROGRAM = """
import hashlib
from bandscope.fuzz.workload.source import open_workload
digest = hashlib.sha256()
for request in open_workload("synthetic:cv=2", seed=7):
    digest.update(repr(request).encode())
print(digest.hexdigest())
"""


def requests_of(seed: int = 0, **options: object) -> list[Request]:
    return list(generate(SyntheticOptions(**options), seed))  # type: ignore[arg-type]


def test_the_default_is_a_minute_of_shifting_load() -> None:
    workload = open_workload("synthetic")
    requests = list(workload)
    assert len(requests) == workload.expected_requests == workload.report.requests_yielded == 300
    assert [request.index for request in requests] == list(range(300))
    times = [request.arrival_seconds for request in requests]
    assert times == sorted(times) and 45 < times[-1] < 75
    assert all(request.prompt_tokens > 0 and request.output_tokens > 0 for request in requests)
    assert len({request.output_tokens for request in requests}) > 150


def test_every_iteration_gives_the_same_and_another_seed_others() -> None:
    workload = open_workload("synthetic:requests=50", seed=1)
    assert list(workload) == list(workload) == requests_of(1, requests=50)
    assert list(workload) != list(open_workload("synthetic:requests=50", seed=2))


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_other_processes_give_the_same(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / ".src")}
    output = subprocess.run(
        [sys.executable, "-c", DIGEST_PROGRAM],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    digest = hashlib.sha256()
    for request in open_workload("synthetic:cv=2", seed=7):
        digest.update(repr(request).encode())
    assert output == digest.hexdigest()


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_asked_rate_and_burstiness(cv: float) -> None:
    requests = requests_of(3, requests=20_000, rate=8.0, cv=cv, profile="chat")
    gaps = np.diff([0.0, *(request.arrival_seconds for request in requests)])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.07)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.07, abs=1e-6)


def test_burstiness_does_not_change_the_lengths() -> None:
    smooth = requests_of(3, profile="code", cv=0.5)
    bursty = requests_of(3, profile="code", cv=4.0, rate=50.0)
    assert [r.prompt_tokens for r in smooth] == [r.prompt_tokens for r in bursty]
    assert [r.output_tokens for r in smooth] == [r.output_tokens for r in bursty]


def test_shift_alternates_long_prompts_and_many_short_requests() -> None:
    requests = requests_of(5, requests=6_000, rate=10.0, phase_seconds=20.0)
    phases: dict[bool, list[Request]] = {True: [], False: []}
    for request in requests:
        phases[request.arrival_seconds // 20.0 % 2 == 0].append(request)
    few_long, many_short = phases[True], phases[False]
    assert 2.6 < len(many_short) / len(few_long) < 3.4
    assert np.median([r.prompt_tokens for r in few_long]) > 5_000
    assert np.median([r.prompt_tokens for r in many_short]) < 1_300
    assert requests[-1].arrival_seconds == pytest.approx(600, rel=0.05)


def test_gaps_longer_than_many_phases_end() -> None:
    requests = requests_of(1, requests=20, rate=1e-3, cv=5.0, phase_seconds=1e-3)
    times = [request.arrival_seconds for request in requests]
    assert times == sorted(times) and times[-1] > 100


def test_limits_cut_the_tail_instead_of_gathering_at_it() -> None:
    requests = requests_of(
        1, requests=5_000, profile="conversation", max_prompt_tokens=4_000, max_output_tokens=200
    )
    prompts = [request.prompt_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]
    assert max(prompts) <= 4_000 and max(outputs) <= 200
    assert prompts.count(4_000) < 20 and outputs.count(200) < 200
    assert {r.prompt_tokens for r in requests_of(profile="agentic", max_prompt_tokens=1)} == {1}


def test_quantiles_stay_in_range_at_the_ends() -> None:
    for phases in PROFILES.values():
        for lengths in (phases[0].prompt, phases[0].output):
            assert lengths.quantile(0.0) == 1
            assert lengths.quantile(1.0) == lengths.tokens_max
            assert lengths.quantile(math.nextafter(1.0, 0.0)) <= lengths.tokens_max


def test_a_long_workload_is_made_one_request_at_a_time() -> None:
    options = SyntheticOptions(requests=10**9, rate=1e4)
    assert [request.index for request in islice(generate(options), 3)] == [0, 1, 2]


def test_options_are_read_from_text() -> None:
    assert parse_options("") == SyntheticOptions()
    assert parse_options(" requests=5, rate = 2.5 ,profile=code,") == SyntheticOptions(
        requests=5, rate=2.5, profile="code"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("request=5", "'request=5' is no synthetic option; .* requests, rate, cv"),
        ("requests", "'requests' is no synthetic option"),
        ("requests=1.5", "requests is '1.5'; it must be a whole number"),
        ("rate=fast", "rate is 'fast'; it must be a number"),
        ("requests=1,requests=2", "requests is given twice"),
        ("requests=0", "requests is 0; it must be 1 to"),
        ("rate=0", "rate is 0.0; it must be"),
        ("rate=nan", "rate is nan; it must be"),
        ("rate=inf", "rate is inf; it must be"),
        ("cv=-1", "cv is -1.0; it must be"),
        ("phase_seconds=0", "phase_seconds is 0.0; it must be"),
        ("max_prompt_tokens=-1", "max_prompt_tokens is -1; it must be"),
        ("profile=poem", "no synthetic profile 'poem'; there are agentic, chat, code"),
        ("requests=1000000000,rate=0.001", "more than ten years"),
    ],
)
def test_options_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        open_workload(f"synthetic:{text}")


def misfit(lengths: LogNormal, published: dict[str, float]) -> float:
    """Sum of squared log differences at p50, p90 and p99: what the fit made smallest."""
    return sum(
        math.log(lengths.quantile(quantile / 100) / published[f"p{quantile}"]) ** 2
        for quantile in (50, 90, 99)
    )


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces at {TRACES}")
@pytest.mark.parametrize("profile", FITTED_TO)
def test_profiles_are_the_best_fit_to_the_real_traces(profile: str) -> None:
    stats = json.loads((TRACES / "stats.json").read_text())[FITTED_TO[profile]]
    (phase,) = PROFILES[profile]
    for lengths, published in ((phase.prompt, stats["input"]), (phase.output, stats["output"])):
        assert lengths.tokens_max == published["max"]
        best = misfit(lengths, published)
        for mean_step in (-0.03, 0.0, 0.03):
            for deviation_step in (-0.03, 0.0, 0.03):
                neighbour = LogNormal(
                    lengths.log_mean + mean_step,
                    lengths.log_deviation + deviation_step,
                    lengths.tokens_max,
                )
                # Small counts are whole numbers, which makes the misfit a little rough.
                assert best <= misfit(neighbour, published) * 1.02 + 0.002


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces at {TRACES}")
@pytest.mark.parametrize("profile", FITTED_TO)
def test_samples_are_as_long_as_the_real_requests(profile: str) -> None:
    stats = json.loads((TRACES / "stats.json").read_text())[FITTED_TO[profile]]
    requests = requests_of(1, requests=20_000, profile=profile)
    for name, published in (("prompt_tokens", "input"), ("output_tokens", "output")):
        lengths = [getattr(request, name) for request in requests]
        for quantile, error in ((50, 1.15), (90, 1.45), (99, 1.35)):
            ratio = float(np.percentile(lengths, quantile)) / stats[published][f"p{quantile}"]
            assert 1 / error < ratio < error, (name, quantile, ratio)


def test_prompts_that_share_begin_with_one_of_a_few_texts() -> None:
    """Long ones with one of two, short ones with one of eight, the first text most often; what follows
    is a request's own. Lengths are those of the profile without, and the texts on top."""
    options = parse_options("shift-shared,requests=400,rate=20,phase_seconds=2")
    requests = list(generate(options, seed=3))
    begins: Counter[tuple[int, ...]] = Counter()
    own: set[int] = set()
    for request in requests:
        assert request.block_tokens == 64 and request.prefix_blocks is not None
        blocks = np.asarray(request.prefix_blocks).tolist()
        assert len(blocks) == -(-request.prompt_tokens // 64)
        tokens = 2048 if blocks[0] >= 2048 << 20 else 1024
        assert request.prompt_tokens > tokens
        begins[tuple(blocks[: tokens // 64])] += 1
        rest = blocks[tokens // 64 :]
        assert len(set(rest)) == len(rest) and not own & set(rest)
        own |= set(rest)
    by_length = Counter(len(begin) for begin in begins)
    assert by_length == {32: 2, 16: 8}
    assert max(begins.values()) > 2 * min(begins.values())
    assert not {block for begin in begins for block in begin} & own
    assert list(generate(options, seed=3)) == requests != list(generate(options, seed=4))


def test_a_limit_cuts_shared_prompts_too() -> None:
    options = parse_options("profile=shift-shared,requests=50,max_prompt_tokens=1500")
    for request in generate(options):
        assert request.prompt_tokens <= 1500
        assert len(np.asarray(request.prefix_blocks)) == -(-request.prompt_tokens // 64)


def test_a_profile_may_be_named_alone() -> None:
    assert parse_options("chat") == parse_options("profile=chat")
    with pytest.raises(WorkloadError, match="given twice"):
        parse_options("chat,profile=code")
