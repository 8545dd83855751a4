"""The group of commands `bandscope fuzz`."""

from __future__ import annotations

import typer

from bandscope.tui.commands.fuzz import campaign, files, search, strength

app = typer.Typer(name="fuzz", rich_markup_mode="markdown", invoke_without_command=True)
app.callback()(campaign.fuzz)
for command in (campaign.smoke, strength.faults, search.exhaustive, files.reproduce, files.shrink):
    app.command(command.__name__)(command)
