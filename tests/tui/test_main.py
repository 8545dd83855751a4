"""The program as a whole: what it prints, where, and with which status it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
import typer

import bandscope
from bandscope.allocator.errors import ConfigError, InvariantError
from bandscope.tui import main as program
from tests.conftest import CHECKOUT

Command = Callable[[Callable[..., Any]], Any]


class Kind(StrEnum):
    """The choices of a command's argument."""

    ONE = "one"
    TWO = "two"


def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, with pipes as streams and a changed environment."""
    return subprocess.run(
        [sys.executable, "-m", "bandscope.tui.main", *arguments],
        env=environment(**changes), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORCE_")}
    return kept | {"PYTHONPATH": str(CHECKOUT / ".src"), "COLUMNS": "80"} | changes


def status_of(*arguments: str) -> int:
    """Exit status of the program in this process."""
    with pytest.raises(SystemExit) as exited:
        program.main(arguments)
    assert isinstance(exited.value.code, int)
    return exited.value.code


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Registers a function as the command `act`, for one test."""
    monkeypatch.delenv("BANDSCOPE_TRACEBACK", raising=False)
    commands = list(program.app.registered_commands)
    monkeypatch.setattr(program.app, "registered_commands", commands)
    return program.app.command("act")


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        """Fail."""
        raise error

    return act


# --- help and version -----------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    found = run("--help")
    assert (found.returncode, found.stderr) == (0, "")
    for name in ("run", "doctor", "--version"):
        assert name in found.stdout


def test_without_arguments_it_is_the_help() -> None:
    found = run()
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == run("--help").stdout


def test_version() -> None:
    found = run("--version")
    assert (found.returncode, found.stdout) == (0, f"bandscope {bandscope.__version__}\n")


@pytest.mark.parametrize("name", ["run", "doctor"])
def test_each_command_has_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert status_of(name, "--help") == 0
    assert f"bandscope {name}" in capfd.readouterr().out


def test_brackets_in_a_help_text_are_kept(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(size: str = typer.Option("", help="The size. [as large as fits]")) -> None:
        """Act."""

    command(act)
    assert status_of("act", "--help") == 0
    assert "[as large as fits]" in capfd.readouterr().out


def test_the_help_starts_without_the_heavy_packages() -> None:
    code = (
        "import sys\nfrom bandscope.tui.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted({'torch', 'numpy', 'triton', 'textual', 'pynvml'} & "
        "set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert found.stdout.splitlines()[-1] == "loaded []", found.stderr


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {}])
def test_no_escapes_reach_a_pipe(changes: dict[str, str]) -> None:
    for arguments in (("--help",), ("run", "--help"), ("nonsense",)):
        found = run(*arguments, **changes)
        assert "\x1b" not in found.stdout + found.stderr


def test_an_ascii_stream_gets_all_of_the_help() -> None:
    found = run("run", "--help", PYTHONIOENCODING="ascii")
    assert (found.returncode, found.stderr) == (0, "")
    assert "--workload" in found.stdout


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "bandscope: no such command 'nonsense'"),
        (["--nonsense"], "bandscope: no such option: --nonsense"),
        (["doctor", "--nonsense"], "bandscope: no such option: --nonsense"),
        (["doctor", "extra"], "bandscope: got unexpected extra argument"),
        (["run", "--page-size", "x"], "bandscope: invalid value for '--page-size'"),
        (["run", "--page-size"], "bandscope: option '--page-size' requires an argument"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_with_a_hint(
    arguments: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments) == 2
    found = capfd.readouterr()
    assert found.out == ""
    assert found.err.startswith(sentence)
    assert found.err.count("\n") == 1
    assert "--help`" in found.err


def test_a_choice_that_is_missing_stays_on_one_line(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(kind: Kind) -> None:
        """Act."""

    command(act)
    assert status_of("act") == 2
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    assert message.endswith("see `bandscope act --help`\n")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("no [model] was given"), 2, "bandscope: no [model] was given"),
        (InvariantError("order is broken"), 1, "bandscope: order is broken"),
        (FileNotFoundError(2, "No such file", "a.json"), 2, "No such file: 'a.json'"),
        (ZeroDivisionError("by zero"), 70, "bandscope: internal error, ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), 130, "bandscope: interrupted"),
        (typer.Abort(), 1, "bandscope: aborted"),
    ],
)
def test_what_a_command_raises_is_one_line_and_a_status(
    error: BaseException,
    status: int,
    line: str,
    command: Command,
    capfd: pytest.CaptureFixture[str],
) -> None:
    command(raising(error))
    assert status_of("act") == status
    found = capfd.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert line in found.err


def test_a_real_interrupt_ends_with_130(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    command(lambda: signal.raise_signal(signal.SIGINT))
    # A test run that was started in the background may have been told to ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert status_of("act") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == "bandscope: interrupted\n"


@pytest.mark.parametrize("status", [0, 1, 130])
def test_a_command_chooses_its_status_and_nothing_is_added(
    status: int, command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    command(raising(typer.Exit(status)))
    assert status_of("act") == status
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_the_traceback_is_shown_when_asked_for(
    value: str,
    shown: bool,
    command: Command,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(raising(ConfigError("nothing was given")))
    monkeypatch.setenv("BANDSCOPE_TRACEBACK", value)
    assert status_of("act") == 2
    message = capfd.readouterr().err
    assert ("Traceback" in message) == shown
    assert message.splitlines()[-1] == "bandscope: nothing was given"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor", "--json"]])
def test_a_closed_pipe_is_quiet(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "bandscope.tui.main", *arguments],
            env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (found.returncode, found.stderr) == (1, "")
