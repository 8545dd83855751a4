"""The invariants of the prefix cache's events: what it takes over, gives up and copies.

Each function looks at an event before a `CheckedTimeline` applies it, like the methods there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator.events import CACHE
from bandscope.inspect.spelling import who

if TYPE_CHECKING:
    from bandscope.inspect.checks.checked_timeline import CheckedTimeline

_U32 = 0xFFFFFFFF


def check_share(
    timeline: CheckedTimeline, index: int, flags: int, band: int, a: int, b: int, c: int
) -> None:
    """The pages are held, by the cache or by the request that gives them; they follow on those that it
    shares already."""
    timeline.effects += 1
    state = timeline.state
    full = state.bands[state.full]
    virtual = timeline.virtual_pages(index)
    physical = full.page_of[virtual]
    if (physical < 0).any():
        lost = state.name(state.full, int(virtual[physical < 0][0]))
        raise ValueError(f"request {b} shares page {lost}, which nobody holds")
    owners = full.owner[physical - full.base]
    strange = (owners != CACHE) & (owners != b)
    if strange.any():
        page, holder = int(virtual[strange][0]), int(owners[strange][0])
        timeline.broken(
            "ownership", full.name,
            f"the cache took page {state.name(state.full, page)} from request {b}, but {who(holder)} "
            "holds it",
        )  # fmt: skip
    known = len(state.shared.get(b, ()))
    if c != known:
        what = f"request {b} shares pages from its page {c} on, but it shared {known} before"
        timeline.broken("ownership", full.name, what)


def check_graft(
    timeline: CheckedTimeline, index: int, flags: int, band: int, a: int, b: int, c: int
) -> None:
    """The pages of the request are held in a window band, by it; those of the cache, which the request
    shares, are not."""
    timeline.effects += 1
    state = timeline.state
    of_band, full = state.bands[band], state.bands[state.full]
    virtual, into = timeline.page_lists(index)
    if band in (state.full, state.state_band):
        raise ValueError(f"pages were grafted in {of_band.name}, which is no window")
    for pages in (virtual, into):
        if pages.size != virtual.size or np.unique(pages).size < pages.size:
            raise ValueError(f"pages {virtual.tolist()} were grafted into {into.tolist()}")
    places = of_band.page_of[virtual]
    if (places < 0).any():
        lost = state.name(band, int(virtual[places < 0][0]))
        raise ValueError(f"page {lost} was grafted, but nobody holds it")
    bound = of_band.page_of[into]
    if (bound >= 0).any():
        there = state.name(band, int(into[bound >= 0][0]))
        where = int(bound[bound >= 0][0])
        raise ValueError(f"a page was grafted into {there}, which lies at physical page {where}")
    owners = of_band.owner[places - of_band.base]
    strange = owners != b
    if strange.any():
        page, holder = state.name(band, int(virtual[strange][0])), who(int(owners[strange][0]))
        what = f"page {page} of request {b} was grafted, but {holder} holds it"
        timeline.broken("ownership", of_band.name, what)
    held = full.page_of[into]
    astray = (held < 0) | (full.owner[held - full.base] != CACHE)
    if astray.any():
        page = state.name(band, int(into[astray][0]))
        what = f"a page was grafted into {page}, which is not the cache's"
        timeline.broken("ownership", of_band.name, what)
    elif not np.isin(into, state.shared.get(b, into[:0])).all():
        what = f"a page of request {b} was grafted into one that it does not share"
        timeline.broken("ownership", of_band.name, what)


def check_state_copy(
    timeline: CheckedTimeline, index: int, flags: int, band: int, a: int, b: int, c: int
) -> None:
    """Both slots lie where the copy says, and are two."""
    timeline.effects += 1
    state = timeline.state
    of_state = state.bands[band]
    for what, packed in (("from", a), ("to", b)):
        if of_state.page_of.item(packed >> 32) != packed & _U32:
            slot = state.name(band, packed >> 32)
            told = f"a state was copied {what} slot {slot}, which lies elsewhere"
            timeline.broken("tables", of_state.name, told)
    if a >> 32 == b >> 32:
        timeline.broken("tables", of_state.name, "a state was copied onto itself")
    if of_state.owner.item((b & _U32) - of_state.base) == CACHE != of_state.owner.item(
        (a & _U32) - of_state.base
    ):
        return  # a checkpoint
    if of_state.owner.item((a & _U32) - of_state.base) != CACHE:
        timeline.broken("ownership", of_state.name, "a match copied a state that is not the cache's")


def check_eviction(
    timeline: CheckedTimeline, index: int, flags: int, band: int, a: int, b: int, c: int
) -> None:
    """An effect; what goes is looked at where its leases end."""
    timeline.effects += 1


def given_up(timeline: CheckedTimeline, band: int, virtual: Any) -> None:
    """The cache gives up pages: nobody pins them, and of the band of full attention nobody uses
    them (a window may have moved on)."""
    state = timeline.state
    of_band = state.bands[band]
    pinned = of_band.pins[of_band.page_of[virtual] - of_band.base] > 0
    if pinned.any():
        held = state.name(band, int(virtual[pinned][0]))
        timeline.broken("pins", of_band.name, f"the cache gave up page {held}, which is pinned")
    if band != state.full:
        return
    used = virtual[state.users[virtual] > 0]
    if used.size:
        page, users = int(used[0]), state.users_of(int(used[0]))
        timeline.broken(
            "ownership", of_band.name,
            f"the cache gave up page {state.name(band, page)}, which request {users[0]} uses",
        )  # fmt: skip
