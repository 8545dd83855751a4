"""Every kernel compiles ahead of time for sm_80 and sm_90, without spills and with wide accesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed here")


@pytest.fixture(scope="module", params=[80, 90])
def compiled(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What the compiler reports, per kernel variant."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), str(request.param)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return result


def test_no_kernel_spills(compiled: dict[str, dict[str, Any]]) -> None:
    """No variant keeps registers in local memory."""
    spilling = {
        name: report
        for name, report in compiled.items()
        if report["spill_stores"] or report["spill_loads"]
    }

    assert spilling == {}
    assert all(0 < report["registers"] <= 255 for report in compiled.values())
    movers = [report for name, report in compiled.items() if not name.startswith("attention")]
    assert all(report["registers"] <= 128 for report in movers)


@pytest.mark.parametrize(
    "name",
    [
        "move 1 KiB",
        "move 1 KiB, pages as int32",
        "move 64 KiB",
        "move 64 KiB, pages as int32",
        "move 1,152 B",
        "move 18,432 B",
    ],
)
def test_moves_use_128_bit_accesses(compiled: dict[str, dict[str, Any]], name: str) -> None:
    """Bytes move 16 at a time; only the page numbers are loaded as single words."""
    memory = compiled[name]["memory"]
    number = "LDG.E" if "int32" in name else "LDG.E.64"
    narrow = [what for what in memory if ".128" not in what]

    assert any("STG" in what and ".128" in what for what in memory)
    assert set(narrow) == {number}, memory
