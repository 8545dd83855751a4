"""Every cut and every flipped bit of a tiny trace, through the commands by turns: none ever raises.

A byte has nine damages (a cut before it, and its eight bits), and each goes through another command;
from byte to byte the turns shift, so every command meets every kind of damage in every part of a file.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

import pytest

from bandscope.tui import main as program
from tests.allocator.arenas import P3
from tests.inspect_.traces import record
from tests.tui.inspecting import READERS

PARTS = 12


def damages(data: bytes, at: int) -> list[bytes]:
    """The file cut before byte `at`, and with each bit of that byte flipped."""
    flipped = []
    for bit in range(8):
        broken = bytearray(data)
        broken[at] ^= 1 << bit
        flipped.append(bytes(broken))
    return [data[:at], *flipped]


def call(command: str, trace: Path, *rest: str) -> tuple[int, str]:
    """Exit status and what was said on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        with pytest.raises(SystemExit) as exited:
            program.main(["inspect", command, str(trace), *rest])
    assert isinstance(exited.value.code, int)
    return exited.value.code, said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_cut_and_every_flipped_bit(
    plain_surroundings: None, tmp_path: Path, part: int
) -> None:
    """Status 0, 1 or 2, never 70; with status 2 exactly one sentence."""
    trace = record(
        tmp_path / "tiny", P3, seed=2, operations=12,
        keyframe_every=32, segment_records=128, segment_pages_bytes=1 << 12,
    ).path  # fmt: skip
    commands = list(READERS.items())
    turn = tried = 0
    for file in ("000000.events", "000000.pages", "trace.json"):
        sound = (trace / file).read_bytes()
        for at in range(len(sound)):
            for broken in damages(sound, at):
                turn += 1
                if at % PARTS != part:
                    continue
                tried += 1
                # Not an 11th of the bits for each command, but another one for each byte.
                command, rest = commands[turn % len(commands)]
                (trace / file).write_bytes(broken)
                status, said = call(command, trace, *rest, *(["--json"] if turn % 2 else []))
                assert status in (0, 1, 2), (file, at, turn, command, said)
                assert status != 2 or said.count("\n") == 1, (file, at, turn, command, said)
        (trace / file).write_bytes(sound)
    assert tried > 3000
    shutil.rmtree(trace)
