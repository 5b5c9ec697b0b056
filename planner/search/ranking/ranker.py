"""Ranker: candidates closed by loops in lockstep, those with more axes last.

A loop has the candidates of its space: of equal layers (`uniform/uniform_loop.py`), or of blocks
that mix variants (`decomposition/mixed_loop.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from millrace.planner.errors import InfeasibleError
from millrace.planner.search.candidates import Candidate, PipelineShape, shape_of
from millrace.planner.search.evaluation import Evaluator, Outcome, Pruned, Refused, SolvedPlan
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.ranking.lockstep import StoppedError, closed
from millrace.planner.search.request import MemoryLimitError, SearchRequest
from millrace.planner.search.search_log import BLOCKS, SearchLog

Progress = Callable[[str], None]
Widened = Callable[[list[PipelineShape]], list[Candidate]]

WIDENED = 8  # pipelines for which meshes of three axes are tried where blocks mix variants
SIMPLER = 8  # candidates that are solved as they may be simpler than the best plan
REFINED = 4  # candidates solved further to close the gap, where some gap is allowed
REFINED_OPTIONS = 1_500  # candidates that have more options are not refined there
HOPELESS = 2  # where every candidate needs more than this times the memory, none is refined


@dataclass(slots=True)
class Ranking:
    """Outcomes of one round over the candidates."""

    solved_plans: list[SolvedPlan] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """File an outcome under what it is."""
        if isinstance(outcome, SolvedPlan):
            self.solved_plans.append(outcome)
        elif isinstance(outcome, Pruned):
            self.pruned.append(outcome)
        else:
            self.refused.append(outcome)

    @property
    def bound_ns(self) -> float:
        """The lowest bound over every candidate that could be a plan."""
        return min((outcome.bound_ns for outcome in self.everything), default=inf)

    @property
    def everything(self) -> list[Outcome]:
        """All outcomes."""
        return [*self.solved_plans, *self.pruned, *self.refused]

    @property
    def best_ns(self) -> float:
        """Step time of the best plan so far."""
        return min((plan.division.step_ns for plan in self.solved_plans), default=float("inf"))


class SlowerError(InfeasibleError):
    """No plan of a space is faster than one of another; `bound_ns` is its least step."""

    def __init__(self, bound_ns: float) -> None:
        self.bound_ns = bound_ns
        super().__init__("no plan is faster than one of another space")


class Ranker:
    """One round over the candidates.

    Parameters
    ----------
    request : SearchRequest
    evaluator : Evaluator
    tell : callable
        Told a line of text now and then.
    record : SearchLog
        Filled with what was done.
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
        self.request = request
        self.evaluator = evaluator
        self.tell = tell
        self.record = record
        self.best_ns = best_ns
        self.ranking = Ranking()

    def rank(self, everything: tuple[Candidate, ...], widened: Widened | None = None) -> Ranking:
        """Close candidates against the best plan, then those with more axes.

        `widened` gives these: of all pipelines where none is named.
        """
        self._close(everything)
        likely = [] if self.request.uniform else self._likely()
        if widened is not None and (wide := widened(likely)):
            self._close(wide)
        if not (self.request.uniform or self.request.plan_only):
            with self.record.layer(BLOCKS):
                self.record.count("refined", self._refine())
        self.ranking.solved_plans.sort(key=lambda plan: plan.division.step_ns)
        return self.ranking

    def widen(self, limit_ns: float, wanted: Callable[[Candidate], bool]) -> None:
        """Solve candidates that were left though they may come to within a limit.

        Parameters
        ----------
        limit_ns : float
            Step up to which a plan is of use.
        wanted : callable
            Tells which candidates are.
        """
        low = sorted(
            (
                pruned
                for pruned in self.ranking.pruned
                if self._estimate_ns(pruned) < limit_ns and wanted(pruned.candidate)
            ),
            key=self._estimate_ns,
        )
        again = [pruned.candidate for pruned in low[:SIMPLER]]
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
            outcomes = closed(*asked, best_ns=best_ns, apart=apart, held_ns=self.ranking.bound_ns)
        except StoppedError as stopped:
            self._add(stopped.outcomes)
            raise
        self._add(outcomes)

    def _add(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.ranking.add(outcome)

    def _estimate_ns(self, outcome: Outcome) -> float:
        """Step of a plan, or what it may be by a candidate's bound."""
        if isinstance(outcome, SolvedPlan):
            return outcome.division.step_ns
        return self.evaluator.estimate_ns(outcome.candidate, outcome.bound_ns)

    def _likely(self) -> list[PipelineShape]:
        """Pipelines of the lowest estimates."""
        estimates_ns: dict[PipelineShape, float] = {}
        for outcome in self.ranking.everything:
            shape = shape_of(outcome.candidate.pipeline)
            estimate_ns = self._estimate_ns(outcome)
            estimates_ns[shape] = min(estimate_ns, estimates_ns.get(shape, inf))
        return sorted(estimates_ns, key=lambda shape: estimates_ns[shape])[:WIDENED]

    def _refine(self) -> int:
        """Solve the candidates with the lowest bounds better until one fits, or no gap is left.

        Return the number of candidates that were refined.
        """
        ranking, max_gap = self.ranking, self.request.max_gap
        done: set[Candidate] = set()
        if max_gap and not ranking.solved_plans and _hopeless(ranking):
            return 0
        least_ns = ranking.best_ns / (1 + max_gap)
        left = [outcome for outcome in ranking.everything if outcome.bound_ns < least_ns]
        if max_gap and ranking.solved_plans and len(left) > REFINED:
            return 0  # others would keep the gap open
        for _ in range(REFINED if max_gap else len(ranking.everything)):
            # Where no gap is allowed, others may still be better than what stays behind its bound.
            left = [
                outcome
                for outcome in ranking.everything
                if max_gap or outcome.candidate not in done
            ]
            lowest = min(left, key=lambda outcome: outcome.bound_ns, default=None)
            if lowest is None or ranking.best_ns <= lowest.bound_ns * (1 + max_gap):
                break
            if lowest.candidate in done:
                break
            if max_gap and self.evaluator.options(lowest.candidate) > REFINED_OPTIONS:
                break
            done.add(lowest.candidate)
            self.tell(f"refining number {len(done)}: {lowest.candidate.text}")
            better = self.evaluator.refine(
                lowest, usable_bytes(self.request, lowest.candidate), ranking.best_ns
            )
            others = [outcome for outcome in ranking.everything if outcome is not lowest]
            ranking.solved_plans, ranking.pruned, ranking.refused = [], [], []
            for outcome in (*others, better):
                ranking.add(outcome)
        return len(done)


def _hopeless(ranking: Ranking) -> bool:
    """True if memory is so short that solving better cannot make room."""
    short = [
        refused.error for refused in ranking.refused if isinstance(refused.error, MemoryLimitError)
    ]
    return bool(short) and all(error.needed_bytes > HOPELESS * error.limit_bytes for error in short)
