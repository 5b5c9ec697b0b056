"""Fast prediction: the figures of a plan's steady step, for which no trace is needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.planner.compile.passes import ordered_plan
from millrace.planner.memory import StageMemory
from millrace.planner.plan import Plan
from millrace.simulator.critical_path import SteadyStep, steady_chunks, steady_ops, steady_step
from millrace.simulator.prediction import STAGE, chosen_fidelity, predict
from millrace.simulator.stage_fidelity import StageGraph, stage_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPrediction:
    """Figures of a plan, as `millrace.simulator.Simulated` has them."""

    step_time_ns: int
    bubble_fraction: float
    exposed_communication_ns: int
    memory_by_kind: tuple[dict[str, int], ...]
    busy_by_stage: tuple[float, ...]
    fidelity: str


def predict_fast(
    plan: Plan,
    memory: Sequence[StageMemory],
    fidelity: str | None = None,
    stages: StageGraph | None = None,
) -> FastPrediction:
    """Figures that `predict` gives at the fidelity that the plan's size allows.

    They are computed without events (`millrace.simulator.critical_path.steady`), unless ranks share
    cores.

    Parameters
    ----------
    plan
        The plan.
    memory
        Of its stages, as `plan_memory` gives it.
    fidelity
        Another than the plan's size allows: `op` or `stage`.
    stages
        What `stage_graph` gives of the plan, if at hand.

    Raises
    ------
    PlanError
        The plan does not fit its model or mesh.
    ProtocolError
        The graph stops before its end.
    """
    fidelity = fidelity or chosen_fidelity(plan)
    inside_ns = 0
    steady: SteadyStep | None = None
    if fidelity == STAGE:
        stages = stages or stage_graph(plan)
        steady, inside_ns = steady_step(stages.coarse, stages.table), stages.inside_ns
        if steady is None and plan.cluster.cores_per_node is None:
            steady = steady_chunks(stages.coarse)
    elif plan.cluster.cores_per_node is None:
        steady = steady_ops(ordered_plan(plan))
    if steady is None:
        simulated = predict(plan, spans=False, memory=memory, fidelity=fidelity, stages=stages)
        return FastPrediction(
            step_time_ns=simulated.step_time_ns,
            bubble_fraction=simulated.bubble_fraction,
            exposed_communication_ns=simulated.exposed_communication_ns,
            memory_by_kind=simulated.memory_by_kind,
            busy_by_stage=simulated.busy_by_stage,
            fidelity=simulated.fidelity,
        )
    busy = steady.busy_by_stage
    return FastPrediction(
        step_time_ns=steady.step_time_ns,
        bubble_fraction=steady.bubble_fraction,
        exposed_communication_ns=steady.exposed_communication_ns + inside_ns,
        memory_by_kind=tuple(stage_memory.by_kind for stage_memory in memory),
        busy_by_stage=stages.busy_by_stage(busy, steady.step_time_ns) if stages else busy,
        fidelity=fidelity,
    )
