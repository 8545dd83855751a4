"""Arenas to fuzz: chains, page grids and sizes at which allocators go wrong, most of them small.

Every layout can be built. Pages are multiples of 4 bytes, which is what the kernels of a GPU move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

from bandscope.allocator.arena import ArenaConfig
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.sizing import ROUND_BYTES
from bandscope.fuzz.program import Layout

PAGE_SIZES = (1, 2, 4, 16, 64)
PAGE_SIZE_WEIGHTS = (5, 4, 5, 3, 1)
WORD_BYTES = 4
PAGES_MAX = 6144  # of any band: what checks that look at whole extents can afford
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)

# How the entries of bands relate to each other.
ENTRY_STYLES = ("equal", "coprime", "powers", "mixed", "huge state")
SIZES = ("one page each", "tiny", "small", "medium", "large")
SIZE_WEIGHTS = (2, 7, 26, 9, 3)
TRIES = 64


def choose_layout(random: Random) -> Layout:
    """A random layout of 2 to 5 bands."""
    page_size = random.choices(PAGE_SIZES, PAGE_SIZE_WEIGHTS)[0]
    names = _names(random, page_size)
    style = random.choice(ENTRY_STYLES)
    unit = WORD_BYTES * random.choice((1, 1, 4, 16, 64))
    bands = tuple(
        (name, unit * entry_units(random, style, name) * (1 if name == "mamba" else page_size))
        for name in names
    )
    layout = Layout(bands, page_size, 0, choose_config(random))
    plan = layout.plan()
    size = random.choices(SIZES, SIZE_WEIGHTS)[0]
    return dataclasses.replace(layout, total_bytes=_total_bytes(random, plan, size))


def choose_config(random: Random) -> ArenaConfig:
    """Random policies; barriers are never off."""
    return ArenaConfig(
        max_moves=random.choice((4096, 4096, 64, 8, 3, 2, 1, 0)),
        compact_hole_share=random.choice((0.125, 0.0, 0.0, 0.0, 0.5)),
        compact_gap_share=random.choice((0.125, 1.0, 1.0, 1.0, 0.5, 0.0)),
        headroom_share=random.choice((1 / 256, 0.0, 0.0, 0.05)),
        hand_out=random.choice(("zero", "poison", "none")),
        hand_out_state=random.choice(("zero", "zero", "poison", "none")),
        barrier=random.choice(("fine", "coarse")),
    )


def least_bytes(plan: StoragePlan, pages: Sequence[int] | None = None) -> int:
    """The smallest arena that holds so many pages of each band (one each by default), in bytes: every
    band packed onto its own grid above the sink."""
    stop = plan.sink_bytes
    for band, count in zip(plan.bands, pages or [1] * len(plan.bands), strict=True):
        if count:
            stop = (-(-stop // band.page_bytes) + count) * band.page_bytes
    return -(-stop // ROUND_BYTES) * ROUND_BYTES


def buildable(layout: Layout) -> Layout:
    """`layout`, its size brought between the least that can be built and the most worth checking."""
    plan = layout.plan()
    most = PAGES_MAX * min(band.page_bytes for band in plan.bands)
    least = least_bytes(plan)
    return dataclasses.replace(
        layout, total_bytes=max(least, min(layout.total_bytes, max(most, least)))
    )


def _names(random: Random, page_size: int) -> list[str]:
    state = random.random() < 0.7
    most = 4 - state  # windows, beside full and state: five bands in all
    windows = random.choices(range(most + 1), (3, 6, 4, 2, 1)[: most + 1])[0]
    if not state and not windows:
        state = True
    names = ["full", *(["mamba"] if state else [])]
    lengths = [
        1, 1, 2, 2, 8, 32, max(1, page_size - 1), page_size, page_size, page_size + 1, 2 * page_size,
        3 * page_size + 1,
    ]  # fmt: skip
    found: set[str] = set()
    while len(found) < windows:
        unstated = random.random() < 0.12
        name = "window" if unstated else f"window_{random.choice(lengths)}"
        if name not in found:
            found.add(name)
            names.append(name)
    random.shuffle(names)  # a layout's bands come in any order
    return names


def entry_units(random: Random, style: str, name: str) -> int:
    """Units of bytes of an entry of this band, by how the entries of a layout relate."""
    is_state = name == "mamba"
    match style:
        case "equal":
            return 1
        case "coprime":
            return random.choice(PRIMES)
        case "powers":
            return 1 << random.randrange(3 + 3 * is_state)
        case "huge state" if is_state:
            return random.randrange(40, 300)
    return random.randrange(1, 9 + 40 * is_state)


def _total_bytes(random: Random, plan: StoragePlan, size: str) -> int:
    """Bytes of an arena for a number of pages, and a little more or less than fits exactly."""
    least = least_bytes(plan)
    if size == "one page each":
        return least + random.choice((0, 0, ROUND_BYTES))
    low, high = {"tiny": (2, 8), "small": (8, 64), "medium": (64, 512), "large": (512, 4096)}[size]
    tokens = random.randrange(low, min(high, 2 * low << random.randrange(3)) + 1)
    pages = [
        max(1, random.randrange(tokens // 2 + 1) // (1 if band.kind != "state" else 8))
        for band in plan.bands
    ]
    pages[-1] = tokens  # the full band
    total = least_bytes(plan, pages)
    page_bytes = [band.page_bytes for band in plan.bands]
    total += random.choice(
        (0, 0, -1, 1, -ROUND_BYTES, ROUND_BYTES, -min(page_bytes), max(page_bytes), 17)
    )
    most = PAGES_MAX * min(page_bytes)
    return max(least, min(total, most))
