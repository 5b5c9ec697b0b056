"""Clusters of two kinds of device: stages are sized to where they lie, and bounds hold."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from millrace.models.graph import to_json
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster, Device, NodeGroup
from millrace.planner.clusters import framework, parse_cluster
from millrace.planner.frameworks.framework_tables import capabilities
from millrace.planner.memory import device_overhead_bytes, plan_memory
from millrace.planner.plan import Plan
from millrace.planner.search import Pins, SearchRequest, search
from millrace.planner.search.asking import shared_prices
from millrace.planner.search.candidates import candidates
from millrace.planner.search.evaluation import Evaluator, Solved, SolvedPlan
from millrace.planner.search.placement_groups import candidates_of, placed, placings, usable_bytes
from millrace.planner.search.programs import Ask
from millrace.planner.search.ranking.outcomes import outcomes_of
from millrace.planner.search.uniform.site_bounds import site_bounds_ns
from tests.plan_requests import request_of
from tests.small_models import gpt_of

GPT = gpt_of(16, 512, 8, vocab=512, positions=256, precision="bf16")
# Without multiprocessors nothing has a length of its own, which a slower device would not double.
CATALOGUED = parse_cluster("a100-sxm-80gb:4x1")
NODE = replace(CATALOGUED, device=replace(CATALOGUED.device, multiprocessors=0))


def slower(factor: float, **fields: object) -> Device:
    """A device of which everything takes so much longer."""
    fast = NODE.device
    return replace(
        fast,
        name=f"{fast.name}-{factor:g}-slower",
        flops_per_s={name: rate / factor for name, rate in fast.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=fast.memory_bandwidth_bytes_per_s / factor,
        launch_ns=round(fast.launch_ns * factor),
        **fields,
    )


def nodes_of(kind: Device, nodes: int = 1) -> NodeGroup:
    return NodeGroup(
        device=kind,
        devices_per_node=4,
        nodes=nodes,
        intra_node=NODE.intra_node,
        inter_node=NODE.inter_node,
    )


MIXED = replace(NODE, name="mixed", others=(nodes_of(slower(2.0)),))


def request(cluster: Cluster = MIXED, **fields: object) -> SearchRequest:
    pins = Pins(dp=4, tp=1, pp=2, cp=1, schedule="1f1b", micro_batch=1)
    defaults = {"global_batch": 32, "max_gap": 0.2, "pins": pins}
    return request_of(GPT, cluster, **(defaults | fields))


def layers_by_device(plan: Plan) -> dict[str, int]:
    """Transformer blocks on each kind of device."""
    layers: dict[str, int] = {}
    for chunk in plan.chunks:
        name = plan.cluster.device_of(chunk.stage * plan.mesh.devices).name
        layers[name] = layers.get(name, 0) + sum(
            chunk_block.block.startswith("h.") for chunk_block in chunk.blocks
        )
    return layers


def test_a_device_twice_as_fast_holds_twice_the_layers() -> None:
    layers = layers_by_device(search(request()))
    fast, slow = layers[NODE.device.name], layers[slower(2.0).name]
    assert fast + slow == 16
    assert fast / slow == pytest.approx(2, rel=0.25)


def test_equal_kinds_under_two_names_share_evenly() -> None:
    twin = replace(NODE.device, name="twin")
    layers = layers_by_device(search(request(replace(MIXED, others=(nodes_of(twin),)))))
    assert layers == {NODE.device.name: 8, "twin": 8}


def test_a_small_device_holds_what_its_memory_takes() -> None:
    plan = search(request())
    free = layers_by_device(plan)
    assert plan.cluster.devices == 8
    slow = [chunk.stage for chunk in plan.chunks][plan.cluster.groups[0].device == NODE.device]
    arena = plan_memory(plan)[slow].arena_bytes * 8 // 10
    memory_bytes = arena + sum(device_overhead_bytes(arena, MIXED).values())
    small = slower(2.0, memory_bytes=memory_bytes)
    tight = search(request(replace(MIXED, others=(nodes_of(small),))))
    assert layers_by_device(tight)[small.name] < free[small.name]


def test_the_order_of_the_groups_is_searched_and_the_plan_lists_it() -> None:
    orders = {placing.order for placing, _ in placings(MIXED, 4, 2)}
    assert orders == {(0, 1), (1, 0)}
    assert len(placings(MIXED, 8, 1)) == 1
    plan = search(request(pins=Pins(dp=4, tp=1, pp=2, cp=1, micro_batch=1)))
    turned = replace(MIXED, device=slower(2.0), others=(nodes_of(NODE.device),))
    other = search(request(turned, pins=Pins(dp=4, tp=1, pp=2, cp=1, micro_batch=1)))
    assert plan.cluster.device == other.cluster.device
    assert plan.evidence is not None
    assert other.evidence is not None
    assert plan.evidence.objective_s == other.evidence.objective_s


def test_sites_are_the_groups_that_stages_lie_on() -> None:
    three = replace(MIXED, nodes=2)  # ranks 0 to 7 fast, 8 to 11 slow
    ((given, kinds), (turned, back)) = placings(three, 4, 3)
    assert [site.groups for site in given.sites] == [(0,), (1,)]
    assert (kinds, back) == ((0, 0, 1), (1, 0, 0))
    assert given.sites == turned.sites
    halves = dict(placings(three, 6, 2))
    assert [site.groups for placing in halves for site in placing.sites] == [
        (0,),
        (0, 1),
        (0,),
        (1, 0),
    ]


def test_no_plan_undercuts_the_bound_whatever_its_signatures() -> None:
    """Blocks are solved for either site alone, and for both, and divided."""
    asked = request(pins=Pins(dp=2, tp=2, pp=2, cp=1, micro_batch=2))
    graph = build_training(GPT, TrainingSpec(), asked.global_batch)
    evaluator = Evaluator(asked, graph)
    everything = placed(
        candidates(asked.pins, MIXED, asked.global_batch, len(graph.blocks), sequence=True), MIXED
    )
    cheap = evaluator.lower_bounds_ns(everything)
    for candidate, low in list(zip(everything, cheap, strict=True))[::3]:
        shape = evaluator.shape(candidate)
        vector = tuple(shared_prices(candidate.pipeline).vector.tolist())
        shapes = (shape, *shape.parts)
        solutions = evaluator.programs.solve_many(
            [Ask(shape=site_shape, mode="none", prices=vector) for site_shape in shapes], 24, 0.0
        )
        assert solutions[0] is not None
        bound = solutions[0].bound * evaluator.unit(candidate)
        assert isinstance(low, float)
        assert 0 < low <= bound
        for solution in solutions:
            assert solution is not None
            outcome = evaluator._divide_blocks(
                candidate, [Solved("none", solution)], usable_bytes(asked, candidate), bound
            )
            assert isinstance(outcome, SolvedPlan)
            assert outcome.division.step_ns >= bound
            # Many chunks of one block each cannot be sized to their devices.
            if candidate.pipeline.interleave == 1:
                assert outcome.division.step_ns < 1.3 * bound


def test_uneven_stages_are_planned_alike_every_time() -> None:
    assert to_json(search(request())) == to_json(search(request()))


def test_the_documented_cluster_of_two_kinds_is_planned(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text("utf-8")
    (example,) = [
        toml for toml in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[" in toml
    ]
    path = tmp_path / "cluster.toml"
    path.write_text(example, "utf-8")
    old_and_new = parse_cluster(str(path))
    pins = Pins(dp=32, tp=1, pp=3, cp=1, schedule="1f1b", micro_batch=1)
    plan = search(request(old_and_new, pins=pins, global_batch=256))
    assert plan.ranks == old_and_new.devices == 96
    layers = layers_by_device(plan)
    # One stage of H100, two of A100: 989 to 312 TFLOPS in bf16 by their data sheets.
    assert layers["h100-sxm-80gb"] > layers["a100-sxm-80gb"] / 2


def test_a_single_microbatch_which_is_all_ramp_is_divided_without_a_warning() -> None:
    plan = search(request(global_batch=1, pins=Pins(recompute="full")))
    assert plan.microbatches == 1
    assert sum(layers_by_device(plan).values()) == 16


def test_bounds_of_equal_layers_are_below_all_plans_and_near_the_best() -> None:
    cluster = replace(MIXED, software=framework("megatron-core"))
    asked = request(cluster, pins=Pins(), runs=capabilities("megatron-core"))
    evaluator = Evaluator(asked, build_training(GPT, asked.training, asked.global_batch))
    every = [c for c in candidates_of(asked, evaluator.graph) if len(evaluator.shape(c).sites) > 1]
    solved = {
        candidate: outcome
        for candidate, outcome in outcomes_of(evaluator, every).items()
        if isinstance(outcome, SolvedPlan)
    }
    assert solved
    plain_ns = dict(zip(solved, evaluator.lower_bounds_ns([*solved]), strict=True))
    bounds_ns = site_bounds_ns(
        evaluator, {c: ns for c, ns in plain_ns.items() if isinstance(ns, float)}
    )
    assert bounds_ns.keys() == solved.keys()
    for candidate, bound_ns in bounds_ns.items():
        assert bound_ns <= solved[candidate].division.step_ns
    best_ns = min(outcome.division.step_ns for outcome in solved.values())
    assert min(bounds_ns.values()) > 0.8 * best_ns
