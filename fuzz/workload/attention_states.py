"""Recurrent states of `--verify attention`: every forward checks its requests' states, changes them
and writes them back, in place, as a recurrent layer does.

A state is one number of its request times a pattern of its row: `coefficient × pattern`. Each
forward halves the coefficient and adds an input that no other forward adds, so what a slot must
hold is known on the host without looking at the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.allocator.device import forward as kernels
from bandscope.allocator.plan import BandPlan
from bandscope.fuzz.workload.attention_batch import Batch
from bandscope.fuzz.workload.attention_content import PATTERN, row_values
from bandscope.fuzz.workload.attention_layers import float_view, spread_layers
from bandscope.fuzz.workload.hashing import mix
from bandscope.fuzz.workload.uploads import upload

DECAY = 0.5


@dataclass(frozen=True)
class StateRow:
    """One tensor of one layer's state: `view` (slots, *shape), `pattern` (elements,) float32.
    Elements may be off by the share `tolerance`."""

    band: BandPlan
    band_index: int
    layer: int
    name: str
    view: torch.Tensor
    pattern: torch.Tensor
    tolerance: float


@dataclass(frozen=True)
class CheckedState:
    """One row's check, per request on the device: `errors` (batch,) float32, 0 where every element
    was near enough, otherwise the largest difference; `unmapped` (batch,) int32."""

    row: StateRow
    errors: torch.Tensor
    unmapped: torch.Tensor


@dataclass(frozen=True)
class _Numbers:
    # Per request on the device: its slot, whether the old state counts (int64), and what the state
    # must be (float32).
    slots: torch.Tensor
    keep: torch.Tensor
    expected: torch.Tensor


class States:
    """The chosen state rows of an arena, and what each request's state must be."""

    def __init__(self, arena: Arena, layers_per_band: int) -> None:
        self._arena = arena
        self._where = arena.buffer.device
        self._zeroed = arena.books.config.hand_out_state == "zero"
        self._coefficients: dict[int, float] = {}
        self.rows = [
            self._row(band, index, layer, number, row.name)
            for index, band in enumerate(arena.plan.bands)
            if band.kind == "state"
            for layer in spread_layers(band, layers_per_band)
            for number, row in enumerate(row for row in band.rows if row.layer == layer)
        ]

    def _row(self, band: BandPlan, index: int, layer: int, number: int, name: str) -> StateRow:
        view = float_view(self._arena, layer, name)
        salt = torch.full((1,), layer * 64 + number, dtype=torch.int64, device=self._where)
        values = row_values(mix(salt), view[0].numel(), layer, PATTERN).flatten()
        # ± 0.5 … 1: no element is so small that a wrong state would hide in it.
        pattern = torch.where(values < 0, values - 1, values + 1) / 2
        return StateRow(band, index, layer, name, view, pattern, state_tolerance(view.dtype))

    def step(self, batch: Batch, slow: int) -> Iterator[CheckedState]:
        """Check the states of the batch and take them one step further, through the tables."""
        if not self.rows:
            return
        requests = batch.requests.tolist()
        before = [self._coefficients.get(request) for request in requests]
        inputs = state_inputs(batch.requests, batch.stops)
        for request, old, value in zip(requests, before, inputs.tolist(), strict=True):
            self._coefficients[request] = DECAY * (old or 0.0) + value
        # What a first forward finds is checked too, where the arena hands states out as zeros.
        keep = [self._zeroed or old is not None for old in before]
        slots = self._arena.books.ledger.state[batch.rows, 0]
        inputs_there = upload(inputs, self._where)
        numbers = self._upload(slots, keep, [old or 0.0 for old in before])
        for row in self.rows:
            mirror = self._arena.device.mirror(row.band_index)
            yield self._check(row, mirror, numbers, inputs_there, slow)

    def leaving(self, request: int) -> Iterator[CheckedState]:
        """Check a request's states for the last time, where the host's tables say that they are."""
        coefficient = self._coefficients.pop(request, None)
        if coefficient is None:
            return
        for row in self.rows:
            slots, _ = self._arena.pages_of(request, row.band.name)
            yield self._check(row, None, self._upload(slots[:1], [True], [coefficient]), None, 0)

    def _upload(
        self, slots: np.ndarray, keep: Sequence[bool], expected: Sequence[float]
    ) -> _Numbers:
        there = upload(np.stack([slots, np.array(keep, np.int64)]), self._where)
        return _Numbers(there[0], there[1], upload(np.array(expected, np.float32), self._where))

    def _check(
        self,
        row: StateRow,
        mirror: torch.Tensor | None,
        numbers: _Numbers,
        inputs: torch.Tensor | None,
        slow: int,
    ) -> CheckedState:
        wrong = torch.zeros_like(numbers.slots, dtype=torch.int32)
        unmapped = torch.zeros_like(wrong)
        worst = torch.zeros_like(wrong, dtype=torch.float32)
        kernels.state_step(
            row.view, mirror, numbers.slots, keep=numbers.keep, inputs=inputs, pattern=row.pattern,
            decay=DECAY, expected=numbers.expected, tolerance=row.tolerance, unmapped=unmapped,
            wrong=wrong, worst=worst, slow=slow,
        )  # fmt: skip
        return CheckedState(row, torch.where(wrong > 0, worst, 0.0), unmapped)


def state_tolerance(dtype: torch.dtype) -> float:
    """Largest share that an element of a right state may be off.

    Each step rounds to `dtype`, by at most half of its `eps` as a share. A rounding is halved with
    the state by every later step; seen from a state s, what was rounded k steps before was at most
    2^k × s, and at most 512 × s (inputs lie in 1/16 … 16). So the roundings add up to at most 11
    halves of `eps`; the constant is for the float32 arithmetic of the kernel.
    """
    return 8 * float(torch.finfo(dtype).eps) + 2e-6


def state_inputs(requests: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """What a forward adds to the coefficients of its requests, which have `stops` tokens then:
    (batch,) float32 from 1/16 to 16, log-uniform by a hash. Two states hardly ever agree by
    accident as float32; as bfloat16, where 6 % pass, about one pair in thirty does."""
    mixed = mix(torch.from_numpy(requests * 1_000_003 + stops)).numpy()
    share = ((mixed >> 20) & 0xFFFFFF) / float(1 << 24)
    return np.exp2(8 * share - 4).astype(np.float32)
