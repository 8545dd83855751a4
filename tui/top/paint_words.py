"""The lines of words: header, facts or warnings, footer."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len

from bandscope.tui.top.keys import GROUPS, Groups
from bandscope.tui.top.look import Glyphs, Line, clean, fitting
from bandscope.tui.top.snapshot import Device, Snapshot
from bandscope.tui.units import spell_bytes, spell_seconds, spell_share

ENDINGS = {
    "running": "running", "clean": "ended cleanly", "killed": "process was killed",
    "truncated": "trace is cut off", "damaged": "end is damaged", "disk full": "disk was full",
    "recording stopped": "recording stopped",
}  # fmt: skip


def status_of(snapshot: Snapshot) -> str:
    """Live, paused and by how much, and how the trace ends."""
    where = "live" if snapshot.live else "paused"
    if snapshot.live and snapshot.ending != "running":
        where = "at the end"
    if not snapshot.live:
        where += f", +{snapshot.newer:,} events"
    return f"{where} · {ENDINGS.get(snapshot.ending, snapshot.ending)}"


def place_of_position(snapshot: Snapshot) -> str:
    """The position in words."""
    return (
        f"event {snapshot.position:,} of {snapshot.stop:,} · "
        f"{spell_seconds(snapshot.time_ns / 1e9)} of {spell_seconds(snapshot.end_ns / 1e9)}"
    )


def header_line(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Line:
    """What is shown, where it stands, and how it goes on; the status is always there."""
    symbol = glyphs.live if snapshot.live else glyphs.paused
    running = snapshot.ending == "running"
    status = f" {symbol} {status_of(snapshot)} "
    if cell_len(status) > width - 12:
        status = f" {symbol} {status_of(snapshot).partition(' · ')[0].replace(' events', '')} "
        if not running:
            status += f"{snapshot.ending} "
    rank = "" if snapshot.rank is None else f" rank {snapshot.rank}"
    name = snapshot.path.rpartition("/")[2].removesuffix(".trace")
    place = place_of_position(snapshot)
    named = f" {clean(name)}{rank} · {place}"
    room = width - cell_len(status)
    tries = (f" bandscope · {clean(snapshot.model)} ·{named}", named, f" {place}")
    fitting = [text for text in tries[width <= 110 :] if cell_len(text) <= room]
    left = fitting[0] if fitting else f" event {snapshot.position:,}"
    left = left[:room] + " " * max(0, room - cell_len(left))
    bad = snapshot.ending in ("killed", "truncated", "damaged", "disk full", "recording stopped")
    style = "bad bold bar" if bad else "good bold bar" if snapshot.live else "warn bold bar"
    return [(left, "bold bar"), (status, style)]


def warnings_of(snapshot: Snapshot) -> list[str]:
    """What one must know before believing the picture."""
    said = []
    if snapshot.barrier == "off":
        said.append("barriers are off in this run, on purpose")
    if not snapshot.trusted:
        said.append("damaged part: the state is that of the last sound event before")
    if snapshot.violations:
        said.append(f"{snapshot.violations:,} findings (tab Checks)")
    if snapshot.damages:
        more = f" and {len(snapshot.damages) - 1:,} more" if len(snapshot.damages) > 1 else ""
        said.append(f"damaged: {snapshot.damages[0]}{more}")
    if snapshot.lost:
        said.append(f"{snapshot.lost:,} events are lost")
    return said


def news_of(snapshot: Snapshot) -> str:
    """That the command runs again after this process has ended; empty otherwise."""
    if not snapshot.successor:
        return ""
    name = clean(snapshot.successor.rpartition("/")[2].removesuffix(".trace"))
    return f"the same command runs again as {name}: r shows it"


def compared_words(snapshot: Snapshot) -> str:
    """What the picture is compared with; empty where nothing is."""
    found = snapshot.compared
    if found is None:
        return ""
    other = f" of {clean(found.other.rpartition('/')[2])}" if found.other else ""
    return f"compared with event {found.base:,}{other} (tab 8)"


def facts_of(snapshot: Snapshot) -> list[str]:
    """The arena in a few words."""
    usable = snapshot.total_bytes - snapshot.sink_bytes
    gaps = snapshot.gaps
    facts = [
        f"arena {spell_bytes(snapshot.total_bytes)}",
        f"held {spell_share(snapshot.floor_bytes, usable)}",
        *([f"cached {spell_share(snapshot.cached_bytes, usable)}"] if snapshot.has_cache else []),
        f"wasted {spell_share(snapshot.wasted_bytes, usable)}",
        f"gaps {spell_bytes(sum(gaps))}, largest {spell_bytes(max(gaps, default=0))}",
        f"{snapshot.requests:,} requests",
        f"{snapshot.leases:,} leases",
        f"{len(snapshot.in_flight):,} of {snapshot.issued:,} tickets in flight",
        f"{spell_bytes(sum(band.bytes_per_second for band in snapshot.bands))}/s moved",
    ]
    if snapshot.gate_closed:
        facts.append("gate closed")
    return facts + device_words(snapshot.device)


def device_words(device: Device) -> list[str]:
    """The device's figures, each on its own; none where there is no device."""
    if not device.name:
        return []
    figures = (
        (device.memory_used_bytes, lambda value: f"{spell_bytes(value)} used"),
        (device.utilization_percent, lambda value: f"{value:.0f} % busy"),
        (device.temperature_celsius, lambda value: f"{value:.0f} °C"),
        (device.power_watts, lambda value: f"{value:.0f} W"),
    )
    told = ["n/a" if value is None else spell(value) for value, spell in figures]
    problem = f" ({device.problem})" if device.problem else ""
    return [f"{device.name}: {' '.join(told)}{problem}"]


def second_line(snapshot: Snapshot, width: int) -> Line:
    """Warnings when there are any, and the facts that there is room for."""
    line: Line = []
    for text in (news_of(snapshot), compared_words(snapshot)):
        if text:
            line.append((f" {text} ·", "accent bold"))
    warnings = warnings_of(snapshot)
    if warnings:
        line.append((" ! " + " · ".join(warnings) + " ·", "bad bold"))
    room = width - 1 - sum(cell_len(text) for text, _ in line)
    return [*line, (" " + fitting(facts_of(snapshot), " · ", room), "dim")]


# Actions, the most needed first, in words; keys are those that are in force.
_HINTS = (
    (("help",), "help"), (("quit",), "quit"), (("pause",), "pause"),
    (("event-back", "event-on"), "event"), (("operation-back", "operation-on"), "operation"),
    (("launch-back", "launch-on"), "ticket"), (("jump",), "jump"), (("search",), "search"),
    (("next-list",), "list"), (("drill",), "drill"), (("left", "right"), "cursor"),
    (("zoom-in", "zoom-out"), "zoom"), (("mark",), "compare"), (("export",), "export"),
    (("live",), "live"), (("filter",), "filter"), (("bookmark",), "bookmark"), (("check",), "check"),
)  # fmt: skip


@lru_cache(maxsize=8)
def hints_of(groups: Groups) -> tuple[str, ...]:
    """What the footer says of the keys."""
    first = {
        key.name: min(key.shown.split(" or "), key=len) for _, keys in groups for key in keys
    }
    return tuple(f"{' '.join(first[name] for name in names)} {what}" for names, what in _HINTS)


def footer_line(
    snapshot: Snapshot, trouble: str, width: int, groups: Groups = GROUPS
) -> Line:
    """What went wrong; else what the source answered; else the keys."""
    if trouble or snapshot.message or snapshot.matches:
        parts = [trouble] if trouble else [snapshot.message, snapshot.matches]
        text = " · ".join(part for part in parts if part)
        return [(f" {text}", "accent bar")]
    text = ""
    for hint in hints_of(groups):
        if len(text) + len(hint) + 2 > width:
            break
        text += f"  {hint}" if text else f" {hint}"
    return [(text, "dim bar")]
