"""Is one state healthy? The books' own checks for small arenas, in plain Python and many times faster.

`is_healthy` says no whenever `checks.check_books` finds something (tests plant damage of every kind and
compare; a search also runs `check_books` itself on a sample). What is wrong is told by `check_books`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bandscope.allocator.books import Books
from bandscope.allocator.checks import Violation, check_books
from bandscope.fuzz.exhaustive.geometry import GAP, HOLE, LIVE, PENDING, Geometry
from bandscope.fuzz.exhaustive.view import NOWHERE, View


def is_healthy(geometry: Geometry, view: View) -> bool:
    """True when no invariant of `check_books` is broken."""
    return (
        _extents_are_right(geometry, view)
        and _ids_are_right(geometry, view)
        and _pages_are_right(geometry, view)
        and _waiting_is_right(view)
    )


def _extents_are_right(geometry: Geometry, view: View) -> bool:
    start = geometry.sink_bytes
    for band, (low, high) in enumerate(view.extents):
        state, (live, holes, pending) = view.state[band], view.counts[band]
        if (
            state.count(LIVE) != live
            or state.count(HOLE) != holes
            or state.count(PENDING) != pending
            or view.block_holes[band] != holes
            or live + holes + pending != high - low
        ):
            return False
        if low == high:
            continue
        if not 0 <= low < high <= len(state) or GAP in state[low:high]:
            return False
        size, first = geometry.page_bytes[band], geometry.first[band]
        if geometry.step[band] > 0:
            bottom, top = (first + low) * size, (first + high) * size
        else:
            bottom, top = (first - high + 1) * size, (first - low + 1) * size
        if bottom < start:
            return False
        start = top
    return start <= geometry.total_bytes


def _ids_are_right(geometry: Geometry, view: View) -> bool:
    held: tuple[list[int], list[int]] = ([], [])
    for request in view.requests.values():
        length, _, count, kept, *_ = request
        if length > count * geometry.page_size or max(kept, default=0) > count:
            return False
        held[0].extend(request[4])
        held[1].extend(request[5])
    spaces = (0, 1) if geometry.state is not None else (0,)
    for space in spaces:
        fresh, owned, released = view.fresh[space], held[space], view.released[space]
        bound = view.bound[space]
        if sorted([*owned, *released]) != list(range(fresh)):
            return False
        if bound.count(1) != len(owned) or not all(map(bound.__getitem__, owned)):
            return False
    return True


def _pages_are_right(geometry: Geometry, view: View) -> bool:
    requests = view.requests.values()
    for band, (places, virtual) in enumerate(zip(view.place_of, view.virtual_at, strict=True)):
        if band == geometry.state:
            pages = b"".join([request[5] for request in requests])
        elif band in geometry.windows:
            number = geometry.windows.index(band)
            pages = b"".join([request[4][request[3][number] :] for request in requests])
        else:
            pages = b"".join([request[4] for request in requests])
        # Each page that is held names a place, which is live and names it back. As many rows and as many
        # places are mapped, and as many places live: so these are all.
        held = bytes(map(places.__getitem__, pages))
        count, state = len(pages), view.state[band]
        if (
            NOWHERE in held
            or bytes(map(virtual.__getitem__, held)) != pages
            or places.count(NOWHERE) != len(places) - count
            or virtual.count(NOWHERE) != len(virtual) - count
            or bytes(map(state.__getitem__, held)).count(LIVE) != count
            or view.counts[band][0] != count
        ):
            return False
    return True


def _waiting_is_right(view: View) -> bool:
    if not (view.pending or view.leases):
        return not (
            any(map(any, view.pin_count))
            or any(counts[2] for counts in view.counts)
            or any(view.deferred)
        )
    for band, state in enumerate(view.state):
        pins = bytearray(len(state))
        for _, index, places, *_ in view.leases:
            if index == band:
                for place in places:
                    pins[place] += 1
        if pins != view.pin_count[band]:
            return False
        waiting = [place for _, index, places in view.pending if index == band for place in places]
        freed = 0
        if view.leases:
            for place, count in enumerate(pins):
                if count and state[place] != LIVE:
                    if state[place] != PENDING:
                        return False
                    freed += 1
                    waiting.append(place)
        if freed != view.deferred[band] or len(waiting) != state.count(PENDING):
            return False
        if waiting and (
            len(set(waiting)) != len(waiting)
            or bytes(map(state.__getitem__, waiting)).count(PENDING) != len(waiting)
        ):
            return False
    return True


def damage(geometry: Geometry, view: View, books: Books) -> list[Violation]:
    """What is wrong with the state of `books`, of which `view` is a view; empty when it is healthy."""
    try:
        if is_healthy(geometry, view):
            return []
        found = check_books(books)
    except (IndexError, ValueError) as error:
        return [Violation("tables", f"the books cannot be read ({type(error).__name__}: {error})")]
    return found or [Violation("conservation", "the state is not one that the books should have")]


def capacity(
    geometry: Geometry, view: View, books: Books, demands: Sequence[tuple[int, ...]]
) -> Iterator[Violation]:
    """The answers of `serves` against trying all layouts."""
    occupancy = geometry.occupancy(view)
    for demand in demands:
        if books.serves(demand) != geometry.serves(occupancy, demand):
            right = geometry.serves(occupancy, demand)
            yield Violation(
                "capacity",
                f"serves({demand}) is {not right}, but {'a' if right else 'no'} layout holds it",
            )


def nothing_left(view: View) -> Iterator[Violation]:
    """With no request, no lease and no work in flight, nothing is held."""
    if view.requests or view.leases or view.in_flight:
        return
    for band, (extent, counts) in enumerate(zip(view.extents, view.counts, strict=True)):
        if extent != (0, 0) or any(counts) or view.deferred[band] or view.pending:
            yield Violation("ownership", f"nothing is held, but band {band} keeps {counts} (leak)")
