"""What a simulated device works on, and each kind of work: fills, moves, table rows, forwards, copies.

Bytes are *cells*: the greatest common divisor of all page sizes, so that a page is a run of whole cells
wherever it lies and bands share bytes as they do on a device. A cell holds a *stamp* that says who
wrote it last. Cost follows the cells touched: page bytes / cell bytes per page.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from bandscope.allocator.checks import Violation
from bandscope.allocator.tables import Pages

# Streams, as indices; `HOST` is the thread that issues.
SCHEDULE, FORWARD, COPY, HOST = range(4)
STREAMS = ("schedule", "forward", "copy")

ZEROES = 0
_NONE = np.empty(0, np.int64)
UNKNOWN = -1  # expected of a page that nobody zeroed or wrote: anything
_COPIER = 1 << 31  # above all tickets

# Physical (or, for table rows, virtual) pages of a band.
Touched = list[tuple[int, Pages]]


class Memory:
    """The cells and the mirrors of one device, as far as work has been executed.

    `pages[band]` is a view of the cells, one row per physical page of that band; `mirrors[band]` the
    physical page by virtual page (−1: unmapped). `rows[ticket]`: what a forward that has read its
    tables, and not yet touched its pages, found there, by access.
    """

    def __init__(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        self.cell_bytes = math.gcd(*page_bytes)
        self.page_bytes = list(page_bytes)
        self.cells = np.zeros(total_bytes // self.cell_bytes, np.int64)
        self.pages = self.by_page(self.cells)
        self.mirrors = [np.full(count, -1, np.int64) for count in virtual_pages]
        self.rows: dict[int, list[Pages]] = {}

    def by_page(self, cells: np.ndarray) -> list[np.ndarray]:
        """`cells` (one value each) as one view per band, shape (pages, cells per page)."""
        views = []
        for size in self.page_bytes:
            width = size // self.cell_bytes
            views.append(cells[: cells.size // width * width].reshape(-1, width))
        return views

    def copy(self) -> Memory:
        """An independent copy."""
        twin = object.__new__(Memory)
        twin.cell_bytes, twin.page_bytes = self.cell_bytes, self.page_bytes
        twin.cells = self.cells.copy()
        twin.pages = twin.by_page(twin.cells)
        twin.mirrors = [mirror.copy() for mirror in self.mirrors]
        twin.rows = dict(self.rows)
        return twin

    def blank(self) -> Memory:
        """One of the same shape, in which nothing was done."""
        twin = self.copy()
        twin.cells[:] = 0
        for mirror in twin.mirrors:
            mirror[:] = -1
        twin.rows = {}
        return twin

    def digest(self) -> str:
        """A fingerprint of all cells and mirrors."""
        hasher = hashlib.blake2b(self.cells.data, digest_size=16)
        for mirror in self.mirrors:
            hasher.update(mirror.data)
        return hasher.hexdigest()


def writer_of_lease(lease: int) -> int:
    """As whom the holder of a lease writes."""
    return _COPIER + lease


class Stamps:
    """Stamps by who wrote which virtual page: unique, and readable in a report."""

    def __init__(self, virtual_pages: Sequence[int]) -> None:
        starts = np.cumsum([1, *virtual_pages])
        self._starts: list[int] = starts[:-1].tolist()
        self._stride = int(starts[-1])
        self.band_names = [str(index) for index in range(len(virtual_pages))]

    def of_writer(self, writer: int, band: int, virtual: Pages) -> Pages:
        """What a writer leaves in these pages: forwards write as their ticket, holders of leases as
        `writer_of_lease`."""
        return virtual + (writer * self._stride + self._starts[band])

    def describe(self, stamp: int) -> str:
        """A stamp in words."""
        if stamp == ZEROES:
            return "zeroes"
        if stamp < 0:
            return f"the fill value {-stamp:#x}"
        writer, rest = divmod(stamp, self._stride)
        band = max(index for index, start in enumerate(self._starts) if start <= max(rest, 1))
        who = f"forward {writer}" if writer < _COPIER else f"the holder of lease {writer - _COPIER}"
        return f"what {who} wrote to {self.band_names[band]} page {rest - self._starts[band]}"


class Work:
    """Something issued on a stream. Its kinds execute it on a `Memory`.

    `number`: its place in its stream, from 1. `after`: per stream, the number of the last work that is
    ordered before it (by stream order and events). `ticket`: of its forward, 0 for other work;
    `step`: which step of the program issued it. What it is to touch, as the books stood when it was
    issued: bytes by (band, physical pages), table rows by (band, virtual pages).
    """

    what = ""
    stream = SCHEDULE
    number = 0
    after: tuple[int, ...] = ()
    ticket = 0
    step = 0
    reads: Touched = []
    writes: Touched = []
    row_reads: Touched = []
    row_writes: Touched = []

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        """Do it now, on what the memory holds now."""
        raise NotImplementedError

    def touches(self) -> Touched:
        """`reads` and `writes` together."""
        return [*self.reads, *self.writes]

    def footprint(self, memory: Memory) -> tuple[Touched, Touched]:
        """Bytes read and bytes written when executed now (unlike `reads` and `writes`, which were
        told when it was issued)."""
        return self.reads, self.writes

    def __str__(self) -> str:
        who = f"forward {self.ticket}" if self.ticket else self.what
        return f"{who} (step {self.step}, {STREAMS[self.stream]} stream work {self.number})"


class Fill(Work):
    """Pages set to values, in this order: (band, pages, value)."""

    what = "the fill of pages"

    def __init__(self, fills: list[tuple[int, Pages, int]]) -> None:
        self.fills = fills
        self.writes = [(band, pages) for band, pages, _ in fills]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        for band, pages, value in self.fills:
            memory.pages[band][pages] = -value


class Move(Work):
    """Pages of a band copied; all sources are read before the first destination is written."""

    what = "the move of pages"

    def __init__(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.band, self.sources, self.destinations = band, sources, destinations
        self.reads, self.writes = [(band, sources)], [(band, destinations)]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        pages = memory.pages[self.band]
        pages[self.destinations] = pages[self.sources]


class StateCopy(Move):
    """Pages of a band copied, of which both places stay live."""

    what = "the copy of a state"


class Publish(Work):
    """Table rows of a band written."""

    what = "the publishing of table rows"

    def __init__(self, band: int, virtual: Pages, physical: Pages) -> None:
        self.band, self.virtual, self.physical = band, virtual, physical
        self.row_writes = [(band, virtual)]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        memory.mirrors[self.band][self.virtual] = self.physical


class BandAccess:
    """What a forward touches in one band. `pages` (n,) virtual: those read first, then those written,
    `read_count` of them read; `physical` (n,) where the books say they lie; `generation` (n,);
    `expected`: the stamps to be read; `written`: the stamps to be left."""

    __slots__ = (
        "band", "expected", "generation", "pages", "physical", "read_count", "written",
    )  # fmt: skip

    def __init__(
        self,
        band: int,
        pages: Pages,
        read_count: int,
        physical: Pages,
        generation: Pages,
        expected: Pages,
    ) -> None:
        self.band, self.pages, self.read_count = band, pages, read_count
        self.physical, self.generation = physical, generation
        self.expected, self.written = expected, _NONE


class TableReads(Work):
    """A forward's reads of its table rows. The rows it finds are what its `PageAccesses` use."""

    what = "the table reads"
    stream = FORWARD

    def __init__(self, ticket: int, bands: list[BandAccess], stamps: Stamps) -> None:
        self.ticket = ticket
        self.bands, self.stamps = bands, stamps
        self.row_reads = [(access.band, access.pages) for access in bands]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        found = memory.rows[self.ticket] = []
        for access in self.bands:
            rows = memory.mirrors[access.band][access.pages]
            if _equal(rows, access.physical):
                rows = access.physical  # the very same, so known to be mapped
            else:
                self._wrong(access, rows, tell)
            found.append(rows)

    def _wrong(self, access: BandAccess, rows: Pages, tell: Callable[[Violation], None]) -> None:
        wrong = rows != access.physical
        at = int(wrong.argmax())
        tell(
            Violation(
                "content",
                f"forward {self.ticket} read the table row of {_page(self.stamps, access, at)}: "
                f"expected physical page {int(access.physical[at])}, got {int(rows[at])} "
                f"({np.count_nonzero(wrong)} rows differ; issued at step {self.step})",
            )
        )


class PageAccesses(Work):
    """A forward's reads and then writes of its pages, where its tables said they lie."""

    what = "the pages"
    stream = FORWARD

    def __init__(self, ticket: int, bands: list[BandAccess], stamps: Stamps) -> None:
        self.ticket = ticket
        self.bands, self.stamps = bands, stamps
        self.reads = [
            (access.band, access.physical[: access.read_count])
            for access in bands
            if access.read_count
        ]
        self.writes = [
            (access.band, access.physical[access.read_count :])
            for access in bands
            if access.written.size
        ]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        for access, rows in zip(self.bands, memory.rows.pop(self.ticket), strict=True):
            pages, count = memory.pages[access.band], access.read_count
            width = pages.shape[1]
            if count:
                got = pages.take(rows[:count], 0)
                expected = access.expected
                if not _equal(got, expected if width == 1 else expected.repeat(width)):
                    self._wrong(access, rows, got, tell)
            if access.written.size:
                into, written = rows[count:], access.written
                if rows is not access.physical:  # told already; like padding, it may go nowhere
                    into, written = into[into >= 0], written[into >= 0]
                pages[into] = written[:, None]

    def _wrong(
        self, access: BandAccess, rows: Pages, got: Pages, tell: Callable[[Violation], None]
    ) -> None:
        wrong = got != access.expected[:, None]
        readable = (access.expected != UNKNOWN) & (rows[: access.read_count] >= 0)
        pages = wrong.any(1) & readable
        if not pages.any():
            return
        at = int(pages.argmax())
        cell = int(wrong[at].argmax())
        tell(
            Violation(
                "content",
                f"forward {self.ticket} read {_page(self.stamps, access, at)} at physical page "
                f"{int(rows[at])}: expected "
                f"{self.stamps.describe(int(access.expected[at]))}, got "
                f"{self.stamps.describe(int(got[at, cell]))} ({np.count_nonzero(pages)} pages "
                f"differ; issued at step {self.step})",
            )
        )

    def touches(self) -> Touched:
        return [(access.band, access.physical) for access in self.bands]

    def footprint(self, memory: Memory) -> tuple[Touched, Touched]:
        reads: Touched = []
        writes: Touched = []
        for access, rows in zip(self.bands, memory.rows[self.ticket], strict=True):
            count = access.read_count
            reads.append((access.band, rows[:count][rows[:count] >= 0]))
            writes.append((access.band, rows[count:][rows[count:] >= 0]))
        return reads, writes


class Copy(Work):
    """A lease holder's copy out of (or into) pages that cannot move while it lasts."""

    what = "a holder's copy"
    stream = COPY

    def __init__(self, lease: int, access: BandAccess, stamps: Stamps) -> None:
        self.lease, self.access, self.stamps = lease, access, stamps
        count = access.read_count
        if count:
            self.reads = [(access.band, access.physical)]
        else:
            self.writes = [(access.band, access.physical)]

    def execute(self, memory: Memory, tell: Callable[[Violation], None]) -> None:
        access = self.access
        pages = memory.pages[access.band]
        if not access.read_count:
            pages[access.physical] = access.written[:, None]
            return
        got = pages.take(access.physical, 0)
        wrong = (got != access.expected[:, None]) & (access.expected != UNKNOWN)[:, None]
        if np.count_nonzero(wrong):
            at, cell = (int(index[0]) for index in np.nonzero(wrong))
            tell(
                Violation(
                    "content",
                    f"the holder of lease {self.lease} copied {_page(self.stamps, access, at)} from "
                    f"physical page {int(access.physical[at])}: expected "
                    f"{self.stamps.describe(int(access.expected[at]))}, got "
                    f"{self.stamps.describe(int(got[at, cell]))} (issued at step {self.step})",
                )
            )

    def __str__(self) -> str:
        return f"the copy of lease {self.lease} (step {self.step}, copy stream work {self.number})"


def grouped(fills: list[tuple[int, Pages, int]]) -> list[tuple[int, Pages, int]]:
    """Fills of one value by band: their order does not matter then."""
    if len(fills) == 1:
        return fills
    by_band: dict[int, list[Pages]] = {}
    value = fills[0][2]
    for band, pages, other in fills:
        if other != value:
            return fills
        if band in by_band:
            by_band[band].append(pages)
        else:
            by_band[band] = [pages]
    return [
        (band, parts[0] if len(parts) == 1 else np.concatenate(parts), value)
        for band, parts in by_band.items()
    ]

def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    """The same numbers, whatever the shape; far cheaper on short arrays than comparing elements."""
    return first.tobytes() == second.tobytes()


def _page(stamps: Stamps, access: BandAccess, at: int) -> str:
    return (
        f"band {stamps.band_names[access.band]} virtual page {int(access.pages[at])} "
        f"generation {int(access.generation[at])}"
    )
