"""Memory-bound ops: the time that they take, by the bytes that they read and write."""

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.labels import EXPERT, parse
from millrace.models.ops import OPS
from millrace.planner.cluster import Device, Software
from millrace.planner.costs.op_batch import OpFirings

# An op takes so long on the device beside its work: kernels begin and end without moving bytes, and
# one op is often several of them. Fitted on published runs of small layers, 2026-11.
RAMP_NS = 4_000

# This share counts of the bytes of adding up gradients of microbatches: a product that adds to what
# is there saves writing its result and reading it again, and moves the rest while it multiplies.
# Fitted on published runs of Megatron-LM, whose weight gradients do so, 2026-11.
ACCUMULATED = 0.5

# This share counts of the bytes of adding up what the gate and the other first product of experts
# hand back: kernels of grouped products make the two as one, whose gradient is one product
# (Megatron-Core, transformer/moe/experts.py, TEGroupedMLP: `linear_fc1` of twice the width, read
# 2026-11).
GROUPED = 0.0

# Kinds that read what another kind reads, in the same pass: a batch norm's sums and squares.
SAME_PASS = frozenset({"channel_squares"})


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
        fusion = ACCUMULATED
    if firings.kind == "add" and _of_experts(firings.labels):
        fusion = GROUPED
    if firings.kind in SAME_PASS:
        fusion = 0.0
    moved: Floats = firings.bytes * np.float64(fusion)
    return moved / bandwidth_bytes_per_s(device)


def _of_experts(labels: str) -> bool:
    """True if all that is added up lies in the order of experts, as nothing but gradients does."""
    inputs = parse(labels).inputs
    return (EXPERT,) in inputs[0] and len(set(inputs)) == 1
