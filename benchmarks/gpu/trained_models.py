"""The models that are trained on a GPU beside PyTorch, and their plans for one device."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.call_listing import listed_run
from millrace.executor.cuda.calls import Launch
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.streams.commands import command_buffer
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import model_spec
from millrace.planner.cluster import OURS, Cluster, Software
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search

# Names in the catalogue by a part of CUDA's name of the device; the first that fits is taken.
CATALOGUE = (("H200", "h200-sxm"), ("H100", "h100-sxm-80gb"), ("A100", "a100-sxm-80gb"))
DEVICE = "h100-sxm-80gb"  # where no other is named


class TrainedModel(NamedTuple):
    """Model that is trained beside PyTorch: samples of a step, the first that fit, and its unit.

    `weight` is its share of the time.
    """

    model: str
    batches: tuple[int, ...]
    unit: str
    weight: float


# The most important come first: where time runs out, those behind say so.
TRAINED = (
    TrainedModel("gpt2-small", (32, 16, 8), "tokens", 0.26),
    TrainedModel("resnet-50", (256, 128), "images", 0.19),
    TrainedModel("llama-1b", (4, 2, 1), "tokens", 0.17),
    TrainedModel("moe-1b", (4, 2, 1), "tokens", 0.14),
    TrainedModel("gpt2-medium", (16, 8), "tokens", 0.12),
    TrainedModel("gpt2-xl", (8, 4, 2), "tokens", 0.12),
)

# The sizes of Llama 3.2 1B (config.json of meta-llama/Llama-3.2-1B, 2024-09), its angles not
# stretched, which changes a table of constants and no time.
LLAMA_1B = ModelSpec(
    name="llama-1b",
    family="decoder",
    config={
        "layers": 16,
        "hidden": 2048,
        "vocab": 128256,
        "positions": 4096,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "ffn_hidden": 8192,
        "rotary_dims": 64,
        "rope_base": 500000.0,
        "tied": True,
    },
    seq_len=4096,
    precision="bf16",
)
# The shape of Mixtral 8x7B (Jiang et al., arXiv 2401.04088, 2024, table 1; the zoo's
# `mixtral-8x7b`) scaled down: a quarter of its widths, a quarter of its heads of the same size, 12
# of its 32 layers. 1.15 billion parameters, of which 0.36 billion see a token; the weights and
# moments of OLMoE-1B-7B alone (6.9 billion, arXiv 2409.02060, 2024) would fill a GPU of 80 GB.
MOE_1B = ModelSpec(
    name="moe-1b",
    family="decoder",
    config={
        "layers": 12,
        "hidden": 1024,
        "vocab": 32000,
        "positions": 2048,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 128,
        "ffn_hidden": 0,
        "rotary_dims": 128,
        "rope_base": 1000000.0,
        "experts": 8,
        "experts_per_token": 2,
        "expert_hidden": 3584,
        "capacity_factor": 1.25,
    },
    seq_len=2048,
    precision="bf16",
)
BESIDE_THE_ZOO = {spec.name: spec for spec in (LLAMA_1B, MOE_1B)}


def benchmark_model(name: str, precision: str = "bf16", seq_len: int | None = None) -> ModelSpec:
    """Specification of a model of this module, or of the zoo, in a precision.

    Raises
    ------
    ModelError
        There is no such model or precision.
    """
    if name not in BESIDE_THE_ZOO:
        return model_spec(name, seq_len, precision)
    spec = BESIDE_THE_ZOO[name]
    return msgspec.structs.replace(
        spec, precision=precision, seq_len=spec.seq_len if seq_len is None else seq_len
    )


def planned(
    model: ModelSpec, batch: int, device: str | Cluster = DEVICE, fusion: str | None = None
) -> Plan:
    """Plan of one microbatch a step on one device, which our own executor drives.

    Parameters
    ----------
    model : ModelSpec
        The model that is trained.
    batch : int
        Samples of a step.
    device : str or Cluster
        The catalogue's name of a device, or a cluster of one.
    fusion : str, optional
        As in a plan; None: as the search chooses.
    """
    if isinstance(device, str):
        device = parse_cluster(f"{device}:1x1")
        device = msgspec.structs.replace(device, software=Software(name=OURS))
    return search(
        SearchRequest(
            model=model,
            training=TrainingSpec(),
            cluster=device,
            global_batch=batch,
            pins=Pins(dp=1, tp=1, pp=1, micro_batch=batch, fusion=fusion),
        )
    )


def catalogue_name(device: str) -> str:
    """Name of a device in the catalogue; an H100's where it has none.

    Examples
    --------
    >>> catalogue_name("NVIDIA H200")
    'h200-sxm'
    """
    return next((name for part, name in CATALOGUE if part in device), DEVICE)


def launches_of(plan: Plan) -> Iterator[Launch]:
    """Yield every launch of a step of rank 0, with what ends the step.

    Where a device chooses among ways of computing one thing, those of all ways.
    """
    graph = compile_plan(plan)
    buffer = command_buffer(graph, (0,))
    calls = RankCalls(graph, 0, buffer, listed_run(plan))
    yield from (call for call in leaves(*calls.all_calls()) if isinstance(call, Launch))
