"""Checks that are too dear for every step or every arena, and are made where they cost little.

Once a case: the smallest arena that may be built, a snapshot restored on another device. In tiny
arenas, at each step: that room was made by moving the fewest bytes, by trying all layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.errors import SizingError
from bandscope.fuzz.model.bands import LIVE
from bandscope.fuzz.program import Layout
from bandscope.fuzz.simulated import SimulatedDevice

if TYPE_CHECKING:
    from bandscope.allocator.operations import Operation, Outcome
    from bandscope.fuzz.model import Model

# Sizes of arenas are whole multiples of this many bytes.
ROUND_BYTES = 256

# Pages of all bands together up to which all layouts are tried.
TINY_PAGES = 64

Hull = tuple[int, int] | None  # physical pages [first, stop) that cannot move


def smallest(layout: Layout) -> list[Violation]:
    """An arena can be built exactly when one page of every band fits beside the sink, in byte order,
    each on the grid of its own size."""
    plan = layout.plan()
    top = plan.sink_bytes
    for band in plan.bands:
        first = -(-top // band.page_bytes)
        top = (first + 1) * band.page_bytes
    enough = -(-top // ROUND_BYTES) * ROUND_BYTES
    found = []
    for total, fits in ((enough, True), (enough - ROUND_BYTES, False)):
        try:
            Layout(layout.bands, layout.page_size, total, layout.config).arena()
            built = True
        except SizingError:
            built = False
        if built != fits:
            what = "built" if built else "refused"
            needed = f"an arena of {total} bytes was {what}, one page of every band needs {top}"
            found.append(Violation("capacity", needed))
    return found


def restored(layout: Layout, snapshot: dict[str, object], digest: str, model: Model) -> list[Violation]:
    """Another arena becomes what the snapshot saw: the same digest, and a forward over everything finds
    its pages through that device's tables."""
    device = SimulatedDevice()
    # Bytes are no part of a snapshot: whatever the policy, what pages hold there is not known.
    config = replace(layout.config, hand_out="none", hand_out_state="none")
    arena = replace(layout, config=config).arena(device)  # type: ignore[arg-type]
    device.begin(arena)
    arena.restore(snapshot)
    found = []
    if arena.digest() != digest:
        found.append(Violation("determinism", "a restored arena has another digest than its snapshot"))
    requests = tuple(model.requests)
    device.forward_over(arena.launch(requests), model.accesses(requests))
    device.drain()
    return found + device.take_violations()


class Layouts:
    """All divisions of an arena's bytes among its bands. `page_bytes` in byte order."""

    def __init__(self, page_bytes: Sequence[int], sink_bytes: int, total_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._sink_bytes, self._total_bytes = sink_bytes, total_bytes

    def fewest_bytes(
        self, pages: Sequence[int], hulls: Sequence[Hull], live: Sequence[int]
    ) -> int | None:
        """The fewest bytes of live pages outside their band's interval, over all layouts that give every
        band `pages` and cover its hull; None without one. `live`: per band a bit per physical page."""
        known: dict[tuple[int, int], int | None] = {}

        def cost(band: int, start: int) -> int | None:
            if band == len(pages):
                return 0
            if (band, start) in known:
                return known[band, start]
            size, hull = self._page_bytes[band], hulls[band]
            best = None
            if not pages[band] and hull is None:
                best = cost(band + 1, start)
            else:
                # An interval that begins lower leaves no more outside, so it begins as low as it may.
                first = -(-start // size)
                least_stop = first + pages[band]
                if hull is not None:
                    least_stop = max(least_stop, hull[1]) if first <= hull[0] else 1 << 60
                for stop in range(least_stop, self._total_bytes // size + 1):
                    inside = ((1 << stop) - 1) & ~((1 << first) - 1)
                    outside = (live[band] & ~inside).bit_count() * size
                    rest = cost(band + 1, stop * size)
                    if rest is None:
                        break  # a higher stop leaves even less above
                    if best is None or outside + rest < best:
                        best = outside + rest
            known[band, start] = best
            return best

        return cost(0, self._sink_bytes)


class FewestBytes:
    """In a tiny arena: what an operation moved to make room is the least that any layout allows."""

    MAKES_ROOM = (ops.Admit, ops.Extend, ops.Decode, ops.Reserve, ops.Checkpoint)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._layouts: Layouts | None = None
        self.is_tiny = sum(band.capacity for band in model.bands) <= TINY_PAGES
        if self.is_tiny:
            sizes = [band.page_bytes for band in model.bands]
            self._layouts = Layouts(sizes, model.sink_bytes, model.total_bytes)
        self._before: tuple[tuple[int, ...], tuple[int, ...], tuple[Hull, ...]] | None = None

    def look(self, operation: Operation) -> None:
        """Before an operation: what is live, must stay, and cannot move."""
        self._before = None
        if self._layouts is None or not isinstance(operation, self.MAKES_ROOM):
            return
        live, needs, hulls = [], [], []
        for band in self._model.bands:
            alive = [place for place, code in enumerate(band.state) if code == LIVE]
            pinned = [place for place, count in enumerate(band.pin_count) if count]
            fixed = band.physical([*pinned, *(alive if self._model.gate_closed else ())])
            live.append(sum(1 << page for page in band.physical(alive)))
            needs.append(len({*alive, *pinned}))
            hulls.append((min(fixed), max(fixed) + 1) if fixed else None)
        self._before = tuple(live), tuple(needs), tuple(hulls)

    def settle(self, outcome: Outcome, demand: tuple[int, ...]) -> list[Violation]:
        """After it. `demand`: pages per band that it asked for."""
        moved = self._model.moved
        if self._before is None or self._layouts is None or not outcome.ok or not moved:
            return []
        live, needs, hulls = self._before
        for index, places in self._model.evicted().items():
            gone = sum(1 << page for page in self._model.bands[index].physical(places))
            live = (*live[:index], live[index] & ~gone, *live[index + 1 :])
            needs = (*needs[:index], needs[index] - len(places), *needs[index + 1 :])
        spare = int(self._model.config.headroom_share * self._model.total_bytes)
        roomy = [
            need + pages + (spare // band.page_bytes if pages else 0)
            for need, pages, band in zip(needs, demand, self._model.bands, strict=True)
        ]
        least = self._layouts.fewest_bytes(roomy, hulls, live)
        if least is None:
            exact = [need + pages for need, pages in zip(needs, demand, strict=True)]
            least = self._layouts.fewest_bytes(exact, hulls, live)
        total = sum(self._model.bands[index].page_bytes * count for index, count in moved.items())
        if total == least:
            return []
        return [Violation("capacity", f"{total} bytes moved to make room, {least} were enough")]
