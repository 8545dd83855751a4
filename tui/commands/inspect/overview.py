"""`summary`, `stats` and `list`: a trace at a glance, its figures, and the recorders that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bandscope.tui.commands.inspect.options import AsJson, From, To, TracePath, reading, stretch
from bandscope.tui.units import spell_bytes, spell_count, spell_seconds, spell_share

if TYPE_CHECKING:
    from rich.console import Console

    from bandscope.inspect.operation_stats import CacheStats, TraceStats
    from bandscope.inspect.summary import Summary


def summary(trace: TracePath, as_json: AsJson = False) -> None:
    """Who recorded what, how it ended, what is in it, and what is damaged.

    Exit status: 0, or 2 when there is nothing to show.
    """
    from bandscope.inspect.summary import summarize
    from bandscope.tui.commands.inspect import tables

    with reading(trace, only_whole=False) as opened:
        found = summarize(opened)
    if as_json:
        tables.print_json(found.to_json())
    else:
        _print_summary(tables.screen(), found)


def _print_summary(console: Console, found: Summary) -> None:
    from bandscope.tui.commands.inspect import tables

    console.print(found.path, style="bold")
    console.print(tables.facts(_facts(found)))
    bands = tables.table("\nBands", "band", "kind", ">page", ">pages", ">names", ">layers")
    for band in found.header["bands"]:
        tables.row(
            bands, band["name"], band["kind"], spell_bytes(band["page_bytes"]),
            spell_count(band["capacity"]), spell_count(band["virtual_capacity"]), len(band["layers"]),
        )  # fmt: skip
    console.print(bands)
    kinds = tables.table("Events", "kind", ">count", ">share")
    for name, count in found.kinds.items():
        tables.row(kinds, name, spell_count(count), spell_share(count, found.events))
    console.print(kinds)
    for note in found.notes:
        tables.hanging(console, f"note at event {note.sequence:,}: ", note.text)
    for damage in found.damages:
        tables.hanging(console, "damaged: ", str(damage), "bold red")
    tables.warn_gaps(console, found.missing)


def _facts(found: Summary) -> list[tuple[str, str]]:
    header, arena = found.header, found.header["arena"]
    versions = ", ".join(f"{name} {v}" for name, v in header["versions"].items() if v)
    lost = f", {found.lost:,} lost" if found.lost else ""
    recorder = header["recorder"]
    ring = recorder.get("ring_bytes")
    pairs = [
        ("ending", found.ending + lost),
        (
            "events",
            f"{found.start:,} to {found.stop - 1:,}: {found.events:,} readable, "
            f"{found.operations:,} operations, {found.keyframes:,} keyframes, "
            f"{found.segments:,} segments",
        ),
        (
            "time",
            f"{found.first_ns / 1e9:.6f} s to {found.last_ns / 1e9:.6f} s "
            f"({spell_seconds((found.last_ns - found.first_ns) / 1e9)})",
        ),
        (
            "size",
            f"{spell_bytes(found.size_bytes)}, {found.bytes_per_event:.1f} bytes per event",
        ),
        ("started", f"{header['started']} by process {header['pid']} on {header['host']}"),
        ("command", " ".join(header["command"])),
        (
            "model",
            f"{header['model']}, page size {header['page_size']}, tensor parallel "
            f"{header['tensor_parallel']}",
        ),
        (
            "arena",
            f"{spell_bytes(arena['total_bytes'])} on {arena['device']}, barrier "
            f"{arena['config'].get('barrier', '?')}",
        ),
        (
            "recorder",
            f"{'everything' if ring is None else 'ring of ' + spell_bytes(ring)}, stacks "
            f"{recorder.get('stacks', 0)}",
        ),
        ("versions", f"python {header['python']}, {versions}"),
    ]
    if header.get("gpu"):
        pairs.append(("gpu", f"{header['gpu']['name']}, CUDA {header['gpu']['cuda']}"))
    if header.get("revision"):
        pairs.append(("revision", header["revision"]))
    if found.violations:
        pairs.append(("violations", f"{found.violations:,} (see --kind Violation of events)"))
    return pairs


def stats(
    trace: TracePath, start: From = None, stop: To = None, as_json: AsJson = False
) -> None:
    """How often each operation was asked and refused, how long it took, and what was moved.

    Latencies are from asking to the outcome, the recorder's own cost included.
    """
    from bandscope.inspect.operation_stats import operation_stats
    from bandscope.tui.commands.inspect import tables

    with reading(trace) as opened:
        found = operation_stats(opened, *stretch(opened, start, stop))
    if as_json:
        tables.print_json(found.to_json())
    else:
        _print_stats(tables.screen(), found)


def _print_stats(console: Console, found: TraceStats) -> None:
    from bandscope.tui.commands.inspect import tables

    rate = found.events_per_second
    console.print(
        f"{found.events:,} events in {spell_seconds(found.seconds)}"
        + (f", {rate:,.0f} events/s" if rate else "")
        + (f"; {found.unanswered:,} operations without an outcome" if found.unanswered else "")
    )
    made = tables.table(
        "\nOperations (µs)", "kind", ">count", ">refused", ">p50", ">p90", ">p99", ">max"
    )
    for operation in found.operations:
        spread: dict[str, Any] = operation.latency_us or {}
        tables.row(
            made, operation.kind, spell_count(operation.count),
            spell_count(sum(operation.refused.values())),
            *(f"{spread[p]:,.1f}" if spread else "–" for p in ("p50", "p90", "p99", "max")),
        )  # fmt: skip
    console.print(made)
    rows = tables.table("Bands (pages)", "", *(f">{band.band}" for band in found.bands))
    for name, spell in (
        ("leased", spell_count), ("dropped", spell_count), ("pages", spell_count),
        ("pages_urgent", spell_count), ("batches", spell_count), ("bytes", spell_bytes),
        ("extent_changes", spell_count), ("rows_published", spell_count),
    ):  # fmt: skip
        label = {"pages": "moved", "pages_urgent": "moved, urgent", "batches": "batches of moves",
                 "bytes": "bytes moved"}.get(name, name.replace("_", " "))  # fmt: skip
        tables.row(rows, label, *(spell(getattr(band, name)) for band in found.bands))
    if found.cache is not None:
        evicted = (spell_count(found.cache.evicted[band.band]) for band in found.bands)
        tables.row(rows, "evicted", *evicted)
    console.print(rows)
    refused = [
        f"{count:,} × {operation.kind} ({reason})"
        for operation in found.operations
        for reason, count in operation.refused.items()
    ]
    barriers = [f"{count:,} × {kind}" for kind, count in found.barriers.items()]
    facts = [("barriers", ", ".join(barriers) or "none"), ("refused", ", ".join(refused) or "none")]
    if found.cache is not None:
        facts.append(("prefix cache", _spell_cache(found.cache)))
    console.print(tables.facts(facts))


def _spell_cache(cache: CacheStats) -> str:
    stalls = f", {cache.stalls:,} stalled" if cache.stalls else ""
    grafted = f", {cache.grafted:,} grafted" if cache.grafted else ""
    return (
        f"{cache.matches:,} of {cache.asked:,} requests with a key matched, {cache.hit_tokens:,} tokens "
        f"in all; {cache.shared:,} pages shared{grafted}; {cache.checkpoints:,} checkpoints{stalls}; "
        f"{sum(cache.evicted.values()):,} pages evicted for {cache.evictions:,} demands"
    )


def list_running(as_json: AsJson = False) -> None:
    """The recorders of this user that run now."""
    from bandscope.inspect.registry import running
    from bandscope.tui.commands.inspect import tables

    found = running()
    if as_json:
        tables.print_json({"running": [entry.__dict__ for entry in found]})
        return
    console = tables.screen()
    if not found:
        console.print("no recorder runs; start one with `bandscope run --record NAME`")
        return
    for entry in found:
        rank = "" if entry.rank is None else f", rank {entry.rank}"
        console.print(str(entry.trace), style="bold", soft_wrap=True)
        about = [
            ("process", f"{entry.pid}{rank}, since {entry.started}"),
            ("arena", f"{spell_bytes(entry.total_bytes)}, {entry.model}: {', '.join(entry.bands)}"),
            ("command", " ".join(entry.command)),
        ]
        console.print(tables.facts(about))
