"""Where a replay first differs from its trace, in words: event, operation, expected, got, and the page.

Nothing here runs while a replay agrees with its trace. Rows that differ are decoded and compared as
effects, because two versions may spell the same effect in different bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.operations import Outcome
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay_steps import RecordedStep, Row, Texts, bodies
from bandscope.inspect.spelling import spell_event


@dataclass(frozen=True)
class Difference:
    """Where a replay first differs.

    `event`: the sequence of the first event that is not as recorded; `operation`: the operation it
    belongs to; `what`: `outcome`, `effect`, `digest` or `check` (something was found broken); then what
    the trace says and what came. `after`: one past the last event of the operation. `band`, `physical`:
    the page in question, as a physical page, None where there is none.
    """

    event: int
    operation: str
    what: str
    expected: str
    got: str
    after: int
    band: str | None = None
    physical: int | None = None

    def __str__(self) -> str:
        return (
            f"event {self.event:,}, {self.operation}: the {self.what} was {self.expected}, and is now "
            f"{self.got}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def compare_rows(
    trace: Trace, step: RecordedStep, rows: list[Row], payloads: list[bytes], texts: Texts
) -> Difference | None:
    """The first of the rows that says something else than what was recorded, None when all that
    differs is how it is spelt."""
    told = bodies(trace, step.rows, step.payloads, texts)
    came = bodies(trace, rows, payloads, texts)
    for number in range(max(len(told), len(came))):
        mine, theirs = (some[number] if number < len(some) else _NOTHING for some in (told, came))
        if not same(mine, theirs):
            return _difference(step, number, mine, theirs)
    return None


def exception_instead(
    trace: Trace,
    step: RecordedStep,
    rows: list[Row],
    payloads: list[bytes],
    texts: Texts,
    error: Exception,
) -> Difference:
    """An operation that ended in an exception: what differs before it came, or the exception itself."""
    told = bodies(trace, step.rows, step.payloads, texts)
    came = bodies(trace, rows, payloads, texts)
    for number, theirs in enumerate(came[: len(told)]):
        if not same(told[number], theirs):
            return _difference(step, number, told[number], theirs)
    number = min(len(came), len(told) - 1)
    return _difference(step, number, told[number], f"{type(error).__name__}: {error}")


def _difference(step: RecordedStep, number: int, told: Any, came: Any) -> Difference:
    both = isinstance(told, Outcome) and isinstance(came, Outcome)
    band, physical = _page(told, came)
    return Difference(
        step.sequences[number] if number < len(step.sequences) else step.stop - 1,
        repr(step.operation),
        "outcome" if both else "effect",
        _spell(told, not both),
        _spell(came, not both),
        step.stop,
        band,
        physical,
    )


_NOTHING = "nothing more"


def same(told: Any, came: Any) -> bool:
    """True when two effects or outcomes say the same, arrays by content. The requests of a launch are
    those of its operation and not in a record."""
    if type(told) is not type(came):
        return False
    if told is None or isinstance(told, str):
        return bool(told == came)
    for item in fields(told):
        mine, theirs = getattr(told, item.name), getattr(came, item.name)
        if isinstance(mine, np.ndarray) or isinstance(theirs, np.ndarray):
            if not np.array_equal(np.atleast_1d(mine), np.atleast_1d(theirs)):
                return False
        elif mine != theirs:
            return False
    return True


def _spell(body: Any, with_kind: bool) -> str:
    if body is None:
        return "a record that does not decode"
    if isinstance(body, str):
        return body
    return f"{type(body).__name__} {spell_event(body)}" if with_kind else spell_event(body)


def _page(told: Any, came: Any) -> tuple[str | None, int | None]:
    """The first page, as a physical one, that two effects of one kind see otherwise; else the first
    page that the recorded one names, or the one that came."""
    for body in (told, came):
        pages = _physical(body)
        if pages is not None:
            other = _physical(came) if body is told else None
            at = 0
            if other is not None and other.size and type(told) is type(came):
                both = min(pages.size, other.size)
                unlike = np.flatnonzero(pages[:both] != other[:both])
                at = int(unlike[0]) if unlike.size else min(both, pages.size - 1)
            return body.band, int(pages[at])
    return None, None


def _physical(body: Any) -> np.ndarray | None:
    """The physical pages that an effect is about; of a move those that leave."""
    pages = None
    if isinstance(body, events.LeaseBegin):
        pages = body.physical
    elif isinstance(body, events.PageMove):
        pages = body.sources
    elif isinstance(body, events.Pending | events.Reclaim):
        pages = body.pages
    return None if pages is None or not pages.size else pages


def compare_states(told: Any, came: Any, path: str = "", most: int = 6) -> list[str]:
    """The parts of two decoded keyframes that differ, like `bands[1].state`; at most `most`."""
    if isinstance(told, dict) and isinstance(came, dict):
        found: list[str] = []
        for key in [*told, *(key for key in came if key not in told)]:
            name = f"{path}.{key}" if path else str(key)
            if key not in told or key not in came:
                found.append(name)
            else:
                found += compare_states(told[key], came[key], name, most)
        return found[:most]
    if isinstance(told, list) and isinstance(came, list):
        if len(told) != len(came):
            return [path]
        found = []
        for index, (mine, theirs) in enumerate(zip(told, came, strict=True)):
            found += compare_states(mine, theirs, f"{path}[{index}]", most)
        return found[:most]
    if isinstance(told, np.ndarray) or isinstance(came, np.ndarray):
        return [] if np.array_equal(told, came) else [path]
    return [] if told == came else [path]
