"""What a prefix tree is made of: the shape of the cache, nodes, checkpoints, leases.

A node is a run of whole pages that every sequence through it shares. Its pages are virtual ids,
minted by `full`, which window bands bind too; so a page's slot per band is one id and whether that
band still keeps it. A window band keeps the tail of a node from `first[w]` on: what it evicts, it
evicts from the front, because matches need the pages right before their end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from bandscope.allocator.errors import ConfigError
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.tables import Pages

KEYS = ("tokens", "hashes")
POLICIES = ("lru", "joint_lru")


@dataclass(frozen=True)
class CacheShape:
    """The bands of a prefix cache, in chain order, and its rules.

    `page_bytes[b]` are the bytes of a page of band `b`. `windows` are the window bands of a stated
    length, `window_tokens` their lengths; `companions` those that state none: they keep every page
    that `full` keeps. `state` is the state band, if any; its checkpoints lie on multiples of
    `grid_tokens`. `keys`: sequences are named by `tokens`, or by one chained hash a page
    (`hashes`). `evict`: the user page's `lru` or `joint_lru`. `ConfigError` for what cannot be.
    """

    page_size: int
    page_bytes: tuple[int, ...]
    full: int
    windows: tuple[int, ...] = ()
    window_tokens: tuple[int, ...] = ()
    companions: tuple[int, ...] = ()
    state: int | None = None
    grid_tokens: int = 0
    keys: str = "tokens"
    evict: str = "lru"

    def __post_init__(self) -> None:
        bands = [self.full, *self.windows, *self.companions]
        bands += [] if self.state is None else [self.state]
        if sorted(bands) != list(range(len(self.page_bytes))):
            raise ConfigError(
                f"a prefix cache over {len(self.page_bytes)} bands was given the bands {bands}; "
                "name each band once"
            )
        if self.page_size < 1 or min(self.page_bytes) < 1 or min(self.window_tokens, default=1) < 1:
            raise ConfigError(
                f"a prefix cache was given pages of {self.page_size} tokens, {self.page_bytes} bytes "
                f"and windows of {self.window_tokens} tokens; give 1 or more"
            )
        if len(self.windows) != len(self.window_tokens):
            raise ConfigError(
                f"{len(self.windows)} window bands were given {len(self.window_tokens)} lengths; "
                "give one each"
            )
        for name, value, allowed in (
            ("keys", self.keys, KEYS),
            ("evict", self.evict, POLICIES),
        ):
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        if self.state is not None and (self.grid_tokens < 1 or self.grid_tokens % self.page_size):
            raise ConfigError(
                f"checkpoints every {self.grid_tokens} tokens were asked for with pages of "
                f"{self.page_size}; give a multiple of the page size"
            )

    @classmethod
    def of_plan(
        cls, plan: StoragePlan, *, grid_tokens: int = 0, keys: str = "tokens", evict: str = "lru"
    ) -> CacheShape:
        """The shape for the bands of a storage plan; the grid is asked for where it keeps state."""
        kinds = [band.kind for band in plan.bands]
        lengths = [band.window_length for band in plan.bands]
        every = range(len(kinds))
        windows = tuple(b for b in every if kinds[b] == "window" and lengths[b] is not None)
        return cls(
            page_size=plan.page_size,
            page_bytes=tuple(band.page_bytes for band in plan.bands),
            full=kinds.index("full"),
            windows=windows,
            window_tokens=tuple(lengths[b] or 0 for b in windows),
            companions=tuple(b for b in every if kinds[b] == "window" and lengths[b] is None),
            state=kinds.index("state") if "state" in kinds else None,
            grid_tokens=grid_tokens,
            keys=keys,
            evict=evict,
        )

    @property
    def bands(self) -> int:
        return len(self.page_bytes)

    @property
    def unit(self) -> int:
        """Elements of a key per page."""
        return self.page_size if self.keys == "tokens" else 1

    @property
    def reaches(self) -> tuple[int, ...]:
        """Pages that each window must hold before a match: those that the next token, the first of
        a page, attends to."""
        return tuple(-(-(tokens - 1) // self.page_size) for tokens in self.window_tokens)

    @property
    def shared_order(self) -> bool:
        """`joint_lru` holds with exactly one window band and no state; elsewhere it is `lru`."""
        one_window = len(self.windows) + len(self.companions) == 1
        return self.evict == "joint_lru" and one_window and self.state is None

    def kept_from(self, window: int, tokens: int) -> int:
        """The first page that window number `window` keeps of a sequence of so many tokens."""
        return max(0, tokens - self.window_tokens[window] + 1) // self.page_size


@dataclass(eq=False)
class StateCheckpoint:
    """A state slot that holds the state after `depth` pages. `locks`: leases that copy from it."""

    number: int
    depth: int
    slot: int
    clock: int
    node: Node
    locks: int = 0


@dataclass(eq=False)
class Node:
    """A run of pages at depth `[start, stop)` of every sequence through it.

    `key`: its part of the sequences. `locks`: leases that end here or below. `first[w]`: window
    number `w` keeps the pages `[first[w], len)`. `window_locks[w]`: leases per page in that window,
    never falling from page to page, since what a lease holds of a node is a tail; None: none.
    `clock` and `window_clock[w]`: when it was used last. `checkpoints`: by depth.
    """

    number: int
    parent: Node | None
    start: int
    key: np.ndarray
    pages: Pages
    clock: int
    first: list[int]
    window_clock: list[int]
    locks: int = 0
    children: dict[bytes, Node] = field(default_factory=dict)
    window_locks: list[np.ndarray | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    checkpoints: dict[int, StateCheckpoint] = field(default_factory=dict)
    locked_checkpoints: int = 0

    def __len__(self) -> int:
        return int(self.pages.size)

    @property
    def stop(self) -> int:
        """Depth of its end, in pages."""
        return self.start + int(self.pages.size)

    def window_stop(self, window: int) -> int:
        """The first page that a lease holds in a window; the node's length when none."""
        locks = self.window_locks[window]
        return len(self) if locks is None else int(np.searchsorted(locks, 1))

    def evictable_window(self, window: int) -> int:
        """Pages that this window keeps and no lease holds: the front of what it keeps."""
        return max(0, self.window_stop(window) - self.first[window])

    def add_checkpoint(self, checkpoint: StateCheckpoint) -> None:
        insort(self.depths, checkpoint.depth)
        self.checkpoints[checkpoint.depth] = checkpoint
        self.locked_checkpoints += checkpoint.locks > 0
        checkpoint.node = self

    def take_checkpoint(self, depth: int) -> StateCheckpoint:
        self.depths.pop(bisect_left(self.depths, depth))
        checkpoint = self.checkpoints.pop(depth)
        self.locked_checkpoints -= checkpoint.locks > 0
        return checkpoint

    def common(self, key: np.ndarray, unit: int) -> int:
        """Whole pages that the start of `key` shares with this node; looks little further than the
        first difference."""
        most = min(self.key.size, key.size)
        done, step = 0, 64 * unit
        while done < most:
            stop = min(most, done + step)
            equal = self.key[done:stop] == key[done:stop]
            if not equal.all():
                return (done + int(equal.argmin())) // unit
            done, step = stop, 2 * step
        return most // unit


@dataclass(eq=False)
class PrefixLease:
    """A hold on the prefix that ends with `node`. `window_from[w]`: from which depth its window pages
    are held. `held`: the checkpoints that must stay."""

    number: int
    node: Node
    window_from: list[int]
    held: list[StateCheckpoint]
