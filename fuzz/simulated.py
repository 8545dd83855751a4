"""A device on paper: it queues what the arena issues and works in any order that its edges allow.

`SimulatedDevice` has the streams, events and edges of `CudaDevice`: allocator work on the schedule
stream, forwards on the forward stream, holders' copies on the copy stream; a forward waits for all that
was issued before its launch, a barrier makes the schedule stream wait for a forward or for its table
reads. Which of the orders that remain is taken, a schedule says (`fuzz.schedules`).

Two things are checked. `content`: what each forward and copy reads is what its pages' owner last wrote,
or what the hand-out policy left in a fresh page, and tables say what the books said when the forward
was launched. Expected is a stamp per virtual page, kept as the engine asks, so a wrong copy is found
under every schedule and a missing edge under those that use it. `happens_before`: every pair of
conflicting accesses is ordered by the edges, whatever the bytes were; found under every schedule. Told
on the way: rows of free pages that stay mapped (`tables`), and calls that look at or wait for the device
(`determinism`). Not simulated: padding writes, which go to the sink, and parts of pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bandscope.allocator.checks import Violation
from bandscope.allocator.device.in_order import InOrderDevice
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.events import Observer
from bandscope.allocator.tables import Pages
from bandscope.fuzz.schedules import Schedule, parse_schedule, spell
from bandscope.fuzz.simulated_copies import Copies
from bandscope.fuzz.simulated_expected import Expectation, Named
from bandscope.fuzz.simulated_order import Order
from bandscope.fuzz.simulated_work import (
    COPY,
    FORWARD,
    HOST,
    SCHEDULE,
    STREAMS,
    BandAccess,
    Copy,
    Fill,
    Memory,
    Move,
    PageAccesses,
    Publish,
    Stamps,
    StateCopy,
    TableReads,
    Work,
    grouped,
    writer_of_lease,
)

if TYPE_CHECKING:
    import torch

    from bandscope.allocator.arena import Arena

# Events of completed forwards that are kept; an older one stands for the whole forward stream, as on
# a CUDA device.
_EVENTS_KEPT = 256
# All table rows are looked at in each launch where there are few, else in one of so many.
_ROWS_LOOKED_AT, _LOOK_SELDOM = 1 << 14, 16


class SimulatedDevice(InOrderDevice):
    """A `Device` without bytes. `schedule`: a string of `fuzz.schedules`.

    Tell it its arena (`begin`) before the first forward. `step`: which step of the program is being
    applied, for reports. Where the schedule keeps them, `works`: everything issued, and `turns`: when
    the host let the streams work (None: after it issued a work; else the event that it waited for).
    """

    name: str = "sim"
    buffer: torch.Tensor | None = None
    observer: Observer | None = None  # it needs to be told nothing

    def __init__(self, schedule: str = "eager") -> None:
        self.schedule: Schedule = parse_schedule(schedule)
        self.step = 0
        self.works: list[Work] = []
        self.turns: list[tuple[int, ...] | None] = []
        self._expectation: Expectation | None = None
        self._violations: list[Violation] = []
        self._fills: list[tuple[int, Pages, int]] = []
        self._in_flight: dict[int, tuple[int, ...]] = {}
        self._done: dict[int, tuple[int, ...]] = {}
        self._read: dict[int, tuple[int, ...]] = {}
        self._copies = Copies(())
        self._queues: list[deque[Work]] = [deque() for _ in STREAMS]
        self._executed = [0, 0, 0]
        self._choices = bytearray()

    # --- what the arena calls -----------------------------------------------------------------------

    def allocate(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        self._memory = Memory(total_bytes, page_bytes, virtual_pages)
        self._stamps = Stamps(virtual_pages)
        self._order = Order(self._memory)
        self._copies = Copies(virtual_pages)
        # The mirrors as they are when all that was issued has been done.
        self._published = self._memory.mirrors
        if not self.schedule.eager:
            self._published = [mirror.copy() for mirror in self._memory.mirrors]
        self._look_every = 1 if sum(virtual_pages) <= _ROWS_LOOKED_AT else _LOOK_SELDOM

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.issue_fills()
        self.issue(Move(band, sources.copy(), destinations.copy()))

    def copy(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.issue_fills()
        self.issue(StateCopy(band, sources.copy(), destinations.copy()))

    def fill(self, band: int, pages: Pages, value: int) -> None:
        self._fills.append((band, pages.copy(), value))

    def issue_fills(self) -> None:
        if self._fills:
            fills, self._fills = self._fills, []
            self.issue(Fill(grouped(fills)))

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        work = Publish(band, virtual.copy(), physical.copy())
        self.issue(work)
        if not self.schedule.eager:
            self._published[band][work.virtual] = work.physical

    def mirror(self, band: int) -> None:
        return None

    inverse_mirror = mirror

    def translate(self, band: int, tokens: torch.Tensor, page_size: int) -> torch.Tensor:
        raise MisuseError(
            "token ids were to be translated on a simulated device, which has no bytes; use cpu or cuda"
        )

    def unmapped_tokens(self) -> int:
        return 0

    def launch(self, ticket: int) -> None:
        self.issue_fills()
        self._order.wait(FORWARD, self._order.position(SCHEDULE))
        self._order.forget()
        self._in_flight[ticket] = self._order.position(FORWARD)

    def is_complete(self, ticket: int) -> bool:
        """For an arena only, which must not ask."""
        self._host_asked(f"an allocator call asked whether forward {ticket} is complete")
        return ticket not in self._in_flight or self._is_over(self._in_flight[ticket])

    def wait(self, ticket: int) -> None:
        """For an arena only, which must not wait."""
        self.host_waits += 1
        self._host_asked(f"an allocator call made the host wait for forward {ticket}")
        self._run_until(self._in_flight.get(ticket, (0, 0, 0)))

    def order_behind(self, ticket: int) -> None:
        done = self._done.get(ticket)
        if done is None:  # its work is still being issued: wait for all of the forward stream
            done = self._order.position(FORWARD)
        self._order.wait(SCHEDULE, done)

    def order_behind_reads(self, ticket: int) -> None:
        read = self._read.get(ticket)
        if read is None:
            self.order_behind(ticket)
        else:
            self._order.wait(SCHEDULE, read)

    def synchronize(self) -> None:
        """For an arena only, which must not wait."""
        self.host_waits += 1
        self._host_asked("an allocator call made the host wait for the device")
        self.drain()

    def _host_asked(self, message: str) -> None:
        self._violations.append(Violation("determinism", f"{message} (step {self.step})"))

    @property
    def arena_device(self) -> SimulatedDevice:
        """Itself: it does the engine's work too (`fuzz.devices`)."""
        return self

    # --- what the engine does -----------------------------------------------------------------------

    def begin(self, arena: Arena) -> None:
        """Whose device this is: its books say what accesses must find."""
        self._stamps.band_names = [band.name for band in arena.books.bands]
        self._order.band_names = self._stamps.band_names
        self._expectation = Expectation(arena, self._stamps)

    def forward_over(
        self, ticket: int, accesses: Mapping[int, tuple[Named, Named]], *, tells_reads: bool = True
    ) -> None:
        """The forward of a launched ticket: it reads the tables, then reads and then writes pages
        through them. `accesses`: by band index, the virtual pages read and those written.
        `tells_reads`: it says when it has read its tables, which the fine barrier needs."""
        expected = self._expect()
        if ticket % self._look_every == 0:
            row = expected.wrongly_mapped(self._published)
            if row:
                self._violations.append(
                    Violation("tables", f"forward {ticket} is launched (step {self.step}): {row}")
                )
        bands = [
            expected.access(band, reads, writes, ticket)
            for band, (reads, writes) in accesses.items()
            if len(reads) or len(writes)
        ]
        for access in bands if self._copies else ():
            for event in self._copies.before(access, expected.generations):
                self._order.wait(FORWARD, event)
        self.issue(TableReads(ticket, bands, self._stamps), ticket)
        if tells_reads:
            self._read[ticket] = self._order.position(FORWARD)
        self.issue(PageAccesses(ticket, bands, self._stamps), ticket)
        self._done[ticket] = self._in_flight[ticket] = self._order.position(FORWARD)
        if len(self._done) > _EVENTS_KEPT:
            self._forget_events()

    def copy_over(self, lease: int, band: int, virtual: Named, access: str = "reads") -> None:
        """The holder of a lease `reads` (copies out) or `writes` (loads) pages of it, on the copy
        stream. `end_copies` says that all copies of the lease are over. A forward that writes such a
        page meanwhile, or touches one being loaded, waits for the copy: that much an engine does."""
        reads, writes = (virtual, ()) if access == "reads" else (virtual[:0], virtual)
        touched = self._expect().access(band, reads, writes, writer_of_lease(lease))
        self._look_at_fills(lease, touched)
        self.issue_fills()
        self._order.wait(COPY, self._order.position(SCHEDULE))
        self._order.wait(COPY, self._order.position(FORWARD))
        self.issue(Copy(lease, touched, self._stamps))
        self._copies.begin(lease, touched, self._order.position(COPY))

    def state_copied(self, band: int, source: int, destination: int) -> None:
        """The arena has copied a virtual state slot to a fresh one: that holds the same from then on."""
        self._expect().copy(band, source, destination)

    def grafted(self, band: int, virtual: Named, into: Named) -> None:
        """Pages `into[i]` of the prefix cache lie where pages `virtual[i]` of a request lay."""
        old, new = np.asarray(virtual, np.int64), np.asarray(into, np.int64)
        generation = self._expect().rename(band, old, new)
        self._copies.rename(band, old, new, generation)

    def finish(self, ticket: int) -> None:
        """The host saw that the forward has completed, so it and all it depends on have run. To be
        called before `Complete`; a ticket that is not in flight means nothing.

        Tickets complete in any order as far as an arena may know, so this says nothing of the
        forwards before it, although one stream runs them in order."""
        event = self._in_flight.pop(ticket, None)
        if event is not None:
            self._run_until(event)
            # It is two works, or none when it was launched and never given any.
            self._order.forward_is_over(event, 2 if ticket in self._done else 0)

    def end_copies(self, lease: int) -> None:
        """The host saw that the copies of a lease have completed. To be called before `EndLease`."""
        for event in self._copies.end(lease):
            self._run_until(event)
            self._order.host_saw(event)

    def drain(self) -> None:
        """Run everything to its end; the host sees it."""
        self.issue_fills()
        for stream in range(len(STREAMS)):
            event = self._order.position(stream)
            self._run_until(event)
            self._order.host_saw(event)

    # --- what the campaign asks -----------------------------------------------------------------------

    @property
    def violations(self) -> list[Violation]:
        """What has been found and not yet taken."""
        return [*self._violations, *self._order.races]

    def take_violations(self) -> list[Violation]:
        """`violations`, which are forgotten."""
        if not self._violations and not self._order.races:
            return []
        taken = self.violations
        self._violations, self._order.races = [], []
        return taken

    @property
    def is_drained(self) -> bool:
        """True when all that was issued has run."""
        return not any(self._queues) and not self._fills

    def blank_memory(self) -> Memory:
        """A memory like this device's, as it was before anything ran."""
        return self._memory.blank()

    def digest(self) -> str:
        """A fingerprint of all cells and tables, after everything has run: for one correct program
        the same under every schedule."""
        if not self.is_drained:
            self.drain()
        return self._memory.digest()

    def schedule_string(self) -> str:
        """The schedule that repeats this run."""
        return self.schedule.text

    def choices(self) -> str:
        """The same as an explicit list, `steps:…`; `eager` stays `eager`."""
        return "eager" if self.schedule.eager else spell(self._choices)

    # --- working --------------------------------------------------------------------------------------

    def issue(self, work: Work, ticket: int = 0) -> None:
        """Issue work on its stream, behind what that stream waits for."""
        work.step, work.ticket = self.step, ticket
        self._order.issue(work)
        if self.schedule.eager:
            work.execute(self._memory, self._violations.append)
            self._executed[work.stream] = work.number
            return
        if self.schedule.keeps_work:
            self.works.append(work)
        self._queues[work.stream].append(work)
        self._turn(None)

    def _run_until(self, event: tuple[int, ...]) -> None:
        if not self.schedule.eager:
            self._turn(event)

    def _turn(self, event: tuple[int, ...] | None) -> None:
        """Let streams work until the schedule chooses the host again, which waits for `event`."""
        if self.schedule.keeps_work:
            self.turns.append(event)
        choose = self.schedule.choose
        executed = self._executed
        while True:
            enabled = [stream for stream in (0, 1, 2) if self._is_ready(stream)]
            if event is None or self._is_over(event):
                enabled.append(HOST)
                needed = enabled
            else:
                needed = [stream for stream in enabled if executed[stream] < event[stream]]
            chosen = choose(enabled, needed)
            self._choices.append(chosen)
            if chosen == HOST:
                return
            work = self._queues[chosen].popleft()
            work.execute(self._memory, self._violations.append)
            executed[chosen] = work.number

    def _is_ready(self, stream: int) -> bool:
        queue = self._queues[stream]
        if not queue:
            return False
        first, second, third = queue[0].after
        done = self._executed
        # Its own number is one more than what its stream has executed.
        return (
            first <= done[0] + (stream == 0)
            and second <= done[1] + (stream == 1)
            and third <= done[2] + (stream == 2)
        )

    def _is_over(self, event: tuple[int, ...]) -> bool:
        done = self._executed
        return event[0] <= done[0] and event[1] <= done[1] and event[2] <= done[2]

    def _look_at_fills(self, lease: int, touched: BandAccess) -> None:
        """Whoever holds a lease may look at the bytes at once, so no fill may have been put off."""
        if any(b == touched.band and np.isin(touched.physical, p).any() for b, p, _ in self._fills):
            message = f"lease {lease} began while the fill of its pages in band "
            message += f"{self._stamps.band_names[touched.band]} was put off (step {self.step})"
            self._violations.append(Violation("content", message))

    def _expect(self) -> Expectation:
        if self._expectation is None:
            raise MisuseError(
                "a forward or copy was given to a simulated device that knows no arena; call "
                "begin(arena) once the arena is made"
            )
        return self._expectation

    def _forget_events(self) -> None:
        for ticket in [known for known in self._done if known not in self._in_flight]:
            self._read.pop(ticket, None)
            del self._done[ticket]
