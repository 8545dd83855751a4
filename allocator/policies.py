"""Policies of an arena: what it may decide by itself, fixed when it is built."""

from __future__ import annotations

from dataclasses import dataclass

from bandscope.allocator.prefix_nodes import KEYS, POLICIES

HAND_OUT = ("zero", "poison", "none")
BARRIERS = ("fine", "coarse", "off")


@dataclass(frozen=True)
class ArenaConfig:
    """Policies of an arena.

    `max_moves`: page moves per band of one opportunistic compaction pass. A band is compacted
    opportunistically when at least `compact_hole_share` of its extent is holes and the free bytes
    it faces are at most `compact_gap_share` of the arena: with room to spare, moves buy nothing.
    `headroom_share`: when pages must move for a demand, room for this share of the arena more is
    made at once, where it fits, so that the next demands need no move (0: the exact demand only).
    `hand_out` and `hand_out_state`: what happens to the bytes of a page before its new owner gets
    it (`zero`, `poison`, `none`). `barrier`: what the scheduler's table writes wait for: the
    forward's table reads (`fine`), all of it (`coarse`), or nothing (`off`: wrong on purpose, for
    experiments that must see the race; every publish says so to the observer). `debug`: a
    translation of an unmapped token is refused (which waits for the device) instead of counted.

    `prefix_cache`: keep computed prefixes for requests to come. `evict`: the order in which cached
    pages go, `lru` or `joint_lru`. `checkpoint_grid_tokens`: where states may be kept, a multiple of
    the page size; must be given for a model with state. `prefix_keys`: what names a page in a key, one
    of `hashes` or as many `tokens` as it holds.
    """

    max_moves: int = 4096
    compact_hole_share: float = 0.125
    compact_gap_share: float = 0.125
    headroom_share: float = 1 / 256
    hand_out: str = "zero"
    hand_out_state: str = "zero"
    barrier: str = "fine"
    debug: bool = False
    prefix_cache: bool = False
    evict: str = "lru"
    checkpoint_grid_tokens: int = 0
    prefix_keys: str = "hashes"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("hand_out", self.hand_out, HAND_OUT),
            ("hand_out_state", self.hand_out_state, HAND_OUT),
            ("barrier", self.barrier, BARRIERS),
            ("evict", self.evict, POLICIES),
            ("prefix_keys", self.prefix_keys, KEYS),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        for name in ("max_moves", "compact_hole_share", "compact_gap_share", "headroom_share"):
            value = getattr(self, name)
            if value < 0 or (name != "max_moves" and value > 1):
                raise ValueError(f"{name} is {value}; shares lie from 0 to 1, moves from 0 up")
