"""All ranks of a plan in one process: what the tests of equal mathematics run and read.

Ranks go through the same compiler, protocol, kernels and boxing as a run over MPI.
"""

import numpy as np

from millrace.executor.data import open_dataset
from millrace.executor.kernels.context import RunState
from millrace.executor.rank import RankState
from millrace.executor.reference import ReferenceResult
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.plan import Plan
from millrace.planner.sbp import parse_nd_sbp, shard_offsets
from tests.in_process import KernelWork, execute_lockstep


def run(plan: Plan, graph: Graph, actors: ActorGraph, steps: int) -> list[RankState]:
    """The states of all ranks after so many steps."""
    states = begun(plan, graph, actors)
    work = KernelWork(states)
    execute_lockstep(actors, steps, work, work.meet)
    return states


def begun(plan: Plan, graph: Graph, actors: ActorGraph) -> list[RankState]:
    """The states of all ranks before the first step."""
    dataset = open_dataset(None, plan.model, 0)
    attributes = {op.outputs[0]: op.attributes for op in graph.ops if op.kind == "variable"}
    states = []
    for rank in range(actors.ranks):
        run_state = RunState(
            seed=0,
            dataset=dataset,
            global_batch=plan.global_batch,
            microbatches=plan.microbatches,
            batch=plan.batch,
        )
        state = RankState(actors, rank, run_state)
        for index, register in enumerate(state.program.registers):
            if register.initial and register.tensor in attributes:
                shape, dtype = register.global_shape, register.dtype
                kind = attributes[register.tensor]
                state.load(index, initial_value(register.tensor, shape, dtype, kind, 0))
        states.append(state)
    return states


def whole(states: list[RankState], name: str) -> np.ndarray:
    """A variable put together from the shards of the ranks that own it."""
    found = None
    for state in states:
        for index, register in enumerate(state.program.registers):
            if register.name != name:
                continue
            if found is None:
                found = np.full(register.global_shape, np.nan)
            shard = state.shard(register)
            region = tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.shape, strict=True))
            found[region] = state.arena.views[index][0]
    assert found is not None, name
    return found


def assert_gradients_and_parameters_equal(
    plan: Plan, graph: Graph, actors: ActorGraph, expected: ReferenceResult, steps: int
) -> None:
    """Every gradient of the first step and every parameter after `steps`, in float64."""
    optimizers = ("adamw", "sgd")
    updates = {op.inputs[1]: op.inputs[0] for op in graph.ops if op.kind in optimizers}
    states = run(plan, graph, actors, 1)
    # Some gradients are zero but for rounding (a bias on keys shifts every score of a row alike).
    scale = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for gradient, variable in updates.items():
        close(gradient_of(states, gradient, variable), expected.gradients[variable], scale)
    states = run(plan, graph, actors, steps)
    for name, value in expected.parameters[steps].items():
        close(whole(states, name), value, 1.0)


def close(found: np.ndarray, expected: np.ndarray, scale: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


def gradient_of(states: list[RankState], gradient: str, variable: str) -> np.ndarray:
    """The gradient as the optimizer reads it: found at the input port of its actor."""
    found = None
    for state in states:
        program = state.program
        for actor in program.actors:
            if actor.in_place and program.operands(actor)[0][0].tensor == variable:
                index = actor.inputs[0].register
                register = program.registers[index]
                assert register.tensor == gradient
                if found is None:
                    found = np.full(register.global_shape, np.nan)
                offsets = shard_offsets(
                    register.global_shape,
                    parse_nd_sbp(register.sbp),
                    state.graph.axis_sizes,
                    state.coordinate,
                )
                region = tuple(
                    slice(o, o + n) for o, n in zip(offsets, register.shape, strict=True)
                )
                found[region] = state.arena.views[index][0]
    assert found is not None, variable
    return found
