"""`bandscope fuzz faults`: the campaign against every planted fault."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.tui.commands.fuzz import options

if TYPE_CHECKING:
    from bandscope.fuzz.strength import Strength


def faults(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT]...", help="All of them by default.")
    ] = None,
    time: Annotated[str, typer.Option(help="How long to look for each at most.")] = "60s",
    seed: Annotated[str, typer.Option(help="A whole number, or commit.")] = "0",
    workers: Annotated[int, typer.Option(help="Processes, a fault each.")] = 1,
    listed: Annotated[bool, typer.Option("--list", help="Only say what they are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Plant known faults in the allocator, one after another, and see whether the campaign finds them.

    Exit status: 0 all were found, 1 some were not, 2 bad usage.
    """
    from bandscope.fuzz.faults import FAULTS
    from bandscope.fuzz.strength import measure_all, totals

    if listed:
        if as_json:
            told = [
                {"name": f.name, "group": f.group, "source": f.source, "what": f.what}
                for f in FAULTS.values()
            ]
            print(json.dumps({"schema": "bandscope-faults/1", "faults": told}))
        else:
            for fault in FAULTS.values():
                print(f"{fault.name} ({fault.source}): {fault.what}")
        return
    options.check_count("--workers", workers)
    budget = options.parse_time(time)
    rows: list[Strength] = []
    for row in measure_all(
        names or None, workers=workers, seed=options.parse_seed(seed), budget_seconds=budget
    ):
        rows.append(row)
        if not as_json:
            print(_line(row), flush=True)
    figures = totals(rows)
    if as_json:
        told = [row.to_json() for row in rows]
        print(json.dumps({"schema": "bandscope-faults/1", **figures, "rows": told}))
    else:
        print(_totals(figures))
    if figures["missed"]:
        raise typer.Exit(1)


def _line(row: Strength) -> str:
    if not row.found:
        return f"{row.fault:44} not found in {row.seconds:.1f} s, {row.operations:,} operations"
    return (
        f"{row.fault:44} {row.seconds:7.2f} s {row.operations:9,} operations, shrunk to "
        f"{row.length:3} in {row.shrink_seconds:5.1f} s, {row.invariant}"
    )


def _totals(figures: dict[str, object]) -> str:
    if not figures["found"]:
        return f"none of {figures['faults']} faults was found"
    return (
        f"{figures['found']} of {figures['faults']} faults found; seconds: median "
        f"{figures['seconds_median']:.2f}, worst {figures['seconds_max']:.1f}; steps after shrinking: "
        f"median {figures['length_median']}, nine of ten at most {figures['length_p90']}, longest "
        f"{figures['length_max']}"
    )
