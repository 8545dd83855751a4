"""A name for each state that is the same for states that differ in names only.

What is only a name, and so left out or numbered anew:

- Requests and their rows: sorted by what they hold.
- Virtual pages and slots: each is named by its owner and its number there. Of the free ids only what
  work in flight may still write under the old name is kept, in the order in which they are handed out:
  that decides what a compaction leaves alone. Generations, and what is published, decide nothing (but
  for whether anything is unpublished, where the barrier is coarse).
- Tickets: only which of them are in flight, which the schedule stream is ordered behind, and for each
  pending page the newest one it waits for.
- Leases: their pages in the order in which they began, not their numbers.

That nothing hangs on these names is itself tested (states of one name have one future), for a sound
allocator: a fault that acts by a name, say the number of a request, may stay unseen.
"""

from __future__ import annotations

from bisect import bisect_right

from bandscope.allocator.band import PENDING
from bandscope.allocator.books import Books
from bandscope.fuzz.exhaustive.view import View


class Naming:
    """Names for the states of these books."""

    def __init__(self, books: Books) -> None:
        self.page_size = books.plan.page_size
        self.coarse = books.config.barrier == "coarse"
        self.band_count = len(books.bands)
        self.space_of = [1 if index == books.state else 0 for index in range(self.band_count)]

    def canonical(self, view: View) -> bytes:
        """The same bytes for states that differ in names only, and for no others."""
        flying = sorted(view.in_flight)
        tickets = [ticket for ticket, _ in flying]
        settled = view.settled
        ordered = bisect_right(tickets, view.ordered)
        out = [view.gate, len(flying), ordered, bool(flying) and settled < view.issued]
        if self.coarse:
            out += view.dirty
        # Which unsettled work may write which virtual page, a bit per ticket and band.
        marks: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for number, (_, writes) in enumerate(flying[ordered:]):
            for band, pages in writes:
                bit = 1 << (number * self.band_count + band)
                space = marks[self.space_of[band]]
                for page in pages:
                    space[page] = space.get(page, 0) | bit
        for index in range(self.band_count):
            out += view.extents[index]
            out += view.counts[index]
        states = b"".join(view.state)
        if view.pending:
            waiting = [bytearray(state) for state in view.state]
            for stamp, band, places in view.pending:
                wait = bisect_right(tickets, stamp) if stamp > settled else 0
                for place in places:
                    waiting[band][place] = 4 + wait if waiting[band][place] == PENDING else 255
            states = b"".join(waiting)
        parts = []
        size, space_of = self.page_size, self.space_of
        first_token_band = 1 if space_of[0] else 0
        token_places = view.place_of[first_token_band:]
        for length, launched, count, kept, pages, slots in view.requests.values():
            told = [length, launched // size, count, *kept]
            for places in token_places:
                told += map(places.__getitem__, pages)
            told.append(len(slots))
            if slots:
                told += map(view.place_of[0].__getitem__, slots)
            if flying:
                token, slot_marks = marks
                for page in pages:
                    told += token.get(page, 0).to_bytes(2, "little")
                for slot in slots:
                    told += slot_marks.get(slot, 0).to_bytes(2, "little")
            parts.append(bytes(told))
        parts.sort()
        out.append(len(parts))
        out += [len(part) for part in parts]
        out.append(len(view.leases))
        for _, band, places, *_ in sorted(view.leases):
            out += (band, len(places), *places)
        out += view.deferred
        if flying:
            for released, written in zip(view.released, marks, strict=True):
                free = [written.get(page, 0) for page in reversed(released)]
                while free and not free[-1]:
                    free.pop()
                out.append(len(free))
                for mark in free:
                    out += mark.to_bytes(2, "little")
        return b"".join((bytes(out), states, *parts))
