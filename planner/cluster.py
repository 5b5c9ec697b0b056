"""Cluster: devices, how they are joined, and what is known about their speed.

A `Device` comes from the catalogue (data sheet) or from `millrace profile` (measured); the cost
functions take either: a measured table is used where there is one, a roofline elsewhere.
"""

import msgspec

SCHEMA_VERSION = 1


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """α-β of one kind of connection, per device and direction."""

    latency_ns: int
    bandwidth_bytes_per_s: float
    source: str


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device.

    `flops_per_s` is the dense peak per precision. `kernels` maps an op kind to measured points
    (work, duration_ns), where work is FLOPs for kinds whose labels give FLOPs and bytes touched
    for the others; attention has a table per head size (`attention/64`). `collectives` maps
    `kind/group_size` to measured points (message_bytes, duration_ns). Both are
    sorted by their first column.
    """

    name: str
    memory_bytes: int
    flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    matmul_efficiency: float
    memory_efficiency: float
    launch_ns: int
    source: str
    kernels: dict[str, tuple[tuple[int, int], ...]] = {}
    collectives: dict[str, tuple[tuple[int, int], ...]] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`nodes` nodes of `devices_per_node` equal devices.

    `cores_per_node` is set where ranks are processes on a CPU and share that many cores.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    device: Device
    devices_per_node: int
    nodes: int
    intra_node: Link
    inter_node: Link
    cores_per_node: int | None = None

    @property
    def devices(self) -> int:
        """Number of devices in the cluster."""
        return self.devices_per_node * self.nodes

    def device_of(self, rank: int) -> Device:
        """The kind of device that rank `rank` lies on."""
        return self.device
