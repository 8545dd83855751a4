"""`bandscope inspect`: every command on a sound trace, on bad input, and on nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bandscope.inspect.recorder import Recorder
from tests.allocator.arenas import P3, P5, small_arena
from tests.inspect_.traces import record
from tests.tui.inspecting import (
    READERS,
    Inspect,
    record_nothing,
    record_p5,
)

ESCAPE = "\x1b"
# Those whose answer is another test's concern: what they find decides their status.
JUDGES = ("races", "leaks", "check")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound trace that no test changes."""
    return record_p5(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def own(trace: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(trace, tmp_path / "own.trace"))


# --- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READERS)
def test_text_fits_the_terminal_and_json_is_one_object(
    inspect: Inspect, trace: Path, command: str
) -> None:
    """Status 0 (or 1 from a judge), at most 80 columns without escape codes; JSON that parses."""
    ended = inspect(command, trace, *READERS[command])
    assert ended.status in ((0, 1) if command in JUDGES else (0,)), ended
    assert ended.out and not ended.err
    assert ESCAPE not in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    told = inspect(command, trace, *READERS[command], "--json")
    assert told.status == ended.status
    assert isinstance(told.data, dict)
    assert told.out.count("\n") == 1


@pytest.mark.parametrize("command", [*READERS, "export", "seal", "annotate", "list"])
def test_help_of_every_command(inspect: Inspect, command: str) -> None:
    ended = inspect(command, "--help")
    assert ended.status == 0
    assert "--json" in ended.out


def test_without_a_command_it_is_the_help(inspect: Inspect) -> None:
    ended = inspect()
    assert ended.status == 0
    for name in (*READERS, "export", "seal", "annotate", "list"):
        assert name in ended.out


@pytest.mark.parametrize("command", READERS)
def test_nothing_was_recorded_is_an_error_with_advice(
    inspect: Inspect, tmp_path: Path, command: str
) -> None:
    """A trace without an operation: what to do, and status 2."""
    sentence = inspect.refused(command, record_nothing(tmp_path), *READERS[command])
    assert "nothing was recorded" in sentence
    assert "bandscope run --record NAME" in sentence


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("kind", ["missing", "file", "other folder"])
def test_what_is_no_trace_is_refused(
    inspect: Inspect, tmp_path: Path, command: str, kind: str
) -> None:
    """A missing path, a file, and a folder of something else."""
    paths = {"missing": tmp_path / "none", "file": tmp_path / "file", "other folder": tmp_path}
    (tmp_path / "file").write_text("text")
    assert "trace" in inspect.refused(command, paths[kind], *READERS[command])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["events", "--band", "mumba"], "the bands of"),
        (["events", "--kind", "nonsense"], "the kinds are operation, effect, Admit"),
        (["events", "--pages", "9..3"], "write A..B"),
        (["events", "--from", "99999"], "event 99,999 was asked for, but trace"),
        (["events", "--from", "20", "--to", "20"], "which are none"),
        (["events", "--from", "soon"], "a time like 1.5s"),
        (["events", "--to", "999s"], "ends at"),
        (["at", "99999"], "holds events 0 to"),
        (["at"], "give one place"),
        (["at", "10", "--time", "1ms"], "give one place"),
        (["at", "--time", "999min"], "ends at"),
        (["page", "mumba", "1"], "the bands of"),
        (["page", "full", "one"], "write V or V.GEN"),
        (["page", "full", "99999"], "its pages are 0 to"),
        (["page", "full", "1.999"], "no such generation"),
        (["lease", "999"], "its leases are 1 to"),
        (["lease", "one"], "valid integer"),
        (["diff", "1", "99999"], "holds events 0 to"),
        (["diff", "1", "2", "--band", "mumba"], "the bands of"),
        (["stats", "--from", "-3"], "write a sequence number"),
        (["races", "--band", "mumba"], "the bands of"),
        (["leaks", "--at", "99999"], "holds events 0 to"),
        (["refusals", "--from", "99999"], "holds events 0 to"),
        (["annotate", " "], "an empty note"),
        (["annotate", "text", "--at", "99999"], "holds events 0 to"),
        (["export", "punchcards", "none"], "punchcards"),
    ],
)
def test_bad_input_is_one_sentence(
    inspect: Inspect, trace: Path, arguments: list[str], part: str
) -> None:
    """Whatever is wrong with a command line: one sentence that says so, status 2."""
    command, *rest = arguments
    assert part in inspect.refused(command, trace, *rest)


def test_the_suffix_of_a_trace_may_be_left_out(inspect: Inspect, trace: Path) -> None:
    assert inspect("summary", trace.with_suffix("")).status == 0


# --- summary, stats, list -------------------------------------------------------------------------


def test_summary_tells_what_there_is(inspect: Inspect, trace: Path) -> None:
    """Header facts, counts, the ending; and the same figures as JSON."""
    ended = inspect("summary", trace)
    for part in ("ending clean", "model synthetic", "bytes per event", "window_32", "LeaseBegin"):
        assert part in ended.flat
    told = inspect("summary", trace, "--json").data
    assert told["events"] == told["stop"] - told["start"] == sum(told["kinds"].values())
    assert told["damages"] == told["missing"] == told["notes"] == []
    assert told["keyframes"] == 1
    assert told["bytes_per_event"] == pytest.approx(told["size_bytes"] / told["events"])


def test_summary_of_a_ring_says_what_was_lost(inspect: Inspect, tmp_path: Path) -> None:
    path = record(tmp_path / "ring", P5, seed=3, operations=6000, ring_bytes=1 << 20).path
    told = inspect("summary", path, "--json").data
    assert told["lost"] > 0 and told["start"] >= told["lost"]
    assert f"{told['lost']:,} lost" in inspect("summary", path).flat
    assert inspect("events", path, "--limit", "3").status == 0
    assert inspect("page", path, "full", "1").status == 0


def test_stats_count_operations_as_they_were_told(inspect: Inspect, tmp_path: Path) -> None:
    """Counts and refusals per kind agree with what was asked of the arena."""
    recorded = record(tmp_path / "told", P5, seed=5, operations=400)
    told = inspect("stats", recorded.path, "--json").data
    asked: dict[str, int] = {}
    refused: dict[str, int] = {}
    for which, body in recorded.told:
        if which == "asked":
            kind = body.kind
            asked[kind] = asked.get(kind, 0) + 1
        elif not body.ok:
            refused[kind] = refused.get(kind, 0) + 1
    assert {one["kind"]: one["count"] for one in told["operations"]} == asked
    sums = {one["kind"]: sum(one["refused"].values()) for one in told["operations"]}
    assert {kind: count for kind, count in sums.items() if count} == refused
    assert told["unanswered"] == 0
    spread = told["operations"][0]["latency_us"]
    assert 0 < spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["max"]


def test_list_names_the_recorders_that_run(inspect: Inspect, tmp_path: Path) -> None:
    """None, then one; its entry goes with it."""
    assert "no recorder runs" in inspect("list").out
    with Recorder(tmp_path / "live", small_arena(P3)) as recorder:
        assert str(os.getpid()) in inspect("list").out
        (entry,) = inspect("list", "--json").data["running"]
        assert entry["trace"] == str(recorder.directory)
    assert inspect("list", "--json").data == {"running": []}


# --- events ---------------------------------------------------------------------------------------


def test_events_are_filtered(inspect: Inspect, trace: Path) -> None:
    """By kind, band, request, pages and stretch; every filter keeps what it names and no more."""

    def chosen(*options: object) -> list[dict]:
        return inspect("events", trace, "--json", "--limit", 0, *options).data["events"]

    everything = chosen()
    kinds = chosen("--kind", "LeaseBegin,lease_end")
    assert {event["kind"] for event in kinds} == {"LeaseBegin", "LeaseEnd"}
    assert len(kinds) == sum(e["kind"] in ("LeaseBegin", "LeaseEnd") for e in everything)
    assert {event["kind"] for event in chosen("--kind", "Lease")} == {"Lease"}
    assert all("Outcome" != event["kind"] for event in chosen("--kind", "effect"))
    full = chosen("--band", "full")
    assert full and {event["fields"]["band"] for event in full} == {"full"}
    some = chosen("--from", 100, "--to", 120)
    assert [e for e in everything if 100 <= e["sequence"] < 120] == some
    page = chosen("--pages", "3..4", "--kind", "LeaseBegin")
    assert page and all(set(e["fields"]["virtual"]) & {3, 4} for e in page)
    mine = chosen("--request", 1)
    outcomes = [e for e in mine if e["kind"] == "Outcome"]
    operations = {e["sequence"] for e in mine if "request" in e["fields"] or "requests" in e["fields"]}
    assert outcomes and {e["operation"] for e in outcomes} <= operations


def test_events_stop_at_the_limit_and_say_how_to_go_on(inspect: Inspect, trace: Path) -> None:
    ended = inspect("events", trace, "--limit", "5", "--from", "40")
    assert "--limit 0" in ended.out
    assert inspect("events", trace, "--limit", "5", "--json").data["more"] is True
    assert "no event is like that" in inspect("events", trace, "--request", "987654").out


def test_stacks_are_shown(inspect: Inspect, tmp_path: Path) -> None:
    path = record(tmp_path / "stacks", P3, operations=5, stacks=3).path
    assert "traces.py" in inspect("events", path, "--kind", "stack").out


# --- notes, seal, export --------------------------------------------------------------------------


def test_a_note_is_kept_beside_the_trace(inspect: Inspect, own: Path) -> None:
    """At its place in `events`, and in `summary`; brackets and other scripts as they are."""
    before = (own / "000000.events").read_bytes()
    assert inspect("annotate", own, "here [bold]it[/bold] broke, Ärger", "--at", "50").status == 0
    assert inspect("annotate", own, "the end", "--json").data["text"] == "the end"
    text = inspect("events", own, "--from", "49", "--to", "52").flat
    assert "noted: here [bold]it[/bold] broke, Ärger" in text
    (own / "notes.jsonl").open("a").write("not a note\n[]\n{}\n")
    told = inspect("summary", own, "--json").data
    assert [note["sequence"] for note in told["notes"]] == [50, told["stop"]]
    assert "note at event 50" in inspect("summary", own).flat
    assert (own / "000000.events").read_bytes() == before


def test_a_sealed_trace_reads_as_before(inspect: Inspect, own: Path) -> None:
    """Fewer bytes, the same events; sealing again changes nothing."""
    before = inspect("events", own, "--json", "--limit", "0").data
    sealed = inspect("seal", own, "--json").data
    assert sealed["files"] == 2 and sealed["after_bytes"] < sealed["before_bytes"] / 2
    assert inspect("events", own, "--json", "--limit", "0").data == before
    assert "sealed already" in inspect("seal", own).flat
    assert inspect("check", own).status in (0, 1)


def test_what_is_still_written_is_not_sealed(inspect: Inspect, tmp_path: Path) -> None:
    """Of a running trace the last two segments stay, and a ring is left alone."""
    small = {"segment_records": 1024, "keyframe_every": 256}
    live = record(tmp_path / "live", P5, seed=3, operations=900, close=False, **small)
    told = inspect("seal", live.path, "--json").data
    names = sorted(path.name for path in live.path.glob("*.events*"))
    assert told["left"] == 2
    assert [name.endswith(".zst") for name in names] == [True] * (len(names) - 2) + [False] * 2
    live.recorder.close()
    assert inspect("summary", live.path, "--json").data["ending"] == "clean"
    ring = record(tmp_path / "ring", P5, operations=50, close=False, ring_bytes=1 << 20)
    assert "ring that is still recorded" in inspect.refused("seal", ring.path)
    ring.recorder.close()


def test_export_is_wired(inspect: Inspect, trace: Path, tmp_path: Path) -> None:
    """A form by name to a file; the stretch is passed on; bad targets are refused."""
    out = tmp_path / "trace.csv"
    told = inspect("export", trace, "csv", out, "--from", "10", "--to", "60", "--json")
    assert told.status == 0, told
    assert out.exists() and (told.data["start"], told.data["stop"]) == (10, 60)
    assert "as csv" in inspect("export", trace, "csv", out).flat
    assert "folder" in inspect.refused("export", trace, "csv", tmp_path)
