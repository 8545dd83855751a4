"""How large an arena is, and whether it can run anything at all.

The arena's bytes are given, or what the static share of a device's memory leaves beside the weights.
The floor is what one request needs at batch size 1. Targets per band and concurrency come on top of
this (`targets`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from bandscope.allocator.errors import SizingError
from bandscope.allocator.plan import StoragePlan

# Every view's rows start on whole words of this size, whatever their dtype.
ROUND_BYTES = 256

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
ARENA_BYTES_MAX = 1 << 50


def parse_bytes(text: str) -> int:
    """`8GiB`, `500MB`, `4096` → bytes. Raises `SizingError` for anything else, 0 and absurd sizes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise SizingError(
            f"{text!r} was given as a size, but it is not a number with a unit; write it like 8GiB, "
            "500MB or 4096"
        )
    size = int(Decimal(match.group(1)) * unit)  # exact, whatever the number of digits
    if not 0 < size <= ARENA_BYTES_MAX:
        raise SizingError(
            f"{text!r} was given as a size, but sizes lie between 1 byte and 1024 TiB"
        )
    return size


def usable_bytes(total_bytes: int) -> int:
    """`total_bytes` rounded down to whole `ROUND_BYTES`; the rest (< 256 bytes) is left unused."""
    return total_bytes // ROUND_BYTES * ROUND_BYTES


def static_bytes(total_bytes: int, mem_fraction_static: float | Fraction, weights_bytes: int) -> int:
    """The arena's byte budget on a device of `total_bytes`: the static share of it (exact: 0.9 means
    nine tenths), without the weights, which are static too. `SizingError` when nothing is left."""
    share = _share(total_bytes, mem_fraction_static)
    if weights_bytes < 0:
        raise SizingError(f"weights of {weights_bytes:,} bytes were given; give 0 or more")
    if weights_bytes >= share:
        raise SizingError(
            f"{weights_bytes:,} bytes of weights leave nothing for an arena in the static share of "
            f"{share:,} bytes; raise mem_fraction_static, split the model over more ranks or take a "
            "larger device"
        )
    return share - weights_bytes


def _share(total_bytes: int, fraction: float | Fraction) -> int:
    if not 0 < fraction <= 1:
        raise SizingError(
            f"a memory fraction of {fraction} was asked for; give a number above 0 and up to 1"
        )
    exact = Fraction(str(fraction))
    return total_bytes * exact.numerator // exact.denominator


def share_of_memory(total_bytes: int, free_bytes: int, fraction: float) -> int:
    """The arena's bytes when a `fraction` of a device's `total_bytes` is set aside for it."""
    wanted = usable_bytes(_share(total_bytes, fraction))
    if wanted > free_bytes:
        raise SizingError(
            f"{fraction:.0%} of the device's {total_bytes:,} bytes were asked for, but only "
            f"{free_bytes:,} are free; lower the fraction or free memory"
        )
    return wanted


def check_holds_one_page(plan: StoragePlan, total_bytes: int) -> None:
    """`SizingError` unless one page of every band fits beside the sink (the least that is an arena)."""
    terms = {"sink": plan.sink_bytes}
    terms |= {f"one page of {band.name}": band.page_bytes for band in plan.bands}
    _check(plan, total_bytes, terms, [1] * len(plan.bands), "one page of every band")


def floor_pages(
    plan: StoragePlan, context_tokens: int | None = None, *, state_slots: int = 1
) -> list[int]:
    """Pages per band, in chain order, of the one-request floor: the window rows that one request
    holds while it decodes, its state slots, one page of full attention. A window of unstated length
    counts as the whole context."""
    # Here, so that the program's help, which reads sizes, starts without NumPy.
    import numpy as np

    from bandscope.allocator.demand import DemandModel

    # Without a context, a length at which every window is full.
    context = context_tokens or plan.context_length
    longest = max(band.window_length or 1 for band in plan.bands) + 2 * plan.page_size
    row = DemandModel(plan, state_slots).most(np.array(context or longest))
    for index, band in enumerate(plan.bands):
        unbounded = band.kind == "window" and band.window_length is None and context is None
        if band.kind == "full" or unbounded:
            row[index] = 1
    pages: list[int] = row.tolist()
    return pages


def floor_terms(
    plan: StoragePlan, context_tokens: int | None = None, *, state_slots: int = 1
) -> dict[str, int]:
    """The terms of the one-request floor, in bytes: the sink and `floor_pages`."""
    return _terms(plan, floor_pages(plan, context_tokens, state_slots=state_slots))


def check_one_request_floor(
    plan: StoragePlan,
    total_bytes: int,
    context_tokens: int | None = None,
    *,
    state_slots: int = 1,
) -> None:
    """`SizingError` naming every term unless one request at batch size 1 can run."""
    pages = floor_pages(plan, context_tokens, state_slots=state_slots)
    _check(plan, usable_bytes(total_bytes), _terms(plan, pages), pages, "one request")


def _terms(plan: StoragePlan, floor: list[int]) -> dict[str, int]:
    terms = {"sink": plan.sink_bytes}
    for band, pages in zip(plan.bands, floor, strict=True):
        unit = "slot" if band.kind == "state" else "page"
        plural = "s" if band.kind == "window" or pages > 1 else ""
        terms[f"{pages} {unit}{plural} of {band.name}"] = pages * band.page_bytes
    return terms


def _check(
    plan: StoragePlan, total_bytes: int, terms: dict[str, int], pages: list[int], what: str
) -> None:
    rounding = _grid_bytes(plan, pages)
    if rounding:
        terms = {**terms, "rounding to page grids": rounding}
    needed = sum(terms.values())
    if total_bytes < needed:
        listed = " + ".join(f"{name} {size:,}" for name, size in terms.items())
        raise SizingError(
            f"an arena of {total_bytes:,} bytes was asked for {plan.model}, but {what} needs "
            f"{needed:,} bytes ({listed}); make the arena larger or the page size smaller"
        )


def _grid_bytes(plan: StoragePlan, pages: list[int]) -> int:
    """Bytes lost when bands of these sizes are packed, each on the grid of its own pages."""
    lost, start = 0, plan.sink_bytes
    for band, count in zip(plan.bands, pages, strict=True):
        first = -(-start // band.page_bytes) * band.page_bytes
        lost += first - start
        start = first + count * band.page_bytes
    return lost
