"""`at` and `diff`: the arena at one instant, and what differs between two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import TraceError
from bandscope.tui.commands.inspect.options import AsJson, Bands, Limit, TracePath, reading
from bandscope.tui.units import spell_bytes, spell_count

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.differences import BandDifference, Difference
    from bandscope.inspect.instant import Instant
    from bandscope.inspect.state import ArenaState

Place = Annotated[
    str | None,
    typer.Argument(metavar="[N]", help="The event before which to look, a time like 1.5s, or end."),
]


def at(
    trace: TracePath,
    place: Place = None,
    time: Annotated[
        str | None, typer.Option("--time", help="A time instead of an event, like 1.5s.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Draw the arena before event N: bands, pages, gaps, requests, leases and work in flight."""
    from bandscope.inspect.instant import instant_of
    from bandscope.inspect.selection import gaps, parse_position, timeline_at
    from bandscope.tui.commands.inspect import tables

    if (place is None) == (time is None):
        raise TraceError("give one place: an event number like 1200, or --time 1.5s")
    asked = place if place is not None else time
    assert asked is not None
    with reading(trace) as opened:
        sequence = parse_position(opened, asked)
        timeline = timeline_at(opened, sequence)
        state = timeline.state
        found = instant_of(state)
        # A stretch that could not be followed right before the place makes the picture an old one.
        stale = [gap for gap in timeline.gaps if gap[1] >= sequence]
        missing = gaps(opened, max(opened.start, sequence - 1), sequence)
    if as_json:
        tables.print_json({**found.to_json(), "stale": bool(stale), "gaps": timeline.gaps})
        return
    console = tables.screen()
    _print_instant(console, found, state, limit)
    if stale or missing:
        console.print(
            f"the picture is of an earlier instant: events {tables.spell_gaps(stale or missing)} are "
            "damaged or missing",
            style="yellow",
        )


def _print_instant(console: Console, found: Instant, state: ArenaState, limit: int) -> None:
    from bandscope.inspect.spelling import spell_runs
    from bandscope.tui.arena_picture import arena_picture
    from bandscope.tui.commands.inspect import tables

    console.print(
        f"before event {found.sequence:,}, {tables.spell_time(found.time_ns)} s"
        + (", gate closed" if found.gate_closed else ""),
        style="bold",
    )
    console.print(arena_picture(state, width=min(console.width, 110)))
    made = tables.table("\nBands (pages)", "", *(f">{band.name}" for band in found.bands))
    for name, values in (
        ("page", [spell_bytes(b.page_bytes) for b in found.bands]),
        ("extent", [f"{b.extent_pages[0]:,}..{b.extent_pages[1]:,}" for b in found.bands]),
        ("extent, bytes", [spell_bytes(b.extent_bytes[1] - b.extent_bytes[0]) for b in found.bands]),
        ("live", [spell_count(b.live) for b in found.bands]),
        ("of these cached", [spell_count(b.cached or 0) for b in found.bands]),
        ("holes", [spell_count(b.hole) for b in found.bands]),
        ("pending", [spell_count(b.pending) for b in found.bands]),
        ("pinned", [spell_count(b.pinned) for b in found.bands]),
        ("rows to publish", [spell_count(b.unpublished) for b in found.bands]),
        ("gap above", [spell_bytes(b.gap_bytes) for b in found.bands]),
    ):
        if name != "of these cached" or found.has_cache:
            tables.row(made, name, *values)
    console.print(made)
    flight = ", ".join(map(str, found.in_flight)) or "none"
    console.print(f"tickets in flight: {flight} ({found.tickets_issued:,} launched so far)")
    _print_requests(console, found, limit)
    for lease in found.leases:
        tables.hanging(
            console, f"lease {lease['lease']}: ",
            f"{lease['holder']} pins {lease['band']} {spell_runs(lease['virtual'])}",
        )  # fmt: skip


def _print_requests(console: Console, found: Instant, limit: int) -> None:
    from bandscope.tui.band_picture import letters_of
    from bandscope.tui.commands.inspect import tables

    if not found.requests:
        console.print("no request runs")
        return
    shown = found.requests[: limit or None]
    letters = letters_of([band.kind for band in found.bands])
    made = tables.table(
        "\nRequests, and their pages by band", ">request", ">tokens", ">launched", ">ticket",
        *(f">{letter}" for letter in letters), *([">shared"] if found.has_cache else []),
    )  # fmt: skip
    for one in shown:
        pages = (spell_count(one.pages.get(band.name, 0)) for band in found.bands)
        tables.row(
            made, one.request, spell_count(one.length), spell_count(one.launched), one.last_ticket,
            *pages, *([spell_count(one.shared or 0)] if found.has_cache else []),
        )  # fmt: skip
    console.print(made)
    if len(shown) < len(found.requests):
        console.print(f"… and {len(found.requests) - len(shown):,} more (--limit 0)", style="dim")


def diff(
    trace: TracePath,
    before: Annotated[str, typer.Argument(metavar="A", help="An event, a time, start or end.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    other: Annotated[
        Path | None, typer.Option("--other", help="The trace that B is a place of.")
    ] = None,
    band: Bands = None,
    as_json: AsJson = False,
) -> None:
    """What differs between two instants of a trace, or of two traces of the same bands."""
    from bandscope.inspect.differences import compare
    from bandscope.inspect.selection import band_index
    from bandscope.tui.commands.inspect import tables

    one = _state(trace, before)
    two = _state(other if other is not None else trace, after)
    found = compare(one, two)
    if band:
        with reading(trace) as opened:
            chosen = {band_index(opened, name) for name in band}
        found.bands[:] = [found.bands[index] for index in sorted(chosen)]
    if as_json:
        tables.print_json(found.to_json())
    else:
        _print_difference(tables.screen(), found)


def _state(trace: Path, place: str) -> ArenaState:
    from bandscope.inspect.selection import parse_position, timeline_at

    with reading(trace) as opened:
        return timeline_at(opened, parse_position(opened, place)).state


def _print_difference(console: Console, found: Difference) -> None:
    from bandscope.inspect.spelling import spell_runs
    from bandscope.tui.commands.inspect import tables

    console.print(f"from before event {found.before:,} to before event {found.after:,}", style="bold")
    if found.same:
        console.print("nothing differs")
        return
    made = tables.table("\nBands (pages)", "", *(f">{band.band}" for band in found.bands))
    for name in ("came", "gone", "moved", "reused", "changed_owner", "pinned", "unpinned"):
        sizes = (spell_count(getattr(band, name).size) for band in found.bands)
        tables.row(made, name.replace("_", " "), *sizes)
    for state in ("live", "hole", "pending"):
        changes = (_change(band, state) for band in found.bands)
        tables.row(made, state, *changes)
    tables.row(made, "extent, bytes", *(
        f"{_size(band.extent_before)} → {_size(band.extent_after)}" for band in found.bands
    ))  # fmt: skip
    console.print(made)
    for band in found.bands:
        for name in ("came", "gone", "moved", "reused", "changed_owner"):
            pages = getattr(band, name)
            if pages.size:
                head = f"{band.band}, {name.replace('_', ' ')}: "
                tables.hanging(console, head, spell_runs(pages, 12))
    for name, numbers in (
        ("requests that came", found.requests_came),
        ("requests that are gone", found.requests_gone),
        ("requests that grew", [number for number, *_ in found.grown]),
        ("tickets launched", found.launched),
        ("tickets completed", found.completed),
        ("leases begun", found.leases_begun),
        ("leases ended", found.leases_ended),
    ):
        if numbers:
            tables.hanging(console, f"{name}: ", spell_runs(numbers, 12))
    if found.gate[0] != found.gate[1]:
        console.print(f"the gate was {'opened' if found.gate[0] else 'closed'}")


def _change(band: BandDifference, state: str) -> str:
    return f"{band.counts_before[state]:,} → {band.counts_after[state]:,}"


def _size(extent: tuple[int, int]) -> str:
    return spell_bytes(extent[1] - extent[0])
