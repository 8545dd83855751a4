"""What the race checker reports: accesses, races and the edges that are missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Access:
    """One side of a race: who touched what.

    `stream`: `schedule`, `forward` or `copy` (the holder of a lease). `does`: `reads` or `writes`.
    `what`: the page (band, virtual page, generation) or table row, where it lay. `ticket`: of the
    forward, `lease`: of the holder, 0 where there is none. `operation` and `sequence`: the kind of
    the operation that issued it and the event at which that was asked. `stack`: the Python stack of
    that operation where it was recorded, else empty.
    """

    stream: str
    does: str
    what: str
    ticket: int
    lease: int
    operation: str
    sequence: int
    stack: str = ""

    def __str__(self) -> str:
        who = "the schedule stream"
        if self.stream == "forward":
            who = f"forward {self.ticket}"
        elif self.stream == "copy":
            who = f"the holder of lease {self.lease}"
        return f"{who} {self.does} {self.what} ({self.operation}, event {self.sequence:,})"


@dataclass
class Race:
    """Two accesses to the same place that nothing orders, and the edge that would.

    `kind`: `RAW`, `WAR` or `WAW` (the second access is named first). `edge`: `settle`,
    `write-after-read (fine)`, `lease end` or `publish`; `ticket`: the forward it must be placed
    behind (0: none), `before`: the event it must come before. `places`: how many pages or rows were
    hit by the same missing edge; `first` and `second` are the first example.
    """

    kind: str
    band: str
    edge: str
    ticket: int
    before: int
    first: Access
    second: Access
    places: int = 1

    @property
    def missing(self) -> str:
        """The missing edge in words."""
        where = f"before event {self.before:,}"
        match self.edge:
            case "settle":
                return f"a settle barrier behind ticket {self.ticket}, or its completion, {where}"
            case "lease end":
                return f"the end of lease {self.first.lease} {where}"
            case "publish":
                return f"a publish of the rows of {self.band} {where}"
        return f"a write-after-read barrier (fine) behind ticket {self.ticket} {where}"

    def __str__(self) -> str:
        more = f"; so for {self.places:,} places" if self.places > 1 else ""
        return (
            f"{self.kind} in {self.band}: {self.first}, then {self.second}, and nothing orders them"
            f"{more}. Missing: {self.missing}."
        )


@dataclass
class RaceReport:
    """All races of a trace.

    `events`: how many events were looked at. `gaps`: stretches `[first, stop)` of events that could
    not be used; what was in flight before one is unknown after it. `notes`: what could not be judged.
    """

    races: list[Race] = field(default_factory=list)
    events: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data, each race with its sentence and its missing edge in words."""
        races = [{**asdict(race), "missing": race.missing, "text": str(race)} for race in self.races]
        return {"races": races, "events": self.events, "gaps": self.gaps, "notes": self.notes}
