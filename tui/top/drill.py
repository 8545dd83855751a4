"""From a page to its owner and from a request to its pages, as rows that lead there."""

from __future__ import annotations

import numpy as np

from bandscope.allocator.events import CACHE
from bandscope.inspect.spelling import spell_runs
from bandscope.inspect.state import ArenaState
from bandscope.tui.top.snapshot import PageDetails, Row, Touch

_ROWS = 5_000
_USERS = 100


def page_rows(details: PageDetails, band: int, in_flight: tuple[int, ...]) -> list[Row]:
    """What is known of a page, a line each."""
    said: list[Row] = []

    def add(kind: str, text: str, sequence: int = -1) -> None:
        said.append(Row(sequence, -1, kind, text, band=band))

    where = f"physical page {details.page:,} of {details.band}, {details.state}"
    if details.virtual >= 0:
        name = f"{details.band} {details.virtual}.{details.generation}"
        add("Page", f"{name} (virtual page {details.virtual}, generation {details.generation}), {where}")
    else:
        add("Page", where)
    if details.owner >= 0:
        tokens = f", {details.owner_tokens:,} tokens" if details.owner_tokens >= 0 else ""
        text = f"request {details.owner}{tokens}; Enter lists its pages"
        said.append(Row(-1, -1, "Owner", text, opens=("request", details.owner)))
    elif details.owner == CACHE:
        count = len(details.users)
        users = f"; {count:,} requests use it" if count else "; nobody uses it"
        users = "; 1 request uses it" if count == 1 else users
        add("Owner", f"the prefix cache{users if details.shared or details.users else ''}")
        for user in details.users[:_USERS]:
            text = f"request {user} shares it; Enter lists its pages"
            said.append(Row(-1, -1, "User", text, opens=("request", user), request=user))
    for number, holder, since in details.leases:
        when = f"since event {since:,}" if since >= 0 else "since before a keyframe"
        add("Lease", f"lease {number} of {holder} pins it, {when}", since)
    if details.waits_for:
        state = "in flight" if details.waits_for in in_flight else "completed, not reclaimed yet"
        add("Ticket", f"pending until ticket {details.waits_for:,} completes ({state})")
    missing = "not found" if details.complete else "looking"
    missing += f" (back to event {details.looked_back:,})"
    held = details.virtual >= 0
    for kind, touch, wanted in (
        ("Leased", details.leased, held), ("Shared", details.shared, False),
        ("Last move", details.moved, held), ("Last read", details.read, held),
        # Who wrote a page before the cache took it is not followed.
        ("Last write", details.written, held and details.owner != CACHE),
        ("Freed", details.freed, not held and details.state in ("hole", "pending")),
        ("Barrier", details.barrier, details.complete and (held or bool(details.waits_for))),
    ):  # fmt: skip
        if touch is None and wanted:
            add(kind, _nothing(kind, details, in_flight) or missing)
        elif touch is not None:
            add(kind, _spell(touch, in_flight), touch.sequence)
            for frame in touch.stack:
                add("", f"  {frame}", touch.sequence)
    return said


def _nothing(kind: str, details: PageDetails, in_flight: tuple[int, ...]) -> str:
    """What it means that something was not found; empty: that it may lie further back."""
    if kind == "Barrier":
        touches = (details.read, details.written)
        ticket = max([details.waits_for, *(touch.ticket for touch in touches if touch is not None)])
        if not ticket:
            return "none is needed: no forward was found that touched it"
        if ticket not in in_flight:
            return f"none is needed: forward {ticket:,} has completed"
        return f"none waits for forward {ticket:,}, which may still touch it"
    if details.leased is None:
        return ""
    return "none since it was leased" if kind != "Leased" else ""


def _spell(touch: Touch, in_flight: tuple[int, ...]) -> str:
    flying = ", in flight" if touch.ticket in in_flight else ""
    return f"event {touch.sequence:,}: {touch.text}{flying}"


def request_rows(state: ArenaState, request: int) -> list[Row]:
    """A request's pages in every band, neighbours as one row that leads to the first of them; and the
    leases that pin some of them."""
    known = state.requests.get(request)
    if known is None:
        text = f"request {request} holds nothing here"
    else:
        text = f"request {request}: {known.length:,} tokens, {known.launched:,} of them launched"
        if known.last_ticket:
            flying = " (in flight)" if known.last_ticket in state.in_flight else ""
            text += f", last in forward {known.last_ticket:,}{flying}"
    rows = [Row(-1, -1, "Request", text)]
    shared = state.shared.get(request)
    if shared is not None and shared.size:
        full = state.bands[state.full]
        told = f"its first {shared.size:,} pages are the cache's: {spell_runs(shared, 4)}"
        page = int(full.page_of[shared[0]])
        leads = ("cursor", (full.index, page)) if page >= 0 else None
        rows.append(Row(-1, -1, "Shared", told, band=full.index, opens=leads))
    for band in state.bands:
        # In the middle of an operation pages may be leased that the extent does not reach yet.
        pages = np.flatnonzero(band.owner == request) + band.base
        size = int(pages.size)
        total = f"{size:,} pages, {size * band.page_bytes:,} bytes" if size else "none"
        rows.append(Row(-1, -1, band.name, total, band=band.index))
        if not size:
            continue
        virtual = band.virtual[pages - band.base]
        edges = np.flatnonzero(np.diff(pages) != 1) + 1
        starts = np.concatenate(([0], edges))[:_ROWS]
        stops = np.concatenate((edges, [size]))[:_ROWS]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            low, high = int(pages[start]), int(pages[stop - 1])
            where = f"page {low:,}" if low == high else f"pages {low:,} to {high:,}"
            held = spell_runs(virtual[start:stop], 4)
            rows.append(
                Row(-1, -1, "", f"{where}: virtual {held}", band=band.index,
                    opens=("cursor", (band.index, low)))
            )  # fmt: skip
        if edges.size >= _ROWS:
            rows.append(Row(-1, -1, "", "… and more", band=band.index))
        for pin in sorted(state.pins.values(), key=lambda pin: pin.number):
            if pin.band == band.index and bool(np.isin(pin.physical, pages).any()):
                told = f"lease {pin.number} of {pin.holder} pins {spell_runs(pin.virtual, 4)}"
                rows.append(Row(pin.sequence, -1, "Lease", told, band=band.index))
    return rows
