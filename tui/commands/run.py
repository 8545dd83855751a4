"""`bandscope run`: serve a request trace from one arena and report what happened."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bandscope.allocator.errors import ConfigError
from bandscope.allocator.sizing import parse_bytes

if TYPE_CHECKING:
    from bandscope.fuzz.workload.run import Run

_REFRESH_SECONDS = 0.1


def run(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="A preset name, a config.json, or the folder that holds one.")
    ] = "gpt-oss-20b",
    workload: Annotated[
        str,
        typer.Option(
            help="FORMAT:PATH (mooncake, azure, burstgpt, agentic, servegen), or synthetic, or "
            "synthetic:KEY=VALUE,…"
        ),
    ] = "synthetic",
    arena_bytes: Annotated[
        str | None,
        typer.Option(help="Size of the arena, like 8GiB. [2GiB on the CPU, 120GiB without bytes]"),
    ] = None,
    page_size: Annotated[int, typer.Option(help="Tokens per page.")] = 16,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, or none (keep the books only).")
    ] = "auto",
    requests: Annotated[int | None, typer.Option(help="Stop after this many requests.")] = None,
    speedup: Annotated[float, typer.Option(help="Divide arrival times by this.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    verify: Annotated[
        str | None,
        typer.Option(
            help="off, stamps (every row stamped and read back), all (the whole context each step, "
            "pages zeroed on hand-out), attention (computed through the tables and compared; for a "
            "GPU). [stamps where there are bytes]"
        ),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also serve the trace from separate pools.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first malformed trace row.")
    ] = False,
    tensor_parallel: Annotated[int, typer.Option(help="Ranks that share the heads.")] = 1,
    chunk_tokens: Annotated[int, typer.Option(help="Prefill tokens per step.")] = 8192,
    max_running: Annotated[int, typer.Option(help="Requests that run at once.")] = 1024,
    output_reserve: Annotated[
        float,
        typer.Option(
            help="Share of the outstanding output that admission sets aside; below 1 more requests "
            "run at once and some are retracted."
        ),
    ] = 1.0,
    max_moves: Annotated[
        int, typer.Option(help="Page moves per band of one opportunistic compaction.")
    ] = 4096,
    barrier: Annotated[
        str,
        typer.Option(
            help="What table writes wait for: fine (the forward's table reads), coarse (all of it), "
            "or off (wrong on purpose, to see the race)."
        ),
    ] = "fine",
    slow_forward: Annotated[
        int, typer.Option(help="With --verify attention: stretch the kernels this many times.")
    ] = 0,
    compact_pressure: Annotated[
        float,
        typer.Option(
            help="Share of the steps, drawn at random, after which every band is packed at once: "
            "pressure on what moves under readers."
        ),
    ] = 0.0,
    check_every: Annotated[int, typer.Option(help="Steps between full checks.")] = 256,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache",
            help="Keep the pages of prompts for later ones that begin alike (the blocks of mooncake, "
            "the system prompts of synthetic:shift-shared).",
        ),
    ] = False,
    evict: Annotated[
        str,
        typer.Option(
            help="Which cached pages go first: lru (each kind in its own order) or joint_lru (full and "
            "window pages in one, with exactly one window and no state)."
        ),
    ] = "lru",
    checkpoint_grid: Annotated[
        int,
        typer.Option(
            help="Tokens between state checkpoints, on a model with state. 0: 512, in whole pages."
        ),
    ] = 0,
    priority: Annotated[
        str,
        typer.Option(
            help="Who is admitted first and may preempt: none, short-prompts, short-prompts:TOKENS, "
            "random:SHARE, clients:NAME,NAME."
        ),
    ] = "none",
    mem_fraction_static: Annotated[
        str | None,
        typer.Option(help="Share of a GPU's memory for the arena, instead of --arena-bytes."),
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        typer.Option(help="Use the smallest arena whose sizing gives this many full tokens."),
    ] = None,
    max_running_requests: Annotated[
        int | None, typer.Option(help="Requests at once to size for, and to run.")
    ] = None,
    swa_full_tokens_ratio: Annotated[
        str | None, typer.Option(help="Window tokens per full token, as a target of the sizing.")
    ] = None,
    mamba_full_memory_ratio: Annotated[
        str | None, typer.Option(help="State bytes per byte of all token bands, as a target.")
    ] = None,
    max_mamba_cache_size: Annotated[
        int | None, typer.Option(help="State slots as a target, instead of the ratio.")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            help="Record everything to the folder DIR.trace; DIR:ring=64MiB keeps the latest bytes "
            "only. See `bandscope inspect`."
        ),
    ] = None,
    stacks: Annotated[
        int, typer.Option(help="With --record: frames of the Python stack per operation.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write every number of the report here.")
    ] = None,
    top: Annotated[
        bool,
        typer.Option(
            "--top",
            help="Show the live screen while it runs; the report comes when the screen is closed. "
            "Without --record the latest 512 MiB are recorded, and removed again.",
        ),
    ] = False,
) -> None:
    """Serve a request trace from one arena, check every invariant, and report.

    Exit status: 0 healthy, 1 a violation, 2 bad usage or input.
    """
    if top:
        raise typer.Exit(_run_beside(context, record))
    size = None if arena_bytes is None else parse_bytes(arena_bytes)
    if json_file is not None:
        _check_writable(json_file)

    import torch

    from bandscope.fuzz.workload.run import Run
    from bandscope.fuzz.workload.run_config import RunConfig
    from bandscope.tui.run_report import print_report

    # The driver's tensors are small: handing them to several threads costs more than it gives.
    torch.set_num_threads(1)

    with _stop_on_interrupt() as stopped:
        job = Run(
            RunConfig(
                model=model,
                workload=workload,
                arena_bytes=size,
                page_size=page_size,
                device=device,
                requests=requests,
                speedup=speedup,
                seed=seed,
                verify=verify,
                strict=strict,
                baseline=baseline,
                tensor_parallel=tensor_parallel,
                chunk_tokens=chunk_tokens,
                max_running=max_running,
                output_reserve=output_reserve,
                max_moves=max_moves,
                barrier=barrier,
                slow_forward=slow_forward,
                compact_pressure=compact_pressure,
                check_every=check_every,
                record=record,
                stacks=stacks,
                prefix_cache=prefix_cache,
                evict=evict,
                checkpoint_grid=checkpoint_grid,
                priority=priority,
                mem_fraction_static=_ratio("--mem-fraction-static", mem_fraction_static),
                max_total_tokens=max_total_tokens,
                max_running_requests=max_running_requests,
                swa_full_tokens_ratio=_ratio("--swa-full-tokens-ratio", swa_full_tokens_ratio),
                mamba_full_memory_ratio=_ratio(
                    "--mamba-full-memory-ratio", mamba_full_memory_ratio
                ),
                max_mamba_cache_size=max_mamba_cache_size,
            )
        )
        with _progress(job) as tell:
            job.serve(tell, lambda: stopped[0])
        if baseline and not stopped[0]:
            with _spinner() as say:
                job.compare(say, lambda: stopped[0])
    from rich.console import Console

    print_report(Console(), job)
    if json_file is not None:
        _write_json(json_file, job.to_json())
    if job.failures:
        raise typer.Exit(1)
    if stopped[0]:
        raise typer.Exit(130)


def _ratio(option: str, text: str | None) -> Fraction | None:
    if text is None:
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"{option} {text!r} is not a number; write it like 0.8") from None


def _run_beside(context: typer.Context, record: str | None) -> int:
    """The same command line in a process of its own, and the screen in this one."""
    from bandscope.tui.top.beside import arguments_of, run_beside, show_screen

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("--top needs a terminal; without one, leave it out")
    options = {name: value for name, value in context.params.items()
               if name not in ("top", "record")}  # fmt: skip
    known = {parameter.name: parameter for parameter in context.command.params}
    spelled = {name: known[name].opts[-1] for name in options}
    defaults = {name: known[name].default for name in options}
    return run_beside(arguments_of(options, spelled, defaults), record, show_screen)


@contextmanager
def _stop_on_interrupt() -> Iterator[list[bool]]:
    """The first Ctrl-C asks the run to stop at the next step, so that the report is whole; the
    second one stops at once."""
    stopped = [False]

    def stop(signum: int, frame: Any) -> None:
        if stopped[0]:
            raise KeyboardInterrupt
        stopped[0] = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(job: Run) -> Iterator[Any]:
    """A line with requests, rate and remaining time on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda scheduler: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        total = job.workload.expected_requests
        task = bars.add_task("serving", total=total, rate="")
        started = last = time.monotonic()

        def tell(scheduler: Any) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < _REFRESH_SECONDS:
                return
            last = now
            results = scheduler.results
            done = results.finished + sum(results.aborts.values())
            rate = f"{done / (now - started):.1f} req/s, {scheduler.running_count} running"
            bars.update(task, completed=done, rate=rate)

        yield tell


@contextmanager
def _spinner() -> Iterator[Any]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with console.status("separate pools") as status:
        yield lambda what: status.update(f"separate pools: {what}")


def _check_writable(path: Path) -> None:
    """Refuse before the work, not after it."""
    folder = path.parent
    special = path.exists() and not path.is_file()  # a folder, or a device that must not be replaced
    if not folder.is_dir() or special or not os.access(folder, os.W_OK):
        raise ConfigError(
            f"the report was to be written to {path}, but that is no file in a writable folder; "
            "give another path with --json"
        )


def _write_json(path: Path, data: dict[str, Any]) -> None:
    """Write all or nothing: beside the target first, then in its place."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(
            f"the report could not be written to {path} ({error.strerror}); give another path with "
            "--json"
        ) from error
