"""Uniform ranking: all candidates of a uniform space priced, those of three axes last."""

from collections.abc import Callable, Sequence
from math import inf

from millrace.planner.errors import InfeasibleError
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.evaluation import Evaluator, Outcome
from millrace.planner.search.ranking import SQUEEZED, Progress, Ranker, Ranking, Widened
from millrace.planner.search.request import SearchRequest
from millrace.planner.search.search_log import SearchLog
from millrace.planner.search.uniform.lockstep import StoppedError, closed


class SlowerError(InfeasibleError):
    """No plan of a space is faster than one of another; `bound_ns` is its least step."""

    def __init__(self, bound_ns: float) -> None:
        self.bound_ns = bound_ns
        super().__init__("no plan is faster than one of another space")


class UniformRanker(Ranker):
    """One round over the candidates of a uniform space.

    Parameters
    ----------
    request, evaluator, tell, record
        As for `Ranker`.
    best_ns : float
        Step of a plan of another space, that plans have to be below.
    """

    def __init__(
        self,
        request: SearchRequest,
        evaluator: Evaluator,
        tell: Progress,
        record: SearchLog,
        best_ns: float = inf,
    ) -> None:
        super().__init__(request, evaluator, tell, record)
        self.best_ns = best_ns

    def rank(self, everything: tuple[Candidate, ...], widened: Widened | None = None) -> Ranking:
        """Price candidates until no bound is below the best plan by more than a part of the gap."""
        self._close(everything)
        if widened is not None and (wide := widened([])):
            self._close(wide)
        self.ranking.solved_plans.sort(key=lambda plan: plan.division.step_ns)
        return self.ranking

    def widen(self, limit_ns: float, wanted: Callable[[Candidate], bool]) -> None:
        """Price candidates that may come to within a limit of a step, as far as that."""
        low = sorted(
            (
                pruned
                for pruned in self.ranking.pruned
                if pruned.bound_ns < limit_ns and wanted(pruned.candidate)
            ),
            key=lambda pruned: pruned.bound_ns,
        )
        again = [pruned.candidate for pruned in low[:SQUEEZED]]
        if again:
            left = set(again)
            self.ranking.pruned = [p for p in self.ranking.pruned if p.candidate not in left]
            self._close(again, limit_ns, apart=True)

    def _close(
        self, candidates: Sequence[Candidate], best_ns: float | None = None, *, apart: bool = False
    ) -> None:
        best_ns = min(self.ranking.best_ns, self.best_ns) if best_ns is None else best_ns
        asked = self.evaluator, candidates, self.tell, self.record
        try:
            outcomes = closed(*asked, best_ns=best_ns, apart=apart)
        except StoppedError as stopped:
            self._add(stopped.outcomes)
            raise
        self._add(outcomes)

    def _add(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.ranking.add(outcome)
