"""Hugging Face configurations: what is read, what is refused and in which words."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.models.errors import ModelError
from millrace.models.importers.huggingface import read_config
from millrace.models.importers.huggingface.decoder_types import decoder_types
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import build, model_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
}
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(folder: Path, values: Any, **options: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(values))
    return read_config(folder, **options)


def test_a_configuration_becomes_a_model_of_the_zoo(tmp_path: Path) -> None:
    spec = read(tmp_path, LLAMA)
    assert (spec.family, spec.seq_len, spec.name) == ("decoder", 128, tmp_path.name)
    assert spec.config["kv_heads"] == 2
    assert build(spec, 1).tensor("h.1.mlp.down.weight").shape == (64, 32)


def test_a_file_of_any_name_is_read_and_the_configuration_names_the_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(LLAMA | {"_name_or_path": "own/tiny"}))
    spec = read_config(path, seq_len=16, precision="bf16")
    assert (spec.name, spec.seq_len, spec.precision) == ("own/tiny", 16, "bf16")


def test_the_published_llama_405b_is_the_zoos(tmp_path: Path) -> None:
    values = LLAMA | {
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_attention_heads": 128,
        "num_hidden_layers": 126,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": ROPE | {"original_max_position_embeddings": 8192},
        "vocab_size": 128256,
    }
    spec, zoo = read(tmp_path, values, seq_len=64), model_spec("llama3-405b", seq_len=64)
    graph, zoo_graph = build(spec, 1), build(zoo, 1)
    assert graph.parameter_count == zoo_graph.parameter_count
    assert graph.ops == zoo_graph.ops


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": 77.0, "rope_scaling": ROPE},
        {"rope_parameters": {"rope_theta": 77.0, **ROPE}},
        {"rope_theta": 77.0, "rope_scaling": {"type": "llama3", **ROPE}},
    ],
)
def test_both_forms_of_rotary_positions_are_read(tmp_path: Path, written: dict[str, Any]) -> None:
    config = read(tmp_path, LLAMA | written).config
    assert (config["rope_base"], config["rope_scaling"], config["rope_factor"]) == (77, "llama3", 8)
    assert config["rope_original"] == 64


def test_yarn_softens_scores_by_its_factor(tmp_path: Path) -> None:
    stretched = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = read(tmp_path, LLAMA | {"rope_scaling": stretched}).config
    assert config["rope_amplitude"] == pytest.approx(1.1386294361119891)  # 0.1 ln 4 + 1


def test_imported_experts_have_a_capacity_that_the_configuration_shows(tmp_path: Path) -> None:
    values = LLAMA | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    config = read(tmp_path, values).config
    assert (config["capacity_factor"], config["experts"], config["expert_hidden"]) == (1.25, 8, 64)


def test_without_a_class_the_causal_language_model_is_meant(tmp_path: Path) -> None:
    values = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert read(tmp_path, values).config == read(tmp_path, LLAMA).config


def test_a_class_with_another_head_may_be_imported_itself(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        read(tmp_path, LLAMA | {"architectures": ["LlamaForTokenClassification"]})
    said = str(refused.value)
    module_line = "module = transformers.LlamaForTokenClassification(config)"
    assert f"AutoConfig.from_pretrained({str(tmp_path)!r}); {module_line}; imported = " in said
    assert "millrace.importing.import_module(module, " in said


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": None}, "`model_type` is null; expected the name of a model type"),
        ({"model_type": "zamba2"}, "`model_type` is 'zamba2'; no reader knows it"),
        ({"architectures": ["LlamaForTokenClassification"]}, "expected a list of one of LlamaForC"),
        ({"architectures": "LlamaForCausalLM"}, "expected a list of at most 10000 strings"),
        ({"hidden_size": -4}, "`hidden_size` is -4; expected an integer from 1 to 2147483647"),
        ({"hidden_size": 1e3}, "`hidden_size` is 1000.0; expected an integer"),
        ({"hidden_size": True}, "`hidden_size` is true; expected an integer"),
        ({"hidden_size": None}, "`hidden_size` is null; expected an integer"),
        ({"hidden_size": 2**80}, "expected an integer from 1"),
        ({"rms_norm_eps": 10**400}, "expected a number from 0 to"),
        ({"rope_theta": -(10**400)}, "expected a number from 0 to 1e+30"),
        ({"num_hidden_layers": 10**8}, "expected an integer from 1 to 10000"),
        ({"num_attention_heads": 64}, "`hidden_size` is 32; expected a multiple of"),
        ({"num_key_value_heads": 3}, "heads (4) is not divisible by kv_heads (3)"),
        ({"rms_norm_eps": "small"}, "`rms_norm_eps` is 'small'; expected a number from 0 to 1"),
        ({"hidden_act": "mish"}, "`hidden_act` is 'mish'; expected one of silu"),
        ({"tie_word_embeddings": 1}, "`tie_word_embeddings` is 1; expected true or false"),
        ({"rope_scaling": []}, "`rope_scaling` is []; expected an object"),
        ({"rope_scaling": {"type": "longrope"}}, "`type` is 'longrope'; expected one of default"),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling`: `factor` is missing; expected"),
        ({"rope_scaling": ROPE | {"high_freq_factor": 0.5}}, "between 0 and `rope_high`"),
        ({"head_dim": 7}, "use an even number up to head_dim (7)"),
        ({"_name_or_path": 3}, "`_name_or_path` is 3; expected a string"),
        (
            {"model_type": "gpt2", "architectures": [], "add_cross_attention": True},
            "`add_cross_attention` is true; this is not supported",
        ),
        (
            {"model_type": "mpt", "architectures": [], "attn_config": {"qk_ln": True}},
            "`attn_config`: `qk_ln` is true; this is not supported; expected false",
        ),
        (
            {"model_type": "qwen2", "architectures": [], "use_sliding_window": True}
            | {"layer_types": ["full_attention"]},
            "expected 2 of `full_attention` and `sliding_attention`",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError) as refused:
        read(tmp_path, LLAMA | changes)
    assert complaint in str(refused.value)
    assert "config.json" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON"),
        (b"{'model_type': 'llama'}", "is not JSON"),
        (b"[1, 2]", "holds [1, 2]; expected a JSON object"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "`model_type` is missing; expected the name of a model type"),
        (b" " * (2**24 + 1), "expected at most 16777216 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError) as refused:
        read_config(tmp_path)
    assert complaint in str(refused.value)


def test_a_part_for_images_is_left_out_and_that_is_told(tmp_path: Path) -> None:
    notes: list[str] = []
    values = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 7}, "vision_config": {}}
    spec = read(tmp_path, values, told=notes.append)
    assert spec.config["full_layers"] == (5,)
    assert notes == ["its part for images is left out"]


TEXT = {name: value for name, value in LLAMA.items() if name not in ("architectures", "model_type")}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("kimi_k25", "kimi_k2"),
        ("qwen3_vl", "qwen3"),
        ("qwen3_vl_moe", "qwen3_moe"),
        ("mistral3", "mistral"),
    ],
)
def test_the_text_of_a_wrapped_model_is_that_of_its_own_type(
    tmp_path: Path, outer: str, inner: str
) -> None:
    notes: list[str] = []
    wide = TEXT | {"num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 256}
    values = {"model_type": outer, "text_config": wide, "tie_word_embeddings": True}
    spec = read(tmp_path, values, told=notes.append)
    plain = read(tmp_path, {"model_type": inner, **wide, "tie_word_embeddings": True})
    assert (spec.config, spec.seq_len) == (plain.config, plain.seq_len)
    assert notes == ["its part for images is left out"]


def test_text_of_a_type_that_is_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    values = {"model_type": "mistral3", "text_config": {"model_type": "doge", **TEXT}}
    with pytest.raises(ModelError, match="`text_config`: `model_type` is 'doge'"):
        read(tmp_path, values)


def test_a_module_for_the_token_after_the_next_is_left_out_of_mimo(tmp_path: Path) -> None:
    notes: list[str] = []
    more = {"model_type": "mimo", "num_nextn_predict_layers": 1}
    spec = read(tmp_path, TEXT | more, told=notes.append)
    assert spec.config == read(tmp_path, TEXT | {"model_type": "qwen2"}).config
    assert "--mtp-layers 1 plans them" in notes[0]


def test_numbers_that_python_alone_writes_do_not_stand_in_the_way(tmp_path: Path) -> None:
    values = LLAMA | {"time_step_limit": [0.0, float("inf")], "x": float("nan")}
    assert read(tmp_path, values).config == read(tmp_path, LLAMA).config


@pytest.mark.parametrize("model_type", ["mamba", "jamba"])
def test_the_scan_of_the_first_mamba_is_refused_with_the_reason(
    tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(ModelError, match="its Mamba-1 scan, with a decay of every channel"):
        read(tmp_path, {"model_type": model_type})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "expected false"),
        ({"model_type": "gemma3_text", "layer_types": ["chunked"]}, "`sliding_attention`"),
        (
            {"model_type": "gemma3_text"}
            | {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "angles of layers with a window are not stretched",
        ),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "expected a number for each of 2"),
        ({"model_type": "llama4_text", "num_experts_per_tok": 2}, "is for one expert a token"),
        ({"model_type": "llama4_text", "router_jitter_noise": 0.1}, "not supported: 0"),
        ({"model_type": "kimi_k2", "scoring_func": "softmax"}, "expected one of sigmoid"),
        (
            {"model_type": "glm_moe_dsa", "num_key_value_heads": 4, "index_topk_pattern": "SF"},
            "the first `full`",
        ),
        ({"model_type": "modernbert-decoder", "classifier_bias": True}, "expected false"),
        (
            {"model_type": "bailing_hybrid", "kda_lower_bound": 2.0, "num_key_value_heads": None},
            "a number from -1000 to -0.001",
        ),
        ({"model_type": "recurrent_gemma", "block_types": []}, "a list of one layer's kind"),
        (
            {"model_type": "recurrent_gemma", "hidden_act": "gelu_pytorch_tanh", "lru_width": 5},
            "width (5) is not divisible by blocks",
        ),
        (
            {"model_type": "minimax_m3_vl_text", "layer_types": ["minimax_m3_sparse"]},
            "expected full_attention alone",
        ),
    ],
)
def test_what_recent_models_may_not_say_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    plain = {key: value for key, value in LLAMA.items() if key != "architectures"}
    with pytest.raises(ModelError) as refused:
        read(tmp_path, plain | changes)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, ()),
        ({"index_topk_freq": 4}, (2, 3, 4)),
        ({"index_topk_pattern": "FSFSSF"}, (1, 3, 4)),
        ({"indexer_types": ["full", "shared"] * 3}, (1, 3, 5)),
    ],
)
def test_layers_may_reuse_what_an_indexer_before_them_chose(
    tmp_path: Path, changes: dict[str, Any], layers: tuple[int, ...]
) -> None:
    spec = read(tmp_path, {"model_type": "glm_moe_dsa", "num_hidden_layers": 6} | changes)
    assert spec.config["index_reusing_layers"] == layers


@pytest.mark.parametrize("name", ["nothing.json", "", "a\0b"])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_config(tmp_path / name)


def test_a_precision_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no precision `int8`"):
        read(tmp_path, LLAMA, precision="int8")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([10**9, 2**31, 10**25, -(10**25)]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.sampled_from(["type", "factor", "rope_type"]), st.integers(-2, 9)),
)


OTHER_KEYS = (
    *("architectures", "head_dim", "attention_bias", "mlp_bias", "layer_types", "attn_config"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct"),
    "_name_or_path",
)
SMALL = {"num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_experts_per_tok": 2}
DEFAULTS = {name: row.keys for name, row in decoder_types().items()}


@pytest.mark.parametrize("model_type", DEFAULTS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_a_configuration_holds_it_is_read_or_refused(
    model_type: str, tmp_path: Path, data: st.DataObject
) -> None:
    defaults = DEFAULTS[model_type]
    values = {name: SMALL.get(name, value) for name, value in defaults.items()}
    for name in data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3), "missing"):
        values.pop(name, None)
    changed = st.dictionaries(st.sampled_from([*sorted(defaults), *OTHER_KEYS]), JUNK, max_size=3)
    values |= data.draw(changed, "changed")
    with suppress(ModelError):
        build(read(tmp_path, {"model_type": model_type, **values}, seq_len=8), 1)
