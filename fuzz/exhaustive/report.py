"""What a search found: counts, the depth it explored, and every violation with its program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bandscope.fuzz.exhaustive.alphabet import Alphabet
from bandscope.fuzz.program import Layout, Program

if TYPE_CHECKING:
    from bandscope.fuzz.exhaustive.cached_alphabet import CacheAlphabet


@dataclass(frozen=True)
class Finding:
    """One violation. `program`: a shortest one that ends in it; `confirmed`: it was run on a new arena
    from its first step on and showed the same violation there."""

    invariant: str
    message: str
    operation: str
    depth: int
    program: Program
    confirmed: bool

    def __str__(self) -> str:
        steps = "\n".join(f"    {step.operation}" for step in self.program.steps)
        doubt = "" if self.confirmed else " (NOT seen when run from the start: the search is at fault)"
        head = f"{self.invariant} at {self.operation}, {self.depth} operations{doubt}"
        return f"{head}: {self.message}\n{steps}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `program` is that of `fuzz.program`."""
        return {
            "invariant": self.invariant,
            "message": self.message,
            "operation": self.operation,
            "depth": self.depth,
            "confirmed": self.confirmed,
            "program": self.program.to_json(),
        }


@dataclass
class Report:
    """One search.

    `states`: distinct states met, up to names, the empty arena included; `transitions`: operations
    applied, of which `refused` were refused; `probes`: capacity questions beside them. `depth`: every
    sequence of that many operations is covered; `closed`: so is every sequence of any length.
    `by_depth[d]`: states whose shortest path has d operations. `occupancies`: different ways to fill
    the bands. `fingerprint`: a digest of the set of states, equal whenever the same set was found.
    `memory_bytes`: the greatest resident size of the process.
    """

    name: str
    layout: Layout
    alphabet: Alphabet | CacheAlphabet
    states: int = 0
    transitions: int = 0
    refused: int = 0
    probes: int = 0
    drained: int = 0
    depth: int = 0
    closed: bool = False
    by_depth: list[int] = field(default_factory=list)
    occupancies: int = 0
    fingerprint: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def states_per_second(self) -> float:
        """Per second of processor time, so that a busy machine tells the same."""
        return self.states / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def transitions_per_second(self) -> float:
        return self.transitions / self.cpu_seconds if self.cpu_seconds else 0.0

    def __str__(self) -> str:
        reach = "any length (closed)" if self.closed else f"{self.depth} operations"
        lines = [
            f"{self.name or 'arena'}: {self.states:,} states, {self.transitions:,} transitions "
            f"({self.refused:,} refused), every sequence of {reach}, {self.occupancies:,} occupancies, "
            f"{self.probes:,} probes, {self.drained:,} drained, {self.seconds:.1f} s, of a core "
            f"{self.cpu_seconds:.1f} s ({self.states_per_second:,.0f} states/s, "
            f"{self.transitions_per_second:,.0f} transitions/s), "
            f"{self.memory_bytes / 2**20:,.0f} MiB, fingerprint {self.fingerprint}, "
            f"{len(self.findings)} violations",
        ]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "layout": self.layout.to_json(),
            "alphabet": self.alphabet.to_json(),
            "states": self.states,
            "transitions": self.transitions,
            "refused": self.refused,
            "probes": self.probes,
            "drained": self.drained,
            "depth": self.depth,
            "closed": self.closed,
            "by_depth": self.by_depth,
            "occupancies": self.occupancies,
            "fingerprint": self.fingerprint,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "states_per_second": round(self.states_per_second, 1),
            "transitions_per_second": round(self.transitions_per_second, 1),
            "memory_bytes": self.memory_bytes,
            "findings": [finding.to_json() for finding in self.findings],
        }
