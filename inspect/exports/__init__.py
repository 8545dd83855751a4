"""Exports: a trace, or a stretch of it, in a form that other programs read.

Each form is a module of this folder with a function `write(window, draft)`, which writes a file or a
folder and returns how many events went into it. What it writes has a draft name until it is whole, so
an export is there completely or not at all.
"""

from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import TraceError
from bandscope.inspect.exports.window import Window, make_window
from bandscope.inspect.reader import Trace

# Form: its module here, and whether it makes a folder.
_MODULES = {
    "perfetto": ("perfetto", False),
    "parquet": ("parquet", True),
    "csv": ("comma", False),
    "html": ("html", False),
    "slice": ("cut", True),
}
FORMS = tuple(_MODULES)


@dataclass(frozen=True)
class ExportReport:
    """What was written: `files` (relative to `out` where that is a folder), their `bytes`, and how
    many `events` of the trace, `[start, stop)`, are in them."""

    form: str
    out: Path
    start: int
    stop: int
    events: int
    bytes: int
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "out": str(self.out), "files": list(self.files)}


def export(
    trace: Trace, form: str, out: Path, *, start: int | None = None, stop: int | None = None
) -> ExportReport:
    """Write events `[start, stop)` of a trace (all of them by default) to `out` in a form of `FORMS`.

    A file that is there already is replaced, a folder with something in it is refused. Raises
    `TraceError` when there is nothing to export, a package is missing, or `out` cannot be written;
    then nothing is left behind.
    """
    if form not in _MODULES:
        raise TraceError(
            f"a trace cannot be exported as {form!r}; choose one of {', '.join(FORMS)}"
        )
    name, is_folder = _MODULES[form]
    module = importlib.import_module(f"bandscope.inspect.exports.{name}")
    window = make_window(trace, start, stop)
    out = Path(out)
    if is_folder and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TraceError(
            f"{form} is exported to a new folder, but {out} is there already; name another, or "
            "remove it first"
        )
    if not is_folder and out.is_dir():
        raise TraceError(f"{form} is exported to a file, but {out} is a folder; name a file in it")
    draft = out.with_name(f".draft-{os.getpid()}-{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        events = module.write(window, draft)
        os.replace(draft, out)
    except OSError as error:
        raise TraceError(
            f"the export of {trace.path} to {out} failed ({error.strerror or error}); export to a "
            "folder that can be written and has room"
        ) from error
    finally:
        _remove(draft)
    return _report(form, out, window, events)


def _report(form: str, out: Path, window: Window, events: int) -> ExportReport:
    paths = sorted(out.iterdir()) if out.is_dir() else [out]
    return ExportReport(
        form,
        out,
        window.start,
        window.stop,
        events,
        sum(path.stat().st_size for path in paths),
        tuple(path.name for path in paths),
    )


def _remove(draft: Path) -> None:
    """What a failed export left."""
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


__all__ = ["FORMS", "ExportReport", "export"]
