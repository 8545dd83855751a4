"""Ordering on a device where everything issued happens at once: there is nothing to wait for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class InOrderDevice:
    """The part of a `Device` that orders work, for devices without streams."""

    host_waits: int = 0

    def issue_fills(self) -> None:
        pass

    def launch(self, ticket: int) -> None:
        pass

    def forward(self, ticket: int) -> AbstractContextManager[None]:
        return nullcontext()

    def copying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_complete(self, ticket: int) -> bool:
        return True

    def wait(self, ticket: int) -> None:
        pass

    def order_behind(self, ticket: int) -> None:
        pass

    def order_behind_reads(self, ticket: int) -> None:
        pass

    def synchronize(self) -> None:
        pass
