"""Memory-bound ops: the time that they take, by the bytes that they read and write.

Recurrences are among them: their kernels go through a sequence chunk by chunk, one after the other,
and hand states and products of a chunk on through memory. So their time follows their operands, at
a share of what the memory reaches: twice as wide heads take twice as long, though their states have
four times as many numbers.

Notes
-----
The shares of recurrences are fitted on flash-linear-attention's times in bf16 on a B200, of four
shapes of 4k to 32k tokens and 16 to 96 heads of 128 or 256 features (pytorch/helion,
examples/linear/BENCHMARKS.md, 2026-07, columns "fla"; "retention" and "full_gla" for the scan):
each is met within 30 %. By the scan's share an A100 takes as long for 64 features as for causal
attention to 2,000 tokens: so do Dao and Gu, arXiv 2405.21060 (2024), figure 10.
"""

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.labels import EXPERT, parse
from millrace.models.ops import OPS
from millrace.planner.cluster import Device, Software
from millrace.planner.costs.expert_routing import is_expert_bias
from millrace.planner.costs.gemm import ITEM_BYTES
from millrace.planner.costs.op_batch import OpFirings

# An op takes so long on the device beside its work: kernels begin and end without moving bytes, and
# one op is often several of them. Fitted on published runs of small layers, 2026-11.
RAMP_NS = 4_000

# This share counts of the bytes of adding up gradients of microbatches: a product that adds to what
# is there saves writing its result and reading it again, and moves the rest while it multiplies.
# Fitted on published runs of Megatron-LM, whose weight gradients do so, 2026-11.
ACCUMULATED = 0.5

# Bytes of an element of such a sum, which lies in the buffer that replicas sum: as wide as that
# (Megatron-Core, distributed/distributed_data_parallel.py, `grad_reduce_in_fp32`, read 2026-11).
SUM_BYTES = 4

# This share counts of the bytes of adding up what the gate and the other first product of experts
# hand back: kernels of grouped products make the two as one, whose gradient is one product
# (Megatron-Core, transformer/moe/experts.py, TEGroupedMLP: `linear_fc1` of twice the width, read
# 2026-11).
GROUPED = 0.0

# Bytes over those of one addition, and of one sum, where experts have biases. The first products of
# an expert add theirs themselves. That of the last is multiplied by probabilities, added, joined
# over experts and rounded, all but the first in float32: 28 bytes an element, and 36 in the
# gradient, for 4 and 2 (Megatron-Core, transformer/moe/experts.py, `_apply_bias`, read 2026-11).
# Shared out over three biases, which is exact where an expert is as wide as the model.
EXPERT_BIAS = {"add": 28 / 4 / 3, "sum": 36 / 2 / 3}

# Kinds that read what another kind reads, in the same pass: a batch norm's sums and squares.
SAME_PASS = frozenset({"channel_squares"})

# Share of the data sheet's bandwidth at which the operands of a recurrence seem to move: no fit of
# what a memory reaches changes it.
RECURRENCE_RATES = {
    "state_space_scan": 0.157,
    "state_space_scan_grad": 0.065,
    "delta_rule": 0.081,
    "delta_rule_grad": 0.040,
}

# The same where every row of a state has a decay of its own (gated linear attention, Kimi's).
ROW_DECAY_RATES = {
    "state_space_scan": 0.034,
    "state_space_scan_grad": 0.0164,
    "delta_rule": 0.054,
    "delta_rule_grad": 0.0244,
}

_KEY, _VALUE, _DECAY = 1, 2, 3  # inputs of a recurrence


def kernel_ns(device: Device) -> int:
    """Nanoseconds that every kernel takes, however small: its launch, and where known the ramps."""
    return device.launch_ns + (RAMP_NS if device.multiprocessors else 0)


def bandwidth_bytes_per_s(device: Device) -> float:
    """Memory bandwidth that large kernels reach."""
    return device.memory_bandwidth_bytes_per_s * device.memory_efficiency


def memory_bound_seconds(firings: OpFirings, device: Device, software: Software) -> Floats:
    """Seconds that a memory-bound op spends on its bytes, without what every kernel takes."""
    row = OPS.get(firings.kind)  # boxing has none
    fusion: float = software.fusion if row is not None and row.fused_by_frameworks else 1.0
    if firings.kind == "accumulate":
        fusion = ACCUMULATED * (software.gradient_bytes or SUM_BYTES) / SUM_BYTES
    if firings.kind == "add" and _of_experts(firings.labels):
        fusion = GROUPED
    if software.routing and not software.fused_experts and is_expert_bias(firings):
        fusion = EXPERT_BIAS[firings.kind]
    if firings.kind in SAME_PASS:
        fusion = 0.0
    moved: Floats = firings.bytes * np.float64(fusion)
    return moved / bandwidth_bytes_per_s(device)


def recurrence_seconds(firings: OpFirings, device: Device) -> Floats:
    """Seconds of a recurrence; every head reads the queries and keys of its group for itself."""
    operands = [
        [label for dim in operand for label in dim] for operand in parse(firings.labels).operands
    ]
    heads = operands[_VALUE][:-1]
    points = np.zeros(np.shape(firings.bytes))
    for operand in operands:
        points = points + firings.size(dict.fromkeys((*heads, *operand)))
    by_row = operands[_KEY][-1] in operands[_DECAY]
    rate = (ROW_DECAY_RATES if by_row else RECURRENCE_RATES)[firings.kind]
    moved: Floats = points * ITEM_BYTES.get(firings.precision, 4)
    return moved / (device.memory_bandwidth_bytes_per_s * rate)


def _of_experts(labels: str) -> bool:
    """True if all that is added up lies in the order of experts, as nothing but gradients does."""
    inputs = parse(labels).inputs
    return (EXPERT,) in inputs[0] and len(set(inputs)) == 1
