"""Sends: what the microbatches of a step take from stage to stage.

Every device hands on its share of the largest tensor that blocks of the forward pass hand on: where
several devices hold all of it, readers that want all of it gather it faster on their side
(`planner.boxing.crossing`). Gradients go back as they came.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from planner.cluster import Cluster
from planner.costs import collective_duration_ns
from planner.search.candidates import Candidate
from planner.search.sites import ordered
from planner.search.stages import Pipeline


class Sends:
    """Times of a cluster's transfers between stages, found once.

    Parameters
    ----------
    cluster : Cluster
    handed_bytes : callable
        Bytes of what blocks hand on, over all devices, for a microbatch of so many samples.
    """

    def __init__(self, cluster: Cluster, handed_bytes: Callable[[int], int]) -> None:
        self.cluster = cluster
        self.handed_bytes = handed_bytes
        self._known: dict[object, tuple[int, int]] = {}

    def pipeline(self, candidate: Candidate) -> Pipeline:
        """A candidate's pipeline, with what its stages send."""
        pipeline = candidate.pipeline
        if pipeline.stages == 1:
            return pipeline
        devices = prod(candidate.sizes)
        order = candidate.placing.order if candidate.placing else ()
        key = order, devices, pipeline.stages, self.handed_bytes(candidate.batch) // devices
        if key not in self._known:
            self._known[key] = self._row(*key)
        row, back = self._known[key]
        # A V turns round on one stage, other rows go from the last stage to the first.
        turns = back * (pipeline.interleave - 1) if pipeline.rows > 1 else 0
        return replace(pipeline, sent_ns=2 * (pipeline.interleave * row + turns))

    def waits_ns(self, candidate: Candidate) -> float:
        """What sends add to bounds in which the stages are in balance, as each pace has a share.

        On several kinds of device stages are in balance with unequal shares.
        """
        pipeline = self.pipeline(candidate)
        alike = candidate.placing is None or len(candidate.placing.sites) == 1
        paces = (pipeline.microbatches - 1) / pipeline.stages if pipeline.in_turn and alike else 0.0
        return pipeline.sent_ns * (1 + paces)

    def _row(self, order: tuple[int, ...], devices: int, stages: int, size: int) -> tuple[int, int]:
        """Time from the first stage to the last one by one, and from the last to the first."""
        cluster = ordered(self.cluster, order) if order else self.cluster

        def hop(home: int, target: int) -> int:
            ends = {(home * devices + at, target * devices + at) for at in (0, devices - 1)}
            return max(collective_duration_ns("send", size, 2, cluster, pair) for pair in ends)

        return sum(hop(at, at + 1) for at in range(stages - 1)), hop(stages - 1, 0)
