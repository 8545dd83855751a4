"""A new golden: what a version that *should* decide differently does with the operations of a trace.

The operations are applied again and recorded. The new trace takes the place of the old one at once, and
its header says where it comes from, why it was made and by which revision. Nothing else writes goldens.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import TraceError
from bandscope.inspect.format import HEADER_NAME
from bandscope.inspect.header import open_header, write_header
from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import KEYFRAME_EVERY, Recorder
from bandscope.inspect.replay import check_sound, first_keyframe, operations_of, restored_arena
from bandscope.inspect.sealing import SEALED_SUFFIX
from bandscope.inspect.seals import seal_trace

GOLDEN = "golden"  # the part of a header that says why a trace is kept
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD


@dataclass(frozen=True)
class Golden:
    """Why a trace is kept: where it comes from, the reason, the revision that decides so."""

    origin: str
    reason: str
    revision: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def golden_of(trace: Trace) -> Golden:
    """What a header says of it; a trace that nobody has accepted comes from its recorder."""
    told = trace.header.get(GOLDEN, {})
    command = " ".join(map(str, trace.header.get("command", [])))
    return Golden(
        str(told.get("origin") or f"recorded by `{command}`"),
        str(told.get("reason") or ""),
        told.get("revision") or trace.header.get("revision"),
    )


def describe(path: Path, origin: str, reason: str) -> None:
    """Write into a trace's header where it comes from and why it is kept."""
    try:
        header = open_header((path / HEADER_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise TraceError(f"the header of trace {path} cannot be read ({error})") from error
    _check_reason(reason)
    golden = Golden(origin, reason, header.get("revision"))
    write_header(path, {**header, GOLDEN: golden.to_json()})


def accept(trace: Trace, reason: str) -> Path:
    """Replace a trace by what this version does with its operations; returns its path.

    Raises `TraceError` for an empty reason and where nothing can be written; the old trace is then as
    it was.
    """
    _check_reason(reason)
    path = trace.path
    start, snapshot = first_keyframe(trace)
    check_sound(trace, start, trace.stop)
    arena = restored_arena(trace, snapshot)
    draft = path.with_name(f".golden-{os.getpid()}-{path.name.removesuffix('.trace')}.trace")
    shutil.rmtree(draft, ignore_errors=True)
    keyframe_every = trace.header.get("recorder", {}).get("keyframe_every", KEYFRAME_EVERY)
    try:
        with Recorder(draft, arena, keyframe_every=keyframe_every) as recorder:
            for step in operations_of(trace, start + 1, trace.stop):
                arena.apply(step.operation)
        if recorder.error is not None:
            raise recorder.error
        header = open_header((draft / HEADER_NAME).read_bytes())
        golden = Golden(golden_of(trace).origin, reason, header["revision"])
        # The bands are the same; which layers they serve only the first recorder knew.
        header = {**header, "bands": trace.header["bands"], GOLDEN: golden.to_json()}
        write_header(draft, header)
        if any(file.suffix == SEALED_SUFFIX for file in path.iterdir()):
            seal_trace(Trace(draft))
        _exchange(draft, path)
    except OSError as error:
        raise TraceError(
            f"the new golden of {path} could not be written ({error.strerror or error}); give a folder "
            "that can be written and has room"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise TraceError(
            "a new golden was to be accepted without a reason; say with --reason why this version "
            "should decide differently"
        )


def _exchange(draft: Path, path: Path) -> None:
    """Let the two folders change places in one step, or, where the system cannot, in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is not None and not exchange(
        _HERE, os.fsencode(draft), _HERE, os.fsencode(path), _EXCHANGE
    ):
        return
    aside = path.with_name(f".old-{os.getpid()}-{path.name}")
    os.replace(path, aside)
    os.replace(draft, path)
    shutil.rmtree(aside, ignore_errors=True)
