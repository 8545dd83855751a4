"""What a run of the scheduler counted, independent of what memory it ran against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Results:
    """Counters and samples of one run; seconds are of the virtual clock."""

    arrived: int = 0
    admissions: int = 0
    finished: int = 0
    retractions: int = 0
    preemptions: int = 0
    clipped_outputs: int = 0
    admission_waits: int = 0
    idle_times: int = 0
    steps: int = 0
    #: Prompts of requests when they were first admitted, and what the prefix cache had of them.
    prompt_tokens: int = 0
    matched_tokens: int = 0
    #: What the cache had of requests that were admitted again after a retraction.
    restored_tokens: int = 0
    checkpoints: int = 0
    checkpoint_stalls: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    generated_tokens: int = 0
    clock_seconds: float = 0.0
    busy_seconds: float = 0.0
    concurrency_peak: int = 0
    concurrency_mean: float = 0.0
    used_bytes_peak: int = 0
    used_bytes_mean: float = 0.0
    stopped_early: bool = False
    refusals: Counter[str] = field(default_factory=Counter)
    aborts: Counter[str] = field(default_factory=Counter)
    first_aborts: list[dict[str, Any]] = field(default_factory=list)
    queue_seconds: list[float] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    finished_seconds: list[float] = field(default_factory=list)

    def step(
        self, seconds: float, prefill_tokens: int, decoding: int, running: int, used_bytes: int
    ) -> None:
        """One forward ran for `seconds`; means are weighted by time."""
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decoding
        self.busy_seconds += seconds
        share = seconds / self.busy_seconds
        self.concurrency_peak = max(self.concurrency_peak, running)
        self.concurrency_mean += (running - self.concurrency_mean) * share
        self.used_bytes_peak = max(self.used_bytes_peak, used_bytes)
        self.used_bytes_mean += (used_bytes - self.used_bytes_mean) * share

    def enter(self, prompt_tokens: int, matched_tokens: int, *, restarted: bool) -> None:
        """A request was admitted, and the prefix cache had so much of it."""
        if restarted:
            self.restored_tokens += matched_tokens
        else:
            self.prompt_tokens += prompt_tokens
            self.matched_tokens += matched_tokens

    @property
    def hit_rate(self) -> float:
        """The share of the prompts' tokens that the prefix cache had."""
        return self.matched_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def abort(self, request: int, reason: str, detail: str) -> None:
        """A request was refused for good. The first ones are kept, and the first of each reason."""
        self.aborts[reason] += 1
        if len(self.first_aborts) < 5 or self.aborts[reason] == 1:
            self.first_aborts.append({"request": request, "reason": reason, "detail": detail})

    def to_json(self) -> dict[str, Any]:
        """Every number, with the samples as percentiles."""
        plain = {
            name: getattr(self, name)
            for name in (
                "arrived", "admissions", "finished", "retractions", "preemptions", "clipped_outputs",
                "admission_waits", "idle_times", "steps", "prompt_tokens", "matched_tokens",
                "restored_tokens", "checkpoints", "checkpoint_stalls", "prefill_tokens", "decode_tokens",
                "generated_tokens", "clock_seconds", "busy_seconds", "concurrency_peak",
                "concurrency_mean", "used_bytes_peak", "used_bytes_mean", "stopped_early",
            )
        }  # fmt: skip
        return {
            **plain,
            "hit_rate": self.hit_rate,
            "refusals": dict(self.refusals),
            "aborts": dict(self.aborts),
            "first_aborts": self.first_aborts,
            "queue_seconds": percentiles(self.queue_seconds),
            "first_token_seconds": percentiles(self.first_token_seconds),
            "finished_seconds": percentiles(self.finished_seconds),
        }


def percentiles(samples: list[float]) -> dict[str, float | None]:
    """Mean, p50, p90, p99 and maximum; None without samples."""
    if not samples:
        return {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    values = np.asarray(samples)
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {
        "mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99,
        "max": float(values.max()),
    }  # fmt: skip
