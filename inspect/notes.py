"""Notes that people leave beside a trace: `notes.jsonl` in its folder, one JSON object a line.

A trace itself is append-only and may still be written, so what is said about it later lies apart.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import TraceError
from bandscope.inspect.reader import Trace

NOTES_NAME = "notes.jsonl"


@dataclass(frozen=True)
class Annotation:
    """A note about the state before event `sequence`; `when`: when it was written (UTC)."""

    sequence: int
    text: str
    when: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def add_note(trace: Trace, sequence: int, text: str) -> Annotation:
    """Append a note. `TraceError` for an empty text and a folder that cannot be written."""
    if not text.strip():
        raise TraceError("an empty note was given; write what is to be remembered")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    note = Annotation(sequence, text, when)
    path = trace.path / NOTES_NAME
    line = json.dumps(note.to_json(), ensure_ascii=False).encode(errors="replace") + b"\n"
    try:
        torn = path.exists() and path.stat().st_size and path.read_bytes()[-1:] != b"\n"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(file, "wb", buffering=0) as out:
            out.write(b"\n" + line if torn else line)
    except OSError as error:
        raise TraceError(f"a note could not be written to {path} ({error.strerror})") from error
    return note


def read_notes(trace: Trace) -> list[Annotation]:
    """The notes beside a trace, by place. Lines that are no notes are left out."""
    path: Path = trace.path / NOTES_NAME
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    notes = []
    for line in lines:
        try:
            told = json.loads(line)
            notes.append(Annotation(int(told["sequence"]), str(told["text"]), str(told["when"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return sorted(notes, key=lambda note: note.sequence)
