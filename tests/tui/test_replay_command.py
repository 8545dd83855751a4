"""`bandscope replay` as a person types it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bandscope.allocator.band import Band
from bandscope.fuzz.faults import FAULTS
from bandscope.tui.main import main
from tests.allocator.arenas import P3, P5
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


def test_what_differs_is_told_with_pictures_and_the_past(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record(tmp_path / "run", P5, seed=4, operations=300)
    with FAULTS["float-grows-on-the-wrong-side"].plant():
        assert run(str(recorded.path)) == 1
    out = capsys.readouterr().out

    assert "expected   LeaseBegin window_32: request 0 holds" in out
    assert "got        LeaseBegin window_32: request 0 holds" in out
    assert re.search(r"event +\d+ *\n", out) and "operation  Decode(requests=(0,))" in out
    recorded_picture, replayed = out.split("as replayed, after the operation")
    assert "as recorded, after the operation" in recorded_picture
    rows = [
        re.search(r"window_32: pages \S+ to \S+", part) for part in (recorded_picture, replayed)
    ]
    assert rows[0] is not None and rows[1] is not None
    assert rows[0][0] != rows[1][0]  # the extents differ, and the pictures show it
    assert re.search(r"what page \d+ of window_32 did before", out)


def test_every_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "run", P3, operations=150)
    for device in ("none", "sim", "cpu"):
        assert run(str(recorded.path), "--device", device, "--json") == 0
        assert json.loads(capsys.readouterr().out)["device"] == device
    assert run(str(recorded.path), "--device", "sim", "--schedule", "random:4") == 0


def test_a_folder_with_a_summary_and_junit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        record(tmp_path / "all" / name, P3, operations=100)
    broken = tmp_path / "all" / "three.trace"
    shutil.copytree(tmp_path / "all" / "one.trace", broken)
    damage = bytearray((broken / "000000.events").read_bytes())
    damage[-2000] ^= 1
    (broken / "000000.events").write_bytes(damage)
    report = tmp_path / "out" / "junit.xml"
    assert run(str(tmp_path / "all"), "--junit", str(report)) == 2

    out = capsys.readouterr().out
    assert "three.trace: unusable." in out and "is damaged" in out
    assert out.splitlines()[-1].endswith("2 same, 1 unusable")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "0", "errors": "1",
    }  # fmt: skip
    names = [case.get("name") for case in suite]
    assert names == ["one.trace", "three.trace", "two.trace"]
    error = suite[1].find("error")
    assert error is not None and "is damaged" in str(error.get("message"))


def test_junit_names_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record(tmp_path / "run", P5, seed=4, operations=300)
    with FAULTS["a-page-too-few"].plant():
        assert run(str(recorded.path), "--junit", str(tmp_path / "junit.xml")) == 1
    failure = ElementTree.parse(tmp_path / "junit.xml").getroot().find(".//failure")
    assert failure is not None
    assert str(failure.text) in capsys.readouterr().out
    assert str(failure.text).startswith("event ")


def test_accepting_needs_a_reason_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record(tmp_path / "run", P5, seed=4, operations=300)
    before = (recorded.path / "000000.events").read_bytes()
    with FAULTS["window-page-rounded-up"].plant():
        assert run(str(recorded.path), "--accept") == 2
        assert "--reason" in capsys.readouterr().err
        assert (recorded.path / "000000.events").read_bytes() == before

        assert run(str(recorded.path), "--accept", "--reason", "windows are rounded up") == 0
        assert "accepted as the new golden" in capsys.readouterr().out
        assert run(str(recorded.path)) == 0
    assert run(str(recorded.path)) == 1  # the old version differs from the new golden
    assert "windows are rounded up" in capsys.readouterr().out


def test_accepting_what_is_the_same_changes_nothing(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=100)
    before = (recorded.path / "000000.events").read_bytes()
    assert run(str(recorded.path), "--accept", "--reason", "because") == 0
    assert (recorded.path / "000000.events").read_bytes() == before


def test_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "run", P3, operations=150)
    assert run(str(recorded.path), "--mode", "time", "--passes", "2", "--json") == 0
    told = capsys.readouterr().out
    assert json.loads(told)["times"][0]["operations"] == 150
    (tmp_path / "before.json").write_text(told, encoding="utf-8")

    other = record(tmp_path / "other", P3, operations=100)
    for against in (tmp_path / "before.json", other.path):
        assert run(str(recorded.path), "--mode", "time", "--passes", "1", "--against", str(against)) == 0
        out = capsys.readouterr().out
        assert re.search(r"[\d,]+ operations/s on device none \(median of 1;", " ".join(out.split()))
        assert all(word in out for word in ("Admit", "p50 µs", "longest µs"))
        assert "times as fast" in out.splitlines()[-1]


def test_what_if(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = record(tmp_path / "run", P3, operations=200)
    options = ("--mode", "what-if", "--arena-bytes", "20000..40000:3", "--pools")
    assert run(str(recorded.path), *options) == 0
    out = capsys.readouterr().out
    assert "as recorded" in out and "retracted" in out and "pools of" in out

    assert run(str(recorded.path), *options, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["change"]["arena_bytes"] for row in rows] == [
        None, 20000, 30000, 40000, 20000, 30000, 40000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.trace"], "is no trace"),
        (["missing.trace", "--device", "abacus"], "the devices are"),
        (["missing.trace", "--mode", "guess"], "the modes are"),
        (["missing.trace", "--passes", "0"], "give 1 or more"),
        (["missing.trace", "--reason", "why"], "without --accept or --keep"),
        (["missing.trace", "--keep", "corpus"], "--reason"),
        (["missing.trace", "--program", "x.program.json"], "is no trace"),
        (["missing.trace", "--keep", "corpus", "--reason", "x", "--mode", "time"], "goes with"),
        (["missing.trace", "--mode", "time", "--accept"], "goes with --mode check"),
        (["missing.trace", "--against", "x.json"], "goes with --mode time"),
        (["missing.trace", "--arena-bytes", "1GiB"], "goes with --mode what-if"),
        (["missing.trace", "--mode", "what-if"], "nothing is different"),
        (["missing.trace", "--mode", "what-if", "--arena-bytes", "2GiB..1GiB:3"], "goes upwards"),
        (["missing.trace", "--mode", "what-if", "--arena-bytes", "2GiB..3GiB"], "a sweep like"),
        ([".", "--device", "sim", "--schedule", "never"], "schedules are"),
    ],
)
def test_bad_usage(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == ".":
        recorded = record(tmp_path / "run", P3, operations=10)
        arguments = [recorded.path.name, *arguments[1:]]
    assert run(*arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_cases_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path)) == 2
    assert "holds neither traces nor programs" in capsys.readouterr().err


def test_a_trace_is_kept_and_written_as_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record(tmp_path / "run", P3, operations=100)
    corpus, program = tmp_path / "corpus", tmp_path / "run.program.json"
    options = ("--keep", str(corpus), "--reason", "it is full", "--program", str(program))
    assert run(str(recorded.path), *options) == 0
    assert "kept. it is full" in capsys.readouterr().out
    assert run(str(corpus), "--device", "sim") == 0
    assert run(str(program), "--device", "sim") == 0
    assert "the same. 100 operations" in capsys.readouterr().out


def test_a_capture_of_another_allocator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rmm.csv"
    log.write_text(
        "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,1000,0\n1,1,free,0x10,1000,0\n",
        encoding="utf-8",
    )
    assert run(str(log), "--from", "rmm", "--record", str(tmp_path / "run")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "allocations 1 frees 1" in out and "not in the trace: 2 times of events" in out
    assert run(str(tmp_path / "run.trace")) == 0

    options = ("--from", "rmm", "--record", str(tmp_path / "again"), "--json")
    capsys.readouterr()
    assert run(str(log), *options) == 0
    assert json.loads(capsys.readouterr().out)["peak_bytes"] == 1000
    assert run(str(log), "--from", "rmm") == 2
    assert "go together" in capsys.readouterr().err


def test_the_traces_of_several_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 2, 10):
        record(tmp_path / "run", P3, seed=rank, operations=50, rank=rank)
    for asked, expected in ((None, [0, 2, 10]), ("0,10", [0, 10]), ("1..9", [2])):
        options = () if asked is None else ("--ranks", asked)
        assert run(str(tmp_path / "run"), "--json", *options) == 0
        told = json.loads(capsys.readouterr().out)
        names = [Path(entry["trace"]).name for entry in told["replays"]]
        assert names == [f"run.rank{rank}.trace" for rank in expected]
    assert run(str(tmp_path / "run"), "--ranks", "5") == 2
    assert "no traces of theirs" in capsys.readouterr().err
    assert run(str(tmp_path / "run"), "--ranks", "some") == 2
    assert "like 0,2 or 0..3" in capsys.readouterr().err
