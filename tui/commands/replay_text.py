"""What `bandscope replay` prints: one line per case, and everything about the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bandscope.allocator.errors import BandscopeError
from bandscope.fuzz.replay_corpus import DIVERGED, SAME, UNUSABLE, CaseResult
from bandscope.tui.commands.inspect import tables

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.reader import Trace
    from bandscope.inspect.replay import ReplayReport
    from bandscope.inspect.replay_difference import Difference


def print_case(result: CaseResult, *, pictures: bool) -> None:
    """One case: a line when it is the same, else what differed; with `pictures` all there is."""
    rate = result.operations / max(result.seconds, 1e-9)
    if result.status == UNUSABLE:
        print(f"{result.path}: unusable. {result.message}")
    elif result.status == SAME:
        report = result.report
        told = f"{result.operations:,} operations"
        if report is not None:
            told += f", {report.effects:,} effects, {report.keyframes:,} states compared"
        print(
            f"{result.path}: the same. {told} in {result.seconds:.2f} s ({rate:,.0f} operations/s)"
        )
    else:
        print(f"{result.path}: diverged after {result.operations:,} operations.")
        print(f"  {result.message}")
        if pictures and result.report is not None:
            _print_difference(result, result.report)


def _print_difference(result: CaseResult, report: ReplayReport) -> None:
    from bandscope.inspect.reader import open_trace

    difference = report.difference
    assert difference is not None and report.state is not None
    console = tables.screen()
    trace = open_trace(result.path)
    facts = [
        ("event", f"{difference.event:,}"),
        ("operation", difference.operation),
        ("expected", difference.expected),
        ("got", difference.got),
    ]
    if result.reason:
        facts.append(("kept because", f"{result.reason} ({result.origin})"))
    console.print(tables.facts(facts))
    _print_pictures(console, trace, difference, report)
    _print_history(console, trace, difference)


def _print_pictures(
    console: Console, trace: Trace, difference: Difference, report: ReplayReport
) -> None:
    from bandscope.inspect.timeline import Timeline
    from bandscope.tui.arena_picture import arena_picture

    assert report.state is not None
    width = min(console.width, 110)
    console.print("\nas recorded, after the operation", style="bold")
    try:
        console.print(arena_picture(Timeline(trace).seek(difference.after), width=width))
    except BandscopeError as error:
        console.print(str(error))
    console.print("\nas replayed, after the operation", style="bold")
    console.print(arena_picture(report.state, width=width))


def _print_history(console: Console, trace: Trace, difference: Difference) -> None:
    from bandscope.inspect.replay_history import page_history

    band, page = difference.band, difference.physical
    if band is None or page is None:
        return
    console.print(f"\nwhat page {page:,} of {band} did before", style="bold")
    history = page_history(trace, band, page, difference.event)
    if not history:
        console.print("nothing: it was in no extent, or a hole, since the trace began")
        return
    made = tables.table("", ">event", "what", "by")
    for event in history:
        tables.row(made, f"{event.sequence:,}", event.what, event.operation)
    console.print(made)


def print_summary(results: Sequence[CaseResult]) -> None:
    """How a folder went, in one line."""
    counts = {status: 0 for status in (SAME, DIVERGED, UNUSABLE)}
    for result in results:
        counts[result.status] += 1
    told = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    seconds = sum(result.seconds for result in results)
    print(f"{len(results):,} replayed in {seconds:.1f} s: {told}")
