"""Cluster: devices, how they are joined, and what is known about their speed.

A `Device` comes from the catalogue (data sheet) or from `millrace profile` (measured); the cost
functions take either: a measured table is used where there is one, a roofline elsewhere.

Devices are joined in levels, from inner to outer: islands inside a node, the node, leaves of a fat
tree, the cluster. Rank r lies on device r and neighbours have neighbouring ranks, so a level is
told by how many ranks in a row it holds (`Cluster.levels`). A node may be a torus instead of
a switch. A mixed cluster appends `others`, groups of nodes of another kind.
"""

from functools import cached_property
from math import prod
from typing import Annotated

import msgspec

from millrace.models.recompute import Selective

SCHEMA_VERSION = 1
# Beyond these a measurement is doubtful: of the cores' time taken by others, of the usual spread.
TAKEN_MAX, SPREAD_MAX = 0.1, 0.2


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """α-β of one kind of connection, per device and direction.

    Attributes
    ----------
    latency_ns, bandwidth_bytes_per_s
        Of one hop; where a library moves data by several protocols (`Device.library`), the latency
        of its middle one, NCCL's LL128.
    source
        Where the figures are from.
    reduces
        Its switches add up what passes through them (SHARP), in NVLink's case or the network's: an
        all_reduce moves the message once each way.
    gap_ns
        Time of the sender's host per message: each step of a ring that uses the link takes at
        least as long, wherever the step itself lies.
    joined
        Of devices that are joined in pairs, without a switch: (members, share of the bandwidth)
        that a group of at most so many in a node reaches, as only the links between them serve it;
        larger groups reach all.
    congestion
        Share of its bandwidth that a group loses each time its nodes double, beyond two: what its
        flows take from one another in the network.
    """

    latency_ns: int
    bandwidth_bytes_per_s: float
    source: str
    reduces: bool = False
    gap_ns: int = 0
    congestion: float = 0.0
    joined: tuple[tuple[int, float], ...] = ()

    def share(self, members: int) -> float:
        """Fraction of the bandwidth that a group of `members` devices of one node reaches."""
        return next((share for most, share in self.joined if members <= most), 1.0)


class HostMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory of a node beside its devices, and the way there.

    α-β of one device's copies, per direction, while all devices of the node copy. `memory_bytes` is
    a device's share of that memory; None where it is not known.
    """

    latency_ns: int
    bandwidth_bytes_per_s: float
    source: str
    memory_bytes: int | None = None


class MeasurementQuality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quality of a measured device's figures; None where something is not known.

    Attributes
    ----------
    rounds
        Times that every probe was timed, on a GPU some of them.
    spread
        How far rounds differed, of the usual probe: the median deviation from its median.
    spread_max, spread_max_of
        That of the table of kernels or collectives that differed most, and its name.
    others
        Share of the cores' time that other programs took meanwhile; of a GPU's, just before.
    steal
        Share that the host of a virtual machine took.
    frequency
        Share of its highest frequency at which the device ran.
    """

    rounds: int
    spread: float | None = None
    spread_max: float | None = None
    spread_max_of: str = ""
    others: float | None = None
    steal: float | None = None
    frequency: float | None = None

    @property
    def taken(self) -> float:
        """Share of the cores' time that was not there for the measurement."""
        return (self.others or 0.0) + (self.steal or 0.0)

    @property
    def is_doubtful(self) -> bool:
        """True where predictions from these figures may be far off."""
        return self.taken > TAKEN_MAX or (self.spread or 0.0) > SPREAD_MAX

    @property
    def error_max(self) -> float:
        """Share by which figures may be too long: what was waited for, or what rounds differed by.

        It holds for collectives. Kernels on one thread do not count time in which others ran.
        """
        waited = self.taken / (1 - self.taken) if self.taken < 1 else 1.0
        return max(waited, self.spread or 0.0)


# Names of data-center devices begin so, by generation: their multiprocessors are alike.
GENERATIONS = {
    "volta": ("v100",),
    "ampere": ("a100", "a800"),
    "hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
    "tpu": ("tpu-",),
}


def generation(name: str) -> str:
    """Generation of a device by its name; empty where it is of none that was measured."""
    return next((era for era, heads in GENERATIONS.items() if name.startswith(heads)), "")


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device.

    `flops_per_s` is the dense peak per precision. `kernels` maps an op kind to measured points
    (work, duration_ns), where work is FLOPs for kinds whose labels give FLOPs and bytes touched for
    the others; attention has a table per head size (`attention/64`). A device that computes in
    several precisions may have a table for each: `matmul@bf16`, `attention/64@bf16` and `gelu@fp16`
    are read before `matmul`, `attention/64` and `gelu` for an op in that precision, which is that
    of its first floating input where it multiplies nothing. FLOPs are counted alike in every
    precision, whose rates differ; bytes are those that the dtypes take, so that a table of bytes
    tells what more instructions per byte cost. `kernel_bytes` maps tables by FLOPs to what was
    moved at their points (work, bytes), from which a GPU's times of other shapes follow.
    `collectives` maps `kind/group_size` to measured points (message_bytes, duration_ns), and
    `host/1` to those of one copy between the device and memory of its host, the slower way. All are
    sorted by their first column. `library` names what moves its messages, by the algorithms and
    protocols of that library only (`millrace.planner.costs.nccl_protocols`); empty: by the fastest
    of all algorithms, latency and bandwidth alone. Price is what an hour is listed at on demand,
    power what the device may draw at most; None where neither is published.

    Efficiencies are shares of the peak that large kernels reach: `matmul_efficiency` 16-bit
    products, `narrow_efficiency` those in eight bits and `plain_efficiency` those in fp32 and fp64,
    which no matrix units do (None: the same), `attention_efficiency` the forward pass of flash
    attention over long sequences at head size 128, `memory_efficiency` copies. `multiprocessors`
    are what tiles of a product are dealt to (SMs, compute units); 0: not known, and small products
    are as efficient as large ones. `softmax_features` is of how many features a score is multiplied
    in the time of its exponential, which matrix units do not compute: they have become faster with
    every generation, exponentials with Blackwell Ultra only. `measured` says how sure measured
    figures are; None for those of data sheets. `jitter` is how much firings of one op were measured
    to vary (the standard deviation of their durations as a share of the mean): ranks that meet wait
    for whoever is late. `shapes` has measured points of some shapes of a form of op, by the name of
    the form's table and that of the shape (`millrace.planner.costs.tables.op_forms`): a table of
    `kernels` says how an op's time grows with its work, a shape's points what it is at theirs.
    `crowded_speed` is the share of their speed that cores have together where more threads want
    them than there are (`millrace.simulator.shared_cores`). `assumed` names the efficiencies that
    no run on the device was fitted to (`millrace.planner.clusters.assumed_shares`).
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
    kernel_bytes: dict[str, tuple[tuple[int, int], ...]] = {}
    collectives: dict[str, tuple[tuple[int, int], ...]] = {}
    library: str = ""
    price_usd_per_hour: float | None = None
    power_watts: float | None = None
    narrow_efficiency: float | None = None
    plain_efficiency: float | None = None
    attention_efficiency: float = 0.6  # between FlashAttention-2 on A100 and -3 on H100, 2023-24
    multiprocessors: int = 0
    softmax_features: float = 32.0  # of an H100, see planner.costs.attention
    jitter: float = 0.0
    measured: MeasurementQuality | None = None
    shapes: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {}
    crowded_speed: float = 1.0
    assumed: tuple[str, ...] = ()


class Islands(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fast links inside a node: `devices` neighbours joined by `link`, such as an NVLink bridge.

    Islands of one node meet over its `intra_node` link.
    """

    devices: int
    link: Link


class Torus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node whose devices are a grid: `intra_node` is the link to each neighbour in each dim.

    Ranks of a node are row-major over `dims`. A dim wraps around where its size is a multiple of
    `wrap_multiple` (1: every dim, 0: none).
    """

    dims: tuple[int, ...]
    wrap_multiple: int = 1

    def wraps(self, dim: int) -> bool:
        """True if the ends of a dim are joined."""
        size = self.dims[dim]
        return size > 1 and self.wrap_multiple > 0 and size % self.wrap_multiple == 0


class Leaves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Switches of a fat tree under which `nodes` neighbouring nodes meet at full speed.

    Above a leaf there is the network's bandwidth divided by `oversubscription`, and a crossing
    takes `latency_ns` more. With `rails`, a leaf joins the devices of equal place in its nodes:
    a group that has the same places in each node keeps to its rails; any other crosses the spine
    between any two nodes.
    """

    nodes: int
    oversubscription: float = 1.0
    rails: bool = False
    latency_ns: int = 0


class ExpertLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spread of the tokens of a microbatch over the experts of a layer.

    Attributes
    ----------
    deviation
        Standard deviation of an expert's share of the tokens, over its mean; 0: equal shares.
    experts
        Number of them in a layer.
    """

    deviation: float = 0.0
    experts: int = 1


OURS = "millrace"  # our own executor on GPUs, as `Software.name`


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Habits of a training framework in driving its devices, which a plan does not show.

    Attributes
    ----------
    name
        The framework's; `none` drives devices without a loss.
    host_ns
        Time of the host to launch one op of a device's compute queue. It runs ahead of the
        device within a step; where ops are shorter than this, the device waits.
    overlap
        Share of its speed that a device keeps while its collectives move data: 1 computes as if
        alone, 0 gains nothing by doing both at once.
    fusion
        Bytes that memory-bound ops move, over those of ops that each read their inputs once and
        write their outputs once: below 1 where kernels are fused, above where ops take several.
    attention
        Speed of its attention kernels, over those of which `Device.attention_efficiency` tells.
    pieces
        Kinds of collectives of activations that are cut in pieces, each of which moves beside the
        product that it feeds or follows (tensor parallelism in Megatron-LM's and torchtitan's
        asynchronous form): little of them shows. An all_to_all among them is that of experts
        alone, which moves beside another microbatch as far as that has something to compute.
    routing
        Launches of a router's choice, a dispatch, a combination, or a gradient of one, that the
        device waits for: many small kernels, after which the host is not ahead any more.
    merges
        A token that goes to several experts of one place (device, node) is sent there once and
        copied there, and what they make of it is added up before it comes back (DeepEP;
        Hybrid-EP is taken to do so too); else every copy travels by itself.
    fused_experts
        Products of the experts of a layer are one kernel, which makes their activation and rounds
        it to 8 bits too (Transformer Engine's fused grouped MLP); else each expert's product is a
        kernel, and what lies between products are others.
    gathers
        Every rank of a group of experts gathers the tokens of all of them, and what it makes of
        them is added up and scattered, in place of sending each token where it goes.
    load
        How unequally experts are chosen: whoever has the most tokens sets the pace.
    links
        Share of their bandwidth that collectives of activations reach between computation, where
        ranks come to them one after the other.
    bucket_bytes
        Gradients, and weights whose storage is split, travel in messages of about so many bytes;
        0: one message per variable.
    bucket_part_bytes
        A bucket that many ranks share is larger: this much for each of them, so that the latency of
        a long ring is paid less often.
    whole_blocks
        A bucket is what a block has, however much that is (PyTorch's FSDP).
    pads
        Ranks that share storage pad their shards, so that any number of them may (PyTorch's FSDP),
        or share one long array (ZeRO's flat parameters); else as many as divide a dim.
    gradient_bytes
        Of one element of a gradient, while replicas sum it; 0: as the plan has it.
    state_ranks
        Storage is split within groups of so many replicas, each of which sums its parts with their
        counterparts (hybrid sharding); 0: as the plan has it.
    broadcast_ns
        Weights come together by one broadcast of every rank's part, each of which takes so long
        beside moving its bytes; 0: by an all_gather.
    state_bytes
        Buckets are those of our own compiler, as large as
        `millrace.planner.costs.bucket_sizes.bucket_bytes` says for so many bytes of state in all,
        instead of `bucket_bytes`; 0: they are not.
    compiled
        torch.compile makes the kernels of blocks and of the loss, which `fusion` counts already.
    selective, expert_selective
        What selective recomputation makes again; in models with experts the second, where there is
        one.
    source
        Where the figures are from.
    """

    name: str = "none"
    host_ns: int = 0
    overlap: float = 1.0
    fusion: float = 1.0
    attention: float = 1.0
    pieces: tuple[str, ...] = ()
    routing: int = 0
    merges: bool = False
    fused_experts: bool = False
    gathers: bool = False
    load: ExpertLoad = ExpertLoad()
    links: float = 1.0
    bucket_bytes: int = 0
    bucket_part_bytes: int = 0
    whole_blocks: bool = False
    pads: bool = False
    compiled: bool = False
    gradient_bytes: int = 0
    state_ranks: int = 0
    broadcast_ns: int = 0
    state_bytes: int = 0
    selective: Selective = Selective()
    expert_selective: Selective | None = None
    source: str = ""

    @property
    def bucketing(self) -> bool:
        """True if state is priced as it travels in buckets, not message by message."""
        return self.bucket_bytes > 0 or self.state_bytes > 0


class LinkLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Level of links: `devices` neighbours that `link` joins; groups inside meet over it."""

    name: str
    devices: int
    link: Link


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`nodes` nodes of `devices_per_node` equal devices, as the fields of `Cluster` say it."""

    device: Device
    devices_per_node: int
    nodes: int
    intra_node: Link
    inter_node: Link
    islands: Islands | None = None
    torus: Torus | None = None
    host: HostMemory | None = None

    @property
    def devices(self) -> int:
        """Number of devices in the group."""
        return self.devices_per_node * self.nodes

    @property
    def levels(self) -> tuple[LinkLevel, ...]:
        """Levels of links inside a node, from inner to outer."""
        name = "node" if self.torus is None else "torus"
        node = LinkLevel(name=name, devices=self.devices_per_node, link=self.intra_node)
        if self.islands is None:
            return (node,)
        return LinkLevel(name="island", devices=self.islands.devices, link=self.islands.link), node


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """`nodes` nodes of `devices_per_node` equal devices, and perhaps `others` after them.

    `cores_per_node` is set where ranks are processes on a CPU and share that many cores.
    """

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    name: str
    device: Device
    devices_per_node: int
    nodes: int
    intra_node: Link
    inter_node: Link
    cores_per_node: int | None = None
    islands: Islands | None = None
    torus: Torus | None = None
    leaves: Leaves | None = None
    others: tuple[NodeGroup, ...] = ()
    host: HostMemory | None = None
    software: Software = Software()

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Groups of equal nodes, in the order of their ranks."""
        first = NodeGroup(
            device=self.device,
            devices_per_node=self.devices_per_node,
            nodes=self.nodes,
            intra_node=self.intra_node,
            inter_node=self.inter_node,
            islands=self.islands,
            torus=self.torus,
            host=self.host,
        )
        return first, *self.others

    @property
    def devices(self) -> int:
        """Number of devices in the cluster."""
        return sum(group.devices for group in self.groups)

    def group_of(self, rank: int) -> NodeGroup:
        """The group of nodes in which rank `rank` lies; the last one beyond the cluster."""
        before = 0
        for group in self.groups:
            before += group.devices
            if rank < before:
                return group
        return self.groups[-1]

    def device_of(self, rank: int) -> Device:
        """The kind of device that rank `rank` lies on."""
        return self.group_of(rank).device

    @property
    def levels(self) -> tuple[LinkLevel, ...]:
        """Levels of links from inner to outer: of the first group's nodes, and what joins all.

        Between nodes of several kinds the slowest network counts.
        """
        levels = [*self.groups[0].levels]
        networks = [group.inter_node for group in self.groups]
        outside = min(networks, key=lambda link: link.bandwidth_bytes_per_s)
        if self.leaves is not None:
            under = min(self.leaves.nodes * self.devices_per_node, self.devices)
            levels.append(
                LinkLevel(name="rail" if self.leaves.rails else "leaf", devices=under, link=outside)
            )
            outside = msgspec.structs.replace(
                outside,
                latency_ns=outside.latency_ns + self.leaves.latency_ns,
                bandwidth_bytes_per_s=outside.bandwidth_bytes_per_s / self.leaves.oversubscription,
                source=f"{outside.source}, oversubscribed {self.leaves.oversubscription:g} to 1",
            )
        if levels[-1].devices < self.devices:
            levels.append(LinkLevel(name="cluster", devices=self.devices, link=outside))
        return tuple(levels)


def nearest_cube(devices: int, dims: int) -> tuple[int, ...]:
    """Sizes of a torus of so many devices, as equal as its divisors allow, smallest first.

    Parameters
    ----------
    devices : int
        Product of the sizes, at least 1.
    dims : int
        Number of sizes, at least 1.

    Examples
    --------
    >>> nearest_cube(64, 3), nearest_cube(32, 2), nearest_cube(128, 3)
    ((4, 4, 4), (4, 8), (4, 4, 8))
    """
    if dims == 1:
        return (devices,)
    root = round(devices ** (1 / dims))
    first = next(size for size in range(root, 0, -1) if devices % size == 0)
    rest = nearest_cube(devices // first, dims - 1)
    assert prod((first, *rest)) == devices
    return tuple(sorted((first, *rest)))
