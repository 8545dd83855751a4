"""One instant of an arena as plain data: bands, requests, leases and work in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.inspect.differences import band_counts
from bandscope.inspect.state import ArenaState


@dataclass(frozen=True)
class BandAt:
    """One band; counts in pages, `extent_bytes` `[start, stop)`. `gap_bytes`: free bytes above it, up
    to the next band that exists or the end of the arena. `cached`: live pages of the prefix cache,
    None without one."""

    name: str
    kind: str
    page_bytes: int
    extent_pages: tuple[int, int]
    extent_bytes: tuple[int, int]
    live: int
    hole: int
    pending: int
    pinned: int
    gap_bytes: int
    unpublished: int
    cached: int | None = None


@dataclass(frozen=True)
class RequestAt:
    """One running request; `pages` by band name: its own, beside `shared` pages of every token band
    that are the prefix cache's (None without one)."""

    request: int
    length: int
    launched: int
    last_ticket: int
    pages: dict[str, int]
    shared: int | None = None


@dataclass(frozen=True)
class Instant:
    """The arena before event `sequence`."""

    sequence: int
    time_ns: int
    total_bytes: int
    sink_bytes: int
    gate_closed: bool
    tickets_issued: int
    in_flight: list[int]
    bands: list[BandAt]
    requests: list[RequestAt]
    leases: list[dict[str, Any]]

    @property
    def has_cache(self) -> bool:
        """Whether the arena has a prefix cache."""
        return any(band.cached is not None for band in self.bands)

    def to_json(self) -> dict[str, Any]:
        """Plain data; arrays are left to `reader.as_json`."""
        return {
            **self.__dict__,
            "bands": [_told(band) for band in self.bands],
            "requests": [_told(request) for request in self.requests],
        }


def _told(part: BandAt | RequestAt) -> dict[str, Any]:
    return {name: value for name, value in part.__dict__.items() if value is not None}


def instant_of(state: ArenaState) -> Instant:
    """What a state says, counted."""
    return Instant(
        state.sequence,
        state.time_ns,
        state.total_bytes,
        state.sink_bytes,
        state.gate_closed,
        state.issued,
        sorted(state.in_flight),
        _bands(state),
        _requests(state),
        [
            {
                "lease": pin.number,
                "holder": pin.holder,
                "band": state.bands[pin.band].name,
                "virtual": pin.virtual,
                "physical": pin.physical,
                "begun": pin.sequence if pin.sequence >= 0 else None,
            }
            for pin in state.pins.values()
        ],
    )


def _bands(state: ArenaState) -> list[BandAt]:
    ranges = [band.byte_range() for band in state.bands]
    bands = []
    for band, (start, stop) in zip(state.bands, ranges, strict=True):
        following = [low for low, high in ranges if high > low and low >= stop and (low, high) != (
            start, stop)]  # fmt: skip
        above = min([*following, state.total_bytes])
        counts = band_counts(band)
        bands.append(
            BandAt(
                band.name, band.kind, band.page_bytes, band.extent, (start, stop), counts["live"],
                counts["hole"], counts["pending"], counts["pinned"],
                above - stop if stop > start else 0, int(band.unpublished_rows().size),
                band.cached() if state.has_cache else None,
            )  # fmt: skip
        )
    return bands


def _requests(state: ArenaState) -> list[RequestAt]:
    held: dict[int, dict[str, int]] = {number: {} for number in state.requests}
    for band in state.bands:
        owners = band.owner[band.slice]
        numbers, counts = np.unique(owners[owners >= 0], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            held.setdefault(number, {})[band.name] = count
    return [
        RequestAt(
            number, known.length, known.launched, known.last_ticket, held[number],
            len(state.shared.get(number, ())) if state.has_cache else None,
        )
        for number, known in sorted(state.requests.items())
    ]
