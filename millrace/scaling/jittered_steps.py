"""Jittered steps: how long steps take when every duration varies, on average and at their worst.

Stages are simulated, and their parts vary, as `millrace simulate --fidelity stage --jitter X` does
it, so that small and large plans of a sweep are treated alike; ranks that share cores are simulated
op by op. Factors are over a step without jitter at the same fidelity.
"""

from typing import NamedTuple

import numpy as np

from millrace.planner.plan import Plan

# So many steps are timed, fewer where a step has many firings (half a million take some 15 s).
STEPS, FEWEST_STEPS, FIRINGS_MAX = 40, 10, 500_000
TAIL_PERCENT = 95.0
AROUND = 2  # steps before and behind those that are timed, whose pipelines fill and drain


class JitteredSteps(NamedTuple):
    """Lengths of steps with jitter, over that of a step without: mean, tail, and of how many."""

    mean: float
    tail: float
    steps: int


def jittered_steps(plan: Plan, jitter: float, seed: int) -> JitteredSteps:
    """Lengths of steps with jitter, as factors on the step without.

    Parameters
    ----------
    plan : Plan
        The plan that is simulated.
    jitter : float
        Standard deviation of the logarithm of every duration.
    seed : int
        Of the random numbers.

    Raises
    ------
    SimulationError
        The jitter is out of its range.
    """
    from millrace.simulator import predict
    from millrace.simulator.variation.representatives import SAMPLED

    fidelity = "op" if plan.cluster.cores_per_node is not None else "stage"
    steady = predict(plan, fidelity=fidelity, spans=False)
    firings = steady.firings * min(SAMPLED, plan.mesh.devices) // steady.trace.steps
    steps = min(max(FIRINGS_MAX // max(firings, 1), FEWEST_STEPS), STEPS)
    varied = predict(
        plan, steps=steps + AROUND, jitter=jitter, seed=seed, spans=False, fidelity=fidelity
    )
    ends_ns = np.asarray(varied.trace.step_end_ns).max(axis=0)  # [steps], of the slowest rank
    factors = np.diff(ends_ns[:-1]) / steady.step_time_ns
    return JitteredSteps(
        mean=float(factors.mean()),
        tail=float(np.percentile(factors, TAIL_PERCENT)),
        steps=len(factors),
    )
