"""Checked reading of a Hugging Face configuration.

`ConfigFields` gives a family's parser typed fields; each error names the file and the field. What
the fields mean for the layers of a model is said in `families`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bandscope.allocator.decl import (
    DTYPE_BYTES,
    MHA,
    MLA,
    Geometry,
    Part,
    WindowLifetime,
)
from bandscope.allocator.errors import ConfigError, UnsupportedModelError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_ALIASES = {"attention": FULL, "mamba": LINEAR}
_COMPRESSED = "its KV is compressed, not one row per token, so it has no page of rows to hand out"
_INDEXED = "sparse attention keeps an index beside its KV, which no band holds"
_REFUSED_KINDS = {
    "chunked_attention": "local (chunked) attention is not a sliding window: rows of a chunk die "
    "together, so no window band can hold them",
    "compressed_sparse_attention": _COMPRESSED,
    "heavily_compressed_attention": _COMPRESSED,
    "indexed_attention": _INDEXED,
    "deepseek_sparse_attention": _INDEXED,
    "qwen_sparse_attention": _INDEXED,
}
MAX_LAYERS = 4096
_WINDOW_FIELDS = ("sliding_window", "sliding_window_size")
_DTYPE_ALIASES = {
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    "bf16": "bfloat16", "half": "float16", "float": "float32",
}


@dataclass(frozen=True)
class ConfigFields:
    """Checked access to the fields of one configuration; every error names the file and field."""

    values: Mapping[str, Any]
    where: str
    family: str
    kv_dtype: str
    temporal_dtype: str
    prefix: str = ""

    @classmethod
    def of(
        cls,
        root: Mapping[str, Any],
        where: str,
        family: str,
        defaults: Mapping[str, Any],
        kv_dtype: str | None,
        state_dtype: str | None,
    ) -> ConfigFields:
        """The text model's fields (in `text_config` when there is one), over `defaults`.

        `kv_dtype` and `state_dtype` replace what the configuration says (`auto` and None keep it).
        """
        text = root.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise ConfigError(
                f"{where}: field 'text_config' must be an object but is {text!r}; correct it"
            )
        own_fields = root if text is None else text
        stated = {key: value for key, value in own_fields.items() if value is not None}
        values = {**defaults, **stated}
        own = next(
            (
                each[name]
                for each in (stated, root)
                for name in ("dtype", "torch_dtype")
                if each.get(name) is not None
            ),
            "bfloat16",
        )
        temporal = values.get("mamba_ssm_dtype") or values.get("mamba_ssm_cache_dtype") or "float32"
        return cls(
            values,
            where,
            family,
            _dtype(own, f"{where}: field 'dtype'") if kv_dtype in (None, "auto")
            else _dtype(kv_dtype, "the KV type asked for"),
            _dtype(temporal, f"{where}: field 'mamba_ssm_dtype'") if state_dtype is None
            else _dtype(state_dtype, "the state type asked for"),
            "" if text is None else "text_config.",
        )

    def error(self, name: str, problem: str) -> ConfigError:
        """A `ConfigError` about one field."""
        return ConfigError(f"{self.where}: field '{self.prefix}{name}' {problem}")

    def section(self, name: str) -> ConfigFields:
        """The fields of a nested object."""
        inner = self.values.get(name)
        if not isinstance(inner, Mapping):
            raise self.error(name, f"must be an object but is {inner!r}; add it")
        return replace(self, values=inner, prefix=f"{self.prefix}{name}.")

    def optional_integer(self, *names: str, minimum: int = 1) -> int | None:
        """The first of `names` that is present and not null; None when none is."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise self.error(
                    name, f"must be an integer of at least {minimum} but is {value!r}; correct it"
                )
            return value
        return None

    def integer(self, *names: str, minimum: int = 1) -> int:
        """As `optional_integer`, but one of `names` must be there."""
        value = self.optional_integer(*names, minimum=minimum)
        if value is None:
            others = "".join(f" (or '{self.prefix}{other}')" for other in names[1:])
            raise self.error(names[0], f"is missing{others}; add it")
        return value

    def items(self, name: str, kind: type, length: int | None = None) -> list[Any] | None:
        """A list whose items are all `kind`, None when absent; `length` must match if given."""
        found = self.values.get(name)
        if found is None:
            return None
        if not isinstance(found, list):
            raise self.error(name, f"must be a list but is {found!r}; correct it")
        for index, item in enumerate(found):
            if not isinstance(item, kind) or isinstance(item, bool):
                raise self.error(
                    name,
                    f"must hold only {kind.__name__} but entry {index} is {item!r}; correct it",
                )
        if length is not None and len(found) != length:
            raise self.error(
                name,
                f"lists {len(found)} layers but '{self.prefix}num_hidden_layers' is {length}; "
                "make them equal",
            )
        return found

    def layer_count(self) -> int:
        """The number of layers; bounded, so that a wrong one does not fill the memory."""
        count = self.integer("num_hidden_layers")
        if count > MAX_LAYERS:
            raise self.error(
                "num_hidden_layers", f"is {count} but at most {MAX_LAYERS} are served; correct it"
            )
        return count

    def layer_types(self, *, counted: bool = True) -> list[str] | None:
        """One kind per layer, legacy names replaced; None when no such field is there."""
        count = self.layer_count() if counted else None
        for name in ("layer_types", "layers_block_type"):
            kinds = self.items(name, str, count)
            if kinds is not None:
                return [_ALIASES.get(kind, kind) for kind in kinds]
        return None

    def every(self, period: int, last: str, others: str) -> list[str]:
        """One kind per layer: each `period`-th is `last`."""
        return [others if (index + 1) % period else last for index in range(self.layer_count())]

    def listed(self, name: str, first: int, count: int) -> set[int] | None:
        """0-based numbers of `count` layers, from a list counted from `first`, each once."""
        found = self.items(name, int)
        if found is None:
            return None
        for number in found:
            if not first <= number < count + first or found.count(number) > 1:
                raise self.error(
                    name,
                    f"must list layers {first} to {count + first - 1} once each but lists "
                    f"{number}; correct it",
                )
        return {number - first for number in found}

    def mha(self) -> MHA:
        """KV heads as most families state them."""
        heads = self.integer("num_key_value_heads", "num_attention_heads")
        size = self.optional_integer("head_dim", "attention_head_dim")
        if size is None:
            hidden, query_heads = self.integer("hidden_size"), self.integer("num_attention_heads")
            size, rest = divmod(hidden, query_heads)
            if rest:
                raise self.error(
                    "head_dim",
                    f"is missing and hidden_size {hidden} is no multiple of num_attention_heads "
                    f"{query_heads}; add it",
                )
        value_size = self.optional_integer("v_head_dim") or size
        return MHA(heads, size, value_size, self.kv_dtype)

    def mla(self) -> MLA:
        """The latent and rotary dims of multi-head latent attention."""
        return MLA(self.integer("kv_lora_rank"), self.integer("qk_rope_head_dim"), self.kv_dtype)

    def window(self, geometry: Geometry) -> Part:
        """A sliding-window part; without a stated length the window is unknown."""
        return Part(geometry, WindowLifetime(self.optional_integer(*_WINDOW_FIELDS)))

    def check_window(self, layer: int, part: Part) -> None:
        """`ConfigError` when the part's window is longer than the context."""
        context = self.optional_integer("max_position_embeddings", "model_max_length")
        length = part.lifetime.length if isinstance(part.lifetime, WindowLifetime) else None
        if context is not None and length is not None and length > context:
            name = next(name for name in _WINDOW_FIELDS if name in self.values)
            raise self.error(
                name,
                f"gives layer {layer} a window of {length} tokens but the context length is only "
                f"{context}; correct one of them",
            )

    def assign(
        self, kinds: Sequence[str], parts: Mapping[str, tuple[Part, ...]]
    ) -> list[tuple[Part, ...]]:
        """The parts of every layer; `UnsupportedModelError` names the first kind not in `parts`."""
        for index, kind in enumerate(kinds):
            if kind not in parts:
                unknown = f"unknown for family {self.family}, which has {', '.join(parts)}"
                raise UnsupportedModelError(
                    f"{self.where}: layer {index} is of kind {kind!r}: "
                    f"{_REFUSED_KINDS.get(kind, unknown)}; serve this model without an arena"
                )
        return [parts[kind] for kind in kinds]


def _dtype(value: object, what: str) -> str:
    name = value.removeprefix("torch.") if isinstance(value, str) else None
    name = _DTYPE_ALIASES.get(name, name) if name is not None else None
    if name not in DTYPE_BYTES:
        raise ConfigError(f"{what} is {value!r}; choose one of {', '.join(DTYPE_BYTES)}")
    return name
