"""Clusters by name: the catalogue of devices, `DEVICE:GPUS_PER_NODExNODES`, `local:N`, TOML files.

One form serves both the catalogue (`planner/catalogue/*.toml`, one file per device with the network
of its reference system) and a user's own file: a device, how many lie in a node, and two links.
"""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path

import msgspec

from planner.cluster import Cluster, Device, Link
from planner.errors import ClusterError

FORM = "expected DEVICE:GPUS_PER_NODExNODES (a100-sxm-80gb:8x16), local:N or a .toml file"

# One core with NumPy: what `local:N` assumes of a machine that was not profiled.
CORE = "cpu-core"

# One idle rank (Python 3.11, NumPy, mpi4py with mpich) has 41 MiB resident, 2026-11; rounded up.
RANK_BYTES = 64 * 1024**2


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster file: `device` is a table, or the name of a catalogue entry to start from."""

    device: Device | str
    name: str = ""
    system: str = ""
    devices_per_node: int | None = None
    nodes: int = 1
    intra_node: Link | None = None
    inter_node: Link | None = None
    cores_per_node: int | None = None


def names() -> tuple[str, ...]:
    """Names of the catalogue's devices, sorted."""
    folder = resources.files("planner") / "catalogue"
    found = [entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in found))


@lru_cache(maxsize=64)
def reference_node(name: str) -> Cluster:
    """One node of the reference system of the catalogue's device `name`.

    Raises
    ------
    ClusterError
        There is no such device; lists the names that come close.
    """
    if name not in names():
        close = get_close_matches(name, names(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names())}"
        raise ClusterError(f"no device `{name}` in the catalogue; {hint}")
    text = (resources.files("planner") / "catalogue" / f"{name}.toml").read_text("utf-8")
    return _decode(text, f"catalogue entry `{name}`")


def device(name: str) -> Device:
    """Return the catalogue's device called `name`; raises ClusterError when there is none."""
    return reference_node(name).device


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
        `DEVICE:GPUS_PER_NODExNODES`, `local:N`, `local-gpu:N`, or the path of a TOML file.
    local_device
        One rank of this machine as `millrace profile` measured it; None: built-in figures.
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
        return _read(Path(text))
    name, _, shape = text.partition(":")
    if name == "local-gpu":
        raise ClusterError(
            f"`{text}`: this version has not measured a GPU and runs on none; use local:N for this "
            f"machine's CPUs, or name a catalogue device to plan for"
        )
    if name == "local":
        if not re.fullmatch(r"[0-9]{1,9}", shape) or int(shape) < 1:
            raise ClusterError(f"`{text}`: expected local:N with N processes, such as local:4")
        return local_cluster(
            int(shape),
            cores if cores is not None else machine_cores(),
            memory_bytes if memory_bytes is not None else machine_memory_bytes(),
            local_device,
        )
    node = reference_node(name)
    if not (match := re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", shape)):
        raise ClusterError(f"`{text}`: {FORM}")
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
    return msgspec.structs.replace(node, name=text, devices_per_node=per_node, nodes=nodes)


def local_cluster(
    ranks: int, cores: int, memory_bytes: int, device: Device | None = None
) -> Cluster:
    """`ranks` processes on one machine, which share its cores and its memory.

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


def machine_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Memory of this machine, or the limit of the control group it runs in."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    for path in map(Path, limits):
        if path.is_file() and (limit := path.read_text("ascii").strip()).isdecimal():
            found = min(found, int(limit))
    return found


def validate(cluster: Cluster) -> Cluster:
    """Return the cluster itself once every value lies in its range.

    Raises
    ------
    ClusterError
        Names the field, its value and the range.
    """
    counts: dict[str, float] = {
        "devices_per_node": cluster.devices_per_node,
        "nodes": cluster.nodes,
        "device.memory_bytes": cluster.device.memory_bytes,
        "device.memory_bandwidth_bytes_per_s": cluster.device.memory_bandwidth_bytes_per_s,
        "intra_node.bandwidth_bytes_per_s": cluster.intra_node.bandwidth_bytes_per_s,
        "inter_node.bandwidth_bytes_per_s": cluster.inter_node.bandwidth_bytes_per_s,
        **{f"device.flops_per_s.{k}": v for k, v in cluster.device.flops_per_s.items()},
    }
    if cluster.cores_per_node is not None:
        counts["cores_per_node"] = cluster.cores_per_node
    for field, value in counts.items():
        if not 0 < value < float("inf"):
            raise ClusterError(f"cluster `{cluster.name}`: {field} is {value}, expected above 0")
    for field, value in (
        ("device.launch_ns", cluster.device.launch_ns),
        ("intra_node.latency_ns", cluster.intra_node.latency_ns),
        ("inter_node.latency_ns", cluster.inter_node.latency_ns),
    ):
        if value < 0:
            raise ClusterError(f"cluster `{cluster.name}`: {field} is {value}, expected 0 or more")
    for field, share in (
        ("device.matmul_efficiency", cluster.device.matmul_efficiency),
        ("device.memory_efficiency", cluster.device.memory_efficiency),
    ):
        if not 0 < share <= 1:
            raise ClusterError(
                f"cluster `{cluster.name}`: {field} is {share}, expected above 0 and at most 1"
            )
    _check_tables("device.kernels", cluster.device.kernels)
    _check_tables("device.collectives", cluster.device.collectives)
    return cluster


def _check_tables(field: str, tables: Mapping[str, tuple[tuple[int, int], ...]]) -> None:
    for name, points in tables.items():
        where = f"{field}.{name}"
        if not points:
            raise ClusterError(f"{where} has no points; measure it or leave it out")
        for work, duration in points:
            if work <= 0 or duration <= 0:
                raise ClusterError(f"{where}: point ({work}, {duration}) must be above 0")
        for (before, _), (after, _) in pairwise(points):
            if after <= before:
                raise ClusterError(f"{where}: {after} follows {before}; sort by the first column")


def _read(path: Path) -> Cluster:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ClusterError(f"cannot read cluster file `{path}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClusterError(f"cluster file `{path}` is not UTF-8 text") from None
    return _decode(text, f"cluster file `{path}`", path.stem)


def _decode(text: str, where: str, name: str = "") -> Cluster:
    try:
        entry = msgspec.toml.decode(text, type=_Entry)
    except msgspec.DecodeError as error:
        raise ClusterError(f"{where}: {error}") from None
    if isinstance(entry.device, str):
        base = reference_node(entry.device)
    elif entry.devices_per_node is not None and entry.intra_node and entry.inter_node:
        base = Cluster(
            name=entry.device.name,
            device=entry.device,
            devices_per_node=entry.devices_per_node,
            nodes=entry.nodes,
            intra_node=entry.intra_node,
            inter_node=entry.inter_node,
        )
    else:
        raise ClusterError(
            f"{where}: a device of its own needs `devices_per_node`, `intra_node` and `inter_node`"
        )
    per_node = entry.devices_per_node
    return validate(
        msgspec.structs.replace(
            base,
            name=entry.name or name or base.name,
            devices_per_node=base.devices_per_node if per_node is None else per_node,
            nodes=entry.nodes,
            intra_node=entry.intra_node or base.intra_node,
            inter_node=entry.inter_node or base.inter_node,
            cores_per_node=entry.cores_per_node,
        )
    )


def _several_cores(core: Device, cores: int) -> Device:
    return msgspec.structs.replace(
        core,
        flops_per_s={name: rate * cores for name, rate in core.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=core.memory_bandwidth_bytes_per_s * cores,
    )


def _measured_link(device: Device) -> Link:
    """α-β that passes through the smallest and the largest measured transfer.

    It stands in for group sizes that were not measured; a built-in link where nothing was.
    """
    points = device.collectives.get("send/2", ())
    if len(points) < 2:
        return reference_node(CORE).intra_node
    (small, least), (large, most) = points[0], points[-1]
    return Link(
        latency_ns=least,
        bandwidth_bytes_per_s=(large - small) / max(most - least, 1) * 1e9,
        source=f"measured transfers of {small} and {large} bytes: {device.source}",
    )
