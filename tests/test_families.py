"""Every family of models trains in parallel as on one device, on two ranks and on four.

The models are small, the kinds of parallelism those that the family is known for. Plans come from
the search; the data is what a run would read (text, digits, synthetic clicks and faces).
"""

from dataclasses import dataclass, field
from functools import cache

import pytest

from millrace.executor.data import open_dataset
from millrace.executor.reference import ReferenceResult, run_reference
from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import FAMILIES, build_training
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.parallel_degrees import roles
from millrace.planner.plan import Plan
from tests.parallel_runs import (
    assert_strays_no_further,
    assert_trains_as_one_device,
    losses_of,
    run,
)
from tests.plan_requests import plan_of
from tests.small_models import NAMES, small

GLOBAL_BATCH, MICROBATCHES, STEPS = 8, 2, 3
TRAINING = TrainingSpec(learning_rate=2e-3, warmup_steps=3, decay_steps=30, clip_norm=0.5)


@dataclass(frozen=True)
class FamilyCase:
    """A model, the pins of a kind of parallelism, and the meetings seen in the compiled actors."""

    model: str
    ranks: int
    pins: dict[str, object]
    meetings: set[str] = field(default_factory=set)
    required: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        pins = " ".join(f"{name}{value}" for name, value in self.pins.items() if value != 1)
        return f"{self.model} {pins}"


DP, TP, PP = "dp", "tp", "pp"


def degrees(dp: int = 1, tp: int = 1, pp: int = 1, **more: object) -> dict[str, object]:
    return {DP: dp, TP: tp, PP: pp, **more}


CASES = [
    FamilyCase("llama", 2, degrees(tp=2), {"all_reduce"}),
    FamilyCase("llama", 4, degrees(dp=2, tp=2, sequence_parallel=True), {"all_gather"}),
    FamilyCase("mistral", 2, degrees(cp=2, ring=False), {"all_gather"}),
    FamilyCase("mpt", 4, degrees(tp=4), {"all_reduce"}),
    FamilyCase("mpt", 4, degrees(dp=4, zero="3-hybrid"), {"all_gather", "all_reduce"}),
    FamilyCase("mixtral", 2, degrees(dp=2, ep=2), {"all_to_all"}),
    FamilyCase("mixtral", 4, degrees(dp=4, ep=2, zero=1), {"all_to_all", "reduce_scatter"}),
    FamilyCase("gpt-oss", 4, degrees(dp=2, tp=2, ep=2), {"all_reduce"}),
    FamilyCase("deepseek", 4, degrees(dp=2, pp=2, ep=2), {"all_to_all", "send"}),
    FamilyCase("deepseek", 4, degrees(dp=2, tp=2, ep=4), {"all_to_all"}),
    FamilyCase("nemotron-h", 2, degrees(tp=2), {"all_reduce"}, {"ssm.core": "g"}),
    FamilyCase("nemotron-h", 4, degrees(dp=2, pp=2), {"send"}),
    FamilyCase("qwen3-next", 2, degrees(dp=2), {"all_reduce"}),
    FamilyCase("qwen3-next", 4, degrees(dp=2, tp=2), {"all_reduce"}),
    FamilyCase("kimi-linear", 2, degrees(cp=2, ring=False), {"all_to_all"}),
    FamilyCase("kimi-linear", 4, degrees(tp=4), {"all_reduce"}),
    FamilyCase("deepseek-sparse", 4, degrees(tp=2, cp=2, ring=False), {"all_gather"}),
    FamilyCase("deepseek-sparse", 4, degrees(dp=2, pp=2, zero=1), {"send"}),
    FamilyCase("bert", 2, degrees(dp=2), {"all_reduce"}),
    FamilyCase("bert", 4, degrees(dp=2, tp=2), {"all_reduce"}),
    FamilyCase("t5", 2, degrees(pp=2), {"send", "recv"}),
    FamilyCase("t5", 4, degrees(tp=2, pp=2), {"send", "all_reduce"}),
    FamilyCase("vit", 2, degrees(tp=2), {"all_reduce"}),
    FamilyCase("vit", 4, degrees(dp=2, pp=2), {"send", "all_reduce"}),
    FamilyCase("resnet", 2, degrees(pp=2), {"send"}),
    FamilyCase("resnet", 4, degrees(dp=4), {"all_reduce"}),
    FamilyCase(
        "wide-deep",
        2,
        degrees(tp=2),
        {"all_reduce"},
        {"wide.table": "v", "deep.table": "v"},
    ),
    FamilyCase("wide-deep", 4, degrees(tp=4), set(), {"deep.table": "d"}),
    FamilyCase("dlrm", 2, degrees(tp=2), {"all_reduce"}, {"tables.table": "v"}),
    FamilyCase("dlrm", 4, degrees(tp=4), set(), {"tables.table": "d"}),
    FamilyCase("face", 2, degrees(tp=2), {"all_reduce"}, {"head.cosine": "s", "head.loss": "s"}),
    FamilyCase("face", 4, degrees(dp=2, tp=2), {"all_reduce"}, {"head.cosine": "s"}),
]
INDEXES = range(len(CASES))
IN_FP32 = [
    index
    for index in INDEXES
    if CASES[index].model in ("bert", "resnet") and CASES[index].ranks == 4
]


def title(index: int) -> str:
    return CASES[index].title


@cache
def planned(index: int, precision: str) -> tuple[Plan, Graph, ActorGraph]:
    case = CASES[index]
    replicas = case.pins[DP]
    assert isinstance(replicas, int)
    micro_batch = GLOBAL_BATCH // MICROBATCHES // replicas
    plan = plan_of(
        small(case.model, precision), case.ranks, GLOBAL_BATCH, training=TRAINING,
        required=case.required, **{"micro_batch": micro_batch, **case.pins},
    )  # fmt: skip
    graph = build_training(plan.model, plan.training, plan.batch)
    return plan, graph, compile_plan(plan)


@cache
def reference(model: str, precision: str) -> ReferenceResult:
    spec = small(model, precision)
    return run_reference(
        build_training(spec, TRAINING, GLOBAL_BATCH // MICROBATCHES),
        microbatches=MICROBATCHES,
        steps=STEPS,
        dataset=open_dataset(None, spec, 0),
        keep_parameters=(STEPS,),
    )


def test_every_family_that_can_be_trained_has_a_case() -> None:
    families = {small(case.model).family for case in CASES} | {"gpt", "mlp"}  # of the whole road
    assert families == set(FAMILIES)
    assert {case.model for case in CASES} | {"gpt"} == set(NAMES)


@pytest.mark.parametrize("index", INDEXES, ids=title)
def test_a_plan_of_the_kind_asked_for_trains_as_a_single_device(index: int) -> None:
    plan, graph, actors = planned(index, "fp64")
    case = CASES[index]
    role_degrees = roles(plan, graph)
    assert {name: role_degrees[name] for name in case.pins} == case.pins
    kinds = {
        actor.kind
        for program in actors.programs
        for actor in program.actors
        if actor.meeting is not None
    }
    assert case.meetings <= kinds
    assert_trains_as_one_device(plan, graph, actors, reference(case.model, "fp64"), STEPS)


@pytest.mark.parametrize("index", IN_FP32, ids=title)
def test_losses_in_fp32_stray_from_the_truth_as_those_of_a_single_device(index: int) -> None:
    plan, graph, actors = planned(index, "fp32")
    losses = losses_of(run(plan, graph, actors, STEPS))
    model = CASES[index].model
    assert_strays_no_further(losses, reference(model, "fp32"), reference(model, "fp64"))
