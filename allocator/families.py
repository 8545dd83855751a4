"""From a model's Hugging Face configuration to its layers.

`declare_model` finds the family by `model_type` and lets the family's parser name the parts of
every layer. A parser reads only; what an arena cannot serve for reasons of layout (full attention
alone, two geometries in one band, …) is refused by `plan.plan_storage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bandscope.allocator.config_fields import FULL, LINEAR, SLIDING, ConfigFields
from bandscope.allocator.decl import (
    MHA,
    FullLifetime,
    Geometry,
    LayerDecl,
    ModelDecl,
    Part,
    State,
    StateLifetime,
    gdn_state,
    kda_state,
    mamba1_state,
    mamba2_state,
    short_conv_state,
)
from bandscope.allocator.errors import ConfigError, UnsupportedModelError
from bandscope.allocator.presets import load_config


def declare_model(
    source: str | Path | Mapping[str, Any],
    *,
    tensor_parallel: int = 1,
    kv_dtype: str | None = None,
    state_dtype: str | None = None,
    name: str | None = None,
) -> ModelDecl:
    """The layers of `source`, as one of `tensor_parallel` ranks holds them.

    `source` is a preset name, a path to a `config.json` or to a folder holding one, or the
    configuration itself. `kv_dtype` replaces the model's own type for KV rows (`auto` and None
    keep it), `state_dtype` that of the temporal state. `name` replaces the name found.

    `ConfigError`: the configuration is missing, unreadable or malformed, or heads do not divide.
    `UnsupportedModelError`: an unknown family, or a layer that no band can hold.
    """
    values, where, found_name = load_config(source)
    family = _find_family(values, where)
    # Published FP4 caches hold scales beside the rows, so their bytes are not rows times width.
    refused_dtype = kv_dtype if kv_dtype is not None and "fp4" in kv_dtype.lower() else None
    served_dtype = None if refused_dtype else kv_dtype
    config = ConfigFields.of(
        values, where, family.name, family.defaults, served_dtype, state_dtype
    )
    layers = tuple(LayerDecl(index, parts) for index, parts in enumerate(family.parse(config)))
    for layer in layers:
        for part in layer.parts:
            if refused_dtype is not None and not isinstance(part.geometry, State):
                raise UnsupportedModelError(
                    f"layer {layer.index} was asked to keep its KV as {refused_dtype}, but an FP4 "
                    "KV cache is not supported; choose a 16-bit or 8-bit KV type"
                )
            config.check_window(layer.index, part)
    context = config.optional_integer("max_position_embeddings", "model_max_length")
    return ModelDecl(name or found_name, family.name, context, layers).split(tensor_parallel)


def family_names() -> tuple[str, ...]:
    """Every `model_type` that `declare_model` knows, sorted."""
    return tuple(sorted(_BY_MODEL_TYPE))


def _full(geometry: Geometry) -> Part:
    return Part(geometry, FullLifetime())


def _state(state: State) -> Part:
    return Part(state, StateLifetime())


def _interleaved_windows(config: ConfigFields) -> list[tuple[Part, ...]]:
    # gpt-oss and Gemma 3: one geometry, full or windowed.
    kinds = config.layer_types()
    kinds = kinds or config.every(config.integer("sliding_window_pattern"), FULL, SLIDING)
    heads = config.mha()
    return config.assign(kinds, {FULL: (_full(heads),), SLIDING: (config.window(heads),)})


def _gemma4(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types() or config.every(6, FULL, SLIDING)
    if kinds[-1] == SLIDING:
        kinds[-1] = FULL  # transformers makes the last layer full whatever the config says
    window = config.mha()
    heads = window.kv_heads
    if config.values.get("attention_k_eq_v", True):
        heads = config.optional_integer("num_global_key_value_heads") or heads
    size = config.integer("global_head_dim")
    full = MHA(heads, size, size, config.kv_dtype)
    parts = config.assign(kinds, {FULL: (_full(full),), SLIDING: (config.window(window),)})
    # The last layers may read the KV of earlier ones: they keep none of their own.
    shared = config.optional_integer("num_kv_shared_layers", minimum=0) or 0
    return [each if index < len(parts) - shared else () for index, each in enumerate(parts)]


def _gdn(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types()
    kinds = kinds or config.every(config.integer("full_attention_interval"), FULL, LINEAR)
    state = gdn_state(
        config.integer("linear_num_key_heads"),
        config.integer("linear_key_head_dim"),
        config.integer("linear_num_value_heads"),
        config.integer("linear_value_head_dim"),
        config.integer("linear_conv_kernel_dim", minimum=2),
        config.temporal_dtype,
    )
    return config.assign(kinds, {FULL: (_full(config.mha()),), LINEAR: (_state(state),)})


def _kimi(config: ConfigFields) -> list[tuple[Part, ...]]:
    linear = config.section("linear_attn_config")
    kinds = config.layer_types()
    if kinds is None:
        kinds = _kimi_kinds(config, linear)
    state = kda_state(
        linear.integer("num_heads"),
        linear.integer("head_dim"),
        linear.integer("short_conv_kernel_size", minimum=2),
        config.temporal_dtype,
    )
    latent = config.mla()
    table = {FULL: (_full(latent),), LINEAR: (_state(state),), SLIDING: (config.window(latent),)}
    return config.assign(kinds, table)


def _kimi_kinds(config: ConfigFields, linear: ConfigFields) -> list[str]:
    # The lists count from 1. The rule transformers falls back to gives other layers: without the
    # list nothing is guessed.
    count = config.layer_count()
    full = linear.listed("full_attn_layers", 1, count)
    linear_layers = linear.listed("kda_layers", 1, count)
    if full is None:
        raise linear.error("full_attn_layers", "is missing; list the layers, counted from 1")
    if linear_layers is not None and linear_layers != set(range(count)) - full:
        raise linear.error(
            "kda_layers", "must list every layer that 'full_attn_layers' does not; correct it"
        )
    return [FULL if index in full else LINEAR for index in range(count)]


def _mamba2(config: ConfigFields) -> State:
    heads = config.integer("mamba_n_heads", "mamba_num_heads")
    stated = config.values.get("mamba_head_dim", config.values.get("mamba_d_head", "auto"))
    if stated == "auto":
        inner = config.optional_integer("mamba_d_ssm")
        inner = inner or config.integer("mamba_expand", "expand") * config.integer("hidden_size")
        if inner % heads:
            raise config.error("mamba_n_heads", f"is {heads}, which does not divide {inner}")
        size = inner // heads
    else:
        size = config.integer("mamba_head_dim", "mamba_d_head")
    return mamba2_state(
        heads,
        size,
        config.integer("mamba_n_groups", "n_groups"),
        config.integer("mamba_d_state", "ssm_state_size"),
        config.integer("mamba_d_conv", "conv_kernel", minimum=2),
        config.temporal_dtype,
    )


def _nemotron_h(config: ConfigFields) -> list[tuple[Part, ...]]:
    pattern = config.values.get("hybrid_override_pattern")
    if pattern is None:
        kinds = config.layer_types(counted=False)
    else:
        kinds = list(pattern) if isinstance(pattern, str) else None
    if kinds is None:
        raise config.error(
            "hybrid_override_pattern", f"must be a string of M * - E but is {pattern!r}; add it"
        )
    count = config.optional_integer("num_hidden_layers")
    if count is not None and count != len(kinds):
        raise config.error(
            "hybrid_override_pattern",
            f"lists {len(kinds)} layers but 'num_hidden_layers' is {count}; make them equal",
        )
    full, state = (_full(config.mha()),), (_state(_mamba2(config)),)
    letters = {"M": state, "*": full, "-": (), "E": ()}
    return config.assign(kinds, {**letters, LINEAR: state, FULL: full, "mlp": (), "moe": ()})


def _granite(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types()
    if kinds is None:
        raise config.error("layer_types", "is missing; add it, one kind per layer")
    table = {FULL: (_full(config.mha()),), LINEAR: (_state(_mamba2(config)),)}
    return config.assign(kinds, table)


def _falcon_h1(config: ConfigFields) -> list[tuple[Part, ...]]:
    both = (_full(config.mha()), _state(_mamba2(config)))
    kinds = config.layer_types() or ["hybrid"] * config.layer_count()
    return config.assign(kinds, {"hybrid": both})


def _jamba(config: ConfigFields) -> list[tuple[Part, ...]]:
    period = config.integer("attn_layer_period")
    offset = config.integer("attn_layer_offset", minimum=0)
    if offset >= period:
        raise config.error(
            "attn_layer_offset", f"is {offset} but must be below attn_layer_period {period}"
        )
    count = config.layer_count()
    kinds = [FULL if index % period == offset else LINEAR for index in range(count)]
    state = mamba1_state(
        config.integer("mamba_expand") * config.integer("hidden_size"),
        config.integer("mamba_d_state"),
        config.integer("mamba_d_conv", minimum=2),
        config.temporal_dtype,
    )
    return config.assign(kinds, {FULL: (_full(config.mha()),), LINEAR: (_state(state),)})


def _window_heads(config: ConfigFields, full: MHA) -> MHA:
    # MiMo and Inkling state window heads apart; what they leave out is as in full layers.
    size = config.optional_integer("swa_head_dim") or full.k_head_dim
    value_size = config.optional_integer("swa_v_head_dim")
    if value_size is None:
        value_size = full.v_head_dim if size == full.k_head_dim else size
    heads = config.optional_integer("swa_num_key_value_heads") or full.kv_heads
    return MHA(heads, size, value_size, config.kv_dtype)


def _mimo(config: ConfigFields) -> list[tuple[Part, ...]]:
    pattern = config.items("hybrid_layer_pattern", int, config.layer_count())
    kinds = config.layer_types() if pattern is None else [str(number) for number in pattern]
    if kinds is None:
        raise config.error("hybrid_layer_pattern", "is missing; add it, 1 for a sliding layer")
    heads = config.mha()
    full, window = (_full(heads),), (config.window(_window_heads(config, heads)),)
    return config.assign(kinds, {"0": full, "1": window, FULL: full, SLIDING: window})


def _inkling(config: ConfigFields) -> list[tuple[Part, ...]]:
    count = config.layer_count()
    local = config.listed("local_layer_ids", 0, count)
    kinds = config.layer_types()
    if kinds is None:
        if local is None:
            raise config.error("local_layer_ids", "is missing; list the sliding layers")
        kinds = ["hybrid_sliding" if index in local else "hybrid" for index in range(count)]
    full = config.mha()
    window = _window_heads(config, full)
    kernel = config.integer("sconv_kernel_size", "conv_kernel_size", minimum=2)
    state = _state(short_conv_state(full, window, config.integer("hidden_size"), kernel))
    table = {"hybrid": (_full(full), state), "hybrid_sliding": (config.window(window), state)}
    return config.assign(kinds, table)


def _dense(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types()
    if kinds is None:
        count = config.layer_count()
        sliding_from = count
        if config.values.get("use_sliding_window"):
            sliding_from = config.integer("max_window_layers", minimum=0)
        kinds = [SLIDING if index >= sliding_from else FULL for index in range(count)]
    heads = config.mha()
    return config.assign(kinds, {FULL: (_full(heads),), SLIDING: (config.window(heads),)})


def _latent(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types() or [FULL] * config.layer_count()
    latent = config.mla()
    return config.assign(kinds, {FULL: (_full(latent),), SLIDING: (config.window(latent),)})


def _llama4(config: ConfigFields) -> list[tuple[Part, ...]]:
    kinds = config.layer_types()
    if kinds is None:
        others = "chunked_attention" if "attention_chunk_size" in config.values else FULL
        kinds = config.every(config.integer("no_rope_layer_interval"), FULL, others)
    return config.assign(kinds, {FULL: (_full(config.mha()),)})


def _deepseek_v4(config: ConfigFields) -> list[tuple[Part, ...]]:
    count = config.layer_count()
    ratios = config.items("compress_ratios", int)
    kinds = config.layer_types() or [
        "compressed_sparse_attention" if ratio else SLIDING for ratio in (ratios or [1])[:count]
    ]
    window = (config.window(config.mha()),)
    return config.assign(kinds, {SLIDING: window})


@dataclass(frozen=True)
class Family:
    """One family: its parser, the names it goes by, and the values its configs may leave out."""

    name: str
    parse: Callable[[ConfigFields], list[tuple[Part, ...]]]
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


def _find_family(values: Mapping[str, Any], where: str) -> Family:
    # The outermost `model_type` decides alone: a wrapper of a known text model may change how it
    # keeps its KV (Kimi-K3.1 does), so it is not taken for the model inside.
    text = values.get("text_config")
    inner = text.get("model_type") if isinstance(text, Mapping) else None
    model_type = values.get("model_type") or inner
    if model_type is not None:
        family = _BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
        asked = f"model_type {model_type!r}"
    else:
        names = values.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        family = _BY_ARCHITECTURE.get(name) if isinstance(name, str) else None
        asked = f"architecture {name!r}"
        if name is None:
            raise ConfigError(
                f"{where}: fields 'model_type' and 'architectures' are missing, so the family is "
                "unknown; add 'model_type'"
            )
    if family is None:
        raise UnsupportedModelError(
            f"{where}: {asked} is of no known family, so how its layers keep memory is not known; "
            f"known model types: {', '.join(family_names())}"
        )
    return family


_FAMILIES = (
    Family("gpt-oss", _interleaved_windows, ("gpt_oss",), ("GptOssForCausalLM",),
           {"sliding_window_pattern": 2}),
    # Published Gemma configs leave out what equals the defaults of transformers.
    Family("gemma3", _interleaved_windows, ("gemma3", "gemma3_text"),
           ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
           {"num_key_value_heads": 4, "head_dim": 256, "sliding_window_pattern": 6,
            "max_position_embeddings": 131072}),
    Family("gemma4", _gemma4, ("gemma4", "gemma4_text"),
           ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
           {"num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
            "max_position_embeddings": 131072}),
    Family("mimo-v2", _mimo, ("mimo_v2_flash",), ("MiMoV2FlashForCausalLM",)),
    Family("qwen3-next", _gdn, ("qwen3_next",), ("Qwen3NextForCausalLM",),
           {"full_attention_interval": 4}),
    Family("qwen3.5", _gdn,
           ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
           ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM",
            "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
           {"full_attention_interval": 4}),
    Family("kimi-linear", _kimi, ("kimi_linear",), ("KimiLinearForCausalLM",)),
    Family("kimi-k3", _kimi, ("kimi_k3",), ("KimiK3ForConditionalGeneration",)),
    Family("nemotron-h", _nemotron_h, ("nemotron_h",), ("NemotronHForCausalLM",)),
    Family("falcon-h1", _falcon_h1, ("falcon_h1",), ("FalconH1ForCausalLM",)),
    Family("granite-4-hybrid", _granite, ("granitemoehybrid",),
           ("GraniteMoeHybridForCausalLM",)),
    Family("jamba", _jamba, ("jamba",), ("JambaForCausalLM",)),
    Family("inkling", _inkling, ("inkling_mm_model", "inkling_model", "inkling_text"),
           ("InklingForConditionalGeneration",)),
    # Declared so that the refusal can say why: no arena is built for these.
    Family("dense", _dense, ("llama", "qwen2", "qwen3", "qwen3_moe"),
           ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")),
    Family("deepseek-v3", _latent, ("deepseek_v2", "deepseek_v3", "kimi_k2"),
           ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")),
    Family("llama4", _llama4, ("llama4", "llama4_text"),
           ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
           {"no_rope_layer_interval": 4}),
    Family("deepseek-v4", _deepseek_v4, ("deepseek_v4",), ("DeepseekV4ForCausalLM",)),
)
_BY_MODEL_TYPE = {name: family for family in _FAMILIES for name in family.model_types}
_BY_ARCHITECTURE = {name: family for family in _FAMILIES for name in family.architectures}
