"""What a prefix cache keeps is compared with the model: every corrupted field of it is seen in the very
step, if that asks anything of the cache, and by the full check."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.cache import PrefixCache
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.stepwise import Stepwise
from tests.fuzz.caching import PAGE, cached_layout
from tests.fuzz.modelling import Watched

KEYS = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 10, 11, 12), (1, 2, 21, 22, 23, 24, 25, 26))


def busy_cache(seed: int) -> Watched:
    """Three sequences that part inside each other, checkpoints, trimmed windows, pins, a request that
    matches, another that left."""
    rng = random.Random(seed)
    watched = Watched(cached_layout("all", units=900))
    for request, key in enumerate(KEYS):
        watched.run([ops.Admit(request, key=key)])
        for _ in range(3 + rng.randint(0, 1)):
            watched.run([ops.Extend(request, 2 * PAGE), ops.Launch((request,))])
            on_grid = watched.model.requests[request].length % (2 * PAGE) == 0
            watched.run([ops.Checkpoint(request) if on_grid else ops.Publish(request)])
            watched.run([ops.TrimWindow((request,))])
    watched.run([ops.Lease(0, "full", 1, 3), ops.Lease(1, "mamba", 0, 1), ops.Release(1, publish=True)])
    watched.run([ops.Admit(5, key=KEYS[0]), ops.Extend(5, 3), ops.Launch((5,)), ops.Publish(5, (1,))])
    assert watched.model.requests[5].path and watched.arena.books.cache is not None
    assert min(watched.arena.books.cache.tree.cached) > 0
    return watched


Poke = Callable[[PrefixCache, random.Random], bool]


def node(cache: PrefixCache, rng: random.Random) -> Any:
    return cache.tree.nodes[rng.choice([number for number in cache.tree.nodes if number])]


def one(cache: PrefixCache, rng: random.Random) -> Any:
    return cache.tree.checkpoints[rng.choice(list(cache.tree.checkpoints))]


def lease(cache: PrefixCache, rng: random.Random) -> Any:
    return cache.tree.leases[rng.choice(list(cache.tree.leases))]


def sharing(cache: PrefixCache, rng: random.Random) -> Any:
    return cache.sharing[rng.choice(list(cache.sharing))]


def number(find: Callable[[PrefixCache, random.Random], Any], name: str) -> Poke:
    """One more or one less."""

    def poke(cache: PrefixCache, rng: random.Random) -> bool:
        owner = find(cache, rng)
        setattr(owner, name, getattr(owner, name) + rng.choice((-1, 1)))
        return True

    return poke


def element(find: Callable[[PrefixCache, random.Random], Any], name: str) -> Poke:
    """One more or one less in a list, or in a copy of an array."""

    def poke(cache: PrefixCache, rng: random.Random) -> bool:
        owner = find(cache, rng)
        numbers = getattr(owner, name)
        if not len(numbers):
            return False
        if isinstance(numbers, np.ndarray):
            numbers = numbers.copy()
            setattr(owner, name, numbers)
        numbers[rng.randrange(len(numbers))] += rng.choice((-1, 1))
        return True

    return poke


def window_locks(cache: PrefixCache, rng: random.Random) -> bool:
    held = [locks for locks in node(cache, rng).window_locks if locks is not None]
    if held:
        rng.choice(held)[0] += 1
    return bool(held)


def forget(name: str) -> Poke:
    def poke(cache: PrefixCache, rng: random.Random) -> bool:
        known = getattr(cache, name)
        del known[rng.choice(list(known))]
        return True

    return poke


def no_longer_owned(cache: PrefixCache, rng: random.Random) -> bool:
    cache.tree.owned.set(node(cache, rng).pages[:1], False)
    return True


def swap_shares(cache: PrefixCache, rng: random.Random) -> bool:
    first, second = rng.sample(list(cache.sharing), 2)
    cache.sharing[first], cache.sharing[second] = cache.sharing[second], cache.sharing[first]
    return True


def other_parent(cache: PrefixCache, rng: random.Random) -> bool:
    found = node(cache, rng)
    if found.parent is None or found.parent is cache.tree.root:
        return False
    key = cache.tree.first_page(found.key)
    cache.tree.root.children[key] = found.parent.children.pop(key)
    return True


def column(cache: PrefixCache, rng: random.Random) -> bool:
    cached = cache._ledger.cached
    cached[rng.choice(list(cache._ledger.row_of.values()))] += 1
    return True


def tree(cache: PrefixCache, rng: random.Random) -> Any:
    return cache.tree


POKES: dict[str, Poke] = {
    "clock": number(tree, "clock"),
    "cached": element(tree, "cached"),
    "evictable": element(tree, "evictable"),
    **{f"node {name}": number(node, name) for name in ("start", "clock", "locks")},
    **{f"node {name}": element(node, name) for name in ("key", "pages", "first", "window_clock")},
    "node window_locks": window_locks,
    "node parent": other_parent,
    **{f"checkpoint {name}": number(one, name) for name in ("slot", "clock", "locks")},
    "lease window_from": element(lease, "window_from"),
    "sharing pages": number(sharing, "pages"),
    "sharing key": element(sharing, "key"),
    "two requests' shares": swap_shares,
    **{f"a {name}": forget(name) for name in ("sharing", "pin_leases", "pin_requests")},
    "column": column,
}

# Recomputed by the full check alone, since they follow from the rest.
FULL_ONLY: dict[str, Poke] = {"owned pages": no_longer_owned}


def poked(poke: Poke, seed: int) -> tuple[bool, bool, bool]:
    """Whether there was something to corrupt, whether the step saw it, whether the full check did."""
    watched = busy_cache(seed)
    assert not watched.checker.full(watched.arena)
    operation = ops.Evict((0,) * len(watched.model.bands))
    watched.model.expect(operation)
    outcome = watched.arena.apply(operation)
    assert not watched.model.settle(operation, outcome)
    cache = watched.arena.books.cache
    assert cache is not None
    if not poke(cache, random.Random(seed)):
        return False, False, False
    seen = []
    for look in (lambda: watched.checker.step(watched.arena, operation, outcome),
                 lambda: watched.checker.full(watched.arena)):  # fmt: skip
        try:
            seen.append(bool(look()))
        except (AssertionError, IndexError, KeyError, ValueError, AttributeError):
            seen.append(True)  # an answer that cannot be given: the campaign reports it as a crash
    return True, seen[0], seen[1]


@pytest.mark.parametrize("field", [*POKES, *FULL_ONLY])
def test_a_corrupted_field_of_the_cache_is_seen(field: str) -> None:
    tried = Counter[bool]()
    for seed in range(6):
        there, in_step, in_full = poked({**POKES, **FULL_ONLY}[field], seed)
        tried[there] += 1
        assert in_full or not there, f"{field} was corrupted (seed {seed}), and nothing seen"
        assert in_step == (there and field in POKES), (field, seed)
    assert tried[True] >= 3, "hardly anything to corrupt"


@pytest.mark.parametrize("publish", [ops.Publish(1), ops.Release(1, publish=True)])
@pytest.mark.parametrize("fault", ["graft-without-renaming-writes", "graft-not-published"])
def test_a_graft_that_is_half_done_is_seen_in_its_step(fault: str, publish: ops.Operation) -> None:
    """Books that still name what a forward writes as before, or owe the device fewer rows."""
    watched = Watched(cached_layout("window"))
    for request in (0, 1):
        watched.run([ops.Admit(request, key=KEYS[0]), ops.Extend(request, 6 * PAGE)])
    watched.run([ops.Launch((0,)), ops.TrimWindow((0,)), ops.Publish(0), ops.Launch((1,))])
    with FAULTS[fault].plant():
        outcome, violations = watched.apply(publish)
    assert outcome.ok and watched.model.grafts
    right = "tables" if fault == "graft-not-published" else "happens_before"
    assert violations and violations[0].invariant == right


@pytest.mark.parametrize("name", ["tree", "sharing", "pin_leases", "pin_requests"])
def test_a_snapshot_that_lacks_some_of_the_cache_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = busy_cache(1)
    taken = Arena.snapshot

    def lacking(arena: Arena) -> dict[str, Any]:
        snapshot = taken(arena)
        part = snapshot["cache"]
        if name == "tree":
            part["tree"]["nodes"] = [
                (*row[:3], row[3] + 1, *row[4:]) for row in part["tree"]["nodes"]
            ]
        else:
            part[name] = part[name][:-1]
        return snapshot

    monkeypatch.setattr(Arena, "snapshot", lacking)
    found = Stepwise(watched.model, watched.arena).full(watched.arena)
    assert {violation.invariant for violation in found} == {"determinism"}
