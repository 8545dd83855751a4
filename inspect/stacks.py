"""Python stacks of operations: who called the arena."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from bandscope.allocator import arena

STACK_DEPTH_MAX = 64

# Frames of the arena, its observers and the recorder are left out at the inner end of a stack.
_OWN = (str(Path(arena.__file__).parent), str(Path(__file__).parent))


def caller_stack(depth: int) -> str:
    """The innermost `depth` frames outside of the arena, one a line: `FILE:LINE FUNCTION`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    lines: list[str] = []
    while frame is not None and len(lines) < depth:
        code = frame.f_code
        lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return "\n".join(lines)
