"""Everything that is asked about an instant beside time travel itself: the story of a page, a request's
pages, comparisons, ranks, searches, refusals, exports. It belongs to one source and its thread.

What takes long is done in pieces, one per `tick`, so that questions come in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandscope.allocator.errors import TraceError
from bandscope.allocator.events import CACHE
from bandscope.inspect.differences import Difference
from bandscope.inspect.format import HEADER_NAME
from bandscope.inspect.registry import Running
from bandscope.inspect.selection import band_index, parse_position, timeline_at
from bandscope.inspect.state import ArenaState
from bandscope.tui.top import history as past_of
from bandscope.tui.top import saving
from bandscope.tui.top.cells import settle_cursor
from bandscope.tui.top.comparing import (
    Comparison,
    compare_rows,
    compared,
    marked_map,
    marked_zoom,
)
from bandscope.tui.top.drill import page_rows, request_rows
from bandscope.tui.top.explaining import Explanations
from bandscope.tui.top.history import Past
from bandscope.tui.top.lists import event_row
from bandscope.tui.top.page_details import PageSearch
from bandscope.tui.top.ranks import Ranks, run_and_rank
from bandscope.tui.top.searching import Search
from bandscope.tui.top.snapshot import Lists, Row, Snapshot

if TYPE_CHECKING:
    from bandscope.tui.top.source import TraceSource

EXPORT_ROWS = 10_000
_EXPORT_EVENTS = 50_000  # looked at for the rows of a filtered list
# While a trace goes on, what looks at every page, or far back, is done this rarely.
_LIVE_NS = 1_000_000_000
_LOOK_NS = 2_000_000_000  # whether the command runs again


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file the header of a trace is; None where there is none."""
    try:
        about = os.stat(path / HEADER_NAME)
    except OSError:
        return None
    return about.st_dev, about.st_ino


class Desk:
    """`find`: who runs now, None: nobody is looked for. `folder`: where exports go."""

    def __init__(self, source: TraceSource) -> None:
        self.source = source
        self.find: Callable[[], Sequence[Running]] | None = None
        self.folder = Path.cwd
        self.request: int | None = None
        self.comparison: Comparison | None = None
        self.page: PageSearch | None = None
        self.explanations = Explanations(source.trace.path)
        self.search: Search | None = None
        self.successor = ""
        self._identity = _identity(source.trace.path)
        self._gone = False
        self._ranks: Ranks | None = None
        self._page_next: PageSearch | None = None
        self._page_ns = self._look_ns = self._compared_ns = 0
        self._due_ns: int | None = None  # when something that is shown is to be made anew
        self.questions: dict[str, Callable[[Any], None]] = {
            "search": self._ask_search, "again": self._ask_again, "stop search": self._ask_stop,
            "mark": self._ask_mark, "compare": self._ask_compare, "request": self._ask_request,
            "cursor": self._ask_cursor, "virtual": self._ask_virtual, "export": self._ask_export,
        }  # fmt: skip

    def gone(self) -> bool:
        """Whether the folder of the trace was removed, or holds another trace now; what was read of it
        stays."""
        if _identity(self.source.trace.path) == self._identity:
            return False
        if not self._gone:
            self._gone = self.source._dirty = True
            self.source.message = "the trace was removed or replaced: this is what was read of it"
        return True

    # --- pieces of work ---------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a tick would get on with something."""
        searching = self.search is not None and self.search.busy
        return searching or self._page_next is not None or self.explanations.busy

    def tick(self) -> bool:
        """Do a piece of everything; whether there is something new to show."""
        done = self._tick_search()
        if self._page_next is not None:
            if not self._page_next.step():
                self.page, self._page_next = self._page_next, None
            done = True
        done = self.explanations.step() or done
        if self._due_ns is not None and self.source._wall_ns() >= self._due_ns:
            self._due_ns, done = None, True
        return self._look_for_successor() or done

    def _tick_search(self) -> bool:
        search, source = self.search, self.source
        if search is None or not search.busy:
            return False
        try:
            found = search.step()
        except TraceError as error:  # a ring overwrote what was to be looked at
            search.stop()
            source.message = str(error)
            return True
        except BaseException:
            search.stop()  # or it would be tried again at every tick
            raise
        source.matches = search.words
        if found is None:
            return True
        if found.sequence is None:
            side = "after" if search.forwards else "before"
            source.message = f"no match {side} event {search.begun:,}"
        else:
            source._stay(max(found.sequence + 1, source.first))
        return True

    def _look_for_successor(self) -> bool:
        source = self.source
        if self.find is None or source.ending == "running" or self.successor:
            return False
        now = source._wall_ns()
        if now - self._look_ns < _LOOK_NS:
            return False
        self._look_ns = now
        header, mine = source.trace.header, source.trace.path
        command, begun = list(map(str, header["command"])), str(header["started"])
        for entry in self.find():
            if (entry.pid, entry.started) == (header["pid"], begun) or entry.started < begun:
                continue  # the process of this trace, or one before it
            same = entry.command == command and entry.rank == header["rank"]
            if same or run_and_rank(entry.trace) == run_and_rank(mine):
                self.successor = str(entry.trace)
                return True
        return False

    # --- questions --------------------------------------------------------------------------------

    def search_no_further(self) -> None:
        """Something else was asked."""
        if self.search is not None:
            self.search.stop()

    def _ask_search(self, text: str) -> None:
        if not text.strip():
            return
        self.search = Search(self.source.trace, text)
        self._ask_again(True)

    def _ask_again(self, forwards: bool) -> None:
        source = self.source
        if self.search is None:
            source.message = "nothing was searched for yet: press / first"
            return
        source.live = False
        start = source.position if forwards else source.position - 1
        self.search.begin(max(start, source.trace.start), forwards)
        self._tick_search()  # what is near is found at once

    def _ask_stop(self, _: Any) -> None:
        if self.search is not None and self.search.busy:
            self.search.stop()
            self.source.matches = self.search.words
            self.source.message = "the search was stopped"

    def _ask_mark(self, _: Any) -> None:
        source = self.source
        if self.comparison is not None:
            self.comparison = None
            source.message = "nothing is compared any more"
            return
        self.comparison = Comparison.with_instant(source.timeline.state)
        source.message = f"compared with event {source.position:,} from now on: tab 8; m ends it"

    def _ask_compare(self, text: str) -> None:
        """With an event or time of this trace, or with another trace."""
        source, text = self.source, text.strip()
        if not text:
            self.comparison = None
            return
        if text.endswith(".trace") or Path(text).is_dir() or Path(f"{text}.trace").is_dir():
            made = Comparison.with_trace(text)
            told = f"compared with {text}, event number by event number"
        else:
            place = max(source.first, parse_position(source.trace, text))
            made = Comparison(timeline_at(source.trace, place).state)
            told = f"compared with event {made.base.sequence:,}"
        made.difference(source.timeline.state)  # what cannot be compared is said now
        self.comparison = made
        source.message = told

    def _ask_request(self, request: int | None) -> None:
        """The request whose pages are listed; None: that of the page under the cursor."""
        self.request = request

    def _ask_cursor(self, place: tuple[int, int]) -> None:
        source = self.source
        source.cursor = settle_cursor(source.timeline.state, place)

    def _ask_virtual(self, value: tuple[str, int]) -> None:
        """The cursor to a virtual page of a band."""
        source, (name, virtual) = self.source, value
        band = source.timeline.state.bands[band_index(source.trace, name)]
        page = int(band.page_of[virtual]) if virtual < band.page_of.size else -1
        if page < 0:
            raise TraceError(
                f"page {virtual:,} of band {name} was asked for, but nobody holds it before event "
                f"{source.position:,}; ask for another instant with --at"
            )
        source.cursor = band.index, page

    def _ask_export(self, value: tuple[str, int]) -> None:
        """The rows of the open list, or a stretch of the trace around the position."""
        form, events = value
        source, folder = self.source, self.folder()
        if form == saving.ROWS:
            path = saving.free_path(folder, str(source.trace.path), source.position, ".csv")
            saving.write_new(path, saving.rows_as_csv(self._every_row()))
        else:
            path = saving.write_stretch(source.trace, form, folder, source.position, events)
        source.message = f"written to {path}"

    def _every_row(self) -> list[Row]:
        """The whole list that is open, up to `EXPORT_ROWS`; of events, those before the position."""
        source = self.source
        if source.view.tab == "events":
            found, _ = source.events.query.find(
                source.trace, source.position, False, EXPORT_ROWS, _EXPORT_EVENTS
            )
            return [event_row(source.trace, event) for event in found[::-1]]
        from bandscope.tui.top.build import build

        view = source.view
        source.view = replace(view, skip=0, rows=EXPORT_ROWS)
        try:
            return list(build(source).lists.rows)
        finally:
            source.view = view

    # --- what is shown ----------------------------------------------------------------------------

    def lists(self, past: Past, scanned: str) -> Lists | None:
        """The open list where it is one of this desk's; None where it is not."""
        source, view = self.source, self.source.view
        most = max(1, view.rows)
        rows: list[Row]
        details: tuple[str, ...] = ()
        state = source.timeline.state
        match view.tab:
            case "refusals":
                rows = past_of.refusals(past, source.trace, most + view.skip)
                about = f"newest first, {scanned}"
                if view.chosen < len(rows):
                    details = self.explanations.about(rows[view.chosen].sequence)
            case "page":
                rows, about = self._page_rows(state)
            case "request":
                rows, about = self._request_rows(state)
            case "compare":
                rows, about = self._compare_rows(state)
            case "ranks":
                rows, about = self._rank_rows()
            case _:
                return None
        return Lists(view.tab, tuple(rows[view.skip : view.skip + most]), -1, about, details)

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what this desk knows."""
        barrier = str(self.source.trace.header["arena"]["config"]["barrier"])
        told: dict[str, Any] = {"successor": self.successor, "barrier": barrier}
        shown = snapshot.lists
        chosen = snapshot.view.chosen - snapshot.view.skip
        if shown.tab in ("leases", "tickets", "checks") and 0 <= chosen < len(shown.rows):
            text = shown.rows[chosen].text
            about = (text, *self.source.checks.stacks.get(text, ()))
            told["lists"] = replace(shown, details=about)
        if self.page is not None and snapshot.view.tab == "page":
            told["details"] = (self._page_next or self.page).details
        state = self.source.timeline.state
        found = self._difference(state)
        if found is not None and self.comparison is not None:
            base = self.comparison.base
            told["compared"] = compared(found, self.comparison.other)
            told["map"] = marked_map(snapshot.map, found, base, state)
            if snapshot.zoom is not None:
                told["zoom"] = marked_zoom(snapshot.zoom, found, base, state)
        return replace(snapshot, message=self.source.message, **told)

    def _difference(self, state: ArenaState) -> Difference | None:
        if self.comparison is None:
            return None
        if self.comparison.made is not None and not self._rested(self._compared_ns):
            return self.comparison.made
        self._compared_ns = self.source._wall_ns()
        try:
            return self.comparison.difference(state)
        except TraceError as error:
            self.source.message, self.comparison = str(error), None
            return None

    def _rested(self, last_ns: int) -> bool:
        """Whether what takes long may be done again; a picture is due when it may."""
        source = self.source
        if not source.live or source.ending != "running":
            return True
        due = last_ns + _LIVE_NS
        if source._wall_ns() >= due:
            return True
        self._due_ns = due
        return False

    def _page_rows(self, state: ArenaState) -> tuple[list[Row], str]:
        cursor = settle_cursor(state, self.source.cursor)
        if cursor is None:
            self.page = self._page_next = None
            return [], "the arena is empty"
        known = self._page_next or self.page
        current = PageSearch(self.source.trace, state, cursor)
        if known is None or known.identity != current.identity:
            self._begin(current)
        elif known.position != current.position:
            if self._rested(self._page_ns):
                self._begin(current)
        shown = self._page_next or self.page
        assert shown is not None
        about = "" if shown.details.complete else "looking"
        if shown.position != state.sequence:
            about = f"as of event {shown.position:,}"
        return page_rows(shown.details, cursor[0], tuple(sorted(state.in_flight))), about

    def _begin(self, search: PageSearch) -> None:
        self._page_ns = self.source._wall_ns()
        self._page_next = search
        search.step()  # the nearest stretch tells most
        if search.details.complete:
            self._page_next = None
        self.page = search

    def _request_rows(self, state: ArenaState) -> tuple[list[Row], str]:
        request, about = self.request, "chosen; Backspace goes back"
        if request is None:
            cursor = settle_cursor(state, self.source.cursor)
            request, about = -1, "of the page under the cursor"
            if cursor is not None:
                band = state.bands[cursor[0]]
                request = int(band.owner[cursor[1] - band.base])
        if request == CACHE:
            return [], "the prefix cache holds the page under the cursor; tab 6 tells who uses it"
        if request < 0:
            return [], "no request holds the page under the cursor"
        return request_rows(state, request), about

    def _compare_rows(self, state: ArenaState) -> tuple[list[Row], str]:
        found = self._difference(state)
        if found is None or self.comparison is None:
            return [], "m compares with this instant, x with another one or another trace"
        other = f" of {self.comparison.other}" if self.comparison.other else ""
        about = f"event {found.before:,}{other} → event {found.after:,}"
        return compare_rows(found, self.comparison.base, state), about

    def _rank_rows(self) -> tuple[list[Row], str]:
        source = self.source
        self._ranks = self._ranks or Ranks(source.trace.path)
        wall = None
        if not source.live:
            told = source.timeline.state.time_ns or source.history_time()
            wall = int(source.trace.header["wall_ns"]) + told + 1
        rows = self._ranks.rows(wall, max(20, source.view.columns - 8))
        return rows, "at the same time on the wall; Enter shows one"
