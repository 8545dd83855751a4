"""Who holds pages, since when and by which operation; what was never given back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bandscope.inspect.reader import Trace


@dataclass
class Holding:
    """Pages that one owner holds in one band.

    `owner`: a request, or the holder's name of a lease that pins (`lease` is its number, else 0).
    `virtual`, `physical`: the pages, shape (pages,). `leased_at`: the event that leased each (−1:
    before what the trace can tell). `operation` and `sequence`: the kind of the operation that leased
    the oldest page, and its event. `age_events`, `age_ns`: of the oldest page (−1: unknown).
    """

    owner: int | str
    lease: int
    band: str
    virtual: np.ndarray
    physical: np.ndarray
    leased_at: np.ndarray
    operation: str
    sequence: int
    age_events: int
    age_ns: int
    bytes: int


@dataclass
class Growth:
    """Pages held at several instants, of those that operations of one kind leased in one band.

    `sequences` and `pages`: shape (samples,). `pages_per_kevent`: the slope, fitted.
    """

    band: str
    operation: str
    sequences: list[int]
    pages: list[int]
    pages_per_kevent: float


@dataclass
class LeakReport:
    """What is held at event `at`, and what of it nobody will give back.

    `verdict`: `clean`, `leak` (the trace ended cleanly and pages are held) or `live at end of data`
    (running, killed, cut or an instant in the middle: nothing can be said). `double_owners`: (band,
    virtual page, first owner, second owner, event). `unended`: leases that pin and have not ended.
    `gaps`: stretches of events that could not be used.
    """

    at: int
    ending: str
    verdict: str
    holdings: list[Holding] = field(default_factory=list)
    unended: list[Holding] = field(default_factory=list)
    double_owners: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data; pages as lists."""
        return _plain(asdict(self))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def find_leaks(trace: Trace, at: int | None = None) -> LeakReport:
    """Who holds what before event `at` (the end of the trace when None)."""
    raise NotImplementedError
