"""Sampler of ServeGen client distributions: no trace, but the law by which clients send.

Memory holds every client's distributions and, for each client, the requests of one window of
`WINDOW_SECONDS`; it does not grow with the length of the workload.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.reader_lines import (
    RowProblem,
    TraceFile,
    finite_number,
    json_object,
    member,
    quoted,
    token_count,
)
from bandscope.fuzz.workload.request import Request, RequestStream

WINDOW_SECONDS = 600.0

#: A window of one client that asks for more requests than this is refused: they are held at once.
WINDOW_REQUESTS_MAX = 2_000_000

_FAMILIES = ("Gamma", "Weibull", None)

_Sample = tuple[float, int, int, int]


@dataclass(frozen=True, slots=True)
class _Window:
    """Arrivals of one client from `start_seconds` of the day on, for `WINDOW_SECONDS`."""

    start_seconds: float
    requests_per_second: float
    family: str | None
    shape: float
    scale_seconds: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A distribution of token counts: the counts, and the chance of each or a smaller one."""

    tokens: NDArray[np.int64]
    cumulative: NDArray[np.float64]

    def sample(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        # The last cumulative value may be a hair under 1; `clip` keeps such a draw in range.
        places = np.searchsorted(self.cumulative, random.random(count), side="right")
        return self.tokens[np.clip(places, 0, len(self.tokens) - 1)]


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    windows: list[_Window]
    #: Start of the length window in seconds, distribution of prompts, distribution of outputs.
    lengths: list[tuple[float, _Lengths, _Lengths]]

    def lengths_at(self, seconds: float) -> tuple[_Lengths, _Lengths]:
        """The distributions in force then; the nearest ones where that time has none."""
        started = [entry for entry in self.lengths if entry[0] <= seconds]
        _, prompts, outputs = started[-1] if started else self.lengths[0]
        return prompts, outputs


def read_servegen(
    trace: TraceFile,
    *,
    seed: int = 0,
    rate_multiplier: float = 1.0,
    start_seconds: float = 0.0,
    duration_seconds: float | None = None,
) -> RequestStream:
    """Yield sampled requests of all clients, merged by arrival.

    Takes the part of the day from `start_seconds` on, for `duration_seconds` or to its end;
    arrivals count from there. The same seed gives the same requests at a time of the day, whatever
    the part taken. `client` is the client's number.
    """
    clients = list(_read_clients(trace))
    end_seconds = math.inf if duration_seconds is None else start_seconds + duration_seconds
    samplers = [
        _sample_client(client, (seed, ordinal), rate_multiplier, start_seconds, end_seconds)
        for ordinal, client in enumerate(clients)
    ]
    index = 0
    for seconds, ordinal, prompt_tokens, output_tokens in heapq.merge(*samplers):
        trace.report.rows_read += 1
        if not prompt_tokens or not output_tokens:
            trace.report.rows_zero_tokens += 1
            continue
        yield Request(
            index=index,
            arrival_seconds=seconds - start_seconds,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            client=clients[ordinal].name,
        )
        index += 1


def _sample_client(
    client: _Client,
    seeds: tuple[int, int],
    rate_multiplier: float,
    start_seconds: float,
    end_seconds: float,
) -> Iterator[_Sample]:
    seed, ordinal = seeds
    for number, window in enumerate(client.windows):
        if window.start_seconds + WINDOW_SECONDS <= start_seconds:
            continue
        if window.start_seconds >= end_seconds:
            return
        expected = window.requests_per_second * rate_multiplier * WINDOW_SECONDS
        if expected > WINDOW_REQUESTS_MAX:
            raise WorkloadError(
                f"Client {client.name} would send {expected:,.0f} requests in one window of "
                f"{WINDOW_SECONDS:.0f} s; at most {WINDOW_REQUESTS_MAX:,} can be sampled: "
                "lower the rate multiplier."
            )
        # One stream a window, so that skipping windows does not change the later ones.
        random = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence((seed, ordinal, number)))
        )
        count = int(expected + random.random())
        if not count:
            continue
        arrivals = _arrivals(window, random, count, rate_multiplier)
        prompts, outputs = client.lengths_at(window.start_seconds)
        rows = zip(
            arrivals.tolist(),
            prompts.sample(random, count).tolist(),
            outputs.sample(random, count).tolist(),
            strict=True,
        )
        for seconds, prompt_tokens, output_tokens in rows:
            if start_seconds <= seconds < end_seconds:
                yield seconds, ordinal, prompt_tokens, output_tokens


def _arrivals(
    window: _Window, random: np.random.Generator, count: int, rate_multiplier: float
) -> NDArray[np.float64]:
    """`count` ascending times within the window.

    The rate says how many; the family says how close together. A bursty client's gaps sum to much
    less than the window, so its burst is put at a random place in it; gaps that sum to more are
    shrunk to fit.
    """
    if window.family is None:
        return np.sort(window.start_seconds + WINDOW_SECONDS * random.random(count))
    if window.family == "Gamma":
        gaps = random.standard_gamma(window.shape, count - 1)
    else:
        gaps = random.weibull(window.shape, count - 1)
    offsets = np.concatenate(([0.0], np.cumsum(gaps * (window.scale_seconds / rate_multiplier))))
    span = float(offsets[-1])
    if span >= WINDOW_SECONDS:
        # A little short of the window's length, so that no request falls into the next window.
        offsets *= WINDOW_SECONDS * (count - 0.5) / count / span
        span = float(offsets[-1])
    place = window.start_seconds + (WINDOW_SECONDS - span) * random.random()
    return np.minimum(place + offsets, np.nextafter(window.start_seconds + WINDOW_SECONDS, 0.0))


def _read_clients(trace: TraceFile) -> Iterator[_Client]:
    for line_number, text in trace.lines():
        try:
            client = _client(json_object(text))
        except RowProblem as problem:
            trace.report.rows_read += 1
            trace.malformed(line_number, str(problem))
            continue
        if client is not None:
            yield client


def _client(row: dict[str, Any]) -> _Client | None:
    """The client on a line, or None when it never sends."""
    name = quoted(member(row, "client")).strip("'")
    arrivals = member(row, "arrivals")
    lengths = member(row, "lengths")
    if not isinstance(arrivals, list) or not isinstance(lengths, dict):
        raise RowProblem("arrivals is not a list, or lengths is not an object")
    windows: list[_Window] = []
    latest_end = 0.0
    for number, values in enumerate(arrivals, start=1):
        window = _window(number, values)
        if window.start_seconds < latest_end:
            raise RowProblem(f"arrival window {number} overlaps the one before")
        latest_end = window.start_seconds + WINDOW_SECONDS
        if window.requests_per_second:
            windows.append(window)
    parts: list[tuple[float, _Lengths, _Lengths]] = []
    for start, part in lengths.items():
        start_seconds = finite_number("start of a length window", start)
        if not isinstance(part, dict):
            raise RowProblem(f"length window {start} is {quoted(part)}, not an object")
        prompts = _distribution("input_tokens", part)
        outputs = _distribution("output_tokens", part)
        if prompts is not None and outputs is not None:
            parts.append((start_seconds, prompts, outputs))
    if not windows:
        return None
    if not parts:
        raise RowProblem("sends requests, but has no distribution of their lengths")
    parts.sort(key=lambda part: part[0])
    return _Client(name, windows, parts)


def _window(number: int, values: object) -> _Window:
    if not isinstance(values, list) or len(values) != 6:
        raise RowProblem(f"arrival window {number} is {quoted(values)}, not a list of 6")
    start, rate, _, family, shape, scale = values
    if family not in _FAMILIES:
        raise RowProblem(
            f"arrival window {number} has the family {quoted(family)}, not Gamma, Weibull or null"
        )
    window = _Window(
        start_seconds=finite_number(f"start of arrival window {number}", start),
        requests_per_second=finite_number(f"rate of arrival window {number}", rate),
        family=family,
        shape=finite_number(f"shape of arrival window {number}", shape) if family else 0.0,
        scale_seconds=finite_number(f"scale of arrival window {number}", scale) if family else 0.0,
    )
    if family and not (window.shape and window.scale_seconds):
        raise RowProblem(f"arrival window {number} has a shape or scale of 0")
    return window


def _distribution(name: str, part: dict[str, Any]) -> _Lengths | None:
    """The distribution of that name, or None when it is empty: the client is silent then."""
    pairs = part.get(name)
    if not pairs:
        return None
    if not isinstance(pairs, list):
        raise RowProblem(f"{name} is {quoted(pairs)}, not a list")
    tokens = np.empty(len(pairs), np.int64)
    weights = np.empty(len(pairs), np.float64)
    for place, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowProblem(f"{name} holds {quoted(pair)}, not a pair")
        tokens[place] = token_count(name, pair[0])
        weights[place] = finite_number(f"probability of {name}", pair[1])
    total = float(weights.sum())
    if not (math.isfinite(total) and total > 0):
        raise RowProblem(f"the probabilities of {name} sum to {total}")
    return _Lengths(tokens, np.cumsum(weights) / total)
