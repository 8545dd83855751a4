"""The arena on a CUDA device, with torch streams and events and Triton kernels.

Three streams that are never the same: allocator work is issued on the *schedule* stream, the
model's forwards run on the *forward* stream, host copies on the *copy* stream. Page numbers reach the
kernels through pinned host memory, one copy per call, so the host never waits for the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from bandscope.allocator.device import kernels
from bandscope.allocator.errors import DeviceError
from bandscope.allocator.tables import Pages

_STREAM_DRAWS_MAX = 64
# Per half of the upload buffer: two lists of 131,072 page numbers.
_UPLOAD_NUMBERS = 1 << 18


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
        self._page_bytes: list[int] = []
        self._unmapped = torch.zeros(0)
        self._words: list[torch.Tensor] = []
        self._mirrors: list[torch.Tensor] = []
        self._inverse: list[torch.Tensor] = []
        self._uploads: _Uploads | None = None
        # Fills asked for but not yet issued, as (band, value, pages): see `issue_fills`.
        self._fills: list[tuple[int, int, Pages]] = []
        self._done: dict[int, torch.cuda.Event] = {}
        self._newest_run = 0
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
            self._page_bytes = list(page_bytes)
            # The arena as the widest words that divide a band's pages.
            whole = self.buffer[: total_bytes // 8 * 8]
            self._words = [
                whole.view(torch.int64 if size % 8 == 0 else torch.int32) for size in page_bytes
            ]
            self._mirrors = [
                torch.full((count,), -1, dtype=torch.int64, device=self.device)
                for count in virtual_pages
            ]
            pages = [total_bytes // size for size in page_bytes]
            self._inverse = [
                torch.full((count,), -1, dtype=torch.int64, device=self.device) for count in pages
            ]
            # Numbers of pages travel in 32 bits where all of them fit: half the bytes to copy.
            fits = max([*pages, *virtual_pages]) < 1 << 31
            dtype = torch.int32 if fits else torch.int64
            self._uploads = _Uploads(self.device, self.schedule, dtype)
            self._unmapped = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.warm_up()

    def warm_up(self) -> None:
        """Pay first-launch costs (compilation, module loading) now instead of in the first
        compaction: every kernel runs once per band on pages of the sink, and on unmapped rows."""
        with torch.cuda.stream(self.schedule):
            zero, unmapped = self._upload(np.array([0]), np.array([-1]))
            for band, (words, page_bytes) in enumerate(
                zip(self._words, self._page_bytes, strict=True)
            ):
                kernels.move_pages(words, zero, zero, page_bytes)
                kernels.fill_pages(words, zero, page_bytes, 0)
                if self._mirrors[band].numel():
                    kernels.publish_rows(self._mirrors[band], self._inverse[band], zero, unmapped)

    def _upload(self, *numbers: Pages) -> list[torch.Tensor]:
        assert self._uploads is not None, "allocate comes first"
        return self._uploads.send(numbers)

    def move(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.issue_fills()
        with torch.cuda.stream(self.schedule):
            from_pages, to_pages = self._upload(sources, destinations)
            kernels.move_pages(self._words[band], from_pages, to_pages, self._page_bytes[band])

    def copy(self, band: int, sources: Pages, destinations: Pages) -> None:
        self.move(band, sources, destinations)

    def fill(self, band: int, pages: Pages, value: int) -> None:
        self._fills.append((band, value, pages.copy()))

    def issue_fills(self) -> None:
        """Fills are issued together before the next thing that reads or writes page content: a move,
        a launched forward, a lease. An allocation then costs no launch of its own.

        Bytes may have changed hands between two fills, so different values keep their order; with
        one value (the rule) order does not matter and each band takes one kernel.
        """
        if not self._fills:
            return
        fills, self._fills = self._fills, []
        if len({value for _, value, _ in fills}) == 1:
            fills.sort(key=lambda fill: fill[0])
        with torch.cuda.stream(self.schedule):
            for (band, value), group in itertools.groupby(fills, key=lambda fill: fill[:2]):
                (on_device,) = self._upload(np.concatenate([pages for _, _, pages in group]))
                kernels.fill_pages(self._words[band], on_device, self._page_bytes[band], value)

    def publish(self, band: int, virtual: Pages, physical: Pages) -> None:
        with torch.cuda.stream(self.schedule):
            rows, values = self._upload(virtual, physical)
            kernels.publish_rows(self._mirrors[band], self._inverse[band], rows, values)

    def mirror(self, band: int) -> torch.Tensor:
        return self._mirrors[band]

    def inverse_mirror(self, band: int) -> torch.Tensor:
        return self._inverse[band]

    def translate(self, band: int, tokens: torch.Tensor, page_size: int) -> torch.Tensor:
        """As the protocol says; on the current stream, inside `forward` the forward's own."""
        rows = torch.empty_like(tokens)
        kernels.translate_tokens(
            self._mirrors[band], tokens, page_size, rows=rows, unmapped=self._unmapped
        )
        return rows

    def unmapped_tokens(self) -> int:
        self.host_waits += 1
        return int(self._unmapped)

    def launch(self, ticket: int) -> None:
        self.issue_fills()
        self.forwards.wait_stream(self.schedule)

    @contextmanager
    def forward(self, ticket: int) -> Iterator[None]:
        with torch.cuda.stream(self.forwards):
            yield
            done = torch.cuda.Event()
            done.record(self.forwards)
        self._done[ticket] = done
        self._newest_run = max(self._newest_run, ticket)
        for old in [known for known, event in self._done.items() if event.query()]:
            if old != ticket:
                del self._done[old]
                self._read.pop(old, None)

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.issue_fills()
        self.copies.wait_stream(self.schedule)
        self.copies.wait_stream(self.forwards)
        with torch.cuda.stream(self.copies):
            yield

    def tables_read(self, ticket: int) -> None:
        """The forward has read its tables: call inside `forward` to allow the fine barrier."""
        event = torch.cuda.Event()
        event.record(self.forwards)
        self._read[ticket] = event

    def is_complete(self, ticket: int) -> bool:
        done = self._done.get(ticket)
        # Tickets that were seen complete are forgotten; one that was never run is ahead of all.
        return done.query() if done is not None else ticket <= self._newest_run

    def wait(self, ticket: int) -> None:
        done = self._done.get(ticket)
        if done is not None:
            self.host_waits += 1
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
        self.issue_fills()
        self.host_waits += 1
        torch.cuda.synchronize(self.device)


class _Uploads:
    """Lists of numbers on their way to kernels of one stream, through pinned memory that is made once:
    a fresh buffer on either side costs more host time than the copy of thousands of numbers.

    Two halves are filled in turns. A half is written anew only when its copies have left it; a list
    that finds no room takes buffers of its own, so the host never waits.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream, dtype: torch.dtype) -> None:
        self._stream = stream
        shape = (2, _UPLOAD_NUMBERS)
        self._pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
        self._host = self._pinned.numpy()
        self._on_device = torch.empty(shape, dtype=dtype, device=device)
        self._left = [torch.cuda.Event(), torch.cuda.Event()]
        self._half, self._used = 0, 0

    def send(self, numbers: Sequence[Pages]) -> list[torch.Tensor]:
        """Equally long lists on the device, by one copy on the current stream (the one given)."""
        count = numbers[0].size
        # Rows start on 128 bytes whatever the count, so that no launch is compiled anew for another
        # alignment of its arguments.
        width = count + -count % 32
        start = self._room(len(numbers) * width)
        if start is None:
            shape = (len(numbers) * width,)
            # torch keeps the pinned block until the stream is past the copy.
            pinned = torch.empty(shape, dtype=self._pinned.dtype, pin_memory=True)
            host, start = pinned.numpy(), 0
            on_device = torch.empty(shape, dtype=pinned.dtype, device=self._on_device.device)
        else:
            half, host = self._half, self._host[self._half]
            pinned, on_device = self._pinned[half], self._on_device[half]
        starts = range(start, start + len(numbers) * width, width) if width else [0] * len(numbers)
        for first, values in zip(starts, numbers, strict=True):
            host[first : first + count] = values
        stop = start + len(numbers) * width
        on_device[start:stop].copy_(pinned[start:stop], non_blocking=True)
        return [on_device[first : first + count] for first in starts]

    def _room(self, size: int) -> int | None:
        """Where `size` numbers go in the current half, None when there is no room now."""
        if size > _UPLOAD_NUMBERS:
            return None
        if self._used + size > _UPLOAD_NUMBERS:
            if not self._left[1 - self._half].query():
                return None
            self._left[self._half].record(self._stream)
            self._half, self._used = 1 - self._half, 0
        self._used += size
        return self._used - size


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
