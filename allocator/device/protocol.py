"""What an arena asks of a device. The arena keeps the books; a device holds bytes and orders work.

Every call here is *issued*, never awaited: when it returns, the work may still be ahead. Page numbers
are physical (byte offset / page bytes of the band), in int64 NumPy arrays that the device copies
before it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """One arena's bytes. `name` is `none`, `cpu` or `cuda`; `buffer` is the `uint8` tensor of the
    whole arena, None on a device that only keeps books. `host_waits` counts the times that `wait` or
    `synchronize` made the host wait; no other call ever does, so an allocator call never changes
    it."""

    name: str
    buffer: torch.Tensor | None
    host_waits: int

    def allocate(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        """Take the arena's memory, zeroed, and mirrors of each band's tables (all unmapped).

        Raises `DeviceError` when there is not enough memory."""

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        """Copy whole pages of a band that change their places; sources and destinations are
        disjoint."""

    def copy(self, band: int, sources: Pages, destinations: Pages) -> None:
        """The same copy, of pages that stay where they are."""

    def fill(self, band: int, pages: Pages, value: int) -> None:
        """Set every byte of these pages to `value` (0 to zero, 0xFF to poison), at the latest before
        the next move or launched forward."""

    def issue_fills(self) -> None:
        """Issue fills that were put off, because somebody is about to look at page content without a
        move or a launch."""

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        """Write table rows of the mirror: `physical[i]` (−1: unmapped) at `virtual[i]`, and keep the
        inverse mirror its inverse. No virtual page is named twice; when a page passes from one
        virtual page to another, both are named."""

    def mirror(self, band: int) -> torch.Tensor | None:
        """The band's table on the device, int64 by virtual page, for kernels and engines."""

    def inverse_mirror(self, band: int) -> torch.Tensor | None:
        """The inverse of `mirror`: which virtual page each physical page of the band holds (−1:
        none), int64 by physical page."""

    def translate(self, band: int, tokens: torch.Tensor, page_size: int) -> torch.Tensor:
        """Physical rows (page × page size + row in page) of virtual token ids, by the mirror; int64
        on the device. Unmapped ids go to row 0, inside the sink, and are counted."""

    def unmapped_tokens(self) -> int:
        """How many ids `translate` has sent to the sink so far. Waits for the device."""

    def launch(self, ticket: int) -> None:
        """A forward with this ticket follows everything issued so far."""

    def forward(self, ticket: int) -> AbstractContextManager[None]:
        """Run the forward's own work inside this context: on the forward stream, in order, before the
        next call to the arena (a barrier orders what has been issued)."""

    def copying(self) -> AbstractContextManager[None]:
        """Run a lease holder's copies inside this context: on the copy stream, after everything issued
        and launched so far. The holder ends its lease when they have completed."""

    def is_complete(self, ticket: int) -> bool:
        """True when the ticket's work has completed; never waits."""

    def wait(self, ticket: int) -> None:
        """Block the host until the ticket's work has completed, for an engine that needs its result.
        Never called by the arena."""

    def order_behind(self, ticket: int) -> None:
        """Everything issued later waits for the whole forward `ticket` (and all before it)."""

    def order_behind_reads(self, ticket: int) -> None:
        """Everything issued later waits until forward `ticket` has read the tables."""

    def synchronize(self) -> None:
        """Wait for everything issued. For tests and reports, never inside an allocator call."""
