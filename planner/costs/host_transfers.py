"""Host transfers: the time that optimizer state takes to and from host memory.

ZeRO-Offload's idea (Ren et al. 2021, section 4.1), with the update left on the device: every step
the state of a variable comes in, is updated and goes out again, in pieces of at most `PIECE_BYTES`
through one buffer. One piece is under way at a time and nothing else is counted as done meanwhile:

    2 · (pieces · tensors · latency + bytes / bandwidth)

What training in 16 bits keeps in float32 comes in once more, to be cast: half of that for it.
"""

from collections.abc import Iterable

import numpy as np

from millrace.models.arrays import Ints
from millrace.planner.cluster import Cluster, HostMemory, NodeGroup

# Larger pieces of a variable's state gain nothing where latency is microseconds.
PIECE_BYTES = 16 * 2**20

# A device is assumed to have this where its cluster does not say.
UNKNOWN = HostMemory(
    latency_ns=2500,  # as NCCL counts a PCI hop (2.2x tuning.cc hwLat, LL128), read 2026-11
    bandwidth_bytes_per_s=12.8e9,  # 0.8 of PCIe 3.0 x16, 16 GB/s (SimAI, calbusbw.h), read 2026-11
    source="PCIe 3.0 x16 per direction, assumed",
)


def host_of(group: NodeGroup, cluster: Cluster) -> HostMemory:
    """Host memory of a group's devices; ranks on a CPU copy within the memory they have.

    Parameters
    ----------
    group : NodeGroup
        Nodes of one kind; their own `host` goes before all else.
    cluster : Cluster
        The cluster that they are of. Its `cores_per_node` tells whether ranks are processes on a
        CPU; devices of others whose host is not stated are taken to have `UNKNOWN`.
    """
    if group.host is not None:
        return group.host
    if cluster.cores_per_node is None:
        return UNKNOWN
    device = group.device
    return HostMemory(
        latency_ns=device.launch_ns,
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * device.memory_efficiency / 2,
        source="a copy reads and writes the machine's memory",
    )


def state_copies_ns(
    state_bytes: Ints, tensors: int, hosts: Iterable[HostMemory], *, ways: int = 2
) -> Ints:
    """Time of the copies of one update, or of one cast, on the slowest of some hosts.

    Parameters
    ----------
    state_bytes : int array
        Bytes of each of the `tensors` that are kept of a variable, on one device.
    tensors : int
        Two moments of AdamW, one velocity; and the variable itself where it lies there.
    hosts : iterable of HostMemory
        One of each kind of node at work; none: no time.
    ways : int
        2: there and back, for an update; 1: what a cast reads.

    Returns
    -------
    int array
        Nanoseconds, of the shape of `state_bytes`.

    Examples
    --------
    >>> state_copies_ns(np.array([2**20]), 2, [UNKNOWN])
    array([337680])
    """
    total = tensors * np.asarray(state_bytes, np.int64)
    copies = tensors * -(-total // PIECE_BYTES)
    slowest_ns = np.zeros_like(total)
    for host in hosts:
        moved = np.ceil(total / host.bandwidth_bytes_per_s * 1e9).astype(np.int64)
        slowest_ns = np.maximum(slowest_ns, ways * (copies * host.latency_ns + moved))
    return slowest_ns
