"""Where configurations come from: known models by name, files, folders, or the values themselves.

A preset states only the facts that decide request memory, under the field names of the model's own
`config.json`, and goes through the same family parsers. The figures are the published ones; a few
refused models are here too, so that asking for one by name says why it is refused.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from bandscope.allocator.errors import ConfigError

Config = dict[str, Any]


def preset_names() -> tuple[str, ...]:
    """Every preset, sorted."""
    return tuple(sorted(_PRESETS))


def preset_config(name: str) -> Config:
    """A fresh copy of one preset; `ConfigError` with the closest names when there is none."""
    if name not in _PRESETS:
        raise _unknown(name)
    return deepcopy(_PRESETS[name])


def load_config(source: str | Path | Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str]:
    """The configuration `source` stands for, where it is from (for messages), and its name.

    A string is a preset if there is one of that name (write `./name` for a folder called so),
    otherwise a path. `ConfigError` when nothing is there or it is no JSON object.
    """
    if isinstance(source, Mapping):
        name = source.get("_name_or_path") or source.get("model_type") or "unnamed"
        return source, "the given configuration", str(name)
    if isinstance(source, str):
        if source in _PRESETS:
            return preset_config(source), f"preset {source!r}", source
        if not Path(source).exists():
            raise _unknown(source)
    return _read(Path(source))


def _unknown(name: str) -> ConfigError:
    # A hub id is tried by its last part: 'openai/gpt-oss-20b' is a likely thing to type.
    close = difflib.get_close_matches(name.rpartition("/")[2].lower(), preset_names(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"presets: {', '.join(_PRESETS)}"
    return ConfigError(
        f"model {name!r} is neither a preset nor the path of a config.json or of a folder holding "
        f"one; {hint}"
    )


def _read(path: Path) -> tuple[Mapping[str, Any], str, str]:
    file = path / "config.json" if path.is_dir() else path
    name = file.resolve().parent.name if file.name == "config.json" else file.name.split(".json")[0]
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give the path of a config.json") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}); make it readable") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not JSON ({error}); give a config.json") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{file}: holds a JSON {type(values).__name__}, not an object; give a config.json"
        )
    return values, str(file), name.removesuffix(".config")


def _kinds(
    layers: int, full: Iterable[int], others: str, full_name: str = "full_attention"
) -> list[str]:
    found = set(full)
    return [full_name if index in found else others for index in range(layers)]


def _gpt_oss(layers: int) -> Config:
    return {
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "layer_types": _kinds(layers, range(1, layers, 2), "sliding_attention"),
    }


def _gemma3(layers: int, heads: int, head_dim: int) -> Config:
    text = {
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    }
    return {"model_type": "gemma3", "text_config": text}


def _gemma4(layers: int, heads: int, global_heads: int) -> Config:
    text = {
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "head_dim": 256,
        "num_global_key_value_heads": global_heads,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "layer_types": _kinds(layers, range(5, layers, 6), "sliding_attention"),
    }
    return {"model_type": "gemma4", "text_config": text}


def _qwen_gdn(layers: int, heads: int, value_heads: int) -> Config:
    return {
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    }


def _qwen35(model_type: str, layers: int, heads: int, value_heads: int) -> Config:
    return {"model_type": model_type, "text_config": _qwen_gdn(layers, heads, value_heads)}


def _kimi(layers: int, heads: int, full: list[int]) -> Config:
    return {
        "model_type": "kimi_linear",
        "num_hidden_layers": layers,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "model_max_length": 1048576,
        "linear_attn_config": {
            "num_heads": heads,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": full,  # counted from 1
            "kda_layers": [number for number in range(1, layers + 1) if number not in full],
        },
    }


def _nemotron(
    pattern: str, heads: int, mamba_heads: int, state_size: int, context: int = 262144
) -> Config:
    return {
        "model_type": "nemotron_h",
        "num_hidden_layers": len(pattern),
        "hybrid_override_pattern": pattern,
        "num_key_value_heads": heads,
        "head_dim": 128,
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": state_size,
        "conv_kernel": 4,
        "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": context,
    }


def _falcon_h1(layers: int, head_dim: int, state_size: int, context: int) -> Config:
    return {
        "model_type": "falcon_h1",
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "mamba_n_heads": 24,
        "mamba_d_head": head_dim,
        "mamba_n_groups": 1,
        "mamba_d_state": state_size,
        "mamba_d_conv": 4,
        "max_position_embeddings": context,
    }


def _granite(hidden_size: int, query_heads: int, heads: int, mamba_heads: int) -> Config:
    return {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 40,
        "hidden_size": hidden_size,
        "num_attention_heads": query_heads,
        "num_key_value_heads": heads,
        "mamba_n_heads": mamba_heads,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "max_position_embeddings": 131072,
        "layer_types": _kinds(40, range(5, 40, 10), "mamba", "attention"),
    }


def _inkling(layers: int, hidden_size: int, window_heads: int) -> Config:
    text = {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "swa_num_key_value_heads": window_heads,
        "swa_head_dim": 128,
        "sliding_window_size": 512,
        "sconv_kernel_size": 4,
        "model_max_length": 1048576,
        "local_layer_ids": [index for index in range(layers) if (index + 1) % 6],
    }
    return {"model_type": "inkling_mm_model", "text_config": text}


def _qwen3(layers: int) -> Config:
    return {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_sliding_window": False,
        "max_position_embeddings": 40960,
    }


_PRESETS: dict[str, Config] = {
    "gpt-oss-20b": _gpt_oss(24),
    "gpt-oss-120b": _gpt_oss(36),
    "gemma-3-1b": {
        **_gemma3(26, 1, 256)["text_config"],
        "model_type": "gemma3_text",
        "sliding_window": 512,
        "max_position_embeddings": 32768,
    },
    "gemma-3-4b": _gemma3(34, 4, 256),
    "gemma-3-12b": _gemma3(48, 8, 256),
    "gemma-3-27b": _gemma3(62, 16, 128),
    "gemma-4-26b-a4b": _gemma4(30, 8, 2),
    "gemma-4-31b": _gemma4(60, 16, 4),
    "mimo-v2-flash": {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 192,
        "swa_v_head_dim": 128,
        "sliding_window": 128,
        "max_position_embeddings": 262144,
        "hybrid_layer_pattern": [int(index not in {0, *range(5, 48, 6)}) for index in range(48)],
    },
    "qwen3-next-80b-a3b": {"model_type": "qwen3_next", **_qwen_gdn(48, 2, 32)},
    "qwen3.5-27b": _qwen35("qwen3_5", 64, 4, 48),
    "qwen3.5-35b-a3b": _qwen35("qwen3_5_moe", 40, 2, 32),
    "qwen3.5-122b-a10b": _qwen35("qwen3_5_moe", 48, 2, 64),
    "qwen3.5-397b-a17b": _qwen35("qwen3_5_moe", 60, 2, 64),
    "kimi-linear-48b-a3b": _kimi(27, 32, [4, 8, 12, 16, 20, 24, 27]),
    "kimi-k3": {"model_type": "kimi_k3", "text_config": _kimi(93, 96, [*range(4, 93, 4), 93])},
    "nemotron-3-nano-30b-a3b": _nemotron(
        "MEMEM*" + "EMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME", 2, 64, 128
    ),
    "nemotron-3-super-120b-a12b": _nemotron(
        "MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME", 2, 128, 128
    ),
    "nemotron-h-56b": _nemotron(
        "M-M-M-M*" + "-M-M-M-M-M*" * 9 + "-M-M-M-M-M-", 8, 256, 256, context=8192
    ),
    "falcon-h1-0.5b": _falcon_h1(36, 64, 128, 16384),
    "falcon-h1-7b": _falcon_h1(44, 128, 256, 262144),
    "granite-4.0-h-micro": _granite(2048, 32, 8, 64),
    "granite-4.0-h-tiny": _granite(1536, 12, 4, 48),
    "granite-4.0-h-small": _granite(4096, 32, 8, 128),
    "inkling": _inkling(66, 6144, 16),
    "inkling-small": _inkling(42, 4096, 8),
    "jamba-v0.1": {
        "model_type": "jamba",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "max_position_embeddings": 262144,
    },
    "llama-4-scout-17b-16e": {
        "model_type": "llama4",
        "text_config": {
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_chunk_size": 8192,
            "max_position_embeddings": 10485760,
        },
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 163840,
    },
    "deepseek-v4-flash": {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 43,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "sliding_window": 128,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
        "max_position_embeddings": 1048576,
    },
    "qwen3-8b": _qwen3(36),
    "qwen3-32b": _qwen3(64),
}
