"""The arena on a CUDA device, with torch streams and events.

Three streams that are never the same: allocator work is issued on the *schedule* stream, the
model's forwards run on the *forward* stream, host copies on the *copy* stream. Page copies are
plain torch copies here, in batches of bounded staging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from bandscope.allocator.errors import DeviceError
from bandscope.allocator.tables import Pages

_STAGING_BYTES = 256 << 20
_STREAM_DRAWS_MAX = 64


class CudaDevice:
    """A `Device` on one GPU."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(
                "the CUDA device was asked for, but torch sees no GPU; run `bandscope doctor` to see "
                "why, or use --device cpu"
            )
        self.device = torch.device("cuda", index)
        self.buffer: torch.Tensor | None = None
        self.host_waits = 0
        self.schedule, self.forwards, self.copies = _distinct_streams(self.device, 3)
        self._pages: list[torch.Tensor] = []
        self._mirrors: list[torch.Tensor] = []
        self._done: dict[int, torch.cuda.Event] = {}
        self._read: dict[int, torch.cuda.Event] = {}

    def allocate(
        self, total_bytes: int, page_bytes: Sequence[int], virtual_pages: Sequence[int]
    ) -> None:
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        if total_bytes > free_bytes:
            raise DeviceError(
                f"an arena of {total_bytes:,} bytes was asked for on {self.device}, but "
                f"{free_bytes:,} bytes are free there; make --arena-bytes smaller"
            )
        with torch.cuda.stream(self.schedule):
            self.buffer = torch.zeros(total_bytes, dtype=torch.uint8, device=self.device)
            # Whole pages as rows of the widest words that divide them, for wide copies.
            self._pages = [
                self.buffer[: total_bytes // size * size]
                .view(torch.int64 if size % 8 == 0 else torch.uint8)
                .view(total_bytes // size, -1)
                for size in page_bytes
            ]
            self._mirrors = [
                torch.full((count,), -1, dtype=torch.int64, device=self.device)
                for count in virtual_pages
            ]

    def _upload(self, numbers: Pages) -> torch.Tensor:
        # Pinned memory makes the copy asynchronous; torch keeps the block until the stream is past.
        return torch.from_numpy(numbers).pin_memory().to(self.device, non_blocking=True)

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        pages = self._pages[band]
        step = max(1, _STAGING_BYTES // (pages.shape[1] * pages.element_size()))
        with torch.cuda.stream(self.schedule):
            from_pages, to_pages = self._upload(sources), self._upload(destinations)
            for start in range(0, sources.size, step):  # over batches of staging size, not pages
                rows = pages.index_select(0, from_pages[start : start + step])
                pages.index_copy_(0, to_pages[start : start + step], rows)

    def fill(self, band: int, pages: Pages, value: int) -> None:
        rows = self._pages[band]
        word = int.from_bytes(bytes([value]) * rows.element_size(), "little", signed=value >= 128)
        with torch.cuda.stream(self.schedule):
            rows.index_fill_(0, self._upload(pages), word)

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        with torch.cuda.stream(self.schedule):
            self._mirrors[band].index_copy_(0, self._upload(virtual), self._upload(physical))

    def mirror(self, band: int) -> torch.Tensor:
        return self._mirrors[band]

    def launch(self, ticket: int) -> None:
        self.forwards.wait_stream(self.schedule)

    @contextmanager
    def forward(self, ticket: int) -> Iterator[None]:
        with torch.cuda.stream(self.forwards):
            yield
            done = torch.cuda.Event()
            done.record(self.forwards)
        self._done[ticket] = done
        for old in [known for known in self._done if known < ticket - 64]:
            del self._done[old]
            self._read.pop(old, None)

    def tables_read(self, ticket: int) -> None:
        """The forward has read its tables: call inside `forward` to allow the fine barrier."""
        event = torch.cuda.Event()
        event.record(self.forwards)
        self._read[ticket] = event

    def is_complete(self, ticket: int) -> bool:
        done = self._done.get(ticket)
        return done is not None and done.query()

    def wait(self, ticket: int) -> None:
        done = self._done.get(ticket)
        if done is not None:
            done.synchronize()

    def order_behind(self, ticket: int) -> None:
        done = self._done.get(ticket)
        if done is None:  # the forward's work is still being issued: wait for all of its stream
            self.schedule.wait_stream(self.forwards)
        else:
            self.schedule.wait_event(done)

    def order_behind_reads(self, ticket: int) -> None:
        read = self._read.get(ticket)
        if read is None:
            self.order_behind(ticket)
        else:
            self.schedule.wait_event(read)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def _distinct_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Streams whose handles differ: torch deals them round-robin from a pool and may repeat one."""
    streams: dict[int, torch.cuda.Stream] = {}
    for _ in range(_STREAM_DRAWS_MAX):
        stream = torch.cuda.Stream(device)
        streams.setdefault(stream.cuda_stream, stream)
        if len(streams) == count:
            return list(streams.values())
    raise DeviceError(
        f"{count} distinct CUDA streams were needed, but {_STREAM_DRAWS_MAX} draws gave only "
        f"{len(streams)}; free streams held elsewhere in this process"
    )
