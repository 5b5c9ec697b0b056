"""Groups of mesh axes: the slowest of all there are counts, found by looking at few of them."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.planner.cluster import Cluster, Islands, Leaves, NodeGroup, Torus
from millrace.planner.clusters import device
from millrace.planner.costs import collective_duration_ns
from millrace.planner.costs.group_topology import frame_of
from millrace.planner.search.blocks.boxing_costs import BoxingCosts
from millrace.planner.search.placement_groups import everywhere
from millrace.planner.search.rank_groups import group_ranks, unlike_groups
from tests.plain_links import link

FLAT = Cluster(
    name="flat",
    device=device("a100-sxm-80gb"),
    devices_per_node=4,
    nodes=12,
    intra_node=link(10, 100.0),
    inter_node=link(50, 10.0),
)
OTHER = NodeGroup(
    device=device("h100-sxm-80gb"),
    devices_per_node=4,
    nodes=6,
    intra_node=link(5, 200.0),
    inter_node=link(50, 5.0),
)
CLUSTERS = {
    "flat": FLAT,
    "tree": replace(FLAT, leaves=Leaves(nodes=4, oversubscription=4.0, latency_ns=20)),
    "rails": replace(FLAT, leaves=Leaves(nodes=2, oversubscription=4.0, rails=True)),
    "pairs": replace(FLAT, islands=Islands(devices=2, link=link(5, 300.0))),
    "grid": replace(FLAT, devices_per_node=24, nodes=2, torus=Torus(dims=(2, 3, 4))),
    "lines": replace(FLAT, devices_per_node=24, nodes=2, torus=Torus(dims=(6, 4), wrap_multiple=4)),
    "mixed": replace(FLAT, nodes=6, others=(OTHER,)),
}


def slowest_ns(
    kind: str, size: int, mesh: tuple[int, ...], axes: tuple[int, ...], on: Cluster
) -> int:
    """Nanoseconds of the slowest of all groups of these axes, on all stages."""
    first = group_ranks(mesh, axes)
    strides = [prod(mesh[axis + 1 :]) for axis in range(len(mesh))]
    others = [axis for axis in range(len(mesh)) if axis not in axes]
    longest_ns = 0
    for start in range(0, on.devices, prod(mesh)):
        for coordinates in product(*(range(mesh[axis]) for axis in others)):
            offset = start + sum(
                step * strides[axis] for step, axis in zip(coordinates, others, strict=True)
            )
            ranks = tuple(rank + offset for rank in first)
            longest_ns = max(longest_ns, collective_duration_ns(kind, size, len(ranks), on, ranks))
    return longest_ns


@pytest.mark.parametrize("name", CLUSTERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_collective_costs_what_the_slowest_of_all_its_groups_takes(
    name: str, data: st.DataObject
) -> None:
    on = CLUSTERS[name]
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8])
    meshes = st.tuples(sizes, sizes, sizes).filter(lambda mesh: on.devices % prod(mesh) == 0)
    mesh = data.draw(meshes)
    axes = data.draw(st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]))
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "all_to_all"]))
    size = data.draw(st.sampled_from([0, 10_000, 10**8]))
    site = everywhere(on, prod(mesh))
    boxing_costs = BoxingCosts(on, np.array(mesh).reshape(-1, 1), {}, starts=[site.starts])
    durations_ns = boxing_costs.collective_ns(kind, axes, np.array([[size]]))
    assert int(durations_ns[0, 0]) == slowest_ns(kind, size, mesh, axes, on)


def test_one_group_stands_for_all_where_sizes_divide_what_levels_hold() -> None:
    tree = frame_of(CLUSTERS["tree"])
    assert unlike_groups((2, 4), (1,), (0,), tree) == ((0, 1, 2, 3),)
    assert everywhere(CLUSTERS["tree"], 8).starts == (0,)
    assert len(unlike_groups((4, 3), (1,), (0,), tree)) == 2
    assert len(everywhere(CLUSTERS["tree"], 12).starts) == 4
