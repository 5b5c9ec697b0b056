"""Configurations of decoders have exactly the parameters that transformers gives them."""

import dataclasses
import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.models.importers.huggingface import read_config, text_parts
from millrace.models.importers.huggingface.decoder_types import decoder_types
from millrace.models.zoo.catalogue import build
from tests.extras import optional

torch = optional("torch")
transformers = optional("transformers")
CONFIG_MAPPING = transformers.models.auto.CONFIG_MAPPING
AUTO_CLASSES = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLES = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def llama(
    layers: int, hidden: int, heads: int, groups: int, ffn: int, vocab: int, **other: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **other,
    }


# The released configurations of today's models, as far as they differ from the classes' defaults.
LLAMA31 = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
}
QWEN3 = {"head_dim": 128, "rope_theta": 1000000, "sliding_window": None}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2-7b": ("llama", {}),
    "llama2-70b": ("llama", llama(80, 8192, 64, 8, 28672, 32000)),
    "llama3-8b": ("llama", llama(32, 4096, 32, 8, 14336, 128256)),
    "llama3-405b": ("llama", llama(126, 16384, 128, 8, 53248, 128256, **LLAMA31)),
    "mistral-7b": ("mistral", {"max_position_embeddings": 32768}),
    "qwen2-0.5b": ("qwen2", llama(24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True)),
    "qwen2-72b": ("qwen2", llama(80, 8192, 64, 8, 29568, 152064)),
    "qwen3-32b": ("qwen3", llama(64, 5120, 64, 8, 25600, 151936, **QWEN3)),
    "gpt2-small": ("gpt2", {}),
    "gpt2-xl": ("gpt2", {"n_layer": 48, "n_embd": 1600, "n_head": 25}),
    "gpt-neox-20b": ("gpt_neox", {"hidden_act": "gelu_fast"}),
    "phi-2": ("phi", {"hidden_size": 2560, "num_hidden_layers": 32, "intermediate_size": 10240}),
    "phi-3-mini": ("phi3", {"sliding_window": 2047}),
    "mpt-30b": (
        "mpt",
        {"d_model": 7168, "n_heads": 64, "n_layers": 48, "max_seq_len": 8192, "vocab_size": 50432},
    ),
    "mixtral-8x7b": ("mixtral", {}),
    "mixtral-8x22b": ("mixtral", llama(56, 6144, 48, 8, 16384, 32000)),
    "qwen3-235b-a22b": (
        "qwen3_moe",
        llama(94, 4096, 64, 4, 12288, 151936, moe_intermediate_size=1536, **QWEN3),
    ),
    "deepseek-v3": ("deepseek_v3", {}),
    "glm-4.5-air": ("glm4_moe", {"attention_bias": True, "head_dim": 128}),
}


def counted(model_type: str, values: dict[str, Any]) -> int:
    """Count the parameters of the causal language model, shared ones once."""
    config = transformers.AutoConfig.for_model(model_type, **values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def ours(model_type: str, values: dict[str, Any], folder: Path) -> int:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type, **values}))
    return build(read_config(path), 1).parameter_count


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_exactly_the_parameters_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model_type, values = PUBLISHED[name]
    assert ours(model_type, values, tmp_path) == counted(model_type, values)


def sizes(
    fixed: dict[str, st.SearchStrategy[Any]] | None = None, **others: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Small sizes whose query heads are a multiple of the key/value heads."""

    def combined(drawn: tuple[int, int, int, dict[str, Any]]) -> dict[str, Any]:
        groups, together, per_head, rest = drawn
        heads = groups * together
        return {
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "hidden_size": heads * 2 * per_head,
            **rest,
        }

    small = st.integers(1, 3)
    rest = st.fixed_dictionaries(
        {"num_hidden_layers": small, "intermediate_size": st.integers(1, 20), **(fixed or {})},
        optional={
            "vocab_size": st.integers(2, 50),
            "tie_word_embeddings": st.booleans(),
            "max_position_embeddings": st.integers(1, 99),
            "rms_norm_eps": st.floats(1e-9, 1e-3),
            **others,
        },
    )
    return st.tuples(small, small, small, rest).map(combined)


HEAD_DIM = st.integers(1, 5).map(lambda half: 2 * half)
BIAS = st.booleans()
CHOSEN = {"num_experts_per_tok": st.integers(1, 4)}
LATENT = {
    "q_lora_rank": st.none() | st.integers(1, 9),
    "kv_lora_rank": st.integers(1, 9),
    "qk_rope_head_dim": HEAD_DIM,
    "qk_nope_head_dim": st.integers(1, 9),
    "v_head_dim": st.integers(1, 9),
    "moe_intermediate_size": st.integers(1, 9),
    "n_shared_experts": st.integers(1, 3),
    "first_k_dense_replace": st.integers(0, 4),
    "attention_bias": BIAS,
}
UNUSUAL: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "llama": sizes(head_dim=HEAD_DIM, attention_bias=BIAS, mlp_bias=BIAS),
    "mistral": sizes(head_dim=HEAD_DIM, sliding_window=st.none() | st.integers(1, 50)),
    "qwen2": sizes(use_sliding_window=BIAS, max_window_layers=st.integers(0, 4)),
    "qwen3": sizes(head_dim=HEAD_DIM, attention_bias=BIAS),
    "phi": sizes({"partial_rotary_factor": st.just(1.0)}, qk_layernorm=BIAS),
    "gpt_neox": sizes(
        {"rotary_pct": st.just(1.0)}, attention_bias=BIAS, use_parallel_residual=BIAS
    ),
    "mixtral": sizes(CHOSEN, head_dim=HEAD_DIM, num_local_experts=st.integers(4, 7)),
    "qwen3_moe": sizes(
        CHOSEN,
        head_dim=HEAD_DIM,
        num_experts=st.integers(4, 7),
        moe_intermediate_size=st.integers(1, 9),
        decoder_sparse_step=st.integers(1, 3),
        mlp_only_layers=st.lists(st.integers(0, 2)),
        norm_topk_prob=BIAS,
        output_router_logits=BIAS,
    ),
    "glm4_moe": sizes(
        CHOSEN,
        head_dim=st.integers(1, 3).map(lambda quarter: 4 * quarter),
        attention_bias=BIAS,
        use_qk_norm=BIAS,
        n_routed_experts=st.integers(4, 7),
        moe_intermediate_size=st.integers(1, 9),
        n_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, 4),
    ).map(lambda values: {"head_dim": 4, **values}),
    "gpt_oss": sizes(
        CHOSEN,
        head_dim=HEAD_DIM,
        num_local_experts=st.integers(4, 7),
        sliding_window=st.none() | st.integers(1, 50),
        attention_bias=BIAS,
    ),
    "gemma2": sizes(head_dim=HEAD_DIM, attention_bias=BIAS),
    "gemma3_text": sizes(head_dim=HEAD_DIM, attention_bias=BIAS),
    "gemma4_text": sizes(
        {"hidden_size_per_layer_input": st.integers(0, 3)},
        head_dim=HEAD_DIM,
        global_head_dim=st.sampled_from([8, 16]),
        num_global_key_value_heads=st.just(1),
        attention_k_eq_v=BIAS,
        attention_bias=BIAS,
        enable_moe_block=BIAS,
        use_double_wide_mlp=BIAS,
    ).map(
        lambda values: {
            **values,
            "num_experts": 5,
            "top_k_experts": 3,
            "moe_intermediate_size": 7,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        }
    ),
    "llama4_text": sizes(
        head_dim=HEAD_DIM,
        num_local_experts=st.integers(1, 7),
        intermediate_size_mlp=st.integers(1, 20),
        interleave_moe_layer_step=st.integers(1, 3),
        no_rope_layer_interval=st.integers(1, 4),
        use_qk_norm=BIAS,
        attention_bias=BIAS,
    ),
    "deepseek_v3": sizes(CHOSEN, **LATENT).map(
        lambda values: {
            **values,
            "num_key_value_heads": values["num_attention_heads"],
            "n_routed_experts": 12,
            "n_group": 3,
            "topk_group": 2,
        }
    ),
    **{
        name: sizes(
            CHOSEN,
            **LATENT | {"q_lora_rank": st.integers(1, 9), "attention_bias": st.just(False)},
            index_topk=st.integers(1, 9),
            index_n_heads=st.integers(1, 5),
            index_head_dim=st.integers(10, 20),
        ).map(
            lambda values: {
                "index_head_dim": 16,
                "qk_rope_head_dim": 4,
                **values,
                "num_key_value_heads": values["num_attention_heads"],
                "n_routed_experts": 12,
                "n_group": 3,
                "topk_group": 2,
            }
        )
        for name in ("deepseek_v32", "glm_moe_dsa")
    },
    "deepseek_v4": sizes(
        CHOSEN | {"q_lora_rank": st.integers(1, 9), "o_lora_rank": st.integers(1, 9)},
        moe_intermediate_size=st.integers(1, 9),
        hc_mult=st.integers(1, 5),
        index_n_heads=st.integers(1, 5),
        num_hash_layers=st.integers(0, 3),
        compress_ratios=st.lists(st.sampled_from([0, 4, 128]), min_size=4, max_size=4),
    ).map(
        lambda values: {
            **values,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "index_head_dim": 6,
            "o_groups": 1,
            "qk_rope_head_dim": 4,
            "n_routed_experts": 5,
            "max_position_embeddings": 130,
        }
    ),
    "gpt2": st.fixed_dictionaries(
        {"n_embd": st.sampled_from([6, 12]), "n_head": st.sampled_from([1, 2, 3])},
        optional={
            "n_layer": st.integers(1, 3),
            "n_inner": st.none() | st.integers(1, 9),
            "n_positions": st.integers(1, 9),
            "vocab_size": st.integers(2, 50),
            "tie_word_embeddings": st.booleans(),
        },
    ),
    "mpt": st.fixed_dictionaries(
        {"d_model": st.sampled_from([6, 12]), "n_heads": st.sampled_from([1, 2, 3])},
        optional={
            "n_layers": st.integers(1, 3),
            "vocab_size": st.integers(2, 50),
            "tie_word_embeddings": st.booleans(),
        },
    ),
}


@pytest.mark.parametrize("model_type", UNUSUAL)
@EXAMPLES
@given(data=st.data())
def test_unusual_sizes_have_exactly_the_parameters_of_transformers(
    model_type: str, tmp_path: Path, data: st.DataObject
) -> None:
    values = {"pad_token_id": None} | data.draw(UNUSUAL[model_type])
    assert ours(model_type, values, tmp_path) == counted(model_type, values)


WITHOUT_DEFAULTS = {  # types of which no model is made by default, and what makes one
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
}


@pytest.mark.parametrize("model_type", [name for name in decoder_types() if name in AUTO_CLASSES])
def test_what_transformers_writes_is_read_back(model_type: str, tmp_path: Path) -> None:
    values = WITHOUT_DEFAULTS.get(model_type, {})
    config = transformers.AutoConfig.for_model(model_type, **values)
    config.save_pretrained(tmp_path)
    assert build(read_config(tmp_path, seq_len=128), 1).parameter_count == counted(
        model_type, values
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", text_parts.MODEL_TYPES)
def test_the_part_for_text_has_the_parameters_of_its_class(model_type: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    (tmp_path / "config.json").write_text(config.to_json_string(use_diff=False))
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    text = ("lm_head", "language_model.", "model.language_model.", "model.text_model.")
    count = sum(
        parameter.numel() for name, parameter in model.named_parameters() if name.startswith(text)
    )
    assert build(read_config(tmp_path, seq_len=64), 1).parameter_count == count


@pytest.mark.parametrize("model_type", [name for name in decoder_types() if name in AUTO_CLASSES])
def test_a_type_has_the_defaults_of_its_configuration_class(model_type: str) -> None:
    row = decoder_types()[model_type]
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(CONFIG_MAPPING[model_type])
        if field.default is not dataclasses.MISSING
    }
    read = {row.names.get(name, name): value for name, value in row.keys.items()}
    wrong = {
        name: (read.get(row.names.get(name, name)), value)
        for name, value in defaults.items()
        if row.names.get(name, name) in read
        and value is not None
        and value != (0.0, inf)  # which no configuration can say but by null
        and read[row.names.get(name, name)] != (list(value) if isinstance(value, tuple) else value)
    }
    assert not wrong
