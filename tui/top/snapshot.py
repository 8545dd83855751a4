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
    pinned, then pending, then a mixture, so that one page of a million changes its character. Cached:
    of its live pages, which are at least as many as its holes, most are the prefix cache's."""

    GAP = 0
    SINK = 1
    LIVE = 2
    MOSTLY_LIVE = 3
    MOSTLY_HOLES = 4
    HOLE = 5
    PENDING = 6
    PINNED = 7
    CACHED = 8


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
    that pages have just moved from and to; `cursor`: the character of the chosen page, −1: none;
    `differing`: characters with pages that differ from the instant that is compared with."""

    low: int
    high: int
    runs: tuple[Run, ...]
    spans: tuple[Span, ...]
    moved_from: tuple[int, ...] = ()
    moved_to: tuple[int, ...] = ()
    cursor: int = -1
    differing: tuple[int, ...] = ()


@dataclass(frozen=True)
class ZoomMap:
    """Single pages of one band from `page_first` on, one to a character. `differing`: characters of
    pages that differ from the instant that is compared with, and the letter of their difference."""

    band: int
    page_first: int
    runs: tuple[Run, ...]
    cursor: int
    differing: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class PageFacts:
    """The chosen page. `name`: band, virtual page, generation, empty where it holds nothing; -1 and
    the empty tuple: none, unknown. `owner`: a request, or `events.CACHE`, whose page `users` share."""

    band: int
    page: int
    state: str
    name: str
    owner: int
    leases: tuple[int, ...]
    ticket: int
    held_since: int
    users: tuple[int, ...] = ()


@dataclass(frozen=True)
class Touch:
    """Something that happened to a page: at which event, and in words. `ticket`: the forward's, 0:
    no forward's; `stack`: who called the arena, innermost frame first, where that was recorded."""

    sequence: int
    text: str
    ticket: int = 0
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageDetails:
    """What the trace tells of the chosen page up to the position; None: not found as far back as
    event `looked_back`.

    `virtual`, `generation`, `owner` are −1 where the page holds nothing; `waits_for` is the ticket of
    a pending page, 0 otherwise. `read`: the last forward over its owner; `written`: the last forward,
    move or fill that wrote it; `barrier`: the last one that waits for those; `freed`: how a page that
    holds nothing became empty. Where the owner is `events.CACHE`, `users` are the requests that share
    the page, and `shared` is how it became the cache's. `complete`: nothing further back is looked for.
    """

    band: str
    page: int
    state: str
    virtual: int
    generation: int
    owner: int
    owner_tokens: int
    leases: tuple[tuple[int, str, int], ...]
    waits_for: int
    leased: Touch | None = None
    moved: Touch | None = None
    read: Touch | None = None
    written: Touch | None = None
    barrier: Touch | None = None
    freed: Touch | None = None
    looked_back: int = 0
    complete: bool = False
    users: tuple[int, ...] = ()
    shared: Touch | None = None


@dataclass(frozen=True)
class BandChange:
    """How a band differs from another instant: `pages` by the kind of their difference, extents in
    bytes, and pages by their state before and after."""

    band: str
    pages: dict[str, int]
    extent_before: tuple[int, int]
    extent_after: tuple[int, int]
    counts_before: dict[str, int]
    counts_after: dict[str, int]


@dataclass(frozen=True)
class Compared:
    """The position compared with event `base` of trace `other` (empty: the same trace).
    `requests_*`, `launched`, …: numbers of requests, tickets and leases that came or went."""

    base: int
    other: str
    bands: tuple[BandChange, ...]
    requests_came: tuple[int, ...]
    requests_gone: tuple[int, ...]
    grown: tuple[tuple[int, int, int], ...]
    launched: tuple[int, ...]
    completed: tuple[int, ...]
    leases_begun: tuple[int, ...]
    leases_ended: tuple[int, ...]
    same: bool


@dataclass(frozen=True)
class BandFigures:
    """One band; pages unless named bytes. `cached`: those of `held` that are the prefix cache's, None
    without one. `gap_bytes`: free bytes above it. `available_estimate`:
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
    cached: int | None = None


@dataclass(frozen=True)
class Slice:
    """One line of the waterfall: band extents in bytes at a time; None: before what was read."""

    time_ns: int
    extents: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class Row:
    """A line of a list. `sequence`: the event it leads to, −1: none. `lane`: the forwards in
    flight, drawn (tickets only). `opens`: the question that it answers when it is chosen, instead of
    leading to an event. `pieces`: text and the name of its style, in the place of `text`. `request`:
    the request that it is about, −1: none."""

    sequence: int
    time_ns: int
    kind: str
    text: str
    lane: str = ""
    band: int = -1
    opens: tuple[str, Any] | None = None
    pieces: tuple[tuple[str, str], ...] = ()
    request: int = -1


@dataclass(frozen=True)
class Lists:
    """The rows of the tab that is open. `current`: the row of the event before the position, −1:
    none. `about`: in words, what these rows are out of. `details`: lines about the chosen row."""

    tab: str = "events"
    rows: tuple[Row, ...] = ()
    current: int = -1
    about: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """What the screen wants to see. `cursor`: (band, page); `low`, `high`: bytes of the map (high
    0: the whole arena); `chosen`: the row of the list that is chosen."""

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
    chosen: int = 0


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
    question. `details`: of the chosen page, where they were asked for. `compared`: with another
    instant, where that was asked for. `successor`: the trace of a process with the same command that
    runs now, where this one has ended. `barrier`: what table writes wait for: `fine`, `coarse`, or
    `off`: nothing.
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
    details: PageDetails | None = None
    compared: Compared | None = None
    successor: str = ""
    barrier: str = "fine"

    @property
    def gaps(self) -> tuple[int, ...]:
        """Free bytes between neighbouring frontiers, from the sink to the arena's end."""
        edges = [self.sink_bytes]
        for band in sorted(self.bands, key=lambda known: known.extent_bytes):
            if band.extent_bytes[1] > band.extent_bytes[0]:
                edges += band.extent_bytes
        edges.append(self.total_bytes)
        return tuple(
            stop - start for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop > start
        )

    @property
    def has_cache(self) -> bool:
        """Whether the arena has a prefix cache."""
        return any(band.cached is not None for band in self.bands)

    @property
    def cached_bytes(self) -> int:
        """Bytes of what the prefix cache owns."""
        return sum((band.cached or 0) * band.page_bytes for band in self.bands)

    @property
    def floor_bytes(self) -> int:
        """Bytes of what is held."""
        return sum(band.held * band.page_bytes for band in self.bands)

    @property
    def wasted_bytes(self) -> int:
        """Bytes inside of extents that hold nothing."""
        extents = sum(band.extent_bytes[1] - band.extent_bytes[0] for band in self.bands)
        return extents - self.floor_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data, without what only a screen needs."""
        told = asdict(self)
        for name in ("view", "map", "zoom", "waterfall", "page", "message", "matches", "bookmarks"):
            del told[name]
        for band in told["bands"]:
            if band["cached"] is None:
                del band["cached"]
        details = told["details"]
        if details is not None and not self.has_cache:
            del details["users"], details["shared"]
        return {
            "schema": SCHEMA,
            **told,
            "floor_bytes": self.floor_bytes,
            "wasted_bytes": self.wasted_bytes,
            "gaps_bytes": sum(self.gaps),
            "largest_gap_bytes": max(self.gaps, default=0),
            "moved_bytes_per_second": sum(band.bytes_per_second for band in self.bands),
        }
