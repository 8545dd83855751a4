"""What a campaign must have met at least once, or it has not looked where arenas break.

A night that reports no find and never closed the gate under a forward has proved little. Every goal
is a predicate on a `Moment`; those that were never reached are named in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bandscope.fuzz import coverage_cache as cache
from bandscope.fuzz.coverage import (
    FULL,
    INNER_WINDOW,
    LEAPFROGGED,
    MANY,
    ONE,
    PAGE,
    PAGE_LESS_ONE,
    PAGE_MORE_ONE,
    SETTLE_BARRIER,
    SHIFTED,
    STATE,
    TABLE_BARRIER,
    WINDOW,
    ZERO,
    Moment,
)

Goal = Callable[[Moment], bool]

TAKES = ("Admit", "Extend", "Decode", "Reserve")


def _urgent_compaction(m: Moment) -> bool:
    return m.kind == "Compact" and m.urgent and bool(m.moved)


def _quiet_compaction(m: Moment) -> bool:
    return m.kind == "Compact" and not m.urgent and bool(m.moved)


def _made_room(m: Moment) -> bool:
    return m.kind in TAKES and not m.reason and bool(m.moved)


GOALS: dict[str, Goal] = {
    # Refusals, each for its own reason and under every kind of operation that takes pages.
    "an admission was refused for memory": lambda m: m.kind == "Admit" and m.reason == "memory",
    "a prefill chunk was refused for memory": lambda m: m.kind == "Extend" and m.reason == "memory",
    "a decode was refused for memory": lambda m: m.kind == "Decode" and m.reason == "memory",
    "a reservation was refused for memory": lambda m: m.kind == "Reserve" and m.reason == "memory",
    "a refusal because the gate was closed": lambda m: m.reason == "gate",
    "a refusal because of pins": lambda m: m.reason == "pins",
    "a refusal with forwards in flight": lambda m: m.reason == "memory" and m.flight == 2,
    "a refusal with the gate closed and pins held": lambda m: m.reason != "misuse"
    and bool(m.reason) and m.gate and m.pins > 0,
    # Moves that make room.
    "an extend made room by moving": lambda m: m.kind == "Extend" and _made_room(m),
    "a decode made room by moving": lambda m: m.kind == "Decode" and _made_room(m),
    "an admission made room by moving": lambda m: m.kind == "Admit" and _made_room(m),
    "a reservation made room by moving": lambda m: m.kind == "Reserve" and _made_room(m),
    "one operation moved two bands": lambda m: m.moved.bit_count() >= 2,
    "one operation moved three bands": lambda m: m.moved.bit_count() >= 3,
    "room was made beside a pinned page": lambda m: _made_room(m) and m.pins > 0,
    "room was made with a forward in flight": lambda m: _made_room(m) and m.flight >= 1,
    "two forwards were in flight when room was made": lambda m: _made_room(m) and m.flight == 2,
    "making room left the arena exactly full": lambda m: m.full,
    # Floats.
    "a float leapfrogged": lambda m: bool(m.floated & LEAPFROGGED),
    "a float shifted at both ends": lambda m: bool(m.floated & SHIFTED),
    "a float leapfrogged with a forward in flight": lambda m: bool(m.floated & LEAPFROGGED)
    and m.flight >= 1,
    "a float moved beside a pinned page": lambda m: bool(m.floated) and m.pins > 0,
    "an inner window moved": lambda m: bool(m.moved & INNER_WINDOW),
    "two windows moved in one operation": lambda m: m.moved & (WINDOW | INNER_WINDOW)
    == WINDOW | INNER_WINDOW,
    # Compaction.
    "an urgent compaction moved pages": _urgent_compaction,
    "an urgent compaction met a pinned page": lambda m: _urgent_compaction(m) and m.pins > 0,
    "an urgent compaction with two forwards in flight": lambda m: _urgent_compaction(m)
    and m.flight == 2,
    "an opportunistic compaction moved pages": _quiet_compaction,
    "an opportunistic compaction with a forward in flight": lambda m: _quiet_compaction(m)
    and m.flight >= 1,
    "an opportunistic compaction met a pinned page": lambda m: _quiet_compaction(m) and m.pins > 0,
    "a compaction found nothing to move": lambda m: m.kind == "Compact" and not m.moved,
    "a compaction met the closed gate": lambda m: m.kind == "Compact" and m.gate,
    "a compaction was allowed no move": lambda m: m.kind == "Compact" and m.size == ZERO,
    "a compaction was allowed one move": lambda m: m.kind == "Compact" and m.size == ONE
    and bool(m.moved),
    "state slots were compacted": lambda m: m.kind == "Compact" and bool(m.moved & STATE),
    # Tickets and barriers.
    "a completion came out of order": lambda m: m.stale,
    "a completion reclaimed pages of two bands": lambda m: m.kind == "Complete"
    and m.reclaimed.bit_count() >= 2,
    "pending pages were reused behind a barrier": lambda m: m.kind in TAKES
    and bool(m.barriers & SETTLE_BARRIER) and bool(m.reclaimed),
    "a table write waited for a forward's reads": lambda m: m.kind == "Launch"
    and bool(m.barriers & TABLE_BARRIER),
    "a move left its sources pending": lambda m: bool(m.moved) and bool(m.pending),
    "a request was released while in flight": lambda m: m.kind == "Release" and m.flight >= 1
    and bool(m.pending),
    "a window was trimmed while in flight": lambda m: m.kind == "TrimWindow" and m.flight >= 1
    and bool(m.pending),
    # Pins.
    "pages were freed under a pin": lambda m: m.kind == "Release" and m.deferred,
    "a window was trimmed under a pin": lambda m: m.kind == "TrimWindow" and m.deferred,
    "the end of a lease freed pages": lambda m: m.kind == "EndLease" and bool(m.reclaimed),
    "a lease ended with a forward in flight": lambda m: m.kind == "EndLease" and not m.reason
    and m.flight >= 1 and bool(m.pending),
    "a lease began with the gate closed": lambda m: m.kind == "Lease" and not m.reason and m.gate,
    # Sizes at the edges.
    "an extend of no token": lambda m: m.kind == "Extend" and m.size == ZERO and not m.reason,
    "an extend of one token took a page": lambda m: m.kind == "Extend" and m.size == ONE
    and bool(m.taken),
    "an extend of a page less one": lambda m: m.kind == "Extend" and m.size == PAGE_LESS_ONE,
    "an extend of exactly a page": lambda m: m.kind == "Extend" and m.size == PAGE,
    "an extend of a page and one": lambda m: m.kind == "Extend" and m.size == PAGE_MORE_ONE,
    "a decode of one request took a page": lambda m: m.kind == "Decode" and m.size == ONE
    and bool(m.taken),
    "a decode of many took pages": lambda m: m.kind == "Decode" and m.size == MANY
    and bool(m.taken & FULL),
    "a request without state was admitted": lambda m: m.kind == "Admit" and m.size == ZERO
    and not m.reason,
    "a request with several state slots was admitted": lambda m: m.kind == "Admit"
    and m.size == MANY and not m.reason and bool(m.taken & STATE),
    "an empty batch": lambda m: m.kind in ("Decode", "Launch", "TrimWindow") and m.size == ZERO
    and not m.reason,
    # Every number of bands moved something.
    **{
        f"pages moved in an arena of {count} bands": (
            lambda m, count=count: m.bands == count and bool(m.moved)  # type: ignore[misc]
        )
        for count in (2, 3, 4, 5)
    },
    # The prefix cache: what a match found.
    "a prefix was found": lambda m: bool(m.cache & cache.MATCHED),
    "a part of a prefix was found": lambda m: bool(m.cache & cache.PARTIAL),
    "a match was limited": lambda m: bool(m.cache & cache.LIMITED),
    "nothing of a prefix was found": lambda m: bool(m.cache & cache.UNMATCHED),
    "a match copied a state": lambda m: bool(m.cache & cache.WITH_STATE),
    "a match copied a state with forwards in flight": lambda m: bool(m.cache & cache.WITH_STATE)
    and m.flight > 0,
    "a match lacked window pages": lambda m: bool(m.cache & cache.LACKS_WINDOW),
    "a match lacked a state": lambda m: bool(m.cache & cache.LACKS_STATE),
    "a match cut a node": lambda m: bool(m.cache & cache.SPLIT),
    "a prefix was shared by several": lambda m: bool(m.cache & cache.SHARERS),
    "who was retracted found its prefix again": lambda m: bool(m.cache & cache.FOUND_AGAIN),
    "a match with the gate closed": lambda m: bool(m.cache & cache.MATCHED) and m.gate,
    # What was published.
    "a duplicate was freed": lambda m: bool(m.cache & cache.DUPLICATE),
    "a duplicate was freed while in flight": lambda m: bool(m.cache & cache.DUPLICATE)
    and m.flight > 0 and bool(m.pending),
    "a duplicate was freed under a pin": lambda m: bool(m.cache & cache.DUPLICATE) and m.deferred,
    "window pages were grafted": lambda m: bool(m.cache & cache.GRAFTED),
    "window pages were grafted while others hold the page": lambda m: bool(
        m.cache & cache.GRAFTED_SHARED
    ),
    "window pages were grafted while a forward in flight writes them": lambda m: bool(
        m.cache & cache.GRAFTED_IN_FLIGHT
    ),
    "window pages were grafted under a pin": lambda m: bool(m.cache & cache.GRAFTED_PINNED),
    "a publication with the gate closed": lambda m: m.kind == "Publish" and m.gate,
    "a shared window was trimmed": lambda m: bool(m.cache & cache.SHARED_TRIM),
    "a cached prefix outlived its request": lambda m: bool(m.cache & cache.OUTLIVES),
    "a pin kept a cached prefix after its request": lambda m: bool(m.cache & cache.PIN_KEEPS),
    # Checkpoints.
    "a state was kept": lambda m: bool(m.cache & cache.CHECKPOINT),
    "a state was kept with forwards in flight": lambda m: bool(m.cache & cache.CHECKPOINT)
    and m.flight > 0,
    "a state was there already": lambda m: bool(m.cache & cache.CHECKPOINT_THERE),
    "a checkpoint stalled": lambda m: bool(m.cache & cache.STALL),
    "a checkpoint made room by moving": lambda m: bool(m.cache & cache.CHECKPOINT)
    and bool(m.moved),
    # What was evicted.
    **{
        f"cached pages of {name} were evicted": (
            lambda m, role=role: bool(m.evicted & role)  # type: ignore[misc]
        )
        for name, role in (
            ("full attention", FULL), ("a window", WINDOW), ("an inner window", INNER_WINDOW),
            ("state", STATE),
        )
    },
    **{
        f"{kind} evicted cached pages": (
            lambda m, kind=kind: m.kind == kind and bool(m.evicted)  # type: ignore[misc]
        )
        for kind in (*TAKES, "Checkpoint", "Evict")
    },
    "cached pages were evicted with the gate closed": lambda m: bool(m.evicted) and m.gate
    and m.kind != "Evict",
    "cached pages were evicted beside a pinned page": lambda m: bool(m.evicted) and m.pins > 0,
    "cached pages were evicted with a forward in flight": lambda m: bool(m.evicted)
    and m.flight > 0 and bool(m.pending),
    "cached pages were evicted and pages moved": lambda m: bool(m.evicted) and bool(m.moved),
    "the cache was emptied": lambda m: bool(m.cache & cache.EMPTIED),
    # Misuse.
    **{
        f"a wrong {kind} was refused": (
            lambda m, kind=kind: m.kind == kind and m.reason == "misuse"  # type: ignore[misc]
        )
        for kind in (
            "Admit", "Extend", "Decode", "TrimWindow", "Release", "Launch", "Complete", "Compact",
            "Reserve", "Lease", "EndLease", "Publish", "Checkpoint", "Evict",
        )
    },
}  # fmt: skip


def missed(moments: Iterable[Moment]) -> list[str]:
    """The goals that none of these moments reaches, in the order above."""
    seen = list(moments)
    return [name for name, reached in GOALS.items() if not any(map(reached, seen))]
