"""Published measurements as questions to the planner: a model, a cluster, a batch and pins.

`read` takes a table of published training runs in its language-model layout (one row per
configuration), `question` says what one row asks and what it pins. What the zoo lacks is built from
the row's sizes. What a row leaves blank is not pinned.
"""

import csv
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from models.errors import ModelError
from models.spec import Config, ModelSpec
from models.zoo.catalogue import FAMILIES
from planner.cluster import Cluster, Link
from planner.clusters import network, reference_node, validate
from planner.clusters.files import resized
from planner.errors import ClusterError, InfeasibleError, PlanError
from planner.search import Pins

Row = dict[str, str]

# Megatron and its kin pad the vocabulary to a multiple of this times tp (Megatron-LM, arguments
# --make-vocab-size-divisible-by, default 128).
VOCAB_MULTIPLE = 128
UNPADDED = ("pytorch-fsdp", "alpa")

# NVL72 racks: jobs of more than one rack take 64 devices of each (16 trays of 4).
RACK_DEVICES = 64

# Kinds of GPT whose MLP has two matrices and a GELU, with learned positions and a tied head.
GPTS = ("gpt", "mpt", "bloom", "mt-nlg")

# Data sheets' precisions that the planner has no graph for: planned, pinned and free, in bf16.
INSTEAD = {"fp8": "bf16", "mxfp8": "bf16"}


class InexpressibleError(Exception):
    """A row that the planner has no words for; says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to plan; rows that ask the same share one free search."""

    model: ModelSpec
    cluster: Cluster
    global_batch: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal questions."""
        model, cluster = self.model, self.cluster
        config = tuple(sorted(model.config.items()))
        network = cluster.inter_node.bandwidth_bytes_per_s
        shape = (cluster.device.name, cluster.devices_per_node, cluster.nodes, network)
        return model.family, config, model.seq_len, model.precision, shape, self.global_batch

    @property
    def text(self) -> str:
        """The question in one line."""
        return (
            f"{self.model.name}, {self.model.seq_len} tokens, {self.model.precision}, batch "
            f"{self.global_batch} on {self.cluster.name}"
        )


def read(path: Path, tier: str = "A") -> list[Row]:
    """Return the rows of one tier, each with its line number as `line`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row | {"line": str(at)} for at, row in enumerate(csv.DictReader(file), start=2)]
    return [row for row in rows if row.get("tier", tier) == tier]


def question(row: Row) -> tuple[Question, Pins]:
    """Return what a row asks and what it pins.

    Raises
    ------
    InexpressibleError
        Says what the planner has no words for.
    """
    try:
        asked = Question(
            model=model(row), cluster=cluster(row), global_batch=int(row["global_batch"])
        )
        pinned = pins(row)
        pinned.check()
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None
    return asked, pinned


def model(row: Row) -> ModelSpec:
    """The row's model: of the GPT family where its MLP and positions are GPT's, else a decoder."""
    notes = row["notes"]
    is_gpt = row["model"].startswith(GPTS) and "experts=" not in notes
    config = _gpt(row) if is_gpt else _decoder(row)
    spec = ModelSpec(
        name=row["model"],
        family="gpt" if is_gpt else "decoder",
        config=config,
        seq_len=int(row["seq_len"]),
        precision=INSTEAD.get(row["precision"], row["precision"]),
    )
    family = FAMILIES[spec.family]
    family.check(spec, family.config(**config))
    return spec


def _gpt(row: Row) -> Config:
    return {
        "layers": int(row["layers"]),
        "hidden": int(row["hidden"]),
        "heads": int(row["heads"]),
        "ffn_hidden": int(row["ffn_hidden"]),
        "vocab": _vocab(row),
        "positions": int(row["seq_len"]),
    }


def _decoder(row: Row) -> Config:
    notes, layers = row["notes"], int(row["layers"])
    hidden, heads = int(row["hidden"]), int(row["heads"])
    head_dim = _noted(notes, r"head_dim=(\d+)") or hidden // heads
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": int(row["kv_heads"] or heads),
        "head_dim": head_dim,
        "rotary_dims": head_dim,
        "ffn_hidden": int(row["ffn_hidden"]),
        "vocab": _vocab(row),
        "positions": int(row["seq_len"]),
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


def _noted(notes: str, pattern: str) -> int:
    found = re.search(pattern, notes)
    return int(found[1]) if found else 0


def _vocab(row: Row) -> int:
    """The vocabulary as the framework pads it."""
    size = int(row["vocab"])
    if row["framework"] in UNPADDED:
        return size
    multiple = VOCAB_MULTIPLE * int(row["tp"])
    return -(-size // multiple) * multiple


def cluster(row: Row) -> Cluster:
    """The row's devices in nodes of the reference system, over the network that the row states."""
    devices = int(row["gpus"])
    node = reference_node(row["gpu"])
    per_node = min(int(row["gpus_per_node"] or node.devices_per_node), devices)
    if node.devices_per_node > RACK_DEVICES:
        per_node = devices if devices <= node.devices_per_node else RACK_DEVICES
    if devices % per_node:
        raise InexpressibleError(f"{devices} devices do not fill nodes of {per_node}")
    nodes = devices // per_node
    found = replace(resized(node, per_node), name=f"{row['gpu']}:{per_node}x{nodes}", nodes=nodes)
    return validate(replace(found, inter_node=_network(row["inter_node_net"], found)))


def _network(text: str, node: Cluster) -> Link:
    """What the row says of the network; the reference system's where it says nothing of it."""
    try:
        return network(text, node.devices_per_node) if text else node.inter_node
    except ClusterError:
        return replace(node.inter_node, source=f"{node.inter_node.source} (the row: {text})")


def pins(row: Row) -> Pins:
    """What the row fixes; what it leaves blank, and what has no meaning at its degrees, is free."""
    degrees = {name: int(row[name] or 1) for name in ("dp", "tp", "pp", "cp")}
    if prod(degrees.values()) != int(row["gpus"]):
        raise InexpressibleError(
            f"dp × tp × pp × cp is {prod(degrees.values())}, on {row['gpus']} devices"
        )
    found: dict[str, Any] = dict(degrees)
    if "experts=" in row["notes"]:
        found["ep"] = int(row["ep"] or 1)
    if row["micro_batch"]:
        found["micro_batch"] = int(row["micro_batch"])
    if degrees["pp"] > 1:
        found["interleave"] = int(row["interleave"] or 1)
        found["schedule"] = "interleaved-1f1b" if found["interleave"] > 1 else "1f1b"
    if row["recompute"]:
        found["recompute"] = row["recompute"]
    if row["zero"] and degrees["dp"] * degrees["cp"] > 1:
        found["zero"] = row["zero"] if row["zero"] == "3-hybrid" else int(row["zero"])
    if row["sequence_parallel"] and degrees["tp"] > 1:
        found["sequence_parallel"] = row["sequence_parallel"] == "1"
    return Pins(**found)
