"""The generator: the same from a seed anywhere, legal where it should be, and it reaches everything."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bandscope.allocator import events
from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import SizingError
from bandscope.allocator.operations import Operation, Outcome
from bandscope.fuzz.generate import PROFILES, Generator, describe, generate, mutate
from bandscope.fuzz.generate.layouts import choose_layout, least_bytes
from bandscope.fuzz.generate.misuse import ILLEGAL, OF_THE_CACHE
from bandscope.fuzz.generate.mix import CACHE_KINDS, KINDS
from bandscope.fuzz.program import Layout, Names, Program, Step

CHECKOUT = Path(__file__).resolve().parents[2]

SCRIPT = """
import hashlib, json
from bandscope.fuzz.generate import PROFILES, describe, generate, mutate
programs = [generate(seed, profile, 150) for profile in PROFILES for seed in (0, 1, 7)]
programs += [mutate(programs, seed) for seed in range(12)]
told = json.dumps([program.to_json() for program in programs]) + describe(3, "mixed")
print(hashlib.sha256(told.encode()).hexdigest())
"""


class Effects(events.EffectObserver):
    """Keeps the effects of the last operation."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def effect(self, event: Any) -> None:
        self.kept.append(event)


@dataclass
class Moment:
    """One step of a run, what it did, and what was going on before it."""

    seed: int
    generator: Generator
    arena: Arena
    step: Step
    outcome: Outcome
    effects: list[Any]
    in_flight: tuple[int, ...]
    unsettled: bool
    leases: int
    is_pinned: bool  # of a release: a lease holds token pages of its request
    gate: bool
    lengths: dict[int, int]
    gaps: int
    refused: Any  # the operation before this one, when it was refused for want of room

    @property
    def op(self) -> Any:
        return self.step.operation

    def is_a(self, kind: type[Operation]) -> bool:
        return isinstance(self.step.operation, kind)

    def moved(self, *, urgent: bool | None = None) -> bool:
        return any(
            isinstance(event, events.PageMove) and (urgent is None or event.urgent is urgent)
            for event in self.effects
        )


def holds_pinned_pages(arena: Arena, operation: Operation) -> bool:
    if not isinstance(operation, ops.Release):
        return False
    row = arena.books.ledger.row_of.get(operation.request)
    if row is None:
        return False
    pages = arena.books.ledger.token_pages(row)
    bands = [arena.books.bands[index] for index in arena.books.token_bands]
    places = [band.table.place_of[pages] for band in bands]
    return any((band.pin_count[p[p >= 0]] > 0).any() for band, p in zip(bands, places, strict=True))


def moments(profile: str, seeds: range, steps: int) -> Iterator[Moment]:
    """Every step of some seeds, applied to a real arena."""
    for seed in seeds:
        generator = Generator(seed, profile)
        effects = Effects()
        arena = generator.layout.arena(observer=effects)
        names, books = Names(), arena.books
        refused: Any = None
        for _ in range(steps):
            effects.kept = []
            in_flight = tuple(books.tickets.in_flight)
            unsettled, gate = books.tickets.unsettled, books.gate_closed
            leases = len(books.pins.pins)
            length = books.ledger.length
            lengths = {number: int(length[row]) for number, row in books.ledger.row_of.items()}
            step = generator.next()
            is_pinned = leases > 0 and holds_pinned_pages(arena, step.operation)
            outcome = arena.apply(names.resolve(step))
            names.note(step, outcome)
            generator.note(step, outcome)
            gaps = sum(stop - start for start, stop in books.chain.gaps())
            yield Moment(
                seed, generator, arena, step, outcome, effects.kept, in_flight, unsettled, leases,
                is_pinned, gate, lengths, gaps, refused,
            )  # fmt: skip
            refused = step.operation if outcome.reason in ("memory", "gate", "pins") else None


Feature = Callable[[Moment], bool]


def page(m: Moment) -> int:
    return m.arena.plan.page_size


def extends(tokens: Callable[[int], int]) -> Feature:
    return lambda m: m.is_a(ops.Extend) and page(m) > 2 and m.op.tokens == tokens(page(m))


def entry_sizes(m: Moment) -> list[int]:
    return [band.page_bytes for band in m.arena.plan.bands]


def coprime(m: Moment) -> bool:
    sizes = [size // 4 for size in entry_sizes(m)]
    return all(a % b and b % a for i, a in enumerate(sizes) for b in sizes[:i] if min(a, b) > 1)


def cached(m: Moment) -> bool:
    return m.arena.books.cache is not None


def evicted(m: Moment) -> bool:
    return any(isinstance(event, events.Eviction) for event in m.effects)


def has_cache(m: Moment, evict: str, bands: str) -> bool:
    if m.arena.books.cache is None or m.arena.books.config.evict != evict:
        return False
    windows, state = len(m.arena.plan.windows), m.arena.plan.has_state
    return {
        "a window": windows == 1 and not state, "state": state and not windows,
        "both": state and windows > 0, "several windows": windows > 1,
    }[bands]  # fmt: skip


FEATURES: dict[str, Feature] = {
    # Arenas.
    **{f"{n} bands": lambda m, n=n: len(m.arena.plan.bands) == n for n in (2, 3, 4, 5)},  # type: ignore[misc]
    **{f"pages of {n}": lambda m, n=n: page(m) == n for n in (1, 2, 4, 16, 64)},  # type: ignore[misc]
    "no state": lambda m: not m.arena.plan.has_state,
    "several windows": lambda m: len(m.arena.plan.windows) > 1,
    "a window of unstated length": lambda m: any(b.name == "window" for b in m.arena.plan.bands),
    "equal entries": lambda m: len(set(entry_sizes(m))) == 1,
    "entries that do not divide each other": coprime,
    "entries that are powers of two": lambda m: all(n.bit_count() == 1 for n in entry_sizes(m)),
    "a huge state slot": lambda m: max(entry_sizes(m)) >= 40 * min(entry_sizes(m)),
    "a boundary off the grid": lambda m: any(
        m.arena.total_bytes % size for size in entry_sizes(m)
    ),
    "one page each": lambda m: m.arena.total_bytes == least_bytes(m.arena.plan),
    "an arena of over 1,000 pages": lambda m: m.arena.books.bands[-1].capacity > 1000,
    **{
        f"barrier {b}": lambda m, b=b: m.arena.books.config.barrier == b  # type: ignore[misc]
        for b in ("fine", "coarse")
    },
    **{
        f"hand out {h}": lambda m, h=h: m.arena.books.config.hand_out == h  # type: ignore[misc]
        for h in ("zero", "poison", "none")
    },
    "no headroom": lambda m: m.arena.books.config.headroom_share == 0,
    "default headroom": lambda m: m.arena.books.config.headroom_share == 1 / 256,
    "a cap of few moves": lambda m: 0 < m.arena.books.config.max_moves < 4,
    # Sizes.
    "extend by nothing": extends(lambda page: 0),
    "extend by one token": extends(lambda page: 1),
    "extend by a page less one": extends(lambda page: page - 1),
    "extend by a page": extends(lambda page: page),
    "extend by a page and one": extends(lambda page: page + 1),
    "extend by many pages": lambda m: m.is_a(ops.Extend) and m.op.tokens > 8 * page(m),
    "extend to a page's end": lambda m: m.is_a(ops.Extend) and m.outcome.ok and m.op.tokens > 0
    and page(m) > 1 and (m.lengths[m.op.request] + m.op.tokens) % page(m) == 0,
    "exactly full": lambda m: m.generator.intent.endswith("exactly full")
    and m.outcome.ok and m.gaps < min(entry_sizes(m)),
    "a page too many": lambda m: m.generator.intent == "extend: exactly full"
    and m.outcome.reason == "memory",
    "an absurd extension": lambda m: m.is_a(ops.Extend) and m.generator.intent.endswith("absurd"),
    "an absurd reservation": lambda m: m.is_a(ops.Reserve) and m.generator.intent.endswith("absurd"),
    "an empty batch": lambda m: m.is_a(ops.Launch) and m.op.requests == (),
    "a batch of all": lambda m: m.is_a(ops.Decode) and len(m.op.requests) == len(m.lengths) > 3,
    "no state slot": lambda m: m.is_a(ops.Admit) and m.op.state_slots == 0,
    "several state slots": lambda m: m.is_a(ops.Admit) and m.op.state_slots > 1 and m.outcome.ok,
    "a reservation of one band": lambda m: m.is_a(ops.Reserve)
    and sum(n > 0 for n in m.op.demand) == 1 and m.outcome.ok,
    "a reservation of nothing": lambda m: m.is_a(ops.Reserve) and not any(m.op.demand),
    # Requests.
    "a number comes back": lambda m: m.is_a(ops.Admit) and m.outcome.ok and m.op.request < 8,
    "a huge number": lambda m: m.is_a(ops.Admit) and m.outcome.ok and m.op.request > 1 << 62,
    "over 16 requests": lambda m: len(m.lengths) > 16,
    "released while in flight": lambda m: m.is_a(ops.Release) and m.unsettled,
    "released at once": lambda m: m.generator.intent == "release: at once",
    "aborted in the middle of its prompt": lambda m: m.is_a(ops.Release) and m.op.why == "aborted"
    and m.outcome.ok and m.lengths[m.op.request] > page(m),
    "trimmed before its launch": lambda m: m.generator.intent == "trim: early",
    # Forwards.
    "several forwards in flight": lambda m: len(m.in_flight) > 2,
    "completed out of order": lambda m: m.is_a(ops.Complete) and m.outcome.ok
    and m.arena.books.tickets.completed_through < max(m.in_flight)
    and min(m.in_flight) in m.arena.books.tickets.in_flight,
    # Moves.
    "opportunistic moves": lambda m: m.moved(urgent=False),
    "opportunistic moves under launched work": lambda m: m.moved(urgent=False) and m.unsettled,
    "urgent compaction": lambda m: m.is_a(ops.Compact) and m.moved(urgent=True),
    "a demand made pages move": lambda m: not m.is_a(ops.Compact) and m.moved(),
    "moves beside pins": lambda m: m.moved() and m.leases > 0,
    "a compaction of few moves": lambda m: m.is_a(ops.Compact) and m.op.max_moves in (1, 2, 3),
    # Leases and the gate.
    **{
        f"a lease for {p}": lambda m, p=p: m.is_a(ops.Lease) and m.outcome.ok and m.op.purpose == p  # type: ignore[misc]
        for p in ("forward", "host copy", "transfer")
    },
    "a lease with a deadline": lambda m: m.is_a(ops.Lease) and m.op.deadline_ticket is not None,
    "an overdue lease": lambda m: any(lease.overdue for lease in m.arena.leases()),
    "a page leased twice": lambda m: m.is_a(ops.Lease) and any(
        (band.pin_count > 1).any() for band in m.arena.books.bands
    ),
    "a lease that outlives its request": lambda m: any(m.arena.books.pins.deferred),
    "a leased request leaves": lambda m: m.is_pinned,
    "a lease ended by whoever asks": lambda m: m.is_a(ops.EndLease) and m.outcome.ok
    and m.op.holder is None,
    "a lease with the gate closed": lambda m: m.is_a(ops.Lease) and m.outcome.ok and m.gate,
    "a release with the gate closed": lambda m: m.is_a(ops.Release) and m.outcome.ok and m.gate,
    "the gate set as it is": lambda m: m.is_a(ops.SetGate) and m.op.closed is m.gate,
    # Refusals, with something going on.
    "refused for memory": lambda m: m.outcome.reason == "memory",
    "refused because of the gate": lambda m: m.outcome.reason == "gate",
    "refused because of pins": lambda m: m.outcome.reason == "pins",
    "refused for misuse": lambda m: m.outcome.reason == "misuse",
    "a request whose extension was refused leaves": lambda m: m.is_a(ops.Release) and m.outcome.ok
    and isinstance(m.refused, ops.Extend) and m.refused.request == m.op.request,
    # Operations.
    **{
        f"{kind.__name__} done": lambda m, k=kind: m.is_a(k) and m.outcome.ok  # type: ignore[misc]
        for kind in Operation.__subclasses__()
        if kind.__name__ not in CACHE_KINDS
    },
}  # fmt: skip

# Of arenas with a prefix cache.
CACHE_FEATURES: dict[str, Feature] = {
    **{
        f"{kind} done": lambda m, k=kind: type(m.op).__name__ == k and m.outcome.ok  # type: ignore[misc]
        for kind in CACHE_KINDS
    },
    **{
        f"a cache of {evict} over {bands}": lambda m, e=evict, b=bands: has_cache(m, e, b)  # type: ignore[misc]
        for evict in ("lru", "joint_lru")
        for bands in ("a window", "state", "both", "several windows")
    },
    **{
        f"a grid of {n} pages": lambda m, n=n: m.arena.books.config.checkpoint_grid_tokens  # type: ignore[misc]
        == n * page(m)
        for n in (1, 2, 3, 4)
    },
    **{
        f"keys of {keys}": lambda m, k=keys: cached(m) and m.arena.books.config.prefix_keys == k  # type: ignore[misc]
        for keys in ("tokens", "hashes")
    },
    "a prefix found": lambda m: cached(m) and m.is_a(ops.Admit) and bool(m.outcome.value),
    "a limit in a page": lambda m: m.is_a(ops.Admit) and m.op.limit_tokens is not None
    and m.op.limit_tokens % page(m) > 0 and m.outcome.ok,
    "a limit of nothing": lambda m: m.is_a(ops.Admit) and m.op.limit_tokens == 0 and m.outcome.ok,
    "a demand evicted": lambda m: not m.is_a(ops.Evict) and evicted(m),
    "a demand evicted and moved": lambda m: not m.is_a(ops.Evict) and evicted(m) and m.moved(),
    "evicted with the gate closed": lambda m: not m.is_a(ops.Evict) and evicted(m) and m.gate,
    "a checkpoint stalled": lambda m: m.is_a(ops.Checkpoint) and m.outcome.ok and not m.outcome.value,
    "published under a lease": lambda m: m.is_a(ops.Publish) and m.outcome.ok and m.leases > 0,
    "a release publishes": lambda m: m.is_a(ops.Release) and m.outcome.ok and m.op.publish,
    "everything evicted": lambda m: m.is_a(ops.Evict) and bool(m.outcome.value)
    and not any(m.arena.books.cache.tree.cached),
}  # fmt: skip


def seeds_needed(profile: str, seeds: range, steps: int, features: dict[str, Feature]) -> dict[str, int]:
    """How many seeds it took to reach each feature; those never reached are not in it."""
    reached: dict[str, int] = {}
    for m in moments(profile, seeds, steps):
        for name in [name for name in features if name not in reached]:
            if features[name](m):
                reached[name] = m.seed - seeds.start + 1
        if len(reached) == len(features):
            break
    return reached


# --- determinism ----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_programs_in_every_process() -> None:
    """Programs, mutations and descriptions do not depend on hash order."""
    told = set()
    for hash_seed in ("0", "1", "31337"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = str(CHECKOUT / ".src")
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        told.add(result.stdout)

    assert len(told) == 1
    programs = [generate(seed, profile, 150) for profile in PROFILES for seed in (0, 1, 7)]
    programs += [mutate(programs, seed) for seed in range(12)]
    here = json.dumps([program.to_json() for program in programs]) + describe(3, "mixed")
    assert told == {hashlib.sha256(here.encode()).hexdigest() + "\n"}


@pytest.mark.parametrize("profile", PROFILES)
def test_steps_follow_from_seed_and_outcomes_alone(profile: str) -> None:
    """Told the same outcomes, a second generator asks for the same, without an arena."""
    outcomes = []
    first = generate(5, profile, 300)
    arena, names = first.layout.arena(), Names()
    for step in first.steps:
        outcomes.append(arena.apply(names.resolve(step)))
        names.note(step, outcomes[-1])
    second = Generator(5, profile)
    for step, outcome in zip(first.steps, outcomes, strict=True):
        assert second.next() == step
        second.note(step, outcome)
    assert second.layout == first.layout and second.schedule == first.schedule


def test_other_outcomes_lead_to_other_steps() -> None:
    """A generator told that everything is refused does not go on as if it had been done."""
    refused = Generator(5, "hostile")
    steps = []
    for _ in range(100):
        steps.append(refused.next())
        refused.note(steps[-1], Outcome(False, reason="memory"))
    assert {type(step.operation) for step in steps} <= {ops.Admit, ops.Compact, ops.Reserve, ops.SetGate}


def test_seeds_differ() -> None:
    """No two of these programs are the same, nor are layouts and schedules all alike."""
    programs = [generate(seed, profile, 40) for profile in PROFILES for seed in range(20)]
    assert len({json.dumps(program.to_json()) for program in programs}) == len(programs)
    assert len({program.layout for program in programs}) > 60
    kinds = {program.schedule.split(":")[0] for program in programs}
    assert kinds == {"eager", "latest", "random", "pct"}


def test_a_layout_and_a_mix_can_be_given() -> None:
    """They are used as they are; the schedule stays that of the seed."""
    layout = Layout((("mamba", 512), ("full", 256)), 4, 8192)
    given = Generator(3, "hostile", layout, requests_max=2, hot_ids=0)
    assert given.layout == layout and given.schedule == Generator(3, "hostile").schedule
    program = generate(3, "hostile", 300, layout, requests_max=2, hot_ids=0)
    running: set[int] = set()
    arena, names = layout.arena(), Names()
    for step in program.steps:
        outcome = arena.apply(names.resolve(step))
        names.note(step, outcome)
        running = set(arena.books.ledger.row_of)
        assert len(running) <= 2
        assert all(number >= 100 for number in running)
    with pytest.raises(ValueError, match="choose serving, hostile, misuse, mixed"):
        Generator(0, "friendly")


# --- what is reached ------------------------------------------------------------------------------


def test_every_feature_is_reached_within_few_seeds(record_property: Callable[..., None]) -> None:
    """Arenas, sizes, moves, leases, refusals: each is there within 120 short programs."""
    needed = seeds_needed("mixed", range(120), 250, FEATURES)
    for name, seeds in sorted(needed.items(), key=lambda item: item[1]):
        print(f"{seeds:4d}  {name}")
        record_property(name, seeds)
    assert sorted(set(FEATURES) - set(needed)) == []


def test_every_feature_of_a_cache_is_reached_within_few_seeds(
    record_property: Callable[..., None]
) -> None:
    """Bands, policies, grids, keys, limits, evictions: each is there within 80 short programs."""
    needed = seeds_needed("caching", range(80), 250, CACHE_FEATURES)
    for name, seeds in sorted(needed.items(), key=lambda item: item[1]):
        print(f"{seeds:4d}  {name}")
        record_property(name, seeds)
    assert sorted(set(CACHE_FEATURES) - set(needed)) == []


@pytest.mark.parametrize("profile", ["serving", "hostile", "caching"])
def test_legal_profiles_are_never_refused_for_misuse(profile: str) -> None:
    """Their operations are legal at every step; every other reason comes up, and the arena is well."""
    reasons = set()
    for m in moments(profile, range(50), 200):
        reasons.add(m.outcome.reason)
        meant = m.generator.intent.startswith("misuse: ")
        assert (m.outcome.reason == "misuse") == meant, (m.seed, m.step, m.outcome.message)
    assert reasons - {"misuse"} == {"", "memory", "gate", "pins"}


def test_serving_serves() -> None:
    """Most is done, requests come and go by the hundred, and finish rather than give way."""
    kinds: dict[str, int] = {}
    done = total = 0
    for m in moments("serving", range(40), 250):
        intent = m.generator.intent
        kinds[intent] = kinds.get(intent, 0) + m.outcome.ok
        done += m.outcome.ok
        total += 1
    assert done > 0.75 * total
    assert kinds["release: finished"] > 200
    assert kinds["release: finished"] > kinds["release: retracted"] > 0
    assert kinds["release: aborted"] > 0


# What the arena says to each illegal kind, and which operations it is.
REFUSED_WITH: dict[str, tuple[str, str]] = {
    "admitted twice": ("was admitted twice", "Admit"),
    "no request number": ("give a request from 0", "Admit"),
    "negative state slots": ("0 or more slots", "Admit"),
    "unknown request extended": ("is not running", "Extend"),
    "negative tokens": ("extend by 0 or more", "Extend"),
    "unknown request decoded": ("is not running", "Decode"),
    "unknown request trimmed": ("is not running", "TrimWindow"),
    "unknown request launched": ("is not running", "Launch"),
    "decoded twice in a batch": ("names one of them twice", "Decode"),
    "trimmed twice in a batch": ("names one of them twice", "TrimWindow"),
    "launched twice in a batch": ("names one of them twice", "Launch"),
    "unknown request released": ("is not running", "Release"),
    "completed twice": ("was reported complete", "Complete"),
    "unknown ticket completed": ("was reported complete", "Complete"),
    "negative max_moves": ("ask for 0 or more", "Compact"),
    "demand of a wrong length": ("for each of the bands", "Reserve"),
    "negative demand": ("give pages ≥ 0", "Reserve"),
    "unknown request leased": ("is not running", "Lease"),
    "wrong band": ("a lease named band", "Lease"),
    "range past the end": ("lease pages that are held", "Lease"),
    "empty range": ("lease pages that are held", "Lease"),
    "range that was trimmed": ("lease pages that are held", "Lease"),
    "wrong purpose": ("the purposes are", "Lease"),
    "wrong holder": ("only its holder may end it", "EndLease"),
    "lease ended twice": ("it has ended", "EndLease"),
    "unknown lease ended": ("it never began", "EndLease"),
    "key without a cache": ("without a prefix cache", "Admit"),
    "published without a cache": ("without a prefix cache", "Publish"),
    "checkpoint without a cache": ("without a prefix cache", "Checkpoint"),
    "eviction without a cache": ("without a prefix cache", "Evict"),
    "release publishes without a cache": ("without a prefix cache", "Release"),
    "limit without a cache": ("without a prefix cache", "Admit"),
    "negative limit": ("give 0 or more", "Admit"),
    "key that is none": ("not all of them are integers", "Admit"),
    "key of a release that does not publish": ("a", "Release"),
    "unknown request published": ("is not running", "Publish"),
    "unknown request checkpointed": ("is not running", "Checkpoint"),
    "unknown request released and published": ("is not running", "Release"),
    "checkpoint off the grid": ("checkpoint on the grid", "Checkpoint"),
    "checkpoint before its launch": ("checkpoint on the grid", "Checkpoint"),
    "checkpoint without a slot": ("it has no state", "Checkpoint"),
    "checkpoint beyond its key": ("continue the key", "Checkpoint"),
    "checkpoint without state": ("it has no state", "Checkpoint"),
    "negative eviction": ("give pages ≥ 0", "Evict"),
    "eviction of a wrong length": ("for each of the bands", "Evict"),
}


def test_misuse_reaches_every_illegal_kind_and_all_are_refused() -> None:
    """An illegal step is refused for misuse and changes nothing; the others never are."""
    seen: dict[str, int] = {}
    generators = [Generator(seed, "misuse") for seed in range(24)]
    options: dict[str, Any] = {"misuse": 0.4, "illegal": OF_THE_CACHE}
    generators += [Generator(seed, "caching", **options) for seed in range(24)]
    for generator in generators:
        seed = generator.seed
        arena, names = generator.layout.arena(), Names()
        for _ in range(200):
            step = generator.next()
            illegal = generator.intent.startswith("misuse: ")
            before = arena.digest() if illegal else ""
            outcome = arena.apply(names.resolve(step))
            names.note(step, outcome)
            generator.note(step, outcome)
            assert (outcome.reason == "misuse") == illegal, (seed, step, outcome.message)
            if illegal:
                kind = generator.intent.removeprefix("misuse: ")
                seen[kind] = seen.get(kind, 0) + 1
                assert arena.digest() == before
                words, kinds = REFUSED_WITH[kind]
                assert words in outcome.message and step.operation.kind in kinds, (kind, outcome)
        assert arena.check() == []
    assert set(seen) == set(ILLEGAL) == set(REFUSED_WITH)


def test_a_run_does_not_end_in_a_corner() -> None:
    """However long, requests go on entering: nothing stays full, gated or leased for ever."""
    for seed in range(6):
        for profile in ("mixed", "serving"):
            entered = [
                m.is_a(ops.Admit) and m.outcome.ok
                for m in moments(profile, range(seed, seed + 1), 1200)
            ]
            for start in (0, 400, 800):
                assert any(entered[start : start + 400]), (profile, seed, start)


def test_refusals_do_not_go_on_for_long() -> None:
    """When nothing fits any more, something goes: no run asks for the impossible again and again."""
    for seed in range(60):
        refused = 0
        program = generate(seed, "hostile", 300)
        arena, names = program.layout.arena(), Names()
        for step in program.steps:
            outcome = arena.apply(names.resolve(step))
            names.note(step, outcome)
            if not outcome:
                refused += 1
            elif step.operation.kind in ("Admit", "Extend", "Release", "EndLease", "SetGate"):
                refused = 0
            assert refused <= 24, seed


@pytest.mark.parametrize("profile", ["serving", "hostile"])
def test_windows_are_trimmed_after_the_launch(profile: str) -> None:
    """Where trimming early is off, only requests are trimmed whose last tokens were launched."""
    trims = 0
    for seed in range(30):
        generator = Generator(seed, profile, early_trim=False)
        arena, names = generator.layout.arena(), Names()
        ledger = arena.books.ledger
        for _ in range(150):
            step = generator.next()
            if isinstance(step.operation, ops.TrimWindow):
                rows = ledger.rows(step.operation.requests)
                trims += bool(ledger.length[rows].any())
                assert (ledger.launched[rows] == ledger.length[rows]).all()
            outcome = arena.apply(names.resolve(step))
            names.note(step, outcome)
            generator.note(step, outcome)
    assert trims > 100


# --- layouts --------------------------------------------------------------------------------------


def test_every_layout_can_be_built_and_is_small_enough_to_check() -> None:
    """No seed gives an arena that is refused, has the barrier off or pages that a GPU cannot move."""
    from random import Random

    for seed in range(400):
        layout = choose_layout(Random(seed))
        arena = layout.arena()  # SizingError when not
        assert layout.config.barrier != "off"
        assert all(size % 4 == 0 for _, size in layout.bands)
        assert max(band.capacity for band in arena.books.bands) <= 6200
        assert arena.total_bytes <= 1 << 26
        assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_the_least_arena_is_the_least() -> None:
    """It holds one page of each band; one unit less cannot be built."""
    from random import Random

    for seed in range(100):
        layout = choose_layout(Random(seed))
        plan = layout.plan()
        least = least_bytes(plan)
        arena = replace(layout, total_bytes=least).arena()
        assert arena.serves([1] * len(plan.bands))
        with pytest.raises(SizingError):
            replace(layout, total_bytes=least - 256).arena()


# --- what is told ---------------------------------------------------------------------------------


def test_a_seed_can_be_described() -> None:
    """In words: the arena, what is off, what is odd."""
    generator = Generator(4, "mixed")
    text = describe(4, "mixed")
    assert f"{generator.layout.total_bytes:,} B" in text
    assert generator.schedule in text
    for band, size in generator.layout.bands:
        assert f"{band} {size:,} B" in text
    assert not generator.notes.cached and "prefixes:" not in text
    assert "prefixes:" in describe(4, "caching")
    off = next(line for line in text.splitlines() if line.startswith("off:"))
    on = next(line for line in text.splitlines() if line.startswith("on:"))
    for kind in [kind for kind in KINDS if kind not in CACHE_KINDS]:
        weight = generator.mix.weight(kind)
        assert (kind in off.split(":")[1].replace(",", "").split()) == (weight == 0)
        assert (f"{kind} {weight}" in on) == (weight > 0)


def test_a_generated_program_is_a_file() -> None:
    """It survives JSON, and names each ticket and lease once."""
    for profile in PROFILES:
        program = generate(2, profile, 200)
        assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program
        made = [(type(step.operation), step.name) for step in program.steps if step.name is not None]
        assert len(set(made)) == len(made) > 0
