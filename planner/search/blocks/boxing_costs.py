"""Boxing costs of one tensor on many meshes at once: paths, durations and buffers.

States (nd-SBPs) are the nodes of a graph whose edges are single steps (`millrace.planner.boxing`).
Which path takes the fewest bytes depends on the sizes of the axes and on which states divide, not
on the size of the tensor: it is found once per such column (Bellman and Ford), for all pairs of
states, and every tensor picks its own. Shapes: U states of the graph, E edges, A sources, B
targets, K rows, N axes, H hops.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.models.arrays import Bools, Floats, Ints
from millrace.planner.boxing import moves
from millrace.planner.cluster import Cluster
from millrace.planner.collectives import (
    ALONE,
    COLLECTIVES,
    IN_PLACE_BYTES_MIN,
    LOCAL_BOXING,
    TokenCopies,
)
from millrace.planner.costs import (
    OpFirings,
    collective_duration_ns,
    collective_lines,
    op_durations_ns,
)
from millrace.planner.costs.group_topology import frame_of
from millrace.planner.sbp import NdSbp
from millrace.planner.search.blocks.sbp_codes import (
    MAX,
    SUM,
    digits,
    divisible,
    number_of,
    numbers,
    sbp_of,
    shards,
)
from millrace.planner.search.rank_groups import unlike_groups

Key = tuple[int, ...]
Pieces = tuple[tuple[int, float], ...]
STEP = 1e-9  # a step counts this beside its share of the tensor: fewest steps among equal bytes
TIE = 1e-13


class Boxed(NamedTuple):
    """Every boxing of a tensor: whether there is one, nanoseconds, and bytes of what it makes."""

    reachable: Bools  # [A, B, K]
    duration_ns: Ints  # [A, B, K]
    made_bytes: Ints | None  # [A, B, K]: bytes of all that is made on the way, the target included
    last_bytes: Ints | None  # [A, B, K]: bytes of the target, where it is not the source

    def picked(self, sources: Ints, targets: Ints) -> "Boxed":
        """Boxings from some of the sources to some of the targets, by their places."""
        grid = np.ix_(sources, targets)
        return Boxed(
            self.reachable[grid],
            self.duration_ns[grid],
            None if self.made_bytes is None else self.made_bytes[grid],
            None if self.last_bytes is None else self.last_bytes[grid],
        )

    def buffer_bytes(self, maker: str, source: Ints, given: Ints) -> Ints:
        """Bytes of buffers made once a step that no other register has room for: [A, B, K].

        A sum of gradients is reduced where it lies, or into the weight that was gathered, as large
        as the 16-bit gradients of a microbatch; what gathers a weight lies where they are summed
        (`millrace.planner.compile.arena.aliased_registers`).

        Parameters
        ----------
        maker : str
            The kind of the op that makes the tensor.
        source, given : array [A, K]
            Bytes of the tensor as it is made, and as large a one of the maker's input.
        """
        if self.made_bytes is None or self.last_bytes is None:
            return np.zeros(self.duration_ns.shape, np.int64)
        before, room = source[:, None], np.where(given < source, given, 0)[:, None]
        buffers: Ints
        if maker == "accumulate":
            large = self.last_bytes > IN_PLACE_BYTES_MIN
            fits = (self.last_bytes <= room) | (large & (self.last_bytes == before))
            buffers = np.where(fits, 0, self.made_bytes)
        elif maker == "cast":
            buffers = np.where(self.last_bytes > 0, np.maximum(self.last_bytes - before, 0), 0)
        else:
            buffers = self.last_bytes if maker == "variable" else self.made_bytes
        return buffers


class Edges(NamedTuple):
    """Single steps between the states of one graph."""

    states: Ints  # [U]
    before: Ints  # [E] places in `states`, ascending
    after: Ints  # [E]
    kinds: tuple[tuple[str, tuple[int, ...]], ...]  # what a step is, over which axes
    members: tuple[Ints, ...]  # the edges of each of `kinds`


@lru_cache(maxsize=256)
def edges(ndim: int, alphabets: tuple[Key, ...]) -> Edges:
    """Single steps between the states that the digits per axis make, for tensors of `ndim` dims."""
    axes = len(alphabets)
    grid = np.meshgrid(*map(np.array, alphabets), indexing="ij")
    states = numbers([axis_grid.ravel() for axis_grid in grid])
    by_axis = digits(states, axes)
    states = np.sort(states[~((by_axis == SUM).any(axis=0) & (by_axis == MAX).any(axis=0))])
    place = {int(state): index for index, state in enumerate(states)}
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    rows: list[tuple[int, int, int]] = []
    for before, state in enumerate(states.tolist()):
        for step in moves(_sbp(state, axes), ndim, (2,) * axes):
            after = place.get(number_of(step.after))
            if after is not None:
                number = kinds.setdefault((step.kind, step.axes), len(kinds))
                rows.append((before, after, number))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Edges(
        states=states,
        before=table[:, 0],
        after=table[:, 1],
        kinds=tuple(kinds),
        members=tuple(np.flatnonzero(table[:, 2] == number) for number in range(len(kinds))),
    )


@lru_cache(maxsize=65536)
def _sbp(state: int, axes: int) -> NdSbp:
    return sbp_of(state, axes)


class BoxingPaths(NamedTuple):
    """Paths from A sources to B targets on K rows: the edge of every hop (one behind: none)."""

    reachable: Bools  # [A, B, K]
    edges: NDArray[np.int16]  # [H, A, B, K]

    def or_else(self, others: "BoxingPaths", none: int) -> "BoxingPaths":
        """Paths, or others where there are none; `none` is the edge behind all."""
        hops = max(len(self.edges), len(others.edges))
        table = np.full((hops, *self.reachable.shape), none, np.int16)
        for paths, places in ((self, self.reachable), (others, ~self.reachable)):
            np.copyto(table[: len(paths.edges)], paths.edges, where=places)
        return BoxingPaths(self.reachable | others.reachable, table)


def walk(graph: Edges, nexts: NDArray[np.int16], sources: Ints, targets: Ints) -> NDArray[np.int16]:
    """Edges of hops from some places of states to others [H, A, B, K], by next states [U, B, K].

    One behind the edges means none: the path is shorter, or there is none.
    """
    count, none = len(graph.states), len(graph.before)
    legal = nexts[sources] >= 0
    current = np.broadcast_to(sources[:, None, None], legal.shape)
    columns, rows = np.arange(len(targets))[:, None], np.arange(nexts.shape[2])
    goal = targets[:, None]
    number = np.zeros((count, count), np.int16)
    number[graph.before, graph.after] = np.arange(none)
    hops: list[NDArray[np.int16]] = []
    while True:
        going = (current != goal) & legal
        if hops and not going.any():
            return np.array(hops)
        then = np.where(going, nexts[current, columns, rows], current)
        hops.append(np.where(going, number[current, then], none).astype(np.int16))
        current = then


class BoxingCosts:
    """Boxing on K rows of meshes with the same number of axes.

    Parameters
    ----------
    cluster : Cluster
    sizes : array [N, K]
        Axis sizes of every row; the devices of a mesh are the cluster's first.
    alphabets : dict
        Per number of dims, the digits that may occur on each axis.
    stretch : float
        By how much sharing cores slows local work down.
    cache : BoxingCache, optional
        Paths and collectives of the same cluster that were looked up before.
    starts : sequence, optional
        Per row, the first ranks of its stages: the slowest of their groups counts.
    """

    def __init__(
        self,
        cluster: Cluster,
        sizes: Ints,
        alphabets: dict[int, tuple[Key, ...]],
        stretch: float = 1.0,
        cache: "BoxingCache | None" = None,
        starts: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.cache = cache if cache is not None else BoxingCache()
        self.cluster = cluster
        self.sizes = sizes
        self.alphabets = alphabets
        self.stretch = stretch
        self.meshes = [tuple(column) for column in sizes.T.tolist()]
        self.starts = tuple(starts) or ((0,),) * len(self.meshes)
        self._frame = frame_of(cluster)
        self._groups: dict[object, list[tuple[Floats, Floats]] | None] = {}
        self._boxed: dict[object, Boxed] = {}
        self._steps: dict[object, tuple[Floats, Ints]] = {}
        self._shards: dict[int, Ints] = {}

    def boxed(
        self,
        dims: Ints,
        itemsize: int,
        sources: Ints,
        targets: Ints,
        *,
        keeps_source: bool,
        bucketed: bool = False,
        copies: TokenCopies = ALONE,
    ) -> Boxed:
        """Box a tensor of `dims` [D, K] from every source to every target.

        Parameters
        ----------
        dims : array [D, K]
        itemsize : int
        sources, targets : arrays
            States.
        keeps_source : bool
            The source is there all step long, so that what is made of it counts besides.
        bucketed : bool
            The tensor is state, see `millrace.planner.costs.bucket_sizes`.
        copies : TokenCopies
            How often it holds every token, see `millrace.planner.costs.expert_routing`.
        """
        software = self.cluster.software
        counts = software.merges or software.gathers or software.load.deviation > 0
        sent = copies if counts else ALONE
        how = keeps_source, bucketed and software.bucketing, bucketed and software.pads, sent
        key = dims.tobytes(), itemsize, sources.tobytes(), targets.tobytes(), *how
        if key not in self._boxed:
            self._boxed[key] = self._box(dims, itemsize, sources, targets, *how)
        return self._boxed[key]

    def _box(
        self,
        dims: Ints,
        itemsize: int,
        sources: Ints,
        targets: Ints,
        keeps_source: bool,
        bucketed: bool,
        padded: bool,
        copies: TokenCopies,
    ) -> Boxed:
        graph = edges(len(dims), self.alphabets[len(dims)])
        fits = divisible(graph.states, dims, self.sizes)
        hops = self._hops(graph, len(dims), fits, sources, targets)
        if padded and not fits.all():  # as `boxing_path` does
            others = self._hops(graph, len(dims), np.ones_like(fits), sources, targets)
            hops = hops.or_else(others, len(graph.before))
        size = dims.prod(axis=0) * itemsize
        step_ns, sizes = self._step_ns(graph, len(dims), size, bucketed, copies)
        # These places index flat tables that have an entry per edge and row.
        rows = len(self.meshes)
        places = hops.edges.astype(np.int64) * rows + np.arange(rows)
        duration = step_ns.take(places[0])
        for place in places[1:]:
            duration += step_ns.take(place)
        duration_ns = np.round(duration).astype(np.int64)
        if not keeps_source:
            return Boxed(hops.reachable, duration_ns, None, None)
        made_bytes, arrives = np.zeros_like(duration_ns), np.zeros_like(duration_ns)
        ending = hops.edges == len(graph.before)
        for hop, place in enumerate(places):
            size = sizes.take(place)
            made_bytes += size
            last = ending[hop + 1] if hop + 1 < len(places) else True
            arrives += size * last
        return Boxed(hops.reachable, duration_ns, made_bytes, arrives)

    def _hops(
        self, graph: Edges, ndim: int, fits: Bools, sources: Ints, targets: Ints
    ) -> BoxingPaths:
        """Edges of the paths from every source to every target, by way of states that divide."""
        source_places, target_places = (
            np.searchsorted(graph.states, states) for states in (sources, targets)
        )
        cached = self.cache.nexts.setdefault((ndim, self.alphabets[ndim], targets.tobytes()), {})
        keys = [
            (mesh, column.tobytes())
            for mesh, column in zip(self.meshes, fits.T.copy(), strict=True)
        ]
        unique = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        if missing := [key for key in unique if key not in cached]:
            rows = [keys.index(key) for key in missing]
            nexts = shortest(graph, self.sizes[:, rows], fits[:, rows], target_places)
            cached.update((key, nexts[..., index].copy()) for index, key in enumerate(missing))
        none = len(graph.before)
        nexts = np.stack([cached[key] for key in unique], axis=-1)
        table = walk(graph, nexts, source_places, target_places)
        reachable = (table[0] != none) | (source_places[:, None] == target_places)[:, :, None]
        if len(unique) == len(keys):
            return BoxingPaths(reachable, table)
        back = np.array([unique[key] for key in keys])
        return BoxingPaths(reachable.take(back, axis=-1), table.take(back, axis=-1))

    def _step_ns(
        self, graph: Edges, ndim: int, size: Ints, bucketed: bool, copies: TokenCopies
    ) -> tuple[Floats, Ints]:
        """Nanoseconds of every edge for a tensor of `size` bytes, and what it makes: [E + 1, K].

        Behind the last edge is one that takes no time, for paths that are shorter than others.
        """
        key = ndim, size.tobytes(), bucketed, copies
        if key in self._steps:
            return self._steps[key]
        if ndim not in self._shards:
            self._shards[ndim] = shards(graph.states, self.sizes)
        local = size[None, :] // self._shards[ndim]
        durations = np.zeros((len(graph.before) + 1, len(self.meshes)))
        before, after = local[graph.before], local[graph.after]
        for members, (kind, axes) in zip(graph.members, graph.kinds, strict=True):
            if kind in LOCAL_BOXING:
                # As much is read as lands in the smaller side.
                touched = after[members] + np.minimum(before[members], after[members])
                took = kernel_ns(self.cluster, OpFirings(kind, "", {}, {}, touched, "fp32"))
                durations[members] = np.ceil(took * self.stretch)
            else:
                message = np.maximum(before[members], after[members])
                durations[members] = self.collective_ns(kind, axes, message, bucketed, copies)
        self._steps[key] = durations, np.vstack([after, np.zeros_like(local[:1])])
        return self._steps[key]

    def collective_ns(
        self,
        kind: str,
        axes: tuple[int, ...],
        message_bytes: Ints,
        bucketed: bool = False,
        copies: TokenCopies = ALONE,
    ) -> Floats:
        """Nanoseconds of one collective over these mesh axes: [..., K] for messages [..., K]."""
        places = self._group(kind, axes, bucketed, copies)
        if places is None:
            slowest_ns = np.zeros(message_bytes.shape)
            for row in range(len(self.meshes)):
                for ranks in self._ranks(row, axes):
                    for size in np.unique(message_bytes[..., row]).tolist():
                        of_size = message_bytes[..., row] == size
                        took = collective_duration_ns(kind, size, len(ranks), self.cluster, ranks)
                        slowest_ns[..., row][of_size] = np.maximum(
                            slowest_ns[..., row][of_size], took
                        )
            return slowest_ns
        slowest: Floats | None = None
        for fixed, slope in places:
            fastest: Floats = np.min(
                [f + np.ceil(s * message_bytes) for f, s in zip(fixed, slope, strict=True)], axis=0
            )
            slowest = fastest if slowest is None else np.maximum(slowest, fastest)
        assert slowest is not None, "an axis has groups"
        return slowest

    def _ranks(self, row: int, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Ranks of the groups over these axes, one of each that lie alike."""
        return unlike_groups(self.meshes[row], axes, self.starts[row], self._frame)

    def _alternatives(
        self, row: int, kind: str, axes: tuple[int, ...], bucketed: bool, copies: TokenCopies
    ) -> tuple[Pieces | None, ...]:
        """Pieces of a collective, for every way its groups lie."""
        key = kind, self.meshes[row], axes, self.starts[row], bucketed, copies
        if key not in self.cache.pieces:
            pieces = (
                collective_lines(kind, ranks, self.cluster, bucketed=bucketed, copies=copies)
                for ranks in self._ranks(row, axes)
            )
            self.cache.pieces[key] = tuple(dict.fromkeys(pieces))
        return self.cache.pieces[key]

    def _group(
        self, kind: str, axes: tuple[int, ...], bucketed: bool, copies: TokenCopies
    ) -> list[tuple[Floats, Floats]] | None:
        """Alternatives of a collective on every row, [alternatives, K] each; None: measured.

        Once for every way that the groups of a row lie, or the last again where a row has fewer.
        """
        key = kind, axes, bucketed, copies
        if key not in self._groups:
            rows = [self._alternatives(row, *key) for row in range(len(self.meshes))]
            if any(pieces is None for row in rows for pieces in row):
                self._groups[key] = None
            else:
                self._groups[key] = [
                    _lines([row[min(place, len(row) - 1)] or () for row in rows])
                    for place in range(max(map(len, rows)))
                ]
        return self._groups[key]


def kernel_ns(cluster: Cluster, firings: OpFirings) -> Ints:
    """Nanoseconds of an op on ranks of every kind of device of a cluster: the slowest counts."""
    durations = op_durations_ns(firings, cluster.device, cluster.software)
    for group in cluster.others:
        if group.device.name != cluster.device.name:
            other = op_durations_ns(firings, group.device, cluster.software)
            durations = np.maximum(durations, other)
    return durations


def _lines(row_alternatives: Sequence[Pieces]) -> tuple[Floats, Floats]:
    """Fixed costs and slopes of every row's alternatives: [alternatives, K] each."""
    most = max(len(pieces) for pieces in row_alternatives)
    table = np.full((2, max(most, 1), len(row_alternatives)), np.inf)
    for row, pieces in enumerate(row_alternatives):
        for number, piece in enumerate(pieces):
            table[:, number, row] = piece
        if not pieces:
            table[:, 0, row] = 0.0
    table[1][~np.isfinite(table[1])] = 0.0
    return table[0], table[1]


class BoxingCache:
    """Paths and collectives that were looked up once."""

    def __init__(self) -> None:
        # Next states [U, B] per graph of states and targets, by mesh and which states divide.
        self.nexts: dict[
            tuple[int, tuple[Key, ...], bytes], dict[tuple[Key, bytes], NDArray[np.int16]]
        ] = {}
        self.pieces: dict[object, tuple[Pieces | None, ...]] = {}
        self._distinct: dict[bytes, tuple[Ints, Ints]] = {}

    def distinct(self, states: Ints) -> tuple[Ints, Ints]:
        """Different states, ascending, and the place of each among them."""
        key = states.tobytes()
        if key not in self._distinct:
            self._distinct[key] = np.unique(states, return_inverse=True)
        return self._distinct[key]


def shortest(graph: Edges, sizes: Ints, fits: Bools, targets: Ints) -> NDArray[np.int16]:
    """Next states on the paths of fewest bytes, then of fewest steps, to some places: [U, B, K].

    Bytes are those that a device receives on a ring, in shares of the tensor.
    """
    count, rows = len(graph.states), sizes.shape[1]
    fractions = 1.0 / shards(graph.states, sizes)
    weights = np.empty((len(graph.before), rows))
    for members, (kind, axes) in zip(graph.members, graph.kinds, strict=True):
        before, after = graph.before[members], graph.after[members]
        group = sizes[list(axes)].prod(axis=0)
        share = (group - 1) / group
        received = np.zeros((len(members), rows))
        if kind not in LOCAL_BOXING:
            record = COLLECTIVES[kind]
            moved = (
                record.received_before * fractions[before]
                + record.received_after * fractions[after]
            )
            received = moved * share
        weights[members] = np.where(fits[before] & fits[after], received + STEP, np.inf)
    cost = np.full((count, len(targets), rows), np.inf)
    following = np.full((count, len(targets), rows), -1, np.int16)
    columns = np.arange(len(targets))
    cost[targets, columns], following[targets, columns] = 0.0, targets[:, None]
    ends = np.searchsorted(graph.before, np.arange(count + 1))
    # Turns at which a state was bettered, and looked at. It is looked at again once a state behind
    # it was bettered.
    bettered, looked, turn = np.zeros(count, np.int64), [-1] * count, 0
    changed = True
    while changed:
        changed = False
        for state, (first, last) in enumerate(pairwise(ends.tolist())):
            then = graph.after[first:last]
            if first == last or looked[state] > bettered[then].max():
                continue
            turn += 1
            looked[state] = turn
            through = weights[first:last, None, :] + cost[then]
            least = through.min(axis=0)
            better = least < cost[state] - TIE
            if better.any():
                cost[state] = np.where(better, least, cost[state])
                following[state] = np.where(better, then[through.argmin(axis=0)], following[state])
                bettered[state], changed = turn, True
    return following
