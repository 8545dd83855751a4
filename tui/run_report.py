"""The report of `bandscope run`, drawn from the run's own plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bandscope.fuzz.workload.run import Run
from bandscope.tui.band_picture import band_letters, band_styles, picture
from bandscope.tui.units import spell_bytes, spell_count, spell_seconds, spell_share


def print_report(console: Console, run: Run) -> None:
    """Everything a person wants to know, most important first."""
    data = run.to_json()
    # Trace rows and paths are quoted as they are: brackets in them are no markup.
    console.print(Group(*_parts(console, run, data)), markup=False, emoji=False)


def _parts(console: Console, run: Run, data: dict[str, Any]) -> Iterator[RenderableType]:
    yield _heading(data)
    yield _requests_table(data)
    yield _bands_table(run, data)
    samples = run.series.samples
    if samples:
        rows = min(16, len(samples))
        chart = picture(
            run.plan, run.total_bytes, samples, width=min(console.width, 110), rows=rows
        )
        yield Text("\nThe arena over time (virtual clock downwards)", style="bold")
        yield chart
    if data["baselines"]:
        yield Text("")
        yield _baseline_table(data)
    yield Text("")
    if data["recording"] is not None:
        yield _recording(data["recording"])
    yield _verdict(run, data)


def _heading(data: dict[str, Any]) -> RenderableType:
    plan, results = data["plan"], data["results"]
    stopped = "  [stopped early]" if results["stopped_early"] else ""
    off = data["config"]["barrier"] == "off"
    warning = "\nwrite-after-read barrier OFF: table writes race with forwards" if off else ""
    return Text.assemble(
        ("\n" + plan["model"], "bold"),
        f" · {data['workload']['name']} · arena {spell_bytes(data['arena_bytes'])} on "
        f"{data['device']} · page size {plan['page_size']}",
        (stopped, "bold yellow"),
        (warning, "bold red"),
    )


def _recording(told: dict[str, Any]) -> RenderableType:
    lost = f", {told['lost']:,} older ones overwritten" if told["lost"] else ""
    text = Text(
        f"trace {told['trace']}: {told['events']:,} events, {spell_bytes(told['bytes'])}{lost}; look "
        f"at it with `bandscope inspect summary {told['trace']}`"
    )
    if told["error"] is not None:
        text.append(f"\nthe trace is not whole: {told['error']}", style="bold red")
    return text


def _requests_table(data: dict[str, Any]) -> RenderableType:
    results, report = data["results"], data["workload"]["report"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    aborted = sum(results["aborts"].values())
    preempted = f" ({results['preemptions']:,} for priority)" if results["preemptions"] else ""
    table.add_row(
        "requests",
        f"{results['finished']:,} finished of {results['arrived']:,} arrived; "
        f"{results['admissions']:,} admissions, {results['retractions']:,} retractions{preempted}, "
        f"{aborted:,} refused, {results['clipped_outputs']:,} outputs clipped",
    )
    for reason, count in results["aborts"].items():
        first = next(entry for entry in results["first_aborts"] if entry["reason"] == reason)
        table.add_row("", f"{count:,} × {reason} (request {first['request']}: {first['detail']})")
    if results["refusals"]:
        reasons = ", ".join(f"{count:,} × {why}" for why, count in results["refusals"].items())
        table.add_row("refusals", f"{reasons} (asked again later)")
    skipped = {
        "with zero tokens": report["rows_zero_tokens"],
        "malformed": report["rows_malformed"],
        "out of order": report["rows_out_of_order"],
    }
    listed = ", ".join(f"{count:,} {what}" for what, count in skipped.items() if count)
    if listed:
        problems = "; ".join(f"line {line}: {why}" for line, why in report["problems"])
        table.add_row("trace rows", listed + (f" ({problems})" if problems else ""))
    table.add_row(
        "tokens",
        f"{results['prefill_tokens']:,} prefilled, {results['decode_tokens']:,} decoded in "
        f"{results['steps']:,} steps",
    )
    table.add_row(
        "concurrency",
        f"mean {results['concurrency_mean']:.1f}, peak {results['concurrency_peak']:,}; arena used "
        f"mean {spell_share(results['used_bytes_mean'], data['arena_bytes'])}, peak "
        f"{spell_share(results['used_bytes_peak'], data['arena_bytes'])}",
    )
    if data["prefix_cache"] is not None:
        table.add_row("prefix cache", _cache_line(data))
    if data["sizing"] is not None:
        table.add_row("sizing", _sizing_line(data))
    first_token, finished = results["first_token_seconds"], results["finished_seconds"]
    table.add_row(
        "virtual clock",
        f"{spell_seconds(results['clock_seconds'])}; first token p50 "
        f"{spell_seconds(first_token['p50'])}, p99 {spell_seconds(first_token['p99'])}; finished "
        f"p50 {spell_seconds(finished['p50'])}, p99 {spell_seconds(finished['p99'])}",
    )
    rate = data["steps_per_second"]
    table.add_row(
        "this run",
        f"{spell_seconds(data['wall_seconds'])}"
        + (f", {rate:,.0f} steps/s" if rate else ""),
    )
    return table


def _cache_line(data: dict[str, Any]) -> str:
    results, cache = data["results"], data["prefix_cache"]
    line = (
        f"{results['hit_rate']:.1%} of the prompts' tokens were there ({results['matched_tokens']:,} "
        f"of {results['prompt_tokens']:,}); {cache['evict']}; holds "
        f"{spell_bytes(cache['cached_bytes'])} now"
    )
    if results["restored_tokens"]:
        line += f"; {results['restored_tokens']:,} tokens found again after a retraction"
    if cache["checkpoint_grid_tokens"]:
        line += (
            f"; {results['checkpoints']:,} checkpoints on a grid of "
            f"{cache['checkpoint_grid_tokens']:,} tokens, {results['checkpoint_stalls']:,} stalled"
        )
    return line


def _sizing_line(data: dict[str, Any]) -> str:
    sizing = data["sizing"]
    tokens = ", ".join(
        f"{count:,} {'slots' if name == 'mamba' else 'tokens'} of {name}"
        for name, count in sizing["tokens"].items()
    )
    return (
        f"targets {tokens}; up to {data['max_running']:,} requests at once (sheet: "
        f"{sizing['concurrency']:,}, bounded by {sizing['bounded_by']})"
    )


def _bands_table(run: Run, data: dict[str, Any]) -> RenderableType:
    letters, styles = band_letters(run.plan), band_styles(run.plan)
    heads = [
        Text(f"{letter} {band.name}", style=style)
        for letter, band, style in zip(letters, run.plan.bands, styles, strict=True)
    ]
    columns = []
    for index, facts in enumerate(data["bands"]):
        counts = run.counters.band(facts["name"])
        holes = max((sample.holes[index] for sample in run.series.samples), default=0)
        peak_bytes = counts.held_peak * facts["page_bytes"]
        columns.append(
            {
                "page": spell_bytes(facts["page_bytes"]),
                "held now": spell_count(facts["live"]),
                "held at the peak": f"{counts.held_peak:,} ({spell_bytes(peak_bytes)})",
                "allocated": spell_count(counts.allocated),
                "holes at a sampled peak": spell_count(holes),
                "pages moved, urgent": spell_count(counts.moves_urgent),
                "pages moved, opportunistic": spell_count(counts.moves_opportunistic),
                "bytes moved": spell_bytes(counts.bytes_moved),
                "changes of the extent": spell_count(sum(counts.band_moves.values())),
            }
        )
    table = _by_rows("Bands, low bytes first (pages)", heads, columns)
    gap = data["largest_gap_bytes_min"]
    if gap is not None:
        table.caption = f"largest gap at a sampled step: never below {spell_bytes(gap)}"
        table.caption_justify = "left"
    return table


def _baseline_table(data: dict[str, Any]) -> RenderableType:
    names = [band["name"] for band in data["plan"]["bands"]]
    runs: list[tuple[str, str, dict[str, Any]]] = [("one arena", "shared", data["results"])]
    for name, base in data["baselines"].items():
        split = "\n".join(
            f"{band} {share:.1%}" for band, share in zip(names, base["shares"], strict=True)
        )
        runs.append((name, split, base["results"]))
    columns = [
        {
            "share of the bytes": split,
            "finished": spell_count(results["finished"]),
            "refused": spell_count(sum(results["aborts"].values())),
            "outputs clipped": spell_count(results["clipped_outputs"]),
            "retractions": spell_count(results["retractions"]),
            **({"prefix hit rate": f"{results['hit_rate']:.1%}"} if data["prefix_cache"] else {}),
            "concurrency, mean": f"{results['concurrency_mean']:.1f}",
            "concurrency, peak": spell_count(results["concurrency_peak"]),
            "bytes used, mean": spell_share(results["used_bytes_mean"], data["arena_bytes"]),
            "virtual clock": spell_seconds(results["clock_seconds"]),
            "first token, p50": spell_seconds(results["first_token_seconds"]["p50"]),
            "first token, p99": spell_seconds(results["first_token_seconds"]["p99"]),
            "finished after, mean": spell_seconds(results["finished_seconds"]["mean"]),
        }
        for _, split, results in runs
    ]
    heads = [Text(name) for name, _, _ in runs]
    return _by_rows("One arena against separate pools of the same bytes", heads, columns)


def _by_rows(title: str, heads: list[Text], columns: list[dict[str, str]]) -> Table:
    """A table with one column per thing and one row per figure: it stays readable at 80 columns."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _verdict(run: Run, data: dict[str, Any]) -> RenderableType:
    checks, content = data["checks"], data["content"]
    lines = [
        f"every invariant checked {checks['full_checks']:,} times: "
        f"{checks['violations']:,} violations"
    ]
    lines += checks["first_violations"]
    if content is not None:
        lines.append(
            f"content: {content['rows_written']:,} rows stamped, {content['rows_checked']:,} read "
            f"back: {content['mismatches']:,} mismatches"
        )
        lines += content["first_mismatches"]
    else:
        lines.append("content: not verified (no bytes were written)")
    lines.append(f"digest {data['digest']}")
    good = run.failures == 0
    return Panel(
        "\n".join(lines),
        title="healthy" if good else "VIOLATIONS",
        border_style="green" if good else "bold red",
        expand=False,
    )
