"""The decoder family: published parameter counts, kinds of layers, what cannot be built."""

from math import log, sqrt
from typing import Any

import pytest

from millrace.models.errors import ModelError
from millrace.models.graph import Graph
from millrace.models.model_counts import parallelism_limits
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.type_inference import check_graph
from millrace.models.zoo.catalogue import approximations, build, build_training, model_spec
from millrace.models.zoo.decoder.names import MODELS

# Parameters of the released weights, from the model cards on huggingface.co (their safetensors'
# headers) and EleutherAI's table of Pythia; of DeepSeek-V3 without its second head and without the
# 58 x 256 biases that steer its routers. Kimi K2 (read 2026-11) without these biases too; GLM-4.5
# and Air (read 2026-11) without the head for the token after next, which is one more layer with
# experts, its product of 2 x hidden by hidden, three norms, and the table and the head once more.
# Llama 4 and Gemma 3 (read 2026-11) have a part for images: 871,932,416 values, and 416,866,032
# with a norm and a product of 1152 by the hidden size. Nemotron 3 Nano, GLM-5 and MiniMax-M2 (read
# 2026-11) without the biases that steer their routers, GLM-5 and Qwen3-Next without the module for
# the token after next (`tests/test_multi_token.py`). DeepSeek-V3.2 is DeepSeek-V3 with an indexer
# in each layer: products of 1536 by 64 x 128 and of the hidden size by 64 and by 128, and a norm.
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3.1-8b": 8_030_261_248,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    "deepseek-v2-lite": 15_706_484_224,
    "kimi-k2": 1_026_408_232_448 - 60 * 384,
    "glm-4.5": 358_337_791_296 - 5_539_962_272 - 89 * 160,
    "glm-4.5-air": 110_468_824_832 - 3_616_573_568 - 45 * 128,
    "deepseek-v3.2": 671_026_404_352 + 61 * (1536 * 64 * 128 + 7168 * (64 + 128) + 2 * 128),
    "glm-5": 753_864_139_008 - 9_952_920_320 - 76 * 256,
    "kimi-k2.5": 1_026_408_232_448 - 60 * 384,
    "minimax-m2": 228_689_764_864 - 62 * 256,
    "nemotron-3-nano": 31_577_940_288 - 23 * 128,
    "qwen3-next-80b-a3b": 81_324_862_720 - 1_650_471_424,
    "olmo3-32b": 32_233_522_176,
    "seed-oss-36b": 36_151_104_512,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama4-scout": 108_641_793_536 - 871_932_416,
    "llama4-maverick": 401_583_781_376 - 871_932_416,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 4_300_079_472 - 416_866_032 - 1152 * 2561,
    "gemma3-12b": 12_187_325_040 - 416_866_032 - 1152 * 3841,
    "gemma3-27b": 27_432_406_640 - 416_866_032 - 1152 * 5377,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-70m": 70_426_624,
    "pythia-410m": 405_334_016,
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "mpt-7b": 6_649_286_656,
}
# Narayanan et al., arXiv 2104.04473, table 1, in thousands of millions.
MEGATRON = {
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18b": 18.4,
    "megatron-39b": 39.1,
    "megatron-76b": 76.1,
    "megatron-145b": 145.6,
    "megatron-310b": 310.1,
    "megatron-530b": 529.6,
    "megatron-1t": 1008.0,
}
# As their reports say, in thousands of millions, and how much rounding leaves open: of Moonlight
# (arXiv 2502.16982) without the tables of words, of Nemotron 3 Super (research.nvidia.com, March
# 2026) and Ultra (docs.nvidia.com, June 2026).
REPORTED = {
    "moonlight-16b-a3b": (15.29 + 2 * 163840 * 2048 / 1e9, 0.005),
    "nemotron-3-super": (120, 1),
    "nemotron-3-ultra-550b": (550, 1),
}
SMALL: dict[str, Any] = {
    "layers": 3,
    "hidden": 16,
    "vocab": 20,
    "positions": 12,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 4,
    "ffn_hidden": 24,
    "rotary_dims": 4,
}
EXPERTS: dict[str, Any] = {"experts": 6, "experts_per_token": 2, "expert_hidden": 8}
LATENT: dict[str, Any] = {
    "kv_heads": 4,
    "head_dim": 6,
    "rotary_dims": 2,
    "kv_lora": 5,
    "q_lora": 7,
    "value_dim": 3,
}


def graph(**changes: Any) -> Graph:
    spec = ModelSpec(name="own", family="decoder", config=SMALL | changes, seq_len=12)
    return build(spec, 2)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def test_decoders_have_exactly_the_published_parameters() -> None:
    assert {name: build(model_spec(name), 1).parameter_count for name in PUBLISHED} == PUBLISHED


def test_megatrons_series_has_the_parameters_of_its_table() -> None:
    counts = {name: build(model_spec(name), 1).parameter_count / 1e9 for name in MEGATRON}
    assert {name: round(count, 1) for name, count in counts.items()} == pytest.approx(
        MEGATRON, abs=0.051
    )


def test_decoders_have_the_parameters_of_their_reports() -> None:
    for name, (billions, within) in REPORTED.items():
        count = build(model_spec(name, seq_len=16), 1).parameter_count
        assert count / 1e9 == pytest.approx(billions, abs=within), name


def test_a_token_of_nemotron_3_nano_visits_the_parameters_of_its_report() -> None:
    spec = model_spec("nemotron-3-nano", seq_len=16)
    config: dict[str, Any] = dict(spec.config)
    asleep = config["experts"] - config["experts_per_token"]
    expert = 2 * config["hidden"] * config["expert_hidden"]
    active = build(spec, 1).parameter_count - config["pattern"].count("E") * asleep * expert
    table = config["vocab"] * config["hidden"]
    # NVIDIA, "Nemotron 3 Nano", arXiv 2512.20848 (2025): 3.2B, 3.6B with embeddings.
    assert (round((active - table) / 1e9, 1), round(active / 1e9, 1)) == (3.2, 3.6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": True, "head_bias": True, "norm": "scale", "window": 3, "full_layers": (1,)},
        {"parallel": True, "shared_norm": True, "norm": "layer", "gated": False, "qk_norm": "rms"},
        {"post_norms": True, "logit_cap": 5.0, "embedding_scale": 4.0, "activation": "gelu",
         "window": 3, "full_layers": (1,), "window_rope_base": 50.0, "tied": True},
        EXPERTS | {"experts_per_token": 1, "router": "sigmoid", "normalize_weights": False,
                   "weigh_inputs": True, "unturned_layers": (1,), "qk_norm": "unscaled",
                   "chunk": 6, "full_layers": (1,), "shared_hidden": 8},
        EXPERTS | {"router_bias": True, "expert_bias": True, "sinks": True, "gate_cap": 7.0},
        {"rotary_dims": 0, "alibi": 8.0, "clip_qkv": 3.0, "activation": "gelu"},
        EXPERTS | {"dense_layers": (0,), "shared_hidden": 8, "balance_loss": 0.1},
        EXPERTS | LATENT | {"router": "sigmoid", "router_groups": 3, "kept_groups": 2}
        | {"balance_loss": 0.1, "weight_scale": 2.0},
        LATENT | {"q_lora": 0, "out_bias": True, "qkv_bias": True},
    ],
)  # fmt: skip
def test_a_whole_training_step_fits_the_op_table(changes: dict[str, Any], precision: str) -> None:
    config = SMALL | changes
    spec = ModelSpec(name="own", family="decoder", config=config, seq_len=12, precision=precision)
    check_graph(build_training(spec, TrainingSpec(), 2))


def test_layers_of_one_kind_share_a_template() -> None:
    assert set(graph().templates.values()) == {"embedding", "h", "head"}
    mixed = graph(**EXPERTS, dense_layers=(0,), window=4, full_layers=(2,))
    assert [mixed.templates[f"h.{layer}"] for layer in range(3)] == [
        "h.dense.window",
        "h.experts.window",
        "h.experts.full",
    ]


def test_heads_are_dims_of_their_own() -> None:
    decoder = graph()
    assert decoder.tensor("h.0.attn.q.weight").shape == (16, 2, 2, 4)
    assert decoder.tensor("h.0.attn.k.weight").shape == (16, 2, 4)
    assert graph(kv_heads=4).tensor("h.0.attn.q.weight").shape == (16, 4, 4)


def test_only_the_layers_told_so_see_all_keys() -> None:
    decoder = graph(window=4, full_layers=(1,))
    windows = [op.attributes.get("window", 0) for op in decoder.ops if op.kind == "attention"]
    assert windows == [4, 0, 4]


def test_chunks_are_windows_of_as_many_keys_as_a_query_of_them_sees() -> None:
    decoder = graph(chunk=6, full_layers=(1,), unturned_layers=(1,))
    windows = [op.attributes.get("window", 0) for op in decoder.ops if op.kind == "attention"]
    assert windows == [3, 0, 3]
    assert kinds(decoder).count("rotary") == 4
    short = graph(chunk=12, full_layers=(1,))
    assert not any("window" in op.attributes for op in short.ops if op.kind == "attention")


def test_layers_with_a_window_may_turn_by_other_angles() -> None:
    stretched = {"rope_scaling": "linear", "rope_factor": 8.0}
    decoder = graph(window=4, full_layers=(1,), window_rope_base=50.0, **stretched)
    angles = [op.attributes for op in decoder.ops if op.kind == "rotary"]
    assert [turn["base"] for turn in angles] == [50, 50, 10000, 10000, 50, 50]
    assert [turn.get("scaling", "") for turn in angles] == ["", "", "linear", "linear", "", ""]


@pytest.mark.parametrize(
    ("name", "seq_len", "clauses"),
    [
        ("gpt-oss-20b", 4096, []),
        ("gemma2-9b", 4096, []),
        ("gemma3-27b", 4096, []),
        ("llama4-scout", 8192, []),
        ("llama4-maverick", 16384, ["attention within chunks of 8,192"]),
        ("bert-base", 512, []),
    ],
)
def test_what_a_graph_leaves_out_is_said(name: str, seq_len: int, clauses: list[str]) -> None:
    said = approximations(model_spec(name, seq_len))
    assert [text[: len(start)] for text, start in zip(said, clauses, strict=True)] == clauses


@pytest.mark.parametrize(("factor", "places"), [(0.0, 12), (1.0, 4), (1.25, 5), (9.0, 12)])
def test_the_capacity_of_experts_is_explicit(factor: float, places: int) -> None:
    decoder = graph(**EXPERTS, capacity_factor=factor)
    assert decoder.tensor("h.0.experts.dispatch").shape == (6, 2, places, 16)


def test_experts_are_all_that_can_be_split_as_such() -> None:
    for name in MODELS:
        spec = model_spec(name, seq_len=128)
        experts = parallelism_limits(build(spec, 1))["experts"]
        assert experts == spec.config.get("experts", 0), name


def test_routers_are_balanced_by_a_loss_only_where_it_is_asked_for() -> None:
    assert "expert_load" not in kinds(graph(**EXPERTS))
    decoder = graph(**EXPERTS, balance_loss=0.5, dense_layers=(1,))
    assert kinds(decoder).count("expert_load") == 2
    (total,) = (op for op in decoder.ops if op.name == "head.loss_with_balance")
    assert total.inputs == ("head.loss_sum", "h.0.experts.balance", "h.2.experts.balance")


def test_a_stretched_model_keeps_its_short_angles() -> None:
    decoder = build(model_spec("llama3-405b", seq_len=16), 1)
    attributes = next(op.attributes for op in decoder.ops if op.kind == "rotary")
    assert attributes["scaling"] == "llama3"
    assert attributes["original_positions"] == 8192


def test_deepseek_v3_softens_its_scores_as_yarn_does() -> None:
    decoder = build(model_spec("deepseek-v3", seq_len=16), 1)
    scale = next(op.attributes["scale"] for op in decoder.ops if op.kind == "attention")
    assert scale == pytest.approx((1 + 0.1 * log(40)) ** 2 / sqrt(192))


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"layers": 0}, "`layers` is 0, below 1"),
    ({"layers": 20_000}, "at most 1000 layers are built"),
    ({"ffn_hidden": 0}, "`ffn_hidden` is 0, below 1"),
    ({"epsilon": 0.0}, "`epsilon` is 0.0, not above 0"),
    ({"window": -1}, "`window` is -1, below 0"),
    ({"heads": 5}, "heads (5) is not divisible by kv_heads (2)"),
    ({"rotary_dims": 3}, "use an even number up to head_dim (4)"),
    ({"rotary_dims": 6}, "use an even number up to head_dim (4)"),
    ({"rope_base": 1.0}, "`rope_base` is 1.0, not above 1"),
    ({"rope_scaling": "ntk"}, 'choose one of "", linear, llama3, yarn'),
    ({"rope_scaling": "yarn"}, "needs the sequence length before the stretch"),
    ({"rope_scaling": "llama3", "rope_original": 8, "rope_low": 5.0}, "between 0 and"),
    ({"norm": "batch"}, "choose one of rms, layer, scale"),
    ({"activation": "mish"}, "choose one of gelu"),
    ({"shared_norm": True}, "`shared_norm` needs `parallel`"),
    ({"full_layers": (3,)}, "names layer 3; the layers are 0 to 2"),
    ({"unturned_layers": (7,)}, "`unturned_layers` names layer 7"),
    ({"post_norms": True, "parallel": True}, "exclude each other: set one"),
    ({"window": 4, "chunk": 4}, "exclude each other: set one to 0"),
    ({"window_rope_base": 0.5}, "`window_rope_base` is 0.5, not above 1"),
    ({"embedding_scale": 0.0}, "`embedding_scale` is 0.0, not above 0"),
    (EXPERTS | {"weigh_inputs": True}, "`weigh_inputs` is for one expert a token"),
    ({"q_lora": 4}, "belong to latent attention"),
    ({"kv_lora": 4}, "set kv_heads to 4"),
    ({"kv_lora": 4, "kv_heads": 4}, "turns some of the 4 features"),
    (EXPERTS | {"experts_per_token": 7}, "use 1 to 6"),
    (EXPERTS | {"expert_hidden": 0}, "`expert_hidden` is 0, below 1"),
    (EXPERTS | {"router": "hash"}, "choose one of softmax, sigmoid"),
    (EXPERTS | {"router_groups": 4}, "experts (6) do not make 4 router_groups"),
    (EXPERTS | {"router_groups": 6}, "use at most 3"),
    (EXPERTS | {"router_groups": 3, "kept_groups": 4}, "use 1 to 3"),
    (EXPERTS | {"dense_layers": (9,)}, "names layer 9"),
    (EXPERTS | {"capacity_factor": -1.0}, "`capacity_factor` is -1.0, below 0"),
    ({"width": 3}, "unknown field `width`"),
)


def refusal(changes: dict[str, Any]) -> str:
    """Words by which a configuration is refused; empty where it is built."""
    try:
        graph(**changes)
    except ModelError as error:
        return str(error)
    return ""


def test_a_configuration_that_cannot_be_built_is_refused() -> None:
    said = [(changes, complaint, refusal(changes)) for changes, complaint in REFUSED]
    assert [row for row in said if row[1] not in row[2]] == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tied": False}, None),
        ({"activation": "mish"}, "choose one of gelu"),
        ({"epsilon": 0.0}, "`epsilon` is 0.0, not above 0"),
        ({"attention_scale": -1.0}, "below 0"),
    ],
)
def test_what_a_gpt_may_differ_in(changes: dict[str, Any], complaint: str | None) -> None:
    sizes = {"layers": 1, "hidden": 8, "heads": 2, "ffn_hidden": 8, "vocab": 9, "positions": 4}
    spec = ModelSpec(name="own", family="gpt", config=sizes | changes, seq_len=4)
    if complaint is None:
        assert "head.logits.weight" in build(spec, 1).tensors_by_name
        return
    with pytest.raises(ModelError, match=complaint):
        build(spec, 1)
