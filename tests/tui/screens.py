"""Screens for tests: a run whose clock is a counter, and pictures as cells of text and style."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.style import Style

from bandscope.inspect import recorder as recorder_module
from bandscope.tui.top.app import TopApp
from bandscope.tui.top.conductor import DirectConductor
from bandscope.tui.top.source import TraceSource
from tests.allocator.arenas import P5
from tests.inspect_.cached import GRID, CachedEngine
from tests.inspect_.traces import Recorded, record

WALL_NS = 1_800_000_000_000_000_000
STEP_NS = 15_370_000  # between two looks at the clock


def steady_run(folder: Path, *, seed: int = 11, operations: int = 400, **run: Any) -> Recorded:
    """A recorded run that is the same, to the nanosecond, whenever and wherever it is made; its
    recorder has not ended. `run`: what else there is to say of it, like its engine."""
    ticks = itertools.count(0, STEP_NS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "_clock", lambda: next(ticks))
        patch.setattr(recorder_module, "time", SimpleNamespace(time_ns=lambda: WALL_NS))
        return record(
            folder / "golden", P5, seed=seed, operations=operations, close=False, keyframe_every=2000,
            **{"config": {"units": 900}, **run},
        )  # fmt: skip


def steady_cached_run(folder: Path) -> Recorded:
    """Such a run with a prefix cache, in whose picture every character of a map occurs."""
    config = {"units": 900, "prefix_cache": True, "checkpoint_grid_tokens": GRID}
    return steady_run(folder, seed=9, config=config, engine=CachedEngine)


def resting_source(run: Recorded) -> TraceSource:
    """Follows such a run, long after its last event, with nothing left to look at."""
    source = TraceSource(run.path, wall_ns=lambda: WALL_NS)
    while source.busy:
        source.tick()
    return source


Script = Callable[[TopApp, Any], Awaitable[None]]


def cells_of(
    source: Any, script: Script, size: tuple[int, int], *, theme: str = "dark"
) -> list[list[tuple[str, Style]]]:
    """What a terminal of this size shows after the script: per line, pieces of one style each."""
    app = TopApp(
        lambda path: DirectConductor(source), Path("golden.trace"), threaded=False, theme=theme,
        find=lambda: [],
    )  # fmt: skip
    found: list[list[tuple[str, Style]]] = []

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)
            await pilot.pause()
            for strip in app.screen._compositor.render_strips():
                found.append(_merged([(part.text, part.style or Style()) for part in strip]))

    asyncio.run(run())
    return found


def _merged(parts: list[tuple[str, Style]]) -> list[tuple[str, Style]]:
    """Neighbours of one look as one piece; what nobody sees (meta data, links) is left out."""
    pieces: list[tuple[str, Style]] = []
    for text, style in parts:
        plain = style.without_color if style.color is None and style.bgcolor is None else style
        plain = Style.parse(str(plain))
        if pieces and pieces[-1][1] == plain:
            pieces[-1] = pieces[-1][0] + text, plain
        elif text:
            pieces.append((text, plain))
    return pieces


def spelled(cells: list[list[tuple[str, Style]]]) -> str:
    """A picture as text: its lines, then which letter stands for which style, then the styles of
    every line as letters with the number of characters."""
    letters: dict[str, str] = {}
    rows = []
    for line in cells:
        row = ""
        for text, style in line:
            letter = letters.setdefault(str(style), _letter(len(letters)))
            row += f"{len(text)}{letter}"
        rows.append(row)
    lines = ["|" + "".join(text for text, _ in line) + "|" for line in cells]
    styles = [f"{letter} {style}" for style, letter in letters.items()]
    return "\n".join([*lines, "", *styles, "", *rows, ""])


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[number]
