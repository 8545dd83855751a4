"""The arena over time as a picture: a column per instant, low bytes at the bottom, as a PNG; and areas.

Instants are spread evenly over the events, or evenly over the time. Each is taken after an operation.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bandscope.allocator.band import HOLE, LIVE, PENDING
from bandscope.inspect.exports.follow import Follower
from bandscope.inspect.exports.window import Window
from bandscope.inspect.format import Kind
from bandscope.inspect.state import ArenaState, BandState

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
GAP_COLOUR, SINK_COLOUR, UNKNOWN_COLOUR = "#FAFAF7", "#9A9A9A", "#FFFFFF"
ROWS = 240
# Of a band's colours: 0 all holes … SHADES − 1 all live; then pending.
SHADES = 5
_UNKNOWN, _GAP, _SINK, _FIRST = range(4)


@dataclass(frozen=True)
class BandSample:
    """A band at an instant: bytes of its extent, and pages."""

    start: int
    stop: int
    live: int
    holes: int
    pending: int
    pinned: int


@dataclass(frozen=True)
class Sample:
    """The arena after the operation that event `sequence` ended. `bands` and `column` (shape (ROWS,),
    indexes of the palette, top first) are empty where damage hides it."""

    sequence: int
    time_ns: int
    bands: tuple[BandSample, ...]
    column: np.ndarray


@dataclass(frozen=True)
class Film:
    """Samples, and per axis the sample of each column."""

    samples: list[Sample]
    by_event: list[int]
    by_time: list[int]


def film(window: Window, columns: int) -> Film:
    """Samples of a window on both axes."""
    by_event, by_time, times = _instants(window, columns)
    follower = Follower(window)
    samples = []
    for sequence in sorted(times):
        state = follower.before(sequence + 1)
        if state is None:
            column = np.full(ROWS, _UNKNOWN, np.uint8)
            samples.append(Sample(sequence, times[sequence], (), column))
        else:
            bands = tuple(_sample(band) for band in state.bands)
            samples.append(Sample(sequence, times[sequence], bands, _column(state)))
    place = {sample.sequence: index for index, sample in enumerate(samples)}
    return Film(samples, [place[s] for s in by_event], [place[s] for s in by_time])


def _instants(window: Window, columns: int) -> tuple[list[int], list[int], dict[int, int]]:
    """The outcome, or failing that the operation, that each column shows, and the time of each."""
    low, high = window.times()
    at_event = np.linspace(window.start, window.stop - 1, columns)
    at_time = np.linspace(low, high, columns)
    by_event = np.full(columns, -1)
    by_time = np.full(columns, -1)
    times: dict[int, int] = {}
    for segment, asked in window.operations():
        kinds = segment.records["kind"]
        first = max(0, window.start - segment.first_sequence)
        last = min(len(segment), window.stop - segment.first_sequence)
        outcomes = (kinds == Kind.OUTCOME) & segment.good
        ended = first + np.flatnonzero(outcomes[first:last])
        if not ended.size:
            ended = asked
        if not ended.size:
            continue
        sequences, clock = segment.first_sequence + ended, segment.records["a"][ended]
        for found, wanted, have in ((by_event, at_event, sequences), (by_time, at_time, clock)):
            place = np.searchsorted(have, wanted, side="right") - 1
            found[place >= 0] = sequences[place[place >= 0]]
            # Before the first outcome there is nothing else to show.
            found[(place < 0) & (found < 0)] = sequences[0]
        for sequence in {*by_event.tolist(), *by_time.tolist()}:
            if segment.first_sequence <= sequence < segment.stop_sequence:
                times[sequence] = int(segment.records["a"][sequence - segment.first_sequence])
    shown = {*by_event.tolist(), *by_time.tolist()}
    return by_event.tolist(), by_time.tolist(), {s: t for s, t in times.items() if s in shown}


def _sample(band: BandState) -> BandSample:
    start, stop = band.byte_range()
    pinned = int(np.count_nonzero(band.pins[band.slice]))
    live, holes, pending = (band.count(state) for state in (LIVE, HOLE, PENDING))
    return BandSample(start, stop, live, holes, pending, pinned)


def _column(state: ArenaState) -> np.ndarray:
    """Palette indexes from the top (the highest bytes) down: a row shows whoever has most of it."""
    rows = np.full(ROWS, _GAP, np.uint8)
    row_bytes = state.total_bytes / ROWS
    most = np.full(ROWS, row_bytes / 4)  # what covers less of a row than this does not show
    sink = max(1, round(state.sink_bytes / row_bytes)) if state.sink_bytes else 0
    rows[:sink] = _SINK
    for band in state.bands:
        start, stop = band.byte_range()
        if stop <= start:
            continue
        first, last = int(start / row_bytes), min(ROWS, int(np.ceil(stop / row_bytes)))
        edges = np.clip(np.arange(first, last + 1) * row_bytes, start, stop)
        covered = np.diff(edges)
        pages = band.state[band.slice]
        live = _share(pages == LIVE, edges - start, band.page_bytes)
        pending = _share(pages == PENDING, edges - start, band.page_bytes)
        shade = np.rint(live * (SHADES - 1)).astype(int)
        shade[(live > 0) & (shade == 0)] = 1
        shade[(live < 1) & (shade == SHADES - 1)] = SHADES - 2
        shade[(pending > live) & (pending >= 1 - live - pending)] = SHADES
        chosen = covered > most[first:last]
        rows[first:last][chosen] = _FIRST + band.index * (SHADES + 1) + shade[chosen]
        most[first:last][chosen] = covered[chosen]
    return rows[::-1]


def _share(pages: np.ndarray, edges: np.ndarray, page_bytes: int) -> np.ndarray:
    """Which share of each stretch between two edges (bytes of the extent) such pages have."""
    below = np.concatenate([[0], np.cumsum(pages)])
    at = np.interp(edges / page_bytes, np.arange(below.size), below)
    wide = np.maximum(np.diff(edges) / page_bytes, 1e-12)
    share: np.ndarray = np.clip(np.diff(at) / wide, 0, 1)
    return np.where(share > 1 - 1e-9, 1.0, share)


def colour_of(band: int) -> str:
    """The colour of a band's live pages."""
    return COLOURS[band % len(COLOURS)]


def mixed(colour: str, other: str, share: float) -> str:
    """A colour with a share of another in it."""
    pairs = zip(_bytes(colour), _bytes(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in pairs)


def hole_colour(band: int) -> str:
    """The colour of a band's holes."""
    return mixed(colour_of(band), "#FFFFFF", 0.78)


def pending_colour(band: int) -> str:
    """The colour of a band's pending pages."""
    return mixed(colour_of(band), "#000000", 0.55)


def _bytes(colour: str) -> bytes:
    return bytes.fromhex(colour.removeprefix("#"))


def png(samples: Sequence[Sample], bands: int) -> bytes:
    """A PNG with a pixel per row of a sample, of 8 bits with a palette."""
    palette = [UNKNOWN_COLOUR, GAP_COLOUR, SINK_COLOUR]
    for band in range(bands):
        steps = (shade / (SHADES - 1) for shade in range(SHADES))
        palette += [mixed(hole_colour(band), colour_of(band), step) for step in steps]
        palette.append(pending_colour(band))
    pixels = np.stack([sample.column for sample in samples], axis=1)
    height, width = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # filter 0: none
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(map(_bytes, palette[:256]))),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in parts:
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    return data


def areas(samples: Sequence[Sample], band: int, height: int) -> tuple[list[tuple[str, str]], int]:
    """Live, pending and holes of a band stacked: per area its name and an SVG path, a unit wide per
    sample; and the pages at the top."""
    counts = np.zeros((3, len(samples)), np.int64)
    for column, sample in enumerate(samples):
        if sample.bands:
            of = sample.bands[band]
            counts[:, column] = of.live, of.pending, of.holes
    tops = np.cumsum(counts, axis=0)
    peak = max(1, int(tops[-1].max()))
    paths = []
    floor = np.zeros(len(samples), np.int64)
    for name, top in zip(("live", "pending", "holes"), tops, strict=True):
        y_top = height - top / peak * height
        y_floor = height - floor / peak * height
        forth = _steps(y_top)
        back = _steps(y_floor)[::-1]
        points = " ".join(f"{x},{y:.4g}" for x, y in [*forth, *back])
        paths.append((name, f"M{points}Z"))
        floor = top
    return paths, peak


def _steps(heights: np.ndarray) -> list[tuple[int, float]]:
    """The corners of a staircase."""
    corners: list[tuple[int, float]] = []
    for x, y in enumerate(heights.tolist()):
        if not corners or corners[-1][1] != y:
            corners += [(x, corners[-1][1])] if corners else []
            corners.append((x, y))
    corners.append((len(heights), corners[-1][1]))
    return corners
