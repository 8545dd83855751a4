"""`bandscope top`: watch an arena live, or walk through a trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bandscope.allocator.errors import ConfigError, TraceError
from bandscope.tui.top.settings import (
    REFRESH_MAX,
    REFRESH_MIN,
    THEME_NAMES,
    Settings,
    load,
    settings_path,
)

if TYPE_CHECKING:
    from bandscope.tui.top.source import TraceSource

def top(
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID|TRACE]",
            help="A process that records, or a trace, live or not. Without it: choose a running "
            "recorder.",
        ),
    ] = None,
    ascii: Annotated[
        bool | None, typer.Option("--ascii/--unicode", help="No characters outside of ASCII.")
    ] = None,
    refresh: Annotated[
        float | None, typer.Option(help="Seconds between looks, 0.1 to 10. [0.25]")
    ] = None,
    theme: Annotated[str | None, typer.Option(help=f"{', '.join(THEME_NAMES)}. [dark]")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="PLACE", help="Begin at an event or a time: 1200, 1.5s, 20ms."),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(metavar="BAND:PAGE", help="Begin at a virtual page of a band, and tell its story."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Compare with an event, a time, or another trace."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the facts and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the facts as one JSON object and exit.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it in a web browser (extra `serve`).")
    ] = False,
    host: Annotated[str, typer.Option(help="With --serve: the address to serve at.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --serve: its port.")] = 8000,
) -> None:
    """Watch an arena: its bands, pages and events, live or at any instant of a trace.

    Nothing is ever written to the trace, and the recording process does not notice. ? is help.
    Theme, characters, rate and keys may stand in $XDG_CONFIG_HOME/bandscope/top.toml.
    """
    settings = _settings(ascii, refresh, theme)
    path = None if trace is None else _find(trace)
    if path is None:
        _need_somebody(once or as_json)
    first = _first(at, page, compare)
    if once or as_json:
        shown = _only_running() if path is None else path
        _print(shown, bool(settings.ascii), as_json, first)
        return
    if serve:
        from bandscope.tui.top import serving

        if path is not None:
            _source(path, bool(settings.ascii))  # a bad trace ends here
        told = {"--theme": theme, "--at": at, "--page": page, "--compare": compare}
        serving.serve(serving.options_of(path, ascii, refresh, told), host, port)
        return
    _run(path, settings, first)


def _settings(ascii: bool | None, refresh: float | None, theme: str | None) -> Settings:
    """What the command line says, else the settings file."""
    saved = load(settings_path())
    if refresh is not None and not REFRESH_MIN <= refresh <= REFRESH_MAX:
        raise ConfigError(f"--refresh {refresh:g} was asked for; give 0.1 to 10 seconds")
    if theme is not None and theme not in THEME_NAMES:
        raise ConfigError(
            f"--theme {theme} was asked for; the themes are {', '.join(THEME_NAMES)}"
        )
    return Settings(
        saved.theme if theme is None else theme,
        saved.ascii if ascii is None else ascii,
        saved.refresh if refresh is None else refresh,
        saved.keys,
    )


def _find(trace: str) -> Path:
    """The trace that is meant: a path, or the number of a process that records."""
    from bandscope.inspect.registry import running

    path = Path(trace)
    if not (trace.isascii() and trace.isdigit()) or path.exists():
        return path
    found = [entry for entry in running() if entry.pid == int(trace)]
    if not found:
        raise ConfigError(
            f"process {trace} was asked for, but no recorder of yours runs in it; `bandscope inspect "
            "list` names those that run, or name a trace"
        )
    if len(found) > 1:
        names = ", ".join(str(entry.trace) for entry in found)
        raise ConfigError(
            f"process {trace} records {len(found)} arenas; name the trace of one: {names}"
        )
    return found[0].trace


def _first(at: str | None, page: str | None, compare: str | None) -> list[tuple[str, Any]]:
    """The options as the questions that they stand for."""
    asked: list[tuple[str, Any]] = []
    if at is not None:
        asked.append(("jump", at))
    if compare is not None:
        asked.append(("compare", compare))
    if page is not None:
        band, _, number = page.rpartition(":")
        if not band or not (number.isascii() and number.isdigit()):
            raise ConfigError(
                f"--page {page} was asked for; write a band and a virtual page, like full:12"
            )
        asked.append(("virtual", (band, int(number))))
    return asked


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
    from bandscope.inspect.registry import running
    from bandscope.tui.top.device import DeviceFigures
    from bandscope.tui.top.source import TraceSource

    source = TraceSource(path, plain=plain)
    source.desk.find = running
    if source.ending == "running":
        figures = DeviceFigures(source.trace.header)
        figures.start()
        source.device = figures
    return source


def _print(path: Path, plain: bool, as_json: bool, first: list[tuple[str, Any]]) -> None:
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
    for what, value in first:
        source.ask(what, value)
        if source.message and source.refused:
            raise TraceError(source.message)
    asked = [what for what, _ in first]
    tab = "page" if "virtual" in asked else "compare" if "compare" in asked else "events"
    source.ask("view", View(columns=WIDTH, rows=10 if tab == "events" else 200, tab=tab))
    snapshot: Any = source.tick()
    while source.busy:
        snapshot = source.tick() or snapshot
    print(reader.as_json(snapshot.to_json()) if as_json else once_text(snapshot, plain))


def _run(trace: Path | None, settings: Settings, first: list[tuple[str, Any]]) -> None:
    from bandscope.tui.top.app import TopApp
    from bandscope.tui.top.conductor import Conductor, ThreadConductor

    plain, refresh = bool(settings.ascii), settings.refresh or 0.25
    sources = None if trace is None else [_source(trace, plain)]  # a bad trace ends here
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not at_terminal and "TEXTUAL_DRIVER" not in os.environ:  # which a web server sets
        raise ConfigError("`bandscope top` needs a terminal; without one, use --once or --json")

    def conduct(path: Path) -> Conductor:
        return ThreadConductor(
            lambda: sources.pop() if sources else _source(path, plain), refresh
        )

    TopApp(
        conduct, trace, plain=plain, theme=settings.theme or "dark", settings=settings, first=first
    ).run()
