"""Costs: never less for more work, the textbook's formulas, and measured tables where given."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.models.ops import OPS
from millrace.planner.actors.graph import ActorGraph, Meeting
from millrace.planner.cluster import Cluster, Device
from millrace.planner.clusters import device
from millrace.planner.costs import (
    collective_duration_ns,
    durations,
    interpolate_ns,
    op_duration_ns,
)
from millrace.planner.errors import ClusterError
from millrace.planner.mesh import Axis
from millrace.planner.proxies import PRICED_LIKE
from tests.plain_links import link, plain_device
from tests.simulator.graphs import SimulatedWriter

PLAIN = plain_device()
LINK, SLOW = link(100, 1.0), link(1_000, 0.1)
CLUSTER = Cluster(
    name="plain", device=PLAIN, devices_per_node=4, nodes=4, intra_node=LINK, inter_node=SLOW
)

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


def matmul_ns(m: int, k: int, n: int, on: Device, dtype: str = "float32") -> int:
    shapes = ((m, k), (k, n))
    return op_duration_ns(
        "matmul", "m k, k n -> m n", {}, shapes, ((m, n),), (dtype, dtype), (dtype,), on
    )


def test_a_large_product_costs_its_flops_and_a_small_one_its_bytes() -> None:
    assert matmul_ns(100, 100, 100, PLAIN) == 2 * 100**3
    assert matmul_ns(1, 1, 1, PLAIN) == 3 * 4


def test_efficiencies_and_launch_add_to_the_roofline() -> None:
    slow = msgspec.structs.replace(PLAIN, matmul_efficiency=0.5, launch_ns=7)
    assert matmul_ns(100, 100, 100, slow) == 7 + 4 * 100**3


def test_a_product_in_sixteen_bits_uses_the_rate_of_sixteen_bits() -> None:
    on = device("a100-sxm-80gb")
    assert matmul_ns(4096, 4096, 4096, on) > 10 * matmul_ns(4096, 4096, 4096, on, "float16")


def test_a_precision_that_the_device_lacks_is_refused_by_name() -> None:
    with pytest.raises(ClusterError, match="`v100-sxm-32gb` has no bf16 arithmetic"):
        matmul_ns(8, 8, 8, device("v100-sxm-32gb"), "bfloat16")


def moved_ns(kind: str, count: int, on: Device) -> int:
    shape = (count,)
    return op_duration_ns(
        kind, "n -> n", {}, (shape,), (shape,), ("float32",), ("float32",), on
    )  # fmt: skip


def test_an_unmeasured_kind_costs_what_its_like_does_for_its_factor_of_the_bytes() -> None:
    measured = {"relu": ((100, 1_000), (10_000, 100_000))}
    on = msgspec.structs.replace(PLAIN, kernels=measured)
    assert moved_ns("tanh", 125, on) == moved_ns("relu", 125, on) == 10_000
    assert moved_ns("scale", 125, on) == 7_000
    assert moved_ns("scale", 1, on) == 1_000


def test_a_kind_of_which_neither_it_nor_its_like_is_measured_keeps_the_roofline() -> None:
    on = msgspec.structs.replace(PLAIN, kernels={"matmul": ((1, 1), (10, 10))})
    assert moved_ns("tanh", 125, on) == moved_ns("tanh", 125, PLAIN) == 1_000


def test_its_own_table_goes_before_that_of_a_like() -> None:
    kernels = {"relu": ((100, 1_000),), "tanh": ((1_000, 77),)}
    assert moved_ns("tanh", 125, msgspec.structs.replace(PLAIN, kernels=kernels)) == 77


def test_attention_with_a_bias_is_read_from_the_tables_of_attention_by_head_size() -> None:
    kernels = {"attention/4": ((1_000, 5_000), (100_000, 500_000))}
    on = msgspec.structs.replace(PLAIN, kernels=kernels)
    q, row, bias = (2, 5, 3, 4), (2, 5, 3), (3, 5, 5)
    labels = "b t h d!, b s! h d!, b s! h u!, h t s! -> b t h u!, b t h"
    attributes = {"causal": True, "scale": 1.0}
    flops = 4 * 2 * 5 * 5 * 3 * 4
    duration_ns = op_duration_ns(
        "biased_attention", labels, attributes, (q, q, q, bias), (q, row), ("float32",) * 4,
        ("float32",) * 2, on,
    )  # fmt: skip
    assert duration_ns == pytest.approx(1.1 * flops * 5, rel=1e-3)


def test_likes_count_the_same_kind_of_work() -> None:
    for kind, like in PRICED_LIKE.items():
        assert OPS[kind].multiplies == OPS[like.kind].multiplies, kind
        assert like.factor > 0
        assert like.kind not in PRICED_LIKE


def test_local_boxing_reads_and_writes_the_smaller_side() -> None:
    full, part = ((8, 4),), ((2, 4),)
    f32 = ("float32",)
    assert op_duration_ns("slice", "", {}, full, part, f32, f32, PLAIN) == 2 * 2 * 4 * 4
    assert op_duration_ns("pad", "", {}, part, full, f32, f32, PLAIN) == (2 + 8) * 4 * 4


def test_interpolation_is_straight_on_logarithms_and_clamped_outside() -> None:
    points = ((100, 1_000), (10_000, 100_000))
    assert interpolate_ns(points, 1_000) == 10_000
    assert interpolate_ns(points, 1) == 1_000
    assert interpolate_ns(points, 30_000) == 300_000
    assert interpolate_ns(((5, 3), (10, 2), (20, 9)), 10) == 3, (
        "noise never makes more work cheaper"
    )


@settings(deadline=None)
@given(
    points=st.dictionaries(st.integers(1, 10**12), st.integers(1, 10**12), min_size=1, max_size=6),
    work=st.lists(st.integers(0, 10**13), min_size=2, max_size=8),
)
def test_interpolated_durations_never_fall_with_work(
    points: dict[int, int], work: list[int]
) -> None:
    table = tuple(sorted(points.items()))
    durations_ns = [interpolate_ns(table, size) for size in sorted(work)]
    assert durations_ns == sorted(durations_ns)


@settings(deadline=None)
@given(kind=st.sampled_from(COLLECTIVES), size=st.integers(0, 10**9), group=st.integers(2, 15))
def test_a_larger_group_never_costs_less(kind: str, size: int, group: int) -> None:
    wide = msgspec.structs.replace(CLUSTER, devices_per_node=16)
    here = collective_duration_ns(kind, size, group, wide)
    assert here <= collective_duration_ns(kind, size, group + 1, wide)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_reduce", 6 * 100 + 1_500_000),
        ("all_gather", 3 * 100 + 750_000),
        ("reduce_scatter", 3 * 100 + 750_000),
        ("all_to_all", 3 * 100 + 750_000),
    ],
)
def test_collectives_inside_a_node_follow_the_formula_of_the_ring(kind: str, expected: int) -> None:
    assert collective_duration_ns(kind, 1_000_000, 4, CLUSTER) == expected


def test_a_tiny_all_reduce_goes_along_a_tree() -> None:
    assert collective_duration_ns("all_reduce", 0, 4, CLUSTER) == 2 * 2 * 100


def test_a_transfer_takes_the_link_between_its_two_ends() -> None:
    assert collective_duration_ns("send", 1_000_000, 2, CLUSTER, (0, 1)) == 100 + 1_000_000
    assert collective_duration_ns("recv", 1_000_000, 2, CLUSTER, (3, 4)) == 1_000 + 10_000_000


def test_a_group_of_one_costs_nothing() -> None:
    assert collective_duration_ns("all_reduce", 10**9, 1, CLUSTER) == 0


def test_every_member_in_a_node_brings_its_own_lane_of_the_network() -> None:
    spread = collective_duration_ns("all_reduce", 10**6, 4, CLUSTER, (0, 4, 8, 12))
    paired = collective_duration_ns("all_reduce", 10**6, 4, CLUSTER, (0, 1, 4, 5))
    assert spread == 6 * 1_000 + 15_000_000
    # Half is reduced inside each node first, then each member moves its half over its own lane.
    assert paired == 2 * (100 + 500_000) + 2 * (1_000 + 2_500_000)


def test_a_measured_collective_is_read_from_its_table_inside_a_node_only() -> None:
    measured = msgspec.structs.replace(PLAIN, collectives={"all_reduce/2": ((100, 5_000),)})
    cluster = msgspec.structs.replace(CLUSTER, device=measured)
    assert collective_duration_ns("all_reduce", 100, 2, cluster) == 5_000
    assert collective_duration_ns("all_reduce", 100, 2, cluster, (0, 4)) > 1_000
    assert collective_duration_ns("all_reduce", 100, 4, cluster) != 5_000


def two_actors() -> ActorGraph:
    """A relu of four numbers and an all_reduce over dp on eight ranks."""
    writer = SimulatedWriter()
    writer.actor("x", "compute", [("a", 1)], [("b", 1)])
    meeting = Meeting(key="g", kind="all_reduce", axes=("dp",), message_bytes=4_000)
    writer.actor("g", "lane", [("b", 1)], [("c", 1)], meeting=meeting)
    axes = (Axis(name="dp", size=4), Axis(name="tp", size=2))
    return ActorGraph(name="two", axes=axes, programs=(writer.program(ranks=tuple(range(8))),))


def test_compiled_actors_cost_what_their_registers_and_groups_say() -> None:
    # The group of rank 0 is 0 2 4 6: two members on each of two nodes.
    reduced = collective_duration_ns("all_reduce", 4_000, 4, CLUSTER, (0, 2, 4, 6))
    assert durations(two_actors(), CLUSTER) == ((2 * 4 * 4, reduced),)


def test_where_ranks_lie_on_two_kinds_of_device_the_slower_one_counts() -> None:
    slow = plain_device(name="slow", memory_bandwidth_bytes_per_s=5e8)
    other = msgspec.structs.replace(
        CLUSTER.groups[0], device=slow, nodes=1, inter_node=LINK, intra_node=SLOW
    )
    mixed = msgspec.structs.replace(CLUSTER, nodes=1, others=(other,))
    relu, reduced = durations(two_actors(), mixed)[0]
    assert relu == 2 * durations(two_actors(), CLUSTER)[0][0]
    # Groups 0 2 4 6 and 1 3 5 7 have two members on each node, the second with the slow links.
    assert reduced == collective_duration_ns("all_reduce", 4_000, 4, mixed, (1, 3, 5, 7))
