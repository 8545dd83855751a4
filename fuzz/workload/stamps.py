"""A forward that proves content: every row it computes carries a stamp, read back later.

The stamp of a row is a hash of (content, position, layer row), where the content is the request, or with
a prefix cache the name of what the page holds (`prefix_keys.page_names`): a page that requests share
has one right content, whoever wrote it. It is written through the layer views
of the arena at the page the tables name at that moment, and compared when it is read back through
the page the tables name by then. So a page that was moved to the wrong place, shared by two owners,
or handed out while still in use shows as wrong bytes, naming request, position and page.

State slots are read, compared and rewritten by every forward, as a recurrent layer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.layout import row_view
from bandscope.allocator.plan import BandPlan, RowPlan
from bandscope.fuzz.workload.hashing import MIX, mix
from bandscope.fuzz.workload.prefix_keys import page_names

WORD = torch.int64
WORD_BYTES = 8
# Rows whose stamps are computed at once; bounds the scratch memory of a step.
_ROWS_AT_ONCE = 1 << 20
MISMATCHES_KEPT = 20


@dataclass(frozen=True)
class Mismatch:
    """A row that does not hold what its owner wrote."""

    request: int
    position: int
    band: str
    layer: int
    row: str
    page: int
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"content: request {self.request}, position {self.position}, band {self.band}, layer "
            f"{self.layer} row {self.row}, physical page {self.page}: expected stamp "
            f"{self.expected & 0xFFFFFFFFFFFFFFFF:#018x}, found "
            f"{self.found & 0xFFFFFFFFFFFFFFFF:#018x}"
        )


@dataclass(frozen=True)
class RowGroup:
    """Rows of one name in several layers, at a constant distance in every entry.

    `words`: int64 view `(pages, page_size, rows)` (state: `(slots, rows)`) of the first word of each
    row; `salts`: one number per row, so that no two rows of an entry share a stamp.
    """

    rows: tuple[RowPlan, ...]
    words: torch.Tensor
    salts: torch.Tensor


def row_groups(arena: Arena, plan: BandPlan, band_index: int) -> list[RowGroup]:
    """The rows of a band as few strided views, at the places that the layer views themselves have."""
    groups = []
    salt = 1000 * (band_index + 1)
    for name in dict.fromkeys(row.name for row in plan.rows):
        rows = [row for row in plan.rows if row.name == name]
        while rows:
            views = [row_view(plan, row, arena.buffer, WORD, ()) for row in rows]
            offsets = [view.storage_offset() for view in views]
            distance = offsets[1] - offsets[0] if len(rows) > 1 else 1
            count = 1
            while count < len(rows) and offsets[count] - offsets[count - 1] == distance:
                count += 1
            first = views[0]
            words = torch.as_strided(
                first, [*first.shape, count], [*first.stride(), distance], offsets[0]
            )
            salts = mix(torch.arange(salt, salt + count)).to(arena.buffer.device)
            groups.append(RowGroup(tuple(rows[:count]), words, salts))
            salt += count
            rows = rows[count:]
    return groups


@dataclass(frozen=True)
class StampedBand:
    """A band and where its stamps lie."""

    plan: BandPlan
    groups: list[RowGroup]

    @property
    def tokens_per_batch(self) -> int:
        return max(1, _ROWS_AT_ONCE // len(self.plan.rows))


@dataclass
class StampForward:
    """Writes and checks stamps.

    `sample`: live tokens of a band read back every step, spread over `sample_requests` requests of
    the batch; `everything`: read back the whole context of every request of the batch instead.
    `expect_zeroed`: a row that is written for the first time must have been handed out as zeros.
    """


    arena: Arena
    sample: int = 64
    sample_requests: int = 4
    everything: bool = False
    expect_zeroed: bool = False
    seed: int = 0
    rows_written: int = 0
    rows_checked: int = 0
    mismatch_count: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        arena = self.arena
        self._device = arena.buffer.device
        self._bands = [
            StampedBand(plan, row_groups(arena, plan, index))
            for index, plan in enumerate(arena.plan.bands)
            if plan.rows
        ]
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        # What the pages of each running request hold; empty without a prefix cache.
        self._names: dict[int, np.ndarray] = {}

    # --- the model's part of a step -------------------------------------------------------------

    def entering(self, request: int, key: np.ndarray | None, tokens: int) -> None:
        """Remember what its pages are to hold."""
        if key is not None:
            self._names[request] = page_names(key)

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """Write the rows of every span, then read back a sample of the batch's context."""
        with self.arena.device.forward(ticket):
            for band in self._bands:
                if band.plan.kind == "state":
                    self._step_states(band, spans)
                    continue
                requests, positions, pages = self._span_tokens(band, spans)
                self._write(band, requests, positions, pages)
                if self.everything:
                    for request, _, stop in spans:
                        self._check_request(band, request, stop)
                else:
                    self._check_sample(band, spans)

    def leaving(self, request: int, tokens: int) -> None:
        """Read back all that the request still holds."""
        self.arena.device.synchronize()  # moves on the schedule stream may be ahead of us
        for band in self._bands:
            if band.plan.kind == "state":
                if tokens:
                    self._check_states(band, [(request, tokens)])
            else:
                self._check_request(band, request, tokens)
        self._names.pop(request, None)

    def fetch(self) -> None:
        """Nothing waits to be fetched: every comparison was made at once."""

    # --- token rows -----------------------------------------------------------------------------------

    def _span_tokens(
        self, band: StampedBand, spans: list[tuple[int, int, int]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(request, position, physical page) of every token of the spans."""
        requests, positions, pages = [], [], []
        for request, start, stop in spans:
            held, first = self.arena.pages_of(request, band.plan.name)
            tokens = np.arange(max(start, first * band.plan.page_size), stop)
            requests.append(np.full(tokens.size, request))
            positions.append(tokens)
            pages.append(held[tokens // band.plan.page_size - first])
        return np.concatenate(requests), np.concatenate(positions), np.concatenate(pages)

    def _check_sample(self, band: StampedBand, spans: list[tuple[int, int, int]]) -> None:
        chosen = self._random.integers(0, len(spans), self.sample_requests)
        each = -(-self.sample // self.sample_requests)
        requests, positions, pages = [], [], []
        for index in chosen.tolist():
            request, _, stop = spans[index]
            held, first = self.arena.pages_of(request, band.plan.name)
            lowest = first * band.plan.page_size
            tokens = self._random.integers(lowest, stop, each)
            requests.append(np.full(tokens.size, request))
            positions.append(tokens)
            pages.append(held[tokens // band.plan.page_size - first])
        self._check(
            band, np.concatenate(requests), np.concatenate(positions), np.concatenate(pages)
        )

    def _check_request(self, band: StampedBand, request: int, tokens: int) -> None:
        held, first = self.arena.pages_of(request, band.plan.name)
        positions = np.arange(first * band.plan.page_size, tokens)
        pages = held[positions // band.plan.page_size - first]
        self._check(band, np.full(positions.size, request), positions, pages)

    # --- state rows ---------------------------------------------------------------------------

    def _step_states(self, band: StampedBand, spans: list[tuple[int, int, int]]) -> None:
        self._check_states(band, [(request, start) for request, start, _ in spans if start])
        slots = np.concatenate([self.arena.pages_of(span[0], band.plan.name)[0] for span in spans])
        requests = np.array([request for request, _, _ in spans])
        self._write(band, requests, np.array([stop for _, _, stop in spans]), slots)

    def _check_states(self, band: StampedBand, spans: list[tuple[int, int]]) -> None:
        if not spans:
            return
        slots = np.concatenate([self.arena.pages_of(span[0], band.plan.name)[0] for span in spans])
        requests = np.array([request for request, _ in spans])
        self._check(band, requests, np.array([tokens for _, tokens in spans]), slots)

    # --- words --------------------------------------------------------------------------------

    def _contents(
        self, band: StampedBand, requests: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        """What names the content of each token: its page's name, or its request where nobody else can
        have it. The state after so many tokens is that of the page of the last one."""
        if not self._names:
            return requests
        contents = requests.copy()
        pages = (positions - (band.plan.kind == "state")) // self.arena.plan.page_size
        starts = np.flatnonzero(np.diff(requests, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], requests.size], strict=True):  # by request
            names = self._names.get(int(requests[start]))
            if names is not None:
                known = start + np.flatnonzero(pages[start:stop] < names.size)
                contents[known] = names[pages[known]]
        return contents

    def _batches(
        self, band: StampedBand, requests: np.ndarray, positions: np.ndarray, pages: np.ndarray
    ) -> Iterator[tuple[slice, RowGroup, tuple[torch.Tensor, ...], torch.Tensor]]:
        """(which tokens, rows, index of their words, their stamps) in pieces of bounded size."""
        step = band.tokens_per_batch
        for start in range(0, requests.size, step):  # over batches of bounded scratch, not pages
            part = slice(start, start + step)
            position = torch.from_numpy(positions[part]).to(self._device)
            content = self._contents(band, requests[part], positions[part])
            base = mix(torch.from_numpy(content).to(self._device) * MIX[1] + position)[:, None]
            index: tuple[torch.Tensor, ...] = (torch.from_numpy(pages[part]).to(self._device),)
            if band.plan.kind != "state":
                index += (position % band.plan.page_size,)
            for group in band.groups:
                yield part, group, index, base ^ group.salts[None, :]

    def _write(
        self, band: StampedBand, requests: np.ndarray, positions: np.ndarray, pages: np.ndarray
    ) -> None:
        for part, group, index, stamps in self._batches(band, requests, positions, pages):
            if self.expect_zeroed and band.plan.kind != "state":
                found = _take(group.words, index)
                self._compare(
                    band, group, requests[part], positions[part], pages[part], 0 * found, found
                )
            _put(group.words, index, stamps)
            self.rows_written += stamps.numel()

    def _check(
        self, band: StampedBand, requests: np.ndarray, positions: np.ndarray, pages: np.ndarray
    ) -> None:
        for part, group, index, stamps in self._batches(band, requests, positions, pages):
            found = _take(group.words, index)
            self.rows_checked += stamps.numel()
            self._compare(
                band, group, requests[part], positions[part], pages[part], stamps, found
            )

    def _compare(
        self,
        band: StampedBand,
        group: RowGroup,
        requests: np.ndarray,
        positions: np.ndarray,
        pages: np.ndarray,
        expected: torch.Tensor,
        found: torch.Tensor,
    ) -> None:
        if torch.equal(found, expected):
            return
        where = (found != expected).nonzero().cpu().numpy()
        self.mismatch_count += len(where)
        for token, row in where[: max(0, MISMATCHES_KEPT - len(self.mismatches))].tolist():
            plan = group.rows[row]
            self.mismatches.append(
                Mismatch(
                    int(requests[token]),
                    int(positions[token]),
                    band.plan.name,
                    plan.layer,
                    plan.name,
                    int(pages[token]),
                    int(expected[token, row]),
                    int(found[token, row]),
                )
            )


def _put(words: torch.Tensor, index: tuple[torch.Tensor, ...], stamps: torch.Tensor) -> None:
    if words.device.type == "cpu":  # NumPy scatters several times faster than torch on a CPU
        words.numpy()[tuple(part.numpy() for part in index)] = stamps.numpy()
    else:
        words[index] = stamps


def _take(words: torch.Tensor, index: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if words.device.type == "cpu":
        return torch.from_numpy(words.numpy()[tuple(part.numpy() for part in index)])
    return words[index]
