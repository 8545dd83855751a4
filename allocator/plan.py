"""From a model's layers to bands: which there are, in which order, and what an entry looks like.

Parts of one lifetime become one band. A band's *entry* is every layer's row for one token (or one
state slot), back to back, layers in order; `page_size` entries are a page. Bands lie by retention:
state at the low end, windows from the longest to the shortest as floats, full attention at the high
end. Without state the longest window is the low end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bandscope.allocator.decl import (
    MLA,
    FullLifetime,
    Geometry,
    Lifetime,
    ModelDecl,
    Row,
    StateLifetime,
    WindowLifetime,
)
from bandscope.allocator.errors import ConfigError, UnsupportedModelError

BandKind = Literal["full", "window", "state"]
BandEnd = Literal["low", "float", "high"]

FULL_BAND = "full"
STATE_BAND = "mamba"
WINDOW_BAND = "window"
PLAN_SCHEMA = "bandscope-plan/1"


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One layer's row inside an entry. `shape` is per token or slot; offsets are in bytes."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class BandPlan:
    """One band. `page_size` is in tokens (1 for state); `payload_bytes` is an entry's rows alone.

    `window_length` is in tokens, None where there is no window or its length is not stated. A
    synthetic band (`plan_from_sizes`) has no rows.
    """

    name: str
    kind: BandKind
    window_length: int | None
    end: BandEnd
    page_size: int
    entry_bytes: int
    payload_bytes: int
    rows: tuple[RowPlan, ...]

    @property
    def page_bytes(self) -> int:
        return self.page_size * self.entry_bytes

    @property
    def padding_bytes(self) -> int:
        """Bytes of an entry that no row uses."""
        return self.entry_bytes - self.payload_bytes

    @property
    def row_count(self) -> int:
        return len(self.rows)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that keep rows here, in order."""
        return tuple(sorted({row.layer for row in self.rows}))


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Every band of one rank, in byte order from low to high."""

    model: str
    family: str
    context_length: int | None
    page_size: int
    tensor_parallel: int
    bands: tuple[BandPlan, ...]

    @property
    def sink_bytes(self) -> int:
        """Low bytes of the arena for padding writes: room for a page of any band."""
        return max(band.page_bytes for band in self.bands)

    @property
    def has_state(self) -> bool:
        return any(band.kind == "state" for band in self.bands)

    @property
    def windows(self) -> tuple[BandPlan, ...]:
        """The window bands, longest first."""
        return tuple(band for band in self.bands if band.kind == "window")

    def band(self, name: str) -> BandPlan:
        """The band called `name`; `ConfigError` lists the names there are."""
        for band in self.bands:
            if band.name == name:
                return band
        names = ", ".join(band.name for band in self.bands)
        raise ConfigError(f"band {name!r} was asked for, but the plan has {names}; choose one")

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file; `from_json` gives the plan back."""
        # Through text, so that tuples are lists here as they will be in the file.
        return {"schema": PLAN_SCHEMA, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoragePlan:
        """The plan that `to_json` wrote; `ConfigError` names what is missing or wrong."""
        if data.get("schema") != PLAN_SCHEMA:
            raise ConfigError(
                f"a plan of schema {data.get('schema')!r} was given, but {PLAN_SCHEMA!r} is read; "
                "write it again with this version"
            )
        page_size = _take(data, "page_size", int)
        _check_page_size(page_size)
        stored = {_take(each, "name", str): each for each in _take(data, "bands", list)}
        plan = cls(
            _take(data, "model", str),
            _take(data, "family", str),
            _take(data, "context_length", int | None),
            page_size,
            _take(data, "tensor_parallel", int),
            tuple(
                _band_from_json(slot, stored[slot.name], page_size)
                for slot in _in_order([(name, _parse_name(name)) for name in stored])
            ),
        )
        # All else follows from what was taken, so a plan that was tampered with cannot be read.
        written = plan.to_json()
        for name, value in written.items():
            if data.get(name) != value:
                raise ConfigError(
                    f"a plan's field {name!r} is {data.get(name)!r} but its other fields make it "
                    f"{value!r}; write the plan again"
                )
        return plan


def plan_storage(
    model: ModelDecl,
    *,
    page_size: int = 16,
    alignment_bytes: int = 16,
    tensor_parallel: int = 1,
) -> StoragePlan:
    """The bands of `model`: entries token-major, layers in order, inside a layer its rows in order.

    `page_size` is in tokens. Rows start, and entries end, on multiples of `alignment_bytes`.
    `tensor_parallel` splits a declaration that is still whole.

    `UnsupportedModelError` when no arena serves the model: full attention only, no full attention,
    MLA with sliding windows, two geometries in one band. `ConfigError` for bad sizes.
    """
    _check_page_size(page_size)
    if not _is_count(alignment_bytes, 4) or alignment_bytes & (alignment_bytes - 1):
        raise ConfigError(
            f"rows were to be aligned to {alignment_bytes!r} bytes; choose a power of two of at "
            "least 4"
        )
    model = model.split(tensor_parallel)
    members: dict[Lifetime, list[tuple[int, Geometry]]] = {}
    for layer in model.layers:
        for part in layer.parts:
            members.setdefault(part.lifetime, []).append((layer.index, part.geometry))
    _refuse_unservable(model.name, members)

    bands = []
    for slot in _in_order([(_name_of(lifetime), lifetime) for lifetime in members]):
        rows, entry_bytes = _lay_out(members[slot.lifetime], alignment_bytes)
        bands.append(_band(slot, page_size, entry_bytes, rows))
    context, ranks = model.context_length, model.tensor_parallel
    return StoragePlan(model.name, model.family, context, page_size, ranks, tuple(bands))


def plan_from_sizes(
    bands: Sequence[tuple[str, int]],
    *,
    page_size: int = 1,
    model: str = "synthetic",
    context_length: int | None = None,
) -> StoragePlan:
    """A plan of 2 to 5 bands from `(name, page_bytes)`, in any order, without rows.

    Names say the kind: `full` (exactly one), `mamba` (at most one), `window_<len>`, `window`.
    `page_bytes` of a paged band must be a multiple of `page_size`; a state page is one entry.
    `ConfigError` otherwise.
    """
    _check_page_size(page_size)
    names = [name for name, _ in bands]
    sizes = dict(bands)
    if not 2 <= len(names) <= 5 or len(sizes) != len(names):
        raise ConfigError(f"bands {names} were asked for; name 2 to 5 different bands")
    planned = []
    for slot in _in_order([(name, _parse_name(name)) for name in names]):
        page_bytes = sizes[slot.name]
        entries = 1 if slot.kind == "state" else page_size
        if not _is_count(page_bytes) or page_bytes % entries:
            raise ConfigError(
                f"band {slot.name!r} was given pages of {page_bytes!r} bytes; choose a positive "
                f"multiple of its {entries} entries a page"
            )
        planned.append(_band(slot, page_size, page_bytes // entries, ()))
    return StoragePlan(model, "synthetic", context_length, page_size, 1, tuple(planned))


@dataclass(frozen=True, slots=True)
class _Slot:
    # One band's place in the chain.
    name: str
    lifetime: Lifetime
    end: BandEnd

    @property
    def kind(self) -> BandKind:
        if isinstance(self.lifetime, WindowLifetime):
            return "window"
        return "state" if isinstance(self.lifetime, StateLifetime) else "full"


def _band(slot: _Slot, page_size: int, entry_bytes: int, rows: tuple[RowPlan, ...]) -> BandPlan:
    return BandPlan(
        name=slot.name,
        kind=slot.kind,
        window_length=slot.lifetime.length if isinstance(slot.lifetime, WindowLifetime) else None,
        end=slot.end,
        page_size=1 if slot.kind == "state" else page_size,
        entry_bytes=entry_bytes,
        payload_bytes=sum(row.row_bytes for row in rows) if rows else entry_bytes,
        rows=rows,
    )


def _in_order(bands: Sequence[tuple[str, Lifetime]]) -> list[_Slot]:
    # Low to high by retention. A window of unknown length may be the whole context, so it counts
    # as the longest.
    def retention(band: tuple[str, Lifetime]) -> tuple[int, float]:
        lifetime = band[1]
        if isinstance(lifetime, WindowLifetime):
            return 1, float("-inf") if lifetime.length is None else -lifetime.length
        return (0 if isinstance(lifetime, StateLifetime) else 2), 0.0

    ordered = sorted(bands, key=retention)
    names = [name for name, _ in ordered]
    if len(ordered) < 2 or len(set(names)) != len(names) or names.count(FULL_BAND) != 1:
        raise ConfigError(
            f"bands {names} were asked for; a plan has {FULL_BAND!r} once, at least one other "
            "band, and no band twice"
        )
    last = len(ordered) - 1
    return [
        _Slot(name, lifetime, "low" if index == 0 else "high" if index == last else "float")
        for index, (name, lifetime) in enumerate(ordered)
    ]


def _name_of(lifetime: Lifetime) -> str:
    if isinstance(lifetime, WindowLifetime):
        return WINDOW_BAND if lifetime.length is None else f"{WINDOW_BAND}_{lifetime.length}"
    return STATE_BAND if isinstance(lifetime, StateLifetime) else FULL_BAND


def _parse_name(name: str) -> Lifetime:
    known: dict[str, Lifetime] = {
        FULL_BAND: FullLifetime(),
        STATE_BAND: StateLifetime(),
        WINDOW_BAND: WindowLifetime(None),
    }
    if name in known:
        return known[name]
    length = name.removeprefix(f"{WINDOW_BAND}_")
    # The name must be the one `_name_of` gives: 'window_08' would be a second name for one band.
    if length.isdecimal() and length.isascii() and int(length) > 0 and length == str(int(length)):
        return WindowLifetime(int(length))
    raise ConfigError(
        f"a band {name!r} was asked for; name it 'full', 'mamba', 'window_<length>' or 'window'"
    )


def _refuse_unservable(
    model: str, members: Mapping[Lifetime, Sequence[tuple[int, Geometry]]]
) -> None:
    kept = sorted(layer for group in members.values() for layer, _ in group)
    if not kept:
        raise UnsupportedModelError(
            f"model {model!r}: no layer, 0 included, keeps any request memory, so there is "
            "nothing to allocate; serve it without an arena"
        )
    if FullLifetime() not in members:
        raise UnsupportedModelError(
            f"model {model!r}: layers {_spell(kept)} keep no full-attention KV, and the full band "
            "owns the token ids; serve it without an arena"
        )
    latent = [layer for group in members.values() for layer, each in group if type(each) is MLA]
    for lifetime, group in members.items():
        if isinstance(lifetime, WindowLifetime) and latent:
            raise UnsupportedModelError(
                f"model {model!r}: layer {latent[0]} is MLA and layer {group[0][0]} attends "
                "through a sliding window; MLA together with windows is not supported"
            )
        (first_layer, first), *others = group
        for layer, geometry in others:
            if geometry != first:
                raise UnsupportedModelError(
                    f"model {model!r}: layers {first_layer} and {layer} would share the band "
                    f"{_name_of(lifetime)!r} but their rows differ ({_spell_rows(first)} against "
                    f"{_spell_rows(geometry)}); a band holds one geometry"
                )
    if len(members) == 1:
        kind = "MLA" if latent else "MHA"
        raise UnsupportedModelError(
            f"model {model!r}: layers {_spell(kept)} are full attention only (plain {kind}), so "
            "there is nothing to unify; serve it with one plain pool"
        )


def _lay_out(
    group: Sequence[tuple[int, Geometry]], alignment_bytes: int
) -> tuple[tuple[RowPlan, ...], int]:
    rows = []
    offset = 0
    for layer, geometry in group:
        for row in geometry.rows():
            offset = _round_up(offset, alignment_bytes)
            rows.append(RowPlan(layer, row.name, row.shape, row.dtype, offset, row.row_bytes))
            offset += row.row_bytes
    return tuple(rows), _round_up(offset, alignment_bytes)


def _round_up(size_bytes: int, alignment_bytes: int) -> int:
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def _spell(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else str(layers[0])


def _spell_rows(geometry: Geometry) -> str:
    return ", ".join(f"{row.name} {row.shape} {row.dtype}" for row in geometry.rows())


def _is_count(value: object, minimum: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _check_page_size(page_size: int) -> None:
    if not _is_count(page_size):
        raise ConfigError(
            f"pages of {page_size!r} tokens were asked for; choose an integer of at least 1"
        )


def _take(data: Any, name: str, kind: Any) -> Any:
    value = data.get(name) if isinstance(data, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(
            f"a plan's field {name!r} is {value!r}, which is not of the type written; write the "
            "plan again"
        )
    return value


def _band_from_json(slot: _Slot, data: Any, page_size: int) -> BandPlan:
    entry_bytes = _take(data, "entry_bytes", int)
    rows = []
    used_bytes = 0
    for each in _take(data, "rows", list):
        shape, offset = tuple(_take(each, "shape", list)), _take(each, "offset_bytes", int)
        row = Row(_take(each, "name", str), shape, _take(each, "dtype", str))
        if not all(_is_count(size) for size in shape) or offset < used_bytes:
            raise ConfigError(
                f"a plan's row {each!r} of band {slot.name!r} overlaps the row before it or is "
                "empty; write the plan again"
            )
        rows.append(RowPlan(_take(each, "layer", int), *row, offset, row.row_bytes))
        used_bytes = offset + row.row_bytes
    if not max(1, used_bytes) <= entry_bytes:
        raise ConfigError(
            f"a plan's band {slot.name!r} has entries of {entry_bytes} bytes for rows of "
            f"{used_bytes}; write the plan again"
        )
    return _band(slot, page_size, entry_bytes, tuple(rows))
