"""`bandscope replay`: apply a trace's operations again, and compare, time or ask what if."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bandscope.allocator.errors import ConfigError

if TYPE_CHECKING:
    from bandscope.fuzz.replay_whatif import Change
    from bandscope.inspect.replay_time import TimeReport

DEVICES = ("none", "sim", "cpu", "cuda")
MODES = ("check", "time", "what-if")
_SCHEMA = "bandscope-replay/1"


def replay(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A trace, a program of the fuzzer, or a folder that holds them."
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            help="check (all must be as recorded), time (how fast), or what-if (another arena)."
        ),
    ] = "check",
    device: Annotated[
        str,
        typer.Option(
            help="none (books only), sim (streams on paper: order and content of every access are "
            "checked), cpu or cuda (real bytes, checked)."
        ),
    ] = "none",
    schedule: Annotated[
        str, typer.Option(help="With --device sim: the order in which its streams work.")
    ] = "eager",
    until: Annotated[int | None, typer.Option(help="Stop before this event.")] = None,
    passes: Annotated[
        int | None, typer.Option(help="Replay this many times. [1; with --mode time 5]")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Only the traces of these ranks, like 0,2 or 0..3.")
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Make what this version does the new golden; needs --reason."),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy the case into this corpus; needs --reason."),
    ] = None,
    reason: Annotated[
        str,
        typer.Option(help="With --accept: why this version should decide differently; with --keep: "
                     "why the case is kept."),
    ] = "",
    origin: Annotated[
        str, typer.Option(help="With --keep: where it comes from. [what its recorder says]")
    ] = "",
    program: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the trace as a program for `bandscope fuzz`, and do no more."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Also write the results here as JUnit XML.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE|JSON",
            help="With --mode time: compare with another trace, or with what --json printed before.",
        ),
    ] = None,
    arena_bytes: Annotated[
        str | None,
        typer.Option(help="With --mode what-if: another size, or a sweep like 8GiB..16GiB:5."),
    ] = None,
    page_size: Annotated[
        int | None, typer.Option(help="With --mode what-if: tokens per page.")
    ] = None,
    max_moves: Annotated[
        int | None, typer.Option(help="With --mode what-if: the cap of opportunistic compaction.")
    ] = None,
    barrier: Annotated[
        str | None, typer.Option(help="With --mode what-if: fine, coarse or off.")
    ] = None,
    pools: Annotated[
        bool, typer.Option("--pools", help="With --mode what-if: also separate pools.")
    ] = False,
    evict: Annotated[
        str | None,
        typer.Option(help="With --mode what-if: cached prefixes go by lru or by joint_lru."),
    ] = None,
    read_as: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="torch|rmm",
            help="Take TRACE for a PyTorch memory snapshot or an RMM log; needs --record.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="NAME", help="With --from: record it as NAME.trace, and do no more."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of text.")] = False,
) -> None:
    """Replay a trace, or every trace and program of a folder.

    Exit status: 0 the same, 1 diverged, 2 unusable trace or bad usage.
    """
    for option, value, known in (("--mode", mode, MODES), ("--device", device, DEVICES)):
        if value not in known:
            raise ConfigError(
                f"{option} {value} was asked for, but the {option[2:]}s are {', '.join(known)}"
            )
    if (read_as is None) != (record is None):
        raise ConfigError("--from and --record go together: what to read, and the trace to write")
    if read_as is not None and record is not None:
        _belongs(mode, "check", True, "--from")
        _import(path, read_as, record, as_json)
        return
    if passes is None:
        passes = 5 if mode == "time" else 1
    if passes < 1:
        raise ConfigError(f"--passes {passes} was asked for; give 1 or more")
    changes = (arena_bytes, page_size, max_moves, barrier, evict, pools or None)
    _belongs(mode, "what-if", any(change is not None for change in changes), "what is different")
    _belongs(mode, "time", against is not None, "--against")
    _belongs(mode, "check", accept or junit is not None or bool(reason), "--accept and --junit")
    if reason and not accept and keep is None:
        raise ConfigError("--reason was given without --accept or --keep; say what it is for")
    if keep is not None or program is not None:
        _belongs(mode, "check", True, "--keep and --program")
        _keep(path, keep, reason, origin, program, until)
        return
    if mode == "time":
        _time(path, device, until, passes, against, as_json)
    elif mode == "what-if":
        from bandscope.fuzz.replay_whatif import Change, parse_sweep

        sizes: list[int | None] = [None]
        if arena_bytes is not None:
            sizes = list(parse_sweep(arena_bytes))
        wanted = [Change(size, page_size, max_moves, barrier, evict=evict) for size in sizes]
        if pools:
            wanted += [Change(size, page_size, pools=True) for size in sizes]
        _what_if(path, [change for change in wanted if not change.is_none], until, as_json)
    else:
        chosen = _parse_ranks(ranks)
        status = _check(
            path, chosen, device, schedule, until, passes, accept, reason, junit, as_json
        )
        if status:
            raise typer.Exit(status)


def _belongs(mode: str, needed: str, given: bool, what: str) -> None:
    if given and mode != needed:
        raise ConfigError(f"{what} goes with --mode {needed}, but the mode is {mode}")


def _parse_ranks(text: str | None) -> set[int] | None:
    """`0,2` or `0..3` → the numbers; None for None."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})\.\.(\d{1,6})", text)
    if match is not None:
        return set(range(int(match[1]), int(match[2]) + 1))
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{1,6}", part) for part in parts):
        raise ConfigError(f"--ranks {text} was given; write numbers like 0,2 or 0..3")
    return {int(part) for part in parts}


def _check(
    path: Path,
    ranks: set[int] | None,
    device: str,
    schedule: str,
    until: int | None,
    passes: int,
    accept: bool,
    reason: str,
    junit: Path | None,
    as_json: bool,
) -> int:
    """The exit status: that of the worst case."""
    from bandscope.fuzz.replay_corpus import UNUSABLE, accept_case, cases_of, replay_cases
    from bandscope.fuzz.replay_junit import write_junit
    from bandscope.inspect.reader import as_json as spell
    from bandscope.tui.commands.replay_text import print_case, print_summary

    if accept and not reason.strip():
        raise ConfigError(
            "--accept was given without a reason; say with --reason why this version should decide "
            "differently"
        )
    paths = cases_of(path, ranks)
    single = len(paths) == 1 and paths[0] == path
    results = []
    for result in replay_cases(
        paths, device=device, schedule=schedule, until=until, passes=passes
    ):
        if single and result.status == UNUSABLE:
            raise ConfigError(result.message)
        results.append(result)
        if not as_json:
            print_case(result, pictures=not accept)
        if result.status == "diverged" and accept and result.number == 1:
            accept_case(result.path, reason)
            if not as_json:
                print(f"  accepted as the new golden of {result.path}: {reason}")
    if as_json:
        told = {
            "schema": _SCHEMA,
            "device": device,
            "accepted": accept,
            "replays": [result.to_json() for result in results],
        }
        print(spell(told))
    elif not single:
        print_summary(results)
    if junit is not None:
        write_junit(junit, results, device)
    left = [r.exit_status for r in results if not (accept and r.status == "diverged")]
    return max(left, default=0)


def _keep(
    path: Path,
    folder: Path | None,
    reason: str,
    origin: str,
    program: Path | None,
    until: int | None,
) -> None:
    from bandscope.fuzz.replay_corpus import keep_case, write_as_program

    if program is not None:
        steps = write_as_program(path, program, until)
        print(f"{program}: {steps:,} steps; run it with `bandscope fuzz reproduce {program}`")
    if folder is not None:
        print(f"{keep_case(path, folder, reason, origin)}: kept. {reason}")


def _import(path: Path, form: str, name: Path, as_json: bool) -> None:
    from bandscope.fuzz.replay_import import import_capture
    from bandscope.inspect.reader import as_json as spell
    from bandscope.tui.commands.replay_tables import print_import

    report = import_capture(path, form, name)
    if as_json:
        print(spell({"schema": "bandscope-import/1", **report.to_json()}))
    else:
        print_import(path, report)


def _time(
    path: Path, device: str, until: int | None, passes: int, against: Path | None, as_json: bool
) -> None:
    from bandscope.fuzz.replay_corpus import cases_of
    from bandscope.fuzz.replay_engine import open_timed
    from bandscope.inspect.reader import as_json as spell
    from bandscope.inspect.reader import open_trace
    from bandscope.inspect.replay_time import SCHEMA, ratio, read_times, time_trace
    from bandscope.tui.commands.replay_tables import print_ratios, print_times

    def timed(given: Path) -> list[TimeReport]:
        traces = [open_trace(each) for each in cases_of(given) if not each.name.endswith(".json")]
        return [
            time_trace(trace, until=until, passes=passes, device=lambda: open_timed(device))
            for trace in traces
        ]

    others: list[TimeReport] = []
    if against is not None:
        others = read_times(against) if against.is_file() else timed(against)
    reports = timed(path)
    if not reports:
        raise ConfigError(f"{path} holds no trace, and programs are not timed; name a trace")
    by_name = {Path(other.trace).name: other for other in others}
    pairs = []
    for report in reports:
        other = by_name.get(Path(report.trace).name, others[0] if len(others) == 1 else None)
        if other is not None:
            pairs.append((report, other, ratio(report, other)))
    if against is not None and not pairs:
        raise ConfigError(
            f"--against {against} holds times of {', '.join(by_name) or 'nothing'}, none of which was "
            "timed now; compare traces of the same name"
        )
    if as_json:
        ratios = [
            {"trace": mine.trace, "against": other.trace, **found.__dict__}
            for mine, other, found in pairs
        ]
        print(spell({"schema": SCHEMA, "times": [r.to_json() for r in reports], "ratios": ratios}))
        return
    for report in reports:
        print_times(report)
    print_ratios(pairs)


def _what_if(path: Path, changes: list[Change], until: int | None, as_json: bool) -> None:
    from bandscope.fuzz.replay_whatif import what_if
    from bandscope.inspect.reader import as_json as spell
    from bandscope.inspect.reader import open_trace
    from bandscope.tui.commands.replay_tables import print_what_if

    if not changes:
        raise ConfigError(
            "--mode what-if was asked for, but nothing is different; give --arena-bytes, --page-size, "
            "--max-moves, --barrier, --evict or --pools"
        )
    rows = what_if(open_trace(path), changes, stop=until)
    if as_json:
        told = [row.to_json() for row in rows]
        print(spell({"schema": "bandscope-replay-what-if/1", "trace": str(path), "rows": told}))
    else:
        print_what_if(path, rows)
