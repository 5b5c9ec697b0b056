"""Mixed loop: candidates whose blocks mix variants, bounded by cuts and solved for their promise.

Candidates of the lowest estimates (the bound, and what memory that is short would cost) are solved
until there is a plan. Then those of the lowest bounds ask for their blocks at prices, many at a
time (`cut_bounds.py`), until no bound is below the best plan by more than the gap, or so much was
asked. Columns that are mixed in any shares say which candidates promise a better plan: these are
solved. Where no gap is allowed, all are solved whose bounds are below the best plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from millrace.planner.errors import InfeasibleError
from millrace.planner.formatting import counted
from millrace.planner.search.candidate_loop import CandidateLoop, Standing
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.decomposition.block_oracle import BlockOracle
from millrace.planner.search.decomposition.cut_bounds import CutBounds, OpenCandidate
from millrace.planner.search.evaluation import (
    NEAR,
    NO_GAIN,
    Outcome,
    Pruned,
    Refused,
    SolvedPlan,
)
from millrace.planner.search.request import MemoryLimitError
from millrace.planner.search.search_log import BLOCKS, PROOF, SHAPES
from millrace.planner.search.uniform.site_bounds import site_bounds_ns

Bounded = tuple[Candidate, float]

# Candidates at a time, of either loop. DeepSeek-V3 on 2,048 H100 has the same plan where 500 are
# solved, and room is made in 96, by estimates alone.
MANY = 24  # candidates solved together as if memory hardly mattered
SQUEEZED = 4  # candidates made room in together: few, as a good plan prunes the rest
ENOUGH = 3  # plans near the best, from which no other is wanted that is no better
TOGETHER = 24  # candidates that ask together
BETTER = 0.998  # of the best step, from which a promise is not worth solving for
FAR = 1.2  # a microbatch that needs this times the memory rules out larger ones
# Block programs, times the gap, after which no more are asked, beside those of time alone and one
# for each candidate: a tighter gap is given more work, down to the ascent's own of half a percent.
WORK, TIGHTEST_GAP = 20, 0.005
LEFT = "nothing that is known of its blocks promises a better plan"


class MixedLoop(CandidateLoop):
    """Loop over candidates of a request whose blocks may be of several variants.

    Parameters
    ----------
    *asked, **options
        As for `CandidateLoop`.
    """

    def __init__(self, *asked: Any, **options: Any) -> None:
        super().__init__(*asked, **options)
        evaluator = self.evaluator
        oracle = BlockOracle(evaluator.programs, evaluator.modes)
        self.cuts = CutBounds(oracle, evaluator.graph, evaluator.asker, evaluator.sends)
        self.bounds_ns: dict[Candidate, float] = {}
        self.opened: dict[Candidate, OpenCandidate] = {}
        self.outcome_of: dict[Candidate, Outcome] = {}
        self.squeezed: set[Candidate] = set()
        self.work_most = 0.0

    # -- rounds ------------------------------------------------------------------------------------

    def rounds(self) -> Iterator[Standing]:
        """Solve a few candidates, raise the bounds of others, and solve what promises more."""
        self.tell(f"bounding {counted(len(self.candidates), 'candidates')}")
        with self.record.layer(SHAPES):
            waiting = self._bounded()
        self.record.count("bounded", len(self.candidates))
        yield self.standing
        yield from self._solved_first(waiting)
        if self._solves_all or self.evaluator.request.plan_only:
            return
        with self.record.layer(PROOF):
            self._open()
        while (batch := self._batch()) or self._promising:
            self.tell(str(self.standing.and_of(self.other)))
            with self.record.layer(PROOF):
                self._raise(batch)
            self._make_room(self._promising, NEAR * self.best_ns)
            yield self.standing

    def open_bounds_ns(self) -> list[float]:
        """Bounds of candidates that may be better than the best plan."""
        return [bound for bound in self.bounds_ns.values() if bound < self._cutoff_ns]

    @property
    def _cutoff_ns(self) -> float:
        """Bound at which a candidate has nothing to gain."""
        return self.best_ns / (1 + self.evaluator.request.max_gap)

    @property
    def _solves_all(self) -> bool:
        """True if no candidate is left to its bound."""
        return self.apart or not self.evaluator.request.max_gap

    # -- plans -------------------------------------------------------------------------------------

    def _bounded(self) -> list[Bounded]:
        """Candidates by ascending estimate; those without a legal signature are refused."""
        bounds = self.evaluator.lower_bounds_ns(self.candidates, self._cutoff_ns)
        for candidate, bound in zip(self.candidates, bounds, strict=True):
            if isinstance(bound, InfeasibleError):
                self.outcome_of[candidate] = Refused(candidate, bound)
            else:
                self.bounds_ns[candidate] = bound
        return sorted(self.bounds_ns.items(), key=lambda pair: (self._estimate_ns(*pair), pair[1]))

    def _estimate_ns(self, candidate: Candidate, bound_ns: float) -> float:
        """Estimate that orders candidates: their bound, where no gap is allowed."""
        exact = not self.evaluator.request.max_gap
        return bound_ns if exact else self.evaluator.estimate_ns(candidate, bound_ns)

    def _solved_first(self, waiting: list[Bounded]) -> Iterator[Standing]:
        """Solve candidates by ascending estimate until there is a plan, or all of them.

        As if memory hardly mattered at first; without a plan, room is made where least is needed.
        """
        tight: list[Bounded] = []
        while (waiting or tight) and (self._solves_all or self.best_ns == inf):
            # By themselves room is made at once.
            tight += waiting[:MANY] if self.apart else self._solved(waiting[:MANY])
            waiting = waiting[MANY:]
            yield self.standing
            while tight:
                has_plan = self.best_ns < inf
                tight.sort(key=lambda p: (0 if has_plan else p[0].batch, self._estimate_ns(*p)))
                now, tight = tight[:SQUEEZED], tight[SQUEEZED:]
                self._make_room([c for c, bound in now if bound < self._wanted_ns], self._wanted_ns)
                yield self.standing
                if self.best_ns == inf:
                    waiting, tight = self._without_larger(waiting), self._without_larger(tight)
                elif not self._solves_all:
                    break

    @property
    def _wanted_ns(self) -> float:
        """Step up to which plans are wanted: near the best, until there are enough of them.

        The simulator may like either.
        """
        if self.apart:
            return self.best_ns
        steps = [o.division.step_ns for o in self.outcome_of.values() if isinstance(o, SolvedPlan)]
        near = sum(step_ns <= NEAR * self.best_ns for step_ns in steps)
        return self._cutoff_ns * (NEAR if near < ENOUGH else 1.0)

    def _solved(self, group: Sequence[Bounded]) -> list[Bounded]:
        """Solve candidates as if memory hardly mattered; return those where it does."""
        now = [candidate for candidate, bound in group if bound < self._wanted_ns]
        if not now:
            return []
        self.tell(f"solving {counted(len(now), 'candidates')}, the first {now[0].text}")
        self.record.count("solved", len(now))
        limits = [self.limit(candidate) for candidate in now]
        tight: list[Bounded] = []
        with self.record.layer(BLOCKS):
            outcomes = self.evaluator.evaluate_many(now, limits, self._wanted_ns)
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                candidate, bound_ns = outcome
                self._rise(candidate, bound_ns)
                tight.append((candidate, self.bounds_ns[candidate]))
            else:
                self._know(outcome)
        return tight

    def _make_room(self, now: Sequence[Candidate], wanted_ns: float) -> None:
        """Solve candidates so that they fit their memory."""
        if not now:
            return
        self.tell(f"making room in {counted(len(now), 'candidates')}, the first {now[0].text}")
        self.record.count("squeezed", len(now))
        self.squeezed.update(now)
        limits = [self.limit(candidate) for candidate in now]
        with self.record.layer(BLOCKS):
            tight = [(candidate, self.bounds_ns[candidate]) for candidate in now]
            outcomes = self.evaluator.squeeze_many(tight, limits, wanted_ns)
            if self.apart:  # solved together, as that is quick; divided alone, as others prune
                outcomes = [
                    self.evaluator.squeeze_many([pair], [limit], wanted_ns)[0]
                    for pair, limit in zip(tight, limits, strict=True)
                ]
        for outcome in outcomes:
            self._know(outcome)

    def _know(self, outcome: Outcome) -> None:
        """Keep an outcome, unless a better plan of its candidate is known."""
        if outcome.bound_ns < inf:
            self._rise(outcome.candidate, outcome.bound_ns)
        else:  # it is proven to have no plan
            del self.bounds_ns[outcome.candidate]
            self.opened.pop(outcome.candidate, None)
        before = self.outcome_of.get(outcome.candidate)
        if not isinstance(outcome, SolvedPlan):
            self.outcome_of.setdefault(outcome.candidate, outcome)
        elif not isinstance(before, SolvedPlan) or (
            outcome.division.step_ns < before.division.step_ns
        ):
            self.outcome_of[outcome.candidate] = outcome
            if not self.apart:
                self.best_ns = min(self.best_ns, outcome.division.step_ns)

    def _rise(self, candidate: Candidate, bound_ns: float) -> None:
        self.bounds_ns[candidate] = max(self.bounds_ns[candidate], bound_ns)

    def _without_larger(self, waiting: list[Bounded]) -> list[Bounded]:
        """Refuse candidates with larger microbatches than equal ones that are far from fitting."""
        short: dict[object, Refused] = {}
        for refused in self.outcome_of.values():
            error = refused.error if isinstance(refused, Refused) else None
            if isinstance(error, MemoryLimitError) and error.needed_bytes > FAR * error.limit_bytes:
                assert isinstance(refused, Refused)
                key = _but_batch(refused.candidate)
                if key not in short or refused.candidate.batch < short[key].candidate.batch:
                    short[key] = refused
        left = []
        for candidate, bound_ns in waiting:
            smaller = short.get(_but_batch(candidate))
            if smaller is None or smaller.candidate.batch > candidate.batch:
                left.append((candidate, bound_ns))
            else:
                self._know(Refused(candidate, smaller.error, bound_ns))
        return left

    # -- bounds ------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Bound candidates whose bounds leave a gap by the times of their blocks."""
        low = {c: bound for c, bound in self.bounds_ns.items() if bound < self._cutoff_ns}
        if not self.evaluator.request.runs.mixed:  # layers are equal
            self.record.count("programs at prices", len(low))
            self.bounds_ns |= site_bounds_ns(self.evaluator, low)
            return
        opened = self.cuts.opened(list(low.items()))
        self.opened = {open_candidate.candidate: open_candidate for open_candidate in opened}
        self.cuts.ask(opened)
        more = WORK / max(self.evaluator.request.max_gap, TIGHTEST_GAP)
        self.work_most = self.cuts.work + more + len(opened)

    def _batch(self) -> list[OpenCandidate]:
        """Candidates of the lowest bounds, and of the lowest estimates, that have more to ask.

        One that rises no further holds the gap, whatever others rise to.
        """
        if self.cuts.work >= self.work_most:
            return []
        opened = sorted(self.opened.values(), key=lambda each: each.bound_ns)
        held_ns = next((each.bound_ns for each in opened if each.done), inf)
        least_ns = min(self._cutoff_ns, self.held_ns, held_ns)
        left = [each for each in opened if not each.done and each.bound_ns < least_ns]
        likely = sorted(
            (each for each in left if each.mixed_ns == inf),
            key=lambda each: self._estimate_ns(each.candidate, each.bound_ns),
        )
        batch = {each.candidate: each for each in (*left[:TOGETHER], *likely[:TOGETHER])}
        return list(batch.values())

    def _raise(self, batch: list[OpenCandidate]) -> None:
        """Raise the bounds of candidates by what they ask."""
        before = self.cuts.oracle.solved, self.cuts.solved
        self.cuts.round(batch, self._cutoff_ns)
        self.record.count("programs at prices", self.cuts.oracle.solved - before[0])
        self.record.count("linear programs", self.cuts.solved - before[1])
        for open_candidate in batch:
            self._rise(open_candidate.candidate, open_candidate.bound_ns)

    @property
    def _promising(self) -> list[Candidate]:
        """Candidates in which no room was made yet that promise most over the best plan, a few."""
        promises = [
            (promised_ns, number, candidate)
            for number, (candidate, promised_ns) in enumerate(self._promised_ns())
            if candidate not in self.squeezed and promised_ns < BETTER * self.best_ns
        ]
        return [candidate for *_, candidate in sorted(promises)[:SQUEEZED]]

    def _promised_ns(self) -> Iterator[tuple[Candidate, float]]:
        """Yield what columns of candidates come to in any shares; estimates of equal layers."""
        if self.evaluator.request.runs.mixed:
            for open_candidate in self.opened.values():
                yield open_candidate.candidate, open_candidate.mixed_ns
            return
        for candidate, bound_ns in self.bounds_ns.items():
            if bound_ns < self._cutoff_ns:
                yield candidate, self._estimate_ns(candidate, bound_ns)

    # -- outcomes ----------------------------------------------------------------------------------

    def outcomes(self) -> list[Outcome]:
        """Best plans of candidates, and bounds of all."""
        return [self._outcome(candidate) for candidate in self.candidates]

    def _outcome(self, candidate: Candidate) -> Outcome:
        outcome = self.outcome_of.get(candidate)
        bound_ns = self.bounds_ns.get(candidate, inf)
        if outcome is None:
            reason = NO_GAIN if bound_ns >= self._cutoff_ns else LEFT
            return Pruned(candidate, bound_ns, reason)
        if isinstance(outcome, SolvedPlan):
            bound_ns = min(bound_ns, outcome.division.step_ns)
        return replace(outcome, bound_ns=bound_ns)


def _but_batch(candidate: Candidate) -> tuple[object, ...]:
    """Key that candidates share which are equal but for their microbatches."""
    pipeline = candidate.pipeline
    return candidate.axes, pipeline.schedule, pipeline.stages, pipeline.interleave
