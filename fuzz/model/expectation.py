"""What the model expects of an operation."""

from __future__ import annotations

from typing import Any, NamedTuple


class Expectation(NamedTuple):
    """What becomes of an operation: done, or refused for `reason`. `value`: what it yields, None when
    it yields nothing, or any number that its effects bear out (pages moved)."""

    ok: bool
    reason: str
    value: Any


DONE = Expectation(True, "", None)
MISUSE = Expectation(False, "misuse", None)
REFUSED = {
    reason: Expectation(False, reason, None) for reason in ("memory", "gate", "pins", "ids")
}
