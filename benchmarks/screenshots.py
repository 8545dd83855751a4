"""The pictures of the live screen in docs/: a run of a few seconds, recorded, and looked at.

    python benchmarks/screenshots.py [--folder docs/images]
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bandscope.tui.top.app import TopApp
from bandscope.tui.top.conductor import DirectConductor
from bandscope.tui.top.source import TraceSource

RUN = [
    "run", "--model", "inkling", "--device", "none", "--arena-bytes", "40GiB", "--seed", "3",
    "--workload", "synthetic:shift-shared,requests=400", "--prefix-cache",
]  # fmt: skip
# Name, theme, size of the terminal, keys. The trace is looked at in the middle of the run.
PICTURES: list[tuple[str, str, tuple[int, int], Sequence[str]]] = [
    ("top-cache", "dark", (132, 36), ("2",)),
    ("top-tickets", "light", (120, 30), ("3",)),
    ("top-page", "dark", (100, 28), ("o", "o", "6")),
]


async def picture(trace: Path, theme: str, size: tuple[int, int], keys: Sequence[str]) -> str:
    """The screen as an SVG document."""
    source = TraceSource(trace)
    while source.busy:
        source.tick()
    app = TopApp(
        lambda path: DirectConductor(source), trace, threaded=False, theme=theme, find=lambda: [],
        first=[("jump", str(source.end * 2 // 3)), ("step", ("ticket", True))],
    )  # fmt: skip
    async with app.run_test(size=size) as pilot:
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        while source.busy:  # what was asked for is looked for at every tick of the clock
            await pilot.pause(0.1)
        await pilot.pause(1)
        made = app.export_screenshot(title="bandscope top")
    # Textual numbers the names in a picture by its content; a fixed name keeps differences small.
    return re.sub(r"terminal-\d+", "terminal", made)


def main() -> None:
    """Make the run and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        program = [sys.executable, "-c", "from bandscope.tui.main import main; main()"]
        subprocess.run([*program, *RUN, "--record", f"{name}/run"], check=True, stdout=sys.stderr)
        for title, theme, size, keys in PICTURES:
            made = asyncio.run(picture(Path(name) / "run.trace", theme, size, keys))
            (options.folder / f"{title}.svg").write_text(made, encoding="utf-8")
            print(f"{options.folder / title}.svg: {len(made):,} bytes")


if __name__ == "__main__":
    main()
