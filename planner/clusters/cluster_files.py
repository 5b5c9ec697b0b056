"""Cluster files: TOML, one form for a user's own and for the catalogue.

The catalogue (`planner/catalogue/*.toml`) has one file per device, with the network of its
reference system. `docs/clusters.md` shows every form.
"""

from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from millrace.models.documents import as_text, decode_toml, read_text
from millrace.planner.cluster import (
    Cluster,
    Device,
    HostMemory,
    Islands,
    Leaves,
    Link,
    NodeGroup,
    Software,
    Torus,
    nearest_cube,
)
from millrace.planner.clusters.assumed_shares import with_shares
from millrace.planner.clusters.fabrics import network
from millrace.planner.clusters.validation import validate
from millrace.planner.errors import ClusterError
from millrace.planner.frameworks.framework_tables import framework

BYTES_MAX = 2**20
"""A file of a cluster has a hundred lines; this many bytes are read in some seconds."""


class NodesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one kind: `device` is a table, or the name of a catalogue entry to start from.

    A link is a table, or a fabric as `network` reads it. `changes` are fields in which the device
    is another than the catalogue's.
    """

    device: Device | str
    devices_per_node: int | None = None
    nodes: int = 1
    intra_node: Link | str | None = None
    inter_node: Link | str | None = None
    islands: Islands | None = None
    torus: Torus | None = None
    host: HostMemory | None = None
    changes: dict[str, Any] = {}


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster file: nodes of one kind in place, or `groups` of several kinds."""

    name: str = ""
    system: str = ""
    device: Device | str | None = None
    devices_per_node: int | None = None
    nodes: int = 1
    intra_node: Link | str | None = None
    inter_node: Link | str | None = None
    islands: Islands | None = None
    torus: Torus | None = None
    host: HostMemory | None = None
    changes: dict[str, Any] = {}
    cores_per_node: int | None = None
    leaves: Leaves | None = None
    software: Software | str = Software()
    groups: tuple[NodesTable, ...] = ()


def names() -> tuple[str, ...]:
    """Names of the catalogue's devices, sorted."""
    folder = resources.files("millrace.planner") / "catalogue"
    files = [entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in files))


# People say these names for the device of that name that most published runs were on.
USUAL = {
    "a100": "a100-sxm-80gb",
    "a800": "a800-sxm-80gb",
    "b200-sxm": "b200",
    "b300-sxm": "b300",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "gh200-96gb": "gh200",
    "h100": "h100-sxm-80gb",
    "h100-sxm": "h100-sxm-80gb",
    "h100-nvl-94gb": "h100-nvl",
    "h20-sxm-96gb": "h20",
    "h200": "h200-sxm",
    "h200-sxm-141gb": "h200-sxm",
    "h800": "h800-sxm-80gb",
    "mi300": "mi300x",
    "rtx-4090-24gb": "rtx-4090",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "geforce-rtx-4090": "rtx-4090",
    "rtx6000-ada": "rtx-6000-ada",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
    "v100": "v100-sxm-32gb",
}


def canonical(name: str) -> str:
    """The catalogue's name for a device that people call by less, else the name itself.

    Examples
    --------
    >>> canonical("H100"), canonical("b200")
    ('h100-sxm-80gb', 'b200')
    """
    return USUAL.get(name.lower(), name)


@lru_cache(maxsize=64)
def reference_node(name: str) -> Cluster:
    """One node of the reference system of the catalogue's device `name`, or of `USUAL`.

    Raises
    ------
    ClusterError
        There is no such device; lists the names that come close.
    """
    name = canonical(name)
    if name not in names():
        begun = [candidate for candidate in names() if name and candidate.startswith(name.lower())]
        close = begun[:3] or get_close_matches(name, names(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names())}"
        raise ClusterError(f"no device `{name}` in the catalogue; {hint}")
    text = (resources.files("millrace.planner") / "catalogue" / f"{name}.toml").read_text("utf-8")
    return _decode(text, f"catalogue entry `{name}`")


def device(name: str) -> Device:
    """The catalogue's device called `name`; raises ClusterError when there is none."""
    return reference_node(name).device


def resized(node: Cluster, devices_per_node: int) -> Cluster:
    """Node with another number of devices, a torus as near to a cube as it goes.

    Islands that the devices do not fill are left out.

    Parameters
    ----------
    node : Cluster
        A node as `reference_node` gives it; name and number of nodes stay.
    devices_per_node : int
        Number of devices that it has then; its range is left to `validate`.
    """
    torus, islands = node.torus, node.islands
    if islands is not None and devices_per_node % islands.devices:
        islands = None
    if torus is not None and devices_per_node > 0 and devices_per_node != node.devices_per_node:
        dims = nearest_cube(devices_per_node, len(torus.dims))
        torus = msgspec.structs.replace(torus, dims=dims)
    return msgspec.structs.replace(
        node, devices_per_node=devices_per_node, torus=torus, islands=islands
    )


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises
    ------
    ClusterError
        The file cannot be read, or a field is unknown, missing or out of its range.
    """
    text = read_text(path, "cluster file", bytes_max=BYTES_MAX, error=ClusterError)
    where = f"cluster file `{path}`"
    try:
        return _decode(text.decode(), where, as_text(path.stem))
    except ClusterError as error:
        named = str(error).startswith(where)
        raise ClusterError(str(error) if named else f"{where}: {error}") from None


def _decode(text: str, where: str, name: str = "") -> Cluster:
    try:
        entry = decode_toml(text, ClusterFile, where, ClusterError, _with_shares)
    except ClusterError as error:
        fields = (f"unknown field `{field}`" for field in Device.__struct_fields__)
        if not any(field in str(error) for field in fields):
            raise
        raise ClusterError(
            f"{error}; what a device of the catalogue has otherwise is written under [changes]"
        ) from None
    kinds = [_nodes(nodes, f"{where}, groups[{i}]") for i, nodes in enumerate(entry.groups)]
    if entry.device is not None:
        if kinds:
            raise ClusterError(
                f"{where}: it has a `device` and `groups`; put the device in a group"
            )
        kinds = [_nodes(_in_place(entry, entry.device), where)]
    elif not kinds:
        raise ClusterError(f"{where}: it names no `device`; give one, or `[[groups]]` of several")
    first, *others = kinds
    return validate(
        Cluster(
            name=entry.name or name or first.device.name,
            device=first.device,
            devices_per_node=first.devices_per_node,
            nodes=first.nodes,
            intra_node=first.intra_node,
            inter_node=first.inter_node,
            cores_per_node=entry.cores_per_node,
            islands=first.islands,
            torus=first.torus,
            leaves=entry.leaves,
            others=tuple(others),
            host=first.host,
            software=_software(entry.software, where),
        )
    )


def _with_shares(values: dict[str, Any]) -> dict[str, Any]:
    """Values of a file, in which devices of its own have the shares that it leaves out."""
    places = [values]
    if isinstance(groups := values.get("groups"), list):
        places += [group for group in groups if isinstance(group, dict)]
    for place in places:
        if isinstance(device := place.get("device"), dict):
            place["device"] = with_shares(device)
    return values


def _software(given: Software | str, where: str) -> Software:
    """Settings of a framework by its name, or the file's own."""
    if isinstance(given, Software):
        return given
    try:
        return framework(given)
    except ClusterError as error:
        raise ClusterError(f"{where}, software: {error}") from None


def _in_place(entry: ClusterFile, device: Device | str) -> NodesTable:
    return NodesTable(
        device=device,
        devices_per_node=entry.devices_per_node,
        nodes=entry.nodes,
        intra_node=entry.intra_node,
        inter_node=entry.inter_node,
        islands=entry.islands,
        torus=entry.torus,
        host=entry.host,
        changes=entry.changes,
    )


def _changed(device: Device, changes: dict[str, Any], where: str) -> Device:
    """Device of the catalogue with other values in some fields, which are not assumed then."""
    assumed = [share for share in device.assumed if share not in changes]
    fields = msgspec.to_builtins(device) | {"assumed": assumed} | changes
    try:
        return msgspec.convert(fields, Device) if changes else device
    except msgspec.ValidationError as error:
        raise ClusterError(f"{where}, changes: {error}") from None


def _nodes(nodes: NodesTable, where: str) -> NodeGroup:
    """Fill in what a catalogue entry knows; a device of its own needs all of it."""
    if isinstance(nodes.device, Device):
        if nodes.devices_per_node is None or not nodes.intra_node or not nodes.inter_node:
            raise ClusterError(
                f"{where}: a device of its own needs `devices_per_node`, `intra_node` and "
                f"`inter_node`"
            )
        if nodes.changes:
            raise ClusterError(f"{where}: `changes` are to a device that the catalogue has by name")
        per_node = nodes.devices_per_node
        return NodeGroup(
            device=nodes.device,
            devices_per_node=per_node,
            nodes=nodes.nodes,
            intra_node=_link(nodes.intra_node, per_node, f"{where}, intra_node"),
            inter_node=_link(nodes.inter_node, per_node, f"{where}, inter_node"),
            islands=nodes.islands,
            torus=nodes.torus,
            host=nodes.host,
        )
    base = reference_node(nodes.device)
    if nodes.devices_per_node is not None:
        base = resized(base, nodes.devices_per_node)
    per_node = base.devices_per_node
    return NodeGroup(
        device=_changed(base.device, nodes.changes, where),
        devices_per_node=per_node,
        nodes=nodes.nodes,
        intra_node=_link(nodes.intra_node or base.intra_node, per_node, f"{where}, intra_node"),
        inter_node=_link(nodes.inter_node or base.inter_node, per_node, f"{where}, inter_node"),
        islands=nodes.islands or base.islands,
        torus=nodes.torus or base.torus,
        host=nodes.host or base.host,
    )


def _link(given: Link | str, devices_per_node: int, where: str) -> Link:
    """Link as it is given, or the one that a fabric's name stands for."""
    if isinstance(given, Link):
        return given
    try:
        return network(given, devices_per_node)
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from None
