"""Watch for stalls: the end of a run in which a rank comes no further, and whose fault it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from millrace.executor.errors import RankFailedError
from millrace.executor.supervision.rank_board import BoardReader, RankStanding, board_path
from millrace.executor.supervision.standstill import Standstill, StandstillFinder
from millrace.planner.actors.graph import ActorGraph

LOOK_S = 0.25
PAUSE_S = 2.0  # the watch itself did not run for so long: what ranks did meanwhile is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimit:
    """Seconds after which a rank that completes no firing is taken for stalled.

    Where the step is predicted it is `least_s` and `steps` predicted steps: a firing lasts no
    longer than its step. Otherwise it is `unpredicted_s`. It is `gaps` times the longest that a
    rank has taken between two firings where that is more. Before its first firing a rank joins
    MPI, loads what it begins from and builds its kernels, which may take `start_s`.
    """

    predicted_step_s: float | None = None
    least_s: float = 10.0
    steps: float = 10.0
    unpredicted_s: float = 60.0
    gaps: float = 4.0
    start_s: float = 600.0

    def limit_s(self, longest_gap_s: float) -> float:
        """Limit for a rank that has fired.

        Parameters
        ----------
        longest_gap_s
            Longest time that any rank has taken between two firings.

        Examples
        --------
        >>> StallLimit(predicted_step_s=0.5).limit_s(2.0), StallLimit().limit_s(8.0)
        (15.0, 60.0)
        """
        limit_s = self.unpredicted_s
        if self.predicted_step_s is not None:
            limit_s = self.least_s + self.steps * self.predicted_step_s
        return max(limit_s, self.gaps * longest_gap_s)


class StallWatch:
    """Watch over the boards of all ranks.

    Parameters
    ----------
    graph
        The actors of every rank.
    folder
        The job's folder, with the boards.
    limit
        When a rank is taken for stalled; None: never.
    first_step
        Steps that earlier runs made.
    """

    def __init__(
        self,
        graph: ActorGraph,
        folder: Path,
        limit: StallLimit | None,
        *,
        first_step: int = 0,
    ) -> None:
        self._limit, self._first_step = limit, first_step
        self._finder = StandstillFinder(graph)
        self._boards = [BoardReader(board_path(folder, rank)) for rank in range(graph.ranks)]
        now_s = monotonic()
        self._beats: list[int | None] = [None] * graph.ranks
        self._since_s = [now_s] * graph.ranks
        self._looked_s = now_s
        self._longest_gap_s = 0.0

    def look(self) -> None:
        """Look at the boards, a few times a second at the most.

        Raises
        ------
        RankFailedError
            A rank has come no further for longer than the limit; names the rank that holds it up,
            the actor and the microbatch.
        """
        now_s = monotonic()
        passed_s = now_s - self._looked_s
        if self._limit is None or passed_s < LOOK_S:
            return
        self._looked_s = now_s
        if passed_s > PAUSE_S:
            self._since_s = [since_s + passed_s for since_s in self._since_s]
        for rank, board in enumerate(self._boards):
            beats = board.beats()
            if beats != self._beats[rank]:
                if self._beats[rank]:  # the first is not counted, for kernels may be built in it
                    gap_s = now_s - self._since_s[rank]
                    self._longest_gap_s = max(self._longest_gap_s, gap_s)
                self._beats[rank], self._since_s[rank] = beats, now_s
        silence_s = [now_s - since_s for since_s in self._since_s]
        limit_s = self._limit.limit_s(self._longest_gap_s)
        if max(silence_s) > limit_s:
            self._judge(silence_s, limit_s)

    def close(self) -> None:
        """Close the boards."""
        for board in self._boards:
            board.close()

    def _judge(self, silence_s: Sequence[float], limit_s: float) -> None:
        """End the run if a rank that should have come further has not."""
        assert self._limit is not None
        standings = {
            rank: standing
            for rank, board in enumerate(self._boards)
            if (standing := board.standing()) is not None
        }
        if all(rank in standings and standings[rank].is_done for rank in range(len(silence_s))):
            return
        # One that is stopped may be silent for a little less than those that wait for it.
        stopped = {
            rank
            for rank, standing in standings.items()
            if standing.is_stopped and silence_s[rank] > limit_s / 2
        }
        is_late = [
            not _is_done(standings.get(rank))
            and silence > (limit_s if self._beats[rank] or rank in stopped else self._limit.start_s)
            for rank, silence in enumerate(silence_s)
        ]
        if not any(is_late):
            return
        standstill = self._finder.standstill(standings, silence_s, stopped)
        raise RankFailedError(
            self._sentence(standstill, silence_s[standstill.rank]),
            rank=standstill.rank,
            actor=standstill.actor,
        )

    def _sentence(self, standstill: Standstill, silence_s: float) -> str:
        place = standstill.place(self._first_step)
        within = f" in {place}" if place else ""
        return f"no progress for {silence_s:.0f} s{within}: {standstill.cause}"


def _is_done(standing: RankStanding | None) -> bool:
    return standing is not None and standing.is_done
