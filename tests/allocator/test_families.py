"""Families: every public model comes out with the published figures; bad configs say what is wrong.

The comparison with the public layouts needs the shared data folder: `BANDSCOPE_SHARED`, or a folder
`shared` next to the checkout. Those tests are skipped, with the reason, where there is none.
"""

import csv
import json
import os
from pathlib import Path

import pytest

from bandscope.allocator.config_fields import MAX_LAYERS
from bandscope.allocator.decl import (
    MHA,
    MLA,
    FullLifetime,
    State,
    StateLifetime,
    WindowLifetime,
    dtype_bytes,
)
from bandscope.allocator.errors import ConfigError, UnsupportedModelError
from bandscope.allocator.families import declare_model, family_names
from bandscope.allocator.plan import plan_storage
from bandscope.allocator.presets import preset_config, preset_names

SHARED = Path(os.environ.get("BANDSCOPE_SHARED", Path(__file__).parents[3] / "shared"))
MODELS = SHARED / "data" / "models"
needs_shared = pytest.mark.skipif(
    not (MODELS / "summary.csv").is_file(),
    reason=f"no public model layouts at {MODELS}; set BANDSCOPE_SHARED to the shared folder",
)


def _summary():
    file = MODELS / "summary.csv"
    if not file.is_file():
        return {}
    with file.open(newline="") as lines:
        return {row["name"]: row for row in csv.DictReader(lines)}


SUMMARY = _summary()
CONFIGS = sorted(file.name.removesuffix(".config.json") for file in MODELS.glob("configs/*.json"))


def kinds_of(model):
    """The layer kinds as the public layouts spell them."""
    words = {FullLifetime: "full", WindowLifetime: "window", StateLifetime: "state"}
    return [
        "+".join(words[type(part.lifetime)] for part in layer.parts) or "none"
        for layer in model.layers
    ]


def figures(plan):
    """Entry bytes and number of layers, by kind."""
    return {band.kind: (band.entry_bytes, len(band.layers)) for band in plan.bands}


def check_against_summary(model, row):
    if row["expected"] == "refuse":
        with pytest.raises(UnsupportedModelError):
            plan_storage(model)
        return
    expected = {}
    for kind, unit in (("full", "token"), ("window", "token"), ("state", "slot")):
        if int(row[f"{kind}_layers"]):
            size = int(row[f"{kind}_bytes_per_{unit}"])
            expected[kind] = (size, int(row[f"{kind}_layers"]))
    plan = plan_storage(model)
    assert figures(plan) == expected
    assert len(model.layers) == int(row["num_layers"])
    lengths = [band.window_length for band in plan.windows]
    assert lengths == ([int(row["window_length"])] if row["window_length"] else [])


def check_against_layout(model, layout):
    assert kinds_of(model) == layout["layer_kinds"]
    assert model.context_length == layout["context_length"]
    for kind, pool in layout["pools"].items():
        lifetime = {"full": FullLifetime, "window": WindowLifetime, "state": StateLifetime}[kind]
        found = [
            (layer.index, part.geometry)
            for layer in model.layers
            for part in layer.parts
            if isinstance(part.lifetime, lifetime)
        ]
        assert [index for index, _ in found] == pool["layers"]
        geometry = found[0][1]
        if kind == "state":
            tensors = [*pool["conv"], *([pool["temporal"]] if pool["temporal"] else [])]
            assert geometry.kind == pool["kind"]
            assert [(list(row.shape), row.dtype) for row in geometry.rows()] == [
                (each["shape"], each["dtype"]) for each in tensors
            ]
        elif pool["attention"] == "mla":
            assert geometry == MLA(pool["kv_lora_rank"], pool["qk_rope_head_dim"], pool["dtype"])
        else:
            assert geometry == MHA(
                pool["num_kv_heads"], pool["k_head_dim"], pool["v_head_dim"], pool["dtype"]
            )


def layout_of(name):
    return json.loads((MODELS / "layouts" / f"{name}.json").read_text())


@needs_shared
def test_every_public_model_is_a_preset():
    assert set(SUMMARY) == set(preset_names())
    assert len(CONFIGS) == 10


@needs_shared
@pytest.mark.parametrize("name", sorted(SUMMARY))
def test_a_preset_comes_out_with_the_published_figures(name):
    if set(layout_of(name)["layer_kinds"]) & {"chunked", "compressed"}:
        # Refused while its layers are read; nothing is declared that could be compared.
        assert SUMMARY[name]["expected"] == "refuse"
        with pytest.raises(UnsupportedModelError):
            declare_model(name)
        return
    model = declare_model(name)
    check_against_summary(model, SUMMARY[name])
    check_against_layout(model, layout_of(name))


@needs_shared
@pytest.mark.parametrize("name", CONFIGS)
def test_an_original_config_comes_out_with_the_published_figures(name):
    model = declare_model(MODELS / "configs" / f"{name}.config.json")
    assert model.name == name
    check_against_summary(model, SUMMARY[name])
    check_against_layout(model, layout_of(name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-oss-20b", {"window": (24576, 12), "full": (24576, 12)}),
        ("gemma-3-27b", {"window": (425984, 52), "full": (81920, 10)}),
        ("gemma-4-31b", {"window": (819200, 50), "full": (81920, 10)}),
        ("mimo-v2-flash", {"window": (199680, 39), "full": (23040, 9)}),
        ("inkling", {"state": (7299072, 66), "window": (450560, 55), "full": (45056, 11)}),
        ("qwen3-next-80b-a3b", {"state": (77266944, 36), "full": (24576, 12)}),
        ("qwen3.5-27b", {"state": (153944064, 48), "full": (65536, 16)}),
        ("kimi-linear-48b-a3b", {"state": (43417600, 20), "full": (8064, 7)}),
        ("kimi-k3", {"state": (449372160, 69), "full": (27648, 24)}),
        ("nemotron-3-nano-30b-a3b", {"state": (49082368, 23), "full": (6144, 6)}),
        ("falcon-h1-7b", {"state": (139358208, 44), "full": (45056, 44)}),
        ("granite-4.0-h-tiny", {"state": (57341952, 36), "full": (8192, 4)}),
        ("jamba-v0.1", {"state": (16056320, 28), "full": (16384, 4)}),
    ],
)
def test_figures_that_need_no_data_folder(name, expected):
    assert figures(plan_storage(declare_model(name))) == expected


# Traps


def test_kimi_linear_counts_its_layers_from_one():
    kinds = kinds_of(declare_model("kimi-linear-48b-a3b"))
    full = [index for index, kind in enumerate(kinds) if kind == "full"]
    assert full == [3, 7, 11, 15, 19, 23, 26]


def test_gemma_4_full_layers_have_fewer_wider_heads():
    model = declare_model("gemma-4-26b-a4b")
    assert model.layers[5].parts[0].geometry == MHA(2, 512, 512)
    assert model.layers[0].parts[0].geometry == MHA(8, 256, 256)
    config = preset_config("gemma-4-26b-a4b")
    config["text_config"]["attention_k_eq_v"] = False
    assert declare_model(config).layers[5].parts[0].geometry == MHA(8, 512, 512)


def test_the_last_layer_of_gemma_4_is_always_full():
    config = preset_config("gemma-4-26b-a4b")
    del config["text_config"]["layer_types"]
    config["text_config"]["num_hidden_layers"] = 8
    assert kinds_of(declare_model(config)) == ["window"] * 5 + ["full", "window", "full"]


def test_gemma_4_layers_that_share_kv_keep_none():
    config = preset_config("gemma-4-26b-a4b")
    config["text_config"]["num_kv_shared_layers"] = 12
    kinds = kinds_of(declare_model(config))
    assert kinds[17:] == ["full"] + ["none"] * 12


def test_gemma_3_configs_leave_out_the_defaults_of_transformers():
    text = {"num_hidden_layers": 34, "sliding_window": 1024}
    model = declare_model({"model_type": "gemma3", "text_config": text})
    assert model.context_length == 131072
    assert figures(plan_storage(model)) == {"window": (118784, 29), "full": (20480, 5)}


def test_mimo_attention_chunk_size_does_not_make_layers_chunked():
    config = preset_config("mimo-v2-flash") | {"attention_chunk_size": 128}
    assert kinds_of(declare_model(config)) == kinds_of(declare_model("mimo-v2-flash"))


def test_inkling_layers_hold_attention_and_the_same_six_convolutions():
    model = declare_model("inkling")
    assert kinds_of(model)[4:7] == ["window+state", "full+state", "window+state"]
    states = {part.geometry for layer in model.layers for part in layer.parts[1:]}
    assert len(states) == 1
    assert [row.shape for row in states.pop().rows()] == [
        (3, 1024), (3, 1024), (3, 2048), (3, 2048), (3, 6144), (3, 6144),
    ]


def test_nemotron_mlp_and_moe_layers_hold_nothing():
    assert kinds_of(declare_model("nemotron-3-nano-30b-a3b"))[:6] == [
        "state", "none", "state", "none", "state", "full",
    ]
    config = preset_config("nemotron-h-56b")
    letters = {"M": "linear_attention", "*": "attention", "-": "mlp"}
    config["layers_block_type"] = [letters[each] for each in config.pop("hybrid_override_pattern")]
    del config["num_hidden_layers"]
    assert kinds_of(declare_model(config)) == kinds_of(declare_model("nemotron-h-56b"))


def test_granite_mamba_head_size_may_be_auto():
    config = preset_config("granite-4.0-h-tiny") | {"mamba_d_head": "auto", "mamba_expand": 2}
    expected = declare_model("granite-4.0-h-tiny")
    assert declare_model(config).layers == expected.layers


def test_a_window_of_unstated_length_is_called_window():
    config = preset_config("gpt-oss-20b") | {"sliding_window": None}
    assert [band.name for band in plan_storage(declare_model(config)).bands] == ["window", "full"]


def test_a_window_may_be_as_long_as_the_context():
    config = preset_config("gpt-oss-20b") | {"sliding_window": 131072}
    assert plan_storage(declare_model(config)).bands[0].window_length == 131072


def test_an_unused_window_longer_than_the_context_is_no_fault():
    config = preset_config("qwen3-8b") | {"sliding_window": 131072}
    assert set(kinds_of(declare_model(config))) == {"full"}
    config |= {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 4}
    assert kinds_of(declare_model(config)) == ["full"] * 4 + ["window"] * 32


# Where a configuration comes from


def test_a_file_and_its_folder_and_the_values_are_the_same(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = preset_config("gpt-oss-20b")
    (folder / "config.json").write_text(json.dumps(config))
    from_file = declare_model(folder / "config.json")
    assert from_file.name == "my-model"
    assert declare_model(folder) == declare_model(str(folder)) == from_file
    assert declare_model(config, name="my-model") == from_file


def test_a_preset_cannot_be_changed_from_outside():
    preset_config("gpt-oss-20b")["layer_types"].clear()
    assert len(declare_model("gpt-oss-20b").layers) == 24


def test_without_model_type_the_architecture_names_the_family():
    config = preset_config("gpt-oss-20b")
    del config["model_type"]
    config["architectures"] = ["GptOssForCausalLM"]
    assert declare_model(config).family == "gpt-oss"


@pytest.mark.parametrize("name", ["gpt-oss-2b", "openai/gpt-oss-20b", "GPT-OSS-20B"])
def test_an_unknown_name_is_answered_with_close_ones(name):
    with pytest.raises(ConfigError, match=r"did you mean .*gpt-oss-20b") as refusal:
        declare_model(name)
    assert repr(name) in str(refusal.value)


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(ConfigError, match=r"presets: .*inkling"):
        declare_model("zzzz")


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="did you mean"):
        preset_config("qwen3-8")


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: no such file"):
        declare_model(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        declare_model(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "a JSON list, not an object"),
        (b"null", "a JSON NoneType, not an object"),
        (b"{}", "'model_type' and 'architectures' are missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, words):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as refusal:
        declare_model(file)
    assert str(file) in str(refusal.value)


# Element types


def test_an_fp8_cache_halves_kv_and_leaves_state_alone():
    plan = plan_storage(declare_model("qwen3-next-80b-a3b", kv_dtype="fp8_e4m3"))
    assert figures(plan) == {"state": (77266944, 36), "full": (12288, 12)}
    assert {row.dtype for row in plan.band("full").rows} == {"float8_e4m3fn"}


def test_a_bfloat16_state_halves_the_temporal_part():
    whole = declare_model("qwen3-next-80b-a3b").layers[0].parts[0].geometry
    half = declare_model("qwen3-next-80b-a3b", state_dtype="bfloat16").layers[0].parts[0].geometry
    assert isinstance(whole, State) and isinstance(half, State)
    assert [row.dtype for row in whole.rows()] == ["bfloat16", "float32"]
    assert [row.dtype for row in half.rows()] == ["bfloat16", "bfloat16"]
    config = preset_config("nemotron-3-nano-30b-a3b") | {"mamba_ssm_cache_dtype": "float16"}
    assert declare_model(config).layers[0].parts[0].geometry.rows()[1].dtype == "float16"


def test_kv_rows_take_the_type_of_the_model_unless_told():
    config = preset_config("gpt-oss-20b") | {"torch_dtype": "float32"}
    assert declare_model(config).layers[0].parts[0].geometry.dtype == "float32"
    assert declare_model(config, kv_dtype="auto") == declare_model(config)
    assert declare_model(config, kv_dtype="bf16").layers[0].parts[0].geometry.dtype == "bfloat16"
    nested = preset_config("gemma-3-4b") | {"dtype": "float16"}
    assert declare_model(nested).layers[0].parts[0].geometry.dtype == "float16"


@pytest.mark.parametrize("dtype", ["nvfp4", "fp4_mx_block16", "FP4"])
def test_an_fp4_cache_is_refused_with_the_first_attention_layer(dtype):
    with pytest.raises(UnsupportedModelError, match=rf"layer 3 .*{dtype}.*FP4"):
        declare_model("qwen3-next-80b-a3b", kv_dtype=dtype)


def test_an_unknown_type_is_answered_with_the_known_ones():
    for wrong in ({"kv_dtype": "int3"}, {"state_dtype": "int3"}):
        with pytest.raises(ConfigError, match=r"'int3'.*bfloat16"):
            declare_model("qwen3-next-80b-a3b", **wrong)
    with pytest.raises(ConfigError, match=r"field 'dtype' is 7"):
        declare_model(preset_config("gpt-oss-20b") | {"dtype": 7})
    with pytest.raises(ConfigError, match="'int3'"):
        dtype_bytes("int3")


# Refusals


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-4-scout-17b-16e", ["layer 0", "'chunked_attention'", "not a sliding window"]),
        ("deepseek-v4-flash", ["layer 2", "compressed"]),
    ],
)
def test_a_refused_layer_is_named_with_the_reason(name, words):
    with pytest.raises(UnsupportedModelError) as refusal:
        declare_model(name)
    for word in [repr(name), *words]:
        assert word in str(refusal.value)


def test_llama_4_without_chunks_is_full_attention_only():
    config = preset_config("llama-4-scout-17b-16e")
    config["text_config"]["attention_chunk_size"] = None
    with pytest.raises(UnsupportedModelError, match="full attention only"):
        plan_storage(declare_model(config))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-8b", "deepseek-v3", "granite-4.0-h-micro"])
def test_an_unknown_kind_in_layer_types_is_refused_with_layer_and_kind(name):
    config = preset_config(name)
    kinds = ["full_attention"] * config["num_hidden_layers"]
    kinds[2] = "telepathy"
    config["layer_types"] = kinds
    with pytest.raises(UnsupportedModelError, match="layer 2 is of kind 'telepathy'"):
        declare_model(config)


@pytest.mark.parametrize(
    "kind", ["chunked_attention", "indexed_attention", "qwen_sparse_attention",
             "heavily_compressed_attention", "linear_attention"]
)
def test_a_known_kind_that_the_family_cannot_keep_is_refused(kind):
    config = preset_config("gpt-oss-20b")
    config["layer_types"][5] = kind
    with pytest.raises(UnsupportedModelError, match=f"layer 5 is of kind '{kind}'"):
        declare_model(config)


def test_an_unknown_letter_or_number_in_a_pattern_is_refused():
    config = preset_config("nemotron-h-56b")
    config["hybrid_override_pattern"] = "M*X" + config["hybrid_override_pattern"][3:]
    with pytest.raises(UnsupportedModelError, match="layer 2 is of kind 'X'"):
        declare_model(config)
    config = preset_config("mimo-v2-flash")
    config["hybrid_layer_pattern"][4] = 2
    with pytest.raises(UnsupportedModelError, match="layer 4 is of kind '2'"):
        declare_model(config)


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-linear-48b-a3b"])
def test_mla_with_windows_is_refused(name):
    config = preset_config(name) | {"sliding_window": 128}
    kinds = ["full_attention"] * config["num_hidden_layers"]
    kinds[1] = "sliding_attention"
    config["layer_types"] = kinds
    with pytest.raises(UnsupportedModelError, match="layer 0 is MLA and layer 1 attends"):
        plan_storage(declare_model(config))


def test_an_unknown_family_is_answered_with_the_known_ones():
    with pytest.raises(UnsupportedModelError, match=r"'bert'.*gpt_oss.*qwen3_next"):
        declare_model({"model_type": "bert"})
    with pytest.raises(UnsupportedModelError, match="'BertModel'"):
        declare_model({"architectures": ["BertModel"]})
    assert {"gemma3_text", "kimi_linear", "nemotron_h"} <= set(family_names())


def test_a_wrapper_is_not_taken_for_the_model_inside():
    config = preset_config("kimi-k3") | {"model_type": "kimi_k31"}
    with pytest.raises(UnsupportedModelError, match="'kimi_k31'"):
        declare_model(config)


# Malformed configurations


def _with(name, path, value):
    config = preset_config(name)
    *parents, last = path.split(".")
    inner = config
    for key in parents:
        inner = inner[key]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return config


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True, [8]])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gpt-oss-20b", "num_key_value_heads"),
        ("gpt-oss-20b", "head_dim"),
        ("gpt-oss-20b", "num_hidden_layers"),
        ("gpt-oss-20b", "sliding_window"),
        ("gpt-oss-20b", "max_position_embeddings"),
        ("gemma-3-4b", "text_config.sliding_window_pattern"),
        ("gemma-4-31b", "text_config.num_global_key_value_heads"),
        ("gemma-4-31b", "text_config.global_head_dim"),
        ("mimo-v2-flash", "v_head_dim"),
        ("mimo-v2-flash", "swa_num_key_value_heads"),
        ("qwen3.5-27b", "text_config.linear_num_value_heads"),
        ("qwen3.5-27b", "text_config.linear_conv_kernel_dim"),
        ("kimi-linear-48b-a3b", "kv_lora_rank"),
        ("kimi-k3", "text_config.linear_attn_config.head_dim"),
        ("nemotron-h-56b", "ssm_state_size"),
        ("falcon-h1-7b", "mamba_n_groups"),
        ("granite-4.0-h-micro", "mamba_d_conv"),
        ("inkling", "text_config.swa_head_dim"),
        ("jamba-v0.1", "attn_layer_period"),
    ],
)
def test_a_number_that_is_no_positive_integer_is_named(name, path, value):
    words = rf"field '{path}' must be an integer of at least"
    with pytest.raises(ConfigError, match=words) as error:
        declare_model(_with(name, path, value))
    assert f"is {value!r}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gpt-oss-20b", "num_hidden_layers"),
        ("gpt-oss-20b", "num_key_value_heads"),
        ("mimo-v2-flash", "hybrid_layer_pattern"),
        ("qwen3-next-80b-a3b", "linear_key_head_dim"),
        ("kimi-linear-48b-a3b", "qk_rope_head_dim"),
        ("kimi-linear-48b-a3b", "linear_attn_config"),
        ("kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers"),
        ("nemotron-h-56b", "hybrid_override_pattern"),
        ("nemotron-h-56b", "mamba_head_dim"),
        ("falcon-h1-7b", "mamba_d_state"),
        ("granite-4.0-h-micro", "layer_types"),
        ("inkling", "text_config.local_layer_ids"),
        ("inkling", "text_config.hidden_size"),
        ("jamba-v0.1", "attn_layer_offset"),
    ],
)
def test_a_missing_field_is_named(name, path):
    config = _with(name, path, KeyError)
    # A head size may be derived from the width instead: what is then missing is the width.
    named = {"mamba_head_dim": "mamba_expand"}.get(path, path)
    with pytest.raises(ConfigError, match=rf"field '{named}' (is missing|must be)"):
        declare_model(config)


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        ("gpt-oss-20b", "layer_types", ["full_attention"] * 23,
         "'layer_types' lists 23 layers but 'num_hidden_layers' is 24"),
        ("gpt-oss-20b", "layer_types", "full_attention", "'layer_types' must be a list"),
        ("gpt-oss-20b", "layer_types", [None] * 24, "'layer_types' must hold only str .* entry 0"),
        ("gpt-oss-20b", "num_hidden_layers", MAX_LAYERS + 1, f"at most {MAX_LAYERS}"),
        ("gpt-oss-20b", "sliding_window", 131073,
         "'sliding_window' gives layer 0 a window of 131073 .* context length is only 131072"),
        ("inkling", "text_config.sliding_window_size", 1048577,
         "'text_config.sliding_window_size' gives layer 0"),
        ("gemma-3-4b", "text_config", [], "'text_config' must be an object"),
        ("gemma-3-4b", "text_config", {}, "'text_config.num_hidden_layers' is missing"),
        ("mimo-v2-flash", "hybrid_layer_pattern", [1], "'hybrid_layer_pattern' lists 1 layers"),
        ("mimo-v2-flash", "hybrid_layer_pattern", [True] * 48, "must hold only int"),
        ("nemotron-h-56b", "hybrid_override_pattern", "M*", "lists 2 layers but .* is 118"),
        ("nemotron-h-56b", "hybrid_override_pattern", 7, "must be a string"),
        ("kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers", [0, 4],
         "'linear_attn_config.full_attn_layers' must list layers 1 to 27 once each but lists 0"),
        ("kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers", [4, 4], "lists 4"),
        ("kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers", [28], "lists 28"),
        ("kimi-linear-48b-a3b", "linear_attn_config.full_attn_layers", [4], "'.*kda_layers' must"),
        ("inkling", "text_config.local_layer_ids", [66], "must list layers 0 to 65"),
        ("jamba-v0.1", "attn_layer_offset", 8, "'attn_layer_offset' is 8 but must be below"),
        ("jamba-v0.1", "num_attention_heads", 33, "'head_dim' is missing and hidden_size 4096"),
        ("qwen3-8b", "num_hidden_layers", None, "'num_hidden_layers' is missing"),
    ],
)
def test_a_malformed_field_is_named_with_what_there_was(name, path, value, words):
    with pytest.raises(ConfigError, match=words):
        declare_model(_with(name, path, value))


def test_an_auto_head_size_must_divide():
    config = preset_config("granite-4.0-h-tiny") | {"mamba_d_head": "auto", "mamba_expand": 2}
    config["mamba_n_heads"] = 47
    with pytest.raises(ConfigError, match="'mamba_n_heads' is 47"):
        declare_model(config)


def test_the_file_is_named_with_the_field(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(_with("gpt-oss-20b", "head_dim", -1)))
    with pytest.raises(ConfigError) as error:
        declare_model(file)
    assert str(error.value).startswith(f"{file}: field 'head_dim' must be")


def test_heads_that_do_not_divide_are_refused_by_layer():
    with pytest.raises(ConfigError, match="layer 0: 8 KV heads .* width 3"):
        declare_model("gpt-oss-20b", tensor_parallel=3)
    with pytest.raises(ConfigError, match="layer 0: 16 linear key heads .* width 32"):
        declare_model("qwen3-next-80b-a3b", tensor_parallel=32)
