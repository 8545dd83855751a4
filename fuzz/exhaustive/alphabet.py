"""Which operations a search tries in a state: an alphabet, applied to what is held there.

The list depends on the state alone and names tickets and leases as the books number them; its order goes
by age and by request, so that the n-th operation means the same on books whose tickets were counted
anew. A request that enters gets the lowest free number: which number it is decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.operations import Operation
from bandscope.fuzz.exhaustive.state import HOLDER, PURPOSE
from bandscope.fuzz.exhaustive.view import View

COMPACT = {
    "urgent": ops.Compact(urgent=True),
    "opportunistic": ops.Compact(),
    "capped": ops.Compact(max_moves=1),
}
REQUESTS_MAX = 6
# A name of a state has 16 bits for who may write a page: a bit per ticket and band, and 5 bands at most.
LAUNCHES_MAX = 3


@dataclass(frozen=True)
class Alphabet:
    """What may be asked, and how much of it at a time.

    `requests`: run at most at a time; `state_slots`: choices of `Admit` where the model keeps state;
    `tokens`: choices of `Extend`; `decode`: of each request, and of all in every order; `trim`;
    `launches`: tickets in flight at most (0: none), of each request and of all; `leases`: single pages
    pinned at most at a time, in the bands of `leased` (all when empty); `gate`; `compact`: `urgent`,
    `opportunistic` and `capped` (at most one move per band); `reserve`: demands, pages per band.
    """

    requests: int = 2
    state_slots: tuple[int, ...] = (1,)
    tokens: tuple[int, ...] = (1,)
    decode: bool = True
    trim: bool = True
    launches: int = 1
    leases: int = 0
    leased: tuple[str, ...] = ()
    gate: bool = False
    compact: tuple[str, ...] = ("urgent", "opportunistic")
    reserve: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        unknown = [name for name in self.compact if name not in COMPACT]
        if unknown:
            raise ConfigError(
                f"compactions {unknown} were asked for; the kinds are {', '.join(COMPACT)}"
            )
        if not 1 <= self.requests <= REQUESTS_MAX or not 0 <= self.launches <= LAUNCHES_MAX:
            raise ConfigError(
                f"{self.requests} requests and {self.launches} launches were asked for; a search has 1 "
                f"to {REQUESTS_MAX} requests and up to {LAUNCHES_MAX} tickets in flight"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Enumerator:
    """The operations of an alphabet in a state; `bands` are the names in chain order."""

    def __init__(
        self, alphabet: Alphabet, bands: list[str], *, state: int | None, windows: list[int]
    ) -> None:
        self.alphabet = alphabet
        self.windows = windows
        self.state = state
        self.leased = [
            (index, name)
            for index, name in enumerate(bands)
            if not alphabet.leased or name in alphabet.leased
        ]
        self.slots = alphabet.state_slots if state is not None else (0,)
        self.always: list[Operation] = [COMPACT[name] for name in alphabet.compact]
        self.always += [ops.Reserve(demand) for demand in alphabet.reserve]

    def operations(self, view: View) -> list[Operation]:
        """What is tried in this state, always in the same order."""
        alphabet = self.alphabet
        running = list(view.requests)
        found: list[Operation] = []
        if len(running) < alphabet.requests:
            fresh = next(number for number in range(len(running) + 1) if number not in view.requests)
            found += [ops.Admit(fresh, slots) for slots in self.slots]
        for request in running:
            found += [ops.Extend(request, tokens) for tokens in alphabet.tokens]
            if alphabet.decode:
                found.append(ops.Decode((request,)))
            if alphabet.trim and self.windows:
                found.append(ops.TrimWindow((request,)))
            found.append(ops.Release(request))
        if alphabet.decode and len(running) > 1:
            found += [ops.Decode(order) for order in permutations(running)]
        if len(view.in_flight) < alphabet.launches:
            found += [ops.Launch((request,)) for request in running]
            if len(running) > 1:
                found.append(ops.Launch(tuple(running)))
        found += [ops.Complete(ticket) for ticket, _ in sorted(view.in_flight)]
        if len(view.leases) < alphabet.leases:
            found += self._leases(view)
        found += [ops.EndLease(lease[0]) for lease in sorted(view.leases)]
        if alphabet.gate:
            found += [ops.SetGate(not view.gate), ops.SetGate(view.gate)]
        return found + self.always

    def _leases(self, view: View) -> Iterator[Operation]:
        for request, (_, _, count, kept, _, slots) in view.requests.items():
            for index, name in self.leased:
                first, stop = 0, len(slots) if index == self.state else count
                if index in self.windows:
                    first = kept[self.windows.index(index)]
                for page in range(first, stop):
                    yield ops.Lease(request, name, page, page + 1, HOLDER, purpose=PURPOSE)
