"""Rows of language models: a model, a cluster, a batch and pins.

`question` says what one row asks and what it pins. What the zoo lacks is built from the row's
sizes. What a row leaves blank is not pinned; `approximations` says what pins cannot.
"""

import re
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
from millrace.planner.clusters.files import resized
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.search import Pins
from millrace.published.habits import as_set, every_second, settings, state_ranks
from millrace.published.habits import framework_name as framework_name
from millrace.published.kept import keeping
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, choice, number, whole

# Megatron and its kin pad the vocabulary to a multiple of this times tp (Megatron-LM, arguments
# --make-vocab-size-divisible-by, default 128).
VOCAB_MULTIPLE = 128
UNPADDED = ("pytorch-fsdp", "alpa")

# NVL72 racks: jobs of more than one rack take 64 devices of each (16 trays of 4).
RACK_DEVICES = 64

# Kinds of GPT whose MLP has two matrices and a GELU, with learned positions and a tied head.
GPTS = ("gpt", "mpt", "bloom", "mt-nlg")

# Decoders whose blocks have biases in all products, those of experts too: OpenAI's release of
# gpt-oss (arXiv 2508.10925, 2025), whose weights name `mlp1_bias` and `mlp2_bias`.
BIASED = ("gpt-oss",)

# Precisions that models may not be built in, and the nearest to try; blank: the usual one.
NEAREST = {"fp4": "mxfp8", "mxfp8": "bf16", "fp8": "bf16", "": "bf16"}

DIGITS_MAX = 15  # of a number in the notes

ZEROS = ("0", "1", "2", "3", "3-hybrid")
SUBSET = "full (subset of layers)"
MODES = ("none", "selective", "full", SUBSET)


def question(row: Row) -> tuple[Question, Pins]:
    """Return what a row asks and what it pins.

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
            global_batch=whole(row, "global_batch"),
            keeping=keeping(row),
            every_second=every_second(row),
        )
        pinned = pins(row)
        pinned.check()
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None
    return asked, pinned


def measured_s(row: Row) -> float:
    """Return the step time that was measured, or follows from the tokens of a second."""
    if row.get("iteration_time_s", ""):
        return number(row, "iteration_time_s")
    if not row.get("tokens_per_s_per_gpu", ""):
        raise InexpressibleError(
            "iteration_time_s and tokens_per_s_per_gpu are blank: expected one of them"
        )
    rate = number(row, "tokens_per_s_per_gpu") * whole(row, "gpus")
    return whole(row, "global_batch") * whole(row, "seq_len") / rate


def peak_bytes(row: Row) -> float | None:
    """Return the peak of memory that a row prints; None where it prints none."""
    if not row.get("peak_mem_gb", ""):
        return None
    unit = 2**30 if "GiB" in row["notes"] else 1e9
    return number(row, "peak_mem_gb") * unit


def training(row: Row) -> TrainingSpec:
    """How the row trains; attention is fused where it does not say."""
    flash = choice(row, "flash_attention", ("0", "1")) != "0"
    return TrainingSpec(attention="flash" if flash else "unfused")


def approximations(row: Row) -> list[str]:
    """What the row says and its question does not, each in a few words."""
    notes, found = row["notes"], []
    precision = _precision(row)
    if precision != row["precision"]:
        found.append(f"precision {row['precision'] or 'blank'} as {precision}")
    if row["recompute"] == SUBSET:
        found.append("recompute full of all layers")
    if layers := _noted(notes, r"recompute_num_layers=(\d+)"):
        found.append(f"recompute_num_layers={layers}: full of all layers")
    if 0 < (group := state_ranks(notes)) < whole(row, "dp", 1):
        found.append(f"memory of storage split over all replicas, not in groups of {group}")
    if "uneven layer split" in notes:
        found.append("uneven layers as the search splits them")
    if offloaded := re.search(r"alpha=(0?\.\d+|1)", notes):
        found.append(f"activation offload {offloaded[0]} left out")
    return found


def model(row: Row) -> ModelSpec:
    """The row's model: of the GPT family where its MLP and positions are GPT's, else a decoder."""
    notes = row["notes"]
    is_gpt = row["model"].startswith(GPTS) and "experts=" not in notes
    config = _gpt(row) if is_gpt else _decoder(row)
    spec = ModelSpec(
        name=row["model"],
        family="gpt" if is_gpt else "decoder",
        config=config,
        seq_len=whole(row, "seq_len"),
        precision=_precision(row),
    )
    family = FAMILIES[spec.family]
    family.check(spec, family.config(**config))
    return spec


def _precision(row: Row) -> str:
    """The row's precision, or the nearest that models are built in."""
    found = choice(row, "precision", (*PRECISIONS, *NEAREST))
    while found not in PRECISIONS:
        found = NEAREST[found]
    return found


def _gpt(row: Row) -> Config:
    return {
        "layers": _layers(row),
        "hidden": whole(row, "hidden"),
        "heads": whole(row, "heads"),
        "ffn_hidden": whole(row, "ffn_hidden"),
        "vocab": _vocab(row),
        "positions": whole(row, "seq_len"),
    }


def _decoder(row: Row) -> Config:
    notes, layers = row["notes"], _layers(row)
    hidden, heads = whole(row, "hidden"), whole(row, "heads")
    head_dim = _noted(notes, r"head_dim=(\d+)") or hidden // heads
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": whole(row, "kv_heads", heads),
        "head_dim": head_dim,
        "rotary_dims": head_dim,
        "ffn_hidden": whole(row, "ffn_hidden"),
        "vocab": _vocab(row),
        "positions": whole(row, "seq_len"),
    }
    if "2-matrix" in notes:
        config |= {"gated": False, "activation": "relu"}
    if "mla" in notes.lower():
        # DeepSeek-V2 and V3, and what follows them: 64 turned and 128 other features of a head.
        config |= {
            "head_dim": 192,
            "rotary_dims": 64,
            "value_dim": 128,
            "kv_lora": _noted(notes, r"kv_lora=(\d+)") or 512,
            "q_lora": _noted(notes, r"q_lora=(\d+)") or 1536,
            "kv_heads": heads,
        }
    if experts := _noted(notes, r"experts=(\d+)"):
        config |= _experts(notes, layers, experts)
    if row["model"].startswith(BIASED):
        config |= {"qkv_bias": True, "out_bias": True, "expert_bias": True}
    if "sliding window" in notes:
        config |= {
            "window": _noted(notes, r"sliding window (\d+)"),
            "full_layers": tuple(range(1, layers, 2)),
        }
    return config


def _experts(notes: str, layers: int, experts: int) -> Config:
    """Experts: balanced by force or padded to an even share in every row, so one share of places.

    Shared experts that every token visits are one as wide as all of them.
    """
    width = _noted(notes, r"moe_ffn=(\d+)")
    shared = _noted(notes, r"shared=\d+\((\d+)\)") or width * _noted(notes, r"shared=(\d+)")
    dense = _noted(notes, r"dense_layers=(\d+)") or _noted(notes, r"first (\d+) layers dense")
    dense = dense or int("first layer dense" in notes)
    every = _noted(notes, r"MoE every (\d+)")
    return {
        "experts": experts,
        "experts_per_token": _noted(notes, r"topk=(\d+)"),
        "expert_hidden": width,
        "shared_hidden": shared,
        "dense_layers": tuple(
            layer for layer in range(layers) if layer < dense or (every and layer % every == 0)
        ),
        "capacity_factor": 1.0,
    }


def _layers(row: Row) -> int:
    """Layers of the row, as many as can be built."""
    found = whole(row, "layers")
    if found > LAYERS_MAX:
        raise InexpressibleError(f"layers is `{row['layers']}`: expected at most {LAYERS_MAX}")
    return found


def _noted(notes: str, pattern: str) -> int:
    found = re.search(pattern, notes)
    if found and len(found[1]) > DIGITS_MAX:
        raise InexpressibleError(f"notes say `{found[0][:40]}…`: expected a smaller number")
    return int(found[1]) if found else 0


def _vocab(row: Row) -> int:
    """The vocabulary as the framework pads it."""
    size = whole(row, "vocab")
    if row["framework"] in UNPADDED:
        return size
    multiple = VOCAB_MULTIPLE * whole(row, "tp", 1)
    return -(-size // multiple) * multiple


def cluster(row: Row) -> Cluster:
    """The row's devices in nodes of the reference system, over the network that the row states."""
    devices = whole(row, "gpus")
    node = reference_node(row["gpu"])
    per_node = min(whole(row, "gpus_per_node", node.devices_per_node), devices)
    if node.devices_per_node > RACK_DEVICES:
        per_node = devices if devices <= node.devices_per_node else RACK_DEVICES
    if devices % per_node:
        raise InexpressibleError(f"{devices} devices do not fill nodes of {per_node}")
    nodes = devices // per_node
    found = replace(resized(node, per_node), name=f"{row['gpu']}:{per_node}x{nodes}", nodes=nodes)
    link = _network(row["inter_node_net"], found)
    software = as_set(settings(framework_name(row)), row)
    return validate(replace(found, inter_node=link, software=software))


def _network(text: str, node: Cluster) -> Link:
    """What the row says of the network; the reference system's where it says nothing of it."""
    try:
        return network(text, node.devices_per_node) if text else node.inter_node
    except ClusterError:
        return replace(node.inter_node, source=f"{node.inter_node.source} (the row: {text})")


def pins(row: Row) -> Pins:
    """What the row fixes; what it leaves blank, and what has no meaning at its degrees, is free."""
    degrees = {name: whole(row, name, 1) for name in ("dp", "tp", "pp", "cp")}
    if not row["dp"]:
        others = degrees["tp"] * degrees["pp"] * degrees["cp"]
        degrees["dp"] = max(1, whole(row, "gpus") // others)
    if prod(degrees.values()) != whole(row, "gpus"):
        raise InexpressibleError(
            f"dp × tp × pp × cp is {prod(degrees.values())}, on {row['gpus']} devices"
        )
    found: dict[str, Any] = dict(degrees)
    if "experts=" in row["notes"]:
        found["ep"] = whole(row, "ep", 1)
    if row["micro_batch"]:
        found["micro_batch"] = whole(row, "micro_batch")
    if degrees["pp"] > 1:
        found["interleave"] = whole(row, "interleave", 1)
        found["schedule"] = "interleaved-1f1b" if found["interleave"] > 1 else "1f1b"
    if mode := choice(row, "recompute", MODES):
        found["recompute"] = "full" if mode == SUBSET else mode
    if choice(row, "zero", ZEROS) and degrees["dp"] * degrees["cp"] > 1:
        found["zero"] = row["zero"] if row["zero"] == "3-hybrid" else int(row["zero"])
    if choice(row, "sequence_parallel", ("0", "1")) and degrees["tp"] > 1:
        found["sequence_parallel"] = row["sequence_parallel"] == "1"
    return Pins(**found)
