"""Costs: how long one firing of an op or a collective takes on a cluster, in whole nanoseconds.

Pure functions of shapes and documents. Where the device was measured (`millrace profile`), its
table is interpolated (for a kind that no profile times that of its like, see `likeness.py`);
elsewhere an op costs a roofline and a collective an α-β formula. Either way more work never costs
less.

Shapes are one device's own (local) shapes throughout.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import ceil, exp, log, log2, prod
from typing import NamedTuple

from models.graph import ITEMSIZE
from models.ops import op_work, state_of
from planner.actors.graph import Actor, ActorGraph, Meeting, Program
from planner.cluster import Cluster, Device
from planner.errors import ClusterError
from planner.likeness import Like, priced_like

Shape = tuple[int, ...]
Attributes = Mapping[str, int | float | str | bool]
Points = tuple[tuple[int, int], ...]

PRECISION = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

# Kinds that the compiler adds and the op table lacks: they move bytes and compute nothing.
LOCAL_BOXING = ("slice", "pad")


# Kinds whose tables are measured per head size, the last dim of their first input.
ATTENTION = ("attention", "attention_grad")


class Algorithm(NamedTuple):
    """A way to run a collective of p ranks: `rounds` latencies and `volume` times the message."""

    rounds: int
    volume: float


def ring_and_tree(kind: str, group_size: int) -> tuple[Algorithm, ...]:
    """Algorithms that a collective library chooses from, by size of the message.

    Notes
    -----
    Ring: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009. Tree: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", 2009.
    """
    p = group_size
    depth = ceil(log2(p))
    if kind == "all_reduce":
        return Algorithm(2 * (p - 1), 2 * (p - 1) / p), Algorithm(2 * depth, 2.0)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (Algorithm(p - 1, (p - 1) / p),)
    if kind == "broadcast":
        return Algorithm(p - 1, 1.0), Algorithm(depth, 1.0)
    if kind in ("send", "recv"):
        return (Algorithm(1, 1.0),)
    raise ValueError(f"collective `{kind}` has no cost")


@lru_cache(maxsize=512)
def _logarithms(points: Points) -> tuple[list[int], list[int], list[float], list[float]]:
    """Work, duration and the logarithms of both; durations made monotone against noise."""
    kept = [(work, duration) for work, duration in points if work > 0 and duration > 0]
    works = [work for work, _ in kept]
    durations = list(accumulate((duration for _, duration in kept), max))
    return works, durations, [log(work) for work in works], [log(ns) for ns in durations]


def interpolate_ns(points: Points, work: int) -> int:
    """Duration for `work` from measured (work, duration_ns) points sorted by work.

    Straight lines between the points on a log-log scale; the first duration below them (a floor:
    starting costs), the last rate above them. Never decreases with `work`.

    Raises
    ------
    ClusterError
        No point has a positive work and duration.

    Examples
    --------
    >>> interpolate_ns(((100, 1_000), (10_000, 100_000)), 1_000)
    10000
    """
    works, durations, log_works, log_durations = _logarithms(points)
    if not works:
        raise ClusterError("a measured table has no point with positive work and duration")
    if work <= works[0]:
        return durations[0]
    if work >= works[-1]:
        return ceil(durations[-1] * work / works[-1])
    above = bisect_left(works, work)
    x0, x1 = log_works[above - 1 : above + 1]
    y0, y1 = log_durations[above - 1 : above + 1]
    between = round(exp(y0 + (y1 - y0) * (log(work) - x0) / (x1 - x0)))
    return min(max(between, durations[above - 1]), durations[above])


def precision_of(dtypes: Sequence[str]) -> str:
    """Precision in which an op on these dtypes computes: that of its widest floating operand."""
    floating = [dtype for dtype in dtypes if dtype in PRECISION]
    return PRECISION[max(floating, key=lambda dtype: ITEMSIZE[dtype])] if floating else "fp32"


def _by_head_size(device: Device, kind: str, flops: int, head_size: int) -> int | None:
    """Duration of attention from the tables `kind/head_size`, None where there are none.

    The softmax costs per score, the products per score and feature, so FLOPs alone do not tell the
    time: between two measured head sizes it is interpolated at an equal number of scores.
    """
    measured = sorted(
        int(name.partition("/")[2]) for name in device.kernels if name.startswith(f"{kind}/")
    )
    if not measured:
        return None

    def at(size: int) -> int:
        return interpolate_ns(device.kernels[f"{kind}/{size}"], flops * size // head_size)

    if head_size >= measured[-1]:
        return interpolate_ns(device.kernels[f"{kind}/{measured[-1]}"], flops)
    above = bisect_left(measured, head_size)
    if above == 0:
        return at(measured[0])
    low, high = measured[above - 1], measured[above]
    share = (head_size - low) / (high - low)
    return round(at(low) * (1 - share) + at(high) * share)


def _work_duration_ns(device: Device, like: Like, flops: int, size: int, precision: str) -> int:
    """Duration of so many FLOPs and bytes: from the table of the kind's like, or by roofline."""
    if points := device.kernels.get(like.kind):
        return interpolate_ns(points, round(like.factor * (flops or size)))
    seconds = size / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    if flops:
        peak = device.flops_per_s.get(precision)
        if peak is None:
            known = ", ".join(sorted(device.flops_per_s))
            raise ClusterError(
                f"device `{device.name}` has no {precision} arithmetic (flops_per_s lists {known}):"
                f" choose another precision"
            )
        seconds = max(seconds, flops / (peak * device.matmul_efficiency))
    return device.launch_ns + ceil(seconds * 1e9)


def op_duration_ns(
    kind: str,
    labels: str,
    attributes: Attributes,
    input_shapes: Sequence[Shape],
    output_shapes: Sequence[Shape],
    input_dtypes: Sequence[str],
    output_dtypes: Sequence[str],
    device: Device,
) -> int:
    """Duration of one firing of an op on these local shapes.

    Parameters
    ----------
    kind, labels, attributes
        The op, as in `models.graph.Op`; `slice` and `pad` of the compiler move bytes only.
    input_shapes, output_shapes, input_dtypes, output_dtypes
        What one device reads and writes.
    device
        Measured or from the catalogue.

    Raises
    ------
    ClusterError
        The device has no rate for the precision of the op.
    ModelError
        The op table has no such kind, or the shapes do not fit the labels.
    """
    inputs = [ITEMSIZE[dtype] for dtype in input_dtypes]
    outputs = [ITEMSIZE[dtype] for dtype in output_dtypes]
    if kind in LOCAL_BOXING:
        # As much is read as lands in the smaller side: a slice reads its piece, a pad its shard.
        sizes = [prod(s) * i for s, i in zip(input_shapes, inputs, strict=True)]
        written = sum(prod(s) * i for s, i in zip(output_shapes, outputs, strict=True))
        return _work_duration_ns(device, Like(kind), 0, written + min(sum(sizes), written), "fp32")
    work = op_work(kind, labels, attributes, input_shapes, output_shapes, inputs, outputs)
    precision = precision_of(input_dtypes) if work.flops else "fp32"
    like = priced_like(kind, device.kernels)
    if like.kind in ATTENTION:
        flops = round(like.factor * work.flops)
        found = _by_head_size(device, like.kind, flops, input_shapes[0][-1])
        if found is not None:
            return found
    return _work_duration_ns(device, like, work.flops, work.bytes, precision)


def members_per_node(ranks: Sequence[int], cluster: Cluster) -> int:
    """Smallest number of a group's members that share a node; rank r lies on device r."""
    found: dict[int, int] = {}
    for rank in ranks:
        node = rank // cluster.devices_per_node
        found[node] = found.get(node, 0) + 1
    return min(found.values())


def collective_duration_ns(
    kind: str,
    message_bytes: int,
    group_size: int,
    cluster: Cluster,
    ranks: tuple[int, ...] = (),
) -> int:
    """Duration of one collective or transfer once all its members have come.

    A group inside one node uses the measured table `kind/group_size` where there is one. A ring
    that leaves the node crosses its border once per member there, each over a network interface
    of its own, so the bandwidth is the smaller of the node's and `members` times the network's.
    Where ranks share cores it is the time with nothing else at work, as it is measured.

    Parameters
    ----------
    kind, message_bytes
        As in `planner.actors.graph.Meeting`.
    group_size
        Number of members.
    cluster
        Its links and measured tables.
    ranks
        The members; empty: neighbours, in as few nodes as hold them.
    """
    if group_size == 1:
        return 0
    together = members_per_node(ranks, cluster) if ranks else cluster.devices_per_node
    return _group_duration_ns(kind, message_bytes, group_size, cluster, min(together, group_size))


def _group_duration_ns(
    kind: str, message_bytes: int, group_size: int, cluster: Cluster, together: int
) -> int:
    inside, outside = cluster.intra_node, cluster.inter_node
    if together == group_size:
        table = "send" if kind == "recv" else kind
        if points := cluster.device.collectives.get(f"{table}/{group_size}"):
            return interpolate_ns(points, message_bytes)
        latency, bandwidth = inside.latency_ns, inside.bandwidth_bytes_per_s
    else:
        latency = max(inside.latency_ns, outside.latency_ns)
        # In an all_to_all each member sends its own data through its own interface.
        lanes = 1 if kind == "all_to_all" else together
        bandwidth = min(inside.bandwidth_bytes_per_s, lanes * outside.bandwidth_bytes_per_s)
    fastest = min(
        algorithm.rounds * latency + ceil(algorithm.volume * message_bytes / bandwidth * 1e9)
        for algorithm in ring_and_tree(kind, group_size)
    )
    return cluster.device.launch_ns + fastest


class _Costs:
    """Durations of the actors of one graph on one cluster, equal questions asked once."""

    def __init__(self, graph: ActorGraph, cluster: Cluster) -> None:
        self.graph = graph
        self.cluster = cluster
        self._ops: dict[object, int] = {}
        self._meetings: dict[object, int] = {}
        self._together: dict[object, tuple[int, int]] = {}

    def actor_ns(self, actor: Actor, program: Program) -> int:
        if actor.meeting is not None:
            return self._meeting_ns(actor.meeting, program)
        inputs, outputs = program.operands(actor)
        work = (
            tuple(register.shape for register in inputs),
            tuple(register.shape for register in outputs),
            tuple(register.dtype for register in inputs),
            tuple(register.dtype for register in outputs),
        )
        kept = () if actor.kind in LOCAL_BOXING else state_of(actor.kind, actor.attributes)
        key = (actor.kind, actor.labels, kept, work)
        if key not in self._ops:
            device = self.cluster.device
            self._ops[key] = op_duration_ns(
                actor.kind, actor.labels, actor.attributes, *work, device
            )
        return self._ops[key]

    def _meeting_ns(self, meeting: Meeting, program: Program) -> int:
        where = (program.ranks[0], meeting.axes, meeting.peer, meeting.world, meeting.kind)
        if where not in self._together:
            self._together[where] = self._slowest_group(meeting, program)
        size, together = self._together[where]
        key = (meeting.kind, meeting.message_bytes, size, together)
        if key not in self._meetings:
            self._meetings[key] = (
                _group_duration_ns(
                    meeting.kind, meeting.message_bytes, size, self.cluster, together
                )
                if size > 1
                else 0
            )
        return self._meetings[key]

    def _slowest_group(self, meeting: Meeting, program: Program) -> tuple[int, int]:
        """Size of the meeting's groups and the fewest members that share a node in any of them."""
        seen: set[int] = set()
        size, together = 1, program.ranks[-1] + 1
        for rank in program.ranks:
            if rank in seen:
                continue
            members = self.graph.members(rank, meeting)
            seen.update(members)
            size = len(members)
            together = min(together, members_per_node(members, self.cluster))
        return size, min(together, size)


def actor_duration_ns(actor: Actor, program: Program, graph: ActorGraph, cluster: Cluster) -> int:
    """Duration of one firing of a compiled actor (its meeting's, once all members have come).

    Where groups of one meeting lie differently on the nodes, the slowest of them counts.
    """
    return _Costs(graph, cluster).actor_ns(actor, program)


def durations(graph: ActorGraph, cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Duration of one firing of every actor, per program and in the order of its actors."""
    costs = _Costs(graph, cluster)
    return tuple(
        tuple(costs.actor_ns(actor, program) for actor in program.actors)
        for program in graph.programs
    )
