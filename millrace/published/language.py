"""Language models in published rows: a model, a cluster, a batch and pins.

`question` says what one row asks and what it pins. What the zoo lacks is built from the row's
sizes. What a row leaves blank is not pinned; `approximations` says what pins cannot.
"""

from math import prod
from typing import Any

from msgspec.structs import replace

from millrace.models.builder import PRECISIONS
from millrace.models.errors import ModelError
from millrace.models.spec import Config, ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import FAMILIES
from millrace.models.zoo.family import LAYERS_MAX
from millrace.planner.cluster import Cluster, Link
from millrace.planner.clusters import network, reference_node, validate
from millrace.planner.clusters.cluster_files import resized
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.frameworks.model_settings import with_mtp_layers, with_narrow_parts
from millrace.planner.search import Pins
from millrace.published.columns import UNITS, words
from millrace.published.framework_of_row import as_set, flag, settings, state_ranks
from millrace.published.framework_of_row import framework_name as framework_name
from millrace.published.memory_of_row import keeping
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, choice, number, whole_number

# Megatron and its kin pad the vocabulary to a multiple of this times tp (Megatron-LM, arguments
# --make-vocab-size-divisible-by, default 128).
VOCAB_MULTIPLE = 128
UNPADDED = ("pytorch-fsdp", "alpa")

# Jobs of more than one NVL72 rack take 64 devices of each (16 trays of 4).
RACK_DEVICES = 64

# The MLP of these kinds of GPT has two matrices and a GELU; positions are learned, the head tied.
GPTS = ("gpt", "mpt", "bloom", "mt-nlg")

# Decoders whose blocks have biases in all products, those of experts too: OpenAI's release of
# gpt-oss (arXiv 2508.10925, 2025), whose weights name `mlp1_bias` and `mlp2_bias`.
BIASED = ("gpt-oss",)

# Decoders with an RMSNorm over the features of every query and key head, before the turn by
# position: "Qwen3 technical report", arXiv 2505.09388 (2025), section 2; `qk_layernorm` of their
# recipes (Megatron-LM, examples/moe_recipes of its branch dev, read 2026-11).
QUERY_NORMED = ("qwen3",)

# Groups that experts lie in, and how many of them a token's experts are chosen from: "DeepSeek-V3",
# arXiv 2412.19437 (2024), section 2.1.2; `moe_router_num_groups` and `moe_router_group_topk` of
# recipes (Megatron-LM, examples/moe_recipes of its branch dev, read 2026-11).
GROUPED, GROUPS, KEPT_GROUPS = ("deepseek-v3",), 8, 4

# Precisions that models may not be built in, and the nearest to try; blank: the usual one.
NEAREST = {"fp4": "nvfp4", "": "bf16"}

ZEROS = ("0", "1", "2", "3", "3-hybrid")
SUBSET = "full (subset of layers)"
MODES = ("none", "selective", "full", SUBSET)


def question(row: Row) -> tuple[Question, Pins]:
    """Question that a row asks, and what it pins.

    Raises
    ------
    InexpressibleError
        Says what the planner has no words for.
    """
    try:
        asked = Question(
            model=model(row),
            training=training(row),
            cluster=cluster(row),
            global_batch=whole_number(row, "global_batch"),
            keeping=keeping(row),
        )
        pinned = pins(row)
        pinned.check()
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None
    return asked, pinned


def measured_s(row: Row) -> float:
    """Seconds of a step, as measured or as they follow from the tokens of a second."""
    if row.get("iteration_time_s", ""):
        return number(row, "iteration_time_s")
    if not row.get("tokens_per_s_per_gpu", ""):
        raise InexpressibleError(
            "iteration_time_s and tokens_per_s_per_gpu are blank: expected one of them"
        )
    rate = number(row, "tokens_per_s_per_gpu") * whole_number(row, "gpus")
    return whole_number(row, "global_batch") * whole_number(row, "seq_len") / rate


def peak_bytes(row: Row) -> float | None:
    """Peak of memory that a row prints, in bytes; None where it prints none."""
    if not row.get("peak_mem_gb", ""):
        return None
    unit = choice(row, "peak_unit", words("peak_unit")) or "GB"
    return number(row, "peak_mem_gb") * UNITS[unit]


def training(row: Row) -> TrainingSpec:
    """Training settings of a row; attention is fused where it does not say."""
    flash = choice(row, "flash_attention", ("0", "1")) != "0"
    return TrainingSpec(attention="flash" if flash else "unfused")


def approximations(row: Row) -> list[str]:
    """Differences between the row and its question, each in a few words."""
    differences = []
    precision = precision_of(row)
    if precision != row["precision"]:
        differences.append(f"precision {row['precision'] or 'blank'} as {precision}")
    if row["recompute"] == SUBSET:
        differences.append("recompute full of all layers")
    if layers := whole_number(row, "recompute_num_layers", 0):
        differences.append(f"recompute_num_layers={layers}: full of all layers")
    if 0 < (group := state_ranks(row)) < whole_number(row, "dp", 1):
        differences.append(f"memory of storage split over all replicas, not in groups of {group}")
    if flag(row, "uneven_layers"):
        differences.append("uneven layers as the search splits them")
    if offloaded := row.get("activation_offload", ""):
        differences.append(f"activation offload alpha={offloaded} left out")
    return differences


def model(row: Row) -> ModelSpec:
    """Model of a row: of the GPT family where its MLP and positions are GPT's, else a decoder."""
    is_gpt = row["model"].startswith(GPTS) and not row.get("experts", "")
    config = _gpt(row) if is_gpt else _decoder(row)
    spec = ModelSpec(
        name=row["model"],
        family="gpt" if is_gpt else "decoder",
        config=config,
        seq_len=whole_number(row, "seq_len"),
        precision=precision_of(row),
    )
    family = FAMILIES[spec.family]
    family.check(spec, family.config(**config))
    spec = with_mtp_layers(spec, whole_number(row, "mtp_layers", 0) or None)
    return with_narrow_parts(spec, row.get("narrow_parts", "").split())


def precision_of(row: Row) -> str:
    """Precision of a row, or the nearest that models are built in."""
    precision = choice(row, "precision", (*PRECISIONS, *NEAREST))
    return NEAREST.get(precision, precision)


def _gpt(row: Row) -> Config:
    return {
        "layers": _layers(row),
        "hidden": whole_number(row, "hidden"),
        "heads": whole_number(row, "heads"),
        "ffn_hidden": whole_number(row, "ffn_hidden"),
        "vocab": _vocab(row),
        "positions": whole_number(row, "seq_len"),
    }


def _decoder(row: Row) -> Config:
    layers, hidden, heads = (_layers(row), *(whole_number(row, x) for x in ("hidden", "heads")))
    head_dim = whole_number(row, "head_dim", hidden // heads)
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": whole_number(row, "kv_heads", heads),
        "head_dim": head_dim,
        "rotary_dims": whole_number(row, "rotary_dims", head_dim),
        "ffn_hidden": whole_number(row, "ffn_hidden"),
        "vocab": _vocab(row),
        "positions": whole_number(row, "seq_len"),
    }
    if flag(row, "gated") is False:
        config |= {"gated": False, "activation": "relu"}
    if kv_lora := whole_number(row, "kv_lora", 0):
        config |= {
            "value_dim": whole_number(row, "value_dim", head_dim),
            "kv_lora": kv_lora,
            "q_lora": whole_number(row, "q_lora", 0),
            "kv_heads": heads,
        }
    if row.get("experts", ""):
        config |= _experts(row, layers)
    if row["model"].startswith(GROUPED):
        config |= {"router_groups": GROUPS, "kept_groups": KEPT_GROUPS}
    if row["model"].startswith(BIASED):
        config |= {"qkv_bias": True, "out_bias": True, "expert_bias": True}
    if row["model"].startswith(QUERY_NORMED):
        config |= {"qk_norm": "rms"}
    if window := whole_number(row, "window", 0):
        config |= {"window": window, "full_layers": tuple(range(1, layers, 2))}
    return config


def _experts(row: Row, layers: int) -> Config:
    """Configuration of experts, which drop no token."""
    dense, every = whole_number(row, "dense_layers", 0), whole_number(row, "expert_interval", 1)
    return {
        "experts": whole_number(row, "experts"),
        "experts_per_token": whole_number(row, "experts_per_token"),
        "expert_hidden": whole_number(row, "expert_hidden"),
        "shared_hidden": whole_number(row, "shared_hidden", 0),
        "dense_layers": tuple(
            layer for layer in range(layers) if layer < dense or (layer + 1) % every
        ),
        "capacity_factor": 1.0,
    }


def _layers(row: Row) -> int:
    """Number of layers of a row, at most as many as can be built."""
    layers = whole_number(row, "layers")
    if layers > LAYERS_MAX:
        raise InexpressibleError(f"layers is `{row['layers']}`: expected at most {LAYERS_MAX}")
    return layers


def _vocab(row: Row) -> int:
    """Size of the vocabulary as the framework pads it."""
    size = whole_number(row, "vocab")
    if row["framework"] in UNPADDED:
        return size
    multiple = VOCAB_MULTIPLE * whole_number(row, "tp", 1)
    return -(-size // multiple) * multiple


def cluster(row: Row) -> Cluster:
    """Devices of a row in nodes of the reference system, over the network that the row states."""
    devices = whole_number(row, "gpus")
    node = reference_node(row["gpu"])
    per_node = min(whole_number(row, "gpus_per_node", node.devices_per_node), devices)
    if node.torus is None and node.devices_per_node > RACK_DEVICES:
        per_node = devices if devices <= node.devices_per_node else RACK_DEVICES
    if devices % per_node:
        raise InexpressibleError(f"{devices} devices do not fill nodes of {per_node}")
    nodes = devices // per_node
    sized_cluster = replace(
        resized(node, per_node), name=f"{row['gpu']}:{per_node}x{nodes}", nodes=nodes
    )
    link = _network(row["inter_node_net"], sized_cluster)
    software = as_set(settings(framework_name(row)), row, sized_cluster.device)
    return validate(replace(sized_cluster, inter_node=link, software=software))


def _network(text: str, node: Cluster) -> Link:
    """Link of the network that a row states; the reference system's where it states none."""
    try:
        return network(text, node.devices_per_node) if text else node.inter_node
    except ClusterError:
        return replace(node.inter_node, source=f"{node.inter_node.source} (the row: {text})")


def pins(row: Row) -> Pins:
    """Pins of a row; what it leaves blank, and what has no meaning at its degrees, is free."""
    degrees = {name: whole_number(row, name, 1) for name in ("dp", "tp", "pp", "cp")}
    if not row["dp"]:
        others = degrees["tp"] * degrees["pp"] * degrees["cp"]
        degrees["dp"] = max(1, whole_number(row, "gpus") // others)
    if prod(degrees.values()) != whole_number(row, "gpus"):
        raise InexpressibleError(
            f"dp × tp × pp × cp is {prod(degrees.values())}, on {row['gpus']} devices"
        )
    settings: dict[str, Any] = dict(degrees)
    if row.get("experts", ""):
        settings["ep"] = whole_number(row, "ep", 1)
    if row["micro_batch"]:
        settings["micro_batch"] = whole_number(row, "micro_batch")
    if degrees["pp"] > 1:
        settings["interleave"] = whole_number(row, "interleave", 1)
        settings["schedule"] = "interleaved-1f1b" if settings["interleave"] > 1 else "1f1b"
    if mode := choice(row, "recompute", MODES):
        settings["recompute"] = "full" if mode == SUBSET else mode
    if choice(row, "zero", ZEROS) and degrees["dp"] * degrees["cp"] > 1:
        settings["zero"] = row["zero"] if row["zero"] == "3-hybrid" else int(row["zero"])
    if choice(row, "sequence_parallel", ("0", "1")) and degrees["tp"] > 1:
        settings["sequence_parallel"] = row["sequence_parallel"] == "1"
    return Pins(**settings)
