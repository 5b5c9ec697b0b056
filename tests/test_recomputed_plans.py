"""A plan that recomputes trains to the same bits as the plan that keeps every activation.

Plans come from the search, run through the same compiler, protocol, kernels and boxing as a run
over MPI, and then once more with their blocks recomputing.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from millrace.models.graph import Graph
from millrace.models.spec import TrainingSpec
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from millrace.planner.plan import Plan, recompute_modes, recomputed
from tests.parallel_runs import global_value, run
from tests.plan_requests import plan_of
from tests.small_models import small

GLOBAL_BATCH, MICROBATCHES, STEPS = 16, 4, 2
TRAINING = TrainingSpec(learning_rate=1e-2, warmup_steps=3, decay_steps=30, clip_norm=0.5)


@dataclass(frozen=True)
class RecomputeCase:
    """A model and the pins of a kind of parallelism."""

    name: str
    model: str
    pins: dict[str, object]

    @property
    def ranks(self) -> int:
        """Devices that the degrees need."""
        return int(np.prod([self.pins[name] for name in ("dp", "tp", "pp")]))  # type: ignore[arg-type]


def pinned(dp: int = 1, tp: int = 1, pp: int = 1, **more: object) -> dict[str, object]:
    pins = {"dp": dp, "tp": tp, "pp": pp, "micro_batch": 4 // dp, "recompute": "none"}
    return pins | more


CASES = {
    case.name: case
    for case in (
        RecomputeCase("1f1b", "gpt", pinned(pp=2, schedule="1f1b")),
        RecomputeCase(
            "interleaved", "gpt", pinned(pp=2, schedule="interleaved-1f1b", interleave=2)
        ),
        RecomputeCase("zero bubble", "gpt", pinned(pp=2, schedule="zb-h1")),
        RecomputeCase("sequence-parallel tp", "gpt", pinned(tp=2, sequence_parallel=True)),
        RecomputeCase("dp with dropout", "bert", pinned(dp=2)),
        RecomputeCase("experts", "mixtral", pinned(dp=2, ep=2)),
        RecomputeCase("batch norm", "resnet", pinned(dp=2)),
        RecomputeCase("ZeRO 3", "llama", pinned(dp=2, zero=3)),
    )
}


@cache
def planned(name: str) -> Plan:
    case = CASES[name]
    return plan_of(small(case.model), case.ranks, GLOBAL_BATCH, training=TRAINING, **case.pins)


def compiled(plan: Plan) -> tuple[Graph, ActorGraph]:
    graph = plan.graph
    return graph, compile_plan(plan)


@dataclass(frozen=True)
class TrainedPlan:
    """Loss, count and gradient norm of every step, per rank; every variable at the end."""

    totals: list[list[tuple[float, float, float]]]
    parameters: dict[str, np.ndarray]


def trained(plan: Plan) -> TrainedPlan:
    graph, actors = compiled(plan)
    states = run(plan, graph, actors, STEPS)
    variables = [op.outputs[0] for op in graph.ops if op.kind == "variable"]
    return TrainedPlan(
        [list(state.run_state.totals) for state in states],
        {name: global_value(states, name) for name in variables},
    )


@cache
def trained_plan(name: str) -> TrainedPlan:
    return trained(planned(name))


def blocks_of(plan: Plan) -> list[str]:
    return [choice.block for chunk in plan.chunks for choice in chunk.blocks]


def everywhere(plan: Plan, mode: str) -> Plan:
    return recomputed(plan, dict.fromkeys(blocks_of(plan), mode))


def assert_equal_bits(actual: TrainedPlan, expected: TrainedPlan) -> None:
    assert actual.totals == expected.totals
    assert expected.totals[0][-1] != expected.totals[0][0]
    for name, value in expected.parameters.items():
        np.testing.assert_array_equal(actual.parameters[name], value, err_msg=name)


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("name", CASES)
def test_losses_norms_and_parameters_are_equal_bit_for_bit(name: str, mode: str) -> None:
    plan = everywhere(planned(name), mode)
    assert recompute_modes(plan) == dict.fromkeys(blocks_of(plan), mode)
    assert_equal_bits(trained(plan), trained_plan(name))


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero bubble"])
def test_half_of_a_stage_may_recompute(name: str) -> None:
    plan = planned(name)
    modes = {
        block: ("full", "none", "selective")[position % 3]
        for position, block in enumerate(blocks_of(plan))
    }
    mixed = recomputed(plan, modes)
    assert recompute_modes(mixed) == {
        block: mode for block, mode in modes.items() if mode != "none"
    }
    assert_equal_bits(trained(mixed), trained_plan(name))


EQUAL_PLANS = [
    "1f1b",
    "interleaved",
    "sequence-parallel tp",
    "dp with dropout",
    "experts",
    "ZeRO 3",
]


@pytest.mark.parametrize("name", EQUAL_PLANS)
def test_every_rank_holds_less_when_all_blocks_recompute(name: str) -> None:
    plan = planned(name)
    keeping, again = (compile_plan(candidate) for candidate in (plan, everywhere(plan, "full")))
    for before, after in zip(keeping.programs, again.programs, strict=True):
        assert after.memory_bytes < before.memory_bytes
