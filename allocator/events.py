"""Effects: what an operation did, as the arena tells its observer.

An observer has one method per kind of effect, so that a recorder can write each one down without an
object in between; whoever wants objects derives from `EffectObserver` and gets the dataclasses below.
Pages are named by band and virtual page; physical page numbers say where they lie. Arrays belong to
the observer's moment: an observer that keeps them copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages

Extent = tuple[int, int]  # [start, stop)


@dataclass(slots=True)
class BandMove:
    """A band's extent changed; bytes `[start, stop)` before and after."""

    band: str
    before: Extent
    after: Extent
    why: str


@dataclass(slots=True)
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

#: The holder that owns what the prefix cache owns.
CACHE = -2


@dataclass(slots=True)
class LeaseBegin:
    """`holder` holds pages from now on: `virtual[i]`, which lies at `physical[i]`.

    `lease` is 0 for an owner (a request), the number of the lease for a pin.
    """

    holder: Holder
    band: str
    virtual: Pages
    physical: Pages
    lease: int

    @property
    def owns(self) -> bool:
        return not self.lease


@dataclass(slots=True)
class LeaseEnd:
    """`holder` holds these pages no more. Freed pages: asked now; reusable at once when nothing is
    in flight and nobody pins them, else at `Reclaim`."""

    holder: Holder
    band: str
    virtual: Pages
    lease: int

    @property
    def owns(self) -> bool:
        return not self.lease


@dataclass(slots=True)
class Pending:
    """Physical pages that hold nothing but may be touched until `ticket` has completed."""

    band: str
    pages: Pages
    ticket: int


@dataclass(slots=True)
class Reclaim:
    """Pending physical pages became holes."""

    band: str
    pages: Pages


@dataclass(slots=True)
class Barrier:
    """The schedule stream waits for `ticket` before anything issued later; `why` names the need."""

    kind: str
    ticket: int
    why: str


@dataclass(slots=True)
class Launched:
    """A forward was launched."""

    ticket: int
    requests: tuple[int, ...]


@dataclass(slots=True)
class Done:
    """The engine reported that a ticket completed."""

    ticket: int


@dataclass(slots=True)
class Publish:
    """Table rows of a band were sent to the device's mirror: those of all virtual pages that were
    bound, moved or dropped since the last time."""

    band: str
    rows: int


@dataclass(slots=True)
class Refusal:
    """A demand was refused, with the layout it was refused for (pages per band, in chain order)."""

    reason: str
    demand: tuple[int, ...]
    live: tuple[int, ...]
    fixed: tuple[Extent | None, ...]


@dataclass(slots=True)
class Share:
    """Pages `first_page…` of a request's sequence are pages of the prefix cache from now on, which
    owns them (in every token band that holds them), whoever did before."""

    request: int
    first_page: int
    virtual: Pages


@dataclass(slots=True)
class Graft:
    """In one window band, pages `into[i]` of the prefix cache lie where pages `virtual[i]` of a request
    lay, which hold nothing there any more. Nothing was copied."""

    request: int
    band: str
    virtual: Pages
    into: Pages


@dataclass(slots=True)
class Eviction:
    """The prefix cache gives up pages (`counts` per band, in chain order) for a demand."""

    demand: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(slots=True)
class StateCopy:
    """One state slot was copied to another: virtual slots, and where they lie. `why`: `match` or
    `checkpoint`."""

    band: str
    source: int
    destination: int
    from_page: int
    to_page: int
    why: str


Effect = (
    BandMove | PageMove | LeaseBegin | LeaseEnd | Pending | Reclaim | Barrier | Launched | Done
    | Publish | Refusal | Share | Graft | Eviction | StateCopy
)


class Observer(Protocol):
    """Whoever watches an arena. Calls come from inside `apply`; they must not touch the arena.

    The arguments of an effect are the fields of the dataclass of that name.
    """

    def before(self, operation: Operation) -> None:
        """`operation` is about to be tried."""

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """It was done or refused."""

    def band_move(self, band: str, before: Extent, after: Extent, why: str) -> None: ...

    def page_move(
        self,
        band: str,
        virtual: Pages,
        sources: Pages,
        destinations: Pages,
        page_bytes: int,
        urgent: bool,
    ) -> None: ...

    def lease_begin(
        self, holder: Holder, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None: ...

    def lease_end(self, holder: Holder, band: str, virtual: Pages, lease: int) -> None: ...

    def pending(self, band: str, pages: Pages, ticket: int) -> None: ...

    def reclaim(self, band: str, pages: Pages) -> None: ...

    def barrier(self, kind: str, ticket: int, why: str) -> None: ...

    def launched(self, ticket: int, requests: tuple[int, ...]) -> None: ...

    def done(self, ticket: int) -> None: ...

    def publish(self, band: str, rows: int) -> None: ...

    def refusal(
        self,
        reason: str,
        demand: tuple[int, ...],
        live: tuple[int, ...],
        fixed: tuple[Extent | None, ...],
    ) -> None: ...

    def share(self, request: int, first_page: int, virtual: Pages) -> None: ...

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None: ...

    def evict(self, demand: tuple[int, ...], counts: tuple[int, ...]) -> None: ...

    def state_copy(
        self, band: str, source: int, destination: int, from_page: int, to_page: int, why: str
    ) -> None: ...


class NullObserver:
    """An observer that does nothing: a base for those that care about a few effects."""

    def before(self, operation: Operation) -> None:
        """Nothing."""

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Nothing."""

    def _ignore(self, *fields: Any) -> None:
        """Nothing."""

    band_move: Any = _ignore
    page_move: Any = _ignore
    lease_begin: Any = _ignore
    lease_end: Any = _ignore
    pending: Any = _ignore
    reclaim: Any = _ignore
    barrier: Any = _ignore
    launched: Any = _ignore
    done: Any = _ignore
    publish: Any = _ignore
    refusal: Any = _ignore
    share: Any = _ignore
    graft: Any = _ignore
    evict: Any = _ignore
    state_copy: Any = _ignore


def _as_object(kind: type) -> Any:
    def told(self: Any, *fields: Any) -> None:
        self.effect(kind(*fields))

    return told


class EffectObserver(NullObserver):
    """An observer that is told every effect as an object, by its method `effect`."""

    def effect(self, event: Effect) -> None:
        """Something happened while an operation was tried."""

    band_move = _as_object(BandMove)
    page_move = _as_object(PageMove)
    lease_begin = _as_object(LeaseBegin)
    lease_end = _as_object(LeaseEnd)
    pending = _as_object(Pending)
    reclaim = _as_object(Reclaim)
    barrier = _as_object(Barrier)
    launched = _as_object(Launched)
    done = _as_object(Done)
    publish = _as_object(Publish)
    refusal = _as_object(Refusal)
    share = _as_object(Share)
    graft = _as_object(Graft)
    evict = _as_object(Eviction)
    state_copy = _as_object(StateCopy)


_METHODS = tuple(name for name in vars(NullObserver) if not name.startswith("_"))


class Observers(NullObserver):
    """Several observers as one. A method that only one of them has is called without a detour."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        for name in _METHODS:
            nothing = getattr(NullObserver, name)
            calls = [
                getattr(observer, name)
                for observer in observers
                if getattr(type(observer), name) is not nothing
            ]
            if calls:
                setattr(self, name, calls[0] if len(calls) == 1 else _each(calls))


def _each(calls: list[Any]) -> Any:
    if len(calls) == 2:
        first, second = calls

        def both(*fields: Any) -> None:
            first(*fields)
            second(*fields)

        return both

    def every(*fields: Any) -> None:
        for call in calls:
            call(*fields)

    return every
