"""Firing waits: a firing that nothing else holds back begins when the last of them is over."""

from random import Random

import numpy as np
import pytest

from millrace.planner.actors.firing_waits import FiringWaits
from millrace.planner.actors.protocol import ActorProtocol
from millrace.simulator.kernel import Kernel
from millrace.simulator.simulated_rank import Instance
from tests.actor_graphs import random_actor_graph

STEPS = 3


def simulated(seed: int, lag_ns: int) -> list[Instance]:
    """Ranks of a random graph after a run with random durations, and lags up to `lag_ns`."""
    graph, random = random_actor_graph(seed), Random(seed)
    instances = []
    for rank in range(graph.ranks):
        program = graph.programs[graph.program_of(rank)]
        counts = [actor.firings * STEPS for actor in program.actors]
        instances.append(
            Instance(
                rank=rank,
                program=program,
                protocol=ActorProtocol(program, STEPS),
                delays=[random.randrange(1, 100) for _ in counts],
                lags=[[random.randrange(lag_ns + 1) for _ in range(count)] for count in counts],
            )
        )
    Kernel(graph, instances).run()
    return instances


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("lag_ns", [0, 50])
def test_a_firing_begins_its_lag_after_the_last_of_its_waits(seed: int, lag_ns: int) -> None:
    for instance in simulated(seed, lag_ns):
        starts, ends = (
            [np.asarray(row) for row in rows] for rows in (instance.starts, instance.ends)
        )
        waits = FiringWaits(instance.program, STEPS)
        ready = waits.ready_ns(starts, ends)
        for actor, (begun, since, lags) in enumerate(
            zip(starts, ready, instance.lags, strict=True)
        ):
            assert (begun - since).tolist() == lags
            for firing, ready_ns in enumerate(since.tolist()):
                blocker = waits.last(actor, firing, starts, ends)
                if blocker is None:
                    assert ready_ns == 0
                else:
                    assert ready_ns == blocker.time_ns
                    times = starts[blocker.actor], ends[blocker.actor]
                    assert ready_ns in [row[blocker.firing] for row in times]
