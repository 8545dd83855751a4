"""Where running recorders are found: one small file per process in the user's runtime folder.

A file names the process, its command and its trace. Only the user can read the folder. Files of
processes that are gone are removed by whoever lists them.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Running:
    """One recorder that runs: process, command, when it started, its trace, and what it records."""

    pid: int
    command: list[str]
    started: str
    trace: Path
    rank: int | None
    model: str
    bands: list[str]
    total_bytes: int


def runtime_directory() -> Path:
    """`$XDG_RUNTIME_DIR/bandscope`, or a folder of the user's own in the temporary folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "bandscope"
    return Path(tempfile.gettempdir()) / f"bandscope-{os.getuid()}"


def register(trace: Path, header: dict[str, Any]) -> Path | None:
    """Announce a recorder of this process; None where the folder cannot be used (which costs the
    announcement, never the recording)."""
    folder = runtime_directory()
    entry = {
        "pid": os.getpid(),
        "birth": _birth(os.getpid()),
        "command": header["command"],
        "started": header["started"],
        "trace": str(trace.resolve()),
        "rank": header["rank"],
        "model": header["model"],
        "bands": [band["name"] for band in header["bands"]],
        "total_bytes": header["arena"]["total_bytes"],
    }
    path = folder / f"{os.getpid()}-{header['trace_id']}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return None
        draft = path.with_suffix(".new")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(entry, out)
        os.replace(draft, path)
    except OSError:
        return None
    return path


def unregister(path: Path | None) -> None:
    """Take the announcement back."""
    if path is not None:
        path.unlink(missing_ok=True)


def running() -> list[Running]:
    """Every recorder that runs, oldest first. Entries of processes that are gone are removed."""
    folder = runtime_directory()
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            if _birth(entry["pid"]) != entry["birth"]:
                path.unlink(missing_ok=True)
                continue
            found.append(
                Running(
                    entry["pid"],
                    entry["command"],
                    entry["started"],
                    Path(entry["trace"]),
                    entry["rank"],
                    entry["model"],
                    entry["bands"],
                    entry["total_bytes"],
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # somebody else's file, or one that has just gone
    return sorted(found, key=lambda entry: entry.started)


def _birth(pid: int) -> str | None:
    """When a process started, in the kernel's words: tells a reused process number. None: gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
