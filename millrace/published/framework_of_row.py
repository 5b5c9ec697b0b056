"""Habits: the software of a published row, with what the row says of how it was set.

A framework is one set of settings (`millrace.planner.frameworks.framework_tables`). What a row's
notes state beyond it (captured launches, compilation, communication in pieces) changes a setting by
a rule, the same for every row that states it.
"""

import re
from math import prod

from msgspec.structs import replace

from millrace.planner.cluster import Software
from millrace.planner.clusters import framework
from millrace.planner.collectives import BOXING, EXPERT_EXCHANGE
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.capabilities import DISPATCHERS
from millrace.planner.frameworks.experts import IN_TURNS
from millrace.planner.frameworks.framework_tables import DEFAULT
from millrace.published.reading import Row

# Words of the notes that name another framework than the column does.
NAMED = {"(DeepSpeed)": "deepspeed-zero", "MaxText": "jax-xla"}

# Sources whose table has no such column: vTrain's measured Megatron-DeepSpeed.
UNSAID = {"vtrain": "megatron-deepspeed"}

# Collectives of tensor parallelism; the one besides is that of experts.
TENSOR = tuple(kind for kind in BOXING if kind != EXPERT_EXCHANGE)
TENSOR_IN_PIECES = ("TP comm overlap", "AsyncTP", "async TP")
EXPERTS_IN_PIECES = ("moe_a2a_overlap=True", "A2A overlap")

# Dispatchers that send a token once to each device and node (`Software.merges`).
MERGING = tuple(name for name, merges in DISPATCHERS.items() if merges)

NOTHING_OVERLAPS = "no comm overlap"

# Bytes of an element of the gradients that replicas sum. In float16 they stay as they come:
# DeepSpeed, and Megatron-LM without --accumulate-allreduce-grads-in-fp32 (which bfloat16 implies
# unless one says else: training/arguments.py); in bfloat16 those of NVIDIA's recipes
# (`grad_sync_dtype=bf16` in examples/training of NeMo-Framework-Launcher, 2024, and
# `grad_reduce_in_fp32 = False` in scripts/performance of NeMo and Megatron-Bridge) and InternEvo's,
# which sums what `param.grad` holds (hybrid_zero_optim.py). All read 2026-11.
NARROW_GRADIENTS = ("NeMo", "recipe ")
WIDE_GRADIENTS = "fp32 grad"

# Replicas among which storage is split: ZeRO-1 in groups, FSDP in groups, MaxText's mesh.
GROUPS = (
    re.compile(r"zero1=(\d+)"),
    re.compile(r"fsdp_shard_group=(\d+)"),
    re.compile(r"fsdp (\d+) in node x dcn fsdp (\d+)"),
)

# InternEvo's ZeRO-1 over all ranks hands weights out by one broadcast of each rank's part
# (`broadcast_params`, internlm/solver/optimizer/hybrid_zero_optim.py, read 2026-11). What each
# takes is not measured but fitted, on InternEvo's own published runs over 16 to 1,024 ranks (2023),
# whose steps grow by 1.3 and 2.9 ms a rank in two series, whatever the cause.
OVER_ALL, BROADCAST_NS = "zero1=-1", 2_300_000

# A step captured as one CUDA graph is launched once; of one captured layer by layer about half of
# the launches stay (what is between the captured parts).
CAPTURED = ("full_iteration", "cuda_graph_impl=local")
CAPTURED_LAYERS, LEFT = "cuda_graph_impl=transformer_engine", 0.5

# Bytes that compiled code moves, of those of the same framework's plain code.
COMPILED, COMPILED_BYTES = "torch.compile", 0.7


def framework_name(row: Row) -> str:
    """Framework of a row: as its column says, but where its notes know better."""
    named = row.get("framework", "")
    if not named:
        heads = (name for head, name in UNSAID.items() if row.get("source", "").startswith(head))
        return next(heads, DEFAULT)
    if named == "megatron-2021" and "(DeepSpeed)" in row.get("notes", ""):
        return NAMED["(DeepSpeed)"]
    return NAMED["MaxText"] if "MaxText" in row.get("notes", "") else named


def settings(name: str) -> Software:
    """Settings of a framework, the default ones where it has none."""
    try:
        return framework(name)
    except ClusterError:
        return framework(DEFAULT)


def as_set(software: Software, row: Row) -> Software:
    """Settings of a framework, with what the row's notes say of how it was set."""
    notes = row.get("notes", "")
    pieces, routing = set(software.pieces), software.routing
    if "experts=" in notes:
        pieces -= set(TENSOR)  # recipes of experts leave it off
    if any(words in notes for words in TENSOR_IN_PIECES):
        pieces |= set(TENSOR)
    if any(words in notes for words in EXPERTS_IN_PIECES):
        pieces.add(EXPERT_EXCHANGE)
        if not any(words in notes for words in (*CAPTURED, CAPTURED_LAYERS)):
            routing *= IN_TURNS
    host_ns, fusion, overlap = software.host_ns, software.fusion, software.overlap
    if any(words in notes for words in CAPTURED):
        host_ns = 0
    elif CAPTURED_LAYERS in notes:
        host_ns = round(LEFT * host_ns)
    if COMPILED in notes:
        fusion *= COMPILED_BYTES
    if NOTHING_OVERLAPS in notes:
        pieces, overlap = set(), 0.0
    return replace(
        software,
        gradient_bytes=_gradient_bytes(software, row),
        state_ranks=state_ranks(notes),
        broadcast_ns=BROADCAST_NS if OVER_ALL in notes else 0,
        host_ns=host_ns,
        overlap=overlap,
        fusion=fusion,
        pieces=tuple(sorted(pieces)),
        routing=routing,
        merges=any(words in notes.lower() for words in MERGING),
    )


def _gradient_bytes(software: Software, row: Row) -> int:
    """Bytes of an element of a gradient on its way to the sum; 0: as the plan has it."""
    notes = row.get("notes", "")
    if WIDE_GRADIENTS in notes:
        return 0  # once a step a plan sums in float32 too
    recipe = software.name == "megatron-core" and any(words in notes for words in NARROW_GRADIENTS)
    narrow = row.get("precision") == "fp16" or software.name == "internevo"
    return 2 if narrow or recipe else 0


def state_ranks(notes: str) -> int:
    """Number of replicas that storage is split among; 0 where notes do not say."""
    for pattern in GROUPS:
        if match := pattern.search(notes):
            return prod(int(size) for size in match.groups())
    return 0


def every_second(row: Row) -> bool:
    """True if every second product, or block, is made again: `selective` in torchtitan.

    torchtitan, `_apply_ac_to_transformer_block` in models/llama3/infra/parallelize.py (as of 2025,
    read 2026-11): of the matrix products in a block every second one (`op`), or every n-th of the
    blocks, which is every second in its published runs.
    """
    return framework_name(row) == "pytorch-fsdp" and row.get("recompute") == "selective"
