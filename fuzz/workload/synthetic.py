"""A seeded generator of requests, shaped after the real traces.

Lengths are log-normal, arrivals a gamma process, and a profile may alternate between phases with
other lengths and another rate. Nothing depends on the time, the process or global state: the same
options and seed give the same requests. One request is made at a time.
"""

import math
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import cast

import numpy as np

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.request import ARRIVAL_SECONDS_MAX, TOKENS_MAX, Request, RequestStream

_NORMAL = NormalDist()
_CV_MAX = 20.0
_REQUESTS_MAX = 10**12


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Whole token counts from 1 to `tokens_max`, log-normal within that range.

    `log_mean` and `log_deviation` are of the natural logarithm before the range cuts it.
    """

    log_mean: float
    log_deviation: float
    tokens_max: int

    def quantile(self, share: float, tokens_max: int | None = None) -> int:
        """The count that this share (0 to 1) of the distribution does not exceed.

        A smaller `tokens_max` cuts the tail off, so the rest is spread over what is left: draws
        do not gather at the limit, and requests made from them do not all end at once.
        """
        limit = self.tokens_max if tokens_max is None else min(tokens_max, self.tokens_max)
        # Half a token either way, so that rounding gives the ends their full share.
        low = _NORMAL.cdf((math.log(0.5) - self.log_mean) / self.log_deviation)
        high = _NORMAL.cdf((math.log(limit + 0.5) - self.log_mean) / self.log_deviation)
        probability = low + share * (high - low)
        if not 0.0 < probability < 1.0:
            return 1 if probability <= 0.0 else limit
        tokens = math.exp(self.log_mean + self.log_deviation * _NORMAL.inv_cdf(probability))
        return min(max(round(tokens), 1), limit)


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests of one kind; `rate_share` is this phase's rate over the mean rate.

    `system_prompts`: prompts begin with one of so many texts of `system_tokens` tokens, the first one
    most often (the n-th with weight 1 / n); 0: nothing is shared.
    """

    prompt: LogNormal
    output: LogNormal
    rate_share: float = 1.0
    system_prompts: int = 0
    system_tokens: int = 0


_CONVERSATION = Phase(LogNormal(8.830, 1.148, 126_195), LogNormal(5.827, 0.497, 2_000))
_CODE = Phase(LogNormal(7.861, 1.679, 7_437), LogNormal(2.499, 1.271, 1_899))
_CHAT = Phase(LogNormal(6.991, 0.609, 14_050), LogNormal(4.936, 0.730, 1_000))
_AGENTIC = Phase(LogNormal(11.271, 0.827, 755_680), LogNormal(5.307, 1.212, 12_162))
_REASONING = Phase(LogNormal(5.247, 2.079, 57_284), LogNormal(6.655, 1.202, 32_768))

#: The phases of each profile, in turn. `docs/workloads.md` says how the numbers were fitted.
PROFILES: dict[str, tuple[Phase, ...]] = {
    "agentic": (_AGENTIC,),
    "chat": (_CHAT,),
    "code": (_CODE,),
    "conversation": (_CONVERSATION,),
    "reasoning": (_REASONING,),
    # Few long prompts, then many short requests: the balance between bands has to follow.
    "shift": (
        Phase(_CONVERSATION.prompt, _CONVERSATION.output, rate_share=0.5),
        Phase(_CHAT.prompt, _CHAT.output, rate_share=1.5),
    ),
    # The same with prompts that begin alike: the long ones with one of two tool descriptions, the short
    # ones with one of eight system prompts. The cache has to follow, too.
    "shift-shared": (
        Phase(_CONVERSATION.prompt, _CONVERSATION.output, 0.25, system_prompts=2, system_tokens=2048),
        Phase(_CHAT.prompt, _CHAT.output, 1.75, system_prompts=8, system_tokens=1024),
    ),
}
#: Tokens of a block of a generated prompt: whole pages of every usual size.
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """What to generate. The defaults are a minute of load that shifts its mode six times.

    `rate` is the mean number of requests a second, and `cv` the coefficient of variation of the
    gaps between them: 1 is a Poisson process, more is bursty, 0 is evenly spaced. `phase_seconds`
    is how long a phase of the profile lasts. The token limits cut the distributions, as
    `LogNormal.quantile` says; 0 leaves them as fitted. Raises WorkloadError for a value that
    makes no sense.
    """

    requests: int = 300
    rate: float = 5.0
    cv: float = 1.0
    profile: str = "shift"
    phase_seconds: float = 10.0
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise WorkloadError(
                f"There is no synthetic profile {self.profile!r}; there are "
                f"{', '.join(sorted(PROFILES))}."
            )
        allowed: list[tuple[str, float, float, float]] = [
            ("requests", self.requests, 1, _REQUESTS_MAX),
            ("rate", self.rate, 1e-6, 1e6),
            ("cv", self.cv, 0.0, _CV_MAX),
            ("phase_seconds", self.phase_seconds, 1e-3, ARRIVAL_SECONDS_MAX),
            ("max_prompt_tokens", self.max_prompt_tokens, 0, TOKENS_MAX),
            ("max_output_tokens", self.max_output_tokens, 0, TOKENS_MAX),
        ]
        for name, value, low, high in allowed:
            # Written so that a NaN is refused too.
            if not low <= value <= high:
                raise WorkloadError(
                    f"The synthetic option {name} is {value}; it must be {low:g} to {high:g}."
                )
        if self.requests / self.rate > ARRIVAL_SECONDS_MAX:
            raise WorkloadError(
                f"{self.requests:,} synthetic requests at a rate of {self.rate:g} a second take "
                "more than ten years; raise the rate."
            )


_OPTIONS = fields(SyntheticOptions)


def parse_options(text: str) -> SyntheticOptions:
    """Options from `key=value,key=value`, or a profile by its name alone. Raises WorkloadError naming
    the key that is wrong."""
    kinds = {option.name: cast(type[int | float | str], option.type) for option in _OPTIONS}
    values: dict[str, int | float | str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        part = f"profile={part}" if part in PROFILES else part
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in kinds:
            raise WorkloadError(
                f"{part!r} is no synthetic option; write KEY=VALUE with a key of "
                f"{', '.join(kinds)}."
            )
        if key in values:
            raise WorkloadError(f"The synthetic option {key} is given twice.")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            kind = "a whole number" if kinds[key] is int else "a number"
            raise WorkloadError(
                f"The synthetic option {key} is {value!r}; it must be {kind}."
            ) from None
    return SyntheticOptions(**values)  # type: ignore[arg-type]


def generate(options: SyntheticOptions, seed: int = 0) -> RequestStream:
    """Yield `options.requests` requests in arrival order; the same ones for the same seed."""
    # Arrivals and lengths from separate streams: another rate or burstiness keeps the lengths of
    # a profile of one phase, so two runs differ in one thing only.
    gap_seed, length_seed, shared_seed = np.random.SeedSequence(seed).spawn(3)
    gaps = np.random.Generator(np.random.PCG64(gap_seed))
    lengths = np.random.Generator(np.random.PCG64(length_seed))
    choices = np.random.Generator(np.random.PCG64(shared_seed))
    clock = _PhaseClock(PROFILES[options.profile], options.rate, options.phase_seconds)
    prompt_limit = options.max_prompt_tokens or None
    output_limit = options.max_output_tokens or None
    for index in range(options.requests):
        phase = clock.advance(_unit_gap(gaps, options.cv))
        prompt_tokens = phase.prompt.quantile(lengths.random(), prompt_limit)
        output_tokens = phase.output.quantile(lengths.random(), output_limit)
        blocks: np.ndarray | None = None
        if phase.system_prompts:
            prompt_tokens += phase.system_tokens
            if prompt_limit is not None:
                prompt_tokens = min(prompt_tokens, prompt_limit)
            blocks = _blocks(phase, index, prompt_tokens, choices.random())
        yield Request(
            index=index,
            arrival_seconds=clock.seconds,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prefix_blocks=blocks,
            block_tokens=0 if blocks is None else BLOCK_TOKENS,
        )


def _blocks(phase: Phase, index: int, prompt_tokens: int, share: float) -> np.ndarray:
    """Block ids of a prompt that begins with a system prompt, chosen by `share` (0 to 1)."""
    weights = 1 / np.arange(1, phase.system_prompts + 1)
    chosen = int(np.searchsorted(np.cumsum(weights) / weights.sum(), share, side="right"))
    # Texts of other lengths are other texts; what follows is the request's own.
    text = (phase.system_tokens << 20) + (chosen << 10)
    blocks = ((index + 1) << 40) + np.arange(-(-prompt_tokens // BLOCK_TOKENS), dtype=np.int64)
    shared = min(blocks.size, phase.system_tokens // BLOCK_TOKENS)
    blocks[:shared] = text + np.arange(shared)
    blocks.flags.writeable = False
    return blocks


def _unit_gap(random: np.random.Generator, cv: float) -> float:
    """A gap of mean 1 with this coefficient of variation."""
    if cv == 0.0:
        return 1.0
    shape = 1.0 / (cv * cv)
    return float(random.standard_gamma(shape)) / shape


class _PhaseClock:
    """Time that runs through phases in turn; gaps are counted in expected requests, not seconds."""

    def __init__(self, phases: tuple[Phase, ...], rate: float, phase_seconds: float) -> None:
        self.seconds = 0.0
        self._phases = phases
        self._rates = [rate * phase.rate_share for phase in phases]
        self._phase_seconds = phase_seconds
        self._phase_number = 0

    def advance(self, expected_requests: float) -> Phase:
        """Move on until this many requests were to be expected; return the phase it is then."""
        if len(self._phases) == 1:
            self.seconds += expected_requests / self._rates[0]
            return self._phases[0]
        # Whole rounds at once, so that a long gap over short phases costs no time.
        round_requests = sum(self._rates) * self._phase_seconds
        rounds = math.floor(expected_requests / round_requests)
        self.seconds += rounds * len(self._phases) * self._phase_seconds
        self._phase_number += rounds * len(self._phases)
        left = expected_requests - rounds * round_requests
        while True:
            place = self._phase_number % len(self._phases)
            phase_end = (self._phase_number + 1) * self._phase_seconds
            until_end = max(phase_end - self.seconds, 0.0) * self._rates[place]
            if left < until_end:
                self.seconds += left / self._rates[place]
                return self._phases[place]
            left -= until_end
            self.seconds = max(self.seconds, phase_end)
            self._phase_number += 1
