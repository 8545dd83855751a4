"""Does any layout hold a demand, and how few bytes must move for it? By trying all of them.

Nothing here is shared with the allocator's planner. A layout gives every band an interval of its own
pages, in chain order, disjoint in bytes: wide enough for what it must hold, and around every page that
cannot move. Its cost is the bytes of live pages outside. Answers are remembered by what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence

Hull = tuple[int, int] | None
"""Physical pages [first, stop) that cannot move."""


class Packing:
    """All layouts of one arena; `page_bytes` per band in chain order."""

    def __init__(self, page_bytes: Sequence[int], sink_bytes: int, total_bytes: int) -> None:
        self.page_bytes = tuple(page_bytes)
        self.sink_bytes, self.total_bytes = sink_bytes, total_bytes
        self._fits: dict[tuple[tuple[int, ...], tuple[Hull, ...]], bool] = {}
        self._costs: dict[tuple[tuple[int, ...], tuple[Hull, ...], tuple[int, ...]], int | None] = {}

    @property
    def remembered(self) -> int:
        """How many different questions were answered."""
        return len(self._fits) + len(self._costs)

    def _intervals(self, band: int, start: int, pages: int, hull: Hull) -> list[tuple[int, int]]:
        """Every [first, stop) of pages that lies above byte `start`, holds `pages` and covers `hull`."""
        size = self.page_bytes[band]
        limit = self.total_bytes // size
        return [
            (first, stop)
            for first in range(-(-start // size), limit + 1)
            for stop in range(first + pages, limit + 1)
            if hull is None or (first <= hull[0] and hull[1] <= stop)
        ]

    def fits(self, pages: tuple[int, ...], hulls: tuple[Hull, ...]) -> bool:
        """True when some layout gives every band `pages` and covers the hulls."""
        key = (pages, hulls)
        answer = self._fits.get(key)
        if answer is None:
            answer = self._fits[key] = self._place(0, self.sink_bytes, pages, hulls, {})
        return answer

    def _place(
        self,
        band: int,
        start: int,
        pages: tuple[int, ...],
        hulls: tuple[Hull, ...],
        known: dict[tuple[int, int], bool],
    ) -> bool:
        if band == len(pages):
            return True
        if (band, start) not in known:
            size = self.page_bytes[band]
            if not pages[band] and hulls[band] is None:
                known[band, start] = self._place(band + 1, start, pages, hulls, known)
            else:
                known[band, start] = any(
                    self._place(band + 1, stop * size, pages, hulls, known)
                    for _, stop in self._intervals(band, start, pages[band], hulls[band])
                )
        return known[band, start]

    def cheapest(
        self, pages: tuple[int, ...], hulls: tuple[Hull, ...], live: tuple[int, ...]
    ) -> int | None:
        """The fewest bytes of live pages outside their band's interval, over all layouts; None without
        one. `live`: per band a bit per physical page."""
        key = (pages, hulls, live)
        if key not in self._costs:
            self._costs[key] = self._cost(0, self.sink_bytes, key, {})
        return self._costs[key]

    def _cost(
        self,
        band: int,
        start: int,
        asked: tuple[tuple[int, ...], tuple[Hull, ...], tuple[int, ...]],
        known: dict[tuple[int, int], int | None],
    ) -> int | None:
        pages, hulls, live = asked
        if band == len(pages):
            return 0
        if (band, start) in known:
            return known[band, start]
        best = None
        if not pages[band] and hulls[band] is None:
            best = self._cost(band + 1, start, asked, known)
        else:
            size = self.page_bytes[band]
            for first, stop in self._intervals(band, start, pages[band], hulls[band]):
                inside = ((1 << stop) - 1) & ~((1 << first) - 1)
                outside = (live[band] & ~inside).bit_count() * size
                if best is not None and outside >= best:
                    continue
                rest = self._cost(band + 1, stop * size, asked, known)
                if rest is not None and (best is None or outside + rest < best):
                    best = outside + rest
        known[band, start] = best
        return best
