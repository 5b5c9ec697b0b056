"""Prediction: what a plan would do on its cluster, at the fidelity that its size allows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from millrace.planner.compile import compile_plan
from millrace.planner.frameworks.experts import exchange_hides
from millrace.planner.frameworks.framework_tables import has_account
from millrace.planner.frameworks.peak_memory import needed_memory
from millrace.planner.memory import StageMemory
from millrace.planner.plan import Plan
from millrace.simulator.block_fidelity import by_block
from millrace.simulator.errors import SimulationError
from millrace.simulator.simulate import Simulated, simulate
from millrace.simulator.stage_fidelity import StageGraph, stage_graph

OP, BLOCK, STAGE = FIDELITIES = "op", "block", "stage"
VARIED_STEPS = 12
MOST_OP_FIRINGS = 100_000  # of a step; beyond, compiling and firing every op takes over a minute


def predict(
    plan: Plan,
    *,
    steps: int = 3,
    jitter: float = 0.0,
    seed: int = 0,
    stragglers: Mapping[int, float] | None = None,
    spans: bool = True,
    fidelity: str | None = None,
    memory: Sequence[StageMemory] | None = None,
    detailed: bool = False,
    stages: StageGraph | None = None,
) -> Simulated:
    """Compile a plan and simulate it on the cluster it was made for.

    Parameters
    ----------
    plan, memory, stages
        The plan, and what `plan_memory` and `stage_graph` give of it, if at hand.
    steps, jitter, seed, stragglers, spans
        As for `simulate`; jitter and stragglers act on what fires: ops, blocks or parts of chunks.
        Without jitter ops vary as they were measured to, over as many steps as show a usual one.
    fidelity
        `op` fires every op of every layer, `stage` whole parts of chunks with times measured on few
        blocks (`simulator/stage_fidelity`), `block` each block of these
        (`simulator/block_fidelity`); None: `op` up to `MOST_OP_FIRINGS`, `stage` beyond them, but
        not where ranks share cores.
    detailed
        Keep with it what an account of the step needs (`simulator/account`); with `spans` only.

    Raises
    ------
    SimulationError
        An option is out of its range.
    PlanError
        The plan does not fit its model or mesh.
    ProtocolError
        The graph stops before its end.
    """
    if fidelity not in (None, *FIDELITIES):
        raise SimulationError(f"fidelity is `{fidelity}`: expected one of {', '.join(FIDELITIES)}")
    chosen = chosen_fidelity(plan) if fidelity is None else fidelity
    if (measured := plan.cluster.device.jitter) and not jitter and chosen == OP:
        # Beside other programs firings may be measured to vary by more than `simulate` takes.
        steps, jitter = max(steps, VARIED_STEPS), min(measured, 1.0)
    run = partial(
        simulate,
        cluster=plan.cluster,
        steps=steps,
        plan_digest=plan.digest(),
        jitter=jitter,
        seed=seed,
        stragglers=stragglers,
        spans=spans,
    )
    if chosen == OP:
        laid_out = run(compile_plan(plan))
        if not has_account(plan.cluster.software.name):
            return laid_out
        return replace(laid_out, **_memory_figures(memory or needed_memory(plan)))
    stages = stages or stage_graph(plan, detailed)
    actors, pacing = stages.coarse.ordered(), stages.coarse.pacing
    table: Sequence[Sequence[int]] = stages.coarse.durations_ns
    firings_ns = stages.coarse.firings_ns
    if chosen == BLOCK:
        actors, table, pacing, firings_ns = by_block(actors, table, stages.rows, pacing, firings_ns)
    simulated = run(actors, durations_ns=table, pacing=pacing, firings_ns=firings_ns)
    return replace(
        simulated,
        fidelity=chosen,
        chunks=stages.times,
        chunk_exposed_ns=stages.exposed_ns,
        exposed_communication_ns=simulated.exposed_communication_ns + stages.inside_ns,
        busy_by_stage=stages.busy_by_stage(simulated.busy_by_stage, simulated.step_time_ns),
        **_memory_figures(memory or needed_memory(plan)),
    )


def _memory_figures(memory: Sequence[StageMemory]) -> dict[str, Any]:
    """Fields of a `Simulated` about memory."""
    return {
        "memory_bytes_max": max(stage_memory.total_bytes for stage_memory in memory),
        "memory_by_kind": tuple(stage_memory.by_kind for stage_memory in memory),
    }


def chosen_fidelity(plan: Plan) -> str:
    """Fidelity of a plan for which none is asked: `op` while its step has few firings.

    What hides an exchange of experts beside another microbatch is in pieces of chunks alone
    (`millrace.simulator.chunks.phase_measurement`): there it is `stage`, unless ranks share cores.
    """
    sizes = [len(variant.signatures) for variant in plan.variants]
    ops = sum(sizes[choice.variant] for chunk in plan.chunks for choice in chunk.blocks)
    if plan.cluster.cores_per_node is not None:
        return OP
    few = ops * plan.microbatches <= MOST_OP_FIRINGS
    return OP if few and not exchange_hides(plan.cluster.software, plan.graph) else STAGE
