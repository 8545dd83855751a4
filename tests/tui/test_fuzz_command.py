"""`bandscope fuzz`: what it prints, writes and ends with."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bandscope.fuzz.faults import FAULTS
from bandscope.tui import main as program

FAULT = "second-window-not-freed"


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.raises(SystemExit) as exited:
            program.main(["fuzz", *map(str, arguments)])
    assert isinstance(exited.value.code, int)
    return exited.value.code, out.getvalue(), err.getvalue()


def data(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json")[1])


def test_a_clean_campaign() -> None:
    """Status 0; the rate, coverage, goals and digest are told, and the seed first and last."""
    status, out, err = call("--cases", 3, "--seed", 7, "--profile", "serving")
    assert status == 0 and err == ""
    assert out.startswith("seed 7\n") and "seed 7, profile serving, device sim" in out
    assert "3 cases" in out and "operations/s and core" in out and "nothing found" in out
    told = data("--cases", 3, "--seed", 7, "--profile", "serving")
    assert told["schema"] == "bandscope-fuzz/1" and told["finds"] == []
    assert told["digest"] in out


def test_a_find_is_printed_written_and_shown_again(tmp_path: Path) -> None:
    """Status 1; the file reproduces it with the fault (1) and without (0), and shrinks no further."""
    with FAULTS[FAULT].plant():
        status, out, _ = call("--cases", 40, "--out", tmp_path)
        assert status == 1 and "found: " in out
        path = sorted(tmp_path.iterdir())[0]
        assert f"bandscope fuzz reproduce {path}" in out
        status, out, _ = call("reproduce", path)
        assert status == 1 and "broke at step" in out
        assert data("reproduce", path)["find"]["invariant"]
        steps = data("reproduce", path)["steps"]
        status, out, _ = call("shrink", path)
        assert status == 0 and f"{steps} steps became {steps}" in out
    status, out, _ = call("reproduce", path)
    assert status == 0 and "nothing broke" in out
    status, _, err = call("shrink", path)
    assert status == 2 and "break nothing in this version" in err


def test_a_folder_of_programs_is_varied(tmp_path: Path) -> None:
    with FAULTS[FAULT].plant():
        call("--cases", 40, "--out", tmp_path)
    status, out, _ = call("--cases", 4, "--corpus", tmp_path)
    assert status == 0, out


def test_faults_are_listed_and_looked_for() -> None:
    """The table of one; an unknown name says which there are."""
    listed = data("faults", "--list")["faults"]
    assert len(listed) >= 40 and {"name", "group", "source", "what"} <= set(listed[0])
    status, out, _ = call("faults", FAULT, "--time", "20s")
    assert status == 0 and "1 of 1 faults found" in out
    status, _, err = call("faults", "no-such-fault")
    assert status == 2 and "no-such-fault" in err and FAULT in err


def test_a_fault_that_is_missed_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = dataclasses.replace(FAULTS[FAULT], plant=contextlib.nullcontext)
    monkeypatch.setitem(FAULTS, FAULT, harmless)
    status, out, _ = call("faults", FAULT, "--time", "1s")
    assert status == 1 and "not found" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "soon"], "--time soon"),
        (["--time", "0"], "--time 0"),
        (["--seed", "-1"], "--seed -1"),
        (["--profile", "nice"], "serving, hostile, misuse"),
        (["--device", "tpu"], "--device tpu"),
        (["--workers", "0"], "--workers 0"),
        (["--cases", "0"], "--cases 0"),
        (["--corpus", "missing"], "no such folder"),
        (["reproduce", "missing.json"], "cannot be read"),
        (["--device", "cuda", "--workers", "2"], "one process owns the GPU"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], said: str) -> None:
    status, out, err = call(*arguments)
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1


def test_every_command_has_a_help() -> None:
    for command in ([], ["smoke"], ["faults"], ["reproduce"], ["shrink"], ["exhaustive"]):
        status, out, _ = call(*command, "--help")
        assert status == 0 and "Exit status" in out
