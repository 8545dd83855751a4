"""What must hold between the states before and after one operation, and what the device was asked.

The books' own checks look at one state. These look at a step, and so see what leaves no trace: a page
that was handed out while launched work could still touch it, a move that was not the cheapest, a refusal
that changed something, bytes that did not follow their page. Together they are inductive: where they
hold for every step, a page of any state is touched only as its ticket allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bandscope.allocator import operations as ops
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.policies import ArenaConfig
from bandscope.fuzz.exhaustive.expectation import Entry, Expected, expect
from bandscope.fuzz.exhaustive.geometry import GAP, HOLE, LIVE, PENDING, Geometry
from bandscope.fuzz.exhaustive.view import NOWHERE, View
from bandscope.fuzz.exhaustive.watch import Issued
from bandscope.fuzz.exhaustive.work import Moves, Work


class StepRules:
    """The rules for one arena."""

    def __init__(self, geometry: Geometry, config: ArenaConfig) -> None:
        self.geometry = geometry
        self.config = config
        self.bands = range(len(geometry.names))
        self._none_moved: Moves = [{} for _ in self.bands]

    def check(
        self,
        before: View,
        operation: Operation,
        outcome: Outcome,
        after: View,
        issued: Sequence[Issued],
    ) -> list[Violation]:
        """All violations of this step; empty when it was right."""
        expected = expect(self.geometry, before, operation)
        if not outcome.ok or expected.refusal:
            return list(self._refused(expected, before, outcome, after, issued))
        found = list(self._ledger(expected, before, after))
        found += self._notes(before, operation, outcome, after, issued)
        found += self._generations(before, after)
        moved, ordered = self._none_moved, before.ordered
        filled: set[tuple[int, int]] = set()
        if issued:
            work = Work(self.geometry, before)
            for each in issued:
                found += work.do(each, self.config.barrier)
            moved, ordered, filled = work.moves(), work.ordered, work.filled
            if work.moved_bytes:
                found += self._moves(before, operation, expected, outcome, after, work)
        elif isinstance(operation, ops.Compact) and outcome.value:
            found.append(Violation("caps", f"{outcome.value} moves were counted, none was issued"))
        found += self._places(before, after, moved, filled)
        found += self._waiting(before, after, ordered)
        found += self._frontiers(after)
        if operation == ops.Compact(urgent=True) and not before.gate:
            found += self._packed(before, after, moved)
        return found

    # --- refusals ----------------------------------------------------------------------------------

    def _refused(
        self,
        expected: Expected,
        before: View,
        outcome: Outcome,
        after: View,
        issued: Sequence[Issued],
    ) -> Iterator[Violation]:
        if outcome.ok:
            yield Violation(
                "capacity",
                f"a demand of {expected.demand} was granted, but no layout holds it "
                f"({expected.refusal})",
            )
            return
        if outcome.reason != expected.refusal:
            yield Violation(
                "capacity",
                f"a demand of {expected.demand} was refused for {outcome.reason!r}, but "
                + (f"the reason is {expected.refusal!r}" if expected.refusal else "a layout holds it"),
            )
        if not after.same_as(before) or after.dirty != before.dirty:
            yield Violation("atomic", "a refused operation changed the books")
        if issued:
            yield Violation("atomic", f"a refused operation asked the device to {issued[0][0]}")

    # --- what requests hold ------------------------------------------------------------------------

    def _ledger(self, expected: Expected, before: View, after: View) -> Iterator[Violation]:
        wanted = {**dict.fromkeys(before.requests), **expected.changed}
        gone = {request for request, entry in expected.changed.items() if entry is None}
        if set(after.requests) != set(wanted) - gone:
            yield Violation(
                "ownership",
                f"requests {sorted(set(wanted) - gone)} should run, {sorted(after.requests)} do",
            )
            return
        for request, now in after.requests.items():
            then = before.requests.get(request)
            entry: Entry | None = expected.changed.get(request)
            if entry is None:
                if now != then:
                    yield Violation("ownership", f"request {request} changed, but was not asked")
                continue
            length, launched, count, kept, pages, slots = now
            if (length, launched, count, kept, len(slots)) != entry:
                yield Violation(
                    "ownership",
                    f"request {request} holds {(length, launched, count, kept, len(slots))} (length, "
                    f"launched, pages, trimmed, slots), {entry} was expected",
                )
            elif then is not None and (pages[: then[2]] != then[4] or slots != then[5]):
                yield Violation("content", f"request {request} lost a page it held")

    def _notes(
        self,
        before: View,
        operation: Operation,
        outcome: Outcome,
        after: View,
        issued: Sequence[Issued],
    ) -> Iterator[Violation]:
        flying, leases, gate = before.in_flight, before.leases, before.gate
        match operation:
            case ops.Launch(requests=requests):
                writes = self._writes(before, requests)
                flying = (*flying, (before.issued + 1, writes))
                if outcome.value != before.issued + 1:
                    yield Violation("happens_before", f"ticket {outcome.value} was not the next")
            case ops.Complete(ticket=ticket):
                flying = tuple([each for each in flying if each[0] != ticket])
            case ops.Lease(request=request, band=name, first_page=first, stop_page=stop):
                band = self.geometry.names.index(name)
                pages, slots = before.requests[request][4:6]
                held = (slots if band == self.geometry.state else pages)[first:stop]
                places = bytes([before.place_of[band][page] for page in held])
                named = before.generation[int(band == self.geometry.state)]
                generation = bytes([named[page] for page in held])
                leases = (*leases, (outcome.value, band, places, held, generation))
                if outcome.value != before.next_lease:
                    yield Violation("pins", f"lease {outcome.value} was not the next")
                if ("look", 0, [], []) not in issued:
                    yield Violation("content", "a lease began before the fills of its pages")
            case ops.EndLease(lease=number):
                leases = tuple([each for each in leases if each[0] != number])
            case ops.SetGate(closed=closed):
                gate = closed
        if after.in_flight != flying:
            yield Violation(
                "happens_before", f"{after.in_flight} is in flight, {flying} was expected"
            )
        if after.leases != leases:
            yield Violation("pins", f"leases {after.leases} are held, {leases} were expected")
        if after.next_lease != before.next_lease + isinstance(operation, ops.Lease):
            yield Violation("pins", f"the next lease is {after.next_lease} after {before.next_lease}")
        if after.gate != gate:
            yield Violation("pins", f"the gate is {after.gate}, {gate} was expected")

    def _writes(
        self, before: View, requests: Sequence[int]
    ) -> tuple[tuple[int, bytes], ...]:
        geometry = self.geometry
        token, slots = b"", b""
        for request in requests:
            _, launched, _, _, pages, own = before.requests[request]
            token += pages[launched // geometry.page_size :]
            slots += own
        writes = [(band, token) for band in geometry.token_bands]
        if geometry.state is not None:
            writes.append((geometry.state, slots))
        return tuple(writes)

    def _generations(self, before: View, after: View) -> Iterator[Violation]:
        """An id that is given back gets a new name; no other does."""
        if before.generation == after.generation and before.bound == after.bound:
            return
        for space, (then, now) in enumerate(zip(before.generation, after.generation, strict=True)):
            bound = zip(before.bound[space], after.bound[space], strict=True)
            for page, (held, holds) in enumerate(bound):
                if (now[page] - then[page]) % 256 != (held and not holds):
                    yield Violation(
                        "ids", f"id {page} has generation {now[page]} after {then[page]}, held: {holds}"
                    )

    # --- moves -------------------------------------------------------------------------------------

    def _moves(
        self,
        before: View,
        operation: Operation,
        expected: Expected,
        outcome: Outcome,
        after: View,
        work: Work,
    ) -> Iterator[Violation]:
        if before.gate:
            yield Violation("pins", "pages moved while the gate is closed")
        if expected.demand is not None:
            if self.config.headroom_share:
                return
            fewest = self.geometry.cheapest(self.geometry.occupancy(before), expected.demand)
            if work.moved_bytes != fewest:
                yield Violation(
                    "relocation",
                    f"{work.moved_bytes} bytes moved for a demand of {expected.demand}, {fewest} are "
                    "enough",
                )
        elif isinstance(operation, ops.Compact):
            cap = self.config.max_moves if operation.max_moves is None else operation.max_moves
            for band, pages in enumerate(work.moved_pages):
                if not operation.urgent and pages > cap:
                    yield Violation(
                        "caps", f"{pages} pages of {self.geometry.names[band]} moved, the cap is {cap}"
                    )
                (low, high), (old_low, old_high) = after.extents[band], before.extents[band]
                if low < high and not old_low <= low < high <= old_high:
                    yield Violation(
                        "relocation",
                        f"compaction stretched {self.geometry.names[band]} from "
                        f"{(old_low, old_high)} to {(low, high)}",
                    )
            if outcome.value != sum(work.moved_pages):
                yield Violation(
                    "caps", f"{outcome.value} moves were counted, {sum(work.moved_pages)} were issued"
                )
        else:
            yield Violation("relocation", f"{operation.kind} moved pages")

    def _packed(self, before: View, after: View, moved: Moves) -> Iterator[Violation]:
        """An urgent compaction leaves each band as tight as its pins allow, by the fewest moves."""
        for band in self.bands:
            if not (before.counts[band][1] or before.counts[band][2]):
                continue
            pinned = [place for place, count in enumerate(before.pin_count[band]) if count]
            alive = [place for place, code in enumerate(before.state[band]) if code == LIVE]
            size = len({*alive, *pinned})
            if not size:
                continue
            first, last = min(pinned, default=None), max(pinned, default=None)
            tightest, most = None, 0
            starts = range(self.geometry.capacity[band]) if self.geometry.is_float[band] else (0,)
            for start in starts:
                if first is not None and start > first:
                    break
                stop = start + size if last is None else max(start + size, last + 1)
                inside = sum(start <= place < stop for place in alive)
                if tightest is None or (stop - start, -inside) < (tightest, -most):
                    tightest, most = stop - start, inside
            assert tightest is not None
            low, high = after.extents[band]
            if high - low > tightest or len(moved[band]) > len(alive) - most:
                yield Violation(
                    "relocation",
                    f"urgent compaction left {self.geometry.names[band]} at {high - low} places by "
                    f"{len(moved[band])} moves; {tightest} by {len(alive) - most} are possible",
                )

    # --- bytes follow pages ------------------------------------------------------------------------

    def _places(
        self, before: View, after: View, moved: Moves, filled: set[tuple[int, int]]
    ) -> Iterator[Violation]:
        for band in self.bands:
            went = moved[band]
            then, now = before.place_of[band], after.place_of[band]
            if then == now and not went:
                continue
            is_state = band == self.geometry.state
            hand_out = self.config.hand_out_state if is_state else self.config.hand_out
            for page, (old, new) in enumerate(zip(then, now, strict=True)):
                if new == NOWHERE:
                    continue
                if old == NOWHERE:
                    if hand_out != "none" and (band, new) not in filled:
                        yield Violation(
                            "content",
                            f"{self.geometry.names[band]}: place {new} was handed out with the bytes "
                            "of its former owner",
                        )
                elif went.get(old, old) != new:
                    yield Violation(
                        "content",
                        f"{self.geometry.names[band]}: page {page} went from place {old} to {new}, its "
                        f"bytes are at {went.get(old, old)}",
                    )

    # --- tickets -----------------------------------------------------------------------------------

    def _waiting(self, before: View, after: View, ordered: int) -> Iterator[Violation]:
        """Pages are freed, and become reusable, only as tickets and pins allow."""
        if after.ordered > ordered:
            yield Violation(
                "happens_before",
                f"the books take ticket {after.ordered} for ordered, the device was asked for "
                f"{ordered}",
            )
        if after.state == before.state and after.pending == before.pending:
            return
        unsettled = [ticket for ticket, _ in after.in_flight if ticket > ordered]
        stamped = {(band, p): stamp for stamp, band, places in before.pending for p in places}
        stamps = {(band, p): stamp for stamp, band, places in after.pending for p in places}
        for band in self.bands:
            pins = after.pin_count[band]
            for place, (then, now) in enumerate(
                zip(before.state[band], after.state[band], strict=True)
            ):
                if now == LIVE or (now == then and now != PENDING) or then in (GAP, HOLE):
                    continue
                stamp = stamped.get((band, place))
                if now == PENDING:
                    if pins[place]:
                        continue
                    told = stamps.get((band, place), -1)
                    if stamp is not None and then == PENDING:
                        right = told == stamp
                    else:
                        right = told >= 0 and not any(ticket > told for ticket in unsettled)
                    if not right:
                        yield Violation(
                            "happens_before",
                            f"{self.geometry.names[band]}: place {place} waits for ticket {told}, but "
                            f"{unsettled} may touch it",
                        )
                elif pins[place]:
                    yield Violation(
                        "pins", f"{self.geometry.names[band]}: pinned place {place} was given up"
                    )
                elif any(stamp is None or ticket <= stamp for ticket in unsettled):
                    yield Violation(
                        "happens_before",
                        f"{self.geometry.names[band]}: place {place} was freed for reuse while tickets "
                        f"{unsettled} may touch it",
                    )


    def _frontiers(self, after: View) -> Iterator[Violation]:
        """An extent ends in pages in use: frontiers are pulled back at once."""
        for band, (low, high) in enumerate(after.extents):
            state = after.state[band]
            if low < high and HOLE in (state[high - 1], self.geometry.is_float[band] and state[low]):
                yield Violation(
                    "conservation",
                    f"{self.geometry.names[band]}: the extent {low} to {high} ends in a hole",
                )
