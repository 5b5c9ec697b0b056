"""Topologies in the search: each degree lies on links that are fast enough for it."""

from math import prod

from msgspec.structs import replace

from millrace.planner.cluster import Cluster, Islands, Leaves, Torus
from millrace.planner.clusters import parse_cluster
from millrace.planner.plan import Plan
from tests.plain_links import link
from tests.plan_requests import plan_of
from tests.small_models import gpt_of

NODE = parse_cluster("a100-sxm-80gb:8x1")
NVLINK, PCIE = link(1_400, 240.0), link(2_500, 20.0)
SWITCH = replace(NODE, devices_per_node=4, intra_node=NVLINK)
PAIRS = replace(SWITCH, intra_node=PCIE, islands=Islands(devices=2, link=NVLINK))
NODES = replace(NODE, devices_per_node=2, nodes=4, intra_node=NVLINK, inter_node=link(3_000, 100.0))
LEAVES = replace(NODES, leaves=Leaves(nodes=2, oversubscription=8.0, latency_ns=1_000))
GRID = replace(NODE, intra_node=link(1_000, 50.0), torus=Torus(dims=(2, 4)))
RING = replace(GRID, torus=Torus(dims=(8,)))


def planned(
    on: Cluster, hidden: int, global_batch: int, *, max_gap: float = 2.0, **pins: object
) -> Plan:
    """A plan; by default the first solutions, which are clear enough where much is at stake."""
    model = gpt_of(4, hidden, hidden // 64, vocab=1024, positions=512, precision="bf16")
    return plan_of(model, on, global_batch, max_gap=max_gap, **pins)


def axes(plan: Plan) -> list[tuple[str, int]]:
    return [(axis.name, axis.size) for axis in plan.mesh.axes]


def objective_s(plan: Plan) -> float:
    assert plan.evidence is not None
    return plan.evidence.objective_s


def test_tensor_parallelism_keeps_to_bridged_pairs_and_stages_cross_between_them() -> None:
    bridged = planned(PAIRS, 2048, 2)
    assert (bridged.stages, axes(bridged)) == (2, [("tp", 2)])
    switched = planned(SWITCH, 2048, 2)
    assert switched.stages == 1
    assert {name[:2] for name, _ in axes(switched)} == {"tp"}  # one axis of four, or two of two
    assert prod(switched.mesh.sizes) == 4


def test_replicas_cross_oversubscribed_leaves_and_tensor_parallelism_does_not() -> None:
    pins = {"pp": 1, "cp": 1, "zero": "0", "sequence_parallel": False}
    plan = planned(LEAVES, 512, 8, **pins)
    assert axes(plan) == [("dp", 2), ("tp", 4)]  # a leaf holds four devices
    lost_s = objective_s(plan) - objective_s(planned(NODES, 512, 8, **pins))
    across = [objective_s(planned(on, 512, 8, tp=8, **pins)) for on in (LEAVES, NODES)]
    assert 0 < lost_s < across[0] - across[1]


def test_a_second_dim_of_a_torus_gains_over_a_ring() -> None:
    pins = {"pp": 1, "cp": 1, "zero": "0", "sequence_parallel": False}
    grid, ring = (planned(on, 512, 8, **pins) for on in (GRID, RING))
    assert prod(grid.mesh.sizes) == prod(ring.mesh.sizes) == 8
    assert objective_s(grid) < objective_s(ring)


def test_axes_take_the_dims_of_a_torus() -> None:
    """An axis of four costs less as a dim of its own than across both dims."""
    pins = {"pp": 1, "cp": 1, "dp": 2, "tp": 4, "zero": "0", "sequence_parallel": False}
    pins |= {"micro_batch": 4, "schedule": "1f1b", "recompute": "none"}  # of the best plans on both
    turned = replace(GRID, torus=Torus(dims=(4, 2)))
    along, across = (planned(on, 512, 8, max_gap=0.001, **pins) for on in (GRID, turned))
    assert objective_s(along) < objective_s(across)
