"""Pins: leases of somebody who reads or writes pages behind the scheduler's back.

A pinned page neither moves nor gets reused. Owners (requests) are kept in `requests.py`; here are
the pins of host copies and transfers. Because a pinned page cannot move, a lease remembers places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bandscope.allocator.band import PENDING, Band
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.tables import Pages

PURPOSES = ("forward", "host copy", "transfer")


@dataclass(frozen=True)
class Pin:
    """One lease: who holds which places of which band, and what they were called when it began.

    `begun_ticket`: the newest ticket at that time; a lease's age is counted in tickets since.
    """

    number: int
    holder: str
    purpose: str
    band: int
    places: Pages
    virtual: Pages
    generation: Pages
    begun_ticket: int
    deadline_ticket: int | None


@dataclass(frozen=True)
class LeaseFacts:
    """A lease as reports show it: `age_tickets` since it began, `overdue` past its deadline."""

    number: int
    holder: str
    purpose: str
    band: str
    pages: int
    age_tickets: int
    overdue: bool


class Pins:
    """All pins of an arena. `deferred[band]` counts pages freed while pinned: they hold nothing,
    but stay where they are until their last pin ends."""

    def __init__(self, bands: list[Band]) -> None:
        self._bands = bands
        self.next_number = 1
        self.pins: dict[int, Pin] = {}
        self.deferred = [0] * len(bands)

    def begin(
        self,
        band: int,
        virtual: Pages,
        generation: Pages,
        *,
        holder: str,
        purpose: str,
        begun_ticket: int,
        deadline_ticket: int | None,
    ) -> Pin:
        """Pin live pages; several pins of one page are counted."""
        places = self._bands[band].table.place_of[virtual]
        pin = Pin(
            self.next_number,
            holder,
            purpose,
            band,
            places,
            virtual,
            generation,
            begun_ticket,
            deadline_ticket,
        )
        self.next_number += 1
        self.pins[pin.number] = pin
        self._bands[band].pin_count[places] += 1
        return pin

    def held(self, number: int) -> Pin:
        """The lease of that number; `MisuseError` when it has ended or never began."""
        if number not in self.pins:
            ended = "has ended" if 0 < number < self.next_number else "never began"
            raise MisuseError(
                f"lease {number} was named, but it {ended} (held: {sorted(self.pins)}); use and end "
                "each lease once, by the number that Lease returned"
            )
        return self.pins[number]

    def end(self, number: int, holder: str | None) -> tuple[Pin, Pages]:
        """Drop a pin; returns it and the places that it alone had kept from reuse."""
        pin = self.held(number)
        if holder is not None and holder != pin.holder:
            raise MisuseError(
                f"lease {number} was ended by {holder!r}, but {pin.holder!r} holds it; only its "
                "holder may end it"
            )
        del self.pins[number]
        band = self._bands[pin.band]
        band.pin_count[pin.places] -= 1
        freed = pin.places[
            (band.pin_count[pin.places] == 0) & (band.state[pin.places] == PENDING)
        ]
        self.deferred[pin.band] -= freed.size
        return pin, freed

    def facts(self, issued: int, completed_through: int) -> list[LeaseFacts]:
        """Every lease, oldest first."""
        return [
            LeaseFacts(
                pin.number,
                pin.holder,
                pin.purpose,
                self._bands[pin.band].name,
                pin.places.size,
                issued - pin.begun_ticket,
                pin.deadline_ticket is not None and pin.deadline_ticket <= completed_through,
            )
            for pin in sorted(self.pins.values(), key=lambda pin: pin.number)
        ]

    def note_freed(self, band: int, pinned: int) -> None:
        """`pinned` places of `band` were freed while pinned."""
        self.deferred[band] += pinned

    def hull(self, band: int) -> tuple[int, int] | None:
        """The lowest pinned place of `band` and one past the highest, None without pins."""
        held = [pin.places for pin in self.pins.values() if pin.band == band and pin.places.size]
        if not held:
            return None
        return min(int(p.min()) for p in held), max(int(p.max()) for p in held) + 1

    def snapshot(self) -> dict[str, Any]:
        return {
            "next_number": self.next_number,
            "pins": list(self.pins.values()),  # frozen, and their arrays are never written
            "deferred": list(self.deferred),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.next_number = state["next_number"]
        self.pins = {pin.number: pin for pin in state["pins"]}
        self.deferred = list(state["deferred"])


def split_pinned(band: Band, places: Pages) -> tuple[Pages, Pages]:
    """`places` as (free of pins, pinned)."""
    pinned = band.pin_count[places] > 0
    if not pinned.any():
        return places, np.empty(0, np.int64)
    return places[~pinned], places[pinned]
