"""Two instants compared: which pages came, went, moved or changed hands, and which requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.errors import TraceError
from bandscope.inspect.state import GLYPHS, ArenaState, BandState


@dataclass(frozen=True)
class BandDifference:
    """One band at two instants; lists of virtual pages, extents in bytes, counts by state.

    `reused`: held at both instants, but given back in between (another generation). `moved` and
    `changed_owner` are about pages of the same generation.
    """

    band: str
    came: np.ndarray
    gone: np.ndarray
    moved: np.ndarray
    reused: np.ndarray
    changed_owner: np.ndarray
    pinned: np.ndarray
    unpinned: np.ndarray
    extent_before: tuple[int, int]
    extent_after: tuple[int, int]
    counts_before: dict[str, int]
    counts_after: dict[str, int]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        lists = (
            self.came, self.gone, self.moved, self.reused, self.changed_owner, self.pinned,
            self.unpinned,
        )  # fmt: skip
        return (
            not any(pages.size for pages in lists)
            and self.extent_before == self.extent_after
            and self.counts_before == self.counts_after
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; arrays are left to `reader.as_json`."""
        return {**self.__dict__, "same": self.same}


@dataclass(frozen=True)
class Difference:
    """Everything that differs between the states before events `before` and `after`.

    `grown`: requests at both instants whose length differs, as (request, tokens before, after).
    """

    before: int
    after: int
    bands: list[BandDifference]
    requests_came: list[int]
    requests_gone: list[int]
    grown: list[tuple[int, int, int]]
    launched: list[int]
    completed: list[int]
    leases_begun: list[int]
    leases_ended: list[int]
    gate: tuple[bool, bool]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        lists = (
            self.requests_came, self.requests_gone, self.grown, self.launched, self.completed,
            self.leases_begun, self.leases_ended,
        )  # fmt: skip
        return (
            all(band.same for band in self.bands) and not any(lists) and self.gate[0] == self.gate[1]
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.__dict__,
            "same": self.same,
            "bands": [band.to_json() for band in self.bands],
        }


def compare(before: ArenaState, after: ArenaState) -> Difference:
    """`TraceError` when the two arenas have other bands, which cannot be compared page by page."""
    told = [
        [(band.name, band.page_bytes) for band in state.bands] for state in (before, after)
    ]
    if told[0] != told[1]:
        one, other = (", ".join(f"{n} ({b:,} bytes)" for n, b in bands) for bands in told)
        raise TraceError(
            f"two traces of other bands cannot be compared: one has pages of {one}, the other of {other}"
        )
    old, new = before.requests, after.requests
    return Difference(
        before.sequence,
        after.sequence,
        [_compare_band(before, after, index) for index in range(len(before.bands))],
        sorted(new.keys() - old.keys()),
        sorted(old.keys() - new.keys()),
        [
            (number, old[number].length, new[number].length)
            for number in sorted(old.keys() & new.keys())
            if old[number].length != new[number].length
        ],
        sorted(after.in_flight - before.in_flight),
        sorted(before.in_flight - after.in_flight),
        sorted(after.pins.keys() - before.pins.keys()),
        sorted(before.pins.keys() - after.pins.keys()),
        (before.gate_closed, after.gate_closed),
    )


def _compare_band(one: ArenaState, other: ArenaState, index: int) -> BandDifference:
    before, after = one.bands[index], other.bands[index]
    old, new = _same_length(before.page_of, after.page_of, -1)
    pins = _same_length(_pinned(before), _pinned(after), 0)
    owners = _same_length(_owners(before), _owners(after), -1)
    held = (old >= 0) & (new >= 0)
    names = [state.ids_of(index).generation for state in (one, other)]
    generations = _same_length(names[0], names[1], 0)
    again = generations[0][: held.size] != generations[1][: held.size]
    both = held & ~again
    return BandDifference(
        before.name,
        np.flatnonzero((old < 0) & (new >= 0)),
        np.flatnonzero((old >= 0) & (new < 0)),
        np.flatnonzero(both & (old != new)),
        np.flatnonzero(held & again),
        np.flatnonzero(both & (owners[0] != owners[1])),
        np.flatnonzero(pins[1] > pins[0]),
        np.flatnonzero(pins[1] < pins[0]),
        before.byte_range(),
        after.byte_range(),
        band_counts(before),
        band_counts(after),
    )


def band_counts(band: BandState) -> dict[str, int]:
    """Pages of the extent by state, and how many of them are pinned."""
    counts = {name: band.count(state) for state, name in GLYPHS.items() if name != "gap"}
    return {**counts, "pinned": int(np.count_nonzero(band.pins[band.slice]))}


def _owners(band: BandState) -> np.ndarray:
    """By virtual page, −1 where unmapped."""
    owners = np.full(len(band.page_of), -1, np.int64)
    held = band.page_of >= 0
    owners[held] = band.owner[band.page_of[held] - band.base]
    return owners


def _pinned(band: BandState) -> np.ndarray:
    """Pins by virtual page."""
    pins = np.zeros(len(band.page_of), np.int64)
    held = band.page_of >= 0
    pins[held] = band.pins[band.page_of[held] - band.base]
    return pins


def _same_length(one: np.ndarray, other: np.ndarray, fill: int) -> tuple[np.ndarray, np.ndarray]:
    size = max(one.size, other.size)
    padded = [np.full(size, fill, np.int64) for _ in range(2)]
    padded[0][: one.size], padded[1][: other.size] = one, other
    return padded[0], padded[1]
