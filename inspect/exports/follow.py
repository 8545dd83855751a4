"""The state along a stretch of a trace, where it is known: not between damage and the next keyframe."""

from __future__ import annotations

import sys

from bandscope.allocator.errors import TraceError
from bandscope.inspect.exports.window import Window
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline


class Follower:
    """Gives the state before ever later events of a window."""

    def __init__(self, window: Window) -> None:
        self.timeline = Timeline(window.trace)
        self._known_from = self._first_known(window)
        self._placed = False

    @staticmethod
    def _first_known(window: Window) -> int:
        """A window may begin before the first sound keyframe."""
        timeline = Timeline(window.trace)
        try:
            timeline.seek(window.start)
        except TraceError:
            try:
                return timeline.advance(window.trace.start).sequence
            except TraceError:
                return sys.maxsize
        return window.start

    def before(self, sequence: int) -> ArenaState | None:
        """The state before an event; None where damage hides it. The next call changes it."""
        if sequence < self._known_from:
            return None
        timeline = self.timeline
        if self._placed:
            state = timeline.advance(sequence)
        else:
            state, self._placed = timeline.seek(sequence), True
        if any(start < sequence < stop for start, stop in timeline.gaps):
            return None
        return state
