"""Evaluation: the best plan of each candidate shape, and what such a plan costs at least.

Candidates are taken many at a time. Their block programs are first solved at a price of memory so
small that it only breaks ties; where the answer does not fit, they are solved again in every mode
of recomputation and at several prices, and the stages mix what comes of it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from millrace.models.arrays import Floats
from millrace.models.graph import Graph
from millrace.planner.costs.launch_overhead import hidden_share
from millrace.planner.errors import InfeasibleError
from millrace.planner.frameworks.capabilities import MODES
from millrace.planner.plan import block_runs
from millrace.planner.schedules import PLAIN
from millrace.planner.search.asking import TIE_BREAKER, Asker, prices, shared_prices
from millrace.planner.search.blocks.block_milp import FigurePrices
from millrace.planner.search.blocks.cost_tables import INFLIGHT, PERSISTENT
from millrace.planner.search.blocks.solver import Solution
from millrace.planner.search.blocks.variants import Handover, handover
from millrace.planner.search.candidates import Candidate
from millrace.planner.search.joint import Solutions, joint_solutions
from millrace.planner.search.joint.recompute_modes import by_mode
from millrace.planner.search.meshes import FREE_AXES_MAX
from millrace.planner.search.pins import Pins
from millrace.planner.search.placement_groups import StageTransfers, room, usable_bytes
from millrace.planner.search.programs import Ask, Programs, Shape, Wanted
from millrace.planner.search.request import MemoryLimitError, SearchRequest
from millrace.planner.search.stages import (
    BlockRun,
    Division,
    Pipeline,
    divide,
    divide_evenly,
    in_order,
    inflight_counts,
    lower_bound_ns,
    memory_pressure_slowdown,
)
from millrace.planner.search.stages.even_layers import EvenLayers

ALONE = FigurePrices(step=0.0, deferrable=0.0)  # what no schedule can defer
NEAR = 1.02  # plans up to so much slower are solved too, for the simulator to rank
SWEPT_FIRST = 50  # from so many candidates, or with more than two axes, bounds include boxing
SWEEPS, FEWER = 12, 8  # ascent's sweeps per program; where variants to mix, not bounds, come of it
# Where memory is tight: its prices. The first says how blocks hand tensors on; the others are two
# groups that take equally long.
FIRST_PRICE = 0.03
MODE_PRICES = (
    (("none", 0.3), ("selective", 0.1)),
    (("full", 0.1), ("full", 3.0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedPlan:
    """The best plan of a candidate: solutions, their division and the bound of every such plan."""

    candidate: Candidate
    division: Division
    bound_ns: float
    solved: tuple["Solved", ...]  # the block programs that the division numbers


@dataclass(frozen=True, slots=True)
class Pruned:
    """A candidate that was not solved to its end: its bound, and why."""

    candidate: Candidate
    bound_ns: float
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate without a plan; `bound_ns` where that is not proven."""

    candidate: Candidate
    error: InfeasibleError
    bound_ns: float = float("inf")


@dataclass(frozen=True, slots=True)
class Solved:
    """A solution of a candidate's block program in one mode of recomputation."""

    mode: str
    solution: Solution


Limits = tuple[int, ...]
Outcome = SolvedPlan | Pruned | Refused
NO_GAIN = "its lower bound leaves nothing to gain"


class Evaluator:
    """Evaluator of candidates; graphs, tables and solutions are made once and shared.

    Parameters
    ----------
    request : SearchRequest
    graph : Graph
        The training graph, of any batch.
    dividing : callable, optional
        Context in which every division into stages is made, for a caller that counts and times.

    Attributes
    ----------
    slowdowns : dict
        Times that the bound of a candidate is expected to be exceeded where memory is short.
    """

    def __init__(
        self,
        request: SearchRequest,
        graph: Graph,
        dividing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.request = request
        self.dividing = dividing
        self.graph = graph
        self.programs = Programs(request, graph)
        self.sends = StageTransfers(request.cluster, self.programs.handed_bytes)
        self._under: dict[Pins, Evaluator] = {}
        self.modes = tuple(mode for mode in MODES if mode in request.runs.recompute)
        if request.pins.recompute:
            self.modes = (request.pins.recompute,)
        self._loose = request.max_gap / 2  # gap of programs whose solutions are mixed
        self.overlap = hidden_share(request.cluster) if request.max_gap else None  # None: exact
        self.asker = Asker(request, self.programs, self.modes[0])
        self.slowdowns: dict[Candidate, float] = {}

    def under(self, pins: Pins) -> "Evaluator":
        """An evaluator of the same question under other pins, made once."""
        if pins not in self._under:
            self._under[pins] = Evaluator(replace(self.request, pins=pins), self.graph)
        return self._under[pins]

    def shape(self, candidate: Candidate) -> Shape:
        """Shape of a candidate, which its tables depend on."""
        return self.asker.shape(candidate)

    def lower_bounds_ns(
        self, candidates: Sequence[Candidate], cutoff_ns: float = float("inf")
    ) -> list[float | InfeasibleError]:
        """Bounds without solving: every op at its fastest, no boxing, stages in balance."""
        shapes = [self.shape(candidate) for candidate in candidates]
        vectors = [prices(candidate.pipeline).vector.tolist() for candidate in candidates]
        try:
            costs = self.programs.cheapest(shapes, self.modes[0], vectors)
        except InfeasibleError as error:
            return [error] * len(candidates)
        bounds = np.maximum(costs, self._floors(candidates, shapes, costs, cutoff_ns)).tolist()
        return [
            self._raised(candidate, bound / candidate.pipeline.stages)
            if np.isfinite(bound)
            else self.programs.refusal(shape, self.modes[0])
            for candidate, shape, bound in zip(candidates, shapes, bounds, strict=True)
        ]

    def _raised(self, candidate: Candidate, bound_ns: float) -> float | InfeasibleError:
        """Bound with what stages send, and on several kinds of device that of equal layers."""
        bound_ns += self.sends.waits_ns(candidate)
        shape, graph = self.shape(candidate), self.graph
        if self.request.runs.mixed or len(shape.sites) == 1:
            return bound_ns
        try:
            blocks = {block: graph.templates[block] for block in graph.blocks}
            even = EvenLayers(blocks, self.sends.pipeline(candidate), self.request.runs.layers)
        except InfeasibleError as error:
            return error
        times_ns = [self.programs.least_block_times_ns(p, self.modes[0]) for p in shape.parts]
        return max(bound_ns, even.least_step_ns(np.array(times_ns)))

    def _floors(
        self,
        candidates: Sequence[Candidate],
        shapes: Sequence[Shape],
        costs: Floats,
        cutoff_ns: float,
    ) -> Floats:
        """Bounds with boxing, from a few sweeps over one program per mesh and microbatch.

        The program has the prices of 1F1B. Another schedule pays less for the ramp, at most by as
        much as the weights of a microbatch differ.
        """
        floors = np.zeros(len(candidates))
        usual = all(len(candidate.axes) <= FREE_AXES_MAX for candidate in candidates)
        if usual and len(candidates) < SWEPT_FIRST:
            return floors
        stages = np.array([candidate.pipeline.stages for candidate in candidates])
        legal = np.flatnonzero(np.isfinite(costs) & (costs < cutoff_ns * stages)).tolist()
        plain = [
            replace(c, pipeline=replace(c.pipeline, schedule=PLAIN, interleave=1))
            for c in candidates
        ]
        limits = [usable_bytes(self.request, plain[place]) for place in legal]
        endless = [float("inf")] * len(legal)
        asks = self.asker.asks(
            [plain[place] for place in legal], self.modes[0], TIE_BREAKER, endless
        )
        alone = self.programs.cheapest(
            [shapes[place] for place in legal], self.modes[0], [ALONE.vector.tolist()] * len(legal)
        )
        for place, ask, (bound, solution), now, limit in zip(
            legal, asks, self.programs.bounds(asks, 3), alone.tolist(), limits, strict=True
        ):
            if not isinstance(solution, float):
                share = self._held_share(candidates[place], solution, limit)
                self.slowdowns[candidates[place]] = memory_pressure_slowdown(
                    candidates[place].pipeline, share
                )
            candidate_prices = prices(candidates[place].pipeline)
            lightest = (
                candidate_prices.microbatch
                if candidate_prices.deferrable is None
                else candidate_prices.deferrable
            )
            share = lightest / prices(plain[place].pipeline).microbatch
            paid = ask.prices[2] * room(plain[place], limit)
            # What cannot be deferred is paid in full.
            floors[place] = (
                share * max(0.0, bound - paid) + (candidate_prices.microbatch - lightest) * now
            )
        return floors

    def estimate_ns(self, candidate: Candidate, bound_ns: float) -> float:
        """Estimate of a candidate's step, by its bound and what room would cost; proves nothing."""
        return bound_ns * self.slowdowns.get(candidate, 1.0)

    def _held_share(self, candidate: Candidate, solution: Solution, limits: Limits) -> float:
        """Bytes that all stages hold with a solution, as a share of the room there is."""
        counts = inflight_counts(candidate.pipeline)
        inflight_bytes = solution.figures[INFLIGHT] * sum(counts) / len(counts)
        return (solution.figures[PERSISTENT] + inflight_bytes) / max(room(candidate, limits), 1)

    def evaluate_many(
        self, candidates: Sequence[Candidate], limits: Sequence[Limits], best_ns: float
    ) -> list[Outcome | tuple[Candidate, float]]:
        """Solve each candidate as if memory hardly mattered.

        Returns
        -------
        list
            Per candidate what came of it; a candidate with its bound where memory does matter.
        """
        cutoffs = [self._cutoff(candidate, best_ns) for candidate in candidates]
        asks = self.asker.asks(candidates, self.modes[0], TIE_BREAKER, cutoffs)
        solutions = self.programs.solve_many(asks, SWEEPS, self.request.max_gap / 4)
        outcomes: list[Outcome | tuple[Candidate, float]] = []
        for candidate, limit, ask, solution in zip(
            candidates, limits, asks, solutions, strict=True
        ):
            bound = self._bound(candidate, solution, ask, limit)
            if bound >= best_ns:
                outcomes.append(Pruned(candidate, bound, NO_GAIN))
                continue
            if isinstance(solution, float):
                outcomes.append(self._unsolved(candidate, bound))
                continue
            group, pipeline = [Solved(self.modes[0], solution)], self.sends.pipeline(candidate)
            try:
                outcome = self._divide_blocks(candidate, group, limit, bound, best_ns)
            except MemoryLimitError as error:
                uneven = lower_bound_ns(self.runs(candidate, group), pipeline) / max(bound, 1)
                short = memory_pressure_slowdown(
                    candidate.pipeline, error.needed_bytes / max(error.limit_bytes, 1)
                )
                self.slowdowns[candidate] = max(1.0, uneven) * short
                outcomes.append((candidate, bound))
            except InfeasibleError as error:
                outcomes.append(Refused(candidate, error))
            else:
                outcomes.append(outcome)
                best_ns = self._lowered(best_ns, outcome)
        return outcomes

    def _unsolved(self, candidate: Candidate, bound: float) -> Refused:
        """Refusal where nothing was read off the ascent: proof only where options alone say so."""
        error = InfeasibleError(f"no signatures fit together on {candidate.sizes}")
        try:
            self.programs.tables(self.shape(candidate), self.modes[0])
        except InfeasibleError:
            return Refused(candidate, error)
        return Refused(candidate, error, bound)

    def squeeze_many(
        self, tight: Sequence[tuple[Candidate, float]], limits: Sequence[Limits], best_ns: float
    ) -> list[Outcome]:
        """Solve candidates in every mode of recomputation and at every price of memory."""
        candidates = [candidate for candidate, _ in tight]
        later = [candidate.pipeline.defers_weight_gradients for candidate in candidates]
        groups: list[list[Solved]] = [[] for _ in tight]
        # All others hand tensors on as the first do, so that stages can mix them.
        handed: list[Handover] = [()] * len(tight)

        def asks_at(mode_prices: Sequence[tuple[str, float]]) -> list[Wanted]:
            asked = []
            for mode, share in mode_prices:
                asks = self.asker.asks(candidates, mode, share, [float("inf")] * len(tight))
                for ask, handover_, deferring in zip(asks, handed, later, strict=True):
                    asked.append((replace(ask, handover=handover_), deferring))
            return asked

        def note(asked: Sequence[Wanted], solutions: Sequence[Solution | float]) -> None:
            for number, ((ask, _), solution) in enumerate(zip(asked, solutions, strict=True)):
                if not isinstance(solution, float):
                    groups[number % len(groups)].append(Solved(ask.mode, solution))

        first = asks_at([(self.modes[0], FIRST_PRICE)])
        solutions = self.programs.solve_many([ask for ask, _ in first], FEWER, self._loose)
        note(first, solutions)
        for number, ((ask, _), solution) in enumerate(zip(first, solutions, strict=True)):
            if not isinstance(solution, float):
                space = self.programs.space(ask.shape, ask.mode)
                handed[number] = handover(space, solution.options)
        plain, full = (
            asks_at([(mode, share) for mode, share in mode_prices if mode in self.modes])
            for mode_prices in MODE_PRICES
        )
        both = self.programs.solve_beside(plain, full, FEWER, self._loose)
        for asked, solutions in zip((plain, full), both, strict=True):
            note(asked, solutions)
        outcomes: list[Outcome] = []
        for (candidate, bound), limit, group in zip(tight, limits, groups, strict=True):
            if bound >= best_ns:
                outcomes.append(Pruned(candidate, bound, NO_GAIN))
                continue
            if not group:
                outcomes.append(self._unsolved(candidate, bound))
                continue
            try:
                group = self._with_recomputed(_distinct(group))
                outcome = self._divide_blocks(candidate, group, limit, bound, best_ns)
            except InfeasibleError as error:
                outcomes.append(Refused(candidate, error, bound))
            else:
                outcomes.append(outcome)
                best_ns = self._lowered(best_ns, outcome)
        return outcomes

    def options(self, candidate: Candidate) -> int:
        """Size of a candidate's block program."""
        return sum(
            c.size for c in self.programs.space(self.shape(candidate), self.modes[0]).choices
        )

    def refine(self, outcome: Outcome, limits: Limits, best_ns: float) -> Outcome:
        """Solve a candidate's program to the request's gap and return what is then known of it.

        Small candidates are decided jointly where no gap is allowed, or nothing fits so far.
        """
        candidate = outcome.candidate
        usual = self.request.max_gap and best_ns < float("inf")
        together = None if usual else self._jointly(candidate, limits, best_ns)
        try:
            solutions, least = together or self._by_mode(candidate, limits)
        except InfeasibleError as error:
            return Refused(candidate, error)
        bound = max(least, 0.0 if isinstance(outcome, Refused) else outcome.bound_ns)
        if not solutions:  # nothing fits that is better than the best
            known_ns = outcome.division.step_ns if isinstance(outcome, SolvedPlan) else bound
            return replace(outcome, bound_ns=min(bound, known_ns))
        try:
            solutions = self._with_recomputed(solutions)
            refined = self._divide_blocks(candidate, solutions, limits, bound)
        except InfeasibleError as error:
            return outcome if isinstance(outcome, SolvedPlan) else Refused(candidate, error, bound)
        assert isinstance(refined, SolvedPlan), "without a cutoff nothing is pruned"
        if isinstance(outcome, SolvedPlan) and outcome.division.step_ns <= refined.division.step_ns:
            return replace(outcome, bound_ns=min(bound, outcome.division.step_ns))
        return refined

    def _by_mode(self, candidate: Candidate, limits: Limits) -> tuple[list[Solved], float]:
        """Solutions with all blocks in one mode, for each mode, and the bound of all plans."""
        shape, memory_bytes = self.shape(candidate), room(candidate, limits)
        solutions, bound = by_mode(
            self.programs, shape, candidate.pipeline, self.modes, memory_bytes
        )
        least_ns = bound * self.unit(candidate) + self.sends.waits_ns(candidate)
        return [Solved(*pair) for pair in solutions], least_ns

    def _jointly(
        self, candidate: Candidate, limits: Limits, best_ns: float
    ) -> tuple[list[Solved], float] | None:
        """Decide a small candidate by the joint program; None: it is too large."""
        if len((shape := self.shape(candidate)).sites) > 1:
            return None

        def solved(mode: str, options: tuple[int, ...]) -> Solved:
            return Solved(mode, Solution(options=options, figures=(), cost=0.0, bound=0.0))

        def step_ns(solutions: Solutions) -> float:
            try:
                outcome = self._divide_blocks(
                    candidate, [solved(*s) for s in solutions], limits, 0.0
                )
                return outcome.division.step_ns if isinstance(outcome, SolvedPlan) else float("inf")
            except InfeasibleError:
                return float("inf")

        answer = joint_solutions(
            self.programs,
            shape,
            self.modes,
            self.sends.pipeline(candidate),
            (limits[0], best_ns),
            step_ns,
        )
        return answer and ([solved(*pair) for pair in answer[0]], answer[1])

    def _lowered(self, best_ns: float, outcome: SolvedPlan | Pruned) -> float:
        """Cutoff once a plan is known; others that are near it are wanted too."""
        return (
            min(best_ns, outcome.division.step_ns * NEAR)
            if isinstance(outcome, SolvedPlan)
            else best_ns
        )

    def unit(self, candidate: Candidate) -> float:
        """Step time per unit of a block program's cost.

        The cost counts every stage; it was solved at the prices that pipelines share.
        """
        pipeline = candidate.pipeline
        share = prices(pipeline).microbatch / shared_prices(pipeline).microbatch
        return share / pipeline.stages

    def _cutoff(self, candidate: Candidate, best_ns: float) -> float:
        """The bound of a program, its memory included, at which a candidate has nothing to gain."""
        left_ns = best_ns - self.sends.waits_ns(candidate)
        return left_ns / self.unit(candidate) * (1 + TIE_BREAKER)

    def _bound(
        self, candidate: Candidate, solution: Solution | float, ask: Ask, limits: Limits
    ) -> float:
        """Bound of every plan of a candidate: memory that is all used up has been paid for."""
        proven = solution if isinstance(solution, float) else solution.bound
        paid = ask.prices[2] * room(candidate, limits)
        least = max(0.0, proven - paid) * self.unit(candidate)
        return least + self.sends.waits_ns(candidate)

    def _divide_blocks(
        self,
        candidate: Candidate,
        group: list[Solved],
        limits: Limits,
        bound_ns: float,
        best_ns: float = float("inf"),
    ) -> SolvedPlan | Pruned:
        """Divide the blocks with these solutions, unless no division gains anything."""
        runs, pipeline = self.runs(candidate, group), self.sends.pipeline(candidate)
        if lower_bound_ns(runs, pipeline) >= best_ns:
            return Pruned(candidate, bound_ns, "its stages cannot be even enough")
        with self.dividing():
            beside = self.sends.buffer_bytes(candidate) if self.request.max_gap else 0
            division = self.divide(group, runs, pipeline, limits, beside, best_ns)
            division = in_order(division, runs, pipeline, self.overlap)
        return SolvedPlan(
            candidate=candidate,
            division=division,
            bound_ns=min(bound_ns, division.step_ns),
            solved=tuple(group),
        )

    def _with_recomputed(self, group: list[Solved]) -> list[Solved]:
        """Solutions, and those without recomputation in full recomputation too where that helps."""
        if not self.request.runs.recompute_some or self.modes[0] != MODES[0]:
            return group
        again = [Solved(MODES[-1], solved.solution) for solved in group if solved.mode == MODES[0]]
        return _distinct([*group, *again])

    def divide(
        self,
        group: Sequence[Solved],
        runs: tuple[BlockRun, ...],
        pipeline: Pipeline,
        limits: Limits,
        transient_bytes: int = 0,
        worse_ns: float = float("inf"),
    ) -> Division:
        """Division of the blocks as the framework deals them out, or freely."""
        if not self.request.runs.mixed:
            places = {(s.mode, s.solution.options): place for place, s in enumerate(group)}
            allowed = self.request.runs
            recomputed = {
                place: places[MODES[-1], options]
                for (mode, options), place in places.items()
                if allowed.recompute_some and mode == MODES[0] and (MODES[-1], options) in places
            }
            return divide_evenly(runs, pipeline, limits, transient_bytes, allowed, recomputed)
        gap = self.request.max_gap / 4
        return divide(runs, pipeline, limits, transient_bytes, gap, worse_ns)

    def runs(self, candidate: Candidate, group: Sequence[Solved]) -> tuple[BlockRun, ...]:
        """The blocks in runs, with the figures of every variant on every site."""
        later = candidate.pipeline.defers_weight_gradients
        figures = [
            [
                self.programs.block_figures(part, solved.mode, solved.solution.options, later)
                for solved in group
            ]
            for part in self.shape(candidate).parts
        ]
        runs: list[BlockRun] = []
        for run in block_runs(self.graph):
            template, blocks = run.template, run.blocks
            first, *others = (tuple(row[template] for row in site) for site in figures)
            runs.append(
                BlockRun(template=template, blocks=blocks, variants=first, elsewhere=(*others,))
            )
        return tuple(runs)


def _distinct(group: list[Solved]) -> list[Solved]:
    """Solutions, each of them once."""
    return list({(solved.mode, solved.solution.options): solved for solved in group}.values())
