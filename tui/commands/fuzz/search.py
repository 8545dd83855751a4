"""`bandscope fuzz exhaustive`: every sequence of operations over small arenas."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import ConfigError
from bandscope.tui.commands.fuzz import options, show

if TYPE_CHECKING:
    from bandscope.fuzz.exhaustive import Report


def exhaustive(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARENA]...", help="Those of the test runs by default; see --list."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="At most so many operations; the arena's own by default.")
    ] = None,
    states: Annotated[
        int | None, typer.Option(help="Stop inside the level in which so many states were met.")
    ] = None,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="The larger arenas too: an hour or more.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Only say which arenas there are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Walk every sequence of operations over small arenas, breadth first, and check every invariant,
    the exactness of capacity answers and the minimality of moves in every state.

    Exit status: 0 all hold, 1 one does not, 2 bad usage.
    """
    from bandscope.fuzz.exhaustive import ARENAS, explore_named

    options.check_count("--depth", depth)
    options.check_count("--states", states)
    chosen = names or [name for name, arena in ARENAS.items() if nightly or not arena.nightly]
    unknown = [name for name in chosen if name not in ARENAS]
    if unknown:
        raise ConfigError(
            f"arena {unknown[0]!r} was asked for, but the small arenas are {', '.join(ARENAS)}"
        )
    if listed:
        for name in names or ARENAS:
            arena = ARENAS[name]
            bands = ", ".join(f"{band} {size} B" for band, size in arena.layout.bands)
            reach = "any length" if arena.depth is None else f"{arena.depth} operations"
            if arena.states_max is not None:
                reach = f"as far as {arena.states_max:,} states go"
            print(
                f"{name}: {bands}; {arena.layout.total_bytes:,} B, pages of {arena.layout.page_size} "
                f"tokens; {reach}{', nightly' if arena.nightly else ''}"
            )
        return
    reports = []
    last = time.monotonic()

    def progress(report: Report) -> None:
        nonlocal last
        if not as_json and time.monotonic() - last > show.LINE_SECONDS:
            last = time.monotonic()
            print(f"{report.name}: {report.states:,} states so far", file=sys.stderr, flush=True)

    for name in chosen:
        report = explore_named(name, depth=depth, states_max=states, progress=progress)
        reports.append(report)
        if not as_json:
            print(report, flush=True)
    if as_json:
        told = [report.to_json() for report in reports]
        print(json.dumps({"schema": "bandscope-exhaustive/1", "searches": told}))
    elif len(reports) > 1:
        print(f"{sum(report.states for report in reports):,} distinct states in all")
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
