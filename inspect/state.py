"""The state of an arena as a trace tells it: rebuilt from a keyframe, then event by event.

Built from effects alone, so it says what was recorded, whatever the allocator thinks. Arrays are by
physical page (counted from the band's `base`) or by virtual page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.allocator.events import CACHE

UNMAPPED = -1
GLYPHS = {GAP: "gap", HOLE: "hole", LIVE: "live", PENDING: "pending"}


class BandState:
    """One band.

    By page, shape (capacity,): `state` (`GAP`, `HOLE`, `LIVE`, `PENDING`), `virtual` (−1: none),
    `owner` (request, `CACHE`, −1: none), `pins` (leases that pin it), `ticket` (that a pending page
    waits for, 0: none). By virtual page, shape (virtual capacity,): `page_of` (−1: unmapped),
    `leased_at` (the event since which it is held, −1: since before the keyframe). `extent`: physical
    pages `[first, stop)`, (0, 0) when empty. `unpublished`: virtual pages whose rows the device lacks.
    """

    def __init__(self, about: dict[str, Any], index: int) -> None:
        self.index = index
        self.name: str = about["name"]
        self.kind: str = about["kind"]
        self.page_bytes: int = about["page_bytes"]
        self.window_length: int | None = about["window_length"]
        self.first_page: int = about["first_page"]
        self.direction: int = about["direction"]
        self.capacity: int = about["capacity"]
        self.base = self.first_page if self.direction > 0 else self.first_page - self.capacity + 1
        count = about["virtual_capacity"]
        self.state = np.full(self.capacity, GAP, np.uint8)
        self.virtual = np.full(self.capacity, UNMAPPED, np.int32)
        self.owner = np.full(self.capacity, UNMAPPED, np.int64)
        self.pins = np.zeros(self.capacity, np.int16)
        self.ticket = np.zeros(self.capacity, np.int32)
        self.page_of = np.full(count, UNMAPPED, np.int32)
        self.leased_at = np.full(count, UNMAPPED, np.int64)
        self.extent = (0, 0)
        self.unpublished: list[np.ndarray | int] = []

    @property
    def slice(self) -> slice:
        """The extent as a slice of the arrays by page."""
        first, stop = self.extent
        return slice(first - self.base, stop - self.base) if stop > first else slice(0, 0)

    def count(self, state: int) -> int:
        """Pages of the extent in a state."""
        return int(np.count_nonzero(self.state[self.slice] == state))

    def cached(self) -> int:
        """Pages that the prefix cache owns."""
        return int(np.count_nonzero(self.owner[self.slice] == CACHE))

    def pages(self, state: int) -> np.ndarray:
        """Physical pages in a state, ascending."""
        part = self.slice
        found: np.ndarray = np.flatnonzero(self.state[part] == state) + (part.start + self.base)
        return found

    def byte_range(self) -> tuple[int, int]:
        """Bytes of the extent."""
        return self.extent[0] * self.page_bytes, self.extent[1] * self.page_bytes

    def unpublished_rows(self) -> np.ndarray:
        """Virtual pages that the device's table lacks, sorted, each once."""
        if not self.unpublished:
            return np.zeros(0, np.int64)
        parts = [np.atleast_1d(np.asarray(part, np.int64)) for part in self.unpublished]
        return np.unique(np.concatenate(parts))

    def graft(self, virtual: np.ndarray, into: np.ndarray) -> None:
        """Pages `into` of the prefix cache lie where pages `virtual` of a request lay, since when those
        were leased."""
        pages = self.page_of[virtual]
        self.virtual[pages - self.base] = into
        self.owner[pages - self.base] = CACHE
        self.page_of[virtual] = UNMAPPED
        self.page_of[into] = pages
        self.leased_at[into] = self.leased_at[virtual]
        self.unpublished += [virtual, into]

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become what a keyframe says; `owner` is filled in by the caller."""
        self.state[:] = GAP
        self.virtual[:] = UNMAPPED
        self.owner[:] = UNMAPPED
        self.pins[:] = 0
        self.ticket[:] = 0
        self.page_of[:] = UNMAPPED
        self.leased_at[:] = UNMAPPED
        low, high = snapshot["low"], snapshot["high"]
        if high > low:
            one, other = (self.first_page + self.direction * place for place in (low, high - 1))
            self.extent = (min(one, other), max(one, other) + 1)
        else:
            self.extent = (0, 0)
        pages = self.extent_order(snapshot["state"])
        self.state[self.slice] = pages
        self.virtual[self.slice] = self.extent_order(snapshot["virtual"])
        held = np.flatnonzero(self.virtual[self.slice] >= 0) + self.slice.start
        self.page_of[self.virtual[held]] = held + self.base
        pinned = self.physical(snapshot["pins"]) - self.base
        self.pins[pinned] = snapshot["pin_counts"]
        rows = snapshot["unpublished"]
        self.unpublished = [rows] if rows.size else []

    def extent_order(self, by_place: np.ndarray) -> np.ndarray:
        """An array by place of the extent, by ascending physical page."""
        return by_place if self.direction > 0 else by_place[::-1]

    def physical(self, places: np.ndarray) -> np.ndarray:
        """Physical pages of the allocator's places."""
        pages: np.ndarray = self.first_page + self.direction * places
        return pages


@dataclass
class RequestState:
    """A running request: tokens with room, tokens launched, the ticket of its last forward."""

    length: int = 0
    launched: int = 0
    last_ticket: int = 0


@dataclass(frozen=True)
class Pin:
    """A lease that pins pages; `physical[i]` is where `virtual[i]` lies. `sequence`: when it began
    (−1: before the keyframe); `ticket`: the newest ticket at that time."""

    number: int
    holder: str
    band: int
    virtual: np.ndarray
    physical: np.ndarray
    sequence: int
    ticket: int


class IdState:
    """The ids of one owner: `fresh` were ever used, `released` are free again, newest last."""

    def __init__(self, capacity: int) -> None:
        self.fresh = 0
        self.released: list[int] = []
        self.generation = np.zeros(capacity, np.int64)

    def mint(self, count: int) -> None:
        """`count` ids were taken: released ones first, newest first; then fresh ones."""
        reused = min(count, len(self.released))
        if reused:
            del self.released[-reused:]
        self.fresh += count - reused

    def release(self, virtual: np.ndarray) -> None:
        """Ids came back."""
        self.released.extend(virtual.tolist())

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become what a keyframe says."""
        self.fresh = snapshot["fresh"]
        self.released = snapshot["released"].tolist()
        self.generation[:] = 0
        self.generation[: self.fresh] = snapshot["generation"]


def cached_pages(cache: dict[str, Any]) -> np.ndarray:
    """The virtual pages of the prefix cache of a keyframe, one after the other."""
    parts = [np.asarray(part, np.int64) for part in cache["tree"]["pages"]]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def cached_slots(cache: dict[str, Any]) -> np.ndarray:
    """The virtual state slots of the checkpoints of the prefix cache of a keyframe."""
    return np.array([check[2] for check in cache["tree"]["checkpoints"]], np.int64)


def shared_counts(cache: dict[str, Any]) -> dict[int, int]:
    """By request, how many pages at the front of its sequence are the prefix cache's."""
    return {request: pages for request, _, pages, *_ in cache["sharing"]}


class ArenaState:
    """The whole arena. `sequence`: the next event to come; everything before it is in.

    `has_cache`: whether it has a prefix cache. `shared`: by request, the virtual pages at the front of
    its sequence that are the cache's; `users`: by virtual page, how many requests share it (empty
    without a cache).
    """

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.sequence = 0
        self.time_ns = 0
        self.total_bytes: int = header["arena"]["total_bytes"]
        self.sink_bytes: int = header["arena"]["sink_bytes"]
        self.page_size: int = header["page_size"]
        self.bands = [BandState(about, index) for index, about in enumerate(header["bands"])]
        self.full = next(band.index for band in self.bands if band.name == "full")
        self.state_band = next((b.index for b in self.bands if b.kind == "state"), None)
        self.ids = IdState(len(self.bands[self.full].page_of))
        self.state_ids = IdState(
            0 if self.state_band is None else len(self.bands[self.state_band].page_of)
        )
        self.has_cache = bool(header["arena"].get("config", {}).get("prefix_cache"))
        self.shared: dict[int, np.ndarray] = {}
        self.users = np.zeros(len(self.ids.generation) if self.has_cache else 0, np.int32)
        self.requests: dict[int, RequestState] = {}
        self.pins: dict[int, Pin] = {}
        self.issued = 0
        self.ordered_through = 0
        self.in_flight: set[int] = set()
        self.gate_closed = False

    def ids_of(self, band: int) -> IdState:
        """The id space that names the pages of a band."""
        return self.state_ids if band == self.state_band else self.ids

    def share(
        self, request: int, first_page: int, virtual: np.ndarray, before: int | None = None
    ) -> None:
        """These pages of a request, from its page `first_page` on, are the cache's. `before`: event
        that says so, where later ones are in already: what was leased after it is another's."""
        known = self.shared.get(request, virtual[:0])
        self.users[known[first_page:]] -= 1
        self.users[virtual] += 1
        self.shared[request] = np.concatenate((known[:first_page], virtual))
        for band in self.bands:
            if band.index != self.state_band:
                pages = band.page_of[virtual]
                held = pages >= 0
                if before is not None:
                    held &= band.leased_at[virtual] < before
                band.owner[pages[held] - band.base] = CACHE

    def leave(self, request: int) -> None:
        """A request has left: it shares nothing any more."""
        known = self.shared.pop(request, None)
        if known is not None:
            self.users[known] -= 1

    def users_of(self, virtual: int) -> list[int]:
        """The requests that share a page with the prefix cache, ascending."""
        return sorted(r for r, pages in self.shared.items() if bool((pages == virtual).any()))

    def name(self, band: int, virtual: int) -> str:
        """A page's name: band, virtual page, generation."""
        generation = int(self.ids_of(band).generation[virtual])
        return f"{self.bands[band].name} {virtual}.{generation}"

    def restore(self, snapshot: dict[str, Any], sequence: int) -> None:
        """Become what a keyframe says; `sequence`: of the first event after it."""
        self.sequence = sequence
        for band, of_band in zip(self.bands, snapshot["bands"], strict=True):
            band.restore(of_band)
        self.ids.restore(snapshot["ids"])
        self.state_ids.restore(snapshot["state_ids"])
        self._restore_requests(snapshot["ledger"])
        self._restore_cache(snapshot)
        tickets = snapshot["tickets"]
        self.issued, self.ordered_through = tickets["issued"], tickets["ordered_through"]
        self.in_flight = set(tickets["in_flight"])
        for stamp, index, places in tickets["pending"]:
            band = self.bands[index]
            band.ticket[band.physical(places) - band.base] = stamp
        self.pins = {
            pin["number"]: Pin(
                pin["number"],
                pin["holder"],
                pin["band"],
                pin["virtual"],
                self.bands[pin["band"]].physical(pin["places"]),
                UNMAPPED,
                pin["begun_ticket"],
            )
            for pin in snapshot["pins"]["pins"]
        }
        self.gate_closed = snapshot["gate_closed"]

    def _restore_requests(self, ledger: dict[str, Any]) -> None:
        numbers = ledger["request"]
        self.requests = {
            number: RequestState(length, launched)
            for number, length, launched in zip(
                numbers.tolist(), ledger["length"].tolist(), ledger["launched"].tolist(), strict=True
            )
        }
        owners = np.repeat(numbers, ledger["page_count"])
        slots = [np.asarray(held, np.int64) for held in ledger["state"]]
        for band in self.bands:
            virtual, owner = ledger["pages"], owners
            if band.index == self.state_band:
                virtual = np.concatenate(slots) if slots else np.zeros(0, np.int64)
                owner = np.repeat(numbers, [held.size for held in slots])
            page = band.page_of[virtual]
            held = page >= 0
            band.owner[page[held] - band.base] = owner[held]

    def _restore_cache(self, snapshot: dict[str, Any]) -> None:
        """What the prefix cache owns, whoever shares it, and who does."""
        self.shared = {}
        self.users[:] = 0
        if "cache" not in snapshot:
            return
        cache, ledger = snapshot["cache"], snapshot["ledger"]
        pages, slots = cached_pages(cache), cached_slots(cache)
        for band in self.bands:
            page = band.page_of[slots if band.index == self.state_band else pages]
            band.owner[page[page >= 0] - band.base] = CACHE
        counts = shared_counts(cache)
        begins = np.cumsum(ledger["page_count"]) - ledger["page_count"]
        for request, begin in zip(ledger["request"].tolist(), begins.tolist(), strict=True):
            if counts.get(request):
                held = ledger["pages"][begin : begin + counts[request]]
                self.shared[request] = held.astype(np.int64)
                self.users[held] += 1

    def differences(self, snapshot: dict[str, Any]) -> list[str]:
        """What a keyframe says otherwise than this state; empty when they agree."""
        other = ArenaState(self.header)
        other.restore(snapshot, self.sequence)
        found = []
        for mine, theirs in zip(self.bands, other.bands, strict=True):
            for what in ("extent", "state", "virtual", "owner", "pins", "page_of"):
                if not np.array_equal(getattr(mine, what), getattr(theirs, what)):
                    found.append(f"{mine.name}: {what}")
            if not np.array_equal(mine.unpublished_rows(), theirs.unpublished_rows()):
                found.append(f"{mine.name}: unpublished rows")
        for name in ("ids", "state_ids"):
            mine_ids, their_ids = getattr(self, name), getattr(other, name)
            if mine_ids.fresh != their_ids.fresh or mine_ids.released != their_ids.released:
                found.append(f"{name}: free ids")
            if not np.array_equal(mine_ids.generation, their_ids.generation):
                found.append(f"{name}: generations")
        mine_requests = {n: (r.length, r.launched) for n, r in self.requests.items()}
        if mine_requests != {n: (r.length, r.launched) for n, r in other.requests.items()}:
            found.append("requests")
        one, two = ({n: pages.tolist() for n, pages in known.items() if pages.size}
                    for known in (self.shared, other.shared))  # fmt: skip
        if one != two:
            found.append("shared pages")
        for what in ("issued", "ordered_through", "in_flight", "gate_closed"):
            if getattr(self, what) != getattr(other, what):
                found.append(what)
        if {n: p.holder for n, p in self.pins.items()} != {
            n: p.holder for n, p in other.pins.items()
        }:
            found.append("leases")
        return found
