"""Places, pages and bytes of one arena in plain numbers, independent of the allocator's own.

A set of bytes is an integer with a bit per unit, the greatest common divisor of all page sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.fuzz.exhaustive.packing import Hull, Packing
from bandscope.fuzz.exhaustive.view import View

__all__ = ["GAP", "HOLE", "LIVE", "PENDING", "Geometry", "Occupancy"]

GAP = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What fills the bands in one state, for questions about layouts. `needs`: pages per band that must
    stay; `hulls`: pages that cannot move; `live`: a bit per physical page."""

    needs: tuple[int, ...]
    hulls: tuple[Hull, ...]
    live: tuple[int, ...]


class Geometry:
    """By band: `page_bytes`, `capacity` in places, `first` (physical page of place 0), `step` (1 up, −1
    down), `is_float`; `bits[band][physical page]` are its bytes."""

    def __init__(self, arena: Arena) -> None:
        plan, total = arena.plan, arena.total_bytes
        self.total_bytes, self.sink_bytes = total, plan.sink_bytes
        self.names = [band.name for band in plan.bands]
        self.page_size = plan.page_size
        self.page_bytes = [band.page_bytes for band in plan.bands]
        self.is_float = [band.end == "float" for band in plan.bands]
        self.state = next((n for n, band in enumerate(plan.bands) if band.kind == "state"), None)
        self.windows = [n for n, band in enumerate(plan.bands) if band.kind == "window"]
        self.window_lengths = [plan.bands[index].window_length for index in self.windows]
        self.token_bands = [n for n in range(len(plan.bands)) if n != self.state]
        self.step = [-1 if band.end == "high" else 1 for band in plan.bands]
        lowest = [-(-self.sink_bytes // size) for size in self.page_bytes]
        ends = [total // size for size in self.page_bytes]
        self.capacity = [max(0, end - low) for end, low in zip(ends, lowest, strict=True)]
        self.first = [
            end - 1 if step < 0 else low
            for end, low, step in zip(ends, lowest, self.step, strict=True)
        ]
        self.unit = math.gcd(*self.page_bytes)
        self.bits = [
            [
                ((1 << size // self.unit) - 1) << (page * size // self.unit)
                for page in range(end + 1)
            ]
            for size, end in zip(self.page_bytes, ends, strict=True)
        ]
        self.packing = Packing(self.page_bytes, self.sink_bytes, total)
        self._filled: dict[tuple[object, ...], Occupancy] = {}

    def page(self, band: int, place: int) -> int:
        """The physical page of a place."""
        return self.first[band] + self.step[band] * place

    def place(self, band: int, page: int) -> int:
        """The place of a physical page."""
        return (page - self.first[band]) * self.step[band]

    def bytes_of(self, band: int, pages: list[int]) -> int:
        """The bytes of physical pages, as bits."""
        found, bits = 0, self.bits[band]
        for page in pages:
            found |= bits[page]
        return found

    def occupancy(self, view: View) -> Occupancy:
        """What fills the bands in `view`; remembered by page states, pins and gate."""
        if view.memo is not None:
            known: Occupancy = view.memo
            return known
        key = (*view.state, view.gate, *(view.pin_count if view.leases else ()))
        found = self._filled.get(key)
        if found is None:
            needs, hulls, live = [], [], []
            for band, (state, pins) in enumerate(zip(view.state, view.pin_count, strict=True)):
                alive = [place for place, code in enumerate(state) if code == LIVE]
                pinned = [place for place, count in enumerate(pins) if count]
                fixed = {*pinned, *(alive if view.gate else ())}
                pages = [self.page(band, place) for place in fixed]
                needs.append(len({*alive, *pinned}))
                hulls.append((min(pages), max(pages) + 1) if pages else None)
                live.append(sum(1 << self.page(band, place) for place in alive))
            found = self._filled[key] = Occupancy(tuple(needs), tuple(hulls), tuple(live))
        view.memo = found
        return found

    @property
    def occupancies(self) -> int:
        """How many different ones were met."""
        return len(self._filled)

    def demanded(self, occupancy: Occupancy, demand: tuple[int, ...]) -> tuple[int, ...]:
        """Pages per band that a layout must give."""
        return tuple([a + b for a, b in zip(occupancy.needs, demand, strict=True)])

    def serves(self, occupancy: Occupancy, demand: tuple[int, ...]) -> bool:
        """By brute force: some layout holds what is there and the demand."""
        return self.packing.fits(self.demanded(occupancy, demand), occupancy.hulls)

    def refusal(self, view: View, demand: tuple[int, ...]) -> str:
        """Why a demand that no layout serves is refused."""
        occupancy = self.occupancy(view)
        nothing: tuple[Hull, ...] = (None,) * len(self.page_bytes)
        if not self.packing.fits(self.demanded(occupancy, demand), nothing):
            return "memory"
        return "gate" if view.gate else "pins"

    def cheapest(self, occupancy: Occupancy, demand: tuple[int, ...]) -> int | None:
        """By brute force: the fewest bytes that must move before the demand can be taken."""
        pages = self.demanded(occupancy, demand)
        return self.packing.cheapest(pages, occupancy.hulls, occupancy.live)
