"""Open a workload by name: a trace file of a known format, or the synthetic generator."""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.reader_agentic import CONVERSATION_GAP_SECONDS, read_agentic
from bandscope.fuzz.workload.reader_lines import TraceFile, open_trace
from bandscope.fuzz.workload.reader_servegen import read_servegen
from bandscope.fuzz.workload.readers import FORMATS, read_azure, read_burstgpt, read_mooncake
from bandscope.fuzz.workload.request import (
    ARRIVAL_SECONDS_MAX,
    BlockIds,
    ReadReport,
    Request,
    RequestStream,
)
from bandscope.fuzz.workload.synthetic import SyntheticOptions, generate, parse_options

SYNTHETIC = "synthetic"

# Smaller factors and parts would make arrivals infinite, or nothing.
_FACTOR_MIN = 1e-9
_SECONDS_MIN = 1e-6

_FORM = (
    f"Write FORMAT:PATH with a format of {', '.join(FORMATS)}; "
    f"or {SYNTHETIC}, or {SYNTHETIC}:KEY=VALUE,KEY=VALUE."
)


@dataclass(frozen=True, slots=True)
class _Selection:
    """Which part of the source to yield, and how; checked by `open_workload`."""

    seed: int
    strict: bool
    limit: int | None
    speedup: float
    start_seconds: float
    duration_seconds: float | None
    context_tokens_max: int | None
    over_context: Literal["skip", "cap"]
    rate_multiplier: float
    conversation_gap_seconds: float


class Workload:
    """Requests in arrival order; every `iter()` starts afresh and gives the same requests.

    `name` says what it is. `report` is the account of the latest iteration, complete once that has
    ended. `expected_requests` is how many there will be, or None for a file, which is not read
    ahead. Iterating raises WorkloadError when the file can no longer be opened, holds no usable
    request, or, when strict, has a malformed row.
    """

    def __init__(
        self,
        name: str,
        trace_format: str,
        path: Path | None,
        options: SyntheticOptions | None,
        selection: _Selection,
    ) -> None:
        self.name = name
        self.report = ReadReport()
        self._format = trace_format
        self._path = path
        self._options = options
        self._selection = selection

    @property
    def expected_requests(self) -> int | None:
        """Requests to come, or None where that is not known without reading them."""
        chosen = self._selection
        cut = (chosen.start_seconds, chosen.duration_seconds, chosen.context_tokens_max)
        if self._options is None or cut != (0.0, None, None):
            return None
        return min(self._options.requests, chosen.limit or self._options.requests)

    def __iter__(self) -> Iterator[Request]:
        report = ReadReport()
        self.report = report
        return self._requests(report)

    def _requests(self, report: ReadReport) -> Iterator[Request]:
        chosen = self._selection
        # A reader that selects by time itself gives arrivals that count from the start already.
        start_seconds = 0.0 if self._format == "servegen" else chosen.start_seconds
        end_seconds = start_seconds + (
            math.inf if chosen.duration_seconds is None else chosen.duration_seconds
        )
        with closing(self._source(report)) as source:
            for request in source:
                if request.arrival_seconds < start_seconds:
                    report.rows_outside_time += 1
                    continue
                if request.arrival_seconds >= end_seconds:
                    break
                fitted = self._fit_context(request, report)
                if fitted is None:
                    continue
                arrival_seconds = (fitted.arrival_seconds - start_seconds) / chosen.speedup
                index = report.requests_yielded
                report.requests_yielded += 1
                # Most requests pass as they are; copying each would double the cost of reading.
                if (index, arrival_seconds) != (fitted.index, fitted.arrival_seconds):
                    fitted = replace(fitted, index=index, arrival_seconds=arrival_seconds)
                yield fitted
                if report.requests_yielded == chosen.limit:
                    break
        if not report.requests_yielded:
            raise WorkloadError(f"{self.name} has no usable request: {report.describe()}.")

    def _source(self, report: ReadReport) -> RequestStream:
        chosen = self._selection
        if self._path is None:
            return self._generated(report)
        trace = TraceFile(self._path, report, chosen.strict)
        if self._format == "agentic":
            return read_agentic(
                trace,
                seed=chosen.seed,
                conversation_gap_seconds=chosen.conversation_gap_seconds,
            )
        if self._format == "servegen":
            return read_servegen(
                trace,
                seed=chosen.seed,
                rate_multiplier=chosen.rate_multiplier,
                start_seconds=chosen.start_seconds,
                duration_seconds=chosen.duration_seconds,
            )
        return _READERS[self._format](trace)

    def _generated(self, report: ReadReport) -> RequestStream:
        assert self._options is not None, "a workload without a file is synthetic"
        for request in generate(self._options, self._selection.seed):
            report.rows_read += 1
            yield request

    def _fit_context(self, request: Request, report: ReadReport) -> Request | None:
        """The request as it fits the context, or None when it does not and is skipped."""
        limit = self._selection.context_tokens_max
        if limit is None or request.prompt_tokens + request.output_tokens <= limit:
            return request
        if self._selection.over_context == "skip":
            report.rows_over_context += 1
            return None
        report.rows_capped += 1
        prompt_tokens = min(request.prompt_tokens, limit - 1)
        blocks: tuple[int, ...] | BlockIds | None = request.prefix_blocks
        if blocks is not None and prompt_tokens < request.prompt_tokens:
            # The block the cut goes through is no longer the one its id names.
            blocks = blocks[: prompt_tokens // request.block_tokens]
        return replace(
            request,
            prompt_tokens=prompt_tokens,
            output_tokens=min(request.output_tokens, limit - prompt_tokens),
            prefix_blocks=blocks,
        )


_READERS = {"mooncake": read_mooncake, "azure": read_azure, "burstgpt": read_burstgpt}


def open_workload(
    spec: str,
    *,
    seed: int = 0,
    strict: bool = False,
    limit: int | None = None,
    speedup: float = 1.0,
    start_seconds: float = 0.0,
    duration_seconds: float | None = None,
    context_tokens_max: int | None = None,
    over_context: Literal["skip", "cap"] = "skip",
    rate_multiplier: float = 1.0,
    conversation_gap_seconds: float = CONVERSATION_GAP_SECONDS,
) -> Workload:
    """Open `FORMAT:PATH`, `synthetic`, or `synthetic:KEY=VALUE,KEY=VALUE`.

    `seed` decides everything that is drawn: synthetic requests, starts of agentic conversations,
    samples of ServeGen clients. `strict` makes a malformed or out-of-order row an error. `limit`
    is the most requests to yield.

    `start_seconds` and `duration_seconds` choose a part of the trace, in its own time; arrivals
    count from the start of that part and are then divided by `speedup`.

    A request whose prompt and output exceed `context_tokens_max` together is skipped, or with
    `over_context="cap"` loses first the end of its output, then of its prompt; at least one output
    token is left.

    `rate_multiplier` is for `servegen` and `conversation_gap_seconds` for `agentic`; elsewhere they
    must be left alone.

    Raises WorkloadError for a spec that names no known format, a file that cannot be opened, or a
    value that makes no sense; what a file holds is only read by iterating.
    """
    if over_context not in ("skip", "cap"):
        raise WorkloadError(f"over_context is {over_context!r}; it must be 'skip' or 'cap'.")
    _check("seed", seed, 0)
    _check("speedup", speedup, _FACTOR_MIN)
    _check("start_seconds", start_seconds, 0.0)
    _check("conversation_gap_seconds", conversation_gap_seconds, 0.0, ARRIVAL_SECONDS_MAX)
    _check("rate_multiplier", rate_multiplier, _FACTOR_MIN)
    if limit is not None:
        _check("limit", limit, 1)
    if duration_seconds is not None:
        _check("duration_seconds", duration_seconds, _SECONDS_MIN)
    if context_tokens_max is not None:
        _check("context_tokens_max", context_tokens_max, 2)
    selection = _Selection(
        seed=seed,
        strict=strict,
        limit=limit,
        speedup=speedup,
        start_seconds=start_seconds,
        duration_seconds=duration_seconds,
        context_tokens_max=context_tokens_max,
        over_context=over_context,
        rate_multiplier=rate_multiplier,
        conversation_gap_seconds=conversation_gap_seconds,
    )
    trace_format, path_text, options = _parse_spec(spec)
    if rate_multiplier != 1.0 and trace_format != "servegen":
        raise WorkloadError(
            f"rate_multiplier is for servegen; {trace_format} has its own arrivals."
        )
    if conversation_gap_seconds != CONVERSATION_GAP_SECONDS and trace_format != "agentic":
        raise WorkloadError(f"conversation_gap_seconds is for agentic, not for {trace_format}.")
    if options is not None:
        return Workload(spec, trace_format, None, options, selection)
    path = Path(path_text)
    open_trace(path).close()
    return Workload(spec, trace_format, path, None, selection)


def _parse_spec(spec: str) -> tuple[str, str, SyntheticOptions | None]:
    """Format, path (empty when synthetic) and synthetic options. Raises WorkloadError."""
    trace_format, colon, rest = spec.partition(":")
    if trace_format == SYNTHETIC:
        return trace_format, "", parse_options(rest)
    if trace_format in FORMATS and rest:
        return trace_format, rest, None
    if trace_format in FORMATS:
        raise WorkloadError(f"{spec!r} names a format but no file. {_FORM}")
    if _exists(spec):
        raise WorkloadError(f"{spec!r} is a file, but of which format? {_FORM}")
    what = f"{trace_format!r} is no known format" if colon else f"{spec!r} is no workload"
    raise WorkloadError(f"{what}. {_FORM}")


def _exists(path_text: str) -> bool:
    try:
        return bool(path_text) and Path(path_text).exists()
    except (OSError, ValueError):
        return False


def _check(name: str, value: float, least: float, most: float = math.inf) -> None:
    """Raise WorkloadError unless the value is finite and at least `least`, at most `most`."""
    if not (math.isfinite(value) and least <= value <= most):
        bound = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise WorkloadError(f"{name} is {value}; it must be finite and {bound}.")
