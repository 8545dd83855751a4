"""One state of the books in plain values, as the rules read it."""

from __future__ import annotations

from typing import Any

Request = tuple[int, int, int, bytes, bytes, bytes]
"""length, launched, page count, pages trimmed per window, virtual pages, virtual slots"""

# What a byte of a table says where nothing is mapped.
NOWHERE = 255


class View:
    """One state of the books in plain values, a byte per number. By band: `state` and `pin_count` (by
    place), `place_of` and `virtual_at` (`NOWHERE` where unmapped), `extents` (low, high), `counts`
    (live, holes, pending). `requests` by their number. `in_flight`: (ticket, ((band, virtual pages),
    …)); `pending`: (stamp, band, places); `leases`: (number, band, places, virtual pages,
    generations). `raw`: everything that a refusal must not change, to be compared as a whole."""

    __slots__ = (
        "block_holes", "bound", "counts", "deferred", "dirty", "extents", "fresh", "gate", "generation",
        "in_flight", "issued", "leases", "memo", "next_lease", "ordered", "pending", "pin_count",
        "place_of", "raw", "released", "requests", "state", "virtual_at",
    )  # fmt: skip

    block_holes: list[int]
    bound: list[bytes]
    counts: tuple[tuple[int, int, int], ...]
    deferred: tuple[int, ...]
    dirty: tuple[bool, ...]
    extents: tuple[tuple[int, int], ...]
    fresh: tuple[int, int]
    gate: bool
    generation: list[bytes]
    in_flight: tuple[tuple[int, tuple[tuple[int, bytes], ...]], ...]
    issued: int
    leases: tuple[tuple[int, int, bytes, bytes, bytes], ...]
    memo: Any
    next_lease: int
    ordered: int
    pending: tuple[tuple[int, int, bytes], ...]
    pin_count: list[bytes]
    place_of: list[bytes]
    raw: tuple[Any, ...]
    released: list[bytes]
    requests: dict[int, Request]
    state: list[bytes]
    virtual_at: list[bytes]

    @property
    def settled(self) -> int:
        """Pages stamped up to this ticket wait for nothing any more."""
        if not self.in_flight:
            return self.issued
        return max(self.ordered, min(ticket for ticket, _ in self.in_flight) - 1)

    def same_as(self, other: View) -> bool:
        """True when nothing differs but what was published."""
        return self.raw == other.raw
