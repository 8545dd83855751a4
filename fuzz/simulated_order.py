"""Which work is ordered before which, by vector clocks; and every pair of accesses that is not.

The clock of a stream says, per stream, through which work all is ordered before what is issued next:
stream order, events waited for, and completions that the host saw. Two accesses to a cell or a table
row of which one writes, neither ordered before the other, are a race, whatever the bytes were.

Accesses are kept as lists of pages while some other stream is not ordered behind them, and spread
over cells only when something must be compared with them; so a stream that is ordered behind all
others pays nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from bandscope.allocator.checks import Violation
from bandscope.fuzz.simulated_work import (
    COPY,
    FORWARD,
    SCHEDULE,
    STREAMS,
    Memory,
    Touched,
    Work,
)

# What orders the second stream of a pair behind the first.
_EDGES = {
    (FORWARD, SCHEDULE, False): "a barrier: the schedule stream behind forward {ticket}",
    (FORWARD, SCHEDULE, True): "the write-after-read barrier: the schedule stream behind the table "
    "reads of forward {ticket}",
    (SCHEDULE, FORWARD, False): "the launch: the forward stream behind the schedule stream",
    (SCHEDULE, FORWARD, True): "the launch: the forward stream behind the schedule stream",
    (SCHEDULE, COPY, False): "the copy stream behind the schedule stream",
    (FORWARD, COPY, False): "the copy stream behind the forward stream",
    (COPY, SCHEDULE, False): "the lease: its copies end before its pages are used",
    (COPY, FORWARD, False): "the lease: its copies end before a forward writes its pages",
}

_OTHERS = ((FORWARD, COPY), (SCHEDULE, COPY), (SCHEDULE, FORWARD))


class Marks:
    """Per cell (or table row), the number of the last work of one stream that touched it, or that wrote
    it: `by_band[band]` has one row per page of the band."""

    def __init__(self, by_band: list[np.ndarray]) -> None:
        self.by_band = by_band
        self.through = 0  # work up to this number is marked

    def mark(self, number: int, touched: Touched) -> None:
        """Work `number` touches (or writes) these."""
        for band, pages in touched:
            self.by_band[band][pages] = number
        self.through = number


class Order:
    """The clocks of three streams and of the host, and the races between the streams.

    `races`: found so far, one per pair of works.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.clocks = [[0, 0, 0] for _ in STREAMS]
        self.races: list[Violation] = []
        self.band_names = [str(band) for band in range(len(memory.mirrors))]  # for reports
        # By kind (bytes, rows) and stream: work that some other stream may not be ordered behind.
        self._open: list[list[deque[Work]]] = [[deque() for _ in STREAMS] for _ in range(2)]
        # By kind, stream, and whether only what was written is marked; made when first asked for.
        self._marks: dict[tuple[int, int, bool], Marks] = {}
        # Works of forwards that are over, by the number of the work before each: the last of the same.
        self._over: dict[int, int] = {}
        # A race is told once: stream s is taken to be behind this work of stream t.
        self._told = [[0, 0, 0] for _ in STREAMS]

    # --- edges ------------------------------------------------------------------------------------

    def position(self, stream: int) -> tuple[int, ...]:
        """What an event recorded on this stream now stands for."""
        return tuple(self.clocks[stream])

    def wait(self, stream: int, event: Sequence[int]) -> None:
        """What is issued on `stream` from now on comes after the event."""
        clock = self.clocks[stream]
        for other in range(3):
            if event[other] > clock[other]:
                clock[other] = event[other]
        if stream == SCHEDULE and self._over:
            self._pass_what_is_over()

    def host_saw(self, event: Sequence[int]) -> None:
        """All that is issued from now on comes after the event."""
        for stream in range(3):
            self.wait(stream, event)

    def forward_is_over(self, event: Sequence[int], works: int) -> None:
        """The host saw the completion of the forward whose last work is `event`, of `works` works on
        its stream; that says nothing of the forwards before it."""
        alone = (event[SCHEDULE], 0, event[COPY])
        for stream in range(3):
            self.wait(stream, alone)
        last = event[FORWARD]
        for number in range(last - works, last):
            self._over[number] = last
        self._pass_what_is_over()

    def _pass_what_is_over(self) -> None:
        """What is issued on the schedule stream is behind a forward that is over, if also behind all
        before it: a clock counts works from the first. (The copy stream waits for all forwards.)"""
        clock = self.clocks[SCHEDULE]
        while (last := self._over.get(clock[FORWARD])) is not None:
            clock[FORWARD] = last
        for number in [known for known in self._over if known < clock[FORWARD]]:
            del self._over[number]

    def forget(self) -> None:
        """Drop work that nothing to come can race with. Copies wait for both other streams, so what
        these two are ordered behind, of each other, they are too."""
        schedule, forward, _ = self.clocks
        through = (forward[SCHEDULE], schedule[FORWARD], min(schedule[COPY], forward[COPY]))
        for lists in self._open:
            for stream, open_work in enumerate(lists):
                if open_work and open_work[-1].number <= through[stream]:
                    open_work.clear()
                while open_work and open_work[0].number <= through[stream]:
                    open_work.popleft()

    # --- accesses ---------------------------------------------------------------------------------

    def issue(self, work: Work) -> None:
        """Number `work`, order it, and compare it with all that it is not ordered behind."""
        stream = work.stream
        clock = self.clocks[stream]
        clock[stream] = work.number = clock[stream] + 1
        work.after = tuple(clock)
        if work.reads or work.writes:
            self._access(0, work, work.reads, work.writes)
        else:
            self._access(1, work, work.row_reads, work.row_writes)

    def _access(self, kind: int, work: Work, reads: Touched, writes: Touched) -> None:
        stream, clock = work.stream, self.clocks[work.stream]
        lists = self._open[kind]
        for other in _OTHERS[stream]:
            earlier = lists[other]
            if earlier and earlier[-1].number > clock[other]:
                behind = max(clock[other], self._told[stream][other])
                self._compare(kind, work, other, behind, reads, writes)
        lists[stream].append(work)

    def _compare(
        self, kind: int, work: Work, other: int, behind: int, reads: Touched, writes: Touched
    ) -> None:
        found = [earlier for earlier in self._open[kind][other] if earlier.number > behind]
        hidden = False
        if self._over and other == FORWARD and work.stream == SCHEDULE:
            # A clock cannot leave out what is over, but lies between what is not.
            left = [earlier for earlier in found if earlier.number - 1 not in self._over]
            found, hidden = left, len(left) < len(found)
        for accessed, writing in ((writes, True), (reads, False)):
            if not accessed:
                continue
            if not any(_marked_of(kind, earlier, not writing) for earlier in found):
                continue
            if hidden:
                marks = self._no_marks(kind)
                for earlier in found:
                    marks.mark(earlier.number, _marked_of(kind, earlier, not writing))
            else:
                marks = self._marked(kind, other, not writing)
            for band, pages in accessed:
                numbers = marks.by_band[band].take(pages, 0)
                if np.count_nonzero(numbers > behind):
                    behind = self._race(kind, work, other, behind, band, pages, numbers, writing)
                    self._told[work.stream][other] = behind

    def _marked(self, kind: int, stream: int, only_writes: bool) -> Marks:
        """The marks of a stream, all its open work included."""
        marks = self._marks.get((kind, stream, only_writes))
        if marks is None:
            marks = self._marks[kind, stream, only_writes] = self._no_marks(kind)
        for work in self._open[kind][stream]:
            if work.number > marks.through:
                marks.mark(work.number, _marked_of(kind, work, only_writes))
        return marks

    def _no_marks(self, kind: int) -> Marks:
        memory = self.memory
        if kind == 0:
            return Marks(memory.by_page(np.zeros(memory.cells.size, np.int32)))
        return Marks([np.zeros(mirror.size, np.int32) for mirror in memory.mirrors])

    # --- what is told -----------------------------------------------------------------------------

    def _race(
        self,
        kind: int,
        work: Work,
        other: int,
        behind: int,
        band: int,
        pages: np.ndarray,
        numbers: np.ndarray,
        writes: bool,
    ) -> int:
        """Tell the race of `work`, which touches `pages`, with the newest earlier work that did;
        returns the number of that, up to which `work` counts as ordered from now on."""
        by_page = numbers if numbers.ndim == 1 else numbers.max(1)
        at = int(by_page.argmax())
        number = int(by_page[at])
        earlier = next(work for work in self._open[kind][other] if work.number == number)
        was_written = kind == 1 and bool(earlier.row_writes)
        if kind == 0:
            written = self._no_marks(kind)
            written.mark(number, earlier.writes)
            was_written = bool(written.by_band[band][pages[at]].any())
        name = self.band_names[band]
        thing = f"the table row of {name} page {int(pages[at])}"
        if kind == 0:
            thing = f"physical page {int(pages[at])} of band {name}"
        edge = _EDGES[other, work.stream, kind == 1].format(ticket=earlier.ticket)
        self.races.append(
            Violation(
                "happens_before",
                f"{work} {'writes' if writes else 'reads'} {thing}, which {earlier} "
                f"{'writes' if was_written else 'reads'}, and nothing orders them "
                f"({np.count_nonzero(by_page > behind)} pages in all); missing is {edge}",
            )
        )
        return number


def _marked_of(kind: int, work: Work, only_writes: bool) -> Touched:
    """What `work` touches, or writes, of bytes (kind 0) or table rows."""
    if kind == 0:
        return work.writes if only_writes else work.touches()
    return work.row_writes if only_writes else work.row_reads or work.row_writes
