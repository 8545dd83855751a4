"""The ledger of running requests: who owns which virtual pages, as one table with a row each.

Rows and columns are reused and grow by doubling, so a batch of requests is handled by a few array
operations whatever its size. A request's token pages stand in position order; a window band holds
the tail of them from `first_kept[row, window]` on; state slots have columns of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bandscope.allocator.errors import MisuseError
from bandscope.allocator.tables import Pages

# So many rows are cheaper to go through one by one.
_FEW = 16

_COLUMNS = ("length", "launched", "page_count", "state_count", "request")


class RequestLedger:
    """Rows of running requests.

    Arrays by row: `length` (tokens with room), `launched` (tokens some forward has written),
    `page_count`, `state_count`, `request`; `pages[row, i]` the i-th virtual page; `state[row, i]`
    the i-th virtual state slot; `first_kept[row, w]` pages trimmed from window band number `w`;
    `cached` pages at the front that the prefix cache owns (it keeps that number, see `cache.py`).
    """

    def __init__(self, window_count: int) -> None:
        self.window_count = window_count
        self.row_of: dict[int, int] = {}
        self._free_rows: list[int] = []
        rows = 16
        self.length = np.zeros(rows, np.int64)
        self.launched = np.zeros(rows, np.int64)
        self.page_count = np.zeros(rows, np.int64)
        self.state_count = np.zeros(rows, np.int64)
        self.request = np.full(rows, -1, np.int64)
        self.cached = np.zeros(rows, np.int64)
        self.first_kept = np.zeros((rows, window_count), np.int64)
        self.pages = np.zeros((rows, 64), np.int32)
        self.state = np.zeros((rows, 1), np.int64)
        self.row_count = 0

    def __len__(self) -> int:
        return len(self.row_of)

    def row(self, request: int) -> int:
        """The row of a running request; `MisuseError` names an unknown one."""
        try:
            return self.row_of[request]
        except KeyError:
            raise MisuseError(
                f"request {request} is not running ({len(self.row_of)} are); admit it first"
            ) from None

    def rows(self, requests: Sequence[int]) -> np.ndarray:
        """The rows of running requests, each named once."""
        try:
            rows = np.fromiter(
                map(self.row_of.__getitem__, requests), np.int64, count=len(requests)
            )
        except KeyError as error:
            raise MisuseError(
                f"request {error.args[0]} is not running ({len(self.row_of)} are); admit it first"
            ) from None
        if len(set(requests)) != len(requests):
            raise MisuseError(f"a batch of {len(requests)} requests names one of them twice")
        return rows

    def add(self, request: int) -> int:
        """A row for a new request, all zero."""
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = self.row_count
            self.row_count += 1
            if row == self.length.size:
                self._grow_rows()
        self.row_of[request] = row
        self.request[row] = request
        for name in ("length", "launched", "page_count", "state_count"):
            getattr(self, name)[row] = 0
        self.cached[row] = 0
        self.first_kept[row] = 0
        return row

    def remove(self, request: int) -> None:
        """The request is gone; its row may be reused."""
        row = self.row_of.pop(request)
        self.request[row] = -1
        self._free_rows.append(row)

    def append_pages(self, row: int, virtual: Pages) -> None:
        """Add token pages at the end of one request."""
        start = int(self.page_count[row])
        stop = start + virtual.size
        self.reach(stop)
        self.pages[row, start:stop] = virtual
        self.page_count[row] = stop

    def reach(self, columns: int) -> None:
        """Make the page table at least `columns` wide."""
        if columns > self.pages.shape[1]:
            self.pages = _wider(self.pages, columns)

    def append_state(self, row: int, slots: Pages) -> None:
        """Add state slots to one request."""
        start = int(self.state_count[row])
        stop = start + slots.size
        if stop > self.state.shape[1]:
            self.state = _wider(self.state, stop)
        self.state[row, start:stop] = slots
        self.state_count[row] = stop

    def token_pages(self, row: int, start: int = 0) -> Pages:
        """Virtual pages of one request from its `start`-th on."""
        return self.pages[row, start : self.page_count[row]].astype(np.int64)

    def state_slots(self, row: int) -> Pages:
        """Virtual state slots of one request."""
        return self.state[row, : self.state_count[row]].copy()

    def spans(self, rows: np.ndarray, first: np.ndarray, stop: np.ndarray) -> Pages:
        """Virtual pages `first[i] … stop[i]` of every row, one after the other."""
        if 0 < rows.size <= _FEW:
            spans = zip(rows.tolist(), first.tolist(), stop.tolist(), strict=True)
            parts = [self.pages[row, start:end] for row, start, end in spans]
            return np.concatenate(parts).astype(np.int64)
        counts = stop - first
        total = int(counts.sum())
        if total == counts.size and (counts == 1).all():
            one: Pages = self.pages[rows, first].astype(np.int64)
            return one
        offset = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        columns = np.repeat(first, counts) + offset
        found: Pages = self.pages[np.repeat(rows, counts), columns].astype(np.int64)
        return found

    def _grow_rows(self) -> None:
        size = 2 * self.length.size
        for name in (*_COLUMNS, "cached"):
            old = getattr(self, name)
            grown = np.zeros(size, np.int64)
            grown[: old.size] = old
            setattr(self, name, grown)
        self.request[size // 2 :] = -1
        for name in ("first_kept", "pages", "state"):
            old = getattr(self, name)
            table = np.zeros((size, old.shape[1]), old.dtype)
            table[: old.shape[0]] = old
            setattr(self, name, table)

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what the ledger does next; cost follows the pages held."""
        rows = np.array(sorted(self.row_of.values()), np.int64)
        return {
            "row_count": self.row_count,
            "free_rows": list(self._free_rows),
            "rows": rows,
            **{name: getattr(self, name)[rows].copy() for name in _COLUMNS},
            "first_kept": self.first_kept[rows].copy(),
            "pages": self.spans(rows, np.zeros(rows.size, np.int64), self.page_count[rows]),
            "state": [self.state_slots(int(row)) for row in rows],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become exactly what `snapshot` saw."""
        self.__init__(self.window_count)  # type: ignore[misc]
        rows = state["rows"]
        while self.length.size < state["row_count"]:
            self._grow_rows()
        self.row_count = state["row_count"]
        self._free_rows = list(state["free_rows"])
        for name in _COLUMNS:
            getattr(self, name)[rows] = state[name]
        self.first_kept[rows] = state["first_kept"]
        self.row_of = {int(self.request[row]): int(row) for row in rows}
        counts = state["page_count"]
        self.reach(int(counts.max(initial=0)))
        stops = np.cumsum(counts)
        for row, count, stop, slots in zip(rows, counts, stops, state["state"], strict=True):
            self.pages[row, :count] = state["pages"][stop - count : stop]
            self.state_count[row] = 0
            self.append_state(int(row), slots)


def _wider(table: np.ndarray, columns: int) -> np.ndarray:
    # np.zeros leaves untouched memory uncommitted, so a wide table costs what is written to it.
    wide = np.zeros((table.shape[0], max(columns, 2 * table.shape[1])), table.dtype)
    wide[:, : table.shape[1]] = table
    return wide
