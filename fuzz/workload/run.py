"""The main job: a model, a trace and an arena; serve every request, check everything, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bandscope.allocator import sizing
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.books import BARRIERS
from bandscope.allocator.checks import Violation
from bandscope.allocator.device import open_device
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_storage
from bandscope.fuzz.workload.baseline import Baseline, run_baselines
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.recording import open_recorder, recording_summary
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.scheduler import NoForward, Scheduler, SchedulerConfig
from bandscope.fuzz.workload.series import Series
from bandscope.fuzz.workload.source import Workload, open_workload
from bandscope.fuzz.workload.stamps import StampForward
from bandscope.inspect.counters import Counters
from bandscope.inspect.recorder import Recorder
from bandscope.inspect.stacks import STACK_DEPTH_MAX

if TYPE_CHECKING:
    from bandscope.fuzz.workload.attention import AttentionForward

VERIFY_LEVELS = ("off", "stamps", "all", "attention")
DEFAULT_ARENA_BYTES = {"cpu": 2 << 30, "none": 120 << 30}
DEFAULT_GPU_FRACTION = 0.8


@dataclass(frozen=True)
class RunConfig:
    """What to run. `arena_bytes` None: 2 GiB on the CPU, 120 GiB without a device, a share of the
    memory of a GPU. `verify` None: stamps where there are bytes, off where there are none.
    `check_every`: steps between full checks of every invariant (also at idle and at the end).
    `record`: `DIR` or `DIR:ring=64MiB`; `stacks`: frames of the Python stack to record with each
    operation."""

    model: str = "gpt-oss-20b"
    workload: str = "synthetic"
    arena_bytes: int | None = None
    page_size: int = 16
    device: str = "auto"
    requests: int | None = None
    speedup: float = 1.0
    seed: int = 0
    verify: str | None = None
    strict: bool = False
    baseline: bool = False
    tensor_parallel: int = 1
    chunk_tokens: int = 8192
    max_running: int = 1024
    output_reserve: float = 1.0
    max_moves: int = 4096
    barrier: str = "fine"
    slow_forward: int = 0
    compact_pressure: float = 0.0
    check_every: int = 256
    record: str | None = None
    stacks: int = 0


@dataclass
class Checks:
    """How often everything was checked, and what was found."""

    full_checks: int = 0
    violations: list[Violation] = field(default_factory=list)
    violation_count: int = 0

    def run(self, arena: Arena, recorder: Recorder | None = None) -> None:
        self.full_checks += 1
        for found in arena.check():
            self.add(found, recorder)

    def add(self, found: Violation, recorder: Recorder | None) -> None:
        self.violation_count += 1
        if len(self.violations) < 20:
            self.violations.append(found)
        if recorder is not None:
            recorder.violation(found.invariant, found.message)


class Run:
    """One run: everything that can be refused is refused by the constructor, before any work."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        _check_numbers(config)
        self.plan = plan_storage(
            declare_model(config.model, tensor_parallel=config.tensor_parallel),
            page_size=config.page_size,
        )
        device = open_device(config.device)
        self.verify = _verify_level(config.verify, device)
        self.total_bytes = sizing.usable_bytes(config.arena_bytes or _default_bytes(device))
        sizing.check_one_request_floor(self.plan, self.total_bytes)
        self.workload = self._open_workload(config.requests)
        self.counters = Counters()
        zero_all = self.verify == "all"
        self.arena = Arena(
            self.plan,
            self.total_bytes,
            device=device,
            # Zeroing every handed-out page costs more than everything else on a CPU; recurrent
            # state needs it, attention rows are always written before they are read.
            config=ArenaConfig(
                hand_out="zero" if zero_all else "none",
                max_moves=config.max_moves,
                barrier=config.barrier,
            ),
            observer=self.counters,
        )
        self.scheduler_config = SchedulerConfig(
            chunk_tokens=config.chunk_tokens,
            max_running=config.max_running,
            output_reserve=config.output_reserve,
            urgent_compact_share=config.compact_pressure,
            seed=config.seed,
        )
        self.content = self._content_forward(zero_all)
        self.scheduler = Scheduler(
            ArenaMemory(self.arena),
            self.scheduler_config,
            forward=self.content or NoForward(),
            after_step=self._after_step,
        )
        self.series = Series()
        self.checks = Checks()
        self.baselines: list[Baseline] = []
        self.wall_seconds = 0.0
        self._on_progress: Callable[[Scheduler], None] = lambda scheduler: None
        # Last, so that nothing can be refused any more once the trace is there.
        self.recorder = open_recorder(config.record, config.stacks, self.arena)

    def _content_forward(self, zero_all: bool) -> StampForward | AttentionForward | None:
        if self.verify == "off":
            return None
        if self.verify == "attention":
            if self.arena.device.name == "cpu":  # Triton asks when it is first imported
                os.environ.setdefault("TRITON_INTERPRET", "1")
            from bandscope.fuzz.workload.attention import AttentionForward

            return AttentionForward(
                self.arena, slow=self.config.slow_forward, seed=self.config.seed
            )
        return StampForward(
            self.arena, everything=zero_all, expect_zeroed=zero_all, seed=self.config.seed
        )

    def _open_workload(self, limit: int | None) -> Workload:
        config = self.config
        return open_workload(
            config.workload,
            seed=config.seed,
            strict=config.strict,
            limit=limit,
            speedup=config.speedup,
        )

    def serve(
        self,
        progress: Callable[[Scheduler], None] = lambda scheduler: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve the trace. `progress` is called after every step; when `should_stop` turns true
        the requests still running are released and the report covers what was done."""
        self._on_progress = progress
        self.scheduler.should_stop = should_stop
        try:
            self._serve()
        finally:
            if self.recorder is not None:
                self.recorder.close()

    def _serve(self) -> None:
        started = time.perf_counter()
        try:
            self.scheduler.run(self.workload)
        finally:
            self.wall_seconds = time.perf_counter() - started
        self.arena.device.synchronize()
        if self.content is not None:
            self.content.fetch()
        self.checks.run(self.arena, self.recorder)
        held = sum(band.live + band.pending for band in self.arena.books.bands)
        if held:
            detail = f"{held} pages are held although nothing runs (leak)"
            self.checks.add(Violation("ownership", detail), self.recorder)
        if self.recorder is not None and self.content is not None:
            for found in self.content.mismatches:
                self.recorder.violation("content", str(found))

    def compare(
        self,
        progress: Callable[[str], None] = lambda what: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """The same trace against separate pools of the same bytes."""

        def requests(limit: int | None) -> Iterable[Request]:
            wanted = self.config.requests
            if limit is not None and (wanted is None or limit < wanted):
                wanted = limit
            return self._open_workload(wanted)

        self.baselines = run_baselines(
            self.plan, self.total_bytes, requests, self.scheduler_config, progress, should_stop
        )

    def _after_step(self, scheduler: Scheduler) -> None:
        self.series.step(
            self.arena, scheduler.clock_seconds, scheduler.running_count, len(scheduler.waiting)
        )
        if scheduler.results.steps % self.config.check_every == 0:
            self.checks.run(self.arena, self.recorder)
        self._on_progress(scheduler)

    @property
    def failures(self) -> int:
        """Violations and content mismatches found."""
        mismatches = self.content.mismatch_count if self.content is not None else 0
        return self.checks.violation_count + mismatches

    def to_json(self) -> dict[str, Any]:
        """Every number of the report, as plain data."""
        results = self.scheduler.results
        return {
            "schema": "bandscope-run/1",
            "config": asdict(self.config),
            "device": self.arena.device.name,
            "verify": self.verify,
            "arena_bytes": self.total_bytes,
            "sink_bytes": self.plan.sink_bytes,
            "plan": plan_summary(self.plan),
            "workload": {
                "name": self.workload.name,
                "report": asdict(self.workload.report),
            },
            "results": results.to_json(),
            "bands": [asdict(facts) for facts in self.arena.facts()],
            "counters": self.counters.to_json(),
            "largest_gap_bytes_min": self.series.largest_gap_bytes_min,
            "series": [asdict(sample) for sample in self.series.samples],
            "checks": {
                "full_checks": self.checks.full_checks,
                "violations": self.checks.violation_count,
                "first_violations": [str(found) for found in self.checks.violations],
            },
            "content": self._content_json(),
            "baselines": {base.name: base.to_json() for base in self.baselines},
            "wall_seconds": self.wall_seconds,
            "steps_per_second": results.steps / self.wall_seconds if self.wall_seconds else None,
            "digest": self.arena.digest(),
            "recording": recording_summary(self.recorder),
        }

    def _content_json(self) -> dict[str, Any] | None:
        content = self.content
        if content is None:
            return None
        return {
            "rows_written": content.rows_written,
            "rows_checked": content.rows_checked,
            "mismatches": content.mismatch_count,
            "first_mismatches": [str(found) for found in content.mismatches],
        }


def plan_summary(plan: StoragePlan) -> dict[str, Any]:
    """The plan's figures without its rows."""
    return {
        "model": plan.model,
        "family": plan.family,
        "context_length": plan.context_length,
        "page_size": plan.page_size,
        "tensor_parallel": plan.tensor_parallel,
        "bands": [
            {
                "name": band.name,
                "end": band.end,
                "entry_bytes": band.entry_bytes,
                "page_bytes": band.page_bytes,
                "layers": len(band.layers),
            }
            for band in plan.bands
        ],
    }


def _default_bytes(device: Device) -> int:
    if device.name == "cuda":
        import torch

        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return sizing.share_of_memory(total_bytes, free_bytes, DEFAULT_GPU_FRACTION)
    return DEFAULT_ARENA_BYTES[device.name]


def _verify_level(asked: str | None, device: Device) -> str:
    if asked is None:
        return "off" if device.name == "none" else "stamps"
    if asked not in VERIFY_LEVELS:
        raise ConfigError(
            f"--verify {asked} was asked for, but the levels are {', '.join(VERIFY_LEVELS)}"
        )
    if asked != "off" and device.name == "none":
        raise ConfigError(
            f"--verify {asked} was asked for on a device that only keeps books; use --device cpu "
            "or cuda, or --verify off"
        )
    return asked


def _check_numbers(config: RunConfig) -> None:
    for name, value, low in (
        ("--requests", config.requests, 1),
        ("--arena-bytes", config.arena_bytes, 1),
        ("--chunk-tokens", config.chunk_tokens, 1),
        ("--max-running", config.max_running, 1),
        ("--check-every", config.check_every, 1),
        ("--max-moves", config.max_moves, 0),
        ("--seed", config.seed, 0),
        ("--slow-forward", config.slow_forward, 0),
        ("--stacks", config.stacks, 0),
    ):
        if value is not None and value < low:
            raise ConfigError(f"{name} {value} was asked for; give a number of {low} or more")
    if config.stacks > STACK_DEPTH_MAX:
        raise ConfigError(
            f"--stacks {config.stacks} was asked for, but at most {STACK_DEPTH_MAX} frames are recorded"
        )
    if config.barrier not in BARRIERS:
        raise ConfigError(
            f"--barrier {config.barrier} was asked for, but the barriers are {', '.join(BARRIERS)}"
        )
    if not 0 <= config.compact_pressure <= 1:
        raise ConfigError(
            f"--compact-pressure {config.compact_pressure} was asked for; give a share from 0 to 1"
        )
    if not 0 <= config.output_reserve <= 1:
        raise ConfigError(
            f"--output-reserve {config.output_reserve} was asked for; give a share from 0 to 1"
        )
