"""`bandscope replay` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bandscope.allocator.band import Band
from bandscope.tui.main import main
from tests.allocator.arenas import P3
from tests.inspect_.traces import record


def run(*arguments: str) -> int:
    """The exit status of the program."""
    with pytest.raises(SystemExit) as ended:
        main(["replay", *arguments])
    return int(ended.value.code or 0)


def test_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "run", P3, operations=200)
    assert run(str(recorded.path), "--passes", "2") == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("the same. 200 operations" in line for line in lines)


def test_a_folder_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        record(tmp_path / name, P3, operations=100)
    assert run(str(tmp_path), "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert [Path(entry["trace"]).name for entry in told["replays"]] == ["one.trace", "two.trace"]
    assert all(entry["difference"] is None for entry in told["replays"])


def test_diverged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(tmp_path / "run", P3, operations=300)
    plain = Band.lowest_holes
    monkeypatch.setattr(Band, "lowest_holes", lambda band, count: plain(band, count)[::-1])
    assert run(str(recorded.path)) == 1

    assert "diverged after" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.trace"], "is no trace"),
        (["missing.trace", "--device", "abacus"], "the devices are"),
        (["missing.trace", "--passes", "0"], "give 1 or more"),
    ],
)
def test_bad_usage(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert sentence in capsys.readouterr().err
