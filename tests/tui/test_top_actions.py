"""What the program does beside time travel: drill, compare, other arenas, exports; with a source that
remembers what it was asked, and no clock, sleep or thread."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bandscope.tui.top.app import TopApp
from bandscope.tui.top.conductor import DirectConductor
from bandscope.tui.top.paint_lists import TABS, rows_of, tab_at, tab_line
from bandscope.tui.top.screens import PickerScreen, PromptScreen, by_run
from bandscope.tui.top.snapshot import Row, Snapshot
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P3, P5
from tests.inspect_.traces import record
from tests.tui.test_top_app import FakeSource, entry, play, text_of

ROWS = (
    Row(-1, -1, "Owner", "the request", opens=("request", 7)),
    Row(-1, -1, "full", "a page", opens=("cursor", (1, 9))),
    Row(55, -1, "Lease", "an event"),
    Row(44, -1, "Request", "a request", request=3),
)


def with_rows(snapshot: Snapshot) -> FakeSource:
    """A source whose lists have rows that lead elsewhere."""
    return FakeSource(replace(snapshot, lists=replace(snapshot.lists, rows=ROWS)))


# --- drill ----------------------------------------------------------------------------------------


def test_rows_lead_to_requests_pages_and_events(snapshot: Snapshot) -> None:
    source = with_rows(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("6", "enter")
        assert source.asked == [("request", 7)] and app.ui.tab == "request"
        await pilot.press("down", "enter")
        assert source.asked[-1] == ("cursor", (1, 9)) and app.ui.tab == "request"
        await pilot.press("down", "enter")
        assert source.asked[-1] == ("go", 56)
        await pilot.press("backspace")
        assert (app.ui.tab, app.ui.selected) == ("page", 0)
        await pilot.press("backspace")
        assert app.ui.tab == "page"

    play(source, script)


def test_drill_from_a_chosen_request_and_back(snapshot: Snapshot) -> None:
    source = with_rows(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("2", "down", "down", "down", "d")
        assert source.asked == [("request", 3)] and app.ui.tab == "request"
        await pilot.press("d")  # nowhere further
        assert app.ui.tab == "request"
        await pilot.press("backspace")
        assert (app.ui.tab, app.ui.selected) == ("leases", 3)
        await pilot.press("1", "d")
        assert source.asked[-1] == ("request", None)  # of the page under the cursor
        await pilot.press("7")
        assert source.asked[-1] == ("request", None)

    play(source, script)


def test_from_a_request_to_its_pages_on_a_real_trace(tmp_path: Path) -> None:
    source = TraceSource(record(tmp_path / "run", P5, seed=4, operations=250).path)
    source.ask("go", 1000)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("2")
        assert app.snapshot is not None
        kinds = [row.kind for row in app.snapshot.lists.rows]
        await pilot.press(*["down"] * kinds.index("Request"), "d")
        rows = app.snapshot.lists.rows
        index = next(at for at, row in enumerate(rows) if row.opens is not None)
        await pilot.press(*["down"] * index, "enter")
        page = app.snapshot.page
        request = int(rows[0].text.split()[1].rstrip(":"))
        assert page is not None and page.owner == request
        await pilot.press("6")
        assert app.snapshot.details is not None and app.snapshot.details.owner == request
        await pilot.press("down", "enter")  # and back to the request
        assert app.snapshot.lists.rows[0].text.startswith(f"request {request}:")

    play(source, script)


# --- compare and export ---------------------------------------------------------------------------


def test_keys_that_compare(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("m")
        assert source.asked == [("mark", None)]
        await pilot.press("x")
        assert isinstance(app.screen, PromptScreen)
        await pilot.press("5", "0", "enter")
        assert source.asked[-1] == ("compare", "50")

    play(source, script)


def typed(text: str) -> list[str]:
    """The keys of a text."""
    return ["space" if character == " " else character for character in text]


def test_exports_are_asked_for_or_written(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("e", *typed("csv"), "enter")
        assert source.asked[-1] == ("export", ("csv", 10_000))
        await pilot.press("e", *typed("slice 300"), "enter")
        assert source.asked[-1] == ("export", ("slice", 300))
        count = len(source.asked)
        await pilot.press("e", *typed("pdf"), "enter")
        assert "write one of svg" in text_of(app)
        await pilot.press("e", "escape")
        await pilot.press("e", *typed("json"), "enter")
        await pilot.pause()
        for _ in range(2):
            await pilot.press("e", *typed("svg"), "enter")
            await pilot.pause()
        assert "written to" in text_of(app) and len(source.asked) == count
        source._dirty = True
        app.conductor.tick()  # type: ignore[union-attr]
        await pilot.pause()
        assert "written to" in text_of(app)  # also when news come
        await pilot.press("space")
        await pilot.pause()
        assert "written to" not in text_of(app)

    play(source, script, size=(200, 40))
    name = Path(snapshot.path).name.removesuffix(".trace")
    names = sorted(path.name for path in tmp_path.iterdir())
    stem = f"{name}-at-{snapshot.position}"
    assert names == [f"{stem}-2.svg", f"{stem}.json", f"{stem}.svg"]
    assert json.loads((tmp_path / f"{stem}.json").read_text())["position"] == snapshot.position
    picture = (tmp_path / f"{stem}.svg").read_text()
    assert picture.startswith("<svg") and "Events" in picture
    assert "write&#160;svg" not in picture  # the prompt is gone


def test_an_export_that_fails_is_one_sentence(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.json").write_text("{}")  # the folder of a trace
    monkeypatch.chdir(tmp_path)

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("e", *typed("svg"), "enter")
        await pilot.pause()
        assert "in which nothing is written" in text_of(app)

    play(FakeSource(snapshot), script, size=(240, 40))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


# --- other arenas ---------------------------------------------------------------------------------


def arenas(paths: list[Path], script: Any, **options: Any) -> None:
    """Run the program on the first of several traces, each read by a source of its own."""
    opened: list[TraceSource] = []

    def conduct(path: Path) -> DirectConductor:
        opened.append(TraceSource(path))
        return DirectConductor(opened[-1])

    app = TopApp(conduct, paths[0], threaded=False, **options)

    async def run() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())


def shown_path(app: TopApp) -> Path:
    """The trace that is shown."""
    assert app.snapshot is not None
    return Path(app.snapshot.path)


def test_next_and_previous_arena(tmp_path: Path) -> None:
    ranks = [record(tmp_path / "job", P3, operations=30, rank=rank).path for rank in (0, 1)]
    other = record(tmp_path / "other", P3, operations=30).path

    async def script(app: TopApp, pilot: Any) -> None:
        seen = [shown_path(app)]
        for key in "aaaAAA":
            await pilot.press(key)
            await pilot.pause()
            seen.append(shown_path(app))
        assert seen == [*ranks, other, ranks[0], other, ranks[1], ranks[0]]

    arenas(ranks, script, find=lambda: [entry(5, str(ranks[0])), entry(6, str(other))])


def test_a_trace_that_is_left_for_a_running_one_is_found_again(tmp_path: Path) -> None:
    ended = record(tmp_path / "ended", P3, operations=30).path
    other = record(tmp_path / "other", P3, operations=30).path

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("a")
        await pilot.pause()
        assert shown_path(app) == other
        await pilot.press("a")
        await pilot.pause()
        assert shown_path(app) == ended

    arenas([ended], script, find=lambda: [entry(6, str(other))])


def test_one_arena_alone_has_no_next(tmp_path: Path) -> None:
    path = record(tmp_path / "job", P3, operations=30).path

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("a")
        assert "no other rank" in text_of(app) and shown_path(app) == path

    arenas([path], script, find=list)


def test_a_rank_of_the_list_is_shown_with_enter(tmp_path: Path) -> None:
    ranks = [record(tmp_path / "job", P3, operations=30, rank=rank).path for rank in (0, 1)]

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("9")
        assert "rank 0" in text_of(app) and "rank 1" in text_of(app)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert shown_path(app) == ranks[1]

    arenas(ranks, script, find=list)


def test_attach_to_the_process_that_returned(tmp_path: Path) -> None:
    first = record(tmp_path / "one", P3, operations=30).path
    second = record(tmp_path / "two", P3, operations=30).path

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("r")
        assert "nobody runs the same command" in text_of(app)
        assert app.snapshot is not None
        app.conductor._post(replace(app.snapshot, successor=str(second)))  # type: ignore[union-attr]
        await pilot.pause()
        assert "the same command runs again as two: r shows it" in text_of(app)
        app.conductor._post(  # type: ignore[union-attr]
            replace(app.snapshot, ending="running", successor="")
        )
        await pilot.pause()
        await pilot.press("r")
        assert "still runs" in text_of(app)
        app.conductor._post(replace(app.snapshot, successor=str(second)))  # type: ignore[union-attr]
        await pilot.pause()
        await pilot.press("r")
        await pilot.pause()
        assert shown_path(app) == second

    arenas([first], script, find=list)


def test_the_picker_puts_ranks_beside_each_other(snapshot: Snapshot) -> None:
    found = [
        entry(1, "/x/b.rank1.trace"), entry(2, "/x/a.trace"), entry(3, "/x/b.rank10.trace"),
        entry(4, "/x/b.rank0.trace"), entry(5, "/y/b.rank2.trace"),
    ]  # fmt: skip
    assert [one.pid for one in by_run(found)] == [4, 1, 3, 2, 5]

    async def script(app: TopApp, pilot: Any) -> None:
        assert isinstance(app.screen, PickerScreen)
        lines = [line for line in text_of(app).split("\n") if ".trace" in line]
        assert [line.split()[0 if line[0] != ">" else 1] for line in lines] == list("41325")
        await pilot.press("escape")

    play(FakeSource(snapshot), script, path=None, find=lambda: found)


def test_the_first_questions_are_asked_first(snapshot: Snapshot) -> None:
    source = FakeSource(snapshot)

    async def script(app: TopApp, pilot: Any) -> None:
        assert source.asked == [("jump", "5"), ("mark", None)]

    play(source, script, first=[("jump", "5"), ("mark", None)])


# --- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 63, 64, 80, 109, 110, 200])
def test_every_tab_can_be_clicked_where_it_stands(width: int, snapshot: Snapshot) -> None:
    for open_tab in TABS:
        line = "".join(text for text, _ in tab_line(snapshot, open_tab, width))
        for number, tab in enumerate(TABS, 1):
            column = line.index(f" {number}") + 1
            assert tab_at(column, width, open_tab) == tab
        assert f" {TABS.index(open_tab) + 1} {open_tab.title()} " in line
        if width >= 80:
            assert line.index("  ") < width


def test_details_of_the_chosen_row_stand_below_the_rows(snapshot: Snapshot) -> None:
    rows = tuple(Row(100 + index, 5, "Refusal", f"row {index}") for index in range(60))
    details = ("Event 3: why it was refused, in many words " * 4, "Cure: more", "pages     a    b")
    lists = replace(snapshot.lists, tab="refusals", rows=rows, details=details)
    source = FakeSource(replace(snapshot, lists=lists))

    async def script(app: TopApp, pilot: Any) -> None:
        await pilot.press("5")
        room = app._room()
        visible = rows_of("refusals", room.rows, 120)
        assert 0 < visible < room.rows
        text = text_of(app)
        assert "Cure: more" in text and "pages     a    b" in text
        await pilot.press(*["down"] * (visible + 2))
        assert source.snapshot.view.chosen == visible + 2
        assert source.snapshot.view.skip == 3  # the chosen row stays above the details
        top = 0
        for name, height in room.parts:
            if name == "list":
                break
            top += height
        await pilot.click(offset=(20, top + visible + 1))  # below the rows: nothing to open
        assert source.asked == []
        await pilot.click(offset=(20, top))
        assert source.asked == [("go", rows[0].sequence + 1)]

    play(source, script)
