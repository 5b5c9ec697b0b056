"""The V-shaped zero bubble computes what 1F1B and a single device compute, at bounded memory."""

from functools import cache

import numpy as np
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
from tests.parallel_runs import assert_gradients_and_parameters_equal, run
from tests.test_same_mathematics import GLOBAL_BATCH, MICROBATCHES, TRAINING, model, reference


@cache
def planned(schedule: str, precision: str) -> tuple[Plan, Graph, ActorGraph]:
    """The same four chunks on two stages: in a loop, or folded; or two chunks of one stage."""
    pins = Pins(dp=1, tp=1, pp=2, schedule="interleaved-1f1b", interleave=2, micro_batch=4)
    request = SearchRequest(
        model=model(precision),
        training=TRAINING,
        cluster=local_cluster(2, cores=2, memory_bytes=8 * 2**30),
        global_batch=GLOBAL_BATCH,
        pins=pins,
    )
    plan = search(request)
    blocks = [chunk.blocks for chunk in plan.chunks]
    stages = [stage_of(schedule, k, 2) for k in range(4)]
    if schedule == "1f1b":
        blocks, stages = [blocks[0] + blocks[1], blocks[2] + blocks[3]], [0, 1]
    plan = replace(
        plan,
        schedule=schedule,
        interleave=len(blocks) // 2,
        chunks=tuple(Chunk(stage=s, blocks=b) for s, b in zip(stages, blocks, strict=True)),
        pins={},
    )
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan, graph)


def losses(schedule: str) -> list[float]:
    plan, graph, actors = planned(schedule, "fp32")
    (state, *_) = run(plan, graph, actors, 10)
    return [loss / count for loss, count, _ in state.run_state.totals]


def test_the_v_has_the_losses_of_1f1b_and_of_a_single_device():
    assert MICROBATCHES > 2
    np.testing.assert_allclose(losses("zb-v"), losses("1f1b"), rtol=1e-5)
    np.testing.assert_allclose(losses("zb-v"), reference("fp32", 20).losses[:10], rtol=1e-4)


def test_the_v_has_the_gradients_and_parameters_of_a_single_device():
    plan, graph, actors = planned("zb-v", "fp64")
    assert_gradients_and_parameters_equal(plan, graph, actors, reference("fp64", 5), 5)


def test_nothing_is_sent_where_the_v_turns_nor_between_its_ends():
    _, _, actors = planned("zb-v", "fp32")
    _, _, loop = planned("interleaved-1f1b", "fp32")

    def sends(graph: ActorGraph) -> int:
        return sum(actor.kind == "send" for p in graph.programs for actor in p.actors)

    # Activations and gradients between positions 1 and 2 stay on the last stage, and the tied
    # table and its gradient on the first.
    assert sends(actors) == sends(loop) - 4


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_any_number_of_microbatches_runs_to_its_end(microbatches):
    plan, _, _ = planned("zb-v", "fp32")
    plan = replace(plan, microbatches=microbatches)
    assert compile_plan(plan).ranks == 2
