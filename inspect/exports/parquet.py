"""Parquet: three tables for DuckDB, pandas and Spark, written in row groups as the trace is read.

`events.parquet` has a row per event, `pages.parquet` one per run of pages that an event touched,
`operations.parquet` one per operation with its outcome. `docs/exports.md` shows queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bandscope.inspect.decode import Event
from bandscope.inspect.exports import rows
from bandscope.inspect.exports.window import Window, need, steps

ROW_GROUP = 65_536
ROW_GROUP_BYTES = 32 << 20
_BATCH = 4096  # rows as Python values before they become columns


def write(window: Window, draft: Path) -> int:
    """Write the tables into the new folder `draft`; returns how many events."""
    arrow = need("pyarrow", "parquet", "export to Parquet")
    need("pyarrow.parquet", "parquet", "export to Parquet")
    draft.mkdir()
    metadata = {"bandscope": json.dumps(window.trace.header)}
    event_rows, page_rows = rows.EventRows(window.bands), rows.PageRows(window)
    with ExitStack() as stack:
        tables = [
            stack.enter_context(_Table(arrow, draft / f"{name}.parquet", columns, metadata))
            for name, columns in (
                ("events", rows.EVENTS),
                ("pages", rows.PAGES),
                ("operations", rows.OPERATIONS),
            )
        ]
        all_events, pages, operations = tables

        def told() -> Iterator[Event]:
            for event in window.events():
                all_events.add(event_rows.row(event))
                for row in page_rows.rows(event):
                    pages.add(row)
                yield event

        for step in steps(told()):
            row = rows.operation_row(step)
            if row is not None:
                operations.add(row)
    return all_events.count


class _Table:
    """One file. A row group is written when it has enough rows, or bytes."""

    def __init__(
        self,
        arrow: Any,
        path: Path,
        columns: tuple[tuple[str, type], ...],
        metadata: dict[str, str],
    ) -> None:
        types = {int: arrow.int64(), str: arrow.string(), bool: arrow.bool_()}
        self.arrow = arrow
        self.schema = arrow.schema([(name, types[kind]) for name, kind in columns], metadata)
        self.writer = arrow.parquet.ParquetWriter(path, self.schema, compression="zstd")
        self.rows: list[tuple[Any, ...]] = []
        self.batches: list[Any] = []
        self.batch_bytes = 0
        self.count = 0

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._end_batch()
            self._end_group()
        self.writer.close()

    def add(self, row: tuple[Any, ...]) -> None:
        """Add a row, its values in the order of the columns."""
        self.rows.append(row)
        self.count += 1
        if len(self.rows) == _BATCH:
            self._end_batch()
            enough = len(self.batches) * _BATCH >= ROW_GROUP
            if enough or self.batch_bytes >= ROW_GROUP_BYTES:
                self._end_group()

    def _end_batch(self) -> None:
        if self.rows:
            arrays = [
                self.arrow.array(column, field.type)
                for column, field in zip(zip(*self.rows, strict=True), self.schema, strict=True)
            ]
            batch = self.arrow.RecordBatch.from_arrays(arrays, schema=self.schema)
            self.batches.append(batch)
            self.batch_bytes += batch.nbytes
            self.rows = []

    def _end_group(self) -> None:
        if self.batches:
            table = self.arrow.Table.from_batches(self.batches)
            self.writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.batches, self.batch_bytes = [], 0
