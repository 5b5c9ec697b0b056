"""Expected step: what a plan predicts of its step and of every actor, on this machine's cores."""

import numpy as np

from millrace.executor.drift.drift_watch import ExpectedStep
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.costs import durations
from millrace.planner.plan import Plan


def expected_step(plan: Plan, graph: ActorGraph) -> ExpectedStep | None:
    """Prediction of a plan; None where it has none, or one for other devices than cores.

    Parameters
    ----------
    plan
        Brings its predicted step time and its cluster.
    graph
        The plan's actors.
    """
    prediction = plan.prediction
    if prediction is None or plan.cluster.cores_per_node is None:
        return None
    by_program = [
        np.asarray(durations_ns, np.float64) * [actor.firings for actor in program.actors]
        for program, durations_ns in zip(
            graph.programs, durations(graph, plan.cluster), strict=True
        )
    ]
    times = [by_program[graph.program_of(rank)] for rank in range(graph.ranks)]
    return ExpectedStep(step_ns=1e9 * prediction.step_time_s, times=times)
