"""The results of a corpus as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bandscope.allocator.errors import TraceError
from bandscope.fuzz.junit import Case, junit
from bandscope.fuzz.replay_corpus import DIVERGED, CaseResult


def write_junit(path: Path, results: Sequence[CaseResult], device: str) -> None:
    """Write it to a file, whole or not at all: a divergence is a failure, an unusable file an error.
    Raises `TraceError` when it cannot be written."""
    text = junit("bandscope replay", [_case(result, device) for result in results])
    draft = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise TraceError(
            f"the JUnit file {path} could not be written ({error.strerror or error}); name a file in a "
            "folder that can be written"
        ) from error


def _case(result: CaseResult, device: str) -> Case:
    where, name = f"bandscope.replay.{device}", result.path.name
    if result.number > 1:
        name += f", pass {result.number}"
    if result.status == "same":
        return Case(where, name, result.seconds, file=str(result.path))
    return Case(
        where, name, result.seconds, "failure" if result.status == DIVERGED else "error",
        (result.message,), result.status, str(result.path),
    )  # fmt: skip
