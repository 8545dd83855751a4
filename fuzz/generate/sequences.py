"""Keys that share beginnings: a pool of recent ones, cut anywhere and continued from a few letters.

A key is a tuple of integers: one a page, or one a token. What is admitted, published or retracted comes
back into the pool, so that the next ones meet it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bandscope.fuzz.generate.mix import Mix
from bandscope.fuzz.generate.notes import Notes, Request
from bandscope.fuzz.generate.phases import exponential

RECENT = 12
PAGES_MAX = 48  # of a key: what checks that look at every prefix can afford

Key = tuple[int, ...]


class Sequences:
    """The keys of one run."""

    def __init__(self, notes: Notes, mix: Mix, roll: Callable[[], float]) -> None:
        self._roll = roll
        self._unit, self._page_size = notes.unit, notes.page_size
        self._letters = mix.letters
        self._fresh = mix.fresh
        self._pages = mix.key_pages
        self._recent: deque[Key] = deque(maxlen=RECENT)
        fits = max(1, notes.usable_bytes // notes.token_bytes)
        self._most = min(PAGES_MAX, fits + 2) * self._unit

    def remember(self, key: Key) -> None:
        """This key is in use, or was."""
        if key and (not self._recent or self._recent[-1] != key):
            self._recent.append(key)

    def next(self) -> Key:
        """A key to begin with: one of the recent ones, cut somewhere and continued."""
        roll = self._roll
        recent = self._recent
        base: Key = ()
        if recent and roll() >= self._fresh:
            base = recent[int(roll() * len(recent))]
            cut = roll()
            if cut > 0.8:  # a page less
                base = base[: max(0, len(base) - self._unit)]
            elif cut > 0.4:
                base = base[: int(roll() * (len(base) + 1))]
        more = int(exponential(roll()) * self._pages * self._unit)
        if not base:
            more = max(more, self._unit)
        key = base + self._some(more)
        key = key[: self._most]
        self.remember(key)
        return key

    def further(self, request: Request, tokens: int) -> Key:
        """How the key of a request goes on, so that it names its first `tokens` tokens: as a recent one
        does that begins alike, mostly, or by itself."""
        elements = tokens * self._unit // self._page_size
        missing = elements - len(request.key)
        if missing <= 0:
            return ()
        known: Key = ()
        if self._roll() < 0.6:
            length = len(request.key)
            for other in self._recent:
                if len(other) > length and other[:length] == request.key:
                    known = other[length:elements]
                    break
        return known + self._some(missing - len(known))

    def _some(self, count: int) -> Key:
        roll, letters = self._roll, self._letters
        return tuple([int(roll() * letters) for _ in range(count)])
