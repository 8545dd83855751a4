"""What `bandscope run` is asked for, and what is refused before any work."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from bandscope.allocator import sizing
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.policies import BARRIERS
from bandscope.allocator.prefix_nodes import POLICIES
from bandscope.allocator.targets import (
    MAMBA_FULL_MEMORY_RATIO,
    SWA_FULL_TOKENS_RATIO,
    SizingOptions,
    Targets,
    size_arena,
)
from bandscope.inspect.stacks import STACK_DEPTH_MAX

VERIFY_LEVELS = ("off", "stamps", "all", "attention")
DEFAULT_ARENA_BYTES = {"cpu": 2 << 30, "none": 120 << 30}
DEFAULT_GPU_FRACTION = 0.8
CHECKPOINT_GRID_TOKENS = 512
SIZING_OPTIONS = (
    "mem_fraction_static", "max_total_tokens", "max_running_requests", "swa_full_tokens_ratio",
    "mamba_full_memory_ratio", "max_mamba_cache_size",
)  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """What to run. `arena_bytes` None: 2 GiB on the CPU, 120 GiB without a device, a share of the
    memory of a GPU. `verify` None: stamps where there are bytes, off where there are none.
    `check_every`: steps between full checks of every invariant (also at idle and at the end).
    `record`: `DIR` or `DIR:ring=64MiB`; `stacks`: frames of the Python stack to record with each
    operation.

    `prefix_cache` keeps the pages of finished prompts for others that begin alike; `evict` says which of
    them go first. `checkpoint_grid` (0: `CHECKPOINT_GRID_TOKENS`): tokens between state checkpoints, on
    a model with state. `priority`: a rule of `priority.py`.

    The sizing options have the names and meanings of `bandscope size`. With any of them the arena is
    the one that the sheet gives for the budget (`arena_bytes`, or on a GPU `mem_fraction_static` of its
    memory), and no more requests run than its concurrency.
    """

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
    prefix_cache: bool = False
    evict: str = "lru"
    checkpoint_grid: int = 0
    priority: str = "none"
    mem_fraction_static: Fraction | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    swa_full_tokens_ratio: Fraction | None = None
    mamba_full_memory_ratio: Fraction | None = None
    max_mamba_cache_size: int | None = None

    @property
    def is_sized(self) -> bool:
        """Does a sheet decide the arena and how many run?"""
        return any(getattr(self, name) is not None for name in SIZING_OPTIONS)

    def grid_tokens(self, plan: StoragePlan) -> int:
        """Tokens between state checkpoints; 0 where there is no state to keep. `ConfigError` for a grid
        that pages or chunks do not reach."""
        if not self.prefix_cache or not plan.has_state:
            return 0
        grid = self.checkpoint_grid or -(-CHECKPOINT_GRID_TOKENS // plan.page_size) * plan.page_size
        if grid % plan.page_size:
            raise ConfigError(
                f"--checkpoint-grid {grid} was asked for with pages of {plan.page_size} tokens; give a "
                "multiple of the page size"
            )
        if self.chunk_tokens < grid:
            raise ConfigError(
                f"--chunk-tokens {self.chunk_tokens} was asked for, but state checkpoints lie "
                f"{grid} tokens apart and every chunk but a prompt's last ends on one; give at least "
                "that, or a smaller --checkpoint-grid"
            )
        return grid


def targets_of(config: RunConfig, plan: StoragePlan, budget_bytes: int) -> Targets | None:
    """The sheet's targets where a sizing option was given. `SizingError` when they do not fit."""
    if not config.is_sized:
        return None
    return size_arena(
        plan,
        budget_bytes,
        SizingOptions(
            max_total_tokens=config.max_total_tokens,
            max_running_requests=config.max_running_requests,
            swa_full_tokens_ratio=config.swa_full_tokens_ratio or SWA_FULL_TOKENS_RATIO,
            mamba_full_memory_ratio=config.mamba_full_memory_ratio or MAMBA_FULL_MEMORY_RATIO,
            max_mamba_cache_size=config.max_mamba_cache_size,
            chunk_tokens=config.chunk_tokens,
        ),
    )


def budget_of(config: RunConfig, device: Device) -> int:
    """Bytes that the arena may have."""
    if config.mem_fraction_static is None:
        return config.arena_bytes or _default_bytes(device)
    if config.arena_bytes is not None:
        raise ConfigError(
            "--mem-fraction-static and --arena-bytes were given; both say how large the arena may be, "
            "so give one"
        )
    if device.name != "cuda":
        raise ConfigError(
            f"--mem-fraction-static was given on the device {device.name}, which has no memory of its "
            "own; give --arena-bytes"
        )
    import torch

    return sizing.static_bytes(torch.cuda.mem_get_info()[1], config.mem_fraction_static, 0)


def _default_bytes(device: Device) -> int:
    if device.name == "cuda":
        import torch

        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return sizing.share_of_memory(total_bytes, free_bytes, DEFAULT_GPU_FRACTION)
    return DEFAULT_ARENA_BYTES[device.name]


def verify_level(asked: str | None, device: Device) -> str:
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


def check_numbers(config: RunConfig) -> None:
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
        ("--checkpoint-grid", config.checkpoint_grid, 0),
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
    if config.evict not in POLICIES:
        raise ConfigError(
            f"--evict {config.evict} was asked for, but the policies are {', '.join(POLICIES)}"
        )
    if not config.prefix_cache and (config.checkpoint_grid or config.evict != "lru"):
        raise ConfigError(
            "--evict and --checkpoint-grid say what a prefix cache does; give --prefix-cache, too"
        )
    if config.prefix_cache and config.verify == "attention":
        raise ConfigError(
            "--verify attention makes the content of each request its own, so it cannot check shared "
            "prefixes; use --verify stamps with --prefix-cache"
        )
    if not 0 <= config.compact_pressure <= 1:
        raise ConfigError(
            f"--compact-pressure {config.compact_pressure} was asked for; give a share from 0 to 1"
        )
    if not 0 <= config.output_reserve <= 1:
        raise ConfigError(
            f"--output-reserve {config.output_reserve} was asked for; give a share from 0 to 1"
        )
