"""A plan changes where a model is computed, never what: every kind of parallelism, same numbers.

Each plan comes from the search, with the kind of parallelism pinned, and runs all its ranks in one
process through the same compiler, protocol, kernels and boxing as a run over MPI. The oracle is one
device that evaluates the training graph op by op.
"""

from dataclasses import dataclass, field
from functools import cache

import pytest

from millrace.executor.data import open_dataset
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.models.graph import Graph
from millrace.models.spec import ModelSpec, TrainingSpec
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

GLOBAL_BATCH, MICROBATCHES, STEPS = 16, 4, 3
TRAINING = TrainingSpec(learning_rate=1e-2, warmup_steps=3, decay_steps=30, clip_norm=0.5)


@dataclass(frozen=True)
class MathematicsCase:
    """Pins of one kind of parallelism, and what must be seen in the compiled actors."""

    name: str
    pins: dict[str, object]
    ranks: int
    meetings: set[str] = field(default_factory=set)
    required: dict[str, str] = field(default_factory=dict)


CASES = [
    MathematicsCase("dp", {"dp": 4, "tp": 1, "pp": 1}, 4, {"all_reduce"}),
    MathematicsCase("tp", {"dp": 1, "tp": 4, "pp": 1}, 4, {"all_reduce"}),
    MathematicsCase("pp", {"dp": 1, "tp": 1, "pp": 4}, 4, {"send", "recv"}),
    MathematicsCase("dp x tp", {"dp": 2, "tp": 2, "pp": 1}, 4, {"all_reduce"}),
    MathematicsCase("tp x pp", {"dp": 1, "tp": 2, "pp": 2}, 4, {"all_reduce", "send", "recv"}),
    MathematicsCase("dp x pp", {"dp": 2, "tp": 1, "pp": 2}, 4, {"all_reduce", "send", "recv"}),
    MathematicsCase("dp x tp x pp", {"dp": 2, "tp": 2, "pp": 2}, 8, {"all_reduce", "send", "recv"}),
    MathematicsCase("gpipe", {"dp": 1, "tp": 1, "pp": 4, "schedule": "gpipe"}, 4, {"send"}),
    MathematicsCase("zero bubble", {"dp": 1, "tp": 1, "pp": 4, "schedule": "zb-h1"}, 4, {"send"}),
    MathematicsCase(
        "interleaved pp",
        {"dp": 1, "tp": 1, "pp": 2, "schedule": "interleaved-1f1b", "interleave": 2},
        2,
        {"send", "recv"},
    ),
    MathematicsCase(
        "sequence-parallel tp",
        {"dp": 1, "tp": 4, "pp": 1, "sequence_parallel": True},
        4,
        {"all_gather", "reduce_scatter"},
    ),
    MathematicsCase(
        "context parallelism",
        {"dp": 1, "tp": 1, "pp": 1, "cp": 2, "ring": False},
        2,
        {"all_gather"},
    ),
    MathematicsCase("ring", {"dp": 1, "tp": 1, "pp": 1, "cp": 4, "ring": True}, 4, {"rotate"}),
    MathematicsCase(
        "vocabulary-parallel loss",
        {"dp": 1, "tp": 2, "pp": 1},
        2,
        {"all_reduce"},
        {"head.loss": "v"},
    ),
    MathematicsCase(
        "ZeRO 1", {"dp": 4, "tp": 1, "pp": 1, "zero": 1}, 4, {"reduce_scatter", "all_gather"}
    ),
    MathematicsCase(
        "ZeRO 1 over two axes",
        {"dp": 2, "tp": 1, "pp": 1, "cp": 2, "ring": False, "zero": 1},
        4,
        {"reduce_scatter", "all_gather"},
    ),
    MathematicsCase(
        "ZeRO 2", {"dp": 4, "tp": 1, "pp": 1, "zero": 2}, 4, {"reduce_scatter", "all_gather"}
    ),
    MathematicsCase(
        "ZeRO 3", {"dp": 4, "tp": 1, "pp": 1, "zero": 3}, 4, {"reduce_scatter", "all_gather"}
    ),
]


def model(precision: str) -> ModelSpec:
    """GPT small enough to run many times; everything that is split comes in multiples of 4."""
    config = {
        "layers": 4,
        "hidden": 32,
        "heads": 4,
        "ffn_hidden": 64,
        "vocab": 256,
        "positions": 16,
    }
    return ModelSpec(name="tiny", family="gpt", config=config, seq_len=16, precision=precision)


@cache
def planned(index: int, precision: str) -> tuple[Plan, Graph, ActorGraph]:
    case = CASES[index]
    plan = plan_of(
        model(precision), case.ranks, GLOBAL_BATCH, training=TRAINING, required=case.required,
        **{"micro_batch": GLOBAL_BATCH // MICROBATCHES // case.pins["dp"], **case.pins},
    )  # fmt: skip
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan)


@cache
def reference(precision: str) -> ReferenceResult:
    spec = model(precision)
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
