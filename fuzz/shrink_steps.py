"""Simpler steps and layouts: the candidates that the shrinker tries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import ArenaConfig
from bandscope.fuzz.generate.cached_layouts import fitted, same_cache
from bandscope.fuzz.program import Layout, Program, Step


def requests_of(step: Step) -> tuple[int, ...]:
    """The requests that a step names."""
    operation = step.operation
    if hasattr(operation, "requests"):
        return tuple(operation.requests)
    return (operation.request,) if hasattr(operation, "request") else ()


def without(step: Step, request: int) -> list[Step]:
    """The step with no word of `request`; nothing when nothing is left."""
    named = requests_of(step)
    if request not in named:
        return [step]
    if not hasattr(step.operation, "requests"):
        return []
    rest = tuple(name for name in named if name != request)
    return [_with(step, requests=rest)] if rest else []


def _with(step: Step, **fields: object) -> Step:
    return Step(dataclasses.replace(step.operation, **fields), step.name)  # type: ignore[arg-type]


def key_of(step: Step) -> tuple[int, ...]:
    """The key that a step names, empty where it names none."""
    key: tuple[int, ...] = getattr(step.operation, "key", ())
    return key


def with_key(step: Step, key: tuple[int, ...]) -> Step:
    """The step with another key."""
    return step if key == key_of(step) else _with(step, key=key)


def renamed(step: Step, requests: dict[int, int]) -> Step:
    """The step with the requests numbered anew."""
    operation = step.operation
    if hasattr(operation, "requests"):
        return _with(step, requests=tuple(requests[name] for name in operation.requests))
    if hasattr(operation, "request"):
        return _with(step, request=requests[operation.request])
    return step


def smaller_batches(step: Step) -> Iterator[Step]:
    """With a half of the batch, or without one of it."""
    requests = getattr(step.operation, "requests", ())
    if len(requests) < 2:
        return
    half = len(requests) // 2
    yield _with(step, requests=requests[:half])
    yield _with(step, requests=requests[half:])
    for left_out in range(len(requests)):
        yield _with(step, requests=requests[:left_out] + requests[left_out + 1 :])


def lower_numbers(step: Step, page: int) -> Iterator[Step]:
    """With one number lower, or one option left out."""
    yield from _simpler_keys(step, page)
    match step.operation:
        case ops.Release(publish=publish, why=why):
            if publish:
                yield _with(step, publish=False, key=())
            if why != "finished":
                yield _with(step, why="finished")
        case ops.Evict(pages=pages):
            for index, count in enumerate(pages):
                for fewer in _lower(count, 1):
                    yield _with(step, pages=(*pages[:index], fewer, *pages[index + 1 :]))
        case ops.Extend(tokens=count):
            for fewer in _lower(count, page):
                yield _with(step, tokens=fewer)
        case ops.Admit(state_slots=count, limit_tokens=limit):
            if limit is not None:
                yield _with(step, limit_tokens=None)
                for fewer in _lower(limit, page):
                    yield _with(step, limit_tokens=fewer)
            for fewer in _lower(count, 1):
                yield _with(step, state_slots=fewer)
        case ops.Reserve(demand=demand):
            for index, count in enumerate(demand):
                for fewer in _lower(count, 1):
                    yield _with(step, demand=(*demand[:index], fewer, *demand[index + 1 :]))
        case ops.Lease(first_page=first, stop_page=stop, deadline_ticket=deadline):
            if deadline is not None:
                yield _with(step, deadline_ticket=None)
            if stop - first > 1:
                yield _with(step, stop_page=first + 1)
                yield _with(step, first_page=stop - 1)
        case ops.Compact(urgent=urgent, max_moves=cap):
            if urgent and cap is not None:
                yield _with(step, max_moves=None)
            if not urgent and cap is not None:
                yield _with(step, max_moves=None)
                for fewer in _lower(cap, 1):
                    yield _with(step, max_moves=fewer)


def _simpler_keys(step: Step, page: int) -> Iterator[Step]:
    """Without its key, with a shorter one, with smaller letters."""
    key = key_of(step)
    if not key:
        return
    for fewer in _lower(len(key), page):
        yield _with(step, key=key[:fewer])
    if any(key):
        yield _with(step, key=(0,) * len(key))
        for at, letter in enumerate(key):
            if letter:
                yield _with(step, key=(*key[:at], 0, *key[at + 1 :]))


def _lower(count: int, page: int) -> Iterator[int]:
    """Smaller numbers, the smallest first, whole pages before others."""
    seen = {count}
    for fewer in (0, 1, page, count // 2 // page * page, count // 2, count - page, count - 1):
        if 0 <= fewer < count and fewer not in seen:
            seen.add(fewer)
            yield fewer


def simpler_layouts(program: Program) -> Iterator[Layout]:
    """Layouts with a band fewer, plain policies, smaller pages, a smaller arena."""
    layout = program.layout
    used = {
        step.operation.band for step in program.steps if isinstance(step.operation, ops.Lease)
    }
    widths = {
        len(step.operation.demand)
        for step in program.steps
        if isinstance(step.operation, ops.Reserve)
    } | {
        len(step.operation.pages) for step in program.steps if isinstance(step.operation, ops.Evict)
    }
    for index, (name, _) in enumerate(layout.bands):
        if len(layout.bands) > 2 and name != "full" and name not in used and not widths:
            rest = layout.bands[:index] + layout.bands[index + 1 :]
            yield fitted(dataclasses.replace(layout, bands=rest))
    default = ArenaConfig()
    if layout.config != default:
        yield dataclasses.replace(layout, config=default)
        for item in dataclasses.fields(ArenaConfig):
            plain = getattr(default, item.name)
            if getattr(layout.config, item.name) != plain:
                config = dataclasses.replace(layout.config, **{item.name: plain})
                yield fitted(dataclasses.replace(layout, config=config))
        if layout.config.checkpoint_grid_tokens > layout.page_size:
            yield dataclasses.replace(
                layout,
                config=dataclasses.replace(
                    layout.config, checkpoint_grid_tokens=layout.page_size
                ),
            )
        if layout.config.prefix_cache:  # the other policies are plain, the cache stays
            plain_config = same_cache(default, layout.config)
            if plain_config != layout.config:
                yield dataclasses.replace(layout, config=plain_config)
    total = layout.total_bytes
    for smaller in (total // 2, total * 3 // 4, total * 7 // 8, total * 15 // 16, total - 256):
        if 0 < smaller < total:
            yield dataclasses.replace(layout, total_bytes=smaller // 256 * 256)
    if layout.page_size > 1:
        bands = tuple(
            (name, size if name == "mamba" else max(1, size // layout.page_size))
            for name, size in layout.bands
        )
        yield dataclasses.replace(layout, page_size=1, bands=bands)
        yield dataclasses.replace(layout, page_size=1)


def in_pages_of_one(program: Program) -> Program:
    """The program with a token for each page: all numbers of tokens are divided by the page size, and
    windows reach as many pages as before."""
    layout = program.layout
    page = layout.page_size

    def name_of(name: str) -> str:
        if not name.startswith("window_"):
            return name
        return f"window_{-(-(int(name.removeprefix('window_')) - 1) // page) + 1}"

    bands = tuple(
        (name_of(name), size if name == "mamba" else max(1, size // page))
        for name, size in layout.bands
    )
    if len(dict(bands)) < len(bands):
        return program
    config = dataclasses.replace(
        layout.config,
        checkpoint_grid_tokens=layout.config.checkpoint_grid_tokens // page,
        prefix_keys="hashes",
    )
    unit = page if layout.config.prefix_keys == "tokens" else 1

    def scaled(step: Step) -> Step:
        step = with_key(step, key_of(step)[::unit])
        match step.operation:
            case ops.Extend(tokens=tokens):
                return _with(step, tokens=-(-tokens // page))
            case ops.Admit(limit_tokens=int() as limit):
                return _with(step, limit_tokens=limit // page)
            case ops.Lease(band=band):
                return _with(step, band=name_of(band))
        return step

    return dataclasses.replace(
        program,
        layout=dataclasses.replace(layout, page_size=1, bands=bands, config=config),
        steps=tuple(scaled(step) for step in program.steps),
    )
