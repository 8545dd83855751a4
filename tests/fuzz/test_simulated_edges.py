"""The simulated device makes exactly the edges that the CUDA device makes, operation by operation."""

from __future__ import annotations

import random

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation
from bandscope.fuzz.simulated_work import Fill, Work
from tests.allocator.arenas import LAYOUTS, RandomEngine
from tests.allocator.devices import PaperRun
from tests.fuzz.simulated_runs import Run

KINDS = {"Move": "move", "Publish": "publish", "TableReads": "tables", "Copy": "copy", "Fill": "fill"}


class Both:
    """One engine whose operations are applied to an arena on the real `CudaDevice` over paper streams
    and to one on the simulated device. Forwards complete in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, **options: object) -> None:
        self.paper = PaperRun(monkeypatch, LAYOUTS[name], page_size=1, **options)
        self.copied: dict[int, frozenset[int]] = {}
        # An explicit list keeps the works that were issued.
        self.sim = Run(LAYOUTS[name], "steps:", page_size=1, **options)

    def step(self, engine: RandomEngine) -> None:
        operation = engine.choose(self.sim.arena)
        if isinstance(operation, ops.Complete) and engine.tickets:
            operation = ops.Complete(min(engine.tickets))
        engine.note(operation, self.sim.apply(operation))
        self.apply_on_paper(operation)

    def apply_on_paper(self, operation: Operation) -> None:
        paper = self.paper
        known = paper.arena.books.ledger.row_of
        match operation:
            case ops.Launch(requests=requests) if all(request in known for request in requests):
                paper.forward(requests)
            case ops.Complete(ticket=ticket) if ticket in paper.done:
                paper.complete(ticket)
            case _:
                if isinstance(operation, ops.EndLease):  # the host saw its copies complete
                    paper.device.schedule.seen |= self.copied.pop(operation.lease, frozenset())
                outcome = paper.arena.apply(operation)
                if outcome.ok and isinstance(operation, ops.Lease):
                    with paper.device.copying():
                        paper.issue("copy", (), ())
                    self.copied[outcome.value] = paper.device.copies.seen

    def simulated(self) -> list[tuple[str, Work]]:
        """The simulated device's works in order of issue, a fill once per band, as on a GPU."""
        return [
            (KINDS.get(type(work).__name__, f"forward {work.ticket}"), work)
            for work in self.sim.device.works
            for _ in range(len(work.fills) if isinstance(work, Fill) else 1)
        ]


@pytest.mark.parametrize("barrier", ["fine", "coarse"])
@pytest.mark.parametrize(("name", "seed"), [("P3", 1), ("P4", 2), ("P2w", 3)])
def test_the_edges_are_those_of_the_cuda_device(
    monkeypatch: pytest.MonkeyPatch, name: str, seed: int, barrier: str
) -> None:
    """The same works in the same order, and each is ordered after exactly the same ones."""
    both = Both(monkeypatch, name, barrier=barrier, compact_hole_share=0.0)
    monkeypatch.setattr(Run, "_copy", lambda run, number: run.device.copy_over(number, 0, []))
    engine = RandomEngine(random.Random(seed))
    for _ in range(700):
        both.step(engine)
    works = both.simulated()
    assert [name for name, _ in works] == both.paper.names()
    assert {"move", "publish", "tables", "fill", "copy"} <= set(both.paper.names())
    unordered = 0
    for later, (what, work) in enumerate(works):
        before = {
            earlier
            for earlier, (_, other) in enumerate(works[:later])
            if other.number <= work.after[other.stream]
        }
        assert before == both.paper.work[later].after, f"work {later}, {what}"
        unordered += later - len(before)
    assert unordered > 30  # some orders are left to choose
