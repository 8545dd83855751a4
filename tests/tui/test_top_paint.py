"""The lines of the live screen, made from one snapshot at every size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from bandscope.tui.top.look import PLAIN
from bandscope.tui.top.paint import HEIGHT_MIN, WIDTH_MIN, Ui, layout, paint
from bandscope.tui.top.snapshot import Device, Row, Snapshot


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ("killed", "process was killed"), ("truncated", "trace is cut off"),
        ("clean", "ended cleanly"), ("damaged", "end is damaged"), ("disk full", "disk was full"),
    ],
)  # fmt: skip
def test_how_it_ended(ending: str, sentence: str, snapshot: Snapshot) -> None:
    lines = shown(replace(snapshot, ending=ending, live=True), 100, 30)
    assert sentence in lines[0]


def test_warnings(snapshot: Snapshot) -> None:
    damages = ("000000.events, bytes 3 to 4: x", "y")
    bad = replace(snapshot, trusted=False, violations=3, damages=damages, lost=7)
    line = shown(bad, 200, 30)[1]
    off = shown(replace(snapshot, barrier="off"), 200, 30)[1]
    assert "barriers are off" in off and "held " in off
    assert "barriers" not in shown(snapshot, 200, 30)[1]
    for words in ("last sound event", "3 findings", "bytes 3 to 4", "1 more", "7 events are lost"):
        assert words in line


def test_figures_of_the_device_stand_alone(snapshot: Snapshot) -> None:
    device = Device("H200", memory_used_bytes=2**30, temperature_celsius=None, power_watts=0.0)
    line = shown(replace(snapshot, device=device), 200, 30)[1]
    assert "H200: 1.0 GiB used n/a n/a 0 W" in line
    gone = shown(replace(snapshot, device=Device("H200", problem="no answer")), 200, 30)[1]
    assert "H200: n/a n/a n/a n/a (no answer)" in gone


def test_text_of_a_trace_cannot_steer_the_terminal(snapshot: Snapshot) -> None:
    row = Row(1, 0, "Note", "bell \a and \x1b[31m red, wide 漢字")
    lists = replace(snapshot.lists, rows=(row,), current=0)
    lines = shown(replace(snapshot, lists=lists, model="\x1b]0;x"), 120, 40)
    assert all(character.isprintable() for line in lines for character in line)
    assert "wide 漢字" in "\n".join(lines)


def shown(snapshot: Snapshot, width: int, height: int, ui: Ui | None = None) -> list[str]:
    """The lines as text."""
    painted = paint(snapshot, ui or Ui(), width, height)
    return ["".join(text for text, _ in line) for line in painted]


@pytest.mark.parametrize("tab", ["events", "leases", "tickets", "checks", "refusals"])
@pytest.mark.parametrize("plain", [False, True])
def test_every_size_is_filled_exactly(tab: str, plain: bool, snapshot: Snapshot) -> None:
    ui = Ui(tab=tab, glyphs=PLAIN) if plain else Ui(tab=tab)
    for width in (1, 20, *range(WIDTH_MIN, 241, 7)):
        for height in (1, 7, *range(HEIGHT_MIN, 71, 3)):
            lines = shown(snapshot, width, height, ui)
            assert len(lines) == height
            assert {cell_len(line) for line in lines} == {width}
            if plain:
                assert all(line.isascii() for line in lines[1:])


@pytest.mark.parametrize("bands", range(1, 8))
def test_the_parts_fill_every_size(bands: int) -> None:
    for width in range(WIDTH_MIN, 241):
        for height in range(HEIGHT_MIN, 71):
            room = layout(width, height, bands)
            assert sum(count for _, count in room.parts) == height
            assert all(count >= 0 for _, count in room.parts)


def test_what_a_small_terminal_keeps(snapshot: Snapshot) -> None:
    lines = shown(snapshot, 40, 10)
    assert "event 1,000" in lines[0] and "paused" in lines[0]
    assert any("held" in line and "holes" in line for line in lines)
    assert "is too small" in shown(snapshot, 29, 10)[0]
