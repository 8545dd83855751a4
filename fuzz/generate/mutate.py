"""New programs from old ones: cut, repeated, reordered, resized, spliced, on another arena.

Whatever comes out is a program that can be run: its layout can be built, and no two steps give their
ticket or lease the same name. That it may ask for what is not there is the point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bandscope.allocator import operations as ops
from bandscope.allocator.operations import Operation
from bandscope.fuzz.generate.cached_layouts import fitted, same_cache, with_cache
from bandscope.fuzz.generate.generator import choose_schedule
from bandscope.fuzz.generate.layouts import PRIMES, WORD_BYTES, buildable, choose_config
from bandscope.fuzz.program import Layout, Program, Step

OPERATIONS_MAX = 2000
SIZE_MAX = 1 << 40
_TRIES = 8  # a change may happen to change nothing


@dataclass
class _Draft:
    layout: Layout
    steps: list[Step]
    schedule: str
    page: int  # tokens per page, for sizes at its boundary


def mutate(
    programs: Sequence[Program], seed: int, *, operations_max: int = OPERATIONS_MAX
) -> Program:
    """A program made from one of `programs`, and maybe a second one, by one to four changes; of at most
    `operations_max` steps. The same programs and seed give the same result.

    Raises `ValueError` when there is no program to begin with.
    """
    if not programs:
        raise ValueError("no program was given to mutate; generate one first")
    random = Random(f"mutate/{seed}")
    for _ in range(_TRIES):
        parent = programs[random.randrange(len(programs))]
        program = _changed(random, parent, programs, operations_max)
        if program != parent:
            break
    return program


def _changed(
    random: Random, parent: Program, programs: Sequence[Program], operations_max: int
) -> Program:
    draft = _Draft(parent.layout, list(parent.steps), parent.schedule, parent.layout.page_size)
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        change = random.choices(_CHANGES, _WEIGHTS)[0]
        if change is _splice:
            other = programs[random.randrange(len(programs))]
            _splice(random, draft, other)
        elif draft.steps or change is _relayout:
            change(random, draft)
    steps = tuple(_named_once(draft.steps[:operations_max]))
    return Program(draft.layout, steps, draft.schedule, parent.seed, parent.profile)


# --- changes to the list of steps -----------------------------------------------------------------


def _stretch(random: Random, length: int) -> tuple[int, int]:
    """A stretch of steps, short ones more often."""
    bits = random.randrange(length.bit_length())
    size = random.randrange(1 << bits, min(length, (2 << bits) - 1) + 1)
    start = random.randrange(length - size + 1)
    return start, start + size


def _cut(random: Random, draft: _Draft) -> None:
    start, stop = _stretch(random, len(draft.steps))
    del draft.steps[start:stop]


def _thin(random: Random, draft: _Draft) -> None:
    """Every operation of one kind, or a share of all, is left out."""
    if random.random() < 0.3:
        gone = type(random.choice(draft.steps).operation)
        draft.steps = [step for step in draft.steps if type(step.operation) is not gone]
    else:
        share = random.choice((0.05, 0.2, 0.5))
        draft.steps = [step for step in draft.steps if random.random() >= share]


def _repeat(random: Random, draft: _Draft) -> None:
    """A stretch comes again, right after itself or somewhere else."""
    start, stop = _stretch(random, len(draft.steps))
    at = stop if random.random() < 0.5 else random.randrange(len(draft.steps) + 1)
    draft.steps[at:at] = draft.steps[start:stop] * random.choice((1, 1, 2, 5))


def _reorder(random: Random, draft: _Draft) -> None:
    """A stretch moves, turns round or is shuffled."""
    start, stop = _stretch(random, len(draft.steps))
    part = draft.steps[start:stop]
    roll = random.random()
    if roll < 0.4:
        del draft.steps[start:stop]
        at = random.randrange(len(draft.steps) + 1)
        draft.steps[at:at] = part
        return
    if roll < 0.6:
        part.reverse()
    else:
        random.shuffle(part)
    draft.steps[start:stop] = part


def _splice(random: Random, draft: _Draft, other: Program) -> None:
    """A stretch of another program goes in, or takes the place of the rest. Its requests keep their
    numbers, so they may meet those that run, or are moved out of the way."""
    if not other.steps:
        return
    start, stop = _stretch(random, len(other.steps))
    if random.random() < 0.3:
        start = 0
    shift_names = 1 + max((abs(name) for name in _names(draft.steps)), default=0)
    shift_requests = random.choice((0, 0, 1, 1 << 20))
    part = [
        _refit(_shifted(step, shift_names, shift_requests), other.layout, draft.layout)
        for step in other.steps[start:stop]
    ]
    at = random.randrange(len(draft.steps) + 1)
    if random.random() < 0.5:
        draft.steps[at:] = part
    else:
        draft.steps[at:at] = part


def _resize(random: Random, draft: _Draft) -> None:
    """Numbers of some steps become others, mostly at a boundary."""
    for _ in range(random.choice((1, 1, 3, 10))):
        at = random.randrange(len(draft.steps))
        step = draft.steps[at]
        operation = _resized(random, step.operation, draft.page)
        draft.steps[at] = dataclasses.replace(step, operation=operation)


def _merge(random: Random, draft: _Draft) -> None:
    """One request takes the number of another, everywhere or from some step on."""
    numbers = sorted({number for step in draft.steps for number in requests_of(step.operation)})
    if len(numbers) < 2:
        return
    gone, stays = random.sample(numbers, 2)
    start = 0 if random.random() < 0.5 else random.randrange(len(draft.steps))
    for at in range(start, len(draft.steps)):
        draft.steps[at] = _renumbered(draft.steps[at], {gone: stays})


def _reschedule(random: Random, draft: _Draft) -> None:
    draft.schedule = choose_schedule(random)


# --- changes to the arena -------------------------------------------------------------------------


def _relayout(random: Random, draft: _Draft) -> None:
    """Another size, page, policy, window or number of bands; the steps follow where they can."""
    old = draft.layout
    bands, page_size = list(old.bands), old.page_size
    total_bytes, config = old.total_bytes, old.config
    at = random.randrange(len(bands))
    name, page_bytes = bands[at]
    changes = ["total", "total", "page bytes", "page size", "config", "window", "band"]
    if config.prefix_cache:
        changes += ["cache", "cache"]
    match random.choice(changes):
        case "total":
            largest = max(size for _, size in bands)
            total_bytes += random.choice((-256, 256, -page_bytes, page_bytes, -largest, largest))
            total_bytes = int(total_bytes * random.choice((1, 1, 1, 0.5, 2)))
        case "page bytes":
            step = WORD_BYTES * (1 if name == "mamba" else page_size)
            units = random.choice((1, 2, 8, *PRIMES, page_bytes // step + 1, page_bytes // step - 1))
            bands[at] = (name, step * max(1, units))
        case "page size":
            chosen = random.choice((1, 2, 4, 16, 64))
            bands = [
                (n, size if n == "mamba" else max(1, size // page_size) * chosen) for n, size in bands
            ]
            page_size = chosen
        case "config":
            config = same_cache(choose_config(random), config)
        case "cache":
            config = with_cache(random, config, page_size)
            if config.prefix_keys != old.config.prefix_keys and random.random() < 0.8:
                config = dataclasses.replace(config, prefix_keys=old.config.prefix_keys)
        case "window":
            taken = {n for n, _ in bands}
            fresh = random.choice(("window", *(f"window_{n}" for n in (1, page_size, 3 * page_size, 7))))
            windows = [index for index, (n, _) in enumerate(bands) if n.startswith("window")]
            if windows and fresh not in taken:
                at = random.choice(windows)
                bands[at] = (fresh, bands[at][1])
        case "band":
            spare = [n for n in ("mamba", f"window_{2 * page_size}", "window") if n not in dict(bands)]
            if len(bands) > 2 and name != "full" and random.random() < 0.5:
                del bands[at]
            elif len(bands) < 5 and spare:
                size = WORD_BYTES * page_size * random.choice(PRIMES)
                bands.append((random.choice(spare), size))
    draft.layout = buildable(fitted(Layout(tuple(bands), page_size, total_bytes, config)))
    draft.page = page_size
    draft.steps = [_refit(step, old, draft.layout) for step in draft.steps]


# --- changes to keys ------------------------------------------------------------------------------


def _rekey(random: Random, draft: _Draft) -> None:
    """One admission begins as another does; or a key is cut, lengthened or changed in one place."""
    keyed = [at for at, step in enumerate(draft.steps) if getattr(step.operation, "key", ())]
    if not keyed:
        _resize(random, draft)
        return
    for _ in range(random.choice((1, 1, 3, 10))):
        at = random.choice(keyed)
        step = draft.steps[at]
        operation: Any = step.operation
        key = operation.key
        if random.random() < 0.4:
            other: Any = draft.steps[random.choice(keyed)].operation
            cut = random.randrange(len(other.key) + 1)
            key = other.key[:cut] + key[cut:]
        else:
            key = _changed_key(random, key)
        draft.steps[at] = dataclasses.replace(step, operation=dataclasses.replace(operation, key=key))


def _changed_key(random: Random, key: tuple[int, ...]) -> tuple[int, ...]:
    cut = random.randrange(len(key) + 1)
    match random.randrange(4):
        case 0:
            return key[:cut]
        case 1:
            return key + tuple(random.randrange(2) for _ in range(random.choice((1, 2, 4))))
        case 2:
            return key[:cut] + key[cut + 1 :]
    return (*key[:cut], random.randrange(2), *key[cut + 1 :])


_CHANGES: tuple[Callable[..., None], ...] = (
    _cut, _thin, _repeat, _reorder, _splice, _resize, _merge, _reschedule, _relayout, _rekey,
)  # fmt: skip
_WEIGHTS = (3, 1, 4, 4, 5, 6, 2, 1, 3, 5)


# --- steps that change ----------------------------------------------------------------------------


def _resized(random: Random, operation: Operation, page: int) -> Operation:
    def size(value: int) -> int:
        chosen = random.choice(
            (0, 1, value - 1, value + 1, 2 * value, value // 2, page, page - 1, page + 1, 3 * page)
        )
        return min(SIZE_MAX, max(0, chosen))

    match operation:
        case ops.Extend():
            return dataclasses.replace(operation, tokens=size(operation.tokens))
        case ops.Admit():
            if operation.key and random.random() < 0.5:
                limit = None if random.random() < 0.4 else size(operation.limit_tokens or page)
                return dataclasses.replace(operation, limit_tokens=limit)
            return dataclasses.replace(operation, state_slots=min(64, size(operation.state_slots)))
        case ops.Release() if operation.publish:
            return dataclasses.replace(operation, publish=False, key=())
        case ops.Evict() if operation.pages:
            pages = list(operation.pages)
            at = random.randrange(len(pages))
            pages[at] = size(pages[at])
            return ops.Evict(tuple(pages))
        case ops.Decode() | ops.TrimWindow() | ops.Launch() if operation.requests:
            kept = operation.requests
            return dataclasses.replace(operation, requests=kept[: random.randrange(len(kept) + 1)])
        case ops.Compact():
            moves = None if random.random() < 0.3 else size(operation.max_moves or 0)
            return ops.Compact(random.random() < 0.5, moves)
        case ops.Reserve() if operation.demand:
            demand = list(operation.demand)
            at = random.randrange(len(demand))
            demand[at] = size(demand[at])
            return ops.Reserve(tuple(demand))
        case ops.Lease():
            first = size(operation.first_page)
            stop = max(first + 1, size(operation.stop_page))
            return dataclasses.replace(operation, first_page=first, stop_page=stop)
        case ops.SetGate():
            return ops.SetGate(not operation.closed)
    return operation


def requests_of(operation: Operation) -> tuple[int, ...]:
    """The requests that an operation names."""
    match operation:
        case (
            ops.Admit() | ops.Extend() | ops.Release() | ops.Lease() | ops.Publish() | ops.Checkpoint()
        ):
            return (operation.request,)
        case ops.Decode() | ops.TrimWindow() | ops.Launch():
            return operation.requests
    return ()


def _renumbered(step: Step, becomes: dict[int, int]) -> Step:
    operation = step.operation
    named = requests_of(operation)
    if not any(number in becomes for number in named):
        return step
    numbers = [becomes.get(number, number) for number in named]
    match operation:
        case ops.Decode() | ops.TrimWindow() | ops.Launch():
            operation = dataclasses.replace(operation, requests=tuple(dict.fromkeys(numbers)))
        case (
            ops.Admit() | ops.Extend() | ops.Release() | ops.Lease() | ops.Publish() | ops.Checkpoint()
        ):
            operation = dataclasses.replace(operation, request=numbers[0])
    return dataclasses.replace(step, operation=operation)


def _shifted(step: Step, names: int, requests: int) -> Step:
    """A step of another program: its names, and maybe its requests, moved out of the way."""
    if requests:
        step = _renumbered(step, {n: n + requests for n in requests_of(step.operation) if n < 1 << 40})
    operation = step.operation
    match operation:
        case ops.Complete():
            operation = ops.Complete(operation.ticket + names)
        case ops.EndLease():
            operation = dataclasses.replace(operation, lease=operation.lease + names)
        case ops.Lease(deadline_ticket=int() as name):
            operation = dataclasses.replace(operation, deadline_ticket=name + names)
    return Step(operation, None if step.name is None else step.name + names)


def _refit(step: Step, old: Layout, new: Layout) -> Step:
    """A step for an arena with other bands: leases and demands go to the band at the same place in the
    chain. Where there is no prefix cache, keys are left out."""
    operation = step.operation
    if old.config.prefix_cache and not new.config.prefix_cache:
        match operation:
            case ops.Admit():
                plain = dataclasses.replace(operation, key=(), limit_tokens=None)
                return dataclasses.replace(step, operation=plain)
            case ops.Release():
                return dataclasses.replace(step, operation=ops.Release(operation.request, operation.why))
    if old.bands == new.bands:
        return step
    if isinstance(operation, ops.Lease):
        before = [band.name for band in old.plan().bands]
        after = [band.name for band in new.plan().bands]
        if operation.band in before and operation.band not in after:
            band = after[min(before.index(operation.band), len(after) - 1)]
            return dataclasses.replace(step, operation=dataclasses.replace(operation, band=band))
    elif isinstance(operation, ops.Reserve) and len(operation.demand) == len(old.bands):
        demand = (operation.demand + (0,) * len(new.bands))[: len(new.bands)]
        return Step(ops.Reserve(demand))
    elif isinstance(operation, ops.Evict) and len(operation.pages) == len(old.bands):
        return Step(ops.Evict((operation.pages + (0,) * len(new.bands))[: len(new.bands)]))
    return step


def _names(steps: Sequence[Step]) -> list[int]:
    names = [step.name for step in steps if step.name is not None]
    for step in steps:
        match step.operation:
            case ops.Complete(ticket=name) | ops.EndLease(lease=name):
                names.append(name)
            case ops.Lease(deadline_ticket=int() as name):
                names.append(name)
    return names


def _named_once(steps: Sequence[Step]) -> list[Step]:
    """Steps that make a name which an earlier one made get a new one."""
    fresh = 1 + max((abs(name) for name in _names(steps)), default=0)
    seen: set[tuple[type, int]] = set()
    result = []
    for step in steps:
        if step.name is not None:
            if (type(step.operation), step.name) in seen:
                step = dataclasses.replace(step, name=fresh)
                fresh += 1
            seen.add((type(step.operation), step.name or 0))
        result.append(step)
    return result
