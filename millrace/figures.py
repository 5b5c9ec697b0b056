"""Figures of a plan that follow from its step time: tokens per second, FLOP/s, utilisation."""

from typing import NamedTuple

from models.ops import model_flops
from models.zoo.catalogue import build_training
from planner.plan import Plan


class Speed(NamedTuple):
    """How fast a step time makes a plan.

    `mfu` is model FLOPs / (step time × devices × the precision's dense peak), None where the
    device's peak for the precision is not known.
    """

    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float | None


def step_flops(plan: Plan) -> int:
    """Return the model FLOPs of a step: forward and backward, recomputation excluded."""
    graph = build_training(plan.model, plan.training, plan.batch)
    return model_flops(graph) * plan.microbatches


def tokens_per_step(plan: Plan) -> int:
    """Return the tokens (for a classifier: samples) of a global batch."""
    return plan.global_batch * plan.model.seq_len


def speed(plan: Plan, step_time_s: float) -> Speed:
    """Return what a step time means for a plan."""
    per_device = step_flops(plan) / step_time_s / plan.ranks
    peak = plan.cluster.device.flops_per_s.get(plan.model.precision)
    return Speed(
        tokens_per_s=tokens_per_step(plan) / step_time_s,
        tflops_per_gpu=per_device / 1e12,
        mfu=per_device / peak if peak else None,
    )
