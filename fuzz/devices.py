"""The devices a fuzzed arena can have, each with the engine's side of the work.

`sim` is the simulated device: stamps, queues, schedules. `none` keeps books only. `cpu` and `cuda` have
bytes: every forward reads the ends of its pages through the published tables, compares them with what
their owner wrote last, and writes new ones. On a GPU nothing waits: differences are counted there and
read when the campaign looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bandscope.allocator.arena import Arena
from bandscope.allocator.checks import Violation
from bandscope.allocator.device import open_device
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.events import NullObserver, Observer
from bandscope.allocator.tables import Pages
from bandscope.fuzz.simulated import SimulatedDevice

if TYPE_CHECKING:
    import torch

Named = Pages | Sequence[int]

# Virtual pages that a forward reads and those that it writes, by band index.
Accesses = Mapping[int, tuple[Named, Named]]


class FuzzDevice(Protocol):
    """A device and the engine's work on it. `observer`: must be told the arena's effects, if any."""

    observer: Observer | None
    step: int  # of the program, for reports

    @property
    def arena_device(self) -> Device: ...

    def begin(self, arena: Arena) -> None:
        """The arena exists now."""

    def forward_over(self, ticket: int, accesses: Accesses) -> None:
        """The work of a forward that was just launched."""

    def copy_over(self, lease: int, band: int, virtual: Named) -> None:
        """A lease's holder reads these pages until the lease ends."""

    def state_copied(self, band: int, source: int, destination: int) -> None:
        """The arena has copied a virtual state slot to another."""

    def grafted(self, band: int, virtual: Named, into: Named) -> None:
        """Pages `into[i]` of the prefix cache lie where pages `virtual[i]` of a request lay."""

    def end_copies(self, lease: int) -> None:
        """The holder is about to end this lease (it may not exist): its copies are done."""

    def finish(self, ticket: int) -> None:
        """The engine is about to report this ticket (it may not exist): its work is done."""

    def drain(self) -> None:
        """Everything issued is done."""

    def take_violations(self) -> list[Violation]:
        """What was found since the last time."""

    def digest(self) -> str:
        """A fingerprint of the bytes, where they are looked at."""


class BooksOnly:
    """No bytes: only the books are checked."""

    observer: Observer | None = None
    step = 0

    def __init__(self, device: Device) -> None:
        self.arena_device = device

    def begin(self, arena: Arena) -> None:
        pass

    def forward_over(self, ticket: int, accesses: Accesses) -> None:
        pass

    def copy_over(self, lease: int, band: int, virtual: Named) -> None:
        pass

    def state_copied(self, band: int, source: int, destination: int) -> None:
        pass

    def grafted(self, band: int, virtual: Named, into: Named) -> None:
        pass

    def end_copies(self, lease: int) -> None:
        pass

    def finish(self, ticket: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def take_violations(self) -> list[Violation]:
        return []

    def digest(self) -> str:
        return ""


class WithBytes(BooksOnly, NullObserver):
    """Real bytes, on a CPU or a GPU. Both ends of a page, up to 8 bytes each, carry a stamp that names
    the forward that wrote it and the page; so a page copied to a wrong place, half, too early or too
    late is read as different. `slow_cycles`: how long each forward is held up on a GPU, so that what
    is issued after it really runs beside it."""

    def __init__(self, device: Device, slow_cycles: int = 200_000) -> None:
        BooksOnly.__init__(self, device)
        self.observer = self
        self._slow_cycles = slow_cycles
        self._launched: set[int] = set()

    def begin(self, arena: Arena) -> None:
        import torch

        plan, config = arena.plan, arena.books.config
        buffer = self.arena_device.buffer
        assert buffer is not None
        self._names = {band.name: index for index, band in enumerate(plan.bands)}
        self._page_bytes = [band.page_bytes for band in plan.bands]
        self._fills = [
            {"zero": 0, "poison": -1, "none": None}[
                config.hand_out_state if band.kind == "state" else config.hand_out
            ]
            for band in plan.bands
        ]
        # What each virtual page's stamp must be, and whether anything is known of it.
        sizes = [len(self.arena_device.mirror(index)) for index in range(len(plan.bands))]  # type: ignore[arg-type]
        self._stamps = [np.zeros(size, np.int64) for size in sizes]
        self._known = [np.zeros(size, bool) for size in sizes]
        self._wrong = torch.zeros(1, dtype=torch.int64, device=buffer.device)
        self._told = 0

    def lease_begin(
        self, holder: Any, band: str, virtual: Pages, physical: Pages, lease: int
    ) -> None:
        """A page handed out holds what the policy says, and nothing of its former owner."""
        if lease:
            return
        index = self._names[band]
        fill = self._fills[index]
        self._known[index][virtual] = fill is not None
        self._stamps[index][virtual] = fill or 0

    def state_copied(self, band: int, source: int, destination: int) -> None:
        self._stamps[band][destination] = self._stamps[band][source]
        self._known[band][destination] = self._known[band][source]

    def grafted(self, band: int, virtual: Named, into: Named) -> None:
        old, new = np.asarray(virtual, np.int64), np.asarray(into, np.int64)
        self._stamps[band][new] = self._stamps[band][old]
        self._known[band][new] = self._known[band][old]

    def forward_over(self, ticket: int, accesses: Accesses) -> None:
        self._launched.add(ticket)
        with self.arena_device.forward(ticket):
            self._hold_up()
            for band, (named, _) in accesses.items():
                reads = np.asarray(named, np.int64)
                known = reads[self._known[band][reads]]
                if known.size:
                    self._compare(band, known, self._stamps[band][known])
            for band, (_, named) in accesses.items():
                writes = np.asarray(named, np.int64)
                if writes.size:
                    stamps = (ticket * 1_000_003 + 1) * 8 + band + (writes << 32)
                    self._write(band, writes, stamps)
                    self._stamps[band][writes] = stamps
                    self._known[band][writes] = True

    def _hold_up(self) -> None:
        import torch

        if self._wrong.is_cuda:
            torch.cuda._sleep(self._slow_cycles)

    def _places(self, band: int, virtual: Pages) -> torch.Tensor:
        """Byte offsets of the stamp bytes of each page, `(pages, ends × width)`, by the device's table
        as the forward finds it."""
        import torch

        from bandscope.fuzz.workload.uploads import upload

        table = self.arena_device.mirror(band)
        assert table is not None
        size, width = self._page_bytes[band], self._width(band)
        ends = torch.arange(width, device=table.device)
        ends = torch.cat([ends, ends + size - width])
        pages = table[upload(virtual, table.device)]
        return pages[:, None] * size + ends

    def _width(self, band: int) -> int:
        """Bytes of a stamp at each end of a page; the ends do not overlap."""
        return min(8, max(1, self._page_bytes[band] // 2))

    def _bytes_of(self, band: int, stamps: Pages) -> torch.Tensor:
        from bandscope.fuzz.workload.uploads import upload

        width = self._width(band)
        raw = np.ascontiguousarray(stamps).view(np.uint8).reshape(-1, 8)[:, :width]
        return upload(np.concatenate([raw, raw], axis=1), self._wrong.device)

    def _compare(self, band: int, virtual: Pages, stamps: Pages) -> None:
        buffer = self.arena_device.buffer
        assert buffer is not None
        found = buffer[self._places(band, virtual)]
        self._wrong += (found != self._bytes_of(band, stamps)).any(1).sum()

    def _write(self, band: int, virtual: Pages, stamps: Pages) -> None:
        buffer = self.arena_device.buffer
        assert buffer is not None
        places = self._places(band, virtual)
        buffer[places.reshape(-1)] = self._bytes_of(band, stamps).reshape(-1)

    def finish(self, ticket: int) -> None:
        if ticket in self._launched:
            self._launched.discard(ticket)
            self.arena_device.wait(ticket)

    def drain(self) -> None:
        self.arena_device.synchronize()
        self._launched.clear()  # now the count may be looked at, whatever was in flight

    def take_violations(self) -> list[Violation]:
        # A look at the count waits for a GPU; there it is taken only when everything is over.
        if self._wrong.is_cuda and self._launched:
            return []
        wrong = int(self._wrong) - self._told
        self._told += wrong
        if not wrong:
            return []
        return [Violation("content", f"{wrong} pages did not hold what their owner wrote last")]


def open_fuzz_device(name: str, schedule: str) -> FuzzDevice:
    """The device of a fuzzed arena by name; `MisuseError` lists the names, `DeviceError` says that one
    is missing here."""
    if name == "sim":
        return SimulatedDevice(schedule)
    device = open_device(name)
    return BooksOnly(device) if name == "none" else WithBytes(device)
