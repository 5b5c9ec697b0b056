"""Clusters whose collectives cost latency and bandwidth alone, and links and devices by figures.

For tests on tiny ops: beside these a library's fixed cost of 7 to 14 us a collective is all there
is to choose by.
"""

from typing import Any

from msgspec.structs import replace

from millrace.planner.cluster import Cluster, Device, Link
from millrace.planner.clusters import parse_cluster


def without_library(text: str) -> Cluster:
    """Cluster that `text` names on the command line, with every collective algorithm there is."""
    cluster = parse_cluster(text)
    return replace(cluster, device=replace(cluster.device, library=""))


def link(latency_ns: int, bytes_per_ns: float) -> Link:
    """Link of a latency and a bandwidth."""
    return Link(latency_ns=latency_ns, bandwidth_bytes_per_s=bytes_per_ns * 1e9, source="a test")


def plain_device(**figures: Any) -> Device:
    """Device of 1 FLOP and 1 byte a nanosecond and nothing else, but for some figures."""
    plain = {
        "name": "plain",
        "memory_bytes": 10**9,
        "flops_per_s": {"fp32": 1e9},
        "memory_bandwidth_bytes_per_s": 1e9,
        "matmul_efficiency": 1.0,
        "memory_efficiency": 1.0,
        "launch_ns": 0,
        "source": "a test",
    }
    return Device(**(plain | figures))
