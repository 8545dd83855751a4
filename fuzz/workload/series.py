"""Bounded samples of a run over time: where every band lay, and how full the arena was."""

from __future__ import annotations

from dataclasses import dataclass, field

from bandscope.allocator.arena import Arena

SAMPLES_MAX = 512


@dataclass(frozen=True, slots=True)
class Sample:
    """One instant. Per band in chain order: extent in bytes, and live, hole and pending pages."""

    clock_seconds: float
    running: int
    waiting: int
    extents: tuple[tuple[int, int], ...]
    live: tuple[int, ...]
    holes: tuple[int, ...]
    pending: tuple[int, ...]


@dataclass
class Series:
    """At most `SAMPLES_MAX` samples, evenly spread over the steps so far: when it is full, every
    second one is dropped and the stride doubles."""

    samples: list[Sample] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    largest_gap_bytes_min: int | None = None

    def step(self, arena: Arena, clock_seconds: float, running: int, waiting: int) -> None:
        """One step of the run is over."""
        self.seen += 1
        if (self.seen - 1) % self.stride:
            return
        bands = arena.books.bands
        gap = max(stop - start for start, stop in arena.books.chain.gaps())
        if self.largest_gap_bytes_min is None or gap < self.largest_gap_bytes_min:
            self.largest_gap_bytes_min = gap
        self.samples.append(
            Sample(
                clock_seconds,
                running,
                waiting,
                tuple(band.byte_range() if band.extent else (0, 0) for band in bands),
                tuple(band.live for band in bands),
                tuple(band.holes for band in bands),
                tuple(band.pending for band in bands),
            )
        )
        if len(self.samples) == SAMPLES_MAX:
            self.samples = self.samples[::2]
            self.stride *= 2
