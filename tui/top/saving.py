"""Writing what is shown to new files: names that are free, and never over anything.

Nothing is written into the folder of a trace.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from bandscope.allocator.errors import TraceError
from bandscope.inspect.exports import export
from bandscope.inspect.format import HEADER_NAME
from bandscope.inspect.reader import Trace
from bandscope.tui.top.snapshot import Row

# Forms that the screen itself writes, those of the rows of a list, and those of a stretch of the trace.
PICTURE, FACTS, ROWS = "svg", "json", "csv"
STRETCHES = ("slice", "perfetto", "html", "parquet")
FORMS = (PICTURE, ROWS, FACTS, *STRETCHES)
_SUFFIX = {"slice": ".trace", "perfetto": ".perfetto.json", "html": ".html", "parquet": ".parquet"}
AROUND_EVENTS = 5_000


def parse_form(text: str) -> tuple[str, int]:
    """`slice 2000` → the form, and how many events around the position; `TraceError` for others."""
    form, _, count = text.strip().lower().partition(" ")
    number = count.strip().replace(",", "")
    plain = number.isascii() and number.isdigit() and int(number) > 0
    if form not in FORMS or (number and not plain):
        raise TraceError(
            f"{text.strip()!r} was asked for; write one of {', '.join(FORMS)}, and for a stretch of the "
            "trace how many events, like slice 2000"
        )
    return form, int(number) if number else 2 * AROUND_EVENTS


def free_path(folder: Path, trace: str, position: int, suffix: str) -> Path:
    """A name that nothing has yet: `NAME-at-EVENT.svg`, then `NAME-at-EVENT-2.svg` and so on."""
    if (folder / HEADER_NAME).exists():
        raise TraceError(
            f"{folder} is the folder of a trace, in which nothing is written; start `bandscope top` in "
            "another folder"
        )
    stem = f"{Path(trace).name.removesuffix('.trace')}-at-{position}"
    for number in range(1, 10_000):
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}{suffix}"
        if not path.exists() and not path.is_symlink():
            return path
    raise TraceError(f"{folder} holds 9,999 exports of this event; remove some, or use another folder")


def write_new(path: Path, text: str) -> Path:
    """Write a file that does not exist; `TraceError` says why it could not be."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise TraceError(
            f"{path} could not be written ({error.strerror or error}); start `bandscope top` in a "
            "folder that can be written and has room"
        ) from error
    return path


def rows_as_csv(rows: Iterable[Row]) -> str:
    """The rows of a list: event, time in seconds, kind and text; an empty field is no value."""
    told = io.StringIO()
    writer = csv.writer(told, lineterminator="\n")
    writer.writerow(("sequence", "time_s", "kind", "text"))
    for row in rows:
        writer.writerow(
            (
                row.sequence if row.sequence >= 0 else "",
                f"{row.time_ns / 1e9:.9f}" if row.time_ns >= 0 else "",
                row.kind,
                row.text.strip(),
            )
        )
    return told.getvalue()


def write_stretch(trace: Trace, form: str, folder: Path, position: int, events: int) -> Path:
    """Export `events` events around a position in one of `STRETCHES` to a name that is free."""
    path = free_path(folder, str(trace.path), position, _SUFFIX[form])
    start = max(trace.start, position - events // 2)
    stop = min(trace.stop, position + max(1, events - events // 2))
    export(trace, form, path, start=start, stop=stop)
    return path
