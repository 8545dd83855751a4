"""`bandscope size`: what an arena holds of a model, what bounds it, and where bytes are lost."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bandscope.allocator.errors import SizingError
from bandscope.allocator.sizing import parse_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bandscope.allocator.plan import StoragePlan
    from bandscope.allocator.sizing_sheet import LengthFigures, Sheet
    from bandscope.allocator.targets import SizingOptions

MEM_FRACTION_STATIC = "0.9"
LENGTHS = "1024,8192,32768,131072"


def size(
    model: Annotated[
        list[str],
        typer.Option(help="A preset name, a config.json, or the folder that holds one; repeatable."),
    ],
    gpu: Annotated[
        list[str] | None, typer.Option(help="A GPU of the table, like h200; repeatable.")
    ] = None,
    arena_bytes: Annotated[
        list[str] | None, typer.Option(help="Sizes of arenas instead of GPUs, like 8GiB; repeatable.")
    ] = None,
    mem_fraction_static: Annotated[
        str, typer.Option(help="Share of a GPU's memory for weights and arena.")
    ] = MEM_FRACTION_STATIC,
    weights_bytes: Annotated[
        str | None, typer.Option(help="Weights on one rank, like 13GB; taken off the static share.")
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        typer.Option(help="Use the smallest arena whose sizing gives this many full tokens."),
    ] = None,
    max_running_requests: Annotated[
        int | None, typer.Option(help="Requests at once to size for.")
    ] = None,
    swa_full_tokens_ratio: Annotated[
        str, typer.Option(help="Window tokens per full-attention token, as a target.")
    ] = "0.8",
    mamba_full_memory_ratio: Annotated[
        str, typer.Option(help="State bytes per byte of all token bands, as a target.")
    ] = "0.9",
    max_mamba_cache_size: Annotated[
        int | None, typer.Option(help="State slots as a target, instead of the ratio.")
    ] = None,
    page_size: Annotated[int, typer.Option(help="Tokens per page.")] = 16,
    tensor_parallel: Annotated[int, typer.Option(help="Ranks that share the heads.")] = 1,
    context_length: Annotated[
        int | None, typer.Option(help="Longest request, in tokens. [the model's own]")
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Prefill tokens per step.")] = 8192,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Type of KV rows, like fp8_e4m3. [the model's own]")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths of requests to count, prompt and output, in tokens.")
    ] = LENGTHS,
    as_json: Annotated[bool, typer.Option("--json", help="Plain data instead of tables.")] = False,
) -> None:
    """Size arenas: one sheet for one model on one GPU, a table for several of them.

    Exit status: 0 sized, 2 bad input, or nothing asked for can run.
    """
    asked = _lengths(lengths)
    options = _options(
        max_total_tokens=max_total_tokens,
        max_running_requests=max_running_requests,
        swa_full_tokens_ratio=_ratio("--swa-full-tokens-ratio", swa_full_tokens_ratio),
        mamba_full_memory_ratio=_ratio("--mamba-full-memory-ratio", mamba_full_memory_ratio),
        max_mamba_cache_size=max_mamba_cache_size,
        context_length=context_length,
        chunk_tokens=chunk_tokens,
    )
    budgets = _budgets(
        gpu or [],
        arena_bytes or [],
        _ratio("--mem-fraction-static", mem_fraction_static),
        0 if weights_bytes is None else parse_bytes(weights_bytes),
    )
    plans = [_plan(name, page_size, tensor_parallel, kv_dtype) for name in model]
    sized = [
        (place, plan, _sheet(plan, budget, options, asked))
        for plan in plans
        for place, budget in budgets
    ]
    failures = [found for _, _, found in sized if isinstance(found, SizingError)]
    if len(failures) == len(sized):
        raise failures[0]
    if as_json:
        print(json.dumps([_to_json(*entry) for entry in sized], indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if len(sized) == 1:
        place, _, found = sized[0]
        assert not isinstance(found, SizingError)
        _print_sheet(console, place, found, options)
    else:
        console.print(_comparison(sized))


# --- input ------------------------------------------------------------------------------------------


def _lengths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 1 << 30 for part in parts):
        raise SizingError(
            f"lengths of {text!r} were asked for; give tokens from 1 up, separated by commas, like "
            "1024,32768"
        )
    return sorted({int(part) for part in parts})


def _ratio(option: str, text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise SizingError(f"{option} {text!r} is not a number; write it like 0.8") from None


def _options(**values: Any) -> SizingOptions:
    from bandscope.allocator.targets import SizingOptions

    return SizingOptions(**values)


def _budgets(
    gpus: list[str], sizes: list[str], fraction: Fraction, weights_bytes: int
) -> list[tuple[str, int]]:
    """Names and bytes of the arenas asked for."""
    from bandscope.allocator.sizing import static_bytes
    from bandscope.allocator.sizing_gpus import gpu_bytes

    if not gpus and not sizes:
        raise SizingError("no memory was named; give --gpu, like h200, or --arena-bytes, like 8GiB")
    budgets = [
        (name.lower(), static_bytes(gpu_bytes(name), fraction, weights_bytes)) for name in gpus
    ]
    return budgets + [(text, parse_bytes(text)) for text in sizes]


def _plan(name: str, page_size: int, tensor_parallel: int, kv_dtype: str | None) -> StoragePlan:
    from bandscope.allocator.families import declare_model
    from bandscope.allocator.plan import plan_storage

    declared = declare_model(name, tensor_parallel=tensor_parallel, kv_dtype=kv_dtype)
    return plan_storage(declared, page_size=page_size)


def _sheet(
    plan: StoragePlan, budget: int, options: SizingOptions, lengths: list[int]
) -> Sheet | SizingError:
    from bandscope.allocator.sizing_sheet import make_sheet
    from bandscope.allocator.targets import size_arena

    context = options.context_length or plan.context_length
    within = [length for length in lengths if context is None or length <= context]
    try:
        return make_sheet(size_arena(plan, budget, options), options, within)
    except SizingError as error:
        return error


def _to_json(place: str, plan: StoragePlan, found: Sheet | SizingError) -> dict[str, Any]:
    if isinstance(found, SizingError):
        return {"place": place, "model": plan.model, "error": str(found)}
    return {"place": place, **found.to_json()}


# --- one sheet --------------------------------------------------------------------------------------


def _print_sheet(console: Console, place: str, sheet: Sheet, options: SizingOptions) -> None:
    import numpy as np

    from bandscope.allocator.demand import spell_demand
    from bandscope.allocator.sizing import floor_pages
    from bandscope.tui.units import spell_bytes

    targets, plan = sheet.targets, sheet.targets.plan
    ranks = f", 1 of {plan.tensor_parallel} ranks" if plan.tensor_parallel > 1 else ""
    console.print(
        f"{plan.model} on {place}{ranks}: arena {spell_bytes(targets.arena_bytes)} "
        f"({targets.arena_bytes:,} bytes of a budget of {targets.budget_bytes:,}), "
        f"pages of {plan.page_size} tokens"
    )
    console.print(_bands_table(sheet))
    console.print(
        f"concurrency {targets.concurrency:,}, bounded by {targets.bounded_by} "
        f"({', '.join(f'{name} {value:,}' for name, value in targets.bounds.items())})"
    )
    context = "" if plan.context_length is None else f", context length {plan.context_length:,}"
    console.print(f"longest request alone {sheet.longest_request:,} tokens{context}")
    floor = np.array(floor_pages(plan, options.context_length, state_slots=options.state_slots))
    console.print(f"one request needs at least {spell_demand(plan, floor)}")
    if sheet.lengths:
        console.print(_lengths_table(sheet.lengths))
        console.print(_waste_table(sheet.lengths))


def _bands_table(sheet: Sheet) -> Table:
    table = _table(
        "band", "layers", "entry bytes", "padding", "page bytes", "target", "bytes", "share"
    )
    targets = sheet.targets
    for band, pages in zip(targets.plan.bands, targets.pages, strict=True):
        what = "slots" if band.kind == "state" else "tokens"
        held = pages * band.page_bytes
        table.add_row(
            band.name,
            str(len(band.layers)),
            f"{band.entry_bytes:,}",
            f"{band.padding_bytes:,}",
            f"{band.page_bytes:,}",
            f"{pages * band.page_size:,} {what}",
            f"{held:,}",
            f"{held / targets.arena_bytes:.1%}",
        )
    return table


def _lengths_table(lengths: tuple[LengthFigures, ...]) -> Table:
    table = _table(
        "tokens", "bytes per request", "bytes per token", "fit at once", "run at once", "bound by"
    )
    for figures in lengths:
        table.add_row(
            f"{figures.tokens:,}",
            f"{figures.request_bytes:,}",
            f"{figures.bytes_per_token:,.0f}",
            f"{figures.at_once:,}",
            f"{figures.concurrency:,}",
            "memory" if figures.bounded_by.startswith("memory") else figures.bounded_by,
        )
    return table


def _waste_table(lengths: tuple[LengthFigures, ...]) -> Table:
    table = _table(
        "filled with", "rows in use", "sink", "page rounding", "padding", "grid residue", "unused"
    )
    for figures in lengths:
        waste = figures.waste
        table.add_row(
            f"{figures.at_once:,} × {figures.tokens:,}",
            f"{waste.payload / waste.total:.2%}",
            *(
                f"{value:,}"
                for value in (
                    waste.sink, waste.page_rounding, waste.padding, waste.grid_residue, waste.unused
                )
            ),
        )  # fmt: skip
    return table


# --- many sheets ------------------------------------------------------------------------------------


def _comparison(sized: list[tuple[str, StoragePlan, Sheet | SizingError]]) -> Table:
    from bandscope.tui.units import spell_bytes

    sheets = [found for _, _, found in sized if not isinstance(found, SizingError)]
    lengths = sorted({figures.tokens for sheet in sheets for figures in sheet.lengths})
    table = _table(
        "model", "memory", "arena", "full tokens", "window tokens", "state slots", "concurrency",
        "longest request", *(f"× {length:,}" for length in lengths), text_columns=2,
    )  # fmt: skip
    for place, plan, found in sized:
        if isinstance(found, SizingError):
            table.add_row(plan.model, place, "does not fit")
            continue
        tokens = found.targets.tokens
        windows = [f"{tokens[band.name]:,}" for band in plan.windows]
        at_once = {figures.tokens: f"{figures.at_once:,}" for figures in found.lengths}
        table.add_row(
            plan.model,
            place,
            spell_bytes(found.targets.arena_bytes),
            f"{tokens['full']:,}",
            " + ".join(windows) or "–",
            f"{tokens['mamba']:,}" if plan.has_state else "–",
            f"{found.targets.concurrency:,}",
            f"{found.longest_request:,}",
            *(at_once.get(length, "–") for length in lengths),
        )
    return table


def _table(*columns: str, text_columns: int = 1) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < text_columns else "right", overflow="fold")
    return table
