"""Devices for tests of order: they keep what they are asked, and know which bytes it touches.

`RecordingDevice` keeps the calls. `HazardDevice` also refuses a write that no barrier or completion
ordered behind the launched forward that touches the same bytes. `PaperRun` drives the real
`CudaDevice` over streams, events and kernels that exist on paper only, and finds every pair of
accesses to the same bytes that its streams leave unordered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bandscope.allocator.arena import Arena
from tests.allocator.arenas import P2M, EventLog, byte_units, small_arena


class RecordingDevice:
    """A device that keeps the calls it gets, in order, and does nothing."""

    name = "recording"
    buffer = None
    host_waits = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def allocate(self, total_bytes: int, page_bytes: Any, virtual_pages: Any) -> None:
        self.total_bytes, self.page_bytes = total_bytes, list(page_bytes)

    def move(self, band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
        self.calls.append(("move", band, sources.tolist(), destinations.tolist()))

    def copy(self, band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
        self.move(band, sources, destinations)
        self.calls[-1] = ("copy", *self.calls[-1][1:])

    def fill(self, band: int, pages: np.ndarray, value: int) -> None:
        self.calls.append(("fill", band, pages.tolist(), value))

    def issue_fills(self) -> None:
        pass

    def publish(self, band: int, virtual: np.ndarray, physical: np.ndarray) -> None:
        self.calls.append(("publish", band, virtual.tolist(), physical.tolist()))

    def mirror(self, band: int) -> None:
        return None

    def launch(self, ticket: int) -> None:
        self.calls.append(("launch", ticket))

    def forward(self, ticket: int) -> AbstractContextManager[None]:
        return nullcontext()

    def is_complete(self, ticket: int) -> bool:
        raise AssertionError("the arena asked the device whether work is done")

    def wait(self, ticket: int) -> None:
        raise AssertionError("the arena made the host wait")

    def order_behind(self, ticket: int) -> None:
        self.calls.append(("order_behind", ticket))

    def order_behind_reads(self, ticket: int) -> None:
        self.calls.append(("order_behind_reads", ticket))

    def synchronize(self) -> None:
        raise AssertionError("the arena synchronized the device")

    def names(self) -> list[str]:
        """What was called, in order."""
        return [str(call[0]) for call in self.calls]

    def take(self) -> list[tuple[Any, ...]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


def recorded(layout: Any, **options: Any) -> tuple[Arena, RecordingDevice, EventLog]:
    """An arena whose device keeps the calls."""
    device, log = RecordingDevice(), EventLog()
    return small_arena(layout, device=device, observer=log, **options), device, log


def full_house(**options: Any) -> tuple[Arena, RecordingDevice, EventLog]:
    """P2m with 16 pages of 1 token each held by 4 requests, and a forward over two in flight."""
    arena, device, log = recorded(P2M, page_size=1, **options)
    for request in range(4):
        arena.admit(request, state_slots=0)
        arena.extend(request, 4)
    arena.launch([0, 1])
    device.take()
    log.clear()
    return arena, device, log


class HazardDevice(RecordingDevice):
    """A device that knows which bytes launched forwards touch, and rejects unordered writes.

    The test tells it what a forward reads and writes; what is settled it learns only from the
    arena's own barriers and from completions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arena: Arena | None = None
        self.next_access: tuple[np.ndarray, np.ndarray] | None = None
        self.reads: dict[int, np.ndarray] = {}
        self.writes: dict[int, np.ndarray] = {}
        self.ordered = self.tables_ordered = 0
        self.mirrors: list[np.ndarray] = []

    def allocate(self, total_bytes: int, page_bytes: Any, virtual_pages: Any) -> None:
        super().allocate(total_bytes, page_bytes, virtual_pages)
        self.mirrors = [np.full(count, -1, np.int64) for count in virtual_pages]

    def units(self, band: int, numbers: np.ndarray) -> np.ndarray:
        assert numbers.size == np.unique(numbers).size, "one call names a page twice"
        return byte_units(self.page_bytes[band], numbers, self.total_bytes)

    def unsettled(self) -> list[int]:
        return [ticket for ticket in self.reads if ticket > self.ordered]

    def check_write(self, mask: np.ndarray, what: str) -> None:
        for ticket in self.unsettled():
            touched = self.reads[ticket] | self.writes[ticket]
            assert not (mask & touched).any(), f"{what} writes what forward {ticket} may touch"

    def move(self, band: int, sources: np.ndarray, destinations: np.ndarray) -> None:
        super().move(band, sources, destinations)
        source, target = self.units(band, sources), self.units(band, destinations)
        assert not (source & target).any(), "a page is source and destination of one move"
        for ticket in self.unsettled():
            assert not (source & self.writes[ticket]).any(), f"{ticket} may still write a source"
        self.check_write(target, "a move")

    def fill(self, band: int, pages: np.ndarray, value: int) -> None:
        super().fill(band, pages, value)
        self.check_write(self.units(band, pages), "a fill")

    def publish(self, band: int, virtual: np.ndarray, physical: np.ndarray) -> None:
        super().publish(band, virtual, physical)
        newest = max(self.unsettled(), default=0)
        assert self.tables_ordered >= newest, f"rows were written while forward {newest} reads"
        self.mirrors[band][virtual] = physical

    def launch(self, ticket: int) -> None:
        super().launch(ticket)
        assert self.next_access is not None and self.arena is not None
        self.reads[ticket], self.writes[ticket] = self.next_access
        for band, mirror in zip(self.arena.books.bands, self.mirrors, strict=True):
            places = band.table.place_of
            expected = np.where(places >= 0, band.physical(places), -1)
            assert (mirror == expected).all(), f"forward {ticket} reads stale rows of {band.name}"

    def order_behind(self, ticket: int) -> None:
        super().order_behind(ticket)
        self.ordered = max(self.ordered, ticket)
        self.tables_ordered = max(self.tables_ordered, ticket)

    def order_behind_reads(self, ticket: int) -> None:
        super().order_behind_reads(ticket)
        self.tables_ordered = max(self.tables_ordered, ticket)

    def completed(self, ticket: int) -> None:
        del self.reads[ticket], self.writes[ticket]

    def forward_over(self, requests: list[int]) -> int:
        """Launch a forward over these requests, telling the device what it reads and writes."""
        assert self.arena is not None
        self.next_access = access(self.arena, tuple(requests))
        return self.arena.launch(requests)

    def finish(self, ticket: int) -> None:
        """The forward is over, and the engine says so."""
        assert self.arena is not None
        self.completed(ticket)
        self.arena.complete(ticket)


def hazardous(layout: Any, **options: Any) -> tuple[Arena, HazardDevice, EventLog]:
    """An arena whose device rejects unordered writes."""
    device, log = HazardDevice(), EventLog()
    device.arena = small_arena(layout, device=device, observer=log, **options)
    return device.arena, device, log


def access(arena: Arena, requests: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes a forward over these requests reads, and those it writes, by the definition: it writes
    the rows of tokens that no forward has written yet, and all its state."""
    total, page_size = arena.total_bytes, arena.plan.page_size
    reads = byte_units(1, np.empty(0, np.int64), total)
    writes = reads.copy()
    for request in requests:
        row = arena.books.ledger.row(request)
        first_written = int(arena.books.ledger.launched[row]) // page_size
        for band in arena.plan.bands:
            held, first = arena.pages_of(request, band.name)
            written = held if band.kind == "state" else held[max(0, first_written - first) :]
            reads |= byte_units(band.page_bytes, held, total)
            writes |= byte_units(band.page_bytes, written, total)
    return reads, writes


# --- CUDA on paper --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Something that was issued: the bytes (in units) and tables it touches, and all that it is
    ordered after, by number."""

    number: int
    what: str
    reads: frozenset[Any]
    writes: frozenset[Any]
    after: frozenset[int]

    def conflicts(self, other: Work) -> bool:
        """True when both touch the same bytes and at least one of them writes."""
        touched = other.reads | other.writes
        return bool(self.writes & touched or self.reads & other.writes)


class PaperStream:
    """A stream: what is issued next is ordered after all of `seen`."""

    handles = itertools.count(1)

    def __init__(self) -> None:
        self.seen: frozenset[int] = frozenset()
        self.cuda_stream = next(self.handles)

    def wait_stream(self, other: PaperStream) -> None:
        self.seen |= other.seen

    def wait_event(self, event: PaperEvent) -> None:
        self.seen |= event.seen


class PaperEvent:
    """An event; it never says that it fired, since the arena must not ask."""

    def record(self, stream: PaperStream) -> None:
        self.seen = stream.seen

    def query(self) -> bool:
        return False


class PaperRun:
    """An arena on the real `CudaDevice`, with everything that torch would issue kept as `Work`.

    Only memory, uploads, kernels, streams and events are stood in for; what waits for what is the
    device's own code.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, layout: Any, **options: Any) -> None:
        pytest.importorskip("triton")
        from bandscope.allocator.device import cuda

        self.work: list[Work] = []
        self.current = PaperStream()
        self.page_bytes: list[int] = []
        self.done: dict[int, frozenset[int]] = {}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "stream", self._on)
        monkeypatch.setattr(torch.cuda, "Event", PaperEvent)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: PaperStream())
        monkeypatch.setattr(cuda.CudaDevice, "_upload", lambda device, *numbers: list(numbers))
        monkeypatch.setattr(cuda.kernels, "move_pages", self._move_pages)
        monkeypatch.setattr(cuda.kernels, "fill_pages", self._fill_pages)
        monkeypatch.setattr(cuda.kernels, "publish_rows", self._publish_rows)
        self.device: Any = cuda.CudaDevice()
        monkeypatch.setattr(self.device, "allocate", self._allocate)
        self.log = EventLog()
        self.arena = small_arena(layout, device=self.device, observer=self.log, **options)

    # What the device calls.

    @contextmanager
    def _on(self, stream: PaperStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def _allocate(self, total_bytes: int, page_bytes: Any, virtual_pages: Any) -> None:
        self.total_bytes, self.page_bytes = total_bytes, list(page_bytes)
        self.device._page_bytes = self.page_bytes
        self.device._words = list(range(len(page_bytes)))  # the kernels here want the band only
        self.device._mirrors = self.device._inverse = self.device._words

    def _move_pages(self, band: int, sources: Any, destinations: Any, page_bytes: int) -> None:
        self.issue("move", self._units(band, sources), self._units(band, destinations))

    def _fill_pages(self, band: int, pages: Any, page_bytes: int, value: int) -> None:
        self.issue("fill", (), self._units(band, pages))

    def _publish_rows(self, band: int, inverse: Any, rows: Any, values: Any) -> None:
        self.issue("publish", (), [("table", band)])

    def _units(self, band: int, pages: np.ndarray) -> Iterable[int]:
        mask = byte_units(self.page_bytes[band], pages, self.total_bytes)
        units: list[int] = np.flatnonzero(mask).tolist()
        return units

    def issue(self, what: str, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Issue work on the current stream."""
        stream = self.current
        number = len(self.work)
        self.work.append(Work(number, what, frozenset(reads), frozenset(writes), stream.seen))
        stream.seen |= {number}

    # What the engine does.

    def forward(self, requests: Iterable[int], *, tells_reads: bool = True) -> int:
        """Launch a forward over these requests: it reads the tables, then all of their pages, and
        writes its own. `tells_reads`: it says when it has read the tables."""
        reads, writes = access(self.arena, tuple(requests))
        ticket = self.arena.launch(list(requests))
        with self.device.forward(ticket):
            self.issue("tables", [("table", band) for band in range(len(self.page_bytes))], ())
            if tells_reads:
                self.device.tables_read(ticket)
            units = [np.flatnonzero(mask).tolist() for mask in (reads, writes)]
            self.issue(f"forward {ticket}", *units)
        self.done[ticket] = self.device.forwards.seen
        return ticket

    def complete(self, ticket: int) -> None:
        """The host saw the forward complete, so all it issues from now on comes after."""
        self.device.schedule.seen |= self.done[ticket]
        self.arena.complete(ticket)

    # What the tests ask.

    def of(self, what: str) -> list[Work]:
        """All work of that kind."""
        return [work for work in self.work if work.what == what]

    def names(self) -> list[str]:
        """What was issued, in order."""
        return [work.what for work in self.work]

    def races(self) -> list[tuple[str, str]]:
        """Pairs of conflicting work of which neither is ordered after the other."""
        return [
            (first.what, second.what)
            for first, second in itertools.combinations(self.work, 2)
            if first.number not in second.after and first.conflicts(second)
        ]

    def ordered_conflicts(self, first: str, second: str) -> int:
        """How many pairs of such work conflict and are ordered: what a test has really tested."""
        return sum(
            before.number in after.after and before.conflicts(after)
            for before in self.of(first)
            for after in self.of(second)
        )
