"""Protocols: how a communication library moves messages, as straight lines over their bytes.

NCCL has one ring, one pair of trees and, where switches add up what passes through them, NVLink
SHARP; each by three protocols. LL sends 4 bytes of data with 4 of flags: least latency, a quarter
of the bandwidth; LL128 120 of 128 bytes, where links keep such lines whole; Simple waits for whole
chunks: all of the bandwidth, most latency per hop. The fastest line counts, as NCCL's own tuner
chooses. An all_gather or reduce_scatter knows rings only, so its latency grows with its members.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, log2
from typing import NamedTuple

from millrace.planner.costs.group_topology import GroupTopology, LevelCrossing

Lines = list[tuple[int, float]]  # (fixed_ns, ns_per_byte) of each algorithm


class HopLatency(NamedTuple):
    """Latency of one hop over that of the link it takes: inside a node, and between nodes."""

    intra_node: float
    inter_node: float

    def latency_ns(self, crossing: LevelCrossing) -> float:
        """Latency of one hop over this crossing."""
        return crossing.latency_ns * (self.inter_node if crossing.inter_node else self.intra_node)


class NcclProtocol(NamedTuple):
    """Cost of a message before its first hop and per hop, and share of a link that it fills."""

    base_ns: int
    ring: HopLatency
    share: float
    tree_base_ns: int
    tree: HopLatency
    tree_share: float
    gap_ns: int  # least time of a ring's step where the ring leaves its node


# Of NVIDIA/nccl src/graph/tuning.cc, 2.22 (2024), read 2026-11: baseLat, hwLat (NVLINK, NET) over
# the 1.9 and 4.0 us of LL128 that `Link.latency_ns` holds, busBw ratios, getNetOverhead (1 us on
# Intel hosts, three times that for Simple).
NCCL = (
    NcclProtocol(  # LL
        base_ns=6_600,
        ring=HopLatency(0.6 / 1.9, 2.7 / 4.0),
        share=1 / 4,
        tree_base_ns=6_800,
        tree=HopLatency(0.6 / 1.9, 5.0 / 4.0),
        tree_share=0.92 / 3.8,
        gap_ns=1_000,
    ),
    NcclProtocol(  # LL128
        base_ns=14_000,
        ring=HopLatency(1.0, 1.0),
        share=0.92,
        tree_base_ns=14_000,
        tree=HopLatency(1.25 / 1.9, 8.5 / 4.0),
        tree_share=0.92 * 120 / 128,
        gap_ns=1_000,
    ),
    NcclProtocol(  # Simple
        base_ns=8_400,
        ring=HopLatency(3.4 / 1.9, 14.0 / 4.0),
        share=1.0,
        tree_base_ns=0,
        tree=HopLatency(28.0 / 1.9, 28.0 / 4.0),
        tree_share=0.92,
        gap_ns=3_000,
    ),
)
LIBRARIES = {"nccl": NCCL}

# NVLink SHARP by NCCL: 275 GB/s of messages on 8 H100 whose links carry 370 (NVIDIA, nccl-tests
# issue 212, 2024-05); latency and the ratio of 5/6 between nodes from tuning.cc as above.
SWITCH_SHARE = 275 / 370.8
SWITCHES = HopLatency(23.0 / 1.9, 14.0 / 4.0)
NETWORK_SHARE = 5 / 6


def rounds(layout: GroupTopology, protocols: Iterable[NcclProtocol], times: int) -> Lines:
    """Lines of one ring over all members: once round, or twice for an all_reduce."""
    size = layout.size
    rate = min(crossing.bytes_per_ns for crossing in layout.crossings)
    lines = []
    for protocol in protocols:
        once = round_ns(layout, protocol)
        slope = times * (size - 1) / size / (rate * protocol.share)
        lines.append((protocol.base_ns + times * once, slope))
    return lines


def round_ns(layout: GroupTopology, protocol: NcclProtocol) -> int:
    """Latency of once round a ring, most of whose steps stay inside nodes."""
    leaves = any(crossing.inter_node for crossing in layout.crossings)
    least_ns = max(crossing.gap_ns for crossing in layout.crossings)
    least_ns = max(least_ns, protocol.gap_ns) if leaves else least_ns
    counts = [units[-1] for units in layout.within] + [1]
    steps = [inside - beyond for inside, beyond in pairwise(counts)]
    return round(
        sum(
            step * max(protocol.ring.latency_ns(crossing), least_ns)
            for step, crossing in zip(steps, layout.crossings, strict=True)
        )
    )


def trees(layout: GroupTopology, protocols: Iterable[NcclProtocol]) -> Lines:
    """Lines of two trees over the nodes, chains inside them: up, and down again."""
    rate = min(crossing.bytes_per_ns for crossing in layout.crossings)
    lines = []
    for protocol in protocols:
        depth_ns = 0.0
        for units, crossing in zip(layout.within, layout.crossings, strict=True):
            deep = ceil(log2(units[0])) if crossing.inter_node else units[0] - 1
            depth_ns += deep * protocol.tree.latency_ns(crossing)
        fixed = protocol.tree_base_ns + round(2 * depth_ns)
        lines.append((fixed, 2 / (rate * protocol.tree_share)))
    return lines


def transfers(crossing: LevelCrossing, protocols: Iterable[NcclProtocol]) -> Lines:
    """Lines of one message of each member over its own links."""
    return [
        (
            protocol.base_ns + round(protocol.ring.latency_ns(crossing)),
            1 / (crossing.own_bytes_per_ns * protocol.share),
        )
        for protocol in protocols
    ]


def switched(layout: GroupTopology, *, exact: bool = False) -> Lines:
    """Lines of an all_reduce that switches inside nodes add up, over a tree of the nodes.

    The message moves once each way over every member's link. Between nodes it does so meanwhile
    where those switches reduce too, else up and down a tree, for which each of more than two nodes
    has to send it twice.

    Parameters
    ----------
    layout
        A group, of which each node has several members or all.
    exact
        By α-β alone: a hop to the switch and one back, and all of the bandwidth.
    """
    inside, outside = layout.crossings[0], layout.crossings[1:]
    even = all(crossing.inter_node and crossing.fewest == crossing.most for crossing in outside)
    if not inside.reduces or not even:
        return []
    hops, share, beyond = (
        (HopLatency(2.0, 1.0), 1.0, 1.0) if exact else (SWITCHES, SWITCH_SHARE, NETWORK_SHARE)
    )
    fixed = hops.latency_ns(inside)
    slope = 1 / (inside.bytes_per_ns * share)
    for units, crossing in zip(layout.within[1:], outside, strict=True):
        depth = 1 if crossing.reduces else ceil(log2(units[0]))
        fixed += 2 * depth * hops.latency_ns(crossing)
        sent = 1 if crossing.reduces or layout.within[1][-1] == 2 else 2
        slope = max(slope, sent / (crossing.bytes_per_ns * beyond))
    return [(round(fixed), slope)]
