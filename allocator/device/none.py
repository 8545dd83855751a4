"""The device that keeps books only: an arena of any size can be planned and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bandscope.allocator.device.in_order import InOrderDevice
from bandscope.allocator.errors import MisuseError
from bandscope.allocator.tables import Pages

if TYPE_CHECKING:
    import torch


class NoDevice(InOrderDevice):
    """A `Device` without bytes. Launched work completes at once."""

    name: str = "none"
    buffer: torch.Tensor | None = None

    def allocate(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        pass

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        pass

    def copy(self, band: int, sources: Pages, destinations: Pages) -> None:
        pass

    def fill(self, band: int, pages: Pages, value: int) -> None:
        pass

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        pass

    def mirror(self, band: int) -> None:
        return None

    def inverse_mirror(self, band: int) -> None:
        return None

    def translate(self, band: int, tokens: torch.Tensor, page_size: int) -> torch.Tensor:
        raise MisuseError(
            "token ids were to be translated on a device that only keeps books; use cpu or cuda"
        )

    def unmapped_tokens(self) -> int:
        return 0
