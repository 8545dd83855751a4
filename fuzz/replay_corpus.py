"""A corpus: a folder of traces and programs, each replayed, with one result per case.

A case is a trace (`NAME.trace`) or a program (`NAME.program.json`). A trace must do what it recorded; a
program must break nothing, and leave the books as its file says (`digest`). Each says where it comes
from, why it is kept and which revision decided so; `bandscope replay --accept` rewrites that.
"""

from __future__ import annotations

import glob
import re
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import BandscopeError, ConfigError, TraceError
from bandscope.fuzz.execution import execute
from bandscope.fuzz.finds import SUFFIX
from bandscope.fuzz.generate.from_trace import program_of_trace
from bandscope.fuzz.program import Program, read_program, write_program
from bandscope.fuzz.replay_engine import open_engine
from bandscope.inspect.format import HEADER_NAME
from bandscope.inspect.header import revision
from bandscope.inspect.reader import open_trace
from bandscope.inspect.replay import ReplayReport, replay
from bandscope.inspect.replay_accept import accept, describe, golden_of
from bandscope.inspect.seals import seal_trace

SAME, DIVERGED, UNUSABLE = "same", "diverged", "unusable"
_EXIT = {SAME: 0, DIVERGED: 1, UNUSABLE: 2}


@dataclass
class CaseResult:
    """What became of one case. `status`: `same`, `diverged` or `unusable`; `message`: what differed, or
    why it could not be replayed. `report`: of a trace that was replayed."""

    path: Path
    kind: str
    status: str
    seconds: float
    operations: int = 0
    message: str = ""
    origin: str = ""
    reason: str = ""
    number: int = 1  # of the pass
    report: ReplayReport | None = field(default=None, repr=False)

    @property
    def exit_status(self) -> int:
        """What a command that replayed only this returns."""
        return _EXIT[self.status]

    def to_json(self) -> dict[str, Any]:
        """Plain data; the figures of the report stand beside the others."""
        told = {**asdict(self), "path": str(self.path), "trace": str(self.path), "pass": self.number}
        del told["number"]
        told.update({} if self.report is None else self.report.to_json())
        told.pop("report")
        return told


def is_case(path: Path) -> bool:
    """Whether a path is one trace or one program."""
    return path.name.endswith(SUFFIX) or (path / HEADER_NAME).exists()


def cases_of(path: Path, ranks: Collection[int] | None = None) -> list[Path]:
    """The cases under a folder by name, or `path` itself where it is one (or is not there). `NAME`
    stands for the traces of all ranks where several recorded; `ranks`: only those of these.

    `TraceError` when a folder holds none, or none is of these ranks.
    """
    if ranks is not None:
        chosen = [each for each in cases_of(path) if _rank_of(each) in ranks]
        if not chosen:
            raise TraceError(
                f"ranks {', '.join(map(str, sorted(ranks)))} of {path} were to be replayed, but there "
                "are no traces of theirs; leave --ranks out to replay what there is"
            )
        return chosen
    if not path.exists():
        several = path.parent.glob(f"{glob.escape(path.name.removesuffix('.trace'))}.rank*.trace")
        return sorted(several, key=lambda each: (_rank_of(each) or 0, each.name)) or [path]
    if is_case(path) or not path.is_dir():
        return [path]
    found = [each for each in path.rglob("*.trace") if (each / HEADER_NAME).exists()]
    found += path.rglob(f"*{SUFFIX}")
    found = [each for each in found if not any(part.startswith(".") for part in each.parts[1:])]
    if not found:
        raise TraceError(
            f"{path} holds neither traces nor programs, so there is nothing to replay; record one with "
            "`bandscope run --record NAME`, or name another folder"
        )
    return sorted(found)


def _rank_of(path: Path) -> int | None:
    match = re.search(r"\.rank(\d+)\.trace$", path.name)
    return None if match is None else int(match[1])


def replay_case(
    path: Path, *, device: str = "none", schedule: str = "eager", until: int | None = None
) -> CaseResult:
    """Replay one case. Never raises for a case that cannot be used: its status says so."""
    started = time.perf_counter()
    kind = "program" if path.name.endswith(SUFFIX) else "trace"
    try:
        result = (_program if kind == "program" else _trace)(path, device, schedule, until)
    except BandscopeError as error:
        result = CaseResult(path, kind, UNUSABLE, 0.0, message=str(error))
    result.seconds = time.perf_counter() - started
    return result


def replay_cases(
    paths: list[Path],
    *,
    device: str = "none",
    schedule: str = "eager",
    until: int | None = None,
    passes: int = 1,
) -> Iterator[CaseResult]:
    """Every pass of every case, one after the other."""
    for path in paths:
        for number in range(passes):
            result = replay_case(path, device=device, schedule=schedule, until=until)
            result.number = number + 1
            yield result


def _trace(path: Path, device: str, schedule: str, until: int | None) -> CaseResult:
    trace = open_trace(path)
    golden = golden_of(trace)
    report = replay(trace, until=until, engine=open_engine(trace, device, schedule))
    difference = report.difference
    return CaseResult(
        path,
        "trace",
        SAME if difference is None else DIVERGED,
        0.0,
        report.operations,
        "" if difference is None else str(difference),
        golden.origin,
        golden.reason,
        report=report,
    )


def _program(path: Path, device: str, schedule: str, until: int | None) -> CaseResult:
    program, facts = read_program(path)
    verdict = execute(program, device=device, full_every=1)
    message = "" if verdict.find is None else str(verdict.find)
    books = verdict.digest.partition("-")[0]
    if not message and facts.get("digest") not in (None, books):
        message = f"the digest after the last step was {facts['digest']}, and is now {books}"
    return CaseResult(
        path,
        "program",
        DIVERGED if message else SAME,
        0.0,
        verdict.steps,
        message,
        str(facts.get("origin", "")),
        str(facts.get("reason", "")),
    )


def accept_case(path: Path, reason: str) -> None:
    """Make what this version does the new golden of a case. `TraceError` without a reason;
    `ConfigError` for a program that breaks something: that is a find, not a decision."""
    if not path.name.endswith(SUFFIX):
        accept(open_trace(path), reason)
        return
    program, facts = read_program(path)
    verdict = execute(program, full_every=1)
    if verdict.find is not None:
        raise ConfigError(
            f"program {path} was to be accepted, but it breaks an invariant ({verdict.find}); mend that "
            "first"
        )
    keep_program(path, program, str(facts.get("origin", "")), reason)


def keep_program(path: Path, program: Program, origin: str, reason: str) -> None:
    """Write a program as a case of a corpus, with the digest that its steps leave now."""
    if not reason.strip():
        raise TraceError(
            "a program was to be kept without a reason; say with --reason why it is kept as it is"
        )
    digest = execute(program, full_every=1).digest.partition("-")[0]
    write_program(
        path, program, origin=origin, reason=reason, revision=revision() or "", digest=digest
    )


def keep_case(path: Path, folder: Path, reason: str, origin: str = "") -> Path:
    """Copy a trace or a program into a corpus, with the reason why it is kept; returns where it lies.

    `origin`: where it comes from (empty: as its recorder says). Raises `TraceError` without a reason,
    where the corpus has a case of that name, and for a case that does not replay: a corpus holds what is
    right.
    """
    target = folder / path.name
    if not reason.strip():
        raise TraceError(f"{path} was to be kept without a reason; say with --reason why it is kept")
    if target.exists():
        raise TraceError(f"{folder} holds a case {path.name} already; rename one of them")
    result = replay_case(path)
    if result.status != SAME:
        raise TraceError(
            f"{path} was to be kept, but it does not replay ({result.message}); a corpus holds what is "
            "right: mend the version first, or accept what it does with --accept"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if result.kind == "program":
        program, facts = read_program(path)
        keep_program(target, program, origin or str(facts.get("origin", "")), reason)
        return target
    draft = folder / f".draft-{path.name}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        shutil.copytree(path, draft)
        describe(draft, origin or golden_of(open_trace(path)).origin, reason)
        seal_trace(open_trace(draft))
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def write_as_program(path: Path, target: Path, until: int | None = None) -> int:
    """Write a trace to event `until` as a program of the fuzzer, which `bandscope fuzz reproduce` and
    `bandscope fuzz shrink` take; returns its steps."""
    trace = open_trace(path)
    program = program_of_trace(trace, stop=until)
    write_program(target, program, origin=f"trace {path.name}", reason="")
    return len(program.steps)
