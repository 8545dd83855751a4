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
    """One file; rows are kept until they fill a group."""

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
        self.count = 0

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.flush()
        self.writer.close()

    def add(self, row: tuple[Any, ...]) -> None:
        """Add a row, its values in the order of the columns."""
        self.rows.append(row)
        self.count += 1
        if len(self.rows) >= ROW_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what is kept as a row group."""
        if self.rows:
            columns = zip(*self.rows, strict=True)
            arrays = [
                self.arrow.array(column, field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ]
            self.writer.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))
            self.rows = []
