"""From an arena's bytes to targets: full-attention tokens, window tokens, state slots, concurrency.

Targets are where an engine starts from (how many requests to run, what to report as capacity), never
a partition: at run time every band may grow into all that the others leave. Names and meanings are
those of the engine options (`docs/sizing.md` has every rule). All figures are exact integers: the sink,
page grids and rounding are in them, and an independent brute force agrees with them in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from bandscope.allocator.demand_fit import packed_tops
from bandscope.allocator.errors import SizingError
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.sizing import (
    ROUND_BYTES,
    check_one_request_floor,
    floor_pages,
    usable_bytes,
)

SWA_FULL_TOKENS_RATIO = Fraction(4, 5)
MAMBA_FULL_MEMORY_RATIO = Fraction(9, 10)
RATIO_MAX = 1000


@dataclass(frozen=True)
class SizingOptions:
    """What decides the targets besides the bytes.

    `max_total_tokens`: use only the smallest part of the budget whose sizing gives this many full
    tokens. `max_running_requests`: the concurrency to size for. `swa_full_tokens_ratio`: window tokens
    per full token. `mamba_full_memory_ratio`: state bytes per byte of all that tokens get;
    `max_mamba_cache_size`: slots, instead. `context_length`: the longest request (the model's own when
    None). `chunk_tokens`: prefill tokens per step. `state_slots`: slots that one request holds.
    """

    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    swa_full_tokens_ratio: Fraction = SWA_FULL_TOKENS_RATIO
    mamba_full_memory_ratio: Fraction = MAMBA_FULL_MEMORY_RATIO
    max_mamba_cache_size: int | None = None
    context_length: int | None = None
    chunk_tokens: int = 8192
    state_slots: int = 1

    def __post_init__(self) -> None:
        for name in ("swa_full_tokens_ratio", "mamba_full_memory_ratio"):
            if getattr(self, name) > RATIO_MAX:
                raise SizingError(
                    f"{name} of {getattr(self, name)} was asked for; give a number up to {RATIO_MAX:,}"
                )
        for name in (
            "max_total_tokens", "max_running_requests", "max_mamba_cache_size", "context_length",
            "chunk_tokens", "state_slots", "swa_full_tokens_ratio", "mamba_full_memory_ratio",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SizingError(f"{name} of {value} was asked for; give a number above 0")


@dataclass(frozen=True)
class Targets:
    """The sizing of one arena.

    `pages`: the targets, per band in chain order; `tokens` the same in tokens (state: slots).
    `top_bytes`: where the last band ends when the targets are packed; what is above serves nobody's
    target but is there to be used. `concurrency`: requests at once, and `bounds`, what it is the least
    of, by name.
    """

    plan: StoragePlan
    budget_bytes: int
    arena_bytes: int
    pages: tuple[int, ...]
    top_bytes: int
    bounds: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> dict[str, int]:
        return {
            band.name: pages * band.page_size
            for band, pages in zip(self.plan.bands, self.pages, strict=True)
        }

    @property
    def full_tokens(self) -> int:
        return self.tokens["full"]

    @property
    def concurrency(self) -> int:
        return min(self.bounds.values())

    @property
    def bounded_by(self) -> str:
        return min(self.bounds, key=self.bounds.__getitem__)


def size_arena(plan: StoragePlan, budget_bytes: int, options: SizingOptions) -> Targets:
    """The targets of the arena that fits `budget_bytes`.

    `SizingError` when it cannot run one request, when the asked state slots leave no room for one,
    or when the asked tokens do not fit; the message lists the terms.
    """
    sizer = _Sizer(plan, options)
    arena_bytes = usable_bytes(budget_bytes)
    check_one_request_floor(
        plan, arena_bytes, options.context_length, state_slots=options.state_slots
    )
    if options.max_total_tokens is not None:
        arena_bytes = sizer.smallest_bytes(options.max_total_tokens, arena_bytes)
    slots = sizer.slots(arena_bytes)
    full_pages = sizer.full_pages(arena_bytes, slots)
    pages = sizer.row(slots, full_pages)
    bounds = {}
    if options.max_running_requests is not None:
        bounds["max_running_requests"] = options.max_running_requests
    if plan.has_state:
        bounds["state slots"] = slots // options.state_slots
    bounds["half the full-attention tokens"] = max(1, full_pages * plan.page_size // 2)
    return Targets(plan, budget_bytes, arena_bytes, tuple(pages), sizer.top(pages), bounds)


class _Sizer:
    """The rules, over one plan and its options. Pages are rows in chain order."""

    def __init__(self, plan: StoragePlan, options: SizingOptions) -> None:
        self.plan, self.options = plan, options
        self.page_sizes = [band.page_bytes for band in plan.bands]
        self.least = floor_pages(plan, options.context_length, state_slots=options.state_slots)
        self.state = next(
            (index for index, band in enumerate(plan.bands) if band.kind == "state"), None
        )
        self.most = self._window_caps()

    def _window_caps(self) -> list[int | None]:
        """The most window pages that the asked concurrency can hold: each request's own, and the
        chunks of one step."""
        asked, page = self.options.max_running_requests, self.plan.page_size
        if asked is None:
            return [None] * len(self.plan.bands)
        chunk = -(-self.options.chunk_tokens // page)
        return [
            asked * least + chunk if band.window_length is not None else None
            for band, least in zip(self.plan.bands, self.least, strict=True)
        ]

    def row(self, slots: int, full_pages: int) -> list[int]:
        """The targets that go with so many state slots and full pages."""
        page, ratio = self.plan.page_size, self.options.swa_full_tokens_ratio
        wanted = int(full_pages * page * ratio) // page
        row = []
        for band, least, most in zip(self.plan.bands, self.least, self.most, strict=True):
            if band.kind == "state":
                row.append(slots)
            elif band.kind == "full":
                row.append(full_pages)
            elif band.window_length is None:  # it keeps what full attention keeps
                row.append(max(least, full_pages))
            else:
                pages = max(least, min(full_pages, wanted))
                row.append(pages if most is None else min(pages, most))
        return row

    def top(self, pages: Sequence[int]) -> int:
        """First byte above these pages, packed."""
        return int(packed_tops(self.page_sizes, self.plan.sink_bytes, np.array([pages]))[0])

    def floor_with(self, slots: int) -> int:
        """First byte above `slots` and the tokens of one request."""
        row = list(self.least)
        if self.state is not None:
            row[self.state] = slots
        return self.top(row)

    # --- state slots ---------------------------------------------------------------------------------

    def slots(self, arena_bytes: int) -> int:
        """State slots of an arena of this size: the asked number, or the share of the bytes beside
        the sink, but no more than the asked concurrency holds and than leave room for one request."""
        if self.state is None:
            return 0
        asked = self.options.max_mamba_cache_size
        if asked is not None:
            self._check_asked_slots(asked, arena_bytes)
            return asked
        least = self.least[self.state]
        return _last(
            lambda slots: self.bytes_for(slots) <= arena_bytes, least, self._slots_max(arena_bytes)
        )

    def _slots_max(self, arena_bytes: int) -> int:
        assert self.state is not None
        most = arena_bytes // self.page_sizes[self.state]
        running = self.options.max_running_requests
        return most if running is None else min(most, running * self.options.state_slots)

    def bytes_for(self, slots: int) -> int:
        """The smallest arena whose sizing gives at least so many slots, its concurrency permitting."""
        assert self.state is not None
        ratio = self.options.mamba_full_memory_ratio
        share = slots * self.page_sizes[self.state] * (1 + ratio) / ratio
        by_share = self.plan.sink_bytes - (-share.numerator // share.denominator)
        if slots <= self.least[self.state]:
            by_share = 0  # one request's slots are there in any arena that can run it
        return _round_up(max(by_share, self.floor_with(slots)))

    def _check_asked_slots(self, asked: int, arena_bytes: int) -> None:
        assert self.state is not None
        if asked < self.options.state_slots:
            raise SizingError(
                f"a state cache of {asked} slots was asked for, but one request holds "
                f"{self.options.state_slots}; ask for at least as many"
            )
        needed = self.floor_with(asked)
        if needed > arena_bytes:
            slot_bytes = self.page_sizes[self.state]
            raise SizingError(
                f"a state cache of {asked} slots was asked for, but {asked} × {slot_bytes:,} bytes, "
                f"the sink and the tokens of one request need {needed:,} bytes of an arena of "
                f"{arena_bytes:,}; ask for fewer slots or make the arena larger"
            )

    # --- tokens --------------------------------------------------------------------------------------

    def full_pages(self, arena_bytes: int, slots: int) -> int:
        """The most pages of full attention that fit beside the slots and their windows."""
        page_bytes = self.page_sizes[-1]
        return _last(
            lambda pages: self.top(self.row(slots, pages)) <= arena_bytes, 1, arena_bytes // page_bytes
        )

    def smallest_bytes(self, tokens: int, budget_bytes: int) -> int:
        """The smallest arena within the budget whose sizing gives `tokens` full tokens.

        Full tokens do not grow with every byte: where a slot is added, they drop. So each number of
        slots is a stretch of arena sizes of its own, in which they grow; the first stretch that
        reaches far enough has the answer. A stretch grows by slot × (1 + 1 / ratio) bytes per slot, and
        what tokens need by one slot, up to page grids; bisection leaves those out, a walk settles them.
        """
        pages = -(-tokens // self.plan.page_size)
        found = self._smallest(pages)
        if found > budget_bytes:
            slots = self.slots(budget_bytes)
            raise SizingError(
                f"{tokens:,} full-attention tokens were asked for, which needs an arena of "
                f"{found:,} bytes, but the budget of {budget_bytes:,} bytes gives "
                f"{self.full_pages(budget_bytes, slots) * self.plan.page_size:,}; lower "
                "max_total_tokens or raise the budget"
            )
        return found

    def _smallest(self, pages: int) -> int:
        asked = self.options.max_mamba_cache_size
        if self.state is None or asked is not None:
            slots = asked or 0
            return max(_round_up(self.top(self.row(slots, pages))), self._bytes_least(slots))
        running = self.options.max_running_requests
        most = None if running is None else running * self.options.state_slots
        least = slots = self.least[self.state]
        # Grids and rounding shift either side by less than this, so once a stretch reaches, all later
        # ones do when they are given twice as much.
        loose = 2 * (sum(self.page_sizes) + ROUND_BYTES)

        def reaches(slots: int, slack_bytes: int) -> bool:
            if most is not None and slots >= most:
                return True
            needed = _round_up(self.top(self.row(slots, pages))) - slack_bytes
            first, stop = self.bytes_for(slots), self.bytes_for(slots + 1)
            return needed < stop and (slack_bytes > 0 or first < stop)

        if not reaches(slots, 0):
            high = slots + 1
            while not reaches(high, loose):
                high *= 2
            slots = 1 + _last(lambda slots: not reaches(slots, loose), least - 1, high)
            while not reaches(slots, 0):
                slots += 1
        return max(_round_up(self.top(self.row(slots, pages))), self.bytes_for(slots))

    def _bytes_least(self, slots: int) -> int:
        return _round_up(self.floor_with(slots))


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // ROUND_BYTES) * ROUND_BYTES


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number from `low` on that `holds`, which `low` does by contract, up to `high`."""
    if high <= low or holds(high):
        return max(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
