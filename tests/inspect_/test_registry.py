"""Running recorders are found by their user and nobody else; what is stale goes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from bandscope.inspect import registry
from bandscope.inspect.reader import Trace
from tests.allocator.arenas import P3
from tests.inspect_.traces import record


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "runtime"
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return base / "bandscope"


def entry(runtime: Path) -> Path:
    (found,) = runtime.glob("*.json")
    return found


def test_a_recorder_is_listed_while_it_runs(tmp_path: Path, runtime: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    (found,) = registry.running()
    assert found.pid == os.getpid() and found.trace == recorded.path.resolve()
    assert found.bands == ["mamba", "window_8", "full"]
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(runtime).stat().st_mode) == 0o600
    assert Trace(recorded.path).ending == "running"
    recorded.recorder.close()
    assert registry.running() == [] and list(runtime.iterdir()) == []
    assert Trace(recorded.path).ending == "clean"


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"birth": "1"}], ids=["gone", "reused"])
def test_entries_of_processes_that_are_gone_are_removed(
    tmp_path: Path, runtime: Path, change: dict[str, object]
) -> None:
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    path = entry(runtime)
    told = {**json.loads(path.read_text()), **change}
    stale = runtime / f"{told['pid']}-{'0' * 16}.json"
    stale.write_text(json.dumps(told))
    assert len(registry.running()) == 1
    assert not stale.exists() and path.exists()
    recorded.recorder.close()


def test_a_zombie_is_gone() -> None:
    process = os.fork()
    if not process:
        os._exit(0)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert registry.birth(process) is None
    os.waitpid(process, 0)


def test_files_of_others_are_ignored_and_left(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    pid = os.getpid()
    names = {
        "notes.txt": "x", "12.json": "{}", f"{pid}-{'1' * 16}.json": "{", f"{pid}-{'2' * 16}.json": "[]",
        f"{pid}-{'3' * 16}.json": '{"pid": "../../x"}',
    }  # fmt: skip
    for name, text in names.items():
        (runtime / name).write_text(text)
    (runtime / f"{pid}-{'4' * 16}.json").mkdir()
    assert registry.running() == []
    assert len(list(runtime.iterdir())) == len(names) + 1


def test_drafts_of_processes_that_are_gone_are_removed(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    draft = runtime / f"{2**22 + 1}-{'0' * 16}.new"
    mine = runtime / f"{os.getpid()}-{'0' * 16}.new"
    for path in (draft, mine):
        path.write_text("{")
    assert registry.running() == []
    assert not draft.exists() and mine.exists()


def test_a_folder_that_others_could_read_is_closed(tmp_path: Path, runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    recorded.recorder.close()


@pytest.mark.parametrize("how", ["unset", "missing", "a file", "a link"])
def test_without_a_runtime_folder_the_temporary_one_serves(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "unset":
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    elif how == "missing":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere" / "deep"))
    elif how == "a file":
        runtime.write_text("")
    else:
        (tmp_path / "elsewhere").mkdir()
        runtime.symlink_to(tmp_path / "elsewhere")
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    own = tmp_path / f"bandscope-{os.getuid()}"
    assert len(list(own.glob("*.json"))) == 1
    assert len(registry.running()) == 1
    assert Trace(recorded.path).ending == "running"
    recorded.recorder.close()
    assert list(own.iterdir()) == []


def test_recording_goes_on_where_nothing_can_be_announced(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/1/nowhere")
    monkeypatch.setattr("tempfile.tempdir", "/proc/1/nowhere")
    recorded = record(tmp_path / "run", P3, operations=5, close=False)
    assert registry.running() == []
    assert Trace(recorded.path).ending == "running"
    recorded.recorder.close()
    assert Trace(recorded.path).ending == "clean"
