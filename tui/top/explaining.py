"""Why an operation was refused, for which layout, and what would have let it in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect.checks.fragmentation import RefusalExplained, explain_refusal
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.timeline import Timeline
from bandscope.tui.units import spell_count

_BEFORE = 512  # records between a refused operation's outcome and its layout


class Explanations:
    """What is known of refusals that were asked about, in a reader of its own, so that what is shown
    does not wait for the segments that are looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._timeline: Timeline | None = None
        self._known: dict[int, tuple[str, ...]] = {}
        self._wanted: int | None = None

    @property
    def busy(self) -> bool:
        """Whether one is being looked for."""
        return self._wanted is not None

    def about(self, sequence: int) -> tuple[str, ...]:
        """Lines about the refusal of an event; asked for with `step` where they are not known yet."""
        known = self._known.get(sequence)
        if known is None:
            self._wanted = sequence
            return ("looking for what would have let it in …",)
        self._wanted = None
        return known

    def step(self) -> bool:
        """Look for the one that was asked about; whether there was one."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return False
        if len(self._known) > 256:
            self._known.clear()
        self._known[wanted] = self._explain(wanted)
        return True

    def _explain(self, sequence: int) -> tuple[str, ...]:
        try:
            if self._timeline is None or sequence >= self._timeline.trace.stop:
                self._timeline = Timeline(Trace(self._path))
            place = refusal_near(self._timeline.trace, sequence)
            found = None if place is None else explain_refusal(self._timeline, place)
        except TraceError as error:
            return (str(error),)
        if found is None:
            return ("no layout stands behind this refusal: its sentence says what to do",)
        return explained(found)


def refusal_near(trace: Trace, sequence: int) -> int | None:
    """The event with the layout of a refused operation, given that event or the operation's outcome;
    None where it was refused for something else than room."""
    segment = trace.segment_of(sequence)
    index = sequence - segment.first_sequence
    kinds = segment.records["kind"]
    if kinds[index] == Kind.REFUSAL:
        return sequence
    before = kinds[max(0, index - _BEFORE) : index]
    asked = np.flatnonzero((before >= Kind.ADMIT) & (before <= Kind.OUTCOME))
    told = np.flatnonzero(before == Kind.REFUSAL)
    if not told.size or (asked.size and asked[-1] > told[-1]):
        return None
    return sequence - before.size + int(told[-1])


def explained(found: RefusalExplained) -> tuple[str, ...]:
    """The reason, the cures, and the layout as a small table."""
    reason, _, cures = found.text.partition(" What would have let it in: ")
    lines = [reason, f"Cure: {cures.rstrip('.')}" if cures else "Cure: none is known"]
    bands = list(found.demand)
    widths = [max(len(name), 15) for name in bands]
    lines.append(_row("pages", bands, widths))
    lines.append(_row("asked", [spell_count(found.demand[name]) for name in bands], widths))
    lines.append(_row("held", [spell_count(found.live[name]) for name in bands], widths))
    for title, layout in (("extent", found.extents), ("cannot move", found.fixed)):
        hulls = [layout.get(name) for name in bands]
        told = [f"{h[0]:,}..{h[1]:,}" if h and h[1] > h[0] else "none" for h in hulls]
        lines.append(_row(title, told, widths))
    return tuple(lines)


def _row(title: str, values: list[str], widths: list[int]) -> str:
    cells = "".join(f"{value:>{width + 2}}" for value, width in zip(values, widths, strict=True))
    return f"{title:<12}{cells}"
