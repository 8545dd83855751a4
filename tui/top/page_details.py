"""The story of one page up to an instant: who leased, moved, read and wrote it last.

The trace is walked backwards from keyframe to keyframe, one stretch per step, until everything is
found or `EVENTS_BACK` events were looked at; so no step takes long, however long the trace is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.errors import TraceError
from bandscope.allocator.events import CACHE
from bandscope.allocator.operations import Outcome
from bandscope.inspect import format as form
from bandscope.inspect import keyframe
from bandscope.inspect.decode import Event, Stack
from bandscope.inspect.format import Kind
from bandscope.inspect.reader import Trace
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.selection import operation_at, scan
from bandscope.inspect.spelling import who
from bandscope.inspect.state import GLYPHS, ArenaState
from bandscope.tui.top.cells import users_of
from bandscope.tui.top.history import body_at
from bandscope.tui.top.sharers import Sharers
from bandscope.tui.top.snapshot import PageDetails, Touch

EVENTS_BACK = 400_000
_STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_OWNERS = (Kind.ADMIT_PREFIX, Kind.EXTEND, Kind.DECODE, Kind.LAUNCH, Kind.OUTCOME)
_SHARES = (Kind.SHARE, Kind.RELEASE, Kind.RELEASE_PREFIX)
_PAGES = (Kind.LEASE_BEGIN, Kind.LEASE_END, Kind.PAGE_MOVE, Kind.GRAFT)


def facts(state: ArenaState, cursor: tuple[int, int]) -> PageDetails:
    """What the state alone tells of a page."""
    band = state.bands[cursor[0]]
    at = cursor[1] - band.base
    virtual, owner = int(band.virtual[at]), int(band.owner[at])
    request = state.requests.get(owner)
    return PageDetails(
        band.name,
        cursor[1],
        GLYPHS[int(band.state[at])],
        virtual,
        int(state.ids_of(band.index).generation[virtual]) if virtual >= 0 else -1,
        owner,
        -1 if request is None else request.length,
        tuple(
            (pin.number, pin.holder, pin.sequence)
            for pin in sorted(state.pins.values(), key=lambda pin: pin.number)
            if pin.band == band.index and bool((pin.physical == cursor[1]).any())
        ),
        int(band.ticket[at]),
        looked_back=state.sequence,
        users=users_of(state, band.index, virtual),
    )


class PageSearch:
    """Looks for the story of the page under a cursor before the state's position. `details`: what is
    known so far; `step` looks at one more stretch and returns whether there is more to look at."""

    def __init__(self, trace: Trace, state: ArenaState, cursor: tuple[int, int]) -> None:
        self.trace = trace
        self.details = facts(state, cursor)
        self.position = state.sequence
        self.cursor = cursor
        self._band = cursor[0]
        # Token pages share their names with those of the band of full attention, and their order.
        self._naming = self._band if self._band == state.state_band else state.full
        self._is_state = self._band == state.state_band
        self._name = state.bands[self._naming].name
        self._page_size: int = state.page_size
        self._fills = _fills(trace, self._is_state)
        self._work: Iterator[None] | None = self._run()

    @property
    def identity(self) -> tuple[tuple[int, int], int, int]:
        """The page: where it lies, and what it holds."""
        return self.cursor, self.details.virtual, self.details.generation

    def step(self) -> bool:
        """Look at one more stretch."""
        if self._work is not None:
            try:
                next(self._work)
            except (StopIteration, TraceError, *_STUMBLES):  # of a part that is damaged or gone
                self._work = None
                self.details = replace(self.details, complete=True)
        return self._work is not None

    def _run(self) -> Iterator[None]:
        stop = self.position
        for start, snapshot in _stretches(self.trace, self.position):
            if snapshot is not None:
                done = self._look(start, stop, snapshot)
                stop = start
                self.details = replace(self.details, looked_back=start)
                if done or self.position - start > EVENTS_BACK:
                    break
                yield
        self._add_stacks()
        self._add_barrier()

    # --- one stretch ------------------------------------------------------------------------------

    def _look(self, start: int, stop: int, snapshot: dict[str, Any]) -> bool:
        """Take what events `[start, stop)` tell and later ones did not; whether that was the last."""
        if self.details.virtual < 0:
            return self._look_at_empty(start, stop, snapshot)
        found: dict[str, Touch] = {}
        ledger = _Owner(self.details.owner, self.details.virtual, snapshot["ledger"])
        sharers = Sharers(self.details.virtual, snapshot)
        for event in scan(self.trace, self._sieve, start, stop):
            body = event.body
            if isinstance(body, Outcome):
                if self.details.owner == CACHE and not self._is_state:
                    self._read_by_sharer(event, ledger, sharers, found)
                else:
                    self._forward(event, ledger, found)
            elif isinstance(body, ops.Operation):
                ledger.asked = event
            elif isinstance(body, events.LeaseBegin) and not body.lease:
                if body.band == self._name:
                    ledger.take(body)
                if self._is_ours(body):
                    sharers.users.clear()
                    found = {"leased": Touch(event.sequence, _by(self.trace, event))}
                    if self._fills:
                        found["written"] = Touch(event.sequence, "filled when it was handed out")
            elif isinstance(body, events.PageMove) and self._is_ours(body):
                at = int(np.flatnonzero(body.virtual == self.details.virtual)[0])
                urgent = ", urgent" if body.urgent else ""
                text = f"from page {body.sources[at]:,} to {body.destinations[at]:,}{urgent}"
                found["moved"] = Touch(event.sequence, text)
                found["written"] = Touch(event.sequence, f"moved {text}")
            elif isinstance(body, events.Graft):
                if body.band == self.details.band and self.details.virtual in body.into:
                    found = self._grafted(event, body)
            elif isinstance(body, events.Share):
                if sharers.take(body) and self.details.owner == CACHE and "shared" not in found:
                    found["shared"] = Touch(event.sequence, f"by {_by(self.trace, event)}")
            elif isinstance(body, events.StateCopy) and body.band == self.details.band:
                self._copied(event, body, found)
        for name, touch in found.items():
            # It became the cache's when it was shared first; later ones found it there.
            if getattr(self.details, name) is None or name == "shared":
                self._tell(name, touch)
        return "leased" in found

    def _grafted(self, event: Event, body: events.Graft) -> dict[str, Touch]:
        """A page of the cache that it had lost here: its story begins where a request's page lay."""
        was = int(body.virtual[np.flatnonzero(body.into == self.details.virtual)[0]])
        text = f"by {_by(self.trace, event)}, where its page {was} lay (a graft)"
        return dict.fromkeys(("leased", "shared"), Touch(event.sequence, text))

    def _tell(self, name: str, touch: Touch) -> None:
        told: dict[str, Any] = {name: touch}
        self.details = replace(self.details, **told)

    def _is_ours(self, body: events.LeaseBegin | events.PageMove) -> bool:
        return body.band == self.details.band and bool((body.virtual == self.details.virtual).any())

    def _forward(self, event: Event, ledger: _Owner, found: dict[str, Touch]) -> None:
        """The outcome of an operation over the owner: a forward reads, and may write, the page."""
        asked, outcome = ledger.asked, event.body
        assert isinstance(outcome, Outcome)
        if asked is None or asked.sequence != event.operation or not outcome.ok:
            return
        if not isinstance(asked.body, ops.Launch):
            ledger.grow(asked.body, outcome, self._page_size)
        elif self.details.owner in asked.body.requests:
            ticket = int(outcome.value)
            text = f"by forward {ticket:,} over request {self.details.owner}"
            first = ledger.launched // self._page_size
            ledger.launched = ledger.length
            index = ledger.index
            if not self._is_state and index is None:
                return  # launched before the page was leased
            found["read"] = Touch(asked.sequence, text, ticket)
            if self._is_state or (index is not None and index >= first):
                found["written"] = Touch(asked.sequence, text, ticket)

    def _read_by_sharer(
        self, event: Event, ledger: _Owner, sharers: Sharers, found: dict[str, Touch]
    ) -> None:
        """The outcome of an operation over those who share a page of the cache: forwards read it."""
        asked, outcome = ledger.asked, event.body
        assert isinstance(outcome, Outcome)
        if asked is None or asked.sequence != event.operation or not outcome.ok:
            return
        if isinstance(asked.body, ops.Release):
            sharers.users.discard(asked.body.request)
        elif isinstance(asked.body, ops.Launch):
            users = sharers.users.intersection(asked.body.requests)
            if users:
                ticket = int(outcome.value)
                text = f"by forward {ticket:,} over request {min(users)}, which shares it"
                found["read"] = Touch(asked.sequence, text, ticket)

    def _copied(self, event: Event, body: events.StateCopy, found: dict[str, Touch]) -> None:
        if body.destination == self.details.virtual:
            text = f"a copy of slot {body.source} ({body.why})"
            found["written"] = Touch(event.sequence, text)
        elif body.source == self.details.virtual:
            text = f"copied to slot {body.destination} ({body.why})"
            found["read"] = Touch(event.sequence, text)

    def _sieve(self, segment: SegmentReader) -> np.ndarray:
        kinds, bands = segment.records["kind"], segment.records["band"]
        ours = (bands == self._band) | ((bands == self._naming) & (kinds == Kind.LEASE_BEGIN))
        mask: np.ndarray = np.isin(kinds, _PAGES) & ours
        mask |= np.isin(kinds, _OWNERS)
        mask |= (kinds == Kind.STATE_COPY) & (bands == self._band)
        if self.details.owner == CACHE:
            mask |= np.isin(kinds, _SHARES)
        return mask

    # --- a page that holds nothing ----------------------------------------------------------------

    def _look_at_empty(self, start: int, stop: int, snapshot: dict[str, Any]) -> bool:
        page = self.details.page
        last: Touch | None = None
        held: dict[int, tuple[int, str]] = {}  # the page's content, and whose
        state = ArenaState(self.trace.header)
        state.restore(snapshot, start)
        band = state.bands[self._band]
        if band.virtual[page - band.base] >= 0:
            owner = who(int(band.owner[page - band.base]))
            held[page] = int(band.virtual[page - band.base]), owner
        for event in scan(self.trace, self._sieve, start, stop):
            body = event.body
            if getattr(body, "band", None) != self.details.band:
                continue
            if isinstance(body, events.LeaseBegin) and not body.lease:
                at = np.flatnonzero(body.physical == page)
                if at.size:
                    held[page] = int(body.virtual[at[0]]), str(_holder(body, int(at[0])))
            elif isinstance(body, events.LeaseEnd) and not body.lease and page in held:
                virtual, holder = held[page]
                if bool((body.virtual == virtual).any()):
                    del held[page]
                    text = f"freed by {_by(self.trace, event)}; it held page {virtual} of {holder}"
                    last = Touch(event.sequence, text)
            elif isinstance(body, events.Graft) and page in held:
                at = np.flatnonzero(body.virtual == held[page][0])
                if at.size:
                    held[page] = int(body.into[at[0]]), who(CACHE)
            elif isinstance(body, events.PageMove):
                for places, there in ((body.sources, False), (body.destinations, True)):
                    at = np.flatnonzero(places == page)
                    if not at.size:
                        continue
                    virtual = int(body.virtual[at[0]])
                    if there:
                        held[page] = virtual, "somebody"
                    else:
                        held.pop(page, None)
                        to = int(body.destinations[at[0]])
                        text = f"its content, page {virtual}, moved to page {to:,}"
                        last = Touch(event.sequence, text)
        if last is not None:
            self.details = replace(self.details, freed=last)
        return last is not None

    # --- after all --------------------------------------------------------------------------------

    def _add_stacks(self) -> None:
        for name in ("leased", "shared", "moved", "read", "written", "freed"):
            touch = getattr(self.details, name)
            if touch is not None:
                stack = stack_of(self.trace, touch.sequence)
                self._tell(name, replace(touch, stack=stack))

    def _add_barrier(self) -> None:
        """The first barrier that waits for all of the last forward that touched the page; a fine one
        waits for its table reads only."""
        touched = [t for t in (self.details.read, self.details.written) if t is not None and t.ticket]
        ticket = max((touch.ticket for touch in touched), default=self.details.waits_for)
        if not ticket:
            return
        begin = max([touch.sequence for touch in touched], default=self.details.looked_back)
        for segment in self.trace.segments(begin, self.position):
            records = segment.records
            waits = (records["kind"] == Kind.BARRIER) & (records["a"] >= ticket) & segment.good
            for index in np.flatnonzero(waits).tolist():
                sequence = segment.first_sequence + index
                body = body_at(self.trace, sequence)
                if not begin <= sequence < self.position or not isinstance(body, events.Barrier):
                    continue
                if body.kind == "settle" or "coarse" in body.kind:
                    text = f"{body.kind}, waits for ticket {body.ticket:,}: {body.why}"
                    self.details = replace(self.details, barrier=Touch(sequence, text))
                    return


class _Owner:
    """A request along a stretch: tokens with room, tokens launched; and where a virtual page of it
    stands in its own order (`index`, None: it is not there yet)."""

    def __init__(self, request: int, virtual: int, ledger: dict[str, Any]) -> None:
        self.request = request
        self.virtual = virtual
        self.length = self.launched = 0
        self.index: int | None = None
        self.asked: Event | None = None
        self._pages = 0
        at = np.flatnonzero(np.asarray(ledger["request"]) == request)
        if at.size:
            row = int(at[0])
            counts = np.asarray(ledger["page_count"], np.int64)
            begin = int(counts[:row].sum())
            self._add(np.asarray(ledger["pages"], np.int64)[begin : begin + int(counts[row])])
            self.length = int(ledger["length"][row])
            self.launched = int(ledger["launched"][row])

    def _add(self, pages: np.ndarray) -> None:
        at = np.flatnonzero(pages == self.virtual)
        if at.size:
            self.index = self._pages + int(at[-1])
        self._pages += int(pages.size)

    def take(self, body: events.LeaseBegin) -> None:
        """Pages were leased; those of this request come last in its order."""
        if isinstance(body.holder, np.ndarray):
            self._add(body.virtual[body.holder == self.request])
        elif body.holder == self.request:
            self._add(body.virtual)

    def grow(self, operation: Any, outcome: Outcome, page_size: int) -> None:
        """Room for more tokens was made, or some were there from the beginning."""
        if isinstance(operation, ops.Extend) and operation.request == self.request:
            self.length += operation.tokens
        elif isinstance(operation, ops.Decode) and self.request in operation.requests:
            self.length += 1
        elif isinstance(operation, ops.Admit) and operation.request == self.request:
            self.length = self.launched = int(outcome.value or 0)
            self._pages = self.length // page_size


def _stretches(trace: Trace, position: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Keyframes before a position, the nearest first: the event after each, and what it says; None
    for one that cannot be read."""
    for segment in trace.segments_before(position):
        for index in reversed(segment.find(Kind.KEYFRAME).tolist()):
            if segment.first_sequence + index >= position:
                continue
            payload = segment.payload(index)
            snapshot = None
            if form.crc32(payload) == int(segment.records["c"][index]):
                try:
                    snapshot = keyframe.decode(payload)
                except ValueError:
                    snapshot = None
            yield segment.first_sequence + index + 1, snapshot


def _fills(trace: Trace, is_state: bool) -> bool:
    config = trace.header["arena"]["config"]
    return bool(config["hand_out_state" if is_state else "hand_out"] != "none")


def _holder(body: events.LeaseBegin, at: int) -> str:
    holder = body.holder
    return who(holder if isinstance(holder, int | str) else int(holder[at]))


def _by(trace: Trace, event: Event) -> str:
    operation = operation_at(trace, event.operation)
    if operation is None:
        return f"event {event.sequence:,}"
    request = getattr(operation, "request", None)
    return operation.kind if request is None else f"{operation.kind} of request {request}"


def stack_of(trace: Trace, sequence: int) -> tuple[str, ...]:
    """The recorded stack of the operation that an event belongs to; empty where there is none."""
    segment = trace.segment_of(sequence)
    kinds = segment.records["kind"][: sequence - segment.first_sequence + 1]
    asked = np.flatnonzero((kinds >= form.FIRST_OPERATION) & (kinds <= form.LAST_OPERATION))
    if not asked.size:
        return ()
    index = int(asked[-1]) - 1
    if index >= 0 and kinds[index] == Kind.CHECK:  # the end of a block came in between
        index -= 1
    if index < 0 or kinds[index] != Kind.STACK:
        return ()
    body = body_at(trace, segment.first_sequence + index)
    return body.frames if isinstance(body, Stack) else ()
