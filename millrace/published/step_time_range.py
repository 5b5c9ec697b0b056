"""Range of a predicted step time: where published runs like it fell around their predictions.

`prediction_errors.toml` holds, for groups of published runs, quantiles of measured over predicted
step time, less one. `python -m benchmarks.simulator.prediction_errors` writes it. A group is named
by a framework, a class of devices and a kind of model; an empty name stands for all of them. On a
device that no published run was fitted on, the group is that of runs predicted as if on such one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec

from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec
from millrace.planner.cluster import Device, generation
from millrace.planner.clusters.assumed_shares import SHARES
from millrace.planner.frameworks.framework_tables import DEFAULT
from millrace.planner.plan import Plan
from millrace.units import format_seconds

ERRORS_FILE = "prediction_errors.toml"

# The smallest group that speaks for a prediction, and the smallest whose tails are left out.
RUNS_MIN, SOURCES_MIN = 5, 2
TAILED_RUNS_MIN = 10

# Device of groups whose runs were predicted as if no device of their generation had been measured.
UNMEASURED = "unmeasured"

# This project's own runtime, which no publisher has run.
RUNTIME = "millrace"


class ModelKind(StrEnum):
    """Kind of a model, as far as the accuracy of its predictions is concerned."""

    DENSE = "dense"
    EXPERTS = "mixture of experts"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding tables"
    OTHER = "other"


FAMILY_KINDS = {
    "gpt": ModelKind.DENSE,
    "decoder": ModelKind.DENSE,
    "bert": ModelKind.DENSE,
    "t5": ModelKind.DENSE,
    "vit": ModelKind.DENSE,
    "resnet": ModelKind.CONVOLUTION,
    "face": ModelKind.CONVOLUTION,
    "wide_deep": ModelKind.EMBEDDING,
}
# Ops by which the kind of another model is told, the first that it has.
OP_KINDS = {
    "dispatch": ModelKind.EXPERTS,
    "conv": ModelKind.CONVOLUTION,
    "attention": ModelKind.DENSE,
    "biased_attention": ModelKind.DENSE,
    "masked_softmax": ModelKind.DENSE,
    "embedding": ModelKind.EMBEDDING,
}
PLURALS = {
    ModelKind.DENSE: "dense models",
    ModelKind.EXPERTS: "mixtures of experts",
    ModelKind.CONVOLUTION: "convolutional models",
    ModelKind.EMBEDDING: "models of embedding tables",
    ModelKind.OTHER: "other models",
}


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group of published runs, and how far measured step times lay from predicted ones.

    Figures are of measured over predicted step time, less one: the least, the tenth percentile, the
    median, the ninetieth percentile and the greatest. An empty `framework` or `device` stands for
    all that were compared.
    """

    framework: str
    device: str
    kind: ModelKind
    runs: int
    sources: int
    least: float
    tenth: float
    median: float
    ninetieth: float
    greatest: float

    @property
    def text(self) -> str:
        """The group in words: `dense models with megatron-core on H100`."""
        if self.device == UNMEASURED:
            return f"{PLURALS[self.kind]}, as if on unmeasured devices"
        software = f"with {self.framework}" if self.framework else "with any framework"
        if self.framework == DEFAULT:
            software = "with default settings"
        devices = f"on {self.device.upper()}" if self.device else "on any device"
        return f"{PLURALS[self.kind]} {software} {devices}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the middle eight in ten runs; of all runs where they are few."""
        if self.runs < TAILED_RUNS_MIN:
            return self.least, self.greatest
        return self.tenth, self.ninetieth


class PeakErrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of predicted peaks of memory: quantiles of measured less predicted, of a device.

    The quantiles are evenly spaced, from the least to the greatest.
    """

    command: str
    date: str
    rows: int
    quantiles: tuple[float, ...]

    def share_above(self, room: float) -> float:
        """Share of the runs whose peak lay further above its prediction than some room.

        Beyond all of them it is what one more run would have been.

        Parameters
        ----------
        room : float
            Share of a device's memory.

        Examples
        --------
        >>> errors = PeakErrors(command="", date="", rows=9, quantiles=(-0.1, 0.0, 0.1))
        >>> errors.share_above(0.05), errors.share_above(-0.2), errors.share_above(0.5)
        (0.25, 1.0, 0.1)
        """
        least, *_, greatest = self.quantiles
        if room < least:
            return 1.0
        steps = len(self.quantiles) - 1
        below = bisect_right(self.quantiles, room) - 1
        if room >= greatest:
            return 1 / (self.rows + 1)
        low, high = self.quantiles[below : below + 2]
        return max(1 - (below + (room - low) / (high - low)) / steps, 1 / (self.rows + 1))


class ErrorTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups of `prediction_errors.toml`, and where they come from."""

    command: str
    date: str
    rows: int
    groups: tuple[ErrorGroup, ...]
    peaks: PeakErrors | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeRange:
    """Range of a step time in seconds, and the published runs that it is taken from.

    `share` says how many of them fell into it: `8 in 10` or `all`. `doubt` says why none of them is
    of the devices themselves; empty where they are, or may be.
    """

    low_s: float
    high_s: float
    runs: int
    sources: int
    share: str
    group: str
    doubt: str = ""

    @property
    def text(self) -> str:
        """The range in a sentence for people, without a full stop."""
        origin = "1 source" if self.sources == 1 else f"{self.sources} sources"
        low, high = format_seconds(self.low_s), format_seconds(self.high_s)
        if low.split()[1] == high.split()[1]:
            low = low.split()[0]
        runs = f"{self.share} of {self.runs}" if self.share != "all" else f"all {self.runs}"
        doubt = f"{self.doubt}; " if self.doubt else ""
        return (
            f"{low} to {high}: {doubt}{runs} published runs of {self.group} ({origin}) fell so "
            f"around their predictions"
        )


@lru_cache(maxsize=1)
def error_table() -> ErrorTable:
    """Errors of predictions of published runs, as the package ships them."""
    text = (resources.files("millrace.published") / ERRORS_FILE).read_text("utf-8")
    return msgspec.toml.decode(text, type=ErrorTable)


def device_class(name: str) -> str:
    """Class of a device, without its form and memory.

    Parameters
    ----------
    name : str
        Name in the catalogue.

    Examples
    --------
    >>> device_class("a100-sxm-80gb"), device_class("tpu-v5p"), device_class("rtx-4090")
    ('a100', 'tpu-v5p', 'rtx-4090')
    """
    first, _, rest = name.lower().partition("-")
    if any(map(str.isdigit, first)) or not rest:
        return first
    return f"{first}-{rest.partition('-')[0]}"


def model_kind(model: ModelSpec, graph: Graph | None = None) -> ModelKind:
    """Kind of a model: by its family and configuration, or by its ops where these say nothing.

    Parameters
    ----------
    model : ModelSpec
        The model.
    graph : Graph, optional
        Its graph, for models that a function builds; that of an imported model by default.
    """
    if model.config.get("experts"):
        return ModelKind.EXPERTS
    if model.family in FAMILY_KINDS:
        return FAMILY_KINDS[model.family]
    graph = model.graph if graph is None else graph
    op_kinds = {op.kind for op in graph.ops} if graph is not None else set()
    return next((kind for op, kind in OP_KINDS.items() if op in op_kinds), ModelKind.OTHER)


def error_group(
    framework: str, devices: Sequence[str], kind: ModelKind, groups: Sequence[ErrorGroup]
) -> ErrorGroup | None:
    """Most specific group of runs that are like a prediction; None where nothing was compared.

    Parameters
    ----------
    framework : str
        Name of the software.
    devices : sequence of str
        Names of the kinds of device in the cluster.
    kind : ModelKind
        Kind of the model.
    groups : sequence of ErrorGroup
        The groups to choose from.

    Returns
    -------
    ErrorGroup or None
        That of the framework on the class of devices; else that of the framework, that of the
        class, that of the kind of model: the first that has `RUNS_MIN` runs of `SOURCES_MIN`
        sources, or else the first that has the runs. None where neither the framework nor a class
        of the devices was ever compared, and where the framework is this project's own.
    """
    classes = {device_class(device) for device in devices}
    alike = {
        (group.framework, group.device): group
        for group in groups
        if group.kind is kind and group.runs >= RUNS_MIN
    }
    compared = {name for group in groups for name in (group.framework, group.device) if name}
    if framework == RUNTIME or not compared & {framework, *classes}:
        return None
    single = next(iter(classes)) if len(classes) == 1 else "several classes"
    places = [(framework, single), (framework, ""), ("", single), ("", "")]
    near = [alike[name, device] for name, device in places if (name, device) in alike]
    return next((group for group in near if group.sources >= SOURCES_MIN), next(iter(near), None))


def unmeasured_text(devices: Iterable[Device]) -> str:
    """Doubt about devices that no run was compared on, in a sentence; empty where there are none.

    Parameters
    ----------
    devices : iterable of Device
        Devices in use.
    """
    texts: dict[str, None] = {}
    compared = {generation(group.device) for group in error_table().groups}
    for device in devices:
        parts = [name.partition("_")[0] for name in sorted(device.assumed) if name in SHARES]
        if len(parts) == len(SHARES):
            texts[f"no published run on {device.name} was fitted"] = None
        elif parts:
            texts[f"assumed of {device.name}: efficiency of {' and '.join(parts)}"] = None
        elif generation(device.name) not in {"", *compared}:
            texts[f"all runs on {device.name} that were compared were fitted"] = None
    return f"not calibrated: {', '.join(texts)}" if texts else ""


def step_time_range(
    framework: str, devices: Sequence[str], kind: ModelKind, step_time_s: float, doubt: str = ""
) -> StepTimeRange | None:
    """Range of a predicted step time, from published runs like it; None where there are none.

    Parameters
    ----------
    framework : str
        Name of the software that the prediction is for.
    devices : sequence of str
        Names of the kinds of device in the cluster.
    kind : ModelKind
        Kind of the model.
    step_time_s : float
        The prediction, in seconds.
    doubt : str
        Doubt about devices, as `unmeasured_text` has it.
    """
    groups = error_table().groups
    if doubt and framework != RUNTIME:
        likes = (group for group in groups if (group.device, group.kind) == (UNMEASURED, kind))
        group = next(likes, None)
    else:
        group = error_group(framework, devices, kind, groups)
    if group is None:
        return None
    low, high = group.bounds
    return StepTimeRange(
        low_s=step_time_s * (1 + low),
        high_s=step_time_s * (1 + high),
        runs=group.runs,
        sources=group.sources,
        share="8 in 10" if group.runs >= TAILED_RUNS_MIN else "all",
        group=group.text,
        doubt=doubt,
    )


def plan_range(plan: Plan, step_time_s: float) -> tuple[StepTimeRange | None, str]:
    """Range of a plan's predicted step time, and a sentence that says what it was compared with.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    step_time_s : float
        Its predicted step time, in seconds.

    Returns
    -------
    StepTimeRange or None
        None where no published run is like the plan.
    str
        The range in words, or why there is none.
    """
    cluster = plan.cluster
    groups_in_use = [group.device for group in cluster.groups]
    measured = any(device.kernels for device in groups_in_use)
    kind = model_kind(plan.model, plan.graph)
    if measured or cluster.cores_per_node is not None:
        return None, (
            "nothing like it was compared: published runs were predicted from data sheets, "
            "and this is of a profile of the machine"
        )
    devices = tuple(dict.fromkeys(device.name for device in groups_in_use))
    doubt = unmeasured_text(groups_in_use)
    step_range = step_time_range(cluster.software.name, devices, kind, step_time_s, doubt)
    if step_range is not None:
        return step_range, step_range.text
    return None, (
        f"nothing like it was compared: no published run of {PLURALS[kind]} with "
        f"{cluster.software.name} on {' and '.join(devices)}{doubt and f'; {doubt}'}"
    )


def range_document(plan: Plan, step_time_s: float | None) -> dict[str, Any]:
    """Fields of a JSON document that say how sure a plan's predicted step time is.

    Parameters
    ----------
    plan : Plan
        The plan, with its model and cluster.
    step_time_s : float or None
        Its predicted step time, in seconds; None where nothing is predicted.

    Returns
    -------
    dict
        `step_time_range_s`, the least and the greatest step time or None,
        `step_time_compared_with`, a sentence, and `device_doubt`, that of `unmeasured_text`.
    """
    if step_time_s is None:
        names = ("step_time_range_s", "step_time_compared_with", "device_doubt")
        return dict.fromkeys(names)
    step_range, text = plan_range(plan, step_time_s)
    bounds = None if step_range is None else [step_range.low_s, step_range.high_s]
    return {
        "step_time_range_s": bounds,
        "step_time_compared_with": text,
        "device_doubt": unmeasured_text(group.device for group in plan.cluster.groups),
    }
