"""How a campaign looks: one line that moves while it runs, and the text at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from bandscope.tui.units import spell_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from bandscope.fuzz.campaign import Found, Report

LINE_SECONDS = 10.0


def progress_line(report: Report) -> str:
    """Rate, coverage, corpus and finds of a campaign, on one line."""
    from bandscope.fuzz.goals import GOALS

    reached = len(GOALS) - len(report.goals_missed())
    return (
        f"{spell_seconds(report.seconds)}  {report.cases:,} cases  {report.steps:,} operations  "
        f"{report.rate:,.0f}/s and core  {len(report.coverage.moments):,} moments  "
        f"{reached}/{len(GOALS)} goals  corpus {len(report.corpus)}  finds {len(report.found)}"
    )


@contextmanager
def live(quiet: bool) -> Iterator[Callable[[Report], None]]:
    """Shows a campaign while it runs: a line that is drawn again on a terminal, one line every
    `LINE_SECONDS` elsewhere, nothing when `quiet`. On standard error, so that results stay clean."""
    console = Console(stderr=True)
    last = time.monotonic()

    if quiet:
        yield lambda report: None
    elif console.is_terminal:
        with console.status("starting …") as status:

            def draw(report: Report) -> None:
                nonlocal last
                if time.monotonic() - last > 0.2:
                    status.update(progress_line(report))
                    last = time.monotonic()

            yield draw
    else:

        def say(report: Report) -> None:
            nonlocal last
            if time.monotonic() - last > LINE_SECONDS:
                print(progress_line(report), file=sys.stderr, flush=True)
                last = time.monotonic()

        yield say


def campaign_text(report: Report) -> str:
    """What a campaign did, as text."""
    from bandscope.fuzz.goals import GOALS

    lines = [
        f"seed {report.settings.seed}, profile {report.settings.profile}, device "
        f"{report.settings.device}: {report.ending}",
        f"{report.cases:,} cases, {report.steps:,} operations in {spell_seconds(report.seconds)}, "
        f"{report.rate:,.0f} operations/s and core with every check at every step",
        f"{len(report.coverage.moments):,} kinds of moments, {len(report.coverage.pairs):,} pairs of "
        f"operations, {len(report.corpus)} programs kept",
    ]
    missed = report.goals_missed()
    lines.append(f"{len(GOALS) - len(missed)} of {len(GOALS)} goals reached")
    if missed:
        lines.append("not reached: " + "; ".join(missed))
    lines.append(f"digest {report.digest}")
    if not report.found:
        lines.append("nothing found")
    return "\n".join(lines)


def find_text(found: Found, path: str | None = None) -> str:
    """A find, the program that shows it, and how to run it again."""
    lines = [
        f"found: {found.find}",
        f"  case {found.case}, {found.original_steps:,} steps, shrunk to {len(found.program.steps)} "
        f"in {found.executions:,} runs",
    ]
    layout = found.program.layout
    bands = ", ".join(f"{name} {size:,} B" for name, size in layout.bands)
    lines.append(
        f"  arena {layout.total_bytes:,} B, pages of {layout.page_size} tokens: {bands}; schedule "
        f"{found.program.schedule}"
    )
    lines += [f"  {index:3} {step.to_json()}" for index, step in enumerate(found.program.steps)]
    if path is not None:
        lines.append(f"  again with: bandscope fuzz reproduce {path}")
    return "\n".join(lines)
