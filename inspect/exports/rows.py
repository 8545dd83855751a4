"""Events as rows of tables: one row per event, and one per run of pages that an event touched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from bandscope.allocator import events
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect.decode import Event, Lost, Mark, Note, Stack, Violation
from bandscope.inspect.exports.follow import Follower
from bandscope.inspect.exports.window import Step, Window
from bandscope.inspect.operation_codec import told_fields
from bandscope.inspect.reader import as_json
from bandscope.inspect.state import UNMAPPED, ArenaState

# Columns and their types. Bytes are places in the arena, or sizes; times are ns since recording began.
# A row of PAGES is a run: page i of it has `virtual + i` and lies at `physical + i * step`.
EVENTS: tuple[tuple[str, type], ...] = (
    ("sequence", int),
    ("time_ns", int),
    ("operation", int),
    ("kind", str),
    ("what", str),
    ("band", str),
    ("request", int),
    ("requests", int),
    ("holder", str),
    ("lease", int),
    ("ticket", int),
    ("pages", int),
    ("bytes", int),
    ("urgent", bool),
    ("ok", bool),
    ("value", int),
    ("reason", str),
    ("why", str),
    ("before_start", int),
    ("before_stop", int),
    ("after_start", int),
    ("after_stop", int),
    ("detail", str),
)
PAGES: tuple[tuple[str, type], ...] = (
    ("sequence", int),
    ("kind", str),
    ("band", str),
    ("virtual", int),
    ("generation", int),
    ("physical", int),
    ("from_physical", int),
    ("request", int),
    ("pages", int),
    ("step", int),
)
# What `holder` says where the prefix cache holds pages; as a request it would be none.
CACHE_NAME = "cache"
OPERATIONS: tuple[tuple[str, type], ...] = (
    ("sequence", int),
    ("time_ns", int),
    ("duration_ns", int),
    ("kind", str),
    ("request", int),
    ("requests", int),
    ("ticket", int),
    ("asked", str),
    ("ok", bool),
    ("value", int),
    ("reason", str),
    ("message", str),
    ("effects", int),
    ("barriers", int),
    ("pages_leased", int),
    ("pages_freed", int),
    ("pages_moved", int),
    ("bytes_moved", int),
)
_EVENT_COLUMNS = tuple(name for name, _ in EVENTS)


class EventRows:
    """Makes rows of the table of events."""

    def __init__(self, bands: list[dict[str, Any]]) -> None:
        self.page_bytes = {band["name"]: band["page_bytes"] for band in bands}

    def row(self, event: Event) -> tuple[Any, ...]:
        """The values of an event in the order of `EVENTS`; None where it has none."""
        row: dict[str, Any] = {
            "sequence": event.sequence,
            "time_ns": event.time_ns,
            "operation": None if event.operation < 0 else event.operation,
            "kind": event.kind,
        }
        self._fill(row, event.body)
        pages = row.get("pages")
        if pages is not None and row.get("band") in self.page_bytes and "bytes" not in row:
            row["bytes"] = pages * self.page_bytes[row["band"]]
        return tuple(map(row.get, _EVENT_COLUMNS))

    def _fill(self, row: dict[str, Any], body: Any) -> None:
        match body:
            case Operation():
                row.update(operation_columns(body))
            case Outcome():
                row.update(ok=body.ok, value=_integer(body.value), reason=body.reason or None)
                row["detail"] = body.message or None
            case events.BandMove():
                row.update(band=body.band, why=body.why)
                row["before_start"], row["before_stop"] = body.before
                row["after_start"], row["after_stop"] = body.after
            case events.PageMove():
                row.update(band=body.band, pages=body.virtual.size, urgent=body.urgent)
                row["bytes"] = body.virtual.size * body.page_bytes
            case events.LeaseBegin() | events.LeaseEnd():
                row.update(band=body.band, pages=body.virtual.size, lease=body.lease or None)
                if isinstance(body.holder, str):
                    row["holder"] = body.holder
                elif isinstance(body.holder, int):
                    if body.holder == events.CACHE:
                        row["holder"] = CACHE_NAME
                    else:
                        row["request"] = body.holder
                else:
                    row["requests"] = int(np.unique(body.holder).size)
            case events.Pending():
                row.update(band=body.band, pages=body.pages.size, ticket=body.ticket)
            case events.Reclaim():
                row.update(band=body.band, pages=body.pages.size)
            case events.Barrier():
                row.update(what=body.kind, ticket=body.ticket, why=body.why)
            case events.Launched() | events.Done():
                row["ticket"] = body.ticket
            case events.Publish():
                row.update(band=body.band, value=body.rows)
            case events.Share():
                row.update(request=body.request, holder=CACHE_NAME, pages=body.virtual.size)
                row["value"] = body.first_page
            case events.Graft():
                row.update(band=body.band, request=body.request, holder=CACHE_NAME)
                row["pages"] = body.virtual.size
            case events.Eviction():
                row.update(holder=CACHE_NAME, pages=sum(body.counts))
                row["detail"] = as_json({"demand": body.demand, "counts": body.counts})
            case events.StateCopy():
                row.update(band=body.band, pages=1, why=body.why)
                row["detail"] = as_json(
                    {"source": body.source, "destination": body.destination,
                     "from": body.from_page, "to": body.to_page}
                )  # fmt: skip
            case events.Refusal():
                row["reason"] = body.reason
                row["detail"] = as_json(
                    {"demand": body.demand, "live": body.live, "fixed": body.fixed}
                )
            case Note():
                row["detail"] = body.text
            case Violation():
                row.update(what=body.name, detail=body.detail)
            case Lost():
                row["value"] = body.count
            case Stack():
                row["detail"] = "\n".join(body.frames)
            case Mark():
                row["what"] = body.what


def operation_columns(body: Operation) -> dict[str, Any]:
    """Request, requests, ticket, why and the whole of an operation, by column of the events."""
    try:
        return _operation_columns(body)
    except TypeError:  # a value in it cannot be hashed
        return _operation_columns.__wrapped__(body)


@lru_cache(maxsize=16)  # batches repeat, and several tables ask
def _operation_columns(body: Operation) -> dict[str, Any]:
    told = told_fields(body)
    requests = told.get("requests")
    return {
        "request": _integer(told.get("request")),
        "requests": None if requests is None else len(requests),
        "ticket": _integer(told.get("ticket")),
        "lease": _integer(told.get("lease")),
        "urgent": told.get("urgent"),
        "band": told.get("band"),
        "why": told.get("why"),
        "detail": as_json(told),
    }


def operation_row(step: Step) -> tuple[Any, ...] | None:
    """The values of an operation in the order of `OPERATIONS`; None for what is none."""
    if step.asked is None:
        return None
    columns = operation_columns(step.asked.body)  # type: ignore[arg-type]
    outcome = step.outcome.body if step.outcome is not None else None
    assert outcome is None or isinstance(outcome, Outcome)
    effects = [event.body for event in step.effects]
    barriers = sum(isinstance(body, events.Barrier) for body in effects)
    leased = sum(b.virtual.size for b in effects if isinstance(b, events.LeaseBegin) and b.owns)
    freed = sum(b.virtual.size for b in effects if isinstance(b, events.LeaseEnd) and b.owns)
    moves = [body for body in effects if isinstance(body, events.PageMove)]
    return (
        step.asked.sequence,
        step.asked.time_ns,
        step.duration_ns,
        step.asked.kind,
        columns["request"],
        columns["requests"],
        columns["ticket"],
        columns["detail"],
        None if outcome is None else outcome.ok,
        None if outcome is None else _integer(outcome.value),
        None if outcome is None else outcome.reason or None,
        None if outcome is None else outcome.message or None,
        len(effects),
        barriers,
        leased,
        freed,
        sum(move.virtual.size for move in moves),
        sum(move.virtual.size * move.page_bytes for move in moves),
    )


def _integer(value: Any) -> int | None:
    """A number as an int of 64 bits, anything else as nothing (the row has it as JSON)."""
    if isinstance(value, int | np.integer) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    return None


class PageRows:
    """Makes rows of the table of pages.

    An event names pages by what it is about: a freed page by its id, a reclaimed one by its place.
    The other name and the generation come from the state before the event, where it is known.
    """

    def __init__(self, window: Window) -> None:
        self.follower = Follower(window)
        self.indexes = {band["name"]: index for index, band in enumerate(window.bands)}

    def rows(self, event: Event) -> Iterator[tuple[Any, ...]]:
        """The rows of an event in the order of `PAGES`."""
        body = event.body
        if not isinstance(body, _TOUCHING):
            return
        state = self.follower.before(event.sequence)
        if isinstance(body, events.Graft):
            for columns in self._grafted(body, state):
                yield from self._runs(event, body.band, columns, body.virtual.size)
            return
        size = body.pages.size if isinstance(body, _BY_PLACE) else body.virtual.size
        yield from self._runs(event, body.band, self._columns(body, state), size)

    def _runs(
        self, event: Event, band: str, columns: tuple[np.ndarray | None, ...], size: int
    ) -> Iterator[tuple[Any, ...]]:
        """A row per run of pages that follow on each other in every column."""
        if not size:
            return
        step = _step(columns[2])
        edges = np.zeros(size + 1, bool)
        edges[0] = edges[-1] = True
        for column, following in zip(columns, (1, 0, step, step, 0), strict=True):
            if column is not None:
                edges[1:-1] |= column[1:] - column[:-1] != following
        starts = np.flatnonzero(edges)
        lengths = np.diff(starts).tolist()
        firsts = [
            [None] * len(lengths) if c is None else [None if v < 0 else v for v in c.tolist()]
            for c in (None if c is None else c[starts[:-1]] for c in columns)
        ]
        for *values, length in zip(*firsts, lengths, strict=True):
            yield (event.sequence, event.kind, band, *values, length, step)

    def _grafted(
        self, body: events.Graft, state: ArenaState | None
    ) -> Iterator[tuple[np.ndarray | None, ...]]:
        """The request's pages, which lay there before, then the cache's, which lie there now."""
        physical = generation = None
        index = self.indexes[body.band]
        if state is not None:
            physical = state.bands[index].page_of[body.virtual].astype(np.int64)
            generation = state.ids_of(index).generation
        for virtual, owner in ((body.virtual, body.request), (body.into, UNMAPPED)):
            names = None if generation is None else generation[virtual]
            yield virtual, names, physical, None, np.full(virtual.size, owner, np.int64)

    def _columns(
        self, body: Any, state: ArenaState | None
    ) -> tuple[np.ndarray | None, ...]:
        """Virtual page, generation, place, former place and request of every page; −1 for none."""
        index = self.indexes[body.band]
        band = None if state is None else state.bands[index]
        virtual = physical = origin = owner = None
        generation: np.ndarray | None = None
        if isinstance(body, _BY_PLACE):
            # These pages hold nothing any more, so they have no name.
            physical = np.sort(body.pages)
        else:
            virtual = body.virtual
            if state is not None:
                generation = state.ids_of(index).generation[virtual]
            if isinstance(body, events.PageMove):
                physical, origin = body.destinations, body.sources
                owner = None if band is None else band.owner[origin - band.base]
            else:
                if isinstance(body, events.LeaseBegin):
                    physical = body.physical
                elif band is not None and state is not None:
                    physical = band.page_of[virtual].astype(np.int64)
                    # Pinned pages may have been freed meanwhile: then their name is gone.
                    generation = state.ids_of(index).generation[virtual]
                    generation[physical < 0] = UNMAPPED
                    pin = state.pins.get(body.lease)
                    if pin is not None and np.array_equal(pin.virtual, virtual):
                        physical = pin.physical
                if not isinstance(body.holder, str):
                    owner = np.broadcast_to(np.asarray(body.holder, np.int64), virtual.shape)
        return virtual, generation, physical, origin, owner


_BY_PLACE = (events.Pending, events.Reclaim)
_TOUCHING = (events.LeaseBegin, events.LeaseEnd, events.PageMove, events.Graft, *_BY_PLACE)


def _step(places: np.ndarray | None) -> int:
    """Whether the places of most pages go up or down from one page to the next: bands grow down too."""
    if places is None:
        return 1
    steps = places[1:] - places[:-1]
    return 1 if np.count_nonzero(steps == 1) >= np.count_nonzero(steps == -1) else -1
