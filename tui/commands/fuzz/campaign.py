"""`bandscope fuzz`, and `fuzz smoke`: a campaign, with everything checked at every step."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bandscope.allocator.errors import ConfigError
from bandscope.tui.commands.fuzz import options, show

if TYPE_CHECKING:
    from bandscope.fuzz.campaign import Fleet, Found, Report, Settings

SMOKE_SECONDS = 30.0
SMOKE_CASES = 400


def fuzz(
    context: typer.Context,
    time: Annotated[
        str | None, typer.Option(help="How long: 90, 90s, 10m, 1.5h (default 60s).")
    ] = None,
    cases: Annotated[
        int | None, typer.Option(help="How many cases; alone, the time has no end.")
    ] = None,
    seed: Annotated[
        str, typer.Option(help="A whole number, or commit: the revision that is checked out.")
    ] = "0",
    profile: Annotated[
        str, typer.Option(help="serving, hostile, misuse, mixed, caching: which programs.")
    ] = "mixed",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    device: Annotated[
        str, typer.Option(help="sim (simulated, adversarial schedules), none, cpu or cuda.")
    ] = "sim",
    corpus: Annotated[
        Path | None, typer.Option(help="A folder of programs to vary from the start.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder to write finds to.")] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address, auto, or local."),
    ] = None,
    nightly: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Smoke, faults, campaign, exhaustive search and corpus in --time, with a report.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Look for programs that break the arena: hostile operations on adversarial schedules, compared with
    an independent model, every invariant checked at every step.

    Exit status: 0 nothing found, 1 something found, 2 bad usage.
    """
    if context.invoked_subcommand is not None:
        return
    from bandscope.fuzz.campaign import Settings

    options.check_profile(profile)
    options.check_device(device)
    options.check_count("--workers", workers)
    options.check_count("--cases", cases)
    seconds = None if time is None and cases is not None else options.parse_time(time or "60s")
    number = options.parse_seed(seed)
    if nightly is not None:
        from bandscope.tui.commands.fuzz.nightly import run_nightly_command

        run_nightly_command(nightly, seconds or 60.0, number, workers, ray, as_json)
    if device == "cuda" and (workers > 1 or ray is not None):
        raise ConfigError(
            "--device cuda was asked for with several workers, but one process owns the GPU; leave "
            "--workers and --ray out"
        )
    settings = Settings(number, profile, device, cases, seconds)
    run(settings, workers=workers, ray=ray, corpus=corpus, out=out, as_json=as_json)


def smoke(
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """A short campaign of a fixed seed, for every run of the tests: under a minute.

    Exit status: 0 nothing found, 1 something found.
    """
    from bandscope.fuzz.campaign import Settings

    run(Settings(1, cases=SMOKE_CASES, seconds=SMOKE_SECONDS), as_json=as_json)


def run(
    settings: Settings,
    *,
    workers: int = 1,
    ray: str | None = None,
    corpus: Path | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run a campaign, show it, write its finds, and leave with its status."""
    from bandscope.fuzz.campaign import run_campaign
    from bandscope.fuzz.finds import read_corpus, write_find

    programs = []
    if corpus is not None:
        if not corpus.is_dir():
            raise ConfigError(f"--corpus {corpus} was given, but there is no such folder")
        programs = read_corpus(corpus)
    paths: list[str] = []
    texts: list[str] = []

    def found(find: Found) -> None:
        path = None if out is None else str(write_find(out, find))
        if path is not None:
            paths.append(path)
        texts.append(show.find_text(find, path))
        if not as_json:
            print(texts[-1], flush=True)

    if not as_json:
        print(f"seed {settings.seed}", flush=True)
    with fleet(workers, ray) as cases, show.live(as_json) as progress:
        report = run_campaign(
            settings, fleet=cases, corpus=programs, progress=progress, found=found
        )
    tell(report, paths, as_json)
    if report.found:
        raise typer.Exit(1)
    if report.ending == "interrupted":
        raise typer.Exit(130)


def tell(report: Report, paths: list[str], as_json: bool) -> None:
    """Print what a campaign did."""
    if as_json:
        told: dict[str, Any] = {"schema": "bandscope-fuzz/1", **report.to_json(), "files": paths}
        print(json.dumps(told))
    else:
        print(show.campaign_text(report))


@contextlib.contextmanager
def fleet(workers: int, ray: str | None) -> Any:
    """Where the cases run."""
    from bandscope.fuzz.campaign import alone

    if ray is not None:
        from bandscope.fuzz.fleet import RayCluster

        with RayCluster(ray) as cluster:
            yield cluster
    elif workers > 1:
        from bandscope.fuzz.fleet import Processes

        with Processes(workers) as processes:
            yield processes
    else:
        given: Fleet = alone
        yield given
