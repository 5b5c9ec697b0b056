"""Fabrics by name (`fabrics.toml`, one table per fabric), and a network as people write it.

`network` reads `ndr`, `8xhdr`, `roce-400`, `8x400Gb/s` and the sentences of published runs, and
gives the link that each device of a node gets.
"""

import re
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from importlib import resources

import msgspec

from millrace.planner.cluster import Link
from millrace.planner.errors import ClusterError

FORM = (
    "expected a fabric (ndr: one port a device), ports of a node (8xhdr), or a rate of a node "
    "(8x400Gb/s, 1600 Gb/s per node) or a device (400 Gb/s per GPU)"
)


class Reduction(StrEnum):
    """Condition under which switches add up what passes through them (SHARP)."""

    NEVER = "never"
    ASKED = "asked"
    ALWAYS = "always"


class _FabricTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: `Fabric` without its name."""

    family: str
    latency_ns: int
    bandwidth_bytes_per_s: float
    reached: float
    source: str
    inside: bool = False
    ports: int | None = None
    reduces: Reduction = Reduction.NEVER
    gap_ns: int = 0
    congestion: float = 0.0


class Fabric(_FabricTable, frozen=True, kw_only=True):
    """One kind of connection.

    Attributes
    ----------
    name, family
        `hdr`, of the family `infiniband`.
    latency_ns
        Of one crossing.
    bandwidth_bytes_per_s
        Of one port and direction, by its data sheet; `reached` is the share of it that NCCL gets.
    inside
        It joins the devices of one node, and ports are counted per device, else per node.
    ports
        Of a node where the vendor sells no other number; None: one for each device.
    reduces
        When its switches reduce: never, where they are asked to (`ndr+sharp`), or always.
    gap_ns, congestion
        As in `Link`.
    source
        What it is, in words; the sources of figures are in the file.
    """

    name: str

    def link(self, ports: float, sharp: bool = False) -> Link:
        """Link of a device that has so many ports to itself."""
        reduces = self.reduces is Reduction.ALWAYS or sharp
        return Link(
            latency_ns=self.latency_ns,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * self.reached * ports,
            source=f"{self.source}, {ports:g} ports a device, {self.reached:.0%} of them by NCCL",
            reduces=reduces,
            gap_ns=self.gap_ns,
            congestion=self.congestion,
        )


# A sentence names a family of networks by such words; the first found in it counts, and a rate
# alone is taken for Ethernet with RDMA, which comes at every rate.
WORDS = {
    "infiniband": "infiniband",
    "ib": "infiniband",
    "connectx": "infiniband",
    "cx": "infiniband",
    "omni": "omni-path",
    "opa": "omni-path",
    "slingshot": "slingshot",
    "efa": "efa",
    "gcp": "gpudirect-tcp",
    "roce": "roce",
    "rocev2": "roce",
    "ethernet": "roce",
    "nvlink": "nvlink",
    "pcie": "pcie",
}
DEFAULT_FAMILY = "roce"

# A cloud's network of no stated rate or generation is that of its first instances of H100, 2023.
CLOUDS = {"efa": "efa-2", "gcp": "gcp-a3"}

_RATE = re.compile(
    r"(?:(?P<ports>\d+)\s*[x×*]\s*)?(?P<rate>\d[\d,]*(?:\.\d+)?)\s*"
    r"(?P<unit>[GgTt](?:b/s|bps|bit/s|B/s|Bps|bE|b?\b))",
)
_UNITS = {"G": 1e9 / 8, "T": 1e12 / 8, "GB": 1e9, "TB": 1e12}
_PER_DEVICE = re.compile(r"\b(?:per|a|each|/)\s*(?:gpu|device|chip|accelerator)\b", re.IGNORECASE)


@lru_cache(maxsize=1)
def fabrics() -> dict[str, Fabric]:
    """Fabrics by name, those inside a node first."""
    text = (resources.files("millrace.planner.clusters") / "fabrics.toml").read_text("utf-8")
    tables = msgspec.toml.decode(text, type=dict[str, _FabricTable])
    return {
        name: Fabric(name=name, **msgspec.structs.asdict(settings))
        for name, settings in tables.items()
    }


def network(text: str, devices_per_node: int) -> Link:
    """Link that each device of a node gets of the network that its node is joined by.

    Parameters
    ----------
    text : str
        A fabric's name, of which each device has a port (or the node as many as are sold);
        `8xhdr`: a node's ports (inside a node, `18xnvlink-4`, a device's); `8x400Gb/s`: a node's
        ports by their rate; a sentence with a rate, of a node unless it says `per GPU`.
        `+sharp` after a fabric has its switches reduce.
    devices_per_node : int
        Devices that share a node's ports.

    Raises
    ------
    ClusterError
        The text names no fabric and no rate; lists the names that come close. Or its rate is
        negative or 0, `+sharp` is asked of switches that do not reduce, or there are no devices.

    Examples
    --------
    >>> network("8x200Gb/s HDR InfiniBand per node", 8).bandwidth_bytes_per_s / 1e9
    23.5
    """
    if devices_per_node < 1:
        raise ClusterError(f"devices_per_node is {devices_per_node}, expected at least 1")
    if re.match(r"\s*-\s*\d", text):
        raise ClusterError(f"network `{text}` is negative; {FORM}")
    link = _named(text.strip().lower(), devices_per_node)
    link = link or _rated(text, devices_per_node) or _mentioned(text, devices_per_node)
    if link is None:
        word = re.sub(r"^\d+\s*x\s*|\+sharp$", "", text.strip().lower())
        close = get_close_matches(word, fabrics(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(fabrics())}"
        raise ClusterError(f"no network `{text}`; {FORM}; {hint}")
    if link.bandwidth_bytes_per_s <= 0:
        raise ClusterError(f"network `{text}` has a bandwidth of 0; {FORM}")
    return link


def _named(text: str, devices: int) -> Link | None:
    """Link of `ndr`, `8xhdr`, `18xnvlink-4`, each perhaps with `+sharp`; None for other texts."""
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?([a-z][a-z0-9-]*)(?:\+sharp)?", text)
    if not match or not (fabric := fabrics().get(match[2])):
        return None
    return _link(fabric, _ports(fabric, match[1], devices), text)


def _link(fabric: Fabric, ports: float, text: str) -> Link:
    """Link of a device with so many ports, which the text may ask to reduce."""
    sharp = text.rstrip().lower().endswith("+sharp")
    if sharp and fabric.reduces is Reduction.NEVER:
        able = [
            name
            for name, candidate in fabrics().items()
            if candidate.reduces is not Reduction.NEVER
        ]
        raise ClusterError(
            f"network `{text}`: switches of {fabric.name} do not reduce; leave out `+sharp` or "
            f"take one of {', '.join(able)}"
        )
    return fabric.link(ports, sharp)


def _ports(fabric: Fabric, count: str | None, devices: int) -> float:
    """Ports that a device has to itself."""
    if fabric.inside:
        return int(count or 1)
    return int(count or fabric.ports or devices) / devices


def _rated(text: str, devices: int) -> Link | None:
    """Link of a sentence with a rate: of each port it counts, of a device, or of a whole node."""
    if not (match := _RATE.search(text)):
        return None
    unit = match["unit"]
    scale = _UNITS[unit[:2].upper() if unit[1:2] == "B" else unit[0].upper()]
    rate = float(match["rate"].replace(",", "")) * scale
    sharing = 1 if _PER_DEVICE.search(text) else devices
    of_device = rate * int(match["ports"] or 1) / sharing
    fabric = _of_family(text, rate if match["ports"] else of_device)
    return _link(fabric, of_device / fabric.bandwidth_bytes_per_s, text)


def _of_family(text: str, port_bytes_per_s: float) -> Fabric:
    """Fabric of a sentence: by its name, else of its family and nearest a port's rate."""
    words = re.findall(r"[a-z]+[a-z0-9]*", text.lower())
    if named := next((word for word in words if word in fabrics()), None):
        return fabrics()[named]
    family = next((WORDS[word] for word in words if word in WORDS), DEFAULT_FAMILY)
    members = [fabric for fabric in fabrics().values() if fabric.family == family]
    return min(members, key=lambda member: abs(member.bandwidth_bytes_per_s - port_bytes_per_s))


def _mentioned(text: str, devices: int) -> Link | None:
    """Link of a sentence without a rate that names a fabric: `4x HDR InfiniBand`, `AWS EFA`."""
    words = re.findall(r"[a-z][a-z0-9-]*", text.lower())
    names = [CLOUDS.get(word, word) for word in words]
    name = next((name for name in names if name in fabrics()), None)
    if name is None:
        return None
    count = re.search(rf"(\d+)\s*x?\s*{name}\b|\bx\s*(\d+)\b", text, re.IGNORECASE)
    fabric = fabrics()[name]
    return _link(fabric, _ports(fabric, (count[1] or count[2]) if count else None, devices), text)
