"""Figures of a plan as typed values: what its step is predicted to take, and what it chose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.figures import plan_summary, prediction_of, spending
from millrace.planner.plan import Plan
from millrace.published.step_time_range import range_document

PREDICTED = {"step_time_s", "tokens_per_s", "tflops_per_gpu", "mfu", "memory_bytes_max"} | {
    *("memory_by_kind", "busy_fraction", "busy_by_stage", "fidelity")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """Figures that the simulator predicts of a plan's step.

    Attributes
    ----------
    step_time_s : float
        Seconds of a step.
    step_time_range_s : tuple of float, optional
        Least and greatest step time that published runs like it fell between; None without such.
    step_time_compared_with : str
        The range in words, or why there is none.
    device_doubt : str
        Sentence on devices that no run is known on; empty where there are none.
    tokens_per_s : float
        Tokens (images, samples) of all devices in a second.
    tflops_per_gpu : float
        Model FLOPs of one device in a second, in 10^12.
    mfu : float, optional
        Model FLOPs over the peak of all devices, a fraction; None where no peak is known.
    memory_bytes_max : int
        Bytes that the fullest device holds.
    memory_by_kind : tuple of mapping
        Bytes of a device of every stage, by kind.
    host_memory_bytes_max : int, optional
        Bytes of host memory for a device, where optimizer state is offloaded.
    busy_fraction : float
        Fraction of the step in which the average device computes.
    busy_by_stage : tuple of float
        The same for every stage.
    cost_usd_per_mtoken, energy_j_per_token : float, optional
        Dollars for a million tokens and joules for one; None where price or power is not known.
    fidelity : str
        What was simulated: `op`, `block` or `stage`.
    """

    step_time_s: float
    step_time_range_s: tuple[float, float] | None
    step_time_compared_with: str
    device_doubt: str
    tokens_per_s: float
    tflops_per_gpu: float
    mfu: float | None
    memory_bytes_max: int
    memory_by_kind: tuple[Mapping[str, int], ...]
    host_memory_bytes_max: int | None
    busy_fraction: float
    busy_by_stage: tuple[float, ...]
    cost_usd_per_mtoken: float | None
    energy_j_per_token: float | None
    fidelity: str

    @classmethod
    def of(cls, plan: Plan) -> "PlanPrediction":
        """Figures that a plan holds, or that are simulated where it holds too few."""
        if not plan.figures.keys() >= PREDICTED:
            plan = msgspec.structs.replace(plan, figures=prediction_of(plan).figures)
        figures, spent = plan.figures, spending(plan)
        return cls(
            step_time_s=figures["step_time_s"],
            **range_fields(plan, figures["step_time_s"]),
            tokens_per_s=figures["tokens_per_s"],
            tflops_per_gpu=figures["tflops_per_gpu"],
            mfu=figures["mfu"],
            memory_bytes_max=figures["memory_bytes_max"],
            memory_by_kind=tuple(figures["memory_by_kind"]),
            host_memory_bytes_max=figures.get("host_memory_bytes_max"),
            busy_fraction=figures["busy_fraction"],
            busy_by_stage=tuple(figures["busy_by_stage"]),
            cost_usd_per_mtoken=spent["cost_usd_per_mtoken"],
            energy_j_per_token=spent["energy_j_per_token"],
            fidelity=figures["fidelity"],
        )


def range_fields(plan: Plan, step_time_s: float) -> dict[str, Any]:
    """Range of a predicted step time in seconds, and in words.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    step_time_s : float
        Its predicted step time.
    """
    fields = range_document(plan, step_time_s)
    bounds = fields["step_time_range_s"]
    return fields | {"step_time_range_s": None if bounds is None else tuple(bounds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """Choices of a plan by their usual names; None where ops or blocks differ in one.

    Attributes
    ----------
    dp, tp, pp, cp, ep, etp : int, optional
        Degrees of parallelism; pp counts stages.
    zero : int or str, optional
        Level from 0 to 3, or `3-hybrid`.
    sequence_parallel, ring : bool, optional
        Whether activations are split along the sequence, and whether keys and values travel round a
        ring.
    recompute, offload, fusion, schedule : str
        Names of the mode, as they are pinned.
    interleave, microbatches : int
        Chunks of a stage, and microbatches of a step.
    micro_batch : int, optional
        Samples of a microbatch on one rank.
    mixed : mapping
        Values that a choice takes where ops or blocks differ, by its name.
    """

    dp: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    zero: int | str | None
    sequence_parallel: bool | None
    ring: bool | None
    recompute: str | None
    micro_batch: int | None
    microbatches: int
    schedule: str
    interleave: int
    offload: str
    fusion: str
    mixed: Mapping[str, tuple[int | bool | str, ...]]

    @classmethod
    def of(cls, plan: Plan) -> "PlanChoices":
        """Choices read off a plan's signatures."""
        summary = plan_summary(plan)
        chosen = {name: summary[name] for name in cls.__slots__ if name != "mixed"}
        mixed = {name: tuple(values) for name, values in summary["mixed"].items()}
        return cls(**chosen, mixed=mixed)
