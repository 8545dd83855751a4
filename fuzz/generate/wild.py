"""Anything legal, in any order: the hostile profile, with illegal steps in between where a mix asks.

Each phase fills a table of makers in proportion to their weights, so that choosing one costs a single
random number. A maker returns a step, or None when there is nothing to do it to.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bandscope.allocator import operations as ops
from bandscope.allocator.handlers import REQUEST_MAX
from bandscope.fuzz.generate.caching import CacheMakers
from bandscope.fuzz.generate.misuse import ILLEGAL
from bandscope.fuzz.generate.mix import CACHE_KINDS, KINDS, Mix
from bandscope.fuzz.generate.notes import Notes, Request
from bandscope.fuzz.generate.phases import (
    AFTER_REFUSAL,
    AGAIN,
    CACHED_FOLLOWERS,
    CACHED_PHASES,
    FOLLOWERS,
    FORCED,
    PHASES,
    TABLE,
    exponential,
    in_proportion,
)
from bandscope.fuzz.program import Step

WHYS = ("finished", "aborted", "retracted")
HOLDERS = ("engine", "host", "peer 1")

_COMPACTS = tuple(
    Step(ops.Compact(urgent, moves))
    for urgent, moves in (
        (False, None), (False, None), (False, 0), (False, 1), (False, 2), (False, 3), (False, 7),
        (False, 1 << 20), (True, None), (True, None), (True, None), (True, 1),
    )
)  # fmt: skip
_OPEN, _CLOSE = Step(ops.SetGate(False)), Step(ops.SetGate(True))


class Wild(CacheMakers):
    """Makes steps for `notes`, by `mix`. `intent`: what the last step was made for."""

    def __init__(self, notes: Notes, mix: Mix, random: Random) -> None:
        super().__init__(notes, mix, random)
        self.phase = ""
        self._illegal = [(f"misuse: {kind}", ILLEGAL[kind]) for kind in mix.illegal]
        self._makers: dict[str, Callable[[], Step | None]] = {
            "Admit": self._admit,
            "Extend": self._extend,
            "Decode": self._decode,
            "TrimWindow": self._trim,
            "Release": self._release,
            "Launch": self._launch,
            "Complete": self._complete,
            "Compact": self._compact,
            "Reserve": self._reserve,
            "Lease": self._lease,
            "EndLease": self._end_lease,
            "SetGate": self._set_gate,
            "Publish": self._publish,
            "Checkpoint": self._checkpoint,
            "Evict": self._evict,
        }
        self._weights = dict(zip(KINDS, mix.weights, strict=True))
        self._phases, self._followers = CACHED_PHASES, CACHED_FOLLOWERS
        if not notes.cached:
            self._weights |= dict.fromkeys(CACHE_KINDS, 0)
            self._phases, self._followers = PHASES, FOLLOWERS
        self._follow = ""  # the kind of the last step, where something is to follow it
        self._table: list[Callable[[], Step | None]] = []
        self._sizes: list[int] = []

    def begin(self, phase: str) -> None:
        """Go on in another phase."""
        self.phase = phase
        factors = self._phases[phase]
        weights = []
        for kind in KINDS:
            weight = self._weights[kind] * factors.get(kind, 1.0)
            if phase == "drain" and kind in FORCED:
                weight = max(weight, 100.0)
            weights.append(weight)
        misuse = self.mix.misuse
        makers = [self._makers[kind] for kind in KINDS]
        if misuse:
            makers.append(self._misuse)
            weights.append(sum(weights) * misuse / (1 - misuse))
        self._table = in_proportion(makers, weights)
        self._sizes = self._choose_sizes()

    def next(self) -> Step:
        """The next step."""
        roll, table = self._roll, self._table
        if self._follow:
            refused = self.notes.reason not in ("", "misuse")
            names = AFTER_REFUSAL if refused else self._followers[self._follow]
            self._follow = ""
            name = names[int(roll() * len(names))]
            if name == AGAIN:
                step = self._release_again()
            else:  # only what the mix has on; then nothing in particular follows
                step = self._makers[name]() if self._weights[name] else None
            if step is not None:
                return step
        if self.phase == "drain" and self.notes.closed:
            self.intent = "open"
            return _OPEN
        while True:
            step = table[int(roll() * TABLE)]()
            if step is not None:
                if roll() < self.mix.follow and step.operation.kind in self._followers:
                    self._follow = step.operation.kind
                return step

    # --- choices ------------------------------------------------------------------------------------

    def _choose_sizes(self) -> list[int]:
        """Sizes of extensions for one phase, in tokens: boundaries, and many exponential ones."""
        page = self.notes.page_size
        # A long prompt is long for this arena.
        most = max(1, self.notes.usable_bytes // self.notes.token_bytes) * page
        scale = 2.5 * page
        if self.phase == "long prompts":
            scale = max(16.0 * page, most / 5)
        elif self.phase == "fill":
            scale = max(5.0 * page, most / 16)
        elif self.phase == "many short":
            scale = 0.7 * page
        sizes = [0, 1, max(0, page - 1), page, page + 1, 2 * page - 1, 2 * page, 3 * page + 1]
        while len(sizes) < 32:
            size = int(exponential(self._roll()) * scale)
            sizes.append(min(size, most + page))
        return sizes

    def _batch(self) -> tuple[int, ...]:
        """Some of the requests that run: all, one, a stretch, none."""
        numbers = self.notes.numbers
        roll = self._roll()
        if roll < 0.5:
            return tuple(numbers)
        if roll < 0.65:
            return (self._one().number,)
        if roll < 0.7:
            return tuple(numbers[::-1])
        if roll < 0.72 and self.mix.empty:
            return ()
        start = int(self._roll() * len(numbers))
        stop = start + 1 + int(self._roll() * (len(numbers) - start))
        return tuple(numbers[start:stop])

    # --- makers -------------------------------------------------------------------------------------

    def _misuse(self) -> Step | None:
        intent, make = self._illegal[int(self._roll() * len(self._illegal))]
        operation = make(self.notes, self.random)
        if operation is None:
            return None
        self.intent = intent
        name = None
        if type(operation) is ops.Launch:
            name = self._ticket_name()
        elif type(operation) is ops.Lease:
            name = self._lease_name()
        return Step(operation, name)

    def _lease_name(self) -> int:
        notes = self.notes
        name = notes.next_lease
        notes.next_lease = name + 1
        return name

    def _admit(self) -> Step | None:
        notes, mix = self.notes, self.mix
        running = notes.running
        if len(running) >= mix.requests_max:
            # Something must give way, or a mix of little else would not end.
            return self._release() if self._roll() < 0.3 else self._decode()
        number = -1
        roll = self._roll()
        if mix.hot_ids and roll < 0.9:
            number = int(self._roll() * mix.hot_ids)
        elif mix.huge_ids and roll > 0.8:
            number = REQUEST_MAX - int(self._roll() * 4)
        if number < 0 or number in notes.by_number:
            number = notes.next_request
            notes.next_request = number + 1
        self._last_request = number
        self.intent = "admit"
        roll = self._roll()
        if roll < 0.8 or not notes.has_state:
            slots = 1
        elif roll < 0.9:
            slots = 0
        elif roll < 0.97:
            slots = 2 + int(self._roll() * 3)
        elif mix.exact:
            self.intent = "admit: exactly full"
            slots = notes.free_bytes() // notes.state_bytes + int(self._roll() * 2)
        else:
            slots = 1
        if notes.cached:
            return Step(self._keyed(ops.Admit(number, slots)))
        return Step(ops.Admit(number, slots))

    def _extend(self) -> Step | None:
        notes, mix = self.notes, self.mix
        if not notes.running:
            return None
        request = self._one()
        if notes.cached and self._roll() < 0.4:
            return Step(ops.Extend(request.number, self._useful_tokens(request)))
        roll = self._roll()
        if roll < mix.exact:
            self.intent = "extend: exactly full"
            tokens = self._exact_tokens(request)
        elif roll > 0.995 and mix.absurd:
            self.intent = "extend: absurd"
            tokens = 8 * (notes.usable_bytes // notes.token_bytes + 1) * notes.page_size + 3
        elif roll > 0.9:
            self.intent = "extend: to a page's end"
            tokens = -request.length % notes.page_size + (roll > 0.95)
        else:
            self.intent = "extend"
            tokens = self._sizes[int(self._roll() * 32)]
        return Step(ops.Extend(request.number, tokens))

    def _exact_tokens(self, request: Request) -> int:
        """Tokens that fill the arena, by the notes: exactly, one more, one less, a page more, less."""
        notes = self.notes
        page = notes.page_size
        pages = notes.free_bytes() // notes.token_bytes
        tokens = -request.length % page + pages * page
        slip = (0, 0, 1, -1, page, -page)[int(self._roll() * 6)]
        return max(0, tokens + slip)

    def _decode(self) -> Step | None:
        if not self.notes.running:
            return None
        self.intent = "decode"
        return Step(ops.Decode(self._batch()))

    def _trim(self) -> Step | None:
        running = self.notes.running
        if not running:
            return None
        if self.mix.early_trim and self._roll() < 0.7:
            self.intent = "trim: early"
            return Step(ops.TrimWindow(self._batch()))
        # As engines should: when the forward that computes the last tokens has been launched.
        self.intent = "trim"
        batch = [request.number for request in running if request.launched == request.length]
        return Step(ops.TrimWindow(tuple(batch))) if batch else self._launch()

    def _release(self) -> Step | None:
        if not self.notes.running:
            return None
        self.intent = "release"
        operation = ops.Release(self._one().number, WHYS[int(self._roll() * 3)])
        return Step(self._leaving(operation) if self.notes.cached else operation)

    def _release_again(self) -> Step | None:
        """The request that the step before was about leaves: leased, in flight, refused or new."""
        if self._last_request not in self.notes.by_number:
            return None
        self.intent = "release: at once"
        operation = ops.Release(self._last_request, "aborted")
        return Step(self._leaving(operation) if self.notes.cached else operation)

    def _launch(self) -> Step | None:
        notes = self.notes
        if not notes.running:
            return None
        if len(notes.in_flight) >= self.mix.in_flight_max:
            return self._complete() if self._weights["Complete"] else None
        self.intent = "launch"
        return Step(ops.Launch(self._batch()), self._ticket_name())

    def _complete(self) -> Step | None:
        in_flight = self.notes.in_flight
        if not in_flight:
            return None
        self.intent = "complete"
        if len(in_flight) == 1 or self._roll() < self.mix.in_order:
            return Step(ops.Complete(in_flight[0]))
        return Step(ops.Complete(in_flight[int(self._roll() * len(in_flight))]))

    def _compact(self) -> Step | None:
        self.intent = "compact"
        return _COMPACTS[int(self._roll() * len(_COMPACTS))]

    def _reserve(self) -> Step | None:
        notes = self.notes
        bands = notes.bands
        roll = self._roll()
        self.intent = "reserve"
        demand = [0] * len(bands)
        index = int(self._roll() * len(bands))
        if roll < 0.3:  # a plausible one: so many tokens' pages
            pages = 1 + int(self._roll() * 4)
            demand = [0 if band.kind == "state" else pages for band in bands]
        elif roll < 0.6:  # one band alone
            demand[index] = 1 + int(self._roll() * self._roll() * 12)
        elif roll < 0.75:
            demand = [int(self._roll() * 4) for _ in bands]
        elif roll < 0.9:
            self.intent = "reserve: exactly full"
            free = notes.free_bytes() // bands[index].page_bytes
            demand[index] = max(0, free + int(self._roll() * 4) - 2)
        elif self.mix.absurd:
            self.intent = "reserve: absurd"
            demand[index] = 8 * (notes.usable_bytes // bands[index].page_bytes + 1)
        return Step(ops.Reserve(tuple(demand)))

    def _lease(self) -> Step | None:
        notes, mix = self.notes, self.mix
        if not notes.running:
            return None
        if len(notes.leases) >= mix.leases_max:
            return self._end_lease() if self._weights["EndLease"] else None
        request = self._one()
        bands = notes.bands
        band = bands[int(self._roll() * len(bands))]
        if band.kind == "state":
            first, stop = 0, request.slots
        else:
            first, stop = notes.first_kept(request, band.window_length), notes.pages(request)
        if first >= stop:
            return None
        roll = self._roll()
        if mix.overlapping and roll < 0.3 and notes.last_pin is not None:
            again = notes.last_pin
            if again.band == band.name:  # as many of the same pages as this request has
                first = max(first, min(again.first_page, stop - 1))
                stop = min(stop, max(first + 1, again.stop_page))
        elif roll < 0.5:
            first += int(self._roll() * (stop - first))
            stop = first + 1 + int(self._roll() * (stop - first))
        elif roll < 0.6:
            stop = first + 1
        elif roll < 0.7:
            first = stop - 1
        deadline = None
        if mix.deadlines and roll > 0.3:
            in_flight = notes.in_flight
            deadline = in_flight[-1] if in_flight else notes.last_ticket or None
        purposes = mix.purposes
        self.intent = "lease"
        lease = ops.Lease(
            request.number,
            band.name,
            first,
            stop,
            HOLDERS[int(self._roll() * 3)],
            purposes[int(self._roll() * len(purposes))],
            deadline,
        )
        return Step(lease, self._lease_name())

    def _end_lease(self) -> Step | None:
        leases = self.notes.leases
        if not leases:
            return None
        self.intent = "end lease"
        name, holder = leases[int(self._roll() * len(leases))]
        anonymous = self.mix.anonymous and self._roll() < 0.5
        return Step(ops.EndLease(name, None if anonymous else holder))

    def _set_gate(self) -> Step | None:
        self.intent = "gate"
        closed, roll = self.notes.closed, self._roll()
        if roll < 0.1:  # as it is already
            return _CLOSE if closed else _OPEN
        if closed:
            return _OPEN
        return _CLOSE if roll < 0.4 else None  # closed it stops most of what is worth seeing
