"""`bandscope replay`: apply a trace's operations again and compare everything that comes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import ConfigError

if TYPE_CHECKING:
    from bandscope.inspect.replay import ReplayReport

DEVICES = ("none", "cpu", "cuda")


def replay(
    path: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace, or a folder that holds traces.")
    ],
    device: Annotated[
        str, typer.Option(help="none (books only), cpu, or cuda: where the bytes are.")
    ] = "none",
    until: Annotated[int | None, typer.Option(help="Stop before this event.")] = None,
    passes: Annotated[int, typer.Option(help="Replay this many times.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Replay a trace: outcome and effects of every operation, and the state at every keyframe, must
    be what was recorded.

    Exit status: 0 the same, 1 diverged, 2 unusable trace or bad usage.
    """
    from bandscope.inspect.reader import open_trace
    from bandscope.inspect.replay import replay as run_replay

    if device not in DEVICES:
        raise ConfigError(
            f"--device {device} was asked for, but the devices are {', '.join(DEVICES)}"
        )
    if passes < 1:
        raise ConfigError(f"--passes {passes} was asked for; give 1 or more")
    told, diverged = [], False
    for trace_path in _traces(path):
        for number in range(passes):
            trace = open_trace(trace_path)
            started = time.perf_counter()
            report = run_replay(trace, until=until, device=device)
            seconds = time.perf_counter() - started
            diverged = diverged or report.difference is not None
            entry = {"trace": str(trace_path), "pass": number + 1, "seconds": seconds}
            told.append({**entry, **report.to_json()})
            if not as_json:
                _print(trace_path, report, seconds)
    if as_json:
        print(json.dumps({"schema": "bandscope-replay/1", "device": device, "replays": told}))
    if diverged:
        raise typer.Exit(1)


def _traces(path: Path) -> list[Path]:
    """The traces under `path`: itself, or those of a folder of them."""
    if path.is_dir() and not (path / "trace.json").exists():
        found = sorted(path.glob("*.trace"))
        if found:
            return found
    return [path]


def _print(path: Path, report: ReplayReport, seconds: float) -> None:
    if report.difference is None:
        print(
            f"{path}: the same. {report.operations:,} operations, {report.effects:,} effects, "
            f"{report.keyframes:,} states compared in {seconds:.2f} s "
            f"({report.operations / max(seconds, 1e-9):,.0f} operations/s)"
        )
    else:
        print(f"{path}: diverged after {report.operations:,} operations.")
        print(f"  {report.difference}")
