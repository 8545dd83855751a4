"""The engine's side of a replay: forwards, copies and waiting, on any device, as the books say.

A trace holds what was asked of the arena, not what its forwards touched; but that follows from the
books: a forward reads all that its requests hold, and writes the pages of tokens that no forward has
written yet, and all of their state. The holder of a lease reads its pages; one for a transfer writes
them. On `sim` every access is checked for content and order, on `cpu` and `cuda` the bytes are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bandscope.allocator import operations as ops
from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.device import open_device
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import DeviceError
from bandscope.allocator.events import NullObserver, Observer
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.tables import Pages
from bandscope.fuzz.devices import open_fuzz_device
from bandscope.fuzz.simulated import SimulatedDevice
from bandscope.inspect.reader import Trace

DEVICES = ("none", "sim", "cpu", "cuda")
# A simulated device keeps about 40 bytes per cell; above this it would not fit a small machine.
_CELLS_MAX = 1 << 26

Accesses = dict[int, tuple[Pages, Pages]]


class _StateCopies(NullObserver):
    """Keeps the copies of states that an operation made (band index and virtual slots) and its grafts
    (band index, old and new virtual pages)."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []
        self.grafts: list[tuple[int, Pages, Pages]] = []
        self.names: dict[str, int] = {}

    def state_copy(
        self, band: str, source: int, destination: int, from_page: int, to_page: int, why: str
    ) -> None:
        self.made.append((self.names[band], source, destination))

    def graft(self, request: int, band: str, virtual: Pages, into: Pages) -> None:
        self.grafts.append((self.names[band], virtual.copy(), into.copy()))


class ReplayEngine:
    """An `inspect.replay.Engine`. `device`: one of `DEVICES`; `schedule`: the order in which a simulated
    one works."""

    def __init__(self, device: str = "sim", schedule: str = "eager") -> None:
        self.device = open_fuzz_device(device, schedule)
        self.arena_device = self.device.arena_device
        self._copies = _StateCopies()
        watching = self.device.observer
        self.observers: tuple[Observer, ...] = (self._copies,)
        if watching is not None:
            self.observers = watching, self._copies
        self._touched: Accesses = {}
        self._in_flight: set[int] = set()  # forwards that nobody has waited for

    def begin(self, arena: Arena) -> None:
        """The arena is as the keyframe says. What its pages hold by then is not known."""
        self.arena = arena
        self._copies.names = {band.name: band.index for band in arena.books.bands}
        self.device.begin(arena)

    def before(self, operation: Operation) -> None:
        """What the engine does first: see that work is done before it says so."""
        self.device.step += 1
        match operation:
            case ops.Complete(ticket=ticket):
                self.device.finish(ticket)
                self._in_flight.discard(ticket)
            case ops.EndLease(lease=lease):
                self.device.end_copies(lease)
            case ops.Launch(requests=requests):
                known = self.arena.books.ledger.row_of
                running = all(request in known for request in requests)
                self._touched = accesses(self.arena, requests) if running else {}

    def after(self, operation: Operation, outcome: Outcome) -> list[Violation]:
        """What it does then: run the forward, copy the leased pages."""
        for copy in self._copies.made:
            self.device.state_copied(*copy)
        for graft in self._copies.grafts:
            self.device.grafted(*graft)
        self._copies.made.clear()
        self._copies.grafts.clear()
        if outcome.ok:
            if isinstance(operation, ops.Launch):
                self.device.forward_over(outcome.value, self._touched)
                self._in_flight.add(outcome.value)
            elif isinstance(operation, ops.Lease):
                self._copy(outcome.value, operation)
        return self.device.take_violations()

    def _copy(self, number: int, lease: ops.Lease) -> None:
        pin = self.arena.books.pins.held(number)
        if isinstance(self.device, SimulatedDevice) and lease.purpose == "transfer":
            self.device.copy_over(number, pin.band, pin.virtual, "writes")
        else:
            self.device.copy_over(number, pin.band, pin.virtual)

    def finish(self) -> list[Violation]:
        """Run everything to its end, also forwards that the trace does not see completed: a GPU tells
        what it found only when nothing is in flight."""
        self.device.drain()
        for ticket in sorted(self._in_flight):
            self.device.finish(ticket)
        return self.device.take_violations()


def accesses(arena: Arena, requests: Sequence[int]) -> Accesses:
    """By band index, the virtual pages that a forward over running requests reads, and those that it
    writes; asked before its launch, which counts their tokens as written."""
    books = arena.books
    ledger, size = books.ledger, arena.plan.page_size
    rows = ledger.rows(requests)
    stops = ledger.page_count[rows]
    written = np.minimum(ledger.launched[rows] // size, stops)
    found: Accesses = {}
    for index in range(len(books.bands)):
        if index == books.state:
            slots = [ledger.state_slots(row) for row in rows.tolist()]
            held = np.concatenate(slots) if slots else np.empty(0, np.int64)
            found[index] = held, held
            continue
        first = np.zeros(rows.size, np.int64)
        if index in books.windows:
            first = ledger.first_kept[rows, books.windows.index(index)]
        reads = ledger.spans(rows, first, stops)
        found[index] = reads, ledger.spans(rows, np.maximum(first, written), stops)
    return found


def open_engine(trace: Trace, device: str, schedule: str = "eager") -> ReplayEngine:
    """The engine for one replay of a trace; `DeviceError` when a simulated device would be too large."""
    if device == "sim":
        header = trace.header
        sizes = [band["page_bytes"] for band in header["bands"]]
        cells = header["arena"]["total_bytes"] // int(np.gcd.reduce(sizes))
        if cells > _CELLS_MAX:
            raise DeviceError(
                f"trace {trace.path} was to be replayed on a simulated device, which would need "
                f"{cells:,} cells (at most {_CELLS_MAX:,}); use --device none, or cpu where the arena "
                "fits"
            )
    return ReplayEngine(device, schedule)


def open_timed(device: str) -> Device:
    """A device that only the arena works on, for timing it."""
    return SimulatedDevice() if device == "sim" else open_device(device)
