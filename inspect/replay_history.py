"""What the page in question did before a replay differed from its trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bandscope.allocator import events
from bandscope.inspect.decode import read_events
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.selection import band_index, operation_at
from bandscope.inspect.spelling import who
from bandscope.inspect.timeline import Timeline

_KINDS = {
    int(kind)
    for kind in (
        Kind.LEASE_BEGIN, Kind.LEASE_END, Kind.PAGE_MOVE, Kind.PENDING, Kind.RECLAIM,
        Kind.GRAFT,
    )
}  # fmt: skip
# How far back is looked; a page that did nothing for longer has nothing to do with the difference.
_EVENTS_BACK = 1 << 18


@dataclass(frozen=True)
class PageEvent:
    """One thing that happened to a physical page: event `sequence`, in words, and the operation."""

    sequence: int
    what: str
    operation: str


def page_history(trace: Trace, band: str, physical: int, stop: int, most: int = 8) -> list[PageEvent]:
    """The last `most` things that happened to a physical page of a band before event `stop`, oldest
    first; before them what it held when the look begins, where it held something."""
    index = band_index(trace, band)
    timeline = Timeline(trace)
    timeline.advance(trace.start)
    start = max(timeline.state.sequence, stop - _EVENTS_BACK)
    state = timeline.seek(start) if start > timeline.state.sequence else timeline.state
    known = state.bands[index]
    virtual = int(known.virtual[physical - known.base])
    found: list[PageEvent] = []
    if virtual >= 0:
        owner = int(known.owner[physical - known.base])
        held = f"held virtual page {virtual} of {who(owner)}"
        found.append(PageEvent(state.sequence, f"{held} since before", ""))
    for event in read_events(trace, start, stop, _KINDS):
        body = event.body
        if getattr(body, "band", None) != band:
            continue
        what = ""
        match body:
            case events.LeaseBegin():
                at = np.flatnonzero(body.physical == physical)
                if at.size and body.lease:
                    what = f"pinned by {body.holder}, lease {body.lease}"
                elif at.size:
                    virtual = int(body.virtual[at[0]])
                    what = f"leased by {_who(body.holder, int(at[0]))} as virtual page {virtual}"
            case events.LeaseEnd():
                at = np.flatnonzero(body.virtual == virtual)  # virtual pages are ≥ 0
                if at.size and body.lease:
                    what = f"unpinned by {body.holder}, lease {body.lease}"
                elif at.size:
                    what = f"freed by {_who(body.holder, int(at[0]))}, was virtual page {virtual}"
                    virtual = -1
            case events.PageMove():
                left = np.flatnonzero(body.sources == physical)
                came = np.flatnonzero(body.destinations == physical)
                if left.size:
                    what = f"virtual page {virtual} moved away to {int(body.destinations[left[0]])}"
                    virtual = -1
                elif came.size:
                    virtual = int(body.virtual[came[0]])
                    what = f"virtual page {virtual} moved here from {int(body.sources[came[0]])}"
            case events.Graft():
                at = np.flatnonzero(body.virtual == virtual)
                if at.size:
                    was, virtual = virtual, int(body.into[at[0]])
                    of = f"virtual page {was} of request {body.request}"
                    what = f"{of} became the cache's page {virtual}"
            case events.Pending():
                if (body.pages == physical).any():
                    what = f"waits for ticket {body.ticket}"
            case events.Reclaim():
                if (body.pages == physical).any():
                    what = "a hole again"
        if what:
            operation = operation_at(trace, event.operation)
            found.append(PageEvent(event.sequence, what, "" if operation is None else operation.kind))
    return found[-most:]


def _who(holder: events.Holder, place: int) -> str:
    return who(holder if isinstance(holder, int | str) else int(holder[place]))
