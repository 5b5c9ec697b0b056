"""Crowding: the speed that cores have together where more threads want them than there are.

Switches, caches that are filled anew and cores that an uneven share leaves idle take their part. It
is seen in steps of ranks that share cores, once their ops and meetings are priced as they were.
"""

from collections.abc import Iterable

import msgspec

from millrace.comparison import step_time_ns
from millrace.planner.actors.graph import ActorGraph
from millrace.planner.actors.trace import Trace
from millrace.planner.cluster import Cluster
from millrace.simulator.simulate import simulate

SPEED_MIN = 0.6
SLOWED = 0.8  # Speed of a second prediction, which shows how much of a step is crowded.
CROWDED_MIN = 0.1  # A run counts where crowds take this share of its step at least.
STEPS = 4


def crowded_speed(cluster: Cluster, runs: Iterable[tuple[ActorGraph, Trace]]) -> float:
    """Speed of crowded cores with which runs are predicted right, in the mean of their errors.

    Parameters
    ----------
    cluster : Cluster
        That of the runs, whose ranks share cores, with all other costs as they were measured. Where
        no run says anything, its own speed stays.
    runs : iterable of (ActorGraph, Trace)
        Compiled plans, and the trace of a run of each.
    """
    crowded = missing = 0.0
    for graph, trace in runs:
        full_ns, slowed_ns = (_step_ns(graph, cluster, speed) for speed in (1.0, SLOWED))
        share = (slowed_ns - full_ns) / (1 / SLOWED - 1) / full_ns
        if share >= CROWDED_MIN:
            crowded += share
            missing += step_time_ns(trace) / full_ns - (1 - share)
    if not crowded:
        return cluster.device.crowded_speed
    return min(max(crowded / missing, SPEED_MIN), 1.0) if missing > 0 else 1.0


def _step_ns(graph: ActorGraph, cluster: Cluster, speed: float) -> int:
    """Step time at a speed of crowded cores, with the variation that was measured."""
    device = msgspec.structs.replace(cluster.device, crowded_speed=speed)
    asked = msgspec.structs.replace(cluster, device=device)
    steps, jitter = (STEPS, min(device.jitter, 1.0)) if device.jitter else (3, 0.0)
    return simulate(graph, asked, steps=steps, jitter=jitter, spans=False).step_time_ns
