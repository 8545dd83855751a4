"""Effects: what an operation did, as the arena tells its observer.

Pages are named by band and virtual page (with generation where it could be stale); physical page
numbers appear only where bytes move. Arrays in events belong to the observer's moment: an observer
that keeps them copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages


@dataclass(frozen=True, slots=True)
class BandMove:
    """A band's extent changed; bytes `[start, stop)` before and after."""

    band: str
    before: tuple[int, int]
    after: tuple[int, int]
    why: str


@dataclass(frozen=True, slots=True)
class PageMove:
    """One batch of page copies inside a band: physical `sources[i]` → `destinations[i]`."""

    band: str
    virtual: Pages
    sources: Pages
    destinations: Pages
    page_bytes: int
    urgent: bool


# Who holds pages: one request, one request per page, or the name that a pin's holder gave.
Holder = int | Pages | str


@dataclass(frozen=True, slots=True)
class LeaseBegin:
    """`holder` holds pages from now on; `owns` tells an owner from a pin."""

    holder: Holder
    band: str
    virtual: Pages
    owns: bool


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """`holder` holds these pages no more. Freed pages: asked now, reusable at `Reclaim`."""

    holder: Holder
    band: str
    virtual: Pages
    owns: bool


@dataclass(frozen=True, slots=True)
class Pending:
    """Physical pages that hold nothing but may be touched until `ticket` has completed."""

    band: str
    pages: Pages
    ticket: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Pending physical pages became holes."""

    band: str
    pages: Pages


@dataclass(frozen=True, slots=True)
class Barrier:
    """The schedule stream waits for `ticket` before anything issued later; `why` names the need."""

    kind: str
    ticket: int
    why: str


@dataclass(frozen=True, slots=True)
class Launched:
    """A forward was launched."""

    ticket: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The engine reported that a ticket completed."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Table rows of a band were sent to the device's mirror."""

    band: str
    rows: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A demand was refused, with the layout it was refused for (pages per band, in chain order)."""

    reason: str
    demand: tuple[int, ...]
    live: tuple[int, ...]
    fixed: tuple[tuple[int, int] | None, ...]


Effect = (
    BandMove | PageMove | LeaseBegin | LeaseEnd | Pending | Reclaim | Barrier | Launched | Done
    | Publish | Refusal
)


class Observer(Protocol):
    """Whoever watches an arena. Calls come from inside `apply`; they must not touch the arena."""

    def before(self, operation: Operation) -> None:
        """`operation` is about to be tried."""

    def effect(self, event: Effect) -> None:
        """Something happened while it was tried."""

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """It was done or refused."""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self.observers: list[Any] = list(observers)

    def before(self, operation: Operation) -> None:
        for observer in self.observers:
            observer.before(operation)

    def effect(self, event: Effect) -> None:
        for observer in self.observers:
            observer.effect(event)

    def after(self, operation: Operation, outcome: Outcome) -> None:
        for observer in self.observers:
            observer.after(operation, outcome)
