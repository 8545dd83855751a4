"""A night as files: a page to read, JSON for tools, JUnit XML for whoever shows test results."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bandscope.fuzz.junit import Case, junit
from bandscope.fuzz.nightly import BROKEN, FOUND, Night, Part

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; max-width: 1000px; margin: 24px auto;
  padding: 0 20px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
.ok { color: #2a7; } .found, .broken { color: #d33; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
"""


def write_reports(out: Path, night: Night, ledger: Iterable[dict[str, Any]] = ()) -> None:
    """`report.json`, `report.html` (self-contained) and `junit.xml` in `out`."""
    files = {
        "report.json": json.dumps(night.to_json(), indent=1) + "\n",
        "report.html": page(night, list(ledger)),
        "junit.xml": junit_of(night),
    }
    for name, text in files.items():
        draft = out / f"{name}.new"
        draft.write_text(text, encoding="utf-8")
        draft.replace(out / name)


def junit_of(night: Night) -> str:
    """One test case a part: a find is a failure, a part that could not do its work an error."""
    cases = [
        Case(
            "bandscope.fuzz", part.name, part.seconds,
            "failure" if part.verdict == FOUND else "error" if part.verdict == BROKEN else "passed",
            part.finds, part.verdict,
        )
        for part in night.parts
    ]  # fmt: skip
    return junit("bandscope fuzz --nightly", cases, night.started)


def page(night: Night, ledger: list[dict[str, Any]]) -> str:
    """The night as one HTML page without outside references."""
    parts = "".join(map(_row, night.parts))
    finds = "".join(
        f"<li>{html.escape(part.name)}: {html.escape(find)}</li>"
        for part in night.parts
        for find in part.finds
    )
    facts = {"verdict": night.verdict, "started": night.started, **night.versions}
    details = "".join(f"<h3>{html.escape(part.name)}</h3>{_facts(part.told)}" for part in night.parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Night of {html.escape(night.started)} · Bandscope</title><style>{_STYLE}</style></head>"
        f"<body><h1>Night of {html.escape(night.started)}</h1>{_facts(facts)}"
        "<table><tr><th>part<th>verdict<th>seconds<th>operations<th>seed</tr>"
        f"{parts}</table><h2>Finds</h2>{f'<ul>{finds}</ul>' if finds else '<p>None.</p>'}"
        f"<h2>Figures</h2>{details}<h2>Ledger</h2>{_ledger(ledger)}</body></html>\n"
    )


def _row(part: Part) -> str:
    seed = "" if part.seed is None else part.seed
    return (
        f'<tr><td>{html.escape(part.name)}<td class="{part.verdict}">{part.verdict}'
        f"<td>{part.seconds:,.1f}<td>{part.operations:,}<td>{seed}</tr>"
    )


def _facts(told: dict[str, Any]) -> str:
    rows = "".join(
        f"<dt>{html.escape(str(key))}<dd>{html.escape(_spell(value))}" for key, value in told.items()
    )
    return f"<dl>{rows}</dl>"


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_spell, value)) or "none"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _ledger(lines: list[dict[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(str(line['started']))}<td>{html.escape(str(line['revision'])[:12])}"
        f"<td>{html.escape(str(line['part']))}<td>{line['verdict']}<td>{line['operations']:,}</tr>"
        for line in reversed(lines[-60:])
    )
    return f"<table><tr><th>started<th>revision<th>part<th>verdict<th>operations</tr>{rows}</table>"
