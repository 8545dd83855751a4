"""What a workload is made of: requests, and the account a reader gives of the rows it saw."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: No row may ask for more tokens than this; a larger number is a garbled row, not a request.
TOKENS_MAX = 10_000_000

#: No request may arrive later than this after the first one (ten years).
ARRIVAL_SECONDS_MAX = 315_576_000.0

#: Problems kept word for word in a report; the others are only counted.
PROBLEMS_KEPT = 5

BlockIds = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request, as a server sees it arrive.

    `index` counts the requests of one iteration from 0. `arrival_seconds` is the time since the
    workload began and never decreases from one request to the next. `prompt_tokens` and
    `output_tokens` are at least 1; `output_tokens` is what the request will produce, which a
    scheduler under test must not look at.

    `prefix_blocks` are ids of the prompt's blocks of `block_tokens` tokens, in order: equal leading
    ids of two requests mean the same leading tokens. Readers give an int64 array that cannot be
    written to. The last block may be partly filled, or left out when it is, as the trace has it.
    None, with `block_tokens` 0, when the trace says nothing of contents.

    `client` names who sent it (a conversation, a session), where the trace says so.

    `priority`: requests of a higher number are admitted first and may make lower ones give way. No
    trace says it; `priority.py` gives it by a rule.
    """

    index: int
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] | BlockIds | None = None
    block_tokens: int = 0
    client: str | None = None
    priority: int = 0

    def _scalars(self) -> tuple[int, float, int, int, int, str | None, int]:
        return (
            self.index,
            self.arrival_seconds,
            self.prompt_tokens,
            self.output_tokens,
            self.block_tokens,
            self.client,
            self.priority,
        )

    # Written out, because the generated comparison cannot compare arrays.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        if self._scalars() != other._scalars():
            return False
        if self.prefix_blocks is None or other.prefix_blocks is None:
            return self.prefix_blocks is other.prefix_blocks
        return np.array_equal(self.prefix_blocks, other.prefix_blocks)

    def __hash__(self) -> int:
        return hash(self._scalars())


#: What readers and generators return: closing it closes the file behind it.
RequestStream = Generator[Request, None, None]


@dataclass(slots=True)
class ReadReport:
    """What one iteration over a workload read, skipped and changed; grows as it goes.

    A *row* is what the format holds one of per request: a line, an entry of a conversation, or one
    sampled request of a client distribution. `rows_read` counts them all, and a line that cannot
    be parsed counts as one. Each row is then at most one of yielded, zero, malformed, over the
    context, or outside the asked time; capped and out-of-order rows are yielded too.
    """

    rows_read: int = 0
    requests_yielded: int = 0
    #: No prompt or no output: nothing to serve. Skipped, and no error even when strict.
    rows_zero_tokens: int = 0
    #: Truncated, garbled, negative or absurd. Skipped; an error when strict.
    rows_malformed: int = 0
    #: Arrived before an earlier row; kept, at the earlier row's time. An error when strict.
    rows_out_of_order: int = 0
    #: Longer than the context and skipped, or cut to fit, as asked of `open_workload`.
    rows_over_context: int = 0
    rows_capped: int = 0
    #: Before `start_seconds`; the rows after the end of the asked time are not read at all.
    rows_outside_time: int = 0
    #: Line number (from 1) and reason of the first malformed or out-of-order rows.
    problems: list[tuple[int, str]] = field(default_factory=list)

    def keep_problem(self, line_number: int, reason: str) -> None:
        """Keep the reason when it is among the first `PROBLEMS_KEPT`."""
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append((line_number, reason))

    def describe(self) -> str:
        """One line: every count that is not zero, then the first problem."""
        counts: Sequence[tuple[int, str]] = (
            (self.rows_zero_tokens, "with no prompt or no output"),
            (self.rows_malformed, "malformed"),
            (self.rows_out_of_order, "out of order"),
            (self.rows_over_context, "over the context"),
            (self.rows_capped, "cut to the context"),
            (self.rows_outside_time, "before the asked time"),
        )
        parts = [f"{self.rows_read:,} rows read", f"{self.requests_yielded:,} requests"]
        parts += [f"{count:,} {what}" for count, what in counts if count]
        text = ", ".join(parts)
        if self.problems:
            line_number, reason = self.problems[0]
            text += f"; first problem at line {line_number}: {reason}"
        return text
