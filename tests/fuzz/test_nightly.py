"""A night: every part has its turn, finds are kept, and the reports say what happened."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from bandscope.fuzz import nightly
from bandscope.fuzz.campaign import Settings
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.nightly import Night, Part, read_ledger, run_night
from bandscope.fuzz.report import junit_of, page, write_reports

# In every campaign of a few cases.
FAULT = "second-window-not-freed"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A night of seconds: two faults, one small arena, a few smoke cases."""
    few = {name: FAULTS[name] for name in (FAULT, "generation-lost")}
    monkeypatch.setattr(nightly, "FAULTS", few)
    monkeypatch.setattr(nightly, "CANARY", FAULT)
    monkeypatch.setattr(nightly, "SMOKE", Settings(1, cases=6))
    monkeypatch.setattr(nightly, "SHARES", {**nightly.SHARES, "canary": 0.3})
    monkeypatch.setattr(
        nightly, "measure_all",
        lambda names=None, **options: _measure_all(names or list(few), **options),
    )  # fmt: skip
    monkeypatch.setattr(nightly, "_exhaustive", lambda part, seconds: None)


def _measure_all(names: list[str], **options: object) -> object:
    from bandscope.fuzz.strength import measure_all

    return measure_all(names, **options)  # type: ignore[arg-type]


def test_a_quiet_night(short: None, tmp_path: Path) -> None:
    """All parts run, nothing is found, and the ledger has a line for each."""
    night = run_night(tmp_path, 5, seed=3)
    assert [part.name for part in night.parts] == [
        "canary", "corpus", "smoke", "faults", "exhaustive", "caching", "campaign",
    ]  # fmt: skip
    assert night.verdict == "ok"
    lines = list(read_ledger(tmp_path))
    assert [line["part"] for line in lines] == [part.name for part in night.parts]
    assert lines[-1]["seed"] == 3 and lines[-1]["operations"] > 0
    assert night.parts[3].told["found"] == 2


def test_a_find_is_kept_and_met_again_the_next_night(short: None, tmp_path: Path) -> None:
    """Night one files it; night two runs it first; when it is repaired, night three says so."""
    with FAULTS[FAULT].plant():
        first = run_night(tmp_path, 3, seed=3)
        files = sorted((tmp_path / "corpus").iterdir())
        second = run_night(tmp_path, 3, seed=3)
    assert first.verdict == second.verdict == "found"
    assert files and first.parts[1].told["programs"] == 0
    assert second.parts[1].verdict == "found" and files[0].name in second.parts[1].finds[0]
    third = run_night(tmp_path, 3, seed=3)
    assert third.verdict == "ok"
    assert files[0].name in third.parts[1].told["repaired"]
    assert len(list(read_ledger(tmp_path))) == 21


def test_a_canary_that_lives_means_a_broken_harness(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that nobody sees, here because it does nothing, must not make a quiet night."""
    harmless = dataclasses.replace(FAULTS[FAULT], plant=contextlib.nullcontext)
    monkeypatch.setitem(FAULTS, FAULT, harmless)
    night = run_night(tmp_path, 2, seed=3)
    assert night.parts[0].verdict == "broken" and night.verdict == "broken"
    assert FAULT in night.parts[0].finds[0]


def test_a_part_that_raises_does_not_end_the_night(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(part: Part, seconds: float) -> None:
        raise OSError("no room")

    monkeypatch.setattr(nightly, "_exhaustive", trip)
    night = run_night(tmp_path, 3, seed=3)
    assert night.parts[4].verdict == "broken" and "OSError: no room" in night.parts[4].finds[0]
    assert night.parts[6].name == "campaign" and night.parts[6].verdict == "ok"


def made_up() -> Night:
    parts = [
        Part("canary", told={"found": True}),
        Part("campaign", "found", 1.5, 12, 3, ["pins broke at step 2, Compact: <moved> & lost\x00"]),
        Part("exhaustive", "broken", finds=["OSError: no room"]),
    ]
    return Night(10.0, "2026-01-02T03:04:05Z", {"revision": "abc", "numpy": "2"}, parts)


def test_junit_tells_finds_from_a_broken_harness() -> None:
    """A failure and an error; what XML cannot hold is replaced."""
    (root,) = xml.fromstring(junit_of(made_up()).encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    assert root.get("timestamp") == "2026-01-02T03:04:05"
    cases = {case.get("name"): [child.tag for child in case] for case in root}
    assert cases == {"canary": [], "campaign": ["failure"], "exhaustive": ["error"]}
    assert "<moved> & lost?" in str(root[1][0].get("message"))


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    """No outside reference; what was found is text, not markup."""
    text = page(made_up(), [])
    assert "http" not in text and "<moved>" not in text and "&lt;moved&gt; &amp; lost" in text
    write_reports(tmp_path, made_up())
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "found"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "junit.xml", "report.html", "report.json",
    ]  # fmt: skip


def test_a_cut_ledger_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"part": "smoke"}\n{"part": "camp')
    assert [line["part"] for line in read_ledger(tmp_path)] == ["smoke"]
    assert list(read_ledger(tmp_path / "none")) == []
