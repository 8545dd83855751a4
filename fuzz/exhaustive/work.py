"""What one operation issued to the device, followed byte by byte."""

from __future__ import annotations

from collections.abc import Iterator

from bandscope.allocator.checks import Violation
from bandscope.fuzz.exhaustive.geometry import LIVE, Geometry
from bandscope.fuzz.exhaustive.view import NOWHERE, View
from bandscope.fuzz.exhaustive.watch import Issued

Moves = list[dict[int, int]]
"""Per band: the place a page left → the place it went to"""


class Work:
    """Follows what one operation issued to the device, byte by byte."""

    def __init__(self, geometry: Geometry, before: View) -> None:
        self.geometry = geometry
        self.before = before
        self.ordered = before.ordered
        self.tickets = [ticket for ticket, _ in before.in_flight]
        self.reads_ordered = before.ordered
        self.filled: set[tuple[int, int]] = set()
        self.moved_bytes = 0
        self.moved_pages = [0] * len(geometry.names)
        self._origin: list[dict[int, int]] = [{} for _ in geometry.names]
        self._began = self._launched = False

    def _begin(self) -> None:
        """The bytes in use, once something is written."""
        self._began = True
        geometry, before = self.geometry, self.before
        self.live = 0
        for band, state in enumerate(before.state):
            bits = geometry.bits[band]
            for place, code in enumerate(state):
                if code == LIVE:
                    self.live |= bits[geometry.page(band, place)]
        self.waiting = [
            (stamp, geometry.bytes_of(band, [geometry.page(band, place) for place in places]))
            for stamp, band, places in before.pending
        ]
        self.pinned = 0
        for _, band, places, *_ in before.leases:
            self.pinned |= geometry.bytes_of(band, [geometry.page(band, p) for p in places])

    def do(self, issued: Issued, barrier: str) -> Iterator[Violation]:
        """Follow one request to the device."""
        what, number, first, second = issued
        if what == "order":
            self.ordered = max(self.ordered, number)
            self.reads_ordered = max(self.reads_ordered, number)
        elif what == "reads":
            self.reads_ordered = max(self.reads_ordered, number)
        elif what == "fill":
            yield from self._write(number, first, "filled")
            self.filled.update((number, self.geometry.place(number, page)) for page in first)
        elif what == "move":
            yield from self._move(number, first, second)
        elif what == "launch":
            self._launched = True
        elif what == "wait":
            yield Violation("host_waits", "the host waited for the device")
        elif what == "publish":
            if self._launched:
                name = self.geometry.names[number]
                yield Violation("tables", f"{name}: rows were published after the launch")
            yield from self._publish(number, first, second, barrier)

    def _write(self, band: int, pages: list[int], what: str) -> Iterator[Violation]:
        if not self._began:
            self._begin()
        geometry, name = self.geometry, self.geometry.names[band]
        if len(set(pages)) < len(pages):
            yield Violation("content", f"{name}: a page was {what} twice in one batch")
        places = [geometry.place(band, page) for page in pages]
        if any(not 0 <= place < geometry.capacity[band] for place in places):
            yield Violation("order", f"{name}: places {places} lie outside the arena")
            return
        target = geometry.bytes_of(band, pages)
        if target & self.live:
            yield Violation("content", f"{name}: pages {pages} were {what} over live bytes")
        if target & self.pinned:
            yield Violation("pins", f"{name}: pages {pages} were {what} over pinned bytes")
        for stamp, bits in self.waiting:
            if target & bits and any(self.ordered < ticket <= stamp for ticket in self.tickets):
                yield Violation(
                    "happens_before",
                    f"{name}: pages {pages} were {what} while work up to ticket {stamp} may touch them",
                )
        self.live |= target

    def _move(self, band: int, sources: list[int], destinations: list[int]) -> Iterator[Violation]:
        if not self._began:
            self._begin()
        geometry, name = self.geometry, self.geometry.names[band]
        source = geometry.bytes_of(band, sources)
        if source & ~self.live:
            yield Violation("content", f"{name}: pages {sources} were moved, not all of them live")
        if source & self.pinned:
            yield Violation("pins", f"{name}: pinned pages were moved among {sources}")
        leaving = {self.geometry.place(band, page) for page in sources}
        for ticket, writes in self.before.in_flight:
            if ticket > self.ordered:
                for page in dict(writes).get(band, ()):
                    if self.before.place_of[band][page] in leaving:
                        yield Violation(
                            "happens_before",
                            f"{name}: page {page} was copied while ticket {ticket} may write it",
                        )
        yield from self._write(band, destinations, "moved")
        self.live &= ~source
        if any(ticket > self.ordered for ticket in self.tickets):
            self.waiting.append((max(self.tickets), source))
        self.moved_bytes += len(sources) * geometry.page_bytes[band]
        self.moved_pages[band] += len(sources)
        origin = self._origin[band]
        for page, target in zip(sources, destinations, strict=True):
            place = geometry.place(band, page)
            origin[geometry.place(band, target)] = origin.pop(place, place)

    def _publish(
        self, band: int, pages: list[int], physical: list[int], barrier: str
    ) -> Iterator[Violation]:
        geometry, name = self.geometry, self.geometry.names[band]
        if barrier != "off" and any(ticket > self.reads_ordered for ticket in self.tickets):
            yield Violation(
                "happens_before", f"{name}: a table was written while a forward may read it"
            )
        for page, told in zip(pages, physical, strict=True):
            place = self.before.place_of[band][page]
            if told != (geometry.page(band, place) if place != NOWHERE else -1):
                yield Violation("tables", f"{name}: page {page} was published as {told}")

    def moves(self) -> Moves:
        """Where each page that moved went."""
        return [
            {origin: place for place, origin in each.items()} for each in self._origin
        ]
