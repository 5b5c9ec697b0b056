"""Topologies: what islands, leaves, rails, tori and mixed nodes make of a collective's cost."""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.graph import to_json
from millrace.planner.cluster import Cluster, Islands, Leaves, NodeGroup, Torus
from millrace.planner.clusters import device, parse_cluster, validate
from millrace.planner.costs import (
    collective_duration_ns,
    collective_lines,
)
from millrace.planner.costs.group_topology import frame_of, layout_of
from millrace.planner.errors import ClusterError
from tests.plain_links import link, plain_device

DOCS = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text("utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GIB = 2**30


# Eight devices a node at 100 bytes per ns, a network of 10 per device.
FLAT = Cluster(
    name="flat",
    device=plain_device(),
    devices_per_node=8,
    nodes=16,
    intra_node=link(10, 100.0),
    inter_node=link(50, 10.0),
)
replace = msgspec.structs.replace
TREE = replace(FLAT, leaves=Leaves(nodes=4, oversubscription=4.0, latency_ns=20))
RAILS = replace(FLAT, leaves=Leaves(nodes=4, oversubscription=4.0, rails=True, latency_ns=20))
PAIRS = replace(FLAT, intra_node=link(10, 20.0), islands=Islands(devices=2, link=link(5, 200.0)))
GRID = replace(FLAT, devices_per_node=64, nodes=2, torus=Torus(dims=(4, 16)))
LINES = replace(GRID, torus=Torus(dims=(4, 16), wrap_multiple=0))
OLD = NodeGroup(
    device=plain_device(name="old", flops_per_s={"fp32": 5e8}, memory_bandwidth_bytes_per_s=5e8),
    devices_per_node=4,
    nodes=8,
    intra_node=link(20, 50.0),
    inter_node=link(80, 2.0),
)
MIXED = replace(FLAT, nodes=4, others=(OLD,))
CLUSTERS = (FLAT, TREE, RAILS, PAIRS, GRID, LINES, MIXED)
IDS = ["flat", "tree", "rails", "pairs", "grid", "lines", "mixed"]


def cost(kind: str, size: int, ranks: tuple[int, ...], on: Cluster) -> int:
    return collective_duration_ns(kind, size, len(ranks), on, ranks)


@st.composite
def groups(draw: st.DrawFn, devices: int) -> tuple[int, ...]:
    """Ranks of a group: any set, or a mesh axis with equal steps from some first rank."""
    if draw(st.booleans()):
        ranks = draw(st.sets(st.integers(0, devices - 1), min_size=2, max_size=20))
        return tuple(sorted(ranks))
    stride = 2 ** draw(st.integers(0, 5))
    first = draw(st.integers(0, stride - 1))
    axis_ranks = tuple(range(first, devices, stride))
    return axis_ranks[: draw(st.integers(2, len(axis_ranks)))]


@pytest.mark.parametrize("on", CLUSTERS, ids=IDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), kind=st.sampled_from(KINDS), size=st.integers(0, GIB))
def test_a_longer_message_never_costs_less_and_pieces_say_what_it_costs(
    on: Cluster, data: st.DataObject, kind: str, size: int
) -> None:
    ranks = data.draw(groups(min(on.devices, 64)))
    here = cost(kind, size, ranks, on)
    assert here <= cost(kind, size + data.draw(st.integers(0, GIB)), ranks, on)
    pieces = collective_lines(kind, ranks, on)
    assert pieces
    assert min(fixed + slope * size for fixed, slope in pieces) <= here
    assert [fixed for fixed, _ in pieces] == sorted({fixed for fixed, _ in pieces})
    assert [-slope for _, slope in pieces] == sorted({-slope for _, slope in pieces})


@settings(deadline=None, max_examples=60)
@given(
    per_node=st.sampled_from((1, 2, 4, 8)),
    nodes=st.integers(1, 15),
    size=st.integers(0, GIB),
    on=st.sampled_from((FLAT, TREE, RAILS, PAIRS)),
)
def test_an_all_reduce_over_more_nodes_never_costs_less(
    per_node: int, nodes: int, size: int, on: Cluster
) -> None:
    def over(count: int) -> tuple[int, ...]:
        return tuple(8 * node + place for node in range(count) for place in range(per_node))

    if per_node * nodes > 1:
        assert cost("all_reduce", size, over(nodes), on) <= cost(
            "all_reduce", size, over(nodes + 1), on
        )


@settings(deadline=None, max_examples=60)
@given(
    ranks=groups(128),
    kind=st.sampled_from(KINDS),
    size=st.integers(0, GIB),
    factor=st.floats(1.0, 16.0),
    rails=st.booleans(),
)
def test_oversubscription_never_makes_a_collective_faster(
    ranks: tuple[int, ...], kind: str, size: int, factor: float, rails: bool
) -> None:
    full = replace(FLAT, leaves=Leaves(nodes=4, rails=rails))
    narrow = replace(FLAT, leaves=Leaves(nodes=4, rails=rails, oversubscription=factor))
    assert cost(kind, size, ranks, full) <= cost(kind, size, ranks, narrow)


@settings(deadline=None, max_examples=60)
@given(
    place=st.integers(0, 7),
    nodes=st.integers(2, 16),
    kind=st.sampled_from((*KINDS, "send")),
    size=st.integers(0, GIB),
)
def test_rails_never_slow_a_group_that_keeps_to_them(
    place: int, nodes: int, kind: str, size: int
) -> None:
    # The same switches: one that takes a port of each of 8 nodes as a rail holds one whole node.
    rails = replace(FLAT, leaves=Leaves(nodes=8, oversubscription=4.0, rails=True))
    whole_nodes = replace(FLAT, leaves=Leaves(nodes=1, oversubscription=4.0))
    ranks = tuple(8 * node + place for node in range(2 if kind == "send" else nodes))
    assert cost(kind, size, ranks, rails) <= cost(kind, size, ranks, whole_nodes)


def test_a_group_on_its_rail_has_full_speed_and_any_other_crosses_the_spine() -> None:
    on_rail, across = (0, 8, 16, 24), (0, 9, 18, 27)
    assert cost("all_gather", GIB, on_rail, RAILS) == cost("all_gather", GIB, on_rail, FLAT)
    assert cost("all_gather", GIB, across, RAILS) == pytest.approx(
        4 * cost("all_gather", GIB, across, FLAT), rel=0.01
    )
    assert cost("send", GIB, (0, 8), RAILS) < cost("send", GIB, (0, 9), RAILS)


def test_a_leaf_shares_its_links_upwards_among_all_that_lies_under_it() -> None:
    inside, beyond = tuple(range(0, 32, 8)), tuple(range(0, 64, 8))
    assert cost("all_gather", GIB, inside, TREE) == cost("all_gather", GIB, inside, FLAT)
    # Four members under each leaf share a quarter of four links: a ring needs no more than that.
    assert cost("all_gather", GIB, beyond, TREE) == pytest.approx(
        cost("all_gather", GIB, beyond, FLAT), rel=0.01
    )
    alone = (0, 32)
    assert cost("all_gather", GIB, alone, TREE) == pytest.approx(
        4 * cost("all_gather", GIB, alone, FLAT), rel=0.01
    )


def test_a_ring_over_all_ranks_of_a_node_owns_all_its_interfaces() -> None:
    one_per_node, every_rank = tuple(range(0, 128, 8)), tuple(range(128))
    assert (
        cost("all_reduce", GIB, every_rank, FLAT) < cost("all_reduce", GIB, one_per_node, FLAT) / 4
    )


def test_pairs_meet_fast_and_quads_over_the_bus() -> None:
    assert cost("all_gather", 2**20, (0, 1), PAIRS) == 5 + 2**20 // 2 // 200 + 1
    assert cost("all_gather", 2**20, (1, 2), PAIRS) > cost("all_gather", 2**20, (0, 1), PAIRS)
    # Both members of a pair bring their own link to the bus.
    wide, narrow = (0, 1, 2, 3), (0, 2, 4, 6)
    assert cost("all_reduce", GIB, wide, PAIRS) < cost("all_reduce", GIB, narrow, PAIRS)


def test_rings_of_a_torus_go_both_ways_and_all_dims_work_at_once() -> None:
    row, column = tuple(range(16)), tuple(range(0, 64, 16))
    plane = tuple(range(64))
    rate = 2 * 100.0
    assert cost("all_gather", GIB, row, GRID) == pytest.approx(15 / 16 * GIB / rate, rel=1e-4)
    assert cost("all_gather", GIB, column, GRID) == pytest.approx(3 / 4 * GIB / rate, rel=1e-4)
    assert cost("all_gather", GIB, plane, GRID) == pytest.approx(
        63 / 64 * GIB / (2 * rate), rel=1e-4
    )
    assert cost("all_reduce", GIB, plane, GRID) == pytest.approx(
        2 * cost("all_gather", GIB, plane, GRID), rel=1e-4
    )
    assert cost("all_to_all", GIB, row, GRID) == pytest.approx(16 / 8 * GIB / 100, rel=1e-4)


def test_a_line_has_half_of_a_ring_and_a_strided_group_its_share() -> None:
    row = tuple(range(16))
    ring, line = (cost("all_gather", GIB, row, on) for on in (GRID, LINES))
    assert line == pytest.approx(2 * ring, rel=1e-4)
    part = tuple(range(8))
    assert cost("all_gather", GIB, part, GRID) == pytest.approx(7 / 8 * GIB / 100, rel=1e-4)
    strided = tuple(range(0, 16, 2))
    assert cost("all_gather", GIB, strided, GRID) == pytest.approx(7 / 8 * GIB / 100, rel=1e-4)
    scattered = (0, 1, 3, 20)
    assert cost("all_gather", GIB, scattered, GRID) > cost("all_gather", GIB, (0, 1, 2, 3), GRID)


def test_the_two_ends_of_a_wrapped_dim_are_neighbours() -> None:
    assert cost("send", GIB, (0, 15), GRID) == cost("send", GIB, (0, 1), GRID)
    assert cost("send", GIB, (0, 15), LINES) > cost("send", GIB, (0, 1), LINES)
    # Every stage sends at once: what goes four steps shares each link with three others.
    assert cost("send", GIB, (0, 4), GRID) == pytest.approx(4 * GIB / 100, rel=1e-4)


def test_slices_of_tori_meet_over_the_network_of_all_their_devices() -> None:
    both = tuple(range(128))
    inside = cost("all_reduce", GIB, tuple(range(64)), GRID)
    assert inside < cost("all_reduce", GIB, both, GRID)
    assert cost("all_reduce", GIB, both, GRID) == pytest.approx(
        inside + 2 * (1 / 2) * GIB / 64 / 10, rel=1e-2
    )


def test_ranks_of_a_mixed_cluster_go_on_from_one_kind_to_the_next() -> None:
    assert MIXED.devices == 4 * 8 + 8 * 4
    assert [MIXED.device_of(rank).name for rank in (0, 31, 32, 63)] == [
        "plain", "plain", "old", "old",
    ]  # fmt: skip
    assert MIXED.device == MIXED.groups[0].device


def test_the_slower_kind_sets_the_pace_of_a_group_over_both() -> None:
    new, old, both = (0, 8), (32, 36), (24, 32)
    assert cost("all_gather", GIB, new, MIXED) < cost("all_gather", GIB, old, MIXED)
    assert cost("all_gather", GIB, both, MIXED) == cost("all_gather", GIB, old, MIXED)
    assert cost("all_gather", GIB, (0, 1), MIXED) < cost("all_gather", GIB, (32, 33), MIXED)


@pytest.mark.parametrize("on", CLUSTERS, ids=IDS)
def test_groups_that_lie_alike_have_one_layout(on: Cluster) -> None:
    frame = frame_of(on)
    assert layout_of((0, 1), frame) == layout_of((2, 3), frame)
    assert layout_of((0, 8), frame) == layout_of((1, 9), frame)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split('"')[1])
def test_every_example_of_the_documentation_is_a_cluster(tmp_path: Path, text: str) -> None:
    path = tmp_path / "example.toml"
    path.write_text(text)
    cluster = parse_cluster(str(path))
    assert cluster.levels[-1].devices == cluster.devices
    assert msgspec.json.decode(to_json(cluster), type=Cluster) == cluster
    assert cost("all_reduce", GIB, tuple(range(cluster.devices)), cluster) > 0


def test_a_slice_of_any_size_is_as_near_to_a_cube_as_it_goes() -> None:
    assert parse_cluster("tpu-v5p:64x2").torus == Torus(dims=(4, 4, 4), wrap_multiple=4)
    assert parse_cluster("tpu-v6e:32x1").torus == Torus(dims=(4, 8), wrap_multiple=16)
    full_torus = parse_cluster("tpu-v6e:256x1")
    assert full_torus.torus is not None
    assert [full_torus.torus.wraps(dim) for dim in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (replace(PAIRS, islands=Islands(devices=3, link=link(1, 1.0))), "islands.devices is 3"),
        (replace(PAIRS, torus=Torus(dims=(2, 4))), "torus and islands exclude each other"),
        (replace(GRID, torus=Torus(dims=(4, 4))), r"torus.dims is \[4, 4\], expected sizes whose"),
        (replace(GRID, torus=Torus(dims=(4, 16), wrap_multiple=-1)), "wrap_multiple is -1"),
        (replace(TREE, leaves=Leaves(nodes=0)), "leaves.nodes is 0"),
        (replace(TREE, leaves=Leaves(nodes=2, oversubscription=0.5)), "oversubscription is 0.5"),
        (replace(MIXED, others=(replace(OLD, nodes=0),)), r"others\[0\].nodes is 0"),
        (
            replace(MIXED, others=(replace(OLD, device=plain_device(launch_ns=1)),)),
            "two devices are called",
        ),
        *(
            (replace(FLAT, device=plain_device(**{field: value})), f"device.{field} is")
            for field, value in (
                ("power_watts", -1.0),
                ("multiprocessors", -1),
                ("attention_efficiency", 1.5),
                ("narrow_efficiency", 0.0),
                ("plain_efficiency", 1.5),
            )
        ),
        (replace(FLAT, device=plain_device(library="mpi")), "is `mpi`, expected one of nccl"),
        *(
            (replace(FLAT, device=plain_device(kernels={"matmul": points})), said)
            for points, said in (
                ((), "has no points"),
                (((0, 5),), "must be above 0"),
                (((10, 2**62),), "its time at most"),
                (((10, 5), (10, 6)), "sort by the first column"),
            )
        ),
        *(
            (replace(FLAT, inter_node=replace(FLAT.inter_node, **change)), f"inter_node.{said}")
            for change, said in (
                ({"gap_ns": -1}, "gap_ns is -1, expected 0 to 900,000,000,000"),
                ({"joined": ((1, 0.5),)}, "joined has 1 members with a share of 0.5, expected 2"),
                ({"congestion": 1.0}, "congestion is 1.0, expected 0 or more and below 1"),
            )
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_by_field_and_value(
    broken: Cluster, expected: str
) -> None:
    with pytest.raises(ClusterError, match=expected):
        validate(broken)


def test_prices_and_power_are_there_to_optimize_for() -> None:
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi355x"):
        on = device(name)
        assert 1 < (on.price_usd_per_hour or 0) < 30
        assert 300 <= (on.power_watts or 0) <= 1500
    assert device("cpu-core").price_usd_per_hour is None
