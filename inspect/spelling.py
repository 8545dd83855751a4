"""Events in words, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect.decode import Event, Mark, Note, Stack, Violation
from bandscope.inspect.operation_codec import told_fields


def spell_runs(pages: Sequence[int] | np.ndarray, most: int = 6) -> str:
    """Page numbers in a few characters, runs in either direction as one: `3, 7..12, 20..14`, and how
    many more there are."""
    numbers = np.asarray(pages, np.int64)
    if not numbers.size:
        return "none"
    steps = np.diff(numbers)
    spelled: list[str] = []
    at = 0
    while at < numbers.size and len(spelled) < most:
        last = at
        if at < steps.size and abs(int(steps[at])) == 1:
            other = np.flatnonzero(steps[at:] != steps[at])
            last = at + (int(other[0]) if other.size else steps.size - at)
        spelled.append(str(numbers[at]) if last == at else f"{numbers[at]}..{numbers[last]}")
        at = last + 1
    left = numbers.size - at
    return ", ".join(spelled) + (f" and {left:,} more" if left else "")


def spell_event(body: Any) -> str:
    """What an event says, in one line without its kind."""
    match body:
        case events.LeaseBegin():
            lease = f", lease {body.lease}" if body.lease else ""
            return (
                f"{body.band}: {_holder(body.holder, 'hold')} {spell_runs(body.virtual)} at "
                f"{spell_runs(body.physical)}{lease}"
            )
        case events.LeaseEnd():
            lease = f", lease {body.lease}" if body.lease else ""
            return f"{body.band}: {_holder(body.holder, 'drop')} {spell_runs(body.virtual)}{lease}"
        case events.PageMove():
            urgent = ", urgent" if body.urgent else ""
            return (
                f"{body.band}: {spell_runs(body.virtual)} from {spell_runs(body.sources)} to "
                f"{spell_runs(body.destinations)}{urgent}"
            )
        case events.BandMove():
            return (
                f"{body.band}: bytes {body.before[0]:,}..{body.before[1]:,} → "
                f"{body.after[0]:,}..{body.after[1]:,} ({body.why})"
            )
        case events.Pending():
            return f"{body.band}: pages {spell_runs(body.pages)} wait for ticket {body.ticket}"
        case events.Reclaim():
            return f"{body.band}: pages {spell_runs(body.pages)} are holes now"
        case events.Barrier():
            return f"{body.kind} behind ticket {body.ticket}: {body.why}"
        case events.Launched() | events.Done():
            return f"ticket {body.ticket}"
        case events.Publish():
            return f"{body.band}: {body.rows} rows"
        case events.Refusal():
            return f"{body.reason}: demand {list(body.demand)} beside {list(body.live)} held pages"
        case Outcome():
            if not body.ok:
                return f"refused ({body.reason}): {body.message}"
            return "done" if body.value is None else f"done, {body.value}"
        case Stack():
            return " < ".join(frame.rpartition("/")[2] for frame in body.frames)
        case Mark():
            return body.what
        case Note():
            return body.text
        case Violation():
            return f"{body.name}: {body.detail}"
        case events.Share():
            return (
                f"request {body.request}: its pages from {body.first_page:,} on are the cache's "
                f"{spell_runs(body.virtual)}"
            )
        case events.Graft():
            return (
                f"{body.band}: {spell_runs(body.virtual)} of request {body.request} became the cache's "
                f"{spell_runs(body.into)}"
            )
        case events.Eviction():
            return f"{list(body.counts)} cached pages go for a demand of {list(body.demand)}"
        case events.StateCopy():
            return (
                f"{body.band}: {body.source} at {body.from_page} copied to {body.destination} at "
                f"{body.to_page} ({body.why})"
            )
    told = ((name, value) for name, value in event_fields(body).items() if value is not None)
    return ", ".join(f"{name} {_spell(name, value)}" for name, value in told)


def _spell(name: str, value: Any) -> str:
    if name == "key":
        return f"of {len(value):,}"
    if name in ("requests", "virtual", "pages"):
        return spell_runs(value)
    return str(list(value)) if isinstance(value, tuple) else str(value)


def who(holder: int | str) -> str:
    """Whoever holds pages, in words."""
    if holder == events.CACHE:
        return "the cache"
    return f"request {holder}" if isinstance(holder, int) else str(holder)


def _holder(holder: events.Holder, verb: str) -> str:
    if isinstance(holder, np.ndarray) and holder.size != 1:
        return f"requests {spell_runs(np.unique(holder))} {verb}"
    if isinstance(holder, np.ndarray):
        holder = int(holder[0])
    return f"{who(holder)} {verb}s"


def event_fields(body: Any) -> dict[str, Any]:
    """The fields of an event's body, as they are."""
    if isinstance(body, Operation):
        return told_fields(body)
    return {name: getattr(body, name) for name in body.__dataclass_fields__}


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as plain data (arrays are left to `reader.as_json`)."""
    return {
        "sequence": event.sequence,
        "time_ns": event.time_ns,
        "operation": event.operation if event.operation >= 0 else None,
        "kind": event.kind,
        "fields": event_fields(event.body),
    }
