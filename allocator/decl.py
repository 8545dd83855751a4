"""What a model keeps per request: layers, the parts of each, and their shapes.

A `ModelDecl` is the model's own description of its request memory, free of any arena: each layer
holds no, one or two *parts*; a part is a *geometry* (what the rows look like) and a *lifetime*
(how long a row is kept). `plan.plan_storage` turns parts of one lifetime into one band.

Shapes are those of one token (attention) or one slot (state). A declaration starts out whole;
`ModelDecl.split` gives what one rank of a tensor-parallel group holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from bandscope.allocator.errors import ConfigError

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element, by the name PyTorch gives the type."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`; `ConfigError` when the type is unknown."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        known = ", ".join(DTYPE_BYTES)
        raise ConfigError(
            f"an element type {dtype!r} was asked for, but only {known} can be stored; choose one"
        ) from None


class Row(NamedTuple):
    """One array of one token or slot: what a layer reads and writes in place."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of the row, without padding."""
        return prod(self.shape) * dtype_bytes(self.dtype)


def heads_per_rank(what: str, heads: int, tensor_parallel: int, *, replicate: bool) -> int:
    """Heads one of `tensor_parallel` ranks holds.

    Heads are divided evenly. With `replicate`, fewer heads than ranks are allowed when every head
    is then held by the same number of ranks, one head each. Anything else is a `ConfigError`.
    """
    if heads % tensor_parallel == 0:
        return heads // tensor_parallel
    if replicate and tensor_parallel % heads == 0:
        return 1
    widths = f"that divides {heads}" + (f" or is a multiple of {heads}" if replicate else "")
    raise ConfigError(
        f"{heads} {what} cannot be split over tensor parallel width {tensor_parallel}; "
        f"choose a width {widths}"
    )


@dataclass(frozen=True, slots=True)
class MHA:
    """Keys and values of `kv_heads` heads; key and value heads may differ in size."""

    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        _require_positive("MHA", self.kv_heads, self.k_head_dim, self.v_head_dim)
        dtype_bytes(self.dtype)

    def rows(self) -> tuple[Row, ...]:
        """`k` (kv_heads, k_head_dim) and `v` (kv_heads, v_head_dim), per token."""
        return (
            Row("k", (self.kv_heads, self.k_head_dim), self.dtype),
            Row("v", (self.kv_heads, self.v_head_dim), self.dtype),
        )

    def split(self, tensor_parallel: int) -> MHA:
        """What one rank holds; fewer KV heads than ranks are replicated."""
        heads = heads_per_rank("KV heads", self.kv_heads, tensor_parallel, replicate=True)
        return replace(self, kv_heads=heads)


@dataclass(frozen=True, slots=True)
class MLA:
    """One compressed latent and one shared rotary key per token."""

    latent_dim: int
    rope_dim: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        _require_positive("MLA", self.latent_dim, self.rope_dim)
        dtype_bytes(self.dtype)

    def rows(self) -> tuple[Row, ...]:
        """`latent` (latent_dim + rope_dim,), per token."""
        return (Row("latent", (self.latent_dim + self.rope_dim,), self.dtype),)

    def split(self, tensor_parallel: int) -> MLA:
        """The same: the latent has no heads, so every rank holds all of it."""
        return self


@dataclass(frozen=True, slots=True)
class HeadBlock:
    """`count` heads of `width` elements each, side by side along one axis of a state tensor.

    `replicate`: fewer heads than ranks are copied to every rank that needs them, not refused.
    """

    name: str
    count: int
    width: int
    replicate: bool = False

    @property
    def elements(self) -> int:
        return self.count * self.width

    def split(self, tensor_parallel: int) -> HeadBlock:
        """What one rank holds."""
        heads = heads_per_rank(self.name, self.count, tensor_parallel, replicate=self.replicate)
        return replace(self, count=heads)


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One array of a state slot.

    `shards` says what lies along `axis`, in order: each block is divided over the ranks on its
    own, as kernels do. Without shards every rank holds the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axis: int = 0
    shards: tuple[HeadBlock, ...] = ()

    def __post_init__(self) -> None:
        _require_positive(f"state tensor {self.name!r}", *self.shape)
        dtype_bytes(self.dtype)
        if self.shards:
            blocks = sum(block.elements for block in self.shards)
            assert blocks == self.shape[self.axis], (self.name, self.shape, self.shards)

    def split(self, tensor_parallel: int) -> StateTensor:
        """What one rank holds."""
        if not self.shards:
            return self
        shards = tuple(block.split(tensor_parallel) for block in self.shards)
        shape = list(self.shape)
        shape[self.axis] = sum(block.elements for block in shards)
        return replace(self, shape=tuple(shape), shards=shards)


@dataclass(frozen=True, slots=True)
class State:
    """Recurrent state of one layer; `kind` is `gdn`, `kda`, `mamba1`, `mamba2`, `shortconv`, …"""

    kind: str
    tensors: tuple[StateTensor, ...]

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ConfigError(f"state {self.kind!r} holds no tensor; declare at least one")

    def rows(self) -> tuple[Row, ...]:
        """Its tensors, per slot, in order."""
        return tuple(Row(each.name, each.shape, each.dtype) for each in self.tensors)

    def split(self, tensor_parallel: int) -> State:
        """What one rank holds."""
        return replace(self, tensors=tuple(each.split(tensor_parallel) for each in self.tensors))


Geometry = MHA | MLA | State


@dataclass(frozen=True, slots=True)
class FullLifetime:
    """Kept as long as the request."""


@dataclass(frozen=True, slots=True)
class WindowLifetime:
    """Kept while within the last `length` tokens; None: the model does not state the length."""

    length: int | None

    def __post_init__(self) -> None:
        if self.length is not None:
            _require_positive("window length", self.length)


@dataclass(frozen=True, slots=True)
class StateLifetime:
    """One slot per sequence, overwritten at each step."""


Lifetime = FullLifetime | WindowLifetime | StateLifetime


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of request memory of one layer."""

    geometry: Geometry
    lifetime: Lifetime

    def __post_init__(self) -> None:
        if isinstance(self.geometry, State) != isinstance(self.lifetime, StateLifetime):
            raise ConfigError(
                f"{type(self.geometry).__name__} was declared with {type(self.lifetime).__name__}; "
                "state goes with StateLifetime, attention with FullLifetime or WindowLifetime"
            )


@dataclass(frozen=True, slots=True)
class LayerDecl:
    """One layer. No parts: it holds no request memory. Two: attention and state side by side."""

    index: int
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        states = sum(isinstance(part.geometry, State) for part in self.parts)
        attentions = len(self.parts) - states
        if states > 1 or attentions > 1:
            raise ConfigError(
                f"layer {self.index} declares {attentions} attention and {states} state parts; "
                "a layer holds at most one of each"
            )

    def split(self, tensor_parallel: int) -> LayerDecl:
        """What one rank holds; `ConfigError` names the layer when heads do not divide."""
        try:
            parts = tuple(
                replace(part, geometry=part.geometry.split(tensor_parallel)) for part in self.parts
            )
        except ConfigError as error:
            raise ConfigError(f"layer {self.index}: {error}") from None
        return replace(self, parts=parts)


@dataclass(frozen=True, slots=True)
class ModelDecl:
    """A model's layers in order. `context_length` is in tokens, None when not stated.

    `tensor_parallel` is the number of ranks the shapes were already divided by.
    """

    name: str
    family: str
    context_length: int | None
    layers: tuple[LayerDecl, ...]
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        found = [layer.index for layer in self.layers]
        if not found or found != list(range(len(found))):
            raise ConfigError(
                f"model {self.name!r} numbers its layers {found}; number them 0, 1, 2, … in order"
            )

    def split(self, tensor_parallel: int) -> ModelDecl:
        """What each of `tensor_parallel` ranks holds.

        KV heads divide, or are replicated when there are fewer than ranks; an MLA latent is
        replicated; state divides block by block (see `StateTensor`). `ConfigError` names the
        layer, the heads and the width when they do not divide.
        """
        _require_positive("tensor parallel width", tensor_parallel)
        if tensor_parallel == 1:
            return self
        if self.tensor_parallel != 1:
            raise ConfigError(
                f"model {self.name!r} was to be split over {tensor_parallel} ranks but is already "
                f"split over {self.tensor_parallel}; split the whole declaration once"
            )
        layers = tuple(layer.split(tensor_parallel) for layer in self.layers)
        return replace(self, layers=layers, tensor_parallel=tensor_parallel)


def gdn_state(
    key_heads: int,
    key_dim: int,
    value_heads: int,
    value_dim: int,
    kernel: int,
    temporal_dtype: str = "float32",
) -> State:
    """Gated delta net: conv (q, k and v channels, kernel - 1), temporal (heads, value, key)."""
    keys = HeadBlock("linear key heads", key_heads, key_dim)
    values = HeadBlock("linear value heads", value_heads, value_dim)
    channels = 2 * keys.elements + values.elements
    temporal = (value_heads, value_dim, key_dim)
    return State(
        "gdn",
        (
            StateTensor("conv", (channels, kernel - 1), "bfloat16", 0, (keys, keys, values)),
            StateTensor("temporal", temporal, temporal_dtype, 0, (replace(values, width=1),)),
        ),
    )


def kda_state(heads: int, head_dim: int, kernel: int, temporal_dtype: str = "float32") -> State:
    """Kimi delta attention: conv (kernel - 1, q, k and v channels), temporal (heads, dim, dim)."""
    block = HeadBlock("KDA heads", heads, head_dim)
    conv = (kernel - 1, 3 * block.elements)
    return State(
        "kda",
        (
            StateTensor("conv", conv, "bfloat16", 1, (block, block, block)),
            StateTensor(
                "temporal", (heads, head_dim, head_dim), temporal_dtype, 0,
                (replace(block, width=1),),
            ),
        ),
    )


def mamba2_state(
    heads: int,
    head_dim: int,
    groups: int,
    state_size: int,
    kernel: int,
    temporal_dtype: str = "float32",
) -> State:
    """Mamba-2: conv (x, B and C channels, kernel - 1), temporal (heads, head dim, state size).

    Groups divide over the ranks; with fewer groups than ranks each rank keeps the one its heads
    read.
    """
    inner = HeadBlock("Mamba-2 heads", heads, head_dim)
    group = HeadBlock("Mamba-2 groups", groups, state_size, replicate=True)
    channels = inner.elements + 2 * group.elements
    temporal = (heads, head_dim, state_size)
    return State(
        "mamba2",
        (
            StateTensor("conv", (channels, kernel - 1), "bfloat16", 0, (inner, group, group)),
            StateTensor("temporal", temporal, temporal_dtype, 0, (replace(inner, width=1),)),
        ),
    )


def mamba1_state(
    channels: int, state_size: int, kernel: int, temporal_dtype: str = "float32"
) -> State:
    """Mamba-1: conv (channels, kernel - 1), temporal (channels, state size)."""
    block = (HeadBlock("Mamba-1 channels", channels, 1),)
    return State(
        "mamba1",
        (
            StateTensor("conv", (channels, kernel - 1), "bfloat16", 0, block),
            StateTensor("temporal", (channels, state_size), temporal_dtype, 0, block),
        ),
    )


def short_conv_state(full: MHA, window: MHA, hidden_size: int, kernel: int) -> State:
    """Short convolutions over keys, values and the hidden stream, (kernel - 1, channels) each.

    Every layer holds the rows of both attention kinds, whichever it is: one slot layout serves
    all layers. The hidden stream is the same on every rank, so its two rows are not divided.
    """
    tensors = []
    for kind, heads in (("full", full), ("window", window)):
        for row, width in (("k", heads.k_head_dim), ("v", heads.v_head_dim)):
            block = HeadBlock("KV heads", heads.kv_heads, width, replicate=True)
            shape = (kernel - 1, block.elements)
            tensors.append(StateTensor(f"conv_{kind}_{row}", shape, "bfloat16", 1, (block,)))
    for stream in ("attention", "mlp"):
        tensors.append(StateTensor(f"conv_{stream}", (kernel - 1, hidden_size), "bfloat16"))
    return State("shortconv", tuple(tensors))


def _require_positive(what: str, *values: int) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{what} was given {value!r}; give positive integers")
