"""Group topology: the place of a group on a cluster's levels, all that a collective depends on.

Units are what the levels hold: a rank, an island, a node, what is under a leaf, the cluster. A
group crosses a level where several of its units of the level below meet; other levels are left
out. Groups that lie alike have equal layouts, so that each is priced once.

Shapes: arrays [members] in the order of the group's ranks.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.models.arrays import Floats, Ints
from millrace.planner.cluster import Cluster, Islands, Leaves, Link, Torus


class LevelCrossing(NamedTuple):
    """Level on which units of the level below meet, inside one unit of this.

    `bytes_per_ns` is what the members of one lower unit bring together, `own_bytes_per_ns` what
    one member does; `fewest` and `most` are the members of a lower unit. `inter_node`: True
    between nodes.
    """

    latency_ns: int
    bytes_per_ns: float
    own_bytes_per_ns: float
    fewest: int
    most: int
    gap_ns: int = 0
    reduces: bool = False
    inter_node: bool = False


class TorusLine(NamedTuple):
    """A dim of a torus along which a group lies: `size` members `stride` steps apart."""

    size: int
    stride: int
    ring: bool


class Grid(NamedTuple):
    """Positions of the members inside a torus: a box of lines, or scattered (no lines)."""

    lines: tuple[TorusLine, ...]
    hops: int  # steps between the two furthest neighbours in rank
    latency_ns: int
    bytes_per_ns: float  # of one link in one direction


class GroupTopology(NamedTuple):
    """A group on the levels it crosses, from inner to outer.

    `within[i][k]` is the largest number of units of level i in a unit of level i + 1 + k, where
    level 0 is the ranks and the last level the group itself.
    """

    size: int
    crossings: tuple[LevelCrossing, ...]
    within: tuple[tuple[int, ...], ...]
    grid: Grid | None


class _Part(NamedTuple):
    """Properties of a group of nodes that matter to a collective."""

    devices_per_node: int
    nodes: int
    intra_node: Link
    inter_node: Link
    islands: Islands | None
    torus: Torus | None


class Frame(NamedTuple):
    """Properties of a cluster that matter to a collective; equal for clusters of unlike devices."""

    parts: tuple[_Part, ...]
    leaves: Leaves | None


def frame_of(cluster: Cluster) -> Frame:
    """Frame of a cluster: its links and what they join."""
    parts = tuple(
        _Part(
            group.devices_per_node,
            group.nodes,
            group.intra_node,
            group.inter_node,
            group.islands,
            group.torus,
        )
        for group in cluster.groups
    )
    return Frame(parts, cluster.leaves)


class _MemberPlaces(NamedTuple):
    """Places of the members: part, node and place in the node of each."""

    part: Ints
    node: Ints
    local: Ints


def _places(ranks: Ints, frame: Frame) -> _MemberPlaces:
    firsts = np.cumsum([0] + [part.devices_per_node * part.nodes for part in frame.parts[:-1]])
    nodes_before = np.cumsum([0] + [part.nodes for part in frame.parts[:-1]])
    per_node = np.array([part.devices_per_node for part in frame.parts])
    part = np.searchsorted(firsts, ranks, side="right") - 1
    node, local = np.divmod(ranks - firsts[part], per_node[part])
    return _MemberPlaces(part, node + nodes_before[part], local)


def nodes_of(ranks: tuple[int, ...], frame: Frame) -> Ints:
    """Node of each rank; rank r lies on device r.

    Parameters
    ----------
    ranks : tuple of int
        Ranks, in any order.
    frame : Frame
        Links of the cluster and what they join, see `frame_of`.

    Returns
    -------
    int array (ranks,)
        Nodes counted from 0 over all groups of nodes.
    """
    return _places(np.array(ranks), frame).node


def _is_rail_aligned(places: _MemberPlaces) -> bool:
    """True if the group has the same places in each of its nodes."""
    order = np.lexsort((places.local, places.node))
    _, counts = np.unique(places.node, return_counts=True)
    if counts.min() != counts.max():
        return False
    rows = places.local[order].reshape(len(counts), -1)
    return bool((rows == rows[0]).all())


class _Level(NamedTuple):
    """The units of one level and the link over which they meet in those of the next."""

    units: Ints  # of each member
    latency_ns: int
    bytes_per_ns: Floats  # of each member
    pooled: bool  # True: the most members of a unit tell its share; else the fewest do
    gap_ns: int
    reduces: bool
    inter_node: bool


def _levels(places: _MemberPlaces, frame: Frame) -> list[_Level]:
    """Levels that ranks, islands, nodes and leaves meet over, whether the group crosses or not."""

    def rates(links: Sequence[Link]) -> Floats:
        each = np.array([link.bandwidth_bytes_per_s / 1e9 for link in links])
        return np.asarray(each[places.part], float)

    def latency(links: Sequence[Link]) -> int:
        return max(links[int(index)].latency_ns for index in np.unique(places.part))

    def gap(links: Sequence[Link]) -> int:
        return max(links[int(index)].gap_ns for index in np.unique(places.part))

    def reduces(links: Sequence[Link]) -> bool:
        return all(links[int(index)].reduces for index in np.unique(places.part))

    def intra_node_rates(links: Sequence[Link]) -> Floats:
        """Rates inside a node, by how many members lie there."""
        counts = np.bincount(places.node - places.node.min())[places.node - places.node.min()]
        pairs = zip(places.part.tolist(), counts.tolist(), strict=True)
        shares = [links[part].share(count) for part, count in pairs]
        return np.asarray(rates(links) * np.array(shares), float)

    inner = [part.islands.link if part.islands else part.intra_node for part in frame.parts]
    intra = [part.intra_node for part in frame.parts]
    outer = [part.inter_node for part in frame.parts]
    size = np.array([p.islands.devices if p.islands else p.devices_per_node for p in frame.parts])
    most = max(part.devices_per_node for part in frame.parts)
    ranks = np.arange(len(places.node))
    doublings = max(np.log2(len(np.unique(places.node))) - 1.0, 0.0)
    doubling_factor = np.array([1.0 - link.congestion for link in outer])[places.part]
    network = rates(outer) * doubling_factor**doublings
    island = places.node * most + places.local // size[places.part]
    levels = [
        _Level(
            ranks, latency(inner), intra_node_rates(inner), False, gap(inner), reduces(inner), False
        ),
        _Level(
            island,
            latency(intra),
            intra_node_rates(intra),
            False,
            gap(intra),
            reduces(intra),
            False,
        ),
        _Level(places.node, latency(outer), network, False, gap(outer), reduces(outer), True),
    ]
    if frame.leaves is not None:
        leaves = frame.leaves
        spread = leaves.rails and not _is_rail_aligned(places)
        under = places.node if spread else places.node // leaves.nodes
        share = network / leaves.oversubscription
        above_ns = latency(outer) + leaves.latency_ns
        levels.append(_Level(under, above_ns, share, True, gap(outer), reduces(outer), True))
    return levels


def _counted(units: Ints) -> tuple[Ints, Ints]:
    """Number of each member's unit, counted from 0, and the first member of each unit."""
    _, first, index = np.unique(units, return_index=True, return_inverse=True)
    return index.astype(np.int64), first


def layout_of(ranks: tuple[int, ...], frame: Frame) -> GroupTopology:
    """Layout of a group's members on a cluster.

    Parameters
    ----------
    ranks : tuple of int
        Ranks of the members, at least one; rank r lies on device r. Groups that lie alike in other
        nodes (with leaves: under other leaves) have equal layouts.
    frame : Frame
        Links of the cluster and what they join, see `frame_of`.
    """
    shift = _whole_units(min(ranks), frame)
    return _layout(tuple(rank - shift for rank in ranks) if shift else ranks, frame)


def _whole_units(rank: int, frame: Frame) -> int:
    """Ranks in whole leaves (or nodes) before a rank: without them a group lies as it did."""
    if len(frame.parts) > 1:
        return 0
    unit = frame.parts[0].devices_per_node * (frame.leaves.nodes if frame.leaves else 1)
    return rank - rank % unit


@lru_cache(maxsize=4096)
def _layout(ranks: tuple[int, ...], frame: Frame) -> GroupTopology:
    places = _places(np.array(ranks), frame)
    crossings, crossed_units = [], []
    latency_ns, gap_ns = 0, 0
    levels = _levels(places, frame)
    above = [_counted(level.units) for level in levels[1:]]
    above.append(_counted(np.zeros(len(ranks), np.int64)))
    for level, (_, upper_first) in zip(levels, above, strict=True):
        index, first = _counted(level.units)
        latency_ns = max(latency_ns, level.latency_ns)
        gap_ns = max(gap_ns, level.gap_ns)
        if len(first) == len(upper_first):
            continue
        members = np.bincount(index)
        together = np.bincount(index, weights=level.bytes_per_ns)
        crossings.append(
            LevelCrossing(
                latency_ns,
                float(together.max() if level.pooled else together.min()),
                float(level.bytes_per_ns.min()),
                int(members.min()),
                int(members.max()),
                gap_ns,
                level.reduces,
                level.inter_node,
            )
        )
        crossed_units.append((index, first))
    crossed_units.append(above[-1])
    within = tuple(
        tuple(int(np.bincount(upper[lower_first]).max()) for upper, _ in crossed_units[i + 1 :])
        for i, (_, lower_first) in enumerate(crossed_units[:-1])
    )
    return GroupTopology(len(ranks), tuple(crossings), within, _grid(places, frame))


def _grid(places: _MemberPlaces, frame: Frame) -> Grid | None:
    """Grid of the group inside its tori; None where it lies in none, or alone in each."""
    parts = {frame.parts[int(index)] for index in np.unique(places.part)}
    tori = {(part.torus, part.intra_node) for part in parts}
    torus, link = next(iter(tori))
    counts = np.unique(places.node, return_counts=True)[1]
    if torus is None or len(tori) > 1 or counts.max() == 1:
        return None
    local = np.sort(places.local[places.node == places.node[0]])
    steps = np.array(np.unravel_index(local, torus.dims))
    lines = _lines(steps, torus) if _is_rail_aligned(places) else ()
    sizes = np.array(torus.dims)[:, None]
    apart = np.abs(np.diff(steps, axis=1))
    joined = np.array([torus.wraps(dim) for dim in range(len(torus.dims))])[:, None]
    shortest = np.where(joined, np.minimum(apart, sizes - apart), apart).sum(axis=0)
    return Grid(
        lines,
        int(shortest.max(initial=1)),
        link.latency_ns,
        link.bandwidth_bytes_per_s / 1e9,
    )


def _lines(steps: npt.NDArray[Any], torus: Torus) -> tuple[TorusLine, ...]:
    """Lines whose box is the group; none where the group is no box."""
    lines = []
    for dim, along in enumerate(steps):
        taken = np.unique(along)
        if len(taken) == 1:
            continue
        gaps = np.diff(taken)
        if gaps.min() != gaps.max():
            return ()
        stride, dim_size = int(gaps[0]), torus.dims[dim]
        if len(taken) == 2 and torus.wraps(dim):
            stride = min(stride, dim_size - stride)  # the shorter way round
        ring = torus.wraps(dim) and stride * len(taken) == dim_size
        lines.append(TorusLine(len(taken), stride, ring))
    return tuple(lines) if prod(line.size for line in lines) == steps.shape[1] else ()
