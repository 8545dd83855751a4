"""The folder of a trace: its name, made before recording, taken away where recording failed at once."""

from __future__ import annotations

from pathlib import Path

from bandscope.allocator.errors import TraceError


def trace_directory(path: str | Path, rank: int | None) -> Path:
    """`NAME` → `NAME.trace`, or `NAME.rank3.trace` for one of several ranks."""
    path = Path(path)
    stem = path.name.removesuffix(".trace") or "bandscope"
    return path.with_name(f"{stem}.trace" if rank is None else f"{stem}.rank{rank}.trace")


def make_folder(folder: Path) -> None:
    """Make the folder; `TraceError` when that fails or it holds something already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = any(folder.iterdir())
    except OSError as error:
        raise TraceError(
            f"the trace folder {folder} could not be made ({error.strerror}); record to a folder that "
            "can be written"
        ) from error
    if found:
        raise TraceError(
            f"the trace folder {folder} is not empty; record to a new one, or remove it first"
        )


def remove_folder(folder: Path) -> None:
    """Take away the folder of a recording that could not begin, so that its name is free again."""
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
