"""DLPerf rows: ResNet-50, BERT-base, GPT, Wide & Deep and face recognition on V100s.

`question` says what one row asks and what it pins. `variant` holds what has no column; where the
placement of a classifier or a table is a row's own, the search places it.

Notes
-----
github Oneflow-Inc/DLPerf at c89430b (January 2022): models, optimizers and machines are those of
its reports (2020-2021). Classes: MS1MV2 (85,742) and Glint360K (360,232; An et al., arXiv
2010.05222, table 1).
"""

import re

from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.spec import Config, ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import FAMILIES, model_spec
from millrace.planner.cluster import Cluster, Software
from millrace.planner.clusters import network, reference_node, validate
from millrace.planner.clusters.cluster_files import resized
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError
from millrace.planner.search import Pins
from millrace.published.framework_of_row import settings
from millrace.published.question import InexpressibleError, Question
from millrace.published.reading import Row, choice, number, whole_number

GPU = "v100-sxm-16gb"
NETWORK = "100 Gb/s EDR InfiniBand per node"  # one port (DLPerf's reports, 2020)

# Bytes per second that a node's port carries both ways at once: one of two sockets has it, so that
# what five or six of eight GPUs send crosses between them (DLPerf's reports, 2020: `nvidia-smi topo
# -m`). Megatron-LM there takes 0.20 s more to add up 1.06 GB in 16 GPUs than in 8 (2021).
REACHED = 10.2e9

# Bytes that memory-bound ops of BERT move in mixed precision, over those of 16 bits: norms, softmax
# and losses stay in fp32, and are cast to and fro. Fitted on OneFlow's and NGC PyTorch's runs of
# BERT in both precisions (2020). The GPTs of 2021 have kernels for these that read and write 16
# bits (apex's FusedLayerNorm, Megatron-LM's fused softmax, and OneFlow's of the same kind).
MIXED_BYTES = 1.6

# Bytes of memory-bound ops of a convolutional network, over what its graph's ops read and write.
# In fp32 frameworks run those very kernels (norm, activation, addition); what transformers take
# beside them (transposed heads, masks) is not there. In mixed precision norms are fused with the
# ReLU and the addition after them where the framework does so (OneFlow's report of October 2020;
# `--fuse-bn-relu`, `--fuse-bn-add-relu` of NVIDIA's example for MXNet, 2020), and casts come to
# it: fitted on OneFlow's runs (DLPerf, 2020-21). The others take as many as in other models.
PLAIN_BYTES = 1.0
FUSED_NORMS = ("OneFlow", "NGC MXNet")
FUSED_BYTES = 0.88

PRECISIONS = {"amp": "fp16", "fp32": "fp32"}
CLASSES = {"face_emore": 85_742, "glint360k": 360_232}
MASKED = 20  # places of a sequence of 128 that BERT predicts

# The heads of these read every place of a sequence, not only the masked ones: NVIDIA
# DeepLearningExamples, PyTorch/LanguageModeling/BERT/modeling.py, spring of 2020.
WHOLE_HEADS = ("NGC PyTorch",)
GPT = re.compile(r"gpt.*-h(\d+)-l(\d+)-a(\d+)-s(\d+)$")
GPT_VOCAB = 50_688  # 50,257 padded (DLPerf's GPT report, 2021)
SMALL_VOCAB = 50_304  # of its runs of GPT-2 small
FACE = re.compile(r"insightface-(r100|mobilefacenet_y1)-(\w+)$")
# Tables of `millrace.planner.frameworks.framework_tables` by the names of the reports; others take
# their own.
SETTINGS = {
    "OneFlow": "oneflow",
    "NGC PyTorch": "ngc-pytorch",
    "Megatron-LM (NGC PyTorch)": "megatron-lm",
}
FIELDS = 26  # of ids in a sample of Criteo

# Momentum, decay and clipping are those of the reports; none changes the time by much.
SGD = TrainingSpec(optimizer="sgd", momentum=0.9, weight_decay=5e-4, clip_norm=0.0)


def question(row: Row) -> tuple[Question, Pins]:
    """Question that a row asks, and what it pins.

    Raises
    ------
    InexpressibleError
        Says what the planner has no words for, or which field is malformed.
    """
    try:
        spec = model(row)
        FAMILIES[spec.family].check(spec, FAMILIES[spec.family].config(**spec.config))
        asked = Question(
            model=spec, training=training(row), cluster=cluster(row), global_batch=_batch(row)
        )
        pinned = pins(row)
        pinned.check()
    except (ModelError, ClusterError, PlanError, InfeasibleError) as error:
        raise InexpressibleError(str(error)) from None
    return asked, pinned


def measured_s(row: Row) -> float:
    """Seconds of a step: the global batch over the throughput."""
    return _batch(row) / number(row, "throughput")


def peak_bytes(row: Row) -> float | None:
    """Always None: rows print all that a process holds, and some frameworks take all there is."""
    return None


def framework_name(row: Row) -> str:
    """Software of a row; with XLA it is another."""
    named = SETTINGS.get(row["framework"], row["framework"])
    return named + (" XLA" if choice(row, "xla", ("0", "1")) == "1" else "")


def approximations(row: Row) -> list[str]:
    """Differences between the row and its question, each in a few words."""
    differences, said = [], _variant(row)
    if "net" in said:
        differences.append(f"{said['net']} as v1.5")
    if said.get("fc_parallel", "dp") != "dp":
        differences.append("classifier placed by the search")
    if said.get("fc_parallel") == "partial_fc_0.1":
        differences.append("classifier of the tenth of the classes that is sampled")
    if row["model"] == "wide-deep":
        differences.append("table of the rows that a batch reads, placed by the search")
    return differences


def model(row: Row) -> ModelSpec:
    """Model of a row, of the zoo or with the row's own sizes."""
    precision = PRECISIONS[choice(row, "dtype", tuple(PRECISIONS)) or "fp32"]
    name = row["model"]
    if name == "resnet50-v1.5":
        return model_spec("resnet-50", None, precision)
    if name == "bert-base":
        spec = model_spec("bert-base", 128, precision)
        gathered = 0 if row["framework"] in WHOLE_HEADS else MASKED
        config = {"masked": MASKED, "first_places": gathered, "dropout": 0.1}
        return replace(spec, config=spec.config | config)
    if name == "wide-deep":
        return _wide_deep(row, precision)
    if face := FACE.match(name):
        return _face(row, face[1], face[2], precision)
    if sizes := GPT.match(name):
        return _gpt(name, precision, *(int(size) for size in sizes.groups()))
    raise InexpressibleError(f"model `{name}`: no family of the zoo builds it")


def _wide_deep(row: Row, precision: str) -> ModelSpec:
    """Wide & Deep with dense gradients of the rows that a batch reads at most (they are sparse)."""
    said = _variant(row)
    config: Config = {
        "vocab": max(FIELDS, min(whole_number(said, "vocab"), FIELDS * _batch(row))),
        "embedding": whole_number(said, "emb"),
        "layers": whole_number(said, "fc_layers"),
    }
    return ModelSpec(name="wide-deep", family="wide_deep", config=config, precision=precision)


def _face(row: Row, network: str, data: str, precision: str) -> ModelSpec:
    if data not in CLASSES:
        raise InexpressibleError(
            f"model `{row['model']}`: the number of classes of `{data}` is not "
            f"known; known: {', '.join(CLASSES)}"
        )
    spec = model_spec("arcface-r100" if network == "r100" else "arcface-mobilefacenet")
    sampled = _variant(row).get("fc_parallel") == "partial_fc_0.1"
    config = spec.config | {"classes": CLASSES[data] // (10 if sampled else 1)}
    return replace(spec, config=config, precision=precision)


def _gpt(
    name: str, precision: str, hidden: int, layers: int, heads: int, seq_len: int
) -> ModelSpec:
    config: Config = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": 4 * hidden,
        "vocab": SMALL_VOCAB if name.startswith("gpt2-small") else GPT_VOCAB,
        "positions": seq_len,
    }
    return ModelSpec(name=name, family="gpt", config=config, seq_len=seq_len, precision=precision)


def training(row: Row) -> TrainingSpec:
    """Optimizer of the reports; attention was not fused in those years."""
    if row["model"].startswith(("resnet", "insightface")):
        return SGD
    if row["model"] == "wide-deep":
        return TrainingSpec(clip_norm=0.0)
    unclipped = _variant(row).get("grad_clip") == "none"
    return TrainingSpec(attention="unfused", clip_norm=0.0 if unclipped else 1.0)


def cluster(row: Row) -> Cluster:
    """Cluster of a row: nodes of up to eight V100s that share one port."""
    per_node, nodes = whole_number(row, "gpus_per_node", 8), whole_number(row, "nodes", 1)
    node, link = reference_node(GPU), network(NETWORK, per_node)
    sized_cluster = replace(
        resized(node, per_node),
        name=f"{GPU}:{per_node}x{nodes}",
        nodes=nodes,
        inter_node=replace(
            link, bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s, REACHED / per_node)
        ),
        software=_as_set(settings(framework_name(row)), row),
    )
    return validate(sized_cluster)


def _as_set(software: Software, row: Row) -> Software:
    """Settings of a framework for a row's precision and kind of model."""
    fusion = software.fusion
    if row["model"].startswith(("resnet", "insightface")):
        if row["dtype"] == "fp32":
            fusion = PLAIN_BYTES
        elif row["framework"] in FUSED_NORMS:
            fusion = FUSED_BYTES
    elif row["dtype"] == "amp" and not row["model"].startswith("gpt"):
        fusion *= MIXED_BYTES
    return replace(software, fusion=fusion)


def pins(row: Row) -> Pins:
    """Pins of a row: data parallel, or as `variant` says; free where a table lies apart."""
    said = _variant(row)
    if row["model"] == "wide-deep" or said.get("fc_parallel", "dp") != "dp":
        return Pins(pp=1, recompute="none") if _devices(row) > 1 else _replicas(row)
    if "dp" not in said:
        return _replicas(row)
    replicas, stages = whole_number(said, "dp"), whole_number(said, "pp")
    return Pins(
        dp=replicas,
        tp=whole_number(said, "mp"),
        pp=stages,
        micro_batch=whole_number(said, "micro_bs"),
        schedule="1f1b" if stages > 1 else None,
        recompute="full" if said.get("ckpt_act") == "1" else "none",
        zero=0 if replicas > 1 else None,
    )


def _replicas(row: Row) -> Pins:
    said, devices = _variant(row), _devices(row)
    zero = 1 if said.get("zero_stage") == "1" or said.get("opt_placement") == "on" else 0
    return Pins(
        dp=devices,
        tp=1,
        pp=1,
        micro_batch=whole_number(row, "batch_per_gpu"),
        recompute="none",
        zero=zero if devices > 1 else None,
    )


def _devices(row: Row) -> int:
    return whole_number(row, "gpus_per_node", 8) * whole_number(row, "nodes", 1)


def _batch(row: Row) -> int:
    said = _variant(row)
    return (
        whole_number(said, "gbs")
        if "gbs" in said
        else whole_number(row, "batch_per_gpu") * _devices(row)
    )


def _variant(row: Row) -> Row:
    """Values of `variant` by key, from `key=value;…`."""
    parts = (part.partition("=") for part in row["variant"].split(";") if part)
    return {name.strip(): value.strip() for name, _, value in parts}
