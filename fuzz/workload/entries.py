"""The two states of a request in the engine: waiting, and running."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bandscope.fuzz.workload.request import Request


@dataclass(slots=True)
class Waiting:
    """A request in the queue; after a retraction `generated` output tokens count as prompt.

    `output_tokens`: what it will get, None until it was looked at; `chunk_tokens`: the largest chunk
    that an empty memory holds. `restarted`: it ran before and was retracted. `key`: its pages' keys
    for the prefix cache, once it was asked about.
    """

    request: Request
    generated: int = 0
    first_token_seconds: float | None = None
    output_tokens: int | None = None
    chunk_tokens: int = 0
    has_waited: bool = False
    restarted: bool = False
    key: np.ndarray | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens to prefill: the prompt, and what was generated before a retraction."""
        return self.request.prompt_tokens + self.generated

    @property
    def goal_tokens(self) -> int:
        """Prompt and output of a request that was looked at."""
        assert self.output_tokens is not None
        return self.request.prompt_tokens + self.output_tokens


@dataclass(slots=True, eq=False)
class Running:
    """One admitted request; equal to itself only. `computed` tokens have room; `goal` is prompt plus
    output, `reserved` the part of it that admission set aside. It is prefilled in chunks of up to
    `chunk_tokens`. A chunk ends at `fork_tokens` (0: nowhere in particular). `restarted`: it was
    retracted before. `shared_pages`: full pages at its front that
    a running request which ends later holds too."""

    request: Request
    number: int
    admitted_seconds: float
    prompt_tokens: int
    goal_tokens: int
    reserved_tokens: int
    chunk_tokens: int
    computed: int = 0
    first_token_seconds: float | None = None
    fork_tokens: int = 0
    restarted: bool = False
    shared_pages: int = 0

    @property
    def may_give_way(self) -> bool:
        """Whoever was retracted may be retracted again only once it has made a new token."""
        return not self.restarted or self.computed > self.prompt_tokens
