"""Where snapshots come from. `TraceSource` is the only object of the screen that touches a trace.

It is driven by one thread: `ask` changes what is wanted, `tick` looks for news and makes a
snapshot. It opens files for reading and writes none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect.bulk import BulkTimeline
from bandscope.inspect.following import FollowedTrace
from bandscope.inspect.format import RECORD, RECORD_BYTES, RECORDS_START
from bandscope.inspect.reader import Trace, open_trace
from bandscope.inspect.selection import first_timeline, parse_position, stand_first
from bandscope.tui.top import travel
from bandscope.tui.top.build import build
from bandscope.tui.top.cells import settle_cursor
from bandscope.tui.top.census import Census
from bandscope.tui.top.checking import Checks, DamageScan
from bandscope.tui.top.desk import Desk
from bandscope.tui.top.history import History, body_at, time_before
from bandscope.tui.top.lists import EventList, place_of
from bandscope.tui.top.pace import Pace
from bandscope.tui.top.snapshot import Device, Snapshot, View
from bandscope.tui.top.travel import Query

_FAR = 100_000  # events: beyond, a keyframe is nearer than going on
_FINISHED = ("clean", "disk full", "recording stopped")
_STUMBLES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


class Source(Protocol):
    """Makes snapshots. Questions: see `TraceSource.ask`."""

    def ask(self, what: str, value: Any = None) -> None: ...

    def tick(self) -> Snapshot | None: ...


class TraceSource:
    """Follows a trace, or stands at a position of it.

    `plain`: no characters outside of ASCII. `wall_ns`: the clock on the wall. `device`: figures
    of the arena's device, asked for at every snapshot, so it must not wait. Raises `TraceError` when
    the trace cannot be shown.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        plain: bool = False,
        wall_ns: Callable[[], int] = time.time_ns,
        device: Callable[[], Device] = Device,
    ) -> None:
        self.trace: Trace = open_trace(path, FollowedTrace)
        self.timeline = stand_first(BulkTimeline(self.trace))
        self.census = Census(self.timeline)
        self._first = self.timeline.state.sequence
        self._first_start = self.trace.start  # where the trace began when that was found
        self.plain = plain
        self.device = device
        self.history = History(self.trace)
        self.checks = Checks()
        self.damage = DamageScan(self.trace.path)
        self.desk = Desk(self)
        self.view = View()
        self.live = True
        self.ending = self.trace.ending
        self.message = ""
        self.refused = False  # whether the message is that the last question cannot be answered
        self.matches = ""
        self.bookmarks: list[int] = []
        self.cursor: tuple[int, int] | None = None
        self.marks_from = 0  # moves since this event are marked on the map
        self.events = EventList(self.trace, Query.parse(self.trace, ""))
        self._filter = ""
        self._wall_ns = wall_ns
        self._dirty = True
        self._restless_until = 0
        self._listing = self._list()
        self._last: Snapshot | None = None
        self.pace = Pace()
        self._go(self.end)
        self.marks_from = self.position

    # --- where it stands --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The event before which the arena is shown."""
        return self.timeline.state.sequence

    @property
    def first(self) -> int:
        """The earliest position that has a state; later, after a ring overwrote its oldest events."""
        if self._first_start != self.trace.start:
            self._first = first_timeline(self.trace).state.sequence
            self._first_start = self.trace.start
        return self._first

    @property
    def end(self) -> int:
        """After the last event that can be trusted; the rest is being written."""
        segment = self.trace.segment_of(self.trace.stop - 1)
        good = segment.good
        if good[-1]:
            return self.trace.stop
        sound = np.flatnonzero(good)
        last = segment.first_sequence + (int(sound[-1]) + 1 if sound.size else 0)
        return max(self._first, last)

    @property
    def now_ns(self) -> int:
        """The time that is shown: of the position; that on the wall while a live run rests."""
        told = self.timeline.state.time_ns or self.history_time()
        if self.live and self.ending == "running":
            return max(told, self._wall_ns() - int(self.trace.header["wall_ns"]))
        return told

    def history_time(self) -> int:
        """The time of the last operation before the position."""
        return time_before(self.trace, self.position)

    def _go(self, position: int) -> bool:
        """Stand before an event; False, with a message, when that cannot be."""
        here = self.position
        try:
            if 0 <= position - here < _FAR and here >= self.trace.start:
                self.timeline.advance(position)
            else:
                self.timeline.seek(max(position, self.first))
        except TraceError as error:
            self.message, self.live = str(error), False
            return False
        except _STUMBLES as error:
            what = f"event {self.position:,} cannot be applied ({type(error).__name__}: {error})"
            self.message, self.live = what, False
            return False
        if self.position != here:
            self.marks_from = here if here < self.position else self.position - 1
            self._dirty = True
        return True

    def _stay(self, position: int) -> None:
        """Go somewhere and pause there, with the cursor on what happened there."""
        if not self._go(position):
            return
        self.live = False
        if self.position > self.trace.start:
            body = body_at(self.trace, self.position - 1)
            place = place_of(self.trace, self.timeline.state, body)
            if place is not None:
                self.cursor = settle_cursor(self.timeline.state, place)

    # --- questions --------------------------------------------------------------------------------

    def ask(self, what: str, value: Any = None) -> None:
        """Change what is shown; what cannot be done is said in the next snapshot's message.

        `view` (View), `pause`, `live`, `step` (what, forwards), `row` (rows of the filtered list),
        `jump` (text), `go` (sequence), `filter` (text), `bookmark`, `next bookmark`, `check`, `move`
        (characters), `page` (pages), `band` (bands), `point` (a character), `zoom` (1, −1 or 0 for
        the whole arena); and the questions of the desk.
        """
        self.message, self.refused = "", False
        self.pace.forget()
        if what not in ("view", "again", "stop search"):
            self.matches = ""
            self.desk.search_no_further()
        self._dirty = True
        try:
            asked = self.desk.questions.get(what) or getattr(self, "_ask_" + what.replace(" ", "_"))
            asked(value)
        except TraceError as error:
            self.message, self.refused = str(error), True

    def _ask_view(self, view: View) -> None:
        self.view = replace(view, low=self.view.low, high=self.view.high)

    def _ask_filter(self, text: str) -> None:
        self.events = EventList(self.trace, Query.parse(self.trace, text))
        self._filter = text.strip()

    def _ask_pause(self, _: Any) -> None:
        if self.live:
            self.live = False
        else:
            self._ask_live(None)

    def _ask_live(self, _: Any) -> None:
        self.live = True
        self._go(self.end)

    def _ask_step(self, value: tuple[str, bool]) -> None:
        what, forwards = value
        self.live = False
        found = travel.step(self.trace, self.position, what, forwards, self.first)
        if found is None:
            side = "after" if forwards else "before"
            self.message = f"no {what} {side} event {self.position:,}"
        else:
            self._stay(found)

    def _ask_row(self, rows: int) -> None:
        self.live = False
        before, after, _ = self.events.around(
            self.position, 1 - min(rows, 0), max(rows, 0)
        )
        if rows > 0:
            found = [event.sequence + 1 for event in after[:rows]][-1:]
        else:
            # The row before the current one: leads to right after that event.
            earlier = [event.sequence + 1 for event in before if event.sequence + 1 < self.position]
            found = earlier[-min(-rows, len(earlier)) :][:1] if earlier else []
        if found and found[0] >= self.first:
            self._stay(found[0])
        elif self.events.hungry:
            self.message = "no event of this list yet; press again to look further"
        else:
            self.message = "no further event in this list"

    def _ask_jump(self, text: str) -> None:
        self._stay(max(self.first, parse_position(self.trace, text)))

    def _ask_go(self, sequence: int) -> None:
        self._stay(min(max(sequence, self.first), self.end))

    def _ask_bookmark(self, _: Any) -> None:
        if self.position in self.bookmarks:
            self.bookmarks.remove(self.position)
            self.message = f"bookmark of event {self.position:,} removed"
        else:
            self.bookmarks = sorted([*self.bookmarks, self.position])
            self.message = f"event {self.position:,} has a bookmark; ' goes from one to the next"

    def _ask_next_bookmark(self, _: Any) -> None:
        if not self.bookmarks:
            self.message = "no bookmarks yet: b sets one"
            return
        later = [place for place in self.bookmarks if place > self.position]
        self._stay((later or self.bookmarks)[0])

    def _ask_check(self, _: Any) -> None:
        self.checks.begin(self.trace.path, self.position)
        self.message = "checking; see the tab Checks"

    def _ask_move(self, columns: int) -> None:
        shown = build(self).map
        if shown.cursor < 0:
            self.cursor = settle_cursor(self.timeline.state, self.cursor)
            return
        self._point(shown.spans, shown.cursor + columns, columns)

    def _ask_point(self, column: int) -> None:
        self._point(build(self).map.spans, column, 0)

    def _point(self, spans: tuple[Any, ...], column: int, direction: int) -> None:
        """Choose what a character shows, or the nearest band in a direction."""
        for span in spans:
            if span.first <= column < span.stop:
                self.cursor = span.band, span.page_at(column)
                return
        ahead = [span for span in spans if span.first > column] if direction >= 0 else []
        behind = [span for span in spans if span.stop <= column] if direction <= 0 else []
        if ahead:
            self.cursor = ahead[0].band, ahead[0].page_first
        elif behind:
            self.cursor = behind[-1].band, behind[-1].page_stop - 1

    def _ask_page(self, pages: int) -> None:
        here = settle_cursor(self.timeline.state, self.cursor)
        if here is not None:
            self.cursor = settle_cursor(self.timeline.state, (here[0], here[1] + pages))

    def _ask_band(self, bands: int) -> None:
        state = self.timeline.state
        existing = [band for band in state.bands if band.extent[1] > band.extent[0]]
        here = settle_cursor(state, self.cursor)
        if here is not None:
            at = [band.index for band in existing].index(here[0])
            chosen = existing[(at + bands) % len(existing)]
            self.cursor = chosen.index, chosen.extent[0]

    def _ask_zoom(self, direction: int) -> None:
        state = self.timeline.state
        total = state.total_bytes
        low, high = self.view.low, self.view.high or total
        cursor = settle_cursor(state, self.cursor)
        if direction == 0 or cursor is None:
            self.view = replace(self.view, low=0, high=0)
            return
        size = state.bands[cursor[0]].page_bytes
        width = high - low
        width = width // 2 if direction > 0 else width * 2
        width = min(total, max(width, size * 2))
        middle = cursor[1] * size + size // 2
        low = min(max(0, middle - width // 2), total - width)
        self.view = replace(self.view, low=low, high=0 if width == total else low + width)

    # --- news -------------------------------------------------------------------------------------

    def tick(self) -> Snapshot | None:
        """Look for news; a snapshot when there is anything new to show."""
        grown = not self.desk.gone() and self._grown()
        if grown:
            self.trace.refresh()
            self._listing = self._list()
            self._dirty = self._dirty or not self._stands()
        ending = self.trace.ending
        if ending != self.ending:
            self.ending = ending
            self._dirty = True
        if self.live and self.position < self.end:
            self._go(self.end)
        if self.checks.tick() or self.damage.tick():
            self._dirty = True
        if self.desk.tick() or self.events.hungry:
            self._dirty = True
        if self.live and ending == "running" and self._wall_ns() < self._restless_until:
            self._dirty = True
        if not self._dirty:
            return self._tell_news() if grown else None
        moved = self.position
        snapshot = self._last = build(self)
        # A list that is older than its picture is made anew as soon as things calm down.
        self._dirty = self.pace.stale
        if snapshot.position == moved and self.live and ending == "running":
            # Rates fall and the waterfall moves on for a while after the last event.
            last = self.timeline.state.time_ns + int(self.trace.header["wall_ns"])
            self._restless_until = last + self.view.window_ns
        return snapshot

    def _stands(self) -> bool:
        """Whether events that come change nothing but how many there are."""
        last = self._last
        return (
            last is not None
            and not self.live
            and last.view.tab != "ranks"
            and len(last.lists.rows) == last.view.rows
            and last.stop - last.position > last.view.rows
            and last.start == self.trace.start
        )

    def _tell_news(self) -> Snapshot:
        assert self._last is not None
        end = self.end
        self._last = replace(
            self._last, stop=end, newer=max(0, end - self.position), device=self.device(),
            end_ns=time_before(self.trace, end),
        )  # fmt: skip
        return self._last

    def _list(self) -> int:
        return len(os.listdir(self.trace.path))

    def _grown(self) -> bool:
        """Whether there is more than was looked at, without reading it."""
        if self.ending in _FINISHED:
            return False
        segment = self.trace.segment_of(self.trace.stop - 1)
        if segment.ending is not None:  # the next one goes on, whose files may be there already
            return self.ending == "running"
        if not segment.good[-1]:  # it is being written, or was left behind half written
            return self.ending == "running"
        try:
            if self._list() != self._listing:
                return True
            with open(segment.paths[0], "rb") as file:
                file.seek(RECORDS_START + len(segment) * RECORD_BYTES)
                record = file.read(RECORD_BYTES)
        except OSError:
            return True
        return len(record) == RECORD_BYTES and RECORD.unpack(record)[-1] != 0

    @property
    def resting(self) -> bool:
        """Whether whatever comes is only counted."""
        return self._stands()

    @property
    def busy(self) -> bool:
        """Whether a tick now would get on with something, whether or not there is news."""
        working = self.checks.busy or self.damage.busy or self.desk.busy
        return working or self.events.hungry
