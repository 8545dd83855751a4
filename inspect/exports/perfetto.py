"""Perfetto: the JSON of Chrome's trace events, for ui.perfetto.dev and chrome://tracing.

Process "bands": per band a counter of its extent and one of its pages, a track of its moves, and two
tracks between which arrows show batches of page moves. Process "streams": the schedule stream with a
slice per operation, and tracks of forwards with a slice per ticket from launch until it was reported
complete. A trace has the times of calls and outcomes only: what happened inside an operation is drawn
in its order, a nanosecond apart.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bandscope.allocator import events
from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.allocator.operations import Outcome
from bandscope.inspect.decode import Event, Lost, Note, Violation
from bandscope.inspect.exports.follow import Follower
from bandscope.inspect.exports.rows import operation_columns
from bandscope.inspect.exports.window import Step, Window, steps
from bandscope.inspect.state import ArenaState

BANDS, STREAMS = 1, 2
SCHEDULE, FIRST_FORWARD = 1, 2
TRACKS_OF_A_BAND = 3  # its own, moves out, moves in
_RUNS_MAX = 32  # of pages in the arguments of a slice

Record = dict[str, Any]


def write(window: Window, draft: Path) -> int:
    """Write the file `draft`, compressed when its name ends in `.gz`; returns how many events."""
    if draft.name.endswith(".gz"):
        with gzip.open(draft, "wt", encoding="utf-8", compresslevel=6) as file:
            return _write(window, file)
    with open(draft, "w", encoding="utf-8") as file:
        return _write(window, file)


def _write(window: Window, file: IO[str]) -> int:
    header = window.trace.header
    about = {
        "bandscope": header["versions"].get("bandscope"),
        "trace": str(window.trace.path),
        "started": header["started"],
        "command": " ".join(header["command"]),
        "events": [window.start, window.stop],
    }
    file.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(about) + ',"traceEvents":[')
    tracks = _Tracks(window)
    separator = "\n"
    for record in tracks.records():
        file.write(separator + json.dumps(record, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")
    return tracks.count


class _Tracks:
    """Makes the records of a window; keeps only what is in flight."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.follower = Follower(window)
        self.names = [band["name"] for band in window.bands]
        self.indexes = {name: index for index, name in enumerate(self.names)}
        self.count = 0
        self.flows = 0
        # By ticket: when its forward was launched, its operation, and the number of its track.
        self.in_flight: dict[int, tuple[int, int, int]] = {}
        self.lanes = 0
        self.last_ns = 0

    def records(self) -> Iterator[Record]:
        """All of them. They need not be in the order of time, save where times are equal."""
        yield from self._names()
        first = True
        for step in steps(self._counted()):
            yield from self._step(step)
            if step.outcome is not None or first:
                state = self.follower.before(step.stop)
                if state is not None:
                    yield from self._counters(step, state, everything=first)
                    first = False
        for ticket in list(self.in_flight):
            yield self._forward(ticket, self.last_ns, reported=False)
        for lane in range(self.lanes):
            yield _name("thread_name", STREAMS, f"forward {lane + 1}", FIRST_FORWARD + lane)

    def _counted(self) -> Iterator[Event]:
        for event in self.window.events():
            self.count += 1
            self.last_ns = max(self.last_ns, event.time_ns)
            yield event

    def _names(self) -> Iterator[Record]:
        yield _name("process_name", BANDS, "bands")
        yield _name("process_name", STREAMS, "streams")
        yield _name("thread_name", STREAMS, "schedule", SCHEDULE)
        for index, name in enumerate(self.names):
            for offset, what in enumerate(("", ": moves out", ": moves in")):
                tid = self._tid(name) + offset
                yield _name("thread_name", BANDS, name + what, tid)
                order = {"sort_index": index * TRACKS_OF_A_BAND + offset}
                where = {"pid": BANDS, "tid": tid}
                yield {"ph": "M", "name": "thread_sort_index", **where, "args": order}

    def _tid(self, band: str) -> int:
        return 1 + TRACKS_OF_A_BAND * self.indexes[band]

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, step: Step) -> Iterator[Record]:
        asked = step.asked
        duration = step.duration_ns or 0
        if asked is not None:
            # Before its effects: a slice must be open when an arrow ends in it.
            yield self._operation(step, duration)
        for place, event in enumerate(step.effects, 1):
            ahead = min(place, duration) if asked is not None else 0
            yield from self._effect(event, event.time_ns + ahead, max(0, duration - ahead))

    def _operation(self, step: Step, duration: int) -> Record:
        asked = step.asked
        assert asked is not None
        told = operation_columns(asked.body)  # type: ignore[arg-type]
        about = {"sequence": asked.sequence, "asked": json.loads(told["detail"])}
        name = asked.kind
        if step.outcome is not None:
            outcome = step.outcome.body
            assert isinstance(outcome, Outcome)
            about["ok"] = outcome.ok
            if outcome.value is not None:
                about["value"] = outcome.value
            if not outcome.ok:
                name = f"{name} refused"
                about |= {"reason": outcome.reason, "message": outcome.message}
        else:
            about["outcome"] = "none recorded"
        return _slice(name, STREAMS, SCHEDULE, asked.time_ns, duration, about)

    def _effect(self, event: Event, at: int, left: int) -> Iterator[Record]:
        about: Record = {"sequence": event.sequence}
        match event.body:
            case events.BandMove() as move:
                about |= {"before": move.before, "after": move.after, "why": move.why}
                yield _instant(f"band move: {move.why}", BANDS, self._tid(move.band), at, about)
            case events.PageMove() as moved:
                yield from self._page_move(moved, at, left, about)
            case events.Barrier() as barrier:
                about |= {"ticket": barrier.ticket, "why": barrier.why}
                name = f"barrier: {barrier.kind}"
                yield _instant(name, STREAMS, SCHEDULE, at, about)
                if barrier.ticket in self.in_flight:
                    tid = FIRST_FORWARD + self.in_flight[barrier.ticket][2]
                    yield from self._arrow("barrier", STREAMS, (tid, SCHEDULE), at)
            case events.Share() as share:
                about |= {"request": share.request, "first page": share.first_page}
                about["virtual"] = _runs(share.virtual.tolist())
                name = f"{share.virtual.size} pages are the cache's"
                yield _instant(name, STREAMS, SCHEDULE, at, about)
            case events.Graft() as graft:
                about |= {"request": graft.request, "virtual": _runs(graft.virtual.tolist())}
                about["into"] = _runs(graft.into.tolist())
                name = f"{graft.into.size} pages grafted"
                yield _instant(name, BANDS, self._tid(graft.band), at, about)
            case events.Eviction() as gone:
                about |= {"demand": gone.demand, "pages": gone.counts}
                name = f"eviction: {sum(gone.counts)} pages"
                yield _instant(name, STREAMS, SCHEDULE, at, about)
            case events.StateCopy() as copy:
                about |= {"from slot": copy.source, "to slot": copy.destination}
                tid = self._tid(copy.band)
                yield _instant(f"state copy: {copy.why}", BANDS, tid, at, about)
            case events.Launched() as launched:
                taken = {lane for _, _, lane in self.in_flight.values()}
                lane = next(n for n in range(len(taken) + 1) if n not in taken)
                self.lanes = max(self.lanes, lane + 1)
                self.in_flight[launched.ticket] = (at, event.operation, lane)
            case events.Done() as done:
                if done.ticket in self.in_flight:
                    yield self._forward(done.ticket, at, reported=True)
            case events.Refusal() as refusal:
                about |= {"demand": refusal.demand, "live": refusal.live, "fixed": refusal.fixed}
                yield _instant(f"refusal: {refusal.reason}", STREAMS, SCHEDULE, at, about)
            case Note() as note:
                yield _instant(f"note: {note.text}", STREAMS, SCHEDULE, at, about)
            case Violation() as violation:
                about["detail"] = violation.detail
                yield _instant(f"violation: {violation.name}", STREAMS, SCHEDULE, at, about)
            case Lost() as lost:
                yield _instant(f"{lost.count} events lost", STREAMS, SCHEDULE, at, about)

    def _page_move(
        self, moved: events.PageMove, at: int, left: int, about: Record
    ) -> Iterator[Record]:
        name = f"{moved.virtual.size} pages{', urgent' if moved.urgent else ''}"
        about |= {"pages": moved.virtual.size, "bytes": moved.virtual.size * moved.page_bytes}
        tid = self._tid(moved.band)
        out, into = (about | {"physical": _runs(pages)} for pages in
                     (moved.sources.tolist(), moved.destinations.tolist()))
        yield _slice(name, BANDS, tid + 1, at, left, out)
        yield _slice(name, BANDS, tid + 2, at, left, into)
        yield from self._arrow("page move", BANDS, (tid + 1, tid + 2), at)

    def _forward(self, ticket: int, stop: int, *, reported: bool) -> Record:
        start, operation, lane = self.in_flight.pop(ticket)
        about: Record = {"ticket": ticket, "operation": operation}
        if not reported:
            about["end"] = "in flight at the end of the data"
        name = f"forward {ticket}"
        return _slice(name, STREAMS, FIRST_FORWARD + lane, start, max(0, stop - start), about)

    def _arrow(self, name: str, pid: int, tids: tuple[int, int], at: int) -> Iterator[Record]:
        self.flows += 1
        common = {"name": name, "cat": name, "id": self.flows, "pid": pid, "ts": at / 1e3}
        yield {"ph": "s", **common, "tid": tids[0]}
        yield {"ph": "f", "bp": "e", **common, "tid": tids[1]}

    # --- counters ---------------------------------------------------------------------------------

    def _counters(self, step: Step, state: ArenaState, *, everything: bool) -> Iterator[Record]:
        touched = {getattr(event.body, "band", None) for event in step.effects}
        # Pages that became the cache's are of every token band.
        everything |= any(isinstance(event.body, events.Share) for event in step.effects)
        last = step.outcome or (step.effects[-1] if step.effects else step.asked)
        assert last is not None
        for band in state.bands:
            if everything or band.name in touched:
                start, stop = band.byte_range()
                pages = {
                    "live": band.count(LIVE),
                    "holes": band.count(HOLE),
                    "pending": band.count(PENDING),
                }
                if state.has_cache:
                    pages["live"] -= (cached := band.cached())
                    pages["cached"] = cached
                at = {"ph": "C", "pid": BANDS, "ts": last.time_ns / 1e3}
                yield {"name": f"{band.name} pages", **at, "args": pages}
                yield {"name": f"{band.name} extent", **at, "args": {"bytes": stop - start}}


def _name(what: str, pid: int, name: str, tid: int = 0) -> Record:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, pid: int, tid: int, start: int, duration: int, args: Record) -> Record:
    where = {"pid": pid, "tid": tid, "ts": start / 1e3, "dur": duration / 1e3}
    return {"ph": "X", "name": name, **where, "args": args}


def _instant(name: str, pid: int, tid: int, at: int, args: Record) -> Record:
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": at / 1e3, "args": args}


def _runs(pages: list[int]) -> str:
    """Page numbers as text: `4-9, 12`, the first runs of many."""
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        elif len(runs) == _RUNS_MAX:
            return f"{_text(runs)}, … (of {len(pages)} pages)"
        else:
            runs.append([page, page])
    return _text(runs)


def _text(runs: list[list[int]]) -> str:
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
