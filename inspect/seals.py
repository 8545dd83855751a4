"""Sealing a whole trace: which of its files are finished, and what compressing them saves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import TraceError
from bandscope.inspect import registry
from bandscope.inspect.format import ENDINGS
from bandscope.inspect.reader import Trace
from bandscope.inspect.sealing import SEALED_SUFFIX, seal_file
from bandscope.inspect.segment import segment_paths

_STILL_WRITTEN = 2  # segments at the end of a trace that its recorder may still touch


@dataclass(frozen=True)
class SealReport:
    """`files` were compressed now; bytes are those of all segments, sealed earlier ones included.
    `left`: segments that stay as they are because they may still be written."""

    path: str
    files: int
    left: int
    events: int
    before_bytes: int
    after_bytes: int

    @property
    def before_bytes_per_event(self) -> float:
        return self.before_bytes / self.events if self.events else 0.0

    @property
    def after_bytes_per_event(self) -> float:
        return self.after_bytes / self.events if self.events else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.__dict__,
            "before_bytes_per_event": self.before_bytes_per_event,
            "after_bytes_per_event": self.after_bytes_per_event,
        }


def seal_trace(trace: Trace) -> SealReport:
    """Compress every finished segment. `TraceError` for a ring that is still written (its recorder
    removes its own old files) and for files that cannot be written."""
    segments = [reader.segment for reader in trace.segments()]
    written = may_be_written(trace)
    if written and trace.header["recorder"].get("ring_bytes"):
        raise TraceError(
            f"trace {trace.path} is a ring that is still recorded; seal it when its process has ended"
        )
    left = min(_STILL_WRITTEN, len(segments)) if written else 0
    before = after = files = 0
    for number in segments[: len(segments) - left]:
        for path in segment_paths(trace.path, number):
            try:
                sizes = _seal(path)
            except OSError as error:
                raise TraceError(
                    f"{path} could not be sealed ({error.strerror}); the trace is as readable as before"
                ) from error
            files += sizes is not None
            before, after = (
                total + size for total, size in zip((before, after), sizes or _sizes(path), strict=True)
            )
    for number in segments[len(segments) - left :]:
        for path in segment_paths(trace.path, number):
            size = path.stat().st_size if path.exists() else 0
            before, after = before + size, after + size
    events = trace.stop - trace.start
    return SealReport(str(trace.path), files, left, events, before, after)


def _seal(path: Path) -> tuple[int, int] | None:
    """Bytes before and after; None when there is no file to seal."""
    if not path.exists():
        return None
    return seal_file(path)


def _sizes(path: Path) -> tuple[int, int]:
    sealed = path.with_name(path.name + SEALED_SUFFIX)
    size = sealed.stat().st_size if sealed.exists() else 0
    return size, size


def may_be_written(trace: Trace) -> bool:
    """Whether a process may still write the trace: it lives, and the trace has no end."""
    return trace.ending not in ENDINGS and registry.is_running(trace.header)
