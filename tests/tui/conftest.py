"""Fixtures of the command line's tests."""

from __future__ import annotations

import tempfile

import pytest

from bandscope.tui.top.snapshot import Snapshot, View
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P5
from tests.inspect_.traces import record
from tests.tui.inspecting import Inspect


@pytest.fixture
def plain_surroundings(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No colour, width or running recorder of the surroundings leaks into a test."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "BANDSCOPE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    runtime = str(tmp_path_factory.mktemp("runtime"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr(tempfile, "tempdir", runtime)


@pytest.fixture
def inspect(plain_surroundings: None, capsys: pytest.CaptureFixture[str]) -> Inspect:
    """The commands, called in this process."""
    return Inspect(capsys)


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of whoever runs the tests leak into them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """What the live screen shows of event 1,000 of a run; nobody can change it."""
    run = record(tmp_path_factory.mktemp("top") / "run", P5, seed=4, operations=250)
    source = TraceSource(run.path)
    source.ask("view", View(columns=80, rows=30, waterfall=8, window_ns=10**8))
    source.ask("go", 1000)
    made = source.tick()
    assert made is not None
    return made
