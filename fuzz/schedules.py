"""In which order a simulated device works: who runs next, of those that may.

Four threads take turns: the host, which issues, and the three streams, which work. A schedule chooses
one of the enabled ones whenever there is a choice; the host is enabled unless it waits for a result, a
stream when its next work waits for nothing any more. Schedules are named by strings:

- `eager`: everything is done at once, as it is issued.
- `latest`: nothing is done before the host waits for it, and then only what its result needs, the
  schedule stream's first: forwards run as late as the edges allow, table writes and moves overtake
  them where they may.
- `random:SEED`: each choice by a seeded coin.
- `pct:SEED:d=3:k=200`: probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010). Each of the
  n = 4 threads gets a random priority, and at d − 1 steps, drawn from the first k, the running thread
  falls below all others. If a bug needs d ordering constraints and the run takes at most k steps (host
  calls included), one run finds it with a probability of at least 1 / (n · k^(d − 1)), whatever the
  program: `guarantee` gives the number.
- `steps:LIST`: these choices: `.` the host, `s` the schedule, `f` the forward, `c` the copy stream, a
  number after a letter repeats it. A letter that is not enabled (the program has changed) is passed
  over; after the last one as in `latest`. A device prints the list that repeats what it did.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from bandscope.allocator.errors import ConfigError
from bandscope.fuzz.simulated_work import COPY, FORWARD, HOST, SCHEDULE

THREADS = 4
LETTERS = "sfc."  # by thread: schedule, forward, copy, host
DEPTH_DEFAULT, STEPS_DEFAULT = 3, 200


class Schedule(Protocol):
    """`text`: the string that names it. `eager`: nothing is ever queued, no choice is asked for.
    `keeps_work`: the device keeps what it issues, for an exploration."""

    text: str
    eager: bool
    keeps_work: bool

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        """One of the enabled threads (in the order schedule, forward, copy, host). `needed`: those of
        them that the result needs which the host waits for; all of them when it does not wait."""


class Eager:
    """Everything at once."""

    text = "eager"
    eager, keeps_work = True, False

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        return enabled[0]


class Latest:
    """Nothing before it must."""

    text = "latest"
    eager, keeps_work = False, False

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        return latest(needed)


def latest(needed: Sequence[int]) -> int:
    """The host where it can; else the schedule stream, then copies, then forwards."""
    for thread in (HOST, SCHEDULE, COPY):
        if thread in needed:
            return thread
    return FORWARD


class Random:
    """A coin at each choice."""

    eager, keeps_work = False, False

    def __init__(self, seed: int) -> None:
        self.text = f"random:{seed}"
        self._random = random.Random(f"schedule {seed}").random

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        return enabled[int(self._random() * len(enabled))]


class Pct:
    """Random priorities with `depth` − 1 changes among the first `steps` steps."""

    eager, keeps_work = False, False

    def __init__(self, seed: int, depth: int, steps: int) -> None:
        self.text = f"pct:{seed}:d={depth}:k={steps}"
        rng = random.Random(f"pct {seed} {depth} {steps}")
        self.depth, self.steps = depth, steps
        self.priorities = [depth + place for place in range(THREADS)]
        rng.shuffle(self.priorities)
        # At change i the running thread falls to priority d − 1 − i: below all, earlier changes above.
        points = rng.sample(range(steps), min(depth - 1, steps))
        self._changes = {step: depth - 1 - number for number, step in enumerate(points)}
        self._step = 0

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        priorities = self.priorities
        chosen = max(enabled, key=priorities.__getitem__)
        falls_to = self._changes.get(self._step)
        self._step += 1
        if falls_to is not None:
            priorities[chosen] = falls_to
            chosen = max(enabled, key=priorities.__getitem__)
        return chosen


def guarantee(depth: int, steps: int) -> float:
    """The least probability with which one PCT run of at most `steps` steps finds a bug of `depth`."""
    return float(1 / (THREADS * steps ** (depth - 1)))


class Steps:
    """A list of choices."""

    eager, keeps_work = False, True

    def __init__(self, text: str) -> None:
        self.text = text
        self._letters = _threads(text.removeprefix("steps:"))
        self.passed_over = 0  # letters that were not enabled
        self._following = True

    @property
    def ended(self) -> bool:
        """True once a choice was asked for past the end of the list."""
        return not self._following

    def choose(self, enabled: Sequence[int], needed: Sequence[int]) -> int:
        for thread in self._letters:
            if thread in enabled:
                return thread
            self.passed_over += 1
        self._following = False
        return latest(needed)


def spell(choices: Iterable[int]) -> str:
    """The `steps:` string of a list of choices (threads)."""
    parts: list[str] = []
    for letter, run in _runs(choices):
        parts.append(LETTERS[letter] + (str(run) if run > 1 else ""))
    return "steps:" + "".join(parts)


def _runs(choices: Iterable[int]) -> Iterator[tuple[int, int]]:
    last, count = -1, 0
    for choice in choices:
        if choice != last and count:
            yield last, count
            count = 0
        last = choice
        count += 1
    if count:
        yield last, count


def _threads(letters: str) -> Iterator[int]:
    for letter, count in re.findall(r"([sfc.])(\d*)", letters):
        for _ in range(int(count or 1)):
            yield LETTERS.index(letter)


_PCT = re.compile(r"pct:(\d+)(?::d=(\d+))?(?::k=(\d+))?")


def parse_schedule(text: str) -> Schedule:
    """The schedule of that name, at its beginning; `ConfigError` for another string."""
    if text == "eager":
        return Eager()
    if text == "latest":
        return Latest()
    if match := re.fullmatch(r"random:(\d+)", text):
        return Random(int(match[1]))
    if match := _PCT.fullmatch(text):
        depth, steps = int(match[2] or DEPTH_DEFAULT), int(match[3] or STEPS_DEFAULT)
        if depth > 0 and steps > 0:
            return Pct(int(match[1]), depth, steps)
    if re.fullmatch(r"steps:([sfc.]\d*)*", text):
        return Steps(text)
    raise ConfigError(
        f"schedule {text!r} was asked for; schedules are eager, latest, random:SEED, "
        "pct:SEED:d=DEPTH:k=STEPS (both from 1) and steps:LIST of the letters s, f, c and . with counts"
    )
