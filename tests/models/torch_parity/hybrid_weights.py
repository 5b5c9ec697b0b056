"""Tables from parameters of transformers' hybrids to variables of the zoo's decoders.

What is not here is as in other decoders (`decoder_weights.py`).

Shape legend of fused weights: h heads, g groups of r heads, n rows of a state, p features of a
value, k read.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.models.arrays import Array
from millrace.models.graph import Graph
from tests.models.torch_parity.decoder_weights import RULES, Parts, linear, same, turning_first

LAYER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(.+)")
ENDS = re.compile(r"\.?(weight|bias)$")
STATE_SPACE = ("in_proj", "conv1d", "A_log", "D", "dt_", "norm", "out_proj")
ONE_PLUS = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "recurrent_gemma",
)  # norms multiply by 1 + weight


def translated(
    named: Mapping[str, Array], config: Any, graph: Graph, *, values: bool
) -> dict[str, Array]:
    """Values (or gradients) of our variables from those of a torch module's parameters."""
    variables: dict[str, Array] = {}
    for name, value in named.items():
        layer = LAYER.fullmatch(name)
        block, inner = (f"h.{layer[1]}.", layer[2]) if layer else ("", name)
        end = ENDS.search(inner)
        kind, part = (end[1], inner[: end.start()]) if end else ("weight", inner)
        mixer, _, rest = part.partition(".")
        if mixer in ("mixer", "mamba"):
            part = f"ssm.{rest}" if rest in STATE_SPACE else rest
        if (
            values
            and config.model_type in ONE_PLUS
            and "norm" in name
            and "linear_attn" not in name
        ):
            value = value + 1
        is_full = layer and config.layer_types[int(layer[1])] == "full_attention"
        if config.model_type == "lfm3" and is_full and re.search(r"\.[qk]_", part):
            value = turning_first(value, config, config.head_dim)
        for ours, array in _parts(part, value, config).items():
            full = ours if ours.endswith(".bias") else f"{ours}.{kind}"
            full = f"{block}{full}"
            if full not in graph.tensors_by_name:  # of layers of another kind
                full = full.replace("shared.", "mlp.").replace("ln2", "attn.post")
            factor = _multiplier(ours, config) ** (1 if values else -1)
            variables[full] = factor * np.ascontiguousarray(array).reshape(graph.tensor(full).shape)
    return variables


def _multiplier(ours: str, config: Any) -> float:
    """Number that a linear map of Falcon-H1 is multiplied by, which our weight is to hold."""
    if config.model_type != "falcon_h1":
        return 1.0
    inside = dict(zip(("z", "x", "b", "c", "dt"), config.ssm_multipliers, strict=True))
    factors = {f"ssm.{part}": config.ssm_in_multiplier * each for part, each in inside.items()}
    factors |= dict.fromkeys(("attn.q", "attn.k", "attn.v"), config.attention_in_multiplier)
    factors["attn.k"] *= config.key_multiplier
    factors |= {
        "ssm.out": config.ssm_out_multiplier,
        "attn.out": config.attention_out_multiplier,
        "mlp.gate": config.mlp_multipliers[0],
        "mlp.down": config.mlp_multipliers[1],
    }
    return factors.get(ours, 1.0)


def _parts(part: str, value: Array, config: Any) -> Parts:
    if part in ("ssm.in_proj", "ssm.conv1d"):
        return _state_space(part, value, config)
    if part in ("linear_attn.conv1d", "self_attn.conv1d"):
        sizes = _delta_sizes(config)
        cuts = np.cumsum([sizes["g"] * sizes["n"]] * 2)
        return _named("delta.{}.conv", "qkv", np.split(value, cuts))
    if part == "linear_attn.in_proj_qkvz":
        return _interleaved(value, config)
    if part == "linear_attn.in_proj_ba":
        groups = value.reshape(config.linear_num_key_heads, 2, -1, value.shape[-1])
        rows = [groups[:, place].reshape(-1, value.shape[-1]).T for place in (0, 1)]
        return _named("delta.{}", "ba", rows)
    if part == "linear_attn.in_proj_qkv":
        sizes = _delta_sizes(config)
        cuts = np.cumsum([sizes["g"] * sizes["n"]] * 2)
        return _named("delta.{}", "qkv", [rows.T for rows in np.split(value, cuts)])
    if config.model_type in KIMI_TYPES and part in KIMI and _is_delta(part, value, config):
        return {KIMI[part]: value.T if value.ndim == 2 else value}
    if part == "self_attn.q_proj" and config.model_type in ONE_PLUS:
        heads = value.reshape(config.num_attention_heads, 2, -1, value.shape[1])
        rows = [heads[:, place].reshape(-1, value.shape[1]).T for place in (0, 1)]
        return dict(zip(("attn.q", "attn.gate"), rows, strict=True))
    if part == "conv.in_proj":
        return _named("conv.{}", "bcx", [rows.T for rows in np.split(value, 3)])
    if part in HYBRID_RULES:
        return HYBRID_RULES[part](value, config)
    if config.model_type == "olmo_hybrid" and part == "post_attention_layernorm":
        return {"ln2": value}
    return RULES[part](value, config)


def _named(form: str, letters: str, arrays: list[Array]) -> Parts:
    return {form.format(letter): array for letter, array in zip(letters, arrays, strict=True)}


def _state_space(part: str, value: Array, config: Any) -> Parts:
    """[(z x b c dt), k], or filters and biases of (x b c)."""
    heads, features, groups, state = (
        next(getattr(config, name) for name in names if hasattr(config, name))
        for names in (
            ("mamba_n_heads", "mamba_num_heads", "num_heads"),
            ("mamba_d_head", "mamba_head_dim", "head_dim"),
            ("mamba_n_groups", "n_groups"),
            ("mamba_d_state", "ssm_state_size", "state_size"),
        )
    )
    width, shared = heads * features, groups * state
    if part == "ssm.conv1d":
        parts = np.split(value, np.cumsum([width, shared]))
        return _named("ssm.{}.conv", "xbc", parts)
    parts = np.split(value, np.cumsum([width, width, shared, shared]))
    names = ("z", "x", "b", "c", "dt")
    return {f"ssm.{name}": rows.T for name, rows in zip(names, parts, strict=True)}


def _delta_sizes(config: Any) -> dict[str, int]:
    if config.model_type in KIMI_TYPES:
        return {"g": config.linear_num_heads, "n": config.linear_head_dim}
    return {"g": config.linear_num_key_heads, "n": config.linear_key_head_dim}


def _interleaved(value: Array, config: Any) -> Parts:
    """[(g (n + n + r p + r p)), k]."""
    size = config.linear_key_head_dim
    groups = value.reshape(config.linear_num_key_heads, -1, value.shape[-1])
    values = (groups.shape[1] - 2 * size) // 2
    parts = np.split(groups, np.cumsum([size, size, values]), axis=1)
    return _named("delta.{}", "qkvz", [part.reshape(-1, value.shape[-1]).T for part in parts])


def _is_delta(part: str, value: Array, config: Any) -> bool:
    """True of Kimi delta attention, whose projections are called as attention's; widths tell."""
    width = config.linear_num_heads * config.linear_head_dim
    return part not in [f"self_attn.{name}_proj" for name in "qog"] or width in value.shape


KIMI_TYPES = ("kimi_linear", "bailing_hybrid")
KIMI = {
    "self_attn.q_proj": "delta.q",
    "self_attn.k_proj": "delta.k",
    "self_attn.v_proj": "delta.v",
    "self_attn.b_proj": "delta.b",
    "self_attn.o_proj": "delta.out",
    "self_attn.o_norm": "delta.norm",
    "self_attn.g_proj": "delta.z",
    "self_attn.forget_gate.f_proj": "delta.a",
    "self_attn.g_a_proj": "delta.z.narrow",
    "self_attn.g_b_proj": "delta.z",
    "self_attn.forget_gate.f_a_proj": "delta.a.narrow",
    "self_attn.forget_gate.f_b_proj": "delta.a",
    "self_attn.forget_gate.A_log": "delta.rate",
    "self_attn.forget_gate.dt_": "delta.step",
}
HYBRID_RULES = {
    **dict.fromkeys(("model.embeddings", "backbone.embeddings"), same("embedding.tokens")),
    **dict.fromkeys(
        (
            *("model.norm_f", "backbone.norm_f", "model.final_layernorm"),
            "model.embedding_norm",
        ),
        same("head.ln"),
    ),
    "norm": same("ln"),
    "operator_norm": same("ln1"),
    "temporal_pre_norm": same("ln1"),
    "channel_pre_norm": same("ln2"),
    "model.final_norm": same("head.ln"),
    "temporal_block.rg_lru.recurrent_param": same("unit.rate"),
    **{
        f"temporal_block.rg_lru.{theirs}_gate_": same(f"unit.{ours}")
        for theirs, ours in (("input", "input"), ("recurrent", "decay"))
    },
    **{f"temporal_block.linear_{part}": linear(f"unit.{part}") for part in ("x", "y", "out")},
    "temporal_block.conv_1d": same("unit.x.conv"),
    **{f"temporal_block.{part}_proj": linear(f"attn.{part}") for part in "qkv"},
    "temporal_block.o_proj": linear("attn.out"),
    **{f"mlp_block.{part}_proj": linear(f"mlp.{part}") for part in ("gate", "up", "down")},
    "post_operator_norm": same("attn.post"),
    "post_ffn_norm": same("mlp.post"),
    **dict.fromkeys(("pre_ff_layernorm", "ffn_norm"), same("ln2")),
    "ssm.A_log": same("ssm.a"),
    "ssm.D": same("ssm.d"),
    "ssm.dt_": same("ssm.step"),
    "ssm.norm": same("ssm.norm"),
    "ssm.out_proj": linear("ssm.out"),
    "linear_attn.A_log": same("delta.rate"),
    "linear_attn.dt_": same("delta.step"),
    **dict.fromkeys(("linear_attn.norm", "linear_attn.o_norm"), same("delta.norm")),
    **dict.fromkeys(("linear_attn.out_proj", "linear_attn.o_proj"), linear("delta.out")),
    **{f"linear_attn.{name}_proj": linear(f"delta.{name}") for name in "qkvab"},
    **{f"linear_attn.in_proj_{name}": linear(f"delta.{name}") for name in "zab"},
    "linear_attn.g_proj": linear("delta.z"),
    "conv.conv": same("conv.conv"),
    "conv.out_proj": linear("conv.out"),
    **{f"{name}_proj": linear(f"attn.{name}") for name in "qkv"},
    "o_proj": linear("attn.out"),
    **dict.fromkeys(("up_proj", "feed_forward.w3", "feed_forward.up_proj"), linear("mlp.up")),
    **dict.fromkeys(("down_proj", "feed_forward.w2", "feed_forward.down_proj"), linear("mlp.down")),
    **dict.fromkeys(("feed_forward.w1", "feed_forward.gate_proj"), linear("mlp.gate")),
    "gate": linear("experts.router"),
    "experts.up_proj": lambda value, config: {"experts.up": value.transpose(0, 2, 1)},
    "experts.down_proj": lambda value, config: {"experts.down": value.transpose(0, 2, 1)},
    "fc1_latent_proj": linear("experts.narrow"),
    "fc2_latent_proj": linear("experts.widen"),
    "shared_experts.up_proj": linear("shared.up"),
    "shared_experts.down_proj": linear("shared.down"),
    "self_attn.out_proj": linear("attn.out"),
}
