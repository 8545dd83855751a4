"""Calling `bandscope inspect` in this process, on small recorded traces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bandscope.inspect.reader import Trace
from bandscope.inspect.recorder import Recorder
from bandscope.tui import main as program
from tests.allocator.arenas import P5, small_arena
from tests.inspect_.traces import record

# The arguments of every command that reads a trace, after the trace.
READERS: dict[str, list[str]] = {
    "summary": [],
    "events": [],
    "page": ["full", "1"],
    "lease": ["1"],
    "at": ["300"],
    "diff": ["100", "300"],
    "stats": [],
    "races": [],
    "leaks": [],
    "check": [],
    "refusals": [],
}


@dataclass
class Ended:
    """How a call of the program ended."""

    status: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """The output on one line."""
        return " ".join(self.out.split())

    @property
    def data(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


class Inspect:
    """Calls `bandscope inspect`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ended:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            program.main(["inspect", *map(str, arguments)])
        streams = self._capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ended(exited.value.code, streams.out, streams.err)

    def refused(self, *arguments: object) -> str:
        """The one sentence of a call that must end with status 2 and print nothing else."""
        ended = self(*arguments)
        assert (ended.status, ended.out) == (2, ""), ended
        assert ended.err.startswith("bandscope: ") and ended.err.count("\n") == 1
        return ended.err


def record_p5(folder: Path, **options: Any) -> Path:
    """Five bands, every kind of operation, leases and refusals."""
    return record(folder / "p5", P5, **{"seed": 3, "operations": 300, **options}).path


def record_nothing(folder: Path) -> Path:
    """A trace without any operation."""
    arena = small_arena(P5)
    with Recorder(folder / "empty", arena) as recorder:
        return recorder.directory


def events_file(trace: Path) -> Path:
    """The file of records of a trace of one segment."""
    return trace / "000000.events"


def damage(trace: Path) -> None:
    """Flip a byte in the second block of records."""
    file = events_file(trace)
    data = bytearray(file.read_bytes())
    data[64 + 32 * 300 + 5] ^= 0x55
    file.write_bytes(data)
    assert Trace(trace).damages
