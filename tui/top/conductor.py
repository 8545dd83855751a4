"""Who drives a source: a thread of its own, or the caller (in tests)."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any, Protocol

from bandscope.allocator.errors import BandscopeError
from bandscope.tui.top.snapshot import Snapshot
from bandscope.tui.top.source import Source

_BUSY_SECONDS = 0.02  # between two pieces of work, so that keys come in between
_LEAST_SECONDS = 0.005
_REST_SECONDS = 1.0  # where only the number of new events changes

# Told with a snapshot, or with words about what went wrong.
Post = Callable[[Snapshot | str], None]


class Conductor(Protocol):
    """Takes questions; posts snapshots."""

    def ask(self, what: str, value: Any = None) -> None: ...

    def run(self, post: Post) -> None:
        """Post snapshots. A conductor with a thread returns when it is stopped."""

    def stop(self) -> None: ...


class ThreadConductor:
    """`run` belongs on a thread: it looks for news every `refresh` seconds, and at every question.

    `make`: opens the source, on that thread. The source is touched by no other thread.
    """

    def __init__(self, make: Callable[[], Source], refresh: float) -> None:
        self._make = make
        self._refresh = refresh
        self._questions: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()

    def ask(self, what: str, value: Any = None) -> None:
        """Leave a question; the answer is in a snapshot."""
        self._questions.put((what, value))

    def stop(self) -> None:
        """Let `run` return."""
        self._questions.put(None)

    def run(self, post: Post) -> None:
        """Read until stopped. What goes wrong is told, and tried again with the next look."""
        try:
            source = self._make()
        except (BandscopeError, OSError) as error:
            post(str(error))
            return
        due = time.monotonic()
        while True:
            try:
                snapshot = source.tick()
                if snapshot is not None:
                    post(snapshot)
            except Exception as error:  # a damaged file may break a reader in any way
                post(f"reading failed: {type(error).__name__}: {error}")
            now = time.monotonic()
            if now >= due:
                resting = bool(getattr(source, "resting", False))
                period = max(self._refresh, _REST_SECONDS) if resting else self._refresh
                due = max(due + period, now)  # the work is part of the period
            busy = bool(getattr(source, "busy", False))
            try:
                wait = _BUSY_SECONDS if busy else due - now
                question = self._questions.get(timeout=max(_LEAST_SECONDS, wait))
                while True:
                    if question is None:
                        return
                    try:
                        source.ask(*question)
                    except Exception as error:
                        post(f"{question[0]} failed: {type(error).__name__}: {error}")
                    question = self._questions.get_nowait()
            except queue.Empty:
                continue


class DirectConductor:
    """Asks and answers at once, on the caller's thread; `tick` looks for news."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._post: Post | None = None

    def run(self, post: Post) -> None:
        """Post what is there."""
        self._post = post
        self.tick()

    def ask(self, what: str, value: Any = None) -> None:
        """Ask and post the answer."""
        self.source.ask(what, value)
        self.tick()

    def tick(self) -> None:
        """Look for news."""
        if self._post is not None:
            snapshot = self.source.tick()
            if snapshot is not None:
                self._post(snapshot)

    def stop(self) -> None:
        """Nothing more is posted."""
        self._post = None
