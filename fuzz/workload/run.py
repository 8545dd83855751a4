"""The main job: a model, a trace and an arena; serve every request, check everything, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bandscope.allocator import sizing
from bandscope.allocator.arena import Arena, ArenaConfig
from bandscope.allocator.checks import Violation
from bandscope.allocator.device import open_device
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import StoragePlan, plan_storage
from bandscope.allocator.targets import Targets
from bandscope.fuzz.workload.baseline import Baseline, CacheRules, run_baselines
from bandscope.fuzz.workload.memory import ArenaMemory
from bandscope.fuzz.workload.priority import parse_priority, with_priority
from bandscope.fuzz.workload.recording import open_recorder, recording_summary
from bandscope.fuzz.workload.request import Request
from bandscope.fuzz.workload.run_config import (
    RunConfig,
    budget_of,
    check_numbers,
    targets_of,
    verify_level,
)
from bandscope.fuzz.workload.scheduler import NoForward, Scheduler, SchedulerConfig
from bandscope.fuzz.workload.series import Series
from bandscope.fuzz.workload.source import Workload, open_workload
from bandscope.fuzz.workload.stamps import StampForward
from bandscope.inspect.counters import Counters
from bandscope.inspect.recorder import Recorder

if TYPE_CHECKING:
    from bandscope.fuzz.workload.attention import AttentionForward

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
        check_numbers(config)
        self.plan = plan_storage(
            declare_model(config.model, tensor_parallel=config.tensor_parallel),
            page_size=config.page_size,
        )
        device = open_device(config.device)
        self.verify = verify_level(config.verify, device)
        self.grid_tokens = config.grid_tokens(self.plan)
        self.priority = parse_priority(config.priority, config.seed)
        budget_bytes = budget_of(config, device)
        self.targets = targets_of(config, self.plan, budget_bytes)
        self.total_bytes = sizing.usable_bytes(
            budget_bytes if self.targets is None else self.targets.arena_bytes
        )
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
                prefix_cache=config.prefix_cache,
                evict=config.evict,
                checkpoint_grid_tokens=self.grid_tokens,
            ),
            observer=self.counters,
        )
        self.scheduler_config = SchedulerConfig(
            chunk_tokens=config.chunk_tokens,
            max_running=config.max_running
            if self.targets is None
            else min(config.max_running, self.targets.concurrency),
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
            self.scheduler.run(with_priority(self.workload, self.priority))
        finally:
            self.wall_seconds = time.perf_counter() - started
        self.arena.device.synchronize()
        if self.content is not None:
            self.content.fetch()
        self.checks.run(self.arena, self.recorder)
        books = self.arena.books
        held = sum(band.live + band.pending for band in books.bands)
        if books.cache is not None:  # what nobody uses may stay
            held -= sum(books.cache.tree.evictable)
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
            return with_priority(self._open_workload(wanted), self.priority)

        self.baselines = run_baselines(
            self.plan,
            self.total_bytes,
            requests,
            self.scheduler_config,
            progress,
            should_stop,
            cache=CacheRules(self.config.evict, self.grid_tokens)
            if self.config.prefix_cache
            else None,
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
            "config": config_summary(self.config),
            "device": self.arena.device.name,
            "verify": self.verify,
            "arena_bytes": self.total_bytes,
            "sink_bytes": self.plan.sink_bytes,
            "plan": plan_summary(self.plan),
            "sizing": None if self.targets is None else targets_summary(self.targets),
            "max_running": self.scheduler_config.max_running,
            "prefix_cache": self._cache_json(),
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

    def _cache_json(self) -> dict[str, Any] | None:
        cache = self.arena.books.cache
        if cache is None:
            return None
        return {
            "evict": self.config.evict,
            "checkpoint_grid_tokens": self.grid_tokens,
            "cached_bytes": cache.tree.cached_bytes,
            "cached_pages": dict(zip(self._band_names, cache.tree.cached, strict=True)),
        }

    @property
    def _band_names(self) -> list[str]:
        return [band.name for band in self.plan.bands]

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


def config_summary(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain data; ratios as they were written."""
    return {
        name: str(value) if isinstance(value, Fraction) else value
        for name, value in asdict(config).items()
    }


def targets_summary(targets: Targets) -> dict[str, Any]:
    """What the sheet gave."""
    return {
        "budget_bytes": targets.budget_bytes,
        "arena_bytes": targets.arena_bytes,
        "tokens": targets.tokens,
        "concurrency": targets.concurrency,
        "bounded_by": targets.bounded_by,
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
