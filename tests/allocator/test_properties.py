"""Properties of tables, bands, chains, plans and views for any input, found and shrunk by Hypothesis.

Fixed seeds and no database: the same examples in every run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bandscope.allocator.arena import Arena
from bandscope.allocator.band import LIVE, Band
from bandscope.allocator.chain import Chain, Held
from bandscope.allocator.decl import (
    MHA,
    FullLifetime,
    LayerDecl,
    ModelDecl,
    Part,
    State,
    StateLifetime,
    StateTensor,
    WindowLifetime,
)
from bandscope.allocator.errors import SizingError
from bandscope.allocator.layout import layer_view
from bandscope.allocator.plan import StoragePlan, plan_from_sizes, plan_storage
from bandscope.allocator.relocation import plan_layout
from bandscope.allocator.sizing import parse_bytes, usable_bytes
from bandscope.allocator.tables import IdSpace, PageTable

COMMON = settings(max_examples=120, deadline=None, derandomize=True, database=None)

page_sizes = st.sampled_from([1, 2, 4, 16, 64])
window_names = st.one_of(st.just("window"), st.integers(1, 200).map(lambda n: f"window_{n}"))


@st.composite
def plans(draw: Callable[..., Any], bytes_max: int = 40) -> StoragePlan:
    """A plan of 2 to 5 bands in any order, page bytes up to `bytes_max` an entry."""
    page_size = draw(page_sizes)
    state = draw(st.booleans())
    names = ["full"] + ["mamba"] * state
    names += draw(st.lists(window_names, unique=True, min_size=1 - state, max_size=5 - len(names)))
    order = draw(st.permutations(names))
    entry_bytes = [draw(st.integers(1, bytes_max)) for _ in names]
    return plan_from_sizes(
        [
            (name, size * (1 if name == "mamba" else page_size))
            for name, size in zip(order, entry_bytes, strict=True)
        ],
        page_size=page_size,
    )


# --- ids and tables -------------------------------------------------------------------------------


@COMMON
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from("mint release restore".split()), st.integers(0, 40))),
)
def test_an_id_space_agrees_with_sets(capacity: int, steps: list[tuple[str, int]]) -> None:
    """Ids are free or held, never both; each release begins a new generation; a restored space gives
    the ids that the other one gives."""
    space, held = IdSpace(capacity), set[int]()
    generation = [0] * capacity
    for what, count in steps:
        if what == "mint":
            minted = space.mint(min(count, space.free_count)).tolist()
            assert not held & set(minted) and len(set(minted)) == len(minted)
            assert all(0 <= number < capacity for number in minted)
            held |= set(minted)
        elif what == "release":
            gone = sorted(held)[:count]
            space.release(np.array(gone, np.int64))
            held -= set(gone)
            for number in gone:
                generation[number] += 1
        else:
            state = space.snapshot()
            again = IdSpace(capacity)
            again.mint(count % (capacity + 1))
            again.restore(state)
            copy = IdSpace(capacity)
            copy.restore(state)
            assert again.mint(again.free_count).tolist() == copy.mint(copy.free_count).tolist()
            space = IdSpace(capacity)
            space.restore(state)
        assert space.free_count == capacity - len(held)
        assert np.flatnonzero(space.bound).tolist() == sorted(held)
        assert space.generation.tolist() == generation


@COMMON
@given(st.lists(st.tuples(st.sampled_from(["bind", "unbind", "move", "publish"]), st.integers(1, 9))))
def test_a_table_agrees_with_a_dictionary(steps: list[tuple[str, int]]) -> None:
    """Both directions are inverse, and what is published is what changed since."""
    table, naive = PageTable(64, 48), dict[int, int]()
    published = dict[int, int]()
    for what, count in steps:
        free_ids = [v for v in range(64) if v not in naive]
        free_places = [p for p in range(48) if p not in naive.values()]
        count = min(count, len(free_places))
        if what == "bind":
            new = dict(zip(free_ids[::-1][:count], free_places[:count], strict=True))
            table.bind(np.array(list(new), np.int64), np.array(list(new.values()), np.int64))
            naive |= new
        elif what == "unbind":
            gone = list(naive)[:count]
            places = table.unbind(np.array(gone, np.int64))
            assert places.tolist() == [naive.pop(v) for v in gone]
        elif what == "move":
            movers = list(naive)[:count]
            sources = np.array([naive[v] for v in movers], np.int64)
            targets = free_places[-len(movers) :] if movers else []
            moved = table.rebind(sources, np.array(targets, np.int64))
            assert moved.tolist() == movers
            naive |= dict(zip(movers, targets, strict=True))
        else:
            rows = table.take_unpublished().tolist()
            assert rows == sorted(set(rows))
            for v in rows:
                published[v] = int(table.place_of[v])
            assert {v: p for v, p in published.items() if p >= 0} == naive
            assert not table.has_unpublished
        assert {v: int(p) for v, p in enumerate(table.place_of) if p >= 0} == naive
        assert {int(v): p for p, v in enumerate(table.virtual_at) if v >= 0} == naive


# --- bands and chains -----------------------------------------------------------------------------


@COMMON
@given(plans(), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_places_bytes_and_pages_are_one_coordinate(
    plan: StoragePlan, extra: int, start: int, size: int
) -> None:
    """`places_within` gives exactly the whole pages inside, above the sink, whatever the grid."""
    total = plan.sink_bytes + extra
    for index, band_plan in enumerate(plan.bands):
        band = Band(band_plan, index, total, plan.sink_bytes, 10)
        stop = min(total, start + size)
        low, high = band.places_within(min(start, total), stop)
        inside = [
            page
            for page in range(total // band.page_bytes + 1)
            if max(start, plan.sink_bytes) <= page * band.page_bytes
            and (page + 1) * band.page_bytes <= stop
        ]
        places = np.arange(low, high)
        assert sorted(band.physical(places).tolist()) == inside
        assert band.places_of_physical(band.physical(places)).tolist() == places.tolist()
        if high > low:
            first, last = band.byte_range(low, high)
            assert (first, last) == (
                inside[0] * band.page_bytes, (inside[-1] + 1) * band.page_bytes,
            )  # fmt: skip
            assert start <= first < last <= stop


def chain_with(plan: StoragePlan, total: int, pages: list[int], gone: list[int]) -> Chain:
    """A chain whose bands took `pages` each as they fit, some of which were dropped again."""
    bands = [
        Band(band, index, total, plan.sink_bytes, total // band.page_bytes + 1)
        for index, band in enumerate(plan.bands)
    ]
    chain = Chain(bands, plan.sink_bytes, total)
    for index, count in enumerate(pages):
        regions = chain.grant([count if at == index else 0 for at in range(len(bands))])
        if regions is not None and count:
            band = bands[index]
            places = band.take(count, *regions[index])
            band.table.bind(np.flatnonzero(band.table.place_of < 0)[:count], places)
            leaves = np.array(sorted({n % count for n in gone}), np.int64)
            dropped = places[leaves]
            band.table.unbind(band.table.virtual_at[dropped])
            band.drop(dropped, pending=False)
            band.absorb()
    return chain


spare_bytes = st.one_of(st.integers(0, 200), st.integers(0, 1500))
counts = st.lists(st.integers(0, 12), min_size=5, max_size=5)


@settings(COMMON, max_examples=500)
@given(plans(12), spare_bytes, counts, st.lists(st.integers(0, 11), max_size=8), counts)
def test_what_can_be_granted_can_be_packed_and_what_packs_has_a_layout(
    plan: StoragePlan, extra: int, pages: list[int], gone: list[int], wanted: list[int]
) -> None:
    """For one demand: `grant` implies `pack`, `pack` is the same as `plan_layout`, less is served when
    more is, nothing that can be granted needs a move, and regions hold what they should."""
    bands = len(plan.bands)
    total = usable_bytes(plan.sink_bytes + extra + 256)
    chain = chain_with(plan, total, pages[:bands], gone)
    demand = wanted[:bands]
    held = [Held(b.live + d) for b, d in zip(chain.bands, demand, strict=True)]
    granted, packed, layout = chain.grant(demand), chain.pack(held), plan_layout(chain, held)
    assert (packed is None) == (layout is None)
    if granted is not None:
        assert layout is not None and layout.moved_bytes == 0
        edge = chain.sink_bytes
        for band, want, (low, high) in zip(chain.bands, held, granted, strict=True):
            assert high - low >= want.pages
            assert not band.extent or low <= band.low and band.high <= high
            if high > low:
                start, end = band.byte_range(low, high)
                assert edge <= start and end <= total
                edge = end
    if packed is None or layout is None:
        more = [Held(h.pages + 1) for h in held]
        assert chain.pack(more) is None
        return
    less = [Held(max(b.live, h.pages - 1)) for b, h in zip(chain.bands, held, strict=True)]
    fewer = plan_layout(chain, less)
    assert fewer is not None and fewer.moved_bytes <= layout.moved_bytes
    assert all(top <= total for top in packed) and packed == sorted(packed)
    floors = chain.pack_down(held)
    stop = chain.sink_bytes
    for band, want, region, top, floor in zip(
        chain.bands, held, layout.regions, packed, floors, strict=True
    ):
        low, high = region
        assert high - low >= want.pages
        if want.pages:
            start, end = band.byte_range(low, high)
            assert stop <= start and end <= total
            assert top - want.pages * band.page_bytes <= floor  # packed down is above packed low
            stop = end
    for move in layout.moves:
        state, region = move.band.state, layout.regions[move.band.index]
        assert (state[move.sources] == LIVE).all()
        assert not set(move.sources.tolist()) & set(move.destinations.tolist())
        assert (state[move.destinations] != LIVE).all()
        assert ((move.destinations >= region[0]) & (move.destinations < region[1])).all()
        assert ((move.sources < region[0]) | (move.sources >= region[1])).all()
        # Holes that lie inside are filled before the extent grows.
        band, inside = move.band, range(*region)
        holes = [n for n in band.holes_between(band.low, band.high).tolist() if n in inside]
        filled = set(holes) & set(move.destinations.tolist())
        assert len(filled) == min(len(holes), move.sources.size)


# --- plans, sizes, views --------------------------------------------------------------------------


@COMMON
@given(plans())
def test_a_plan_is_the_same_in_any_order_and_through_json(plan: StoragePlan) -> None:
    """Bands lie by retention however they were named; a file gives the plan back."""
    given_bands = [(band.name, band.page_bytes) for band in plan.bands]
    for order in (given_bands[::-1], sorted(given_bands)):
        assert plan_from_sizes(order, page_size=plan.page_size) == plan
    assert StoragePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    kinds = [band.kind for band in plan.bands]
    assert kinds == sorted(kinds, key=["state", "window", "full"].index)
    lengths = [float("inf") if w.window_length is None else w.window_length for w in plan.windows]
    assert lengths == sorted(lengths, reverse=True)
    assert [band.end for band in plan.bands] == ["low", *["float"] * (len(kinds) - 2), "high"]
    assert plan.sink_bytes == max(band.page_bytes for band in plan.bands)


@COMMON
@given(plans(), st.integers(0, 1 << 13))
def test_an_arena_of_any_size_is_refused_or_whole(plan: StoragePlan, total: int) -> None:
    """One page of each band fits exactly when the arena is made; no byte of it is unaccounted for, and
    a refusal names the bytes it needs, which are enough and not one unit too many."""
    try:
        arena = Arena(plan, total, device="none")
    except SizingError as error:
        needed = int(str(error).split(" needs ")[1].split(" bytes")[0].replace(",", ""))
        assert usable_bytes(total) < needed
        enough = -(-needed // 256) * 256
        assert Arena(plan, enough, device="none").serves([1] * len(plan.bands))
        with pytest.raises(SizingError):
            Arena(plan, enough - 256, device="none")
        return
    assert arena.serves([1] * len(plan.bands))
    assert arena.total_bytes == usable_bytes(total)
    gaps = sum(stop - start for start, stop in arena.books.chain.gaps())
    assert plan.sink_bytes + gaps == arena.total_bytes
    for band in arena.books.bands:  # each alone may fill it
        alone = [band.capacity if at == band.index else 0 for at in range(len(plan.bands))]
        assert arena.serves(alone)
        alone[band.index] += 1
        assert not arena.serves(alone)


@COMMON
@given(st.integers(1, 1 << 50), st.sampled_from(["", "B", "KiB", "MiB", "GiB", "kb", "MB", "g"]))
def test_sizes_are_read_exactly(number: int, unit: str) -> None:
    """A number with a unit is that many bytes, or refused for being more than any arena."""
    factor = {
        "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kb": 1000, "MB": 10**6,
        "g": 1 << 30,
    }[unit]  # fmt: skip
    if number * factor > 1 << 50:
        with pytest.raises(SizingError):
            parse_bytes(f"{number}{unit}")
    else:
        assert parse_bytes(f"{number} {unit}") == number * factor


@st.composite
def models(draw: Callable[..., Any]) -> ModelDecl:
    """A model of a few layers: full attention, maybe windows, maybe state."""
    geometry = st.builds(MHA, st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))
    full, window = draw(geometry), draw(geometry)
    tensors = tuple(
        StateTensor(name, tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))), dtype)
        for name, dtype in (("conv", "bfloat16"), ("temporal", "float32"))
    )
    parts = [Part(full, FullLifetime())]
    kinds = draw(st.lists(st.sampled_from(["full", "window", "state", "both"]), min_size=1, max_size=6))
    assume(set(kinds) != {"full"})
    layers = [LayerDecl(0, tuple(parts))]
    for index, kind in enumerate(kinds, start=1):
        wanted = {
            "full": [Part(full, FullLifetime())],
            "window": [Part(window, WindowLifetime(16))],
            "state": [Part(State("s", tensors), StateLifetime())],
            "both": [Part(full, FullLifetime()), Part(State("s", tensors), StateLifetime())],
        }[kind]
        layers.append(LayerDecl(index, tuple(wanted)))
    return ModelDecl("toy", "toy", 4096, tuple(layers))


@settings(COMMON, max_examples=60)
@given(models(), st.sampled_from([1, 4, 16]), st.sampled_from([4, 16, 64]))
def test_rows_lie_in_their_entry_and_views_share_no_byte(
    model: ModelDecl, page_size: int, alignment: int
) -> None:
    """Rows are aligned, in order and inside; the views of a band name each of its payload bytes once."""
    plan = plan_storage(model, page_size=page_size, alignment_bytes=alignment)
    total = usable_bytes(plan.sink_bytes + 3 * sum(band.page_bytes for band in plan.bands) + 256)
    for band in plan.bands:
        end = 0
        for row in band.rows:
            assert row.offset_bytes % alignment == 0 and row.offset_bytes >= end
            end = row.offset_bytes + row.row_bytes
        assert end <= band.entry_bytes and band.entry_bytes % alignment == 0
        assert band.payload_bytes == sum(row.row_bytes for row in band.rows)
        touched = np.zeros(total, np.int64)
        for row in band.rows:
            buffer = torch.zeros(total, dtype=torch.uint8)
            view = layer_view(plan, buffer, row.layer, row.name)
            lead = (view.shape[0],) if band.kind == "state" else (view.shape[0], page_size)
            assert tuple(view.shape) == (*lead, *row.shape)
            view.view(torch.int16 if view.element_size() == 2 else torch.int32)[:] = -1
            touched += buffer.numpy() > 0
        assert touched.max() == 1
        pages = total // band.page_bytes
        assert touched.sum() == pages * band.page_size * band.payload_bytes
