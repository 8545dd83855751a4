"""Generated programs over arenas with a prefix cache that are run again under a planted fault.

Each is made along an intact arena and kept, with all that could be observed after each step. Run again
under a fault, the first observation that differs shows the fault.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bandscope.allocator.operations import Outcome
from bandscope.fuzz.faults import Fault
from bandscope.fuzz.generate import Generator
from bandscope.fuzz.program import Layout, Names, Step
from tests.fuzz.fault_walks import Difference, Seen, ToldDevice

WALKS = 120
STEPS = 120
RESTORED_EVERY = 16  # steps after which the state is saved and restored


@dataclass(frozen=True)
class Walk:
    """A program and what was seen after each of its steps."""

    layout: Layout
    steps: tuple[Step, ...]
    seen: tuple[Seen, ...]


class Walker:
    """An arena that takes steps and is looked at."""

    def __init__(self, layout: Layout) -> None:
        self.arena = layout.arena(ToldDevice())  # type: ignore[arg-type]
        self.names = Names()
        self.taken = 0

    def observe(self, step: Step) -> tuple[Outcome | None, Seen]:
        """Take one step and look at everything."""
        arena, device = self.arena, self.arena.device
        device.take()  # type: ignore[attr-defined]
        outcome: Outcome | None = None
        try:
            outcome = arena.apply(self.names.resolve(step))
            self.names.note(step, outcome)
            self.taken += 1
            if self.taken % RESTORED_EVERY == 0:
                arena.restore(arena.snapshot())
            bands = len(arena.books.bands)
            asked = [[0] * index + [2] + [0] * (bands - index - 1) for index in range(bands)]
            capacity = tuple(arena.serves(demand) for demand in [*asked, [1] * bands])
            calls: tuple[Any, ...] = tuple(map(repr, device.take()))  # type: ignore[attr-defined]
            told = (outcome.ok, outcome.reason, outcome.value)
            return outcome, Seen(told, capacity, calls, tuple(map(str, arena.check())), arena.digest())
        except Exception as error:  # a fault may break anything
            return outcome, Seen(type(error).__name__)


@functools.cache
def walk(number: int) -> Walk:
    """A walk of the allocator as it is. Never call it under a fault."""
    generator = Generator(number, "caching", misuse=0.0)
    walker = Walker(generator.layout)
    steps, seen = [], []
    for _ in range(STEPS):
        step = generator.next()
        outcome, looked = walker.observe(step)
        assert outcome is not None, looked
        generator.note(step, outcome)
        steps.append(step)
        seen.append(looked)
    return Walk(generator.layout, tuple(steps), tuple(seen))


def difference(
    fault: Fault, hint: int = 0, walks: Iterable[int] = range(WALKS)
) -> Difference | None:
    """The first step of the first walk at which the fault shows, None when it never does. The walk
    `hint` is tried first."""
    for number in dict.fromkeys([hint, *walks]):
        known = walk(number)
        with fault.plant():
            walker = Walker(known.layout)
            for index, step in enumerate(known.steps):
                _, found = walker.observe(step)
                expected = known.seen[index]
                if found != expected:
                    shown = next(
                        name
                        for name in ("broken", "outcome", "capacity", "device", "digest")
                        if getattr(found, name) != getattr(expected, name)
                    )
                    return Difference(
                        number, index, shown, getattr(expected, shown), getattr(found, shown)
                    )
    return None
