"""Public answers of an arena, asked between operations and compared with the model's.

Most questions about capacity have an obvious answer, so the ones asked lie at the border: the most pages
of a band that are served (yes) and one more (no), and mixed demands around what is left."""

from __future__ import annotations

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.comparison import holding
from bandscope.fuzz.model import Model

# One question at each of the first steps, so that short programs are asked too, then one every so many;
# and often whether a demand that was just refused is served.
FIRST = 16
EVERY = 32
REFUSED_EVERY = 4


class Probes:
    """Asks an arena questions in turn, so that over some steps all kinds are asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._steps = 0
        self._question = 0

    def look(self, arena: Arena, operation: Operation, outcome: Outcome) -> list[Violation]:
        """The questions due after this operation."""
        self._steps += 1
        if not outcome.ok and outcome.reason != "misuse" and (
            self._steps <= FIRST or not self._steps % REFUSED_EVERY
        ):
            demand = self.model.demand
            # An admission holds what it matched while it asks, so without it more may be served.
            matched = isinstance(operation, ops.Admit) and bool(operation.key)
            return self._serves(arena, demand, matched and self.model.serves(demand))
        if self._steps > FIRST and self._steps % EVERY:
            return []
        self._question += 1
        kinds = len(self.model.bands) + 2
        kind = self._question % kinds
        if kind < len(self.model.bands):
            return self._border(arena, kind)
        if kind == len(self.model.bands):
            return self._mixed(arena)
        return self._holding(arena)

    def everything(self, arena: Arena) -> list[Violation]:
        """All questions about capacity."""
        found = []
        for index in range(len(self.model.bands)):
            found += self._border(arena, index)
        return found + self._mixed(arena)

    def _serves(self, arena: Arena, demand: tuple[int, ...], right: bool) -> list[Violation]:
        if arena.serves(demand) is right:
            return []
        return [
            Violation(
                "capacity", f"the arena says {not right} to a demand of {demand}, {right} is true"
            )
        ]

    def _border(self, arena: Arena, index: int) -> list[Violation]:
        most = self.model.largest(index)
        demand = [0] * len(self.model.bands)
        demand[index] = most
        found = self._serves(arena, tuple(demand), True)
        demand[index] = most + 1
        return found + self._serves(arena, tuple(demand), False)

    def _mixed(self, arena: Arena) -> list[Violation]:
        model = self.model
        found = []
        free = model.free_bytes()
        share = 1 + self._question % 5
        demand = tuple(
            free * (1 + (self._question + band.index) % share) // (share * 2 * band.page_bytes)
            for band in model.bands
        )
        found += self._serves(arena, demand, model.serves(demand))
        tokens = tuple(
            0 if band.is_state else free // sum(b.page_bytes for b in model.token_bands)
            for band in model.bands
        )
        return found + self._serves(arena, tokens, model.serves(tokens))

    def _holding(self, arena: Arena) -> list[Violation]:
        model = self.model
        if not model.requests:
            return []
        running = list(model.requests)
        request = running[self._question % len(running)]
        band = model.bands[self._question // 7 % len(model.bands)]
        return list(holding(model, arena, request, band))

