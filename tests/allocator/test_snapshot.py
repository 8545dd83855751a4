"""State is data: restored, compared, reproduced anywhere, and untouched by what was refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.operations import Operation
from tests.allocator.arenas import (
    LAYOUTS,
    P2M,
    P3,
    EventLog,
    RandomEngine,
    held_pages,
    nothing_held,
    small_arena,
)

CHECKOUT = Path(__file__).resolve().parents[2]


def random_arena(name: str, rng: random.Random, *, device: str = "none", **options: object) -> Arena:
    return small_arena(
        LAYOUTS[name],
        page_size=rng.choice([1, 2, 4]),
        device=device,
        headroom_share=rng.choice([0.0, 0.05]),
        compact_hole_share=rng.choice([0.0, 0.125]),
        **options,
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_random_operations_keep_every_invariant(name: str) -> None:
    """After each step the arena is healthy, a refused one left the digest, and the end is empty."""
    kinds, refusals = set(), set()
    for seed in range(16):
        rng = random.Random(f"hammer/{name}/{seed}")
        arena = random_arena(name, rng, device="cpu" if seed % 4 == 0 else "none")
        engine = RandomEngine(rng)
        for step in range(130):
            before = arena.digest()
            operation, outcome = engine.step(arena)
            kinds.add(operation.kind)

            assert arena.check() == [], (seed, step, operation)
            if not outcome:
                refusals.add(outcome.reason)
                assert arena.digest() == before, (seed, step, operation)
        engine.drain(arena)
        assert arena.check() == []
        assert held_pages(arena) == nothing_held(arena)
        assert arena.books.ids.free_count == arena.books.ids.capacity
        assert arena.books.state_ids.free_count == arena.books.state_ids.capacity
    of_the_cache = {"Publish", "Checkpoint", "Evict"}
    assert kinds == {kind.__name__ for kind in Operation.__subclasses__()} - of_the_cache
    assert {"memory", "misuse", "gate"} <= refusals


@pytest.mark.parametrize("name", LAYOUTS)
def test_restoring_gives_the_same_state_and_the_same_future(name: str) -> None:
    """The operations that followed a snapshot give the same digests and outcomes after a restore,
    in the same arena and in a fresh one."""
    for seed in range(6):
        rng = random.Random(f"restore/{name}/{seed}")
        arena = random_arena(name, rng, barrier=("fine", "coarse")[seed % 2])
        engine = RandomEngine(rng)
        for _ in range(60):
            engine.step(arena)
        snapshot, digest = arena.snapshot(), arena.digest()
        future = []
        for _ in range(60):
            operation, outcome = engine.step(arena)
            future.append((operation, outcome, arena.digest()))
        fresh = Arena(arena.plan, arena.total_bytes, device="none", config=arena.books.config)
        for target in (arena, fresh, fresh):
            target.restore(snapshot)

            assert target.digest() == digest
            assert target.check() == []
            for operation, outcome, expected in future:
                assert target.apply(operation) == outcome
                assert target.digest() == expected
            assert target.check() == []


def test_a_snapshot_is_not_touched_by_what_follows() -> None:
    """It holds copies: running on, and restoring it twice, gives the same digest each time."""
    rng = random.Random("snapshot copies")
    arena = random_arena("P4", rng)
    engine = RandomEngine(rng)
    for _ in range(80):
        engine.step(arena)
    snapshot, digest = arena.snapshot(), arena.digest()
    for _ in range(3):
        after = RandomEngine(random.Random("after"))
        for _ in range(40):
            after.next_request += 100
            arena.apply(after.choose(arena))
        arena.compact(urgent=True)
        arena.restore(snapshot)

        assert arena.digest() == digest


def test_every_kind_of_difference_changes_the_digest() -> None:
    """Each operation that changes something, down to the gate and a ticket, changes the digest."""
    steps: list[Operation] = [
        ops.Admit(0),
        ops.Admit(1, 0),
        ops.Extend(0, 1),
        ops.Extend(0, 9),
        ops.Decode((0,)),
        ops.Launch((0,)),
        ops.TrimWindow((0,)),
        ops.Lease(0, "full", 0, 1, "a"),
        ops.Lease(0, "full", 0, 1, "b"),
        ops.SetGate(True),
        ops.SetGate(False),
        ops.Extend(1, 4),
        ops.Complete(1),
        ops.EndLease(1),
        ops.Release(0),
        ops.EndLease(2),
        ops.Release(1),
    ]
    arena = small_arena(P3, page_size=2)
    digests = [arena.digest()]
    for operation in steps:
        assert arena.apply(operation).ok, operation
        digests.append(arena.digest())

    gate = [digest for digest, op in zip(digests[1:], steps, strict=True) if op == steps[9]]
    assert len(set(digests)) == len(digests) - 1  # closing and opening the gate is no change
    assert digests.count(gate[0]) == 1


def test_a_digest_that_differs_only_in_the_holder_of_a_lease_differs() -> None:
    """Who holds a lease is part of the state."""
    digests = set()
    for holder in ("host copy", "transfer"):
        arena = small_arena(P2M)
        arena.admit(0)
        arena.lease(0, "mamba", 0, 1, holder=holder)
        digests.add(arena.digest())

    assert len(digests) == 2


def test_observers_change_no_decision() -> None:
    """With and without an observer the same operations give the same digests."""
    for name in LAYOUTS:
        digests = []
        for observer in (None, EventLog()):
            rng = random.Random(f"observer/{name}")
            arena = random_arena(name, rng, observer=observer)
            engine = RandomEngine(rng)
            run = []
            for _ in range(150):
                engine.step(arena)
                run.append(arena.digest())
            digests.append(run)

        assert digests[0] == digests[1]


def test_the_observer_hears_every_operation_and_its_outcome() -> None:
    """Refused and illegal ones too, asked before answered."""
    log = EventLog()
    rng = random.Random("heard")
    arena = random_arena("P3", rng, observer=log)
    engine = RandomEngine(rng)
    asked, answered = [], []
    for _ in range(120):
        operation, outcome = engine.step(arena)
        asked.append(operation)
        answered.append(outcome)

    assert log.operations == asked
    assert log.outcomes == answered


PROGRAM = """
import random, sys
from tests.allocator.arenas import LAYOUTS, RandomEngine, small_arena
for name in sorted(LAYOUTS):
    rng = random.Random("process/" + name)
    arena = small_arena(LAYOUTS[name], page_size=2, device=sys.argv[1], compact_hole_share=0.0)
    engine = RandomEngine(rng)
    for _ in range(150):
        engine.step(arena)
    print(name, arena.digest())
"""


def test_digests_are_equal_across_processes_hash_seeds_and_devices() -> None:
    """Fresh interpreters with three hash seeds, on `none` and on `cpu`, print the same digests."""
    outputs = set()
    for seed, device in (("0", "none"), ("1", "none"), ("12345", "cpu")):
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, device],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join([str(CHECKOUT / ".src"), str(CHECKOUT)]),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        outputs.add(result.stdout)

    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(LAYOUTS)


def test_a_restored_arena_has_the_same_effects_ahead() -> None:
    """What was published before a snapshot is not published again by the next launch after it."""
    log = EventLog()
    arena = small_arena(P3, page_size=1, observer=log)
    arena.admit(0)
    arena.extend(0, 1)
    arena.launch([0])
    snapshot = arena.snapshot()
    log.clear()
    arena.launch([0])
    first = list(log.effects)
    arena.restore(snapshot)
    log.clear()
    arena.launch([0])

    assert log.effects == first


def test_a_restored_arena_has_a_true_mirror() -> None:
    """The device's tables follow the books back, whatever was published since."""
    arena = small_arena(P3, device="cpu")
    for request in range(3):
        arena.admit(request)
        arena.extend(request, 6)
    arena.launch([0, 1, 2])
    snapshot = arena.snapshot()
    arena.release(1)
    arena.compact(urgent=True)
    arena.launch([0, 2])
    arena.restore(snapshot)

    for band in arena.books.bands:
        mirror = arena.device.mirror(band.index)
        places = band.table.place_of
        assert mirror is not None
        expected = [int(band.physical(place)) if place >= 0 else -1 for place in places]
        assert mirror.tolist() == expected
