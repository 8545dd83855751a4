"""What the screen shows, as plain frozen data: made by the reading worker, painted by the screen.

Nothing here refers to the trace, so a snapshot stays what it was while the trace goes on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

SCHEMA = "bandscope-top/1"


class Cell(IntEnum):
    """What a character of a map stands for. Where several hold, the one that is rarest wins:
    pinned, then pending, then a mixture, so that one page of a million changes its character."""

    GAP = 0
    SINK = 1
    LIVE = 2
    MOSTLY_LIVE = 3
    MOSTLY_HOLES = 4
    HOLE = 5
    PENDING = 6
    PINNED = 7


@dataclass(frozen=True)
class Run:
    """`length` neighbouring characters of a map; `band`: its index, −1 outside of bands."""

    cell: Cell
    band: int
    length: int


@dataclass(frozen=True)
class Span:
    """The characters `[first, stop)` of the map that show the pages `[page_first, page_stop)`."""

    band: int
    first: int
    stop: int
    page_first: int
    page_stop: int

    def page_at(self, column: int) -> int:
        """The first page that a character shows."""
        pages = self.page_stop - self.page_first
        return self.page_first + (column - self.first) * pages // (self.stop - self.first)

    def column_of(self, page: int) -> int:
        """The character that shows a page."""
        pages, columns = self.page_stop - self.page_first, self.stop - self.first
        inside = min(max(page - self.page_first, 0), pages - 1)
        # The last character whose first page is not above this page.
        return self.first + min(((inside + 1) * columns - 1) // pages, columns - 1)


@dataclass(frozen=True)
class ArenaMap:
    """The bytes `[low, high)` of the arena across the screen. `moved_from`, `moved_to`: characters
    that pages have just moved from and to; `cursor`: the character of the chosen page, −1: none."""

    low: int
    high: int
    runs: tuple[Run, ...]
    spans: tuple[Span, ...]
    moved_from: tuple[int, ...] = ()
    moved_to: tuple[int, ...] = ()
    cursor: int = -1


@dataclass(frozen=True)
class ZoomMap:
    """Single pages of one band from `page_first` on, one to a character."""

    band: int
    page_first: int
    runs: tuple[Run, ...]
    cursor: int


@dataclass(frozen=True)
class PageFacts:
    """The chosen page. `name`: band, virtual page, generation, empty where it holds nothing; -1 and
    the empty tuple: none, unknown."""

    band: int
    page: int
    state: str
    name: str
    owner: int
    leases: tuple[int, ...]
    ticket: int
    held_since: int


@dataclass(frozen=True)
class BandFigures:
    """One band; pages unless named bytes. `gap_bytes`: free bytes above it. `available_estimate`:
    pages that it alone could still take. Rates are over the last second, `refusals` and `spark`
    (pages moved, oldest first) over the history that is shown."""

    name: str
    letter: str
    kind: str
    page_bytes: int
    extent_pages: tuple[int, int]
    extent_bytes: tuple[int, int]
    held: int
    pinned: int
    pending: int
    holes: int
    gap_bytes: int
    available_estimate: int
    moves_per_second: float
    bytes_per_second: float
    refusals: int
    spark: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """One line of the waterfall: band extents in bytes at a time; None: before what was read."""

    time_ns: int
    extents: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class Row:
    """A line of a list. `sequence`: the event it leads to, −1: none. `lane`: the forwards in
    flight, drawn (tickets only)."""

    sequence: int
    time_ns: int
    kind: str
    text: str
    lane: str = ""
    band: int = -1


@dataclass(frozen=True)
class Lists:
    """The rows of the tab that is open. `current`: the row of the event before the position, −1:
    none. `about`: in words, what these rows are out of."""

    tab: str = "events"
    rows: tuple[Row, ...] = ()
    current: int = -1
    about: str = ""


@dataclass(frozen=True)
class View:
    """What the screen wants to see. `cursor`: (band, page); `low`, `high`: bytes of the map (high
    0: the whole arena)."""

    columns: int = 80
    rows: int = 8
    waterfall: int = 0
    tab: str = "events"
    cursor: tuple[int, int] | None = None
    low: int = 0
    high: int = 0
    window_ns: int = 10_000_000_000
    filter: str = ""
    skip: int = 0


@dataclass(frozen=True)
class Device:
    """The arena's device. Each figure is None where it is not known, never 0 for lack of one."""

    name: str = ""
    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The arena before event `position`, and what is known of its trace.

    `live`: the position follows the newest event. `newer`: events that came since. `ending`:
    how the trace ends, `running` where it does not yet. `trusted`: False in a damaged part,
    where the state is that of the last sound event before. `message`: the answer to the last
    question.
    """

    path: str
    model: str
    command: str
    rank: int | None
    pid: int
    start: int
    stop: int
    position: int
    time_ns: int
    end_ns: int
    live: bool
    newer: int
    ending: str
    trusted: bool
    lost: int
    total_bytes: int
    sink_bytes: int
    gate_closed: bool
    issued: int
    in_flight: tuple[int, ...]
    requests: int
    leases: int
    view: View
    bands: tuple[BandFigures, ...]
    map: ArenaMap
    zoom: ZoomMap | None
    page: PageFacts | None
    waterfall: tuple[Slice, ...]
    lists: Lists
    violations: int = 0
    damages: tuple[str, ...] = ()
    damage_progress: str = ""
    checks: str = ""
    bookmarks: tuple[int, ...] = ()
    matches: str = ""
    message: str = ""
    device: Device = Device()

    def to_json(self) -> dict[str, Any]:
        """Plain data, without what only a screen needs."""
        told = asdict(self)
        for name in ("view", "map", "zoom", "waterfall", "page", "message", "matches", "bookmarks"):
            del told[name]
        largest = max((band.gap_bytes for band in self.bands), default=0)
        floor = sum(band.held * band.page_bytes for band in self.bands)
        return {
            "schema": SCHEMA, **told, "floor_bytes": floor, "largest_gap_bytes": largest,
        }  # fmt: skip
