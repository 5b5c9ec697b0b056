"""Fused actors compute what their ops compute alone: whole training steps, to the bit on CPUs."""

import numpy as np
import pytest
from msgspec.structs import replace

from millrace.executor.data import open_dataset
from millrace.executor.kernels import RunState
from millrace.executor.rank import RankState
from millrace.executor.values.initial import initial_value
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.compile import compile_plan
from millrace.planner.plan import FUSED, UNFUSED, Plan
from tests.in_process import KernelWork, execute_lockstep
from tests.plan_requests import plan_of
from tests.small_models import small

STEPS = 2  # the second begins at what the first left
PLANS = {
    "gpt": {},
    "llama": {"tp": 2},
    "bert": {"dp": 2, "zero": 1},
    "resnet": {},
    "wide-deep": {"dp": 2},
    "mixtral": {"dp": 2, "ep": 2},
}
MORE = [
    ("gpt", {"pp": 2, "schedule": "1f1b"}),
    ("gpt", {"pp": 2, "schedule": "zb-h1"}),
    ("gpt", {"dp": 2, "zero": 3}),
    ("gpt", {"recompute": "full"}),
    ("llama", {"tp": 2, "sequence_parallel": True}),
]


def planned(model: str, pins: dict[str, object]) -> Plan:
    """A plan with two microbatches."""
    chosen = {"dp": 1, "tp": 1, "pp": 1, **pins}
    devices = chosen["dp"] * chosen["tp"] * chosen["pp"]
    return plan_of(
        small(model, "fp32"), f"a100-sxm-80gb:{devices}x1",
        training=TrainingSpec(learning_rate=2e-3, clip_norm=0.5),
        **{"micro_batch": 4 // chosen["dp"], **chosen},
    )  # fmt: skip


def trained(plan: Plan) -> tuple[list[RankState], int]:
    """Every rank after some steps of a plan, and its number of actors."""
    graph = compile_plan(plan)
    dataset = open_dataset(None, plan.model, 0)
    ranks = [
        RankState(
            graph,
            rank,
            RunState(seed=0, dataset=dataset, global_batch=8, microbatches=2, batch=plan.batch),
        )
        for rank in range(graph.ranks)
    ]
    training = build_training(plan.model, plan.training, plan.batch)
    attributes = {op.outputs[0]: op.attributes for op in training.ops if op.kind == "variable"}
    for rank in ranks:
        for index, register in enumerate(rank.program.registers):
            if register.initial and register.tensor in attributes:
                how = attributes[register.tensor]
                shape, dtype = register.global_shape, register.dtype
                rank.load(index, initial_value(register.tensor, shape, dtype, how, 0))
    work = KernelWork(ranks)
    execute_lockstep(graph, STEPS, work, work.meet)
    return ranks, sum(len(program.actors) for program in graph.programs)


@pytest.mark.parametrize(("model", "pins"), [*PLANS.items(), *MORE])
def test_a_fused_plan_trains_to_the_same_bits(model, pins):
    plan = planned(model, pins)
    fused, few = trained(replace(plan, fusion=FUSED))
    plain, many = trained(replace(plan, fusion=UNFUSED))
    assert few < 0.8 * many
    for fused_rank, plain_rank in zip(fused, plain, strict=True):
        assert fused_rank.run_state.totals == plain_rank.run_state.totals
        registers = {r.name: i for i, r in enumerate(plain_rank.program.registers) if r.initial}
        for index, register in enumerate(fused_rank.program.registers):
            if register.initial:
                values = fused_rank.value(index, 0), plain_rank.value(registers[register.name], 0)
                np.testing.assert_array_equal(*values, err_msg=register.name)
