"""Questions that a test asks about what an arena did: barriers, moves, refusals, leases.

Each answer is a list of events (`inspect.decode.Event`): `sequence`, `time_ns`, `operation` (the
sequence of the operation it belongs to) and `body`, which is the effect itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bandscope.allocator import events
from bandscope.allocator.operations import Operation
from bandscope.inspect.decode import Event, read_events
from bandscope.inspect.format import FIRST_OPERATION, LAST_OPERATION, Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder

_OPERATIONS = frozenset(range(FIRST_OPERATION, LAST_OPERATION + 1))


class TestTrace:
    """What one arena has done so far; asked again, it tells what came since as well."""

    __test__ = False  # pytest, this is no test

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def path(self) -> Any:
        """The folder of the trace."""
        return self._recorder.directory

    def open(self) -> Trace:
        """The trace as `bandscope inspect` reads it."""
        return Trace(self._recorder.directory)

    def barriers(self, kind: str = "", *, why: str = "") -> list[Event]:
        """Barriers whose kind begins with `kind` (`settle`, `write-after-read`) and whose cause holds
        `why`."""
        return self._found(
            {Kind.BARRIER},
            lambda body: body.kind.startswith(kind) and why in body.why,
        )

    def moves(self, band: str | None = None, *, urgent: bool | None = None) -> list[Event]:
        """Batches of page copies: `body.virtual`, `.sources`, `.destinations`."""
        return self._found(
            {Kind.PAGE_MOVE},
            lambda body: band in (None, body.band) and urgent in (None, body.urgent),
        )

    def band_moves(self, band: str | None = None, *, why: str = "") -> list[Event]:
        """Extents that changed."""
        return self._found(
            {Kind.BAND_MOVE}, lambda body: band in (None, body.band) and why in body.why
        )

    def refusals(self, reason: str | None = None) -> list[Event]:
        """Demands that were refused for a reason (`memory`, `gate`, `pins`), with the layout they were
        refused for."""
        return self._found({Kind.REFUSAL}, lambda body: reason in (None, body.reason))

    def leases(
        self,
        band: str | None = None,
        *,
        holder: int | str | None = None,
        pins: bool | None = None,
    ) -> list[Event]:
        """Pages that got a holder: a request's number, or the name of one who pins them. `pins`: only
        leases that pin, or only those of owners."""

        def wanted(body: Any) -> bool:
            if band not in (None, body.band) or pins not in (None, not body.owns):
                return False
            if holder is None:
                return True
            held = body.holder
            return bool((held == holder).any()) if hasattr(held, "any") else bool(held == holder)

        return self._found({Kind.LEASE_BEGIN}, wanted)

    def operations(self, kind: type[Operation] | None = None) -> list[Event]:
        """What was asked of the arena, refused operations as well."""
        return self._found(_OPERATIONS, lambda body: kind is None or isinstance(body, kind))

    def effects(self, kind: type | None = None) -> list[Event]:
        """Everything that was done, or one kind of it (`allocator.events`)."""
        wanted = events.Effect if kind is None else kind
        return self._found(None, lambda body: isinstance(body, wanted))

    def _found(
        self, kinds: set[Any] | frozenset[int] | None, wanted: Callable[[Any], bool]
    ) -> list[Event]:
        chosen = None if kinds is None else {int(kind) for kind in kinds}
        return [event for event in read_events(self.open(), kinds=chosen) if wanted(event.body)]
