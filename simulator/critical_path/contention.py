"""Contention on stages: how long parts take whose rank moves data meanwhile.

When data moves depends on when parts end, and the other way round. Durations are guessed, the times
follow, and they give the next guess: times that confirm their guess are those that events find,
for what happens first depends on nothing later.
"""

from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from millrace.planner.costs.launch_overhead import Pacing
from millrace.simulator.critical_path.firings import Nodes, StepNodes
from millrace.simulator.pacer import SCALE, overlapped_speed


def slowed(firings: StepNodes, work: Nodes, ends: Nodes, pacing: Pacing) -> Nodes:
    """Durations of all nodes while data moves as it does in these times.

    Parameters
    ----------
    firings
        The nodes, with the durations that gave the times.
    work
        Their durations where nothing moves.
    ends
        The times.
    pacing
        What holds computation back.
    """
    durations = work.copy()
    begun = ends[: firings.count] - firings.durations
    for index, groups in enumerate(firings.group_of):
        meetings = np.concatenate([group.nodes for group in groups if group.lane is not None])
        edges = _edges(begun[meetings], ends[meetings])
        speeds = [
            (overlapped_speed(pace.alone, pacing.overlap), group.nodes)
            for group, pace in zip(groups, pacing.rows[index], strict=True)
            if group.lane is None
        ]
        speeds.sort(key=lambda entry: entry[0])
        for speed, same in groupby(speeds, key=lambda entry: entry[0]):
            nodes = np.concatenate([group_nodes for _, group_nodes in same])
            durations[nodes] = _durations(begun[nodes], work[nodes], edges, speed)
    return durations


def moves_early(firings: StepNodes, ends: Nodes, updated_ns: list[int]) -> bool:
    """True if a rank takes part in a meeting before its last update is over."""
    begun = ends[: firings.count] - firings.durations
    return any(
        bool((begun[group.nodes] < until).any())
        for groups, until in zip(firings.group_of, updated_ns, strict=True)
        for group in groups
        if group.lane is not None and group.duration_ns > 0
    )


def _edges(starts: Nodes, ends: Nodes) -> Nodes:
    """Begin and end of every time in which something moves, one after the other."""
    order = np.argsort(starts[starts < ends], kind="stable")
    first, last = starts[starts < ends][order], ends[starts < ends][order]
    if not len(first):
        return first
    until = np.maximum.accumulate(last)
    apart = first[1:] > until[:-1]
    return np.stack([first[np.append(True, apart)], until[np.append(apart, True)]], axis=1).ravel()


def _durations(begun: Nodes, work: Nodes, edges: Nodes, speed: int) -> NDArray[np.int64]:
    """Duration of each work from where it begins, at `speed` between edges."""
    if not len(edges):
        return work
    moving = np.zeros(len(edges), np.int64)  # until each edge
    moving[1::2] = np.cumsum(edges[1::2] - edges[::2])
    moving[2::2] = moving[1:-1:2]
    edges_passed = np.searchsorted(edges, begun, side="right")
    before = np.maximum(edges_passed - 1, 0)
    inside = np.where(edges_passed % 2 == 1, begun - edges[before], 0) + np.where(
        edges_passed > 0, moving[before], 0
    )
    done = SCALE * edges - (SCALE - speed) * moving
    goal = SCALE * begun - (SCALE - speed) * inside + SCALE * work
    reached = np.searchsorted(done, goal, side="left")
    last = np.maximum(reached - 1, 0)
    rate = np.where(reached % 2 == 1, max(speed, 1), SCALE)
    ends = np.where(reached > 0, edges[last] - (done[last] - goal) // rate, begun + work)
    return np.asarray(np.where(work > 0, ends - begun, 0))
