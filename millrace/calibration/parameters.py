"""Parameters that are fitted, one value per device or framework, and what is believed beforehand.

Beliefs are normal in the logarithm. Values of one pool (devices of one architecture; all
frameworks) share what they deviate by from the belief, and each deviates a little by itself: one
with few rows of its own takes after its pool, and one with none is what its pool is in the mean.
"""

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from millrace.models.arrays import Floats
from millrace.planner.cluster import Cluster, generation
from millrace.planner.clusters import device, framework
from millrace.planner.costs.op_batch import NARROW
from millrace.planner.frameworks.framework_tables import DEFAULT
from millrace.published.question import Question


class Prior(NamedTuple):
    """Prior of a figure: its value, and standard deviations of the logarithm.

    `pool` is the deviation that all of a pool share, `member` that of each by itself.
    """

    value: float
    pool: float
    member: float


# Kernels are commonly seen to reach these shares of peaks (planner/costs says of which peak each).
DEVICE_FIELDS = {
    "matmul_efficiency": Prior(0.75, 0.15, 0.05),
    "narrow_efficiency": Prior(0.65, 0.2, 0.05),
    "attention_efficiency": Prior(0.55, 0.25, 0.05),
    "memory_efficiency": Prior(0.8, 0.15, 0.05),
}
SOFTWARE_FIELDS = {
    "host_ns": Prior(12_000, 0.4, 0.4),
    "loss": Prior(0.35, 0.4, 0.5),  # 1 - overlap
    "fusion": Prior(1.2, 0.3, 0.3),
    "attention": Prior(1.0, 0.1, 0.25),
}
FIELDS = DEVICE_FIELDS | SOFTWARE_FIELDS

# Shares of peaks that attention was measured to reach by itself, on a device and by the kernels of
# a framework (blank: those that shares of devices are of): cuDNN 9.22 (NVIDIA/cudnn-frontend,
# benchmark/sdpa_benchmark_training, 2026-04) and FlashAttention-2 (Dao, arXiv 2307.08691, abstract:
# up to 73 %). They are met within `MEASURED_TO`.
ATTENTION = "attention_efficiency", "attention"
MEASURED = (
    ("gb300", "megatron-core", 0.67),
    ("gb200", "megatron-core", 0.60),
    ("a100-sxm-80gb", "", 0.73),
    ("a100-sxm-40gb", "", 0.73),
)
MEASURED_TO = 0.05


class FittedParameter(NamedTuple):
    """A figure (`field`) of a device or a framework (`owner`)."""

    owner: str
    field: str

    @property
    def pool(self) -> str:
        """Name of the pool that it shares its deviation with."""
        if self.field in SOFTWARE_FIELDS:
            return self.field
        return f"{generation(self.owner) or self.owner} {self.field}"

    @property
    def belief(self) -> Prior:
        """Prior of its value."""
        return FIELDS[self.field]


def parameters_of(question: Question, cluster: Cluster) -> tuple[tuple[FittedParameter, ...], ...]:
    """Parameters on which a question's prediction depends, those together that act as one."""
    device, software = cluster.device.name, cluster.software
    groups: list[tuple[FittedParameter, ...]] = [
        (FittedParameter(device, "matmul_efficiency"),),
        (FittedParameter(device, "memory_efficiency"),),
    ]
    if question.model.precision in NARROW:
        groups.append((FittedParameter(device, "narrow_efficiency"),))
    if question.training.attention == "flash":
        both = (
            FittedParameter(device, "attention_efficiency"),
            FittedParameter(software.name, "attention"),
        )
        groups.append(both)
    if software.host_ns:
        groups.append((FittedParameter(software.name, "host_ns"),))
    if 0 < software.overlap < 1:
        groups.append((FittedParameter(software.name, "loss"),))
    groups.append((FittedParameter(software.name, "fusion"),))
    return tuple(groups)


def default_parameters() -> tuple[FittedParameter, ...]:
    """Parameters of a framework that was not seen: one of every pool, and no row depends on it."""
    return tuple(FittedParameter(DEFAULT, field) for field in SOFTWARE_FIELDS)


def value_of(parameter: FittedParameter) -> float:
    """Value in the catalogue or in the frameworks' settings."""
    owner, field = parameter
    if field == "narrow_efficiency":
        owner_device = device(owner)
        return owner_device.narrow_efficiency or owner_device.matmul_efficiency
    if field in DEVICE_FIELDS:
        return float(getattr(device(owner), field))
    software = framework(owner)
    return 1 - software.overlap if field == "loss" else float(getattr(software, field))


def value_in(cluster: Cluster, field: str) -> float:
    """Value of a field as a cluster has it."""
    if field in DEVICE_FIELDS:
        return float(getattr(cluster.device, field) or cluster.device.matmul_efficiency)
    software = cluster.software
    return 1 - software.overlap if field == "loss" else float(getattr(software, field))


def scaled(cluster: Cluster, factors: Mapping[FittedParameter, float]) -> Cluster:
    """Cluster with its figures times the factors of those parameters that are its own."""
    owners = cluster.device.name, cluster.software.name
    for (owner, field), factor in factors.items():
        if owner in owners:
            cluster = _scaled(cluster, field, factor)
    return cluster


def _scaled(cluster: Cluster, field: str, factor: float) -> Cluster:
    software = cluster.software
    if field in DEVICE_FIELDS:
        share = min(value_in(cluster, field) * factor, 1.0)
        return replace(cluster, device=replace(cluster.device, **{field: share}))
    if field == "loss":
        software = replace(software, overlap=1 - min((1 - software.overlap) * factor, 1.0))
    elif field == "host_ns":
        software = replace(software, host_ns=round(software.host_ns * factor))
    else:
        software = replace(software, **{field: getattr(software, field) * factor})
    return replace(cluster, software=software)


def prior_moments(parameters: Iterable[FittedParameter]) -> tuple[Floats, Floats]:
    """Mean [N] and covariance [N, N] of the logarithms, given what was measured of kernels.

    Notes
    -----
    A normal distribution, given a sum of its variables that was measured (R. E. Kalman, "A new
    approach to linear filtering and prediction problems", 1960).
    """
    listed = list(parameters)
    mean = np.array([log(parameter.belief.value) for parameter in listed])
    pools = [parameter.pool for parameter in listed]
    alike = np.array([[a == b for b in pools] for a in pools])
    shared = np.array([parameter.belief.pool**2 for parameter in listed])
    member_variances = np.array([parameter.belief.member**2 for parameter in listed])
    covariance = alike * shared + np.diag(member_variances)
    for owner, software, share in MEASURED:
        parts = {FittedParameter(*of) for of in zip((owner, software), ATTENTION, strict=True)}
        parts = {part for part in parts if part.owner}
        if parts <= set(listed):
            summed = np.array([float(parameter in parts) for parameter in listed])
            moved = covariance @ summed
            gain = moved / (summed @ moved + MEASURED_TO**2)
            mean = mean + gain * (log(share) - summed @ mean)
            covariance = covariance - np.outer(gain, moved)
    return mean, covariance
