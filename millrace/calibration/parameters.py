"""Parameters: what is fitted, one value per device or framework, and what is believed beforehand.

Beliefs are normal in the logarithm. Values of one pool (devices of one architecture; all
frameworks) share what they deviate by from the belief, and each deviates a little by itself: one
with few rows of its own takes after its pool, and one with none is what its pool is in the mean.
"""

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from millrace.planner.cluster import Cluster
from millrace.planner.clusters import device, framework
from millrace.planner.clusters.software import DEFAULT
from millrace.planner.costs.firings import NARROW
from millrace.published.question import Question

Floats = NDArray[np.float64]


class Belief(NamedTuple):
    """Beforehand: the value, and deviations of its logarithm, of a pool and of a member."""

    value: float
    pool: float
    member: float


# What kernels are commonly seen to reach, of peaks (planner/costs says of what each is a share).
DEVICE_FIELDS = {
    "matmul_efficiency": Belief(0.75, 0.15, 0.05),
    "narrow_efficiency": Belief(0.65, 0.2, 0.05),
    "attention_efficiency": Belief(0.55, 0.25, 0.05),
    "memory_efficiency": Belief(0.8, 0.15, 0.05),
}
SOFTWARE_FIELDS = {
    "host_ns": Belief(12_000, 0.4, 0.4),
    "loss": Belief(0.35, 0.4, 0.5),  # 1 - overlap
    "fusion": Belief(1.2, 0.3, 0.3),
    "attention": Belief(1.0, 0.1, 0.25),
}
FIELDS = DEVICE_FIELDS | SOFTWARE_FIELDS

# Beginnings of device names, by architecture.
ARCHITECTURES = {
    "volta": ("v100",),
    "ampere": ("a100", "a800", "a10g"),
    "hopper": ("h100", "h200", "h800"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
}


class Parameter(NamedTuple):
    """A figure (`field`) of a device or a framework (`owner`)."""

    owner: str
    field: str

    @property
    def pool(self) -> str:
        """What it shares its deviation with."""
        if self.field in SOFTWARE_FIELDS:
            return self.field
        found = (name for name, heads in ARCHITECTURES.items() if self.owner.startswith(heads))
        return f"{next(found, self.owner)} {self.field}"

    @property
    def belief(self) -> Belief:
        """What is believed beforehand."""
        return FIELDS[self.field]


def parameters_of(question: Question, cluster: Cluster) -> tuple[tuple[Parameter, ...], ...]:
    """Parameters on which a question's prediction depends, those together that act as one."""
    device, software = cluster.device.name, cluster.software
    found: list[tuple[Parameter, ...]] = [
        (Parameter(device, "matmul_efficiency"),),
        (Parameter(device, "memory_efficiency"),),
    ]
    if question.model.precision in NARROW:
        found.append((Parameter(device, "narrow_efficiency"),))
    if question.training.attention == "flash":
        both = Parameter(device, "attention_efficiency"), Parameter(software.name, "attention")
        found.append(both)
    if software.host_ns:
        found.append((Parameter(software.name, "host_ns"),))
    if 0 < software.overlap < 1:
        found.append((Parameter(software.name, "loss"),))
    found.append((Parameter(software.name, "fusion"),))
    return tuple(found)


def default_parameters() -> tuple[Parameter, ...]:
    """Settings of a framework that was not seen: members of every pool on which no row depends."""
    return tuple(Parameter(DEFAULT, field) for field in SOFTWARE_FIELDS)


def value_of(parameter: Parameter) -> float:
    """The value in the catalogue or in the frameworks' settings."""
    owner, field = parameter
    if field == "narrow_efficiency":
        found = device(owner)
        return found.narrow_efficiency or found.matmul_efficiency
    if field in DEVICE_FIELDS:
        return float(getattr(device(owner), field))
    software = framework(owner)
    return 1 - software.overlap if field == "loss" else float(getattr(software, field))


def scaled(cluster: Cluster, factors: Mapping[Parameter, float]) -> Cluster:
    """Return the cluster with what factors concern it, on the figures that it has."""
    owners = cluster.device.name, cluster.software.name
    for (owner, field), factor in factors.items():
        if owner in owners:
            cluster = _scaled(cluster, field, factor)
    return cluster


def _scaled(cluster: Cluster, field: str, factor: float) -> Cluster:
    software = cluster.software
    if field in DEVICE_FIELDS:
        held = cluster.device
        value = getattr(held, field) or held.matmul_efficiency
        return replace(cluster, device=replace(held, **{field: min(value * factor, 1.0)}))
    if field == "loss":
        software = replace(software, overlap=1 - min((1 - software.overlap) * factor, 1.0))
    elif field == "host_ns":
        software = replace(software, host_ns=round(software.host_ns * factor))
    else:
        software = replace(software, **{field: getattr(software, field) * factor})
    return replace(cluster, software=software)


def beliefs(parameters: Iterable[Parameter]) -> tuple[Floats, Floats]:
    """Return the mean and the covariance of the logarithms, [N] and [N, N]."""
    listed = list(parameters)
    mean = np.array([log(one.belief.value) for one in listed])
    pools = [one.pool for one in listed]
    alike = np.array([[a == b for b in pools] for a in pools])
    shared = np.array([one.belief.pool**2 for one in listed])
    own = np.array([one.belief.member**2 for one in listed])
    return mean, alike * shared + np.diag(own)
