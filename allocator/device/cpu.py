"""The arena in host memory: everything issued happens at once, in order, and the bytes really move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bandscope.allocator.device.in_order import InOrderDevice
from bandscope.allocator.errors import DeviceError
from bandscope.allocator.tables import Pages

# A batch of moves goes through a buffer of at most this many bytes, whatever its size.
_STAGING_BYTES = 8 << 20


class CpuDevice(InOrderDevice):
    """A `Device` on torch CPU tensors."""

    name = "cpu"

    def __init__(self) -> None:
        self.buffer: torch.Tensor | None = None
        self._pages: list[np.ndarray] = []
        self._mirrors: list[torch.Tensor] = []
        self._inverse: list[torch.Tensor] = []
        self._unmapped = 0

    def allocate(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        available = available_host_bytes()
        if available is not None and total_bytes > available:
            raise DeviceError(
                f"an arena of {total_bytes:,} bytes was asked for on the CPU, but "
                f"{available:,} bytes of memory are available; make --arena-bytes smaller, or "
                "use --device none to keep the books only"
            )
        self.buffer = torch.zeros(total_bytes, dtype=torch.uint8)
        flat = self.buffer.numpy()
        self._pages = [
            flat[: total_bytes // size * size].reshape(-1, size) for size in page_bytes
        ]
        self._mirrors = [torch.full((count,), -1, dtype=torch.int64) for count in virtual_pages]
        self._inverse = [
            torch.full((pages.shape[0],), -1, dtype=torch.int64) for pages in self._pages
        ]

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        pages = self._pages[band]
        step = max(1, _STAGING_BYTES // pages.shape[1])
        for start in range(0, sources.size, step):  # over batches of staging size, not pages
            pages[destinations[start : start + step]] = pages[sources[start : start + step]]

    def copy(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.move(band, sources, destinations)

    def fill(self, band: int, pages: Pages, value: int) -> None:
        self._pages[band][pages] = value

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        table, inverse = self._mirrors[band].numpy(), self._inverse[band].numpy()
        left = table[virtual]
        inverse[left[left >= 0]] = -1
        table[virtual] = physical
        mapped = physical >= 0
        inverse[physical[mapped]] = virtual[mapped]

    def mirror(self, band: int) -> torch.Tensor:
        return self._mirrors[band]

    def inverse_mirror(self, band: int) -> torch.Tensor:
        return self._inverse[band]

    def translate(self, band: int, tokens: torch.Tensor, page_size: int) -> torch.Tensor:
        known = tokens >= 0
        pages = self._mirrors[band][torch.where(known, tokens, 0) // page_size]
        mapped = known & (pages >= 0)
        self._unmapped += int((~mapped).sum())
        return torch.where(mapped, pages * page_size + tokens % page_size, 0)

    def unmapped_tokens(self) -> int:
        return self._unmapped


def available_host_bytes() -> int | None:
    """Bytes that the system could give without swapping, None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
