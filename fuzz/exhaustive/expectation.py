"""What an operation must do to the ledger, and whether it may succeed: predicted from the state before.

Naive on purpose, with no code of the allocator. Pages are counted here, places are not chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation
from bandscope.fuzz.exhaustive.geometry import Geometry
from bandscope.fuzz.exhaustive.view import View

Entry = tuple[int, int, int, bytes, int]
"""length, launched, page count, pages trimmed per window, state slots"""


@dataclass(slots=True)
class Expected:
    """`refusal`: the reason, empty when the operation succeeds. `demand`: pages per band that it takes
    or makes room for, None when it needs none. `changed`: entries that change, None for gone."""

    refusal: str = ""
    demand: tuple[int, ...] | None = None
    changed: dict[int, Entry | None] = field(default_factory=dict)


def expect(geometry: Geometry, view: View, operation: Operation) -> Expected:
    """The expectation of a legal operation (one that an alphabet lists)."""
    expected = Expected()
    size = geometry.page_size
    match operation:
        case ops.Admit(request=request, state_slots=wanted):
            expected.changed[request] = (0, 0, 0, bytes(len(geometry.windows)), wanted)
            if geometry.state is not None and wanted:
                demand = [0] * len(geometry.names)
                demand[geometry.state] = wanted
                expected.demand = tuple(demand)
        case ops.Extend(request=request, tokens=tokens):
            length, launched, count, kept, _, slots = view.requests[request]
            grown = max(count, -(-(length + tokens) // size))
            expected.changed[request] = (length + tokens, launched, grown, kept, len(slots))
            expected.demand = _tokens(geometry, grown - count)
        case ops.Decode(requests=requests):
            pages = 0
            for request in requests:
                length, launched, count, kept, _, slots = view.requests[request]
                grown = count + (length == count * size)
                pages += grown - count
                expected.changed[request] = (length + 1, launched, grown, kept, len(slots))
            expected.demand = _tokens(geometry, pages)
        case ops.TrimWindow(requests=requests):
            for request in requests:
                length, launched, count, kept, _, slots = view.requests[request]
                trimmed = bytes(
                    first if window is None else max(first, max(0, length + 1 - window) // size)
                    for first, window in zip(kept, geometry.window_lengths, strict=True)
                )
                expected.changed[request] = (length, launched, count, trimmed, len(slots))
        case ops.Release(request=request):
            expected.changed[request] = None
        case ops.Launch(requests=requests):
            for request in requests:
                length, _, count, kept, _, slots = view.requests[request]
                expected.changed[request] = (length, length, count, kept, len(slots))
        case ops.Reserve(demand=asked):
            expected.demand = asked
    if expected.demand is not None:
        occupancy = geometry.occupancy(view)
        if not geometry.serves(occupancy, expected.demand):
            expected.refusal = geometry.refusal(view, expected.demand)
    return expected


def _tokens(geometry: Geometry, pages: int) -> tuple[int, ...] | None:
    if not pages:
        return None
    return tuple([0 if band == geometry.state else pages for band in range(len(geometry.names))])
