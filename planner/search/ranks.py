"""Ranks: which of them a collective joins, and how much those of one node slow each other down."""

from fractions import Fraction
from math import prod

from planner.cluster import Cluster

ALONE = Fraction(1)


def core_share(cluster: Cluster, ranks: int, busy: Fraction) -> Fraction:
    """How much longer work takes where ranks share the cores of their node.

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
    >>> from planner.clusters import parse_cluster
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
