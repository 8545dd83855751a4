"""`page` and `lease`: the whole life of one page, and of one lease."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import TraceError
from bandscope.tui.commands.inspect.options import AsJson, Limit, TracePath, reading

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.lease_lives import LeaseLife
    from bandscope.inspect.lifetimes import PageLife


def page(
    trace: TracePath,
    band: Annotated[str, typer.Argument(metavar="BAND", help="The name of the band.")],
    name: Annotated[
        str, typer.Argument(metavar="V[.GEN]", help="The virtual page; of one generation, or all.")
    ],
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """The whole life of a page: who leased it and why, where it moved, who pinned it, its end."""
    from bandscope.inspect.lifetimes import page_life
    from bandscope.tui.commands.inspect import tables

    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", name.strip())
    if match is None:
        raise TraceError(f"page {name!r} was asked for; write V or V.GEN, like 12 or 12.3")
    generation = None if match[2] is None else int(match[2])
    with reading(trace) as opened:
        life = page_life(opened, band, int(match[1]), generation)
        if generation is not None and not life.events:
            raise TraceError(
                f"page {band} {name} was asked for, but the trace tells of no such generation; ask for "
                f"{match[1]} to see them all"
            )
    if as_json:
        tables.print_json(life.to_json())
    else:
        _print_page(tables.screen(), life, limit)


def _print_page(console: Console, life: PageLife, limit: int) -> None:
    from bandscope.tui.commands.inspect import tables

    generation = "" if life.generation is None else f".{life.generation}"
    console.print(f"{life.band} {life.virtual}{generation}", style="bold")
    shown = life.events[: limit or None]
    if not shown:
        console.print("the page was never held while the trace was recorded")
        return
    made = tables.table("", ">event", ">seconds", ">gen", "what", ">page", "by", "")
    for one in shown:
        lies = "" if one.physical is None else f"{one.physical:,}"
        style = {"freed": "bold", "unknown": "yellow"}.get(one.what)
        tables.row(
            made, f"{one.sequence:,}", tables.spell_time(one.time_ns), one.generation, one.what,
            lies, one.operation, one.detail, style=style,
        )  # fmt: skip
    console.print(made)
    if len(shown) < len(life.events):
        console.print(f"… and {len(life.events) - len(shown):,} more (--limit 0)", style="dim")
    tables.warn_gaps(console, life.gaps)


def lease(
    trace: TracePath,
    number: Annotated[int, typer.Argument(metavar="N", help="The number of the lease.")],
    as_json: AsJson = False,
) -> None:
    """One lease: who holds what since when, when it ended, and what waited for it."""
    from bandscope.inspect.lease_lives import lease_life
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        life = lease_life(opened, number)
        end_ns, ending = opened.stop, opened.ending
    if as_json:
        tables.print_json(life.to_json())
    else:
        _print_lease(tables.screen(), life, f"event {end_ns:,} ({ending})")


def _print_lease(console: Console, life: LeaseLife, end: str) -> None:
    from bandscope.inspect.spelling import spell_runs
    from bandscope.tui.commands.inspect import tables

    console.print(f"lease {life.number}", style="bold")
    begun = "before the trace begins"
    if life.begun is not None and life.begun_ns is not None:
        begun = f"event {life.begun:,}, {tables.spell_time(life.begun_ns)} s"
    ended = f"not until the end of the trace, {end}"
    if life.ended is not None and life.ended_ns is not None:
        ended = f"event {life.ended:,}, {tables.spell_time(life.ended_ns)} s, by {life.ended_by}"
    pairs = [("holder", life.holder), ("begun", begun), ("ended", ended)]
    if life.operation is not None:
        asked = life.operation
        deadline = asked.get("deadline_ticket")
        pairs.insert(1, ("of request", str(asked.get("request"))))
        pairs.insert(2, ("purpose", str(asked.get("purpose"))))
        if deadline is not None:
            pairs.insert(3, ("deadline", f"ticket {deadline}"))
    if life.begun_ns is not None and life.ended_ns is not None:
        pairs.append(("lasted", f"{(life.ended_ns - life.begun_ns) / 1e6:.3f} ms"))
    pairs.append(("pages", f"{life.band} {spell_runs(life.virtual, 12)}"))
    pairs.append(("lies at", spell_runs(life.physical, 12)))
    console.print(tables.facts(pairs))
    if not life.waited:
        console.print("nothing waited for it")
    for wait in life.waited:
        head = f"event {wait['sequence']:,}, {wait['operation']}: "
        tables.hanging(console, head, f"{wait['what']}: {wait['detail']}")
    tables.warn_gaps(console, life.gaps)
