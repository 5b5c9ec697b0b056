"""Parsing of clusters on the command line: of the catalogue, of this machine, or a file.

`DEVICE:GPUS_PER_NODExNODES`, `local:N`, `local:NxHOSTS`, `local-gpu:N`, or the path of a TOML file.
"""

import os
import re
from pathlib import Path

import msgspec

from millrace.planner.cluster import OURS, Cluster, Device, HostMemory, Link, Software
from millrace.planner.clusters.cluster_files import (
    canonical,
    names,
    read_cluster,
    reference_node,
    resized,
)
from millrace.planner.clusters.validation import validate
from millrace.planner.errors import ClusterError

FORM = (
    "expected DEVICE:GPUS_PER_NODExNODES (a100-sxm-80gb:8x16), local:N, local-gpu:N or a .toml file"
)

# Forms of this machine, and what N of them are.
LOCAL, LOCAL_GPU = "local", "local-gpu"
_COUNTED = {LOCAL: "processes", LOCAL_GPU: "GPUs"}

# One core with NumPy: what `local:N` assumes of a machine that was not profiled.
CORE = "cpu-core"

# One idle rank (Python 3.11, NumPy, mpi4py with mpich) has 41 MiB resident, 2026-11; rounded up.
RANK_BYTES = 64 * 1024**2


# What people call this machine's cores, and its GPUs.
CALLED = {
    **dict.fromkeys(("cpu", "cpus", "localhost", "here"), LOCAL),
    **dict.fromkeys(("gpu", "gpus", "cuda"), LOCAL_GPU),
}


def parse_cluster(
    text: str,
    local_device: Device | None = None,
    *,
    cores: int | None = None,
    memory_bytes: int | None = None,
) -> Cluster:
    """Read a cluster as it is written on the command line.

    Parameters
    ----------
    text
        `DEVICE:GPUS_PER_NODExNODES`, `local:N`, `local-gpu:N`, or the path of a TOML file;
        `local:NxHOSTS` are N processes on each of several hosts like this machine. The cluster's
        name is in the catalogue's words where the text has shorter ones (`h100:8x2`).
    local_device
        One rank of this machine, or one of its GPUs, as `millrace profile` measured it. None: of a
        rank, built-in figures; for GPUs there are none.
    cores, memory_bytes
        This machine's, for `local:N`; None: asked of the operating system.

    Raises
    ------
    ClusterError
        The text has another form, names an unknown device, or holds a value out of its range.

    Examples
    --------
    >>> parse_cluster("a100-sxm-80gb:8x16").devices
    128
    """
    if text.endswith(".toml"):
        return read_cluster(Path(text))
    name, _, shape = text.partition(":")
    if name in _COUNTED:
        ranks, hosts = local_ranks(name, shape)
        if name == LOCAL_GPU:
            return local_gpu_cluster(ranks, local_device)
        machine = local_cluster(
            ranks,
            cores if cores is not None else machine_cores(),
            memory_bytes if memory_bytes is not None else machine_memory_bytes(),
            local_device,
        )
        return validate(msgspec.structs.replace(machine, name=f"{name}:{shape}", nodes=hosts))
    if Path(text).suffix[1:].isalpha() or "/" in text:  # the path of a file of another kind
        raise ClusterError(f"`{text}`: {FORM}")
    _check_form(text)
    name = canonical(name)
    node = reference_node(name)
    if not (match := re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", shape)):
        per_node_text = shape if re.fullmatch("[0-9]{1,9}", shape) else str(node.devices_per_node)
        raise ClusterError(f"`{text}`: {FORM}; one node is {name}:{per_node_text}x1")
    per_node, nodes = int(match[1]), int(match[2])
    if per_node > node.devices_per_node:
        raise ClusterError(
            f"`{text}`: GPUS_PER_NODE is {per_node}, but the reference system of {name} holds "
            f"{node.devices_per_node}; write {name}:{node.devices_per_node}x{nodes} or describe "
            f"the node in a .toml file"
        )
    for value, field in ((per_node, "GPUS_PER_NODE"), (nodes, "NODES")):
        if value < 1:
            raise ClusterError(f"`{text}`: {field} is {value}, expected at least 1")
    cluster = msgspec.structs.replace(resized(node, per_node), name=f"{name}:{shape}", nodes=nodes)
    return validate(cluster)


def _check_form(text: str) -> None:
    """Refuse what people type for this machine, and a number before or behind a device's name."""
    if (machine := CALLED.get(text.partition(":")[0].lower())) is not None:
        raise ClusterError(f"`{text}`: this machine is {machine}:N, such as {machine}:4")
    swapped = re.fullmatch(r"([0-9]{1,9})\s*[x*]\s*(.+)|(.+?)\s*[x*]\s*([0-9]{1,9})", text)
    if not swapped:
        return
    name, devices = canonical(swapped[2] or swapped[3]), int(swapped[1] or swapped[4])
    if name in names() and text not in names() and devices:
        per_node = min(devices, reference_node(name).devices_per_node)
        meant = f"{name}:{per_node}x{-(-devices // per_node)}"
        raise ClusterError(f"`{text}`: {FORM}; {devices} devices are {meant}")


def local_cluster(
    ranks: int, cores: int, memory_bytes: int, device: Device | None = None
) -> Cluster:
    """Cluster of `ranks` processes on one machine, which share its cores and its memory.

    Parameters
    ----------
    ranks, cores, memory_bytes
        Number of processes, and the machine's cores and memory.
    device
        One rank as measured with its share of the cores; None: built-in figures of one core,
        times a rank's cores where there are more cores than ranks.

    Raises
    ------
    ClusterError
        There is not enough memory to start so many processes.
    """
    if ranks * RANK_BYTES > memory_bytes:
        raise ClusterError(
            f"local:{ranks}: an idle rank takes {RANK_BYTES // 1024**2} MiB, and this machine has "
            f"{memory_bytes // 1024**2} MiB; use at most local:{memory_bytes // RANK_BYTES}"
        )
    core = reference_node(CORE)
    measured = device is not None
    if device is None:
        device = _several_cores(core.device, max(1, cores // ranks))
    return validate(
        Cluster(
            name=f"local:{ranks}",
            device=msgspec.structs.replace(device, memory_bytes=memory_bytes // ranks),
            devices_per_node=ranks,
            nodes=1,
            intra_node=_measured_link(device) if measured else core.intra_node,
            inter_node=core.inter_node,
            cores_per_node=cores,
        )
    )


def local_gpu_cluster(ranks: int, device: Device | None) -> Cluster:
    """Cluster of `ranks` GPUs of one machine, as they were measured, driven by captured steps.

    Parameters
    ----------
    ranks
        Number of GPUs.
    device
        One of them, measured together with as many: `millrace profile --device gpu --ranks N`.

    Raises
    ------
    ClusterError
        There is no such measurement.
    """
    again = f"`millrace profile --device gpu --ranks {ranks}`"
    if device is None:
        raise ClusterError(f"local-gpu:{ranks}: this machine's GPUs were not measured; run {again}")
    if ranks > 1 and f"all_reduce/{ranks}" not in device.collectives:
        raise ClusterError(
            f"local-gpu:{ranks}: the profile of {device.name} has no collectives between {ranks} "
            f"GPUs; run {again}"
        )
    alone = Link(
        latency_ns=device.launch_ns,
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / 2,
        source="one GPU needs no link: a copy within its memory",
    )
    link = _line(device, "send/2") or alone
    host = _line(device, "host/1")
    return validate(
        Cluster(
            name=f"{LOCAL_GPU}:{ranks}",
            device=device,
            devices_per_node=ranks,
            nodes=1,
            intra_node=link,
            inter_node=link,
            host=None
            if host is None
            else HostMemory(
                latency_ns=host.latency_ns,
                bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
                source=host.source,
            ),
            software=Software(
                name=OURS, source="captured steps: what launches take was measured with ops"
            ),
        )
    )


def local_ranks(name: str, shape: str) -> tuple[int, int]:
    """N of `local:N`, `local:NxHOSTS` or `local-gpu:N`, and the number of hosts.

    Parameters
    ----------
    name : str
        `local` or `local-gpu`, which tells what N counts: processes or GPUs.
    shape : str
        The text behind the colon.

    Raises
    ------
    ClusterError
        The shape is no whole number from 1 to 999999999, or two where hosts are possible.

    Examples
    --------
    >>> local_ranks("local", "4"), local_ranks("local", "2x3")
    ((4, 1), (2, 3))
    """
    ranks, several, hosts = shape.partition("x")
    numbers = [ranks, hosts] if several and name == LOCAL else [shape]
    if not all(re.fullmatch(r"[0-9]{1,9}", number) and int(number) for number in numbers):
        raise ClusterError(
            f"`{name}:{shape}`: expected {name}:N with N {_COUNTED[name]}, such as {name}:4"
        )
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1


def machine_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Memory of this machine, or the limit of the control group it runs in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    for path in map(Path, limits):
        if path.is_file() and (limit := path.read_text("ascii").strip()).isdecimal():
            memory_bytes = min(memory_bytes, int(limit))
    return memory_bytes


def _several_cores(core: Device, cores: int) -> Device:
    return msgspec.structs.replace(
        core,
        flops_per_s={name: rate * cores for name, rate in core.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=core.memory_bandwidth_bytes_per_s * cores,
    )


def _measured_link(device: Device) -> Link:
    """Link for group sizes that were not measured; built in where nothing was."""
    return _line(device, "send/2") or reference_node(CORE).intra_node


def _line(device: Device, table: str) -> Link | None:
    """Link whose α-β line passes through the smallest and largest measured transfer of a table."""
    points = device.collectives.get(table, ())
    if len(points) < 2:
        return None
    (small, least), (large, most) = points[0], points[-1]
    return Link(
        latency_ns=least,
        bandwidth_bytes_per_s=(large - small) / max(most - least, 1) * 1e9,
        source=f"measured transfers of {small} and {large} bytes: {device.source}",
    )
