"""`races`, `leaks`, `check` and `refusals`: what was wrong, and what would have helped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.tui.commands.inspect.options import (
    AsJson,
    Bands,
    From,
    Limit,
    To,
    TracePath,
    reading,
    stretch,
)
from bandscope.tui.units import spell_bytes, spell_count

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.checks.fragmentation import RefusalExplained
    from bandscope.inspect.checks.leaks import Holding, LeakReport

_SHOWN = 20


def races(
    trace: TracePath,
    start: From = None,
    stop: To = None,
    band: Bands = None,
    limit: Limit = _SHOWN,
    as_json: AsJson = False,
) -> None:
    """Accesses to the same page or table row that nothing orders, and the edge that is missing.

    Exit status: 0 none, 1 some, 2 bad usage.
    """
    from bandscope.inspect.checks.races import find_races
    from bandscope.inspect.selection import band_index
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        for name in band or ():
            band_index(opened, name)
        first, last = stretch(opened, start, stop)
        report = find_races(opened, first, last)
        if band:
            report.races = [race for race in report.races if race.band in band]
    if as_json:
        tables.print_json(report.to_json())
    else:
        console = tables.screen()
        for race in report.races[: limit or None]:
            tables.hanging(console, f"{race.before:,}: ", str(race), "bold red")
            for which, access in (("first", race.first), ("second", race.second)):
                for line in access.stack.splitlines():
                    tables.hanging(console, f"    {which}: ", line)
        _more(console, len(report.races), limit)
        for note in report.notes:
            tables.hanging(console, "note: ", note, "yellow")
        tables.warn_gaps(console, report.gaps)
        console.print(
            f"{_count(len(report.races), 'race')} in {report.events:,} events",
            style="bold red" if report.races else "bold",
        )
    if report.races:
        raise typer.Exit(1)


def leaks(
    trace: TracePath,
    place: Annotated[
        str | None, typer.Option("--at", metavar="PLACE", help="An event or a time. [the end]")
    ] = None,
    band: Bands = None,
    limit: Limit = _SHOWN,
    as_json: AsJson = False,
) -> None:
    """Who holds what at an instant, since when, by which operation; what was never given back.

    Pages that are held where a trace was killed, cut or is running are live at the end of the data,
    not leaks. Exit status: 0 no leak, 1 leaks or double owners, 2 bad usage.
    """
    from bandscope.inspect.checks.leaks import find_leaks
    from bandscope.inspect.selection import band_index, parse_position
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        for name in band or ():
            band_index(opened, name)
        sequence = None if place is None else parse_position(opened, place)
        report = find_leaks(opened, sequence)
    found = report.verdict == "leak" or bool(report.double_owners)
    if band:
        report.holdings = [one for one in report.holdings if one.band in band]
        report.cached = [one for one in report.cached if one.band in band]
        report.unended = [one for one in report.unended if one.band in band]
        report.growth = [one for one in report.growth if one.band in band]
    if as_json:
        tables.print_json(report.to_json())
    else:
        _print_leaks(tables.screen(), report, limit)
    if found:
        raise typer.Exit(1)


def _print_leaks(console: Console, report: LeakReport, limit: int) -> None:
    from bandscope.inspect.spelling import who
    from bandscope.tui.commands.inspect import tables

    if report.holdings:
        console.print(_holdings("Held pages", report.holdings, limit))
        _more(console, len(report.holdings), limit)
    if report.cached:
        console.print(_holdings("Pages of the prefix cache", report.cached, limit))
    if report.unended:
        console.print(_holdings("Leases without an end", report.unended, limit))
    for band, virtual, first, second, sequence in report.double_owners[: limit or None]:
        tables.hanging(
            console, f"{sequence:,}: ",
            f"page {virtual} of {band} is held by {who(first)} and by {who(second)}", "bold red",
        )  # fmt: skip
    growing = [one for one in report.growth if one.pages_per_kevent > 0]
    if growing:
        made = tables.table("Growth", "band", "by", ">first", ">last", ">pages per 1,000 events")
        for one in growing[: limit or None]:
            tables.row(
                made, one.band, one.operation, spell_count(one.pages[0]), spell_count(one.pages[-1]),
                f"{one.pages_per_kevent:,.3f}",
            )  # fmt: skip
        console.print(made)
    tables.warn_gaps(console, report.gaps)
    held = sum(one.virtual.size for one in report.holdings)
    console.print(
        f"before event {report.at:,} ({report.ending}): {report.verdict}, {held:,} pages held, "
        f"{_count(len(report.unended), 'lease')} without an end, "
        f"{_count(len(report.double_owners), 'double owner')}",
        style="bold" if report.verdict != "leak" and not report.double_owners else "bold red",
    )


def _holdings(title: str, holdings: list[Holding], limit: int) -> object:
    from bandscope.inspect.spelling import spell_runs
    from bandscope.tui.commands.inspect import tables

    made = tables.table(
        f"{title}, oldest first", "holder", "band", ">pages", ">bytes", "by", ">event",
        ">age", "which",
    )  # fmt: skip
    by_age = sorted(holdings, key=lambda one: one.sequence)
    for one in by_age[: limit or None]:
        owner = f"request {one.owner}" if isinstance(one.owner, int) else str(one.owner)
        age = "unknown" if one.age_ns < 0 else f"{one.age_ns / 1e6:,.1f} ms"
        lease = f", lease {one.lease}" if one.lease else ""
        tables.row(
            made, owner + lease, one.band, spell_count(one.virtual.size), spell_bytes(one.bytes),
            one.operation, f"{one.sequence:,}" if one.sequence >= 0 else "–", age,
            spell_runs(one.virtual, 3),
        )  # fmt: skip
    return made


def check(trace: TracePath, limit: Limit = _SHOWN, as_json: AsJson = False) -> None:
    """Every invariant of the arena, checked from the trace alone; and what was found while it ran.

    Exit status: 0 none is broken, 1 some are, 2 bad usage.
    """
    from bandscope.inspect.checks.invariants import check_trace
    from bandscope.inspect.selection import Selection, gaps, select
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        found = check_trace(opened)
        told = list(select(opened, Selection(kinds=("Violation",))))
        missing = gaps(opened)
        events = opened.stop - opened.start
    if as_json:
        tables.print_json(
            {
                "findings": [one.to_json() for one in found],
                "recorded_violations": [
                    {"sequence": event.sequence, **event.body.__dict__} for event in told
                ],
                "events": events,
                "gaps": missing,
            }
        )
    else:
        console = tables.screen()
        for one in found[: limit or None]:
            where = f" in {one.band}" if one.band else ""
            text = f"{one.name}{where}: {one.detail}"
            tables.hanging(console, f"{one.sequence:,}: ", text, "bold red")
        _more(console, len(found), limit)
        for event in told[: limit or None]:
            text = f"{getattr(event.body, 'name', '')}: {getattr(event.body, 'detail', '')}"
            head = f"{event.sequence:,}: found while it ran: "
            tables.hanging(console, head, text, "bold red")
        tables.warn_gaps(console, missing)
        both = len(found) + len(told)
        console.print(
            f"{_count(both, 'violation')} in {events:,} events", style="bold red" if both else "bold"
        )
    if found or told:
        raise typer.Exit(1)


def refusals(
    trace: TracePath,
    start: From = None,
    stop: To = None,
    limit: Limit = _SHOWN,
    as_json: AsJson = False,
) -> None:
    """Each demand that was refused, the layout it failed on, and the cheapest cure."""
    from bandscope.inspect.checks.fragmentation import explain_refusals
    from bandscope.inspect.selection import gaps
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        first, last = stretch(opened, start, stop)
        found = [one for one in explain_refusals(opened) if first <= one.sequence < last]
        missing = gaps(opened, first, last)
    if as_json:
        tables.print_json({"refusals": [one.to_json() for one in found], "gaps": missing})
        return
    console = tables.screen()
    for one in found[: limit or None]:
        tables.hanging(console, "", one.text)
        console.print(_layout(one))
    _more(console, len(found), limit)
    tables.warn_gaps(console, missing)
    console.print(_count(len(found), "refused demand"), style="bold")


def _layout(one: RefusalExplained) -> object:
    from bandscope.tui.commands.inspect import tables

    made = tables.table("", "pages", *(f">{band}" for band in one.demand))
    tables.row(made, "asked", *(spell_count(count) for count in one.demand.values()))
    tables.row(made, "held", *(spell_count(count) for count in one.live.values()))
    for name, layout in (("extent", one.extents), ("cannot move", one.fixed)):
        hulls = (layout.get(band) for band in one.demand)
        tables.row(made, name, *(f"{h[0]:,}..{h[1]:,}" if h else "–" for h in hulls))
    return made


def _more(console: Console, count: int, limit: int) -> None:
    if limit and count > limit:
        console.print(f"… and {count - limit:,} more (--limit 0)", style="dim")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
