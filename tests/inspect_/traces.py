"""Small recorded runs for tests: random operations on small arenas, with what the arena really was."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator.arena import Arena
from bandscope.allocator.events import NullObserver
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import RandomEngine, small_arena


@dataclass
class Recorded:
    """A trace and what was true: `snapshots` by the sequence of the first event after an operation."""

    path: Path
    arena: Arena
    recorder: Recorder
    snapshots: dict[int, dict[str, Any]] = field(default_factory=dict)
    told: list[tuple[str, Any]] = field(default_factory=list)


class Told(NullObserver):
    """Keeps operations and outcomes as they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def before(self, operation: Operation) -> None:
        """Keep it."""
        self.told.append(("asked", operation))

    def after(self, operation: Operation, outcome: Outcome) -> None:
        """Keep it."""
        self.told.append(("outcome", outcome))


def record(
    path: Path,
    layout: Any,
    *,
    seed: int = 0,
    operations: int = 200,
    snapshots: bool = False,
    close: bool = True,
    config: dict[str, Any] | None = None,
    engine: type[RandomEngine] = RandomEngine,
    drain: bool = False,
    **options: Any,
) -> Recorded:
    """Random operations of an engine on a small arena, recorded to `path`; `drain`: everything is
    given back at the end; `options` go to the recorder."""
    arena = small_arena(layout, **(config or {}))
    told = Told()
    arena.books.observer = told
    recorder = Recorder(path, arena, **options)
    chooser = engine(random.Random(seed))
    result = Recorded(recorder.directory, arena, recorder, told=told.told)
    for _ in range(operations):
        chooser.step(arena)
        if snapshots:
            result.snapshots[recorder.sequence] = arena.snapshot()
    if drain:
        chooser.drain(arena)
    if close:
        recorder.close()
    return result
