"""Illegal calls, one maker per kind that the arena refuses. A refused call must change nothing.

A maker gets the notes and a source of random numbers and returns an operation that is illegal now, or
None when it takes something that is not there (a wrong holder needs a lease).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bandscope.allocator import operations as ops
from bandscope.allocator.handlers import REQUEST_MAX
from bandscope.allocator.operations import Operation
from bandscope.fuzz.generate.notes import Notes, Request

Maker = Callable[[Notes, Random], Operation | None]


def _unknown(notes: Notes, random: Random) -> int:
    """A request that does not run: one that just left, one that never was, a nonsense number."""
    roll = random.random()
    if roll < 0.5 and notes.last_request not in notes.by_number:
        return notes.last_request
    if roll < 0.9:
        return notes.next_request + int(roll * 8)
    return -1 - int(roll * 8)


def _any(notes: Notes, random: Random) -> Request | None:
    running = notes.running
    return running[int(random.random() * len(running))] if running else None


def _admitted_twice(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    return None if request is None else ops.Admit(request.number, int(random.random() * 3))


def _no_number(notes: Notes, random: Random) -> Operation:
    return ops.Admit(random.choice((-1, -7, REQUEST_MAX + 1, 1 << 70)))


def _negative_slots(notes: Notes, random: Random) -> Operation:
    return ops.Admit(notes.next_request, -1 - int(random.random() * 3))


def _extended_unknown(notes: Notes, random: Random) -> Operation:
    return ops.Extend(_unknown(notes, random), int(random.random() * 5))


def _negative_tokens(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None:
        return None
    return ops.Extend(request.number, -1 - int(random.random() * (request.length + 2)))


def _batch(
    kind: type[ops.Decode] | type[ops.TrimWindow] | type[ops.Launch], twice: bool
) -> Maker:
    def make(notes: Notes, random: Random) -> Operation | None:
        numbers = list(notes.numbers)
        if twice:
            request = _any(notes, random)
            if request is None:
                return None
            numbers.append(request.number)
        else:
            numbers.insert(int(random.random() * (len(numbers) + 1)), _unknown(notes, random))
        return kind(tuple(numbers))

    return make


def _released_unknown(notes: Notes, random: Random) -> Operation:
    return ops.Release(_unknown(notes, random), random.choice(("finished", "aborted", "retracted")))


def _completed_twice(notes: Notes, random: Random) -> Operation | None:
    return ops.Complete(notes.last_ticket) if notes.last_ticket else None


def _completed_unknown(notes: Notes, random: Random) -> Operation:
    return ops.Complete(random.choice((0, -1, notes.next_ticket, notes.next_ticket + 1000)))


def _negative_moves(notes: Notes, random: Random) -> Operation:
    return ops.Compact(random.random() < 0.5, -1 - int(random.random() * 3))


def _wrong_length(notes: Notes, random: Random) -> Operation:
    bands = len(notes.bands)
    return ops.Reserve((1,) * random.choice((0, bands - 1, bands + 1, 2 * bands)))


def _negative_demand(notes: Notes, random: Random) -> Operation:
    demand = [int(random.random() * 2) for _ in notes.bands]
    demand[int(random.random() * len(demand))] = -1
    return ops.Reserve(tuple(demand))


def _leased_unknown(notes: Notes, random: Random) -> Operation:
    return ops.Lease(_unknown(notes, random), notes.bands[-1].name, 0, 1)


def _wrong_band(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None:
        return None
    return ops.Lease(request.number, random.choice(("", "window_9999", "Full", "none")), 0, 1)


def _past_the_end(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None:
        return None
    band = notes.bands[int(random.random() * len(notes.bands))]
    held = request.slots if band.kind == "state" else notes.pages(request)
    stop = held + 1 + int(random.random() * 2)
    return ops.Lease(request.number, band.name, max(0, held - 1), stop)


def _empty_range(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None:
        return None
    first = int(random.random() * (notes.pages(request) + 1))
    return ops.Lease(request.number, "full", first, first - int(random.random() * 2))


def _trimmed_away(notes: Notes, random: Random) -> Operation | None:
    for band, length in notes.windows:
        for request in notes.running:
            first = notes.first_kept(request, length)
            if first:
                return ops.Lease(request.number, band.name, first - 1, notes.pages(request))
    return None


def _wrong_purpose(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None or not request.length:
        return None
    return ops.Lease(request.number, "full", 0, 1, purpose=random.choice(("", "backup", "Forward")))


def _wrong_holder(notes: Notes, random: Random) -> Operation | None:
    if not notes.leases:
        return None
    name, holder = notes.leases[int(random.random() * len(notes.leases))]
    return ops.EndLease(name, holder + "!")


def _ended_twice(notes: Notes, random: Random) -> Operation | None:
    return ops.EndLease(notes.last_lease) if notes.last_lease else None


def _ended_unknown(notes: Notes, random: Random) -> Operation:
    return ops.EndLease(random.choice((0, -1, notes.next_lease, notes.next_lease + 1000)), "engine")


# --- the prefix cache -------------------------------------------------------------------------------


def _without_cache(make: Maker) -> Maker:
    return lambda notes, random: None if notes.cached else make(notes, random)


def _with_cache(make: Maker) -> Maker:
    return lambda notes, random: make(notes, random) if notes.cached else None


def _admitted_with_key(notes: Notes, random: Random) -> Operation:
    return ops.Admit(notes.next_request, 1, (0,) * random.randrange(1, 4))


def _limited(limit: int) -> Maker:
    return lambda notes, random: ops.Admit(notes.next_request, 1, limit_tokens=limit)


def _no_key(notes: Notes, random: Random) -> Operation:
    return ops.Admit(notes.next_request, 1, (0, random.choice((1 << 63, -(1 << 63) - 1))))


def _key_of_a_release(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    return None if request is None else ops.Release(request.number, key=(0,))


def _about_one(kind: type[ops.Publish] | type[ops.Checkpoint]) -> Maker:
    def make(notes: Notes, random: Random) -> Operation | None:
        request = _any(notes, random)
        return None if request is None else kind(request.number, (0,) * random.randrange(3))

    return make


def _released_with_publish(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    return None if request is None else ops.Release(request.number, publish=True)


def _evicted(notes: Notes, random: Random) -> Operation:
    return ops.Evict((random.randrange(2),) * len(notes.bands))


def _about_unknown(kind: type[ops.Publish] | type[ops.Checkpoint]) -> Maker:
    return lambda notes, random: kind(_unknown(notes, random), (0,))


def _released_unknown_with_publish(notes: Notes, random: Random) -> Operation:
    return ops.Release(_unknown(notes, random), publish=True, key=(0, 1))


def _checkpoint_where(illegal: Callable[[Notes, Request], bool]) -> Maker:
    """A checkpoint of a request that is as it must not be, and else as it should."""

    def make(notes: Notes, random: Random) -> Operation | None:
        if not notes.grid:
            return None
        fit = [request for request in notes.running if illegal(notes, request)]
        if not fit:
            return None
        request = random.choice(fit)
        missing = request.length * notes.unit // notes.page_size - len(request.key)
        return ops.Checkpoint(request.number, (1,) * max(0, missing))

    return make


def _on_grid(notes: Notes, request: Request) -> bool:
    return request.length > 0 and not request.length % notes.grid


def _beyond_its_key(notes: Notes, random: Random) -> Operation | None:
    for request in notes.running:
        if (
            notes.grid and request.slots and _on_grid(notes, request)
            and request.launched == request.length > notes.covered(request)
        ):  # fmt: skip
            missing = request.length * notes.unit // notes.page_size - len(request.key)
            return ops.Checkpoint(request.number, (0,) * random.randrange(missing))
    return None


def _checkpoint_without_state(notes: Notes, random: Random) -> Operation | None:
    request = _any(notes, random)
    if request is None or notes.has_state:
        return None
    return ops.Checkpoint(request.number)


def _negative_eviction(notes: Notes, random: Random) -> Operation:
    pages = [random.randrange(2) for _ in notes.bands]
    pages[random.randrange(len(pages))] = -1
    return ops.Evict(tuple(pages))


def _eviction_of_a_wrong_length(notes: Notes, random: Random) -> Operation:
    bands = len(notes.bands)
    return ops.Evict((1,) * random.choice((0, bands - 1, bands + 1)))


_CACHE: dict[str, Maker] = {
    "key without a cache": _without_cache(_admitted_with_key),
    "published without a cache": _without_cache(_about_one(ops.Publish)),
    "checkpoint without a cache": _without_cache(_about_one(ops.Checkpoint)),
    "eviction without a cache": _without_cache(_evicted),
    "release publishes without a cache": _without_cache(_released_with_publish),
    "limit without a cache": _without_cache(_limited(0)),
    "negative limit": _with_cache(_limited(-1)),
    "key that is none": _with_cache(_no_key),
    "key of a release that does not publish": _key_of_a_release,
    "unknown request published": _with_cache(_about_unknown(ops.Publish)),
    "unknown request checkpointed": _with_cache(_about_unknown(ops.Checkpoint)),
    "unknown request released and published": _with_cache(_released_unknown_with_publish),
    "checkpoint off the grid": _with_cache(
        _checkpoint_where(lambda n, r: r.slots > 0 and r.launched == r.length and not _on_grid(n, r))
    ),
    "checkpoint before its launch": _with_cache(
        _checkpoint_where(lambda n, r: r.slots > 0 and r.launched < r.length and _on_grid(n, r))
    ),
    "checkpoint without a slot": _with_cache(
        _checkpoint_where(lambda n, r: not r.slots and r.launched == r.length and _on_grid(n, r))
    ),
    "checkpoint beyond its key": _with_cache(_beyond_its_key),
    "checkpoint without state": _with_cache(_checkpoint_without_state),
    "negative eviction": _with_cache(_negative_eviction),
    "eviction of a wrong length": _with_cache(_eviction_of_a_wrong_length),
}
OF_THE_CACHE = tuple(_CACHE)

ILLEGAL: dict[str, Maker] = {
    "admitted twice": _admitted_twice,
    "no request number": _no_number,
    "negative state slots": _negative_slots,
    "unknown request extended": _extended_unknown,
    "negative tokens": _negative_tokens,
    "unknown request decoded": _batch(ops.Decode, twice=False),
    "unknown request trimmed": _batch(ops.TrimWindow, twice=False),
    "unknown request launched": _batch(ops.Launch, twice=False),
    "decoded twice in a batch": _batch(ops.Decode, twice=True),
    "trimmed twice in a batch": _batch(ops.TrimWindow, twice=True),
    "launched twice in a batch": _batch(ops.Launch, twice=True),
    "unknown request released": _released_unknown,
    "completed twice": _completed_twice,
    "unknown ticket completed": _completed_unknown,
    "negative max_moves": _negative_moves,
    "demand of a wrong length": _wrong_length,
    "negative demand": _negative_demand,
    "unknown request leased": _leased_unknown,
    "wrong band": _wrong_band,
    "range past the end": _past_the_end,
    "empty range": _empty_range,
    "range that was trimmed": _trimmed_away,
    "wrong purpose": _wrong_purpose,
    "wrong holder": _wrong_holder,
    "lease ended twice": _ended_twice,
    "unknown lease ended": _ended_unknown,
    **_CACHE,
}
