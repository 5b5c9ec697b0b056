"""Sites: where on a cluster the stages of a candidate lie.

Stages take the ranks in turn, and ranks go from one group of nodes to the next. A *site* is what
stages have in common that lie on the same groups, so that their blocks cost the same. On a cluster
of several kinds of device the order of the groups is part of the search: the plan's cluster lists
them in the order that was chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, permutations
from math import prod

import msgspec

from planner.cluster import Cluster
from planner.costs.layout import frame_of
from planner.search.candidates import Candidate
from planner.search.ranks import Placing, Site, alike
from planner.search.request import SearchRequest

ORDERED = 3  # so many groups are put in every order; more of them as listed and in reverse


def everywhere(cluster: Cluster, devices: int) -> Site:
    """The site of all stages of `devices` ranks that fill a cluster."""
    groups = tuple(range(len(cluster.groups)))
    return Site(groups=groups, starts=_starts(cluster, devices, range(0, cluster.devices, devices)))


def placed(found: Sequence[Candidate], cluster: Cluster) -> tuple[Candidate, ...]:
    """Give candidates their places: on several kinds of device once per order of the groups."""
    if not cluster.others:
        return tuple(found)
    shapes = [(prod(candidate.sizes), candidate.pipeline.stages) for candidate in found]
    known = {shape: placings(cluster, *shape) for shape in dict.fromkeys(shapes)}
    return tuple(
        replace(
            candidate,
            placing=placing,
            pipeline=replace(candidate.pipeline, kind_of_stage=kinds),
        )
        for candidate, shape in zip(found, shapes, strict=True)
        for placing, kinds in known[shape]
    )


def placings(
    cluster: Cluster, devices: int, stages: int
) -> tuple[tuple[Placing, tuple[int, ...]], ...]:
    """Every order of the groups that differs to stages of so many ranks, with their kinds."""
    numbers = range(len(cluster.groups))
    orders = list(permutations(numbers)) if len(numbers) <= ORDERED else [(*numbers,)]
    if len(numbers) > ORDERED:
        orders.append(tuple(reversed(numbers)))
    found: dict[object, tuple[Placing, tuple[int, ...]]] = {}
    for order in orders:
        sites = _sites(cluster, order, devices, stages)
        distinct = tuple(sorted(set(sites)))
        kinds = tuple(distinct.index(site) for site in sites)
        # One stage that spans all groups asks for nothing but their given order.
        key = tuple(sites) if stages > 1 else ()
        names = [cluster.groups[at].device.name for at in order]
        text = " before ".join(names) if stages > 1 else ""
        found.setdefault(key, (Placing(order=order, sites=distinct, text=text), kinds))
    return tuple(found.values())


def _sites(cluster: Cluster, order: tuple[int, ...], devices: int, stages: int) -> list[Site]:
    """The site of every stage, groups in this order."""
    begins = [0, *accumulate(cluster.groups[at].devices for at in order)]
    spans: list[tuple[tuple[int, ...], int]] = []
    for first in range(0, stages * devices, devices):
        on = [
            at
            for at in range(len(order))
            if begins[at] < first + devices and first < begins[at + 1]
        ]
        groups = tuple(_like(cluster, order[at]) for at in on)
        spans.append((groups, first - begins[on[0]]))
    starts = {
        groups: _starts(
            ordered(cluster, groups), devices, sorted({s for g, s in spans if g == groups})
        )
        for groups, _ in spans
    }
    return [Site(groups=groups, starts=starts[groups]) for groups, _ in spans]


def _like(cluster: Cluster, group: int) -> int:
    """The first group of the same nodes, however many there are."""
    bare = [msgspec.structs.replace(one, nodes=1) for one in cluster.groups]
    return bare.index(bare[group])


def _starts(cluster: Cluster, devices: int, starts: Iterable[int]) -> tuple[int, ...]:
    """First ranks of stages, one of them for all that lie alike."""
    found = tuple(starts)
    if cluster.others or any(start % devices for start in found):
        return found
    return (0,) if alike((devices,), frame_of(cluster)) else found


def ordered(cluster: Cluster, order: tuple[int, ...]) -> Cluster:
    """The cluster with these of its groups, in this order."""
    if order == tuple(range(len(cluster.groups))):
        return cluster
    first, *others = (cluster.groups[at] for at in order)
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
    """Bytes of one device on each of a candidate's sites, of the smallest kind it has there."""
    if candidate.placing is None:
        return (request.usable_bytes,)
    groups = request.cluster.groups
    return tuple(
        request.usable_on(groups[at].device for at in site.groups)
        for site in candidate.placing.sites
    )


def room(candidate: Candidate, limits: tuple[int, ...]) -> int:
    """Bytes of one device of every stage together; `limits` are those on each of its sites."""
    return sum(limits[kind] for kind in candidate.pipeline.kinds)
