"""The oracle: what each operation must do, written down without looking at how the arena does it.

    model = Model(layout)
    arena.books.observer = model.observer
    model.expect(operation)
    violations = model.settle(operation, arena.apply(operation))

It is naive on purpose: lists of plain numbers, a rule at a time, no code shared with the allocator but
the operations, the names of effects, and the plan's facts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.model.effects import EffectRules
from bandscope.fuzz.model.expectation import DONE, MISUSE, REFUSED, Expectation
from bandscope.fuzz.model.moves import NO_MOVES, QUIET, URGENT
from bandscope.fuzz.model.state import Access, Forward, Hold, Request
from bandscope.fuzz.program import Layout

REQUEST_LIMIT = 1 << 63
PURPOSES = frozenset({"forward", "host copy", "transfer"})

# Which rule an operation breaks when the arena takes it for legal and the model does not, or reverse.
MISUSED = {
    ops.Complete: "happens_before",
    ops.Launch: "happens_before",
    ops.Lease: "pins",
    ops.EndLease: "pins",
    ops.Compact: "caps",
    ops.Reserve: "capacity",
    ops.Evict: "capacity",
}

# Operations whose value their effects bear out.
BORNE_OUT = frozenset({ops.Compact, ops.Publish, ops.Checkpoint, ops.Evict})


class Model(EffectRules):
    """The model of one arena of `layout`, empty at first."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._expected = DONE
        self.expectations, self.advances = EXPECT, ADVANCE
        self.last_shared: list[int] = []  # pages that the last request shared that left
        self.copies: list[tuple[int, int, int]] = []  # state slots: band index, source, destination
        self.batch: list[Request] = []  # the requests of the operation under way
        # Pages that lie where others lay: band index, and what these were and are called.
        self.grafts: list[tuple[int, list[int], list[int]]] = []
        self.forward = Forward([])  # the newest launched
        self.trimmed: list[tuple[Request, int, int]] = []  # trimmed: request, window, first kept

    @property
    def observer(self) -> Model:
        """What to install as `arena.books.observer`."""
        return self

    def starts(self) -> bool:
        """True exactly when an arena of this layout must start: it holds a page of every band. Asked of
        an empty model."""
        return self.serves([1] * len(self.bands))

    # --- the interface ------------------------------------------------------------------------------

    def expect(self, operation: Operation) -> Expectation:
        """What `operation` will do, asked before it is applied."""
        self.operation = operation
        self.begin()
        self._expected = self.expectations[type(operation)](self, operation)
        return self._expected

    def settle(self, operation: Operation, outcome: Outcome) -> list[Violation]:
        """What was wrong with the operation, its outcome and its effects; afterwards the model stands
        where the arena should."""
        expected = self._expected
        if outcome.ok != expected.ok or outcome.reason != expected.reason:
            self._unexpected(operation, outcome)
        elif expected.ok:
            advance = self.advances.get(type(operation))
            if type(operation) in BORNE_OUT:
                self.bear_out(operation, outcome.value)
            elif outcome.value != expected.value:
                self.broken(
                    MISUSED.get(type(operation), "atomic"),
                    f"{operation.kind} yields {outcome.value}, not {expected.value}",
                )
            if self.takes or self.drops or self.new_hold or self.ending:
                self._owes(operation)
            elif advance is not None:
                advance(self, operation)
            if self.must_reclaim:
                self._check_reclaimed()
            if self.moved:
                self.check_moves()
        elif self.told_any:
            self.broken("atomic", f"a refused {operation.kind} did something")
        elif self.refused != (expected.reason != "misuse"):
            self.broken("atomic", f"a refused {operation.kind} told {int(self.refused)} refusals")
        if self._owed_pending is not None:
            self._owes_pending()
        for band in self.bands:
            if band.told != band.span:
                self.broken(
                    "order",
                    f"{band.name} spans bytes {band.span}, but {band.told} is what was told last",
                )
        found = self.violations
        if found:
            self.violations = []
        return found

    def accesses(self, requests: Sequence[int]) -> Access:
        """Per band index the virtual pages that a forward over these requests reads, and those that it
        writes, as an engine would know them. After a launch of just these: those of that launch."""
        if type(self.operation) is ops.Launch and self.operation.requests == tuple(requests):
            return self.touched_by(self.forward)
        known = [self.requests[request] for request in requests]
        return self.touched_by(Forward((r, r.launched, len(r.pages)) for r in known))

    def leased(self, number: int) -> tuple[int, Pages]:
        """Band index and virtual pages of a lease, as they were called when it began."""
        hold = self.holds[number]
        return hold.band.index, np.array(hold.virtual, np.int64)

    def bear_out(self, operation: Operation, value: Any) -> None:
        """The value follows from effects."""
        assert isinstance(operation, ops.Compact), "without a prefix cache, nothing else is done"
        if value != sum(self.moved.values()):
            self.broken("caps", f"{value} moves were reported, {self.moved} told")
        self.check_compacted(operation)

    # --- what goes wrong as a whole -------------------------------------------------------------------

    def _unexpected(self, operation: Operation, outcome: Outcome) -> None:
        expected = self._expected
        invariant = MISUSED.get(type(operation), "ownership")
        if "misuse" not in (outcome.reason, expected.reason):
            invariant = "capacity"
        said = "done" if outcome.ok else f"refused ({outcome.reason})"
        right = "done" if expected.ok else f"refused ({expected.reason})"
        self.broken(invariant, f"{operation.kind} was {said}, but must be {right}: {operation}")

    def _owes(self, operation: Operation) -> None:
        self.broken(
            "pins" if self.new_hold or self.ending else "ownership",
            f"{operation.kind} did not take {self.takes} pages by band, drop {self.drops[:1]}, or "
            "begin or end its lease",
        )

    def _check_reclaimed(self) -> None:
        if self.waiting and self.waiting[0].stamp <= self.settled_through:
            batch = self.waiting[0]
            self.broken(
                "capacity",
                f"{len(batch.places)} pages of {batch.band.name} wait for ticket {batch.stamp}, which "
                "is settled; nobody reclaims them",
            )

    # --- what each operation will do ----------------------------------------------------------------

    def _demand(self, pages: list[int]) -> Expectation:
        self.demand = tuple(pages)
        reason = self.reason_against(pages)
        if reason:
            self.expected_refusal = reason
            return REFUSED[reason]
        self.may_move = URGENT
        self.may_settle = True
        return DONE

    def _take_tokens(self, pages: int, taker: Any) -> Expectation:
        demand = [pages] * len(self.bands)
        if self.state_band is not None:
            demand[self.state_band.index] = 0
        expected = self._demand(demand)
        if expected.ok:
            self.takes = dict.fromkeys(self.token_indices, pages)
            self.taker = taker
        return expected

    def is_illegal(self, op: ops.Admit) -> bool:
        """Whatever the arena: the request runs, or its numbers mean nothing."""
        known = op.request in self.requests
        return known or not 0 <= op.request < REQUEST_LIMIT or op.state_slots < 0

    def _expect_admit(self, op: ops.Admit) -> Expectation:
        if self.is_illegal(op) or op.key or op.limit_tokens is not None:
            return MISUSE
        if self.state_band is None or not op.state_slots:
            return DONE
        index = self.state_band.index
        demand = [0] * len(self.bands)
        demand[index] = op.state_slots
        expected = self._demand(demand)
        if expected.ok:
            self.takes = {index: op.state_slots}
            self.taker = op.request
        return expected

    def _expect_extend(self, op: ops.Extend) -> Expectation:
        request = self.requests.get(op.request)
        if request is None or op.tokens < 0:
            return MISUSE
        missing = request.length + op.tokens - request.room
        if missing <= 0:
            return DONE
        return self._take_tokens(-(-missing // self.page_size), op.request)

    def _take_batch(self, requests: Sequence[int]) -> bool:
        known = self.requests
        try:
            self.batch = [known[request] for request in requests]
        except KeyError:
            return False
        return len(set(requests)) == len(requests)

    def _expect_decode(self, op: ops.Decode) -> Expectation:
        if not self._take_batch(op.requests):
            return MISUSE
        full = [request.number for request in self.batch if request.length == request.room]
        return self._take_tokens(len(full), full) if full else DONE

    def _expect_trim(self, op: ops.TrimWindow) -> Expectation:
        if not self._take_batch(op.requests):
            return MISUSE
        self.trimmed = []
        page_size = self.page_size
        for band in self.windows:
            length = band.window_length
            if length is None:
                continue
            number, pages, holders = band.window_number, array("q"), []
            for request in self.batch:
                # The next token, at position `length`, attends to positions above length − window:
                # pages whose last token lies there or below are of no use any more.
                kept = request.first_kept[number]
                useless = request.length - length
                if useless >= (kept + 1) * page_size - 1:
                    needed = (useless + 1) // page_size
                    # What the prefix cache owns is not the request's to free.
                    own = min(max(kept, len(request.path)), needed)
                    pages += request.pages[own:needed]
                    holders += [request.number] * (needed - own)
                    self.trimmed.append((request, number, needed))
            if pages:
                self.drops.append((band.index, pages.tolist(), holders))
        return DONE

    def _expect_release(self, op: ops.Release) -> Expectation:
        request = self.requests.get(op.request)
        if request is None or op.publish or op.key:
            return MISUSE
        for band in self.windows:
            kept = request.pages[request.first_kept[band.window_number] :].tolist()
            if kept:
                self.drops.append((band.index, kept, op.request))
        if request.pages:
            self.drops.append((self.full.index, request.pages.tolist(), op.request))
        if request.slots and self.state_band is not None:
            self.drops.append((self.state_band.index, request.slots, op.request))
        return DONE

    def _expect_launch(self, op: ops.Launch) -> Expectation:
        if not self._take_batch(op.requests):
            return MISUSE
        self.forward = Forward((one, one.launched, len(one.pages)) for one in self.batch)
        return Expectation(True, "", self.issued + 1)

    def _expect_complete(self, op: ops.Complete) -> Expectation:
        if op.ticket not in self.flights:
            return MISUSE
        self.must_reclaim = True
        return DONE

    def _expect_compact(self, op: ops.Compact) -> Expectation:
        if op.max_moves is not None and op.max_moves < 0:
            return MISUSE
        self.move_cap = self.config.max_moves if op.max_moves is None else op.max_moves
        self.may_move = URGENT if op.urgent else QUIET
        self.may_settle = op.urgent
        self.must_reclaim = True
        if self.gate_closed:
            self.may_move, self.may_settle = NO_MOVES, False
        return DONE

    def _expect_reserve(self, op: ops.Reserve) -> Expectation:
        if len(op.demand) != len(self.bands) or min(op.demand) < 0:
            return MISUSE
        return self._demand(list(op.demand))

    def _expect_lease(self, op: ops.Lease) -> Expectation:
        band = self.by_name.get(op.band)
        request = self.requests.get(op.request)
        if request is None or band is None or op.purpose not in PURPOSES:
            return MISUSE
        held = request.slots if band.is_state else request.pages.tolist()
        first = request.first_kept[band.window_number] if band.window_number >= 0 else 0
        if not first <= op.first_page < op.stop_page <= len(held):
            return MISUSE
        virtual = held[op.first_page : op.stop_page]
        places = [band.place_of[page] for page in virtual]
        known = (self.state_ids if band.is_state else self.ids).generation
        generation = [known[page] for page in virtual]
        self.new_hold = Hold(
            op.holder, op.purpose, band, places, virtual, generation, self.issued, op.deadline_ticket
        )
        return Expectation(True, "", self.next_lease)

    def _expect_end_lease(self, op: ops.EndLease) -> Expectation:
        hold = self.holds.get(op.lease)
        if hold is None or (op.holder is not None and op.holder != hold.holder):
            return MISUSE
        self.ending = op.lease
        return DONE

    def _expect_gate(self, op: ops.SetGate) -> Expectation:
        return DONE

    def _expect_cache(self, op: Operation) -> Expectation:
        return MISUSE  # there is none

    # --- what it has done, once it is done ------------------------------------------------------------

    def _admitted(self, op: ops.Admit) -> None:
        slots = self.taken or []
        self.requests[op.request] = Request(op.request, len(self.windows), slots)

    def _extended(self, op: ops.Extend) -> None:
        request = self.requests[op.request]
        request.length += op.tokens
        if self.taken:
            request.pages.extend(self.taken)
            request.room += len(self.taken) * self.page_size

    def _decoded(self, op: ops.Decode) -> None:
        known = self.requests
        if self.taken:
            for number, page in zip(self.taker, self.taken, strict=True):
                request = known[number]
                request.pages.append(page)
                request.room += self.page_size
        for request in self.batch:
            request.length += 1

    def _trimmed(self, op: ops.TrimWindow) -> None:
        for request, window, first in self.trimmed:
            request.first_kept[window] = first

    def _released(self, op: ops.Release) -> None:
        request = self.requests.pop(op.request)
        self.ids.release(request.pages.tolist())
        self.state_ids.release(request.slots)

    def _launched(self, op: ops.Launch) -> None:
        self.issued += 1
        self.flights[self.issued] = self.forward
        for request in self.batch:
            request.launched = request.length

    def _gate_set(self, op: ops.SetGate) -> None:
        self.gate_closed = op.closed


EXPECT: dict[type, Callable[[Any, Any], Expectation]] = {
    ops.Admit: Model._expect_admit,
    ops.Extend: Model._expect_extend,
    ops.Decode: Model._expect_decode,
    ops.TrimWindow: Model._expect_trim,
    ops.Release: Model._expect_release,
    ops.Launch: Model._expect_launch,
    ops.Complete: Model._expect_complete,
    ops.Compact: Model._expect_compact,
    ops.Reserve: Model._expect_reserve,
    ops.Lease: Model._expect_lease,
    ops.EndLease: Model._expect_end_lease,
    ops.SetGate: Model._expect_gate,
    ops.Publish: Model._expect_cache,
    ops.Checkpoint: Model._expect_cache,
    ops.Evict: Model._expect_cache,
}

ADVANCE: dict[type, Callable[[Any, Any], None]] = {
    ops.Admit: Model._admitted,
    ops.Extend: Model._extended,
    ops.Decode: Model._decoded,
    ops.TrimWindow: Model._trimmed,
    ops.Release: Model._released,
    ops.Launch: Model._launched,
    ops.SetGate: Model._gate_set,
}
