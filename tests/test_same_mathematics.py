"""A plan changes where a model is computed, never what: every kind of parallelism, same numbers.

Each plan comes from the search, with the kind of parallelism pinned, and runs all its ranks in one
process through the same compiler, protocol, kernels and boxing as a run over MPI. The oracle is one
device that evaluates the training graph op by op.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import pytest

from millrace.executor.data import open_dataset
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan
from tests.parallel_runs import (
    assert_strays_no_further,
    assert_trains_as_one_device,
    losses_of,
    run,
)
from tests.plan_requests import plan_of
from tests.small_models import small

GLOBAL_BATCH, MICROBATCHES, STEPS = 16, 4, 3
TRAINING = TrainingSpec(learning_rate=1e-2, warmup_steps=3, decay_steps=30, clip_norm=0.5)


@dataclass(frozen=True)
class MathematicsCase:
    """Pins of one kind of parallelism, and what must be seen in the compiled actors."""

    name: str
    pins: dict[str, object]
    ranks: int
    meetings: set[str]
    required: dict[str, str]


def pinned(
    name: str, meetings: str, required: dict[str, str] | None = None, **pins: object
) -> MathematicsCase:
    """Case whose ranks are as many as its degrees need."""
    pins = {"dp": 1, "tp": 1, "pp": 1} | pins
    ranks = prod(int(pins.get(axis, 1)) for axis in ("dp", "tp", "pp", "cp"))  # type: ignore[call-overload]
    return MathematicsCase(name, pins, ranks, set(meetings.split()), required or {})


CASES = [
    pinned("dp", "all_reduce", dp=4),
    pinned("tp", "all_reduce", tp=4),
    pinned("pp", "send recv", pp=4),
    pinned("dp x tp", "all_reduce", dp=2, tp=2),
    pinned("tp x pp", "all_reduce send recv", tp=2, pp=2),
    pinned("dp x pp", "all_reduce send recv", dp=2, pp=2),
    pinned("dp x tp x pp", "all_reduce send recv", dp=2, tp=2, pp=2),
    pinned("gpipe", "send", pp=4, schedule="gpipe"),
    pinned("zero bubble", "send", pp=4, schedule="zb-h1"),
    pinned("interleaved pp", "send recv", pp=2, schedule="interleaved-1f1b", interleave=2),
    pinned("sequence-parallel tp", "all_gather reduce_scatter", tp=4, sequence_parallel=True),
    pinned("context parallelism", "all_gather", cp=2, ring=False),
    pinned("ring", "rotate", cp=4, ring=True),
    pinned("vocabulary-parallel loss", "all_reduce", {"head.loss": "v"}, tp=2),
    pinned("ZeRO 1", "reduce_scatter all_gather", dp=4, zero=1),
    pinned("ZeRO 1 over two axes", "reduce_scatter all_gather", dp=2, cp=2, ring=False, zero=1),
    pinned("ZeRO 2", "reduce_scatter all_gather", dp=4, zero=2),
    pinned("ZeRO 3", "reduce_scatter all_gather", dp=4, zero=3),
]


@cache
def planned(index: int, precision: str) -> tuple[Plan, Graph, ActorGraph]:
    case = CASES[index]
    plan = plan_of(
        small("gpt", precision), case.ranks, GLOBAL_BATCH, training=TRAINING,
        required=case.required,
        **{"micro_batch": GLOBAL_BATCH // MICROBATCHES // case.pins["dp"], **case.pins},
    )  # fmt: skip
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan)


@cache
def reference(precision: str) -> ReferenceResult:
    spec = small("gpt", precision)
    graph = build_training(spec, TRAINING, GLOBAL_BATCH // MICROBATCHES)
    return run_reference(
        graph,
        microbatches=MICROBATCHES,
        steps=STEPS,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(STEPS,),
    )


INDEXES = range(len(CASES))
IN_FP32 = [index for index in INDEXES if CASES[index].name in ("dp x tp x pp", "ring", "ZeRO 3")]


@pytest.mark.parametrize("index", INDEXES, ids=lambda i: CASES[i].name)
def test_a_plan_of_the_kind_asked_for_trains_as_a_single_device(index):
    plan, graph, actors = planned(index, "fp64")
    assert_kind(CASES[index], plan, actors)
    assert_trains_as_one_device(plan, graph, actors, reference("fp64"), STEPS)


def assert_kind(case: MathematicsCase, plan: Plan, actors: ActorGraph) -> None:
    assert actors.ranks == case.ranks
    assert plan.microbatches == MICROBATCHES
    all_actors = [actor for program in actors.programs for actor in program.actors]
    assert case.meetings <= {actor.kind for actor in all_actors if actor.meeting is not None}
    if case.required:
        kinds = {"row_max", "shifted_sums", "loss_from_sums"}
        assert kinds <= {actor.kind for actor in all_actors}


@pytest.mark.parametrize("index", IN_FP32, ids=lambda i: CASES[i].name)
def test_losses_in_fp32_stray_from_the_truth_as_those_of_a_single_device(index):
    plan, graph, actors = planned(index, "fp32")
    losses = losses_of(run(plan, graph, actors, STEPS))
    assert_strays_no_further(losses, reference("fp32"), reference("fp64"))
