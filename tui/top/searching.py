"""A search through a trace, a piece at a time: the next match in a direction, and how many there are
nearby. Between two pieces the screen is answered, so neither waits for the other."""

from __future__ import annotations

from dataclasses import dataclass

from bandscope.inspect.reader import Trace
from bandscope.tui.top.travel import Query

PIECE_EVENTS = 4_096  # of which every line is looked at
SIEVED_EVENTS = 32_768  # where records tell which events can match at all
COUNT_EVENTS = 100_000  # matches are counted this far in both directions


@dataclass(frozen=True)
class Found:
    """How a search ended: the event that matches; None: none does, up to the end of the trace."""

    sequence: int | None


class Search:
    """Looks for one query. `begin` says from where and in which direction; then `step` is called until
    it returns how the search ended. `words`: what is known of the matches."""

    def __init__(self, trace: Trace, text: str) -> None:
        self.trace = trace
        self.text = text.strip()
        self.query = Query.parse(trace, text)
        chosen = self.query.selection
        named = (chosen.bands, chosen.request, chosen.kinds)
        self._piece = PIECE_EVENTS if all(n is None for n in named) else SIEVED_EVENTS
        self.begun = self._at = 0
        self.forwards = True
        self._looking = False
        self._count: int | None = None
        self._count_at = self._count_low = self._count_high = 0

    @property
    def busy(self) -> bool:
        """Whether there is more to look at."""
        return self._looking or self._count_at < self._count_high

    def stop(self) -> None:
        """Look no further."""
        self._looking = False
        self._count_high = min(self._count_high, self._count_at)

    def begin(self, position: int, forwards: bool) -> None:
        """Look from `position` on, or before it."""
        self.begun = self._at = position
        self.forwards, self._looking = forwards, True
        if self._count is None:
            self._count = 0
            self._count_low = self._count_at = max(self.trace.start, position - COUNT_EVENTS)
            self._count_high = min(self.trace.stop, position + COUNT_EVENTS)

    def step(self) -> Found | None:
        """Look at one more piece; the end of the search, when this was it."""
        if self._looking:
            return self._look()
        if self._count_at < self._count_high:
            high = min(self._count_high, self._count_at + self._piece)
            matches = sum(1 for _ in self.query.events(self.trace, self._count_at, high))
            self._count = (self._count or 0) + matches
            self._count_at = high
        return None

    def _look(self) -> Found | None:
        trace, at = self.trace, self._at
        if self.forwards:
            low, high = at, min(trace.stop, at + self._piece)
            self._at = high
        else:
            low, high = max(trace.start, at - self._piece), at
            self._at = low
        match: int | None = None
        for event in self.query.events(trace, low, high):
            match = event.sequence
            if self.forwards:
                break
        ended = self._at >= trace.stop if self.forwards else self._at <= trace.start
        if match is None and not ended:
            return None
        self._looking = False
        return Found(match)

    @property
    def words(self) -> str:
        """How far it is, and how many matches there are."""
        if self._looking:
            return f"/{self.text}: looking at event {self._at:,}"
        if self._count_at < self._count_high:
            return f"/{self.text}: counting matches, {self._count:,} up to event {self._count_at:,}"
        matches = "match" if self._count == 1 else "matches"
        low, high = self._count_low, self._count_high
        return f"/{self.text}: {self._count:,} {matches} in events {low:,} to {high:,}"
