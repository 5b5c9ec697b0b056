"""Clusters of the catalogue whose collectives cost latency and bandwidth alone.

For tests on tiny ops: beside these a library's fixed cost of 7 to 14 us a collective is all there
is to choose by.
"""

from msgspec.structs import replace

from millrace.planner.cluster import Cluster
from millrace.planner.clusters import parse_cluster


def without_library(text: str) -> Cluster:
    """Cluster that `text` names on the command line, with every collective algorithm there is."""
    cluster = parse_cluster(text)
    return replace(cluster, device=replace(cluster.device, library=""))
