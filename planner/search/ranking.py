"""Ranking: which candidates are solved, in which order, and which never are.

All are bounded. Then, by ascending estimate (the bound, and what memory that is short would cost:
`stages/dearth.py`), they are solved as if memory hardly mattered, and where it does matter solved
again to make room, until no bound is below the best plan or no estimate is near it; last come
meshes of three axes for the pipelines that did best. Where no gap is allowed, bounds alone decide.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import counted, duration
from millrace.planner.search.candidates import Candidate, PipelineShape, shape_of
from millrace.planner.search.evaluation import (
    NEAR,
    NO_GAIN,
    Evaluator,
    Limits,
    Outcome,
    Pruned,
    Refused,
    SolvedPlan,
)
from millrace.planner.search.placement_groups import usable_bytes
from millrace.planner.search.request import MemoryLimitError, SearchRequest
from millrace.planner.search.search_log import BLOCKS, SHAPES, SearchLog

Progress = Callable[[str], None]
Widened = Callable[[list[PipelineShape]], list[Candidate]]
Tight = tuple[Candidate, float]  # with its bound
Waiting = tuple[float, float, int, Candidate]  # by its estimate and its bound

MANY = 48  # candidates solved together: few, as a good plan prunes the rest
SQUEEZED = 8  # candidates made room in together where memory is tight: few, too
ENOUGH = 3  # plans near the best, from which no other is wanted that is no better
# Making room stops after so many candidates in a row that better the best plan by less than this.
PATIENCE, BETTER = 8, 0.998
LEFT = "making room in candidates of a lower estimate gained nothing"
STOPPED = "the search was interrupted"
FAR_OFF = "estimated far above the best plan"
FARTHEST = 1.06  # a candidate estimated at this times the best plan is not solved
NO_BETTER = "memory aside, a usual mesh is as good"
BETTER_MESH = 0.99  # room is made on another mesh below this times the bound on usual ones
# Candidates that were left early and are solved for what they promise; by eye: with 24, README's
# plan of Llama-3 70B is searched for 41 s where it is 37 s, and is no faster.
PROMISED = 16
REFINED = 4  # candidates solved further to close the gap, where some gap is allowed
REFINED_OPTIONS = 1_500  # candidates that have more options are not refined there
# Pipelines for which meshes of three axes are tried too: the best plans', and by their estimates.
WIDENED, LIKELY = 4, 4
FAR = 1.2  # a microbatch that needs this times the memory rules out larger ones
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
        return min(outcome.bound_ns for outcome in self.everything)

    @property
    def everything(self) -> list[Outcome]:
        """All outcomes."""
        return [*self.solved_plans, *self.pruned, *self.refused]

    @property
    def best_ns(self) -> float:
        """Step time of the best plan so far."""
        return min((plan.division.step_ns for plan in self.solved_plans), default=float("inf"))


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
    """

    def __init__(
        self,
        request: SearchRequest,
        evaluator: Evaluator,
        tell: Progress,
        record: SearchLog,
    ) -> None:
        self.request = request
        self.evaluator = evaluator
        self.tell = tell
        self.record = record
        self.ranking = Ranking()
        self._waiting: list[Tight] = []

    def stop(self) -> None:
        """Leave what was not looked at yet, with the bounds that are known."""
        looked_at = {outcome.candidate for outcome in self.ranking.everything}
        for candidate, bound_ns in self._waiting:
            if candidate not in looked_at:
                self.ranking.pruned.append(Pruned(candidate, bound_ns, STOPPED))
        self.ranking.solved_plans.sort(key=lambda plan: plan.division.step_ns)

    def rank(self, everything: tuple[Candidate, ...], widened: Widened | None = None) -> Ranking:
        """Evaluate candidates until what is left has nothing to gain, or is far off.

        `widened` gives more candidates, for the pipelines that are best so far or likely to be.
        """
        self._part(list(everything))
        if widened is not None:
            self.ranking.solved_plans.sort(key=lambda plan: plan.division.step_ns)
            eased = self._eased()
            if wide := widened(self._promising(list(eased))):
                tight = eased and self.ranking.best_ns * BETTER_MESH > min(eased.values())
                self._part(wide, eased if tight else None)
        with self.record.layer(BLOCKS):
            self._polish()
            self.record.count("refined", self._refine())
        self.ranking.solved_plans.sort(key=lambda plan: plan.division.step_ns)
        return self.ranking

    def reconsider(
        self, promised_ns: Mapping[Candidate, float], best_ns: float
    ) -> list[SolvedPlan]:
        """Plans of candidates that were left early, and promise more than the best one.

        Parameters
        ----------
        promised_ns : mapping
            Step to which columns of a candidate come, mixed in any shares, by linear programs; that
            of others is estimated.
        best_ns : float
            Step of the best plan that has room once it is laid out.
        """
        promises = [
            (promised_ns.get(candidate) or self._estimate(candidate, bound), bound, candidate)
            for candidate, bound in (
                (pruned.candidate, pruned.bound_ns) for pruned in self.ranking.pruned
            )
            if bound * (1 + self.request.max_gap) < best_ns
        ]
        left = sorted(
            (promise for promise in promises if promise[0] < best_ns),
            key=lambda promise: promise[:2],
        )
        again = [(candidate, bound) for _, bound, candidate in left[:PROMISED]]
        candidates = {candidate for candidate, _ in again}
        still_pruned = [
            pruned for pruned in self.ranking.pruned if pruned.candidate not in candidates
        ]
        self.ranking.pruned, before = still_pruned, len(self.ranking.solved_plans)
        for first in range(0, len(again), SQUEEZED):
            self._make_room(again[first : first + SQUEEZED], NEAR * best_ns)
        return self.ranking.solved_plans[before:]

    def widen(self, limit_ns: float, wanted: Callable[[Candidate], bool]) -> None:
        """Solve candidates that were left though they may come to within a limit.

        Parameters
        ----------
        limit_ns : float
            Step up to which a plan is of use.
        wanted : callable
            Tells which candidates are.
        """
        left = sorted(
            (self._estimate(pruned.candidate, pruned.bound_ns), pruned.bound_ns, number)
            for number, pruned in enumerate(self.ranking.pruned)
            if pruned.bound_ns < limit_ns and wanted(pruned.candidate)
        )
        again = [number for estimate, _, number in left if estimate < limit_ns][:SQUEEZED]
        group = [
            (self.ranking.pruned[number].candidate, self.ranking.pruned[number].bound_ns)
            for number in again
        ]
        if group:
            self.ranking.pruned = [
                pruned
                for number, pruned in enumerate(self.ranking.pruned)
                if number not in set(again)
            ]
            self._make_room(group, limit_ns)

    def _phase(self, phase: str, candidate: Candidate | None = None) -> None:
        """Tell a phase, with the best step so far and the first candidate that it is about."""
        best = self.ranking.best_ns
        so_far = f", best step {duration(best)}" if self.ranking.solved_plans else ""
        self.tell(f"{phase}{so_far}{f': {candidate.text}' if candidate else ''}")

    def limit(self, candidate: Candidate) -> Limits:
        """Bytes that a candidate may lay out on each of its sites."""
        return usable_bytes(self.request, candidate)

    @property
    def cutoff_ns(self) -> float:
        """The bound at which a candidate has nothing to gain.

        Until there are enough plans about as good as the best, others are wanted for the simulator.
        """
        best = self.ranking.best_ns
        near_count = sum(plan.division.step_ns <= best * NEAR for plan in self.ranking.solved_plans)
        return best * (NEAR if near_count < ENOUGH else 1.0) / (1 + self.request.max_gap)

    def _part(
        self, part: list[Candidate], eased: Mapping[PipelineShape, float] | None = None
    ) -> None:
        """Evaluate some of the candidates, beside what is known of others.

        Where memory is tight, room is only made in those that gain something over the bound which
        `eased` has of their pipeline: an odd mesh that saves no communication saves no memory.
        """
        self._phase(f"bounding {counted(len(part), 'candidates')}")
        with self.record.layer(SHAPES):
            waiting = self._bounded(part)
        self.record.count("bounded", len(part))
        if eased and self.request.max_gap:
            odd = [bounded for bounded in waiting if bounded[1] >= _worth(bounded[3], eased)]
            self._left(_bounds(odd), NO_BETTER)
            waiting = [bounded for bounded in waiting if bounded not in odd]
        tight: list[Tight] = []
        position = stale = 0
        while position < len(waiting) or tight:
            self._waiting = [*_bounds(waiting[position:]), *tight]
            if self._far(waiting[position:]):
                self._left(_bounds(waiting[position:]), FAR_OFF)
                waiting = waiting[:position]
            group = waiting[position : position + MANY]
            position += len(group)
            solved = self._solved(_bounds(group), f"{position} of {len(waiting)}")
            if eased and self.request.max_gap:
                worth = [bounded for bounded in solved if bounded[1] < _worth(bounded[0], eased)]
                self._left([bounded for bounded in solved if bounded not in worth], NO_BETTER)
                solved = worth
            tight += solved
            # Without a plan yet, what needs least memory is asked first.
            has_plan = bool(self.ranking.solved_plans)
            tight.sort(
                key=lambda bounded: (0 if has_plan else bounded[0].batch, self._estimate(*bounded))
            )
            if has_plan and self.request.max_gap:
                near = [bounded for bounded in tight if self._estimate(*bounded) < self._farthest]
                self._left(tight[len(near) :], FAR_OFF)
                tight = near
            # Few are taken at once, as a good plan prunes the rest; none before what may be better.
            ahead = waiting[position][0] if has_plan and position < len(waiting) else float("inf")
            ready = sum(self._estimate(*bounded) <= ahead for bounded in tight[:SQUEEZED])
            now, tight = tight[:ready], tight[ready:]
            if stale >= PATIENCE and self.request.max_gap:
                self._left([*now, *tight], LEFT)
                now, tight = [], []
            best = self.ranking.best_ns
            self._squeezed(now)
            if now:
                stale = stale + len(now) if self.ranking.best_ns > best * BETTER else 0
            if now and not self.ranking.solved_plans:
                waiting[position:], tight = _without_larger(waiting[position:], tight, self.ranking)

    def _eased(self) -> dict[PipelineShape, float]:
        """The least bound of every pipeline that there is a plan for: what it takes, memory aside.

        The best pipelines come first where plans are in order.
        """
        eased: dict[PipelineShape, float] = {}
        for plan in self.ranking.solved_plans:
            shape = shape_of(plan.candidate.pipeline)
            eased[shape] = min(plan.bound_ns, eased.get(shape, plan.bound_ns))
        return eased

    def _promising(self, best: list[PipelineShape]) -> list[PipelineShape]:
        """Pipelines to try meshes of three axes for: the best, and those estimated to be so."""
        estimates: dict[PipelineShape, float] = {}
        for outcome in self.ranking.everything:
            shape = shape_of(outcome.candidate.pipeline)
            estimate = self._estimate(outcome.candidate, outcome.bound_ns)
            estimates[shape] = min(estimate, estimates.get(shape, self._farthest))
        likely = sorted(estimates, key=lambda shape: estimates[shape])[:LIKELY]
        near = [shape for shape in likely if estimates[shape] < self._farthest]
        return list(dict.fromkeys([*best[:WIDENED], *near]))

    def _left(self, group: list[Tight], reason: str) -> None:
        """Leave candidates whose like gained nothing; their bounds count in the gap."""
        self.ranking.pruned += [Pruned(*bounded, reason) for bounded in self._open(group)]

    def _estimate(self, candidate: Candidate, bound: float) -> float:
        """Estimate that orders candidates: their bound, where no gap is allowed."""
        return self.evaluator.estimate_ns(candidate, bound) if self.request.max_gap else bound

    @property
    def _farthest(self) -> float:
        """The estimate from which a candidate is not solved."""
        return self.ranking.best_ns * FARTHEST

    def _far(self, waiting: list[Waiting]) -> bool:
        """True if all of these are estimated to be far from the best plan."""
        return bool(self.request.max_gap and waiting) and waiting[0][0] > self._farthest

    def _bounded(self, part: list[Candidate]) -> list[Waiting]:
        """Candidates by ascending bound; those without a legal signature are refused."""
        waiting: list[Waiting] = []
        bounds = self.evaluator.lower_bounds_ns(part, self.cutoff_ns)
        for number, (candidate, bound) in enumerate(zip(part, bounds, strict=True)):
            if isinstance(bound, InfeasibleError):
                self.ranking.refused.append(Refused(candidate, bound))
            else:
                waiting.append((self._estimate(candidate, bound), bound, number, candidate))
        return sorted(waiting, key=lambda bounded: bounded[:3])

    def _open(self, group: list[Tight]) -> list[Tight]:
        """Candidates of a group that may gain something; the others are pruned."""
        cutoff = self.cutoff_ns
        for candidate, bound in group:
            if bound >= cutoff:
                self.ranking.pruned.append(Pruned(candidate, bound, NO_GAIN))
        return [bounded for bounded in group if bounded[1] < cutoff]

    def _solved(self, group: list[Tight], place: str) -> list[Tight]:
        """Solve candidates as if memory hardly mattered; return those where it does.

        `place` is the last one's number, of how many.
        """
        bounds = dict(self._open(group))
        now = list(bounds)
        if not now:
            return []
        self._phase(f"solving up to candidate {place}", now[0])
        self.record.count("solved", len(now))
        with self.record.layer(BLOCKS):
            outcomes = self.evaluator.evaluate_many(
                now, [self.limit(candidate) for candidate in now], self.cutoff_ns
            )
        tight: list[Tight] = []
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                tight.append((outcome[0], max(outcome[1], bounds[outcome[0]])))
            else:
                self.ranking.add(_raised(outcome, bounds[outcome.candidate]))
        return tight

    def _squeezed(self, group: list[Tight]) -> None:
        """Solve candidates so that they fit their memory, but for those with nothing to gain."""
        if now := self._open(group):
            self._make_room(now, self.cutoff_ns)

    def _make_room(self, now: list[Tight], cutoff_ns: float) -> None:
        self._phase(f"making room in {counted(len(now), 'candidates')}", now[0][0])
        self.record.count("squeezed", len(now))
        with self.record.layer(BLOCKS):
            outcomes = self.evaluator.squeeze_many(
                now, [self.limit(candidate) for candidate, _ in now], cutoff_ns
            )
        for outcome in outcomes:
            self.ranking.add(outcome)

    def _open_outcomes(self) -> list[Outcome]:
        """Outcomes that keep the gap above the one that was asked for."""
        least = self.ranking.best_ns / (1 + self.request.max_gap)
        return [outcome for outcome in self.ranking.everything if outcome.bound_ns < least]

    def _polish(self) -> None:
        """Mix more where room was made in the best plans; a simulator may like either."""
        ranking = self.ranking
        best_plans = sorted(ranking.solved_plans, key=lambda plan: plan.division.step_ns)[:ENOUGH]
        near = [plan for plan in best_plans if plan.division.step_ns <= NEAR * ranking.best_ns]
        mixed = [plan for plan in near if len(plan.solved) > 1]
        if mixed and ranking.best_ns > ranking.bound_ns * (1 + self.request.max_gap):
            self._phase(f"mixing more in {counted(len(mixed), 'plans')}")
            limits = [self.limit(plan.candidate) for plan in mixed]
            better = self.evaluator.polish(mixed, limits)
            pairs = zip(better, mixed, strict=True)
            ranking.solved_plans += [new for new, old in pairs if new is not old]

    def _refine(self) -> int:
        """Solve the candidates with the lowest bounds better until the gap is what was asked for.

        Return the number of candidates that were refined.
        """
        ranking, max_gap = self.ranking, self.request.max_gap
        done: set[Candidate] = set()
        if max_gap and not ranking.solved_plans and _hopeless(ranking):
            return 0
        if max_gap and ranking.solved_plans and len(self._open_outcomes()) > REFINED:
            return 0  # those left would keep the gap open
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
            self._phase(f"refining number {len(done)}", lowest.candidate)
            better = self.evaluator.refine(lowest, self.limit(lowest.candidate), ranking.best_ns)
            others = [outcome for outcome in ranking.everything if outcome is not lowest]
            ranking.solved_plans, ranking.pruned, ranking.refused = [], [], []
            for outcome in (*others, better):
                ranking.add(outcome)
        return len(done)


def _bounds(waiting: list[Waiting]) -> list[Tight]:
    """Candidates that wait, with their bounds."""
    return [(candidate, bound) for _, bound, _, candidate in waiting]


def _raised(outcome: Outcome, bound_ns: float) -> Outcome:
    """An outcome of which this bound was known before."""
    if isinstance(outcome, SolvedPlan):
        bound_ns = min(bound_ns, outcome.division.step_ns)
    return replace(outcome, bound_ns=max(outcome.bound_ns, bound_ns))


def _worth(candidate: Candidate, eased: Mapping[PipelineShape, float]) -> float:
    """The bound below which another mesh may be worth making room for."""
    return BETTER_MESH * eased.get(shape_of(candidate.pipeline), float("inf"))


def _without_larger(
    waiting: list[Waiting], tight: list[Tight], ranking: Ranking
) -> tuple[list[Waiting], list[Tight]]:
    """Refuse candidates with larger microbatches than equal ones that are far from fitting."""
    short: dict[object, Refused] = {}
    for refused in ranking.refused:
        error = refused.error
        if isinstance(error, MemoryLimitError) and error.needed_bytes > FAR * error.limit_bytes:
            key = _but_batch(refused.candidate)
            if key not in short or refused.candidate.batch < short[key].candidate.batch:
                short[key] = refused

    def cannot(candidate: Candidate, bound: float) -> bool:
        smaller = short.get(_but_batch(candidate))
        if smaller is None or smaller.candidate.batch > candidate.batch:
            return False
        ranking.refused.append(Refused(candidate, smaller.error, bound))
        return True

    return (
        [bounded for bounded in waiting if not cannot(bounded[3], bounded[1])],
        [bounded for bounded in tight if not cannot(*bounded)],
    )


def _but_batch(candidate: Candidate) -> tuple[object, ...]:
    """Key that candidates share which are equal but for their microbatches."""
    pipeline = candidate.pipeline
    return candidate.axes, pipeline.schedule, pipeline.stages, pipeline.interleave


def _hopeless(ranking: Ranking) -> bool:
    """True if memory is so short that solving better cannot make room."""
    short = [
        refused.error for refused in ranking.refused if isinstance(refused.error, MemoryLimitError)
    ]
    return bool(short) and all(error.needed_bytes > HOPELESS * error.limit_bytes for error in short)
