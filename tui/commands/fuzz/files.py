"""`bandscope fuzz reproduce` and `fuzz shrink`: programs in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bandscope.tui.commands.fuzz import options

_FILE = typer.Argument(metavar="FILE", help="A program that `bandscope fuzz` wrote.")


def reproduce(
    path: Annotated[Path, _FILE],
    device: Annotated[str, typer.Option(help="sim, none, cpu or cuda.")] = "sim",
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Run the program of a file with every check at every step.

    Exit status: 0 nothing broke, 1 something did, 2 no such program.
    """
    from bandscope.fuzz.finds import reproduce as run_again

    options.check_device(device)
    program, find = run_again(path, device=device)
    if as_json:
        told = None if find is None else {**find.to_json(), "signature": find.signature}
        print(json.dumps({"schema": "bandscope-find/1", "steps": len(program.steps), "find": told}))
    else:
        print(f"{path}: {len(program.steps)} steps, {find or 'nothing broke'}")
    if find is not None:
        raise typer.Exit(1)


def shrink(
    path: Annotated[Path, _FILE],
    executions: Annotated[int, typer.Option(help="How many programs to try at most.")] = 20_000,
    out: Annotated[
        Path | None, typer.Option(help="Write here; the file itself is replaced otherwise.")
    ] = None,
) -> None:
    """Make a program that breaks something smaller. Every improvement is written at once, so an
    interrupted shrink goes on where it was.

    Exit status: 0 shrunk, 2 no such program, or one that breaks nothing.
    """
    from bandscope.allocator.errors import ConfigError
    from bandscope.fuzz.execution import Find
    from bandscope.fuzz.finds import facts
    from bandscope.fuzz.finds import reproduce as run_again
    from bandscope.fuzz.program import Program, write_program
    from bandscope.fuzz.shrink import shrink as make_smaller

    options.check_count("--executions", executions)
    program, find = run_again(path)
    if find is None:
        raise ConfigError(
            f"{path} was to be shrunk, but its {len(program.steps)} steps break nothing in this "
            "version; give a program that `bandscope fuzz reproduce` ends with status 1 on"
        )
    target = path if out is None else out

    def keep(smaller: Program, broke: Find) -> None:
        write_program(target, smaller, **facts(broke, target.name))

    shrunk = make_smaller(program, find, executions_max=executions, kept=keep)
    keep(shrunk.program, shrunk.find)
    print(
        f"{target}: {len(program.steps)} steps became {len(shrunk.program.steps)} in "
        f"{shrunk.executions:,} runs; {shrunk.find}"
    )
