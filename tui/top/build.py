"""One snapshot out of a source: everything the screen shows of one position."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator.events import PageMove
from bandscope.inspect.format import Kind
from bandscope.inspect.state import ArenaState
from bandscope.tui.band_picture import letters_of
from bandscope.tui.top import history as past_of
from bandscope.tui.top.cells import arena_map, page_facts, settle_cursor, zoom_map
from bandscope.tui.top.history import Past
from bandscope.tui.top.lists import event_row, lease_rows
from bandscope.tui.top.snapshot import BandFigures, Lists, Row, Snapshot

if TYPE_CHECKING:
    from bandscope.tui.top.source import TraceSource

_MARKED_MOVES = 64


def build(source: TraceSource) -> Snapshot:
    """The snapshot of where a source stands."""
    trace, timeline, header = source.trace, source.timeline, source.trace.header
    state, view, position = timeline.state, source.view, timeline.state.sequence
    now_ns, end = source.now_ns, source.end
    source.census.update()
    past = source.history.before(position)
    cursor = settle_cursor(state, source.cursor)
    low, high = view.low, view.high or state.total_bytes
    violations = past_of.violations(past, trace, 500)
    moves = _moves(source, past)
    told_ns = state.time_ns or source.history_time()
    snapshot = Snapshot(
        path=str(trace.path),
        model=str(header["model"]),
        command=" ".join(map(str, header["command"])),
        rank=header["rank"],
        pid=int(header["pid"]),
        start=trace.start,
        stop=end,
        position=position,
        time_ns=told_ns,
        end_ns=told_ns if position == end else past_of.time_before(trace, end),
        live=source.live,
        newer=max(0, end - position),
        ending=source.ending,
        trusted=not any(
            first < position < last or position == last == trace.stop
            for first, last in timeline.gaps
        ),
        lost=_lost(past, trace.start),
        total_bytes=state.total_bytes,
        sink_bytes=state.sink_bytes,
        gate_closed=state.gate_closed,
        issued=state.issued,
        in_flight=tuple(sorted(state.in_flight)),
        requests=len(state.requests),
        leases=len(state.pins),
        view=replace(view, cursor=cursor),
        bands=_bands(source, past, now_ns),
        map=arena_map(state, low, high, max(10, view.columns), cursor, moves,
                      source.census),
        zoom=None if cursor is None else zoom_map(state, cursor, max(10, view.columns)),
        page=None if cursor is None else page_facts(state, cursor),
        waterfall=past_of.waterfall(past, state, now_ns, view.window_ns, view.waterfall),
        lists=_lists(source, past, violations),
        violations=len(violations) + len(source.checks.rows),
        damages=source.damage.damages,
        damage_progress=source.damage.progress,
        checks=source.checks.progress,
        bookmarks=tuple(source.bookmarks),
        matches=source.matches,
        message=source.message,
        device=source.device(),
    )
    return source.desk.complete(snapshot)


def _lost(past: Past, start: int) -> int:
    counts = past.of(Kind.LOST).records["a"]
    return max(start, int(counts.max(initial=0)))


def _moves(source: TraceSource, past: Past) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """The pages that moved since what was shown before."""
    moved = past.of(Kind.PAGE_MOVE).sequences
    marked = moved[np.searchsorted(moved, source.marks_from) :][-_MARKED_MOVES:]
    names = [band.name for band in source.timeline.state.bands]
    found = []
    for sequence in marked.tolist():
        body = past_of.body_at(source.trace, sequence)
        if isinstance(body, PageMove):
            found.append((names.index(body.band), body.sources, body.destinations))
    return found


def _bands(source: TraceSource, past: Past, now_ns: int) -> tuple[BandFigures, ...]:
    state: ArenaState = source.timeline.state
    told = past_of.rates(past, source.trace, len(state.bands), now_ns, source.view.window_ns)
    ranges = [band.byte_range() for band in state.bands]
    existing = [extent for extent in ranges if extent[1] > extent[0]]
    letters = letters_of([band.kind for band in state.bands])
    figures = []
    for band, (start, stop), rate, letter in zip(state.bands, ranges, told, letters, strict=True):
        part = band.slice
        live, holes, pending, pinned, cached = source.census.bands[band.index].within(
            part.start, part.stop
        )
        above, below = 0, 0
        if stop > start:
            above = min([low for low, _ in existing if low >= stop] or [state.total_bytes]) - stop
            lower = [high for _, high in existing if high <= start] or [state.sink_bytes]
            below = start - max(lower)
        elif not existing:
            above = state.total_bytes - state.sink_bytes
        size = band.page_bytes
        figures.append(
            BandFigures(
                band.name, letter, band.kind, size, band.extent, (start, stop), live, pinned,
                pending, holes, above,
                holes + above // size + below // size, rate.moves_per_second,
                rate.moves_per_second * size, rate.refusals, rate.spark, cached,
            )  # fmt: skip
        )
    return tuple(figures)


def _lists(source: TraceSource, past: Past, violations: list[Row]) -> Lists:
    view, trace = source.view, source.trace
    most = max(1, view.rows)
    scanned = f"of events {past.start:,} to {source.position:,}"
    own = source.desk.lists(past, scanned)
    if own is not None:
        return own
    rows: list[Any]
    match view.tab:
        case "events":
            kept = source.pace.kept(source.position, most) if source.live else None
            if kept is not None:
                return kept
            after = 0 if source.live else min(most // 3, 20)
            before, later, looked = source.events.around(source.position, most, after)
            before = before[-(most - len(later)) :]
            rows = [event_row(trace, event) for event in (*before, *later)]
            current = len(before) - 1
            if current >= 0 and before[-1].sequence != source.position - 1 and source._filter:
                about = f"only {source._filter}; looked back to event {looked:,}"
            else:
                about = f"only {source._filter}" if source._filter else ""
            made = Lists("events", tuple(rows), current, about)
            return source.pace.keep(made, source.position)
        case "leases":
            rows, about = lease_rows(source.timeline.state), "oldest first"
        case "tickets":
            rows = past_of.tickets(
                past, trace, source.timeline.state.in_flight, most + view.skip, source.plain
            )
            about = f"newest first, {scanned}"
        case _:
            rows = sorted([*violations, *source.checks.rows], key=lambda row: -row.sequence)
            about = source.checks.progress or "recorded violations only; c checks the trace"
    return Lists(view.tab, tuple(rows[view.skip : view.skip + most]), -1, about)
