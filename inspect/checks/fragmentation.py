"""Where the bytes of an arena go, and what would have let a refused demand in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from bandscope.inspect.reader import Trace
from bandscope.inspect.state import ArenaState


@dataclass
class BandFragmentation:
    """One band, in bytes unless named pages.

    `floor_bytes`: live pages, packed. `held_bytes`: the extent. `wasted`: bytes by cause: `holes`,
    `pending`, `rounding` (lost below the band to its page grid), `gap` (the gap above it, when too
    small for one page of any band).
    """

    band: str
    live_pages: int
    hole_pages: int
    pending_pages: int
    pinned_pages: int
    page_bytes: int
    floor_bytes: int
    held_bytes: int
    largest_gap_bytes: int
    wasted: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass
class RefusalExplained:
    """One refused demand: the layout it failed on and the cheapest thing that had let it in.

    `demand`, `live` and `holes`: pages per band in chain order. `short_bytes`: by how much the packed
    layout exceeds the arena (0 where something that cannot move is in the way). `cure`: `release`,
    `gate`, `lease end`, `complete` or `arena`; `cure_bytes`: bytes it takes (or frees); `cure_names`:
    the request, leases or ticket.
    """

    sequence: int
    reason: str
    demand: dict[str, int]
    live: dict[str, int]
    extents: dict[str, tuple[int, int]]
    fixed: dict[str, tuple[int, int] | None]
    short_bytes: int
    cure: str
    cure_bytes: int
    cure_names: list[int]
    text: str

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def fragmentation(state: ArenaState) -> list[BandFragmentation]:
    """Where the bytes go at one instant, per band in chain order."""
    raise NotImplementedError


def explain_refusals(trace: Trace) -> list[RefusalExplained]:
    """Every refusal of a trace, with the cheapest cure."""
    raise NotImplementedError
