"""`bandscope doctor`: what this machine offers, what is missing, and what that costs."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bandscope.tui.diagnosis import Diagnosis, Finding, diagnose
from bandscope.tui.units import spell_bytes

_NOT_AVAILABLE = "n/a"
_STYLES = {"essential": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON object.")
    ] = False,
) -> None:
    """Say what this machine offers, what is missing, and what that costs.

    Exit status: 0 nothing essential is missing, 1 something is.
    """
    diagnosis = diagnose()
    if as_json:
        print(json.dumps(to_json(diagnosis), indent=1))
    else:
        print_diagnosis(Console(highlight=False), diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Every fact and finding, sizes in bytes, null where there is no answer."""
    return {"healthy": diagnosis.healthy, **dataclasses.asdict(diagnosis)}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """The facts as one table, then the findings, worst first."""
    table = Table(title="bandscope doctor", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for rows in (
        _spelled(diagnosis.versions),
        _spelled(diagnosis.system),
        _spelled({"driver " + name: value for name, value in diagnosis.driver.items()}),
        *(_gpu_rows(gpu) for gpu in dataclasses.asdict(diagnosis)["gpus"]),
        _spelled({"torch cuda": diagnosis.torch_cuda, "triton mode": diagnosis.triton_mode}),
        _spelled({**diagnosis.limits, **diagnosis.optional}),
    ):
        for name, value in rows:
            # Text, so that brackets in a value are not taken for markup.
            table.add_row(Text(name), Text(value))
        table.add_section()
    console.print(table)
    for finding in diagnosis.findings:
        console.print(_finding_text(finding))
    verdict = "nothing essential is missing" if diagnosis.healthy else "Bandscope cannot work here"
    console.print(Text(verdict, style="bold" if diagnosis.healthy else "bold red"))


def _gpu_rows(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    facts = {name: value for name, value in gpu.items() if name not in ("index", "driver")}
    prefix = f"cuda:{gpu['index']} "
    return _spelled({prefix + name: value for name, value in {**facts, **gpu["driver"]}.items()})


def _spelled(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name.removesuffix("_bytes").replace("_", " "), _spell(name, value))
        for name, value in facts.items()
    ]


def _spell(name: str, value: Any) -> str:
    if value is None:
        return _NOT_AVAILABLE
    if name.endswith("_bytes"):
        return "unlimited" if value == -1 else spell_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _finding_text(finding: Finding) -> Text:
    return Text.assemble(
        (f"{finding.level}: ", _STYLES[finding.level]),
        f"{finding.what}: {finding.cost}; {finding.remedy}",
    )
