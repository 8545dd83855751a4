"""Reader of coding-agent conversations: one a line, each with its own clock and block ids.

Conversations start at seeded random offsets, in the order of the file. A conversation is read when
the workload reaches its start and dropped after its last request, so only overlapping ones are
held, never more than `conversations_held_max`; each holds 4 bytes a block id.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

#: Mean time between the starts of two conversations. Of the 48 of the shared data, which take an
#: hour each on average, up to 27 then overlap (seed 0).
CONVERSATION_GAP_SECONDS = 120.0

#: A conversation that would be one more than this starts when another has ended.
CONVERSATIONS_HELD_MAX = 48

DEFAULT_BLOCK_TOKENS = 64

_AGENT_DEPTH_MAX = 8
_LOCAL_IDS = 1 << 32


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request of a conversation; its block ids are as in the file."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    client: str
    blocks: NDArray[np.uint32] | None


@dataclass(slots=True)
class _Conversation:
    block_tokens: int
    #: Added to every block id, so that ids of two conversations never meet.
    block_id_base: int
    turns: list[_Turn] = field(default_factory=list)
    start_seconds: float = 0.0

    def request(self, position: int, index: int) -> Request:
        turn = self.turns[position]
        blocks = None
        if turn.blocks is not None:
            blocks = turn.blocks.astype(np.int64) + self.block_id_base
            blocks.flags.writeable = False
        return Request(
            index=index,
            arrival_seconds=self.start_seconds + turn.seconds,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            prefix_blocks=blocks,
            block_tokens=0 if blocks is None else self.block_tokens,
            client=turn.client,
        )


def read_agentic(
    trace: TraceFile,
    *,
    seed: int = 0,
    conversation_gap_seconds: float = CONVERSATION_GAP_SECONDS,
    conversations_held_max: int = CONVERSATIONS_HELD_MAX,
) -> RequestStream:
    """Yield the requests of all conversations, merged by arrival.

    The first conversation starts at 0; the gaps to the next starts are exponential with the mean
    `conversation_gap_seconds` (0: all start at once). `client` is the conversation's id, for a
    sub-agent followed by `/` and the agent's id; a sub-agent shares its conversation's block ids.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    conversations = _read_conversations(trace)
    # (arrival, place in the file, position of the turn, conversation): the first two and the
    # third are unique together, so conversations themselves are never compared.
    running: list[tuple[float, int, int, _Conversation]] = []
    next_start_seconds = 0.0
    latest_seconds = 0.0
    started = 0
    index = 0
    exhausted = False
    while running or not exhausted:
        room = not exhausted and len(running) < conversations_held_max
        if room and (not running or next_start_seconds <= running[0][0]):
            conversation = next(conversations, None)
            if conversation is None:
                exhausted = True
                continue
            # Later than planned when it had to wait for another to end.
            conversation.start_seconds = max(next_start_seconds, latest_seconds)
            first_seconds = conversation.start_seconds + conversation.turns[0].seconds
            heapq.heappush(running, (first_seconds, started, 0, conversation))
            started += 1
            next_start_seconds += float(random.exponential(conversation_gap_seconds))
            continue
        latest_seconds, place, position, conversation = running[0]
        yield conversation.request(position, index)
        index += 1
        if position + 1 < len(conversation.turns):
            next_seconds = conversation.start_seconds + conversation.turns[position + 1].seconds
            heapq.heapreplace(running, (next_seconds, place, position + 1, conversation))
        else:
            heapq.heappop(running)


def _read_conversations(trace: TraceFile) -> Iterator[_Conversation]:
    """Yield every conversation that has a usable request, its turns ordered by time."""
    ordinal = 0
    for line_number, text in trace.lines():
        try:
            row = json_object(text)
            client = quoted(member(row, "id")).strip("'")
            block_tokens = token_count("block_size", row.get("block_size", DEFAULT_BLOCK_TOKENS))
            if not block_tokens:
                raise RowProblem("block_size is 0")
            entries = _list_of_requests(row)
        except RowProblem as problem:
            trace.report.rows_read += 1
            trace.malformed(line_number, str(problem))
            continue
        # Ids of the whole file, where a trace says so, keep the base 0, which no conversation has.
        local = row.get("hash_id_scope", "local") == "local"
        base = (ordinal + 1) * _LOCAL_IDS if local else 0
        conversation = _Conversation(block_tokens, base)
        reader = _TurnReader(trace, line_number, block_tokens, conversation.turns)
        reader.read(entries, client=client, start_seconds=0.0, name="request", depth=0)
        conversation.turns.sort(key=lambda turn: turn.seconds)
        if conversation.turns:
            yield conversation
            ordinal += 1


def _list_of_requests(row: dict[str, Any]) -> list[Any]:
    entries = member(row, "requests")
    if not isinstance(entries, list):
        raise RowProblem(f"requests is {quoted(entries)}, not a list")
    return entries


@dataclass(slots=True)
class _TurnReader:
    """Reads the entries of one conversation, nested agents included, into `turns`."""

    trace: TraceFile
    line_number: int
    block_tokens: int
    turns: list[_Turn]

    def read(
        self, entries: list[Any], *, client: str, start_seconds: float, name: str, depth: int
    ) -> None:
        """Read a list whose times count from `start_seconds` of the conversation."""
        # The origin is given, not taken from the first entry: an agent may begin with a pause.
        clock = Clock(self.trace, origin_seconds=0.0)
        for number, entry in enumerate(entries, start=1):
            where = f"{name} {number}"
            try:
                if not isinstance(entry, dict):
                    raise RowProblem(f"is no JSON object but {quoted(entry)}")
                time = finite_number("t", member(entry, "t"))
                nested = entry.get("type") == "subagent"
                turn = None if nested else self._turn(entry, client)
                inner = _list_of_requests(entry) if nested else []
                if depth >= _AGENT_DEPTH_MAX:
                    raise RowProblem(f"is nested more than {_AGENT_DEPTH_MAX} agents deep")
                seconds = start_seconds + clock.arrival_seconds(time, self.line_number)
            except RowProblem as problem:
                self.trace.report.rows_read += 1
                self.trace.malformed(self.line_number, f"{where} {problem}")
                continue
            if turn is None:
                agent = f"{client}/{quoted(entry.get('agent_id', number)).strip(chr(39))}"
                self.read(
                    inner,
                    client=agent,
                    start_seconds=seconds,
                    name=f"{where}, its request",
                    depth=depth + 1,
                )
                continue
            self.trace.report.rows_read += 1
            if not turn.prompt_tokens or not turn.output_tokens:
                self.trace.report.rows_zero_tokens += 1
                continue
            self.turns.append(
                _Turn(seconds, turn.prompt_tokens, turn.output_tokens, client, turn.blocks)
            )

    def _turn(self, entry: dict[str, Any], client: str) -> _Turn:
        prompt_tokens = token_count("in", member(entry, "in"))
        output_tokens = token_count("out", member(entry, "out"))
        ids = block_ids(
            entry.get("hash_ids"), prompt_tokens=prompt_tokens, block_tokens=self.block_tokens
        )
        if ids is not None and ids.size and int(ids.max()) >= _LOCAL_IDS:
            raise RowProblem(f"has a hash id of {_LOCAL_IDS} or more")
        blocks = None if ids is None else ids.astype(np.uint32)
        return _Turn(0.0, prompt_tokens, output_tokens, client, blocks)
