"""The ledger: rows and columns that are reused and grow, ragged spans, and who is refused."""

from __future__ import annotations

import numpy as np
import pytest

from bandscope.allocator.errors import MisuseError
from bandscope.allocator.requests import RequestLedger


def filled(ledger: RequestLedger, request: int, pages: list[int], state: list[int]) -> int:
    row = ledger.add(request)
    ledger.append_pages(row, np.array(pages, np.int64))
    ledger.append_state(row, np.array(state, np.int64))
    return row


def contents(ledger: RequestLedger) -> dict[int, tuple[object, ...]]:
    """Everything by request, independent of rows."""
    return {
        request: (
            ledger.token_pages(row).tolist(),
            ledger.state_slots(row).tolist(),
            int(ledger.length[row]),
            int(ledger.launched[row]),
            ledger.first_kept[row].tolist(),
        )
        for request, row in ledger.row_of.items()
    }


def test_rows_are_reused_and_start_from_zero() -> None:
    """A row of a request that left shows nothing of it to the next one."""
    ledger = RequestLedger(2)
    row = filled(ledger, 7, [1, 2, 3], [4])
    ledger.length[row], ledger.launched[row] = 12, 5
    ledger.first_kept[row] = [1, 2]
    ledger.remove(7)
    again = ledger.add(8)

    assert again == row
    assert len(ledger) == 1
    assert contents(ledger) == {8: ([], [], 0, 0, [0, 0])}
    assert int(ledger.request[row]) == 8


@pytest.mark.parametrize("count", [1, 16, 17, 33, 100])
def test_rows_grow_and_keep_what_they_hold(count: int) -> None:
    """Any number of requests, each with its own pages, also right after the tables doubled."""
    ledger = RequestLedger(1)
    for request in range(count):
        row = filled(ledger, request, [request, request + 1000], [request])
        ledger.length[row] = request
    expected = {
        request: ([request, request + 1000], [request], request, 0, [0])
        for request in range(count)
    }

    assert contents(ledger) == expected
    assert ledger.rows(list(range(count))).tolist() == list(range(count))
    assert (ledger.request[count:] == -1).all()


@pytest.mark.parametrize("pages", [63, 64, 65, 129, 1000])
def test_columns_grow_and_keep_what_they_hold(pages: int) -> None:
    """Pages appended in uneven chunks come back in position order, whatever the width."""
    ledger = RequestLedger(1)
    first, second = ledger.add(0), filled(ledger, 1, [5, 6], [])
    for start in range(0, pages, 7):
        ledger.append_pages(first, np.arange(start, min(start + 7, pages)))
    for slot in range(5):
        ledger.append_state(first, np.array([slot]))

    assert ledger.token_pages(first).tolist() == list(range(pages))
    assert ledger.token_pages(first, 60).tolist() == list(range(60, pages))
    assert ledger.token_pages(second).tolist() == [5, 6]
    assert ledger.state_slots(first).tolist() == [0, 1, 2, 3, 4]


def test_spans_of_ragged_rows_come_one_after_the_other() -> None:
    """Empty, single and long spans of several rows, in the order of the rows asked for."""
    ledger = RequestLedger(1)
    rows = np.array([filled(ledger, n, list(range(10 * n, 11 * n + 1)), []) for n in range(4)])

    def spans(order: list[int], first: list[int], stop: list[int]) -> list[int]:
        chosen = rows[np.array(order, int)]
        return ledger.spans(chosen, np.array(first, int), np.array(stop, int)).tolist()

    everything = [0, 10, 11, 20, 21, 22, 30, 31, 32, 33]
    assert spans([0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 3, 4]) == everything
    assert spans([3, 1, 2], [1, 1, 3], [4, 1, 3]) == [31, 32, 33]
    assert spans([3, 1, 2], [2, 0, 1], [3, 1, 2]) == [32, 10, 21]
    assert spans([3, 1], [0, 2], [2, 2]) == [30, 31]
    assert spans([2, 1], [3, 2], [3, 2]) == []
    assert spans([], [], []) == []


def test_unknown_and_repeated_requests_are_refused_by_name() -> None:
    """A batch names running requests, each once; the message says which one is not."""
    ledger = RequestLedger(1)
    filled(ledger, 3, [0], [])
    filled(ledger, 4, [1], [])

    with pytest.raises(MisuseError, match="request 9 is not running .2 are.; admit it first"):
        ledger.row(9)
    with pytest.raises(MisuseError, match="request 9 is not running"):
        ledger.rows([3, 9])
    with pytest.raises(MisuseError, match="batch of 3 requests names one of them twice"):
        ledger.rows([3, 4, 3])
    assert ledger.rows([4, 3]).tolist() == [1, 0]
    assert ledger.rows([]).tolist() == []


def test_restore_brings_back_requests_rows_and_their_reuse() -> None:
    """Into the same ledger and into a fresh one; later rows are dealt as after the snapshot."""
    ledger = RequestLedger(2)
    for request in range(40):
        row = filled(ledger, request, list(range(request * 3)), [request] * (request % 3))
        ledger.length[row], ledger.launched[row] = request * 2, request
        ledger.first_kept[row] = [request % 4, request % 5]
    for request in (3, 17, 39, 8):
        ledger.remove(request)
    state, expected = ledger.snapshot(), contents(ledger)
    later = [ledger.add(request) for request in range(100, 106)]
    ledger.append_pages(later[0], np.arange(500))
    for target in (ledger, RequestLedger(2)):
        target.restore(state)

        assert contents(target) == expected
        assert [target.add(request) for request in range(100, 106)] == later
        target.remove(105)
        target.restore(state)
        assert contents(target) == expected
