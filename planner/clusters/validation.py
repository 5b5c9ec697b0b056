"""Validation of a Cluster: every value in its range, every level made of whole lower ones."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isfinite, prod

from millrace.planner.cluster import Cluster, Device, HostMemory, Leaves, Link, NodeGroup, Software
from millrace.planner.collectives import BOXING
from millrace.planner.costs.gemm import ITEM_BYTES
from millrace.planner.costs.nccl_protocols import LIBRARIES
from millrace.planner.errors import ClusterError

# Devices up to which a search answers within half a minute on two cores (2026-11).
DEVICES_MAX = 2**18
# Rates that times are made of lie between these: with more, or less a second, a step would not fit
# 64 bits of nanoseconds.
RATE_MIN, RATE_MAX = 1e6, 1e24
TIME_NS_MAX = 900 * 10**9


def validate(cluster: Cluster) -> Cluster:
    """The cluster itself, once every value lies in its range.

    Raises
    ------
    ClusterError
        Names the field, its value, the range and what to do.
    """
    for fault in _faults(cluster):
        raise ClusterError(f"cluster `{cluster.name}`: {fault}")
    return cluster


def _faults(cluster: Cluster) -> Iterator[str]:
    for index, group in enumerate(cluster.groups):
        where = f"others[{index - 1}]." if index else ""
        yield from _group_faults(group, where)
    if cluster.cores_per_node is not None:
        yield from _above_zero("cores_per_node", cluster.cores_per_node)
    if cluster.leaves is not None:
        yield from _leaf_faults(cluster.leaves)
    yield from _software_faults(cluster.software)
    if cluster.devices > DEVICES_MAX:
        most = f"name at most {DEVICES_MAX:,}"
        yield f"{cluster.devices:,} devices are more than are planned for; {most}"
    devices: dict[str, Device] = {}
    for group in cluster.groups:
        first = devices.setdefault(group.device.name, group.device)
        if first != group.device:
            yield f"two devices are called `{first.name}` and differ; give each a name of its own"


def _group_faults(group: NodeGroup, where: str) -> Iterator[str]:
    yield from _above_zero(f"{where}devices_per_node", group.devices_per_node)
    yield from _above_zero(f"{where}nodes", group.nodes)
    yield from _device_faults(group.device, f"{where}device.")
    yield from _link_faults(group.intra_node, f"{where}intra_node.")
    yield from _link_faults(group.inter_node, f"{where}inter_node.")
    if group.host is not None:
        yield from _host_faults(group.host, f"{where}host.")
    per_node = group.devices_per_node
    if (islands := group.islands) is not None:
        yield from _link_faults(islands.link, f"{where}islands.link.")
        if islands.devices < 1 or per_node % islands.devices:
            yield (
                f"{where}islands.devices is {islands.devices}, expected a divisor of "
                f"devices_per_node ({per_node})"
            )
    if (torus := group.torus) is not None:
        if islands is not None:
            yield f"{where}torus and islands exclude each other; leave one out"
        if any(size < 1 for size in torus.dims) or prod(torus.dims) != per_node:
            yield (
                f"{where}torus.dims is {list(torus.dims)}, expected sizes whose product is "
                f"devices_per_node ({per_node})"
            )
        if torus.wrap_multiple < 0:
            yield (
                f"{where}torus.wrap_multiple is {torus.wrap_multiple}, expected 0 (no dim wraps) "
                f"or more"
            )


def _software_faults(software: Software) -> Iterator[str]:
    yield from _time("software.host_ns", software.host_ns)
    yield from _not_negative("software.bucket_bytes", software.bucket_bytes)
    yield from _not_negative("software.state_bytes", software.state_bytes)
    yield from _not_negative("software.bucket_part_bytes", software.bucket_part_bytes)
    yield from _not_negative("software.routing", software.routing)
    yield from _not_negative("software.gradient_bytes", software.gradient_bytes)
    yield from _not_negative("software.state_ranks", software.state_ranks)
    yield from _time("software.broadcast_ns", software.broadcast_ns)
    yield from _above_zero("software.fusion", software.fusion)
    yield from _above_zero("software.attention", software.attention)
    yield from _above_zero("software.links", software.links)
    for kind in software.pieces:
        if kind not in BOXING:
            yield f"software.pieces has `{kind}`, expected {', '.join(BOXING)}"
    if not 0 <= software.overlap <= 1:
        yield f"software.overlap is {software.overlap}, expected 0 to 1"


def _leaf_faults(leaves: Leaves) -> Iterator[str]:
    yield from _above_zero("leaves.nodes", leaves.nodes)
    yield from _time("leaves.latency_ns", leaves.latency_ns)
    if not (leaves.oversubscription >= 1 and isfinite(leaves.oversubscription)):
        yield (
            f"leaves.oversubscription is {leaves.oversubscription:g}, expected 1 or more: "
            f"bandwidth below a leaf over that above it"
        )


def _device_faults(device: Device, where: str) -> Iterator[str]:
    yield from _above_zero(f"{where}memory_bytes", device.memory_bytes)
    yield from _rate(f"{where}memory_bandwidth_bytes_per_s", device.memory_bandwidth_bytes_per_s)
    if not device.flops_per_s:
        yield f"{where}flops_per_s is empty, expected a peak of at least one precision"
    for precision, rate in device.flops_per_s.items():
        yield from _rate(f"{where}flops_per_s.{precision}", rate)
    yield from _time(f"{where}launch_ns", device.launch_ns)
    yield from _not_negative(f"{where}multiprocessors", device.multiprocessors)
    yield from _not_negative(f"{where}jitter", device.jitter)
    yield from _not_negative(f"{where}softmax_features", device.softmax_features)
    for field, share in (
        ("matmul_efficiency", device.matmul_efficiency),
        ("memory_efficiency", device.memory_efficiency),
        ("attention_efficiency", device.attention_efficiency),
        ("narrow_efficiency", device.narrow_efficiency),
        ("crowded_speed", device.crowded_speed),
        ("plain_efficiency", device.plain_efficiency),
    ):
        if share is not None and not 0 < share <= 1:
            yield f"{where}{field} is {share}, expected above 0 and at most 1"
    for field, value in (
        ("price_usd_per_hour", device.price_usd_per_hour),
        ("power_watts", device.power_watts),
    ):
        if value is not None:
            yield from _above_zero(f"{where}{field}", value)
    if device.library and device.library not in LIBRARIES:
        yield (
            f"{where}library is `{device.library}`, expected one of {', '.join(LIBRARIES)}, or "
            f"nothing for rings and trees by latency and bandwidth alone"
        )
    yield from _table_faults(f"{where}kernels", device.kernels)
    for name in device.kernels:
        _, separator, precision = name.partition("@")
        if separator and precision not in ITEM_BYTES:
            yield f"{where}kernels.{name}: `{precision}` is none of {', '.join(ITEM_BYTES)}"
    for form, tables in device.shapes.items():
        yield from _table_faults(f"{where}shapes.{form}", tables)
    yield from _table_faults(f"{where}collectives", device.collectives)


def _table_faults(field: str, tables: Mapping[str, tuple[tuple[int, int], ...]]) -> Iterator[str]:
    for name, points in tables.items():
        where = f"{field}.{name}"
        if not points:
            yield f"{where} has no points; measure it or leave it out"
        for work, duration in points:
            if work <= 0 or not 0 < duration <= TIME_NS_MAX:
                yield (
                    f"{where}: point ({work}, {duration}) must be above 0, and its time at most "
                    f"{TIME_NS_MAX:,}"
                )
        for (before, _), (after, _) in pairwise(points):
            if after <= before:
                yield f"{where}: {after} follows {before}; sort by the first column"


def _host_faults(host: HostMemory, where: str) -> Iterator[str]:
    yield from _rate(f"{where}bandwidth_bytes_per_s", host.bandwidth_bytes_per_s)
    yield from _time(f"{where}latency_ns", host.latency_ns)
    if host.memory_bytes is not None:
        yield from _above_zero(f"{where}memory_bytes", host.memory_bytes)


def _link_faults(link: Link, where: str) -> Iterator[str]:
    yield from _rate(f"{where}bandwidth_bytes_per_s", link.bandwidth_bytes_per_s)
    yield from _time(f"{where}latency_ns", link.latency_ns)
    yield from _time(f"{where}gap_ns", link.gap_ns)
    for members, share in link.joined:
        if members < 2 or not 0 < share <= 1:
            yield (
                f"{where}joined has {members} members with a share of {share}, expected 2 members "
                f"or more, and a share above 0 and at most 1"
            )
    if not 0 <= link.congestion < 1:
        yield f"{where}congestion is {link.congestion}, expected 0 or more and below 1"


def _rate(field: str, value: float) -> Iterator[str]:
    if not RATE_MIN <= value <= RATE_MAX:
        yield f"{field} is {value}, expected {RATE_MIN:g} to {RATE_MAX:g} a second"


def _time(field: str, value_ns: int) -> Iterator[str]:
    if not 0 <= value_ns <= TIME_NS_MAX:
        yield f"{field} is {value_ns}, expected 0 to {TIME_NS_MAX:,} (a quarter of an hour)"


def _above_zero(field: str, value: float) -> Iterator[str]:
    if not 0 < value < float("inf"):
        yield f"{field} is {value}, expected above 0"


def _not_negative(field: str, value: float) -> Iterator[str]:
    if value < 0:
        yield f"{field} is {value}, expected 0 or more"
