"""A forward's batch on the device: its requests, their page tables, and their new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bandscope.allocator.arena import Arena
from bandscope.fuzz.workload.uploads import upload

# (request, first token, stop token) that a forward computes.
Span = tuple[int, int, int]


@dataclass(frozen=True)
class Batch:
    """The requests of one forward.

    On the host, (batch,) int64: `requests`, `stops` (tokens each has after this forward), `rows` of
    the ledger. On the device, int64: the same three with `_there`; per new token `numbers` (which
    request of the batch) and `positions` (in that request). `page_table` (rows, columns) int32 on
    the device, indexed by ledger row.
    """

    requests: np.ndarray
    stops: np.ndarray
    rows: np.ndarray
    requests_there: torch.Tensor
    stops_there: torch.Tensor
    rows_there: torch.Tensor
    numbers: torch.Tensor
    positions: torch.Tensor
    page_table: torch.Tensor


class BatchTables:
    """Makes batches, and keeps the virtual pages of running requests on the device for them.

    Virtual pages of a request never change and all its tokens pass through forwards, so each one
    adds only the pages of its new tokens: what a step uploads does not follow the context. The
    table is written and read on the forward stream alone, so it needs no barrier; what changes
    under a forward is the band's mirror, which the kernels look into.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._where = arena.buffer.device
        self._table = torch.full((0, 0), -1, dtype=torch.int32, device=self._where)

    def batch(self, spans: list[Span]) -> Batch:
        """The batch of a forward over `spans`; call inside `device.forward`."""
        requests, starts, stops = np.array(spans, np.int64).T
        rows = self._arena.books.ledger.rows(requests.tolist())
        self._add_pages(rows, starts, stops)
        there = upload(np.stack([requests, stops, rows]), self._where)
        counts = stops - starts
        positions = _ranges(starts, counts)
        numbers = np.repeat(np.arange(len(spans)), counts)
        tokens = upload(np.stack([numbers, positions]), self._where)
        return Batch(
            requests, stops, rows, there[0], there[1], there[2], tokens[0], tokens[1], self._table
        )

    def _add_pages(self, rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        """Add the pages of tokens `starts … stops`; those before came with earlier forwards."""
        page_size = self._arena.plan.page_size
        stop_pages = -(-stops // page_size)
        self._reach(int(rows.max()) + 1, int(stop_pages.max()))
        first_pages = starts // page_size
        counts = stop_pages - first_pages
        virtual = self._arena.books.ledger.spans(rows, first_pages, stop_pages)
        columns = _ranges(first_pages, counts)
        places = np.repeat(rows, counts) * self._table.shape[1] + columns
        there = upload(np.stack([places, virtual]), self._where)
        self._table.view(-1).index_copy_(0, there[0], there[1].to(torch.int32))

    def _reach(self, rows: int, columns: int) -> None:
        """Make the table at least this large, by doubling."""
        old_rows, old_columns = self._table.shape
        if rows <= old_rows and columns <= old_columns:
            return
        shape = (
            old_rows if rows <= old_rows else max(16, 2 * old_rows, rows),
            old_columns if columns <= old_columns else max(64, 2 * old_columns, columns),
        )
        grown = torch.full(shape, -1, dtype=torch.int32, device=self._where)
        grown[:old_rows, :old_columns] = self._table
        self._table = grown


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`starts[i] … starts[i] + counts[i]` of every i, one after the other."""
    before = np.cumsum(counts) - counts
    ranges: np.ndarray = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return ranges
