"""The corpus replays on paper and in memory, says why each case is kept, and each case can fail."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from bandscope.allocator.errors import ConfigError, TraceError
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.finds import SUFFIX
from bandscope.fuzz.program import read_program
from bandscope.fuzz.replay_corpus import (
    DIVERGED,
    SAME,
    UNUSABLE,
    accept_case,
    cases_of,
    keep_case,
    keep_program,
    replay_case,
    replay_cases,
    write_as_program,
)
from bandscope.inspect.reader import Trace
from bandscope.inspect.replay_accept import golden_of
from tests.allocator.arenas import P3
from tests.inspect_.traces import record

FOLDER = Path(__file__).resolve().parent.parent / "corpus"
CASES = cases_of(FOLDER)
TRACES = [path for path in CASES if path.suffix == ".trace"]
PROGRAMS = [path for path in CASES if path.name.endswith(SUFFIX)]
BYTES_MAX = 2_000_000


def _name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX).removesuffix(".trace")


@pytest.mark.parametrize("device", ["none", "sim", "cpu"])
@pytest.mark.parametrize("path", CASES, ids=_name)
def test_every_case_replays_bit_for_bit(path: Path, device: str) -> None:
    result = replay_case(path, device=device)
    assert result.status == SAME, result.message
    assert result.operations > 0


@pytest.mark.parametrize("path", TRACES, ids=_name)
def test_another_schedule_changes_nothing(path: Path) -> None:
    result = replay_case(path, device="sim", schedule="random:1")
    assert result.status == SAME, result.message


def test_the_corpus_is_small_and_covers_four_families() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX
    families = {Trace(path).header["family"] for path in TRACES}
    assert len(families - {"synthetic"}) >= 4
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("path", TRACES, ids=_name)
def test_a_trace_says_where_it_comes_from_and_why_it_is_kept(path: Path) -> None:
    trace = Trace(path)
    assert trace.damages == [] and trace.ending == "clean"
    golden = trace.header["golden"]
    assert all(golden[key] for key in ("origin", "reason", "revision"))
    assert golden == golden_of(trace).to_json()
    assert trace.header["host"] == "example"  # nothing of the machine that made it


@pytest.mark.parametrize("path", PROGRAMS, ids=_name)
def test_a_program_finds_what_it_was_shrunk_from(path: Path) -> None:
    _, facts = read_program(path)
    assert all(facts[key] for key in ("origin", "reason", "revision", "digest"))
    with FAULTS[_name(path)].plant():
        result = replay_case(path, device="sim")
    assert result.status == DIVERGED
    assert result.origin == facts["origin"] and result.reason == facts["reason"]


@pytest.mark.parametrize("path", TRACES, ids=_name)
def test_a_flipped_decision_fails_every_trace(path: Path) -> None:
    with FAULTS["decode-takes-its-page-early"].plant():
        result = replay_case(path)
    assert result.status == DIVERGED
    assert result.message.startswith("event ")


def test_passes_of_every_case() -> None:
    results = list(replay_cases(PROGRAMS, device="sim", passes=2))
    assert [(result.path, result.number) for result in results] == [
        (path, number) for path in PROGRAMS for number in (1, 2)
    ]


# --- programs as cases ------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A copy of a program of the corpus."""
    return shutil.copy(PROGRAMS[0], tmp_path / PROGRAMS[0].name)


def test_a_program_whose_end_is_another_is_told(program: Path) -> None:
    text = program.read_text(encoding="utf-8")
    digest = read_program(program)[1]["digest"]
    program.write_text(text.replace(digest, "0" * 32), encoding="utf-8")
    result = replay_case(program)
    assert result.status == DIVERGED
    assert result.message == f"the digest after the last step was {'0' * 32}, and is now {digest}"

    with pytest.raises(TraceError, match="--reason"):
        accept_case(program, " ")
    accept_case(program, "another order of ids")
    result = replay_case(program)
    assert (result.status, result.reason) == (SAME, "another order of ids")
    assert result.origin == read_program(PROGRAMS[0])[1]["origin"]


def test_a_program_that_breaks_something_is_not_accepted(program: Path) -> None:
    before = program.read_bytes()
    with FAULTS[_name(program)].plant(), pytest.raises(ConfigError, match="breaks an invariant"):
        accept_case(program, "it is what it is")
    assert program.read_bytes() == before


def test_what_cannot_be_read_is_unusable_and_not_an_error(program: Path) -> None:
    program.write_text("{", encoding="utf-8")
    result = replay_case(program)
    assert result.status == UNUSABLE and "cannot be read" in result.message
    assert replay_case(program.with_name("gone.trace")).status == UNUSABLE


def test_a_damaged_trace_is_unusable_or_the_same(tmp_path: Path) -> None:
    """Whatever bit is flipped or byte is cut: never a difference, and never an error of Python's."""
    source = record(
        tmp_path / "run", P3, seed=3, operations=130, keyframe_every=60, segment_records=512
    ).path
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    rng = random.Random(5)
    found = set()
    for number in range(120):
        folder = tmp_path / f"{number}.trace"
        folder.mkdir()
        victim = rng.choice(sorted(files))
        for name, data in files.items():
            damaged = bytearray(data)
            if name == victim and number % 3:
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            elif name == victim:
                del damaged[rng.randrange(len(data)) :]
            (folder / name).write_bytes(damaged)
        found.add(replay_case(folder, device=rng.choice(["none", "sim"])).status)
    assert found == {SAME, UNUSABLE}  # the same: what was damaged has a copy, or nobody needs it


def test_a_kept_program_replays(tmp_path: Path) -> None:
    given, _ = read_program(PROGRAMS[0])
    path = tmp_path / f"kept{SUFFIX}"
    keep_program(path, given, "by hand", "it is short")
    result = replay_case(path)
    assert (result.status, result.origin, result.reason) == (SAME, "by hand", "it is short")


# --- keeping cases ----------------------------------------------------------------------------------


def test_a_recorded_trace_becomes_a_case(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=200, keyframe_every=60)
    kept = keep_case(recorded.path, tmp_path / "new" / "corpus", "a walk", "a test")

    assert kept == tmp_path / "new" / "corpus" / "run.trace"
    result = replay_case(kept)
    assert (result.status, result.origin, result.reason) == (SAME, "a test", "a walk")
    assert result.operations == 200
    assert [path.name for path in kept.parent.iterdir()] == ["run.trace"]
    assert all(path.suffix in (".json", ".zst") for path in kept.iterdir())
    assert recorded.path.joinpath("000000.events").exists()  # what was copied stays as it was

    with pytest.raises(TraceError, match="holds a case run.trace already"):
        keep_case(recorded.path, kept.parent, "again")


def test_a_program_becomes_a_case(program: Path, tmp_path: Path) -> None:
    kept = keep_case(program, tmp_path / "corpus", "it is short", "by hand")
    result = replay_case(kept)
    assert (result.status, result.origin, result.reason) == (SAME, "by hand", "it is short")


def test_only_what_is_right_is_kept_and_never_without_a_reason(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, operations=200)
    with pytest.raises(TraceError, match="--reason"):
        keep_case(recorded.path, tmp_path / "corpus", "")
    with FAULTS["a-page-too-few"].plant(), pytest.raises(TraceError, match="does not replay"):
        keep_case(recorded.path, tmp_path / "corpus", "because")
    assert not (tmp_path / "corpus").exists()


def test_a_trace_becomes_a_program_that_shows_what_it_shows(tmp_path: Path) -> None:
    recorded = record(tmp_path / "run", P3, seed=2, operations=300)
    target = tmp_path / f"run{SUFFIX}"
    assert write_as_program(recorded.path, target) == 300
    assert replay_case(target, device="sim").status == SAME
    with FAULTS["no-barrier-before-reuse"].plant():
        result = replay_case(target, device="sim")
    assert result.status == DIVERGED and result.message.startswith("happens_before")
