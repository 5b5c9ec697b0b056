"""Uniform ranking: all candidates of a uniform space priced, those of three axes last."""

from collections.abc import Callable, Sequence

from millrace.planner.search.candidates import Candidate
from millrace.planner.search.ranking import SQUEEZED, Ranker, Ranking, Widened
from millrace.planner.search.uniform.lockstep import closed


class UniformRanker(Ranker):
    """One round over the candidates of a uniform space; parameters are those of `Ranker`."""

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
        best_ns = self.ranking.best_ns if best_ns is None else best_ns
        for outcome in closed(
            self.evaluator, candidates, self.tell, self.record, best_ns=best_ns, apart=apart
        ):
            self.ranking.add(outcome)
