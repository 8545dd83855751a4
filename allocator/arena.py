"""The arena: one device buffer, its bands, and the one door through which everything is asked.

`Arena.apply(operation)` is that door; the named methods are thin wrappers that make operations, so
that an engine reads naturally and a trace still holds everything. A refusal for want of memory
comes back as a false `Outcome`; an illegal call raises `MisuseError`. Either way nothing changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bandscope.allocator import checks, sizing
from bandscope.allocator import operations as ops
from bandscope.allocator.books import Books
from bandscope.allocator.chain import Held
from bandscope.allocator.device import open_device
from bandscope.allocator.device.protocol import Device
from bandscope.allocator.errors import InvariantError, MisuseError
from bandscope.allocator.events import Observer
from bandscope.allocator.facts import BandFacts, band_facts
from bandscope.allocator.handlers import HANDLERS
from bandscope.allocator.leases import LeaseFacts
from bandscope.allocator.operations import Operation, Outcome
from bandscope.allocator.plan import StoragePlan
from bandscope.allocator.policies import ArenaConfig
from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    import torch

__all__ = ["Arena", "ArenaConfig"]


class Arena:
    """One arena over a storage plan.

    `total_bytes` is rounded down to whole alignment units (`sizing.ROUND_BYTES`). `device` is a
    `Device`, or the name of one. Raises `SizingError` when not even one request of one page fits,
    and `DeviceError` when the device lacks the memory.
    """

    def __init__(
        self,
        plan: StoragePlan,
        total_bytes: int,
        *,
        device: str | Device = "cpu",
        config: ArenaConfig | None = None,
        observer: Observer | None = None,
    ) -> None:
        total_bytes = sizing.usable_bytes(total_bytes)
        sizing.check_holds_one_page(plan, total_bytes)
        self.plan = plan
        self.total_bytes = total_bytes
        self.device = open_device(device) if isinstance(device, str) else device
        self.books = Books(plan, total_bytes, self.device, config or ArenaConfig())
        self.books.observer = observer
        self._layer_views: dict[tuple[int, str], torch.Tensor] = {}

    # --- the one door ----------------------------------------------------------------------------

    def apply(self, operation: Operation) -> Outcome:
        """Try an operation. A refused or illegal one changes nothing; its outcome says why."""
        handler = HANDLERS.get(type(operation))
        if handler is None:
            raise MisuseError(
                f"{operation!r} was applied, but it is none of the operations of an arena "
                f"({', '.join(known.__name__ for known in HANDLERS)})"
            )
        observer = self.books.observer
        if observer is not None:
            observer.before(operation)
        try:
            outcome = handler(self.books, operation)
        except MisuseError as error:
            outcome = Outcome(False, reason="misuse", message=str(error))
        if observer is not None:
            observer.after(operation, outcome)
        return outcome

    def _ask(self, operation: Operation) -> Outcome:
        outcome = self.apply(operation)
        if outcome.reason == "misuse":
            raise MisuseError(outcome.message)
        return outcome

    # --- what an engine calls -----------------------------------------------------------------------

    def admit(
        self,
        request: int,
        *,
        state_slots: int = 1,
        key: Sequence[int] = (),
        limit_tokens: int | None = None,
    ) -> Outcome:
        """A request enters, with what the prefix cache has of it (see `operations.Admit`)."""
        return self._ask(ops.Admit(request, state_slots, tuple(key), limit_tokens))

    def extend(self, request: int, tokens: int) -> Outcome:
        """Room for `tokens` more tokens of a request: a prefill chunk."""
        return self._ask(ops.Extend(request, tokens))

    def decode(self, requests: Sequence[int]) -> Outcome:
        """Room for one more token of each request; all or none."""
        return self._ask(ops.Decode(tuple(requests)))

    def trim_window(self, requests: Sequence[int]) -> Outcome:
        """Free window pages that no future token attends to."""
        return self._ask(ops.TrimWindow(tuple(requests)))

    def release(
        self,
        request: int,
        why: str = "finished",
        *,
        publish: bool = False,
        key: Sequence[int] = (),
    ) -> Outcome:
        """A request leaves and frees everything it holds (see `operations.Release`)."""
        return self._ask(ops.Release(request, why, publish, tuple(key)))

    def publish(self, request: int, key: Sequence[int] = ()) -> Outcome:
        """Give computed pages to the prefix cache (see `operations.Publish`)."""
        return self._ask(ops.Publish(request, tuple(key)))

    def checkpoint(self, request: int, key: Sequence[int] = ()) -> Outcome:
        """Publish with the request's state (see `operations.Checkpoint`)."""
        return self._ask(ops.Checkpoint(request, tuple(key)))

    def evict(self, pages: Sequence[int]) -> Outcome:
        """Let the prefix cache give up pages per band (see `operations.Evict`)."""
        return self._ask(ops.Evict(tuple(pages)))

    def launch(self, requests: Sequence[int]) -> int:
        """Publish the tables and take the ticket of a forward over these requests."""
        ticket: int = self._ask(ops.Launch(tuple(requests))).value
        return ticket

    def complete(self, ticket: int) -> Outcome:
        """The work of `ticket` has completed (poll `device.is_complete` between calls)."""
        return self._ask(ops.Complete(ticket))

    def compact(self, *, urgent: bool = False, max_moves: int | None = None) -> int:
        """Close holes; returns the pages moved."""
        moved: int = self._ask(ops.Compact(urgent, max_moves)).value
        return moved

    def lease(
        self,
        request: int,
        band: str,
        first_page: int,
        stop_page: int,
        holder: str = "engine",
        *,
        purpose: str = "host copy",
        deadline_ticket: int | None = None,
    ) -> int:
        """Pin pages of a request (see `operations.Lease`); returns the number for `end_lease`."""
        lease = ops.Lease(request, band, first_page, stop_page, holder, purpose, deadline_ticket)
        number: int = self._ask(lease).value
        return number

    def end_lease(self, number: int, holder: str | None = None) -> Outcome:
        """Drop a pin; by its holder only."""
        return self._ask(ops.EndLease(number, holder))

    def leases(self) -> list[LeaseFacts]:
        """Every lease that is held, oldest first, with its age and whether it is overdue."""
        tickets = self.books.tickets
        return self.books.pins.facts(tickets.issued, tickets.completed_through)

    def leased_bytes(self, number: int) -> LeasedBytes:
        """The bytes of a lease's pages: readable and writable while it is held, never after."""
        return LeasedBytes(self, number)

    def set_gate(self, *, closed: bool) -> Outcome:
        """While closed, no page may move."""
        return self._ask(ops.SetGate(closed))

    # --- where a request's bytes are ------------------------------------------------------------------

    def view(self, layer: int, row: str) -> torch.Tensor:
        """The rows of one layer (`k`, `v`, `latent`, `conv…`, `temporal`) over the whole arena.

        Token rows: shape `(pages, page_size, *row shape)`; state rows: `(slots, *row shape)`; the
        first axis is the physical page number. A strided view of the arena, never a copy.
        """
        from bandscope.allocator.layout import layer_view

        key = (layer, row)
        if key not in self._layer_views:
            self._layer_views[key] = layer_view(self.plan, self.buffer, layer, row)
        return self._layer_views[key]

    @property
    def buffer(self) -> torch.Tensor:
        """The arena's bytes (`uint8`); `MisuseError` on a device that only keeps books."""
        if self.device.buffer is None:
            raise MisuseError(
                f"the bytes of an arena on device {self.device.name!r} were asked for, but it only "
                "keeps books; use device 'cpu' or 'cuda'"
            )
        return self.device.buffer

    def pages_of(self, request: int, band: str) -> tuple[Pages, int]:
        """Physical pages that a request holds in a band, in position order, and the number of the
        first of them (a window holds the tail of a request; everything else starts at 0)."""
        books = self.books
        index = self._index(band)
        row = books.ledger.row(request)
        if index == books.state:
            virtual, first = books.ledger.state_slots(row), 0
        else:
            first = 0
            if index in books.windows:
                first = int(books.ledger.first_kept[row, books.windows.index(index)])
            virtual = books.ledger.token_pages(row, first)
        known = books.bands[index]
        return known.physical(known.table.place_of[virtual]), first

    def _index(self, band: str) -> int:
        names = [known.name for known in self.books.bands]
        if band not in names:
            raise MisuseError(f"band {band!r} was named; the bands are {', '.join(names)}")
        return names.index(band)

    def token_ids(self, request: int) -> Pages:
        """Virtual token ids of a request, in position order: what request tables hold. They stay
        the same while pages move."""
        books = self.books
        row = books.ledger.row(request)
        size = self.plan.page_size
        ids = books.ledger.token_pages(row)[:, None] * size + np.arange(size)
        return ids.reshape(-1)[: int(books.ledger.length[row])]

    def translate(self, band: str, tokens: torch.Tensor) -> torch.Tensor:
        """Physical rows (page × page size + row in page) of virtual token ids in a band, int64, by
        the device's tables as last published. Unmapped ids (never bound, released, trimmed out of a
        window) go to row 0, the sink, and are counted; with `debug` they are refused by
        `MisuseError`. Call inside `device.forward` to read the tables in the forward's order."""
        index = self._index(band)
        before = self.device.unmapped_tokens() if self.books.config.debug else 0
        rows = self.device.translate(index, tokens, self.books.bands[index].plan.page_size)
        if self.books.config.debug:
            missing = self.device.unmapped_tokens() - before
            if missing:
                raise MisuseError(
                    f"{missing} of {tokens.numel()} token ids are not mapped in band {band}; "
                    "translate only tokens that the request still holds there"
                )
        return rows

    # --- capacity ------------------------------------------------------------------------------------

    def serves(self, demand: Sequence[int]) -> bool:
        """True exactly when some layout holds what is live plus `demand` (pages per band, in chain
        order), so that an operation that needs it succeeds now."""
        return self.books.serves(demand)

    def serves_when_empty(self, demand: Sequence[int]) -> bool:
        """True when an otherwise empty arena would hold `demand`."""
        return self.books.chain.pack([Held(pages) for pages in demand]) is not None

    def facts(self) -> list[BandFacts]:
        """Per band, in chain order: what is held (exact) and what could still be taken alone (an
        estimate for observers: bands share bytes)."""
        return band_facts(self.books)

    # --- state as data --------------------------------------------------------------------------------

    def check(self) -> list[checks.Violation]:
        """Every invariant that needs no device; empty when healthy. Cost follows the extents."""
        return checks.check_books(self.books)

    def assert_healthy(self) -> None:
        """`InvariantError` naming every violation, or nothing."""
        violations = self.check()
        if violations:
            raise InvariantError("; ".join(str(violation) for violation in violations))

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what the arena does next (the books, not the bytes)."""
        books = self.books
        return {
            "bands": [band.snapshot() for band in books.bands],
            "ids": books.ids.snapshot(),
            "state_ids": books.state_ids.snapshot(),
            "ledger": books.ledger.snapshot(),
            "tickets": books.tickets.snapshot(),
            "pins": books.pins.snapshot(),
            "gate_closed": books.gate_closed,
            **({} if books.cache is None else {"cache": books.cache.snapshot()}),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw, on an arena of the same plan and size. The bytes on
        the device are not part of it."""
        books = self.books
        self.device.issue_fills()
        for band, state in zip(books.bands, snapshot["bands"], strict=True):
            band.restore(state)
        books.ids.restore(snapshot["ids"])
        books.state_ids.restore(snapshot["state_ids"])
        books.ledger.restore(snapshot["ledger"])
        if books.cache is not None:
            books.cache.restore(snapshot["cache"])
        books.tickets.restore(snapshot["tickets"])
        books.pins.restore(snapshot["pins"])
        books.gate_closed = snapshot["gate_closed"]
        books.mirror_everything()
        books.tell_extents("restore")

    def digest(self, snapshot: dict[str, Any] | None = None) -> str:
        """A fingerprint of the snapshot (taken now, unless one is given): equal exactly when the
        decisions to come are equal."""
        hasher = hashlib.blake2b(digest_size=16)
        _feed(hasher, self.snapshot() if snapshot is None else snapshot)
        return hasher.hexdigest()


class LeasedBytes:
    """The pages of one lease as bytes. Every access asks whether the lease is still held, so a view
    that outlives its lease raises `MisuseError` instead of reading somebody else's page. On a GPU,
    copy inside `arena.device.copying()`, which follows the moves, fills and forwards before it."""

    def __init__(self, arena: Arena, number: int) -> None:
        self._arena = arena
        self._number = number
        arena.books.pins.held(number)

    def __len__(self) -> int:
        return int(self._arena.books.pins.held(self._number).places.size)

    def __getitem__(self, index: int) -> torch.Tensor:
        """The `index`-th page of the lease: `uint8`, page_bytes long, a view of the arena."""
        pin = self._arena.books.pins.held(self._number)
        band = self._arena.books.bands[pin.band]
        start = int(band.physical(pin.places[index : index + 1])[0]) * band.page_bytes
        return self._arena.buffer[start : start + band.page_bytes]


def _feed(hasher: Any, value: Any) -> None:
    """Hash a value of a snapshot by content and shape, in a fixed order."""
    if isinstance(value, np.ndarray):
        hasher.update(f"{value.dtype.str}{value.shape}".encode())
        hasher.update(np.ascontiguousarray(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            hasher.update(f"{key}:".encode())
            _feed(hasher, item)
    elif isinstance(value, list | tuple):
        hasher.update(f"[{len(value)}".encode())
        for item in value:
            _feed(hasher, item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _feed(hasher, getattr(value, name))
    else:
        hasher.update(f"{value!r};".encode())
