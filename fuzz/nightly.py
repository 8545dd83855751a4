"""A night's work: canary, corpus, smoke, planted faults, exhaustive search, campaigns; and its ledger.

Every part has a share of the budget and ends in a `Part`. A part that raises is a broken harness, which
is told apart from a find. The folder keeps the finds of all nights in `corpus/`, which the next night
runs first, and one line per part in `ledger.jsonl`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.fuzz import exhaustive
from bandscope.fuzz.campaign import Fleet, Found, Settings, alone, run_campaign
from bandscope.fuzz.execution import execute
from bandscope.fuzz.faults import FAULTS
from bandscope.fuzz.finds import SUFFIX, read_corpus, versions, write_find
from bandscope.fuzz.program import read_program
from bandscope.fuzz.strength import measure_all, totals

# Shares of the budget; a part that needs less leaves the rest to the campaign, which comes last.
SHARES = {
    "canary": 0.02, "corpus": 0.05, "smoke": 0.08, "faults": 0.3, "exhaustive": 0.2, "caching": 0.15,
}  # fmt: skip

CANARY = next(iter(FAULTS))
SMOKE = Settings(1, cases=400, seconds=45.0)

OK, FOUND, BROKEN = "ok", "found", "broken"


@dataclass
class Part:
    """One part of a night: `verdict` is `ok`, `found` (it broke the arena) or `broken` (it could not do
    its work); `told` are its figures, `finds` one sentence each."""

    name: str
    verdict: str = OK
    seconds: float = 0.0
    operations: int = 0
    seed: int | None = None
    finds: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


@dataclass
class Night:
    """All parts of a night, and under which versions."""

    budget_seconds: float
    started: str
    versions: dict[str, str]
    parts: list[Part] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The worst of the parts."""
        verdicts = [part.verdict for part in self.parts]
        return next((worst for worst in (FOUND, BROKEN) if worst in verdicts), OK)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema": "bandscope-nightly/1",
            "verdict": self.verdict,
            "budget_seconds": self.budget_seconds,
            "started": self.started,
            "versions": self.versions,
            "parts": [part.to_json() for part in self.parts],
        }


def run_night(
    out: Path,
    budget_seconds: float,
    *,
    seed: int,
    workers: int = 1,
    fleet: Fleet = alone,
    told: Callable[[Part], None] | None = None,
) -> Night:
    """Run every part within the budget, write the ledger line of each as it ends, and file finds in
    `out/corpus`. `told` hears of every part."""
    corpus = out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    night = Night(budget_seconds, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), versions())
    began = time.monotonic()
    work: dict[str, Callable[[Part, float], None]] = {
        "canary": _canary,
        "corpus": lambda part, seconds: _corpus(part, corpus),
        "smoke": lambda part, seconds: _campaign(part, _within(SMOKE, seconds), alone, corpus),
        "faults": lambda part, seconds: _faults(part, seconds, workers),
        "exhaustive": _exhaustive,
        # Prefix caches alone: of the arenas of the campaign only a quarter has one.
        "caching": lambda part, seconds: _campaign(
            part, Settings(seed, "caching", seconds=seconds), fleet, corpus
        ),
        "campaign": lambda part, seconds: _campaign(
            part, Settings(seed, seconds=seconds), fleet, corpus
        ),
    }
    for name, run in work.items():
        left = budget_seconds - (time.monotonic() - began)
        seconds = max(1.0, min(SHARES.get(name, 1.0) * budget_seconds, left))
        part = Part(name)
        started = time.monotonic()
        try:
            run(part, seconds)
        except Exception as error:  # the other parts still have their night
            part.verdict = BROKEN
            part.finds.append(f"{type(error).__name__}: {error}")
        part.seconds = round(time.monotonic() - started, 3)
        night.parts.append(part)
        _note(out, night, part)
        if told is not None:
            told(part)
    return night


def _within(settings: Settings, seconds: float) -> Settings:
    return Settings(settings.seed, cases=settings.cases, seconds=seconds)


def _canary(part: Part, seconds: float) -> None:
    """A planted fault that a campaign must find: otherwise "nothing found" means nothing."""
    (row,) = measure_all([CANARY], budget_seconds=seconds)
    part.operations = row.operations
    part.told = {"fault": CANARY, "found": row.found, "seconds": row.seconds}
    if not row.found:
        part.verdict = BROKEN
        part.finds.append(f"the planted fault {CANARY} was not found, so nothing would be")


def _campaign(part: Part, settings: Settings, fleet: Fleet, corpus: Path) -> None:
    known = read_corpus(corpus)
    part.seed = settings.seed

    def keep(found: Found) -> None:
        write_find(corpus, found)

    report = run_campaign(settings, fleet=fleet, corpus=known, found=keep)
    part.operations = report.steps
    part.told = {
        key: value
        for key, value in report.to_json().items()
        if key not in ("finds", "seconds", "operations")
    }
    part.finds = [str(found.find) for found in report.found.values()]
    part.verdict = FOUND if part.finds else OK


def _corpus(part: Part, corpus: Path) -> None:
    """Finds of earlier nights: one that breaks nothing any more was repaired."""
    repaired = []
    for path in sorted(corpus.glob(f"*{SUFFIX}")):
        verdict = execute(read_program(path)[0], full_every=1)
        part.operations += verdict.steps
        if verdict.find is not None:
            part.finds.append(f"{path.name}: {verdict.find}")
        else:
            repaired.append(path.name)
    part.told = {"programs": len(part.finds) + len(repaired), "repaired": repaired}
    part.verdict = FOUND if part.finds else OK


def _faults(part: Part, seconds: float, workers: int) -> None:
    """As many as there is time for, unshrunk: what is asked is whether the campaign sees them."""
    each = min(60.0, max(1.0, seconds))
    rows = list(
        measure_all(workers=workers, seconds=seconds, budget_seconds=each, shrink=False)
    )
    part.operations = sum(row.operations for row in rows)
    part.told = {**totals(rows), "planted": len(FAULTS)}
    missed: Sequence[str] = part.told["missed"]
    part.finds = [f"the planted fault {name} was not found within {each:.0f} s" for name in missed]
    part.verdict = BROKEN if missed else OK


class _Enough(Exception):
    """The time of a search is up."""


def _exhaustive(part: Part, seconds: float) -> None:
    """The small arenas, the larger ones last, until the time is up."""
    end = time.monotonic() + seconds
    searched: dict[str, Any] = {}
    for name in exhaustive.ARENAS:
        reports: list[exhaustive.Report] = []

        def progress(report: exhaustive.Report, seen: list[exhaustive.Report] = reports) -> None:
            seen[:] = [report]
            if time.monotonic() > end:
                raise _Enough

        try:
            reports[:] = [exhaustive.explore_named(name, progress=progress)]
        except _Enough:
            pass
        for report in reports:
            searched[name] = str(report)
            part.operations += report.transitions
            part.finds += [f"{name}: {finding}" for finding in report.findings]
        if time.monotonic() > end:
            break
    part.told = searched
    part.verdict = FOUND if part.finds else OK


def _note(out: Path, night: Night, part: Part) -> None:
    """One line in the ledger: what was run, on which revision, from which seed, with which verdict."""
    line = {
        "started": night.started,
        "revision": night.versions["revision"],
        "part": part.name,
        "seed": part.seed,
        "operations": part.operations,
        "seconds": part.seconds,
        "verdict": part.verdict,
        "finds": part.finds,
    }
    with (out / "ledger.jsonl").open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(line) + "\n")


def read_ledger(out: Path) -> Iterator[dict[str, Any]]:
    """The lines of all nights, oldest first; a line that was cut short is left out."""
    path = out / "ledger.jsonl"
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
