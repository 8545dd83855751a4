"""Tickets: which launched work may still touch a page, and what the schedule stream waits for.

Launching a forward takes the next ticket. Freeing a page stamps it with the newest ticket: the page
is *pending* until every ticket up to the stamp has completed (the operation `Complete` says so) or
until a barrier has ordered the schedule stream behind it. Nothing here waits on the host, and
nothing depends on how fast a device is.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from bandscope.allocator.errors import MisuseError
from bandscope.allocator.tables import Pages


class Tickets:
    """Tickets in flight, and the pages that wait for them.

    `issued`: the newest ticket (0 before the first launch). `ordered_through`: the schedule stream
    is ordered behind every ticket up to this one.
    """

    def __init__(self) -> None:
        self.issued = 0
        self.ordered_through = 0
        # Per ticket in flight: virtual pages it may write, by band index.
        self.in_flight: dict[int, dict[int, Pages]] = {}
        self._pending: deque[tuple[int, int, Pages]] = deque()  # (stamp, band, places), by stamp

    @property
    def completed_through(self) -> int:
        """Every ticket up to this one has completed."""
        return min(self.in_flight, default=self.issued + 1) - 1

    @property
    def settled_through(self) -> int:
        """Pages stamped up to this ticket may be written by the schedule stream."""
        return max(self.ordered_through, self.completed_through)

    @property
    def unsettled(self) -> bool:
        """True when some launched work is neither completed nor ordered by a barrier."""
        # What is in flight is not completed, so a barrier alone can have settled the newest ticket.
        return bool(self.in_flight) and self.ordered_through < self.issued

    def launch(self, writes: dict[int, Pages]) -> int:
        """Take the next ticket for a forward that may write `writes` (virtual pages per band)."""
        self.issued += 1
        self.in_flight[self.issued] = writes
        return self.issued

    def complete(self, ticket: int) -> None:
        """The engine saw `ticket` complete; in any order, each once."""
        if ticket not in self.in_flight:
            known = sorted(self.in_flight)
            raise MisuseError(
                f"ticket {ticket} was reported complete, but the tickets in flight are {known}; "
                "complete each launched ticket once"
            )
        del self.in_flight[ticket]

    def defer(self, band: int, places: Pages) -> int:
        """Remember freed `places` under the newest ticket; returns the stamp."""
        self._pending.append((self.issued, band, places))
        return self.issued

    def take_settled(self) -> list[tuple[int, Pages]]:
        """The deferred places that nothing can touch any more, as (band, places); forgotten here."""
        settled: list[tuple[int, Pages]] = []
        if not self._pending:
            return settled
        through = self.settled_through
        while self._pending and self._pending[0][0] <= through:
            _, band, places = self._pending.popleft()
            settled.append((band, places))
        return settled

    def order_behind_all(self) -> int:
        """A barrier was placed behind the newest ticket; returns that ticket."""
        self.ordered_through = self.issued
        return self.issued

    def rename(self, band: int, virtual: Pages, into: Pages) -> None:
        """Pages of `band` bear other names: what launched work may write, it writes under these."""
        order = np.argsort(virtual)
        for writes in self.in_flight.values():
            if band not in writes:
                continue
            found = np.searchsorted(virtual, writes[band], sorter=order)
            which = order[np.minimum(found, virtual.size - 1)]
            # A new array: token bands share one.
            writes[band] = np.where(virtual[which] == writes[band], into[which], writes[band])

    def unsettled_writes(self, band: int) -> Pages:
        """Virtual pages of `band` that launched, unsettled work may still write."""
        parts = [
            writes[band]
            for ticket, writes in self.in_flight.items()
            if ticket > self.ordered_through and band in writes
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def snapshot(self) -> dict[str, Any]:
        return {
            "issued": self.issued,
            "ordered_through": self.ordered_through,
            "in_flight": {
                ticket: {band: pages.copy() for band, pages in writes.items()}
                for ticket, writes in self.in_flight.items()
            },
            "pending": [(stamp, band, places.copy()) for stamp, band, places in self._pending],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.issued = state["issued"]
        self.ordered_through = state["ordered_through"]
        self.in_flight = {ticket: dict(writes) for ticket, writes in state["in_flight"].items()}
        self._pending = deque(state["pending"])
