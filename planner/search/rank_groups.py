"""Rank groups: the places of stages and collectives, and how much ranks of a node slow each other.

A *site* is what stages have in common that lie on the same groups of nodes, so that their blocks
cost the same (`placement_groups.py` finds them).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np

from millrace.planner.cluster import Cluster
from millrace.planner.costs.group_topology import Frame, GroupTopology, layout_of

ALONE = Fraction(1)
SAMPLED = 64  # groups of one axis that are looked at, where they lie in many ways


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlacementGroup:
    """Groups of nodes, by number, and where on them stages begin.

    `starts` are the stages' first ranks, counted from the first rank of the groups; one of them
    where all lie alike.
    """

    groups: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """The order of a cluster's groups, and the sites that `Pipeline.kind_of_stage` counts."""

    order: tuple[int, ...]
    sites: tuple[PlacementGroup, ...]
    text: str


def core_share(cluster: Cluster, ranks: int, busy: Fraction) -> Fraction:
    """Factor by which work takes longer where ranks share the cores of their node.

    Parameters
    ----------
    cluster : Cluster
        Only where `cores_per_node` is set do ranks share.
    ranks : int
        All ranks of the plan.
    busy : Fraction
        Share of the time in which a rank computes: a pipeline's ramps leave cores to the others.

    Examples
    --------
    >>> from millrace.planner.clusters import parse_cluster
    >>> core_share(parse_cluster("local:4", cores=2, memory_bytes=2**33), 4, Fraction(1))
    Fraction(2, 1)
    """
    if cluster.cores_per_node is None:
        return ALONE
    here = min(ranks, cluster.devices_per_node)
    return max(ALONE, here * busy / cluster.cores_per_node)


def group_ranks(axis_sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks of the first group that spans these axes, on the first stage."""
    ranks = [0]
    for axis in axes:
        stride = prod(axis_sizes[axis + 1 :])
        ranks = [rank + k * stride for rank in ranks for k in range(axis_sizes[axis])]
    return tuple(ranks)


@lru_cache(maxsize=65536)
def unlike_groups(
    axis_sizes: tuple[int, ...], axes: tuple[int, ...], starts: tuple[int, ...], frame: Frame
) -> tuple[tuple[int, ...], ...]:
    """Groups that span these axes, one of each that lie alike on the links.

    Parameters
    ----------
    axis_sizes : tuple of int
        Devices along each axis of one stage's mesh, outer first.
    axes : tuple of int
        Places, in the mesh, of the axes that the groups span.
    starts : tuple of int
        First ranks of the stages.
    frame : Frame
        The links, see `millrace.planner.costs.group_topology`.

    Returns
    -------
    tuple of tuple of int
        Ranks of each group. Where they begin at more than `SAMPLED` unlike ranks, so many evenly
        spaced ones are looked at.
    """
    first = group_ranks(axis_sizes, axes)
    strides = [prod(axis_sizes[axis:]) for axis in range(len(axis_sizes))]
    even = len(frame.parts) == 1
    if even and starts == (0,) and alike(strides, frame):
        return (first,)
    offsets = np.array(starts)
    for axis, size in enumerate(axis_sizes):
        if axis not in axes:
            steps = strides[axis] // size * np.arange(size)
            offsets = np.add.outer(offsets, steps).ravel()
    if even:
        offsets = offsets % units(frame)[-1]
    offsets = np.unique(offsets)
    if len(offsets) > SAMPLED:
        offsets = offsets[np.linspace(0, len(offsets) - 1, SAMPLED).astype(np.int64)]
    group_by_layout: dict[GroupTopology, tuple[int, ...]] = {}
    for offset in offsets.tolist():
        group = tuple(rank + offset for rank in first)
        group_by_layout.setdefault(layout_of(group, frame), group)
    return tuple(group_by_layout.values())


def alike(strides: Iterable[int], frame: Frame) -> bool:
    """True if groups with these strides lie alike wherever they begin at a multiple of them.

    So it is where strides and what the levels of links hold divide one another: a rank's number is
    then written in digits of which each belongs to one stride and to one level.
    """
    return all(
        stride % unit == 0 or unit % stride == 0 for stride in strides for unit in units(frame)
    )


def units(frame: Frame) -> tuple[int, ...]:
    """Ranks that each level of links inside a cluster's first group holds."""
    part = frame.parts[0]
    level_sizes = {part.devices_per_node}
    if part.islands is not None:
        level_sizes.add(part.islands.devices)
    if part.torus is not None:
        level_sizes.update(prod(part.torus.dims[dim:]) for dim in range(len(part.torus.dims)))
    if frame.leaves is not None:
        level_sizes.add(frame.leaves.nodes * part.devices_per_node)
    return tuple(sorted(level_sizes))
