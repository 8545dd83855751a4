"""Arenas with a prefix cache to fuzz: so small that demands evict, of every combination of bands."""

from __future__ import annotations

import dataclasses
from random import Random

from bandscope.allocator.arena import ArenaConfig
from bandscope.fuzz.generate.layouts import (
    ENTRY_STYLES,
    WORD_BYTES,
    buildable,
    choose_config,
    entry_units,
    least_bytes,
)
from bandscope.fuzz.program import Layout

PAGE_SIZES = (1, 2, 4, 16)
PAGE_SIZE_WEIGHTS = (5, 5, 5, 1)
# Beside full attention: windows of a stated length, of none, state.
BANDS = ((1, 0, 0), (1, 0, 0), (0, 0, 1), (0, 0, 1), (1, 0, 1), (1, 0, 1), (2, 0, 0), (2, 0, 1),
         (1, 1, 0), (0, 1, 0), (0, 1, 1), (3, 0, 1))  # fmt: skip
TOKENS_KEY_PAGE = 4  # keys of one integer a token only where pages are no larger


def choose_cached_layout(random: Random) -> Layout:
    """A random layout of 2 to 5 bands with a prefix cache, some pages to a few dozen in size."""
    page_size = random.choices(PAGE_SIZES, PAGE_SIZE_WEIGHTS)[0]
    windows, unstated, state = random.choice(BANDS)
    lengths = [1, 2, max(1, page_size - 1), page_size, page_size + 1, page_size + 1, 2 * page_size,
               2 * page_size + 1, 3 * page_size + 1, 6 * page_size]  # fmt: skip
    names = ["full", *["window"] * unstated, *["mamba"] * state]
    while windows:
        name = f"window_{random.choice(lengths)}"
        if name not in names:
            names.append(name)
            windows -= 1
    random.shuffle(names)
    style = random.choice(ENTRY_STYLES)
    unit = WORD_BYTES * random.choice((1, 1, 4, 16, 64))
    bands = tuple(
        (name, unit * entry_units(random, style, name) * (1 if name == "mamba" else page_size))
        for name in names
    )
    layout = Layout(bands, page_size, 0, with_cache(random, choose_config(random), page_size))
    plan = layout.plan()
    tokens = random.choice((3, 4, 6, 8, 12, 16, 24, 40))
    pages = [
        random.randrange(1, 7)
        if band.kind == "state"
        else tokens if band.kind == "full" else random.randrange(1 + tokens // 4, tokens + 1)
        for band in plan.bands
    ]
    page_bytes = [band.page_bytes for band in plan.bands]
    total = least_bytes(plan, pages) + random.choice((0, 0, -256, 256, 17, max(page_bytes)))
    return buildable(fitted(dataclasses.replace(layout, total_bytes=total)))


def with_cache(random: Random, config: ArenaConfig, page_size: int) -> ArenaConfig:
    """These policies with a prefix cache of random ones; fit it to a layout with `fitted`."""
    by_token = page_size <= TOKENS_KEY_PAGE and random.random() < 0.25
    return dataclasses.replace(
        config,
        prefix_cache=True,
        evict=random.choice(("lru", "lru", "joint_lru")),
        checkpoint_grid_tokens=page_size * random.choice((1, 1, 2, 2, 3, 4)),
        prefix_keys="tokens" if by_token else "hashes",
    )


def same_cache(config: ArenaConfig, like: ArenaConfig) -> ArenaConfig:
    """`config` with the prefix cache of another."""
    return dataclasses.replace(
        config,
        prefix_cache=like.prefix_cache,
        evict=like.evict,
        checkpoint_grid_tokens=like.checkpoint_grid_tokens,
        prefix_keys=like.prefix_keys,
    )


def fitted(layout: Layout) -> Layout:
    """The layout with a grid that its pages and bands allow: a multiple of the page where the model
    keeps state and there is a cache, none elsewhere."""
    config, page = layout.config, layout.page_size
    grid = 0
    if config.prefix_cache and layout.plan().has_state:
        grid = max(1, config.checkpoint_grid_tokens // page) * page
    if grid == config.checkpoint_grid_tokens:
        return layout
    config = dataclasses.replace(config, checkpoint_grid_tokens=grid)
    return dataclasses.replace(layout, config=config)
