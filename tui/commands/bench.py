"""`bandscope bench`: what the arena costs on this machine, against its targets."""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import ConfigError

if TYPE_CHECKING:
    from bandscope.fuzz.bench.rows import Row

PARTS = ("auto", "books", "recording", "gpu")


def bench(
    part: Annotated[
        str, typer.Option(help="books (ratios, any machine), recording, gpu, or auto: all that run.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of a table.")] = False,
) -> None:
    """Measure the arena: every row with its target, reached or fallen short.

    Exit status: 0 all reached, 1 a row fell short, 2 bad usage.
    """
    if part not in PARTS:
        raise ConfigError(f"part {part!r} was asked for, but the parts are {', '.join(PARTS)}")
    import torch

    has_gpu = torch.cuda.is_available()
    if part == "gpu" and not has_gpu:
        raise ConfigError(
            "the GPU part was asked for, but torch sees no GPU; run `bandscope doctor` to see why, or "
            "ask for --part books"
        )
    rows: list[Row] = []
    if part in ("auto", "books"):
        from bandscope.fuzz.bench import books

        rows += books.rows()
    if part in ("auto", "recording"):
        from bandscope.fuzz.bench import recording

        rows += recording.rows()
    if has_gpu and part in ("auto", "gpu"):
        from bandscope.fuzz.bench import gpu

        rows += gpu.rows()
    machine = _machine(has_gpu)
    if as_json:
        print(json.dumps({"machine": machine, "rows": [row.to_json() for row in rows]}, indent=1))
    else:
        _print_table(machine, rows)
    if any(row.reached is False for row in rows):
        raise typer.Exit(1)


def _machine(has_gpu: bool) -> str:
    import numpy
    import torch

    parts = [f"Python {platform.python_version()}", f"numpy {numpy.__version__}"]
    parts.append(f"torch {torch.__version__}")
    if has_gpu:
        import triton

        parts += [f"triton {triton.__version__}", torch.cuda.get_device_name()]
    return ", ".join(parts)


def _print_table(machine: str, rows: list[Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=machine, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    verdicts = {True: "[green]ok[/]", False: "[bold red]short[/]", None: ""}
    for row in rows:
        what = f"{row.what}\n[dim]{row.note}[/]" if row.note else row.what
        table.add_row(
            what, f"{row.value:.4g} {row.unit}", row.target_text, verdicts[row.reached]
        )
    Console(file=sys.stdout).print(table)
