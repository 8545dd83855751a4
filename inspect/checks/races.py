"""Happens-before on a trace: every pair of conflicting accesses is ordered, or it is reported.

Three kinds of streams touch pages: the *schedule* stream (moves, fills of handed-out pages, table
publishes), the *forward* stream (launched forwards, in order) and the *copy* stream of each lease's
holder. What touches what is derived from the events:

- A forward reads every page its requests hold at its launch, and their table rows; it writes the
  pages of the tokens it is launched for (of state bands: every slot of its requests).
- A request's pages that the prefix cache owns are read by its forwards and written by none; forwards
  from before the cache took a page, or the place of one (a graft), may have written it. The copy of a
  state reads one slot and writes another, like a move whose source stays.
- A move reads its sources and writes its destinations. A handed-out page is written where the
  arena's policy fills it (`hand_out`, `hand_out_state`); a device may issue a fill later than that,
  up to the next launch. A publish writes the table rows that changed since the last.
- The holder of a lease may read and write its pages from the lease's begin to its end.

Edges: a launch orders a forward behind all that was issued on the schedule stream. A barrier orders
what the schedule stream is given later behind forwards up to its ticket: `settle` and coarse ones
behind all of them, fine ones behind their table reads, `off` behind nothing. A completed ticket is
ordered before everything after its report: that ticket alone, although forwards run in order. A
lease's holder is ordered behind everything before its begin and before everything after its end.

So the clock of the schedule stream is, per forward, whether it is *open*; a race is a schedule-stream
access to what an open forward, or a holder, conflicts with. Found by bytes, also where another band
has taken the bytes over.

Not seen: a holder against forwards (it orders itself behind those launched before its lease; those
launched later over pages it copies are the engine's choice, and no event tells of it), and against
the source of a state's copy; the content of pages; forwards that touch other pages than their
requests hold; anything launched before the trace begins or before a damaged part ends: that is
listed in `gaps` and `notes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.checks.race_books import STILL_OWN, Pages, RaceBooks
from bandscope.inspect.checks.race_judge import Judge
from bandscope.inspect.checks.race_report import Access, Race, RaceReport
from bandscope.inspect.decode import Decoder, decoder_for
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline

__all__ = ["Access", "Race", "RaceReport", "find_races"]

_U32 = 0xFFFFFFFF
_CHUNK = 16_384  # records turned into numbers at a time
# What applying a record raises that makes no sense.
_IMPLAUSIBLE = (IndexError, ValueError, KeyError, TypeError, OverflowError)
# Forwards that stay open for want of any edge are remembered up to this many.
OPEN_MAX = 256


def find_races(trace: Trace, start: int | None = None, stop: int | None = None) -> RaceReport:
    """Every pair of conflicting accesses that nothing orders, whose second lies in `[start, stop)`.

    One race per missing edge, kind and band. Events before `start` are used as far back as the
    keyframe before it. `TraceError` when the trace holds no sound keyframe to begin at.
    """
    return _Checker(trace, start, stop).run()


class _Checker:
    def __init__(self, trace: Trace, start: int | None, stop: int | None) -> None:
        self.trace = trace
        self.start = trace.start if start is None else max(start, trace.start)
        self.stop = trace.stop if stop is None else min(stop, trace.stop)
        self.report = RaceReport()
        self.books = RaceBooks(trace.header)
        self._timeline = Timeline(trace)
        self.judge = Judge(self.books, self.start, self._operation)
        self._batches: dict[int, tuple[int, Any]] = {}
        self._asked: tuple[int, int, int, int, int, str] | None = None
        self._stack = ""
        self._stacks: dict[int, str] = {}
        self._segment: SegmentReader
        self._decoder: Decoder

    # --- along the trace ----------------------------------------------------------------------------

    def run(self) -> RaceReport:
        """Look at everything."""
        expected: int | None = None  # the event that would follow; None: nothing is known yet
        begin = self._gap = self._begin()
        for segment in self.trace.segments(begin, self.stop):
            self._enter(segment)
            if expected is not None and segment.first_sequence != expected:
                self._gap, expected = expected, None
            index = max(0, begin - segment.first_sequence)
            last = min(len(segment), self.stop - segment.first_sequence)
            while index < last:
                if expected is None:
                    index, expected = self._place(index, last)
                    continue
                sound = segment.good[index:last]
                bad = last if sound.all() else index + int(np.argmin(sound))
                index = self._apply(index, bad)
                expected = segment.first_sequence + index
                if index < last:
                    self._gap, expected = expected, None
                    index += 1
        if expected is None:
            self.report.gaps.append((self._gap, self.stop))
        self.report.races = sorted(self.judge.found.values(), key=lambda race: race.before)
        return self.report

    def _begin(self) -> int:
        if self.start <= self.trace.start:
            return self.trace.start
        found = self._timeline._keyframe_before(self.start)
        if found is None:
            return self.trace.start
        return found[0].first_sequence + found[1]

    def _enter(self, segment: SegmentReader) -> None:
        self._segment, self._decoder = segment, decoder_for(self.trace, segment)
        self._batches = {}
        self._stacks = {}
        self._asked = None
        if segment.find(Kind.STACK).size:
            self._stacks = segment.stacks()

    def _place(self, index: int, last: int) -> tuple[int, int | None]:
        """Go on at the next sound keyframe from `index` on; returns where, and what follows."""
        segment = self._segment
        for at in segment.find(Kind.KEYFRAME).tolist():
            if not index <= at < last:
                continue
            snapshot = self._timeline._snapshot(segment, at)
            if snapshot is None:
                continue
            sequence = segment.first_sequence + at + 1
            state = ArenaState(self.trace.header)
            state.restore(snapshot, sequence)
            self.books.place(state, snapshot)
            # What comes before the first keyframe of a trace is its header, and no gap.
            if self._gap > self.trace.start or not segment.good[:at].all():
                if self._gap < sequence - 1:
                    self.report.gaps.append((self._gap, sequence))
            if state.in_flight:
                told = ", ".join(str(ticket) for ticket in sorted(state.in_flight)[:8])
                more = f" and {len(state.in_flight) - 8} more" if len(state.in_flight) > 8 else ""
                self.report.notes.append(
                    f"forwards {told}{more} were launched before event {sequence:,}, where the data "
                    "begins; what they touch is not known, so nothing is said about them"
                )
            return at + 1, sequence
        return last, None

    def _apply(self, first: int, last: int) -> int:
        """Events `[first, last)` of the segment; returns where it had to stop, `last` when not."""
        records = self._segment.records
        base = self._segment.first_sequence
        appliers = _APPLIERS
        first_operation, last_operation = int(form.FIRST_OPERATION), int(form.LAST_OPERATION)
        for low in range(first, last, _CHUNK):
            part = records[low : min(low + _CHUNK, last)]
            columns = [part[name].tolist() for name in ("kind", "flags", "band", "a", "b", "c")]
            index = low
            for kind, flags, band, a, b, c in zip(*columns, strict=True):
                if first_operation <= kind <= last_operation:
                    self._asked = (kind, flags, index, b, c, self._stack)
                    self._stack = ""
                else:
                    applier = appliers.get(kind)
                    if applier is not None:
                        try:
                            applier(self, base + index, index, flags, band, a, b, c)
                        except _IMPLAUSIBLE as error:
                            self.report.notes.append(
                                f"event {base + index:,} cannot be applied ({error}); what follows is "
                                "not used up to the next keyframe"
                            )
                            return index
                index += 1
            self.report.events += len(part)
        return last

    # --- what was asked -------------------------------------------------------------------------------

    def _rows(self, asked: int) -> Any:
        """The rows of a batch's requests, kept for batches that repeat."""
        record = self._segment.records[asked]
        flags = int(record["flags"])
        number = int(record["c"]) - 1 if flags & form.SAME_BATCH else asked
        epoch = self.books.requests.epoch
        known = self._batches.get(number)
        if known is None or known[0] != epoch:
            if len(self._batches) > 64:
                self._batches.clear()
            row_of = self.books.requests.row_of
            batch = self._decoder.batch(asked)
            known = (epoch, np.array([row_of[request] for request in batch], np.int64))
            self._batches[number] = known
        return known[1]

    def _outcome(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        asked, self._asked = self._asked, None
        if asked is None or not flags & form.OK:
            return
        kind, _, at, number, value, _ = asked
        requests = self.books.requests
        if kind == Kind.DECODE:
            requests.length[self._rows(at)] += 1
        elif kind == Kind.EXTEND:
            requests.length[requests.row_of[number]] += value
        elif kind == Kind.ADMIT:
            requests.row(number)
        elif kind == Kind.ADMIT_PREFIX:  # `b`: tokens that were matched
            row = requests.row(number)
            requests.length[row] = requests.launched[row] = b
        elif kind in (Kind.RELEASE, Kind.RELEASE_PREFIX):
            requests.remove(number)

    def _text_of_stack(self, sequence: int, index: int, flags: int, *rest: int) -> None:
        self._stack = self._stacks.get(rest[-1], "")

    # --- effects --------------------------------------------------------------------------------------

    def _lease_begin(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        books, of_band = self.books, self.books.bands[band]
        space, requests = of_band.space, books.requests
        virtual: Pages
        pages: Pages
        if flags & form.INLINE:
            virtual, pages = a >> 32, (a & _U32) - of_band.base
            rows: Any = requests.row(b)
            count, order = 1, requests.pages[rows]
        else:
            virtual, physical, *each = self._decoder.pages(index)
            pages = physical - of_band.base
            if flags & form.PIN:
                self._pin(sequence, index, band, virtual, pages, b, c)
                return
            count = virtual.size
            if each:
                rows = np.array([requests.row(holder) for holder in each[0].tolist()], np.int64)
                order = requests.pages[rows]
                if of_band.counts_pages and count > 1 and np.unique(rows).size < count:
                    sorted_at = np.argsort(rows, kind="stable")
                    _, starts = np.unique(rows[sorted_at], return_index=True)
                    runs = np.diff(np.append(starts, count))
                    order[sorted_at] += np.arange(count) - np.repeat(starts, runs)
            else:
                rows = requests.row(b)
                order = requests.pages[rows] + np.arange(count)
        if of_band.fills:
            self.judge.writes(sequence, band, virtual, pages)
        if of_band.counts_pages:
            space.index[virtual], space.owned[virtual] = order, STILL_OWN
            if not of_band.is_state:
                if isinstance(rows, np.ndarray):
                    np.add.at(requests.pages, rows, 1)
                else:
                    requests.pages[rows] += count
        space.row[virtual] = rows
        space.leased[virtual] = books.issued
        of_band.placed[pages] = books.issued
        of_band.page_of[virtual] = pages
        of_band.fresh.append(virtual)

    def _pin(
        self, sequence: int, index: int, band: int, virtual: Pages, pages: Pages, b: int, c: int
    ) -> None:
        of_band = self.books.bands[band]
        of_band.pinned[pages] += 1
        of_band.pins += 1
        kind, at, stack = self._operation(sequence)
        holder = self._segment.text(b)
        self.books.pins[c] = (band, pages, virtual, holder, kind, at, stack)

    def _lease_end(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        books, of_band = self.books, self.books.bands[band]
        if flags & form.PIN:
            pin = books.pins.pop(c, None)
            if pin is not None:
                of_band.pinned[pin[1]] -= 1
                of_band.pins -= 1
            return
        virtual: Pages = a if flags & form.INLINE else self._decoder.pages(index)[0]
        if books.open:
            books.leave(band, virtual, of_band.page_of[virtual])
        of_band.page_of[virtual] = -1
        if of_band.counts_pages:
            of_band.space.generation[virtual] += 1

    def _page_move(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        books, of_band = self.books, self.books.bands[band]
        virtual, sources, destinations = self._decoder.pages(index)
        old, new = sources - of_band.base, destinations - of_band.base
        self.judge.reads(sequence, band, virtual, old)
        self.judge.writes(sequence, band, virtual, new)
        if books.open:
            books.leave(band, virtual, old)
        of_band.placed[new] = books.issued
        of_band.page_of[virtual] = new
        of_band.fresh.append(virtual)

    def _share(self, sequence: int, index: int, flags: int, band: int, *rest: int) -> None:
        self.books.share(rest[1], rest[2], self._decoder.pages(index)[0])

    def _graft(self, sequence: int, index: int, flags: int, band: int, *rest: int) -> None:
        self.books.graft(band, *self._decoder.pages(index))

    def _state_copy(self, sequence: int, index: int, flags: int, band: int, *rest: int) -> None:
        base = self.books.bands[band].base
        source, target = (
            (np.array([packed >> 32]), np.array([(packed & _U32) - base])) for packed in rest[:2]
        )
        self.judge.reads(sequence, band, *source, stays=True)
        self.judge.writes(sequence, band, *target)

    def _band_move(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        books = self.books
        if not books.open:
            return
        base = books.bands[band].base
        old, new = (a >> 32, a & _U32), (b >> 32, b & _U32)
        for low, high in ((old[0], min(old[1], new[0])), (max(old[0], new[1]), old[1])):
            if high > low:
                books.shrink(band, low - base, high - base)

    def _launched(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        asked, books = self._asked, self.books
        if asked is None or asked[0] != Kind.LAUNCH:
            raise ValueError("a forward that no operation launched")
        at = self._segment.first_sequence + asked[2]
        rows = self._rows(asked[2])
        forward = books.launch(a, rows, "Launch", at, asked[5])
        for number, of_band in enumerate(books.bands):
            if of_band.fresh:
                self.judge.stale_rows(sequence, number, forward)
        if len(books.open) > OPEN_MAX:
            oldest = books.open[0].number
            books.settle(oldest)
            note = f"more than {OPEN_MAX} forwards were open at once; the oldest are not followed"
            if note not in self.report.notes:
                self.report.notes.append(note)

    def _publish(self, sequence: int, index: int, flags: int, band: int, *rest: int) -> None:
        self.judge.publish(sequence, band)

    def _done(self, sequence: int, index: int, flags: int, band: int, *rest: int) -> None:
        self.books.done(rest[0])

    def _barrier(
        self, sequence: int, index: int, flags: int, band: int, a: int, b: int, c: int
    ) -> None:
        kind = self._segment.text(b)
        if kind == "settle" or "coarse" in kind:
            self.books.settle(a)
        elif "fine" in kind:
            self.books.settle_reads(a)
        elif "off" not in kind:  # its name lies in a damaged part
            self.books.settle(a)
            self.report.notes.append(
                f"the kind of the barrier of event {sequence:,} is damaged; it counts as a settle"
            )

    def _operation(self, sequence: int) -> tuple[str, int, str]:
        if self._asked is None:
            return "no operation", sequence, ""
        kind, _, index, _, _, stack = self._asked
        body = self._decoder.body(index)
        name = "Operation" if body is None else type(body).__name__
        return name, self._segment.first_sequence + index, stack


_Applier = Callable[[_Checker, int, int, int, int, int, int, int], None]
_APPLIERS: dict[int, _Applier] = {
    Kind.OUTCOME: _Checker._outcome,
    Kind.STACK: _Checker._text_of_stack,
    Kind.LEASE_BEGIN: _Checker._lease_begin,
    Kind.LEASE_END: _Checker._lease_end,
    Kind.PAGE_MOVE: _Checker._page_move,
    Kind.BAND_MOVE: _Checker._band_move,
    Kind.LAUNCHED: _Checker._launched,
    Kind.DONE: _Checker._done,
    Kind.PUBLISH: _Checker._publish,
    Kind.BARRIER: _Checker._barrier,
    Kind.SHARE: _Checker._share,
    Kind.GRAFT: _Checker._graft,
    Kind.STATE_COPY: _Checker._state_copy,
}
