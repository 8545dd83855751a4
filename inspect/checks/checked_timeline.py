"""A timeline that looks at every event before it applies it, and says which invariant it breaks.

Checks at an event look at the pages that it touches; the whole state is looked at at keyframes and at
the end. Nothing here uses the allocator's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.allocator.events import CACHE
from bandscope.inspect import format as form
from bandscope.inspect import timeline as timelines
from bandscope.inspect.checks.cache_events import (
    check_eviction,
    check_graft,
    check_share,
    check_state_copy,
    given_up,
)
from bandscope.inspect.checks.whole_state import state_findings
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.spelling import who
from bandscope.inspect.state import BandState
from bandscope.inspect.timeline import Timeline

_U32 = 0xFFFFFFFF
_CHUNK = 16_384  # records turned into numbers at a time
# What applying a record raises that makes no sense.
_IMPLAUSIBLE = (IndexError, ValueError, KeyError, TypeError, OverflowError)
# Findings are kept up to this many; a broken trace may break something at every event.
FINDINGS_MAX = 1000


@dataclass(frozen=True)
class Finding:
    """A broken invariant: `name` as DESIGN.md names it (`keyframe`: the state that a keyframe tells is
    not what the events before it lead to), the event at which it was seen, and how, in words."""

    name: str
    sequence: int
    band: str
    detail: str

    def __str__(self) -> str:
        where = f" in {self.band}" if self.band else ""
        return f"{self.name}{where} at event {self.sequence:,}: {self.detail}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class CheckedTimeline(Timeline):
    """Goes forwards only. `findings`: what was broken; `double_owners`: (band, virtual page, owner,
    second owner, event)."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.findings: list[Finding] = []
        self.double_owners: list[tuple[str, int, int, int, int]] = []
        config = trace.header["arena"]["config"]
        self._max_moves = int(config["max_moves"])
        self._sequence = 0
        self.effects = 0  # how many, of the operation that runs
        self._moved: dict[int, int] = {}  # pages that it moved, by band
        self._outside: list[tuple[int, Any]] = []  # pages that it took outside of extents

    def broken(self, name: str, band: str, detail: str) -> None:
        """An invariant is broken at the event that is looked at."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(name, self._sequence, band, detail))

    def _apply(self, segment: SegmentReader, first: int, last: int) -> None:
        base = segment.first_sequence
        checks, appliers = _CHECKS, timelines.APPLIERS
        first_operation, last_operation = int(form.FIRST_OPERATION), int(form.LAST_OPERATION)
        for low in range(first, last, _CHUNK):
            records = segment.records[low : min(low + _CHUNK, last)]
            columns = [records[name].tolist() for name in ("kind", "flags", "band", "a", "b", "c")]
            index = low
            for kind, flags, band, a, b, c in zip(*columns, strict=True):
                if first_operation <= kind <= last_operation:
                    self._operation = (kind, index)
                    self.state.time_ns = a
                    self.effects = 0
                else:
                    check = checks.get(kind)
                    if check is not None:
                        self._sequence = base + index
                        try:
                            check(self, index, flags, band, a, b, c)
                            applier = appliers.get(kind)
                            if applier is not None:
                                applier(self, index, flags, band, a, b, c)
                        except _IMPLAUSIBLE as error:
                            what = f"the event cannot be applied: {type(error).__name__}: {error}"
                            self.broken("tables", "", what)
                index += 1
            self.state.sequence = base + index

    # --- operations -----------------------------------------------------------------------------------

    def _check_outcome(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        if self.effects and not flags & form.OK:
            self.broken("atomic", "", f"a refused operation had {self.effects} effects")
        if self._outside:
            for number, pages in self._outside:
                bands = self.state.bands[number]
                inside = bands.slice
                astray = (pages < inside.start) | (pages >= inside.stop)
                if np.any(astray & (bands.state[pages] == LIVE)):
                    self.broken(
                        "conservation", bands.name, "a page was handed out outside of the extent"
                    )
            self._outside = []
        if self._moved:
            self._check_caps()
            self._moved = {}

    def _check_caps(self) -> None:
        if self._operation is None or self._operation[0] != Kind.COMPACT:
            return
        asked = self._segment.records[self._operation[1]]  # type: ignore[union-attr]
        if int(asked["flags"]) & form.URGENT:
            return
        cap = self._max_moves if int(asked["b"]) < 0 else int(asked["b"])
        for number, moved in self._moved.items():
            if moved > cap:
                what = f"an opportunistic pass moved {moved} pages, but its cap is {cap}"
                self.broken("caps", self.state.bands[number].name, what)

    # --- pages ----------------------------------------------------------------------------------------

    def _check_lease_begin(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        bands = self.state.bands[band]
        if flags & form.INLINE:
            page = (a & _U32) - bands.base
            before = bands.state.item(page)
            fresh = bands.page_of.item(a >> 32) < 0 and (before == HOLE or before == GAP)
            if before == GAP:
                self._outside.append((band, page))
            if page >= 0 and fresh and not bands.pins.item(page):
                return
            virtuals, pages, holders = np.array([a >> 32]), np.array([page]), np.array([b])
        else:
            virtuals, physical, *each = self._decoder.pages(index)  # type: ignore[union-attr]
            pages = physical - bands.base
            if flags & form.PIN:
                self._check_pin(bands, virtuals, physical, c)
                return
            holders = each[0] if each else np.broadcast_to(np.int64(b), virtuals.shape)
        self._check_taken(band, bands, virtuals, pages, holders)

    def _check_taken(
        self, band: int, bands: BandState, virtuals: Any, pages: Any, holders: Any
    ) -> None:
        name = bands.name
        if virtuals.min(initial=0) < 0:
            self.broken("ids", name, "a virtual page below 0 was handed out")
        if pages.min(initial=0) < 0 or pages.max(initial=0) >= bands.capacity:
            self.broken("order", name, "a page in the sink or beyond the arena was handed out")
            return
        if pages.size > 1 and (np.diff(np.sort(pages)) == 0).any():
            self.broken("ownership", name, "one page was handed out twice at once")
        bound = bands.page_of[virtuals] >= 0
        before = bands.state[pages]
        for at in np.flatnonzero(bound | (before == LIVE))[:8].tolist():
            virtual = int(virtuals[at])
            page = int(bands.page_of[virtual]) - bands.base if bound[at] else int(pages[at])
            first, second = int(bands.owner[page]), int(holders[at])
            self.double_owners.append((name, virtual, first, second, self._sequence))
            self.broken(
                "ids" if bound[at] else "ownership", name,
                f"page {self.state.name(band, virtual)} (physical {int(pages[at]) + bands.base}) was "
                f"handed out to {who(second)} while {who(first)} holds it",
            )  # fmt: skip
        pinned = bands.pins[pages] > 0
        if pinned.any():
            page = int(pages[pinned][0]) + bands.base
            self.broken("pins", name, f"pinned physical page {page} was handed out")
        if (early := (before == PENDING) & ~pinned).any():
            page = int(pages[early][0]) + bands.base
            self.broken("conservation", name, f"pending physical page {page} was handed out")
        if (before == GAP).any():
            self._outside.append((band, pages[before == GAP]))

    def _check_pin(self, bands: BandState, virtuals: Any, physical: Any, number: int) -> None:
        if number in self.state.pins:
            self.broken("pins", bands.name, f"lease {number} began twice")
        if (bands.page_of[virtuals] != physical).any():
            self.broken("tables", bands.name, f"lease {number} names pages that lie elsewhere")

    def _check_lease_end(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        bands = self.state.bands[band]
        if flags & form.PIN:
            if c not in self.state.pins:
                self.broken("pins", bands.name, f"lease {c} ended, but it is not held")
            return
        holders: Any = b
        if flags & form.INLINE:
            virtuals = np.array([a])
            page = bands.page_of.item(a)
            if page >= 0 and bands.owner.item(page - bands.base) == b != CACHE:
                return
        else:
            virtuals, *each = self._decoder.pages(index)  # type: ignore[union-attr]
            holders = each[0] if each else b
        physical = bands.page_of[virtuals]
        if (physical < 0).any():
            virtual = int(virtuals[physical < 0][0])
            name = self.state.name(band, virtual)
            raise ValueError(f"page {name} was given back, but nobody holds it")
        owners = bands.owner[physical - bands.base]
        if (strange := owners != holders).any():
            virtual = int(virtuals[strange][0])
            self.broken(
                "ownership", bands.name,
                f"page {self.state.name(band, virtual)} was given back by another than its owner, "
                f"{who(int(owners[strange][0]))}",
            )  # fmt: skip
        if self.state.has_cache and np.any(owners == CACHE):
            given_up(self, band, virtuals)

    def _check_page_move(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        state = self.state
        bands = state.bands[band]
        virtuals, sources, destinations = self._decoder.pages(index)  # type: ignore[union-attr]
        old, new = sources - bands.base, destinations - bands.base
        if state.gate_closed:
            self.broken("pins", bands.name, f"{virtuals.size} pages moved while the gate is closed")
        if (bands.pins[old] > 0).any() or (bands.pins[new] > 0).any():
            self.broken("pins", bands.name, "a pinned page was moved, or moved onto")
        if (bands.page_of[virtuals] != sources).any():
            self.broken("tables", bands.name, "a move names a page that lies elsewhere")
        kept = bands.state[new]
        if ((kept != HOLE) & (kept != GAP)).any():
            page = int(destinations[(kept != HOLE) & (kept != GAP)][0])
            self.broken("conservation", bands.name, f"a page moved onto page {page}, no hole")
        if np.unique(new).size < new.size:
            self.broken("ownership", bands.name, "two pages moved onto one")
        if (kept == GAP).any():
            self._outside.append((band, new[kept == GAP]))
        self._moved[band] = self._moved.get(band, 0) + virtuals.size

    def _check_band_move(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        state = self.state
        bands = state.bands[band]
        before, after = (a >> 32, a & _U32), (b >> 32, b & _U32)
        if before != bands.extent:
            what = f"its extent was told as pages {before}, but it was {bands.extent}"
            self.broken("order", bands.name, what)
        for low, high in (
            (before[0], min(before[1], after[0])), (max(before[0], after[1]), before[1]),
        ):  # fmt: skip
            if high > low:
                lost = bands.state[low - bands.base : high - bands.base]
                if ((lost == LIVE) | (lost == PENDING)).any():
                    what = f"its extent gave up pages {low} to {high}, some of them live or pending"
                    self.broken("conservation", bands.name, what)
        if after[1] <= after[0]:
            return
        start, stop = after[0] * bands.page_bytes, after[1] * bands.page_bytes
        if start < state.sink_bytes or stop > state.total_bytes:
            self.broken("order", bands.name, f"its extent is bytes {start:,} to {stop:,}")
        for other in state.bands:
            if other.index != band and other.extent[1] > other.extent[0]:
                low, high = other.byte_range()
                if stop > low if other.index > band else start < high:
                    what = f"its bytes {start:,} to {stop:,} reach into {other.name}"
                    self.broken("order", bands.name, f"{what}, bytes {low:,} to {high:,}")

    def _check_pending(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        bands = self.state.bands[band]
        pages = self._pages_of(index, flags, a)
        if np.any(bands.state[pages - bands.base] == LIVE):
            self.broken("conservation", bands.name, "a live page was told to be pending")
        if b > self.state.issued:
            self.broken("happens_before", bands.name, f"pages wait for ticket {b}, never issued")

    def _check_reclaim(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        state, bands = self.state, self.state.bands[band]
        at = self._pages_of(index, flags, a) - bands.base
        if np.any(bands.state[at] != PENDING):
            self.broken("conservation", bands.name, "a page that was not pending became a hole")
        if np.any(bands.pins[at] > 0):
            self.broken("pins", bands.name, "a pinned page became a hole")
        settled = max(state.ordered_through, min(state.in_flight, default=state.issued + 1) - 1)
        if (stamp := int(np.max(bands.ticket[at], initial=0))) > settled:
            what = f"pages that wait for ticket {stamp} became holes, settled is only {settled}"
            self.broken("happens_before", bands.name, what)

    def _pages_of(self, index: int, flags: int, a: int) -> Any:
        return a if flags & form.INLINE else self._decoder.pages(index)[0]  # type: ignore[union-attr]

    def virtual_pages(self, index: int) -> Any:
        """The first list of pages of a record, as an array."""
        return self.page_lists(index)[0]

    def page_lists(self, index: int) -> list[Any]:
        """The lists of pages of a record, as arrays."""
        return self._decoder.pages(index)  # type: ignore[union-attr]

    # --- the rest -------------------------------------------------------------------------------------

    def _check_launched(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        if a != self.state.issued + 1:
            what = f"forward {a} was launched after forward {self.state.issued}"
            self.broken("happens_before", "", what)

    def _check_done(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        if a not in self.state.in_flight:
            self.broken("happens_before", "", f"ticket {a} completed, but it was not in flight")

    def _check_barrier(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        if a > self.state.issued:
            self.broken("happens_before", "", f"a barrier waits for ticket {a}, never issued")

    def _check_publish(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        self.effects += 1
        bands = self.state.bands[band]
        rows = bands.unpublished_rows().size
        if rows != a:
            what = f"{a} rows were published, but {rows} had changed"
            self.broken("tables", bands.name, what)

    def _check_keyframe(self, index: int, flags: int, band: int, a: int, b: int, c: int) -> None:
        snapshot = self._snapshot(self._segment, index)  # type: ignore[arg-type]
        if snapshot is not None:
            for what in self.state.differences(snapshot):
                self.broken("keyframe", "", f"the events before lead elsewhere: {what}")
        self.check_state()

    def check_nothing_is_held(self) -> None:
        """At the end of a run: every page was given back, every lease has ended."""
        self._sequence = max(0, self.state.sequence - 1)
        for band in self.state.bands:
            # What the prefix cache owns stays for the requests to come.
            held = band.owner[(band.state == LIVE) & (band.owner != CACHE)]
            if held.size:
                owners = np.unique(held).tolist()
                told = ", ".join(str(owner) for owner in owners[:8])
                self.broken(
                    "ownership", band.name,
                    f"{held.size} pages were never given back (leak), by {len(owners)} requests: {told}",
                )  # fmt: skip
        for pin in self.state.pins.values():
            what = f"lease {pin.number} of {pin.holder} never ended (leak)"
            self.broken("ownership", self.state.bands[pin.band].name, what)

    def check_state(self) -> None:
        """Look at the whole state."""
        for name, band, detail in state_findings(self.state):
            self.broken(name, band, detail)


_Check = Callable[[CheckedTimeline, int, int, int, int, int, int], None]
_CHECKS: dict[int, _Check] = {
    Kind.OUTCOME: CheckedTimeline._check_outcome,
    Kind.LEASE_BEGIN: CheckedTimeline._check_lease_begin,
    Kind.LEASE_END: CheckedTimeline._check_lease_end,
    Kind.PAGE_MOVE: CheckedTimeline._check_page_move,
    Kind.BAND_MOVE: CheckedTimeline._check_band_move,
    Kind.PENDING: CheckedTimeline._check_pending,
    Kind.RECLAIM: CheckedTimeline._check_reclaim,
    Kind.LAUNCHED: CheckedTimeline._check_launched,
    Kind.DONE: CheckedTimeline._check_done,
    Kind.PUBLISH: CheckedTimeline._check_publish,
    Kind.BARRIER: CheckedTimeline._check_barrier,
    Kind.KEYFRAME: CheckedTimeline._check_keyframe,
    Kind.SHARE: check_share,
    Kind.GRAFT: check_graft,
    Kind.STATE_COPY: check_state_copy,
    Kind.EVICTION: check_eviction,
}
