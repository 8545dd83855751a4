"""Who goes first: rules that give requests a priority, and the queue that keeps to it.

No trace of the collection says how urgent a request is, so a rule does (`--priority`):

- `none`: everybody is equal, first come first served.
- `short-prompts` or `short-prompts:TOKENS`: prompts of up to 1,024 (or TOKENS) tokens get priority 1, as
  an engine prefers interactive requests to batch work.
- `random:SHARE`: a share of the requests, drawn by the seed, gets priority 1.
- `clients:NAME,NAME`: requests of these clients (conversations, sessions) get priority 1.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from bandscope.allocator.errors import ConfigError
from bandscope.fuzz.workload.entries import Waiting
from bandscope.fuzz.workload.request import Request

SHORT_PROMPT_TOKENS = 1024

_FORM = (
    "give none, short-prompts, short-prompts:TOKENS, random:SHARE with a share from 0 to 1, or "
    "clients:NAME,NAME"
)

Rule = Callable[[Request], int]


def parse_priority(text: str, seed: int = 0) -> Rule | None:
    """The rule of that name, from a request to its priority; None for `none`. `ConfigError` says how
    rules are written."""
    name, colon, rest = text.partition(":")
    if name == "none" and not colon:
        return None
    if name == "short-prompts":
        limit = int(rest) if rest.isascii() and rest.isdigit() else 0
        if not colon:
            limit = SHORT_PROMPT_TOKENS
        if limit > 0:
            return lambda request: int(request.prompt_tokens <= limit)
    if name == "random":
        try:
            share = float(rest)
        except ValueError:
            share = -1.0
        if 0 <= share <= 1:
            # By the request's number, not by what was drawn before: a part of a trace keeps its own.
            return lambda request: int(random.Random(f"{seed} {request.index}").random() < share)
    if name == "clients" and all(rest.split(",")):
        clients = frozenset(rest.split(","))
        return lambda request: int(request.client in clients)
    raise ConfigError(f"--priority {text} was asked for; {_FORM}")


def with_priority(requests: Iterable[Request], rule: Rule | None) -> Iterator[Request]:
    """The same requests with the priorities of a rule."""
    for request in requests:
        priority = rule(request) if rule is not None else request.priority
        yield request if priority == request.priority else replace(request, priority=priority)


class WaitingQueue:
    """Waiting requests: the highest priority first, and within one in the order of their arrival.
    Who was retracted goes back to the head of its own priority."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Waiting]] = {}
        self._highest_first: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting]:
        """In the order in which they would be admitted."""
        for priority in self._highest_first:
            yield from self._queues[priority]

    def append(self, entry: Waiting) -> None:
        """Behind everybody of its priority."""
        self._queue(entry.request.priority).append(entry)

    def appendleft(self, entry: Waiting) -> None:
        """Before everybody of its priority."""
        self._queue(entry.request.priority).appendleft(entry)

    @property
    def head(self) -> Waiting:
        """Who is to be admitted next; `IndexError` when nobody waits."""
        return self._queues[self._highest_first[0]][0]

    def popleft(self) -> Waiting:
        """Take the head out."""
        priority = self._highest_first[0]
        queue = self._queues[priority]
        entry = queue.popleft()
        self._count -= 1
        if not queue:
            del self._queues[priority]
            self._highest_first.remove(priority)
        return entry

    def _queue(self, priority: int) -> deque[Waiting]:
        self._count += 1
        if priority not in self._queues:
            self._queues[priority] = deque()
            self._highest_first = sorted(self._queues, reverse=True)
        return self._queues[priority]
