"""Exports for viewers: the structure of the Perfetto file, and the HTML report in a real browser."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bandscope.allocator import events
from bandscope.allocator.band import GAP, HOLE, LIVE, PENDING
from bandscope.allocator.operations import Operation, Outcome
from bandscope.inspect.decode import read_events
from bandscope.inspect.exports import export, picture
from bandscope.inspect.exports.window import make_window
from bandscope.inspect.reader import Trace
from bandscope.inspect.state import ArenaState
from bandscope.inspect.timeline import Timeline
from tests.allocator.arenas import LAYOUTS
from tests.inspect_.traces import record


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    recorded = record(
        tmp_path_factory.mktemp("viewers") / "run", LAYOUTS["P3"], seed=3, operations=800,
        keyframe_every=150, segment_records=900,
    )  # fmt: skip
    return Trace(recorded.path)


# --- Perfetto -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The export, parsed back."""
    out = tmp_path_factory.mktemp("perfetto") / "run.json.gz"
    report = export(trace, "perfetto", out)
    assert report.events == len(list(read_events(trace)))
    with gzip.open(out, "rt") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


def tracks(told: dict[str, Any]) -> dict[tuple[int, int], str]:
    """Names of tracks by process and thread."""
    return {
        (r["pid"], r["tid"]): r["args"]["name"]
        for r in told["traceEvents"]
        if r["ph"] == "M" and r["name"] == "thread_name"
    }


def test_perfetto_records_are_whole_and_slices_nest(told: dict[str, Any]) -> None:
    names = tracks(told)
    slices = defaultdict(list)
    for record_ in told["traceEvents"]:
        assert record_["ph"] in "MXiCsf"
        if record_["ph"] != "M":
            assert record_["ts"] >= 0 and isinstance(record_["pid"], int)
        if record_["ph"] in "Xisf":
            assert (record_["pid"], record_["tid"]) in names
        if record_["ph"] == "X":
            assert record_["dur"] >= 0
            slices[record_["pid"], record_["tid"]].append((record_["ts"], record_["dur"]))
    for of_track in slices.values():
        stack: list[float] = []
        for start, duration in sorted(of_track, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= start + 1e-6:
                stack.pop()
            assert not stack or start + duration <= stack[-1] + 1e-3
            stack.append(start + duration)


def test_perfetto_has_every_operation_forward_barrier_and_move(
    trace: Trace, told: dict[str, Any]
) -> None:
    names = tracks(told)
    found: dict[str, list[Any]] = defaultdict(list)
    for record_ in told["traceEvents"]:
        if record_["ph"] in "Xi":
            found[names[record_["pid"], record_["tid"]]].append(record_)
    recorded = list(read_events(trace))
    asked = [e.sequence for e in recorded if isinstance(e.body, Operation)]
    schedule = found["schedule"]
    assert [r["args"]["sequence"] for r in schedule if r["ph"] == "X"] == asked

    launched = [e.body.ticket for e in recorded if isinstance(e.body, events.Launched)]
    forwards = [r for name, rs in found.items() if name.startswith("forward") for r in rs]
    assert sorted(r["args"]["ticket"] for r in forwards) == launched
    done = {e.body.ticket for e in recorded if isinstance(e.body, events.Done)}
    assert {r["args"]["ticket"] for r in forwards if "end" not in r["args"]} == done

    barriers = [e for e in recorded if isinstance(e.body, events.Barrier)]
    drawn = [r for r in schedule if r["ph"] == "i" and r["name"].startswith("barrier")]
    assert [r["args"]["sequence"] for r in drawn] == [e.sequence for e in barriers]
    for band in ("mamba", "window_8", "full"):
        moves = [e for e in recorded if isinstance(e.body, events.BandMove) and e.body.band == band]
        assert [r["args"]["sequence"] for r in found[band]] == [e.sequence for e in moves]
        batches = [
            e.sequence for e in recorded
            if isinstance(e.body, events.PageMove) and e.body.band == band
        ]  # fmt: skip
        for side in ("moves out", "moves in"):
            drawn_moves = [r["args"]["sequence"] for r in found[f"{band}: {side}"]]
            assert drawn_moves == batches


def test_perfetto_arrows_join_open_slices(told: dict[str, Any]) -> None:
    """As a viewer binds them: each end to the slice of its track that is open at its time."""
    names = tracks(told)
    slices = defaultdict(list)
    ends: dict[int, dict[str, Any]] = defaultdict(dict)
    for record_ in told["traceEvents"]:
        if record_["ph"] == "X":
            slices[record_["pid"], record_["tid"]].append(record_)
        elif record_["ph"] in "sf":
            ends[record_["id"]][record_["ph"]] = record_
    kinds = set()
    for arrow in ends.values():
        start, finish = arrow["s"], arrow["f"]
        assert start["cat"] == finish["cat"] and start["name"] == finish["name"]
        assert finish["bp"] == "e" and start["ts"] <= finish["ts"]
        bound = []
        for end in (start, finish):
            open_ = [
                s for s in slices[end["pid"], end["tid"]]
                if s["ts"] <= end["ts"] <= s["ts"] + s["dur"] + 1e-6
            ]  # fmt: skip
            assert open_, end
            bound.append((names[end["pid"], end["tid"]], open_))
        kinds.add(start["cat"])
        if start["cat"] == "barrier":
            assert bound[0][0].startswith("forward") and bound[1][0] == "schedule"
        else:
            assert bound[0][0].endswith(": moves out") and bound[1][0].endswith(": moves in")
    assert kinds == {"barrier", "page move"}


def test_perfetto_counters_are_the_states(trace: Trace, told: dict[str, Any]) -> None:
    last = {}
    for record_ in told["traceEvents"]:
        if record_["ph"] == "C":
            last[record_["name"]] = record_["args"]
    state = Timeline(trace).seek(trace.stop)
    for band in state.bands:
        start, stop = band.byte_range()
        assert last[f"{band.name} extent"] == {"bytes": stop - start}
        assert last[f"{band.name} pages"] == {
            "live": band.count(LIVE), "holes": band.count(HOLE), "pending": band.count(PENDING),
        }  # fmt: skip


# --- HTML -----------------------------------------------------------------------------------------


def test_the_picture_shows_whose_bytes_are_whose(trace: Trace) -> None:
    """Every row of some columns against the page at both of its ends, looked up one by one."""

    def lies_at(state: ArenaState, byte: float) -> tuple[int, int]:
        for band in state.bands:
            start, stop = band.byte_range()
            if start <= byte < stop:
                return band.index, int(band.state[int(byte // band.page_bytes) - band.base])
        return (-1 if byte < state.sink_bytes else -2), GAP

    film = picture.film(make_window(trace, None, None), 60)
    timeline = Timeline(trace)
    seen = set()
    for sample in (film.samples[place] for place in film.by_event):
        state = timeline.seek(sample.sequence + 1)
        row_bytes = state.total_bytes / picture.ROWS
        for row, value in enumerate(sample.column[::-1].tolist()):
            here = lies_at(state, row * row_bytes)
            if here != lies_at(state, (row + 1) * row_bytes - 1):
                continue  # the row shows two pages
            index, kind = here
            shade = {HOLE: 0, LIVE: picture.SHADES - 1, PENDING: picture.SHADES, GAP: 0}[kind]
            wanted = {-1: 2, -2: 1}.get(index, 3 + index * (picture.SHADES + 1) + shade)
            assert value == wanted
            seen.add(here)
    assert len(seen) == 2 + 3 * 3


def test_the_axes_show_states_after_operations(trace: Trace) -> None:
    film = picture.film(make_window(trace, None, None), 100)
    outcomes = {e.sequence: e.time_ns for e in read_events(trace) if isinstance(e.body, Outcome)}
    assert all(outcomes[s.sequence] == s.time_ns for s in film.samples)
    for places in (film.by_event, film.by_time):
        assert len(places) == 100 and places == sorted(places)
    times = np.array([film.samples[p].time_ns for p in film.by_time])
    wanted = np.linspace(*make_window(trace, None, None).times(), 100)
    known = np.array(sorted(outcomes.values()))
    for column in range(5, 100):
        assert times[column] == known[known <= wanted[column]].max()


def test_the_report_is_one_file_that_fetches_nothing(trace: Trace, tmp_path: Path) -> None:
    report = export(trace, "html", tmp_path / "run.html")
    page = report.out.read_text(encoding="utf-8")
    assert report.files == ("run.html",) and "{{" not in page
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|<link|<iframe|\bimport\b", page)
    assert set(re.findall(r'src="([^"]{5})', page)) == {"data:"}
    for band in ("mamba", "window_8", "full"):
        assert f"<h3>{band} " in page


def test_texts_of_a_trace_cannot_leave_their_place(tmp_path: Path) -> None:
    from bandscope.inspect.exports.html import _script_json, _table

    assert "<b>" not in _table(("event",), [["<b>"]])
    assert "</script" not in _script_json("</script>")
    recorded = record(tmp_path / "{{data}}<b>", LAYOUTS["P2m"], operations=30)
    page = export(Trace(recorded.path), "html", tmp_path / "x.html").out.read_text()
    assert "<title>{{data}}&lt;b&gt;.trace" in page


_PROBE = """<script>
addEventListener("error", e => document.body.dataset.error = e.message);
addEventListener("load", () => {
const figures = document.querySelectorAll(".axis.on figure");
const told = [];
for (const figure of [figures[0], figures[figures.length - 1]]) {
  const box = figure.getBoundingClientRect();
  figure.dispatchEvent(new MouseEvent("mousemove",
    {clientX: box.left + box.width / 2, clientY: box.top + box.height - 2}));
  told.push(tip.textContent);
}
document.querySelector("input[value=time]").click();
const image = document.querySelector(".axis.on img");
document.body.dataset.told = JSON.stringify([told, image.naturalWidth, image.naturalHeight,
  document.querySelector(".axis.on").dataset.axis]);
});
</script>"""


def test_the_report_works_in_a_browser(trace: Trace, tmp_path: Path) -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    report = export(trace, "html", tmp_path / "run.html")
    probed = tmp_path / "probed.html"
    page = report.out.read_text(encoding="utf-8").replace("</body>", _PROBE + "</body>")
    probed.write_text(page, encoding="utf-8")
    shot = tmp_path / "shot.png"
    common = [
        browser, "--headless", "--no-sandbox", "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile", "--window-size=1200,1400", "--virtual-time-budget=3000",
    ]  # fmt: skip
    try:
        dom = subprocess.run(
            [*common, "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=90,
            check=True,
        ).stdout  # fmt: skip
        subprocess.run(
            [*common, f"--screenshot={shot}", report.out.as_uri()], capture_output=True, timeout=90,
            check=True,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        pytest.skip(f"Chromium does not run here: {error}")
    assert "data-error" not in dom and 'data-ready="yes"' in dom
    found = re.search(r'data-told="([^"]*)"', dom)
    assert found is not None
    (first, last), width, height, axis = json.loads(found[1].replace("&quot;", '"'))
    assert re.match(r"event [\d,]+, [\d,.]+ ms\nbyte .*: sink\n", first) and "full " in first
    assert re.match(r"event [\d,]+, [\d,.]+ ms\nfull ", last) and "live" in last
    assert (width, height, axis) == (480, picture.ROWS, "time")
    assert shot.read_bytes()[:4] == b"\x89PNG" and shot.stat().st_size > 30_000
