"""The arenas that are searched, by name: small ones in every test run, larger ones at night."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bandscope.allocator.arena import ArenaConfig
from bandscope.fuzz.exhaustive.alphabet import Alphabet
from bandscope.fuzz.exhaustive.cached_alphabet import CacheAlphabet
from bandscope.fuzz.exhaustive.cached_search import explore_cached
from bandscope.fuzz.exhaustive.report import Report
from bandscope.fuzz.exhaustive.search import Progress, explore
from bandscope.fuzz.program import Layout

# Bytes of one unit, that to which an arena's size is rounded: so sizes in units are exact.
UNIT = 256


@dataclass(frozen=True)
class SmallArena:
    """One search: an arena, what is asked of it, and how far it goes (`depth`, None: to the end;
    `states_max`: how many states are met before it stops). `nightly`: too long for a test run."""

    layout: Layout
    alphabet: Alphabet | CacheAlphabet
    depth: int | None = None
    states_max: int | None = None
    nightly: bool = False
    drain_every: int = 8
    repeat_every: int = 4


def small(
    *bands: tuple[str, int], units: int, page_size: int = 1, barrier: str = "fine"
) -> Layout:
    """A layout of bands with pages of so many units, over `units` beside the sink. Without headroom, so
    that moves are exactly what a demand needs, and with compaction wherever there is a hole."""
    sizes = tuple((name, pages * UNIT) for name, pages in bands)
    sink = max(size for _, size in sizes)
    config = ArenaConfig(
        headroom_share=0.0, compact_hole_share=0.0, compact_gap_share=1.0, barrier=barrier
    )
    return Layout(sizes, page_size, sink + units * UNIT, config)


def cached(
    *bands: tuple[str, int], units: int, page_size: int = 1, grid: int = 0, evict: str = "lru"
) -> Layout:
    """A small layout with a prefix cache; `grid`: tokens between checkpoints."""
    layout = small(*bands, units=units, page_size=page_size)
    config = replace(
        layout.config, prefix_cache=True, checkpoint_grid_tokens=grid, evict=evict
    )
    return replace(layout, config=config)


def wide(layout: Layout, alphabet: Alphabet, depth: int | None = None) -> SmallArena:
    """A search of a night: so many states that fewer of them are drained and repeated."""
    return SmallArena(layout, alphabet, depth, nightly=True, drain_every=64, repeat_every=16)


TWO = (("mamba", 2), ("full", 1))
PAGED = (("window_2", 1), ("full", 2))
THREE = (("mamba", 2), ("window_2", 1), ("full", 2))
# No page size divides a neighbour's.
ODD = (("mamba", 3), ("window_2", 2), ("full", 5))
FOUR = (("mamba", 2), ("window_4", 2), ("window_2", 1), ("full", 1))

ARENAS: dict[str, SmallArena] = {
    # A few thousand states, in every test run.
    "two": SmallArena(small(*TWO, units=6), Alphabet(launches=1, gate=True)),
    "paged": SmallArena(
        small(*PAGED, units=8, page_size=2),
        Alphabet(tokens=(1, 3), launches=2, leases=1),
        depth=5,
    ),
    "three": SmallArena(
        small(*THREE, units=8),
        Alphabet(tokens=(1, 2), launches=2, leases=1, gate=True, compact=("urgent", "capped")),
        depth=5,
    ),
    "four": SmallArena(
        small(*FOUR, units=10),
        Alphabet(state_slots=(0, 1), tokens=(1, 3), launches=1, leases=1),
        depth=5,
    ),
    # Few operations, so that longer sequences are reached.
    "deep": SmallArena(
        small(*THREE, units=12),
        Alphabet(
            state_slots=(0,), tokens=(2,), decode=False, launches=2, compact=("urgent", "capped")
        ),
        depth=8,
    ),
    "tickets": SmallArena(
        small(*TWO, units=8),
        Alphabet(requests=1, launches=3, decode=False, compact=("opportunistic",)),
        depth=8,
    ),
    "slots": SmallArena(
        small(*TWO, units=9),
        Alphabet(
            state_slots=(2,), launches=1, leases=2, leased=("mamba",), compact=("opportunistic",)
        ),
        depth=5,
    ),
    "pins": SmallArena(
        small(*TWO, units=7),
        Alphabet(
            requests=2, state_slots=(0,), tokens=(2,), decode=False, launches=0, leases=2,
            leased=("full",), gate=True, compact=(),
        ),
        depth=7,
    ),
    "coarse": SmallArena(
        small(*THREE, units=8, barrier="coarse"),
        Alphabet(launches=2, decode=False, compact=()),
        depth=6,
    ),
    "odd": SmallArena(
        small(*ODD, units=26),
        Alphabet(launches=0, leases=2, decode=False, compact=("urgent",)),
        depth=6,
    ),
    # A night.
    "two-closed": SmallArena(
        small(*TWO, units=7),
        Alphabet(launches=1, leases=1, gate=True),
        nightly=True,
    ),
    "two-wide": wide(
        small(*TWO, units=10),
        Alphabet(requests=3, tokens=(1, 3), launches=2, leases=1),
        depth=8,
    ),
    "three-wide": wide(
        small(*THREE, units=14),
        Alphabet(requests=3, tokens=(1, 2), launches=2, leases=1),
        depth=8,
    ),
    "odd-wide": wide(
        small(*ODD, units=23),
        Alphabet(tokens=(1, 2), launches=1, leases=1, gate=True),
        depth=27,
    ),
    "four-wide": wide(
        small(*FOUR, units=16),
        Alphabet(requests=3, tokens=(1, 2), launches=2, leases=1),
        depth=8,
    ),
    "coarse-wide": wide(
        small(*THREE, units=10, barrier="coarse"),
        Alphabet(tokens=(1, 2), launches=2),
    ),
}

# With a prefix cache: where sharing, publishing and evicting meet.
ARENAS |= {
    "shared": SmallArena(
        cached(("window_2", 2), ("full", 1), units=9),
        CacheAlphabet(tokens=(1, 2), leases=1, evict=((1, 1),)),
        depth=6,
    ),
    "checkpoints": SmallArena(
        cached(("mamba", 3), ("full", 1), units=9, grid=1),
        CacheAlphabet(tokens=(1, 2), evict=((1, 0),)),
        depth=6,
    ),
    # Two that compute the same, and what the cache lost of it.
    "twins": SmallArena(
        cached(("window_2", 1), ("full", 1), units=7),
        CacheAlphabet(letters=1, tokens=(1, 2), at_once=True, leases=1, evict=((1, 0),)),
        depth=7,
    ),
    "twin-states": SmallArena(
        cached(("mamba", 2), ("full", 1), units=10, page_size=2, grid=2),
        CacheAlphabet(letters=1, slots=(0, 2), tokens=(2, 3), at_once=True, limits=(None, 3)),
        depth=6,
    ),
    "shared-wide": SmallArena(
        cached(("window_3", 1), ("full", 2), units=13, page_size=2, evict="joint_lru"),
        CacheAlphabet(pages=3, tokens=(2, 3), limits=(None, 3), leases=1, gate=True,
                      evict=((1, 0), (0, 1)), compact=True),
        states_max=60_000,
        nightly=True,
    ),
    "checkpoints-wide": SmallArena(
        cached(("mamba", 3), ("window_2", 1), ("full", 2), units=17, page_size=1, grid=2),
        CacheAlphabet(pages=3, slots=(0, 1), tokens=(1, 2), leases=1, gate=True,
                      evict=((1, 0, 0), (0, 1, 1))),
        states_max=60_000,
        nightly=True,
    ),
}

# The same few operations as in a test run, in much longer sequences.
ARENAS |= {
    f"{name}-long": replace(ARENAS[name], depth=depth, nightly=True)
    for name, depth in (("deep", 30), ("tickets", 40))
}


def explore_named(
    name: str,
    *,
    depth: int | None = None,
    states_max: int | None = None,
    progress: Progress | None = None,
    findings_max: int = 5,
) -> Report:
    """Search one of `ARENAS` as far as it goes, or to another depth or number of states."""
    arena = ARENAS[name]
    if isinstance(arena.alphabet, CacheAlphabet):
        return explore_cached(
            arena.layout,
            arena.alphabet,
            depth=depth or arena.depth,
            states_max=states_max or (None if depth else arena.states_max),
            progress=progress,
            name=name,
            findings_max=findings_max,
            drain_every=arena.drain_every,
            probe_all=arena.nightly,
        )
    return explore(
        arena.layout,
        arena.alphabet,
        depth=depth or arena.depth,
        states_max=states_max or (None if depth else arena.states_max),
        progress=progress,
        name=name,
        drain_every=arena.drain_every,
        repeat_every=arena.repeat_every,
        findings_max=findings_max,
    )
