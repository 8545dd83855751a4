"""HTML: one page about a trace that needs no network, no server and no other file."""

from __future__ import annotations

import heapq
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from bandscope.allocator import events
from bandscope.allocator.operations import Outcome
from bandscope.inspect.decode import Event
from bandscope.inspect.exports import picture
from bandscope.inspect.exports.page import PAGE
from bandscope.inspect.exports.window import Window
from bandscope.inspect.format import Kind, kind_name

COLUMNS = 480
CHART_HEIGHT = 60
ROWS_MAX = 200
_AXES = ("event", "time")


def write(window: Window, draft: Path) -> int:
    """Write the file `draft`; returns how many events it is about."""
    film = picture.film(window, COLUMNS)
    found = _Found()
    for event in window.events(_KINDS):
        found.add(event, window)
    values = {
        "title": escape(window.trace.path.name),
        "facts": _facts(window),
        "legend": _legend(window),
        "figures": "".join(_figures(window, film, axis) for axis in _AXES),
        "tables": _tables(found),
        "data": _script_json(_data(window, film)),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], PAGE)
    draft.write_text(page, encoding="utf-8")
    return window.stop - window.start


# --- what happened --------------------------------------------------------------------------------

_KINDS = {int(kind) for kind in (Kind.PAGE_MOVE, Kind.BAND_MOVE, Kind.BARRIER, Kind.OUTCOME)}


@dataclass
class _Found:
    """What the tables show: counts of everything, and some of it in full."""

    moves: list[tuple[int, int, list[Any]]] = field(default_factory=list)  # a heap: the largest
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    moved_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    band_moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    barriers: Counter[tuple[str, str]] = field(default_factory=Counter)
    barrier_rows: list[list[Any]] = field(default_factory=list)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusal_rows: list[list[Any]] = field(default_factory=list)
    order: Any = field(default_factory=count)

    def add(self, event: Event, window: Window) -> None:
        """Count an event."""
        when = [f"{event.sequence:,}", _milliseconds(event.time_ns)]
        match event.body:
            case events.PageMove() as move:
                kind = "urgent" if move.urgent else "opportunistic"
                pages = int(move.virtual.size)
                size = pages * move.page_bytes
                self.moved[move.band, kind] += pages
                self.moved_bytes[move.band, kind] += size
                asked = _operation(event, window)
                row = [*when, asked, move.band, kind, f"{pages:,}", _bytes(size)]
                entry = (size, -next(self.order), row)
                keep = heapq.heappush if len(self.moves) < ROWS_MAX else heapq.heappushpop
                keep(self.moves, entry)
            case events.BandMove() as moved:
                self.band_moves[moved.band, moved.why] += 1
            case events.Barrier() as barrier:
                self.barriers[barrier.kind, barrier.why] += 1
                if len(self.barrier_rows) < ROWS_MAX:
                    asked = _operation(event, window)
                    self.barrier_rows.append(
                        [*when, asked, barrier.kind, f"{barrier.ticket:,}", barrier.why]
                    )
            case Outcome(ok=False) as outcome:
                asked = _operation(event, window)
                self.refusals[asked, outcome.reason] += 1
                if len(self.refusal_rows) < ROWS_MAX:
                    self.refusal_rows.append([*when, asked, outcome.reason, outcome.message])


def _operation(event: Event, window: Window) -> str:
    """The name of the operation that an event belongs to."""
    if event.operation < 0:
        return ""
    segment = window.trace.segment_of(event.operation)
    index = event.operation - segment.first_sequence
    kind = Kind(int(segment.records["kind"][index]))
    if kind != Kind.OPERATION:
        return kind_name(kind)
    try:
        return str(json.loads(segment.payload(index))["kind"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


# --- parts of the page ----------------------------------------------------------------------------


def _facts(window: Window) -> str:
    trace, header = window.trace, window.trace.header
    arena, config = header["arena"], header["arena"].get("config", {})
    low, high = window.times()
    gpu = header.get("gpu") or {}
    told = {
        "Trace": str(trace.path),
        "Events": f"{window.start:,} to {window.stop - 1:,} "
        f"of {trace.start:,} to {trace.stop - 1:,}",
        "Time": f"{_milliseconds(low)} to {_milliseconds(high)} ms after recording began",
        "Ended": trace.ending,
        "Lost events": f"{trace.lost:,}" if trace.lost else "",
        "Damage": "; ".join(map(str, trace.damages[:5])),
        "Arena": f"{_bytes(arena['total_bytes'])} on {arena['device']}, "
        f"{_bytes(arena['sink_bytes'])} of it sink",
        "Model": f"{header.get('model')} ({header.get('family')})",
        "Page size": f"{header['page_size']} tokens",
        "Barrier policy": str(config.get("barrier", "")),
        "Command": " ".join(header["command"]),
        "Started": f"{header['started']} on {header['host']}",
        "GPU": str(gpu.get("name", "")),
        "Versions": ", ".join(f"{n} {v}" for n, v in header["versions"].items() if v),
        "Revision": str(header.get("revision") or ""),
        "Part of": str(header.get("slice_of", {}).get("path", "")),
    }
    return "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in told.items() if value
    )


def _legend(window: Window) -> str:
    parts = []
    for index, band in enumerate(window.bands):
        swatches = "".join(
            f'<i style="background:{colour}" title="{what}"></i>'
            for what, colour in (
                ("live", picture.colour_of(index)),
                ("pending", picture.pending_colour(index)),
                ("holes", picture.hole_colour(index)),
            )
        )
        size = _bytes(band["page_bytes"])
        parts.append(f"<span>{swatches} {escape(band['name'])} <small>{size}/page</small></span>")
    for what, colour in (("gap", picture.GAP_COLOUR), ("sink", picture.SINK_COLOUR)):
        parts.append(f'<span><i style="background:{colour}"></i> {what}</span>')
    return "".join(parts)


def _figures(window: Window, film: picture.Film, axis: str) -> str:
    """The picture and the charts of one axis."""
    places = film.by_event if axis == "event" else film.by_time
    samples = [film.samples[place] for place in places]
    image = b64encode(picture.png(samples, len(window.bands))).decode()
    parts = [
        f'<div class="axis" data-axis="{axis}">',
        '<figure class="picture" data-band="-1"><img alt="The bands of the arena over time" '
        f'src="data:image/png;base64,{image}"></figure>',
        _ticks(samples, axis),
    ]
    for index, band in enumerate(window.bands):
        paths, peak = picture.areas(samples, index, CHART_HEIGHT)
        colours = {
            "live": picture.colour_of(index),
            "pending": picture.pending_colour(index),
            "holes": picture.hole_colour(index),
        }
        drawn = "".join(f'<path d="{path}" fill="{colours[what]}"/>' for what, path in paths)
        extent = f"up to {peak:,} pages, {_bytes(peak * band['page_bytes'])}"
        parts.append(
            f"<h3>{escape(band['name'])} <small>{extent} in its extent</small></h3>"
            f'<figure class="chart" data-band="{index}"><svg preserveAspectRatio="none" '
            f'viewBox="0 0 {len(samples)} {CHART_HEIGHT}">{drawn}</svg></figure>'
        )
    parts += [_ticks(samples, axis), "</div>"]
    return "".join(parts)


def _ticks(samples: list[picture.Sample], axis: str) -> str:
    marks = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        sample = samples[round(share * (len(samples) - 1))]
        event, time = f"event {sample.sequence:,}", f"{_milliseconds(sample.time_ns)} ms"
        text = f"{event} · {time}" if axis == "event" else f"{time} · {event}"
        marks.append(f"<span>{text}</span>")
    return f'<div class="ticks">{"".join(marks)}</div>'


def _tables(found: _Found) -> str:
    moves = [row for _, _, row in sorted(found.moves, key=lambda entry: -entry[1])]
    total = sum(found.moved.values())
    parts = [
        "<h2>Moves of pages</h2>",
        _table(
            ("band", "kind", "pages", "bytes"),
            (
                [band, kind, f"{pages:,}", _bytes(found.moved_bytes[band, kind])]
                for (band, kind), pages in found.moved.most_common()
            ),
        ),
        _more("The largest batches", len(moves), f"{total:,} pages were moved in all"),
        _table(("event", "ms", "operation", "band", "kind", "pages", "bytes"), moves),
        "<h2>Moves of bands</h2>",
        _table(
            ("band", "why", "times"),
            ([band, why, f"{n:,}"] for (band, why), n in found.band_moves.most_common()),
        ),
        "<h2>Barriers</h2>",
        _table(
            ("kind", "why", "times"),
            ([kind, why, f"{n:,}"] for (kind, why), n in found.barriers.most_common()),
        ),
        _first_ones(found.barrier_rows, found.barriers),
        _table(("event", "ms", "operation", "kind", "ticket", "why"), found.barrier_rows),
        "<h2>Refusals</h2>",
        _table(
            ("operation", "reason", "times"),
            ([kind, why, f"{n:,}"] for (kind, why), n in found.refusals.most_common()),
        ),
        _first_ones(found.refusal_rows, found.refusals),
        _table(("event", "ms", "operation", "reason", "message"), found.refusal_rows),
    ]
    return "".join(parts)


def _first_ones(rows: list[list[Any]], counts: Counter[tuple[str, str]]) -> str:
    return _more("The first ones", len(rows), f"{sum(counts.values()):,} in all")


def _more(title: str, shown: int, of: str) -> str:
    return f"<h3>{title} <small>{shown:,} shown; {of}</small></h3>" if shown else ""


def _table(heads: tuple[str, ...], rows: Iterable[list[Any]]) -> str:
    cells = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    if not cells:
        return "<p>None.</p>" if heads[-1] == "times" or heads[0] == "band" else ""
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table">{table}</div>'


def _data(window: Window, film: picture.Film) -> dict[str, Any]:
    """What the tooltips need."""
    return {
        "total": window.trace.header["arena"]["total_bytes"],
        "sink": window.trace.header["arena"]["sink_bytes"],
        "bands": [band["name"] for band in window.bands],
        "pageBytes": [band["page_bytes"] for band in window.bands],
        "axes": {"event": film.by_event, "time": film.by_time},
        "samples": [
            [
                sample.sequence,
                sample.time_ns,
                [[b.start, b.stop, b.live, b.holes, b.pending, b.pinned] for b in sample.bands],
            ]
            for sample in film.samples
        ],
    }


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.3f}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" or size == int(size) else f"{size:,.2f} {unit}"
