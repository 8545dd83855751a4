"""What `--record DIR[:ring=64MiB]` asks for, and what was recorded, for a run's report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandscope.allocator.arena import Arena
from bandscope.allocator.errors import ConfigError
from bandscope.allocator.sizing import parse_bytes
from bandscope.inspect.recorder import RING_BYTES_MIN, Recorder


@dataclass(frozen=True)
class RecordSpec:
    """Where to record; `ring_bytes`: keep only about so many of the latest bytes (None: all)."""

    path: Path
    ring_bytes: int | None = None


def parse_record(text: str) -> RecordSpec:
    """`DIR` or `DIR:ring=64MiB`. Raises `ConfigError` for any other option, an empty name and a ring
    that is too small, `SizingError` for a size that is none."""
    name, colon, option = text.rpartition(":")
    ring_bytes = None
    if colon and "=" in option and "/" not in option:
        key, _, value = option.partition("=")
        if key != "ring":
            raise ConfigError(
                f"--record {text} was asked for, but {key!r} is no option of a recording; write DIR or "
                "DIR:ring=64MiB"
            )
        ring_bytes = parse_bytes(value)
        if ring_bytes < RING_BYTES_MIN:
            raise ConfigError(
                f"--record {text} was asked for, but a ring takes {RING_BYTES_MIN >> 20} MiB or more; "
                "give a larger one, or leave it out to keep everything"
            )
        text = name
    if not text:
        raise ConfigError(
            "--record was given without a folder; write DIR or DIR:ring=64MiB"
        )
    return RecordSpec(Path(text), ring_bytes)


def open_recorder(record: str | None, stacks: int, arena: Arena) -> Recorder | None:
    """The recorder of a run, attached to its arena; None where nothing is to be recorded."""
    if record is None:
        if stacks:
            raise ConfigError(
                f"--stacks {stacks} was asked for, but nothing is recorded; name a folder with --record"
            )
        return None
    spec = parse_record(record)
    return Recorder(spec.path, arena, ring_bytes=spec.ring_bytes, stacks=stacks)


def recording_summary(recorder: Recorder | None) -> dict[str, Any] | None:
    """Where the trace is and what it holds, as plain data."""
    if recorder is None:
        return None
    sizes = [path.stat().st_size for path in recorder.directory.iterdir() if path.is_file()]
    return {
        "trace": str(recorder.directory),
        "bytes": sum(sizes),
        "events": recorder.sequence,
        "ring_bytes": recorder.ring_bytes,
        "lost": recorder.lost,
        "error": None if recorder.error is None else str(recorder.error),
    }
