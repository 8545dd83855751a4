"""`bandscope top`: watch an arena live, or walk through a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bandscope.allocator.errors import ConfigError

if TYPE_CHECKING:
    from bandscope.tui.top.source import TraceSource

REFRESH_MIN, REFRESH_MAX = 0.1, 10.0
_THEMES = ("dark", "light", "high-contrast")


def top(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]", help="A trace, live or not. Without it: choose a running recorder."
        ),
    ] = None,
    ascii: Annotated[
        bool, typer.Option("--ascii", help="No characters outside of ASCII.")
    ] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between looks, 0.1 to 10.")] = 0.25,
    theme: Annotated[str, typer.Option(help=f"{', '.join(_THEMES)}.")] = "dark",
    once: Annotated[bool, typer.Option("--once", help="Print the facts and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the facts as one JSON object and exit.")
    ] = False,
) -> None:
    """Watch an arena: its bands, pages and events, live or at any instant of a trace.

    Nothing is ever written to the trace, and the recording process does not notice. ? is help.
    """
    if not REFRESH_MIN <= refresh <= REFRESH_MAX:
        raise ConfigError(f"--refresh {refresh:g} was asked for; give 0.1 to 10 seconds")
    if theme not in _THEMES:
        raise ConfigError(f"--theme {theme} was asked for; the themes are {', '.join(_THEMES)}")
    if trace is None:
        _need_somebody(once or as_json)
    if once or as_json:
        _print(_only_running() if trace is None else trace, ascii, as_json)
        return
    _run(trace, ascii, refresh, theme)


def _need_somebody(only_one: bool) -> None:
    from bandscope.inspect.registry import running
    from bandscope.tui.top.screens import NOBODY

    found = running()
    if not found:
        raise ConfigError(NOBODY)
    if only_one and len(found) > 1:
        names = ", ".join(str(entry.trace) for entry in found)
        raise ConfigError(f"{len(found)} recorders run; name the trace of one: {names}")


def _only_running() -> Path:
    from bandscope.inspect.registry import running

    return running()[0].trace


def _source(path: Path, plain: bool) -> TraceSource:
    from bandscope.tui.top.device import DeviceFigures
    from bandscope.tui.top.source import TraceSource

    source = TraceSource(path, plain=plain)
    if source.ending == "running":
        figures = DeviceFigures(source.trace.header)
        figures.start()
        source.device = figures
    return source


def _print(path: Path, plain: bool, as_json: bool) -> None:
    from bandscope.inspect import reader
    from bandscope.tui.top.device import DeviceFigures
    from bandscope.tui.top.once import WIDTH, once_text
    from bandscope.tui.top.snapshot import View
    from bandscope.tui.top.source import TraceSource

    source = TraceSource(path, plain=plain)
    if source.ending == "running":
        figures = DeviceFigures(source.trace.header)
        if figures.uuid:
            figures.ask()
        source.device = figures
    while source.damage.tick():
        pass
    source.ask("view", View(columns=WIDTH, rows=10))
    snapshot: Any = source.tick()
    print(reader.as_json(snapshot.to_json()) if as_json else once_text(snapshot, plain))


def _run(trace: Path | None, plain: bool, refresh: float, theme: str) -> None:
    from bandscope.tui.top.app import TopApp
    from bandscope.tui.top.conductor import Conductor, ThreadConductor

    first = None if trace is None else [_source(trace, plain)]  # a bad trace ends here
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("`bandscope top` needs a terminal; without one, use --once or --json")

    def conduct(path: Path) -> Conductor:
        return ThreadConductor(
            lambda: first.pop() if first else _source(path, plain), refresh
        )

    TopApp(conduct, trace, plain=plain, theme=theme).run()
