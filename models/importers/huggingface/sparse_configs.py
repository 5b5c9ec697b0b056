"""Configs of sparse attention: DeepSeek-V3.2 and GLM-5, which are DeepSeek-V3 with an indexer.

The indexer is read as one that is not trained: in the classes no gradient of the loss reaches it.
"""

from typing import Any

from millrace.models.importers.huggingface.expert_configs import MODEL_TYPES as EXPERTS
from millrace.models.importers.huggingface.keys import LAYERS_MAX, Keys
from millrace.models.importers.huggingface.mapping import Mapped, ModelType
from millrace.models.spec import Config

DEEPSEEK_V32: dict[str, Any] = {
    "max_position_embeddings": 163840,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "mlp_layer_types": None,
}
# As the class GLM-5 has them in transformers 5.
GLM_MOE_DSA: dict[str, Any] = DEEPSEEK_V32 | {
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "index_n_heads": 32,
}


def _deepseek_v32(keys: Keys, _: str) -> Mapped:
    return _with_indexer(keys.over(DEEPSEEK_V32), {})


def _glm_moe_dsa(keys: Keys, _: str) -> Mapped:
    """Return a GLM-5, whose layers all have an indexer: a choice is not handed on to others."""
    shared = "layers that take over the keys that another one chose are not supported"
    if set(keys.texts("indexer_types")) - {"full"}:
        raise keys.error("indexer_types", f"{shared}: expected `full` alone")
    if keys.has("index_topk_pattern"):
        raise keys.error("index_topk_pattern", f"{shared}: expected null")
    if keys.integer("index_topk_freq", 1, null=1) != 1:
        raise keys.error("index_topk_freq", f"{shared}: expected 1")
    return _with_indexer(keys.over(GLM_MOE_DSA), {"index_interleaved": True})


def _with_indexer(keys: Keys, fields: Config) -> Mapped:
    """Return DeepSeek-V3's configuration and the fields of the indexer."""
    index: Config = {
        "index_topk": keys.integer("index_topk"),
        "index_heads": keys.integer("index_n_heads"),
        "index_dim": keys.integer("index_head_dim"),
    }
    layers = keys.integer("num_hidden_layers", 61, most=LAYERS_MAX)
    if kinds := keys.texts("mlp_layer_types"):
        if len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
            raise keys.error("mlp_layer_types", f"expected dense or sparse for {layers} layers")
        dense = tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
        index["dense_layers"] = dense
    model_type = EXPERTS["deepseek_v3"]
    plain = keys.without("rope_interleave", "head_dim").over({"rope_interleave": True})
    base = model_type.read(plain, model_type.classes[0])
    return base._replace(config=base.config | index | fields)


MODEL_TYPES = {
    "deepseek_v32": ModelType(("DeepseekV32ForCausalLM",), _deepseek_v32),
    "glm_moe_dsa": ModelType(("GlmMoeDsaForCausalLM",), _glm_moe_dsa),
}
