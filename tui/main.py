"""The `bandscope` program: its commands, and how it ends when something goes wrong.

Every command lives in a module of `tui/commands` and is registered here. Commands raise; `main`
alone turns what they raise into one line on stderr and an exit status:

| Raised | Exit status |
| - | - |
| `BandscopeError` | the error's own `exit_status` |
| a wrong command line, or a file that the system refuses | 2 |
| an interrupt that no command handles | 130 |
| anything else, which is a defect of Bandscope | 70 |

A closed pipe ends the program quietly with status 1, which is also what rich does. With
`BANDSCOPE_TRACEBACK=1` in the environment the traceback comes before the line.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

import bandscope
from bandscope.allocator.errors import BandscopeError
from bandscope.tui.commands import bench as bench_command
from bandscope.tui.commands import doctor as doctor_command
from bandscope.tui.commands import replay as replay_command
from bandscope.tui.commands import run as run_command
from bandscope.tui.commands import size as size_command
from bandscope.tui.commands import top as top_command
from bandscope.tui.commands.fuzz.app import app as fuzz_app
from bandscope.tui.commands.inspect.app import app as inspect_app

PROGRAM = "bandscope"
INTERNAL_ERROR_STATUS = 70
_INTERRUPTED_STATUS = 130

# What Typer raises for a wrong command line: the base of the one such class that it publishes.
# Its base is taken because newer versions of Typer bring their own copy of click, so that the
# classes of an installed click need not be the ones that are raised.
_CommandLineError = cast(type[Exception], typer.BadParameter.__mro__[2])


class _Interrupted(Exception):
    """A keyboard interrupt; Typer would turn the original into a silent exit status."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise _Interrupted from interrupt
        except BrokenPipeError:
            _end_quietly()


app = typer.Typer(
    name=PROGRAM,
    cls=_Commands,
    help="Serve, watch, prove and replay the memory of hybrid language models.",
    # In rich's own markup, brackets in a help text would be taken for tags and vanish.
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command.run)
app.command("top")(top_command.top)
app.add_typer(inspect_app)
app.add_typer(fuzz_app)
app.command("replay")(replay_command.replay)
app.command("size")(size_command.size)
app.command("bench")(bench_command.bench)
app.command("doctor")(doctor_command.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {bandscope.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the program itself; each acts in its own callback."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program with `arguments` (those of the process when None) and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(given or ["--help"], prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _end_quietly()
    except BandscopeError as error:
        _end(str(error), error.exit_status)
    except _CommandLineError as error:
        _end(_command_line_sentence(error), 2)
    except (_Interrupted, KeyboardInterrupt):
        _end("interrupted", _INTERRUPTED_STATUS)
    except typer.Abort:
        _end("aborted", 1)
    except OSError as error:
        _end(str(error), 2)
    except Exception as error:
        _end(
            f"internal error, {type(error).__name__}: {error}; please report it with what is "
            "printed when BANDSCOPE_TRACEBACK=1 is set",
            INTERNAL_ERROR_STATUS,
        )
    # A command that ends by `typer.Exit` makes its status the result; others return nothing.
    sys.exit(status if isinstance(status, int) else 0)


def _command_line_sentence(error: Exception) -> str:
    # Typer's sentences may be spread over lines (a list of choices) and end in a full stop.
    message = " ".join(cast(Any, error).format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = PROGRAM if context is None else context.command_path
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _end(message: str, status: int) -> NoReturn:
    try:
        if os.environ.get("BANDSCOPE_TRACEBACK", "0") not in ("", "0"):
            traceback.print_exc()
        # What the command had printed comes first, also where both streams are one file.
        sys.stdout.flush()
        print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _end_quietly()
    sys.exit(status)


def _end_quietly() -> NoReturn:
    # The interpreter flushes both streams once more at its end, and would complain there.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(1)


if __name__ == "__main__":
    main()
