"""What many operations do to the running requests, worked out at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bandscope.inspect import format as form
from bandscope.inspect.format import Kind
from bandscope.inspect.page_lists import find_lists, flatten
from bandscope.inspect.segment_reader import SegmentReader
from bandscope.inspect.state import RequestState

_NUMBER_MAX = 1 << 22  # a table by request number, up to here
_TOLD = np.zeros(256, bool)
_ADMITS, _RELEASES = (Kind.ADMIT, Kind.ADMIT_PREFIX), (Kind.RELEASE, Kind.RELEASE_PREFIX)
_TOLD[[Kind.DECODE, Kind.LAUNCH, Kind.EXTEND, *_ADMITS, *_RELEASES]] = True


@dataclass
class RequestBatch:
    """`states`: of every request that something happened to, None where it was released."""

    states: dict[int, RequestState | None]


def plan_requests(
    requests: dict[int, RequestState],
    segment: SegmentReader,
    words: np.ndarray,
    asked: np.ndarray,
    tickets: np.ndarray,
) -> RequestBatch | None:
    """What the operations at the indexes `asked`, all of which succeeded, do in this order; `tickets`:
    the values of their outcomes (of an admission the tokens that the prefix cache has). None when that
    cannot be told at once."""
    kinds = segment.records["kind"][asked]
    told = _TOLD[kinds]
    asked, tickets, kinds = asked[told], tickets[told], kinds[told]
    if not asked.size:
        return RequestBatch({})
    records = segment.records[asked]
    batched = (kinds == Kind.DECODE) | (kinds == Kind.LAUNCH)
    number, order = _flat_batches(segment, words, asked, records, batched)
    single = ~batched
    top = max(int(number.max(initial=0)), int(records["b"][single].max(initial=0)))
    low = min(int(number.min(initial=0)), int(records["b"][single].min(initial=0)))
    if low < 0 or top >= _NUMBER_MAX:
        return None
    size = top + 1
    # Order −1: from before this batch; what happened before a request was admitted is not its own.
    admitted, launched = np.full(size, -1), np.full(size, -1)
    one, places = records["b"][single], np.flatnonzero(single)
    one_kind = kinds[single]
    is_admit = np.isin(one_kind, _ADMITS)
    admitted[one[is_admit]] = places[is_admit]
    # What a request begins with: the tokens that the prefix cache has of it.
    opening = np.zeros(size, np.int64)
    matched = one_kind == Kind.ADMIT_PREFIX
    opening[one[is_admit]] = np.where(matched, tickets[places], 0)[is_admit]
    is_launch = (kinds == Kind.LAUNCH)[order]
    launched[number[is_launch]] = order[is_launch]
    is_extend = one_kind == Kind.EXTEND
    who = np.concatenate((number[~is_launch], one[is_extend]))
    when = np.concatenate((order[~is_launch], places[is_extend]))
    tokens = np.concatenate(
        (np.ones(int((~is_launch).sum()), np.int64), records["c"][single][is_extend])
    )
    own = when > admitted[who]
    grown = np.bincount(who[own], tokens[own], size).astype(np.int64)
    early = own & (when < launched[who])
    grown_launched = np.bincount(who[early], tokens[early], size).astype(np.int64)
    seen = np.zeros(size, bool)
    seen[number] = seen[one] = True
    end = np.full(size, -1)
    leaves = np.isin(one_kind, _RELEASES)
    end[one[leaves]] = places[leaves]
    states: dict[int, RequestState | None] = {}
    touched = np.flatnonzero(seen)
    for request, begin, stop, more, at, more_launched, tokens_matched in zip(
        touched.tolist(), admitted[touched].tolist(), end[touched].tolist(),
        grown[touched].tolist(), launched[touched].tolist(), grown_launched[touched].tolist(),
        opening[touched].tolist(), strict=True,
    ):  # fmt: skip
        if stop > begin:
            states[request] = None
            if begin < 0 and request not in requests:
                return None
            continue
        fresh = RequestState(tokens_matched, tokens_matched)
        known = fresh if begin >= 0 else requests.get(request)
        if known is None:
            return None
        if at > begin:
            states[request] = RequestState(
                known.length + more, known.length + more_launched, int(tickets[at])
            )
        else:
            states[request] = RequestState(
                known.length + more, known.launched, known.last_ticket
            )
    return RequestBatch(states)


def _flat_batches(
    segment: SegmentReader, words: np.ndarray, asked: np.ndarray, records: np.ndarray,
    batched: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The requests of all batches, one batch after the other, and the place of each one's operation."""
    index = asked[batched].copy()
    same = (records["flags"][batched] & form.SAME_BATCH) > 0
    index[same] = records["c"][batched][same].astype(np.int64) - 1
    if index.size and not (
        0 <= int(index.min()) and int(index.max()) < len(segment) and segment.good[index].all()
    ):
        raise ValueError("a batch lies in a damaged part")
    none = np.zeros(index.size, bool)
    lists = find_lists(words, segment.starts[index] >> 2, none, np.zeros(index.size, np.int64))
    return flatten(words, lists), np.repeat(np.flatnonzero(batched), lists.count)


def apply_requests(requests: dict[int, RequestState], batch: RequestBatch) -> None:
    """Write what was planned."""
    for number, state in batch.states.items():
        if state is None:
            requests.pop(number, None)
        else:
            requests[number] = state
