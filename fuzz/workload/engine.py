"""What the scheduler is given: its settings, the cost of a step, and the model's part of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class StepCost:
    """Seconds of one forward in the virtual clock: a fixed part, and parts per token.

    The defaults are of the order of a 20B-class mixture-of-experts model on one H200; they set how
    fast requests pile up, not how memory behaves.
    """

    step_seconds: float = 0.008
    prefill_token_seconds: float = 0.000_02
    decode_request_seconds: float = 0.000_02

    def seconds(self, prefill_tokens: int, decoding: int) -> float:
        return (
            self.step_seconds
            + prefill_tokens * self.prefill_token_seconds
            + decoding * self.decode_request_seconds
        )


@dataclass(frozen=True)
class SchedulerConfig:
    """`chunk_tokens`: prefill tokens per step. `max_running`: requests at once. `output_reserve`:
    share of a request's outstanding output that admission sets aside (1: the worst case, so that
    admitted requests finish; less: more at once, with retractions). `urgent_compact_share`: share of
    the steps, drawn by `seed`, after which every band is packed at once although nobody asks for it:
    pressure for tests of what moves under readers."""

    chunk_tokens: int = 8192
    max_running: int = 1024
    output_reserve: float = 1.0
    compact_every_steps: int = 1
    urgent_compact_share: float = 0.0
    seed: int = 0
    cost: StepCost = StepCost()


class Forward(Protocol):
    """The model's part of a step, for drivers that check content. `spans` are (request, first
    token, stop token) that this forward computes."""

    def entering(self, request: int, key: np.ndarray | None, tokens: int) -> None:
        """The request was admitted, its first `tokens` tokens from the prefix cache; `key` names the
        content of its pages (None: nobody else's)."""

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        """Write and read the arena as a model would."""

    def leaving(self, request: int, tokens: int) -> None:
        """The request is about to be released with `tokens` computed: last look at its content."""


class NoForward:
    """A model that touches nothing."""

    def entering(self, request: int, key: np.ndarray | None, tokens: int) -> None:
        pass

    def run(self, ticket: int, spans: list[tuple[int, int, int]]) -> None:
        pass

    def leaving(self, request: int, tokens: int) -> None:
        pass
