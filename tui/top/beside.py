"""`bandscope run … --top`: the run in a process of its own, the live screen before it.

The screen must not slow the run down, so they share no process. What the run prints is kept until the
screen is closed; closing it while the run goes on lets the run stop at its next step, so that its
report is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandscope.allocator.errors import BandscopeError
from bandscope.inspect.reader import open_trace
from bandscope.inspect.selection import first_timeline

if TYPE_CHECKING:
    from bandscope.tui.top.app import TopApp

PROGRAM = (sys.executable, "-c", "from bandscope.tui.main import main; main()")
# What is recorded only to be looked at must not fill the disk of a run that takes days.
TEMPORARY_RING = "512MiB"
_LOOK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGTERM, signal.SIGHUP)

# Shows a trace until the person has seen enough.
Show = Callable[[Path, "Beside"], None]


class Beside:
    """A run in another process: `start`, look at `trace`, `end`."""

    def __init__(self, arguments: Sequence[str], trace: Path, folder: Path) -> None:
        self.trace = trace
        self._command = [*PROGRAM, "run", *arguments]
        self._streams = [folder / "stdout", folder / "stderr"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the run; a Ctrl-C at the terminal is not for it."""
        with open(self._streams[0], "wb") as out, open(self._streams[1], "wb") as err:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=_end_with_parent,
                env={**os.environ, "COLUMNS": str(shutil.get_terminal_size().columns)},
            )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._process is not None and self._process.poll() is None

    def wait_for_trace(self, wait: Callable[[float], object]) -> bool:
        """Whether there is a trace that can be shown; False when the run ended without one."""
        assert self._process is not None
        while True:
            ended = not self.running
            try:
                trace = open_trace(self.trace)
                first_timeline(trace)
                if trace.header["pid"] == self._process.pid:  # not one that was there before
                    return True
            except (BandscopeError, OSError):
                pass
            if ended:
                return False
            wait(_LOOK_SECONDS)

    def stop(self) -> None:
        """Let it stop at its next step; asked a second time, at once."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Let it stop, print what it printed, and return its exit status. A Ctrl-C meanwhile lets it
        stop at once."""
        assert self._process is not None
        self.stop()
        while True:
            try:
                status = self._process.wait()
                break
            except KeyboardInterrupt:
                self.stop()
        for path, stream in zip(self._streams, (sys.stdout, sys.stderr), strict=True):
            stream.write(path.read_text(encoding="utf-8", errors="replace"))
            stream.flush()
        return status if status >= 0 else 128 - status

    def kill(self) -> None:
        """End it without a report."""
        if self.running:
            assert self._process is not None
            self._process.kill()
            self._process.wait()


def _end_with_parent() -> None:
    """A run whose screen was killed stops as if it had been asked to (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def run_beside(arguments: Sequence[str], record: str | None, show: Show) -> int:
    """Run `bandscope run` with these arguments, which do not say where to record, and show its trace;
    the run's exit status. `record`: as with `--record`; None: to a folder that is removed again."""
    from bandscope.fuzz.workload.recording import parse_record

    with tempfile.TemporaryDirectory(prefix="bandscope-top-") as name:
        folder = Path(name)
        kept = record or f"{folder / 'run'}:ring={TEMPORARY_RING}"
        path = parse_record(kept).path
        trace = path.with_name(path.name.removesuffix(".trace") + ".trace")
        beside = Beside([*arguments, "--record", kept], trace, folder)
        with _stopped_gently():
            try:
                beside.start()
                if beside.wait_for_trace(threading.Event().wait):
                    show(trace, beside)
                status = beside.end()
                if record is None and trace.exists():
                    print("the trace was temporary and is removed; --record NAME keeps one")
                return status
            finally:
                beside.kill()


@contextmanager
def _stopped_gently() -> Iterator[None]:
    """A terminal that closes, or a request to end, leaves neither the run nor its folder behind."""

    def stop(signum: int, frame: Any) -> None:
        raise SystemExit(128 + signum)

    before = [signal.signal(number, stop) for number in _STOPPING]
    try:
        yield
    finally:
        for number, handler in zip(_STOPPING, before, strict=True):
            signal.signal(number, handler)


def show_screen(trace: Path, beside: Beside) -> None:
    """The live screen, as `bandscope top` shows it, until q or Ctrl-C."""
    make_screen(trace).run()


def make_screen(trace: Path) -> TopApp:
    """The live screen of a trace, with the person's settings; Ctrl-C closes it as q does."""
    from textual.binding import Binding

    from bandscope.tui.commands.top import _source
    from bandscope.tui.top.app import TopApp
    from bandscope.tui.top.conductor import Conductor, ThreadConductor
    from bandscope.tui.top.settings import load, settings_path

    class RunApp(TopApp):
        """The same, and Ctrl-C ends it."""

        BINDINGS = [Binding("ctrl+c", "quit", show=False, priority=True)]

    settings = load(settings_path())
    plain, refresh = bool(settings.ascii), settings.refresh or 0.25

    def conduct(path: Path) -> Conductor:
        return ThreadConductor(lambda: _source(path, plain), refresh)

    return RunApp(
        conduct, trace, plain=plain, theme=settings.theme or "dark", settings=settings
    )


def arguments_of(
    options: dict[str, Any], spelled: dict[str, str], defaults: dict[str, Any]
) -> list[str]:
    """A command line that says the same as these values of options: `spelled`: how each is written;
    what is at its default is left out."""
    said: list[str] = []
    for name, value in options.items():
        if value == defaults[name]:
            continue
        said += [spelled[name]] if value is True else [spelled[name], str(value)]
    return said
