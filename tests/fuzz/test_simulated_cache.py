"""Devices under a prefix cache: a shared page holds what its writer left whoever reads it, a state that
is copied what its source held at that moment; a copy that comes too early, or not at all, is found."""

from __future__ import annotations

from typing import Any

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.books import Books
from bandscope.allocator.operations import Operation
from bandscope.allocator.tables import PageTable
from bandscope.fuzz.execution import Execution
from bandscope.fuzz.program import Step
from bandscope.fuzz.simulated import SimulatedDevice
from tests.fuzz.caching import PAGE, CachedRun, cached_layout

KEY = (11, 12, 13, 14, 15, 16)
GRID = 2 * PAGE
# A state is computed, kept by a checkpoint, computed on, and found by another request.
COMPUTED: list[Operation] = [ops.Admit(0, key=KEY), ops.Extend(0, GRID), ops.Launch((0,))]
CHECKPOINT: list[Operation] = [ops.Checkpoint(0), ops.Extend(0, GRID), ops.Launch((0,))]
MATCH: list[Operation] = [ops.Admit(1, key=KEY), ops.Extend(1, 1), ops.Launch((1,))]


class Engine:
    """An arena with state and a cache on a device, an engine's work on it, and no model."""

    def __init__(self, schedule: str, name: str = "state", **config: Any) -> None:
        self.layout = cached_layout(name, **config)
        self.execution = Execution(self.layout, schedule)
        self.device: Any = self.execution.device
        self.found: list[str] = []

    def run(self, operations: list[Operation], *, drain: bool = True) -> None:
        model, arena = self.execution.model, self.execution.arena
        for operation in operations:
            model.expect(operation)
            if isinstance(operation, ops.Complete):
                self.device.finish(operation.ticket)
            outcome = arena.apply(operation)
            assert outcome.ok, operation
            model.settle(operation, outcome)  # what it finds is not looked at
            for copy in model.copies:
                self.device.state_copied(*copy)
            for graft in model.grafts:
                self.device.grafted(*graft)
            if isinstance(operation, ops.Launch):
                touched = model.accesses(operation.requests)
                self.device.forward_over(outcome.value, touched)
        if drain:
            self.device.drain()
        self.found += [violation.invariant for violation in self.device.take_violations()]


@pytest.mark.parametrize("schedule", ["eager", "latest", "random:3"])
def test_a_copied_state_is_its_source_at_that_moment(schedule: str) -> None:
    engine = Engine(schedule)
    engine.run([*COMPUTED, *CHECKPOINT, *MATCH])
    assert not engine.found
    # The request that matched has gone on from the checkpoint, which another one still finds.
    engine.run([ops.Admit(2, key=KEY), ops.Extend(2, 1), ops.Launch((1, 2))])
    assert not engine.found


def test_a_copy_before_its_forward_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Books.settle

    def unless_for_a_checkpoint(self: Books, why: str) -> None:
        if why != "state checkpoint":
            settle(self, why)

    monkeypatch.setattr(Books, "settle", unless_for_a_checkpoint)
    for schedule in ("eager", "latest"):
        engine = Engine(schedule)
        engine.run([*COMPUTED, *CHECKPOINT, *MATCH])
        assert "happens_before" in engine.found
        # Where forwards run late, the copy has the bytes of before.
        assert ("content" in engine.found) == (schedule == "latest")


@pytest.mark.parametrize("wrong", ["not at all", "the other way round", "from another slot"])
def test_a_wrong_copy_is_found_by_its_bytes(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SimulatedDevice.copy

    def altered(self: SimulatedDevice, band: int, sources: Any, destinations: Any) -> None:
        if wrong == "the other way round":
            copy(self, band, destinations, sources)
        elif wrong == "from another slot":
            copy(self, band, sources + 1, destinations)

    monkeypatch.setattr(SimulatedDevice, "copy", altered)
    engine = Engine("eager")
    engine.run([*COMPUTED, *CHECKPOINT, *MATCH])
    assert "content" in engine.found


# Two compute the same; the first trims its window and publishes; the second publishes while the forward
# that computes its rows may still run, reads them by the cache's names, and another one matches them.
TWINS: list[Operation] = [
    ops.Admit(0, key=KEY), ops.Admit(1, key=KEY), ops.Extend(0, 6 * PAGE), ops.Extend(1, 6 * PAGE),
    ops.Launch((0,)), ops.TrimWindow((0,)), ops.Publish(0), ops.Launch((1,)),
]  # fmt: skip
GRAFT: list[Operation] = [
    ops.Publish(1), ops.Extend(1, 1), ops.Launch((1,)), ops.Admit(2, key=KEY, limit_tokens=2 * PAGE),
    ops.Extend(2, 1), ops.Launch((2,)),
]  # fmt: skip


@pytest.mark.parametrize("schedule", ["eager", "latest", "random:3"])
def test_a_grafted_page_holds_what_was_left_under_its_old_name(schedule: str) -> None:
    engine = Engine(schedule, "window")
    engine.run([*TWINS, GRAFT[0]])
    assert engine.execution.model.grafts
    engine.run(GRAFT[1:])
    assert engine.execution.model.requests[2].length == 2 * PAGE + 1 and not engine.found


def test_a_graft_that_is_not_done_is_found_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's page is bound, but to the place of another page of the request."""
    rename = PageTable.rename
    monkeypatch.setattr(PageTable, "rename", lambda self, old, new: rename(self, old, new[::-1]))
    for schedule in ("eager", "latest"):
        engine = Engine(schedule, "window")
        engine.run([*TWINS, *GRAFT])
        assert "content" in engine.found


def test_a_load_of_a_grafted_page_is_waited_for_under_its_new_name() -> None:
    """Whoever loads a page goes on doing so after its graft; a forward that reads it waits."""
    engine = Engine("latest", "window")
    engine.run(TWINS, drain=False)
    band, own = 0, engine.execution.model.requests[1].pages.tolist()
    engine.device.copy_over(1, band, own[:1], "writes")
    engine.run(GRAFT[:1], drain=False)
    (graft,) = engine.execution.model.grafts
    assert graft[0] == band and own[0] in graft[1]
    engine.run(GRAFT[1:3])
    assert not engine.found
    engine.device.end_copies(1)
    assert not engine.device._copies


def test_a_shared_page_holds_what_its_writer_left() -> None:
    engine = Engine("latest", "full")
    engine.run([*COMPUTED, ops.Publish(0), *MATCH[:2], ops.Release(0), ops.Launch((1,))])
    assert not engine.found
    # A device that lost what the first one wrote is found when the second reads.
    device: SimulatedDevice = engine.device
    device.blank_memory()
    device._memory.cells[:] = 7
    engine.run([ops.Launch((1,))])
    assert "content" in engine.found


@pytest.mark.parametrize("name", ["state", "both", "window"])
def test_real_bytes_agree(name: str) -> None:
    run = CachedRun(cached_layout(name), 6)
    run.execution = Execution(cached_layout(name), device="cpu")
    run.run(200)
    assert run.execution.find is None and run.done["Admit finds"]


def test_real_bytes_of_a_state_that_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = cached_layout("state")
    execution = Execution(layout, device="cpu")
    device: Any = execution.arena.device
    monkeypatch.setattr(device, "copy", lambda *args: None)
    for operation in [*COMPUTED, *CHECKPOINT, *MATCH]:
        execution.step(Step(operation, 1 if isinstance(operation, ops.Launch) else None))
    execution.finish()
    assert execution.find is not None and execution.find.invariant == "content"
