"""Results of a forward that checks itself: they stay on the device, travel to the host without
anybody waiting, and are judged there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

MISMATCHES_KEPT = 20


@dataclass(frozen=True)
class WrongResult:
    """One request of one forward whose attention or state was wrong, or that met unmapped pages.

    `what`: `write`, `attention`, or `state <row>`. `error`: the largest difference of an element;
    infinite or NaN where the arena held no number. `unmapped`: tokens (or slots) without a page.
    """

    ticket: int
    request: int
    band: str
    layer: int
    what: str
    error: float
    unmapped: int

    def __str__(self) -> str:
        return (
            f"content: request {self.request}, band {self.band}, layer {self.layer}, ticket "
            f"{self.ticket}: {self.what} off by {self.error:.3g}, {self.unmapped} tokens unmapped"
        )


@dataclass(frozen=True)
class Checked:
    """What one check of one layer found, per request of `requests`: `errors` (requests,) float and
    `unmapped` (requests,) int32, both on the device. More than `tolerance` is wrong."""

    ticket: int
    requests: Sequence[int]
    band: str
    layer: int
    what: str
    tolerance: float
    errors: torch.Tensor
    unmapped: torch.Tensor


@dataclass(frozen=True)
class _Sent:
    # `numbers` (2, results) float64 on the host: errors, unmapped; valid once `arrived` has passed.
    checks: list[Checked]
    numbers: torch.Tensor
    arrived: torch.cuda.Event | None


class Findings:
    """Everything that was checked: `keep` it, `send` it now and then, `judge` what has arrived.

    `mismatch_count` counts wrong results, `mismatches` holds the first of them. `error_max`: the
    largest difference of attention that passed, to see how much of the tolerance is used.
    """

    def __init__(self) -> None:
        self.mismatch_count = 0
        self.mismatches: list[WrongResult] = []
        self.error_max = 0.0
        self._kept: list[Checked] = []
        self._sent: deque[_Sent] = deque()

    def __bool__(self) -> bool:
        """Is there something that was not sent yet?"""
        return bool(self._kept)

    def keep(self, checked: Checked) -> None:
        """Remember results that lie on the device."""
        self._kept.append(checked)

    def send(self) -> None:
        """Start copying what is kept to the host, on the current stream, which made it."""
        if not self._kept:
            return
        checks, self._kept = self._kept, []
        numbers = torch.stack(
            [
                torch.cat([checked.errors.double() for checked in checks]),
                torch.cat([checked.unmapped.double() for checked in checks]),
            ]
        )
        arrived = None
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = pinned.copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._sent.append(_Sent(checks, numbers, arrived))

    def judge(self, *, wait: bool) -> None:
        """Look at what has arrived; with `wait` at all that was sent."""
        while self._sent:
            sent = self._sent[0]
            if sent.arrived is not None:
                if not wait and not sent.arrived.query():
                    return
                sent.arrived.synchronize()
            self._sent.popleft()
            self._judge(sent.checks, *sent.numbers.numpy())

    def _judge(self, checks: list[Checked], errors: np.ndarray, unmapped: np.ndarray) -> None:
        sizes = [len(checked.requests) for checked in checks]
        tolerances = np.repeat([checked.tolerance for checked in checks], sizes)
        wrong = ~(errors <= tolerances) | (unmapped > 0)  # NaN is wrong too
        self.mismatch_count += int(wrong.sum())
        self.error_max = max(self.error_max, float(errors.max(initial=0.0, where=~wrong)))
        stops = np.cumsum(sizes)
        for place in np.flatnonzero(wrong)[: MISMATCHES_KEPT - len(self.mismatches)].tolist():
            number = int(np.searchsorted(stops, place, side="right"))
            checked = checks[number]
            request = checked.requests[place - int(stops[number]) + sizes[number]]
            self.mismatches.append(
                WrongResult(
                    checked.ticket, request, checked.band, checked.layer, checked.what,
                    float(errors[place]), int(unmapped[place]),
                )  # fmt: skip
            )
