"""The tables of `bandscope replay --mode time` and `--mode what-if`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bandscope.tui.commands.inspect import tables
from bandscope.tui.units import spell_bytes

if TYPE_CHECKING:
    from bandscope.fuzz.replay_import import ImportReport
    from bandscope.fuzz.replay_whatif import WhatIf
    from bandscope.inspect.replay_time import Ratio, TimeReport


def print_times(report: TimeReport) -> None:
    """The rate, its spread over the passes, and the latencies by kind."""
    from bandscope.inspect.replay_time import PERCENTILES

    console = tables.screen()
    spread = f"{min(report.rates):,.0f} to {max(report.rates):,.0f}"
    console.print(
        f"{report.trace}: {report.rate:,.0f} operations/s on device {report.device} (median of "
        f"{len(report.rates)}; {spread}; {report.cpu_rate:,.0f} per second of process time)"
    )
    names = [f">{'longest' if share == 100 else f'p{share}'} µs" for share in PERCENTILES]
    made = tables.table("", "operation", ">count", *names)
    for kind in report.kinds:
        tables.row(
            made, kind.kind, f"{kind.count:,}", *(f"{value:,.1f}" for value in kind.latency_us)
        )
    console.print(made)


def print_ratios(pairs: Sequence[tuple[TimeReport, TimeReport, Ratio]]) -> None:
    """How many times as fast as the others."""
    for mine, other, found in pairs:
        print(
            f"{mine.trace} against {other.trace}: {found.median:.2f} times as fast "
            f"({found.low:.2f} to {found.high:.2f} over the passes)"
        )


# Title, and whether it is shown where the screen is narrow.
_COLUMNS = (
    (">page", False), (">refused", True), (">fits now", False), (">retracted", True),
    (">left out", False), (">moved", True), (">urgent", False), (">bytes moved", True),
    (">barriers", False), (">held", True),
)  # fmt: skip
_WIDE = 120


def print_what_if(path: Path, rows: Sequence[WhatIf]) -> None:
    """The table: as recorded first, then a row per change."""
    console = tables.screen()
    shown = [wide or console.width >= _WIDE for _, wide in _COLUMNS]
    titles = [title for (title, _), show in zip(_COLUMNS, shown, strict=True) if show]
    has_cache = any(row.hit_tokens is not None for row in rows)
    titles += [">hit tokens", ">evicted", ">stalls"] if has_cache else []
    made = tables.table(str(path), "arena", *titles)
    for row in rows:
        if row.problem:
            tables.row(made, _name(row), row.problem)
            continue
        cells = (
            row.page_size, f"{row.refusals:,}", f"{row.served:,}", f"{row.retractions:,}",
            f"{row.left_out:,}", f"{row.pages_moved:,}", f"{row.pages_moved_urgent:,}",
            spell_bytes(row.bytes_moved), f"{row.barriers:,}", spell_bytes(row.held_bytes),
        )  # fmt: skip
        chosen = [cell for cell, show in zip(cells, shown, strict=True) if show]
        if has_cache:
            of_cache = (row.hit_tokens, row.evicted_pages, row.stalls)
            chosen += ["–" if count is None else f"{count:,}" for count in of_cache]
        tables.row(made, _name(row), *chosen)
    console.print(made)
    told = "refused: operations that were done then and are refused now, by which requests are "
    told += "retracted; moved: pages; held: the most bytes in use at once"
    console.print(told if all(shown) else f"{told}; --json has more", style="dim")


def _name(row: WhatIf) -> str:
    change = row.change
    size = spell_bytes(row.arena_bytes)
    if change.is_none:
        return f"as recorded, {size}"
    told = [f"pools of {size}" if change.pools else size]
    if change.page_size is not None:
        told.append(f"pages of {change.page_size}")
    if change.max_moves is not None:
        told.append(f"at most {change.max_moves:,} moves")
    if change.barrier is not None:
        told.append(f"barrier {change.barrier}")
    if change.evict is not None:
        told.append(f"evict {change.evict}")
    return ", ".join(told)


def print_import(path: Path, report: ImportReport) -> None:
    """What was read, what did not map, and how to look at it."""
    console = tables.screen()
    facts = [
        ("allocations", f"{report.allocations:,}"),
        ("frees", f"{report.frees:,}"),
        ("held", f"{report.held_at_start:,} at the start, {report.held_at_end:,} at the end"),
        ("peak", f"{spell_bytes(report.peak_bytes)} in pages of {spell_bytes(report.page_bytes)} (which "
                 f"take {spell_bytes(report.rounded_bytes)} more)"),
        *((f"{count:,}", what) for what, count in report.unsupported.items()),
    ]  # fmt: skip
    at = len(facts) - len(report.unsupported)
    console.print(tables.facts(facts[:at]))
    if report.unsupported:
        console.print("not in the trace:")
        console.print(tables.facts(facts[at:]))
    print(f"{path} is now {report.trace}; look at it with `bandscope inspect summary {report.trace}`")
