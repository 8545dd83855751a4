"""What every trace reader stands on: lines of a file that may be gzip, numbers, and the clock.

A line is read, judged and forgotten, so a trace larger than memory can be read. The longest line
held is `LINE_BYTES_MAX`.
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from bandscope.allocator.errors import WorkloadError
from bandscope.fuzz.workload.request import (
    ARRIVAL_SECONDS_MAX,
    TOKENS_MAX,
    BlockIds,
    ReadReport,
)

LINE_BYTES_MAX = 64 * 1024 * 1024

_GZIP_MAGIC = b"\x1f\x8b"
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(?:\.0*)?", re.ASCII)
_QUOTED_CHARACTERS_MAX = 40


class RowProblem(Exception):
    """A row cannot be a request; the message is the reason. Never leaves a reader."""


@dataclass(slots=True)
class TraceFile:
    """A trace being read: where it is, how strict to be, and the account of it so far."""

    path: Path
    report: ReadReport = field(default_factory=ReadReport)
    strict: bool = False

    def malformed(self, line_number: int, reason: str) -> None:
        """Count a skipped row. Raises WorkloadError when strict."""
        self._problem(line_number, reason)
        self.report.rows_malformed += 1

    def out_of_order(self, line_number: int, behind_seconds: float) -> None:
        """Count a row that is kept at an earlier row's time. Raises WorkloadError when strict."""
        self._problem(line_number, f"arrives {behind_seconds:g} s before an earlier row")
        self.report.rows_out_of_order += 1

    def _problem(self, line_number: int, reason: str) -> None:
        if self.strict:
            raise WorkloadError(f"{self.path}, line {line_number}: {reason}.")
        self.report.keep_problem(line_number, reason)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (line number from 1, text without its end) of every line that is not blank.

        A line that is no UTF-8 or longer than `LINE_BYTES_MAX`, and the place where gzip data
        breaks off, count as malformed rows. Raises WorkloadError when the file cannot be opened.
        """
        line_number = 0
        with open_trace(self.path) as stream:
            while True:
                try:
                    line = stream.readline(LINE_BYTES_MAX)
                    too_long = _skip_rest_of_line(stream, line)
                except (EOFError, zlib.error, OSError) as error:
                    # gzip names a broken archive by EOFError, zlib.error or BadGzipFile (an
                    # OSError); what came before it has been yielded.
                    self.report.rows_read += 1
                    self.malformed(line_number + 1, f"the data breaks off here ({error})")
                    return
                if not line:
                    return
                line_number += 1
                if too_long:
                    self.report.rows_read += 1
                    self.malformed(line_number, f"is longer than {LINE_BYTES_MAX:,} bytes")
                    continue
                try:
                    text = line.decode("utf-8-sig" if line_number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    self.report.rows_read += 1
                    self.malformed(line_number, f"is not UTF-8 text (byte {error.start})")
                    continue
                text = text.strip()
                if text:
                    yield line_number, text


def open_trace(path: Path) -> IO[bytes]:
    """Open a plain or gzip file for reading bytes; gzip is told by its first bytes, not its name.

    Raises WorkloadError when there is no such file, it is no regular file, or cannot be read.
    """
    try:
        if path.is_dir():
            raise WorkloadError(f"The trace {path} is a folder; name a file in it.")
        if not path.exists():
            raise WorkloadError(f"There is no trace file {path}.")
        if not path.is_file():
            raise WorkloadError(f"The trace {path} is no regular file; save it to a file first.")
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        raise WorkloadError(f"The trace {path} cannot be opened: {error}.") from error
    try:
        magic = stream.read(len(_GZIP_MAGIC))
        stream.seek(0)
    except OSError as error:
        stream.close()
        raise WorkloadError(f"The trace {path} cannot be read: {error}.") from error
    if magic != _GZIP_MAGIC:
        return stream
    # Given a file object, GzipFile would leave it open on close; `with` then closes only one.
    stream.close()
    return cast(IO[bytes], gzip.open(path, "rb"))


def _skip_rest_of_line(stream: IO[bytes], line: bytes) -> bool:
    """Whether the line was cut at the limit; if so, read on to its end without keeping it."""
    if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
        return False
    while True:
        rest = stream.readline(LINE_BYTES_MAX)
        if not rest or rest.endswith(b"\n"):
            return True


@dataclass(slots=True)
class Clock:
    """Turns a trace's own times into arrivals: from 0 at the first row, never decreasing."""

    trace: TraceFile
    #: Trace time of the first row, in seconds; None until it is known.
    origin_seconds: float | None = None
    latest_seconds: float = 0.0

    def arrival_seconds(self, trace_seconds: float, line_number: int) -> float:
        """Arrival of a row at this time of the trace.

        A row before an earlier one is counted and gets the earlier one's arrival. Raises
        RowProblem when the time lies more than `ARRIVAL_SECONDS_MAX` after the first row's.
        """
        if self.origin_seconds is None:
            self.origin_seconds = trace_seconds
        arrival = trace_seconds - self.origin_seconds
        # Refused rather than kept: every later row would be moved to this row's time.
        if arrival > ARRIVAL_SECONDS_MAX:
            raise RowProblem(f"arrives {arrival:g} s after the first row")
        if arrival < self.latest_seconds:
            self.trace.out_of_order(line_number, self.latest_seconds - arrival)
            return self.latest_seconds
        self.latest_seconds = arrival
        return arrival


def quoted(value: object) -> str:
    """The value as a message may show it, cut to a few characters."""
    text = repr(value)
    if len(text) <= _QUOTED_CHARACTERS_MAX:
        return text
    return text[: _QUOTED_CHARACTERS_MAX - 3] + "..."


def token_count(name: str, value: object) -> int:
    """A whole number of tokens from 0 to `TOKENS_MAX`, from JSON or CSV text.

    Raises RowProblem for anything else; 472.0 is whole, as some tools write whole numbers so.
    """
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        count = int(value.partition(".")[0])
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, float) and value.is_integer():
        count = int(value)
    else:
        raise RowProblem(f"{name} is {quoted(value)}, not a whole number of tokens")
    if count < 0:
        raise RowProblem(f"{name} is negative ({quoted(value)})")
    if count > TOKENS_MAX:
        raise RowProblem(f"{name} is {quoted(value)}, over the limit of {TOKENS_MAX:,}")
    return count


def finite_number(name: str, value: object) -> float:
    """A finite number of at least 0, from JSON or CSV text. Raises RowProblem otherwise."""
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            pass
    if not math.isfinite(number):
        raise RowProblem(f"{name} is {quoted(value)}, not a finite number")
    if number < 0:
        raise RowProblem(f"{name} is negative ({quoted(value)})")
    return number


def json_object(text: str) -> dict[str, Any]:
    """The JSON object on a line. Raises RowProblem when it is no JSON, or no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowProblem(f"is not JSON ({error or 'nested too deeply'})") from error
    if not isinstance(value, dict):
        raise RowProblem(f"is no JSON object but {quoted(value)}")
    return value


def member(row: dict[str, Any], name: str) -> Any:
    """The member of that name. Raises RowProblem when there is none."""
    if name not in row:
        raise RowProblem(f"has no {name}")
    return row[name]


def block_ids(value: object, *, prompt_tokens: int, block_tokens: int) -> BlockIds | None:
    """The ids of a prompt's blocks as a read-only int64 array, or None when the trace has none.

    Their number must be the prompt's blocks, with or without a partly filled last one. Raises
    RowProblem when it is not, or an id is no whole number of at least 0.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise RowProblem(f"hash_ids is {quoted(value)}, not a list")
    full, rest = divmod(prompt_tokens, block_tokens)
    if len(value) not in (full, full + (rest > 0)):
        raise RowProblem(
            f"has {len(value):,} hash_ids for {prompt_tokens:,} tokens in blocks of {block_tokens}"
        )
    try:
        ids = np.asarray(value if value else np.empty(0, np.int64))
    except (ValueError, OverflowError):
        ids = np.empty(0, object)
    if ids.dtype != np.int64 or ids.ndim != 1 or (ids.size and int(ids.min()) < 0):
        raise RowProblem("hash_ids holds something other than whole numbers of at least 0")
    ids.flags.writeable = False
    return ids
