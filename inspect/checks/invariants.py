"""The invariants of an arena, checked from its trace alone.

Checked: `conservation`, `order`, `tables`, `ids`, `ownership` (with leaks, where the trace ended
cleanly), `pins`, `caps`, `atomic`, tickets and pending pages under `happens_before` (accesses are
`races.find_races`), and the state that each keyframe tells. Not in a trace, so not checked: `content`,
`capacity` and `determinism`.
"""

from __future__ import annotations

from bandscope.inspect.checks.checked_timeline import CheckedTimeline, Finding
from bandscope.inspect.format import CLEAN, ENDINGS
from bandscope.inspect.reader import Trace

__all__ = ["Finding", "check_trace"]


def check_trace(trace: Trace) -> list[Finding]:
    """Every invariant that the trace breaks, in the order of events; at most `FINDINGS_MAX`.

    Damaged parts are skipped up to the next keyframe. `TraceError` when the trace holds no sound
    keyframe to begin at.
    """
    timeline = CheckedTimeline(trace)
    timeline.advance(trace.stop)
    timeline.check_state()
    whole = "slice_of" not in trace.header  # a slice ends in the middle of a run
    if whole and trace.ending == ENDINGS[CLEAN] and not _blind(timeline, trace):
        timeline.check_nothing_is_held()
    return timeline.findings


def _blind(timeline: CheckedTimeline, trace: Trace) -> bool:
    """The end of the trace is damaged, so what is held there is not known."""
    return any(stop >= trace.stop for _, stop in timeline.gaps)
