"""What an arena does, as the rows that a recorder would write for it, kept for one operation.

Every effect goes through the recorder's own encoders, so that a replay compares what would be written
with what was written, byte for byte, and no object is made for an effect that is the same.
"""

from __future__ import annotations

from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect import format as form
from bandscope.inspect.effect_writer import EffectWriter
from bandscope.inspect.format import Kind
from bandscope.inspect.replay_steps import Row, Texts

_OUTCOME = int(Kind.OUTCOME)


class RowObserver(EffectWriter):
    """An observer that keeps `rows` and `payloads` of the operation that is tried."""

    def __init__(self, arena: Arena, texts: Texts) -> None:
        self.arena = arena
        self.rows: list[Row] = []
        self.payloads: list[bytes] = []
        self._band_index = {band.name: index for index, band in enumerate(arena.books.bands)}
        self._texts = texts._numbers
        self.texts = texts
        self.append = self._append
        self.payload = self._payload

    def _append(
        self, kind: int, flags: int, band: int, length: int, a: int, b: int, c: int
    ) -> None:
        self.rows.append((kind, flags, band, length, a, b, c))

    def _payload(self, data: bytes) -> int:
        self.payloads.append(data)
        return len(data)

    def text(self, text: str) -> int:
        """The number of a text, by `Texts`."""
        return self.texts.number(text)

    def before(self, operation: Operation) -> None:
        """A new operation: forget the last one."""
        self.rows = []
        self.payloads = []

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """What became of it is its last row."""
        value = form.NO_VALUE if outcome.value is None else outcome.value
        if outcome.ok:
            self.rows.append((_OUTCOME, form.OK, 0, 0, 0, value, 0))
        else:
            reason = form.REASONS.index(outcome.reason)
            message = self.texts.number(outcome.message)
            self.rows.append((_OUTCOME, 0, reason, 0, 0, form.NO_VALUE, message))
