"""Sends: what the microbatches of a step take from stage to stage."""

from math import prod

from planner.cluster import Cluster
from planner.costs import collective_duration_ns
from planner.search.candidates import Candidate
from planner.search.sites import ordered


class Sends:
    """Times of a cluster's transfers between stages, found once.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[object, tuple[int, int]] = {}

    def sent_ns(self, candidate: Candidate, size: int) -> int:
        """Time of all transfers of one microbatch: through all chunks, and of gradients back.

        Parameters
        ----------
        candidate : Candidate
        size : int
            Bytes that one device hands to its counterpart on the next stage.
        """
        pipeline = candidate.pipeline
        if pipeline.stages == 1:
            return 0
        order = candidate.placing.order if candidate.placing else ()
        key = order, prod(candidate.sizes), pipeline.stages, size
        if key not in self._known:
            self._known[key] = self._row(*key)
        row, back = self._known[key]
        # A V turns round on one stage, other rows go from the last stage to the first.
        turn = back if pipeline.rows > 1 else 0
        return 2 * (pipeline.interleave * row + (pipeline.interleave - 1) * turn)

    def waits_ns(self, candidate: Candidate, size: int) -> float:
        """What sends of at least `size` bytes add to a bound in which stages are in balance.

        Where microbatches are in turn, each pace has a stage's share of them (`stages.shape`). On
        several kinds of device stages are in balance with unequal shares.
        """
        pipeline = candidate.pipeline
        sent_ns = self.sent_ns(candidate, size)
        if not pipeline.in_turn or (candidate.placing and len(candidate.placing.sites) > 1):
            return sent_ns
        return sent_ns * (1 + (pipeline.microbatches - 1) / pipeline.stages)

    def _row(self, order: tuple[int, ...], devices: int, stages: int, size: int) -> tuple[int, int]:
        """Time from the first stage to the last one by one, and from the last to the first."""
        cluster = ordered(self.cluster, order) if order else self.cluster

        def hop(home: int, target: int) -> int:
            ends = {(home * devices + at, target * devices + at) for at in (0, devices - 1)}
            return max(collective_duration_ns("send", size, 2, cluster, pair) for pair in ends)

        return sum(hop(at, at + 1) for at in range(stages - 1)), hop(stages - 1, 0)
