"""Planted faults: small, named changes of the allocator that a campaign must find.

`FAULTS` holds them all by name; `FAULTS[name].plant()` is a context in which the allocator has that
fault. Production code has no switches: see `planting`. Not planted, since nothing here could have
them: a host pool used without a lease (there is none), a check that takes a healthy state for a leak
(that is a fault of the checks: a false alarm), and faults inside a device (its own tests have those).
"""

from __future__ import annotations

from bandscope.fuzz.faults import (
    boundaries,
    caching,
    capacity,
    grafting,
    misuse,
    moves,
    ordering,
    releases,
    tables,
    transfers,
)
from bandscope.fuzz.faults.planting import Fault, StaleFaultError

__all__ = ["FAULTS", "Fault", "StaleFaultError"]

_MODULES = (
    releases, moves, ordering, capacity, transfers, tables, boundaries, misuse, caching, grafting
)  # fmt: skip

FAULTS: dict[str, Fault] = {}
for _module in _MODULES:
    for _fault in _module.FAULTS:
        if _fault.name in FAULTS:
            raise ValueError(f"two faults are called {_fault.name!r}")
        FAULTS[_fault.name] = _fault
