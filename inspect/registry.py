"""Where running recorders are found: one small file per process in the user's runtime folder.

A file names the process, its command and its trace. Only the user can read the folder. Files of
processes that are gone are removed by whoever lists them; files that nobody here wrote are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"(?P<pid>[1-9]\d{0,9})-[0-9a-f]{16}\.(?P<suffix>json|new)")


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


def runtime_directories() -> list[Path]:
    """Where entries may lie, best first: `$XDG_RUNTIME_DIR/bandscope`, and a folder of the user's own
    in the temporary folder for where that is not set or cannot be written."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(tempfile.gettempdir()) / f"bandscope-{os.getuid()}"
    return [Path(base) / "bandscope", own] if base else [own]


def register(trace: Path, header: dict[str, Any]) -> Path | None:
    """Announce a recorder of this process; None where no folder can be used (which costs the
    announcement, never the recording)."""
    entry = {
        "pid": os.getpid(),
        "birth": birth(os.getpid()),
        "command": header["command"],
        "started": header["started"],
        "trace": str(trace.resolve()),
        "rank": header["rank"],
        "model": header["model"],
        "bands": [band["name"] for band in header["bands"]],
        "total_bytes": header["arena"]["total_bytes"],
    }
    for folder in runtime_directories():
        path = folder / f"{os.getpid()}-{header['trace_id']}.json"
        draft = path.with_suffix(".new")
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_mine(folder):
                continue
            folder.chmod(0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as out:
                json.dump(entry, out)
            os.replace(draft, path)
        except OSError:
            continue
        return path
    return None


def unregister(path: Path | None) -> None:
    """Take the announcement back."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def running() -> list[Running]:
    """Every recorder that runs, oldest first. Entries of processes that are gone are removed."""
    found = []
    for folder in runtime_directories():
        try:
            paths = sorted(folder.iterdir()) if _is_mine(folder) else []
        except OSError:
            continue
        for path in paths:
            entry = _read_entry(path)
            if entry is not None:
                found.append(entry)
    return sorted(found, key=lambda entry: entry.started)


def _read_entry(path: Path) -> Running | None:
    """An entry whose process runs; one whose process is gone is removed. None for anything else."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        return None
    pid = int(name["pid"])
    try:
        if name["suffix"] == "new":  # left behind where its writer was killed
            if birth(pid) is None:
                path.unlink()
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        entry = Running(
            int(told["pid"]),
            list(map(str, told["command"])),
            str(told["started"]),
            Path(told["trace"]),
            None if told["rank"] is None else int(told["rank"]),
            str(told["model"]),
            list(map(str, told["bands"])),
            int(told["total_bytes"]),
        )
        if entry.pid != pid:
            return None
        if birth(pid) is None or birth(pid) != told["birth"]:
            path.unlink()
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # somebody else's file, or one that has just gone
    return entry


def _is_mine(folder: Path) -> bool:
    """Whether this is a real folder of this user's, which nobody else could have put there."""
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


def birth(pid: int) -> str | None:
    """When a process started, in the kernel's words: tells a reused process number. None: gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended


def is_running(header: dict[str, Any]) -> bool:
    """Whether the process that a trace's header names runs on this machine."""
    begun = birth(header["pid"])
    return begun is not None and begun == header["birth"] and header["host"] == platform.node()
