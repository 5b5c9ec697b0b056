"""Collectives: how long a meeting takes once all its members have come.

A collective is the fastest of several algorithms, each a straight line over the bytes of the
message; a group inside a node uses the measured table `kind/group_size` where there is one.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, log2
from typing import NamedTuple

from planner.cluster import Cluster, Link
from planner.costs.measured import interpolate_ns

Pieces = tuple[tuple[int, float], ...]  # (fixed_ns, ns_per_byte) of each algorithm


class Algorithm(NamedTuple):
    """A way to run a collective of p ranks: `rounds` latencies and `volume` times the message."""

    rounds: int
    volume: float


def ring_and_tree(kind: str, group_size: int) -> tuple[Algorithm, ...]:
    """Algorithms that a collective library chooses from, by size of the message.

    Notes
    -----
    Ring: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009. Tree: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", 2009.
    """
    p = group_size
    depth = ceil(log2(p))
    if kind == "all_reduce":
        return Algorithm(2 * (p - 1), 2 * (p - 1) / p), Algorithm(2 * depth, 2.0)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (Algorithm(p - 1, (p - 1) / p),)
    if kind == "broadcast":
        return Algorithm(p - 1, 1.0), Algorithm(depth, 1.0)
    if kind in ("send", "recv"):
        return (Algorithm(1, 1.0),)
    raise ValueError(f"collective `{kind}` has no cost")


def members_per_node(ranks: Sequence[int], cluster: Cluster) -> int:
    """Smallest number of a group's members that share a node; rank r lies on device r."""
    return _members_per_node(tuple(ranks), cluster.devices_per_node)


@lru_cache(maxsize=4096)
def _members_per_node(ranks: tuple[int, ...], devices_per_node: int) -> int:
    found: dict[int, int] = {}
    for rank in ranks:
        node = rank // devices_per_node
        found[node] = found.get(node, 0) + 1
    return min(found.values())


def collective_pieces(kind: str, ranks: tuple[int, ...], cluster: Cluster) -> Pieces | None:
    """Straight lines whose minimum is the duration of a collective of these ranks.

    A message of n bytes takes the smallest `fixed_ns + ceil(ns_per_byte * n)`.

    Parameters
    ----------
    kind
        As in `planner.actors.graph.Meeting`.
    ranks
        The members; rank r lies on device r.
    cluster
        Its links.

    Returns
    -------
    tuple of (fixed_ns, ns_per_byte), or None
        Empty for a group of one; None where a measured table is used instead.

    Examples
    --------
    >>> from planner.clusters import parse_cluster
    >>> collective_pieces("all_gather", (0, 1), parse_cluster("a100-sxm-80gb:8x1"))
    ((2800, 0.0020833333333333333),)
    """
    if len(ranks) == 1:
        return ()
    together = members_per_node(ranks, cluster)
    if together == len(ranks) and _table(kind, len(ranks)) in cluster.device.collectives:
        return None
    return _pieces(
        kind, len(ranks), together, cluster.intra_node, cluster.inter_node, cluster.device.launch_ns
    )


@lru_cache(maxsize=4096)
def _pieces(
    kind: str, group_size: int, together: int, inside: Link, outside: Link, launch_ns: int
) -> Pieces:
    if together == group_size:
        latency, bandwidth = inside.latency_ns, inside.bandwidth_bytes_per_s
    else:
        latency = max(inside.latency_ns, outside.latency_ns)
        # In an all_to_all each member sends its own data through its own interface.
        lanes = 1 if kind == "all_to_all" else together
        bandwidth = min(inside.bandwidth_bytes_per_s, lanes * outside.bandwidth_bytes_per_s)
    return tuple(
        (launch_ns + rounds * latency, volume * 1e9 / bandwidth)
        for rounds, volume in ring_and_tree(kind, group_size)
    )


def _table(kind: str, group_size: int) -> str:
    return f"{'send' if kind == 'recv' else kind}/{group_size}"


def collective_duration_ns(
    kind: str,
    message_bytes: int,
    group_size: int,
    cluster: Cluster,
    ranks: tuple[int, ...] = (),
) -> int:
    """Duration of one collective or transfer once all its members have come.

    A group inside one node uses the measured table `kind/group_size` where there is one. A ring
    that leaves the node crosses its border once per member there, each over a network interface
    of its own, so the bandwidth is the smaller of the node's and `members` times the network's.
    Where ranks share cores it is the time with nothing else at work, as it is measured.

    Parameters
    ----------
    kind, message_bytes
        As in `planner.actors.graph.Meeting`.
    group_size
        Number of members.
    cluster
        Its links and measured tables.
    ranks
        The members; empty: the cluster's first.
    """
    pieces = collective_pieces(kind, ranks or tuple(range(group_size)), cluster)
    if pieces is None:
        table = cluster.device.collectives[_table(kind, group_size)]
        return interpolate_ns(table, message_bytes)
    return min((fixed + ceil(slope * message_bytes) for fixed, slope in pieces), default=0)
