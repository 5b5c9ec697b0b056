"""The V-shaped zero bubble computes what a single device computes, and sends less than a loop."""

from functools import cache

import pytest
from msgspec.structs import replace

from millrace.models.graph import Graph
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.clusters import local_cluster
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Chunk, Plan
from millrace.planner.schedules import stage_of
from millrace.planner.search import search
from millrace.planner.search.request import Pins, SearchRequest
from tests.parallel_runs import assert_trains_as_one_device
from tests.test_same_mathematics import (
    GLOBAL_BATCH,
    MICROBATCHES,
    STEPS,
    TRAINING,
    model,
    reference,
)


@cache
def planned(schedule: str) -> tuple[Plan, Graph, ActorGraph]:
    """The same four chunks on two stages: in a loop, or folded."""
    pins = Pins(dp=1, tp=1, pp=2, schedule="interleaved-1f1b", interleave=2, micro_batch=4)
    request = SearchRequest(
        model=model("fp64"),
        training=TRAINING,
        cluster=local_cluster(2, cores=2, memory_bytes=8 * 2**30),
        global_batch=GLOBAL_BATCH,
        pins=pins,
    )
    plan = search(request)
    blocks = [chunk.blocks for chunk in plan.chunks]
    stages = [stage_of(schedule, k, 2) for k in range(4)]
    plan = replace(
        plan,
        schedule=schedule,
        interleave=len(blocks) // 2,
        chunks=tuple(Chunk(stage=s, blocks=b) for s, b in zip(stages, blocks, strict=True)),
        pins={},
    )
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan, graph)


def test_the_v_trains_as_a_single_device():
    assert MICROBATCHES > 2
    plan, graph, actors = planned("zb-v")
    assert_trains_as_one_device(plan, graph, actors, reference("fp64"), STEPS)


def test_nothing_is_sent_where_the_v_turns_nor_between_its_ends():
    _, _, actors = planned("zb-v")
    _, _, loop = planned("interleaved-1f1b")

    def sends(graph: ActorGraph) -> int:
        return sum(actor.kind == "send" for p in graph.programs for actor in p.actors)

    # Activations and gradients between positions 1 and 2 stay on the last stage, and the tied
    # table and its gradient on the first.
    assert sends(actors) == sends(loop) - 4


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_any_number_of_microbatches_runs_to_its_end(microbatches):
    plan, _, _ = planned("zb-v")
    plan = replace(plan, microbatches=microbatches)
    assert compile_plan(plan).ranks == 2
