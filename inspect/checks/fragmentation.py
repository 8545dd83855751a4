"""Where the bytes of an arena go, and what would have let a refused demand in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect.checks.packing import (
    Hull,
    Owners,
    evictable_pages,
    held_pages,
    hulls,
    packed_top,
    serves,
)
from bandscope.inspect.decode import Decoder, decoder_for
from bandscope.inspect.format import FIRST_OPERATION, LAST_OPERATION, Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.state import ArenaState, BandState
from bandscope.inspect.timeline import Timeline

LEASES_MAX = 256  # leases that are tried one by one, smallest first


@dataclass
class BandFragmentation:
    """One band, in bytes unless named pages.

    `floor_bytes`: live pages, packed. `held_bytes`: the extent. `largest_gap_bytes`: of the gaps below
    and above it. `wasted`: bytes by cause: `holes`, `pending`, `rounding` (of the gap below the band,
    above the topmost one as well: what no whole page of a band next to it covers) and `gap` (that gap,
    when it is too small for one page of any band next to it).
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
class Cure:
    """One thing that would have let a demand in. `kind`: `gate` (open it), `lease end`, `release` or
    `arena` (a bigger one). `bytes`: given up (pages released or no longer pinned) or added; 0 for the
    gate. `names`: the leases or requests."""

    kind: str
    bytes: int
    names: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        named = ", ".join(str(name) for name in self.names[:8])
        if len(self.names) > 8:
            named += f" and {len(self.names) - 8} more"
        match self.kind:
            case "gate":
                return "opening the gate"
            case "lease end":
                return f"ending lease {named} (pins {self.bytes:,} bytes)"
            case "release":
                return f"releasing request {named} ({self.bytes:,} bytes)"
        return f"an arena bigger by {self.bytes:,} bytes"


@dataclass
class RefusalExplained:
    """One refused demand: the layout it failed on and the cheapest thing that had let it in.

    `demand` and `live`: pages by band, in chain order; `extents` and `fixed` (what could not move):
    physical pages `[first, stop)`. `short_bytes`: by how much the packed layout exceeds the arena, 0
    where only what cannot move is in the way. `options`: cures, fewest bytes first; `cure`,
    `cure_bytes` and `cure_names` are those of the first. Completing a ticket is never among them: pages
    that wait for one are reused behind a barrier anyway.
    """

    sequence: int
    reason: str
    operation: str
    demand: dict[str, int]
    live: dict[str, int]
    extents: dict[str, tuple[int, int]]
    fixed: dict[str, tuple[int, int] | None]
    short_bytes: int
    options: list[Cure]
    text: str

    @property
    def cure(self) -> str:
        """Kind of the cheapest cure."""
        return self.options[0].kind

    @property
    def cure_bytes(self) -> int:
        """Bytes of the cheapest cure."""
        return self.options[0].bytes

    @property
    def cure_names(self) -> list[int]:
        """Leases or requests of the cheapest cure."""
        return self.options[0].names

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        first = {"cure": self.cure, "cure_bytes": self.cure_bytes, "cure_names": self.cure_names}
        return {**asdict(self), **first}


# --- one instant -------------------------------------------------------------------------------------


def fragmentation(state: ArenaState) -> list[BandFragmentation]:
    """Where the bytes go at one instant, per band in chain order."""
    found = []
    for band in state.bands:
        live, holes, pending = (band.count(one) for one in (LIVE, HOLE, PENDING))
        size = band.page_bytes
        wasted = {"holes": holes * size, "pending": pending * size, "rounding": 0, "gap": 0}
        pinned = int(np.count_nonzero(band.pins))
        low, high = band.byte_range()
        found.append(
            BandFragmentation(
                band.name, live, holes, pending, pinned, size, live * size, high - low, 0, wasted
            )
        )
    ends = [about["end"] for about in state.header["bands"]]
    bands = [band for band in state.bands if band.extent[1] > band.extent[0]]
    start = state.sink_bytes
    below: BandState | None = None
    for above in (*bands, None):
        stop = state.total_bytes if above is None else above.byte_range()[0]
        usable = _usable(state, ends, start, stop, below, above)
        for beside in (below, above):
            if beside is not None:
                of_band = found[beside.index]
                of_band.largest_gap_bytes = max(of_band.largest_gap_bytes, stop - start)
        last = bands[-1].index if bands else len(found) - 1
        wasted = found[above.index if above is not None else last].wasted
        wasted["rounding" if usable else "gap"] += stop - start - usable
        if above is not None:
            start, below = above.byte_range()[1], above
    return found


def _usable(
    state: ArenaState, ends: list[str], start: int, stop: int, below: BandState | None,
    above: BandState | None,
) -> int:  # fmt: skip
    """Bytes of a gap that whole pages of one band can cover: of its neighbours, where they grow into
    it, or of a band without an extent between them."""
    first = -1 if below is None else below.index
    last = len(state.bands) if above is None else above.index
    usable = 0
    if below is not None and ends[first] != "high":
        usable = (stop - start) // below.page_bytes * below.page_bytes
    if above is not None and ends[last] != "low":
        usable = max(usable, (stop - start) // above.page_bytes * above.page_bytes)
    for band in state.bands[first + 1 : last]:
        size = band.page_bytes
        usable = max(usable, (stop // size - -(-start // size)) * size)
    return usable


# --- refusals ----------------------------------------------------------------------------------------


def explain_refusals(trace: Trace) -> list[RefusalExplained]:
    """Every refusal of a trace, with what would have let it in, fewest bytes first.

    Refusals in damaged parts, and before the first sound keyframe, are left out.
    """
    timeline = Timeline(trace)
    found = []
    for segment in trace.segments():
        decoder = decoder_for(trace, segment)
        for index in segment.find(Kind.REFUSAL).tolist():
            sequence = segment.first_sequence + index
            state = timeline.advance(sequence)
            if any(low <= sequence < high for low, high in timeline.gaps):
                continue
            try:
                told = json.loads(segment.payload(index))
                found.append(_explain(state, sequence, told, _asked(segment, decoder, index)))
            except (ValueError, KeyError, TypeError, IndexError):
                continue  # damage that no checksum covers
    return found


def explain_refusal(timeline: Timeline, sequence: int) -> RefusalExplained | None:
    """The refusal of event `sequence`, to which the timeline is moved; None where that event is none,
    or lies in a damaged part."""
    trace = timeline.trace
    segment = trace.segment_of(sequence)
    index = sequence - segment.first_sequence
    if not segment.good[index] or int(segment.records["kind"][index]) != Kind.REFUSAL:
        return None
    state = timeline.seek(sequence)
    if any(low <= sequence < high for low, high in timeline.gaps):
        return None
    try:
        told = json.loads(segment.payload(index))
        operation = _asked(segment, decoder_for(trace, segment), index)
        return _explain(state, sequence, told, operation)
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # damage that no checksum covers


def _asked(segment: SegmentReader, decoder: Decoder, index: int) -> Any:
    """The operation that a refusal answers; None when it cannot be read."""
    for before in range(index - 1, max(-1, index - 64), -1):
        if FIRST_OPERATION <= int(segment.records["kind"][before]) <= LAST_OPERATION:
            return decoder.body(before) if segment.good[before] else None
    return None


def _explain(
    state: ArenaState, sequence: int, told: dict[str, Any], operation: Any
) -> RefusalExplained:
    names = [band.name for band in state.bands]
    demand = [int(pages) for pages in told["demand"]]
    live = [int(pages) for pages in told["live"]]
    fixed = [
        _physical(band, hull) for band, hull in zip(state.bands, told["fixed"], strict=True)
    ]
    held = [there + pages for there, pages in zip(held_pages(state), demand, strict=True)]
    wanted = [pages - spare for pages, spare in zip(held, evictable_pages(state), strict=True)]
    top = packed_top(state, wanted, [None] * len(names))
    assert top is not None, "nothing is in the way where nothing is fixed"
    if top <= state.total_bytes and told["reason"] == "memory":
        # What an admission would have matched cannot go for it; a trace does not tell what that was.
        wanted, top = held, packed_top(state, held, [None] * len(names)) or top
    short = max(0, top - state.total_bytes)
    asking = getattr(operation, "request", None)
    options = _cures(state, wanted, short, asking)
    asked = ", ".join(f"{n} of {name}" for n, name in zip(demand, names, strict=True) if n)
    why = f"the packed layout exceeds the arena by {short:,} bytes"
    if not short:
        why = "pages that cannot move are in the way" + (
            " (the gate is closed)" if state.gate_closed else ""
        )
    text = (
        f"Event {sequence:,}: {asked} more pages were refused ({told['reason']}): {why}. "
        f"What would have let it in: {'; or '.join(str(option) for option in options)}."
    )
    return RefusalExplained(
        sequence,
        str(told["reason"]),
        "" if operation is None else str(operation.kind),
        dict(zip(names, demand, strict=True)),
        dict(zip(names, live, strict=True)),
        {band.name: band.extent for band in state.bands},
        dict(zip(names, fixed, strict=True)),
        short,
        options,
        text,
    )


def _physical(band: BandState, hull: list[int] | None) -> Hull | None:
    """A hull of the allocator's places as physical pages."""
    if hull is None:
        return None
    one, other = (band.first_page + band.direction * place for place in (hull[0], hull[1] - 1))
    return min(one, other), max(one, other) + 1


def _cures(state: ArenaState, wanted: list[int], short: int, asking: int | None) -> list[Cure]:
    leases, closed = list(state.pins), state.gate_closed
    found = []
    if closed and serves(state, wanted, hulls(state, gate_closed=False, leases=leases)):
        found.append(Cure("gate", 0))
    ended = _leases(state, wanted)
    if ended is not None:
        found.append(ended)
    released = _release(state, wanted, asking)
    if released is not None:
        found.append(released)
    if short:
        found.append(Cure("arena", short))
    if not found:
        found.append(Cure("gate" if closed else "lease end", 0, [] if closed else leases))
    return sorted(found, key=lambda cure: cure.bytes)


def _leases(state: ArenaState, wanted: list[int]) -> Cure | None:
    """The lease, or else all of them, whose end lets the demand in. Pages that only they keep from
    reuse are free then."""
    by_bytes = sorted(
        (pin.virtual.size * state.bands[pin.band].page_bytes, number)
        for number, pin in state.pins.items()
    )
    closed = state.gate_closed
    tries = [([number], size) for size, number in by_bytes[:LEASES_MAX]]
    if len(by_bytes) > 1:
        tries.append((sorted(state.pins), sum(size for size, _ in by_bytes)))
    for ended, size in tries:
        kept = [number for number in state.pins if number not in ended]
        pages = list(wanted)
        for band in state.bands:
            freed = (band.state == PENDING) & (band.pins > 0)
            for number in kept:
                if state.pins[number].band == band.index:
                    freed[state.pins[number].physical - band.base] = False
            pages[band.index] -= int(np.count_nonzero(freed))
        if serves(state, pages, hulls(state, gate_closed=closed, leases=kept)):
            return Cure("lease end", size, ended)
    return None


def _release(state: ArenaState, wanted: list[int], asking: int | None) -> Cure | None:
    """The smallest request whose release lets the demand in, or else the largest ones together. The
    request that asks is not among them."""
    owners = Owners(state)
    # Who asks is not released; nor is the prefix cache, which gives up what it can by itself.
    others = np.flatnonzero(
        (owners.requests != (-1 if asking is None else asking)) & (owners.requests >= 0)
    )
    if not others.size:
        return None
    pinned = hulls(state, gate_closed=False, leases=list(state.pins))
    alone = owners.fit_without_one(wanted, pinned)[others]
    if alone.any():
        rows = others[alone]
        row = int(rows[np.argmin(owners.bytes[rows])])
        return Cure("release", int(owners.bytes[row]), [int(owners.requests[row])])
    order = others[np.argsort(-owners.bytes[others], kind="stable")]
    together = np.flatnonzero(owners.fit_without_many(order, wanted, pinned))
    if not together.size:
        return None
    gone = order[: int(together[0]) + 1]
    return Cure("release", int(owners.bytes[gone].sum()), sorted(owners.requests[gone].tolist()))
