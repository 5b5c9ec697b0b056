"""Placement groups: the nodes of a cluster on which the stages of a candidate lie.

Stages take the ranks in turn, and ranks go from one group of nodes to the next. A *site* is what
stages have in common that lie on the same groups, so that their blocks cost the same. On a cluster
of several kinds of device the order of the groups is part of the search: the plan's cluster lists
them in the order that was chosen. Where stages lie says what they take to send.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, permutations
from math import prod

import msgspec

from millrace.models.graph import Graph
from millrace.models.model_counts import parallelism_limits
from millrace.planner.cluster import Cluster
from millrace.planner.costs import collective_duration_ns
from millrace.planner.costs.group_topology import frame_of
from millrace.planner.frameworks.capabilities import divided_blocks
from millrace.planner.frameworks.framework_tables import has_account
from millrace.planner.plan import block_runs
from millrace.planner.search.candidates import Candidate, PipelineShape, candidates, wider
from millrace.planner.search.rank_groups import PlacementGroup, Placing, alike
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.stages import Pipeline
from millrace.planner.search.stages.shape import lifetime_counts

# Versions of what a chunk sends and receives that no other of its bytes in flight covers: of what
# it receives one more than it keeps, two of its gradient, and two of what it sends on or back.
TRANSFERRED = 5
# Gathered tensors of a chunk with places of their own, where activations are gathered again for the
# backward pass: what it received, and the gradient of what it sent.
GATHERED = 2
ORDERED = 3  # so many groups are put in every order; more of them as listed and in reverse


def candidates_of(
    request: SearchRequest, graph: Graph, widened: Collection[PipelineShape] | None = None
) -> tuple[Candidate, ...]:
    """Candidates of a request; with `widened` those of three axes for such pipelines.

    Parameters
    ----------
    request : SearchRequest
        Its pins, cluster and global batch decide.
    graph : Graph
        Training graph: its blocks, and whether there is a sequence or experts to split.
    widened : collection of PipelineShape, optional
        Stages, schedule, chunks per stage and microbatches of each pipeline; empty: all pipelines,
        of few microbatch sizes. None: candidates of at most two axes.

    Returns
    -------
    tuple of Candidate
        In a fixed order, with their places. May be empty only with `widened`.

    Raises
    ------
    PlanError
        A pin is malformed; not with `widened`.
    InfeasibleError
        The pins leave nothing, and says which of them; not with `widened`.
    """
    can = parallelism_limits(graph)
    splits = can["sequence"] or can["sequence_parallel"]
    sequence, experts = request.model.seq_len if splits else 0, int(can["experts"])
    pins, cluster, samples = request.pins, request.cluster, request.global_batch
    blocks = divided_blocks(graph.blocks)
    repeated = max(len(run.blocks) for run in block_runs(graph))
    asked = pins, cluster, samples, blocks
    if widened is None:
        unplaced = candidates(
            *asked, sequence=sequence, experts=experts, repeated=repeated, runs=request.runs
        )
    else:
        unplaced = wider(
            *asked,
            widened,
            sequence=sequence,
            experts=experts,
            repeated=repeated,
            runs=request.runs,
        )
    return placed(unplaced, cluster)


def everywhere(cluster: Cluster, devices: int) -> PlacementGroup:
    """The site of all stages of `devices` ranks that fill a cluster."""
    groups = tuple(range(len(cluster.groups)))
    return PlacementGroup(
        groups=groups, starts=_starts(cluster, devices, range(0, cluster.devices, devices))
    )


def placed(unplaced: Sequence[Candidate], cluster: Cluster) -> tuple[Candidate, ...]:
    """Candidates with their places: on several kinds of device once per order of the groups.

    Parameters
    ----------
    unplaced : sequence of Candidate
        Candidates that use every device, without `placing`.
    cluster : Cluster
        Its groups of nodes; on a single one candidates stay as they are.
    """
    if not cluster.others:
        return tuple(unplaced)
    shapes = [(prod(candidate.sizes), candidate.pipeline.stages) for candidate in unplaced]
    placings_by_shape = {shape: placings(cluster, *shape) for shape in dict.fromkeys(shapes)}
    return tuple(
        replace(
            candidate,
            placing=placing,
            pipeline=replace(candidate.pipeline, kind_of_stage=kinds),
        )
        for candidate, shape in zip(unplaced, shapes, strict=True)
        for placing, kinds in placings_by_shape[shape]
    )


def placings(
    cluster: Cluster, devices: int, stages: int
) -> tuple[tuple[Placing, tuple[int, ...]], ...]:
    """Every order of the groups that differs to stages of so many ranks, with their kinds."""
    numbers = range(len(cluster.groups))
    orders = list(permutations(numbers)) if len(numbers) <= ORDERED else [(*numbers,)]
    if len(numbers) > ORDERED:
        orders.append(tuple(reversed(numbers)))
    placing_by_sites: dict[object, tuple[Placing, tuple[int, ...]]] = {}
    for order in orders:
        sites = _sites(cluster, order, devices, stages)
        distinct = tuple(sorted(set(sites)))
        kinds = tuple(distinct.index(site) for site in sites)
        # One stage that spans all groups asks for nothing but their given order.
        key = tuple(sites) if stages > 1 else ()
        names = [cluster.groups[group].device.name for group in order]
        text = " before ".join(names) if stages > 1 else ""
        placing_by_sites.setdefault(key, (Placing(order=order, sites=distinct, text=text), kinds))
    return tuple(placing_by_sites.values())


def _sites(
    cluster: Cluster, order: tuple[int, ...], devices: int, stages: int
) -> list[PlacementGroup]:
    """The site of every stage, groups in this order."""
    begins = [0, *accumulate(cluster.groups[group].devices for group in order)]
    spans: list[tuple[tuple[int, ...], int]] = []
    for first in range(0, stages * devices, devices):
        on = [
            position
            for position in range(len(order))
            if begins[position] < first + devices and first < begins[position + 1]
        ]
        groups = tuple(_like(cluster, order[position]) for position in on)
        spans.append((groups, first - begins[on[0]]))
    starts = {
        groups: _starts(
            ordered(cluster, groups), devices, sorted({s for g, s in spans if g == groups})
        )
        for groups, _ in spans
    }
    return [PlacementGroup(groups=groups, starts=starts[groups]) for groups, _ in spans]


def _like(cluster: Cluster, group: int) -> int:
    """Number of the first group of the same nodes, however many there are."""
    bare = [msgspec.structs.replace(device_group, nodes=1) for device_group in cluster.groups]
    return bare.index(bare[group])


def _starts(cluster: Cluster, devices: int, starts: Iterable[int]) -> tuple[int, ...]:
    """First ranks of stages, one of them for all that lie alike."""
    stage_starts = tuple(starts)
    if cluster.others or any(start % devices for start in stage_starts):
        return stage_starts
    return (0,) if alike((devices,), frame_of(cluster)) else stage_starts


def ordered(cluster: Cluster, order: tuple[int, ...]) -> Cluster:
    """Cluster of these groups only, in this order."""
    if order == tuple(range(len(cluster.groups))):
        return cluster
    first, *others = (cluster.groups[group] for group in order)
    return msgspec.structs.replace(
        cluster,
        device=first.device,
        devices_per_node=first.devices_per_node,
        nodes=first.nodes,
        intra_node=first.intra_node,
        inter_node=first.inter_node,
        islands=first.islands,
        torus=first.torus,
        host=first.host,
        others=tuple(others),
    )


def usable_bytes(request: SearchRequest, candidate: Candidate) -> tuple[int, ...]:
    """Bytes of one device on each of a candidate's sites, of the smallest kind it has there.

    Parameters
    ----------
    request : SearchRequest
        Its memory limit counts, less what is reserved and the slack of laying out.
    candidate : Candidate
        Stages and their sites; without a `placing` it has one site, on the cluster's first kind.

    Returns
    -------
    tuple of int
        One per site, in the order that `Pipeline.kind_of_stage` counts; zero or less where what is
        reserved takes all.
    """
    if candidate.placing is None:
        return (request.usable_bytes,)
    groups = request.cluster.groups
    return tuple(
        request.usable_on(groups[group].device for group in site.groups)
        for site in candidate.placing.sites
    )


def room(candidate: Candidate, limits: tuple[int, ...]) -> int:
    """Bytes of one device of every stage together; `limits` are those on each of its sites."""
    return sum(limits[kind] for kind in candidate.pipeline.kinds)


class StageTransfers:
    """Times of a cluster's transfers between stages, found once.

    Every device hands on its share of the largest tensor that blocks of the forward pass hand on:
    where several hold all of it, readers that want all of it gather it faster on their side
    (`millrace.planner.boxing.crossing`). Gradients go back as they came.

    Parameters
    ----------
    cluster : Cluster
    handed_bytes : callable
        Bytes of what blocks hand on, over all devices, for a microbatch of so many samples.
    """

    def __init__(self, cluster: Cluster, handed_bytes: Callable[[int], int]) -> None:
        self.cluster = cluster
        self.handed_bytes = handed_bytes
        self._send_ns: dict[object, tuple[int, int]] = {}

    def pipeline(self, candidate: Candidate) -> Pipeline:
        """A candidate's pipeline, with what its stages send."""
        pipeline = candidate.pipeline
        if pipeline.stages == 1:
            return pipeline
        devices = prod(candidate.sizes)
        order = candidate.placing.order if candidate.placing else ()
        key = order, devices, pipeline.stages, self.handed_bytes(candidate.batch) // devices
        if key not in self._send_ns:
            self._send_ns[key] = self._row(*key)
        row, back = self._send_ns[key]
        # A V turns round on one stage, other rows go from the last stage to the first.
        turns = back * (pipeline.interleave - 1) if pipeline.rows > 1 else 0
        return replace(pipeline, sent_ns=2 * (pipeline.interleave * row + turns))

    def waits_ns(self, candidate: Candidate) -> float:
        """Nanoseconds that sends add to bounds of balanced stages, as each pace has a share.

        On several kinds of device stages are in balance with unequal shares.
        """
        pipeline = self.pipeline(candidate)
        alike = candidate.placing is None or len(candidate.placing.sites) == 1
        paces = (pipeline.microbatches - 1) / pipeline.stages if pipeline.in_turn and alike else 0.0
        return pipeline.sent_ns * (1 + paces)

    def buffer_bytes(self, candidate: Candidate) -> int:
        """Bytes that stages keep to receive and to send, on the stage that keeps most.

        What a chunk receives has room for as many versions as it ever keeps, whatever others keep
        then, and both ends of a transfer have one more (`millrace.planner.compile.slots`).
        """
        pipeline = candidate.pipeline
        if pipeline.stages == 1:
            return 0
        shape = pipeline.stages, pipeline.interleave, pipeline.microbatches
        most, once = pipeline.record.counts(*shape)[0], lifetime_counts(pipeline)
        parts = prod(axis.size for axis in candidate.axes if axis.role == "tp" and axis.sequence)
        gathered = GATHERED * parts if parts > 1 and has_account(self.cluster.software.name) else 0
        copies = [0] * pipeline.stages
        for position, (ever, (now, *_)) in enumerate(zip(most.tolist(), once, strict=True)):
            copies[pipeline.stage_of(position)] += ever - now + TRANSFERRED + gathered
        return max(copies) * self.handed_bytes(candidate.batch) // prod(candidate.sizes)

    def _row(self, order: tuple[int, ...], devices: int, stages: int, size: int) -> tuple[int, int]:
        """Nanoseconds from the first stage on to the last, and from the last to the first."""
        cluster = ordered(self.cluster, order) if order else self.cluster

        def hop(home: int, target: int) -> int:
            ends = {(home * devices + rank, target * devices + rank) for rank in (0, devices - 1)}
            return max(collective_duration_ns("send", size, 2, cluster, pair) for pair in ends)

        return sum(hop(stage, stage + 1) for stage in range(stages - 1)), hop(stages - 1, 0)
