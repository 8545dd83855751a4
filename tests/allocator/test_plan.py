"""The storage plan: bands, their order, what an entry looks like, and what is refused."""

import json

import pytest

from bandscope.allocator.decl import (
    MHA,
    MLA,
    FullLifetime,
    HeadBlock,
    LayerDecl,
    ModelDecl,
    Part,
    State,
    StateLifetime,
    StateTensor,
    WindowLifetime,
    gdn_state,
    kda_state,
    mamba2_state,
    short_conv_state,
)
from bandscope.allocator.errors import ConfigError, UnsupportedModelError
from bandscope.allocator.families import declare_model
from bandscope.allocator.plan import RowPlan, StoragePlan, plan_from_sizes, plan_storage
from bandscope.allocator.presets import preset_names

REFUSED = {"llama-4-scout-17b-16e", "deepseek-v3", "deepseek-v4-flash", "qwen3-8b", "qwen3-32b"}
SERVED = sorted(set(preset_names()) - REFUSED)

HEADS = MHA(2, 8, 8)
STATE = State("test", (StateTensor("conv", (4, 3), "bfloat16"),))


def full(geometry=HEADS):
    return Part(geometry, FullLifetime())


def window(length, geometry=HEADS):
    return Part(geometry, WindowLifetime(length))


def state(geometry=STATE):
    return Part(geometry, StateLifetime())


def model(*layers):
    decls = tuple(LayerDecl(index, tuple(parts)) for index, parts in enumerate(layers))
    return ModelDecl("toy", "toy", 4096, decls)


def chain(plan):
    return [(band.name, band.kind, band.window_length, band.end) for band in plan.bands]


def test_state_is_low_windows_float_longest_first_and_full_is_high():
    plan = plan_storage(
        model([window(64)], [full()], [window(None)], [state()], [window(512)], [])
    )
    assert chain(plan) == [
        ("mamba", "state", None, "low"),
        ("window", "window", None, "float"),
        ("window_512", "window", 512, "float"),
        ("window_64", "window", 64, "float"),
        ("full", "full", None, "high"),
    ]
    assert plan.has_state
    assert [band.name for band in plan.windows] == ["window", "window_512", "window_64"]


def test_without_state_the_longest_window_is_the_low_end():
    plan = plan_storage(model([full()], [window(64)], [window(512)]))
    assert chain(plan) == [
        ("window_512", "window", 512, "low"),
        ("window_64", "window", 64, "float"),
        ("full", "full", None, "high"),
    ]
    assert not plan.has_state


def test_an_entry_holds_layers_in_order_and_in_a_layer_its_rows_in_order():
    plan = plan_storage(
        model([full(MHA(2, 8, 4)), state()], [], [full(MHA(2, 8, 4))], [state()]), page_size=4
    )
    assert plan.band("full").rows == (
        RowPlan(0, "k", (2, 8), "bfloat16", 0, 32),
        RowPlan(0, "v", (2, 4), "bfloat16", 32, 16),
        RowPlan(2, "k", (2, 8), "bfloat16", 48, 32),
        RowPlan(2, "v", (2, 4), "bfloat16", 80, 16),
    )
    assert plan.band("full").entry_bytes == 96
    assert plan.band("full").page_bytes == 4 * 96
    assert plan.band("full").layers == (0, 2)
    assert plan.band("full").row_count == 4
    # 24 bytes of conv, the next row on the next multiple of 16, the entry rounded up as well.
    slot = plan.band("mamba")
    assert [row.offset_bytes for row in slot.rows] == [0, 32]
    assert (slot.entry_bytes, slot.payload_bytes, slot.padding_bytes) == (64, 48, 16)
    assert (slot.page_size, slot.page_bytes) == (1, 64)


def test_alignment_decides_the_padding():
    toy = model([full(), state()], [state()])
    assert plan_storage(toy, alignment_bytes=8).band("mamba").entry_bytes == 48
    assert plan_storage(toy, alignment_bytes=64).band("mamba").entry_bytes == 128


def test_the_sink_holds_the_largest_page_of_any_band():
    toy = model([full(), state()])
    assert plan_storage(toy, page_size=1).sink_bytes == 64
    assert plan_storage(toy, page_size=16).sink_bytes == 16 * 64
    big = State("test", (StateTensor("conv", (4096,), "float32"),))
    assert plan_storage(model([full(), state(big)]), page_size=16).sink_bytes == 16384


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("page_size", [1, 64])
def test_no_known_model_needs_padding(name, page_size):
    plan = plan_storage(declare_model(name), page_size=page_size)
    for band in plan.bands:
        assert band.padding_bytes == 0
        used = 0
        for row in band.rows:
            assert row.offset_bytes == used
            used += row.row_bytes
        assert used == band.entry_bytes
        assert band.page_size == (1 if band.kind == "state" else page_size)


def test_presets_and_refusals_cover_every_preset():
    assert len(SERVED) == 27
    for name in REFUSED:
        with pytest.raises(UnsupportedModelError):
            plan_storage(declare_model(name))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([[full()], [full()]], ["layers 0 to 1", "full attention only", "MHA"]),
        ([[full(MLA(512, 64))]], ["layers 0", "full attention only", "MLA"]),
        ([[], [full(MLA(512, 64))], [window(8, MLA(512, 64))]], ["layer 1", "layer 2", "MLA"]),
        ([[full()], [window(8, MLA(512, 64))]], ["layer 1", "MLA"]),
        ([[], [window(8)], [state()]], ["layers 1 to 2", "no full-attention"]),
        ([[full()], [window(8)], [], [window(8, MHA(2, 8, 4))]],
         ["layers 1 and 3", "'window_8'", "(2, 8)", "(2, 4)"]),
        ([[full()], [full(MHA(4, 8, 8))], [window(8)]], ["layers 0 and 1", "'full'"]),
        ([[full(), state()], [state(kda_state(2, 8, 4))]], ["layers 0 and 1", "'mamba'"]),
        ([[full()], [full(MLA(512, 64))], [state()]], ["layers 0 and 1", "'full'"]),
        ([[], []], ["layer, 0 included"]),
    ],
)
def test_what_no_arena_serves_is_refused_with_layer_and_reason(layers, words):
    with pytest.raises(UnsupportedModelError) as refusal:
        plan_storage(model(*layers))
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("page_size", [0, -1, 1.5, True, "16"])
def test_a_bad_page_size_is_refused(page_size):
    with pytest.raises(ConfigError, match="tokens were asked for"):
        plan_storage(model([full(), state()]), page_size=page_size)
    with pytest.raises(ConfigError, match="tokens were asked for"):
        plan_from_sizes([("full", 64), ("mamba", 64)], page_size=page_size)


@pytest.mark.parametrize("alignment", [0, 1, 2, 12, -16, 16.0])
def test_a_bad_alignment_is_refused(alignment):
    with pytest.raises(ConfigError, match="power of two"):
        plan_storage(model([full(), state()]), alignment_bytes=alignment)


def test_an_unknown_band_is_answered_with_the_names():
    plan = plan_storage(model([full(), state()]))
    with pytest.raises(ConfigError, match=r"'window_8'.*mamba, full"):
        plan.band("window_8")


# Tensor parallel


def test_kv_heads_divide_or_are_replicated():
    heads = MHA(8, 128, 64)
    assert heads.split(4) == MHA(2, 128, 64)
    assert heads.split(8) == MHA(1, 128, 64)
    assert heads.split(16) == MHA(1, 128, 64)
    assert MLA(512, 64).split(16) == MLA(512, 64)


@pytest.mark.parametrize(("heads", "width"), [(8, 3), (8, 12), (6, 4)])
def test_heads_that_do_not_divide_are_refused_with_layer_heads_and_width(heads, width):
    toy = model([state()], [full(MHA(heads, 8, 8))])
    with pytest.raises(ConfigError, match=rf"layer 1: {heads} KV heads .* width {width}"):
        plan_storage(toy, tensor_parallel=width)


def test_gdn_state_divides_key_and_value_heads():
    whole = gdn_state(16, 128, 32, 64, 4)
    assert [row.shape for row in whole.rows()] == [(2 * 16 * 128 + 32 * 64, 3), (32, 64, 128)]
    part = whole.split(8)
    assert [row.shape for row in part.rows()] == [(2 * 2 * 128 + 4 * 64, 3), (4, 64, 128)]
    with pytest.raises(ConfigError, match="16 linear key heads .* width 32"):
        whole.split(32)


def test_mamba2_state_divides_heads_and_divides_or_replicates_groups():
    whole = mamba2_state(64, 32, 8, 128, 4)
    quarter, sixteenth = whole.split(4), whole.split(16)
    assert [row.shape for row in quarter.rows()] == [(16 * 32 + 2 * 2 * 128, 3), (16, 32, 128)]
    assert [row.shape for row in sixteenth.rows()] == [(4 * 32 + 2 * 128, 3), (4, 32, 128)]
    with pytest.raises(ConfigError, match="Mamba-2 heads"):
        whole.split(128)
    with pytest.raises(ConfigError, match="6 Mamba-2 groups .* width 4"):
        mamba2_state(64, 32, 6, 128, 4).split(4)


def test_kda_state_divides_along_the_channels():
    part = kda_state(32, 128, 4).split(8)
    assert [row.shape for row in part.rows()] == [(3, 3 * 4 * 128), (4, 128, 128)]


def test_short_conv_state_divides_kv_channels_and_keeps_the_hidden_stream():
    part = short_conv_state(MHA(8, 128, 128), MHA(16, 128, 128), 6144, 4).split(16)
    assert [row.shape for row in part.rows()] == [
        (3, 128), (3, 128), (3, 128), (3, 128), (3, 6144), (3, 6144),
    ]


def test_tensor_parallel_halves_what_divides():
    whole = plan_storage(declare_model("qwen3-next-80b-a3b"))
    half = plan_storage(declare_model("qwen3-next-80b-a3b", tensor_parallel=2))
    assert half == plan_storage(declare_model("qwen3-next-80b-a3b"), tensor_parallel=2)
    assert (whole.tensor_parallel, half.tensor_parallel) == (1, 2)
    for band in whole.bands:
        assert half.band(band.name).entry_bytes * 2 == band.entry_bytes
    latent = plan_storage(declare_model("kimi-linear-48b-a3b", tensor_parallel=4))
    assert latent.band("full").entry_bytes == 8064
    assert latent.band("mamba").entry_bytes * 4 == 43417600


def test_a_declaration_is_split_once():
    with pytest.raises(ConfigError, match="already split over 2"):
        plan_storage(declare_model("gpt-oss-20b", tensor_parallel=2), tensor_parallel=2)


@pytest.mark.parametrize("width", [0, -2, 1.0, True])
def test_a_bad_width_is_refused(width):
    with pytest.raises(ConfigError, match="tensor parallel width"):
        declare_model("gpt-oss-20b", tensor_parallel=width)


# Declarations


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MHA(0, 8, 8), "MHA was given 0"),
        (lambda: MHA(8, 8, 8, "int4"), "'int4'"),
        (lambda: MLA(512, -1), "MLA was given -1"),
        (lambda: WindowLifetime(0), "window length was given 0"),
        (lambda: StateTensor("conv", (4, 0), "bfloat16"), "'conv' was given 0"),
        (lambda: State("gdn", ()), "no tensor"),
        (lambda: Part(STATE, FullLifetime()), "State was declared with FullLifetime"),
        (lambda: Part(HEADS, StateLifetime()), "MHA was declared with StateLifetime"),
        (lambda: LayerDecl(3, (full(), window(8))), "layer 3 declares 2 attention"),
        (lambda: LayerDecl(3, (state(), state())), "layer 3 declares 0 attention and 2 state"),
        (lambda: ModelDecl("toy", "toy", None, (LayerDecl(1, ()),)), r"\[1\]"),
        (lambda: ModelDecl("toy", "toy", None, ()), r"\[\]"),
    ],
)
def test_an_impossible_declaration_is_refused(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_shards_must_fill_their_axis():
    with pytest.raises(AssertionError):
        StateTensor("conv", (5, 3), "bfloat16", 0, (HeadBlock("heads", 2, 2),))


# JSON


@pytest.mark.parametrize("name", ["gpt-oss-20b", "inkling", "kimi-linear-48b-a3b"])
def test_a_plan_survives_json(name):
    plan = plan_storage(declare_model(name, tensor_parallel=2), page_size=8)
    assert StoragePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_padded_and_a_synthetic_plan_survive_json():
    for plan in (
        plan_storage(model([full(), state()], [state()])),
        plan_from_sizes([("full", 64), ("window", 32), ("mamba", 128)], page_size=4),
    ):
        assert StoragePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def _put(data, path, value):
    *parents, last = path
    for key in parents:
        data = data[key]
    data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["schema"], "bandscope-plan/0", "schema"),
        (["page_size"], 0, "tokens were asked for"),
        (["page_size"], None, "'page_size'"),
        (["context_length"], "long", "'context_length'"),
        (["bands"], {}, "'bands'"),
        (["bands", 0], 7, "'name'"),
        (["bands", 0, "name"], "window_08", "'window_08'"),
        (["bands", 0, "name"], "full", "at least one other"),
        (["bands", 0, "name"], "window_9", "'bands'"),
        (["bands", 0, "end"], "float", "'bands'"),
        (["bands", 0, "kind"], "state", "'bands'"),
        (["bands", 0, "window_length"], 9, "'bands'"),
        (["bands", 1, "entry_bytes"], 32, "rows of"),
        (["bands", 1, "entry_bytes"], True, "'entry_bytes'"),
        (["bands", 1, "payload_bytes"], 63, "'bands'"),
        (["bands", 1, "rows", 0, "row_bytes"], 16, "'bands'"),
        (["bands", 1, "rows", 1, "offset_bytes"], 16, "overlaps"),
        (["bands", 1, "rows", 1, "shape"], [2, -8], "overlaps"),
        (["bands", 1, "rows", 1, "dtype"], "int4", "'int4'"),
    ],
)
def test_a_plan_that_was_changed_by_hand_is_not_read(path, value, words):
    data = plan_storage(model([full()], [window(8)])).to_json()
    _put(data, path, value)
    with pytest.raises(ConfigError, match=words):
        StoragePlan.from_json(data)


# Synthetic plans


def test_a_plan_from_sizes_takes_bands_in_any_order():
    plan = plan_from_sizes(
        [("window_8", 32), ("full", 64), ("window_16", 48), ("mamba", 7), ("window", 16)],
        page_size=4,
    )
    assert [(*each[:1], *each[2:]) for each in chain(plan)] == [
        ("mamba", None, "low"),
        ("window", None, "float"),
        ("window_16", 16, "float"),
        ("window_8", 8, "float"),
        ("full", None, "high"),
    ]
    assert [band.page_bytes for band in plan.bands] == [7, 16, 48, 32, 64]
    assert [band.page_size for band in plan.bands] == [1, 4, 4, 4, 4]
    assert plan.band("full").entry_bytes == plan.band("full").payload_bytes == 16
    assert plan.band("full").rows == () and plan.band("full").layers == ()
    assert plan.sink_bytes == 64


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        ([("full", 64)], "2 to 5"),
        ([("full", 64), *((f"window_{length}", 64) for length in range(1, 6))], "2 to 5"),
        ([("full", 64), ("full", 64)], "different"),
        ([("mamba", 64), ("window_8", 64)], "'full' once"),
        ([("full", 64), ("swa", 64)], "'swa'"),
        ([("full", 64), ("window_0", 64)], "'window_0'"),
        ([("full", 64), ("window_08", 64)], "'window_08'"),
        ([("full", 64), ("window_²", 64)], "'window_²'"),
        ([("full", 66), ("mamba", 64)], "'full' was given pages of 66 bytes"),
        ([("full", 64), ("mamba", 0)], "'mamba' was given pages of 0"),
    ],
)
def test_impossible_sizes_are_refused(bands, words):
    with pytest.raises(ConfigError, match=words):
        plan_from_sizes(bands, page_size=4)
