"""Targets are what a brute force finds that tries every arena size, slot and page in turn."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

import pytest

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import SizingError
from bandscope.allocator.plan import StoragePlan, plan_from_sizes
from bandscope.allocator.targets import RATIO_MAX, SizingOptions, size_arena

UNIT = 256


@dataclass
class BruteForce:
    """Sizing by trying: no formula but the definitions, shared with the code under test by name only."""

    plan: StoragePlan
    options: SizingOptions

    def __post_init__(self) -> None:
        self.page = self.plan.page_size
        self.context = self.options.context_length or self.plan.context_length
        self.one_request = [self.least(band) for band in self.plan.bands]

    def least(self, band) -> int:  # type: ignore[no-untyped-def]
        """Pages of one request at batch size 1: walk its decode, count the pages it holds."""
        if band.kind == "state":
            return self.options.state_slots
        if band.kind == "full":
            return 1
        if band.window_length is None:
            return -(-self.context // self.page) if self.context else 1
        most = 0
        for token in range(self.context or band.window_length + 3 * self.page):
            first = max(0, token - band.window_length + 1)
            most = max(most, len({position // self.page for position in range(first, token + 1)}))
        return most

    def end(self, pages: list[int]) -> int:
        """Where the last band ends when each starts at its first page above the one before."""
        byte = self.plan.sink_bytes
        for band, count in zip(self.plan.bands, pages, strict=True):
            if count:
                while byte % band.page_bytes:
                    byte += 1 if byte % UNIT else min(UNIT, band.page_bytes - byte % band.page_bytes)
                byte += count * band.page_bytes
        return byte

    def row(self, slots: int, full: int) -> list[int]:
        """The targets beside `full` pages."""
        row = []
        for band, one in zip(self.plan.bands, self.one_request, strict=True):
            if band.kind == "state":
                row.append(slots)
            elif band.kind == "full":
                row.append(full)
            elif band.window_length is None:
                row.append(max(one, full))
            else:
                tokens = full * self.page * self.options.swa_full_tokens_ratio
                pages = 0
                while (pages + 1) * self.page <= tokens and pages < full:
                    pages += 1
                pages = max(one, pages)
                if self.options.max_running_requests is not None:
                    chunk = -(-self.options.chunk_tokens // self.page)
                    pages = min(pages, self.options.max_running_requests * one + chunk)
                row.append(pages)
        return row

    def size(self, arena: int) -> tuple[list[int], int] | None:
        """The targets and the concurrency of an arena, None when one request does not fit."""
        names = [band.kind for band in self.plan.bands]
        if self.end(self.one_request) > arena:
            return None
        slots = 0
        if "state" in names:
            index = names.index("state")
            slots = self.slots(arena, index)
            row = list(self.one_request)
            row[index] = slots
            if slots < self.options.state_slots or self.end(row) > arena:
                return None
        full = 1
        while self.end(self.row(slots, full + 1)) <= arena:
            full += 1
        bounds = [max(1, full * self.page // 2)]
        if self.options.max_running_requests is not None:
            bounds.append(self.options.max_running_requests)
        if "state" in names:
            bounds.append(slots // self.options.state_slots)
        return self.row(slots, full), min(bounds)

    def slots(self, arena: int, index: int) -> int:
        """State slots: asked, or one after the other as long as their share and the rest allow."""
        if self.options.max_mamba_cache_size is not None:
            return self.options.max_mamba_cache_size
        ratio = self.options.mamba_full_memory_ratio
        slots = self.options.state_slots
        running = self.options.max_running_requests
        while running is None or slots < running * self.options.state_slots:
            row = list(self.one_request)
            row[index] = slots + 1
            beside = arena - self.plan.sink_bytes
            taken = (slots + 1) * self.plan.bands[index].page_bytes
            if taken > beside * ratio / (1 + ratio) or self.end(row) > arena:
                break
            slots += 1
        return slots

    def smallest(self, tokens: int, budget: int) -> int | None:
        """The first arena size, in steps of 256 bytes, that gives the tokens."""
        for arena in range(UNIT, budget + 1, UNIT):
            found = self.size(arena)
            if found is not None and found[0][-1] * self.page >= tokens:
                return arena
        return None


def random_case(rng: random.Random) -> tuple[StoragePlan, int, SizingOptions]:
    """Any bands, pages on and off each other's grid, ratios from tiny to large, every option."""
    bands = [("full", rng.choice([1, 2, 3, 4, 5, 7]) * rng.choice([64, 256, 320]))]
    if rng.random() < 0.6:
        bands.append(("mamba", rng.choice([64, 200, 256, 700, 1024, 2000])))
    for length in rng.sample([3, 5, 8, 13], rng.choice([0, 1, 1, 2])):
        bands.append((f"window_{length}", rng.choice([1, 2, 3, 5]) * rng.choice([64, 256])))
    if rng.random() < 0.1:
        bands.append(("window", 128))
    page = rng.choice([1, 1, 2, 4])
    if len(bands) == 1:
        bands.append(("mamba", 512))
    bands = [(name, size * (1 if name == "mamba" else page)) for name, size in bands]
    plan = plan_from_sizes(bands, page_size=page, context_length=rng.choice([None, 6, 40]))
    maybe = lambda value: rng.choice([None, value])  # noqa: E731
    options = SizingOptions(
        max_running_requests=maybe(rng.randint(1, 6)),
        swa_full_tokens_ratio=rng.choice([Fraction(4, 5), Fraction(1, 7), Fraction(1), Fraction(3)]),
        mamba_full_memory_ratio=rng.choice(
            [Fraction(9, 10), Fraction(1, 5), Fraction(3), Fraction(50), Fraction(RATIO_MAX)]
        ),
        max_mamba_cache_size=rng.choice([None, None, None, rng.randint(1, 6)]),
        context_length=rng.choice([None, None, 9, 30]),
        chunk_tokens=rng.choice([1, 4, 10]),
        state_slots=rng.choice([1, 1, 2, 3]),
    )
    return plan, rng.randint(2_000, 30_000), options


def tiny_slots(rng: random.Random) -> tuple[StoragePlan, int, SizingOptions]:
    """State slots smaller than the arena's rounding: one step of 256 bytes adds several at once."""
    bands = [("full", rng.choice([64, 320, 1280])), ("mamba", rng.choice([64, 100])),
             ("window_5", rng.choice([256, 768]))]  # fmt: skip
    ratio = rng.choice([Fraction(1), Fraction(3), Fraction(50)])
    options = SizingOptions(mamba_full_memory_ratio=ratio)
    return plan_from_sizes(bands), rng.randint(4_000, 12_000), options


def compare(seed: int, *, smallest: bool, draw=random_case) -> tuple[bool, bool]:  # type: ignore
    """One random case, sized both ways; what came out: sized, and shrunk to the asked tokens."""
    rng = random.Random(seed)
    plan, budget, options = draw(rng)
    brute = BruteForce(plan, options)
    expected = brute.size(budget // UNIT * UNIT)
    if expected is None:
        with pytest.raises(SizingError):
            size_arena(plan, budget, options)
        return False, False
    targets = size_arena(plan, budget, options)
    assert (list(targets.pages), targets.concurrency) == expected, seed
    assert targets.top_bytes == brute.end(expected[0]) <= targets.arena_bytes == budget // UNIT * UNIT
    if seed % 16 == 0:
        assert Arena(plan, budget, device="none").serves(targets.pages)
    if not smallest:
        return True, False
    tokens = rng.randint(1, 2 * targets.full_tokens)
    asked = SizingOptions(**{**options.__dict__, "max_total_tokens": tokens})
    least = brute.smallest(tokens, targets.arena_bytes)
    if least is None:
        with pytest.raises(SizingError, match="full-attention tokens were asked for"):
            size_arena(plan, budget, asked)
        return True, False
    shrunk = size_arena(plan, budget, asked)
    assert shrunk.arena_bytes == least, (seed, tokens)
    assert shrunk.full_tokens >= tokens
    assert (list(shrunk.pages), shrunk.concurrency) == brute.size(least)
    return True, True


def test_targets_agree_with_brute_force() -> None:
    """Fifteen hundred random plans, sizes and options: the same targets, or both refuse."""
    sized = sum(compare(seed, smallest=False)[0] for seed in range(1_500))
    assert 750 < sized < 1_500


def test_the_smallest_arena_for_asked_tokens_agrees_with_brute_force() -> None:
    """A hundred random cases against a search through every arena size from the smallest up."""
    shrunk = sum(compare(seed, smallest=True)[1] for seed in range(100_000, 100_100))
    assert shrunk > 25


def test_the_smallest_arena_with_tiny_slots_agrees_with_brute_force() -> None:
    """Slot counts that no arena size has are no answer."""
    counts = [compare(seed, smallest=True, draw=tiny_slots)[1] for seed in range(20)]
    assert sum(counts) > 7


@pytest.mark.slow
def test_ten_thousand_random_configurations_agree_with_brute_force() -> None:
    """The issue's number of cases, every one of them with the search for the smallest arena."""
    counts = [compare(seed, smallest=True) for seed in range(200_000, 210_000)]
    assert sum(sized for sized, _ in counts) > 5_000
    assert sum(shrunk for _, shrunk in counts) > 2_500
