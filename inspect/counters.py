"""An observer that counts: operations, moves, barriers and refusals, and what each band holds.

It keeps no events, so it can stay on for runs of any length.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bandscope.allocator import events
from bandscope.allocator.operations import Operation, Outcome


@dataclass
class BandCounters:
    """What happened to one band; pages unless the name says otherwise."""

    held: int = 0
    held_peak: int = 0
    allocated: int = 0
    freed: int = 0
    moves_urgent: int = 0
    moves_opportunistic: int = 0
    move_batches: int = 0
    bytes_moved: int = 0
    band_moves: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "band_moves": dict(self.band_moves)}


class Counters:
    """Counts by band, operation, barrier and refusal."""

    def __init__(self) -> None:
        self.bands: dict[str, BandCounters] = {}
        self.operations: Counter[str] = Counter()
        self.barriers: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.last_refusal: events.Refusal | None = None

    def band(self, name: str) -> BandCounters:
        """The counters of a band, zero before its first event."""
        if name not in self.bands:
            self.bands[name] = BandCounters()
        return self.bands[name]

    def before(self, operation: Operation) -> None:
        """Nothing to count before the outcome is known."""

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Count the operation, under its name when done, with its reason when refused."""
        name = operation.kind
        self.operations[name if outcome.ok else f"{name} refused: {outcome.reason}"] += 1

    def effect(self, event: events.Effect) -> None:
        """Count one effect."""
        match event:
            case events.LeaseBegin(band=name, virtual=virtual, owns=True):
                band = self.band(name)
                band.allocated += virtual.size
                band.held += virtual.size
                band.held_peak = max(band.held_peak, band.held)
            case events.LeaseEnd(band=name, virtual=virtual, owns=True):
                band = self.band(name)
                band.freed += virtual.size
                band.held -= virtual.size
            case events.PageMove():
                band = self.band(event.band)
                band.move_batches += 1
                band.bytes_moved += event.sources.size * event.page_bytes
                if event.urgent:
                    band.moves_urgent += event.sources.size
                else:
                    band.moves_opportunistic += event.sources.size
            case events.BandMove():
                self.band(event.band).band_moves[event.why] += 1
            case events.Barrier():
                self.barriers[f"{event.kind}: {event.why}"] += 1
            case events.Refusal():
                self.refusals[event.reason] += 1
                self.last_refusal = event
            case _:
                pass

    def to_json(self) -> dict[str, Any]:
        """Every count as plain data."""
        return {
            "bands": {name: band.to_json() for name, band in self.bands.items()},
            "operations": dict(self.operations),
            "barriers": dict(self.barriers),
            "refusals": dict(self.refusals),
        }
