"""Model reading: Megatron-Core's settings as a model; `model_values` is the inverse."""

from collections.abc import Mapping
from re import fullmatch
from typing import Any

from millrace.models.fp8 import HEAD
from millrace.models.spec import ModelSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.frameworks.model_settings import with_narrow_parts
from millrace.trainers.megatron.hybrid_layers import VARIANT, given_pattern, read_hybrid
from millrace.trainers.megatron.layer_patterns import layer_pattern
from millrace.trainers.megatron.model_values import DECODER, GPT
from millrace.trainers.model_names import alike, known_name, name_of, stated
from millrace.trainers.trainer import SettingsError

# Vocabularies of tokenizers that are always the same files.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
USUAL_VOCABULARY = TOKENIZERS["GPT2BPETokenizer"]
ALIBI = 8.0  # the largest exponent of its slopes: Press et al., 2021
# Sizes of which none is below one.
SIZES = (
    *("num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings"),
    *("ffn_hidden_size", "kv_channels", "num_query_groups", "num_experts", "moe_router_topk"),
    *("moe_ffn_hidden_size", "micro_batch_size", "global_batch_size", "kv_lora_rank"),
    *("make_vocab_size_divisible_by", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
)
# Llama 3.1's stretched angles, all but their factor (megatron/core/models/common/embeddings/
# rotary_pos_embedding.py, read 2026-11).
_LLAMA3 = {"rope_low": 1.0, "rope_high": 4.0, "rope_original": 8192}


def read_model(
    values: Mapping[str, Any], name: str, tp: int, assumed: list[str]
) -> tuple[ModelSpec, list[str]]:
    """Model that settings describe, and sentences about what of it has no place in a plan.

    Parameters
    ----------
    values : mapping
        By destination, with the defaults of what is not given.
    name : str
        Name of the model; empty: the catalogue's, where it has one of these sizes.
    tp : int
        Degree of tensor parallelism, by which Megatron divides the vocabulary.
    assumed : list of str
        Gets a sentence where the vocabulary is not given.

    Raises
    ------
    SettingsError
        A size is missing, or a pattern of layers cannot be read.
    """
    for dest in SIZES[:4]:
        option = f"--{dest.replace('_', '-')}"
        if values[dest] is None:
            raise SettingsError(f"{option} is missing: it says how large the model is")
    for dest in SIZES:
        size = values[dest]
        if size is not None and size < 1:
            raise SettingsError(f"--{dest.replace('_', '-')} {size}: expected 1 or more")
    notes: list[str] = []
    form = _positions_of(values)
    learned = form == "learned_absolute"
    plain = not (values["swiglu"] or values["quick_geglu"] or values["squared_relu"])
    plain = plain and given_pattern(values) is None and not values.get(VARIANT)
    simple = plain and values["normalization"] == "LayerNorm" and not values["num_experts"]
    grouped = values["group_query_attention"] or values["multi_latent_attention"]
    family = GPT if learned and simple and not grouped else DECODER
    config = _read_gpt(values, notes) if family == GPT else _read_decoder(values, form, notes)
    config["vocab"] = _vocabulary(values, tp) or _supposed(values, family, config, tp, assumed)
    spec = ModelSpec(
        name=name or name_of(family, config),
        family=family,
        config=stated(family, config),
        seq_len=values["seq_length"],
        precision=_precision(values),
    )
    if values["fp8_output_proj"] and values["fp8"]:
        if family == GPT:
            notes.append("--fp8-output-proj: the head of a GPT stays in 16 bits")
        else:
            spec = with_narrow_parts(spec, (HEAD,))
    return spec, notes


def _vocabulary(values: Mapping[str, Any], tp: int, size: int = 0) -> int:
    """Size of the vocabulary, padded as Megatron pads it; 0 where nothing says it."""
    if values["padded_vocab_size"]:
        return int(values["padded_vocab_size"])
    multiple = int(values["make_vocab_size_divisible_by"]) * tp
    return -(-int(size or values["vocab_size"] or 0) // multiple) * multiple


def _supposed(
    values: Mapping[str, Any], family: str, config: Mapping[str, Any], tp: int, assumed: list[str]
) -> int:
    """Size of the vocabulary where the tokenizer's files say it: by its name, or by the model."""
    try:
        tokenizer = values.get("tokenizer_type") or ""
        if not tokenizer and bool(values.get("merge_file")) == bool(values.get("vocab_file")):
            tokenizer = "GPT2BPETokenizer"  # pretrain_gpt.py's own, of two files
    except SettingsError:  # of a fork
        tokenizer = ""
    models = alike(family, {**config, "vocab": 1})
    files = known_name(_text(values, "tokenizer_model"))
    if files:
        models = {files: int(model_spec(files).config["vocab"])}  # type: ignore[arg-type]
    size = TOKENIZERS.get(tokenizer) or next(iter(models.values()), USUAL_VOCABULARY)
    if tokenizer in TOKENIZERS or models:
        cause = tokenizer if tokenizer in TOKENIZERS else f"{next(iter(models))} in the catalogue"
        assumed.append(f"a vocabulary of {size:,}, as {cause} has (--set vocab_size=N)")
    else:
        assumed.append(
            f"a vocabulary of {size:,}, GPT-2's, since --vocab-size is missing and the tokenizer's "
            f"files are not read: give it with --set vocab_size=N"
        )
    return _vocabulary(values, tp, size)


def _text(values: Mapping[str, Any], dest: str) -> str:
    """Text of an argument that only helps; empty where it has none."""
    try:
        return values.get(dest) or ""
    except SettingsError:
        return ""


def _precision(values: Mapping[str, Any]) -> str:
    if values["fp4"]:
        return "nvfp4"
    if values["fp8"]:
        return "mxfp8" if values["fp8_recipe"] == "mxfp8" else "fp8"
    return "bf16" if values["bf16"] else "fp16" if values["fp16"] else "fp32"


def _read_gpt(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    if not values["add_bias_linear"]:
        notes.append("--disable-bias-linear: GPT's products are planned with biases")
    return {
        "layers": values["num_layers"],
        "hidden": values["hidden_size"],
        "heads": values["num_attention_heads"],
        "ffn_hidden": values["ffn_hidden_size"] or 4 * values["hidden_size"],
        "positions": values["max_position_embeddings"] or values["seq_length"],
        "token_std": values["init_method_std"],
        "init_std": values["init_method_std"],
        "epsilon": values["layernorm_epsilon"],
        "tied": not values["untie_embeddings_and_output_weights"],
    }


def _read_decoder(values: Mapping[str, Any], form: str, notes: list[str]) -> dict[str, Any]:
    layers, hidden = values["num_layers"], values["hidden_size"]
    heads = values["num_attention_heads"]
    head_dim = values["kv_channels"] or hidden // heads
    grouped = values["group_query_attention"]
    gated = values["swiglu"] or values["quick_geglu"]
    capped = values["activation_func_clamp_value"] and gated  # a sigmoid's gate in either form
    activation = (
        "silu" if values["swiglu"] or capped else "relu2" if values["squared_relu"] else "gelu"
    )
    if form in ("learned_absolute", "relative"):
        notes.append(
            f"{form.replace('_absolute', '')} positions: planned without, a table of a few MiB"
        )
    usual_ffn = int(4 * hidden * 2 / 3) // 64 * 64 if values["swiglu"] else 4 * hidden
    config: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": values["num_query_groups"] if grouped else heads,
        "head_dim": head_dim,
        "positions": values["max_position_embeddings"] or values["seq_length"],
        "ffn_hidden": values["ffn_hidden_size"] or usual_ffn,
        "norm": "rms" if values["normalization"] == "RMSNorm" else "layer",
        "epsilon": values["layernorm_epsilon"],
        "init_std": values["init_method_std"],
        "tied": not values["untie_embeddings_and_output_weights"],
        "gated": gated,
        "activation": activation,
        "qk_norm": ("rms" if values["normalization"] == "RMSNorm" else "layer")
        * values["qk_layernorm"],
        "mtp_layers": values["mtp_num_layers"] or 0,
        "attention_gate": "sigmoid" if values["attention_output_gate"] else "",
        "gate_cap": float(capped or 0.0),
    }
    if values["mtp_num_layers"]:
        config["mtp_loss"] = values["mtp_loss_scaling_factor"]
    config |= _read_attention(values, config)
    config |= _read_positions(values, form, config)
    config["alibi"] = ALIBI if values.get("alibi") else 0.0
    config |= _read_experts(values, layers, config["ffn_hidden"])
    config |= read_hybrid(values, config, notes)
    bias = bool(values["add_bias_linear"])
    dense = not config.get("experts") or bool(config["dense_layers"])
    config["qkv_bias"] = bias or values["add_qkv_bias"]
    config |= {"out_bias": bias, "ffn_bias": bias and dense}
    config["expert_bias"] = bias and bool(config.get("experts"))
    return config


def _read_attention(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {"sinks": values["softmax_type"] == "learnable"}
    if values["multi_latent_attention"]:
        rotary = values["qk_pos_emb_head_dim"]
        read |= {
            "kv_lora": values["kv_lora_rank"],
            "q_lora": values["q_lora_rank"] or 0,
            "head_dim": values["qk_head_dim"] + rotary,
            "value_dim": values["v_head_dim"],
            "kv_heads": config["heads"],
        }
    if values["window_size"]:
        sizes = fullmatch(r"\(?\s*(\d+)\s*,\s*0\s*\)?", str(values["window_size"]))
        if sizes is None:
            raise SettingsError(
                f"--window-size {values['window_size']}: expected keys before a query and 0, 127,0"
            )
        read["window"] = int(sizes[1]) + 1
        pattern = layer_pattern("--window-attn-skip-freq", values["window_attn_skip_freq"], config)
        if pattern is not None:
            read["full_layers"] = tuple(n for n, windowed in enumerate(pattern) if not windowed)
    return read


def _positions_of(values: Mapping[str, Any]) -> str:
    """Form of positions, as Megatron-LM's checks of its arguments leave it."""
    form = str(values["position_embedding_type"])
    if form == "learned_absolute" and values.get("use_rotary_position_embeddings"):
        return "rope"
    return "none" if form[0] == "l" and values.get("add_position_embedding") is False else form


def _read_positions(
    values: Mapping[str, Any], form: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    if form in ("none", "learned_absolute", "relative"):
        return {}
    latent = values["multi_latent_attention"]
    share = round(values["rotary_percent"] * config["head_dim"])
    read: dict[str, Any] = {
        "rotary_dims": values["qk_pos_emb_head_dim"] if latent else share,
        "rope_base": float(values["rotary_base"]),
        "rope_interleaved": values["rotary_interleaved"],
    }
    if values["use_rope_scaling"]:
        read |= {"rope_scaling": "llama3", "rope_factor": values["rope_scaling_factor"], **_LLAMA3}
    elif form == "yarn":
        read |= {
            "rope_scaling": "yarn",
            "rope_factor": values["rotary_scaling_factor"],
            "rope_original": values["yarn_original_max_position_embeddings"] or 4096,
            "rope_fast": values["yarn_beta_fast"] or 32.0,
            "rope_slow": values["yarn_beta_slow"] or 1.0,
        }
    elif values["rotary_seq_len_interpolation_factor"]:
        factor = float(values["rotary_seq_len_interpolation_factor"])
        read |= {"rope_scaling": "linear", "rope_factor": factor}
    pattern = layer_pattern("--no-rope-freq", values["no_rope_freq"], config)
    if pattern is not None:
        read["unturned_layers"] = tuple(n for n, unturned in enumerate(pattern) if unturned)
    return read


def _read_experts(values: Mapping[str, Any], layers: int, ffn_hidden: int) -> dict[str, Any]:
    if not values["num_experts"]:
        return {}
    pattern = layer_pattern("--moe-layer-freq", values["moe_layer_freq"], {"layers": layers})
    coefficients = values["moe_aux_loss_coeff"]
    listed = coefficients if isinstance(coefficients, list) else [coefficients]
    softmax = values["moe_router_score_function"] == "softmax"
    dense = [n for n, has in enumerate(pattern or ()) if not has]
    dense = dense or list(range(values.get("dense_first") or 0))
    width = values["moe_ffn_hidden_size"] or ffn_hidden
    shared = width * (values.get("n_shared_experts") or 0)
    return {
        "experts": values["num_experts"],
        "experts_per_token": values["moe_router_topk"],
        "expert_hidden": width,
        "shared_hidden": values["moe_shared_expert_intermediate_size"] or shared,
        "ffn_hidden": ffn_hidden if dense else 0,
        "router": "softmax" if softmax else "sigmoid",
        "normalize_weights": not (softmax and values["moe_router_pre_softmax"])
        or values["moe_router_topk"] == 1,
        "weigh_inputs": values["moe_apply_probs_on_input"],
        "shared_gate": values["moe_shared_expert_gate"],
        "expert_latent": values["moe_latent_size"] or 0,
        "dense_layers": tuple(dense),
        "router_groups": values["moe_router_num_groups"] or 1,
        "kept_groups": values["moe_router_group_topk"] or 1,
        "weight_scale": values["moe_router_topk_scaling_factor"] or 1.0,
        "balance_loss": sum(map(float, listed)),
    }
