"""The group of commands `bandscope inspect`."""

from __future__ import annotations

from typing import Any

import typer

from bandscope.tui.commands.inspect import events, files, findings, instants, lives, overview

app = typer.Typer(
    name="inspect",
    help="Look into a recorded trace: what happened, when, why, and whether it was right.",
    rich_markup_mode="markdown",
)
for command in (
    overview.summary,
    overview.stats,
    events.events,
    lives.page,
    lives.lease,
    instants.at,
    instants.diff,
    findings.races,
    findings.leaks,
    findings.check,
    findings.refusals,
    files.export,
    files.seal,
    files.annotate,
):
    app.command(command.__name__)(command)
app.command("list")(overview.list_running)


@app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    """Without a command: the help."""
    if context.invoked_subcommand is None:
        told: Any = context.get_help()
        print(told)
        raise typer.Exit()
