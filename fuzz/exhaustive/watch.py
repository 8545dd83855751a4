"""A device that keeps a list of what it was asked, in order. Page numbers are physical."""

from __future__ import annotations

from bandscope.allocator.device.none import NoDevice
from bandscope.allocator.tables import Pages

Issued = tuple[str, int, list[int], list[int]]
"""What (`move`, `fill`, `publish`, `order`, `reads`, `launch`, `look`: fills are issued because somebody
is about to look, `wait`: the host waits); band or ticket; two lists of pages"""


class WatchedDevice(NoDevice):
    """Books only, like its parent; `issued` is what one operation issued (clear it before)."""

    def __init__(self) -> None:
        self.issued: list[Issued] = []

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.issued.append(("move", band, sources.tolist(), destinations.tolist()))

    def fill(self, band: int, pages: Pages, value: int) -> None:
        self.issued.append(("fill", band, pages.tolist(), []))

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        self.issued.append(("publish", band, virtual.tolist(), physical.tolist()))

    def issue_fills(self) -> None:
        self.issued.append(("look", 0, [], []))

    def wait(self, ticket: int) -> None:
        self.issued.append(("wait", ticket, [], []))

    def synchronize(self) -> None:
        self.issued.append(("wait", 0, [], []))

    def launch(self, ticket: int) -> None:
        self.issued.append(("launch", ticket, [], []))

    def order_behind(self, ticket: int) -> None:
        self.issued.append(("order", ticket, [], []))

    def order_behind_reads(self, ticket: int) -> None:
        self.issued.append(("reads", ticket, [], []))
