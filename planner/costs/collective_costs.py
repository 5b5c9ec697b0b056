"""Collective costs: the time that a meeting takes once all its members have come.

A collective is the fastest of several algorithms, each a straight line over the bytes of the
message: those of the devices' library (`protocols`), or all that there are. A group inside a node
uses the measured table `kind/group_size` where there is one. What travels in buckets is a straight
line through zero: a bucket's own time, for as many buckets as there are bytes for.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import combinations, pairwise, product
from math import ceil, log2, prod

from millrace.planner.cluster import Cluster, Device, Software
from millrace.planner.collectives import ALONE, COLLECTIVES, EXPERT_EXCHANGE, ROTATE, TokenCopies
from millrace.planner.costs.bucket_sizes import UNKNOWN, State, bucket_bytes
from millrace.planner.costs.expert_routing import busiest, places_reached, share_beyond
from millrace.planner.costs.group_topology import (
    Frame,
    GroupTopology,
    frame_of,
    layout_of,
    nodes_of,
)
from millrace.planner.costs.memory_bound import bandwidth_bytes_per_s
from millrace.planner.costs.nccl_protocols import (
    LIBRARIES,
    NcclProtocol,
    rounds,
    switched,
    transfers,
    trees,
)
from millrace.planner.costs.tables.profile_tables import interpolate_ns
from millrace.planner.costs.torus_collectives import (
    CostLines,
    exchange_pieces,
    gather_pieces,
    rotation_pieces,
    spread_pieces,
)

LinkAlgorithm = Callable[[GroupTopology, TokenCopies], list[tuple[int, float]]]
"""Lines (fixed_ns, ns_per_byte) of a group and the copies of each token."""

LibraryAlgorithm = Callable[[GroupTopology, tuple[NcclProtocol, ...]], Iterable[tuple[int, float]]]
"""Lines of a group and the protocols of a library."""

# A reduction along trees reaches so much of a ring's bandwidth: NCCL 2.2x tuning.cc, read 2026-11.
TREE_SHARE = 0.92


# This share shows of a collective of tensor parallelism that moves in pieces beside products
# (`Software.pieces`): fitted on published runs with such overlap, 2026-11.
SHOWN = 0.25

# Share of their bandwidth that links reach where tokens travel to experts. Where they travel once
# to each place, by kernels of their own: DeepEP's README (2025-04; docs/legacy.md since), 153 and
# 158 of the 160 GB/s of an H800's NVLink, and 51 and 50 GB/s of 64 devices in 8 nodes over 50 GB/s
# each, of which an eighth stays in its node where a token goes to 4 of the 8. By NCCL: 335 of 371
# GB/s of NVLink for 4 H100 and 524 MB (github.com/NVIDIA/nccl, issue 2169, read 2026-11); between
# nodes its maintainers expect what an interface reaches (nccl-tests, issue 267, read 2026-11).
EXCHANGE_LINKS = 0.9

# Bytes that travel of a token, over those of the copies in 8 bits that its experts multiply: tokens
# are sent in 16 bits and rounded where they arrive (Megatron-Core, transformer/moe/fused_a2a.py:
# "HybridEP dispatcher does not support fp8 dispatch now", and DeepEP's `FusedDispatch` is given
# hidden states; Transformer Engine's `GroupedLinear` rounds what it reads; read 2026-11). Whether a
# plan sends tokens before or behind the op that rounds them is then the same.
WIDE_DISPATCH = 2


def collective_lines(
    kind: str,
    ranks: tuple[int, ...],
    cluster: Cluster,
    *,
    bucketed: bool = False,
    copies: TokenCopies = ALONE,
    state: State = UNKNOWN,
) -> CostLines | None:
    """Straight lines whose minimum is the duration of a collective of these ranks.

    A message of n bytes takes the smallest `fixed_ns + ceil(ns_per_byte * n)`.

    Parameters
    ----------
    kind
        As in `millrace.planner.actors.graph.Meeting`.
    ranks
        The members; rank r lies on device r.
    cluster
        Its links, and the buckets of the software on it.
    bucketed
        The message is state (`millrace.planner.costs.bucket_sizes`), which travels in such buckets.
    copies
        How often it holds every token (`Meeting.copies`); of account where the software sends a
        token once to each place (`Software.merges`), or gathers all (`Software.gathers`), and where
        experts get unequal shares (`Software.load`): the member with most tokens is waited for.
    state
        What is known of it then.

    Returns
    -------
    tuple of (fixed_ns, ns_per_byte), or None
        Empty for a group of one; None where a measured table is used instead.

    Examples
    --------
    >>> from millrace.planner.clusters import parse_cluster
    >>> collective_lines("all_gather", (0, 1), parse_cluster("a100-sxm-80gb:8x1"))
    ((8100, 0.008333333333333333), (12700, 0.0020833333333333333))
    """
    if len(ranks) == 1:
        return ()
    software = cluster.software
    if bucketed and software.bucketing:
        return ((0, _state_ns_per_byte(kind, ranks, cluster, state)),)
    if _is_measured(kind, ranks, cluster):
        return None
    sent = copies if kind == EXPERT_EXCHANGE and software.merges else ALONE
    lines = _lines_of(kind, ranks, cluster, sent)
    if bucketed:
        return lines
    links, ordered = (EXCHANGE_LINKS if sent.number > 1 else software.links), 0.0
    if kind == EXPERT_EXCHANGE and copies.number:
        times = float(WIDE_DISPATCH) if software.routing and copies.narrow else 1.0
        if software.gathers:
            lines = _gathered(ranks, cluster, copies)
        else:
            times *= busiest(software.load, software.load.experts / len(ranks))
            links = max(links, EXCHANGE_LINKS)
            ordered = times * _ordering_ns_per_byte(ranks, cluster, copies)
        lines = tuple((fixed, slope * times) for fixed, slope in lines)
    return _of_activations(kind, lines, software, links, ordered)


def _ordering_ns_per_byte(ranks: tuple[int, ...], cluster: Cluster, copies: TokenCopies) -> float:
    """Nanoseconds per byte in which a device puts tokens in the order of its own experts.

    The op before an exchange writes all copies, and reads every token once. Where a token travels
    once to each place it is read where it arrives: a kernel copies it for the experts there
    (DeepEP's `permute_kernel`, csrc/hybrid_ep/extension/permute.cu; Megatron-Core,
    transformer/moe/token_dispatcher.py, `_DeepepManager`). Else all copies are moved once more
    (the same file, `sort_chunks_by_idxs`, of devices with several experts). Both read 2026-11.
    """
    software, device = cluster.software, cluster.device_of(ranks[0])
    if not software.routing:
        return 0.0
    passes = 2.0
    if software.merges:
        passes = (places_reached(len(ranks), copies) - 1.0) / copies.number
    return passes * 1e9 / bandwidth_bytes_per_s(device)


def _gathered(ranks: tuple[int, ...], cluster: Cluster, copies: TokenCopies) -> CostLines:
    """Lines per byte of the copies where all tokens are gathered, or their sums scattered.

    A message holds `number` copies of the tokens of one rank; the gathered one holds every token of
    all ranks once.
    """
    times = len(ranks) / copies.number
    lines = _lines_of("all_gather", ranks, cluster)
    return tuple((fixed, slope * times) for fixed, slope in lines)


def _state_ns_per_byte(kind: str, ranks: tuple[int, ...], cluster: Cluster, state: State) -> float:
    """Nanoseconds per byte of state in buckets, by the habits of the software that moves it."""
    software, members = cluster.software, len(ranks)
    group = software.state_ranks
    if 0 < group < members and members % group == 0 and COLLECTIVES[kind].half_of_all_reduce:
        within = _bucket_ns_per_byte(kind, ranks[:group], cluster, state) if group > 1 else 0.0
        if kind == "all_gather":
            return within
        return within + _bucket_ns_per_byte("all_reduce", ranks[::group], cluster, state) / group
    ns_per_byte = _bucket_ns_per_byte(kind, ranks, cluster, state)
    if software.broadcast_ns and kind == "all_gather" and state.bytes_together:
        ns_per_byte += members * software.broadcast_ns / state.bytes_together
    return ns_per_byte


def _bucket_ns_per_byte(kind: str, ranks: tuple[int, ...], cluster: Cluster, state: State) -> float:
    """Nanoseconds of a bucket per byte of it; of gradients, those bytes that travel count."""
    software = cluster.software
    size = max(software.bucket_bytes, software.bucket_part_bytes * len(ranks))
    if software.whole_blocks and state.bytes_of_block:
        size = state.bytes_of_block
    if software.state_bytes:
        size = _own_bucket_bytes(kind, ranks, cluster, software.state_bytes)
    share = 1.0
    if COLLECTIVES[kind].reduces and software.gradient_bytes and state.itemsize:
        share = software.gradient_bytes / state.itemsize
    travels = max(round(share * size), 1)
    return _message_ns(kind, ranks, cluster)(travels) / size


def _own_bucket_bytes(
    kind: str, ranks: tuple[int, ...], cluster: Cluster, bytes_together: int
) -> int:
    """Bytes of a bucket of our own compiler, at most `bytes_together`."""
    size = bucket_bytes(_message_ns(kind, ranks, cluster), bytes_together)
    return min(size, bytes_together)


def _message_ns(kind: str, ranks: tuple[int, ...], cluster: Cluster) -> Callable[[int], int]:
    """Function that gives the nanoseconds of one message by its bytes."""
    if _is_measured(kind, ranks, cluster):
        table = cluster.device_of(ranks[0]).collectives[_table(kind, len(ranks))]
        return lambda size: interpolate_ns(table, size)
    lines = _lines_of(kind, ranks, cluster)
    return lambda size: min(fixed + ceil(slope * size) for fixed, slope in lines)


def _is_measured(kind: str, ranks: tuple[int, ...], cluster: Cluster) -> bool:
    tables = _devices(ranks, cluster)[0].collectives
    return _table(kind, len(ranks)) in tables and _in_a_node(ranks, frame_of(cluster))


def _lines_of(
    kind: str, ranks: tuple[int, ...], cluster: Cluster, copies: TokenCopies = ALONE
) -> CostLines:
    """Lines of the algorithms that there are for a message of these ranks."""
    devices = _devices(ranks, cluster)
    launch_ns = max(device.launch_ns for device in devices)
    libraries = {device.library for device in devices}
    library = libraries.pop() if len(libraries) == 1 else ""
    layout = layout_of(ranks, frame_of(cluster))
    if library and layout.grid is None:
        if kind in LIBRARY_ALGORITHMS:
            return _library_lines(layout, launch_ns, library, LIBRARY_ALGORITHMS[kind])
        launch_ns += min(protocol.base_ns for protocol in LIBRARIES[library])
    return _link_lines(layout, launch_ns, copies, ALGORITHMS[kind])


def _of_activations(
    kind: str, pieces: CostLines, software: Software, links: float, beside: float
) -> CostLines:
    """Lines of activations: ranks reach less of the links, and products hide a part of pieces.

    An all_to_all takes its full time: what hides that of experts is simulated. `beside` are
    nanoseconds per byte in which nothing moves over links.
    """
    shown = SHOWN if kind in software.pieces and kind != EXPERT_EXCHANGE else 1.0
    if shown == links == 1.0 and not beside:
        return pieces
    return tuple(
        (round(fixed * shown), (slope / links + beside) * shown) for fixed, slope in pieces
    )


def _devices(ranks: tuple[int, ...], cluster: Cluster) -> tuple[Device, ...]:
    """Kinds of device from a group's first rank to its last."""
    if not cluster.others:
        return (cluster.device,)
    groups = cluster.groups
    first, last = (groups.index(cluster.group_of(rank)) for rank in (min(ranks), max(ranks)))
    return tuple(group.device for group in groups[first : last + 1])


def _in_a_node(ranks: tuple[int, ...], frame: Frame) -> bool:
    low, high = nodes_of((min(ranks), max(ranks)), frame)
    return bool(low == high)


@lru_cache(maxsize=4096)
def _library_lines(
    layout: GroupTopology, launch_ns: int, library: str, algorithms: tuple[LibraryAlgorithm, ...]
) -> CostLines:
    """Lowest lines of a library's own algorithms."""
    lines = (line for lines_of in algorithms for line in lines_of(layout, LIBRARIES[library]))
    return tuple((launch_ns + fixed, slope) for fixed, slope in lower_envelope(lines))


@lru_cache(maxsize=4096)
def _link_lines(
    layout: GroupTopology,
    launch_ns: int,
    copies: TokenCopies,
    algorithms: tuple[LinkAlgorithm, ...],
) -> CostLines:
    """Lowest lines of algorithms by latency and bandwidth alone."""
    lines = (line for lines_of in algorithms for line in lines_of(layout, copies))
    return tuple((launch_ns + fixed, slope) for fixed, slope in lower_envelope(lines))


def lower_envelope(pieces: Iterable[tuple[int, float]]) -> CostLines:
    """Lines that are the lowest for some message, by rising `fixed_ns`.

    Examples
    --------
    >>> lower_envelope([(0, 3.0), (10, 1.0), (9, 2.9), (20, 1.0)])
    ((0, 3.0), (10, 1.0))
    """
    envelope: list[tuple[int, float]] = []
    for fixed, slope in sorted(set(pieces)):
        if envelope and slope >= envelope[-1][1]:
            continue
        while len(envelope) > 1 and _meet(envelope[-2], (fixed, slope)) <= _meet(
            envelope[-2], envelope[-1]
        ):
            envelope.pop()
        envelope.append((fixed, slope))
    return tuple(envelope)


def _meet(flat: tuple[int, float], steep: tuple[int, float]) -> float:
    """Bytes from which the second line is the lower one."""
    return (steep[0] - flat[0]) / (flat[1] - steep[1])


def _rings(layout: GroupTopology, copies: TokenCopies, *, rounds: int) -> list[tuple[int, float]]:
    """Rings over stages of levels: reduce_scatter outwards, all_gather inwards.

    Levels are cut into stages in every way. A stage is one ring over the units of the level below
    it; the members of such a unit each hold a part of what it handed on, so they bring all their
    links. One stage over all levels is the flat ring; a stage per level moves the least over the
    outer ones. The last stage of an all_reduce may be a tree.

    Notes
    -----
    Ring: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009. Stages: Jia et al., "Highly scalable deep learning training system with
    mixed-precision", 2018, section 3.3.
    """
    lines = []
    top = len(layout.crossings)
    for cuts in _stages(top, innermost_alone=layout.grid is not None):
        inner: list[CostLines] = []
        for low, high in pairwise(cuts):
            if low == 0 and layout.grid is not None:
                members = layout.within[0][high - 1]
                inner.append(gather_pieces(members, layout.grid))
            else:
                inner.append((_ring(layout, low, high),))
        lines += [
            (rounds * sum(f for f, _ in stages), rounds * sum(s for _, s in stages))
            for stages in product(*inner)
        ]
        low = cuts[-2]
        if rounds == 2 and low > 0:
            depth, slope = _down_a_tree(layout, low, top)
            lines += [
                (
                    2 * (sum(f for f, _ in stages) + depth),
                    2 * (sum(s for _, s in stages) + slope / TREE_SHARE),
                )
                for stages in product(*inner[:-1])
            ]
    return lines


@lru_cache(maxsize=64)
def _stages(levels: int, innermost_alone: bool) -> tuple[tuple[int, ...], ...]:
    """Every way to cut the levels: tuples of borders from 0 to `levels`."""
    borders = range(1, levels)
    cuts = [
        (0, *chosen, levels) for count in range(levels) for chosen in combinations(borders, count)
    ]
    return tuple(c for c in cuts if not innermost_alone or c[1] == 1)


def _ring(layout: GroupTopology, low: int, high: int) -> tuple[int, float]:
    """Line of one way round a ring of the units of level `low` inside a unit of level `high`."""
    units = layout.within[low][high - low - 1]
    rate = min(crossing.bytes_per_ns for crossing in layout.crossings[low:high])
    return _round_ns(layout, low, high), (units - 1) / units / rate


def _round_ns(layout: GroupTopology, low: int, high: int) -> int:
    """Latency of a message that visits every unit: most of its steps stay inside."""
    counts = [layout.within[level][high - level - 1] for level in range(low, high)] + [1]
    gap_ns = max(crossing.gap_ns for crossing in layout.crossings[low:high])
    return sum(
        (inside - outside) * max(crossing.latency_ns, gap_ns)
        for (inside, outside), crossing in zip(
            pairwise(counts), layout.crossings[low:high], strict=True
        )
    )


def _down_a_tree(layout: GroupTopology, low: int, high: int) -> tuple[int, float]:
    """Line of half a tree's work (up or down) over the units of level `low`."""
    crossings = layout.crossings[low:high]
    depth = sum(
        ceil(log2(layout.within[low + index][0])) * crossing.latency_ns
        for index, crossing in enumerate(crossings)
    )
    return depth, 1 / min(crossing.bytes_per_ns for crossing in crossings)


def _two_trees(layout: GroupTopology, copies: TokenCopies) -> list[tuple[int, float]]:
    """Lines of the two-tree algorithm over all levels; a torus has only its own links.

    Notes
    -----
    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", 2009.
    """
    if layout.grid is not None:
        return []
    fixed, slope = _down_a_tree(layout, 0, len(layout.crossings))
    return [(2 * fixed, 2 * slope / TREE_SHARE)]


def _exchanges(layout: GroupTopology, copies: TokenCopies) -> list[tuple[int, float]]:
    """Lines of an all_to_all member by member, and level by level.

    What leaves a unit goes over each member's own link of the level above, so the slowest level
    counts, for the share of the message that crosses it. Level by level a message is handed on
    inside the unit first, so that fewer and longer ones cross. Where a message holds copies of
    every token for destinations of its choice, one of them crosses to each unit that has any.
    """
    low, inner, share = 0, [(0, 0.0)], 1.0
    if layout.grid is not None:
        members = layout.within[0][0]
        low, inner = 1, list(exchange_pieces(members, layout.grid))
        share = members / layout.size
    crossings = layout.crossings[low:]
    reached = [1] + [layout.within[0][level] for level in range(len(layout.crossings))]
    direct_ns = sum(
        (beyond - inside) * crossing.latency_ns
        for (inside, beyond), crossing in zip(pairwise(reached[low:]), crossings, strict=True)
    )
    outside = [
        share_beyond(layout.size / crossing.fewest, copies) / crossing.own_bytes_per_ns
        for crossing in crossings
    ]
    lines = [(f + direct_ns, max([s * share, *outside])) for f, s in inner]
    steps = [layout.within[level][0] for level in range(len(layout.crossings))]
    if prod(steps) == layout.size:
        levels = list(zip(steps[low:], crossings, strict=True))
        handed_ns = sum((n - 1) * crossing.latency_ns for n, crossing in levels)
        slope = sum((n - 1) / n / crossing.own_bytes_per_ns for n, crossing in levels)
        lines += [(f + handed_ns, s + slope) for f, s in inner]
    return lines


def _transfer(layout: GroupTopology, copies: TokenCopies) -> list[tuple[int, float]]:
    """Lines of one message over the outermost level that its two ends cross."""
    if layout.grid is not None and len(layout.crossings) == 1:
        return list(spread_pieces(layout.size, layout.grid))
    last = layout.crossings[-1]
    return [(last.latency_ns, 1 / last.own_bytes_per_ns)]


def _switched(layout: GroupTopology, copies: TokenCopies) -> list[tuple[int, float]]:
    """Lines of reductions inside the switches, where there are such; a torus has none."""
    return switched(layout, exact=True) if layout.grid is None else []


def _rotation(layout: GroupTopology, copies: TokenCopies) -> list[tuple[int, float]]:
    """Lines of one message from every member to the next: the slowest border counts."""
    low, lines = 0, [(0, 0.0)]
    if layout.grid is not None:
        low, lines = 1, list(rotation_pieces(layout.grid))
    for crossing in layout.crossings[low:]:
        slope = 1 / crossing.own_bytes_per_ns
        lines = [(max(f, crossing.latency_ns), max(s, slope)) for f, s in lines]
    return lines


def _table(kind: str, group_size: int) -> str:
    return f"{'send' if kind == 'recv' else kind}/{group_size}"


def collective_duration_ns(
    kind: str,
    message_bytes: int,
    group_size: int,
    cluster: Cluster,
    ranks: tuple[int, ...] = (),
    *,
    bucketed: bool = False,
    copies: TokenCopies = ALONE,
    state: State = UNKNOWN,
) -> int:
    """Duration of one collective or transfer once all its members have come; 0 for a group of one.

    A group inside one node uses the measured table `kind/group_size` where there is one. A ring
    that leaves the node crosses its border once per member there, each over a network interface
    of its own, so the bandwidth is the smaller of the node's and `members` times the network's.
    Where ranks share cores it is the time with nothing else at work, as it is measured.

    Parameters
    ----------
    kind : str
        A collective, `send`, `recv` or `rotate`, as in `millrace.planner.actors.graph.Meeting`.
    message_bytes : int
        Size of the whole message, as in `Meeting`: the reduced tensor for all_reduce, the larger
        side for all_gather and reduce_scatter, else the local tensor.
    group_size : int
        Number of members; as many as `ranks`, where these are given.
    cluster : Cluster
        Its links and measured tables.
    ranks : tuple of int
        The members; rank r lies on device r. Empty: the cluster's first.
    bucketed : bool
        The message is state, which travels in the buckets of the cluster's software.
    copies : TokenCopies
        How often it holds every token (`Meeting.copies`); only an all_to_all asks for it, where
        the software sends a token once to each place (`Software.merges`), or gathers all.
    state : State
        Known facts of a message of state; `UNKNOWN`: none but its size.
    """
    members = ranks or tuple(range(group_size))
    pieces = collective_lines(kind, members, cluster, bucketed=bucketed, copies=copies, state=state)
    if pieces is None:
        device = cluster.device_of(ranks[0] if ranks else 0)
        return interpolate_ns(device.collectives[_table(kind, group_size)], message_bytes)
    return min((fixed + ceil(slope * message_bytes) for fixed, slope in pieces), default=0)


def _slowest_transfers(
    layout: GroupTopology, protocols: tuple[NcclProtocol, ...]
) -> list[tuple[int, float]]:
    """Lines of one message from every member to the next: the slowest border counts."""
    slowest = [transfers(crossing, protocols) for crossing in layout.crossings]
    return [
        (max(fixed for fixed, _ in lines), max(slope for _, slope in lines))
        for lines in zip(*slowest, strict=True)
    ]


def _in_switches(
    layout: GroupTopology, protocols: tuple[NcclProtocol, ...]
) -> list[tuple[int, float]]:
    """Lines of an all_reduce inside the switches, where there are such."""
    return switched(layout)


def _outermost(
    layout: GroupTopology, protocols: tuple[NcclProtocol, ...]
) -> list[tuple[int, float]]:
    """Lines of one transfer over the outermost level that its two ends cross."""
    return list(transfers(layout.crossings[-1], protocols))


# Algorithms of each kind, by links alone. The lowest line for a message counts, so a further
# algorithm is an entry here.
ALGORITHMS: dict[str, tuple[LinkAlgorithm, ...]] = {
    "all_reduce": (partial(_rings, rounds=2), _two_trees, _switched),
    "all_gather": (partial(_rings, rounds=1),),
    "reduce_scatter": (partial(_rings, rounds=1),),
    "all_to_all": (_exchanges,),
    ROTATE: (_rotation,),
    "send": (_transfer,),
    "recv": (_transfer,),
}
# Those that a library has of its own; it makes the other kinds of transfers.
LIBRARY_ALGORITHMS: dict[str, tuple[LibraryAlgorithm, ...]] = {
    "all_reduce": (partial(rounds, times=2), trees, _in_switches),
    "all_gather": (partial(rounds, times=1),),
    "reduce_scatter": (partial(rounds, times=1),),
    ROTATE: (_slowest_transfers,),
    "send": (_outermost,),
    "recv": (_outermost,),
}
