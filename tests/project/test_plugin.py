"""The pytest plugin, run by pytest on small test files."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bandscope.inspect.reader import Trace
from bandscope.inspect.replay import replay
from tests.conftest import CHECKOUT

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from bandscope.allocator import events, operations as ops

BANDS = [("mamba", 2048), ("window_8", 512), ("full", 1024)]


def serve(arena, request=1, tokens=20, decoded=3):
    arena.admit(request)
    arena.extend(request, tokens)
    for _ in range(decoded):
        ticket = arena.launch([request])
        arena.decode([request])
        arena.complete(ticket)
"""


def loaded() -> list[str]:
    """The option that loads the plugin where the environment's metadata does not know it yet."""
    points = importlib.metadata.entry_points(group="pytest11")
    return [] if "bandscope" in points.names else ["-p", "bandscope.fuzz.pytest_plugin"]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs a test file with the plugin and returns what pytest says."""
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / ".src"))

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_engine=HEAD + source)
        return pytester.runpytest(*loaded(), "-p", "no:cacheprovider", *options)

    return run


def test_a_right_engine_passes(run) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
@pytest.mark.parametrize("device", ["sim", "none", "cpu"])
def test_it(bandscope_arena, device):
    arena = bandscope_arena(BANDS, 100_000, page_size=4, device=device)
    serve(arena)
    arena.release(1)

def test_nothing_is_asked(bandscope_arena):
    bandscope_arena(BANDS, 100_000)

def test_a_model_by_name(bandscope_arena):
    arena = bandscope_arena("gpt-oss-20b", "64MiB")
    assert arena.total_bytes == 64 << 20
    serve(arena)
    arena.release(1)

def test_two_arenas_on_another_schedule(bandscope_arena):
    for _ in range(2):
        arena = bandscope_arena(BANDS, 100_000, page_size=4, schedule="random:3")
        serve(arena)
        arena.release(1)
"""
    )
    result.assert_outcomes(passed=6)


def test_a_leak_fails_the_test_and_names_who_leased(run) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
def test_it(bandscope_arena):
    arena = bandscope_arena(BANDS, 100_000, page_size=4)
    serve(arena)
    lease = arena.lease(1, "full", 0, 2, "backup")
"""
    )
    result.assert_outcomes(failed=1)  # not an error of a fixture
    result.stdout.fnmatch_lines(
        [
            "*bandscope: arena 1 is not right*",
            "*leak: request 1 still holds 1 pages of mamba (0), since Admit at event*",
            "*leak: request 1 still holds 6 pages of full (0..5), since Extend at event*",
            "*leak: lease 1 of 'backup' still holds 2 pages of full (0..1), since Lease at event*",
            "*trace: *arena-1.trace",
        ]
    )


def test_a_leak_may_be_allowed_or_judged_later(run) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
@pytest.mark.bandscope_allow_leak("a cache keeps its pages")
def test_allowed(bandscope_arena):
    serve(bandscope_arena(BANDS, 100_000, page_size=4))

@pytest.fixture
def engine(bandscope_arena, request):
    arena = bandscope_arena(BANDS, 100_000, page_size=4)
    yield arena
    if request.node.name == "test_released_by_a_fixture":
        arena.release(1)

@pytest.mark.bandscope_allow_leak(until="teardown")
def test_released_by_a_fixture(engine):
    serve(engine)

@pytest.mark.bandscope_allow_leak(until="teardown")
def test_released_by_nobody(engine):
    serve(engine)

@pytest.mark.bandscope_allow_leak(until="doomsday")
def test_a_marker_that_means_nothing(bandscope_arena):
    pass
"""
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines_random(
        ["*leak: request 1 still holds*", "*until='doomsday'; it is one of never, teardown*"]
    )


PLANT = """
from bandscope.fuzz.faults import FAULTS

def planted(name, bandscope_arena, device="sim"):
    with FAULTS[name].plant():
        arena = bandscope_arena(BANDS, 40_000, page_size=4, device=device)
        for request in (1, 2, 3):
            serve(arena, request)
        ticket = arena.launch([1, 2, 3])
        arena.release(2)
        arena.complete(arena.launch([1]))  # publishes rows that the forward in flight reads
        arena.compact(urgent=True)
        arena.admit(4)
        arena.extend(4, 20)
        other = arena.launch([1, 3, 4])
        arena.complete(ticket)
        arena.complete(other)
        arena.admit(5)
        for request in (1, 3, 4, 5):
            arena.release(request)
"""


def test_broken_invariants_and_races_fail_the_test(run) -> None:  # type: ignore[no-untyped-def]
    result = run(
        PLANT
        + """
def test_healthy(bandscope_arena):
    import contextlib
    FAULTS["none"] = type("None", (), {"plant": staticmethod(contextlib.nullcontext)})
    planted("none", bandscope_arena)
    del FAULTS["none"]

def test_a_race(bandscope_arena):
    planted("no-barrier-before-reuse", bandscope_arena)

def test_a_race_in_the_trace_alone(bandscope_arena):
    planted("publish-without-barrier", bandscope_arena, "none")

def test_wrong_bytes(bandscope_arena):
    planted("move-without-a-copy", bandscope_arena)

def test_wrong_books(bandscope_arena):
    planted("state-slot-leaks-at-release", bandscope_arena)

def test_wrong_counts(bandscope_arena):
    planted("pending-count-drifts", bandscope_arena)

def test_wrong_for_a_moment_only(bandscope_arena):
    arena = bandscope_arena(BANDS, 40_000, page_size=4)
    arena.books.bands[0].live += 1
    arena.set_gate(closed=False)
    arena.books.bands[0].live -= 1

@pytest.mark.bandscope_allow_leak
def test_wrong_bytes_of_which_nobody_waits(bandscope_arena):
    with FAULTS["move-without-a-copy"].plant():
        arena = bandscope_arena(BANDS, 40_000, page_size=4, schedule="latest")
        for request in (1, 2, 3):
            serve(arena, request)
        arena.release(1)
        assert arena.compact(urgent=True)
        arena.launch([2, 3])
""",
        "-rA",
    )
    result.assert_outcomes(passed=1, failed=7)
    result.stdout.fnmatch_lines_random(
        ["*  happens_before: *", "*  race: *", "*  content: *", "*  conservation*"]
    )


def test_what_an_arena_did_can_be_asked(run) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
def test_it(bandscope_arena):
    arena = bandscope_arena(BANDS, 40_000, page_size=4)
    trace = arena.trace
    for request in (1, 2, 3):
        serve(arena, request)
    assert trace.leases(holder=2, band="mamba")[0].body.virtual.tolist() == [1]
    assert not trace.leases(pins=True)
    lease = arena.lease(3, "full", 0, 1, "backup")
    (pin,) = trace.leases(pins=True)
    assert pin.body.holder == "backup" and trace.leases(holder="backup") == trace.leases(pins=True)
    ticket = arena.launch([1, 2, 3])
    assert not trace.barriers("settle") and not trace.moves()
    arena.release(1)
    arena.compact(urgent=True)
    (settle,) = trace.barriers(kind="settle")
    assert settle.body.why == "urgent compaction" and settle.body.ticket == ticket
    assert trace.barriers(why="urgent") == [settle]
    assert {move.body.band for move in trace.moves()} == {"mamba", "full"}
    assert all(move.body.urgent for move in trace.moves(band="mamba", urgent=True))
    assert not trace.moves(band="mamba", urgent=False)
    assert trace.band_moves("full", why="compact") or trace.band_moves("full")
    assert not trace.refusals()
    assert not arena.extend(2, 4000)
    (refusal,) = trace.refusals("memory")
    assert trace.refusals("gate") == []
    (asked,) = [event for event in trace.operations(ops.Extend) if event.body.tokens == 4000]
    assert refusal.operation == asked.sequence
    assert len(trace.effects(events.Launched)) == 10
    assert len(trace.effects()) > 40
    arena.end_lease(lease)
    arena.complete(ticket)
    arena.release(2)
    arena.release(3)
"""
    )
    result.assert_outcomes(passed=1)


def test_artefacts_of_failed_tests_are_kept(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
@pytest.mark.parametrize("tokens", [20, 0])
def test_it(bandscope_arena, tokens):
    arena = bandscope_arena(BANDS, 100_000, page_size=4)
    arena.admit(1, state_slots=0)
    arena.extend(1, tokens)

def test_its_own_fault(bandscope_arena):
    arena = bandscope_arena(BANDS, 100_000, page_size=4)
    serve(arena)
    arena.release(1)
    assert arena.facts() == []

def test_skipped(bandscope_arena):
    serve(bandscope_arena(BANDS, 100_000, page_size=4))
    pytest.skip("not today")
""",
        "--bandscope-artifacts", "kept",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines_random(["*every check of the arenas passed; the traces:*"])
    folders = sorted(path for path in (pytester.path / "kept").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["arena-1.trace", "report.txt"]
        trace = Trace(folder / "arena-1.trace")
        assert trace.ending == "clean"
        assert replay(trace).difference is None
    reports = [(folder / "report.txt").read_text(encoding="utf-8") for folder in folders]
    assert any("leak: request 1" in report for report in reports)
    assert any("every check" in report for report in reports)
    assert all(str(folder.relative_to(pytester.path)) in report
               for folder, report in zip(folders, reports, strict=True))  # fmt: skip


def test_every_arena_is_watched_when_that_is_asked_for(run) -> None:  # type: ignore[no-untyped-def]
    source = (
        PLANT
        + """
from bandscope.allocator.arena import Arena
from bandscope.allocator.plan import plan_from_sizes

def build(*arguments, **options):
    return Arena(plan_from_sizes(BANDS, page_size=4), 40_000, device="none")

def test_a_fault(monkeypatch):
    planted("publish-without-barrier", build)

def test_healthy():
    serve(build())  # what it holds at the end is its own affair

def test_restored():
    arena = build()
    serve(arena)
    other = build()
    other.restore(arena.snapshot())
    other.release(1)

def test_another_observer():
    arena = build()
    arena.books.observer = None
    serve(arena)
"""
    )
    run(source).assert_outcomes(passed=4)
    result = run(source, "--bandscope")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*  race: *"])
    run(source).assert_outcomes(passed=4)  # nothing stays behind


def test_it_works_with_xdist(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    result = run(
        """
@pytest.mark.parametrize("number", range(4))
def test_it(bandscope_arena, number):
    arena = bandscope_arena(BANDS, 100_000, page_size=4)
    serve(arena)
    if number != 2:
        arena.release(1)
""",
        "-n", "2", "--bandscope-artifacts", str(pytester.path / "kept"),
    )  # fmt: skip
    result.assert_outcomes(passed=3, failed=1)
    (kept,) = (pytester.path / "kept").iterdir()
    assert "test_it-2-" in kept.name
    assert "leak" in (kept / "report.txt").read_text(encoding="utf-8")


def test_strict_markers_and_help_know_it(run) -> None:  # type: ignore[no-untyped-def]
    result = run("def test_it():\n    pass\n", "--strict-markers", "--markers")
    result.stdout.fnmatch_lines(["*bandscope_allow_leak(reason=*"])
    result = run("def test_it():\n    pass\n", "--help")
    result.stdout.fnmatch_lines(["*--bandscope-artifacts=DIR*"])


def test_other_runs_pay_nothing() -> None:
    """Importing the plugin imports no NumPy, no torch, and nothing else of Bandscope."""
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import bandscope.fuzz.pytest_plugin\n"
        "new = sorted(set(sys.modules) - before)\n"
        "print(new)\n"
    )
    environment = {"PYTHONPATH": str(CHECKOUT / ".src"), "PATH": ""}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "'numpy'" not in told and "'torch'" not in told
    assert [name for name in eval(told) if name.startswith("bandscope")] == [
        "bandscope", "bandscope.fuzz", "bandscope.fuzz.pytest_plugin",
    ]  # fmt: skip


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"bandscope": "bandscope.fuzz.pytest_plugin"}
    assert Path(CHECKOUT / "fuzz" / "pytest_plugin.py").exists()
