"""Readers of request traces that hold one request a row, and the list of all formats.

Each reader takes an opened `TraceFile` and yields requests in arrival order, one row in memory at
a time. `docs/workloads.md` describes the formats; `bandscope.fuzz.workload.source` is the way in.
"""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.reader_lines import (
    Clock,
    RowProblem,
    TraceFile,
    block_ids,
    finite_number,
    json_object,
    member,
    quoted,
    token_count,
)
from bandscope.fuzz.workload.request import Request, RequestStream

#: Every format a trace file can have, and what it is.
FORMATS = {
    "mooncake": "JSON lines with timestamp, input_length, output_length, hash_ids",
    "azure": "CSV with TIMESTAMP, ContextTokens, GeneratedTokens",
    "burstgpt": "CSV with Timestamp, Request tokens, Response tokens",
    "agentic": "JSON lines, one coding-agent conversation a line",
    "servegen": "JSON lines, one client's arrival and length distributions a line, sampled",
}

MOONCAKE_BLOCK_TOKENS = 512

_EPOCH = datetime(1970, 1, 1)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)


def read_mooncake(trace: TraceFile) -> RequestStream:
    """Yield the requests of a Mooncake trace; `timestamp` is in milliseconds, blocks of 512."""
    clock = Clock(trace)
    index = 0
    for line_number, text in trace.lines():
        trace.report.rows_read += 1
        try:
            row = json_object(text)
            seconds = finite_number("timestamp", member(row, "timestamp")) / 1000.0
            prompt_tokens = token_count("input_length", member(row, "input_length"))
            output_tokens = token_count("output_length", member(row, "output_length"))
            blocks = block_ids(
                row.get("hash_ids"),
                prompt_tokens=prompt_tokens,
                block_tokens=MOONCAKE_BLOCK_TOKENS,
            )
            arrival_seconds = clock.arrival_seconds(seconds, line_number)
        except RowProblem as problem:
            trace.malformed(line_number, str(problem))
            continue
        if not prompt_tokens or not output_tokens:
            trace.report.rows_zero_tokens += 1
            continue
        yield Request(
            index=index,
            arrival_seconds=arrival_seconds,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prefix_blocks=blocks,
            block_tokens=0 if blocks is None else MOONCAKE_BLOCK_TOKENS,
        )
        index += 1


def read_azure(trace: TraceFile) -> RequestStream:
    """Yield the requests of an Azure trace: a date and time, kept to 100 ns from the first row."""
    columns = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    # Nanoseconds since 1970 do not fit a float, so the first row's time is taken off as integers.
    first: list[int] = []

    def seconds(text: str) -> float:
        nanoseconds = _nanoseconds(text)
        if not first:
            first.append(nanoseconds)
        return (nanoseconds - first[0]) / 1e9

    return _read_csv(trace, columns, seconds)


def read_burstgpt(trace: TraceFile) -> RequestStream:
    """Yield the requests of a BurstGPT trace, its columns found by name; time in seconds.

    Failed calls have 0 tokens and are counted, not yielded. `client` is the session, where the
    file has a `Session ID` column.
    """
    columns = _Columns("Timestamp", "Request tokens", "Response tokens", client="Session ID")
    return _read_csv(trace, columns, lambda text: finite_number("Timestamp", text))


@dataclass(slots=True)
class _Columns:
    """Names of the columns to read, and their places once the header has been seen."""

    arrival: str
    prompt: str
    output: str
    client: str = ""
    places: tuple[int, int, int] = (0, 0, 0)
    client_place: int = -1
    count: int = 0

    def find(self, trace: TraceFile, line_number: int, text: str) -> None:
        """Find the places. Raises WorkloadError, strict or not: without them no row has meaning."""
        header = [cell.strip('"') for cell in text.split(",")]
        folded = [_fold(name) for name in header]
        wanted = [self.arrival, self.prompt, self.output]
        missing = [name for name in wanted if _fold(name) not in folded]
        if missing:
            raise WorkloadError(
                f"{trace.path}, line {line_number}: the header has no column "
                f"{', '.join(map(repr, missing))}; it reads {quoted(text)}."
            )
        arrival, prompt, output = (folded.index(_fold(name)) for name in wanted)
        self.places = (arrival, prompt, output)
        if self.client and _fold(self.client) in folded:
            self.client_place = folded.index(_fold(self.client))
        self.count = len(header)


def _read_csv(
    trace: TraceFile, columns: _Columns, seconds_of: Callable[[str], float]
) -> RequestStream:
    clock = Clock(trace)
    index = 0
    for line_number, text in trace.lines():
        if not columns.count:
            columns.find(trace, line_number, text)
            continue
        trace.report.rows_read += 1
        try:
            cells = _cells(text)
            if len(cells) != columns.count:
                raise RowProblem(f"has {len(cells)} columns; the header has {columns.count}")
            arrival, prompt, output = (cells[place] for place in columns.places)
            prompt_tokens = token_count(columns.prompt, prompt)
            output_tokens = token_count(columns.output, output)
            arrival_seconds = clock.arrival_seconds(seconds_of(arrival), line_number)
        except RowProblem as problem:
            trace.malformed(line_number, str(problem))
            continue
        if not prompt_tokens or not output_tokens:
            trace.report.rows_zero_tokens += 1
            continue
        client = cells[columns.client_place] if columns.client_place >= 0 else ""
        yield Request(
            index=index,
            arrival_seconds=arrival_seconds,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            client=client or None,
        )
        index += 1


def _cells(text: str) -> list[str]:
    # Splitting is several times faster than the csv module, and right where nothing is quoted.
    if '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader([text]))]
    except csv.Error as error:
        raise RowProblem(f"is not CSV ({error})") from error


def _fold(name: str) -> str:
    """A column's name without case, spaces or underscores, which differ between releases."""
    return name.strip().lower().replace(" ", "").replace("_", "")


def _nanoseconds(text: str) -> int:
    """Nanoseconds since 1970 of `2023-11-16 18:17:03.9799600`; without a zone, UTC."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise RowProblem(f"TIMESTAMP is {quoted(text)}, not a date and time")
    date, time, fraction, zone = match.groups()
    try:
        since = datetime.fromisoformat(f"{date} {time}") - _EPOCH
    except ValueError as error:
        raise RowProblem(f"TIMESTAMP is {quoted(text)}: {error}") from error
    if zone and zone != "Z":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
        since = since - offset if zone[0] == "+" else since + offset
    return (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))
