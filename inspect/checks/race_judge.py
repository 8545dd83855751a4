"""What the schedule stream touches against what open forwards and holders of leases may touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bandscope.inspect.checks.race_books import WRITTEN, Forward, Pages, RaceBooks
from bandscope.inspect.checks.race_report import Access, Race


class Judge:
    """Finds the races of single accesses. Event numbers are those of the second access.

    `found`: one race per missing edge, its ticket or lease, kind and band. `start`: races before this
    event are left out. `operation(sequence)`: kind, event and stack of the operation that runs now.
    """

    def __init__(
        self, books: RaceBooks, start: int, operation: Callable[[int], tuple[str, int, str]]
    ) -> None:
        self.books = books
        self.start = start
        self.operation = operation
        self.found: dict[tuple[str, int, str, int], Race] = {}

    def publish(self, sequence: int, band: int) -> None:
        """Rows of a band were written that open forwards may still read."""
        books, of_band = self.books, self.books.bands[band]
        of_band.fresh = []
        blamed = False
        for forward in reversed(books.open):
            rows = forward.rows[band]
            if rows:
                if not blamed:
                    virtual = np.unique(np.concatenate([np.atleast_1d(part) for part in rows]))
                    what = f"the table row of {of_band.name} {int(virtual[0])}"
                    self._told(
                        "WAR", band, "write-after-read (fine)", forward, sequence,
                        self._of_forward(forward, "reads", what),
                        self._of_schedule(sequence, "writes", what), virtual.size,
                    )  # fmt: skip
                    blamed = True  # a barrier behind the newest orders the older ones too
                forward.rows[band] = []

    def stale_rows(self, sequence: int, band: int, forward: Forward) -> None:
        """A forward is launched although rows of its requests were not published."""
        of_band = self.books.bands[band]
        virtual = np.unique(np.concatenate([np.atleast_1d(part) for part in of_band.fresh]))
        of_band.fresh = []
        virtual = virtual[of_band.page_of[virtual] >= 0]
        rows, _, _ = self.books.touched(forward, of_band, virtual, of_band.page_of[virtual])
        if rows.any():
            what = f"the table row of {of_band.name} {int(virtual[rows][0])}"
            self._told(
                "RAW", band, "publish", forward, sequence,
                self._of_schedule(sequence, "has not written", what),
                self._of_forward(forward, "reads", what), int(rows.sum()),
            )  # fmt: skip

    def writes(self, sequence: int, band: int, virtual: Pages, pages: Pages) -> None:
        """The schedule stream writes these pages: what open forwards and holders touched."""
        of_band = self.books.bands[band]
        if of_band.pins:
            self._against_pins(sequence, band, virtual, pages, "writes")
        for forward in reversed(self.books.open):
            left = forward.left[band]
            if left is not None:
                marks = left[pages]
                if marks.any():
                    self._races_of_marks(sequence, band, virtual, pages, forward, marks)
            if forward.orphans:
                self._races_of_orphans(sequence, band, virtual, pages, forward)

    def _races_of_marks(
        self, sequence: int, band: int, virtual: Pages, pages: Pages, forward: Forward, marks: Any
    ) -> None:
        pages, virtual, marks = (np.atleast_1d(part) for part in (pages, virtual, marks))
        for kind, hit in (("WAW", marks == WRITTEN), ("WAR", (marks > 0) & (marks < WRITTEN))):
            if hit.any():
                page = int(pages[hit][0])
                old = self._name(band, *forward.name_of(band, page), page)
                self._told(
                    kind, band, "settle", forward, sequence,
                    self._of_forward(forward, "writes" if kind == "WAW" else "reads", old),
                    self._of_schedule(
                        sequence, "writes", self._now(band, int(virtual[hit][0]), page)
                    ),
                    int(hit.sum()),
                )  # fmt: skip
        for other in self.books.open:  # told once; a barrier behind this one orders older ones too
            left = other.left[band]
            if left is not None and other.number <= forward.number:
                left[pages] = 0

    def _races_of_orphans(
        self, sequence: int, band: int, virtual: Pages, pages: Pages, forward: Forward
    ) -> None:
        of_band = self.books.bands[band]
        starts = (np.atleast_1d(pages) + of_band.base) * of_band.page_bytes
        kept = []
        for orphan in forward.orphans:
            start, stop, mark, old_band, old_page = orphan
            hit = (starts < stop) & (starts + of_band.page_bytes > start)
            if not hit.any():
                kept.append(orphan)
                continue
            kind = "WAW" if mark == WRITTEN else "WAR"
            old = self._name(old_band, *forward.name_of(old_band, old_page), old_page)
            now = int(np.atleast_1d(virtual)[hit][0])
            self._told(
                kind, band, "settle", forward, sequence,
                self._of_forward(forward, "writes" if mark == WRITTEN else "reads", old),
                self._of_schedule(
                    sequence, "writes", self._now(band, now, int(np.atleast_1d(pages)[hit][0]))
                ),
                int(hit.sum()),
            )  # fmt: skip
        forward.orphans = kept

    def reads(
        self, sequence: int, band: int, virtual: Pages, pages: Pages, *, stays: bool = False
    ) -> None:
        """Sources of a move, or of a copy that leaves them in place (`stays`): launched work may still
        write them. Nobody may move what a lease pins; that the engine copies it is its own choice, as
        that a forward reads it."""
        of_band = self.books.bands[band]
        if of_band.pins and not stays:
            self._against_pins(sequence, band, virtual, pages, "reads")
        told: Any = np.zeros(pages.size, bool)
        for forward in reversed(self.books.open):
            _, _, written = self.books.touched(forward, of_band, virtual, pages)
            left = forward.left[band]
            if left is not None:  # under another name, before the place was given another
                written = written | (left[pages] == WRITTEN)
            written = written & ~told
            if written.any():
                told |= written
                name = self._now(band, int(virtual[written][0]), int(pages[written][0]))
                self._told(
                    "RAW", band, "settle", forward, sequence,
                    self._of_forward(forward, "writes", name),
                    self._of_schedule(sequence, "reads", name), int(written.sum()),
                )  # fmt: skip

    def _against_pins(
        self, sequence: int, band: int, virtual: Pages, pages: Pages, does: str
    ) -> None:
        pinned = self.books.bands[band].pinned[pages] > 0
        if not pinned.any():
            return
        pages, virtual = np.atleast_1d(pages), np.atleast_1d(virtual)
        for lease, (of, held, names, _, kind, at, stack) in self.books.pins.items():
            hit = np.isin(pages, held) if of == band else np.zeros(0, bool)
            if hit.any():
                page = int(pages[hit][0])
                old = int(names[held == page][0])
                holds = "reads or writes"
                self._add(
                    "RAW" if does == "reads" else "WAR", band, "lease end", lease, sequence,
                    Access("copy", holds, self._now(band, old, page), 0, lease, kind, at, stack),
                    self._of_schedule(sequence, does, self._now(band, int(virtual[hit][0]), page)),
                    int(hit.sum()),
                )  # fmt: skip

    # --- reports --------------------------------------------------------------------------------------

    def _of_schedule(self, sequence: int, does: str, what: str) -> Access:
        kind, at, stack = self.operation(sequence)
        return Access("schedule", does, what, 0, 0, kind, at, stack)

    def _of_forward(self, forward: Forward, does: str, what: str) -> Access:
        return Access(
            "forward", does, what, forward.number, 0, forward.operation, forward.sequence,
            forward.stack,
        )  # fmt: skip

    def _now(self, band: int, virtual: int, page: int) -> str:
        generation = int(self.books.bands[band].space.generation[virtual])
        return self._name(band, virtual, generation, page)

    def _name(self, band: int, virtual: int, generation: int, page: int) -> str:
        of_band = self.books.bands[band]
        return f"{of_band.name} {virtual}.{generation} (physical page {page + of_band.base})"

    def _told(
        self, kind: str, band: int, edge: str, forward: Forward, sequence: int, first: Access,
        second: Access, places: int,
    ) -> None:  # fmt: skip
        self._add(kind, band, edge, forward.number, sequence, first, second, places)

    def _add(
        self, kind: str, band: int, edge: str, number: int, sequence: int, first: Access,
        second: Access, places: int,
    ) -> None:  # fmt: skip
        if sequence < self.start:
            return
        key = (edge, number, kind, band)
        known = self.found.get(key)
        if known is not None:
            known.places += places
            return
        ticket = 0 if edge == "lease end" else number
        self.found[key] = Race(
            kind, self.books.bands[band].name, edge, ticket, sequence, first, second, places
        )
