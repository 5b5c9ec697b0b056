"""Order statistics: the delay of a meeting beyond that which its simulated members suggest.

A meeting waits for the slowest of all its members. Where only some of them are simulated, the
slowest of all is later than the slowest of these. How much is estimated from their spread: the
largest of n normal values exceeds the largest of k by a known number of standard deviations.

Notes
-----
Expected largest of n: `millrace.planner.costs.expert_routing.largest_of`. Arrivals are not normal
where several paths through a pipeline compete; `benchmarks.simulator` measures what that does.
"""

from collections.abc import Sequence
from math import prod
from statistics import stdev

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.costs.expert_routing import largest_of
from millrace.simulator.simulated_rank import Instance
from millrace.simulator.variation.representatives import Representatives


class Lateness:
    """Delay that the members that are not simulated add to meetings.

    Parameters
    ----------
    graph
        The actor graph.
    chosen
        The ranks that are simulated.
    instances
        They themselves, in that order.
    """

    def __init__(
        self, graph: ActorGraph, chosen: Representatives, instances: Sequence[Instance]
    ) -> None:
        self._instances = instances
        self._sizes = dict(zip((axis.name for axis in graph.axes), graph.axis_sizes, strict=True))
        named = dict(zip(self._sizes, chosen.named, strict=True))
        coordinates = [
            dict(zip(named, graph.coordinate(instance.rank), strict=True)) for instance in instances
        ]
        # Per instance, the axes along which it is one of those that are alike.
        self._alike = [
            {axis for axis, c in coordinate_of.items() if c not in named[axis]}
            for coordinate_of in coordinates
        ]
        self._others = {axis: len(taken) for axis, taken in named.items()}

    def late_ns(self, members: Sequence[tuple[int, int]]) -> int:
        """Nanoseconds from the arrival of the last simulated member to that of the last of all."""
        if len(members) < 2:
            return 0
        arrivals: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for index, actor in members:
            instance = self._instances[index]
            meeting = instance.program.actors[actor].meeting
            if meeting is None or meeting.peer is not None:
                return 0
            axes = tuple(self._sizes) if meeting.world else meeting.axes
            if self._alike[index].issuperset(axes):
                arrivals.setdefault(instance.program.stage, []).append(instance.starts[actor][-1])
                sizes[instance.program.stage] = prod(self._sizes[a] - self._others[a] for a in axes)
        now = max(self._instances[index].starts[actor][-1] for index, actor in members)
        latest = float(now)
        for stage, times in arrivals.items():
            if 1 < len(times) < sizes[stage]:
                further = largest_of(sizes[stage]) - largest_of(len(times))
                latest = max(latest, max(times) + stdev(times) * further)
        return round(latest) - now
