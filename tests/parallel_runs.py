"""All ranks of a plan in one process: what the tests of equal mathematics run and read.

Ranks go through the same compiler, protocol, kernels and boxing as a run over MPI.
"""

from functools import partial

import numpy as np

from millrace.executor.data import open_dataset
from millrace.executor.kernels.context import RunState
from millrace.executor.rank import RankState
from millrace.executor.reference import ReferenceResult
from millrace.executor.values.initial import initial_value
from millrace.models.graph import Graph
from millrace.models.training.optimizer_updates import gradient_names
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.plan import Plan
from millrace.planner.sbp import parse_nd_sbp, shard_offsets
from tests.in_process import KernelWork, execute_lockstep

STRAYING = 10  # sums in another order err as much, a wrong number errs by far more


def run(plan: Plan, graph: Graph, actors: ActorGraph, steps: int) -> list[RankState]:
    """States of all ranks after `steps` steps."""
    return advanced(initial_states(plan, graph, actors), actors, steps)


def advanced(states: list[RankState], actors: ActorGraph, steps: int) -> list[RankState]:
    """`states` themselves, after `steps` more steps."""
    work = KernelWork(states)
    execute_lockstep(actors, steps, work, work.meet)
    return states


def initial_states(plan: Plan, graph: Graph, actors: ActorGraph) -> list[RankState]:
    """States of all ranks before the first step."""
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


def global_value(states: list[RankState], name: str) -> np.ndarray:
    """Global value of a variable, put together from the shards of the ranks that own it."""
    variable = None
    for state in states:
        for index, register in enumerate(state.program.registers):
            if register.name != name:
                continue
            if variable is None:
                variable = np.full(register.global_shape, np.nan)
            shard = state.shard(register)
            region = tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.shape, strict=True))
            variable[region] = state.arena.views[index][0]
    assert variable is not None, name
    return variable


def assert_trains_as_one_device(
    plan: Plan, graph: Graph, actors: ActorGraph, expected: ReferenceResult, steps: int
) -> None:
    """Assert that a float64 run trains, on every rank, as one device does.

    The comparison covers loss, count and norm of every step, every gradient of the first and every
    parameter after the last.
    """
    states = initial_states(plan, graph, actors)
    gradients = watched_gradients(states, gradient_names(graph))
    advanced(states, actors, steps)
    for state in states:
        np.testing.assert_allclose(state.run_state.totals, expected.totals, rtol=1e-9)
    # Some gradients are zero but for rounding (a bias on keys shifts every score of a row alike).
    scale = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    assert gradients.keys() == expected.gradients.keys()
    for variable, gradient in gradients.items():
        close(gradient, expected.gradients[variable], scale, variable)
    for name, value in expected.parameters[steps].items():
        close(global_value(states, name), value, 1.0, name)


def close(actual: np.ndarray, expected: np.ndarray, scale: float, name: str) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9 * scale, err_msg=name)


def watched_gradients(states: list[RankState], names: dict[str, str]) -> dict[str, np.ndarray]:
    """Gradients of the first step by variable, filled in as every rank's optimizers read them."""
    gradients: dict[str, np.ndarray] = {}
    variables = {gradient: variable for variable, gradient in names.items()}
    for state in states:
        state.fired = partial(_keep_gradient, gradients, variables, state)
    return gradients


def _keep_gradient(
    gradients: dict[str, np.ndarray],
    variables: dict[str, str],
    state: RankState,
    index: int,
    firing: int,
) -> None:
    program = state.program
    actor = program.actors[index]
    if firing or not (actor.in_place or actor.state):
        return
    register_index = actor.inputs[0].register
    register = program.registers[register_index]
    if register.tensor not in variables:
        return
    variable = variables[register.tensor]
    gradient = gradients.setdefault(variable, np.full(register.global_shape, np.nan))
    sbps = parse_nd_sbp(register.sbp)
    offsets = shard_offsets(register.global_shape, sbps, state.graph.axis_sizes, state.coordinate)
    region = tuple(slice(o, o + n) for o, n in zip(offsets, register.shape, strict=True))
    gradient[region] = state.arena.views[register_index][0]


def losses_of(states: list[RankState]) -> np.ndarray:
    """Mean loss of every step, by rank [ranks, steps]."""
    return np.array([[loss / n for loss, n, _ in state.run_state.totals] for state in states])


def assert_strays_no_further(
    losses: np.ndarray, single: ReferenceResult, exact: ReferenceResult
) -> None:
    """Assert that fp32 losses are as near to float64 as one device's in fp32, times `STRAYING`.

    Every step counts as much as the step in which the one device strays furthest: a difference of
    two roundings may be nothing by chance.
    """
    truth = np.array(exact.losses)
    spread = np.abs(np.array(single.losses) - truth).max()
    assert 0 < spread < 1e-4 * truth.max()
    assert np.abs(losses - truth).max() <= STRAYING * spread
