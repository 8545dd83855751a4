"""`bandscope fuzz --nightly OUT`: everything, within a budget, with a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from bandscope.tui.commands.fuzz.campaign import fleet
from bandscope.tui.units import spell_seconds


def run_nightly_command(
    out: Path, seconds: float, seed: int, workers: int, ray: str | None, as_json: bool
) -> None:
    """Run a night and leave: 0 nothing found, 1 something found or a part that could not work."""
    from bandscope.fuzz.nightly import OK, Part, read_ledger, run_night
    from bandscope.fuzz.report import write_reports

    def told(part: Part) -> None:
        if not as_json:
            print(
                f"{part.name:12} {part.verdict:7} {spell_seconds(part.seconds):>12} "
                f"{part.operations:12,} operations",
                flush=True,
            )
            for find in part.finds:
                print(f"  {find}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    with fleet(workers, ray) as cases:
        night = run_night(out, seconds, seed=seed, workers=workers, fleet=cases, told=told)
    write_reports(out, night, read_ledger(out))
    if as_json:
        data: dict[str, Any] = night.to_json()
        print(json.dumps(data))
    else:
        print(f"{night.verdict}; report in {out / 'report.html'}")
    raise typer.Exit(0 if night.verdict == OK else 1)
